"""Several tasks in one Trainer: what a joint and an interleaved step compute, what is told of each task."""

import collections
import functools
import itertools
import math
import re
import types

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import config as configuration
from official_trainer import inputs
from official_trainer.config import ConfigError, DataConfig, MultiEvalExperimentConfig, TaskRoutine
from official_trainer.config.optimization import EMAConfig
from official_trainer.engine.step_context import TrainerOptions
from official_trainer.inputs import DataError
from official_trainer.lazy import keras
from official_trainer.runs.job import Job, batch_size_problems, check_ready
from official_trainer.tasks.keras import AccumulationError
from official_trainer.tasks.metrics import MetricDirectionError
from official_trainer.tasks.multi_task.task import MultiTask, Part, SubTasksError, parts_of
from official_trainer.tasks.random_streams import find_generators
from tests.support import several_tasks, toy
from tests.support.several_tasks import POINTS, SUMS_ROUTINE, NoDropout, Several


def batches(name, trainer, count, start=0):
    """Returns what one task's own data gives."""
    task = trainer.task.parts[name].task
    context = inputs.InputContext(start_step=start)
    dataset = task.build_inputs(task.task_config.train_data.replace(is_training=True), context)
    return list(dataset.repeat().skip(0 if context.starts_here else start).take(count))


def loss_of(trainer, name, batch):
    """Returns the loss that a task's own formulas give, with what its model adds."""
    features, labels = batch
    model = trainer.model.sub_tasks[name]
    outputs = model(features, training=True)
    losses = {
        "points": lambda: keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True),
        "sums": lambda: tf.reduce_sum(tf.square(labels - outputs), axis=1),
    }
    return tf.reduce_mean(losses[name]()) + 1e-3 * tf.reduce_sum(model.get_layer("trunk").kernel ** 2)


# What a step computes.


@pytest.fixture(scope="module")
def trained():
    """Trainers after twenty steps by whether they train jointly, which tests only read, and what they said before."""

    @functools.cache
    def of(joint):
        trainer = several_tasks.build(
            several_tasks.experiment(joint=joint, ema=EMAConfig(average_decay=0.9)), task_cls=NoDropout
        )
        logs = trainer.train(1)
        trainer.train(8)
        num_examples = trainer.examples_of(5)
        trainer.train(1)
        after_ten = several_tasks.values(trainer)
        trainer.train(10)
        return types.SimpleNamespace(trainer=trainer, first_logs=logs, num_examples=num_examples, after_ten=after_ten)

    return of


def test_a_joint_step_is_one_update_by_the_weighted_sum(trained):
    """T21: the numbers of a loop written by hand, whose data is each task's own."""
    trainer = trained(joint=True).trainer
    by_hand = several_tasks.build(several_tasks.experiment(joint=True), task_cls=NoDropout)
    model, optimizer = by_hand.model, keras.optimizers.legacy.Adam(0.01)
    for points, sums in zip(batches("points", by_hand, 20), batches("sums", by_hand, 20), strict=True):
        with tf.GradientTape() as tape:
            loss = loss_of(by_hand, "points", points) + 0.5 * loss_of(by_hand, "sums", sums)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    assert int(trainer.optimizer.iterations) == int(trainer.global_step) == 20
    several_tasks.assert_close(trainer, several_tasks.values(by_hand), rtol=1e-4, atol=1e-5)


def test_interleaved_steps_are_the_tasks_own(trained):
    """T21: each task's next batch, in the order of the sampler; the other head is not touched, nor its slots."""
    trainer = trained(joint=False).trainer
    by_hand = several_tasks.build(several_tasks.experiment(), task_cls=NoDropout)
    optimizer = keras.optimizers.legacy.Adam(0.01)
    order = by_hand.task._sampler.choose(tf.range(20, dtype=tf.int64), 0).numpy()
    assert {0, 1} == set(order)
    streams = {name: iter(batches(name, by_hand, 20)) for name in by_hand.task.parts}
    for number in order:
        name = list(by_hand.task.parts)[number]
        variables = by_hand.model.sub_tasks[name].trainable_variables
        with tf.GradientTape() as tape:
            loss = loss_of(by_hand, name, next(streams[name]))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    several_tasks.assert_close(trainer, several_tasks.values(by_hand), rtol=1e-4, atol=1e-5)


