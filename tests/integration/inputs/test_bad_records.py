"""Examples that are left out: what takes their place, how many may be bad, which errors say nothing about them."""

import errno

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.config.schema import DataConfig
from official_trainer.errors import ExitCode
from official_trainer.inputs import BadRecord, BadRecords, Source
from official_trainer.inputs.context import call_build_inputs
from tests.support.sources import Columns, Numbers

COUNT, BAD = 53, {0, 7, 8, 21, 52}


class Damaged(Columns):
    """Examples in columns, some of which cannot be read."""

    def take(self, indices):
        for index in indices:
            self[index]
        return super().take(indices)


def data(*, is_training, batch=8, **fields):
    fields = {"max_bad_share": 0.2, "on_bad_record": "skip", **fields}
    return DataConfig(global_batch_size=batch, is_training=is_training, **fields)


def context_of(pipeline=0, pipelines=1, start_step=0):
    context = inputs.InputContext(
        num_input_pipelines=pipelines,
        input_pipeline_id=pipeline,
        num_replicas_in_sync=pipelines,
        start_step=start_step,
        bad_records=BadRecords(),
    )
    context.section = "task.train_data"
    return context


def ids(dataset, count=-1):
    return [number for element in dataset.take(count).as_numpy_iterator() for number in element["id"].tolist()]


def indices(records):
    return sorted(record.index for record in records)


@pytest.mark.parametrize("kind", [Numbers, Damaged])
def test_an_evaluation_has_one_example_less(kind):
    """N45: each bad example is left out, and no other."""
    context = context_of()
    read = ids(inputs.from_source(kind(COUNT, bad=BAD), data(is_training=False), context))
    assert read == [number for number in range(COUNT) if number not in BAD]
    assert indices(context.bad_records.take(before=0)) == sorted(BAD)  # of an evaluation they count at once


def test_a_batch_of_bad_examples_is_no_batch_of_an_evaluation():
    """N45: a mean over no example is not a number."""
    dataset = inputs.from_source(Numbers(24, bad=set(range(8, 16))), data(is_training=False, max_bad_share=1.0))
    assert [batch["id"].tolist() for batch in dataset.as_numpy_iterator()] == [[*range(8)], [*range(16, 24)]]


@pytest.mark.parametrize("processes", [False, True])
def test_in_training_good_examples_take_the_places(processes):
    """N45: so all batches are whole, and the others stay where they were; in threads and in processes."""
    good = ids(inputs.from_source([{"id": number} for number in range(COUNT)], data(is_training=True)), 14)
    damaged = [{"id": None if number in BAD else number} for number in range(COUNT)]
    params = data(is_training=True, use_multiprocessing=processes, workers=2)
    read = ids(inputs.from_source(damaged, params), 14)
    assert [after for before, after in zip(good, read, strict=True) if before not in BAD] == [
        number for number in good if number not in BAD
    ]
    drawn = [after for before, after in zip(good, read, strict=True) if before in BAD]
    assert len(drawn) >= 2 * len(BAD) and not BAD & set(drawn)
    assert read == ids(inputs.from_source(damaged, data(is_training=True)), 14)  # the same in each run


@pytest.mark.parametrize("groups", [(), [400] * 10])
def test_a_thousand_bad_neighbours_are_replaced_by_many(groups, monkeypatch):
    """N45: as where row groups are damaged; no good example stands for all, and few others are tried for each."""
    tried, read_one = [], Numbers.__getitem__
    monkeypatch.setattr(Numbers, "__getitem__", lambda self, index: (tried.append(index), read_one(self, index))[1])
    bad = set(range(1200))  # the first of all, too
    params = data(is_training=True, max_bad_share=0.5, batch=500, workers=1)
    read = ids(inputs.from_source(Numbers(4000, groups=groups, bad=bad), params), 8)
    numbers, counts = np.unique(read, return_counts=True)
    assert counts.sum() == 4000 and numbers.min() >= 1200
    assert counts.max() < 20  # 1,200 places, and as many examples that may take them
    assert sum(index in bad for index in tried) < 20 * len(bad)


@pytest.mark.parametrize("groups", [(), [100] * 10])
def test_a_mixture_keeps_its_shares(groups):
    """N44, N45: what takes the place of a bad example is of the same part, in a mixture of a mixture too."""
    bad = set(range(300))
    half = inputs.Mixture({"half": (Numbers(1000, groups=groups, bad=bad), 1)})
    mixed = inputs.Mixture({"good": ([{"id": -1, "text": "good"}] * 50, 3), "half": (half, 1)})
    params = data(is_training=True, max_bad_share=0.9, batch=100, workers=1)
    read = np.array(ids(inputs.from_source(mixed, params), 40))
    assert [(batch >= 300).sum() for batch in read.reshape(40, 100)] == [25] * 40
    assert (read == -1).sum() == 3000


def test_an_epoch_is_given_up_where_all_is_bad():
    """N45: after a thousand tries, with the place of the first, and the field that asked for them."""
    said = (
        r"^example \d+: its checksum is wrong; 1,000 examples were tried in its place \(on_bad_record: skip\), and all "
    )
    with pytest.raises(inputs.DataError, match=said):
        inputs.from_source(Numbers(5000, bad=set(range(5000))), data(is_training=True, max_bad_share=1.0))


