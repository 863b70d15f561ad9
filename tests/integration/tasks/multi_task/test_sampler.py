"""Which task a step is for: Model Garden's shares, and nothing that a restart or a window could change."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from official.modeling.multitask import configs as garden_configs
from official.modeling.multitask import task_sampler as garden

from official_trainer.config import ConfigError, TaskSamplingConfig
from official_trainer.config.multitask import AnnealingSampleConfig, ProportionalSampleConfig
from official_trainer.tasks.multi_task.sampler import TaskSampler

WEIGHTS = {"a": 1.0, "b": 3.0, "c": 6.0}
SECTIONS = {
    "uniform": TaskSamplingConfig(type="uniform"),
    "proportional": TaskSamplingConfig(type="proportional", proportional=ProportionalSampleConfig(alpha=0.5)),
    "annealing": TaskSamplingConfig(
        type="annealing", annealing=AnnealingSampleConfig(steps_per_epoch=7, total_steps=50)
    ),
}


def choices(sampler, start, stop, seed=0, at_once=13):
    """Returns what a pipeline from `start` on chooses."""
    steps = tf.data.Dataset.range(start, stop).batch(at_once)
    chosen = steps.map(lambda numbers: sampler.choose(numbers, seed)).unbatch()
    return [int(number) for number in chosen.as_numpy_iterator()]


@pytest.mark.parametrize("name", SECTIONS)
def test_shares_are_model_gardens_at_every_step(name):
    """T21: uniform, proportional and annealing, up to the end of the annealing."""
    theirs = garden.get_task_sampler(garden_configs.TaskSamplingConfig(SECTIONS[name].as_dict()), WEIGHTS)
    sampler = TaskSampler.of(SECTIONS[name], WEIGHTS)
    for step in range(51):
        ours = sampler.distributions[min(step // sampler.steps_per_stage, len(sampler.distributions) - 1)]
        cumulative = theirs.task_cumulative_distribution(tf.constant(step)).numpy()
        np.testing.assert_allclose(np.cumsum(ours), cumulative, rtol=1e-4)


def test_annealing_stays_where_it_ends():
    """T21: the last share holds for ever, instead of going on past uniform."""
    sampler = TaskSampler.of(SECTIONS["annealing"], WEIGHTS)
    last = np.array([1.0, 3.0, 6.0]) ** 0.2
    counts = np.array(sampler.counts(0, 400_000, 200_000)) / 200_000
    np.testing.assert_allclose(counts, last / last.sum(), atol=0.005)
    assert len(sampler.distributions) < 20


@pytest.mark.parametrize("name", ["uniform", "proportional"])
def test_tasks_come_as_often_as_their_shares_say(name):
    """T21: within four standard deviations, over a hundred thousand steps."""
    sampler = TaskSampler.of(SECTIONS[name], WEIGHTS)
    (shares,), n = sampler.distributions, 100_000
    counts = np.array(sampler.counts(3, n))
    assert counts.sum() == n
    deviation = np.sqrt(n * np.array(shares) * (1 - np.array(shares)))
    assert (np.abs(counts - n * np.array(shares)) < 4 * deviation).all()


@settings(max_examples=2)
@given(
    seed=st.integers(0, 2**31), cuts=st.lists(st.integers(0, 300), min_size=1, max_size=4), at_once=st.integers(1, 200)
)
def test_choices_do_not_depend_on_restarts_or_windows(seed, cuts, at_once):
    """T21: begun anywhere, in pieces of any length, the sequence is the same, and so are the counts before a step."""
    sampler = TaskSampler.of(SECTIONS["annealing"], WEIGHTS)
    whole = choices(sampler, 0, 300, seed, at_once=300)
    edges = [0, *sorted(cuts), 300]
    pieces = [choices(sampler, start, stop, seed, at_once) for start, stop in itertools.pairwise(edges)]
    assert [number for piece in pieces for number in piece] == whole
    for cut in cuts:
        assert sampler.counts(seed, cut) == [whole[:cut].count(number) for number in range(3)]
        assert sampler.counts(seed, 300, cut) == [whole[cut:].count(number) for number in range(3)]


def test_seeds_differ_and_large_weights_do_not_overflow():
    """T21: another seed is another sequence; powers of weights stay numbers."""
    sampler = TaskSampler.of(SECTIONS["uniform"], WEIGHTS)
    assert choices(sampler, 0, 100, seed=0) != choices(sampler, 0, 100, seed=1)
    section = TaskSamplingConfig(
        type="annealing", annealing=AnnealingSampleConfig(steps_per_epoch=1000, total_steps=1001)
    )
    shares = TaskSampler.of(section, {"a": 1e9, "b": 1.0}).distributions
    assert np.isfinite(shares).all()
    np.testing.assert_allclose(np.sum(shares, axis=1), 1.0)


def test_a_sampler_that_is_none_of_them_is_refused():
    """T21: also in a section of Model Garden's, which takes any text."""
    section = garden_configs.TaskSamplingConfig()
    with pytest.raises(ConfigError, match=r"trainer.task_sampler.type: not one of the choices.*uniform, proportional"):
        TaskSampler.of(section, WEIGHTS)
