"""Commands that a warm server runs: each is what a process of its own would be, or starts cold and says why."""

import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from tests.support.cases import cases
from tests.support.launch.jobs import until
from tests.support.launch.warm import IS_WARM, Place, ended, parent, state
from tests.support.terminal import on_a_terminal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

SAY = f"print('warm' if {IS_WARM} else 'cold', flush=True)"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A server that has imported next to nothing, and so starts in a moment."""
    found = Place(tmp_path_factory.mktemp("warm"))
    started = found.warm()
    assert started.returncode == 0, started.stderr
    yield found
    found.close()


@pytest.fixture
def own(tmp_path):
    """A place whose server a test starts itself."""
    found = Place(tmp_path)
    yield found
    found.close()


PROBE = f"""
import json, locale, resource, signal, time
from official_trainer.distributed.began import BEGAN, process_start_seconds
main = sys.modules['__main__']
here = [each for each in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{{each}}')]
found = dict(
    cwd=os.getcwd(), argv=sys.argv, orig=sys.orig_argv, path=sys.path, flags=list(sys.flags),
    environ={{k: v for k, v in os.environ.items() if k not in (BEGAN, 'XDG_RUNTIME_DIR') and not k.startswith('T')}},
    umask=os.umask(0), nice=os.nice(0), read=sys.stdin.read(), third=os.read(3, 9).decode(),
    ignored=[int(n) for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN],
    handler=signal.getsignal(signal.SIGTERM).__qualname__, blocked=list(map(int, signal.pthread_sigmask(0, []))),
    streams=[[s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty()]
             for s in (sys.stdin, sys.__stdout__, sys.__stderr__)],
    limits=[resource.getrlimit(n) for n in range(16)], cores=sorted(os.sched_getaffinity(0)),
    main=[main.__name__, main.__file__, str(main.__spec__)], opened=sorted(set(map(int, here)) & set(range(4))),
)
print(json.dumps(found), file=sys.stderr)
print(json.dumps([{IS_WARM}, process_start_seconds()]))
os._exit(0) if sys.stdout.flush() is None else None
"""


def test_a_command_finds_what_a_process_of_its_own_has(place):
    """N26: folder, words, variables, files, streams, signals, limits; and its time counts from its own start."""
    found, third = [], place.workspace / "third"
    third.write_text("third")
    for cold in (True, False):
        before = time.monotonic()
        done = place.run(
            PROBE,
            "trainer.train_steps=3",
            before=["sh", "-c", f'umask 031; exec "$@" 3<{third}', "sh", "nohup", "nice"],
            cold=cold,
            input="typed",
        )
        assert done.returncode == 0, done.stderr
        is_warm, began = json.loads(done.stdout)
        assert is_warm is not cold and before - 0.1 < began < time.monotonic()
        found.append(json.loads(done.stderr.splitlines()[-1]))
    assert {name: (one, found[1][name]) for name, one in found[0].items() if one != found[1][name]} == {}
    assert found[1]["third"] == "third" and found[1]["read"] == "typed" and found[1]["umask"] == 0o031
    assert signal.SIGHUP in found[1]["ignored"] and found[1]["nice"] == os.nice(0) + 10


@pytest.mark.parametrize(
    ("do", "code"),
    cases(
        [
            ("os._exit(0)", 0),
            ("os._exit(7)", 7),
            ("raise SystemError('a bug')", 2),
            ("os.kill(os.getpid(), 9)", -9),
            ("os.abort()", -6),
        ],
        *(("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", -9)),
    ),
)
def test_a_command_ends_as_it_would_alone(place, do, code):
    """N26: with its exit code, or by its signal."""
    done = place.run(f"{SAY}\n{do}")
    assert (done.returncode, done.stdout) == (code, "warm\n"), done.stderr
    assert place.run(do, cold=True).returncode == code


HANDLED = f"""
import signal, time
def told(number, frame):
    os.write(1, f'{{signal.Signals(number).name}}\\n'.encode())
    os._exit(3) if number != signal.SIGUSR1 else None
for number in (1, 2, 10, 15):
    signal.signal(number, told)
os.write(1, ('%s %s\\n' % ({IS_WARM}, os.getpid())).encode())
while True:
    time.sleep(0.02)  # not `pause`: another thread may get the signal
"""


def begun(process):
    """Returns the pid of the process of a command, once it runs."""
    is_warm, pid = process.stdout.readline().split()
    assert is_warm == "True"
    return int(pid)


@pytest.mark.parametrize("ignored", ["", "HUP INT"], ids=["alone", "nohup"])
def test_signals_reach_the_command(ignored, place):
    """N26: those that ask it to stop, and others; also what is ignored at its start, if it handles that."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        process = place.start(HANDLED, before=["sh", "-c", f'trap "" {ignored}; exec "$@"', "sh"] if ignored else ())
        begun(process)
        for each in (signal.SIGUSR1, number):
            process.send_signal(each)
            assert process.stdout.readline() == f"{each.name}\n"
        assert process.wait(60) == 3


def test_a_killed_command_leaves_no_process(place):
    """N26: SIGKILL of the process that a user sees kills the one that runs, as there would be one alone."""
    process = place.start(HANDLED)
    pid = begun(process)
    process.kill()
    assert process.wait(60) == -9
    ended(pid)


def test_a_command_outlives_the_server(own):
    """N26: that is killed, or replaced by another."""
    assert own.warm().returncode == 0
    process = own.start(HANDLED)
    pid = begun(process)
    os.kill(own.server(), signal.SIGKILL)
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "SIGUSR1\n"
    assert own.run(f"{SAY}; sys.exit(0)").stdout == "cold\n"
    assert own.warm().returncode == 0
    assert own.run(f"{SAY}; sys.exit(0)").stdout == "warm\n"
    os.kill(pid, signal.SIGTERM)
    assert process.wait(60) == 3


def test_a_command_whose_watcher_is_killed_ends_and_says_so(place):
    """N26: with 75, so that a scheduler starts it again."""
    process = place.start(HANDLED)
    pid = begun(process)
    os.kill(parent(pid), signal.SIGKILL)
    assert process.wait(60) == 75
    assert "the process that watched over this command was killed, and the command with it" in process.stdout.read()
    ended(pid)


def read_until(terminal, wanted):
    """Reads a terminal until something is written there."""
    text = ""
    while not (found := re.search(wanted, text)):
        assert select.select([terminal], [], [], 60)[0], text
        text += os.read(terminal, 1024).decode()
    return found


ON_A_TERMINAL = f"""
import signal, time
signal.signal(signal.SIGWINCH, lambda *_: os.write(1, b'size %d %d\\n' % os.get_terminal_size()))
def interrupted(*_):
    os._exit(9)
signal.signal(signal.SIGINT, interrupted)
os.write(1, ('%s %s %s %s\\n' % ({IS_WARM}, os.getpid(), os.isatty(0), sys.stdout.isatty())).encode())
os.write(1, f"hello {{input('name? ')}}\\n".encode())
while True:
    time.sleep(0.02)  # not `pause`: another thread may get the signal
"""


def test_a_command_on_a_terminal(place):
    """N26: it reads what is typed, knows the size, stops and goes on, and is interrupted by Ctrl-C."""
    command = [sys.executable, "train.py", "--experiment=scripted"]
    with on_a_terminal(command, place.workspace, **{**place.environ, "DO": ON_A_TERMINAL}) as (process, terminal):
        pid = int(read_until(terminal, r"True (\d+) True True").group(1))
        os.write(terminal, b"you\n")
        read_until(terminal, "hello you")
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 33, 77, 0, 0))
        read_until(terminal, "size 77 33")
        os.write(terminal, b"\x1a")  # Ctrl-Z
        until(lambda: state(pid) == "T" and state(process.pid) == "T")
        process.send_signal(signal.SIGCONT)
        os.write(terminal, b"\x03")  # Ctrl-C
        assert process.wait(60) == 9


