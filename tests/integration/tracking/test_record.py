"""A run's record on a URL, which TensorFlow's file systems write."""

import pytest

from official_trainer.tracking import record
from official_trainer.tracking.record import ModelDirError, RunRecord, prepare_model_dir


def launch(**changes):
    values = {"experiment": "digits", "mode": "train_and_eval", "argv": ["train.py", "--x"], "config_digest": "abc"}
    return {**values, **changes}


def test_a_url_can_be_a_model_dir():
    prepare_model_dir("ram://record/run", "digits")
    run = RunRecord("ram://record/run", launch(), clock=lambda: 0)
    run.start()
    run.finish(0)
    prepare_model_dir("ram://record/run", "digits")
    assert record.read_run("ram://record/run")["status"] == "done"
    with pytest.raises(ModelDirError, match="holds a run of the experiment 'digits'"):
        prepare_model_dir("ram://record/run", "lm")
    with pytest.raises(ModelDirError, match="--model_dir=unknown://x cannot be written: "):
        prepare_model_dir("unknown://x", "digits")