def bad_of_steps(steps, *, pipelines=1, stops=()):
    """The bad examples of a job of so many steps, which is begun again at each of `stops`."""
    found, begin = set(), 0
    for end in (*stops, steps):
        for pipeline in range(pipelines):
            context = context_of(pipeline, pipelines, begin)
            dataset = inputs.from_source(Numbers(COUNT, bad=BAD), data(is_training=True, seed=3), context)
            ids(dataset, end - begin)
            found |= set(context.bad_records.take(before=end))
        begin = end
    return found


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_the_set_follows_from_the_steps_alone(steps):
    """N45: not from how far a pipeline has read ahead, where it was begun again, or how many hosts there are."""
    expected = bad_of_steps(steps)
    assert indices(expected) == indices(bad_of_steps(steps, pipelines=2))
    assert expected == bad_of_steps(steps, stops=range(1, steps))
    assert len(expected) < len(BAD)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_bad_share": 0.08}, "5 examples cannot be read, and at most 4 may be bad (max_bad_share: 0.08 of 53"),
        ({"max_bad_records": 2}, "3 examples cannot be read, and at most 2 may be bad (max_bad_records: 2)"),
    ],
)
def test_one_more_than_the_budget_ends_the_reading(fields, message):
    """N45: the error has the number, the first few, and the exit code of data."""
    context = context_of()
    params = data(is_training=False, workers=1, **fields)
    dataset = inputs.from_source(Numbers(COUNT, bad=BAD), params, context)
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(dataset)
    error = context.failure()
    assert error.exit_code == ExitCode.DATA
    assert message in str(error) and "\n  example 0: its checksum is wrong\n  example 7: " in str(error)


def test_examples_that_are_listed_count_and_are_not_listed_again():
    """N45: those of the processes before; a kill makes no budget larger, and no line double."""
    listed = [BadRecord("task.train_data", number, f"example {number}", "its checksum is wrong") for number in (0, 7)]
    context = context_of()
    context.bad_records = BadRecords(listed)
    params = data(is_training=False, workers=1, max_bad_records=3)
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(inputs.from_source(Numbers(COUNT, bad=BAD), params, context))
    assert "4 examples cannot be read" in str(context.failure())
    assert indices(context.bad_records.take(before=None)) == [8, 21]


def test_one_is_one_example():
    """N45"""
    records = BadRecords()
    records.allow("", 0, "max_bad_records: 0")
    said = records.add(BadRecord("", 7, "example 7", "its checksum is wrong"), step=0)
    assert said.startswith("1 example cannot be read, and at most 0 may be bad (max_bad_records: 0):")


def test_the_first_few_are_warned_of(caplog):
    """N45: one line each, then one line for all others."""
    ids(inputs.from_source(Numbers(COUNT, bad=BAD), data(is_training=False, workers=1), context_of()))
    shown = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert len(shown) == 4
    assert shown[0] == "task.train_data: left out, because it cannot be read: example 0: its checksum is wrong"


class OfServer(Source):
    """A source whose reading fails as that of a server may."""

    def __init__(self, error):
        self._error = error

    def __len__(self):
        return 20

    def __getitem__(self, index):
        if index == 5:
            raise ValueError("the response is cut") from self._error
        return {"id": index}


class Timeout(OSError):
    """As those of libraries that ask servers."""


@pytest.mark.parametrize(
    "error",
    [ConnectionResetError("reset"), TimeoutError(), MemoryError(), Timeout(), OSError(errno.EMFILE, "too many files")],
)
def test_no_example_is_bad_because_of_the_network_or_memory(error):
    """N45: the run ends, to be started again, and nothing is left out; the error may be behind another one."""
    context = context_of()
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(inputs.from_source(OfServer(error), data(is_training=False), context))
    assert context.failure().exit_code == ExitCode.RETRY
    assert "example 0 or one after it could not be reached: the response is cut, so" in str(context.failure())
    assert context.bad_records.take(before=None) == []


@pytest.mark.parametrize("error", [OSError("image file is truncated"), FileNotFoundError(errno.ENOENT, "no such file")])
def test_an_example_whose_file_is_damaged_or_gone_is_bad(error):
    """N45: errors of decoders are often those of the operating system by class."""
    read = ids(inputs.from_source(OfServer(error), data(is_training=False, max_bad_share=0.05)))
    assert read == [number for number in range(20) if number != 5]


class Task:
    """Has a pipeline that cannot leave out examples."""

    def __init__(self, build):
        self.build_inputs = build


def test_the_field_is_refused_where_nothing_reads_it():
    """N45: by its name; a field that has no effect would be a broken promise."""

    def of_arrays(params, input_context=None):
        return inputs.from_arrays({"id": np.arange(3)}, params, input_context)

    def without_context(params):
        return inputs.from_source(Numbers(9), params)

    for build in (of_arrays, without_context):
        with pytest.raises(
            inputs.DataError, match=r"^task.train_data.on_bad_record: skip needs examples .*from_source"
        ):
            call_build_inputs(Task(build), data(is_training=True), context_of())
    call_build_inputs(Task(of_arrays), data(is_training=True, on_bad_record="error"), context_of())