# Never stale


def test_an_edited_experiment_is_read_anew(own):
    """N26: the workspace's modules are loaded by each command itself."""
    assert own.warm().returncode == 0
    file = own.workspace / "experiments" / "scripted.py"
    for number in (0, 11, 222):  # of other lengths: Python itself does not see others within a second
        file.write_text(f"import os, sys\n{SAY}\nprint({number})\nsys.exit(0)\n# register_config_factory('scripted')\n")
        file.write_text(file.read_text() + "@register_config_factory('scripted')\ndef scripted(): pass\n")
        assert own.run("").stdout == f"warm\n{number}\n"


REFUSED = {
    "variable": ({"environ": {"TF_XLA_FLAGS": "--x"}}, "the variable TF_XLA_FLAGS is another than that of the server"),
    "flag": ({"words": ["-O"]}, "a flag of Python is another than that of the server"),
    "buffering": ({"words": ["-u"]}, "the encoding or buffering of the output is another than that of the server"),
    "limit": ({"before": ["sh", "-c", 'ulimit -c 0; ulimit -n 99; exec "$@"', "sh"]}, "the limits (`ulimit -a`) of"),
    "cores": ({"before": ["taskset", "-c", "0"]}, "the cores of this process are not those of the server"),
    "network": ({"before": ["unshare", "-rn"]}, "are not those of the server"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_difference_starts_cold_and_says_so(place, name):
    """N26: with the command that mends it."""
    options, why = REFUSED[name]
    if name == "cores" and os.cpu_count() == 1:
        pytest.skip("one core")
    if name == "network" and subprocess.run(["unshare", "-rn", "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs user namespaces")
    done = place.run(f"{SAY}; sys.exit(0)", **options)
    assert done.stdout == "cold\n", done.stderr
    assert why in done.stderr and done.stderr.startswith("a cold start, without the warm server: "), done.stderr
    assert "official-trainer warm" in done.stderr


def test_other_code_of_the_package_starts_cold(place, tmp_path):
    """N26: as from another environment, or another checkout."""
    (tmp_path / "official_trainer").symlink_to(os.path.dirname(sys.modules["official_trainer"].__file__))
    done = place.run(f"{SAY}; sys.exit(0)", environ={"PYTHONPATH": str(tmp_path)})
    assert done.stdout == "cold\n" and "is another than that of the server" in done.stderr


def test_a_module_beside_the_script_that_would_be_imported_instead(place):
    """N26: as Python would have found it first."""
    file = place.workspace / "colorsys.py"
    file.write_text("")
    try:
        done = place.run(f"{SAY}; sys.exit(0)")
    finally:
        file.unlink()
    assert f"the module colorsys in {place.workspace} would be imported instead of the server's" in done.stderr


def test_a_script_that_does_more_is_not_run_twice(own):
    """N26: what it does before it calls official-trainer would be done in two processes."""
    assert own.warm().returncode == 0
    script = own.workspace / "train.py"
    for first, what in (("print('prepared')", "print"), ("import experiments", "experiments")):
        script.write_text(f"{first}\n{script.read_text()}")
        done = own.run(f"{SAY}; sys.exit(0)")
        assert done.stdout.count("prepared") == ("print" in first) and done.stdout.endswith("cold\n")
        assert f"train.py does more than calling official-trainer: {what}" in done.stderr
        script.write_text(script.read_text().partition("\n")[2])


def test_a_changed_module_starts_cold_once(tmp_path):
    """N26: the server starts again, with the module as it is now."""
    own = Place(tmp_path, preload=["loaded_early"])
    module = own.workspace.parent / "loaded_early.py"
    own.environ["PYTHONPATH"] += f":{module.parent}"
    module.write_text("VALUE = 1")
    os.utime(module, (1, 1))
    try:
        assert own.warm().returncode == 0
        do = f"import loaded_early; print(loaded_early.VALUE); {SAY}; sys.exit(0)"
        until(lambda: own.run(do).stdout == "1\nwarm\n")
        module.write_text("VALUE = 2")
        changed = own.run(do)
        assert changed.stdout == "2\ncold\n" and f"{module} has changed; the server starts again" in changed.stderr
        until(lambda: own.run(do).stdout == "2\nwarm\n")
    finally:
        own.close()


WRITES_SETTINGS = """
import pathlib
file = pathlib.Path.home() / ".keras" / "keras.json"
if not file.exists():
    file.parent.mkdir()
    file.write_text('{"floatx": "float32"}')
"""


def test_settings_of_keras_that_its_import_writes_and_that_a_user_changes(tmp_path):
    """N26: the first command of a user without any is warm; after a change the server starts again."""
    own = Place(tmp_path, preload=["writes_settings"])
    (tmp_path / "writes_settings.py").write_text(WRITES_SETTINGS)
    own.environ["PYTHONPATH"] = f"{own.environ['PYTHONPATH']}{os.pathsep}{tmp_path}"
    do = f"{SAY}; sys.exit(0)"
    settings = tmp_path / ".keras" / "keras.json"
    try:
        assert own.warm().returncode == 0
        first = own.run(do)
        assert first.stdout == "warm\n", first.stderr
        settings.write_text('{"floatx": "float64"}')
        changed = own.run(do)
        assert changed.stdout == "cold\n" and f"{settings} has changed; the server starts again" in changed.stderr
        until(lambda: own.run(do).stdout == "warm\n")
    finally:
        own.close()


def test_a_process_of_a_job_and_a_script_under_a_debugger_start_alone(place):
    """N26: without a word, as their parents are part of what they do."""
    done = place.run(f"{SAY}; sys.exit(0)", environ={"TF_CONFIG": "{}"})
    assert done.stdout == "cold\n" and "cold start" not in done.stderr
    traced = ["-c", "import runpy, sys; sys.settrace(lambda *_: None); sys.argv.pop(0); runpy.run_path('train.py')"]
    done = place.run(f"{SAY}; sys.exit(0)", words=traced)
    assert "cold start" not in done.stderr


# The server itself


def test_the_server_is_its_users_alone_and_ends_when_asked(own):
    """N26: other users cannot reach its socket."""
    assert own.warm("--status").stdout == "no warm server runs; `official-trainer warm` starts one\n"
    started = own.warm()
    assert started.returncode == 0 and "commands from here use it" in started.stdout
    assert own.socket.stat().st_mode & 0o777 == 0o600 and own.socket.parent.stat().st_mode & 0o777 == 0o700
    pid = own.server()
    again = own.warm()
    assert again.stdout.startswith(f"it runs already: the warm server, pid {pid},")
    assert "cold: the variable TF_XLA_FLAGS" in own.warm("--status", TF_XLA_FLAGS="--x").stdout
    assert own.warm("--idle_minutes=7").returncode == 0 and "it ends 7 minutes after" in own.warm("--status").stdout
    ended(pid)
    pid = own.server()
    assert own.warm("--stop").stdout == "the warm server has ended\n"
    ended(pid)
    assert not own.socket.exists() and own.warm("--stop").stdout == "no warm server runs\n"


def test_a_folder_that_others_can_use_is_not_trusted(own):
    """N26: another user could take a command, with its variables."""
    assert own.warm().returncode == 0
    own.socket.parent.chmod(0o777)
    why = f"{own.socket.parent} can be used by others: its mode is 777, and has to be 700"
    done = own.run(f"{SAY}; sys.exit(0)")
    assert done.stdout == "cold\n" and why in done.stderr
    refused = own.warm()
    assert refused.returncode == 2 and why in refused.stderr
    own.socket.parent.chmod(0o700)


def test_a_server_that_is_not_used_ends(own):
    """N26: and one whose socket is gone does too."""
    own.preload.append("tests.support.launch.impatient")
    assert own.warm().returncode == 0
    until(lambda: not own.socket.exists())


def test_a_server_that_cannot_start_says_so(own):
    """N26: with its error."""
    own.preload.append("no_such_module")
    done = own.warm()
    assert done.returncode == 2 and "No module named 'no_such_module'" in done.stderr
    assert "the warm server ended with exit code 1; its error is above" in done.stderr
