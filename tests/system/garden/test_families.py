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
def test_a_family_trains_keeps_its_best_and_is_exported_as_there(name, tmp_path):
    """T11, T19, T24: the overlay's metric decides about the best; exports of one checkpoint compute the same."""
    family, run = FAMILIES[name], tmp_path / "run"
    float32 = "runtime.mixed_precision_dtype=float32"  # of the run; an export of theirs always computes in it
    trained(family, tmp_path, "--set=trainer.export.at_end=false", *[f"--set={float32}"] * bool(family.serving))
    best = json.loads((run / "run.json").read_text())["best"]
    rows = [row for row in runs.rows(run) if row["split"] == "validation"]
    assert [row["step"] for row in rows] == [4, 8]
    assert best["value"] in [row[family.metric] for row in rows]
    assert list(committed_steps(str(run / "best"))) == [best["step"]]
    if name == "mobilenet_segmentation":  # T24: `allow_image_summary` is on there; each example of the last batch
        images = sorted((name, step) for name, step, _ in tensorboard(run) if "/image/" in name)
        assert images == [(f"validation/image/validation_outputs/{n}", step) for n in range(4) for step in (4, 8)]
    if family.serving:
        exported = ["export", f"--model_dir={run}", f"--output_dir={tmp_path / 'ours'}"]
        done = run_command(exported, cwd=tmp_path, folder=tmp_path)
        assert done.code == 0, done.err
        checkpoint = f"{run}/ckpt-{committed_steps(str(run))[-1]}"
        compared = Child(functools.partial(_compare_exports, name, checkpoint), cwd=tmp_path, folder=tmp_path).wait()
        assert compared.code == 0, compared.err[-3000:]


SHAPES = {(4, 3): [data.SIZE, data.SIZE, 3], (5, 3): [4, 32, 32, 3], (5, 1): [data.VOLUME, data.VOLUME, data.VOLUME, 1]}
"""Of an image, a clip and a volume, by the rank of a batch and the channels."""


def served(directory):
    """Returns the outputs of its `serving_default`."""
    model = tf.saved_model.load(str(directory))
    serve = model.signatures["serving_default"]
    rng = np.random.default_rng(0)
    inputs = {}
    for name, spec in serve.structured_input_signature[1].items():
        if spec.dtype == tf.string:
            inputs[name] = tf.constant(["the big cat sees a dog"])
            continue
        length = data.PREDICTIONS if name == "masked_lm_positions" else data.SEQUENCE
        shape = [length] if spec.dtype != tf.uint8 else SHAPES[len(spec.shape), spec.shape[-1]]
        inputs[name] = tf.constant(rng.integers(0, 255 if spec.dtype == tf.uint8 else 2, [1, *shape]), spec.dtype)
    return {name: value.numpy() for name, value in serve(**inputs).items()}


def _compare_exports(name, checkpoint):
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
