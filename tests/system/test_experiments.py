"""Every experiment of this workspace, found by looking: what is true of one must be true of the next one added."""

import itertools
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import yaml

from official_trainer import config, inputs
from official_trainer.engine.trainer import Trainer
from official_trainer.tasks import contract, random_streams, registry
from official_trainer.tasks import keras as kerases
from tests import ROOT
from tests.support.cases import cases, full

NAMES = sorted(registry.named(ROOT))
SEVERAL = ["digits_tasks"]  # whose tasks are tested below, as one
SINGLE = [name for name in NAMES if name not in SEVERAL]
METRICS = {
    "breast_cancer": ["accuracy", "auc"],
    "diabetes": ["mae"],
    "digits_cnn": ["accuracy"],
    "digits_keras3": ["accuracy"],
    "digits_mlp": ["accuracy"],
    "python_docs_lm": ["bits_per_byte"],
    "python_topics": ["accuracy"],
}
SMALL = {
    "python_docs_lm": ["task.model.hidden_size=32,task.model.inner_size=32,task.sequence_length=16"],
    "python_topics": ["task.model.hidden=16,task.model.words=24"],
}
KERAS_3 = {"digits_keras3", "python_topics"}


def resolved(name, *files):
    base = registry.get_config(name, ROOT)
    return config.resolve(base, experiment=name, config_files=[str(ROOT / file) for file in files]).config


def small_task(name, **changes):
    base = registry.get_config(name, ROOT)
    params = config.resolve(base, experiment=name, params_overrides=SMALL.get(name, [])).config.task
    return registry.get_task_cls(params)(params.replace(**changes))


def data(task, training, context=None, **changes):
    params = task.task_config.train_data if training else task.task_config.validation_data
    return task.build_inputs(params.replace(is_training=training, **changes), context)


def test_all_are_listed_with_what_they_are():
    assert sorted([*METRICS, *SEVERAL]) == NAMES
    assert all(experiment.summary for experiment in registry.named(ROOT).values())


