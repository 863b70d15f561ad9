"""How examples are shared out over input pipelines: that nothing is lost or seen twice, and what is said about it."""

import itertools
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.config.schema import DataConfig
from official_trainer.inputs.context import Sharing
from tests.support.record_files import contexts, parse, write

EXAMPLES = 23
JOBS = [(2, 4), (3, 3), (4, 4)]
"""Pipelines and replicas; the data of a test lie in three files, so there are fewer, as many and more."""


@pytest.fixture
def folder(tmp_path):
    """Three files with 9, 8 and 6 records, numbered 0 to 22 in order."""
    first = 0
    for number, records in enumerate([9, 8, 6]):
        write(tmp_path / f"part-{number}.tfrecord", range(first, first + records))
        first += records
    return tmp_path


@pytest.fixture(params=["arrays", "records", "cached records", "tfds"])
def source(request, folder):
    """Builds one pipeline's dataset of `id`s from a data section's settings, for each kind of source."""

    def of_files(context, **settings):
        params = DataConfig(input_path=f"{folder}/part-*", cache=request.param.startswith("cached"), **settings)
        return inputs.from_tfrecords(params, context, parse_fn=parse).map(lambda batch: batch["id"])

    def of_arrays(context, **settings):
        return inputs.from_arrays({"id": np.arange(EXAMPLES)}, DataConfig(**settings), context).map(lambda b: b["id"])

    def of_tfds(context, **settings):
        names = {"tfds_name": "tiny_numbers", "tfds_split": "train"} | {
            "tfds_data_dir": request.getfixturevalue("data_dir")
        }
        return inputs.from_tfds(DataConfig(**names, **settings), context).map(lambda batch: batch["number"])

    built = {"arrays": of_arrays, "tfds": of_tfds}.get(request.param, of_files)
    built.has_global_order = request.param == "arrays"
    return built


def read(dataset, count=None):
    return [element.tolist() for element in itertools.islice(dataset.as_numpy_iterator(), count)]


@pytest.mark.parametrize(("job", "batch"), [*zip(JOBS, [8, 12, 60], strict=True), ((2, 2), 60)])
def test_evaluation_reads_each_example_once_over_all_pipelines(source, job, batch):
    """N17: for any number of pipelines and any batch size."""
    shares = [read(source(context, global_batch_size=batch, is_training=False)) for context in contexts(job)]
    assert sorted(itertools.chain(*itertools.chain(*shares))) == list(range(EXAMPLES))


