import dataclasses
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from tensorboard import context as request_context
from tensorboard.backend.event_processing import (
    data_provider,
    event_accumulator,
    plugin_event_accumulator,
    plugin_event_multiplexer,
)
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

from official_trainer import files
from official_trainer.tracking import Histogram, Image, MetricError, Outcome, Text, Tracker
from official_trainer.tracking.tensorboard import TensorBoardConfig, TensorBoardTracker

# What reads event files in scripts, and what TensorBoard's own server uses.
READERS = {
    "accumulator": event_accumulator.EventAccumulator,
    "server": plugin_event_accumulator.EventAccumulator,
}


@pytest.fixture(autouse=True)
def _seconds(monkeypatch):
    """Event files are named, and read in the order of, the second in which they are opened."""
    times = iter(range(1_700_000_000, 1_800_000_000))
    monkeypatch.setattr("official_trainer.tracking.tensorboard.time.time", lambda: next(times))


def points(directory, tag, reader="accumulator"):
    accumulator = READERS[reader](str(directory)).Reload()
    return [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in accumulator.Tensors(tag)]


def raw_steps(directory):
    """Steps of all points in the files of a folder, whoever reads them."""
    paths = sorted(directory.glob("*.tfevents.*"))
    events = [event for path in paths for event in tf.compat.v1.train.summary_iterator(str(path))]
    return [event.step for event in events if event.HasField("summary")]


@pytest.mark.parametrize(
    ("divide_at", "folders"),
    [
        ("last", {".": ["loss"], "dev": ["acc"], "dev/hard": ["acc"]}),
        ("first", {".": ["loss"], "dev": ["acc", "hard/acc"]}),
        ("never", {".": ["dev/acc", "dev/hard/acc", "loss"]}),
    ],
)
def test_a_section_says_where_names_are_divided(tmp_path, place, divide_at, folders):
    """B14: `tag_to_key`, by our name; also what a rewind removes."""
    tracker = TensorBoardConfig(divide_at=divide_at).build(place)
    for step in (5, 10):
        tracker.log("validation", step, {"loss": 0.25, "dev/acc": 0.75, "dev/hard/acc": 0.5})
    tracker.rewind(5)
    tracker.close()
    root = tmp_path / "validation"
    written = {str(path.parent.relative_to(root)) for path in root.rglob("*.tfevents.*")}
    assert written == folders.keys()
    for folder, tags in folders.items():
        accumulator = event_accumulator.EventAccumulator(str(root / folder)).Reload()
        assert sorted(accumulator.Tags()["tensors"]) == tags
        assert raw_steps(root / folder) == [5] * len(tags)


def test_only_some_splits_and_sub_folders_are_written(tmp_path, place):
    """B14: `keys`, `allow_new_keys` and the null writer, by our names; the message."""
    tracker = TensorBoardConfig(splits=("validation",), divide_at="last", sub_folders=("dev", "test")).build(place)
    tracker.log("train", 5, {"loss": 0.5})
    tracker.publish("train", 5, {"note": Text("a")})
    tracker.log("validation", 5, {"loss": 0.25, "dev/acc": 0.75})
    message = r"metric 'tset/acc' would be in the sub-folder 'tset'; .* allows dev, test; did you mean 'test'\?"
    with pytest.raises(MetricError, match=message):
        tracker.log("validation", 5, {"tset/acc": 0.75})
    tracker.close()
    assert {path.parent.name for path in tmp_path.rglob("*.tfevents.*")} == {"validation", "dev"}
    with pytest.raises(MetricError, match="sub_folders allows none"):
        TensorBoardConfig(divide_at="first", sub_folders=()).build(place).log("validation", 5, {"dev/acc": 0.75})
    assert type(TensorBoardConfig(splits=()).build(place)) is Tracker


def tags(directory):
    return sorted(event_accumulator.EventAccumulator(str(directory)).Reload().Tags()["tensors"])


