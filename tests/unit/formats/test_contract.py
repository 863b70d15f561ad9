"""The contract of a file, without TensorFlow: where it is kept, what is printed, which inputs it refuses."""

import json
import types
import zipfile

import numpy as np
import pytest

from official_trainer.formats import contract, shown
from official_trainer.formats.kinds import FormatError

CONTRACT = {
    "inputs": [{"name": "image", "dtype": "float32", "shape": [None, 8, 8], "range": [0.0, 1.0], "values": "darkness"}],
    "outputs": [{"name": "digit", "dtype": "float32", "shape": [None, 2], "labels": ["none", "one"]}],
    "about": {"experiment": "digits", "preprocessing": "inside"},
}
SAID = {"labels": {"digit": ("none", "one")}, "values": {"image": "darkness"}, "preprocessing": "inside"}
FITS = np.zeros([2, 8, 8], "float32")


def keras_file(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", "{}")


def saved_model(path):
    path.mkdir()
    (path / "saved_model.pb").touch()


@pytest.mark.parametrize(("name", "make"), [("model.keras", keras_file), ("7", saved_model)])
def test_a_contract_comes_back_from_the_file(tmp_path, name, make):
    """N46: it is in the place that the format has for it."""
    make(tmp_path / name)
    with pytest.raises(FormatError, match="has no contract, so its inputs and outputs are unknown"):
        contract.read(str(tmp_path / name))
    contract.embed(str(tmp_path / name), CONTRACT)
    assert contract.read(str(tmp_path / name)) == CONTRACT


def test_a_contract_is_printed(tmp_path):
    """N46: names, types, shapes with free sizes, and the values that were seen."""
    keras_file(tmp_path / "model.keras")
    contract.embed(str(tmp_path / "model.keras"), CONTRACT)
    assert shown.as_text(str(tmp_path / "model.keras")) == (
        "experiment: digits\n"
        "preprocessing: inside\n"
        "inputs:\n  image: float32 [any, 8, 8]  # darkness; in validation data: 0 to 1\n"
        "outputs:\n  digit: float32 [any, 2]  # labels: none, one"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"picture": FITS}, "takes an input 'image', and the data have picture"),
        (
            {"image": FITS[:, :4]},
            r"'image' is float32 \[any, 8, 8\] by its contract, and the data give float32 \[2, 4, 8\]",
        ),
        ({"image": FITS.astype("uint8")}, r"and the data give uint8 \[2, 8, 8\]; use the config"),
    ],
)
def test_other_inputs_are_refused(given, said):
    """N46: by their names."""
    contract.check_inputs("model.onnx", CONTRACT, {"image": FITS})
    with pytest.raises(FormatError, match=said):
        contract.check_inputs("model.onnx", CONTRACT, given)


class Spec:
    """As much of a `tf.TensorSpec` as a contract reads."""

    def __init__(self, shape):
        self.shape = types.SimpleNamespace(rank=len(shape), as_list=lambda: shape)
        self.dtype = types.SimpleNamespace(name="float32")


def made_of(said):
    task = types.SimpleNamespace(build_contract=lambda model: said)
    return contract.of(task, None, {"image": Spec([None, 8, 8])}, {"digit": Spec([None, 2])}, "digits")


def test_what_a_task_says_is_in_its_contract():
    """N46: labels, units and preprocessing; without them the contract says where preprocessing is."""
    made = made_of(SAID)
    assert made["outputs"] == CONTRACT["outputs"] and made["about"] == CONTRACT["about"]
    assert made["inputs"][0]["values"] == "darkness"
    assert made_of({})["about"]["preprocessing"] == "outside: inputs are the features of build_inputs"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"labels": {"digits": ["a", "b"]}}, "build_contract has labels of 'digits'; there are digit"),
        ({"values": {"picture": "m"}}, "build_contract has values of 'picture'; there are image, digit"),
        ({"labels": {"digit": ["a"]}}, "build_contract has 1 labels of 'digit', which is 2 numbers"),
        ({"units": {}}, r"build_contract returns 'units': dict; it may return labels \(dict\), values \(dict\), prep"),
        ({"preprocessing": 3}, "build_contract returns 'preprocessing': int"),
    ],
)
def test_what_a_task_says_has_to_fit(said, words):
    """N46: names of inputs and outputs, and a label for each number."""
    with pytest.raises(FormatError, match=words):
        made_of(said)


def test_a_file_with_other_labels_is_refused():
    """N46: or other units, or preprocessing that moved."""
    said = json.loads(json.dumps(SAID))
    contract.check_task("model.onnx", CONTRACT, said)
    contract.check_task("model.keras", CONTRACT, {**said, "labels": {**said["labels"], "sure": ["no", "yes"]}})
    moved = {**said, "preprocessing": "outside"}
    with pytest.raises(FormatError, match="was exported with preprocessing inside, and build_contract says outside"):
        contract.check_task("model.onnx", CONTRACT, moved)
    del said["labels"]
    with pytest.raises(FormatError, match=r"with labels \{'digit': \['none', 'one'\]\}, and build_contract says \{\}"):
        contract.check_task("model.onnx", CONTRACT, said)


def test_numbers_of_another_scale_give_a_warning(caplog):
    """N46: by the range of the export."""
    contract.warn_of_scale("model.onnx", CONTRACT, {"image": FITS + 1.5})
    assert not caplog.records
    contract.warn_of_scale("model.onnx", CONTRACT, {"image": FITS + 255})
    assert "the input 'image' is now 255 to 255, and 0 to 1 when it was exported; is it scaled" in caplog.text