def test_interleaved_batches_after_a_start_in_the_middle_are_the_same():
    """T21, N1: each task's data goes on where the steps before have left it."""
    trainer = several_tasks.build()
    whole = [tf.nest.flatten(batch) for batch in itertools.islice(trainer.train_iterator.batches(0), 23)]
    rest = [tf.nest.flatten(batch) for batch in itertools.islice(trainer.train_iterator.batches(11), 12)]
    for expected, found in zip(whole[11:], rest, strict=True):
        toy.assert_bitwise_equal(found, expected)
    assert any(a.numpy().tobytes() != b.numpy().tobytes() for a, b in zip(whole[0], rest[0], strict=True))


def test_batches_that_do_not_divide_are_refused():
    """T21, G14: of any of the tasks."""
    trainer = several_tasks.build(several_tasks.experiment(joint=True, gradient_accumulation_steps=5))
    with pytest.raises(AccumulationError, match=r"6 examples of a replica do not divide into 5 micro-batches"):
        trainer.train(1)


def test_frozen_layers_and_random_layers_of_sub_models():
    """T21: what a layer says of its weights holds; every dropout of every sub-model draws by step."""

    class Frozen(Several):
        def build_models(self):
            models = super().build_models()
            models["sums"].get_layer("trunk").trainable = False
            return models

    trainer = several_tasks.build(task_cls=Frozen)
    assert [v.name for v in trainer.model.trainable_variables] == ["classes/kernel:0", "classes/bias:0", "sum/kernel:0",
                                                                   "sum/bias:0"]  # fmt: skip
    assert len(trainer.model.variables) == 6
    assert len(find_generators(trainer.model)) == 1


# What is told of each task.


def test_training_logs_are_nested_by_task(trained):
    """T21: the loss and the metrics of a task, over its own steps; one that had no step is left out."""
    logs = trained(joint=True).first_logs
    assert set(logs["points"]) == {"accuracy", "training_loss"}
    assert set(logs["sums"]) == {"error", "training_loss"}
    total = float(logs["points"]["training_loss"]) + 0.5 * float(logs["sums"]["training_loss"])
    assert math.isclose(float(logs["training_loss"]), total, rel_tol=1e-5)
    logs, task = trained(joint=False).first_logs, trained(joint=False).trainer.task
    first = int(task._sampler.choose(tf.zeros([1], tf.int64), 0)[0])
    name = list(task.parts)[first]
    assert float(logs[name]["training_loss"]) == float(logs["training_loss"])
    assert logs["sums" if name == "points" else "points"] == {}


def test_every_set_is_evaluated_whole_and_each_example_once():
    """T21, N17: whatever the batch size and the number of replicas; what the host adds up too."""
    data = DataConfig(global_batch_size=14)
    routines = [
        part.replace(task_config=part.task_config.replace(validation_data=data)) for part in (POINTS, SUMS_ROUTINE)
    ]
    trainer = several_tasks.build(several_tasks.experiment(*routines), "mirrored2")
    logs = trainer.evaluate(-1)
    assert set(logs) == {"points", "sums"}
    models = trainer.model.sub_tasks
    found = models["points"](toy.FEATURES).numpy()
    assert math.isclose(float(logs["points"]["accuracy"]), (found.argmax(1) == toy.LABELS).mean(), rel_tol=1e-5)
    errors = np.abs(models["sums"]({"x": toy.FEATURES}).numpy() - several_tasks.SUMS)
    assert math.isclose(float(logs["sums"]["error"]), errors.mean(), rel_tol=1e-5)
    regulariser = 1e-3 * float(tf.reduce_sum(models["sums"].get_layer("trunk").kernel ** 2))
    assert math.isclose(float(logs["sums"]["validation_loss"]), (errors**2).mean() + regulariser, rel_tol=1e-5)
    assert math.isclose(logs["sums"]["mean_sum"], several_tasks.SUMS.mean(dtype="float64"), rel_tol=1e-6)
    assert logs["points"].keys() == {"accuracy", "validation_loss"}


