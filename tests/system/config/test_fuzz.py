"""N34: many mutated configurations; what this has found has a test of its own in tests/unit/config/."""

import contextlib
import re
import signal
import warnings

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from official_trainer.config import ConfigError, digest, dump, explain, fields, flow, format_override, resolve
from official_trainer.config.reading import plain
from official_trainer.errors import UserError
from tests.support.cases import cases
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
_WORDS = r"""
&a *a *b << !append !x !!python/object:x { } [ ] {} [] : - ? ' " '' | % @ ` # --- ... , ; = += := ~ \
\x1b \ud800 null true off 1 -1 0 1e400 1e-400 0x 0x1f 010 1_0 .nan -.inf 10k 50% 1,000 0.1 None 2020-01-01 1:30 . [0]
[-1] [99999999999] 'a.b' "\U00110000" "\u00E9" {step:9999999d} {loss:.3f} {step!r} }} checkpoint early_stopping adam
../x / best ${ $${ ${trainer.train_steps} ${trainer.train_steps//3} '${task.model.integer}' "${task.model.filters}"
${task.model.shape.round.x} ${nowhere}
"""
_FRAGMENTS = [
    *_WORDS.split(),
    *(f"{word} " for word in ("&a", "<<:", "!append", ":", "-", "?", "x-a:", "base:", "type:", "a.b:")),
    *("<<: *a\n", "base: 1.yaml\n", "---\n", "...\n", ">-\n", " #", "\t", "\n", "\r\n", "\n  ", "\n    ", "  "),
    *("\x1b[2J", *"\x00\x07\x7f\x85\x9b\u2028\u202e\ufeff\U0001f600\udcff\ud800"),
    *("9" * 30, "9" * 500, "a" * 300, "[" * 70, "{a: " * 70, "${" + "(" * 70),
]
_PATHS = [path for path, _ in fields.walk(base()) if path]
_LETTERS = st.text(alphabet="ab01.,;:=~+-[]${}'\"\\ \n\t#&*!|>%@?\x00\x1b\x85\u2028\ud800é😀", max_size=8)
_PIECES = st.sampled_from(_FRAGMENTS) | st.sampled_from(_PATHS) | _LETTERS | FREE.map(flow)


@st.composite
def _edited(draw, texts):
    """A text with some of its pieces removed, repeated or replaced."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2, 4]))):
        tokens = re.findall(r"\s+|\w+|.", text)
        start = draw(st.integers(0, len(tokens)))
        stop = min(len(tokens), start + draw(st.integers(0, 4)))
        pieces = st.sampled_from([[], tokens[start:stop] * 2]) | st.lists(_PIECES, min_size=1, max_size=1)
        tokens[start:stop] = draw(pieces)
        text = "".join(tokens)
    return text


_OVERRIDES = st.builds(format_override, st.sampled_from(_PATHS), FREE) | st.builds(
    "{}{}{}".format,
    _edited(_PATHS),
    st.sampled_from(["=", "=", "+=", " = "]),
    st.lists(_PIECES, max_size=4).map("".join),
)
_FILES = _edited([_EVERYTHING, _JSON])
_CASES = st.fixed_dictionaries(
    {
        "texts": st.lists(_FILES, max_size=2),
        "params_overrides": st.lists(_FILES | _OVERRIDES | _PIECES, max_size=1),
        "sets": st.lists(_OVERRIDES, max_size=1),
        "path": _PIECES,
    }
)


def _is_accepted(folder, case):
    """Nothing but a ConfigError escapes; what is accepted can be written, explained and read back."""
    texts, path = case.pop("texts"), case.pop("path")
    suffixes = [".json" if text.startswith("{") else ".yaml" for text in texts]
    files = [_write(folder, f"{n}{suffixes[n]}", text) for n, text in enumerate(texts)]
    with _bounded():
        try:
            resolved = resolve(base(), experiment="sample", config_files=files, **case)
        except ConfigError as error:
            _assert_shown(str(error))
            return False
        _assert_kept(folder, resolved)
        for said in map(str, resolved.warnings):
            _assert_shown(said)
        for place in (path, *resolved.trail.touched()[:3]):
            with contextlib.suppress(UserError):
                _assert_shown(explain(resolved, place))
    return True


def _assert_kept(folder, resolved):
    """A run's `params.yaml` gives the configuration back, to this package and to any reader of YAML.

    Branches that are not chosen, and so have no effect, are not kept; a warning says that they may have changed.
    """
    text = dump(resolved, origins=True)
    _assert_shown(text)
    again = resolve(base(), config_files=[_write(folder, "params.yaml", text)])
    assert dump(again) == dump(resolved)
    assert digest(again.config) == digest(resolved.config)
    if ".nan" not in dump(resolved):
        assert again.config.as_dict() == resolved.config.as_dict()
        assert again.config == resolved.config or resolved.warnings
        assert plain(text, "params.yaml") == resolved.config.as_dict()
        if "$${" not in text:  # an escape of ours
            assert yaml.load(text, yaml.CSafeLoader) == resolved.config.as_dict()


def _write(folder, name, text):
    path = folder / name
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return str(path)


def _assert_shown(text):
    """A terminal shows all of it and obeys none of it."""
    hidden = _HIDDEN.search(text)
    assert hidden is None, f"{hidden} in {text!r}"


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


@pytest.mark.parametrize("count", cases([200, 5_000, 150_000], 200))
def test_mutated_configurations(tmp_path, count):
    """N7, N34: nothing but a ConfigError escapes, nothing hangs, and what is accepted can be read back."""
    accepted = 0

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=count <= 5_000,  # else the cases are others each time
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(_CASES)
    def check(case):
        nonlocal accepted
        accepted += _is_accepted(tmp_path, case)

    check()
    assert accepted > count / 20