def test_splits_have_folders_and_nested_names_are_tags(tmp_path):
    """T18, B6: one chart shows the loss of both splits, of each task and set; a metric that has the name keeps it."""
    tracker = TensorBoardTracker(str(tmp_path), folders={"validation": "held_out/eval"})
    assert os.listdir(tmp_path) == []
    tracker.log("train", 5, {"training_loss": 0.5, "digit/training_loss": 0.25, "batch_loss": 0.75})
    tracker.log("time", 5, {"steps_per_second": 100.0})
    tracker.log("validation", 5, {"validation_loss": 0.25, "dev/validation_loss": 0.125, "dev/hard/acc": 0.5})
    tracker.log("own", 5, {"training_loss": 1.0})
    tracker.close()
    written = {str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("*.tfevents.*")}
    assert {folder: tags(tmp_path / folder) for folder in written} == {
        "train": ["batch_loss", "digit/loss", "loss", "time/steps_per_second"],
        "held_out/eval": ["dev/hard/acc", "dev/loss", "loss"],
        "own": ["training_loss"],
    }
    assert points(tmp_path / "train", "loss") == [(5, 0.5)]
    assert points(tmp_path / "held_out/eval", "dev/loss") == [(5, 0.125)]
    tracker = TensorBoardTracker(str(tmp_path / "taken"))
    tracker.log("train", 5, {"training_loss": 0.5, "loss": 2.0})
    tracker.close()
    assert tags(tmp_path / "taken" / "train") == ["loss", "training_loss"]


def test_points_of_a_process_that_died_are_not_written_again(tmp_path):
    """T18, N14: the tags that are there at that step are left out, the others written; no file is changed."""
    tracker = TensorBoardTracker(str(tmp_path), folders={"validation": "held_out"})
    tracker.log("validation", 10, {"loss": 1, "dev/acc": 1})
    tracker.log("validation", 20, {"loss": 2})
    tracker.close()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.tfevents.*")}
    tracker = TensorBoardTracker(str(tmp_path), folders={"validation": "held_out"})
    tracker.resume("validation", 20)
    for step in (20, 30):
        tracker.log("validation", step, {"loss": -step, "dev/acc": -step})
    tracker.close()
    assert points(tmp_path / "held_out", "loss") == [(10, 1.0), (20, 2.0), (30, -30.0)]
    assert points(tmp_path / "held_out", "dev/acc") == [(10, 1.0), (20, -20.0), (30, -30.0)]
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("restart", [False, True], ids=["same_process", "new_process"])
def test_a_rewind_leaves_neither_duplicates_nor_orphans(tmp_path, reader, restart):
    """T18: no duplicate points after a restart, in any folder, whether or not it is written again."""
    tracker = TensorBoardTracker(str(tmp_path))
    tracker.rewind(0)
    for step in (10, 20, 30, 40):
        tracker.log("train", step, {"loss": step})
        tracker.log("validation", step, {"dev/acc": step})
    if restart:
        tracker.close()
        tracker = TensorBoardTracker(str(tmp_path))
    tracker.rewind(20)
    assert points(tmp_path / "validation", "dev/acc", reader) == [(10, 10.0), (20, 20.0)]
    assert raw_steps(tmp_path / "train") == [10, 20]
    tracker.log("train", 25, {"loss": -25})
    tracker.log("train", 30, {"loss": -30})
    tracker.close()
    assert points(tmp_path / "train", "loss", reader) == [(10, 10.0), (20, 20.0), (25, -25.0), (30, -30.0)]
    assert points(tmp_path / "validation", "dev/acc", reader) == [(10, 10.0), (20, 20.0)]


