"""Examples that a run leaves out: the list in its directory, its budget, data that changes under it."""

import json
import logging

import pytest

from official_trainer import files
from official_trainer.errors import ExitCode
from official_trainer.inputs import DataError, random_access
from official_trainer.runs import bad_records
from official_trainer.runs.resume.data_layout import LayoutChangeError
from tests.support import bad_runs
from tests.support.bad_runs import BAD, do
from tests.support.runs import assert_same_checkpoint


def of_section(folder, name):
    return [record.index for record in bad_records.read(str(folder / "run")) if record.section == f"task.{name}"]


def facts(folder):
    return json.loads((folder / "run/run.json").read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run to its end, which tests only read."""
    folder = tmp_path_factory.mktemp("finished")
    do(folder)
    return folder


def test_what_is_left_out_is_listed(finished):
    """N45: each example of each data section once, with its place and the reason; their number is in run.json."""
    lines = (finished / "run" / files.BAD_RECORDS_FILE).read_text().splitlines()
    assert json.loads(lines[0]) == {
        "section": "task.train_data", "index": 0, "where": "example 0", "reason": "its checksum is wrong",
    }  # fmt: skip
    for name in ("train_data", "validation_data"):
        assert of_section(finished, name) == sorted(BAD)
    assert facts(finished)["bad_records"] == {"task.train_data": len(BAD), "task.validation_data": len(BAD)}


def test_a_run_in_two_parts_lists_the_same(finished, tmp_path):
    """N45: and ends with the same weights; the first part lists what its own steps needed, not what was read ahead."""
    do(tmp_path, until_step=5)
    assert 0 < len(of_section(tmp_path, "train_data")) < len(BAD)
    do(tmp_path)
    path = f"run/{files.BAD_RECORDS_FILE}"
    assert (tmp_path / path).read_text() == (finished / path).read_text()
    assert_same_checkpoint(finished / "run", tmp_path / "run", 20)


def test_too_many_end_the_run_and_are_listed(tmp_path):
    """N45: with the exit code of data, the number and the first few; a larger budget continues the run."""
    with pytest.raises(
        DataError, match=r"^task.train_data: 4 examples cannot be read.*\(max_bad_records: 3\)"
    ) as caught:
        do(tmp_path, "task.train_data.max_bad_records=3")
    assert caught.value.exit_code == ExitCode.DATA
    assert len(of_section(tmp_path, "train_data")) >= 4
    assert facts(tmp_path)["status"] == "failed"
    do(tmp_path, "task.train_data.max_bad_records=12")
    assert of_section(tmp_path, "train_data") == sorted(BAD)


def test_the_budget_counts_what_is_listed_already(tmp_path):
    """N45: a restart makes it no larger."""
    do(tmp_path, until_step=5)
    known = len(of_section(tmp_path, "train_data"))
    with pytest.raises(DataError, match=rf"^task.train_data: {known + 1} examples cannot be read"):
        do(tmp_path, f"task.train_data.max_bad_records={known}", "task.train_data.workers=1")


def test_a_list_that_was_changed_is_refused(tmp_path):
    """N45: with its line, instead of a budget that begins anew."""
    do(tmp_path, until_step=5)
    with open(tmp_path / "run" / files.BAD_RECORDS_FILE, "a") as file:
        file.write("{cut\n")
    with pytest.raises(files.UnreadableFileError, match=r"bad_records.jsonl:\d+ cannot be read"):
        do(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda patch: patch.setattr(bad_runs, "MARK", "other"),
            "task.train_data: fingerprint of the data data -> other",
        ),
        (
            lambda patch: patch.setattr(bad_runs.Points, "__len__", lambda self: 100),
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
    assert facts(tmp_path)["status"] != "failed"  # the record is that of the run before
    with caplog.at_level(logging.WARNING):
        do(tmp_path, allow_config_change=True)
    warned = message.replace("train_data", "validation_data")
    assert f"evaluations before step 5 are of other data: {warned}" in caplog.text


def test_a_run_that_recorded_no_sizes_of_images_goes_on(tmp_path, monkeypatch, caplog):
    """N45: as those of earlier versions; from the next checkpoint on their sizes are compared, and always the names."""
    names, sizes = "0123456789abcdef" * 2, "0123456789abcdef"
    monkeypatch.setattr(bad_runs, "MARK", f"images 1 of 101 {names}; other")
    do(tmp_path, until_step=5)
    monkeypatch.setattr(bad_runs, "MARK", f"images 1 of 101 {names[::-1]}+{sizes}; other")
    with pytest.raises(LayoutChangeError, match="fingerprint of the data"):
        do(tmp_path, until_step=10)
    monkeypatch.setattr(bad_runs, "MARK", f"images 1 of 101 {names}+{sizes}; other")
    do(tmp_path, until_step=10)
    assert "of other data" not in caplog.text
    monkeypatch.setattr(bad_runs, "MARK", f"images 1 of 101 {names}+{sizes[::-1]}; other")
    with pytest.raises(LayoutChangeError, match="fingerprint of the data"):
        do(tmp_path)


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
