"""Every action, by discovery: what all of them have to keep to."""

import json
import subprocess
import sys

from official_trainer import config as configuration
from official_trainer.actions.action import Action
from official_trainer.actions.schedule import Schedule
from official_trainer.config import ExperimentConfig, fields
from official_trainer.config.components import ActionConfig
from tests.support.actions.samples import SAMPLES

TYPES = sorted(ActionConfig.names())


def sample(name):
    """Returns the config of a sample, as YAML gives it."""
    (section,) = configuration.resolve(
        ExperimentConfig(), sets=[f"trainer.actions=[{SAMPLES[name]}]"]
    ).config.trainer.actions
    return section


def test_each_action_has_a_sample():
    """G1: so that the tests here cover it."""
    assert sorted(SAMPLES) == TYPES


def test_a_config_builds_its_action():
    """G1, B1: named, with a trigger, a hook that does something, and documentation for each field."""
    for name in TYPES:
        config = sample(name)
        (action,) = Schedule([config]).actions
        assert isinstance(action, Action)
        assert action.name == config.type == name
        assert [hook for hook in vars(Action) if hook[:3] == "on_" and hook in vars(type(action))], name
        assert fields.summary(type(config))
        assert set(fields.hints(type(config))) <= set(fields.docs(type(config))), name


def test_a_config_survives_being_written_down():
    """N7: reading a dump gives the same actions."""
    sections = tuple(map(sample, TYPES))
    before = ExperimentConfig().replace(trainer=ExperimentConfig().trainer.replace(actions=sections))
    assert configuration.resolve(ExperimentConfig(), params_overrides=[configuration.dump(before)]).config == before


def test_a_fresh_action_is_one_that_was_rolled_back():
    """N2: `restore({})` is the beginning, and what `state()` says can be restored."""
    for name in TYPES:
        action, other = sample(name).build(), sample(name).build()
        action.restore({})
        assert dict(action.state()) == dict(other.state()), name
        other.restore(json.loads(json.dumps(dict(action.state()))))
        assert dict(action.state()) == dict(other.state()), name


def test_no_file_imports_tensorflow():
    """N7: configs are read without it; nothing else is imported than what is named."""
    names = [f"official_trainer.actions.{name}" for name in TYPES]
    code = f"import sys; {'; '.join(f'import {name}' for name in names)}; print('tensorflow' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