@pytest.mark.parametrize("reader", READERS)
def test_a_clock_that_goes_back_leaves_the_points_in_their_order(tmp_path, reader, monkeypatch):
    """T18: TensorBoard reads files in the order of their names, so a new one is named after the newest."""
    times = iter(range(1_700_000_000, 0, -3600))
    monkeypatch.setattr("official_trainer.tracking.tensorboard.time.time", lambda: next(times))
    for start in (0, 20, 40):
        tracker = TensorBoardTracker(str(tmp_path))
        tracker.rewind(start)
        for step in (start + 10, start + 20):
            tracker.log("train", step, {"loss": step})
        tracker.close()
    assert raw_steps(tmp_path / "train") == [10, 20, 30, 40, 50, 60]
    assert points(tmp_path / "train", "loss", reader) == [(step, float(step)) for step in (10, 20, 30, 40, 50, 60)]


def test_a_tensorboard_that_is_watching_forgets_the_points_too(tmp_path):
    """T18: it has read the abandoned points already, and does not read the shortened file again."""
    tracker = TensorBoardTracker(str(tmp_path), describes="train")
    tracker.describe("digits", {"seed": 1})
    for step in (10, 20, 30, 40):
        tracker.log("train", step, {"loss": step})
    watching = READERS["server"](str(tmp_path / "train")).Reload()
    assert [event.step for event in watching.Tensors("loss")] == [10, 20, 30, 40]
    tracker.rewind(20)
    tracker.describe("digits", {"seed": 1})
    watching.Reload()
    assert [event.step for event in watching.Tensors("loss")] == [10, 20]
    tracker.log("train", 30, {"loss": 0})
    tracker.close()
    watching.Reload()
    assert [event.step for event in watching.Tensors("loss")] == [10, 20, 30]


def test_a_file_that_was_removed_takes_no_later_point_with_it(tmp_path, caplog):
    """N15: a new file is begun, and it is said."""
    tracker = TensorBoardTracker(str(tmp_path))
    for step in (10, 20, 30):
        tracker.log("train", step, {"loss": step})
        if step == 10:
            shutil.rmtree(tmp_path / "train")
    tracker.close()
    assert points(tmp_path / "train", "loss") == [(20, 20.0), (30, 30.0)]
    (message,) = caplog.messages
    assert "was removed while the run writes to it; the next points are in a new file" in message


def test_points_that_tensorflow_wrote_are_rewound_too(tmp_path):
    """A task's own summaries, or a run of another driver, have no start event of their own."""
    writer = tf.summary.create_file_writer(str(tmp_path / "train"))
    with writer.as_default():
        for step in (10, 20):
            tf.summary.scalar("own", step, step=step)
    writer.close()
    (name,) = os.listdir(tmp_path / "train")
    first, _, rest = name.partition("tfevents.")
    os.rename(tmp_path / "train" / name, tmp_path / "train" / f"{first}tfevents.1600000000.{rest.partition('.')[2]}")
    tracker = TensorBoardTracker(str(tmp_path))
    tracker.rewind(10)
    tracker.close()
    for reader in READERS:
        assert points(tmp_path / "train", "own", reader) == [(10, 10.0)]


def test_text_is_there_once_however_often_a_run_is_restarted(tmp_path):
    """B8: a restart says the same again, or something else."""
    for markdown in ("a: 1", "a: 1", "a: 2"):
        tracker = TensorBoardTracker(str(tmp_path))
        tracker.rewind(0)
        tracker.publish("train", 0, {"config": Text(markdown)})
        tracker.close()
    accumulator = event_accumulator.EventAccumulator(str(tmp_path / "train")).Reload()
    assert [tf.make_ndarray(event.tensor_proto).item() for event in accumulator.Tensors("config")] == [b"a: 1", b"a: 2"]


def test_starts_that_write_no_point_leave_no_files(tmp_path):
    """T18: each start begins new files; those in which nothing was said go away at the next."""
    tracker = TensorBoardTracker(str(tmp_path))
    tracker.log("train", 10, {"loss": 10})
    tracker.close()
    for _ in range(5):
        tracker = TensorBoardTracker(str(tmp_path))
        tracker.rewind(10)
        tracker.close()
    assert len(list((tmp_path / "train").iterdir())) == 2
    assert points(tmp_path / "train", "loss") == [(10, 10.0)]


