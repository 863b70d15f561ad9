"""`watch` on a terminal: what starts its command again, what ends it, and that no work of a run is lost."""

import contextlib
import os
import re
import select
import signal
import sys

import pytest

from official_trainer.checkpoints.manifest import committed_steps
from tests.support.processes.jobs import until
from tests.support.terminal import on_a_terminal
from tests.support.workspace import copy_workspace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

LIMIT_SECONDS = 60
WITHOUT_TENSORFLOW = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which tests below nohup ignore
from official_trainer.processes import children
children.preloaded = lambda: ["colorsys"]
from official_trainer.cli.verbs import watch
watch.main(sys.argv[1], sys.argv[2:])
"""
SCRIPTED = """import os, signal, sys, time
from official_trainer import register_config_factory
{do}
@register_config_factory("scripted")
def scripted(): sys.exit(0)
"""
WAIT = "print('waits', flush=True)\nwhile True: time.sleep(0.02)"  # no `pause`: another thread may get the signal


class Watched:
    """A workspace with an experiment whose module is a script, and the terminal on which it is watched."""

    def __init__(self, folder):
        self.workspace = folder
        self.experiment = folder / "experiments" / "scripted.py"
        self.experiment.parent.mkdir()
        self.do("print('ran')")

    def do(self, source):
        """Writes what the next command does."""
        self.experiment.write_text(SCRIPTED.format(do=source))

    @contextlib.contextmanager
    def on(self, command=None):
        """Starts the watch, by default of a command that needs no TensorFlow."""
        words = [sys.executable, "-c", WITHOUT_TENSORFLOW, str(self.workspace), "train", "--experiment=scripted"]
        with on_a_terminal(command or words, self.workspace, NO_COLOR="1", COLUMNS="200") as (
            self.process,
            self.terminal,
        ):
            yield self

    def type(self, keys):
        os.write(self.terminal, keys)

    def says(self, wanted):
        """Waits until something is written, and returns all up to there."""
        text = ""
        while not re.search(wanted, text):
            assert select.select([self.terminal], [], [], LIMIT_SECONDS)[0], text
            try:
                text += os.read(self.terminal, 1).decode(errors="replace")
            except OSError:  # this is how Linux says that it is closed
                pytest.fail(f"it has ended after {text!r}")
        return text

    def rests(self, code=0):
        """Waits until the command has ended with a code, and the watch waits; returns what was written until then."""
        return self.says(rf"exit code {code}, after \d+\.\d s[\s\S]*ends the\s+watch\r\n")

    def ends(self, code=0):
        assert self.process.wait(LIMIT_SECONDS) == code
        return True


@pytest.fixture
def watched(tmp_path):
    return Watched(tmp_path)


def touched(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("end", [b"q\n", b"\x03", b"\x04"], ids=["q", "Ctrl-C", "Ctrl-D"])
def test_enter_starts_a_command_again_and_q_or_ctrl_c_ends_the_watch(watched, end):
    """N26: each time with what the files hold now, and a syntax error is said as always."""
    with watched.on():
        assert "ran\r\n" in watched.rests()
        watched.type(b"\n")
        assert "ran\r\n" in watched.rests()
        watched.do("print('broken'")
        said = watched.rests(code=2)
        assert "scripted.py has changed" in said and "scripted.py" in said and "was never closed" in said
        watched.do("print('mended', os.isatty(0), sys.stdout.isatty(), sys.argv[1:])")
        assert "mended True True ['train', '--experiment=scripted']" in watched.rests()
        watched.type(end)
        assert watched.ends()


def test_files_of_the_workspace_count_and_those_of_runs_do_not(watched):
    """N26: python and yaml, new and removed too; hidden folders, environments and what runs write are not looked at."""
    with watched.on():
        watched.rests()
        for name in ("configs/a.yaml", "tools/b.py"):
            touched(watched.workspace / name)
            assert f"{name} has changed" in watched.rests()
        (watched.workspace / "tools/b.py").unlink()
        assert "tools/b.py has changed" in watched.rests()
        for name in (".git/a.py", "notes.txt", "launches/job/a.py", "experiments/__pycache__/a.pyc"):
            touched(watched.workspace / name)
        for mark in ("run.json", "params.yaml", "pyvenv.cfg"):
            touched(watched.workspace / "elsewhere" / mark / mark)
            touched(watched.workspace / "elsewhere" / mark / "deeper" / "a.yaml")
        touched(watched.workspace / "z.yaml")
        assert "watch: z.yaml has changed" in watched.rests()


def test_a_change_stops_a_command_that_runs_and_starts_it_anew(watched):
    """N26: by SIGTERM, once; it is waited for until it has ended."""
    watched.do(
        f"def saved(*_):\n    os.write(1, b'saved\\n')\n    os._exit(143)\nsignal.signal(signal.SIGTERM, saved)\n{WAIT}"
    )
    with watched.on():
        watched.says("waits")
        watched.do("print('anew')")
        said = watched.rests()
        assert re.search(r"has changed[\s\S]*saved\r\n[\s\S]*exit code 143, after [\s\S]*anew\r\n", said), said


def test_ctrl_c_stops_the_command_and_a_second_one_ends_the_watch(watched):
    """N26: the command gets it from the terminal, as it would alone."""
    watched.do(WAIT)
    with watched.on():
        watched.says("waits")
        watched.type(b"\x03")
        assert "interrupted" in watched.rests(code=130)  # before a run begins there is nothing to save
        watched.do(
            "def interrupted(*_):\n    signal.signal(signal.SIGINT, lambda *_: os._exit(75))\n"
            f"    os.write(1, b'saving\\n')  # last: Ctrl-C follows\nsignal.signal(signal.SIGINT, interrupted)\n{WAIT}"
        )
        watched.says("waits")
        watched.type(b"\x03")
        watched.says(r"saving[\s\S]*got Ctrl-C|got Ctrl-C[\s\S]*saving")  # both have got it
        watched.type(b"\x03")
        watched.says("exit code 75, after")
        assert watched.ends()


def test_what_is_typed_while_a_command_runs_is_the_commands(watched):
    """N26: a debugger in the user's code works."""
    watched.do("breakpoint()")
    with watched.on():
        watched.says(r"\(Pdb\) ")
        watched.type(b"p 6 * 7\n")
        assert "42\r\n" in watched.says(r"42[\s\S]*\(Pdb\) ")
        watched.type(b"c\n")
        watched.rests()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_a_watch_that_dies_has_its_command_save(watched, number):
    """N26: as where its terminal is closed."""
    said = watched.workspace / "said"
    watched.do(
        f"def saved(*_):\n    open({str(said)!r}, 'w').close()\n    os._exit(143)\n"
        f"signal.signal(signal.SIGTERM, saved); signal.signal(signal.SIGHUP, saved)\n{WAIT}"
    )
    with watched.on():
        watched.says("waits")
        watched.process.send_signal(number)
        assert watched.ends(-number)
        until(said.exists)


