"""Sources of random access: their order, where they start, what is said about examples that cannot be read."""

import itertools

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer import inputs
from official_trainer.config.schema import DataConfig
from official_trainer.inputs import random_access
from tests.support.sources import Columns, Numbers

COUNT = 53


def train(batch=8, **fields):
    return DataConfig(global_batch_size=batch, is_training=True, **fields)


def evaluation(batch=8, **fields):
    return DataConfig(global_batch_size=batch, is_training=False, **fields)


def ids(dataset, count=None):
    return [element["id"].tolist() for element in itertools.islice(dataset.as_numpy_iterator(), count)]


def flat(parts):
    return list(itertools.chain.from_iterable(parts))


def global_batches(build, steps, *, pipelines=1, replicas=1, start_step=0):
    """The ids of each global batch of a whole job, the parts of all pipelines put together."""
    each = replicas // pipelines
    parts = []
    for pipeline in range(pipelines):
        context = inputs.InputContext(
            num_input_pipelines=pipelines,
            input_pipeline_id=pipeline,
            num_replicas_in_sync=replicas,
            start_step=start_step,
        )
        elements = ids(build(context), steps * each)
        parts.append([flat(elements[step * each : (step + 1) * each]) for step in range(steps)])
    return [flat(step) for step in zip(*parts, strict=True)]


SOURCES = {
    "one by one": lambda: Numbers(COUNT),
    "columns": lambda: Columns(COUNT),
    "groups": lambda: Numbers(COUNT, groups=[10, 3, 17, 1, 12, 10]),
    "columns in groups": lambda: Columns(COUNT, groups=[10, 3, 17, 1, 12, 10]),
    "list": lambda: [{"id": number} for number in range(COUNT)],
}


@pytest.fixture(params=SOURCES)
def source(request):
    return SOURCES[request.param]()


def test_an_epoch_has_each_example_once_in_another_order(source):
    """N41: for sources read one by one, in columns, in groups, and a list of Python."""
    read = flat(ids(inputs.from_source(source, train(seed=5, shuffle_buffer_size=12)), 20))
    first, second = read[:COUNT], read[COUNT : 2 * COUNT]
    assert sorted(first) == sorted(second) == list(range(COUNT))
    assert first != second and first != sorted(first)


class Pairs(Columns):
    """An example and, in a tuple, its number."""

    def __getitem__(self, index):
        return super().__getitem__(index), (index,)

    def take(self, indices):
        batch = super().take(indices)
        return batch, (batch["id"],)


def test_examples_that_are_tuples_are_read_many_at_once():
    """N41: a batch is a part of what was read, in the structure of an example, and as long as any other."""
    dataset = inputs.from_source(Pairs(COUNT), train())
    for example, (number,) in itertools.islice(dataset.as_numpy_iterator(), 40):
        assert example["id"].tolist() == number.tolist() and len(number) == 8
        assert example["text"].tolist() == [f"number {each}".encode() for each in number]


@settings(max_examples=6, deadline=None)
@given(
    name=st.sampled_from(sorted(SOURCES)),
    job=st.sampled_from([(1, 1), (1, 4), (2, 2), (2, 4), (4, 4)]),
    start_step=st.integers(0, 60),
    batch=st.sampled_from([4, 8, 12]),
)
def test_any_job_continues_with_the_same_examples(name, job, start_step, batch):
    """N42: at any step, also in later epochs, on any number of hosts and replicas."""

    def build(context):
        return inputs.from_source(SOURCES[name](), train(batch, seed=5, shuffle_buffer_size=12), context)

    alone = global_batches(build, start_step + 3)
    pipelines, replicas = job
    continued = global_batches(build, 3, pipelines=pipelines, replicas=replicas, start_step=start_step)
    assert continued == alone[start_step:]


def test_an_evaluation_has_each_example_once_in_order(source):
    """N41: the last batch is smaller, and two hosts divide it."""

    def build(context):
        return inputs.from_source(source, evaluation(), context)

    assert flat(ids(build(None))) == list(range(COUNT))
    divided = [
        flat(ids(build(inputs.InputContext(num_input_pipelines=2, input_pipeline_id=k, num_replicas_in_sync=2))))
        for k in range(2)
    ]
    assert sorted(flat(divided)) == list(range(COUNT))


@pytest.mark.parametrize("workers", [{"workers": 1}, {"workers": 5}, {"workers": 2, "use_multiprocessing": True}])
def test_the_order_does_not_depend_on_workers(workers):
    """N41: threads or processes."""
    numbers = [{"id": number} for number in range(COUNT)]  # a class of tests/ may not be found in a process
    usual = ids(inputs.from_source(numbers, train()), 12)
    assert ids(inputs.from_source(numbers, train(**workers)), 12) == usual


def with_noise(example, rng):
    return {**example, "noise": rng.standard_normal(3)}


def test_transforms_draw_the_same_numbers_after_a_restart():
    """N41: the numbers depend on the position, so an example has others in the next epoch."""

    def noise(start_step, count):
        context = inputs.InputContext(start_step=start_step)
        dataset = inputs.from_source(Numbers(COUNT), train(), context, transforms=[with_noise])
        return np.concatenate([element["noise"] for element in itertools.islice(dataset.as_numpy_iterator(), count)])

    whole = noise(0, 20)
    np.testing.assert_array_equal(noise(7, 13), whole[7 * 8 :])
    assert len(np.unique(whole)) == whole.size


