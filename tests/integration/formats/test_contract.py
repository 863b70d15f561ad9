"""`contract.json`: where it is, which inputs it refuses."""

import numpy as np
import pytest

from official_trainer.formats import contract
from official_trainer.formats.kinds import FormatError, UnknownFileError

CONTRACT = {"inputs": [{"name": "image", "dtype": "float32", "shape": [None, 8, 8]}], "outputs": [], "about": {}}
FITS = np.zeros([2, 8, 8], "float32")


def test_a_contract_is_beside_the_file(tmp_path):
    """N46: a file that was moved without it is refused."""
    contract.write(str(tmp_path), CONTRACT)
    assert contract.read(str(tmp_path / "model.onnx")) == CONTRACT
    with pytest.raises(
        UnknownFileError, match=r"has no contract.json beside it, .*; copy it from the export together with"
    ):
        contract.read(str(tmp_path / "elsewhere" / "model.onnx"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"picture": FITS}, "takes an input 'image', and the data have picture; name another file, or export"),
        ({"image": FITS.astype("int64")}, "the input 'image' is float32 .* by its contract, and the data give int64"),
        (
            {"image": FITS[:, :4]},
            r"'image' is float32 \[None, 8, 8\] by its contract, and the data give float32 \[2, 4, 8",
        ),
        ({"image": np.array(["a"])}, "and the data give string"),
    ],
)
def test_inputs_that_are_not_those_of_the_contract_are_refused(given, said):
    """N46: by name, type and shape; the batch may have any size, and more inputs may be there."""
    contract.check_inputs("model.onnx", CONTRACT, {"image": FITS, "id": FITS})
    with pytest.raises(FormatError, match=said):
        contract.check_inputs("model.onnx", CONTRACT, given)
