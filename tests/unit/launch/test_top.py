"""The screen of `top`, by its keys and by what stands on it."""

import asyncio
import json
import os

import pytest
from textual.widgets import DataTable, RichLog, Static

from official_trainer import cli
from official_trainer.launch import top
from official_trainer.launch.top import Top
from official_trainer.launch.watched import Watcher
from tests.support.live_run import NOW, LiveRun


class Shown(Top):
    """A screen that looks when the test says so."""

    def __init__(self, watcher):
        self.now = NOW
        super().__init__(watcher, clock=lambda: self.now)

    @property
    def lines(self):
        """The table as text, with the headings."""
        table = self.query_one(DataTable)
        rows = [[column.label.plain for column in table.ordered_columns]]
        rows += [[str(cell) for cell in table.get_row_at(number)] for number in range(table.row_count)]
        return [" | ".join(row) for row in rows]

    def says(self, name):
        return str(self.query_one(f"#{name}", Static).render())


def shows(folder, act, size=(80, 24)):
    """Runs `act(app, pilot)` on a screen."""

    async def run():
        app = Shown(Watcher(str(folder)))
        async with app.run_test(size=size) as pilot:
            await settled(app, pilot)
            await act(app, pilot)

    asyncio.run(run())


async def settled(app, pilot):
    for _ in range(2):  # one that runs may have begun before
        app.look()
        await app.workers.wait_for_complete()
        await pilot.pause()


@pytest.fixture
def run(tmp_path):
    run = LiveRun(tmp_path / "runs" / "digits")
    run.train(loss=2.0)
    run.train(loss=1.0)
    return run


def test_a_run_while_it_goes_on(run, tmp_path):
    """N51: a row for each run, whose cells change with it; the host goes first where there is no room."""

    async def act(app, pilot):
        assert app.lines == [
            "run | status | step | eta | loss | trend | goodput | host",
            f"digits | train | 20/1000 | 8:10 | 1 | █▁ | 80 % | {app._found[0].host}",
        ]
        run.train(steps=480, loss=float("nan"))
        await settled(app, pilot)
        assert app.lines[1].startswith("digits | train | 500/1000 | 0:10 | nan | █▁× | 80 %")
        app.now = run.now + 90
        await settled(app, pilot)
        assert "silent 1 min" in app.lines[1] or "died" in app.lines[1]
        run.record.finish(0)
        await settled(app, pilot)
        assert app.lines[1].startswith("digits | done | 500/1000 |  | nan")

    shows(tmp_path / "runs", act)


def test_runs_that_appear_and_vanish_keep_the_cursor_on_its_run(run, tmp_path):
    """N51: and the line below says where the chosen one is."""

    async def act(app, pilot):
        other = LiveRun(tmp_path / "runs" / "aaa")
        await settled(app, pilot)
        assert [line.split(" | ")[0] for line in app.lines] == ["run", "aaa", "digits"]
        assert app.chosen().name == "digits"
        await pilot.press("up")
        assert app.chosen().name == "aaa"
        assert app.says("about").startswith(str(other.folder)[:20])
        await pilot.press("o")  # by name
        assert app.chosen().name == "aaa" and "by run" in app.says("head")
        for path in run.folder.iterdir():
            path.unlink()
        run.folder.rmdir()
        await settled(app, pilot)
        assert len(app.lines) == 2 and app.chosen().name == "aaa"

    shows(tmp_path / "runs", act)


def test_stop_asks_first(run, tmp_path, monkeypatch):
    """N51: nothing happens without a `y`."""
    stopped = []
    monkeypatch.setattr(Watcher, "stop", lambda self, each: stopped.append(each.name) or "it was asked")

    async def act(app, pilot):
        await pilot.press("s")
        await pilot.pause()
        assert isinstance(app.screen, top.Ask)
        await pilot.press("n")
        await pilot.pause()
        assert not stopped and not isinstance(app.screen, top.Ask)
        await pilot.press("s")
        await pilot.pause()
        await pilot.press("y")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert stopped == ["digits"] and app.says("said") == "it was asked"

    shows(tmp_path / "runs", act)


def test_the_log_and_the_report(run, tmp_path, monkeypatch):
    """N51: what the run has printed or recorded; the report is a file beside where this was started."""
    monkeypatch.chdir(tmp_path)

    async def act(app, pilot):
        await pilot.press("l")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "train @ 10: training_loss 2" in "\n".join(line.text for line in app.screen.query_one(RichLog).lines)
        run.train(steps=480)
        await settled(app, pilot)  # the table goes on below
        await pilot.press("q")
        await pilot.pause()
        assert app.lines[1].startswith("digits | train | 500/1000")
        await pilot.press("r")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert (tmp_path / "report-digits.html").exists() and "report-digits.html: digits" in app.says("said")

    shows(tmp_path / "runs", act)


def test_the_folder_is_away_for_a_moment(run, tmp_path):
    """N51: it is said, and the rows come back."""

    async def act(app, pilot):
        os.rename(tmp_path / "runs", tmp_path / "away")
        await settled(app, pilot)
        assert "no such file or directory" in app.says("head").lower() and len(app.lines) == 2
        os.rename(tmp_path / "away", tmp_path / "runs")
        await settled(app, pilot)
        assert app.says("head").startswith("1 run: 1 running")

    shows(tmp_path / "runs", act)


def test_hostile_names_and_records_are_shown_as_text(run, tmp_path):
    """N51: no control character reaches the terminal, and no markup is obeyed."""
    LiveRun(tmp_path / "runs" / "a[red]\x1b[31mb")
    path = run.folder / "status.json"
    status = json.loads(path.read_text())
    path.write_text(json.dumps({**status, "phase": "\x1b[2J", "host": "[bold]h"}))

    async def act(app, pilot):
        assert "\x1b" not in "".join(app.lines)
        assert "a[red]\\x1b[31mb" in "".join(app.lines) and "[bold]h" in "".join(app.lines)

    shows(tmp_path / "runs", act, size=(200, 50))


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_columns_fit(run, tmp_path, width):
    """N51: a long path loses its first folders, not its end."""
    LiveRun(tmp_path / "runs" / "a_sweep_of_learning_rates" / "trials" / "17", end_step=10**7)

    async def act(app, pilot):
        table = app.query_one(DataTable)
        assert sum(column.get_render_width(table) for column in table.ordered_columns) <= width
        assert any(line.split(" | ")[0].endswith("trials/17") for line in app.lines)

    shows(tmp_path / "runs", act, size=(width, 24))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "the folder nowhere is not there"),
        (["runs", "--jobs"], "--jobs are those of the workspace, and DIR names runs; leave one out"),
        (["runs"], "top draws on a terminal, and this is none; `official-trainer runs` prints a table"),
    ],
)
def test_what_is_refused(run, tmp_path, monkeypatch, capsys, words, said):
    """N51: before anything is drawn."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["top", *words]) == 2
    assert said in capsys.readouterr().err


def test_without_textual_the_command_that_installs_it_is_named(run, tmp_path, monkeypatch, capsys):
    """N51: it is an extra."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.main(["top", str(tmp_path / "runs")]) == 2
    assert "pip install 'official-trainer[top]'" in capsys.readouterr().err
