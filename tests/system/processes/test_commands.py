"""Processes that are forked for commands: what each of them finds, how it ends, and what it leaves."""

import contextlib
import itertools
import os
import signal

import pytest

from official_trainer.processes.children import Process, Processes, Starter
from official_trainer.processes.job import Member
from official_trainer.processes.output import Lines
from official_trainer.processes.signals import Signals
from official_trainer.processes.verdict import Restarts
from tests.support.cases import cases
from tests.support.processes.jobs import until

_names = itertools.count()


class Commands:
    """Runs sources as commands of one starter."""

    def __init__(self, folder, processes, starter):
        self.processes, self.starter = processes, starter
        self._folder = folder

    def start(self, source):
        name = f"command_{next(_names)}"
        (self._folder / f"{name}.py").write_text(f"import os, sys\n{source}\n")
        lines = Lines(lambda lines: None, None)
        member = Member(role="chief", index=0, argv=(name,), environ={})
        process = Process(member, lines, Restarts())
        self.processes.start(process)
        return process

    def end(self, process):
        """Returns its exit code, and the last lines of its output."""
        while True:
            found = self.processes.wait(None)
            if found is not None and found[0] is process and found[1] is not None:
                return found[1], list(process.lines.last)

    def run(self, source):
        """Returns the pid, the exit code and the lines of a command."""
        process = self.start(source)
        code, lines = self.end(process)
        return process.pid, code, lines


@pytest.fixture
def commands(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    with contextlib.ExitStack() as held:
        signals, starter = held.enter_context(Signals()), held.enter_context(Starter(preload=["json"]))
        yield Commands(tmp_path, held.enter_context(Processes(starter, signals)), starter)


def test_each_command_has_a_process_of_its_own(commands):
    """N26: with its output, arguments, environment, folder, search path, modules, signals and exit code."""
    look = (
        "import random, signal\n"
        "print(os.getcwd(), len(sys.path), sys.argv[1:], 'LEFT' in os.environ, sys.stdout is sys.__stdout__)\n"
        "print(signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM), hasattr(os, 'mine'), __name__)\n"
    )
    change = (
        "import signal, io\n"
        "os.environ['LEFT'] = '1'; os.chdir('/'); sys.path.append('/tmp'); sys.argv.append('x'); os.mine = 1\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGALRM, lambda *_: None)\n"
        "sys.stdout = io.StringIO()"
    )
    first, changed, again = commands.run(look), commands.run(change), commands.run(look)
    assert len({first[0], changed[0], again[0]}) == 3 and first[2] == again[2] and first[1] == again[1] == 0
    drawn = [commands.run("import random, numpy\nprint(random.random(), numpy.random.random())")[2] for _ in range(2)]
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize(
    ("source", "code"),
    cases(
        [("sys.exit(4)", 4), ("raise ValueError('mine')", 1), ("os._exit(0)", 0), ("os.kill(os.getpid(), 9)", -9)],
        *(("raise ValueError('mine')", 1), ("os._exit(0)", 0)),
    ),
)
def test_a_command_that_does_not_end_well_has_its_own_exit_code(commands, source, code):
    """N26: the next command finds nothing of it."""
    _, found, lines = commands.run(source)
    assert found == code and ("ValueError: mine" in lines) == ("mine" in source)
    assert commands.run("print('well')")[1:] == (0, ["well"])


FORKED = "import multiprocessing as m, signal\nm.get_context('fork').Process(target=signal.pause, name='mine').start()"
ENDED = "what it has started still ran 3 s after its end, and was killed: mine"


@pytest.mark.parametrize(
    ("source", "code", "last"), [(FORKED, 0, ENDED), (f"{FORKED}\nraise ValueError('a bug')", 1, "ValueError: a bug")]
)
def test_a_process_for_which_python_would_wait_for_ever_is_killed(commands, source, code, last):
    """N26: and the line that says so does not hide an error."""
    started = commands.start(source)
    found, lines = commands.end(started)
    assert found == code and lines[-1] == last, lines
    until(lambda: not os.path.exists(f"/proc/{started.pid}"))


def test_a_pool_that_is_left_ends_by_itself(commands):
    """N26: at Python's exit, after the work that it was given."""
    pool = "import concurrent.futures as c\npool = c.ProcessPoolExecutor(1)\npool.submit(print, 'worked', flush=True)"
    assert commands.run(pool)[1:] == (0, ["worked"])


def test_a_signal_is_for_one_command(commands, tmp_path):
    """N26: SIGTERM and SIGKILL end its process; the others go on."""
    wait = "import signal, time\nprint('runs', flush=True)\nsignal.pause()"
    for stop, code in ((commands.processes.terminate, -signal.SIGTERM), (commands.processes.kill, -signal.SIGKILL)):
        one, other = commands.start(wait), commands.start("import time\nsys.stdin.read()\nprint('done')")
        while not one.lines.last:
            commands.processes.wait(None)
        stop(one)
        assert commands.end(one)[0] == code
        if other in commands.processes.running.values():
            assert commands.end(other) == (0, ["done"])
        assert commands.run("print('next')")[1:] == (0, ["next"])
