"""The page of a report in a real browser: Chromium without a window."""

import pytest

from benchmarks import many_runs
from official_trainer import cli
from official_trainer.reports import content, page
from tests.support.reports import kinds
from tests.support.reports.browser import BROKEN, watched

HOSTILE = "<script>alert(1)<b>"


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Reports of a few runs, with one of a hostile name and one that failed; of long names; of many; of a sweep."""
    folder = tmp_path_factory.mktemp("reports")
    for name, seed, options in (("adam", 3, {}), ("sgd", 1, {"optimizer": "sgd"}), (HOSTILE, 2, {"rate": 0.01})):
        kinds.write_run(folder / "few" / name, seed=seed, **options)
    kinds.KINDS["failed"](folder / "few" / "broken")
    for seed in range(1, 6):
        name = "b" if seed == 1 else f"digits_with_a_cosine_decay_and_a_warmup_of_a_hundred_steps_seed_{seed}"
        kinds.write_run(folder / "long" / name, seed=seed, rate=seed / 1000)
    many_runs.write(folder / "many", 500, num_summaries=20)
    kinds.sweep(folder / "sweep")
    addresses = {}
    with pytest.MonkeyPatch.context() as patch:
        kinds.stand_in_for_sweeps(patch, folder / "sweep")
        for name in ("few", "long", "many", "sweep"):
            file = folder / f"{name}.html"
            file.write_text(page.render(content.of([str(folder / name)], now_seconds=kinds.NOW)), encoding="utf-8")
            addresses[name] = f"file://{file}"
    return addresses


@pytest.fixture
def show(chromium, reports):
    """Opens a report; at the end nothing was said to the console, and nothing was asked for outside of the file."""
    opened = []

    def open_report(name, **options):
        manager = watched(chromium, **options)
        seen = manager.__enter__()
        opened.append((manager, seen))
        return seen.open(reports[name])

    yield open_report
    for manager, seen in opened:
        manager.__exit__(None, None, None)
        assert (seen.messages, seen.outside()) == ([], [])


def test_charts_are_drawn_and_follow_their_controls(show):
    """N22: the choice of splits, smoothing and ticks change them; they zoom together, and show values at the cursor."""
    seen = show("few")
    names = [name.split("\n")[0] for name in seen.page.locator("#charts h3").all_inner_texts()]
    assert names[:2] == ["accuracy", "loss"]
    inks = [seen.ink(1)]
    for act in (
        lambda: seen.page.get_by_label("Which curves").select_option("train"),
        lambda: seen.page.get_by_label("Smoothing").fill("0.9"),
        lambda: seen.page.get_by_label("show adam in the charts").uncheck(),
    ):
        act()
        inks.append(seen.ink(1))
    assert len(set(inks)) == len(inks), inks
    seen.page.locator("#charts").scroll_into_view_if_needed()
    box = seen.page.locator("#charts .u-over").first.bounding_box()
    seen.page.mouse.move(box["x"] + 40, box["y"] + 50)
    seen.page.mouse.down()
    seen.page.mouse.move(box["x"] + 200, box["y"] + 60, steps=4)
    seen.page.mouse.up()
    assert seen.ink(1) != inks[-1]
    seen.page.mouse.move(box["x"] + 150, box["y"] + 60)
    tip = seen.page.locator("#charts .tip").first.inner_text()
    assert "sgd" in tip and "step" in tip
    seen.page.mouse.dblclick(box["x"] + 200, box["y"] + 60)
    assert seen.ink(1) == inks[-1]


def test_the_table_sorts_and_filters(show):
    """N22: rows sort by a column, numbers as numbers, and the arrow stands where the order comes from."""
    seen = show("few")
    assert seen.column(1) == ["adam", HOSTILE, "sgd", "broken"]
    assert seen.page.inner_text("#runs th[aria-sort]") == "Best accuracy ↓"
    for arrow, place in (("↑", -1), ("↓", 0)):
        seen.page.click("#runs th button:has-text('learning_rate')")
        assert seen.page.inner_text("#runs th[aria-sort]") == f"learning_rate {arrow}"
        assert seen.column(1)[place] == HOSTILE
    search = seen.page.get_by_label("Filter the runs")
    for words, names in (("optimizer.type=sgd", ["sgd"]), ("adam done", ["adam", HOSTILE]), ("failed", ["broken"])):
        search.fill(words)
        assert sorted(seen.column(1)) == sorted(names), words
    assert seen.page.inner_text("#num-runs") == "1 of 4 runs"


def test_text_of_a_run_is_shown_as_text(show):
    """N22, N34: a run named `<script>` is text everywhere, and its script does not run."""
    seen = show("few")
    for section in ("#runs", "#legend", "#config", "#time"):
        assert HOSTILE in seen.page.inner_text(section)
    assert seen.page.locator("main script, main b b").count() == 0
    assert "error: ValueError: the label 11 is no class" in seen.page.inner_text("#runs")


def test_500_runs_and_a_sweep(show):
    """N22: of many runs some are in colour, others once they are ticked; a sweep's figures say what they lack."""
    seen = show("many")
    assert (len(seen.column(1)), seen.page.locator("#legend li").count()) == (500, 8)
    seen.page.get_by_label("show run_123 in the charts").check()
    assert "run_123" in seen.page.inner_text("#legend")
    section = show("sweep").page.locator("#sweep")
    assert section.locator("h3").all_inner_texts() == ["accuracy by trial, higher is better", "Which fields matter"]
    assert [section.locator(f"svg circle{kind}").count() for kind in ("", ".best")] == [2, 1]
    assert "2 complete trials are drawn. Left out: 1 pruned, 1 failed." in section.inner_text()


