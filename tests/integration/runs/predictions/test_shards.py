"""Predictions in files: three formats, where a shard begins and ends, going on, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.checkpoints.manifest import signed
from official_trainer.runs.predictions.manifest import MANIFEST, PredictionsError, Share, gather, is_to_gather
from official_trainer.runs.predictions.shards import Position, PredictionSettings, PredictionShards
from tests.support.cases import cases

SOURCE = {"experiment": "toy", "checkpoint": 100, "checkpoint_digest": "ab", "task.held_out": 0.2}


def shards_in(directory, source=SOURCE, **options):
    return PredictionShards(PredictionSettings(output_dir=str(directory), **options), source)


def columns(start, stop):
    """Rows that say which they are, of every kind that all formats but one hold."""
    numbers = np.arange(start, stop)
    return {
        "logits": (numbers[:, None] + np.array([0.5, 0.1])).astype("float32"),
        "label": numbers.astype("int32"),
        "is_odd": numbers % 2 == 1,
        "box/corners": np.tile(numbers[:, None, None], [1, 2, 3]).astype("float32"),
    }


def write(shards, batch_sizes, make=columns, skip=0):
    """Adds all batches from number `skip` on, whose sizes are those."""
    starts = np.cumsum([0, *batch_sizes])
    for batch in range(skip, len(batch_sizes)):
        shards.add(batch, make(int(starts[batch]), int(starts[batch + 1])))


def contents(directory):
    return {path.name: path.read_bytes() for path in Path(directory).iterdir()}


def names(directory):
    return sorted(path.name for path in Path(directory).glob("predictions-*"))


def test_rows_go_to_shards_of_one_size_whatever_the_batches_are(tmp_path):
    """N18: in order, the last shard has the rest; the manifest counts them."""
    for number, sizes in enumerate([(5, 5, 5, 2), (17,), (1,) * 17, (3, 9, 5)]):
        shards = shards_in(tmp_path / str(number), format="jsonl", shard_size=6)
        write(shards, sizes)
        assert not shards.is_done
        shards.finish()
        assert (shards.rows, shards.count, shards.is_done) == (17, 3, True)
        lines = [(tmp_path / str(number) / name).read_text() for name in names(tmp_path / str(number))]
        assert [text.count("\n") for text in lines] == [6, 6, 5]
        assert [json.loads(line)["label"] for line in "".join(lines).splitlines()] == list(range(17))


def test_jsonl_gives_every_value_back(tmp_path):
    """N18: an object a line; strict JSON for numbers that are not finite; text as text."""
    shards = shards_in(tmp_path, format="jsonl", shard_size=100)
    strange = np.array([[0.1, np.nan], [np.inf, -np.inf]], "float32")
    shards.add(0, {**columns(0, 2), "strange": strange, "name": np.array([b"a", "é".encode()], object)})
    shards.finish()
    rows = [
        json.loads(line, parse_constant=pytest.fail)
        for line in (tmp_path / "predictions-00000.jsonl").read_text().splitlines()
    ]
    assert [row["name"] for row in rows] == ["a", "é"]
    assert [row["is_odd"] for row in rows] == [False, True]
    assert np.array([[float(v) for v in row["strange"]] for row in rows], "float32").tobytes() == strange.tobytes()
    assert np.array([row["box/corners"] for row in rows], "float32").tobytes() == columns(0, 2)["box/corners"].tobytes()


def test_tfrecord_gives_every_value_back(tmp_path):
    """N18: Examples, with the shape of what has several dimensions, which may differ from row to row."""
    shards = shards_in(tmp_path, format="tfrecord", shard_size=3)
    write(shards, (2, 2))
    names_of = np.array([[b"x\xff", b""]], object)
    shards.add(2, {**columns(4, 5), "box/corners": np.ones([1, 4, 3], "float32"), "name": names_of})
    shards.finish()
    paths = [str(tmp_path / name) for name in names(tmp_path)]
    assert [Path(path).suffix for path in paths] == [".tfrecord"] * 2
    examples = [tf.train.Example.FromString(r.numpy()).features.feature for r in tf.data.TFRecordDataset(paths)]
    assert [list(example["label"].int64_list.value) for example in examples] == [[n] for n in range(5)]
    assert [list(example["is_odd"].int64_list.value) for example in examples] == [[0], [1], [0], [1], [0]]
    assert np.array(examples[1]["logits"].float_list.value, "float32").tobytes() == columns(1, 2)["logits"].tobytes()
    assert "logits/shape" not in examples[1]
    assert [list(example["box/corners/shape"].int64_list.value) for example in examples] == [[2, 3]] * 4 + [[4, 3]]
    assert list(examples[4]["name"].bytes_list.value) == [b"x\xff", b""]
    described = json.loads((tmp_path / MANIFEST).read_text())["outputs"]
    assert described["box/corners"] == {"dtype": "float32", "shape": [None, 3]}
    assert described["label"] == {"dtype": "int32", "shape": []}


@pytest.mark.parametrize("only", [(), ("logits",)])
def test_npy_gives_every_value_back(only, tmp_path):
    """N18: one array, or several by name in an npz; nothing is pickled."""

    def make(start, stop):
        return {name: values for name, values in columns(start, stop).items() if not only or name in only}

    shards = shards_in(tmp_path, format="npy", shard_size=4)
    write(shards, (3, 3), make)
    shards.finish()
    assert names(tmp_path) == [f"predictions-0000{n}.{'npy' if only else 'npz'}" for n in (0, 1)]
    loaded = [np.load(tmp_path / name) for name in names(tmp_path)]
    for name, expected in make(0, 6).items():
        found = np.concatenate([each if only else each[name] for each in loaded])
        assert (found.dtype, found.tobytes()) == (expected.dtype, expected.tobytes())


@pytest.mark.parametrize(
    ("shard_size", "format"),
    cases(
        [(size, format) for size in (1, 4, 5, 7, None) for format in ("tfrecord", "jsonl", "npy")],
        *((4, "npy"), (5, "tfrecord"), (7, "jsonl"), (None, "npy")),
    ),
)
def test_what_was_broken_off_anywhere_ends_with_the_same_bytes(format, shard_size, tmp_path):
    """N18: after any batch; the next process begins with the batch in which the next shard begins."""
    sizes = (5, 5, 3, 5, 2)
    whole = shards_in(tmp_path / "whole", format=format, shard_size=shard_size)
    write(whole, sizes)
    whole.finish()
    for broken_after in range(len(sizes) + 1):
        folder = tmp_path / f"broken{broken_after}"
        write(shards_in(folder, format=format, shard_size=shard_size), sizes[:broken_after])
        (folder / f"{MANIFEST}.tmp-1").write_text("{")  # what processes leave that are killed while they write
        has_shards = bool(names(folder))
        shard = folder / f"predictions-{len(names(folder)):05d}"
        for leftover in (f"{shard}.npz.tmp-1", f"{shard}.npz", f"{shard}.jsonl"):
            Path(leftover).write_text("x")
        again = shards_in(folder, format=format, shard_size=None if has_shards else shard_size)
        assert again.position.batch <= broken_after
        assert again.rows == sum(sizes[: again.position.batch]) + again.position.row
        write(again, sizes, skip=again.position.batch)
        again.finish()
        assert contents(folder) == contents(tmp_path / "whole")


def test_the_place_of_the_next_row_is_never_behind_a_batch(tmp_path):
    """N18: where a shard ends with a batch, that batch is not computed again."""
    shards = shards_in(tmp_path, format="npy", shard_size=5)
    write(shards, (5,))
    assert shards.position == Position(1, 0)
    shards.add(1, columns(5, 12))
    assert shards_in(tmp_path, format="npy").position == Position(1, 5)


def test_shards_are_large_unless_told_otherwise(tmp_path):
    """N18: 32 MiB of rows, but no more than a hundred thousand."""
    large = shards_in(tmp_path / "large", format="npy")
    large.add(0, {"image": np.zeros([3, 1 << 20], "float32")})
    small = shards_in(tmp_path / "small", format="npy")
    small.add(0, {"label": np.zeros([3], "int32")})
    for shards in (large, small):
        shards.finish()
    sizes = [json.loads((tmp_path / name / MANIFEST).read_text())["shard_size"] for name in ("large", "small")]
    assert sizes == [8, 100_000]


def done(directory, **options):
    shards = shards_in(directory, **{"format": "jsonl", "shard_size": 4, **options})
    write(shards, (6,))
    shards.finish()


@pytest.mark.parametrize(
    ("source", "options", "lines"),
    [
        ({}, {"format": "npy"}, ["--format: jsonl -> npy", "To continue those, use --format=jsonl"]),
        ({}, {"shard_size": 9}, ["--shard_size: 4 -> 9", "use --shard_size=4"]),
        ({"checkpoint": 200}, {}, ["--checkpoint: 100 -> 200", "use --checkpoint=100"]),
        ({"task.held_out": 0.5}, {}, ["task.held_out: 0.2 -> 0.5", "use --set task.held_out=0.2"]),
        ({"gin f.x": "2"}, {}, ["gin f.x: not set -> 2"]),
    ],
)
def test_predictions_made_in_another_way_are_not_mixed(source, options, lines, tmp_path):
    """N18: refused with what differs and how to go on; nothing is changed."""
    done(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(
        PredictionsError, match=r"--output=.* holds predictions that were made with other settings:"
    ) as error:
        shards_in(tmp_path, {**SOURCE, **source}, **{"format": "jsonl", **options})
    for line in [*lines, "To predict from the start, name another --output"]:
        assert line in str(error.value)
    assert error.value.exit_code == 2
    assert contents(tmp_path) == before


def test_a_checkpoint_whose_files_are_others_is_another_one(tmp_path):
    """N18: no flag brings the old one back, so none is offered."""
    done(tmp_path)
    with pytest.raises(PredictionsError, match=r"checkpoint_digest: ab -> cd") as error:
        shards_in(tmp_path, {**SOURCE, "checkpoint_digest": "cd"}, format="jsonl")
    assert "To continue" not in str(error.value)


def test_of_what_wrote_nothing_nothing_is_left(tmp_path):
    """N18: a first process that failed before its first shard binds no other to its settings."""
    shards_in(tmp_path, format="jsonl", shard_size=4).add(0, columns(0, 2))
    (tmp_path / "predictions-00000.jsonl").touch()  # killed before the manifest had it
    shards = shards_in(tmp_path, {"experiment": "other"}, format="npy")
    shards.add(0, columns(0, 2))
    shards.finish()
    assert names(tmp_path) == ["predictions-00000.npz"]


def test_what_is_done_stays_as_it_is(tmp_path):
    """N18: opened again, it says so."""
    done(tmp_path)
    before = contents(tmp_path)
    assert shards_in(tmp_path, format="jsonl").is_done
    assert contents(tmp_path) == before


def test_other_places_are_refused(tmp_path):
    """N18: a directory of other files, a file, a manifest that cannot be read, or was altered."""
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").touch()
    with pytest.raises(
        PredictionsError, match=r"holds chapter1.tex, but no predictions of official-trainer; name a new"
    ):
        shards_in(tmp_path / "thesis")
    (tmp_path / "file").touch()
    with pytest.raises(PredictionsError, match=r"--output=.*file is not a directory; name another"):
        shards_in(tmp_path / "file")
    later = signed({"format_version": 2})
    for text, what in (("{", "Expecting"), (later, "format version is 2"), ("{}", "its own checksum")):
        (tmp_path / "bad").mkdir(exist_ok=True)
        (tmp_path / "bad" / MANIFEST).write_text(text)
        with pytest.raises(
            PredictionsError, match=rf"predictions.json cannot be read \(.*{what}.*name another --output"
        ):
            shards_in(tmp_path / "bad")
    (tmp_path / "bad" / MANIFEST).unlink()
    (tmp_path / "bad" / MANIFEST).symlink_to("nothing")
    with pytest.raises(PredictionsError, match=r"one of predictions.json is a link to nothing; remove it, or name"):
        shards_in(tmp_path / "bad")
    done(tmp_path / "shards")
    altered = (tmp_path / "shards" / MANIFEST).read_text().replace('"name"', '"names"', 1)
    (tmp_path / "shards" / MANIFEST).write_text(altered)
    with pytest.raises(PredictionsError, match=r"predictions.json does not match its own checksum\); name another"):
        shards_in(tmp_path / "shards", format="jsonl")


@pytest.mark.parametrize(
    ("format", "batches", "message"),
    [
        (
            "tfrecord",
            [np.zeros([2], "float64")],
            r"--format=tfrecord: the output 'x' is float64, but an Example holds only",
        ),
        ("tfrecord", [np.zeros([2], "complex64")], r"'x' is complex64, .*use --format=npy or jsonl"),
        ("jsonl", [np.zeros([2], "complex64")], r"--format=jsonl: the output 'x' is complex64, which JSON cannot hold"),
        ("jsonl", [np.array([b"\xff"], object)], r"holds bytes that are not UTF-8 text .* use --format=tfrecord"),
        (
            "npy",
            [np.array([b"a"], object)],
            r"--format=npy: the output 'x' holds bytes, which a NumPy array cannot hold",
        ),
        (
            "npy",
            [np.zeros([1, 2]), np.zeros([1, 3])],
            r"has rows of the shapes \[2\], \[3\], which .*tfrecord or jsonl",
        ),
    ],
)
def test_what_a_format_cannot_hold_is_refused(format, batches, message, tmp_path):
    """N18: with the name of the output and a format that can; no half shard stays."""
    shards = shards_in(tmp_path, format=format, shard_size=100)
    for number, values in enumerate(batches):
        shards.add(number, {"x": values})
    with pytest.raises(PredictionsError, match=message):
        shards.finish()
    assert names(tmp_path) == []


# Several processes.


def share_in(directory, index, count, batch_size, **options):
    share = Share(index=index, count=count, batch_size=batch_size)
    shards = shards_in(directory, **{"format": "jsonl", "shard_size": 4, **options}, share=share)
    gather(str(directory))  # what the process does that finds all there; here each one tries
    return shards


def fill(shards, sizes, num_batches=None):
    """Adds what is wanted of batches of those sizes, as `predict_into` does; at most so many."""
    starts = np.cumsum([0, *sizes])
    for _ in range(len(sizes) if num_batches is None else num_batches):
        batch = shards.position.batch
        if shards.is_done or batch >= len(sizes):
            break
        before = shards.position
        shards.add(batch, columns(int(starts[batch]), int(starts[batch + 1])))
        if shards.position == before or shards.position.batch == batch:
            break
    if num_batches is None:
        shards.finish()


WHOLE = [
    (shard_size, rows, count)
    for shard_size in (1, 3, 4, 7, None)
    for rows in (4, 5, 12, 13)
    for count in (2, 3, 5)
]  # fmt: skip


@pytest.mark.parametrize(("shard_size", "rows", "count"), cases(WHOLE, *WHOLE[::5]))
def test_any_number_of_processes_write_what_one_does(shard_size, rows, count, tmp_path):
    """N18: in any order, with more processes than shards, and a last one that is smaller, or is not."""
    sizes = [5] * (rows // 5) + [rows % 5] * (rows % 5 > 0)
    whole = shards_in(tmp_path / "whole", format="jsonl", shard_size=shard_size)
    write(whole, sizes)
    whole.finish()
    for index in reversed(range(count)):
        shards = share_in(tmp_path / "shared", index, count, 5, shard_size=shard_size)
        fill(shards, sizes)
        assert shards.is_done
        assert not (tmp_path / "shared" / MANIFEST).exists()
        assert is_to_gather(str(tmp_path / "shared")) == (index == 0)
    gather(str(tmp_path / "shared"))
    assert contents(tmp_path / "shared") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("first", "then", "num_batches"),
    cases(
        [(first, then, count) for first in (1, 2, 3) for then in (1, 2, 3) for count in (1, 3)],
        *((1, 3, 1), (3, 1, 3), (2, 3, 3), (3, 2, 1)),
    ),
)
def test_another_number_of_processes_goes_on(first, then, num_batches, tmp_path):
    """N18: with what those before left, whole shards and half ones."""
    sizes = (5, 5, 5, 5, 5, 5, 2)
    whole = shards_in(tmp_path / "whole", format="jsonl", shard_size=4)
    write(whole, sizes)
    whole.finish()
    folder = tmp_path / "shared"
    for index in range(first):
        shards = share_in(folder, index, first, 5) if first > 1 else shards_in(folder, format="jsonl", shard_size=4)
        fill(shards, sizes, num_batches)
    there = {path.name: path.stat().st_mtime_ns for path in folder.glob("predictions-*")}
    (folder / "predictions-00007.jsonl.tmp-1").touch()  # killed while it wrote, and before its manifest had it
    (folder / "predictions-00007.jsonl").touch()
    for index in range(then):
        fill(share_in(folder, index, then, 5) if then > 1 else shards_in(folder, format="jsonl"), sizes)
    gather(str(folder))
    assert contents(folder) == contents(tmp_path / "whole")
    assert there.items() <= {path.name: path.stat().st_mtime_ns for path in folder.glob("predictions-*")}.items()


def damage(path, how):
    """Overwrites eight bytes, cuts the file or removes it."""
    content = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if how == "cut" else content[:8] + bytes(8) + content[16:])


DAMAGED = [
    (format, numbers, num_batches)
    for format in ("tfrecord", "jsonl", "npy")
    for numbers in ((0,), (2, 3), (0, 4), (6,), (0, 1, 2, 3, 4, 5, 6))
    for num_batches in (None, 4)
]


@pytest.mark.parametrize(
    ("format", "numbers", "num_batches"),
    cases(
        DAMAGED,
        *(("npy", (6,), None), ("tfrecord", (0, 4), None), ("jsonl", (2, 3), 4), ("npy", (0,), 4)),
        ("jsonl", (0, 1, 2, 3, 4, 5, 6), None),
    ),
)
def test_a_damaged_shard_is_named_and_written_again(format, numbers, num_batches, tmp_path, caplog):
    """N18: of any format, of predictions that are done or go on; after a kill, too; the others stay."""
    sizes, hows = (5, 5, 3, 5, 2), ("overwritten", "gone", "cut")
    options = {"format": format, "shard_size": 3}
    fill(shards_in(tmp_path / "whole", **options), sizes)
    folder = tmp_path / "damaged"
    fill(shards_in(folder, **options), sizes, num_batches)
    there = {path.name: path.stat().st_mtime_ns for path in folder.glob("predictions-*")}
    damaged = [name for name in sorted(there) if int(name[12:17]) in numbers]
    for name, how in zip(damaged, hows * 3, strict=False):
        damage(folder / name, how)
    shards = shards_in(folder, format=format)
    assert not shards.is_done
    said = [message for message in caplog.messages if message.endswith("it is written again")]
    assert (
        [name for name in sorted(there) for message in said if name in message]
        == damaged
        == [message.split(": ")[1].split()[0] for message in said]
    )
    assert f"{folder}: {damaged[0]} does not match its checksum; it is written again" in said
    fill(shards, sizes, 1)  # and is killed
    fill(shards_in(folder, format=format), sizes)
    assert contents(folder) == contents(tmp_path / "whole")
    kept = {name: time for name, time in there.items() if name not in damaged}
    assert kept.items() <= {path.name: path.stat().st_mtime_ns for path in folder.glob("predictions-*")}.items()


@pytest.mark.parametrize("is_done", [False, True])
def test_each_process_writes_its_own_damaged_shards_again(is_done, tmp_path, caplog):
    """N18: and the first one all of those that are done."""
    sizes, whole, folder = (5, 5, 5, 2), tmp_path / "whole", tmp_path / "shared"
    for place in (whole, folder):
        for index in range(2):
            fill(share_in(place, index, 2, 5), sizes, None if is_done or place == whole else 2)
        gather(str(place))
    for name in ("predictions-00000.jsonl", "predictions-00001.jsonl"):
        damage(folder / name, "overwritten")
    for index in (1, 0):
        caplog.clear()
        shards = share_in(folder, index, 2, 5)
        again = [number for number in (0, 1) if f"predictions-0000{number}.jsonl does not match" in caplog.text]
        assert again == ([[0, 1], []][index] if is_done else [index])
        assert shards.is_done == (is_done and index == 1)
        fill(shards, sizes)
    gather(str(folder))
    assert contents(folder) == contents(whole)


def test_a_process_that_predicts_otherwise_is_refused(tmp_path):
    """N18: at its start, and if all have started at the same time, when another one has written its first shard."""
    started = share_in(tmp_path, 1, 2, 5, source={**SOURCE, "checkpoint": 200})
    fill(share_in(tmp_path, 0, 2, 5), (5, 5), 1)
    with pytest.raises(PredictionsError, match=r"--checkpoint: 100 -> 200"):
        fill(started, (5, 5))
    with pytest.raises(PredictionsError, match=r"--checkpoint: 100 -> 200"):
        share_in(tmp_path, 1, 2, 5, source={**SOURCE, "checkpoint": 200})
    assert names(tmp_path)[0] == "predictions-00000.jsonl"


def test_batches_that_differ_in_size_are_for_one_process(tmp_path):
    """N18: the process that reads one that is too large, or too small and not the last, fails; so does the next."""
    with pytest.raises(PredictionsError, match=r"global_batch_size is 5, but batch 0 has 6 examples, so it is unknown"):
        share_in(tmp_path / "large", 0, 2, 5).add(0, columns(0, 6))
    small = share_in(tmp_path / "small", 0, 2, 5, shard_size=8)
    small.add(0, columns(0, 3))
    with pytest.raises(
        PredictionsError, match=r"batch 0 has fewer examples and is not the last one, .* into another --output"
    ):
        small.add(1, columns(3, 8))
    uneven = shards_in(tmp_path / "uneven", format="jsonl", shard_size=4)
    write(uneven, (3, 5))
    with pytest.raises(PredictionsError, match=r"predictions-00000.jsonl ends in batch 1 after 1 examples, so it is"):
        share_in(tmp_path / "uneven", 0, 2, 5)
