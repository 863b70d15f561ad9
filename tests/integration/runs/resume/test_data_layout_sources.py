"""Data that has changed under a run: the number of examples, their fingerprint, what orders them."""

import json
import logging

import pytest

from official_trainer.errors import ExitCode
from official_trainer.inputs import random_access
from official_trainer.runs.resume.data_layout import LayoutChangeError
from tests.support import points_run
from tests.support.points_run import do


def test_data_that_has_changed_is_refused(tmp_path, monkeypatch, caplog):
    """N45: other examples, or another version of Grain's shuffle, unless it is allowed; of an evaluation a warning."""
    dataset, versions = random_access._Pipeline.dataset, ["0.2.17"]

    def ordered(pipeline, context, *arguments, **options):
        context.order = f"grain {versions[-1]}"
        return dataset(pipeline, context, *arguments, **options)

    monkeypatch.setattr(random_access._Pipeline, "dataset", ordered)
    do(tmp_path / "run", until_step=5)
    versions.append("0.2.18")
    monkeypatch.setattr(points_run, "MARK", "other")
    monkeypatch.setattr(points_run.Points, "__len__", lambda self: 100)
    with pytest.raises(LayoutChangeError) as caught:
        do(tmp_path / "run")
    for change in (
        "number of examples 101 -> 100",
        "fingerprint of the data data -> other",
        "order by grain 0.2.17 -> grain 0.2.18",
    ):
        assert f"task.train_data: {change}" in str(caught.value)
    assert caught.value.exit_code == ExitCode.CONFIG
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] != "failed"  # that of the run before
    with caplog.at_level(logging.WARNING):
        do(tmp_path / "run", allow_config_change=True, until_step=6)
    assert "evaluations before step 5 are of other data: task.validation_data: " in caplog.text
