"""N34: mistaken and hostile configurations are refused in seconds, with the place and what is allowed."""

import os

import pytest

from official_trainer.config import ConfigError, dump, limits, resolve
from tests.support.bounded import bounded
from tests.support.config.sample import base

FREE = "task: {{model: {{free: {}}}}}"
ANY = "task: {{model: {{anything: {}}}}}"
DEEP = "here lists and sections are nested more than 64 levels deep; write fewer levels"
LARGE = (
    "here the configuration exceeds 50000 values, those that aliases repeat included; put large tables into files of"
)
TEXT = "task.model.text="


def _said(layers):
    """The first line of what is said; nothing if the configuration is accepted, written and read back."""
    try:
        resolved = resolve(base(), experiment="sample", **layers)
    except ConfigError as error:
        assert str(error).isprintable() or "\n" in str(error)
        return error.problems[0].message
    again = resolve(base(), config_files=_files(dump(resolved, origins=True)))
    assert again.config == resolved.config
    return ""


def _files(*texts):
    """Writes files 0.yaml, 1.yaml, … and names the first."""
    for number, text in enumerate(texts):
        with open(f"{number}.yaml", "w", encoding="utf-8") as file:
            file.write(text)
    return ["0.yaml"]


def _several(first, each, last):
    """Returns definitions that each repeat the one before."""
    middle = (each.format(at=number, before=number - 1) for number in range(1, last + 1))
    return "\n".join([first, *middle, f"task.model.anything: *a{last}\n"])


def _fifo():
    os.mkfifo("0.yaml")
    return ["0.yaml"]


FILES = {
    "billion laughs": (
        lambda: _files(_several("x-0: &a0 [1]", "x-{at}: &a{at} [*a{before}, *a{before}, *a{before}]", 40)),
        f"0.yaml:10: {LARGE}",
    ),
    "billion merge keys": (
        lambda: _files(_several("x-0: &a0 {k: 1}", "x-{at}: &a{at} {{<<: *a{before}, k{at}: *a{before}}}", 40)),
        f"0.yaml:14: {LARGE}",
    ),
    "a long text again and again": (
        lambda: _files(f"x-a: &a {'a ' * 300_000}\n{ANY.format('[' + '*a, ' * 100 + ']')}"),
        f"0.yaml:2: {LARGE}",
    ),
    "aliases inside aliases": (
        lambda: _files(_several("x-0: &a0 [1]", "x-{at}: &a{at} [*a{before}]", 200)),
        "[0][0]: is nested more than 64 levels deep; write fewer levels",
    ),
    "100,000 brackets": (lambda: _files(ANY.format("[" * 100_000)), f"0.yaml:1: {DEEP}"),
    "100,000 sections": (lambda: _files(ANY.format("{a: " * 100_000)), f"0.yaml:1: {DEEP}"),
    "a path of 400 names": (
        lambda: _files(f"task.model.free{'.a' * 400}: 1"),
        "0.yaml:1: task.model.free.a: is any value, which has no part 'a'",
    ),
    "a chain of files": (
        lambda: _files(*(f"base: {number + 1}.yaml" for number in range(400)), ""),
        "99.yaml:1: '100.yaml' is one more than the 100 configuration files that may be read; put some of",
    ),
    "a file a thousand times": (
        lambda: _files(f"base: [{'1.yaml, ' * 40_000}]", ""),
        "0.yaml:1: '1.yaml' is one more than the 100 configuration files",
    ),
    "a pipe": (
        _fifo,
        "cannot read configuration file '0.yaml': it is a pipe or a device; write its content into a file",
    ),
    "a base that is a device": (
        lambda: _files("base: /dev/zero"),
        "0.yaml:1: cannot read configuration file '/dev/zero': it is a pipe or a device",
    ),
    "NUL": (lambda: ["a\0b.yaml"], r"cannot read configuration file 'a\x00b.yaml': no file can have this name"),
    "half a character": (
        lambda: ["\ud800.yaml"],
        r"cannot read configuration file '\ud800.yaml': no file can have this",
    ),
    "a long name": (lambda: ["a" * 5000 + ".yaml"], "aaaaa.yaml': File name too long"),
    "a large file": (
        lambda: _files("#" * limits.MAX_BYTES + "\n"),
        "cannot read configuration file '0.yaml': it has more than 33554432 bytes, which is the limit",
    ),
    "unknown fields": (lambda: _files("".join(f"a{n}: 1\n" for n in range(5_000))), "0.yaml:1: a0: unknown field"),
    "a field again and again": (lambda: _files("a: 1\n" * 20_000), "0.yaml:2: 'a' appears twice in one section"),
    "a long value": (
        lambda: _files(f"task: {{model: {{integer: {'a' * 900_000}}}}}"),
        "must be an integer, got 'aaaaa",
    ),
    "a long name of a field": (lambda: _files(f"? {'a' * 900_000}\n: 1"), "aaaaaaaaaa: unknown field"),
    "digits": (lambda: _files(ANY.format("[" + ("1_1" * 130 + "x, ") * 1000 + "]")), ""),
}


@pytest.mark.parametrize("name", FILES)
def test_hostile_files(tmp_path, monkeypatch, name):
    """N34: sizes, depths, aliases, includes and names of files, also of a `params.yaml` from elsewhere."""
    monkeypatch.chdir(tmp_path)
    make, said = FILES[name]
    found = bounded(lambda: _said({"config_files": make()}))
    assert said in found if said else not found
    if name in ("billion laughs", "a pipe"):  # an override may name the file too
        assert bounded(lambda: _said({"params_overrides": ["0.yaml"]})) == found


