"""A page: what its sections hold; nothing in it comes from outside, and no text of a run is markup."""

import base64
import hashlib
import html.parser
import json
import re

import pytest

from official_trainer.reports import content, page
from tests.support.reports import kinds


def content_of(*paths):
    return content.of([str(path) for path in paths], now_seconds=kinds.NOW)


# What it holds.


def test_the_best_run_is_the_first_and_names_are_short(tmp_path):
    """N22: runs are ranked by the metric of their best checkpoints, in its direction; facts say which is the best."""
    for seed in (1, 3, 2):
        kinds.write_run(tmp_path / "group" / f"seed_{seed}", seed=seed)
    shown = content_of(tmp_path)
    assert [run["name"] for run in shown["runs"]] == ["seed_3", "seed_2", "seed_1"]
    assert shown["metric"] == {"name": "accuracy", "direction": "max"}
    assert (shown["runs"][0]["best"], shown["runs"][0]["best_step"]) == (kinds.accuracy(3, 40), 40)
    assert shown["runs"][0]["differs"] == {"runtime.seed": "3"}
    assert shown["facts"][:2] == [
        ("Runs", "3", "3 done"),
        ("Best accuracy", f"{kinds.accuracy(3, 40):.4g}", "higher is better, step 40, seed_3"),
    ]
    assert content_of(tmp_path / "group" / "seed_1", tmp_path)["title"] == "3 runs of digits", "each run counts once"
    for params in tmp_path.glob("*/*/params.yaml"):
        params.write_text(params.read_text().replace("comp: higher", "comp: lower"))
    assert [run["name"] for run in content_of(tmp_path)["runs"]] == ["seed_1", "seed_2", "seed_3"]


def test_one_run_has_its_whole_config_and_its_checkpoints(tmp_path):
    """N22: each value with what set it; of a run without an evaluation all else is there."""
    kinds.write_run(tmp_path / "run", step=5, code=143)
    kinds.damaged_checkpoint(tmp_path / "other")
    for path in (tmp_path / "other").glob("ckpt-*"):
        path.rename(tmp_path / "run" / path.name)
    shown = content_of(tmp_path / "run")
    assert shown["facts"][0] == ("Status", "stopped", "step 5 of 40")
    assert ["runtime.seed", "1", "--set"] in shown["config"]
    assert shown["checkpoints"][0]["role"].startswith("latest, damaged: ")
    assert (shown["runs"][0]["best"], shown["checkpoints"][0]["path"]) == (None, "run/ckpt-40")


def test_goodput_counts_steps_that_were_repeated_once(tmp_path):
    """N22: of 80 steps of which 40 were lost by kills, half of the time of steps counts."""
    kinds.write_run(tmp_path / "a")
    kinds.write_run(tmp_path / "b")
    kinds.change(tmp_path / "a", time={"total": {**kinds.TIME, "steps": 80, "restarts": 3}})
    times = {run["name"]: run["time"] for run in content_of(tmp_path)["runs"]}
    assert {name: (time["goodput"], time["restarts"]) for name, time in times.items()} == {"a": (0.4, 3), "b": (0.8, 0)}


def test_a_sweep_is_shown_with_what_is_left_out(tmp_path, monkeypatch):
    """N22: results of complete trials, shares of fields; a pruned trial is no best one, and a note says it."""
    kinds.sweep(tmp_path)
    kinds.stand_in_for_sweeps(monkeypatch, tmp_path)
    kinds.change(tmp_path / "trials/2/run", best={"metric": "accuracy", "value": 0.99, "step": 10})
    shown = content_of(tmp_path)
    assert shown["title"] == "Sweep of digits"
    assert shown["facts"][0] == ("Trials", "4", "2 complete, 1 pruned, 1 failed")
    assert shown["facts"][1][2].endswith("trial 0") or shown["facts"][1][2].endswith("trial 1")
    assert (shown["runs"][0]["name"], shown["runs"][0]["status"]) == ("trial 2", "done")
    assert shown["runs"][0]["notes"] == ["ended early: pruned by its sweep"]
    assert shown["sweep"]["trials"] == [[0, 0.5], [1, 0.75]]
    assert shown["sweep"]["left_out"] == ["1 pruned", "1 failed"]
    assert shown["sweep"]["importance"] == [["learning_rate", 0.75], ["seed", 0.25]]


def test_of_many_runs_the_best_are_in_colour(tmp_path):
    """N22: eight of them, and the others can be ticked."""
    for seed in range(12):
        kinds.write_run(tmp_path / f"r{seed}", seed=seed)
    shown = content_of(tmp_path)
    names = [shown["runs"][index]["name"] for index in shown["highlighted"]]
    assert names == [f"r{seed}" for seed in range(11, 3, -1)]
    assert shown["runs_about"] == "Tick a run to see it in the charts."


# The file.


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


def checksum(text):
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_policy_allows_this_pages_own_script_and_style_alone(tmp_path):
    """N22: a strict Content-Security-Policy, without eval; no address in a tag, and none in the styles."""
    kinds.write_run(tmp_path / "run")
    reader = Reader(page.render(content_of(tmp_path / "run")))
    data, script = reader.texts["script"]
    (style,) = reader.texts["style"]
    assert dict(rule.split(" ", 1) for rule in reader.policy.split("; ")) == {
        "default-src": "'none'",
        "script-src": checksum(script),
        "style-src": checksum(style),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert json.loads(data)["title"] == "run"
    addresses = [
        value for _, attributes in reader.tags for name, value in attributes.items() if name in ("src", "href")
    ]
    assert addresses == ["data:,"]
    assert not re.search(r"url\(|@import", style)


def test_text_of_a_run_is_text_and_numbers_are_strict_json(tmp_path):
    """N22, N34: a run named `<script>` is text everywhere; NaN is a gap in curves and a word in tables."""
    name = "<script>alert(1)<!--"
    kinds.write_run(tmp_path / name, experiment="</script><img src=x onerror=alert(1)>", error="</title>", code=1)
    row = '{"step": 45, "split": "train", "time": 1, "training_loss": "NaN", "learning_rate": "Infinity"}'
    kinds.append(tmp_path / name, row, "")
    kinds.change(tmp_path / name, best={"metric": "accuracy", "value": "NaN", "step": 20})
    text = page.render(content_of(tmp_path / name))
    reader = Reader(text)
    assert [tag for tag, _ in reader.tags if tag in ("script", "img")] == ["script", "script"]
    assert "<script>alert" not in text and "<!--" not in text.removeprefix("<!DOCTYPE html>")
    data = json.loads(reader.texts["script"][0], parse_constant=lambda word: pytest.fail(word))
    (run,) = data["runs"]
    assert (run["name"], run["experiment"]) == (name, "</script><img src=x onerror=alert(1)>")
    assert run["best"] == "NaN"
    assert None in next(chart for chart in data["charts"] if chart["name"] == "loss")["curves"][0]["y"]
