"""Data that has changed under a run: the number of examples, their fingerprint, what orders them."""

import json
import logging

import pytest

from official_trainer.errors import ExitCode
from official_trainer.inputs import random_access
from official_trainer.runs.resume.data_layout import LayoutChangeError
from tests.support import points_run
from tests.support.points_run import do


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda patch: patch.setattr(points_run, "MARK", "other"),
            "task.train_data: fingerprint of the data data -> other",
        ),
        (
            lambda patch: patch.setattr(points_run.Points, "__len__", lambda self: 100),
            "task.train_data: number of examples 101 -> 100",
        ),
    ],
)
def test_data_that_has_changed_is_refused(change, message, tmp_path, monkeypatch, caplog):
    """N45: unless the change is allowed; of the validation data it is a warning."""
    do(tmp_path, until_step=5)
    change(monkeypatch)
    with pytest.raises(LayoutChangeError, match=message) as caught:
        do(tmp_path)
    assert caught.value.exit_code == ExitCode.CONFIG
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] != "failed"  # that of the run before
    with caplog.at_level(logging.WARNING):
        do(tmp_path, allow_config_change=True)
    warned = message.replace("train_data", "validation_data")
    assert f"evaluations before step 5 are of other data: {warned}" in caplog.text


def test_another_version_of_what_orders_the_examples_is_refused(tmp_path, monkeypatch):
    """N45: Grain's own shuffle has changed between versions."""
    dataset = random_access._Pipeline.dataset

    def ordered(version):
        def of(pipeline, context, *arguments, **options):
            context.order = f"grain {version}"
            return dataset(pipeline, context, *arguments, **options)

        monkeypatch.setattr(random_access._Pipeline, "dataset", of)

    ordered("0.2.17")
    do(tmp_path, until_step=5)
    ordered("0.2.18")
    with pytest.raises(LayoutChangeError, match=r"order by grain 0\.2\.17 -> grain 0\.2\.18"):
        do(tmp_path)
