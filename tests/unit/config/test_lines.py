"""The lines of a `params.yaml` say the same as the file read as YAML."""

import pytest
import yaml

from official_trainer.config import ExperimentConfig, dump, lines

THEIRS = {
    "task": {
        "filters": [4, 8],
        "losses": [{"name": "a: b", "weight": 0.5}, {"name": "it's # one", "weight": None}],
        "text": "word " * 60,
        "empty": {},
        "nested": {"deep": {"value": True}},
    },
    "trainer": {"train_steps": 5},
}


def flat(value, path=""):
    """Returns each value of a file, as YAML reads it, by the paths that `lines` uses."""
    if isinstance(value, dict) and value:
        parts = {(f"{path}.{key}" if path else key): part for key, part in value.items()}
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        parts = {f"{path}[{i}]": part for i, part in enumerate(value)}
    else:
        return {path: value}
    return {place: each for key, part in parts.items() for place, each in flat(part, key).items()}


def test_files_that_runs_wrote():
    """N29: each field of a run's `params.yaml` has the path and the value that YAML gives it."""
    text = dump(ExperimentConfig())
    found = {place: lines.value(line) for place, line in lines.lines(text).items()}
    assert found == flat(yaml.safe_load(text))


@pytest.mark.parametrize("is_indented", [True, False])
def test_files_that_pyyaml_wrote(is_indented):
    """N29: lists, values over several lines and quoted texts of Model Garden's files are read as YAML reads them."""

    class Dumper(yaml.SafeDumper):
        def increase_indent(self, flow=False, indentless=False):
            return super().increase_indent(flow, indentless and not is_indented)

    text = yaml.dump(THEIRS, Dumper=Dumper, default_flow_style=False)
    assert {place: lines.value(line) for place, line in lines.lines(text).items()} == flat(THEIRS)


def test_values_over_several_lines():
    """N29: a list, or a quoted text, that goes on is one value; a bracket in quotes or in a comment opens nothing."""
    text = "a: [{b: 1,\n    c: 2}]\nd: 'one\n  two: 3'\ne: ['[', \"{\"]  # [\nf: 4\n"
    found = {place: lines.value(line) for place, line in lines.lines(text).items()}
    assert found == {"a": [{"b": 1, "c": 2}], "d": "one two: 3", "e": ["[", "{"], "f": 4}


def test_fields_that_only_we_have():
    """N29: a field that is a comment to Model Garden is a field here."""
    assert lines.lines("a: 1\n#official-trainer: b:\n#official-trainer:   c: 2\n") == {"a": "1", "b.c": "2"}


def test_text_that_is_no_yaml():
    """N29: what is damaged has no value, and is no error."""
    assert lines.value(lines.lines("a: [1, \nb: 2")["a"]) is None
