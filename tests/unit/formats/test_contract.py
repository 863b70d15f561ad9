"""The contract of a file, without TensorFlow: where it is kept, what is printed, which inputs it refuses."""

import zipfile

import numpy as np
import pytest

from official_trainer.formats import contract, shown
from official_trainer.formats.kinds import FormatError
from official_trainer.formats.writing import differences

CONTRACT = {
    "inputs": [{"name": "image", "dtype": "float32", "shape": [None, 8, 8], "range": [0.0, 1.0]}],
    "outputs": [{"name": "digit", "dtype": "int64", "shape": [None]}],
    "about": {"experiment": "digits"},
}
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
        "inputs:\n  image: float32 [any, 8, 8]  # in validation data: 0 to 1\n"
        "outputs:\n  digit: int64 [any]"
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


@pytest.mark.parametrize(
    ("wanted", "found", "apart"),
    [
        ([0.0, 4.0], [0.0, 3.0], (0.25, 0.125)),
        ([2.0, 2.0], [2.0, 3.0], (0.5, 0.25)),
        ([0.0, float("inf")], [0.0, float("inf")], (0.0, 0.0)),
        ([True, False], [True, True], (1.0, 0.5)),
        ([], [], (0.0, 0.0)),
        ([1.0], [1.0, 2.0], (float("inf"), float("inf"))),
    ],
)
def test_how_far_outputs_are_apart(wanted, found, apart):
    """N46: in parts of the range of the model's outputs."""
    result = differences([np.array(wanted)], [np.array(found)])
    assert (result["max"], result["mean"]) == apart


def test_no_number_is_far_apart():
    """N46: an output that is not a number passes no limit."""
    assert not differences([np.array([0.0, 1.0])], [np.array([0.0, np.nan])])["max"] <= 1.0
