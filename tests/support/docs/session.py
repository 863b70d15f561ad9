"""A page carried out as its reader would: files written, commands run, programs executed, in order, in one workspace.

The folder of a session is the root of the paths on its page: `/shared/…`, `/tmp/…` and `~` lie in it. The workspace, a
copy of this repository's, is `/shared/workspace` there.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess

from official_trainer.errors import ExitCode
from tests import ROOT
from tests.support.chaos.contract import Shared
from tests.support.docs import changes, children, pages
from tests.support.docs.outputs import masked, shows
from tests.support.forked import TIMEOUT_SECONDS, Child, Completed
from tests.support.waiting import until
from tests.support.workspace import copy_workspace

FIRST_RUN = "python train.py --experiment=digits_cnn --mode=train_and_eval --model_dir=runs/digits"
"""The README's first command. It runs once for all tests; a page that only reads `runs/digits` gets this run too."""

_FIRST_ARGV = ["train", *FIRST_RUN.split()[2:]]

EXACT_VERBS = {"show", "list", "launch"}
"""Verbs whose answers hold no measured numbers: pages show them letter by letter."""

SHORT_STEPS = 40
"""Of a training of an experiment that its page shows."""

_END_SECONDS = 10


class Session:
    """A fresh workspace, and what a reader has left in it so far."""

    def __init__(self, page, folder, *, not_here, shorten):
        """`not_here` says whether a command, as one text, is not run; `shorten`, whether trainings have few steps."""
        self.root, self._page, self._not_here, self._shorten = folder, page, not_here, shorten
        self.cwd = self._cwd_before = self.workspace = folder / "shared" / "workspace"
        self._home = folder / "home"
        self._written, self._python, self._program, self._outputs = set(), None, [], folder / "outputs"
        self.best, self._numbers = {}, itertools.count()
        for path in (self._home, self._outputs, folder / "tmp", folder / "shared"):
            path.mkdir()
        if page == pages.TEMPLATE:
            assert self._ours("official-trainer", ["init", str(self.workspace)], {}, cwd=folder).code == 0
        else:
            copy_workspace(self.workspace)
            shutil.copy(ROOT / "train.py", self.workspace)
            if not any(
                block.path == "pyproject.toml" for block in pages.blocks(page)
            ):  # which a page may show one of its own
                shutil.copy(ROOT / "pyproject.toml", self.workspace)

    def carry_out(self, block):
        """Does what a block says; yields what went wrong."""
        if block.path:
            yield from self._write(block)
        elif block.language == pages.DIFF and changes.names(block.text):
            yield from self._change(block)
        elif block.language == pages.PYTHON:
            yield from self._execute(block)
        elif block.language == pages.FRAGMENT:
            yield from _compile(block)
        for command in pages.commands(block):
            problem = self._run(command)
            if problem:
                yield f"{command.place}: {command.line}\n{problem}"

    def close(self):
        if self._python:
            child, connection = self._python
            connection.close()
            child.process.join(_END_SECONDS)
            child.process.kill()

    def _here(self, text):
        """Returns text with the paths of the page replaced by those of the session."""
        return re.sub(r"(?<![\w.~:/-])/(tmp|shared)\b", lambda match: f"{self.root}/{match[1]}", text)

    def _there(self, text):
        """Returns what was printed with the paths of the page."""
        return text.replace(str(self._home), "~").replace(str(self.root), "")

    # Files and programs.

    def _write(self, block):
        path = self.workspace / block.path
        if path.exists() and path not in self._written:
            yield f"{block.place}: {block.path} is a file of the workspace already; give it another name"
            return
        self._written.add(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._here(block.text))

    def _change(self, block):
        """Writes the file that comes of the changes of a `diff` block."""
        before, after = changes.names(block.text)
        try:
            text = changes.changed((self.workspace / before).read_text(), block.text)
        except (OSError, ValueError) as error:
            yield f"{block.place}: {before} cannot be changed so: {error}"
            return
        (self.workspace / after).write_text(text)

    def _execute(self, block):
        """Runs a block in the page's one Python process."""
        if "runs/digits/" in block.text:
            self._have_the_first_run()
        if self._python is None:
            ours, its = multiprocessing.Pipe()
            folder = self.root / "python"
            folder.mkdir()
            options = {
                "cwd": self.workspace,
                "folder": folder,
                "env": {"HOME": str(self._home)},
                "starts_processes": True,
            }
            self._python = Child(functools.partial(children.interpret, its), **options), ours
            its.close()
        child, connection = self._python
        before = len(child.out)
        lines = self._program + [""] * (block.line - len(self._program))
        self._program = [*lines, *self._here(block.text).splitlines()]
        problem = f"still running after {TIMEOUT_SECONDS} s"
        try:
            connection.send((str(block.page), "\n".join(self._program), block.line))
            if connection.poll(TIMEOUT_SECONDS):
                problem = connection.recv()
        except (EOFError, OSError):
            problem = f"its process ended, exit code {child.process.exitcode}; a new one runs the next block"
            self._python = None
        if problem:
            yield f"{block.place}: the Python block\n{self._there(problem)}\n{_end(child.out[before:])}"

    # Commands.

    def _run(self, command):
        """Runs a command line; returns the problem, if there is one."""
        if re.search(r"runs/digits(?![\w-])", command.line) and (command.is_refused or not _trains_there(command.line)):
            self._have_the_first_run()
        parts = pages.simple_commands(self._here(command.line))
        if parts is None:
            if any(self._not_here(" ".join(words)) for words in pages.words_of(command.line)):
                return None
            return self._judge(command, None, self._shell(self._here(command.line)))
        for text, words in parts:
            if self._not_here(self._there(" ".join(words))):
                continue
            if words[0] == "cd":
                folder = self._cwd_before if words[1] == "-" else self.cwd / self._expanded(words[1])
                if not folder.is_dir():
                    return f"there is no folder {self._there(str(folder))}"
                self.cwd, self._cwd_before = folder, self.cwd
                continue
            verb, done = self._started(text, words, command.line_before_ctrl_c)
            if problem := self._judge(command, verb, done):
                return problem
        return None

    def _started(self, text, words, ctrl_c=None):
        """Runs one command; returns the verb, None for another program, and how it ended.

        Args:
          text: the command as the page has it.
          words: the same, as words.
          ctrl_c: after a printed line like this one, Ctrl-C is pressed.
        """
        environ = {}
        if text.strip() == FIRST_RUN and not self._written and not (self.workspace / "runs" / "digits").exists():
            return "train", self._first_run()
        while re.match(r"\w+=", words[0]):
            name, _, environ[name] = words[0].partition("=")
            words = words[1:]
        program, *argv = map(self._expanded, words)
        if program == "official-trainer":
            argv = self._shortened(argv)
            done = self._ours(program, argv, environ, ctrl_c=ctrl_c)
        elif program == "python" and argv[0] == "train.py":
            argv = self._shortened(["train", *argv[1:]])
            done = self._ours(program, argv, environ, ctrl_c=ctrl_c)
        elif program == "python" and (argv[0] == "-m" or argv[0].endswith(".py")):
            is_module = argv[0] == "-m"
            name, *rest = argv[is_module:]
            target = functools.partial(children.run_program, name, rest, is_module=is_module)
            return None, self._child(target, environ)
        else:
            return None, self._shell(text)
        self._remember_best(argv, done)
        return "train" if argv[:2] == ["launch", "local"] else argv[0], done

    def _ours(self, program, argv, environ, **options):
        return self._child(functools.partial(children.run_command, program, argv), environ, **options)

    def _child(self, target, environ, cwd=None, ctrl_c=None):
        environ = {"HOME": str(self._home), **environ}
        outputs = self._outputs / str(next(self._numbers))  # a folder for each, so that none has another's lines
        outputs.mkdir()
        child = Child(target, cwd=cwd or self.cwd, folder=outputs, env=environ, starts_processes=True)
        if ctrl_c:
            _wait_for_line(child, ctrl_c)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.process.pid, signal.SIGINT)
        return child.wait()

    def _shell(self, line):
        environ = {**os.environ, "HOME": str(self._home), "PYTHONPATH": str(ROOT)}
        options = {"cwd": self.cwd, "env": environ, "timeout": TIMEOUT_SECONDS, "check": False}
        done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", line], capture_output=True, text=True, **options)
        return Completed(done.returncode, done.stdout, done.stderr)

    def _expanded(self, word):
        return re.sub(r"^~(?=/|$)", str(self._home), word)

    def _shortened(self, argv):
        """Gives a training that sets no number of steps that of its overlay in `configs/smoke`, or SHORT_STEPS."""
        trains = argv[:1] == ["train"] or argv[:2] == ["launch", "local"]
        line = " ".join(argv)
        continues = "runs/digits" in line and (self.workspace / "runs" / "digits").exists()
        if not (self._shorten and trains) or continues or re.search("train_steps|--mode=(predict|eval)", line):
            return argv
        name = _experiment(argv)
        smoke = self.workspace / "configs" / "smoke" / f"{name}.yaml"
        at = 2 if argv[0] == "launch" else 1
        overlay = f"--config_file={os.path.relpath(smoke, self.cwd)}"
        if not (name and smoke.exists()):
            overlay = f"--set=trainer.train_steps={SHORT_STEPS}"
        return [*argv[:at], overlay, *argv[at:]] if name else argv

    def _have_the_first_run(self):
        if not (self.workspace / "runs" / "digits").exists():
            self._first_run()

    def _first_run(self):
        """Copies the run of the first command into the workspace; returns how the command ended."""
        directory, done = first_run()
        shutil.copytree(directory, self.workspace / "runs" / "digits")
        return done

    def _judge(self, command, verb, done):
        """Returns what is wrong about how a command ended and what it printed."""
        said = self._there(done.out + done.err)
        expected = ExitCode.CONFIG if command.is_refused else ExitCode.DONE
        expected = ExitCode.PREEMPTED if command.line_before_ctrl_c else expected
        if done.code != expected:
            return f"exit code {done.code}, not {int(expected)}; it printed\n{_end(said)}"
        shown = ["…" if line == "^C" else line for line in command.shown]
        if not shown or shows(shown, said.splitlines()):
            return None
        if verb == "train":  # what is logged goes to the standard error
            said = self._there(done.out)
        is_exact = command.is_refused or verb in EXACT_VERBS
        if not is_exact and shows(masked(shown), masked(said.splitlines())):
            return None
        if verb == "train" and self._shorten and {*masked(shown)} - {"…"} <= {*masked(said.splitlines())}:
            return None
        return f"it now prints\n{said}"

    def _remember_best(self, argv, done):
        """Keeps the best accuracy of each experiment that the page shows."""
        name = _experiment(argv)
        shown = any(re.search(rf"\(\"{name}\"\)", path.read_text()) for path in self._written)
        for value in re.findall(r"best \S*accuracy (\S+) at step", done.out) if name and shown else ():
            self.best[name] = max(float(value), self.best.get(name, 0))


