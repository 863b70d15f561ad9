"""The page of a report in a real browser: Chromium without a window."""

import re
import shutil

import pytest

from official_trainer import cli
from official_trainer.reports import content, gathered, page
from tests.support.reports import kinds
from tests.support.reports.browser import BROKEN, watched
from tests.support.sweeps import written

HOSTILE = "<script>alert(1)<b>"


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Reports of a few runs, with one of a hostile name and one that failed; of many runs; and of a sweep."""
    folder = tmp_path_factory.mktemp("reports")
    for name, seed, options in (("adam", 3, {}), ("sgd", 1, {"optimizer": "sgd"}), (HOSTILE, 2, {"rate": 0.01})):
        kinds.write_run(folder / "few" / name, seed=seed, **options)
    kinds.KINDS["failed"](folder / "few" / "broken")
    for seed in range(1, 6):  # with long names, beside one with a short name
        name = "b" if seed == 1 else f"digits_with_a_cosine_decay_and_a_warmup_of_a_hundred_steps_seed_{seed}"
        kinds.write_run(folder / "long" / name, seed=seed, rate=seed / 1000)
    kinds.write_run(folder / "first")
    for seed in range(500):
        shutil.copytree(folder / "first", folder / "many" / f"seed_{seed:03}")
        value = {"metric": "accuracy", "value": 0.5 + seed / 1000, "step": 40}
        kinds.change(folder / "many" / f"seed_{seed:03}", best=value)
        params = folder / "many" / f"seed_{seed:03}" / "params.yaml"
        params.write_text(params.read_text().replace("seed: 1", f"seed: {seed}"))
    values = [0.5, 0.7, 0.9, 0.6, 0.8, 0.75]
    records = [written.ended(number, value) for number, value in enumerate(values)]
    written.write_sweep(folder / "sweep", [*records, written.ended(6, state="pruned", reason="worse than others")])
    for number in range(7):
        kinds.write_run(folder / "sweep" / "trials" / str(number) / "run", seed=number, experiment="digits_mlp")
    made = {}
    for name in ("few", "long", "many", "sweep"):
        found = gathered.gather([str(folder / name)], now_seconds=kinds.NOW)
        made[name] = folder / f"{name}.html"
        made[name].write_text(page.render(content.of(found, now_seconds=kinds.NOW)), encoding="utf-8")
    return {name: f"file://{path}" for name, path in made.items()}


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
        assert seen.messages == []
        assert seen.outside() == []


def test_charts_are_drawn_and_follow_their_controls(show):
    """N22: curves are drawn; smoothing, log axes, axes of time, the legend and the choice of splits change them."""
    seen = show("few")
    names = [name.split("\n")[0] for name in seen.page.locator("#charts h3").all_inner_texts()]
    assert names[:2] == ["accuracy", "loss"]
    inks = {"at first": seen.ink(1)}
    assert seen.ink(0) > 2_000
    for name, act in {
        "training": lambda: seen.page.click("#curves button[data-value=train]"),
        "time": lambda: seen.page.click("#curves button[data-value=time]"),
        "log y": lambda: seen.page.get_by_label("log y").check(),
        "smooth": lambda: seen.page.get_by_label("Smoothing").fill("0.9"),
        "without adam": lambda: seen.page.click("#legend button:has-text('adam')"),
    }.items():
        act()
        inks[name] = seen.ink(1)
    assert len(set(inks.values())) == len(inks), inks


def test_a_zoom_is_shared_and_keys_reach_everything(show):
    """N22: charts zoom together, by mouse and by keys; the cursor shows values."""
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
    seen.page.keyboard.press("+")
    assert seen.page.locator("#all-steps").is_enabled()


def test_the_table_sorts_and_filters(show):
    """N22: rows sort by a column, numbers as numbers; the filter takes words, and fields with values."""
    seen = show("few")
    assert seen.column(1) == ["adam", HOSTILE, "sgd", "broken"]
    seen.page.click("#runs th button:has-text('learning_rate')")
    assert seen.column(1)[-1] == HOSTILE
    seen.page.click("#runs th button:has-text('learning_rate')")
    assert seen.column(1)[0] == HOSTILE
    search = seen.page.get_by_label("Filter the runs")
    for words, names in (("optimizer.type=sgd", ["sgd"]), ("best>0.875", ["adam"]), ("failed", ["broken"])):
        search.fill(words)
        assert sorted(seen.column(1)) == sorted(names), words
    assert seen.page.inner_text("#num-runs") == "1 of 4 runs"
    search.fill("")
    seen.page.get_by_label("Status").select_option("done")
    assert len(seen.column(1)) == 3


def test_text_of_a_run_is_shown_as_text(show):
    """N22: a run named `<script>` is text everywhere, and its script does not run."""
    seen = show("few")
    assert HOSTILE in seen.page.inner_text("#top")
    assert HOSTILE in seen.page.inner_text("#legend")
    assert HOSTILE in seen.page.inner_text("#config")
    assert seen.page.locator("main script, main b b").count() == 0
    assert "ValueError: the label 11 is no class\nof the model" in seen.page.inner_text("#failures")


def test_500_runs(show):
    """N22: 500 runs are rows; some are in colour, the others grey, until they are ticked."""
    seen = show("many")
    assert len(seen.column(1)) == 500
    assert seen.page.locator("#legend button").count() == 6
    assert seen.ink(0) > 5_000
    seen.page.get_by_label("highlight seed_123 in the charts").check()
    assert "seed_123" in seen.page.inner_text("#legend")
    seen.page.get_by_label("Filter the runs").fill("runtime.seed=77")
    assert seen.column(1) == ["seed_077"]


def test_a_sweep_has_its_figures(show):
    """N22: importance, parallel coordinates that can be narrowed, slices, the best so far and pruning."""
    seen = show("sweep")
    section = seen.page.locator("#sweep")
    titles = section.locator("h3").all_inner_texts()
    assert titles[:3] == ["Trials, and the best so far", "Pruning", "Which fields matter"]
    assert {"Parallel coordinates", "Slices"} <= set(titles)
    assert section.locator(".slices svg circle").count() >= 6
    lines = section.locator(".wide svg g:first-child > path")
    assert lines.count() == 6
    axis = section.locator(".wide svg g rect[fill=transparent]").last
    axis.scroll_into_view_if_needed()
    box = axis.bounding_box()
    seen.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 2)
    seen.page.mouse.down()
    seen.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.3, steps=3)
    seen.page.mouse.up()
    assert 0 < len([line for line in lines.all() if line.is_visible()]) < 6
    assert re.search(r"[1-5] of 6 trials go through", section.inner_text())


def test_dark_phone_and_print(show, tmp_path):
    """N22: the page follows the system's colours and its own switch, fits a phone, and prints on white."""
    dark = show("few", color_scheme="dark")
    colour = "getComputedStyle(document.body).backgroundColor"
    assert dark.page.evaluate(colour) == "rgb(20, 23, 26)"
    dark.page.get_by_label("Colours of the page").select_option("light")
    assert dark.page.evaluate(colour) == "rgb(251, 251, 249)"
    dark.page.get_by_label("Colours of the page").select_option("dark")
    assert dark.page.pdf(format="A4").startswith(b"%PDF")
    assert dark.page.evaluate(colour) == "rgb(20, 23, 26)"
    phone = show("few", viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("width", [687, 1017])
@pytest.mark.parametrize("name", ["few", "long", "sweep"])
def test_on_paper_words_are_whole_and_headers_are_repeated(name, width, show):
    """N22: on A4, upright and across: long names break between their parts, and nothing is wider than the page."""
    seen = show(name, viewport={"width": width, "height": 900})
    seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    seen.page.emulate_media(media="print")
    assert seen.page.evaluate("document.documentElement.scrollWidth") == width
    assert seen.page.evaluate(BROKEN, "main") == []
    assert (
        seen.page.evaluate(
            "[...document.querySelectorAll('thead *')].filter((each) => each.checkVisibility())"
            ".some((each) => each.tagName === 'BUTTON' && each.getClientRects().length)"
        )
        is False
    )
    rows = seen.page.evaluate("[...document.querySelectorAll('#charts .card')].map((each) => each.offsetTop)")
    assert rows.count(rows[0]) == (2 if width < 1000 else 3)
    plots = seen.page.evaluate(
        "[...document.querySelectorAll('.plot')].every((each) =>"
        "each.querySelector('canvas').offsetWidth === each.offsetWidth)"
    )
    assert plots


def test_without_scripts_the_words_are_there(chromium, reports):
    """N22: a mail program that runs no script shows the summary."""
    with watched(chromium, java_script_enabled=False) as seen:
        seen.page.goto(reports["few"])
        assert "4 runs of digits: 3 done, 1 failed." in seen.page.inner_text("body")


def test_the_command_writes_what_a_browser_opens(chromium, tmp_path, capsys):
    """N22: `official-trainer report RUN --output=FILE`, opened from the disk."""
    kinds.write_run(tmp_path / "runs" / "a")
    assert cli.main(["report", str(tmp_path / "runs"), f"--output={tmp_path}/r.html"]) == 0
    with watched(chromium) as seen:
        seen.open(f"file://{tmp_path}/r.html")
        assert "a" in seen.page.inner_text("#runs")
        assert (seen.messages, seen.outside()) == ([], [])
