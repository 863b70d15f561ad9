"""Processes that take several commands, one after the other: what each of them finds, and when another one begins."""

import contextlib
import itertools
import os
import signal

import pytest

from official_trainer.launch.local.children import Process, Processes, Starter
from official_trainer.launch.local.output import Lines
from official_trainer.launch.local.signals import Signals
from official_trainer.launch.spec import Member
from official_trainer.launch.verdict import Restarts
from official_trainer.warm.starter import Slot
from tests.support.cases import cases
from tests.support.launch.jobs import until

_names = itertools.count()
WHOLE = Slot()


class Commands:
    """Runs sources as commands of one starter."""

    def __init__(self, folder, processes, starter):
        self.processes, self.starter = processes, starter
        self._folder = folder

    def start(self, source, most=3, like="", environ=(), slot=WHOLE):
        name = f"command_{next(_names)}"
        (self._folder / f"{name}.py").write_text(f"import os, sys\n{source}\n")
        lines = Lines(lambda lines: None, None)
        member = Member(role="chief", index=0, argv=(name,), environ=dict(environ))
        process = Process(member, lines, Restarts(), most=most, like=like, slot=slot)
        self.processes.start(process)
        return process

    def end(self, process):
        """Returns its exit code, and the last lines of its output."""
        while True:
            found = self.processes.wait(None)
            if found is not None and found[0] is process and found[1] is not None:
                return found[1], list(process.lines.last)

    def run(self, source, **options):
        """Returns the pid, the exit code and the lines of a command."""
        process = self.start(source, **options)
        code, lines = self.end(process)
        return process.pid, code, lines