def test_grains_transforms_and_sources_serve():
    """N41: a `Map` of Grain, over a source of Grain."""

    class Double(grain.transforms.Map):
        def map(self, element):
            return {"id": element * 2}

    dataset = inputs.from_source(grain.sources.RangeDataSource(0, 6, 1), evaluation(4), transforms=[Double()])
    assert ids(dataset) == [[0, 2, 4, 6], [8, 10]]


def test_grain_keeps_its_order_at_any_step():
    """N41: `from_grain` yields `dataset[i]`, epoch after epoch, on one host and on two."""
    data = grain.MapDataset.source(range(COUNT)).seed(3).shuffle().map(lambda number: {"id": number})

    def build(context):
        return inputs.from_grain(data, train(4), context)

    alone = global_batches(build, 30)
    assert flat(alone) == [data.repeat()[position]["id"] for position in range(120)]
    assert sorted(flat(alone)[:COUNT]) == list(range(COUNT))
    assert global_batches(build, 5, pipelines=2, replicas=2, start_step=25) == alone[25:]


def test_grains_version_is_recorded():
    """N41: its order may change with a release."""
    context = inputs.InputContext()
    inputs.from_grain(grain.MapDataset.source([{"id": 1}] * 9), train(4), context)
    assert context.order == f"grain {grain.__version__}"


def test_an_element_that_a_filter_of_grain_dropped_is_refused():
    """N45"""
    data = grain.MapDataset.source(range(9)).filter(lambda number: number != 0).map(lambda number: {"id": number})
    with pytest.raises(inputs.DataError, match="element 0 of the MapDataset: a filter of the dataset dropped it"):
        inputs.from_grain(data, train(4))


@pytest.mark.parametrize(
    ("data", "params", "message"),
    [
        (grain.MapDataset.range(3).to_iter_dataset(), train(), "an IterDataset has a state instead of positions"),
        ([1, 2], train(), "needs a grain.MapDataset, got a list"),
        (grain.MapDataset.range(0), train(), "the training data are empty"),
        (grain.MapDataset.range(3).repeat(), evaluation(), "the evaluation data have no end; leave repeat() out"),
    ],
)
def test_what_grain_cannot_read_by_number_is_refused(data, params, message):
    """N41"""
    with pytest.raises(inputs.DataError) as caught:
        inputs.from_grain(data, params)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "steps", "examples", "num_bytes"),
    [("columns in groups", 1, 1, 1), ("columns", 5, 2**14, 2**22), ("columns in groups", 64, 40, 2**22)],
)
def test_the_order_does_not_depend_on_how_much_is_read_in_a_call(name, steps, examples, num_bytes, monkeypatch):
    """N42: so a run goes on, in the middle of what another version read at once, over the end of an epoch too."""

    def build(context):
        return inputs.from_source(SOURCES[name](), train(4, seed=5, shuffle_buffer_size=12), context)

    usual = global_batches(build, 33)
    monkeypatch.setattr(random_access, "_BLOCK_STEPS", steps)
    monkeypatch.setattr(random_access, "_BLOCK_EXAMPLES", examples)
    monkeypatch.setattr(random_access, "_BLOCK_BYTES", num_bytes)
    assert global_batches(build, 20, start_step=13) == usual[13:]
    context = inputs.InputContext(start_step=13)
    blocks = context.blocks_of(build(context))
    assert (blocks is None) == (steps == 1)
    if blocks is not None:
        assert flat(ids(blocks, 20))[:20] == usual[13:]


class Sized(Columns):
    """Examples of one size, and text that is longer in all but the first; knows how many were asked for at a time."""

    def __init__(self, size, text=None):
        super().__init__(10**5, groups=[100] * 1000)
        self._size, self._text_size, self.asked, self.expected = size, text, [], 0

    def expect(self, examples):
        self.expected = examples

    def __getitem__(self, index):
        return {name: column[0] for name, column in self.take([index]).items()}

    def take(self, indices):
        self.asked.append(len(indices))
        batch = {"id": np.asarray(indices, np.int64), "pixels": np.zeros([len(indices), self._size], np.uint8)}
        if self._text_size is not None:
            sizes = [self._text_size if index else 1 for index in indices]
            batch["text"] = np.array([bytes([65]) * size for size in sizes], object)
        return batch


@pytest.mark.parametrize(
    ("source", "batch", "least", "most"),
    [
        (Sized(0), 256, 2**14, 2**14),
        (Sized(0), 2, 128, 128),
        (Sized(2**12), 64, 960, 1024),
        (Sized(2**18), 2, 8, 16),
        (Sized(2**24), 4, 4, 4),
        (Sized(0, text=2**12), 256, 3840, 4096),
    ],
    ids=["tiny", "few", "rows", "large", "one", "texts"],
)
def test_a_call_reads_few_examples_where_they_are_large(source, batch, least, most):
    """N41: a worker holds about 4 MiB ahead, and groups are held for what is read, however many could be."""
    next(iter(inputs.from_source(source, train(workers=1, batch=batch, shuffle_buffer_size=1000))))
    assert least <= max(source.asked) <= most
    assert source.expected == max(source.asked) + 2 * 1000
