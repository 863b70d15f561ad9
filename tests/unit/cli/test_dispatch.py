"""N6, N7: from arguments to exit codes: verbs are found, errors are said once and without a traceback."""

import fcntl
import io
import logging
import os
import re
import struct
import subprocess
import sys
import termios
from importlib import metadata
from pathlib import Path

import pytest

from official_trainer import cli
from official_trainer.cli import dispatch, terminal, verbs
from official_trainer.cli.verbs import list as list_verb
from official_trainer.cli.verbs import train as train_verb
from official_trainer.errors import ExitCode, UserError
from tests import ROOT
from tests.support import golden
from tests.support.packages import entry_point
from tests.support.terminal import Terminal

VERBS = {"check", "doctor", "eval", "export", "init", "list", "show", "train"}


def ends_with(monkeypatch, error):
    """Makes `list` raise `error`, and returns the exit code."""

    def run(arguments):
        raise error

    monkeypatch.setattr(list_verb, "run", run)
    return cli.main(["list"])


def test_help_lists_every_verb_with_a_line(capsys):
    """N7: `help train` is `train --help`; of a wrong verb it says so."""
    names = verbs.load_some(verbs.names())
    assert set(names) >= VERBS
    for argv in (["--help"], ["-h"], ["help"], ["--helpfull"], ["help", "--help"]):
        assert cli.main(argv) == 0
        out = capsys.readouterr().out
        for name, module in names.items():
            line = next(line for line in out.splitlines() if line.split()[:1] == [name])
            assert verbs.help_line(module) in line and verbs.help_line(module).endswith(".")
    assert cli.main(["train", "-h"]) == 0
    expected = capsys.readouterr().out
    assert expected.startswith("usage: official-trainer train ")
    assert cli.main(["help", "train"]) == 0
    assert capsys.readouterr().out == expected


HELLO = '''"""Say hello."""
USAGE = "WHO"
EXAMPLES = (("official-trainer hello world", "greet"),)
NEXT = ("official-trainer list", "list")

def add_flags(parser):
    parser.positional("who", "WHO", "whom")

def run(arguments):
    print("hello", arguments.who)
    return 7
'''


def install(folder, monkeypatch, code):
    """Installs a package that adds the verb `hello`."""
    entry_point(folder, "greetings_verb", "hello", group="verbs", package="greetings")
    (folder / "greetings_verb.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "greetings_verb", raising=False)


def test_an_installed_package_adds_a_verb(monkeypatch, tmp_path, capsys):
    """T27: it is run, has its help, and is in the overview."""
    install(tmp_path, monkeypatch, HELLO)
    assert cli.main(["hello", "world"]) == 7
    assert capsys.readouterr().out == "hello world\n"
    assert cli.main(["hello", "--help"]) == 0
    assert "  official-trainer hello world\n" in capsys.readouterr().out
    assert cli.main(["--help"]) == 0
    assert re.search(r"Other verbs:\n +hello +Say hello\.\n", capsys.readouterr().out)


@pytest.mark.parametrize("title", ["Find settings, and compare runs", "Greet people"])
def test_a_verb_of_a_package_says_what_it_is(title, workspace, monkeypatch, capsys):
    """T25: its group, that it runs in the workspace, and that it takes a run for an experiment."""
    says = f"GROUP = {title!r}\nIN_WORKSPACE = OF_A_RUN = True\nUSAGE = "
    flags = (
        '    parser.positional("name", "NAME", "")\n    [parser.value(x, "", "") for x in ("experiment", "model_dir")]'
    )
    code = HELLO.replace("USAGE = ", says).replace('    parser.positional("who", "WHO", "whom")', flags)
    code = code.replace("arguments.who", "arguments.name, arguments.model_dir, __import__('os').getcwd()")
    install(workspace, monkeypatch, code)
    (workspace / "notes" / "run").mkdir(parents=True)
    (workspace / "notes" / "run" / "params.yaml").touch()
    monkeypatch.chdir(workspace / "notes")
    assert cli.main(["hello", "run"]) == 7
    assert capsys.readouterr().out == f"hello None {workspace}/notes/run {workspace}\n"
    assert cli.main(["--help"]) == 0
    group = capsys.readouterr().out.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
    assert "  hello         Say hello." in group.splitlines()


def test_two_packages_with_one_verb(monkeypatch, tmp_path, capsys):
    """N7: both are named; a verb of this package is never replaced."""
    install(tmp_path, monkeypatch, HELLO)
    entry_point(tmp_path, "no_such_module", "hello", group="verbs", package="others")
    entry_point(tmp_path, "no_such_module", "list", group="verbs", package="third")
    assert cli.main(["hello", "world"]) == 2
    assert capsys.readouterr().err == (
        "error: the verb hello is in two packages, greetings and others: pip uninstall others\n"
    )
    assert verbs.load("list") is list_verb
    ours = tmp_path / "ours"
    entry_point(ours, "greetings_verb", "hello", group="verbs", package="official-trainer")
    monkeypatch.syspath_prepend(ours)
    assert cli.main(["hello", "world"]) == 7


def test_a_verb_of_an_installed_package_that_cannot_be_imported(monkeypatch, tmp_path, capsys):
    """N7: says what is wrong and what installs it; the others are there."""
    install(tmp_path, monkeypatch, "import no_such_module")
    assert cli.main(["hello", "world"]) == 2
    assert capsys.readouterr().err == (
        "error: the verb hello of greetings cannot be imported: ModuleNotFoundError: No module named 'no_such_module'. "
        "Install it again: pip install --force-reinstall greetings\n"
    )
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "hello" not in out and "train" in out


def test_a_first_word_that_is_no_verb(workspace, monkeypatch, capsys, request):
    """N7: nearest match, the list, and the command that is meant."""
    golden.check_refused("verbs", request, capsys, hides=", ".join(verbs.names()))
    assert cli.main([]) == 2
    assert "usage: official-trainer VERB" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "official_trainer.tasks", None)  # an installation that `doctor` explains
    assert cli.main(["my_experiment"]) == 2
    assert capsys.readouterr().err.startswith("error: no such verb: my_experiment\nverbs: ")


