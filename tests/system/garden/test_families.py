"""Model Garden's experiments, trained from end to end on tiny data in the encodings that their own readers expect."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.checkpoints.manifest import committed_steps
from tests import ROOT
from tests.support import runs
from tests.support.cases import cases
from tests.support.forked import Child, run_command
from tests.support.garden import data
from tests.support.garden.families import CONFIGS, FAMILIES
from tests.support.tracking.readers import tensorboard


def trained(family, tmp_path, *words):
    """Returns what a run of a family printed, in `run`."""
    data.write(tmp_path / "tiny_data", [family.data])
    flags = [f"--experiment={family.experiment}", f"--config_file={family.overlay}", f"--model_dir={tmp_path / 'run'}"]
    done = run_command(["train", *flags, *words], cwd=tmp_path, folder=tmp_path)
    assert done.code == 0, done.err
    return done


@pytest.mark.parametrize("name", cases(list(FAMILIES), "resnet"))
def test_a_family_trains_evaluates_and_keeps_its_best(name, tmp_path):
    """T11, T24: the overlay's metric is one that the experiment gives, and decides about the best checkpoint."""
    family, run = FAMILIES[name], tmp_path / "run"
    trained(family, tmp_path, "--set=trainer.export.at_end=false")
    best = json.loads((run / "run.json").read_text())["best"]
    rows = [row for row in runs.rows(run) if row["split"] == "validation"]
    assert [row["step"] for row in rows] == [4, 8]
    assert best["value"] in [row[family.metric] for row in rows]
    assert list(committed_steps(str(run / "best"))) == [best["step"]]
    if name == "mobilenet_segmentation":  # T24: `allow_image_summary` is on there; each example of the last batch
        images = sorted((name, step) for name, step, _ in tensorboard(run) if "/image/" in name)
        assert images == [(f"validation/image/validation_outputs/{n}", step) for n in range(4) for step in (4, 8)]


EXPORTED = [name for name, family in FAMILIES.items() if family.serving]


@pytest.mark.parametrize("name", cases(EXPORTED, "resnet"))
def test_an_export_computes_what_model_gardens_own_does(name, tmp_path):
    """T19: of one checkpoint, for one made-up example."""
    family, run = FAMILIES[name], tmp_path / "run"
    float32 = "runtime.mixed_precision_dtype=float32"  # of the run; an export of theirs always computes in it
    trained(family, tmp_path, "--mode=train", "--set=trainer.export.at_end=false", f"--set={float32}")
    exported = ["export", f"--model_dir={run}", f"--output_dir={tmp_path / 'ours'}"]
    done = run_command(exported, cwd=tmp_path, folder=tmp_path)
    assert done.code == 0, done.err
    checkpoint = f"{run}/ckpt-{committed_steps(str(run))[-1]}"
    compared = Child(functools.partial(_compare_exports, name, checkpoint), cwd=tmp_path, folder=tmp_path).wait()
    assert compared.code == 0, compared.err[-3000:]


def _compare_exports(name, checkpoint):
    from tests.support.garden.served import served

    FAMILIES[name].export(checkpoint, "theirs")
    ours, theirs = served("ours"), served("theirs")
    assert ours.keys() == theirs.keys()
    for output, value in ours.items():
        if value.dtype == object:  # texts
            np.testing.assert_array_equal(value, theirs[output], err_msg=output)
        else:
            np.testing.assert_allclose(value, theirs[output], rtol=1e-4, atol=1e-5, err_msg=output)


@pytest.mark.full
def test_a_model_without_an_export_module_is_exported_with_its_inputs(tmp_path):
    """T19: a subclassed model, under Model Garden's defaults, with what its steps called it with."""
    trained(FAMILIES["electra"], tmp_path)
    (step,) = committed_steps(str(tmp_path / "run"))[-1:]
    serve = tf.saved_model.load(f"{tmp_path}/run/export/{step}").signatures["serving_default"]
    names = {"input_word_ids", "input_mask", "input_type_ids", "masked_lm_positions", "masked_lm_ids"}
    assert names <= set(serve.structured_input_signature[1])


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
