"""What `data` reads of the data of an experiment."""

import dataclasses
import functools
import re

import pytest

from official_trainer import inputs
from official_trainer.config import ConfigError, schema
from official_trainer.errors import ExitCode
from official_trainer.inputs import DataError
from official_trainer.lazy import tf
from official_trainer.runs import seen_data
from official_trainer.runs.job import Job
from official_trainer.runs.mistakes.report import report_of
from official_trainer.tasks import registry
from tests.support import jobs, points_run, several_tasks, toy  # noqa: F401  two register experiments
from tests.support.cases import cases


def parse(record):
    return tf.strings.to_number(record)[None], 1.0


class RecordsTask(toy.ToyTask):
    """Records of texts; an evaluation has arrays."""

    def build_inputs(self, params, input_context=None):
        if not params.is_training:
            return inputs.from_arrays({"x": toy.FEATURES}, params, input_context)
        records = [str(number).encode() for number in range(100)]
        return inputs.from_source(records, params, input_context, parse_fn=parse)


toy.runs_of("seen_records", RecordsTask, batch=20, eval_batch=20)


def job_of(experiment, *sets):
    return Job(
        experiment=experiment,
        resolved=jobs.resolved(experiment, *sets),
        model_dir="never_written",
        mode="eval",
        quiet=True,
    )


def look(experiment, *sets, names=("train_data", "validation_data")):
    return list(seen_data.read(job_of(experiment, *sets), names, seen_data.look))


def scan(experiment, *sets, names, report):
    return list(seen_data.read(job_of(experiment, *sets), names, functools.partial(seen_data.scan, report=report)))


def test_records_and_arrays(tmp_path, monkeypatch):
    """N45: how many, the fields of a batch with the values of three examples, speed; nothing is written."""
    monkeypatch.chdir(tmp_path)
    training, validation = look("seen_records")
    assert training.section == "task.train_data" and training.examples == 100
    assert [field[:3] for field in training.fields] == [("[0]", "float32", [1]), ("[1]", "float32", [])]
    assert training.speed > 0 and validation.examples == len(toy.FEATURES)
    ((path, _, _, values),) = validation.fields
    assert (path, values.tolist()) == ("x", toy.FEATURES[:3].tolist())
    assert validation.speed > 0 and not list(tmp_path.iterdir())


def test_a_scan_counts_and_lists_bad_examples(monkeypatch):
    """N45: of each section, the first example too; where there is nothing to scan, the section is named."""
    lines = []
    both = ["train_data", "validation_data"]
    counts = scan("points_run", "task.bad=[0, 7]", names=both, report=lines.append)
    assert counts == [("task.train_data", 2), ("task.validation_data", 2)]
    said = [f"{{}}: example {number}: its checksum is wrong" for number in (0, 7)]
    assert lines == [line.format(f"task.{name}") for name in both for line in said]
    with pytest.raises(ConfigError, match=r"task\.validation_data: has no examples by their number and no record"):
        scan("seen_records", names=both, report=lines.append)
    monkeypatch.setattr(points_run.Points, "__len__", lambda self: 0)
    with pytest.raises(DataError, match="the training data are empty"):
        scan("points_run", names=["train_data"], report=lines.append)


@pytest.mark.parametrize("index", cases([0, 50], 50))
def test_a_bad_example_ends_the_run(index, tmp_path):
    """N45: before training if it is the first, else when it is due; with the exit code of data, and its place."""
    with pytest.raises(DataError, match=f"^example {index}: its checksum is wrong") as caught:
        points_run.do(tmp_path / "run", f"task.bad=[{index}]")
    assert caught.value.exit_code == ExitCode.DATA


def cast(batch, seeds):
    return tf.cast(batch["x"], tf.float32)[:, None], batch["y"]


def misspelt(batch, seeds):
    return batch["x"], batch["z"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailingConfig(schema.TaskConfig):
    """A function of the user's, by its name."""

    function: str = "cast"


@registry.register_task_cls(FailingConfig)
class FailingTask(toy.ToyTask):
    """A text where a number is expected."""

    def build_inputs(self, params, input_context=None):
        examples = [{"x": "abc", "y": 1.0}] * 20
        function = globals()[self.task_config.function]
        return inputs.from_source(examples, params, input_context, transform_fn=function)


toy.runs_of("seen_failing", None, FailingConfig, batch=20)


@pytest.mark.parametrize(
    ("function", "code", "lines"),
    [
        (
            "cast",
            ExitCode.DATA,
            [
                r"\S*test_seen_data.py:\d+ in build_inputs, while reading train_data",
                r"    return inputs.from_source\(.*",
                "  UnimplementedError: Cast string to float is not supported",
                "  The data holds strings .* With the type of a column in column_types, CSV says which row is .*",
            ],
        ),
        (
            "misspelt",
            ExitCode.FAILED,
            [
                r"\S*test_seen_data.py:\d+ in misspelt, while building train_data",
                r'    return batch\["x"\], .*',
                "  KeyError: 'z'",
            ],
        ),
    ],
)
def test_an_error_in_the_users_code_is_told_as_by_train(function, code, lines):
    """N28: with its line, what was done, and what it means, also where it is found while data are read."""
    with pytest.raises((tf.errors.UnimplementedError, KeyError)) as caught:
        look("seen_failing", f"task.function={function}", names=["train_data"])
    report = report_of(caught.value)
    assert report.exit_code == code
    assert re.fullmatch("\n".join([*lines, "  traceback: .*"]), report.message)


def test_an_error_in_an_example_has_its_place():
    """N45: behind the line that reads the data."""
    with pytest.raises(DataError) as caught:
        look("points_run", "task.bad=[0]", names=["train_data"])
    line, code, place = report_of(caught.value).message.splitlines()
    assert re.fullmatch(r"\S*points_run.py:\d+ in (__getitem__|build_inputs), while building train_data", line)
    assert code.startswith("    ")
    assert place == "  example 0: its checksum is wrong"


def test_what_is_not_there_is_refused():
    """N45: a section, and one of several tasks."""
    with pytest.raises(ConfigError, match=r"task\.other_data: is not set, so there is nothing to show"):
        look("seen_records", names=["other_data"])
    with pytest.raises(ConfigError, match="set it; of several tasks, try each alone"):
        look("several", names=["train_data"])
