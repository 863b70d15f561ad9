"""The exit-code contract, and the base of every error that a user is meant to read.

Owns: what a process's exit code means; `UserError`, which the command line prints without a traceback; the message of
any error, and the one line of a message of TensorFlow's that says what is wrong.
Does not own: the errors themselves. Each is defined where it is raised and subclasses the nearest builtin.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping


class ExitCode(enum.IntEnum):
    """The exit codes of a run: for a scheduler, 75 and 143 mean "start again", 2 to 5 mean "do not"."""

    DONE = 0
    FAILED = 1
    CONFIG = 2
    DATA = 3
    NON_FINITE = 4
    STALLED = 5
    RETRY = 75
    PREEMPTED = 143


MEANINGS: Mapping[ExitCode, str] = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "failed: a bug, in the task, whose line is said, or in this package",
    ExitCode.CONFIG: "the configuration, the command line or `model_dir` is wrong, `model_dir` was moved, or the "
    "checkpoint has another model; or another user owns the files",
    ExitCode.DATA: "the data is missing, empty or damaged, ended early, or does not fit the task: a label that is "
    "no class of the model",
    ExitCode.NON_FINITE: "the loss is not finite, or above `trainer.loss_upper_bound`",
    ExitCode.STALLED: "stalled: no progress for far longer than ever before; the stacks of all threads are in "
    "`stall-<n>.txt`. Of several workers, the one that hangs",
    ExitCode.RETRY: "the disk is full or fails, another process has `model_dir`, a stop came while a step hung, "
    "another process of the run is gone or hangs, or a run that trains on has deleted the checkpoint that was to be "
    "read; what was saved is whole",
    ExitCode.PREEMPTED: "stopped by SIGTERM, Ctrl-C, a closed terminal or `runtime.max_wall_seconds`; the state is "
    "saved",
}
"""Why a process ends with each code, in Markdown, for docs/reference/exit_codes.md."""
START_AGAIN = (ExitCode.RETRY, ExitCode.PREEMPTED)
"""A launcher starts again after these, as often as it is configured to; 0 is the end; all others need a person."""


class UserError(Exception):
    """An error the user can act on: printed as its message alone, and ends the process with `exit_code`.

    Attributes:
      exit_code: of the process.
      names_line: whether the line of the user's code that led to it stands before the message.
    """

    exit_code: ExitCode = ExitCode.FAILED
    names_line: bool = False


def without_arrays(text: str) -> str:
    """Returns a text, such as a traceback, whose arrays and tensors have no values: they may be a whole batch.

    Example:
      >>> from official_trainer.errors import without_arrays
      >>> without_arrays("got <tf.Tensor: shape=(2,), dtype=float32, numpy=array([1., 2.], dtype=float32)>")
      'got <tf.Tensor: shape=(2,), dtype=float32, numpy=array(…)>'
    """
    text = re.sub(r"\barray\(\[.*?\](,\s+(shape=\([\d, ]*\)|dtype=[^)]*))*\)", "array(…)", text, flags=re.DOTALL)
    return re.sub(r"\btf\.Tensor\(\s*\[.*?\],\s+shape=", "tf.Tensor(…, shape=", text, flags=re.DOTALL)


def describe_error(error: BaseException) -> str:
    """Returns the message of an error, with its class unless it is meant for users."""
    return text_of(error) if isinstance(error, UserError) else f"{type(error).__name__}: {text_of(error)}"


def text_of(error: BaseException) -> str:
    """Returns the message of an error; empty if the code of its class cannot make one."""
    try:
        return without_arrays(str(error))
    except Exception:
        return ""


def first_line(error: BaseException) -> str:
    """Returns the line of an error's message that says what is wrong, without the names of nodes and graphs."""
    text = getattr(error, "message", None)  # of TensorFlow's errors; others may have anything there
    text = text if text and isinstance(text, str) else text_of(error)
    # A graph's error begins with where it was built; the message precedes the name of the node.
    if behind_trace := re.search(r"(?m)^([^\n]+)\n\s*\[\[\{\{node", text):
        text = behind_trace[1]
    text = re.sub(r"^\s*(\([^)]*\)\s*)?(\w+: )?\{\{function_node [^}]*\}\}\s*", "", text)
    text = re.sub(r"^\s*\(\d+\) [A-Z_]+:\s+", "", text)
    # Of Keras 3, around what a layer raises while a model is made of it.
    text = re.sub(r"^Could not automatically infer .* Error encountered:\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"^Error in user-defined function passed to .*? with iterator: [\w:\[\]]+: ", "", text)
    text = re.sub(r" for '?\{\{node .*?' with input shapes: (.*?)\.?$", r", for input shapes \1", text, flags=re.DOTALL)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return re.sub(r"\s*\[Op:\w+\].*$", "", lines[0]) if lines else ""
