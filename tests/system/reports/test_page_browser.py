"""The page of a report in a real browser: Chromium without a window."""

import pytest

from benchmarks import pages
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
    pages.write_runs(folder / "many", 500, num_summaries=20)
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
    """N22: curves are drawn; the choice of splits, smoothing, the log axis and the ticks of runs change them."""
    seen = show("few")
    names = [name.split("\n")[0] for name in seen.page.locator("#charts h3").all_inner_texts()]
    assert names[:2] == ["accuracy", "loss"]
    inks = {"at first": seen.ink(1)}
    assert seen.ink(0) > 2_000
    for name, act in {
        "training": lambda: seen.page.get_by_label("Which curves").select_option("train"),
        "log y": lambda: seen.page.get_by_label("log y").check(),
        "smooth": lambda: seen.page.get_by_label("Smoothing").fill("0.9"),
        "without adam": lambda: seen.page.get_by_label("show adam in the charts").uncheck(),
    }.items():
        act()
        inks[name] = seen.ink(1)
    assert len(set(inks.values())) == len(inks), inks


def test_a_zoom_is_shared_and_keys_move_the_cursor(show):
    """N22: charts zoom together; the cursor shows values, also by keys."""
    seen = show("few")
    seen.page.locator("#charts").scroll_into_view_if_needed()
    box = seen.page.locator("#charts .u-over").first.bounding_box()
    before = seen.ink(1)
    seen.page.mouse.move(box["x"] + 40, box["y"] + 50)
    seen.page.mouse.down()
    seen.page.mouse.move(box["x"] + 200, box["y"] + 60, steps=4)
    seen.page.mouse.up()
    assert seen.ink(1) != before
    assert seen.page.locator("#all-steps").is_enabled()
    seen.page.locator("#charts .plot").first.focus()
    seen.page.keyboard.press("Escape")
    assert seen.ink(1) == before
    seen.page.keyboard.press("ArrowRight")
    tip = seen.page.locator("#charts .tip").first.inner_text()
    assert "adam" in tip and "step" in tip


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
    assert "ValueError: the label 11 is no class\nof the model" in seen.page.inner_text("#failures")


def test_500_runs(show):
    """N22: 500 runs are rows; some are in colour, the others grey, until they are ticked."""
    seen = show("many")
    assert len(seen.column(1)) == 500
    assert seen.page.locator("#legend li").count() == 6
    seen.page.locator("#charts").scroll_into_view_if_needed()
    assert seen.ink(0) > 5_000
    seen.page.get_by_label("show run_123 in the charts").check()
    assert "run_123" in seen.page.inner_text("#legend")


def test_a_sweep_has_its_figures(show):
    """N22: the results with the best so far, which fields matter, and which trials are left out."""
    section = show("sweep").page.locator("#sweep")
    titles = section.locator("h3").all_inner_texts()
    assert titles == ["accuracy by trial, higher is better", "Which fields matter"]
    assert section.locator("svg circle").count() == 2
    assert section.locator("svg circle.best").count() == 1
    assert "2 complete trials are drawn. Left out: 1 pruned, 1 failed." in section.inner_text()


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


@pytest.mark.parametrize("name", ["few", "long", "sweep"])
def test_on_paper_words_are_whole_and_headers_are_repeated(name, show):
    """N22: on A4 long names break between their parts, and nothing is wider than the page."""
    seen = show(name, viewport={"width": 687, "height": 900})
    seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    seen.page.emulate_media(media="print")
    assert seen.page.evaluate("document.documentElement.scrollWidth") == 687
    assert seen.page.evaluate(BROKEN, "main") == []
    assert seen.page.evaluate("[...document.querySelectorAll('thead button')].every((b) => !b.getClientRects().length)")
    canvases = (
        "[...document.querySelectorAll('.plot')].every((p) => p.querySelector('canvas').offsetWidth <= p.offsetWidth)"
    )
    assert seen.page.evaluate(canvases)


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