MEDIA = {
    "histogram": Histogram(np.array([0.0, 1.0, 1.0, 2.0])),
    "dev/image": Image(np.arange(24, dtype=np.uint8).reshape(2, 4, 3)),
    "text": Text("*so*"),
}


def accumulated(directory):
    return event_accumulator.EventAccumulator(str(directory), size_guidance={"tensors": 0}).Reload()


def test_histograms_images_and_texts_have_the_forms_that_tf_summary_gives_them(tmp_path):
    """T18: TensorBoard shows them, by groups of their names."""
    tracker = TensorBoardTracker(str(tmp_path))
    tracker.publish("train", 7, MEDIA)
    tracker.log("train", 7, {"loss": 0.5})
    tracker.close()
    writer = tf.summary.create_file_writer(str(tmp_path / "reference"))
    with writer.as_default():
        tf.summary.histogram("histogram", MEDIA["histogram"].values, step=7, buckets=64)
        tf.summary.image("dev/image", MEDIA["dev/image"].pixels[None], step=7)
        tf.summary.text("text", "*so*", step=7)
        tf.summary.scalar("loss", 0.5, step=7)
    writer.close()
    theirs = accumulated(tmp_path / "reference")
    ours = accumulated(tmp_path / "train")
    for name in (*MEDIA, "loss"):
        plugin = theirs.SummaryMetadata(name).plugin_data.plugin_name
        assert ours.SummaryMetadata(name).plugin_data.plugin_name == plugin
        (event,), (reference,) = ours.Tensors(name), theirs.Tensors(name)
        assert event.step == 7
        left, right = tf.make_ndarray(event.tensor_proto), tf.make_ndarray(reference.tensor_proto)
        assert left.shape == right.shape
        if name == "dev/image":
            assert list(left[:2]) == list(right[:2]) == [b"4", b"2"]
            assert (tf.io.decode_png(left[2]).numpy() == MEDIA["dev/image"].pixels).all()
        elif name == "histogram":
            np.testing.assert_allclose(left, right)
        else:
            assert left == right


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_images_of_every_number_of_channels(tmp_path, channels):
    pixels = np.arange(6 * channels, dtype=np.uint8).reshape(2, 3, channels)
    assert (tf.io.decode_png(Image(pixels).png()).numpy() == pixels).all()


def test_a_rewind_drops_media_and_points_of_any_split(tmp_path):
    """T18: also where an action logs something of its own; not what belongs to another run, or to the profiler."""
    tracker = TensorBoardTracker(str(tmp_path))
    other = TensorBoardTracker(str(tmp_path / "from-5"))
    mark = tmp_path / "train" / "events.out.tfevents.1.host.profile-empty"
    for step in (10, 20):
        tracker.publish("train", step, MEDIA)
        tracker.log("optimizer", step, {"learning_rate": 0.5})
        other.log("train", step, {"loss": 1})
    (tmp_path / "from-5" / "run.json").write_text("{}")
    mark.write_bytes(b"")
    tracker.rewind(10)
    other.close()
    assert raw_steps(tmp_path / "optimizer") == [10]
    assert raw_steps(tmp_path / "from-5" / "train") == [10, 20]
    assert mark.exists()
    mark.unlink()
    assert sorted(set(raw_steps(tmp_path / "train"))) == [10]
    tracker.close()


def hparams_tab(logdir):
    """Returns each run's folder, name, status, hyperparameters and metrics, as TensorBoard's own server lists them."""
    listed, _ = read_hparams(logdir)
    return [
        (
            session.name,
            group.name,
            session.status,
            {name: getattr(value, value.WhichOneof("kind")) for name, value in group.hparams.items()},
            {f"{v.name.group}:{v.name.tag}": (v.training_step, v.value) for v in session.metric_values},
        )
        for group in listed.session_groups
        for session in group.sessions
    ]


