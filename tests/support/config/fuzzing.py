"""Configurations from real files and grammars, mutated, and what must hold for each of them."""

import contextlib
import re
import signal
import warnings
from pathlib import Path

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from official_trainer.config import ConfigError, digest, dump, explain, fields, flow, format_override, resolve
from official_trainer.config.reading import plain
from official_trainer.errors import UserError
from official_trainer.tasks import registry
from tests import ROOT
from tests.support.config.sample import base
from tests.support.config.texts import FREE

CASE_CPU_SECONDS = 10
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff]")

_EVERYTHING = """\
# every type
x-anchors: &a {x: 1, names: [b, c]}
task:
  model:
    integer: 5
    number: 1e-4
    text: "a\\u00e9\\n"
    word: sgd
    level: 2
    scale: dynamic
    filters: !append [8, 16]
    window: [1, .5]
    nested: [[1], []]
    weights: {a: 1, 'b c': 2}
    blocks: [*a, {<<: *a, x: 3}]
    named: {n: *a}
    strict: {size: 3}
    free: {a: [1, {b: null}], c: 2020-01-01, d: 0x1F}
    anything: [on, 'off', |
      text
      ]
    shape: {type: round, round: {x: 1}}
  train_data.global_batch_size: 8
trainer:
  train_steps: 100
  actions:
    - {type: checkpoint, template: '{epoch:02d}-{step:08d}-{loss:.2f}', when: {every_steps: 10}}
    - type: early_stopping
      monitor: accuracy
  optimizer_config:
    optimizer: {type: adam, adam: {beta_1: 0.8}}
    learning_rate: cosine
    ema: {}
"""
_JSON = '{"runtime": {"seed": 3},\n\t"task": {"model": {"text": "\\ud83d\\ude00", "free": {"a": [1.5, null, true]}}}}\n'


def _experiments():
    workspace = registry.find_workspace(ROOT)
    return {
        "sample": base(),
        **{name: registry.get_config(name, workspace) for name in registry.named(workspace)},
    }


BASES = _experiments()
PATHS = {name: [path for path, _ in fields.walk(config) if path] for name, config in BASES.items()}
TEXTS = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "configs").rglob("*.yaml"))}
FILES = {
    "sample": [_EVERYTHING, _JSON, *TEXTS.values()],
    **{name: [text for path, text in TEXTS.items() if path.stem == name] for name in BASES if name != "sample"},
}
"""Texts to begin with, for each experiment."""
_WORDS = r"""
&a *a *b << !append !x !!python/object:x { } [ ] {} [] : - ? ' " '' | % @ ` # --- ... , ; = += := ~ \
\x1b \ud800 null true off 1 -1 0 1e400 1e-400 0x 0x1f 010 1_0 .nan -.inf 10k 50% 1,000 0.1 None 2020-01-01 1:30 . [0]
[-1] [99999999999] 'a.b' "\U00110000" "\u00E9" {step:9999999d} {loss:.3f} {step!r} }} checkpoint early_stopping adam
../x / best ${ $${ ${trainer.train_steps} ${trainer.train_steps//3} '${task.model.integer}' "${task.model.filters}"
${task.model.shape.round.x} ${nowhere}
"""
FRAGMENTS = [
    *_WORDS.split(),
    *(f"{word} " for word in ("&a", "<<:", "!append", ":", "-", "?", "x-a:", "base:", "type:", "a.b:")),
    *("<<: *a\n", "base: 1.yaml\n", "---\n", "...\n", ">-\n", " #", "\t", "\n", "\r\n", "\n  ", "\n    ", "  "),
    *("\x1b[2J", *"\x00\x07\x7f\x85\x9b\u2028\u202e\ufeff\U0001f600\udcff\ud800"),
    *("9" * 30, "9" * 500, "a" * 300, "[" * 70, "{a: " * 70, "${" + "(" * 70),
]
LETTERS = st.text(alphabet="ab01.,;:=~+-[]${}'\"\\ \n\t#&*!|>%@?\x00\x1b\x85\u2028\ud800é😀", max_size=8)
PIECES = st.sampled_from(FRAGMENTS) | st.sampled_from(PATHS["sample"]) | LETTERS | FREE.map(flow)