def test_each_set_has_its_own_number_of_steps():
    """T21: `eval_steps` counts for a set that has it, the evaluation's for the others."""
    seen = collections.Counter()

    def count(name, state, logs):
        seen[name] += 1

    class Counting(Several):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            for part in self.parts.values():
                part.task.aggregate_logs = functools.partial(count, part.name)

    trainer = several_tasks.build(
        several_tasks.experiment(POINTS.replace(eval_steps=2), SUMS_ROUTINE), task_cls=Counting
    )
    trainer.evaluate(1)
    assert seen == {"points": 2, "sums": 1}
    seen.clear()
    trainer.evaluate(-1)
    assert seen == {"points": 2, "sums": 3}
    seen.clear()
    trainer.evaluation.run_without_effects(1, own_steps=False)
    assert seen == {"points": 1, "sums": 1}


def test_metrics_are_found_by_the_name_of_their_task():
    """T21, C1: `task|metric`, with the direction that the task, or the metric, declares."""
    trainer = several_tasks.build()
    trainer.evaluation.check_monitored({"points|accuracy": "best", "sums|error": "best", "sums|mean_sum": "best"})
    assert trainer.evaluation.metric_direction("points|accuracy") == "max"
    assert trainer.evaluation.metric_direction("sums|error") == "min"
    assert trainer.evaluation.metric_direction("sums|mean_sum") == "max"
    assert trainer.evaluation.metric_direction("points|validation_loss") == "min"
    with pytest.raises(MetricDirectionError, match=r"'points\|mean_sum' is better: it is no metric object of PointsT"):
        trainer.evaluation.metric_direction("points|mean_sum")
    with pytest.raises(
        MetricDirectionError, match=r"'accuracy' is better: it belongs to no validation set; there are points, sums"
    ):
        trainer.evaluation.metric_direction("accuracy")
    with pytest.raises(LookupError, match=r"it produces points\|accuracy, points\|validation_loss, sums\|error"):
        trainer.evaluation.check_monitored({"accuracy": "trainer.best_checkpoint_eval_metric"})


def test_averaged_weights_are_evaluated(trained):
    """T21, T13: as for one task."""
    trainer = trained(joint=False).trainer
    logs = trainer.evaluate(-1)
    with trainer.weights_averaged():
        found = trainer.model.sub_tasks["points"](toy.FEATURES).numpy()
    assert math.isclose(float(logs["points"]["accuracy"]), (found.argmax(1) == toy.LABELS).mean(), rel_tol=1e-5)
    assert not np.array_equal(found, trainer.model.sub_tasks["points"](toy.FEATURES).numpy())


def test_examples_of_a_window_are_those_of_its_tasks(trained):
    """T21: what the throughput is counted by."""
    assert trained(joint=True).num_examples == 5 * 16
    counts = trained(joint=False).trainer.task._sampler.counts(0, 9, 4)
    assert trained(joint=False).num_examples == counts[0] * 10 + counts[1] * 6


# One task, several sets.


def eval_config(*routines, **task):
    base = toy.experiment()
    return MultiEvalExperimentConfig(
        task=base.task.replace(**task), trainer=base.trainer, runtime=base.runtime, eval_tasks=routines
    )


def test_one_task_is_evaluated_on_named_sets_too():
    """T21, B3, B4: the same weights, each set whole, beside the task's own; a metric of one set is found by name."""
    few = POINTS.replace(task_name="few", eval_steps=1)
    config = eval_config(few, POINTS.replace(task_name="dev"))
    trainer = toy.build(config, options=TrainerOptions(eval_tasks=parts_of(config.eval_tasks)))
    logs = trainer.evaluate(-1)
    assert set(logs) == {"accuracy", "validation_loss", "few", "dev"}
    logits = trainer.model(toy.FEATURES).numpy()
    right = logits.argmax(1) == toy.LABELS
    assert math.isclose(float(logs["accuracy"]), right.mean(), rel_tol=1e-6)
    assert math.isclose(float(logs["dev"]["accuracy"]), right.mean(), rel_tol=1e-6)
    assert math.isclose(float(logs["few"]["accuracy"]), right[:40].mean(), rel_tol=1e-6)
    for name in ("few|accuracy", "accuracy"):
        assert trainer.evaluation.metric_direction(name) == "max"


def test_a_set_whose_name_is_that_of_a_metric_is_refused():
    """T21: one would hide the other."""
    config = eval_config(POINTS.replace(task_name="accuracy"))
    with pytest.raises(ValueError, match=r"two evaluation metrics are named 'accuracy'"):
        toy.build(config, options=TrainerOptions(eval_tasks=parts_of(config.eval_tasks)))


