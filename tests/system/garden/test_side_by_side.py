"""Model Garden's driver and ours on each family: the same losses and results, and each finishes what the other began.

Each comparison is one process (`tests/support/garden/side_by_side.py`), forked from one that has imported TensorFlow.
"""

import functools
import json

import pytest

from tests.support.forked import Child
from tests.support.garden import data
from tests.support.garden.families import FAMILIES

QUICK = ("bert_tagging",)
COMPARED = (
    *QUICK,
    "resnet",
    "mobilenet_segmentation",
    "retinanet",
    "maskrcnn",
    "video_classification",
    "bert_sentence_prediction",
    "bert_pretraining",
    "bert_question_answering",
    "wmt_transformer",
    "dlrm",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in COMPARED]
)
def test_both_drivers_compute_the_same(name, tmp_path):
    """T2, N4: 20 losses, the checkpoint, its results are the same bits; each finishes what the other has begun."""
    found = compared(name, tmp_path)
    theirs, ours = found["losses"]
    assert len(set(theirs)) > 10, "the model learns"
    assert ours == theirs
    assert found["weights"] == []
    theirs, ours = found["results"]
    assert theirs
    assert {key: ours.get(key) for key in theirs} == theirs
    for begun in ("begun_there", "begun_here"):
        step, losses, weights, changed = (found[begun][key] for key in ("step", "losses", "weights", "changed"))
        assert 0 < step < 12, "killed after step 12"
        assert losses == found["losses"][0][step:], begun
        assert weights == [], begun
        assert changed > 10, "there was something to finish"


def compared(name, folder):
    """Returns what a comparison of a family found."""
    data.write(folder / "tiny_data", [FAMILIES[name].data])
    completed = Child(functools.partial(_compare, name, str(folder)), cwd=folder, folder=folder).wait()
    assert completed.code == 0, completed.err[-3000:]
    return json.loads((folder / "found.json").read_text())


def _compare(name, folder):
    from tests.support.garden import side_by_side

    side_by_side.compare(name, folder)