def first_run():
    """Returns the directory of the README's first run, which is only read, and how its command ended."""
    folder = Shared(os.environ["XDG_CACHE_HOME"]).made("first_run", _run_first)
    done = Completed(**json.loads((folder / "ended.json").read_text()))
    return folder / "shared" / "workspace" / "runs" / "digits", done


def _run_first(folder):
    session = Session(pages.PAGES[0], folder, not_here=lambda command: False, shorten=False)
    done = session._ours("python", _FIRST_ARGV, {})
    assert done.code == 0, done.out + done.err
    (folder / "ended.json").write_text(json.dumps(dataclasses.asdict(done)))


def _trains_there(line):
    """Whether a command line is a training in `runs/digits`."""
    trains = r"(train\.py|official-trainer (train|check|launch)) .*--model_dir[= ]runs/digits(?![\w-])"
    others = ("--mode=predict", " -- predict ", "--mode=eval")
    return re.search(trains, line) is not None and not any(each in line for each in others)


def _experiment(argv):
    """Returns the experiment that the words after `official-trainer` name; None if they do not."""
    named = [word.partition("=")[2] for word in argv if word.startswith("--experiment=")]
    named += [after for word, after in itertools.pairwise(argv) if word == "--experiment"]
    if not named and argv[0] == "train":
        named = [word for word in argv[1:2] if not word.startswith("-") and "=" not in word]
    return named[0] if named else None


def _wait_for_line(child, line):
    """Waits until a child has printed a line like the one shown, or has ended."""

    def has_printed():
        return any(shows(masked([line]), masked([printed])) for printed in child.out.splitlines())

    until(lambda: has_printed() or not child.process.is_alive())


def _end(text):
    return "\n".join(text.splitlines()[-40:])


def _compile(block):
    try:
        compile(block.text, block.place, "exec")
    except SyntaxError as error:
        yield f"{block.place}: the fragment is no Python: {error}"
