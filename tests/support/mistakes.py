"""Mistakes in a user's code: each is one change of a small task, and a command then has to say where and what it is.

A table of tests holds `Mistake`s; `outcome` runs the command in this process, `check` asserts the message.
"""

import ast
import contextlib
import dataclasses
import io
import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path

from official_trainer import cli
from official_trainer.lazy import keras

MAX_LINES, MAX_COLUMNS = 15, 120
MODULE = "experiments/tickets.py"

_numbers = itertools.count(step=50)
"""How many lines stand above the task in each module: AutoGraph knows a function by its text and line, not its file.

By more than a mistake adds, so that no function of two modules has the same line.
"""

TASK = '''"""Tickets, sorted into three queues."""

import dataclasses

import numpy as np

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.actions import Action
from official_trainer.config import DataConfig, ExperimentConfig, TaskConfig, TrainerConfig
from official_trainer.config import optimization as opt
from official_trainer.lazy import keras, tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class TicketsConfig(TaskConfig):
    """Tickets and their classifier."""


class Counter(Action):
    """Counts its calls."""

    calls = 0

    def on_step(self, run):
        self.calls += 1


class Share(keras.metrics.Mean):
    """The share of tickets for the first queue."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        first = tf.cast(tf.argmax(y_pred, axis=-1) == 0, tf.float32)
        return super().update_state(first, sample_weight)


def prepare(features, label):
    return {**features, "text": features["text"] * 2.0}, label


@register_task_cls(TicketsConfig)
class TicketsTask(Task):
    """Finds the queue of a ticket."""

    def build_model(self):
        text, age = keras.Input([32], name="text"), keras.Input([1], name="age")
        joined = keras.layers.Concatenate()([text, age])
        logits = keras.layers.Dense(3, name="logits")(joined)
        return keras.Model({"text": text, "age": age}, logits)

    def build_inputs(self, params, input_context=None):
        text = np.linspace(-1, 1, 16 * 32, dtype="float32").reshape(16, 32)
        age = np.linspace(0, 1, 16, dtype="float32")[:, None]
        label = np.arange(16) % 3
        return inputs.from_arrays(({"text": text, "age": age}, label), params, input_context).map(prepare)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)

    def build_metrics(self, training=True):
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy"), Share(name="share")]

    def validation_step(self, inputs, model, metrics=None):
        logs = super().validation_step(inputs, model, metrics)
        return {**logs, "sizes": tf.shape(inputs[1])[:1]}

    def aggregate_logs(self, state, step_logs):
        return (state or 0) + sum(int(size[0]) for size in step_logs["sizes"])

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        return {"tickets": float(aggregated_logs)}

    def build_actions(self, trainer):
        return [Counter()]

    # more methods


@register_config_factory("tickets")
def tickets():
    """Four steps on tickets."""
    data = DataConfig(global_batch_size=8)
    optimizer = opt.OptimizationConfig(
        optimizer=opt.OptimizerConfig(type="adam"),
        learning_rate=opt.LrConfig(type="constant", constant=opt.ConstantLrConfig(learning_rate=0.01)),
    )
    return ExperimentConfig(
        task=TicketsConfig(train_data=data, validation_data=data),
        trainer=TrainerConfig(
            train_steps=4,
            steps_per_loop=2,
            summary_interval=2,
            checkpoint_interval=2,
            validation_interval=2,
            optimizer_config=optimizer,
        ),
    )
'''

MORE = "    # more methods\n"
"""Stands in the task where methods can be added."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mistake:
    """A mistake, and what a command has to say about it.

    Attributes:
      name: of the case.
      changes: what is replaced in `TASK`, which holds each text once, and by what.
      at: text of the line that the message has to name, which begins on the first line that holds it; empty for none.
      method: that the message has to name behind the line, if that is not the function around it.
      words: what else it has to hold.
      code: of the exit.
      verb: the command, with its flags but `--model_dir`.
      values: flags and `PATH=VALUE` behind it.
    """

    name: str
    changes: Mapping[str, str]
    at: str = ""
    method: str = ""
    words: tuple[str, ...] = ()
    code: int = 1
    verb: str = "train"
    values: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The module with the mistake."""
        source = TASK
        for right, wrong in self.changes.items():
            assert source.count(right) == 1, f"{right!r} stands {source.count(right)} times in the task"
            source = source.replace(right, wrong)
        return source

    @property
    def line(self) -> int:
        """The number of the line that the message has to name."""
        found = [number for number, line in enumerate(self.source.splitlines(), 1) if self.at in line]
        assert found, f"no line holds {self.at!r}"
        return found[0]

    @property
    def function(self) -> str:
        """What the message has to name behind the line; nothing where the module is not even imported."""
        functions = [] if self.code == 2 else [n for n in ast.walk(ast.parse(self.source)) if hasattr(n, "returns")]
        around = [node for node in functions if node.lineno <= self.line <= node.end_lineno]
        return self.method or (max(around, key=lambda node: node.lineno).name if around else "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a command left: its exit code, what it wrote to stderr, the run directory; lines above the task's source."""

    code: int
    text: str
    model_dir: Path
    lines_before: int = 0

    @property
    def message(self) -> str:
        """The error message: all from `error:` on."""
        return self.text[self.text.index("error: ") :] if "error: " in self.text else ""


def outcome(mistake, folder, monkeypatch):
    """Returns what the command leaves that meets a mistake, in a workspace of its own in `folder`."""
    (folder / "experiments").mkdir(exist_ok=True)
    lines_before = next(_numbers)
    (folder / MODULE).write_text("#\n" * lines_before + mistake.source)
    name = ["tickets"] if mistake.verb in ("train", "check") else []  # other verbs know it from the run
    found = outcome_of([*mistake.verb.split(), *name, *mistake.values], folder, monkeypatch)
    return dataclasses.replace(found, lines_before=lines_before)


def outcome_of(words, folder, monkeypatch):
    """Returns what a command leaves in the workspace in `folder`; its run directory is `run` there."""
    monkeypatch.chdir(folder)
    keras.backend.clear_session()
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = cli.main([*words, f"--model_dir={folder / 'run'}"])
    return Outcome(code=code, text=errors.getvalue(), model_dir=folder / "run")


def check(mistake, found):
    """Asserts that the message names line and method, holds the words, is short, and shows no frame but the user's."""
    message = found.message
    assert found.code == mistake.code, found.text
    lines = message.splitlines()
    assert 0 < len(lines) <= MAX_LINES, message
    assert max(map(len, lines)) <= MAX_COLUMNS, message
    if mistake.at:
        place = f"{MODULE}:{mistake.line + found.lines_before}"
        place += f" in {mistake.function}" if mistake.function else ""
        assert re.search(rf"{re.escape(place)}(?!\w)", message), f"{place} is not in:\n{message}"
    for words in mistake.words:
        assert words in " ".join(message.split()), f"{words!r} is not in:\n{message}"
    assert not re.search(r"official_trainer/|site-packages|autograph|File \"|Traceback", message), message


def check_record(found):
    """Asserts that `run.json` and `status.json` of a run that failed hold the message of its error."""
    for name in ("run.json", "status.json"):
        content = json.loads((found.model_dir / name).read_text())
        assert f"error: {content['error']}\n" in found.text, f"{name}: {content['error']}\n\n{found.text}"
