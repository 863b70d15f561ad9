"""The description of a sweep."""

import json

import pytest

from official_trainer.sweeps import results
from official_trainer.sweeps.trial import SweepError

WHOLE = {"space": {"rate": "log(1e-3, 1)"}, "population": None}
OBJECTIVE = {"metric": "loss", "direction": "min", "evaluation": "best"}


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({}, "it lacks 'sweep'"),
        ({"sweep": 5}, "'int' object is not subscriptable"),
        ({"sweep": WHOLE}, "it lacks 'objective'"),
        ({"sweep": WHOLE | {"objective": {"metric": "loss"}}}, "missing 2 required"),
        ({"sweep": {"objective": OBJECTIVE, "population": None}}, "it lacks 'space'"),
        ({"sweep": {"objective": OBJECTIVE, "space": []}}, "it lacks 'population'"),
        ([], "it holds no JSON object"),
    ],
)
def test_a_damaged_description_is_named(found, why, tmp_path):
    """N21: for `sweep show` and `sweep best`, and for the sweep itself."""
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(found))
    with pytest.raises(SweepError, match=r"sweep\.json cannot be read") as caught:
        results.read(str(tmp_path))
    assert why in str(caught.value) and str(caught.value).endswith("; put a good copy back")
    path.write_text(json.dumps({"experiment": "train", "sweep": WHOLE | {"objective": OBJECTIVE}}))
    assert results.read(str(tmp_path)).results == ()
