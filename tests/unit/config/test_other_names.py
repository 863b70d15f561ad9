"""N7: a name from Keras, Model Garden's flags or another trainer leads to the field that it means."""

import re

import pytest

from official_trainer.config import ConfigError, ExperimentConfig, TrainerConfig, fields, other_names, resolve


def test_every_name_leads_to_a_field():
    """N7: of the experiment that has all of them."""
    known = {place.rpartition(".")[2] for place, _ in fields.walk(ExperimentConfig())}
    assert not {name for name in other_names.THEIRS for name in name.split() if name not in known}


def test_every_item_can_be_added():
    """N7: what the message says to add, with a value."""
    for text in {text for text in other_names.OF_ITEMS.values() if text.startswith("add ")}:
        item, place = re.fullmatch(r"add (\{.*\}) to (\S+)", text).groups()
        item = re.sub("(port|patience): …", r"\1: 1", item).replace("…", "mine")
        assert resolve(ExperimentConfig(), sets=[f"{place}=[{item}]"])


def test_a_name_of_another_trainer_in_python():
    with pytest.raises(ConfigError, match="TrainerConfig has no field 'epochs'; did you mean 'train_epochs'"):
        TrainerConfig(epochs=3)