def test_an_empty_set_is_named():
    """T21: which of several sets holds nothing."""

    class Empty(several_tasks.PointsTask):
        def build_inputs(self, params, input_context=None):
            return super().build_inputs(params, input_context).take(0)

    part = Part(name="nothing", task=Empty(POINTS.task_config))
    with pytest.raises(DataError, match=r"Empty.build_inputs: the validation data of 'nothing' holds no example"):
        toy.build(options=TrainerOptions(eval_tasks=[part])).evaluate(-1)


def test_missing_files_are_named_with_the_section_of_their_task(monkeypatch):
    """T21, G6: of a task that is trained, and of one that is only evaluated."""

    def from_files(self, params, input_context=None):
        return inputs.from_tfrecords(params, input_context, parse_fn=lambda record: record)

    def missing(section):
        return pytest.raises(DataError, match=rf"^{re.escape(section)}\.input_path: is empty")

    monkeypatch.setattr(several_tasks.SumsTask, "build_inputs", from_files)
    with missing("task.task_routines[1].task_config.train_data"):
        several_tasks.build().train(1)
    with missing("task.task_routines[1].task_config.validation_data"):
        several_tasks.build().evaluate(-1)
    config = eval_config(POINTS, SUMS_ROUTINE)
    monkeypatch.setattr(several_tasks.PointsTask, "build_inputs", from_files)
    with missing("eval_tasks[0].task_config.validation_data"):
        toy.build(config, options=TrainerOptions(eval_tasks=parts_of(config.eval_tasks))).evaluate(-1)


# What is refused.


def problems_of(config, *sets):
    with pytest.raises(ConfigError) as error:
        configuration.resolve(config, experiment="several", sets=sets)
    return str(error.value)


BAD_ROUTINES = [
    (
        (POINTS, POINTS),
        r"task_routines\[1\].task_name: 'points' is the name of task_routines\[0\] too; give one an",
    ),
    ((POINTS.replace(task_name=""),), r"task_routines\[0\].task_name: is not set; name the task"),
    ((POINTS.replace(task_name="a|b"),), r"task_routines\[0\].task_name: 'a\|b' contains '\|' or '/'"),
    ((POINTS.replace(task_weight=0.0),), r"task_routines\[0\].task_weight: must be greater than 0, got 0.0"),
    ((POINTS.replace(task_weight=-1.0),), r"task_routines\[0\].task_weight: must be greater than 0, got -1.0"),
    ((POINTS.replace(eval_steps=0),), r"task_routines\[0\].eval_steps: must be -1 \(all data\) or at least 1"),
]
BAD_SETTINGS = [
    (["task.task_routines=[]"], r"task.task_routines: names no task; add at least one TaskRoutine"),
    (["trainer.trainer_type=both"], r"trainer.trainer_type: .*'both'.*"),
    (["trainer.task_sampler=proportion"], r"trainer.task_sampler.type: .*did you mean 'proportional'"),
    (["trainer.task_sampler.type=null"], r"task_sampler.type: is not set, and trainer_type=interleaving needs one"),
    (
        ["trainer.trainer_type=joint", "trainer.task_sampler=uniform"],
        r"trainer.task_sampler: has no effect with trainer_type=joint",
    ),
    (
        ["trainer.task_sampler=annealing", "trainer.task_sampler.annealing.total_steps=5"],
        r"annealing.total_steps: must be more than steps_per_epoch=5: there is one epoch only",
    ),
    (["trainer.train_steps=0", "trainer.train_epochs=2"], r"trainer.train_epochs: is undefined for several tasks"),
    (["runtime.distribution_strategy=tpu"], r"trainer_type: interleaving has batches of several shapes.*joint"),
    (
        [
            "task.task_routines[1].task_config.train_data.enable_tf_data_service=true",
            "task.task_routines[1].task_config.train_data.tf_data_service_address=grpc://x:1",
        ],
        r"task_routines\[1\].task_config.train_data.enable_tf_data_service: batches of several tasks do not come",
    ),
    (
        [
            "task.task_routines[0].task_config.train_data.drop_remainder=false",
            "trainer.gradient_accumulation_steps=2",
        ],
        r"task_routines\[0\].task_config.train_data.drop_remainder: trainer.gradient_accumulation_steps needs",
    ),
]


