"""The documentation site in a browser, on a phone and on a desk: nothing is cut off, and no word is broken."""

import subprocess
import sys

import pytest

from tests import ROOT
from tests.support.reports.browser import BROKEN, watched

PAGES = {  # those with the longest names and the widest tables
    "project/parity.html": 30_000,
    "project/features.html": 25_000,
    "reference/config.html": 12_000,
    "reference/exit_codes.html": 6_000,
    "design/architecture.html": 20_000,
    "guides/model_garden.html": 30_000,
}
"""Page → how high it is at most, in pixels; the parity page of 64,000 was a column of eight letters."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site without the pages that are made from Python, which take most of the time."""
    pytest.importorskip("furo", reason="there is no Furo: `pip install -e .[docs]`")
    folder = tmp_path_factory.mktemp("site")
    left_out = "exclude_patterns=_build,reference/api,guides/keras_notebook.ipynb"
    command = [sys.executable, "-m", "sphinx", "-Q", "-D", left_out, "docs", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    return folder


@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_the_window_and_words_are_whole(site, chromium, width):
    """A table may scroll inside of its box, the page does not; names in code break between their parts."""
    with watched(chromium, viewport={"width": width, "height": 800}) as seen:
        for page, height in PAGES.items():
            seen.page.goto(f"file://{site / page}")
            wide, high = seen.page.evaluate(
                "() => [document.scrollingElement.scrollWidth, document.scrollingElement.scrollHeight]"
            )
            assert (page, wide) == (page, width)
            assert seen.page.evaluate(BROKEN, "article") == [], page
            assert width > 390 or high < height, page


def test_names_break_between_their_parts_and_lose_nothing():
    """A short one stays whole, and so does the ending of a file."""
    pytest.importorskip("sphinx", reason="there is no Sphinx: `pip install -e .[docs]`")
    from docs.extensions.line_breaks import parts

    assert parts("--flag=1") == ["--flag=1"]
    assert parts("trainer.optimizer_config.type") == ["trainer.", "optimizer_", "config.type"]
    assert parts("program/test_settings.py::test_a") == ["program/", "test_", "settings.py::", "test_", "a"]
    for text in (
        "__init__of_a_very_long_name",
        " a  b ",
        "_" * 30 + " a",
        "--model_base_path=RUN/export/best and x",
        "",
    ):
        assert "".join(parts(text)) == text
