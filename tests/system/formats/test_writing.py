"""Exports in several formats: each file is the model, the same rows come of it, and a kill leaves all files or none."""

import functools
import json
import random
import shutil
import signal
import zipfile

import numpy as np
import pytest

from official_trainer.formats import contract
from official_trainer.tasks.export import FORMAT_FILES
from tests import ROOT
from tests.support.chaos import disk
from tests.support.forked import Command, run_command
from tests.support.formats.exports import ALL, export, rows

QUICK = ("onnx", "keras", "weights")

CODE = {"class_name": "__lambda__", "config": {"code": "", "defaults": None, "closure": None}}
FUNCTION = {"function": CODE, "function_type": "lambda"}
LAMBDA = {"module": "keras.layers", "class_name": "Lambda", "config": FUNCTION, "registered_name": None}
"""A layer whose function is written into a `.keras` file."""


def whole(export_dir):
    """Returns the formats of an export whose files are all as its checksums say."""
    from official_trainer import files

    sums = json.loads((export_dir / "checksums.json").read_text())
    assert {name: files.sha256(str(export_dir / name)) for name in sums} == sums
    return set(json.loads((export_dir / "export.json").read_text()).get("formats", ()))


@pytest.mark.parametrize("name", ALL)
def test_a_format_is_the_model(exported, tmp_path, name):
    """N46: `predict --model=FILE` gives the rows of the run; the contract is in the file; `export.json` has numbers."""
    run, place = exported
    path = place if name == "saved_model" else place / FORMAT_FILES[name]
    (tmp_path / "run").mkdir()
    (tmp_path / "file").mkdir()
    wanted, found = rows(run, tmp_path / "run"), rows(run, tmp_path / "file", f"--model={path}")
    assert found.keys() == wanted.keys()
    limit = 0.1 if name in ("tflite_float16", "tflite_dynamic", "tflite_int8") else 1e-5
    for output, values in wanted.items():
        assert found[output].shape == values.shape
        assert np.abs(found[output] - values).max() <= limit * np.ptp(values)
    said = contract.read(str(path))
    assert [(row["name"], row["dtype"], row["shape"]) for row in said["inputs"]] == [
        ("image", "float32", [None, 8, 8, 1])
    ]
    labels = {row["name"]: row.get("labels") for row in said["outputs"]}
    assert labels == {"logits": None, **({"probabilities": list("0123456789")} if name != "keras" else {})}
    record = json.loads((place / "export.json").read_text())["formats"][name]
    if name != "weights":
        assert set(record["latency_ms"]) == {"1", "360"} and record["peak_memory_bytes"] > 10_000_000
        assert 0 <= record["metrics"]["accuracy"] <= 1
    if name != "saved_model":
        assert record["bytes"] == path.stat().st_size