@st.composite
def edited(draw, texts):
    """A text with some of its pieces removed, repeated, moved or replaced."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2, 3, 6]))):
        tokens = re.findall(r"\s+|\w+|.", text)
        start = draw(st.integers(0, len(tokens)))
        stop = min(len(tokens), start + draw(st.integers(0, 4)))
        middle = draw(st.sampled_from(["insert", "replace", "repeat", "delete", "line"]))
        piece = draw(PIECES) if middle in ("insert", "replace") else ""
        kept = {"insert": [piece, *tokens[start:stop]], "repeat": tokens[start:stop] * 2, "line": tokens[start:stop]}
        tokens[start:stop] = kept.get(middle, [piece])
        text = "".join(tokens)
        if middle == "line":
            lines = text.splitlines(keepends=True)
            lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(lines or [""])))
            text = "".join(lines)
    return text


@st.composite
def items(draw, name):
    """An override: a path, an operation and a value, each of which may be wrong."""
    path = draw(st.sampled_from(PATHS[name]))
    if draw(st.integers(0, 3)) == 0:
        path = draw(edited([path]))
    if draw(st.integers(0, 3)) == 0:
        return format_override(path, draw(FREE))
    return f"{path}{draw(st.sampled_from(['=', '=', '+=', ' = ']))}{''.join(draw(st.lists(PIECES, max_size=4)))}"


@st.composite
def cases(draw):
    """An experiment, and layers over it: texts of files, overrides and flags."""
    name = draw(st.sampled_from(list(BASES)))
    separators = st.sampled_from([",", "; ", "\n"])
    listed = st.tuples(separators, st.lists(items(name), max_size=3)).map(lambda found: found[0].join(found[1]))
    return (
        name,
        draw(st.lists(edited(FILES[name]), max_size=2)),
        draw(st.lists(listed | edited(FILES[name]) | PIECES, max_size=1)),
        draw(st.lists(items(name) | edited(["trainer.train_steps=5"]), max_size=1)),
        draw(st.sampled_from([".yaml", ".yaml", ".yaml", ".json"])),
        draw(PIECES),
    )


class Campaign:
    """Cases in a folder; `counts` says how many there were, and of which kind."""

    def __init__(self, folder):
        self._folder = Path(folder)
        self.counts = {"cases": 0, "accepted": 0}

    def run(self, count):
        """Tries so many cases, the same ones each time where they are few; hypothesis shows the smallest that fails."""
        checks = settings(
            max_examples=count,
            deadline=None,
            database=None,
            derandomize=count <= 5_000,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        )
        checks(given(cases())(self.check))()

    def check(self, case):
        """Nothing but a ConfigError escapes; what is accepted can be written, explained and read back."""
        self.counts["cases"] += 1
        name, texts, overrides, sets, suffix, path = case
        files = [self._write(f"{number}{suffix}", text) for number, text in enumerate(texts)]
        with _bounded():
            try:
                resolved = resolve(
                    BASES[name], experiment=name, config_files=files, params_overrides=overrides, sets=sets
                )
            except ConfigError as error:
                _assert_shown(str(error))
                return
            self.counts["accepted"] += 1
            self._assert_kept(name, resolved, drops=bool(resolved.warnings))
            _assert_said(resolved, path)

    def _assert_kept(self, name, resolved, *, drops):
        """A run's `params.yaml` gives the configuration back, to this package and to any reader of YAML.

        Branches that are not chosen, and so have no effect, are not kept; `drops` says that they may have changed.
        """
        text = dump(resolved, origins=True)
        _assert_shown(text)
        again = resolve(BASES[name], config_files=[self._write("params.yaml", text)])
        assert dump(again) == dump(resolved)
        assert digest(again.config) == digest(resolved.config)
        bare = dump(resolved)
        if ".nan" not in bare:
            assert again.config.as_dict() == resolved.config.as_dict()
            assert again.config == resolved.config or drops
            assert plain(text, "params.yaml") == resolved.config.as_dict()
            if "$${" not in text:  # an escape of ours
                assert yaml.load(text, yaml.CSafeLoader) == resolved.config.as_dict()

    def _write(self, name, text):
        path = self._folder / name
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return str(path)


def _assert_said(resolved, path):
    """What is printed about a configuration is printed, or refused."""
    for warning in resolved.warnings:
        _assert_shown(str(warning))
    for place in (path, *resolved.trail.touched()[:3]):
        with contextlib.suppress(UserError):
            _assert_shown(explain(resolved, place))


def _assert_shown(text):
    """A terminal shows all of it and obeys none of it."""
    found = _HIDDEN.search(text)
    assert found is None, f"{found} in {text!r}"


@contextlib.contextmanager
def _bounded():
    """Fails what takes longer than a case may, in time of the processor."""

    def stop(*_):
        raise AssertionError(f"a case took {CASE_CPU_SECONDS} s")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CASE_CPU_SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