def hparams_columns(logdir):
    """Returns the names of the columns: of hyperparameters, and of metrics."""
    _, experiment = read_hparams(logdir)
    drawn = {each.display_name or each.name for each in experiment.hparam_infos}
    return drawn, {f"{each.name.group}:{each.name.tag}" for each in experiment.metric_infos}


def read_hparams(logdir):
    multiplexer = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(logdir))
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(logdir))
    tab = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    context = request_context.RequestContext()
    content = tab.hparams_metadata(context, "")
    experiment = tab.experiment_from_metadata(context, "", True, content, [])
    every = [api_pb2.STATUS_UNKNOWN, api_pb2.STATUS_SUCCESS, api_pb2.STATUS_RUNNING, api_pb2.STATUS_FAILURE]
    request = api_pb2.ListSessionGroupsRequest(allowed_statuses=every, include_metrics=True, slice_size=100)
    for info in experiment.metric_infos:
        request.col_params.add(metric=info.name)
    return list_session_groups.Handler(context, tab, "", request).run(), experiment


def test_the_hparams_tab_lists_the_run(tmp_path):
    """T18: its config, its last metrics and how it ended, also if TensorBoard is started on the folder of the run."""
    model_dir = tmp_path / "runs" / "one"
    for number in range(3):
        tracker = TensorBoardTracker(str(model_dir))
        tracker.rewind(10 * min(number, 2))
        tracker.describe("digits", {"trainer.train_steps": 20, "task.name": "a", "task.path": None})
        if number < 2:
            step = 10 * (number + 1)
            tracker.log("train", step, {"training_loss": step})
            tracker.log("validation", step, {"accuracy": step / 100, "dev/accuracy": 0.1})
        if number > 0:
            tracker.end(Outcome(step=20, metrics={"accuracy": 0.2, "dev/accuracy": 0.1}))
        tracker.close()
    config = {"experiment": "digits", "trainer.train_steps": "20".rjust(20), "task.name": "a"}
    last = {":accuracy": (20, pytest.approx(0.2)), ":dev/accuracy": (20, pytest.approx(0.1))}
    for logdir, folder in ((model_dir, "validation"), (tmp_path / "runs", "one/validation")):
        assert hparams_tab(logdir) == [(folder, f"one ({tmp_path}/runs)", api_pb2.STATUS_SUCCESS, config, last)]
    assert sorted(os.listdir(model_dir)) == ["train", "validation"]
    assert raw_steps(model_dir / "validation").count(0) == 1


def test_the_hparams_tab_opens_with_the_metrics_in_view(tmp_path):
    """T18: a row for each directory; with all fields of the config, five of them would stand before the metrics."""
    config = {"task.train_data.global_batch_size": 64, "trainer.train_steps": 20, "runtime.seed": 1, "task.path": ""}
    several = ["task.train_data.global_batch_size", "runtime.seed"]
    for folder, listed in (("a/run", []), ("b/run", several), ("a/other", several)):
        tracker = TensorBoardTracker(str(tmp_path / folder), listed=listed)
        tracker.describe("digits", config)
        tracker.log("validation", 20, {"accuracy": 0.5})
        tracker.close()
    drawn, metrics = hparams_columns(tmp_path)
    assert drawn == {"experiment", "task.train_data.global_batch_size", "runtime.seed"}
    assert metrics == {":accuracy"}
    rows = {name: row["task.train_data.global_batch_size"] for _, name, _, row, _ in hparams_tab(tmp_path)}
    names = [f"run ({tmp_path}/a)", f"run ({tmp_path}/b)", f"other ({tmp_path}/a)"]
    assert rows == dict.fromkeys(names, "64".rjust(20)), "no 64.000"