def test_int8_is_int8_inside_and_takes_floats(exported):
    """N46: as the contract says, whatever the calibration; and its weights are bytes."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(exported[1] / FORMAT_FILES["tflite_int8"]))
    inputs = interpreter.get_signature_runner("serving_default").get_input_details()
    assert {name: each["dtype"] for name, each in inputs.items()} == {"image": np.float32}
    types = [each["dtype"] for each in interpreter.get_tensor_details()]
    assert types.count(np.int8) >= 4


def test_show_prints_what_was_exported(exported, tmp_path):
    """N46: the contract, and what was measured of each format."""
    done = run_command(["show", str(exported[1])], cwd=ROOT, folder=tmp_path)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert "  image: float32 [any, 8, 8, 1]  # darkness of pixels, from 0 to 1; in validation data: 0 to 1" in lines
    assert [line.split(":")[0].strip() for line in lines[lines.index("formats:") + 1 :]] == list(ALL)


def test_show_runs_nothing_of_a_model_and_predict_no_function_in_a_keras_file(exported, tmp_path):
    """N46: `show` reads text alone, also of a file that cannot be loaded; Keras reads in safe mode."""
    broken = tmp_path / "model"
    (broken / "assets.extra").mkdir(parents=True)
    (broken / "saved_model.pb").write_bytes(b"no model")
    shutil.copy(exported[1] / "assets.extra" / "contract.json", broken / "assets.extra")
    assert run_command(["show", str(broken)], cwd=ROOT, folder=tmp_path).code == 0
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(exported[1] / "model.keras") as held, zipfile.ZipFile(path, "w") as changed:
        for name in held.namelist():
            changed.writestr(name, held.read(name) if name != "config.json" else json.dumps(LAMBDA))
    words = ["predict", f"--model_dir={exported[0]}", f"--model={path}", f"--output={tmp_path / 'rows'}"]
    refused = run_command(words, cwd=ROOT, folder=tmp_path)
    assert refused.code == 1
    assert "Keras cannot read model.keras in safe mode: " in refused.err and "Lambda" in refused.err


def test_a_format_that_is_not_the_model_fails_the_export_by_its_name(exported, tmp_path):
    """N46: what was there stays, and nothing half-written is beside it."""
    run = tmp_path / "run"
    shutil.copytree(exported[0], run)
    done = export(run, tmp_path, ("onnx", "tflite_int8"), "trainer.export.max_difference=1e-7")
    assert done.code == 1
    assert "nothing is exported, because of these formats:\n  tflite_int8: its output " in done.err
    assert "onnx" not in done.err.partition("these formats:")[2]
    assert [path.name for path in (run / "export").iterdir()] == ["20"]
    assert whole(run / "export" / "20") == set(ALL)


def test_a_run_and_its_check_write_formats(tmp_path):
    """N46: `trainer.export.formats` is of the export at the end, and `check` tries it."""
    words = ["digits_mlp", "--config_file=configs/smoke/digits_mlp.yaml", f"--model_dir={tmp_path / 'run'}"]
    words += ["trainer.export.formats=[keras, onnx]"]
    done = run_command(["check", *words], cwd=ROOT, folder=tmp_path)
    assert done.code == 0, done.err
    assert "SavedModel with serving_default, keras, onnx" in done.out
    assert not (tmp_path / "run").exists()
    assert run_command(["train", *words], cwd=ROOT, folder=tmp_path).code == 0
    assert whole(tmp_path / "run" / "export" / "20") == {"keras", "onnx"}


@pytest.mark.parametrize("value", ["offset=300", "scale=10"])
def test_int8_is_compared_on_data_that_did_not_calibrate_it(tmp_path, value):
    """N46: a small range beside a large offset is no excuse, nor are examples of another size."""
    words = ["check", "formats_pair", f"--model_dir={tmp_path / 'run'}", "trainer.export.formats=[tflite_int8]"]
    refused = run_command([*words, f"task.{value}"], cwd=ROOT / "tests" / "support" / "formats", folder=tmp_path)
    assert refused.code == 1
    assert "  tflite_int8: its output 'side' differs from the model's by " in refused.err


@pytest.mark.parametrize("is_equal", [True, False])
def test_outputs_that_are_not_finite(tmp_path, is_equal):
    """N46: a file of a model whose outputs are NaN may have NaN too; else the message counts those of the model."""
    words = ["check", "formats_pair", f"--model_dir={tmp_path / 'run'}", "trainer.export.formats=[onnx]"]
    words.append("task.scale=.nan" if is_equal else "task.noise=.inf")  # noise draws other signs in each call
    done = run_command(words, cwd=ROOT / "tests" / "support" / "formats", folder=tmp_path)
    assert done.code == (0 if is_equal else 1), done.err
    said = "1e-05 is allowed; 200 of the 200 numbers that the model itself computes are not finite"
    assert (said in done.err) != is_equal


def test_formats_of_a_recurrent_state(tmp_path):
    """N46: LiteRT keeps it and begins anew, also after other batches; what keeps none is refused by name."""
    words = ["check", "formats_series", f"--model_dir={tmp_path / 'run'}", "task.stateful=true"]
    words += ["task.train_data.global_batch_size=20", "runtime.distribution_strategy=off"]
    options = {"cwd": ROOT / "tests" / "support" / "formats", "folder": tmp_path}
    done = run_command([*words, "trainer.export.formats=[saved_model, tflite_dynamic, keras]"], **options)
    assert done.code == 0, done.err
    assert "tflite_dynamic: nothing was quantised: LiteRT leaves weights of under 1,024 numbers as they are" in done.err
    refused = run_command([*words, "trainer.export.formats=[keras, onnx, tflite_int8]"], **options)
    assert refused.code == 1
    why = "it keeps no state of a layer from one call to the next; build the model with stateful=False"
    assert f"these formats:\n  onnx: {why}\n  tflite_int8: {why}\n" in refused.err


@pytest.mark.full
def test_a_float32_file_that_is_not_the_model_fails_too(tmp_path):
    """N46: here because the model draws, so that no two calls are alike."""
    words = ["formats_pair", f"--model_dir={tmp_path / 'run'}", "trainer.export.formats=[keras, onnx]"]
    options = {"cwd": ROOT / "tests" / "support" / "formats", "folder": tmp_path}
    refused = run_command(["check", *words, "task.noise=0.01"], **options)
    assert refused.code == 1
    assert "  onnx: its output 'side' differs from the model's by " in refused.err
    assert "of its range (max), and 1e-05 is allowed\n" in refused.err
    assert "  keras: " not in refused.err


def test_weights_that_keras_leaves_out_fail_the_export(tmp_path):
    """N46: those of layers in lists of lists, which a file would lose without a word."""
    words = ["formats_series", f"--model_dir={tmp_path / 'run'}", "trainer.export.formats=[weights]"]
    options = {"cwd": ROOT / "tests" / "support" / "formats", "folder": tmp_path}
    refused = run_command(["check", *words, "task.nested=true"], **options)
    assert refused.code == 1
    assert "  weights: Keras left out 2 of 7 arrays of the model: " in refused.err and "dense/kernel:0" in refused.err


def test_a_saved_model_is_compared_with_its_own_signature(tmp_path):
    """N46: one that takes other inputs than features, on random ones; `predict` refuses it by what it takes."""
    run = tmp_path / "run"
    words = ["formats_pair", f"--model_dir={run}", "trainer.export.formats=[saved_model]", "task.signature=true"]
    options = {"cwd": ROOT / "tests" / "support" / "formats", "folder": tmp_path}
    done = run_command(["train", *words], **options)
    assert done.code == 0, done.err
    row = json.loads((run / "export" / "4" / "export.json").read_text())["formats"]["saved_model"]
    assert row["compared_on"] == "random inputs of its signature" and row["difference"]["sum"]["max"] <= 1e-5
    refused = run_command(["predict", f"--model_dir={run}", f"--model={run / 'export' / '4'}"], **options)
    assert refused.code == 1
    assert (
        " takes an input 'numbers', and the data have left, right; name another file, or export the run again"
        in refused.err
    )


@pytest.mark.parametrize(
    ("experiment", "formats"),
    [(["formats_pair", "task.dtype=float64"], ("tflite", "onnx", "keras")), (["formats_series"], ("onnx", "keras"))],
    ids=["pair", "series"],
)
def test_other_models(tmp_path, experiment, formats):
    """N46: several inputs, features of another type than those, and a recurrent layer."""
    words = [*experiment, f"--model_dir={tmp_path / 'run'}", f"trainer.export.formats=[{', '.join(formats)}]"]
    done = run_command(["train", *words], cwd=ROOT / "tests" / "support" / "formats", folder=tmp_path)
    assert done.code == 0, done.err
    assert whole(tmp_path / "run" / "export" / "4") == set(formats)


def test_why_a_model_cannot_be_converted_and_what_helps(tmp_path):
    """N46: a recurrent layer in LiteRT; unrolled, it can."""
    words = ["formats_series", f"--model_dir={tmp_path / 'run'}", "trainer.export.formats=[tflite]"]
    options = {"cwd": ROOT / "tests" / "support" / "formats", "folder": tmp_path}
    refused = run_command(["check", *words], **options)
    assert refused.code == 1
    assert (
        "  tflite: LiteRT has no recurrent layer whose state has any batch size; build the layer with un" in refused.err
    )
    assert run_command(["train", *words, "task.unroll=true"], **options).code == 0
    assert whole(tmp_path / "run" / "export" / "4") == {"tflite"}


def test_a_lookup_in_onnx_is_refused_by_its_layer(tmp_path):
    """N46: before anything is converted, with what to do."""
    words = ["formats_series", f"--model_dir={tmp_path / 'run'}", "trainer.export.formats=[onnx]", "task.words=true"]
    refused = run_command(["check", *words], cwd=ROOT / "tests" / "support" / "formats", folder=tmp_path)
    assert refused.code == 1
    said = "  onnx: ONNX has no tables, and the layer words looks values up in one; look values up in build_inputs, and"
    assert said in refused.err


@pytest.fixture(scope="module")
def changes(exported, tmp_path_factory):
    """How many changes on disk an export in several formats makes in a run."""
    disk.require()
    folder = tmp_path_factory.mktemp("changes")
    run, log = folder / "run", folder / "changes"
    shutil.copytree(exported[0], run, ignore=shutil.ignore_patterns("export"))
    first = functools.partial(disk.arm, str(run), log=str(log))
    words = ["export", f"--model_dir={run}", f"--format={','.join(QUICK)}"]
    assert Command(words, first=first, cwd=ROOT, folder=folder).wait().code == 0
    return len(log.read_text().splitlines())


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 30))])
def test_a_kill_leaves_all_files_or_none(exported, changes, tmp_path, seed):
    """N46: at any change on disk of an export in several formats; the next export needs no help."""
    run, number = tmp_path / "run", random.Random(seed).randint(1, changes)
    shutil.copytree(exported[0], run, ignore=shutil.ignore_patterns("export"))
    words = ["export", f"--model_dir={run}", f"--format={','.join(QUICK)}"]
    options = {"cwd": ROOT, "folder": tmp_path}
    killed = Command(words, first=functools.partial(disk.arm, str(run), number, -signal.SIGKILL), **options).wait()
    assert killed.code == -signal.SIGKILL
    there = [path for path in run.glob("export/*") if path.name.isdecimal()]
    assert all(whole(path) == set(QUICK) for path in there)
    assert run_command(words, **options).code == 0
    assert [path.name for path in (run / "export").iterdir()] == ["20"]
    assert whole(run / "export" / "20") == set(QUICK)
