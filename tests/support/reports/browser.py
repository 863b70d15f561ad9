"""One headless Chromium for all tests of a page, and what a page did in it."""

import contextlib
import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

BROKEN = """(inside) => {
    const broken = [], walker = document.createTreeWalker(document.querySelector(inside), NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const text = walker.currentNode;
        if (text.parentElement.closest("pre, .headerlink, svg, noscript")) continue;
        for (const word of text.data.matchAll(/[A-Za-z0-9]+/g)) {
            const range = document.createRange();
            range.setStart(text, word.index);
            range.setEnd(text, word.index + word[0].length);
            const seen = [...range.getClientRects()].filter((each) => each.width);
            if (new Set(seen.map((each) => Math.round(each.top))).size > 1) broken.push(word[0]);
        }
    }
    return broken;
}"""
"""The words inside of an element that begin on one line and end on another."""


@pytest.fixture(scope="session")
def chromium():
    """A browser; tests that use it are left out, and say so, where there is none."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: `apt-get install chromium` brings it")
    playwright = pytest.importorskip("playwright.sync_api", reason="there is no Playwright: `pip install -e .[system]`")
    with playwright.sync_playwright() as api:
        browser = api.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched:
    """A page, with all that it asked for and said."""

    def __init__(self, page):
        self.page, self.requests, self.messages = page, [], []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.messages.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.messages.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.messages.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def open(self, address):
        """Opens an address, and waits until the page has drawn itself."""
        self.page.goto(address)
        self.page.wait_for_selector("html[data-ready]")
        return self

    def column(self, number):
        """The texts of a column of the table of runs, by row."""
        return [text.strip() for text in self.page.locator(f"#runs tbody td:nth-child({number})").all_inner_texts()]

    def ink(self, chart):
        """How many pixels of a chart are drawn: those of its canvas that are not transparent."""
        return self.page.evaluate(
            """(number) => {
                const canvas = document.querySelectorAll("#charts .card")[number].querySelector("canvas");
                const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                return data.filter((value, i) => i % 4 === 3 && value > 0).length;
            }""",
            chart,
        )

    def outside(self):
        """What was asked for besides the page itself and what is inside of it."""
        return [url for url in self.requests if not url.startswith(("data:", "file:"))]


@contextlib.contextmanager
def watched(browser, **options):
    """A fresh page, as large as a laptop's unless `options` of Playwright say otherwise."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    try:
        yield Watched(context.new_page())
    finally:
        context.close()
