"""`check`: what it makes of an experiment that a run accepts."""

import functools
import itertools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from official.utils.testing.mock_task import MockModel, MockTask

from official_trainer import cli, inputs
from tests.support import runs

MOCK = (
    "--experiment=mock",
    "trainer.train_steps=2",
    "trainer.validation_steps=1",
    "trainer.optimizer_config.optimizer=sgd",
    "trainer.optimizer_config.learning_rate={type: constant, constant: {learning_rate: 0.1}}",
)


def test_what_cannot_be_exported_fails_no_check_because_it_fails_no_run(tmp_path, monkeypatch, capfd):
    """N10, T19: a Task of Model Garden without signatures; the run ends with a warning, `export` is refused."""
    build, call = MockTask.build_inputs, MockModel.call
    rows = lambda x, y: (tf.RaggedTensor.from_tensor(x), y)  # noqa: E731
    monkeypatch.setattr(MockTask, "build_inputs", lambda self, params: build(self, params).map(rows))
    monkeypatch.setattr(MockModel, "call", lambda self, inputs: call(self, inputs.to_tensor(shape=[None, 2])))
    assert cli.main(["check", *MOCK, f"--model_dir={tmp_path / 'run'}"]) == 0
    assert (
        "nothing, as at the end of a run: MockTask: the model was not built with keras.Input" in capfd.readouterr().out
    )


def test_a_subclassed_model_is_exported_with_what_it_was_called_with(tmp_path, capfd):
    """T19: also by a process that has not trained it."""
    run, exported = tmp_path / "run", tmp_path / "exported"
    assert cli.main(["check", *MOCK, f"--model_dir={run}"]) == 0
    assert "SavedModel with serving_default" in capfd.readouterr().out
    assert cli.main(["train", *MOCK, f"--model_dir={run}", "trainer.export.at_end=false"]) == 0
    assert cli.main(["export", f"--model_dir={run}", f"--output_dir={exported}"]) == 0
    values = {name.split("/")[-3]: value for name, value in runs.values(run, 2).items() if name.startswith("model/")}
    served = tf.saved_model.load(str(exported)).signatures["serving_default"](
        inputs=tf.constant([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]])
    )
    np.testing.assert_allclose(
        served["output_0"], [[1, 2], [3, 4], [0, 0]] @ values["kernel"] + values["bias"], rtol=1e-6
    )


def test_a_run_that_begins_during_a_check_keeps_its_directory(tmp_path, monkeypatch):
    """N10: the check had made it; what is not the check's stays. A task finds its `logging_dir`, and may write there.

    Mask R-CNN without `annotation_file` writes its own.
    """
    build = MockTask.build_metrics

    def beginning(self, training=True):
        Path(self.logging_dir, "annotation.json").write_text("{}")
        (tmp_path / "run" / "run.json").write_text("{}")
        return build(self, training)

    monkeypatch.setattr(MockTask, "build_metrics", beginning)
    assert cli.main(["check", *MOCK, f"--model_dir={tmp_path / 'run'}"]) == 0
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]


ROOT = "trainer.optimizer_config"
ENDS = (f"{ROOT}.learning_rate={{type: cosine, cosine: {{initial_learning_rate: 0.1, decay_steps: 1}}}}",)
NEVER = (*ENDS, f"{ROOT}.warmup={{type: linear, linear: {{warmup_steps: 5}}}}", "trainer.train_steps=9")


def test_a_schedule_that_ends_early_is_a_warning(tmp_path, capfd):
    """N31, N10: one line, before anything is built, with what to add to the command; an empty directory stays."""
    (tmp_path / "run").mkdir()
    assert cli.main(["check", *MOCK, *ENDS, f"--model_dir={tmp_path / 'run'}"]) == 0
    path = f"{ROOT}.learning_rate.cosine.decay_steps"
    assert (
        f"warning: --set: {path}: the learning rate stays at 0 from step 1 on, and training ends at step 2; "
        f"add --set={path}=2\n"
    ) in capfd.readouterr().err
    assert not [*(tmp_path / "run").iterdir()]


def test_a_rate_of_0_throughout_is_refused(tmp_path, capfd):
    """N31, N6: by `train` and `check`, with exit code 2."""
    for verb in ("train", "check"):
        assert cli.main([verb, *MOCK, *NEVER, f"--model_dir={tmp_path / 'run'}"]) == 2
        assert "the learning rate is 0 at all 9 steps, so nothing is learned" in capfd.readouterr().err


ROWS = np.arange(128, dtype=np.float32).reshape(64, 2)


def test_a_bad_example_behind_the_first_batch_is_an_error_of_the_data(tmp_path, monkeypatch, capfd):
    """N10, N45: what only the step that reads further meets is told as in training."""
    bad = []

    def read(short, index):
        return ROWS[index, : 1 if index in short else 2], ROWS[index, :1]

    def build_inputs(self, params, input_context=None):
        numbers = [*range(64)]
        if params.is_training and not bad:
            batches = inputs.from_source(numbers, params, input_context).as_numpy_iterator()
            bad.append([*itertools.islice(batches, 3)][2][0])
        transform = functools.partial(read, bad if params.is_training else ())
        return inputs.from_source(numbers, params, input_context, transforms=[transform])

    monkeypatch.setattr(MockTask, "build_inputs", build_inputs)
    sizes = ("task.train_data.global_batch_size=8", "task.validation_data.global_batch_size=8")
    assert cli.main(["check", *MOCK, *sizes, f"--model_dir={tmp_path / 'run'}"]) == 3
    said = capfd.readouterr()
    assert "failed  restore" in said.out and "[0] has shape [1]" in said.err and "Traceback" not in said.err


AFTER = {
    "nothing": lambda batches: batches,
    "draws": lambda batches: batches.map(lambda x, y: (x + tf.random.uniform([2]), y)),
    "shuffle": lambda batches: batches.shuffle(4, seed=1),
}


@pytest.mark.parametrize("after", AFTER)
def test_data_that_would_not_continue_exactly_is_named(after, tmp_path, monkeypatch, capfd):
    """N10, N1: behind a function that starts at a step, what depends on the batches before begins again."""

    def build_inputs(self, params, input_context=None):
        return AFTER[after](inputs.from_arrays((ROWS, ROWS[:, :1]), params, input_context))

    monkeypatch.setattr(MockTask, "build_inputs", build_inputs)
    sizes = ("task.train_data.global_batch_size=8", "task.validation_data.global_batch_size=8")
    assert cli.main(["check", *MOCK, *sizes, f"--model_dir={tmp_path / 'run'}"]) == 0
    said = "not exact: a run that continues at step 2 reads another batch than an unbroken one; in build_inputs, draw"
    assert (said in capfd.readouterr().out) == (after != "nothing")
