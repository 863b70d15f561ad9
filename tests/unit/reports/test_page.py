"""The file of a report: nothing in it comes from outside, and no text of a run is markup."""

import base64
import hashlib
import html.parser
import json
import re

from official_trainer.reports import content, gathered, page
from tests.support.reports import kinds


class Reader(html.parser.HTMLParser):
    """The scripts, styles and the policy of a page, as a browser sees them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.policy, self._open = [], {"script": [], "style": [], "title": []}, "", None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if dict(attributes).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attributes)["content"]
        self._open = tag if tag in self.texts else None

    def handle_data(self, data):
        if self._open:
            self.texts[self._open].append(data)

    def handle_endtag(self, tag):
        self._open = None


def rendered(*folders):
    found = gathered.gather([str(folder) for folder in folders], now_seconds=kinds.NOW)
    return page.render(content.of(found, now_seconds=kinds.NOW))


def checksum(text):
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_policy_allows_this_pages_own_script_and_style_alone(tmp_path):
    """N22: a strict Content-Security-Policy, without eval and without anything from outside."""
    kinds.write_run(tmp_path / "run")
    found = Reader(rendered(tmp_path / "run"))
    data, script = found.texts["script"]
    (style,) = found.texts["style"]
    rules = dict(rule.split(" ", 1) for rule in found.policy.split("; "))
    assert rules == {
        "default-src": "'none'",
        "script-src": checksum(script),
        "style-src": checksum(style),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert json.loads(data)["title"] == "run"


def test_nothing_is_loaded(tmp_path):
    """N22: one file that works offline: no address in a tag, and none in the styles."""
    kinds.write_run(tmp_path / "run")
    found = Reader(rendered(tmp_path / "run"))
    addresses = [value for _, attributes in found.tags for name, value in attributes.items() if name in ("src", "href")]
    assert addresses == ["data:,"]
    assert not re.search(r"url\(|@import", "".join(found.texts["style"]))


def test_text_of_a_run_is_text(tmp_path):
    """N22: a run named `<script>` is text, in the title, in the words and in the data."""
    name = "<script>alert(1)<!--"
    kinds.write_run(tmp_path / name, experiment="</script><img src=x onerror=alert(1)>", error="</title>", code=1)
    text = rendered(tmp_path / name)
    found = Reader(text)
    assert [tag for tag, _ in found.tags if tag in ("script", "img")] == ["script", "script"]
    assert "<script>alert" not in text and "<!--" not in text.removeprefix("<!DOCTYPE html>")
    (run,) = json.loads(found.texts["script"][0])["runs"]
    assert (run["name"], run["experiment"]) == (name, "</script><img src=x onerror=alert(1)>")


def test_numbers_that_are_not_finite_are_strict_json(tmp_path):
    """N22: NaN and infinity are gaps in curves and words in tables, never invalid JSON."""
    kinds.KINDS["not_finite"](tmp_path / "run")
    kinds.change(tmp_path / "run", best={"metric": "accuracy", "value": "NaN", "step": 20})
    data = Reader(rendered(tmp_path / "run")).texts["script"][0]

    def refuse(word):
        raise AssertionError(word)

    held = json.loads(data, parse_constant=refuse)
    assert held["runs"][0]["best"] == "NaN"
    assert None in next(chart for chart in held["charts"] if chart["name"] == "loss")["curves"][0]["y"]