def test_what_does_not_go_with_several_tasks_is_refused():
    """T21, N7: before anything is built, with the place: routines, settings, and two validation sets of one name."""
    for routines, said in BAD_ROUTINES:
        assert re.search(said, problems_of(several_tasks.experiment(*routines)))
    for sets, said in BAD_SETTINGS:
        assert re.search(said, problems_of(several_tasks.experiment(), *sets))
    said = r"eval_tasks\[1\].task_name: 'points' is the name of eval_tasks\[0\] too; give one another name"
    assert re.search(said, problems_of(eval_config(POINTS, POINTS)))


def job_of(config):
    resolved = configuration.resolve(config, experiment="several")
    return Job(experiment="several", resolved=resolved, model_dir="unused", mode="train_and_eval")


def test_batches_of_every_task_are_checked_before_tensorflow():
    """T21, N17: with the place of the one that does not divide."""
    found = [problem.path for problem in batch_size_problems(job_of(several_tasks.experiment()), 4, "replicas")]
    assert found == [f"task.task_routines[{n}].task_config.train_data.global_batch_size" for n in range(2)]
    config = eval_config(POINTS.replace(task_config=POINTS.task_config.replace(train_data=DataConfig())))
    found = [problem.path for problem in batch_size_problems(job_of(config), 3, "replicas")]
    assert "eval_tasks[0].task_config.validation_data.global_batch_size" in found
    assert not [path for path in found if path.startswith("eval_tasks[0].task_config.train_data")]


def test_a_routine_without_a_task_is_refused_with_its_place():
    """T21: the section's class has no Task."""
    config = several_tasks.experiment(TaskRoutine(task_name="x"))
    with pytest.raises(ConfigError, match=r"task.task_routines\[0\].task_config: no Task class is registered for .*Ta"):
        check_ready(job_of(config))


def test_a_model_without_a_part_for_a_task_is_refused():
    """T21: with those that there are."""
    with pytest.raises(
        SubTasksError, match=r"task 'point' has no model: the sub_tasks of MultiTaskModel are points, su"
    ):
        several_tasks.build(several_tasks.experiment(POINTS.replace(task_name="point")))


def test_a_task_without_a_model_says_what_to_define():
    """T21: there is no default."""
    with pytest.raises(NotImplementedError, match=r"MultiTask must define build_models\(\), or build_model\(\)"):
        MultiTask(several_tasks.experiment().task).build_model()


def test_parts_made_in_python_are_checked_too():
    """T21: as their sections are."""

    class InPython(Several):
        def __init__(self, parts):
            super().__init__(None, parts=parts)

    part = Part(name="points", task=None)
    with pytest.raises(ConfigError, match=r"task.task_routines: names no task; add at least one TaskRoutine"):
        InPython([])
    with pytest.raises(
        ConfigError, match=r"task_routines\[1\].task_name: 'points' is the name of task.task_routines\[0"
    ):
        InPython([part, part])
    with pytest.raises(ConfigError, match=r"task_routines\[0\].task_weight: must be greater than 0, got -2"):
        InPython([Part(name="points", task=None, weight=-2)])


def test_a_trainer_section_of_one_task_is_refused():
    """T21: it does not say how tasks are sampled."""
    task = Several(several_tasks.experiment().task)
    with pytest.raises(
        ConfigError, match=r"trainer: has no task_sampler, which interleaving needs; make it a MultiTask"
    ):
        task.configure(toy.experiment().trainer)


def test_what_cannot_be_left_empty_is_refused_when_interleaved():
    """T21: sparse and ragged batches go with joint training."""

    class Ragged(Several):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            points = self.parts["points"].task
            build = points.build_inputs
            points.build_inputs = lambda params, input_context=None: build(params, input_context).map(
                lambda features, labels: (tf.RaggedTensor.from_tensor(features), labels)
            )

    with pytest.raises(
        DataError, match=r"holds a RaggedTensorSpec, which interleaving cannot leave empty; use trainer"
    ):
        several_tasks.build(task_cls=Ragged).train(1)


def test_a_dataset_given_for_an_evaluation_is_refused():
    """T21: nothing says which task's it would be."""
    trainer = several_tasks.build(validation_dataset=toy.examples(40).batch(10))
    with pytest.raises(
        NotImplementedError, match=r"validation_dataset: several tasks cannot be evaluated on one dataset"
    ):
        trainer.evaluate(-1)
