"""Exports in several formats: each file is the model, the same rows come of it, and a kill leaves all files or none."""

import functools
import json
import random
import shutil
import signal

import numpy as np
import pytest

from official_trainer.formats import readers
from official_trainer.tasks.export import CONTRACT, FORMAT_FILES
from tests import ROOT
from tests.support.cases import full
from tests.support.chaos import disk
from tests.support.forked import Command, run_command, trained_digits

ALL, QUICK = ("saved_model", *FORMAT_FILES), ("keras", "weights")


def export(run, folder, formats, *words):
    argv = ["export", f"--model_dir={run}", f"--format={','.join(formats)}", *words]
    return run_command(argv, cwd=ROOT, folder=folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of `digits_mlp` without an export."""
    return trained_digits(tmp_path_factory.mktemp("trained"))


def whole(export_dir):
    """Returns the formats of an export whose files are there."""
    formats = json.loads((export_dir / "export.json").read_text()).get("formats", ())
    return {name for name in formats if (export_dir / FORMAT_FILES.get(name, "saved_model.pb")).is_file()}


def do(verb, folder, formats, *words):
    """Returns a finished command on an experiment of `tests/support/formats`."""
    command = [verb, f"--model_dir={folder / 'run'}", f"trainer.export.formats=[{formats}]", *words]
    return run_command(command, cwd=ROOT / "tests" / "support" / "formats", folder=folder)


def test_formats_are_the_model_and_their_contract_is_beside_them(trained, tmp_path):
    """N46: files compute what the SavedModel does; their contract has names, types, shapes and what the task says."""
    run, export_dir = tmp_path / "run", tmp_path / "run" / "export" / "20"
    shutil.copytree(trained, run)
    done = export(run, tmp_path, ALL)
    assert done.code == 0, done.err
    for name, record in json.loads((export_dir / "export.json").read_text())["formats"].items():
        assert all(values[record["limit_of"]] <= record["limit"] for values in record["difference"].values()), name
    batch = {"image": np.random.default_rng(0).random([32, 8, 8, 1], np.float32)}
    (wanted,) = readers.outputs(str(export_dir), [batch])
    for name in {*FORMAT_FILES} - {"weights"}:
        path, limit = export_dir / FORMAT_FILES[name], 1e-5 if name in ("tflite", "onnx", "keras") else 0.1
        assert json.loads((export_dir / "export.json").read_text())["formats"][name]["bytes"] == path.stat().st_size
        (outputs,) = readers.outputs(str(path), [batch])
        assert outputs and outputs.keys() <= wanted.keys()  # those of the model, of which a task may add more
        for output, values in outputs.items():
            assert values.shape == wanted[output].shape, (name, output)
            assert np.abs(values - wanted[output]).max() <= limit * np.ptp(wanted[output]), (name, output)
    contract_is_there(export_dir)
    a_format_that_is_not_the_model_fails_by_its_name(run, tmp_path)


def contract_is_there(export_dir):
    """Names, types and shapes, and what the task says; int8 inside takes and returns what it says."""
    from ai_edge_litert.interpreter import Interpreter

    said = json.loads((export_dir / CONTRACT).read_text())
    assert said["inputs"] == [{"name": "image", "dtype": "float32", "shape": [None, 8, 8, 1]}]
    assert {row["name"] for row in said["outputs"]} == {"logits", "probabilities"}
    assert said["about"]["labels"] == {"probabilities": list("0123456789")}
    interpreter = Interpreter(model_path=str(export_dir / FORMAT_FILES["tflite_int8"]))
    inputs = interpreter.get_signature_runner("serving_default").get_input_details()
    assert {name: details["dtype"] for name, details in inputs.items()} == {"image": np.float32}
    assert [details["dtype"] for details in interpreter.get_tensor_details()].count(np.int8) >= 4


def a_format_that_is_not_the_model_fails_by_its_name(run, folder):
    """What was exported before stays, and nothing half-written is beside it."""
    done = export(run, folder, ("onnx", "tflite_int8"), "trainer.export.max_difference=1e-7")
    assert done.code == 1
    assert "nothing is exported, because of these formats:\n  tflite_int8: its output " in done.err
    assert "of its range (mean), and 1e-07 is allowed; " in done.err
    assert "onnx" not in done.err.partition("these formats:")[2]
    assert [path.name for path in (run / "export").iterdir()] == ["20"]
    assert whole(run / "export" / "20") == {*ALL}


STATE = "it keeps no state of a layer from one call to the next; build the model with stateful=False"
STATEFUL = "formats_series task.stateful=true task.train_data.global_batch_size=20 runtime.distribution_strategy=off"


@pytest.mark.parametrize(
    ("words", "formats", "said"),
    [
        # int8 is compared on data that did not calibrate it
        ("formats_pair task.scale=10", "tflite_int8", ["tflite_int8: its output 'side' differs from the model's by "]),
        full(
            (
                "formats_pair task.noise=.inf",
                "onnx",
                ["; 200 of the 200 numbers that the model itself computes are not "],
            )
        ),
        (STATEFUL, "keras, onnx, tflite_int8", [f"these formats:\n  onnx: {STATE}\n  tflite_int8: {STATE}\n"]),
        full(
            (
                "formats_series task.nested=true",
                "weights, tflite",
                [
                    "weights: Keras left out 2 of 7 arrays of the model: ",
                    "LiteRT has no recurrent layer whose state has any batch size; build the layer wi",
                ],
            )
        ),
        (
            "formats_series task.words=true",
            "onnx",
            ["onnx: ONNX has no tables, and the model looks values up in one"],
        ),
    ],
)
def test_a_format_is_refused_with_what_helps(tmp_path, words, formats, said):
    """N46: by its name."""
    refused = do("check", tmp_path, formats, *words.split())
    assert refused.code == 1 and all(text in refused.err for text in said), refused.err


@pytest.mark.parametrize(
    ("words", "formats"),
    [
        ("formats_pair task.dtype=float64", {"tflite", "onnx", "keras"}),  # two inputs, features of another type
        full(("formats_pair3", {"onnx", "keras"})),
        ("formats_series task.unroll=true", {"tflite"}),
        full((STATEFUL, {"saved_model", "tflite_dynamic", "keras"})),  # each begins anew
    ],
)
def test_formats_of_other_models(tmp_path, words, formats):
    """N46: `trainer.export.formats` is of the export at the end of a run."""
    done = do("train", tmp_path, ", ".join(formats), *words.split())
    assert done.code == 0, done.err
    assert whole(tmp_path / "run" / "export" / "4") == formats


def test_a_saved_model_is_compared_with_its_own_signature(tmp_path):
    """N46: one that takes other inputs than features, on random ones."""
    done = do("train", tmp_path, "saved_model", "formats_pair", "task.signature=true")
    assert done.code == 0, done.err
    path = tmp_path / "run" / "export" / "4"
    row = json.loads((path / "export.json").read_text())["formats"]["saved_model"]
    assert row["compared_on"] == "random inputs of its signature" and row["difference"]["sum"]["max"] <= 1e-5


@pytest.fixture(scope="module")
def changes(trained, tmp_path_factory):
    """How many changes on disk an export in several formats makes in a run."""
    disk.require()
    folder = tmp_path_factory.mktemp("changes")
    run, log = folder / "run", folder / "changes"
    shutil.copytree(trained, run)
    first = functools.partial(disk.arm, str(run), log=str(log))
    words = ["export", f"--model_dir={run}", f"--format={','.join(QUICK)}"]
    assert Command(words, first=first, cwd=ROOT, folder=folder).wait().code == 0
    return len(log.read_text().splitlines())


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 30))])
def test_a_kill_leaves_all_files_or_none(trained, changes, tmp_path, seed):
    """N46: at any change on disk of an export in several formats; the next export needs no help."""
    run, number = tmp_path / "run", random.Random(seed).randint(1, changes)
    shutil.copytree(trained, run)
    words = ["export", f"--model_dir={run}", f"--format={','.join(QUICK)}"]
    options = {"cwd": ROOT, "folder": tmp_path}
    killed = Command(words, first=functools.partial(disk.arm, str(run), number, -signal.SIGKILL), **options).wait()
    assert killed.code == -signal.SIGKILL
    there = [path for path in run.glob("export/*") if path.name.isdecimal()]
    assert all(whole(path) == set(QUICK) for path in there)
    assert run_command(words, **options).code == 0
    assert [path.name for path in (run / "export").iterdir()] == ["20"]
    assert whole(run / "export" / "20") == set(QUICK)