def test_configs_are_read_without_tensorflow():
    """N7: listing, showing and checking an experiment never imports TensorFlow."""
    code = (
        "import sys; from pathlib import Path; from official_trainer import registry, config\n"
        f"for name in {NAMES!r}: print(config.dump(registry.get_config(name, Path({str(ROOT)!r}))))\n"
        "heavy = {'tensorflow', 'tf_keras', 'keras', 'keras_hub', 'sklearn', 'numpy', 'official'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_overlays():
    """N23: each experiment has an overlay that changes something and a smoke run of a few steps."""
    for name, folder in itertools.product(NAMES, ("configs", "configs/smoke")):
        overlay = Path(folder) / f"{name}.yaml"
        changed = resolved(name, overlay)
        assert changed != resolved(name), overlay
        assert f"--experiment={name} --config_file={overlay}" in (ROOT / overlay).read_text()
        if folder.endswith("smoke"):
            assert changed.trainer.train_steps <= 50, overlay
            assert changed.trainer.validation_interval < changed.trainer.train_steps, overlay


def test_every_overlay_belongs_to_an_experiment_and_one_shows_base():
    overlays = [path for path in (ROOT / "configs").rglob("*.yaml") if path.parent.name != "garden"]
    assert {path.stem for path in overlays} == set(NAMES)
    based = [path for path in overlays if "base" in yaml.safe_load(path.read_text())]
    assert [path.name for path in based] == ["digits_mlp.yaml"]
    assert resolved("digits_mlp", "configs/digits_mlp.yaml").trainer.optimizer_config.optimizer.type == "sgd"


def test_intervals_and_schedule_fit_the_length():
    for name in NAMES:
        trainer = resolved(name).trainer
        optimization = trainer.optimizer_config
        assert optimization.learning_rate.get().decay_steps == trainer.train_steps, name
        assert optimization.warmup.get().warmup_steps < trainer.train_steps / 5, name
        for interval in (trainer.validation_interval, trainer.checkpoint_interval, trainer.summary_interval):
            assert trainer.train_steps % interval == 0, name


def test_metrics_have_the_names_that_the_config_uses():
    """T9: distinct names, and the monitored metric is one that evaluation produces."""
    for name in SINGLE:
        task = small_task(name)
        for training in (True, False):
            names = [metric.name for metric in task.build_metrics(training)]
            assert names == METRICS[name], name
        assert registry.get_config(name, ROOT).trainer.best_checkpoint_eval_metric in names


@pytest.mark.parametrize("name", cases(SINGLE, *(name for name in SINGLE if name not in SMALL)))
def test_training_lowers_the_loss_and_changes_every_weight(name):
    """G9: and an evaluation takes every batch of the held-out data, also a last, smaller one."""
    task = small_task(name)
    for set_seed in (random.seed, np.random.seed, tf.random.set_seed):
        set_seed(0)
    model, metrics = task.build_model(), task.build_metrics()
    assert kerases.is_3(model) == (name in KERAS_3)
    adam = config.TrainerConfig(optimizer_config=config.opt.adam(3e-3))
    optimizer = contract.optimizer_of(task, config.ExperimentConfig(trainer=adam), model)
    before = [variable.numpy() for variable in model.trainable_variables]
    batch = next(iter(data(task, training=True)))
    step = tf.function(lambda: task.train_step(batch, model, optimizer, metrics)[task.loss])
    losses = [float(step()) for _ in range(21)]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]
    after = [variable.numpy() for variable in model.trainable_variables]
    unused = [v.name for v, a, b in zip(model.trainable_variables, before, after, strict=True) if (a == b).all()]
    assert unused == []
    context, examples, measured = inputs.InputContext(), 0, task.build_metrics(training=False)
    evaluate = tf.function(lambda batch: task.validation_step(batch, model, measured), reduce_retracing=True)
    for batch in data(task, training=False, context=context, global_batch_size=50):
        logs = evaluate(batch)
        assert np.isfinite(logs[task.loss]) and logs[task.loss].shape == ()
        examples += len(batch[1])
    assert examples == context.examples_per_epoch
    assert all(np.isfinite(metric.result()) for metric in (*metrics, *measured))


@pytest.mark.parametrize("name", [name for name in SINGLE if name != "python_docs_lm"])  # sixteen bytes may be alike
def test_held_out_data_is_not_trained_on(name):
    task = small_task(name)

    def rows(training):
        context = inputs.InputContext()
        dataset = data(task, training, context, global_batch_size=1)
        examples = dataset.unbatch().take(context.examples_per_epoch).as_numpy_iterator()
        return {b"".join(part.tobytes() for part in tf.nest.flatten(features)) for features, _ in examples}

    train, validation = rows(True), rows(False)
    assert not train & validation
    assert len(validation) > len(train) / 5


@pytest.mark.parametrize("trainer_type", [full("joint"), "interleaving"])
@pytest.mark.parametrize("name", SEVERAL)
def test_several_tasks_lower_each_loss_and_change_every_weight(name, trainer_type):
    """T21: the monitored metric is one of a task's; held-out data is not trained on."""
    base = registry.get_config(name, ROOT)
    params = base.replace(trainer=base.trainer.replace(trainer_type=trainer_type))
    random_streams.enable(0)
    task = registry.get_task_cls(params.task)(params.task)
    optimizer = task.create_optimizer(params.trainer.optimizer_config, params.runtime)
    trainer = Trainer(params, task, task.build_model(), optimizer)
    before, weights = trainer.evaluate(-1), [variable.numpy() for variable in trainer.model.trainable_variables]
    trainer.evaluation.check_monitored({params.trainer.best_checkpoint_eval_metric: "the config"})
    trainer.train(100)
    after = trainer.evaluate(-1)
    assert before.keys() == after.keys() == task.parts.keys()
    for part in task.parts:
        assert float(after[part]["validation_loss"]) < float(before[part]["validation_loss"])
    assert not [
        v.name for v, w in zip(trainer.model.trainable_variables, weights, strict=True) if (v == w).numpy().all()
    ]
    for part in task.parts.values():
        rows = [
            {image.tobytes() for image, _ in data(part.task, training, global_batch_size=1).unbatch().take(300)
             .as_numpy_iterator()}
            for training in (True, False)
        ]  # fmt: skip
        assert not rows[0] & rows[1]


