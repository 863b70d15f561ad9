"""`official-trainer report`: the file that it writes, and what it refuses."""

import errno
import json
import os
import re

import pytest

from official_trainer import cli
from official_trainer.errors import ExitCode
from tests.support import golden
from tests.support.reports import kinds


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The current directory is a fresh one, and the time stands still."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("official_trainer.reports.verbs.report._now_seconds", lambda: kinds.NOW)


def data_of(path):
    text = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_a_report_is_one_file_and_replaces_an_older_one(tmp_path, capsys):
    """N22: `report RUN --output=FILE` writes a page; given again, it replaces it."""
    kinds.write_run(tmp_path / "runs" / "a")
    assert cli.main(["report", "runs", "--output=r.html"]) == 0
    assert capsys.readouterr().out == "r.html: a, 0.1 MB; open it in a browser\n"
    kinds.write_run(tmp_path / "runs" / "b", seed=2)
    assert cli.main(["report", "runs/", "--output=r.html"]) == 0
    assert [run["name"] for run in data_of(tmp_path / "r.html")["runs"]] == ["b", "a"]
    assert cli.main(["report", "runs/a"]) == 0
    assert data_of(tmp_path / "report.html")["title"] == "a"


def test_what_cannot_be_done_is_refused(tmp_path, capsys, request):
    """N22: each refusal has the place, the value and the fix; nothing is written."""
    kinds.write_run(tmp_path / "runs" / "a")
    (tmp_path / "void").mkdir()
    before = sorted(os.listdir(tmp_path))
    golden.check_refused("report", request, capsys, "report")
    assert sorted(os.listdir(tmp_path)) == before


def test_a_disk_that_refuses_the_file_is_said(tmp_path, capsys, monkeypatch):
    """N22, N6: an error of the disk while the report is written names the file, and has the code of any other verb."""
    kinds.write_run(tmp_path / "runs" / "a")

    def fail(path, text, **_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("official_trainer.files.write_text_atomically", fail)
    assert cli.main(["report", "runs", "--output=r.html"]) == ExitCode.RETRY
    assert re.search(
        rf"error: r\.html: {os.strerror(errno.ENOSPC)}\. .* then the same command", capsys.readouterr().err
    )
