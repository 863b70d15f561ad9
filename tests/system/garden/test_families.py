"""Model Garden's experiments, trained from end to end on tiny data in the encodings that their own readers expect."""

import json

import pytest

from official_trainer.checkpoints.manifest import committed_steps
from tests import ROOT
from tests.support import runs
from tests.support.forked import run_command
from tests.support.garden import data
from tests.support.garden.families import CONFIGS, FAMILIES
from tests.support.tracking.readers import tensorboard


def families(where=lambda family: True):
    found = [family for family in FAMILIES.values() if where(family)]
    return [pytest.param(family, id=family.name, marks=() if family.is_quick else pytest.mark.full) for family in found]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("garden")
    data.write(folder / "tiny_data")
    return folder


def command(family, model_dir):
    return ["train", f"--experiment={family.experiment}", f"--config_file={family.overlay}", f"--model_dir={model_dir}"]


@pytest.fixture(scope="module")
def unbroken(folder):
    """Returns a function that gives a finished run of a family."""
    made = {}

    def run_of(family):
        if family.name not in made:
            model_dir = folder / f"{family.name}_unbroken"
            argv = [*command(family, model_dir), "--set=trainer.export.at_end=false"]
            completed = run_command(argv, cwd=folder, folder=folder)
            assert completed.code == 0, completed.err
            made[family.name] = model_dir
        return made[family.name]

    return run_of


@pytest.mark.parametrize("family", families())
def test_a_family_trains_evaluates_and_keeps_its_best(family, unbroken):
    """T11: the overlay's metric is one that the experiment gives, and decides about the best checkpoint."""
    model_dir = unbroken(family)
    best = json.loads((model_dir / "run.json").read_text())["best"]
    rows = [row for row in runs.rows(model_dir) if row["split"] == "validation"]
    assert [row["step"] for row in rows] == [4, 8]
    assert best["value"] in [row[family.metric] for row in rows]
    assert list(committed_steps(str(model_dir / "best"))) == [best["step"]]


@pytest.mark.full
def test_segmentation_shows_its_images_as_it_does_by_default(unbroken):
    """T24: `allow_image_summary` is on there; a picture of each example of the last batch."""
    found = tensorboard(unbroken(FAMILIES["mobilenet_segmentation"]))
    images = sorted((name, step) for name, step, _ in found if "/image/" in name)
    assert images == [(f"validation/image/validation_outputs/{n}", step) for n in range(4) for step in (4, 8)]


@pytest.mark.full
@pytest.mark.parametrize("family", [pytest.param(family, id=family.name) for family in FAMILIES.values()])
def test_model_garden_reads_the_overlay(family):
    """T20: the file is no dialect: their parser takes it too, strictly."""
    assert family.params().trainer.best_checkpoint_eval_metric == family.metric


def test_each_overlay_is_of_a_family_and_says_how_it_is_run():
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == set(FAMILIES)
    for family in FAMILIES.values():
        comment = "".join(line for line in family.overlay.read_text().splitlines(True) if line.startswith("#"))
        assert f"python -m tests.support.garden.data tiny_data {family.data}\n" in comment
        overlay, model_dir = family.overlay.relative_to(ROOT), f"--model_dir=runs/{family.name}"
        assert f"python train.py --experiment={family.experiment} --config_file={overlay} {model_dir}\n" in comment


def test_data_are_the_same_each_time_and_small(tmp_path):
    for copy in ("a", "b"):
        data.write(tmp_path / copy)
    written = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file()]
    assert len(written) >= 3 * len(data.KINDS)
    for path in written:
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes()
        assert (tmp_path / "a" / path).stat().st_size < 200_000


@pytest.mark.full
def test_what_nobody_can_export_is_said_and_the_run_is_whole(folder):
    """T19: a task without signatures, under Model Garden's defaults, ends with a warning, not with an error."""
    family = FAMILIES["electra"]
    completed = run_command(command(family, folder / "not_exported"), cwd=folder, folder=folder)
    assert completed.code == 0, completed.err
    said = "warning: nothing is exported at the end (trainer.export.at_end), the weights are in the checkpoints alone: "
    assert f"{said}ElectraPretrainTask: the model was not built with tf_keras.Input" in completed.err
    assert committed_steps(str(folder / "not_exported"))
