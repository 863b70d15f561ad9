"""How examples are shared out over input pipelines: that nothing is lost or seen twice."""

import dataclasses
import functools
import itertools
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.config.schema import DataConfig
from tests.support.cases import cases
from tests.support.record_files import contexts, parse, write

EXAMPLES = 23
JOBS = [(2, 4), (3, 3), (4, 4)]
"""Pipelines and replicas; the data of a test lie in three files, so there are fewer, as many and more."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three files with 9, 8 and 6 records, numbered 0 to 22 in order; no test may change them."""
    folder = tmp_path_factory.mktemp("records")
    first = 0
    for number, records in enumerate([9, 8, 6]):
        write(folder / f"part-{number}.tfrecord", range(first, first + records))
        first += records
    return folder


SOURCES = ["arrays", "records", "cached records", "tfds"]


@pytest.fixture(scope="module")
def build(folder, data_dir):
    """Builds one pipeline's dataset of `id`s from a kind of source, a context and a data section's settings."""

    def of_files(context, *, cache=False, **settings):
        params = DataConfig(input_path=f"{folder}/part-*", cache=cache, **settings)
        return inputs.from_tfrecords(params, context, parse_fn=parse).map(lambda batch: batch["id"])

    def of_arrays(context, **settings):
        return inputs.from_arrays({"id": np.arange(EXAMPLES)}, DataConfig(**settings), context).map(lambda b: b["id"])

    def of_tfds(context, **settings):
        names = {"tfds_name": "tiny_numbers", "tfds_split": "train", "tfds_data_dir": data_dir}
        return inputs.from_tfds(DataConfig(**names, **settings), context).map(lambda batch: batch["number"])

    builders = {
        "arrays": of_arrays,
        "records": of_files,
        "cached records": functools.partial(of_files, cache=True),
        "tfds": of_tfds,
    }

    def build(source, context, **settings):
        return builders[source](context, **settings)

    return build


def read(dataset, count=None):
    return [element.tolist() for element in itertools.islice(dataset.as_numpy_iterator(), count)]


@pytest.mark.parametrize(
    ("source", "job", "batch"),
    cases(
        [(source, *sizes) for source in SOURCES for sizes in [*zip(JOBS, [8, 12, 60], strict=True), ((2, 2), 60)]],
        ("arrays", (2, 2), 60),
        ("tfds", (2, 4), 8),
    ),
)
def test_evaluation_reads_each_example_once_over_all_pipelines(build, source, job, batch):
    """N17: for any number of pipelines and any batch size."""
    shares = [read(build(source, context, global_batch_size=batch, is_training=False)) for context in contexts(job)]
    assert sorted(itertools.chain(*itertools.chain(*shares))) == list(range(EXAMPLES))


@dataclasses.dataclass
class Pipeline:
    """What one pipeline read."""

    elements: list[list[int]]
    cardinality: int
    size: int
    """How many examples it has."""

    @property
    def examples(self):
        return list(itertools.chain(*self.elements))


TRAINED_STEPS = 3


LARGE_BATCH = 120
"""Each of four pipelines has fewer examples than its part of this batch."""


def batch_of(source):
    """Returns the global batch of training; arrays are shared out by parts of batches, so it is a small one there."""
    return 12 if source == "arrays" else LARGE_BATCH


