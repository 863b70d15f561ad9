"""Processes that Python's fork server forks: what each finds, how it ends, and that none outlives its driver."""

import os
import signal
import subprocess
import sys
from multiprocessing import connection
from pathlib import Path

import pytest

from official_trainer.processes import forked
from official_trainer.processes.forked import ForkedProcess
from tests import ROOT
from tests.support.cases import cases, full
from tests.support.processes.jobs import is_alive
from tests.support.waiting import until

WAIT = "print(os.getpid(), flush=True)\nimport time\ntime.sleep(600)"
FORKED = """
import multiprocessing, signal
from official_trainer import cli

multiprocessing.get_context("fork").Process(target=signal.pause, name="mine").start()
sys.argv[1:] = [WORD]
sys.exit(cli.main())
"""
ENDED = "what your code started still ran 10 s after the end, which ended it: mine."


class Commands:
    """Runs sources as commands of the fork server."""

    def __init__(self, folder):
        self._folder, self._count = folder, 0

    def start(self, source, *, piped=False, **environ):
        self._count += 1
        (self._folder / f"command_{self._count}.py").write_text(f"import os, sys\n{source}\n")
        self.output = self._folder / f"output-{self._count}"
        argv, output = [f"command_{self._count}", "word"], "" if piped else str(self.output)
        return ForkedProcess(argv, environ={**os.environ, **environ}, output=output)

    def run(self, source, **environ):
        """Returns the exit code and the lines of a command."""
        process = self.start(source, **environ)
        while (code := process.exit_code()) is None:
            connection.wait([process.sentinel], 60)
        return code, self.output.read_text().splitlines()


@pytest.fixture
def commands(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    return Commands(tmp_path)


def pid_in(output):
    until(lambda: output.exists() and output.read_text().strip().isdecimal())
    return int(output.read_text())


def test_each_command_has_a_process_of_its_own(commands):
    """N26: with its arguments, environment, signals, session; nothing of another one is left in it."""
    look = (
        "import signal\nprint(os.getcwd(), sys.argv[1:], os.environ.get('MINE'))\n"
        "print(__name__, os.getsid(0) == os.getpid())\n"
        "print(signal.getsignal(signal.SIGTERM), signal.pthread_sigmask(signal.SIG_BLOCK, ()), hasattr(os, 'mine'))"
    )
    first = commands.run(look, MINE="a")
    assert first[0] == 0 and first[1][:2] == [f"{os.getcwd()} ['word'] a", "__main__ True"]
    assert first[1][2].endswith("set() False")
    assert commands.run("os.mine = 1; os.environ['LEFT'] = '1'; os.chdir('/')")[0] == 0
    assert commands.run(look, MINE="a") == first
    drawn = [commands.run("import random, numpy\nprint(random.random(), numpy.random.random())")[1] for _ in range(2)]
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize(
    ("source", "code"),
    cases(
        [("sys.exit(4)", 4), ("raise ValueError('mine')", 1), ("os._exit(0)", 0), ("os.kill(os.getpid(), 9)", -9)],
        *(("raise ValueError('mine')", 1), ("os.kill(os.getpid(), 9)", -9)),
    ),
)
def test_a_command_has_its_own_exit_code(commands, source, code):
    """N26: the next command finds nothing of it."""
    found, lines = commands.run(source)
    assert found == code and ("ValueError: mine" in lines) == ("mine" in source)
    assert commands.run("print('well')") == (0, ["well"])


def test_output_can_be_read_as_it_comes(commands):
    """N26: both streams through a pipe, while the command runs; its end is the end of the pipe."""
    source = "print('a', flush=True)\nprint('b', file=sys.stderr)\nimport time\ntime.sleep(600)"
    process = commands.start(source, piped=True)
    said = b""
    while said.count(b"\n") < 2:
        forked.wait([process], process.output.fileno(), seconds=60)
        said += process.read()
    assert said == b"a\nb\n" and process.exit_code() is None
    process.kill()
    connection.wait([process.sentinel], 60)
    assert process.exit_code() == -signal.SIGKILL and process.read() == b"" and process.output is None


@pytest.mark.parametrize(("verb", "code", "said"), [("list", 0, ENDED), full(("lsit", 2, "did you mean list?"))])
def test_what_a_command_has_started_ends_with_it(commands, verb, code, said):
    """N26: also a process for which Python would wait for ever, as where it was not forked; an error is the end."""
    exit_code, lines = commands.run(FORKED.replace("WORD", repr(verb)))
    assert exit_code == code and any(said in line for line in lines[-3:]), lines


def test_signals_are_for_one_command(commands):
    """N26: SIGTERM ends it, SIGKILL all that it has started; the fork server and the others go on."""
    other = commands.start(WAIT)
    for stop, code in (("terminate", -signal.SIGTERM), ("kill", -signal.SIGKILL)):
        process = commands.start(WAIT)
        pid_in(commands.output)
        getattr(process, stop)()
        connection.wait([process.sentinel], 60)
        assert process.exit_code() == code
    assert other.exit_code() is None
    other.kill()


def test_a_command_that_has_hardly_begun_is_killed(commands):
    """N26: before it has a group of its own."""
    for _ in range(20):
        process = commands.start(WAIT)
        process.kill()
        assert connection.wait([process.sentinel], 60) and process.exit_code() == -signal.SIGKILL


STRUCK = """
import os, signal, time
from multiprocessing import connection
from official_trainer.processes.forked import ForkedProcess
from tests.support.processes.jobs import is_alive
from tests.support.waiting import until
if __name__ == "__main__":
    process = ForkedProcess(["served"], environ=os.environ, output="output")
    until(lambda: os.path.exists("output") and open("output").read().endswith("\\n"))
    os.kill(int(open("output").read()), signal.SIGKILL)
    connection.wait([process.sentinel], 60)
    print(process.exit_code())
    until(lambda: not is_alive(process.pid))
    process = ForkedProcess(["well"], environ=os.environ, output="said")
    connection.wait([process.sentinel], 60)
    print(process.exit_code(), open("said").read())
"""


def test_the_fork_server_is_killed(tmp_path):
    """N26: a command is not left behind, its end is a signal, and the next one has a new server."""
    (tmp_path / "served.py").write_text("import os, time\nprint(os.getppid(), flush=True)\ntime.sleep(600)\n")
    (tmp_path / "well.py").write_text("print('well')\n")
    (tmp_path / "drive.py").write_text(STRUCK)
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "drive.py"], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["-9", "0", "well"], done.stderr


