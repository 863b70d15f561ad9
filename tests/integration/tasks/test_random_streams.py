"""Seeds by name: functions of (seed, step, name, replica) and of nothing else."""

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.config import schema
from official_trainer.engine.step_context import TrainerOptions
from official_trainer.lazy import keras
from official_trainer.tasks import publish, random_streams
from official_trainer.tasks.multi_task.task import Part
from official_trainer.tasks.random_streams import RandomStreamError
from tests.support import toy
from tests.support.cases import cases
from tests.support.seeded_runs import NamedDropout, SeededTask
from tests.support.toy import ToyTask, build, experiment


def seeds(trainer, steps):
    """Returns the seeds of each step and replica by name, as pairs."""
    found = {}
    for step in range(steps):
        trainer.run_steps(1, publish=True)
        for name in ("augment", "noise"):
            for replica, pair in enumerate(trainer.windows.published[name].values.reshape(-1, 2)):
                assert pair.dtype == np.int64
                found[step, replica, name] = tuple(pair)
    return found


def seeded(seed, **options):
    config = experiment()
    return build(config.replace(runtime=schema.RuntimeConfig(seed=seed)), task_cls=SeededTask, **options)


@pytest.fixture(scope="module")
def of_one():
    """The seeds of six steps on one device."""
    return seeds(seeded(0), 6)


def test_a_seed_depends_on_seed_step_name_and_replica_alone(of_one):
    """B11: it differs where one of them does, and is the same in another process."""
    two = seeds(seeded(0, strategy="mirrored2"), 4)
    assert len(set(two.values())) == len(two) == 4 * 2 * 2
    assert {key: of_one[key] for key in two if key[1] == 0} == {key: pair for key, pair in two.items() if key[1] == 0}
    assert not set(two.values()) & set(seeds(seeded(1), 4).values())
    later = seeded(0)
    later.run_steps(2)
    (pair,) = {pair for (_, _, name), pair in seeds(later, 1).items() if name == "noise"}
    assert pair == of_one[2, 0, "noise"]


def test_what_is_drawn_is_not_alike(of_one):
    """B11: from seeds that are next to each other in every respect."""
    drawn = [tf.random.stateless_normal([500], seed).numpy() for seed in of_one.values()]
    between = np.corrcoef(drawn)[np.triu_indices(len(drawn), 1)]
    assert np.abs(between).max() < 0.2  # four and a half standard deviations


@pytest.mark.parametrize("strategy", cases(["off", "mirrored2"], "off"))
def test_evaluations_have_seeds_of_their_own(strategy):
    """B11: one for each batch of each replica, the same in every evaluation, none of training's."""
    trainer = seeded(0, strategy=strategy)
    trainer.evaluate(-1)
    first = trainer.task.seeds
    assert len(first) == len(set(first)) >= 11
    training = set(seeds(trainer, 12).values())
    trainer.evaluate(-1)
    assert trainer.task.seeds == first
    assert not training & set(first)


class DrawsAlways(ToyTask):
    """A toy whose dropout is active in evaluations as well."""

    def build_model(self):
        model = super().build_model()
        features = keras.Input((6,), name="features")
        return keras.Model(features, model(features, training=True))


def test_layers_that_draw_in_evaluations_draw_the_same_in_each():
    """B11, N1: whatever was drawn before, so that an evaluation that a crash interrupted is repeated as it was."""
    trainer = build(task_cls=DrawsAlways)
    first = trainer.evaluate(-1)
    assert trainer.evaluate(-1) == first
    for _ in range(2):
        trainer.model(toy.FEATURES)
    assert trainer.evaluate(-1) == first
    assert trainer.evaluate(3) != first


def test_a_seed_may_be_asked_for_in_functions_and_loops():
    """B11: it can be read wherever the step computes, and is the same there."""

    class Nested(ToyTask):
        def train_step(self, inputs, model, optimizer, metrics=None):
            @tf.function
            def inner():
                return random_streams.seed("a")

            def body(index, _):
                return index + 1, random_streams.seed("a")

            _, looped = tf.while_loop(lambda index, _: index < 2, body, [0, tf.zeros([2], tf.int64)])
            publish.histogram("seeds", tf.stack([random_streams.seed("a"), inner(), looped]))
            return super().train_step(inputs, model, optimizer, metrics)

    trainer = build(task_cls=Nested)
    trainer.run_steps(3)
    trainer.run_steps(1, publish=True)
    assert len({tuple(pair) for pair in trainer.windows.published["seeds"].values}) == 1


class SeveralStreams(ToyTask):
    """Publishes the seeds of its own streams, and of one more."""

    random_streams = ("noise", "mask")

    def train_step(self, inputs, model, optimizer, metrics=None):
        found = random_streams.seeds("flip")
        assert list(found) == ["noise", "mask", "flip"]
        publish.histogram("all", tf.stack([*found.values(), *(random_streams.seed(name) for name in found)]))
        return super().train_step(inputs, model, optimizer, metrics)

    def validation_step(self, inputs, model, metrics=None):
        assert list(random_streams.seeds()) == ["noise", "mask"]
        return super().validation_step(inputs, model, metrics)


def test_the_seeds_of_all_streams_of_a_task_are_there_by_name():
    """B11, B15: those that the task declares, and extra ones; each is what it is by itself."""
    trainer = build(task_cls=SeveralStreams)
    trainer.run_steps(1, publish=True)
    pairs = [tuple(pair) for pair in trainer.windows.published["all"].values]
    assert pairs[:3] == pairs[3:]
    assert len(set(pairs)) == 3
    trainer.evaluate(-1)


def test_named_sets_have_the_streams_of_their_tasks_too():
    """B11, B15: a task that only evaluates declares its own."""
    config = experiment()
    part = Part(name="more", task=SeveralStreams(config.task))
    logs = build(config, options=TrainerOptions(eval_tasks=[part])).evaluate(-1)
    assert "accuracy" in logs["more"]


def test_a_stream_that_is_there_twice_is_refused():
    """B15: two purposes would draw the same."""

    class Twice(SeveralStreams):
        def train_step(self, inputs, model, optimizer, metrics=None):
            random_streams.seeds("flip", "mask")

    said = r"the stream 'mask' is there twice; the task's random_streams are noise, mask, the extra ones flip, mask\."
    with pytest.raises(RandomStreamError, match=said):
        build(task_cls=Twice).run_steps(1)
    with pytest.raises(RandomStreamError, match=r"seeds\(…\) is called outside of a step"):
        random_streams.seeds()


def test_outside_of_a_step_there_is_no_seed():
    """B11: the error says where there is one."""
    with pytest.raises(RandomStreamError, match=r"seed\('augment'\) is called outside of a step.*Task.train_step"):
        random_streams.seed("augment")

    class Careless(NamedDropout):
        def call(self, inputs, training=None):
            return super().call(inputs, training=True)

    with pytest.raises(RandomStreamError, match=r"seed\('dropout'\).* in a layer, only if `training` is true"):
        Careless()(keras.Input((6,)))
    trainer = toy.build(task_cls=SeededTask)
    trainer.run_steps(1)
    with pytest.raises(RandomStreamError):
        random_streams.seed("augment")