def test_tabular_models_take_raw_measurements():
    from experiments import breast_cancer

    task = small_task("breast_cancer", model=breast_cancer.TabularModel(hidden=()))
    (measurements, labels), _ = breast_cancer.load_tumours(0.25)
    assert measurements.mean() > 10
    standardised = task.build_model().layers[1](measurements).numpy()
    np.testing.assert_allclose(standardised.mean(axis=0), 0, atol=1e-3)
    np.testing.assert_allclose(standardised.std(axis=0), 1, atol=1e-3)
    assert set(labels.ravel()) == {0.0, 1.0}


def test_diabetes_predicts_in_the_unit_of_the_data_and_learns_in_deviations():
    from experiments import diabetes

    task = small_task("diabetes", model=diabetes.RegressionModel(dropout=0.0, l2=0.0))
    (_, targets), _ = diabetes.load_patients(0.25)
    mean = np.full_like(targets, targets.mean())
    np.testing.assert_allclose(np.mean(task.build_losses(targets, mean)), 1.0, rtol=1e-5)
    predictions = task.build_model()(np.zeros([1, 10], "f")).numpy()
    assert predictions.shape == (1, 1)
    (mae,) = task.build_metrics()
    task.process_metrics([mae], targets, targets + 10)
    assert float(mae.result()) == pytest.approx(10)


def test_python_docs_hold_every_byte_once():
    from experiments import python_docs_lm

    _, validation = python_docs_lm.load_topics(10)
    tokens, labels = python_docs_lm.cut(validation, 16)
    assert tokens.shape == labels.shape and tokens.shape[1] == 16
    assert bytes(labels[labels != 0].astype("uint8")) == b"".join(validation)
    np.testing.assert_array_equal(tokens[:, 1:], labels[:, :-1])
    assert bytes(python_docs_lm.cut([b"abc"], 2)[0].astype("uint8").ravel()) == b"\0abc"


def test_python_docs_share_no_paragraph():
    """Topics quote each other; text that is quoted in a held-out topic would make the result too good."""
    from experiments import python_docs_lm

    train, validation = (
        {" ".join(paragraph.split()) for text in texts for paragraph in text.decode().split("\n\n")}
        for texts in python_docs_lm.load_topics(10)
    )
    assert not train & validation
    assert len(train) > 5 * len(validation)


def test_python_docs_model_sees_only_what_comes_before():
    model = small_task("python_docs_lm").build_model()
    tokens = np.random.default_rng(0).integers(1, 255, [1, 16]).astype("int32")
    changed = tokens.copy()
    changed[0, 9] = 255
    one, other = model(tokens).numpy(), model(changed).numpy()
    np.testing.assert_allclose(one[0, :9], other[0, :9], atol=1e-5)
    assert np.abs(one[0, 9:] - other[0, 9:]).max() > 1e-4


def test_bits_per_byte_counts_text_only():
    task = small_task("python_docs_lm")
    (metric,) = task.build_metrics()
    labels = tf.constant([[65, 66, 0, 0], [67, 68, 69, 70]])
    logits = tf.zeros([2, 4, 256]) + tf.one_hot([[0, 0, 9, 9], [0, 0, 0, 0]], 256) * 50.0 * tf.cast(
        tf.constant([[0], [0]])[..., None], tf.float32
    )
    task.process_metrics([metric], labels, logits)
    assert float(metric.result()) == pytest.approx(8.0)
    losses = task.build_losses(labels, tf.where(labels[..., None] == 0, 50.0 * tf.one_hot(9, 256), logits))
    np.testing.assert_allclose(losses, np.log(256), rtol=1e-5)