OVERRIDES = {
    "30,000 brackets": ([TEXT + "(" * 30_000 + "]" * 30_000], ""),
    "brackets of all kinds": ([TEXT + "([{" * 60_000 + ")]}" * 60_000], ""),
    "brackets that nothing closes": (
        [",".join(["task.model.free.a=["] * 5_000)],
        "is one more than the 1000 overrides that are allowed; write them into a file and name it with --config_file",
    ),
    "50,000 overrides": (
        [",".join(["task.model.filters+=1"] * 40_000)],
        "is one more than the 1000 overrides that are allowed",
    ),
    "nested": (["task.model.anything=" + "[" * 50_000 + "]" * 50_000], f"--params_override: {DEEP}"),
    "a path of 20,000 names": (
        ["task.model.free" + ".a" * 20_000 + "=1"],
        "free.a: is any value, which has no part 'a'",
    ),
    "empty lines in a value": ([TEXT + "a" + "\n" * 300_000 + "b"], ""),
    "empty lines of spaces": (["\n \t" * 100_000 + "#"], "--params_override: expected path=value, got '#'"),
    "comments": (["#\n" * 200_000 + "a"], "--params_override: expected path=value, got '#'"),
    "commas": ([TEXT + " , " * 30_000 + "b"], ""),
    "commas in quotes": ([TEXT + ',"a,".' * 20_000 + "b"], ""),
    "no character": ([TEXT + r'"\U00110000"'], "found invalid Unicode character escape"),
    "half a character": ([TEXT + r'"\uD83D"'], "found invalid Unicode character escape"),
    "a byte that is not UTF-8": ([f"{TEXT}caf\udce9"], "must be text that UTF-8 can hold, which character 20 is not"),
    "such a byte in YAML": (
        ["{task: {model: {text: caf\udce9}}}"],
        "must be text that UTF-8 can hold, which character 26 is not; write it as UTF-8",
    ),
    "a long argument": (
        ["a" * 1_500_000 + "=1"],
        "is a text of 1500002 characters; at most 1048576 are allowed; write it into a file",
    ),
    "a long index": (
        [f"task.model.filters[{'9' * 5000}]=1"],
        "[9999999999999999999]: there is no such item; allowed: 0 to",
    ),
    "a long index after a dot": ([f"task.model.filters.{'9' * 5000}=1"], "there is no such item; allowed: 0 to 1"),
    "a word for an index": (["task.model.filters.'--5'=1"], "which has no part '--5'"),
}


@pytest.mark.parametrize("name", OVERRIDES)
def test_hostile_overrides(tmp_path, monkeypatch, name):
    """N34: the parser of overrides needs time in proportion to their length."""
    monkeypatch.chdir(tmp_path)
    texts, said = OVERRIDES[name]
    found = bounded(_said, {"params_overrides": texts})
    assert said in found if said else not found


def test_many_flags(tmp_path, monkeypatch):
    """N34: the limit of overrides is for all flags together."""
    monkeypatch.chdir(tmp_path)
    layers = {"sets": ["task.model.integer=1"] * 1000, "params_overrides": ["task.model.integer=2"]}
    assert "--set: is one more than the 1000 overrides" in bounded(_said, layers)
    assert bounded(_said, {**layers, "params_overrides": []}) == ""


HEAVY = {
    "items": lambda: _files(ANY.format("[" + "1, " * 49_000 + "]")),
    "names": lambda: _files(FREE.format("{" + ", ".join(f"a{n}: 1" for n in range(24_000)) + "}")),
    "sections": lambda: _files(f"task: {{model: {{blocks: [{'{x: 1}, ' * 9_800}]}}}}"),
    "anchors": lambda: _files(ANY.format("[" + ", ".join(f"&a{n} x" for n in range(40_000)) + "]")),
    "actions": lambda: _files(
        "trainer: {actions: ["
        + ", ".join(f"{{type: checkpoint, name: n{n}, directory: a{n}}}" for n in range(1_600))
        + "]}"
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("name", HEAVY)
def test_what_is_just_allowed(tmp_path, monkeypatch, name):
    """N34: as much as the limits let through is read, written and read back."""
    monkeypatch.chdir(tmp_path)
    assert bounded(lambda: _said({"config_files": HEAVY[name]()})) == ""


TEMPLATES = {
    "{step:4000000000d}": "cannot hold {step:4000000000d}: more than the 255 characters that the name of a",
    "{loss:.2000000000f}": "cannot hold {loss:.2000000000f}: more than the 255 characters",
    "a" * 250 + "{step:08d}": "template: produces names of up to 269 bytes, and a folder's has at most 255",
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_names_that_no_run_could_use(tmp_path, monkeypatch, template):
    """N34: they are refused before training, not when they are first written."""
    monkeypatch.chdir(tmp_path)
    item = f"trainer.actions=[{{type: checkpoint, template: '{template}'}}]"
    assert TEMPLATES[template] in bounded(_said, {"sets": [item]})


def test_the_place_of_a_text_with_control_characters_is_still_marked(write):
    """N34: what is printed is longer than what stands there, and so are the marks."""
    file = write('task: {model: {text: "\u200e\u202e", integer: \u202ex}}\n')
    with pytest.raises(ConfigError) as refused:
        resolve(base(), config_files=[file])
    assert str(refused.value).splitlines() == [
        r"a.yaml:1: task.model.integer: must be an integer, got '\u202ex'",
        r'    1 | task: {model: {text: "\u200e\u202e", integer: \u202ex}}',
        r"      |                                               ^^^^^^^",
    ]


def test_escapes_of_capital_letters():
    r"""N34: "\u00E9" is "\u00e9", in an override as in YAML."""
    for text in (r'task.model.text="\u00E9\xE9\U0001F600"', r'{task: {model: {text: "\u00E9\xE9\U0001F600"}}}'):
        assert resolve(base(), params_overrides=[text]).config.task.model.text == "\xe9\xe9\U0001f600"
