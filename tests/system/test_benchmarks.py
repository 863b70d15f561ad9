"""The benchmarks run: every part measures, and what was measured becomes a table. Nothing here is timed."""

import importlib
import sys
import types

import pytest

import benchmarks.__main__ as command
from benchmarks import harness, processes, saves, steps
from benchmarks.harness import Promise
from tests.support.cases import cases

PROMISES = (Promise("work (s)", "fast", "slow", 0.5), Promise("work (s)", "slow", "fast", 0.5))
VALUES = {"work (s)": {"slow": [4.0, 5.0, 10.0], "fast": [1.0, 2.0, 2.0]}}


@pytest.mark.parametrize("name", cases(command.PARTS, "commands"))
def test_each_part_runs(name):
    """N27 (goodput): in real processes, with few steps; a promise of which nothing was measured would have no row."""
    processes.run(["-m", "benchmarks", name, "--quick"])


def test_the_page_has_each_promise_with_its_limit():
    text = command.README.read_text()
    for name in command.PARTS:
        rows = [line.strip("| ").split(" | ") for line in harness.section(text, name).splitlines() if line[:1] == "|"]
        promises = importlib.import_module(f"benchmarks.{name}").PROMISES
        expected = [[*harness.said(promise), f"{promise.at_most:.2f}"] for promise in promises]
        assert rows[0] == list(harness.HEADER)
        assert [[*row[:3], row[6]] for row in rows[2:]] == expected, name


def test_a_table_has_a_row_for_each_promise():
    assert harness.table(PROMISES, VALUES) == (
        "| measurement | promise | against | takes | beside | ratio | at most | kept |\n"
        "|---|---|---|---:|---:|---:|---:|---:|\n"
        "| work (s) | fast | slow | 2.00 | 5.00 | 0.25 (0.20 to 0.40) | 0.50 | yes |\n"
        "| work (s) | slow | fast | 5.00 | 2.00 | 4.00 (2.50 to 5.00) | 0.50 | **no** |\n"
    )


@pytest.fixture
def part(monkeypatch, tmp_path):
    """A part whose figures are those above, and a page with its section."""
    module = types.SimpleNamespace(PROMISES=PROMISES, ROUNDS=3, measure=lambda num_rounds, quick: VALUES)
    monkeypatch.setitem(sys.modules, "benchmarks.work", module)
    monkeypatch.setattr(command, "PARTS", ("work",))
    monkeypatch.setattr(command, "README", tmp_path / "README.md")
    command.README.write_text("before\n<!-- work: begin -->\nold\n<!-- work: end -->\nafter\n")
    return module


def test_the_command_writes_the_table_and_fails_where_a_promise_is_not_kept(part, capsys):
    assert command.main(["work", "--readme"]) == 1
    content = f"{harness.table(PROMISES, VALUES)}\n{harness.machine()}.\n"
    text = command.README.read_text()
    assert text == f"before\n<!-- work: begin -->\n\n{content}\n<!-- work: end -->\nafter\n"
    assert content in capsys.readouterr().out
    part.PROMISES = PROMISES[:1]
    assert command.main(["work"]) == 0


@pytest.mark.parametrize("name", cases([steps.SMALL, steps.KERAS_3], steps.KERAS_3))
def test_variants_compute_the_same_steps(name, monkeypatch):
    """Same weights, same batches in order: the loop by hand and the trainers end with the same loss."""
    images, labels = steps.digits()
    in_order = steps.tf.data.Dataset.from_tensor_slices((images, labels)).repeat().batch(steps.BATCH)
    monkeypatch.setattr(steps, "shuffle_batch", lambda task, config: in_order)
    subject = steps.SUBJECTS[name]
    subject.keras.utils.set_random_seed(0)
    task, _, _ = subject.build()
    start = task.build_model().get_weights()
    build_model = steps.DigitsTask.build_model

    def build_equal_model(self):
        model = build_model(self)
        model.set_weights(start)
        return model

    monkeypatch.setattr(steps.DigitsTask, "build_model", build_equal_model)
    hand = steps.hand_written(subject, lambda task, config: in_order)(30)
    variants = [steps.OURS, steps.GARDEN] if name == steps.SMALL else [steps.OURS]
    assert [steps.BUILDS[variant](subject)(30) for variant in variants] == pytest.approx(
        [hand] * len(variants), rel=1e-4
    )


def test_the_job_is_the_same_for_all_drivers():
    """Model, data, batch, steps and intervals are the same in ours, Model Garden's and the hand-written script."""
    from benchmarks import garden, hand_written
    from official_trainer.tasks import registry

    for name in ("digits_cnn", "digits_mlp"):
        ours, theirs = registry.get_config(name, processes.ROOT), getattr(garden, name)()
        for field in (*hand_written.STEPS, "validation_steps"):
            assert getattr(ours.trainer, field) == getattr(theirs.trainer, field), field
        for section in ("train_data", "validation_data"):
            batch = getattr(theirs.task, section).global_batch_size
            assert getattr(ours.task, section).global_batch_size == batch
        models = [registry.get_task_cls(ours.task)(ours.task).build_model()]
        models.append(garden.DigitsTask(theirs.task).build_model())
        if name == "digits_mlp":
            models.append(hand_written.build_model())
            assert {field: getattr(ours.trainer, field) for field in hand_written.STEPS} == hand_written.STEPS
        layers = [[(type(layer).__name__, layer.output_shape) for layer in model.layers] for model in models]
        assert layers == [layers[0]] * len(models)


def test_savers_that_are_compared_save_the_same(tmp_path):
    """Every way to save leaves the values of the moment it was called, though training went on."""
    trainer = saves.build_trainer(8)
    trainer.train(saves.tf.constant(3))
    expected = trainer.model.get_weights()
    savers = {
        "sync": saves.Ours(f"{tmp_path}/sync", trainer, asynchronous=False),
        "async": saves.Ours(f"{tmp_path}/async", trainer, asynchronous=True),
        "manager": saves.Manager(f"{tmp_path}/manager", trainer),
    }
    for saver in savers.values():
        saver.save(7)
    waiting = set(savers)
    while waiting:
        trainer.train(saves.tf.constant(1))
        assert trainer.global_step < 10_000, f"never done: {waiting}"
        waiting -= {name for name in waiting if savers[name].is_done(7)}
    for name in savers:
        saves.tf.train.Checkpoint(model=trainer.model).read(f"{tmp_path}/{name}/ckpt-7").expect_partial()
        for value, was in zip(trainer.model.get_weights(), expected, strict=True):
            assert (value == was).all(), name