def test_version(capsys, monkeypatch):
    """Also of a checkout that is not installed."""
    monkeypatch.setattr("importlib.metadata.version", {"official-trainer": "1.2.3"}.get)
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == "official-trainer 1.2.3\n"

    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", version)
    assert cli.main(["--version"]) == 0
    assert "not installed; `pip install -e .` installs it" in capsys.readouterr().out


def test_errors_for_users_are_their_message(monkeypatch, capsys):
    """N6: the error's own exit code; no traceback; also of an interrupt."""
    error = UserError("this\nand that")
    for error.exit_code in (ExitCode.CONFIG, ExitCode.DATA, ExitCode.NON_FINITE, ExitCode.RETRY):
        assert ends_with(monkeypatch, error) == error.exit_code
        assert capsys.readouterr().err == "error: this\nand that\n"
    assert ends_with(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def test_a_bug_of_this_package_has_a_traceback(monkeypatch, capsys):
    monkeypatch.setattr(list_verb, "run", None)
    assert cli.main(["list"]) == 1
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert "TypeError: 'NoneType' object is not callable" in err


def test_an_error_in_a_user_s_code_is_a_line_of_it(monkeypatch, capsys):
    """N28: exit code 1, no frame of this package, and the traceback in a file."""
    assert ends_with(monkeypatch, RuntimeError("a bug")) == 1
    place, line, what, file = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"error: .*tests/unit/cli/test_dispatch.py:\d+ in run", place)
    assert (line, what) == ("    raise error", "  RuntimeError: a bug")
    path = Path(re.fullmatch(r"  traceback: (\S+) \(--traceback prints it\)", file)[1])
    assert "cli/dispatch.py" in path.read_text()
    path.unlink()


def test_no_error_prints_a_batch(monkeypatch, capsys):
    """N28: neither its report, nor the file, nor a traceback shows the values of arrays and tensors."""
    arrays = "array([[0.125, 0.5],\n       [0.25, 0.75]], dtype=float32)"
    text = f"Received <tf.Tensor: shape=(2, 2), numpy=\n{arrays}>, {arrays}, tf.Tensor(\n[[0.125 0.5]], shape=(1, 2))"
    assert ends_with(monkeypatch, TypeError(text)) == 1
    err = capsys.readouterr().err
    path = Path(re.search(r"  traceback: (\S+) \(", err)[1])
    assert "array(…)" in path.read_text() and "0.125" not in err + path.read_text()
    path.unlink()
    monkeypatch.setattr(dispatch, "_report_mistake", lambda *_: None)  # as for a bug of this package
    assert ends_with(monkeypatch, TypeError(text)) == 1
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err and "shape=(1, 2)" in err and "0.125" not in err


def test_the_traceback_is_printed_on_request(monkeypatch, capsys):
    """N28: `--traceback`, above the message."""

    def fails(argv, script):
        return {}["x"]

    monkeypatch.setattr(dispatch, "_command", fails)
    assert cli.main(["train", "--traceback"]) == 1
    before, message = capsys.readouterr().err.split("error: ")
    assert before.startswith("Traceback (most recent call last)") and "cli/dispatch.py" in before
    assert "KeyError: 'x'" in message