DRIVER = """
import os, sys, time
from official_trainer.processes.forked import ForkedProcess
if __name__ == "__main__":
    process = ForkedProcess(["waiting"], environ=os.environ, output=sys.argv[1])
    time.sleep(600)
"""


SERVED = """
import os, signal, time
from official_trainer.processes import forked
if __name__ == "__main__":
    process = forked.ForkedProcess(["served"], environ=os.environ, output="output")
    while not os.path.exists("output") or not open("output").read().endswith("\\n"):
        time.sleep(0.01)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        os.kill(int(open("output").read()), number)
    forked.wait([process], seconds=60)
    print(process.exit_code())
"""


def test_the_fork_server_outlives_signals_to_all_processes(tmp_path):
    """N26: Slurm signals each process of a job; what the first command ends with is not lost."""
    (tmp_path / "served.py").write_text(
        "import os, sys, time\nprint(os.getppid(), flush=True)\ntime.sleep(1)\nsys.exit(7)\n"
    )
    (tmp_path / "drive.py").write_text(SERVED)
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "drive.py"], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("7\n", 0), done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_no_process_outlives_its_driver(number, tmp_path):
    """N26: also those that the command has started; whether one is signalled alone or with all."""
    child = "import multiprocessing as m\nm.get_context('fork').Process(target=time.sleep, args=(600,)).start()"
    (tmp_path / "waiting.py").write_text(f"import os, time\n{child}\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    (tmp_path / "drive.py").write_text(DRIVER)
    output, environ = tmp_path / "output", {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    words = [sys.executable, str(tmp_path / "drive.py"), str(output)]
    with subprocess.Popen(words, env=environ, cwd=tmp_path, start_new_session=True) as driver:
        pid = pid_in(output)
        os.killpg(driver.pid, number)
    until(lambda: not is_alive(pid))
    until(lambda: not [name for name in os.listdir("/proc") if name.isdecimal() and _group(name) == pid])


def _group(name):
    try:
        return int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[2])
    except OSError:
        return None


def test_the_fork_server_never_starts_the_runtime(tmp_path):
    """N26: a command finds a TensorFlow that has executed nothing; the same look after an operation finds more."""
    modules = ["keras", "tf_keras", "official_trainer.processes.training_imports"]
    source = (
        "import os, sys\nfrom multiprocessing import connection\nfrom official_trainer.processes import forked\n"
        f"forked.preload(*{modules})\n"
        "command = ['tests.support.processes.runtime_started']\n"
        "process = forked.ForkedProcess(command, environ=os.environ, output='output')\n"
        "connection.wait([process.sentinel])\nassert 'tensorflow' not in sys.modules\nsys.exit(process.exit_code())\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", source], cwd=tmp_path, env=environ, check=True)
    assert (tmp_path / "output").read_text().splitlines()[-2:] == ["before: False", "after: True"]
    assert forked.ForkServerError.exit_code == 75
