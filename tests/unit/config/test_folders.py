"""Folders and files that a config names stay in the run directory, and belong to one part of the run."""

import pytest

from official_trainer import config
from official_trainer.config import ConfigError, ExperimentConfig
from official_trainer.config.folders import RESERVED

FIELDS = {
    "trainer.best_checkpoint_export_subdir": "trainer.best_checkpoint_export_subdir={}",
    "trainer.validation_summary_subdir": "trainer.validation_summary_subdir={}",
    "trainer.actions[0].directory": "trainer.actions=[{{type: checkpoint, directory: {}}}]",
    "trainer.actions[0].directory (averages)": "trainer.actions=[{{type: average_checkpoints, directory: {}}}]",
    "trainer.actions[0].directory (exports)": "trainer.actions=[{{type: export_saved_model, directory: {}}}]",
    "trainer.actions[0].directory (profiles)": "trainer.actions=[{{type: profile, directory: {}}}]",
}
OUTSIDE = [".", "..", "../victim", "../../x", "/tmp/x", "a/b", "'a\\b'", ".hidden", '"a\\nb"', "x" * 300]


def problems(*overrides):
    with pytest.raises(ConfigError) as caught:
        config.resolve(ExperimentConfig(), sets=list(overrides))
    return str(caught.value)


@pytest.mark.parametrize("field", FIELDS)
def test_a_name_leads_nowhere_else(field):
    """C6, T11: one folder of the run directory, or nothing: what lies there is deleted by the run."""
    for name in OUTSIDE:
        said = problems(FIELDS[field].format(name))
        assert field.partition(" ")[0] in said
        assert "it must be the name of one folder, of at most 200 bytes" in said


@pytest.mark.parametrize("field", [field for field in FIELDS if "exports" not in field])
def test_a_name_that_the_run_uses_is_refused(field):
    """T11: only the default of the field itself may be one of them."""
    own = {"best": "best_checkpoint", "validation": "validation_summary", "train": "profiles"}
    for name in [*RESERVED, "checkpoint", "ckpt-10", "from-30", "run.json", "metrics.jsonl", "PROFILE"]:
        if name in own and own[name] in field:
            config.resolve(ExperimentConfig(), sets=[FIELDS[field].format(name)])
        else:
            said = problems(FIELDS[field].format(name))
            assert f"is {name!r}, which the run uses itself; name another folder" in said


def test_two_parts_do_not_share_a_folder():
    """T11, C1: each would delete what the other keeps."""
    best = ("trainer.best_checkpoint_eval_metric=accuracy", "trainer.best_checkpoint_export_subdir=mine")
    said = problems(*best, "trainer.actions=[{type: checkpoint, directory: mine}]")
    assert "trainer.actions[0].directory: is 'mine', like best_checkpoint_export_subdir, and each would delete" in said
    said = problems(*best, "trainer.validation_summary_subdir=mine")
    assert "trainer.validation_summary_subdir: is 'mine', like best_checkpoint_export_subdir; set another" in said
    actions = "[{type: checkpoint, directory: mine}, {type: average_checkpoints, directory: mine}]"
    assert "actions[1].directory: is 'mine', like that of another checkpoint" in problems(f"trainer.actions={actions}")
