"""Every source of random access, on another number of hosts after each stop: the same examples in each step.

A case is one training run in three parts. Each part has its own number of hosts and replicas, and begins at the step
where the part before it ended. What all hosts read in a step is compared with one host that reads on.

Building a pipeline takes a tenth of a second, and 10,000 cases need 100,000 of them. So a pipeline is built once for
each place in a job, with a start step that is a tensor, and is started at all steps of all cases in one graph; a few
hundred cases build each pipeline anew with a number, as a run does. It is the same code of `inputs/`.
"""

import collections
import dataclasses
import itertools
import random

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.config.schema import DataConfig
from tests.support.cases import full
from tests.support.source_cases import all_cases, pipeline

COUNT = 53
BATCHES = 48, 96  # one spans two or three epochs
JOBS = [(hosts, each) for hosts in (1, 2, 3, 4, 8) for each in (1, 2)]
FAR = 10**6
MOST_STEPS = 3  # of a part
REFERENCE_STEPS = 70
NUM_CASES = 10_000
NUM_BUILT = 300


@dataclasses.dataclass(frozen=True, order=True)
class Place:
    """A pipeline of a job."""

    hosts: int
    host: int
    each: int
    batch: int

    def build(self, source, start_step):
        context = inputs.InputContext(
            num_input_pipelines=self.hosts,
            input_pipeline_id=self.host,
            num_replicas_in_sync=self.hosts * self.each,
            start_step=start_step,
        )
        params = DataConfig(
            global_batch_size=self.batch, is_training=True, seed=5, shuffle_buffer_size=12, workers=2,
            prefetch_buffer_size=0,
        )  # fmt: skip
        return pipeline(source, params, context).map(lambda example: example["id"])


@dataclasses.dataclass(frozen=True)
class Part:
    """Some steps of a run on one fleet."""

    hosts: int
    each: int
    start: int
    steps: int

    def places(self, batch):
        return [Place(self.hosts, host, self.each, batch) for host in range(self.hosts)]


def drawn(chance):
    """Returns the batch size and the three parts of a case; every second run begins where an epoch ends."""
    batch, base = chance.choice(BATCHES), chance.choice((0, FAR))
    start = chance.randrange(50)
    if chance.random() < 0.5:
        positions = -(-(base + start) * batch // COUNT) * COUNT  # where the next epoch begins
        start = min(positions // batch - base, 50)
    parts, step = [], base + start
    for hosts, each in chance.choices(JOBS, k=3):
        parts.append(Part(hosts, each, step, chance.randint(1, MOST_STEPS)))
        step += parts[-1].steps
    return batch, parts


def read_in_one_graph(source, wanted):
    """Returns the ids of the elements of some steps, by `(place, start)`, with one pipeline for each place."""
    by_place = collections.defaultdict(list)
    for place, start in sorted(wanted):
        by_place[place].append(start)
    found = {}
    for place, starts in by_place.items():

        def elements(start, place=place):
            return place.build(source, start).take(MOST_STEPS * place.each)

        ids = tf.data.Dataset.from_tensor_slices(np.array(starts, np.int64)).flat_map(elements).as_numpy_iterator()
        for start in starts:
            found[place, start] = list(itertools.islice(ids, MOST_STEPS * place.each))
        assert next(ids, None) is None
    return found


def read_one_by_one(source, wanted):
    """Returns the same from a pipeline of its own for each, with a number as its start."""
    return {
        (place, start): list(itertools.islice(place.build(source, start).as_numpy_iterator(), MOST_STEPS * place.each))
        for place, start in wanted
    }


def reference(source, batch):
    """Returns what one host reads, `[step, batch]` by the first step; its epochs are permutations."""
    found = {}
    for base in (0, FAR):
        rows = Place(1, 0, 1, batch).build(source, base).take(REFERENCE_STEPS).as_numpy_iterator()
        found[base] = np.stack(list(rows))
        lead = -base * batch % COUNT
        whole = found[base].ravel()[lead:]
        epochs = whole[: len(whole) // COUNT * COUNT].reshape(-1, COUNT)
        assert (np.sort(epochs) == np.arange(COUNT)).all()
        assert len({tuple(epoch) for epoch in epochs.tolist()}) == len(epochs), "each in an order of its own"
    return found


def differing(source, cases, read):
    """Returns the cases in which a step has other examples than on one host."""
    wanted = {(place, part.start) for batch, parts in cases for part in parts for place in part.places(batch)}
    found = read(source, wanted)
    expected = {batch: reference(source, batch) for batch in {batch for batch, _ in cases}}
    return [case for case in cases if not is_same(found, expected[case[0]], *case)]


def is_same(found, expected, batch, parts):
    for part in parts:
        each = [found[place, part.start][: part.steps * part.each] for place in part.places(batch)]
        steps = np.concatenate([np.reshape(ids, [part.steps, -1]) for ids in each], axis=1)
        base = FAR if part.start >= FAR else 0
        if not np.array_equal(steps, expected[base][part.start - base : part.start - base + part.steps]):
            return False
    return True


NAMES = sorted(all_cases())


def shares(total):
    """Returns, for each source, how many of `total` cases it has with `-m full`."""
    return [full((name, -(-total // len(NAMES)))) for name in NAMES]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Returns what a case makes, made once."""
    made = {}

    def of(name):
        if name not in made:
            made[name] = all_cases()[name](tmp_path_factory.mktemp("source"), COUNT)
        return made[name]

    return of


@pytest.mark.parametrize(("name", "count"), [("groups", 2), *shares(NUM_CASES)])
def test_each_step_has_the_same_examples_on_any_fleet(source, name, count):
    """N42: at any step and epoch, at the ends of epochs, and after a second stop."""
    chance = random.Random(f"{name}/{count}")
    assert differing(source(name), [drawn(chance) for _ in range(count)], read_in_one_graph) == []


@pytest.mark.parametrize(("name", "count"), [*((name, 1) for name in NAMES), *shares(NUM_BUILT)])
def test_pipelines_that_are_built_for_each_start_do_so_too(source, name, count):
    """N42: with a number as the start step, as a run builds them."""
    chance = random.Random(f"built/{name}/{count}")
    assert differing(source(name), [drawn(chance) for _ in range(count)], read_one_by_one) == []


@pytest.mark.parametrize("name", NAMES)
def test_an_evaluation_has_each_example_once_on_any_fleet(source, name):
    """N42: also where a host has none, or the last batch is smaller."""
    for hosts, each, batch in [(1, 1, 8), (2, 1, 8), (3, 2, 12), (8, 1, 64)]:
        read = []
        for host in range(hosts):
            context = inputs.InputContext(
                num_input_pipelines=hosts, input_pipeline_id=host, num_replicas_in_sync=hosts * each
            )
            params = DataConfig(global_batch_size=batch, is_training=False)
            for element in pipeline(source(name), params, context).as_numpy_iterator():
                read += element["id"].tolist()
        assert sorted(read) == list(range(COUNT)), (hosts, each)


def test_a_difference_is_found(source, monkeypatch):
    """N42: hosts that take a batch of the step before are noticed."""
    build = Place.build
    monkeypatch.setattr(Place, "build", lambda self, data, start: build(self, data, start - (self.host == 2)))
    parts = [Part(2, 1, 5, 2), Part(3, 1, 7, 2), Part(1, 1, 9, 1)]
    assert differing(source("list"), [(48, parts)], read_in_one_graph) == [(48, parts)]