@pytest.fixture
def commands(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    with contextlib.ExitStack() as held:
        signals, starter = held.enter_context(Signals()), held.enter_context(Starter(preload=["json"]))
        yield Commands(tmp_path, held.enter_context(Processes(starter, signals)), starter)


def test_a_process_takes_as_many_commands_as_it_may(commands):
    """N26: each has its own output, arguments and exit code; then another process is forked."""
    found = [commands.run(f"print('number', {number}); sys.exit(0)") for number in range(7)]
    assert [lines for _, _, lines in found] == [[f"number {number}"] for number in range(7)]
    assert [code for _, code, _ in found] == [0] * 7
    pids = [pid for pid, _, _ in found]
    assert [len(list(same)) for _, same in itertools.groupby(pids)] == [3, 3, 1]
    assert commands.run("pass", most=1)[0] not in pids


def test_each_command_finds_what_it_would_find_alone(commands):
    """N26: environment, folder, search path, arguments, streams, signals and random numbers are not those of before."""
    look = (
        "import random, signal, threading\n"
        "print(os.getcwd(), len(sys.path), sys.argv[1:], 'LEFT' in os.environ, sys.stdout is sys.__stdout__)\n"
        "print(signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM), __name__)\n"
    )
    change = (
        "import signal, io\n"
        "os.environ['LEFT'] = '1'; os.chdir('/'); sys.path.append('/tmp'); sys.argv.append('x')\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGALRM, lambda *_: None)\n"
        "sys.stdout = io.StringIO()"
    )
    draw = "import random\nrandom.seed(1)\nprint(random.random())"
    first = commands.run(look)
    changed = commands.run(change)
    again = commands.run(look)
    assert first[0] == changed[0] == again[0] and first[2] == again[2]
    drawn = commands.run(draw), commands.run("import random\nprint(random.random())")
    assert drawn[0][0] == drawn[1][0] and drawn[0][2] != drawn[1][2]


@pytest.mark.parametrize(
    ("source", "code"),
    cases(
        [("sys.exit(4)", 4), ("raise ValueError('mine')", 1), ("os._exit(0)", 0), ("os.kill(os.getpid(), 9)", -9)],
        *(("raise ValueError('mine')", 1), ("os._exit(0)", 0)),
    ),
)
def test_a_command_that_does_not_end_well_ends_its_process(commands, source, code):
    """N26: with its own exit code; the next command has another process."""
    pid, found, lines = commands.run(source)
    assert found == code and ("ValueError: mine" in lines) == ("mine" in source)
    other, found, lines = commands.run("print('well')")
    assert other != pid and (found, lines) == (0, ["well"])


LEFT = {
    "import threading, time\nthreading.Thread(target=time.sleep, args=[60], name='mine', daemon=True).start()": (
        "the thread 'mine' still runs"
    ),
    "import subprocess\nsubprocess.Popen(['sleep', '60'])": "a process that it started still runs",
}


@pytest.mark.parametrize("source", LEFT)
def test_what_a_command_leaves_running_ends_its_process(commands, source):
    """N26: with the reason in its output."""
    pid, code, lines = commands.run(source)
    assert code == 0 and lines == [f"the next command gets a new process: {LEFT[source]}"]
    assert commands.run("pass")[0] != pid


FORKED = "import multiprocessing as m, signal\nm.get_context('fork').Process(target=signal.pause, name='mine').start()"
ENDED = "what it has started still ran 3 s after its end, and was killed: mine"


@pytest.mark.parametrize(
    ("source", "code", "last"), [(FORKED, 0, ENDED), (f"{FORKED}\nraise ValueError('a bug')", 1, "ValueError: a bug")]
)
@pytest.mark.parametrize("most", [1, 3])
def test_a_process_for_which_python_would_wait_for_ever_is_killed(commands, source, code, last, most):
    """N26: and the line that says so does not hide an error."""
    started = commands.start(source, most=most)
    found, lines = commands.end(started)
    assert found == code and lines[-1] == last, lines
    until(lambda: not os.path.exists(f"/proc/{started.pid}"))


def test_a_pool_that_is_left_ends_by_itself(commands):
    """N26: at Python's exit, after the work that it was given."""
    pool = "import concurrent.futures as c\npool = c.ProcessPoolExecutor(1)\npool.submit(print, 'worked', flush=True)"
    assert commands.run(pool, most=1)[1:] == (0, ["worked"])


HELD = {
    "count = 0": "mine.count += 1",
    "seen = []": "mine.seen.append(1)",
    "seen = {'a': [1]}": "mine.seen['a'].append(2)",
    "class Task:\n  count = 0": "mine.Task.count = 1",
    "class Task:\n  pass\ntask = Task()": "mine.task.count = 1",
    "def outer():\n  seen = []\n  return lambda: seen.append(1)\nadd = outer()": "mine.add()",
    "def function():\n  pass": "mine.function.count = 1",
    "import numpy\narray = numpy.zeros(3)": "mine.array[1] = 1",
    "count = 0\ndef next_one():\n  global count\n  count += 1": "mine.next_one()",
}


@pytest.mark.parametrize("source", cases(list(HELD), *list(HELD)[::3]))
def test_what_a_command_changes_in_a_module_of_the_user_is_not_seen_by_the_next(commands, tmp_path, source):
    """N26: the process ends after it, and says what has changed; a command that changes nothing shares its process."""
    (tmp_path / "mine.py").write_text(f"{source}\n")
    first, second = commands.run("import mine"), commands.run(f"import mine\n{HELD[source]}")
    third = commands.run("import mine")
    assert first[0] == second[0] != third[0] and not first[2] and not third[2]
    (line,) = second[2]
    assert line.startswith("the next command gets a new process: mine.") and line.endswith(
        " has changed since it was imported"
    )
    (tmp_path / "mine.py").write_text("other = 1\n")
    os.utime(tmp_path / "mine.py", ns=(1, 1))
    fourth = commands.run("pass")
    assert fourth[0] == third[0]
    assert fourth[2] == [f"the next command gets a new process: {tmp_path}/mine.py has changed since it was imported"]


def test_commands_that_differ_in_what_a_process_cannot_change_have_other_processes(commands):
    """N26: a process that waits for a command which does not come is ended."""
    pid = commands.run("pass", like="a")[0]
    assert commands.run("pass", like="a")[0] == pid
    other = commands.run("pass", like="b")[0]
    assert other != pid
    until(lambda: not os.path.exists(f"/proc/{pid}"))
    assert commands.run("pass", like="b", environ={"X": "1"}.items())[0] not in (pid, other)


def test_a_process_has_the_devices_of_its_slot(commands):
    """N21: each slot keeps a process of its own, bound to its cores, with its variables; a new command takes over."""
    core = min(os.sched_getaffinity(0))
    look = "print(sorted(os.sched_getaffinity(0)), os.environ.get('MINE'))"
    slots = [Slot(0, (core,), {"MINE": "a"}), Slot(1, (core,), {"MINE": "a"}), Slot(2)]
    first = [commands.run(look, slot=slot) for slot in slots]
    again = [commands.run(look, slot=slot) for slot in slots]
    assert len({pid for pid, _, _ in first}) == 3 and again == first
    everywhere = f"{sorted(os.sched_getaffinity(0))} None"
    assert [lines for _, _, lines in first] == [[f"[{core}] a"], [f"[{core}] a"], [everywhere]]
    commands.run("pass", slot=slots[1], most=1)
    until(lambda: not os.path.exists(f"/proc/{first[1][0]}"))
    assert [commands.run("pass", slot=slots[number])[0] for number in (0, 2)] == [first[0][0], first[2][0]]


def test_a_core_that_is_taken_away_fails_no_command(commands):
    """N21: a container's cores may change while it runs; the output of the command says so."""
    _, code, lines = commands.run("print('well')", slot=Slot(0, (9999,)))
    assert (code, lines) == (0, ["not bound to the cores 9999, but to all: Invalid argument", "well"])


def test_a_command_that_fails_after_others_is_tried_again_alone(commands, tmp_path):
    """N26: so a failure is never due to what others have left; one that fails alone fails once."""
    tries = tmp_path / "tries"
    note = f"open({str(tries)!r}, 'a').write"
    commands.run("os.mine = 1")
    once = f"{note}('shared ' if hasattr(os, 'mine') else 'alone ')\nassert not hasattr(os, 'mine')\nprint('well')"
    _, code, lines = commands.run(once)
    assert code == 0 and lines[-1] == "well" and tries.read_text() == "shared alone "
    assert commands.run(f"{note}('fails ')\nsys.exit(2)", like="new")[1] == 2
    assert tries.read_text() == "shared alone fails "


def test_a_signal_is_for_one_command(commands, tmp_path):
    """N26: SIGTERM and SIGKILL end the command and its process; the others go on."""
    wait = "import signal, time\nprint('runs', flush=True)\nsignal.pause()"
    for stop, code in ((commands.processes.stop, -signal.SIGTERM), (commands.processes.kill_one, -signal.SIGKILL)):
        commands.run("pass")
        one, other = commands.start(wait), commands.start("import time\nsys.stdin.read()\nprint('done')")
        while not one.lines.last:
            commands.processes.wait(None)
        stop(one)
        assert commands.end(one)[0] == code
        if other in commands.processes.running.values():
            assert commands.end(other) == (0, ["done"])
        assert commands.run("print('next')")[1:] == (0, ["next"])


def test_a_signal_that_comes_at_the_end_of_a_command_does_not_reach_the_next(commands):
    """N26: it ended well, and a command that begins then has another process."""
    for _ in range(20):
        one = commands.start("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('runs')", most=9)
        while not one.lines.last:
            commands.processes.wait(None)
        commands.processes.stop(one)
        code, _ = commands.end(one) if one in commands.processes.running.values() else (0, [])
        assert code in (0, -signal.SIGTERM)
        assert commands.run("print('next')", most=9)[1:] == (0, ["next"])


def test_a_process_that_is_killed_while_it_waits_is_not_missed(commands):
    """N26: the next command has another one."""
    pid = commands.run("pass")[0]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not os.path.exists(f"/proc/{pid}"))
    other, code, lines = commands.run("print('well')")
    assert other != pid and (code, lines) == (0, ["well"])


def test_commands_find_imported_what_one_before_them_has_imported(commands):
    """N26: an installed package, also after the process that imported it was killed, as in a job that starts again."""
    look = "print('iniconfig' in sys.modules)\nimport iniconfig\n"
    assert commands.run(f"{look}os.kill(os.getpid(), 9)", most=1)[1:] == (-9, ["False"])
    until(lambda: commands.run(look, most=1)[1:] == (0, ["True"]))