@pytest.fixture(scope="module")
def trained(build):
    """Reads the first steps of training in all pipelines of a job."""

    @functools.cache
    def read_all(source, job, batch):
        pipelines = []
        for context in contexts(job):
            dataset = build(source, context, global_batch_size=batch, is_training=True)
            elements = read(dataset, TRAINED_STEPS * job[1] // job[0])
            own = read(build(source, context, global_batch_size=batch, is_training=False))
            pipelines.append(Pipeline(elements, int(dataset.cardinality()), sum(map(len, own))))
        return pipelines

    return read_all


QUICK = [("arrays", (2, 4)), ("records", (4, 4))]
"""Several replicas in each pipeline, and pipelines that share examples."""


@pytest.mark.parametrize(("source", "job"), cases([(source, job) for source in SOURCES for job in JOBS], *QUICK))
def test_training_shares_an_epoch_out_without_loss_or_overlap(trained, source, job):
    """N1, N17: what the pipelines read of the first epoch is the data, each example once; none says that it ends."""
    pipelines = trained(source, job, batch_of(source))
    assert {pipeline.cardinality for pipeline in pipelines} == {tf.data.INFINITE_CARDINALITY}
    shares = [pipeline.examples for pipeline in pipelines]
    if source == "arrays":  # its order is that of all pipelines together
        each = batch_of(source) // job[0]
        whole = [x for step in range(2) for share in shares for x in share[step * each : (step + 1) * each]]
        assert sorted(whole[:EXAMPLES]) == list(range(EXAMPLES))
        return
    own = [pipeline.examples[: pipeline.size] for pipeline in pipelines]
    assert sorted(itertools.chain(*own)) == list(range(EXAMPLES))


@pytest.mark.parametrize("source", cases(SOURCES, "records"))
def test_a_share_that_is_smaller_than_its_part_of_a_batch(trained, source):
    """N1: a batch then holds examples more than once, but every batch is whole."""
    for pipeline in trained(source, (4, 4), LARGE_BATCH):
        assert [len(element) for element in pipeline.elements] == [LARGE_BATCH // 4] * TRAINED_STEPS


@pytest.mark.parametrize("source", cases(["records", "cached records"], "records"))
def test_by_example_every_epoch_is_whole_though_files_change_their_order(trained, source):
    """N1: pipelines that all read all files agree on the order in which they come, in every epoch."""
    counts = []
    for pipeline, share in zip(trained(source, (4, 4), LARGE_BATCH), (6, 6, 6, 5), strict=True):
        counts.append([Counter(pipeline.examples[epoch * share : (epoch + 1) * share]) for epoch in range(4)])
    for epoch in range(4):
        assert sum((of[epoch] for of in counts), Counter()) == Counter(range(EXAMPLES))


def test_a_share_of_records_goes_on_in_a_later_epoch(folder):
    """N1: shares differ in size, and each knows its own."""
    params = DataConfig(input_path=f"{folder}/part-*", global_batch_size=8, is_training=True)
    build = functools.partial(inputs.from_tfrecords, params, parse_fn=parse)
    for whole, rest in zip(contexts((4, 4)), contexts((4, 4), start_step=7), strict=True):
        batches = [[batch["id"].numpy().tolist() for batch in build(context).take(9)] for context in (whole, rest)]
        assert batches[1][:2] == batches[0][7:]


@pytest.mark.parametrize(
    ("cache", "drop_remainder"),
    cases([(cache, drop) for cache in (False, True) for drop in (False, True)], (False, True)),
)
def test_pipelines_with_nothing_to_evaluate(tmp_path, cache, drop_remainder):
    """N17, B3: an empty share is an empty dataset, with `drop_remainder` too."""
    write(tmp_path / "few", [1, 2])
    params = DataConfig(
        input_path=f"{tmp_path}/few", global_batch_size=3, is_training=False, cache=cache, drop_remainder=drop_remainder
    )
    datasets = [inputs.from_tfrecords(params, context, parse_fn=parse) for context in contexts((3, 3))]
    assert [read(dataset.map(lambda batch: batch["id"])) for dataset in datasets] == [[[1]], [[2]], []]


def test_training_data_of_which_a_pipeline_has_nothing_are_refused(tmp_path):
    """N1: the others would wait for it."""
    write(tmp_path / "empty", [])
    write(tmp_path / "three", [1, 2, 3])
    params = DataConfig(input_path=(f"{tmp_path}/empty", f"{tmp_path}/three"), global_batch_size=6, is_training=True)
    with pytest.raises(inputs.DataError) as caught:
        inputs.from_tfrecords(params, contexts((2, 2))[0], parse_fn=parse)
    said = f"the training data hold no record for input pipeline 0 of 2: {tmp_path}/empty; remove empty files"
    assert said in str(caught.value)


def test_an_evaluation_that_counts_every_example_several_times_says_so(folder, caplog):
    """N17, N25: of an evaluation, and of training."""
    for context in contexts((2, 2)):
        params = DataConfig(input_path=f"{folder}/part-*", global_batch_size=4, is_training=False, sharding=False)
        inputs.from_tfrecords(params, context, parse_fn=parse)
    assert [record.getMessage() for record in caplog.records] == [
        "sharding is false: each input pipeline reads all of the evaluation data, so each example counts 2 times; "
        "set it to true to divide them"
    ]
