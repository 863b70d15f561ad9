"""What commands say of mistakes in the user's code: `tests/messages.yaml` has a task, edits of it, and the messages.

A case has the `command` (train), the `values` behind it, another command that says the same (`also`), and what it
`says`: exit code and lines. Where a message was changed on purpose, `pytest tests/system/runs/test_messages.py
--update-golden` writes what the commands say now; read the diff.
"""

import fcntl
import json
import re

import pytest
import yaml

from official_trainer.tasks import contract
from tests import ROOT
from tests.support import forked, several_tasks

FILE = ROOT / "tests" / "messages.yaml"
MESSAGES = yaml.safe_load(FILE.read_text())
CASES = {name: group for group, cases in MESSAGES["cases"].items() for name in cases}
MAX_LINES = 15
_TRACEBACK = re.compile(r"\n +traceback: (\S+) \(--traceback prints it\)")


def run(folder, command="train", edit=(), values=()):
    """Runs a command on the task with its edits; `folder` is the workspace, and the run is in `run` there."""
    source = MESSAGES["template"]
    for right, wrong in dict(edit).items():
        assert source.count(right) == 1, f"{right!r} stands {source.count(right)} times in the task"
        source = source.replace(right, wrong)
    (folder / "experiments").mkdir(exist_ok=True)
    (folder / "experiments" / "tickets.py").write_text(source)
    (folder / "output").mkdir(exist_ok=True)
    experiment = ["tickets"] if command in ("train", "check") else []  # other verbs know it from the run
    argv = [command, *experiment, "--model_dir=run", *values]
    return forked.run_command(argv, cwd=folder, folder=folder / "output")


def said(done, folder):
    """Returns the error message or the warnings, without where the traceback is and what is another one in each run."""
    if "error: " in done.err:
        text = _TRACEBACK.sub("", done.err[done.err.index("error: ") :])
    else:
        text = "\n".join(line for line in (done.out + done.err).splitlines() if "warning: " in line)
    # Of two attributes that are both empty, TensorFlow names one or the other.
    text = re.sub(r"0x[0-9a-f]+|(?<=while_body_)\d+|(?<='output_)(shapes|types)", "…", text.replace(str(folder), "…"))
    return " | ".join([f"exit {done.code}", *(line.strip() for line in text.splitlines())])


def check_error(done, folder, command):
    """Asserts what holds for each error: its size, whose frames it shows, what the record has, where the rest is."""
    message = done.err[done.err.index("error: ") :].rstrip()
    assert len(message.splitlines()) <= MAX_LINES, message
    assert not re.search(r"official_trainer/|site-packages|autograph|File \"|Traceback", message), message
    if command == "train" and (folder / "run" / "run.json").exists():
        for name in ("run.json", "status.json"):
            assert f"error: {json.loads((folder / 'run' / name).read_text())['error']}\n" in done.err
    if path := _TRACEBACK.search(message):
        assert "Traceback (most recent call last)" in (folder / path[1]).read_text()


@pytest.mark.parametrize("name", CASES)
def test_the_message_of_a_mistake(name, tmp_path, request):
    """N28, N10, N6: file, line, method, phase, batch, what it means, in at most 15 lines without others' frames."""
    case = MESSAGES["cases"][CASES[name]][name]
    given = {key: case[key] for key in ("command", "edit", "values") if key in case}
    command = case.get("command", "train")
    if command not in ("train", "check"):
        assert run(tmp_path).code == 0
    record = (tmp_path / "run/run.json").read_bytes() if (tmp_path / "run").exists() else None
    done = run(tmp_path, **given)
    if request.config.getoption("--update-golden"):
        update(CASES[name], name, said(done, tmp_path))
    else:
        assert said(done, tmp_path) == case["says"], done.err
    if done.code:
        check_error(done, tmp_path, command)
    if record is not None:  # a run that is evaluated stays as it is
        assert (tmp_path / "run/run.json").read_bytes() == record
        assert not (tmp_path / "run/traceback.txt").exists()
    if "also" in case:
        other = run(tmp_path, **{**given, "command": case["also"]})
        assert other.code == done.code
        assert said(done, tmp_path).partition("error: ")[2] in said(other, tmp_path)


def test_the_task_itself_has_no_mistake(tmp_path):
    """N28, N9, N10: what the cases change trains, evaluates and exports; `check` then refuses a config like `train`."""
    done = run(tmp_path)
    assert said(done, tmp_path) == "exit 0", done.err
    for flags, code in (((), 2), (("--allow_config_change",), 0)):
        done = run(tmp_path, "check", values=("trainer.optimizer_config.optimizer.type=sgd", *flags))
        assert (done.code, "--allow_config_change" in done.err) == (code, bool(code)), done.err


@pytest.mark.parametrize(("command", "told"), [("check", False), ("train", True)])
def test_check_tells_nobody(command, told, tmp_path):
    """N10: it calls the start of all actions, and of a dry run no event is sent."""
    action = f"trainer.actions=[{{type: command, argv: [touch, {tmp_path / 'told'}], events: [start]}}]"
    done = run(tmp_path, command, values=(action,))
    assert (done.code, (tmp_path / "told").exists()) == (0, told), done.err


def test_the_models_of_several_tasks_are_no_mistake(caplog):
    """N28: `build_models` of a `MultiTask` is called."""
    contract.check_class(several_tasks.Several)
    assert caplog.messages == []


# Writing the file.


class _OnOneLine(dict):
    """Edits of the task."""


class _Dumper(yaml.SafeDumper):
    """Writes the task as it is, and edits on one line."""


def _text(dumper, text):
    style = "|" if text == MESSAGES["template"] else '"' if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(_OnOneLine, lambda dumper, edit: dumper.represent_mapping("tag:yaml.org,2002:map", edit, True))


def update(group, name, text):
    """Writes what a command says now into the file, which other processes may do too."""
    with open(FILE, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        content = yaml.safe_load(file.read())
        content["cases"][group][name]["says"] = text
        for case in (case for cases in content["cases"].values() for case in cases.values()):
            if "edit" in case:
                case["edit"] = _OnOneLine(case["edit"])
        file.seek(0)
        file.truncate()
        yaml.dump(content, file, _Dumper, sort_keys=False, allow_unicode=True, width=100_000)