def test_no_column_of_the_runs_is_cut_at_1200_pixels(show):
    """N22: long names and values break, and what the table leaves out is said; the number of runs does not matter."""
    for name in ("few", "long", "many", "sweep"):
        table = show(name, viewport={"width": 1200, "height": 900}).page.locator("#runs .scroll")
        assert table.evaluate("(node) => node.scrollWidth <= node.clientWidth"), name


def test_dark_and_phone(show):
    """N22: the page follows the system's colours; what a phone has no room for scrolls, and fades out where it does."""
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = show("few", color_scheme="dark")
    assert dark.page.evaluate(colour) == "rgb(20, 23, 26)"
    assert dark.page.pdf(format="A4").startswith(b"%PDF")
    assert dark.page.evaluate(colour) == "rgb(20, 23, 26)"
    phone = show("few", viewport={"width": 400, "height": 844}, is_mobile=True, has_touch=True)
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 400
    table = phone.page.locator("#runs .scroll")
    phone.page.wait_for_selector("#runs .scroll.more-right")
    table.evaluate("(node) => node.scrollTo(node.scrollWidth, 0)")
    phone.page.wait_for_selector("#runs .scroll:not(.more-right)")


def test_on_paper_words_are_whole_and_headers_are_repeated(show):
    """N22: on A4 long names break between their parts, and nothing is wider than the page."""
    buttons = "[...document.querySelectorAll('thead button')].every((one) => !one.getClientRects().length)"
    canvases = "[...document.querySelectorAll('.plot')].every((one) => one.firstChild.offsetWidth <= one.offsetWidth)"
    for name in ("few", "long", "sweep"):
        seen = show(name, viewport={"width": 687, "height": 900})
        seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        seen.page.emulate_media(media="print")
        assert seen.page.evaluate("document.documentElement.scrollWidth") == 687, name
        assert seen.page.evaluate(BROKEN, "main") == [], name
        assert seen.page.evaluate(buttons) and seen.page.evaluate(canvases), name


def test_the_command_writes_what_a_browser_opens_without_scripts_too(chromium, tmp_path):
    """N22: `official-trainer report RUN --output=FILE`; a mail program that runs no script shows the summary."""
    kinds.write_run(tmp_path / "runs" / "a")
    assert cli.main(["report", str(tmp_path / "runs"), f"--output={tmp_path}/r.html"]) == 0
    with watched(chromium) as seen:
        seen.open(f"file://{tmp_path}/r.html")
        assert seen.column(1) == ["a"]
        assert (seen.messages, seen.outside()) == ([], [])
    with watched(chromium, java_script_enabled=False) as seen:
        seen.page.goto(f"file://{tmp_path}/r.html")
        assert "Best accuracy · 0.8732" in seen.page.inner_text("body")
