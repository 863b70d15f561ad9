"""Which checkpoint `task.init_checkpoint` means, by each way to name one, and what is said where there is none."""

import pathlib
import shutil

import pytest
import tensorflow as tf

from official_trainer.checkpoints.init_checkpoint import find
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.checkpoints.store import CheckpointStore
from official_trainer.errors import ExitCode
from tests.support.checkpoint_damage import cut_in_half, flipped


def checkpoint():
    return tf.train.Checkpoint(kernel=tf.Variable(tf.range(1000)), bias=tf.Variable(tf.zeros([3])))


def write(folder, *names):
    """Writes checkpoints as a program without a driver does: there is no pointer file."""
    for name in names:
        checkpoint().write(str(folder / name))


DATA = "data-00000-of-00001"
DAMAGES = {
    "data gone": lambda prefix: pathlib.Path(f"{prefix}.{DATA}").unlink(),
    "data cut": lambda prefix: cut_in_half(pathlib.Path(f"{prefix}.{DATA}")),
    "a bit flipped": lambda prefix: flipped(pathlib.Path(f"{prefix}.{DATA}")),
    "index cut": lambda prefix: cut_in_half(pathlib.Path(f"{prefix}.index")),
}


def test_a_checkpoint_is_named_by_its_prefix_a_file_of_it_or_its_folder(tmp_path):
    """T6: with and without a slash at the end, as a path and as a URL."""
    write(tmp_path, "ckpt-60")
    for place in (str(tmp_path), f"file://{tmp_path}"):
        for named in ("/ckpt-60", "/ckpt-60.index", f"/ckpt-60.{DATA}", "/ckpt-60/", "", "/"):
            assert find(f"{place}{named}") == f"{place}/ckpt-60"


def test_without_a_pointer_the_number_says_which_is_the_newest(tmp_path):
    """T6: the `checkpoint` file is not copied along by everyone."""
    for number, (names, newest) in enumerate(
        (
            (["ckpt-9", "ckpt-60", "ckpt-100"], "ckpt-100"),
            (["cp-0009.ckpt", "cp-0010.ckpt"], "cp-0010.ckpt"),
            (["model.ckpt-5", "model.ckpt-0"], "model.ckpt-5"),
            (["best_ckpt-3"], "best_ckpt-3"),
            (["weights"], "weights"),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(folder, *names)
        assert find(str(folder)) == str(folder / newest)


POINTERS = (
    'model_checkpoint_path: "ckpt-60"\n',
    'model_checkpoint_path: "/elsewhere/ckpt-60"\n',
    "\x00\x01",
    None,
)


def test_a_damaged_one_of_another_tool_is_refused(tmp_path):
    """T6: one that a copy has cut, or a disk damaged; the others are named."""
    message = r"init_checkpoint: .*: its newest checkpoint ckpt-60 is damaged: .*; name another one: ckpt-40\.$"
    for damage in DAMAGES.values():
        write(tmp_path, "ckpt-40", "ckpt-60")
        damage(tmp_path / "ckpt-60")
        for pointer in POINTERS:
            (tmp_path / "checkpoint").unlink(missing_ok=True)
            if pointer is not None:
                (tmp_path / "checkpoint").write_text(pointer)
            with pytest.raises(CheckpointError, match=message) as caught:
                find(str(tmp_path))
            assert caught.value.exit_code == ExitCode.CONFIG
            assert find(str(tmp_path / "ckpt-40")) == str(tmp_path / "ckpt-40")


def test_a_pointer_to_an_older_checkpoint_counts(tmp_path):
    """T6: as TensorFlow reads it."""
    write(tmp_path, "ckpt-40", "ckpt-50", "ckpt-60")
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "ckpt-50"\n')
    assert find(str(tmp_path)) == str(tmp_path / "ckpt-50")


def test_a_run_of_ours_whose_manifests_were_not_copied_is_read_by_its_files(tmp_path):
    """T6: `cp ckpt-*.index ckpt-*.data*`, and the folder of a run as it is."""
    run, copied = tmp_path / "run", tmp_path / "copied"
    store = CheckpointStore(str(run), checkpoint(), max_to_keep=3)
    for step in (1, 2):
        store.save(step)
    store.close()
    assert find(str(run)) == str(run / "ckpt-2")
    copied.mkdir()
    for name in ("ckpt-1.index", f"ckpt-1.{DATA}"):
        shutil.copy(run / name, copied)
    assert find(f"{copied}/") == str(copied / "ckpt-1")


HOLDS = {
    "nowhere": "does not exist",
    "nowhere/ckpt-60": "does not exist",
    "empty": "holds no checkpoint: it is empty",
    "other": "holds no checkpoint: it holds a.txt, b.txt, c.txt and 1 more",
    "saved": "is a SavedModel, and its values are damaged: variables.index is missing",
    "weights.h5": "is not a checkpoint",
    f"lost/ckpt-60.{DATA}": "belongs to a checkpoint whose index is missing",
    "lost": f"holds no checkpoint: it holds ckpt-60.{DATA}",
    "several": "holds several checkpoints; name one of them: a, b",
    "sev*": r"holds '\*', which TensorFlow takes for a pattern",
    "lost/ckpt-[0-9]": "holds '\\[', which",
}


def test_a_place_without_a_checkpoint_says_what_is_there(tmp_path):
    """T6: the path that was given, and what was found."""
    for folder in ("empty", "other", "saved/variables", "lost", "several"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("other/a.txt", "other/b.txt", "other/c.txt", "other/d.txt", "saved/saved_model.pb", "weights.h5"):
        (tmp_path / name).write_text("x")
    write(tmp_path / "lost", "ckpt-60")
    (tmp_path / "lost" / "ckpt-60.index").unlink()
    write(tmp_path / "several", "a", "b")
    for named, message in HOLDS.items():
        with pytest.raises(CheckpointError, match=message) as caught:
            find(f"{tmp_path}/{named}", "task.init_checkpoint")
        assert str(caught.value).startswith(f"task.init_checkpoint: {tmp_path}/{named} ")
    with pytest.raises(
        CheckpointError, match=r"^task\.init_checkpoint is not set\. Name a directory with checkpoints, or"
    ):
        find("", "task.init_checkpoint")
