"""A real PostgreSQL for tests; run by another user, because it refuses root."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.support.data_service import free_port

BINARIES = [*Path("/usr/lib/postgresql").glob("*/bin"), Path("/usr/local/bin")]
PLACE = next((each for each in BINARIES if (each / "postgres").exists() and (each / "initdb").exists()), None)

needs_postgresql = pytest.mark.skipif(
    PLACE is None or os.geteuid() != 0 or shutil.which("runuser") is None,
    reason="left out: needs PostgreSQL, and root, who starts it as another user",
)


class PostgreSQL:
    """A cluster of its own.

    Attributes:
      url: of its database, with a password.
    """

    def __init__(self, folder):
        self.folder, port = folder, free_port()
        self.url = f"postgresql+psycopg://nobody:secret@127.0.0.1:{port}/postgres"
        self._options = f"-p {port} -k '' -c listen_addresses=127.0.0.1 -c fsync=off"
        self._run("initdb", "--auth=trust", "--username=nobody", "--no-sync")

    def start(self):
        self._run("pg_ctl", "--wait", f"--log={self.folder}/log", f"--options={self._options}", "start")

    def stop(self):
        self._run("pg_ctl", "--wait", "--mode=immediate", "stop")

    def _run(self, name, *words):
        argv = ["runuser", "-u", "nobody", "--", str(PLACE / name), f"--pgdata={self.folder}/data", *words]
        subprocess.run(argv, check=True, cwd="/", stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def postgresql():
    """Starts one, and removes it at the end."""
    folder = tempfile.mkdtemp()
    shutil.chown(folder, "nobody")
    server = PostgreSQL(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)
