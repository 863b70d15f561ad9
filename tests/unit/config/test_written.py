"""The fields of a `params.yaml` are those of the file read as YAML, each by its path."""

import pytest
import yaml

from official_trainer.config import ConfigError, ExperimentConfig, dump, resolve
from official_trainer.config.written import fields_of

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
    """Returns each value of a file, as YAML reads it, by the paths of a configuration."""
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
    assert fields_of(text)[0] == flat(yaml.safe_load(text))


def test_who_set_a_field():
    """N29, N8: as the comment behind it says, also behind a quoted text, and behind the name of a list of sections."""
    sets = [
        "trainer.train_steps=7",
        "trainer.best_checkpoint_eval_metric='a  # b'",
        "trainer.actions=[{type: profile}]",
    ]
    _, comments = fields_of(dump(resolve(ExperimentConfig(), experiment="e", sets=sets), origins=True))
    assert {path: said for path, said in comments.items() if "actions" not in path} == {
        "trainer.train_steps": "--set",
        "trainer.best_checkpoint_eval_metric": "--set",
    }
    assert comments["trainer.actions[0].type"] == "--set"


@pytest.mark.parametrize("is_indented", [True, False])
def test_files_that_pyyaml_wrote(is_indented):
    """N29: lists, values over several lines and quoted texts of Model Garden's files are read as YAML reads them."""

    class Dumper(yaml.SafeDumper):
        def increase_indent(self, flow=False, indentless=False):
            return super().increase_indent(flow, indentless and not is_indented)

    text = yaml.dump(THEIRS, Dumper=Dumper, default_flow_style=False)
    assert fields_of(text)[0] == flat(THEIRS)


def test_fields_that_only_we_have():
    """N29: a field that is a comment to Model Garden is a field here."""
    assert fields_of("a: 1\n#official-trainer: b:\n#official-trainer:   c: 2\n")[0] == {"a": 1, "b.c": 2}


@pytest.mark.parametrize("text", ["a: [1, \nb: 2", "a: &a [*a]", "[" * 70, "a: " + "9" * 500])
def test_text_that_cannot_be_read(text):
    """N29, N34: is an error."""
    with pytest.raises(ConfigError):
        fields_of(text)
