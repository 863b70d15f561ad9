"""N7: a name from Keras, Model Garden's flags or another trainer leads to the field that it means."""

import re

import pytest

from official_trainer.config import ConfigError, ExperimentConfig, TrainerConfig, fields, other_names, resolve
from official_trainer.config import optimization as opt

LR = "trainer.optimizer_config.learning_rate"


def refused(item, schedule="cosine"):
    learning_rate = opt.LrConfig(type=schedule)
    trainer = TrainerConfig(optimizer_config=opt.OptimizationConfig(learning_rate=learning_rate))
    with pytest.raises(ConfigError) as caught:
        resolve(ExperimentConfig(trainer=trainer), sets=[item])
    return caught.value.problems[0].message


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("task.train_data.batch_size=8", "unknown field of DataConfig; did you mean 'global_batch_size'?"),
        (
            "batch_size=8",
            "unknown field; batch_size is called task.train_data.global_batch_size or "
            "task.validation_data.global_batch_size here",
        ),
        ("trainer.epochs=3", "unknown field of TrainerConfig; did you mean 'train_epochs'?"),
        ("epochs=3", "unknown field; epochs is called trainer.train_epochs here"),
        ("max_steps=3", "unknown field; max_steps is called trainer.train_steps here"),
        ("lr=0.1", f"unknown field; lr is called {LR}.cosine.initial_learning_rate here"),
        ("trainer.learning_rate=1", f"learning_rate is called {LR}.cosine.initial_learning_rate here"),
        ("trainer.save_interval=1", "unknown field of TrainerConfig; did you mean 'checkpoint_interval'?"),
        ("trainer.validation_freq=1", "unknown field of TrainerConfig; did you mean 'validation_interval'?"),
        ("num_gpus=1", "unknown field; num_gpus exists at runtime.num_gpus"),
        ("trainer.gpus=1", "unknown field of TrainerConfig; gpus is called runtime.num_gpus here"),
        ("trainer.mixed_precision=1", "mixed_precision is called runtime.mixed_precision_dtype here"),
        ("Batch_Size=8", "Batch_Size is called task.train_data.global_batch_size or "),
        (
            "runtime.metrics_port=9400",
            "unknown field of RuntimeConfig; add {type: prometheus, port: …} to trainer.trackers",
        ),
        (
            "trainer.patience=3",
            "unknown field of TrainerConfig; add {type: early_stopping, monitor: …, patience: …}",
        ),
        (
            "task.train_data.type=csv",
            "unknown field of DataConfig; put it under source, as task.train_data.source.type",
        ),
    ],
)
def test_a_name_from_elsewhere(item, said):
    """N7: what the field is called here, as one that is misspelled in its section, or with its whole path."""
    assert refused(item).endswith(said) or said in refused(item)


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ("constant", f"learning_rate exists at {LR}.constant.learning_rate"),
        ("exponential", f"learning_rate is called {LR}.exponential.initial_learning_rate here"),
        ("stepwise", f"learning_rate exists at {LR}"),
        (None, f"learning_rate exists at {LR}"),
    ],
)
def test_of_a_one_of_only_what_is_selected_is_named(schedule, said):
    """N7: the rate of the schedule in force; where that has no such field, the choice itself."""
    assert refused("trainer.learning_rate=1", schedule).endswith(said)


def test_a_field_of_what_is_not_selected_is_named_if_there_is_no_other():
    assert refused("momentum=0.5").startswith(
        "--set: momentum: unknown field; momentum exists at trainer.optimizer_config"
    )


def test_every_name_leads_to_a_field():
    """N7: of the experiment that has all of them."""
    known = {place.rpartition(".")[2] for place, _ in fields.walk(ExperimentConfig())}
    assert not {name for name in other_names.THEIRS for name in name.split() if name not in known}


@pytest.mark.parametrize("name", sorted(other_names.OF_ITEMS))
def test_every_item_can_be_added(name):
    """N7: what the message says to add, with a value."""
    item, place = re.fullmatch(r"add (\{.*\}) to (\S+)", other_names.OF_ITEMS[name]).groups()
    item = re.sub("(port|patience): …", r"\1: 1", item).replace("…", "mine")
    assert resolve(ExperimentConfig(), sets=[f"{place}=[{item}]"])


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ("cosine", f"set {LR}.cosine.initial_learning_rate=0.1"),
        (None, f"set {LR}.type=constant and {LR}.constant.learning_rate=0.1"),
    ],
)
def test_a_number_for_a_section_with_a_type(schedule, said):
    """N7: the field is named that holds it, of the type that is chosen."""
    assert refused(f"{LR}=0.1", schedule) == f"--set: {LR}: must be a section (LrConfig), got '0.1'; {said}"


def test_a_name_of_another_trainer_in_python():
    with pytest.raises(ConfigError, match="TrainerConfig has no field 'epochs'; did you mean 'train_epochs'"):
        TrainerConfig(epochs=3)


def test_base_is_among_what_a_file_may_hold(tmp_path):
    (tmp_path / "a.yaml").write_text("bases: b.yaml\nzzzz: 1\n")
    with pytest.raises(ConfigError) as caught:
        resolve(ExperimentConfig(), config_files=[str(tmp_path / "a.yaml")])
    first, second = (problem.message for problem in caught.value.problems)
    assert first.endswith("bases: unknown field; did you mean 'base'?")
    assert second.endswith("zzzz: unknown field; allowed: task, trainer, runtime, base")
