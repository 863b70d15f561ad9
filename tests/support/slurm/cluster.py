"""A Slurm of two nodes on loopback: the real daemons, without systemd, in a folder of its own."""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from tests.support.waiting import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
INSTALL = "apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge"
_SECONDS = 180
_PR_SET_PDEATHSIG = 1

_CONF = """\
ClusterName=loopback
SlurmctldHost=localhost
SlurmctldPort={control}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=sched_interval=1,bf_interval=1
ReturnToService=2
GresTypes=gpu
KillWait=30
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=DEFAULT CPUs=2 RealMemory=4000 Gres=gpu:2 State=UNKNOWN
NodeName=n[1-2] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first}-{second}]
PartitionName=low Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=high Nodes=n[1-2] MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
_GPUS = "".join(f"NodeName=n{node} Name=gpu File=/dev/{name}\n" for node in (1, 2) for name in ("null", "zero"))
"""What Slurm hands out as GPUs: it wants a device for each, and opens none."""


def why_not():
    """Returns why no Slurm can be started here; empty if one can."""
    if os.geteuid():
        return "slurmd needs root"
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    return f"no {', '.join(missing)}: {INSTALL}" if missing else ""


class Slurm:
    """The daemons, until `stop`.

    Attributes:
      environ: what its programs need.
    """

    def __init__(self, folder):
        self.folder = Path(folder).resolve()
        self.environ = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._daemons = []

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self._stop_daemons()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def _start(self):
        for name in ("munge", "state", "spool.n1", "spool.n2"):
            (self.folder / name).mkdir(parents=True)
        for place in (self.folder, self.folder / "munge"):
            place.chmod(0o755)
        (self.folder / "munge" / "key").write_bytes(os.urandom(128))
        (self.folder / "munge" / "key").chmod(0o600)
        control, first, second = _ports()
        text = _CONF.format(folder=self.folder, control=control, first=first, second=second)
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "gres.conf").write_text(_GPUS)
        places = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        flags = [f"--{flag}={self.folder}/munge/{name}" for flag, name in places.items()]
        self._daemon("munged", "--foreground", "--force", *flags)
        until(lambda: (self.folder / "munge" / "socket").exists(), "munged is up")
        self._daemon("slurmctld", "-D", "-c")
        for node in ("n1", "n2"):
            self._daemon("slurmd", "-D", "-N", node)
        until(lambda: self("sinfo", "-h", "-p", "low", "-t", "idle", "-o", "%D").stdout.strip() == "2", "nodes are up")

    def _daemon(self, *words):
        environ = {**os.environ, **self.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        log = open(self.folder / f"{words[0]}.{len(self._daemons)}.out", "wb")  # noqa: SIM115
        self._daemons.append(
            subprocess.Popen(words, env=environ, stdout=log, stderr=log, start_new_session=True, preexec_fn=_die_along)
        )
        log.close()

    def __call__(self, *words):
        """Runs one of Slurm's programs."""
        environ = {**os.environ, **self.environ}
        return subprocess.run(words, env=environ, capture_output=True, text=True, check=False, timeout=_SECONDS)

    def jobs(self):
        """Returns the states of the jobs that have not ended, by id."""
        return dict(line.split() for line in self("squeue", "-h", "-o", "%i %T").stdout.splitlines())

    def until(self, is_so, what):
        """Waits, and shows the logs of the daemons if that was in vain."""
        try:
            until(is_so, what)
        except AssertionError as error:
            logs = "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("slurm*.log")))
            raise AssertionError(f"{error}\n{self('squeue').stdout}\n{logs}") from None

    def clear(self):
        """Ends all jobs."""
        for job in self.jobs():
            self("scancel", "--signal=KILL", "--full", job)
            self("scancel", job)
        self.until(lambda: not self.jobs(), "no job is left")

    def stop(self):
        """Ends jobs and daemons; nothing is left."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.clear()
        self._stop_daemons()

    def _stop_daemons(self):
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._daemons.clear()

    def left(self):
        """Returns the processes that belong to this Slurm."""
        mark = f"SLURM_CONF={self.folder}/".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes() and int(path.parent.name) != os.getpid():
                    found.append(int(path.parent.name))
        return found


def _ports():
    """Returns a free port, and two neighbours."""
    while True:
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            control, first = (held.enter_context(socket.socket()) for _ in range(2))
            for probe in (control, first):
                probe.bind(("127.0.0.1", 0))
            second = held.enter_context(socket.socket())
            second.bind(("127.0.0.1", first.getsockname()[1] + 1))
            return tuple(probe.getsockname()[1] for probe in (control, first, second))


def _die_along():
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