@pytest.mark.parametrize("job", JOBS)
def test_training_shares_an_epoch_out_without_loss_or_overlap(source, job):
    """N1, N17: what the pipelines read of the first epoch is the data, each example once."""
    pipelines, replicas = job
    batch = 60
    shares, sizes = [], []
    for context in contexts(job):
        dataset = source(context, global_batch_size=batch, is_training=True)
        shares.append(list(itertools.chain(*read(dataset, 2 * replicas // pipelines))))
        sizes.append(context.sharing().examples)
    if source.has_global_order:
        each = batch // pipelines
        whole = [x for step in range(2) for share in shares for x in share[step * each : (step + 1) * each]]
        assert sorted(whole[:EXAMPLES]) == list(range(EXAMPLES))
        return
    assert len(set(sizes)) == 1  # all pipelines say the same of each other
    own = [share[:size] for share, size in zip(shares, sizes[0], strict=True)]
    assert sorted(itertools.chain(*own)) == list(range(EXAMPLES))


@pytest.mark.parametrize("job", [(4, 4)])
def test_a_share_that_is_smaller_than_its_part_of_a_batch(source, job):
    """N1: a batch then holds examples more than once, but every batch is whole."""
    for context in contexts(job):
        elements = read(source(context, global_batch_size=120, is_training=True), 3)
        assert [len(element) for element in elements] == [120 // job[1]] * 3


@pytest.mark.parametrize("cache", [False, True])
def test_by_example_every_epoch_is_whole_though_files_change_their_order(folder, cache):
    """N1: pipelines that all read all files agree on the order in which they come, in every epoch."""
    counts = []
    for context in contexts((4, 4)):
        params = DataConfig(input_path=f"{folder}/part-*", global_batch_size=4, is_training=True, cache=cache)
        seen = list(itertools.chain(*read(inputs.from_tfrecords(params, context, parse_fn=parse).map(
            lambda batch: batch["id"]), 24)))  # fmt: skip
        share = 6 if context.input_pipeline_id < 3 else 5
        counts.append([Counter(seen[epoch * share : (epoch + 1) * share]) for epoch in range(4)])
    for epoch in range(4):
        assert sum((of[epoch] for of in counts), Counter()) == Counter(range(EXAMPLES))


@pytest.mark.parametrize("cache", [False, True])
def test_pipelines_with_nothing_to_evaluate(folder, cache):
    """N17, B3: an empty share is an empty dataset, with `drop_remainder` too."""
    write(folder / "few", [1, 2])
    for drop_remainder in (False, True):
        params = DataConfig(
            input_path=f"{folder}/few",
            global_batch_size=4,
            is_training=False,
            cache=cache,
            drop_remainder=drop_remainder,
        )
        datasets = [inputs.from_tfrecords(params, context, parse_fn=parse) for context in contexts((4, 4))]
        seen = [batch["id"].tolist() for dataset in datasets for batch in dataset.as_numpy_iterator()]
        assert sorted(seen) == [[1], [2]]


def test_drop_remainder_with_uneven_shares_fails_in_no_pipeline(folder):
    """N17, B3: a pipeline that has less than its part of a batch has no batch; that is no error of its own."""
    params = DataConfig(input_path=f"{folder}/part-*", global_batch_size=24, is_training=False, drop_remainder=True)
    sizes = [
        [len(batch["id"]) for batch in inputs.from_tfrecords(params, context, parse_fn=parse).as_numpy_iterator()]
        for context in contexts((3, 3))
    ]
    assert sizes == [[8], [8], []]


@pytest.mark.parametrize(
    ("files", "job", "said"),
    [
        (["empty", "part-0.tfrecord"], (2, 2), "no record for input pipeline 0 of 2: {folder}/empty; remove empty"),
        (["two"], (4, 4), "no record for input pipeline 2, 3 of 4: {folder}/two; remove empty files, or use fewer"),
    ],
)
def test_all_pipelines_refuse_training_data_of_which_one_has_nothing(folder, files, job, said):
    """N1: the others would wait for the one that ended."""
    write(folder / "empty", [])
    write(folder / "two", [1, 2])
    for context in contexts(job):
        params = DataConfig(
            input_path=tuple(f"{folder}/{name}" for name in files), global_batch_size=4, is_training=True
        )
        with pytest.raises(inputs.DataError) as caught:
            inputs.from_tfrecords(params, context, parse_fn=parse)
        assert said.format(folder=folder) in str(caught.value)


def test_training_data_of_several_pipelines_says_that_it_has_no_end(source):
    """Workers of a cluster ask each other at every step whether all have a batch, unless the data says so."""
    for context in contexts((2, 2)):
        assert (
            int(source(context, global_batch_size=60, is_training=True).cardinality()) == tf.data.INFINITE_CARDINALITY
        )


def sharing(job, pipeline=0, build=inputs.from_tfrecords, **settings):
    context = contexts(job)[pipeline]
    build(DataConfig(global_batch_size=60, is_training=True, **settings), context)
    return context.sharing()


def of_files(folder, job, **settings):
    settings = {"input_path": f"{folder}/part-*"} | settings
    return sharing(job, build=lambda p, c: inputs.from_tfrecords(p, c, parse_fn=parse), **settings)


def test_shares_are_counted(folder, data_dir):
    """N25: by files, by examples, by parts of a batch: what every pipeline reads."""
    assert of_files(folder, (2, 2)) == Sharing(
        by="files", pipelines=2, files=(2, 1), examples=(15, 8), size_bytes=(300, 160)
    )
    assert of_files(folder, (5, 5)) == Sharing(
        by="examples", pipelines=5, files=(3,) * 5, examples=(5, 5, 5, 4, 4), size_bytes=(460,) * 5
    )
    assert of_files(folder, (2, 2), sharding=False).by == "nothing"
    split = {"tfds_name": "tiny_numbers", "tfds_split": "train", "tfds_data_dir": data_dir}
    assert sharing((2, 2), build=inputs.from_tfds, **split).examples == (16, 7)
    in_memory = sharing((2, 2), build=lambda p, c: inputs.from_arrays(np.arange(EXAMPLES), p, c))
    assert str(in_memory) == "training data for 2 input pipelines: each reads its part of every global batch"


def test_what_is_said_of_shares(folder):
    """N25: the plan in a line, and a warning where some examples come more often than others."""
    two, three = of_files(folder, (2, 2)), of_files(folder, (3, 3))
    assert str(two) == (
        "training data for 2 input pipelines: each reads whole files (2 and 1 files, 15 and 8 examples)"
    )
    (warning,) = two.warnings()
    assert "input pipeline 1 reads 8 examples, and pipeline 0 reads 15" in warning and "1.9 times as often" in warning
    assert "Write the data in files of equal size, 2 or a multiple of that" in warning
    assert str(three).endswith("each reads whole files (1 file each, 9, 8 and 6 examples)")
    (warning,) = of_files(folder, (2, 2), sharding=False).warnings()
    assert "train_data.sharding is false: each of the 2 input pipelines reads all the data" in warning
    assert list(Sharing(by="files", pipelines=2, files=(4, 4), examples=(9, 8)).warnings()) == []
    assert list(of_files(folder, (5, 5)).warnings()) == []


def test_large_and_remote_files_are_not_counted(folder, monkeypatch):
    """N25: reading all headers of much data would take longer than it is worth; sizes do for files."""
    from official_trainer.inputs import files, records

    monkeypatch.setattr(records, "_QUICK_TO_COUNT_BYTES", 400)
    large = of_files(folder, (2, 2))
    assert (large.examples, large.size_bytes) == (None, (300, 160))
    (warning,) = large.warnings()
    assert "pipeline 1 reads 160 bytes, and pipeline 0 reads 300" in warning
    monkeypatch.setattr(files, "is_url", lambda path: True)
    remote = of_files(folder, (2, 2))
    assert (remote.examples, remote.size_bytes, remote.files) == (None, None, (2, 1))
    assert str(remote).endswith("each reads whole files (2 and 1 files)") and list(remote.warnings()) == []


def test_an_evaluation_that_counts_every_example_several_times_says_so(folder, caplog):
    """N17"""
    for context in contexts((2, 2)):
        params = DataConfig(input_path=f"{folder}/part-*", global_batch_size=4, is_training=False, sharding=False)
        inputs.from_tfrecords(params, context, parse_fn=parse)
    assert [record.getMessage() for record in caplog.records] == [
        "validation_data.sharding is false: each example is evaluated 2 times, once by each input pipeline; "
        "set it to true to evaluate it once"
    ]