def test_a_package_that_is_not_installed_is_named():
    """With Python alone, as in a checkout whose environment is not active."""
    command = [sys.executable, "-S", "-m", "official_trainer", "show", "digits_cnn"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: {sys.executable} has no module 'lazy_loader', which official-trainer needs." in done.stderr
    assert "doctor` names all that is missing" in done.stderr


def test_a_module_that_a_user_lacks_is_named(monkeypatch, capsys):
    def fails(argv, script):
        exec("import no_such_module_of_theirs", {})

    monkeypatch.setattr(dispatch, "_command", fails)
    assert cli.main(["show"]) == 1
    assert "No module named 'no_such_module_of_theirs'" in capsys.readouterr().err


def test_a_broken_pipe_inside_a_run_is_a_failure(monkeypatch, capsys):
    assert ends_with(monkeypatch, BrokenPipeError("worker")) == 1
    assert "BrokenPipeError: worker" in capsys.readouterr().err


def test_colour_on_a_terminal_only(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert terminal.paint("x", "red", Terminal()) == "\x1b[31mx\x1b[0m"
    assert terminal.paint("x", "red", io.StringIO()) == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert terminal.paint("x", "red", Terminal()) == "x"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert terminal.paint("x", "red", Terminal()) == "x"


TABLE = [("digits", "Handwritten digits, a small network.", "3"), ("x", "", "12")]


def test_a_table_fits_the_terminal():
    """Text goes on below its beginning, and names stay in one piece."""
    assert terminal.table((), TABLE) == ["digits  Handwritten digits, a small network.  3", "x" + " " * 45 + "12"]
    assert terminal.table(("name", "what", "size"), TABLE, numbers=[2], fit=32) == [
        "name    what                size",
        "digits  Handwritten            3",
        "        digits, a small",
        "        network.",
        "x                             12",
    ]


def test_messages_end_lines_between_words_on_a_terminal_only(monkeypatch, capsys):
    long = f"the data ended at step 20, which takes 5 % of an epoch and 12 ms: {'a/long/path/' * 8} is empty"
    message = f"{long}\n  | laid: out"
    terminal.report_error(message)
    assert capsys.readouterr().err == f"error: {message}\n"
    monkeypatch.setenv("NO_COLOR", "1")
    for columns in (40, 80, 160):
        monkeypatch.setattr("sys.stderr", screen := Terminal())
        monkeypatch.setenv("COLUMNS", str(columns))
        terminal.report_error(message)
        lines = screen.getvalue().splitlines()
        assert lines[-1] == "  | laid: out"
        assert not [line for line in lines if len(line) > columns and len(line.split()) > 1]
        assert screen.getvalue().split() == f"error: {message}".split()
        assert "5 %" in screen.getvalue() and "12 ms" in screen.getvalue()


def test_the_width_is_that_of_the_stream(monkeypatch):
    """Also where another one is in a pipe, as stdout of a run is."""
    monkeypatch.delenv("COLUMNS", raising=False)
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 47, 0, 0))
    with os.fdopen(ours, "rb"), os.fdopen(theirs, "w") as stream:
        assert terminal.width(stream) == 47
    assert terminal.width(io.StringIO()) is None
    assert terminal.width(Terminal()) == 80  # which does not say


def test_indented_lines_of_a_message_keep_their_indentation(monkeypatch):
    """N28: as those of a report on an error in the user's code; the lines of a file stay as they are."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stderr", screen := Terminal())
    source = "   12 | global_batch_size: [1, 2, 3, 4, 5, 6, 7, 8]"
    terminal.report_error(f"a.py:3 in step\n  the model has 3 classes, and the data holds 3\n{source}")
    assert screen.getvalue().splitlines() == [
        "error: a.py:3 in step",
        "  the model has 3 classes, and the data",
        "  holds 3",
        source,
    ]


def test_a_label_keeps_its_column_and_its_text_goes_on_below(monkeypatch):
    monkeypatch.setattr("sys.stdout", screen := Terminal())
    monkeypatch.setenv("COLUMNS", "46")
    terminal.show_line("1 CPU, and no GPU that TensorFlow sees", "ok    devices   ", "green")
    assert screen.getvalue() == (
        "\x1b[32mok\x1b[0m    devices   1 CPU, and no GPU that\n                TensorFlow sees\n"
    )


@pytest.mark.parametrize("words", [[], ["--quiet"]])
def test_the_log_is_lines_on_stderr(words, monkeypatch, capsys):
    """B8: news as they are, warnings with their name, each once; nothing is left of that afterwards."""
    logger, other = logging.getLogger("official_trainer.something"), logging.getLogger("tensorflow")

    def run(arguments):
        logger.info("strategy %s", "off")
        logger.warning("lost worker 1")
        logger.debug("not for everybody")
        other.info("not ours")
        return 0

    monkeypatch.setattr(train_verb, "run", run)
    assert cli.main(["train", *words]) == 0
    expected = "warning: lost worker 1\n" if words else "strategy off\nwarning: lost worker 1\n"
    assert capsys.readouterr() == ("", expected)
    logger.warning("afterwards")
    assert "warning: afterwards" not in capsys.readouterr().err
