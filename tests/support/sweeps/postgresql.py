"""A real PostgreSQL for tests, which is stopped and started; run by another user, because it refuses root."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import optuna
import pytest

from official_trainer.sweeps import trial as trials
from tests.support.data_service import free_port

BINARIES = [*Path("/usr/lib/postgresql").glob("*/bin"), Path("/usr/local/bin")]
PLACE = next((each for each in BINARIES if (each / "postgres").exists() and (each / "initdb").exists()), None)


def is_there():
    """Whether it can be started."""
    return PLACE is not None and os.geteuid() == 0 and shutil.which("runuser") is not None


needs_postgresql = pytest.mark.skipif(
    not is_there(), reason="left out: needs PostgreSQL, and root, who starts it as another user"
)


class PostgreSQL:
    """A cluster of its own."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        self.url = f"postgresql://nobody:secret@127.0.0.1:{self.port}/postgres"
        self.address = self.url.replace(":secret", "")  # which it takes as well
        self._run("initdb", "--auth=trust", "--username=nobody", "--no-sync")

    def start(self):
        options = f"-p {self.port} -k '' -c listen_addresses=127.0.0.1 -c fsync=off"
        self._run("pg_ctl", "--wait", f"--log={self.folder}/log", f"--options={options}", "start")

    def stop(self):
        self._run("pg_ctl", "--wait", "--mode=immediate", "stop")

    def trials(self):
        storage = optuna.storages.RDBStorage(self.url.replace("postgresql:", "postgresql+psycopg:"))
        try:
            (name,) = optuna.get_all_study_names(storage)
            return optuna.load_study(study_name=name, storage=storage).trials
        finally:
            storage.engine.dispose()

    def expect_trials(self, directory):
        """Expects each trial of a sweep once, as it is on record."""
        records = trials.read_all(str(directory))
        found = self.trials()
        assert [each.number for each in found] == list(records) == list(range(len(records)))
        assert [each.state.name for each in found] == ["COMPLETE"] * len(records)
        assert [each.value for each in found] == [each.value for each in records.values()]
        assert [each.params for each in found] == [each.values for each in records.values()]
        assert len({each.user_attrs["run"] for each in found}) == len(records)

    def _run(self, name, *words):
        argv = ["runuser", "-u", "nobody", "--", str(PLACE / name), f"--pgdata={self.folder}/data", *words]
        subprocess.run(argv, check=True, cwd="/", stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def postgresql():
    """Starts one, and removes it at the end."""
    folder = tempfile.mkdtemp()
    shutil.chown(folder, "nobody")
    found = PostgreSQL(folder)
    found.start()
    try:
        yield found
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):  # a test has stopped it
            found.stop()
        shutil.rmtree(folder)
