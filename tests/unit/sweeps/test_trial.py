"""Records of trials."""

import json

import pytest

from official_trainer.sweeps import trial as trials
from official_trainer.sweeps.trial import SweepError, Trial


def test_a_record_is_read_as_it_was_written(tmp_path):
    """N21: with the bits of its numbers; in the order of the numbers."""
    ended = Trial(
        number=10,
        values={"rate": 0.1 + 0.2, "kind": "a"},
        state="complete",
        value=1 / 3,
        others={"cost": float("inf"), "auc": 0.1 + 0.2},
        step=20,
        reports=((20, 1 / 3),),
    )
    started = Trial(number=9, values={"rate": 1e-5})
    for each in (ended, started):
        trials.write(str(tmp_path), each)
    assert list(trials.read_all(str(tmp_path)).values()) == [started, ended]
    assert trials.read_all(str(tmp_path / "none")) == {}
    assert (ended.results, started.results) == ((1 / 3, float("inf"), 0.1 + 0.2), ())


DAMAGES = [
    {},
    {"values": None},
    {"values": {"rate": [1]}},
    {"state": "x"},
    {"state": "complete"},
    {"others": 1},
    {"step": "1"},
    {"parent": "1"},
    {"reason": None},
    {"cause": 1},
    {"number": 4},
    {"reports": [[1, 2, 3]]},
    {"more": 1},
]


@pytest.mark.parametrize("damage", [*DAMAGES, "", "{", "[]", '{"number": 3}'])
def test_a_damaged_record_says_how_to_go_on(damage, tmp_path):
    """N21: the trial is run again without it; also where an editor, or a disk, has cut it off."""
    trials.write(str(tmp_path), Trial(number=3, values={}))
    record = tmp_path / "trials" / "3" / "trial.json"
    whole = json.loads(record.read_text())
    record.write_text(damage if isinstance(damage, str) else json.dumps(whole | damage if damage else {}))
    with pytest.raises(
        SweepError, match=r"trials/3/trial.json cannot be read .* Remove .*trials/3: the trial"
    ) as caught:
        trials.read_all(str(tmp_path))
    assert str(caught.value).count("trial.json") == 1