def test_a_change_of_what_the_watch_has_imported_itself_starts_it_anew(watched):
    """N26: as in a workspace that is a checkout of this package; no command finds an old module."""
    module = watched.workspace / "loaded_by_watch.py"
    module.write_text("VALUE = 'old'")
    watched.do("import loaded_by_watch; print(loaded_by_watch.VALUE)")
    start = WITHOUT_TENSORFLOW.replace(
        "import signal, sys", f"import signal, sys\nsys.path.insert(0, {str(watched.workspace)!r})"
    )
    start = start.replace('["colorsys"]', '["loaded_by_watch"]')
    with watched.on([sys.executable, "-c", start, str(watched.workspace), "train", "--experiment=scripted"]):
        assert "old\r\n" in watched.rests()
        module.write_text("VALUE = 'new one'")
        said = watched.rests()
        assert "watch: importing TensorFlow" in said and "new one\r\n" in said


def test_a_training_is_watched(watched):
    """N26, N1: a change, a mistake and Ctrl-C in turn; the run goes on where it was, with TensorFlow imported once."""
    copy_workspace(watched.workspace / "copy")
    watched.workspace /= "copy"
    digits = watched.workspace / "experiments" / "digits.py"
    source = digits.read_text()
    words = ["--mode=train", "--config_file=configs/smoke/digits_mlp.yaml", "--model_dir=runs/tried"]
    words += ["trainer.train_steps=10000000", "trainer.summary_interval=100", "trainer.checkpoint_interval=1000000"]
    command = [sys.executable, "-m", "official_trainer", "watch", "train", "--experiment=digits_mlp", *words]
    run = str(watched.workspace / "runs" / "tried")
    with watched.on(command):
        watched.says("importing TensorFlow[\\s\\S]*step 100/")
        digits.write_text(f"{source}\n# one more line\n")
        said = watched.says("step [1-9]\\d*/[\\s\\S]*exit code 143, after|exit code (?!143)")
        assert "experiments/digits.py has changed" in said and "importing TensorFlow" not in said
        stopped = committed_steps(run)[-1]
        said = watched.says(r"step \d+00/")
        assert f"step {stopped}" in said
        digits.write_text(f"{source}\n)\n")
        said = watched.rests(code=2)
        assert "exit code 143" in said and "digits.py" in said and "unmatched ')'" in said
        digits.write_text(source)
        watched.says(rf"step (?!{stopped}/)\d+00/")  # not the line with which it begins
        watched.type(b"\x03")
        said = watched.rests(code=143)
        assert "the same command continues" in " ".join(said.split()), said[-1500:]
        assert committed_steps(run)[-1] > stopped
        watched.type(b"q\n")
        assert watched.ends()