def test_a_run_without_evaluations_is_listed_with_its_training(tmp_path, place):
    """T18, B14: also where only some splits are written."""
    for name, config, describes in (
        ("train", TensorBoardConfig(), "train"),
        ("time", TensorBoardConfig(splits=("time",)), "validation"),
    ):
        tracker = config.build(dataclasses.replace(place, directory=str(tmp_path / name)), describes=describes)
        tracker.describe("digits", {"seed": 1})
        tracker.log("time", 10, {"speed": 2.0})
        tracker.close()
        assert os.listdir(tmp_path / name) == ["train"]
        ((_, _, _, _, metrics),) = hparams_tab(tmp_path / name)
        assert metrics == {":time/speed": (10, 2.0)}


def test_the_hparams_tab_has_the_config_of_the_last_start(tmp_path):
    """T18: also of one that was killed before its first checkpoint; points stay."""
    for first, steps in ((0, 15), (0, 20), (10, 30)):
        tracker = TensorBoardTracker(str(tmp_path))
        tracker.rewind(first)
        tracker.resume("validation", first)
        tracker.describe("digits", {"trainer.train_steps": steps})
        tracker.log("validation", steps - 10, {"accuracy": 0.5})
        tracker.close()
    ((_, _, status, hparams, _),) = hparams_tab(tmp_path)
    assert hparams["trainer.train_steps"].strip() == "30"
    assert status == api_pb2.STATUS_UNKNOWN
    assert sorted(raw_steps(tmp_path / "validation")) == [0, 10, 20]


def test_a_process_beside_the_run_does_not_speak_for_it(tmp_path):
    tracker = TensorBoardTracker(str(tmp_path), describes=None)
    tracker.describe("digits", {"a": 1})
    tracker.end(Outcome(step=1, metrics={"loss": 1.0}))
    tracker.close()
    assert os.listdir(tmp_path) == []


def test_a_full_disk_costs_points_and_says_so_once(tmp_path, monkeypatch, caplog):
    """N6: one line that says what is not written; with space, points are written again."""
    tracker = TensorBoardTracker(str(tmp_path))
    tracker.rewind(0)
    with monkeypatch.context() as patch:
        patch.setattr(files, "open_file", lambda path, mode: open("/dev/full", mode))  # noqa: SIM115
        tracker.log("train", 20, {"loss": 2.0})
        tracker.log("validation", 20, {"loss": 3.0})
        tracker.flush()
    tracker.log("train", 30, {"loss": 4.0})
    tracker.close()
    assert points(tmp_path / "train", "loss") == [(30, 4.0)]
    assert caplog.messages == [
        f"points for TensorBoard cannot be written: {tmp_path}: No space left on device. They are left out until there "
        "is space again; the run continues, and metrics.jsonl has the numbers."
    ]


def test_event_files_that_are_damaged_or_links_to_nothing_do_not_end_a_run(tmp_path, caplog):
    """N6, N1: what can be read stays, what cannot is said; a killed process may leave half a record."""
    first = TensorBoardTracker(str(tmp_path))
    first.describe("digits", {"a": 1})
    for step in (10, 20, 30, 40):
        first.log("train", step, {"loss": float(step)})
    first.close()
    (path,) = (tmp_path / "train").glob("*.tfevents.*")
    content = bytearray(path.read_bytes())
    starts, offset = [], 0
    while offset < len(content):
        starts.append(offset)
        offset += 16 + int.from_bytes(content[offset : offset + 8], "little")
    content[starts[2] + 12] = 0xFF  # the point of step 20
    path.write_bytes(content[:-3])
    (hparams,) = (tmp_path / "validation").glob("*.tfevents.*")
    hparams.unlink()
    hparams.symlink_to("nothing")
    again = TensorBoardTracker(str(tmp_path))
    again.rewind(10)
    again.describe("digits", {"a": 1})
    again.log("train", 40, {"loss": -40.0})
    again.close()
    assert not os.path.lexists(hparams)
    assert points(tmp_path / "train", "loss") == [(10, 10.0), (40, -40.0)]
    assert f"{path} is damaged: a point for TensorBoard at byte {starts[2]} is left out" in caplog.text
