"""Experiments that users register with Model Garden's `exp_factory`: several tasks, several sets, one task."""

import pytest
from official.core import exp_factory
from official.modeling import hyperparams

from official_trainer import config as configuration
from official_trainer.config import ConfigError
from official_trainer.tasks import registry
from tests.support.garden.configs import assert_same
from tests.support.garden.two_heads import JOINT, NAMES, module, resolved


@pytest.mark.parametrize("name", NAMES)
def test_it_is_read_and_written_as_model_garden_does(name, tmp_path):
    """T21, T14, T20: its values are theirs; our params.yaml is one to them, and to us again."""
    ours, live_config = resolved(name), exp_factory.get_exp_config(name)
    assert_same(ours, live_config)
    params = tmp_path / "params.yaml"
    params.write_text(configuration.dump(ours, origins=True, shared=True))
    assert resolved(name, config_files=[str(params)]).config == ours.config
    assert_same(ours, hyperparams.override_params_dict(live_config, str(params), is_strict=True))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("two_heads", "trainer.trainer_type=joint,trainer.train_steps=7"),
        ("two_heads", "trainer.task_sampler.type=uniform"),
        ("two_heads", "{task: {task_routines: [{task_weight: 3.0}, {eval_steps: 1, task_config: {name: total}}]}}"),
        ("two_heads", "{task: {model: {heads: [{units: 4}, {task_name: total}]}}, runtime: {num_gpus: 0}}"),
        ("mine/doubling", "task.init_checkpoint=/a/b,task.model.dropout=0.5"),
        ("points_on_sets", "{eval_tasks: [{eval_steps: 1}, {task_config: {shift: 2.0}, task_name: far}]}"),
        ("points_on_sets", "task.shift=1.5,task.train_data.global_batch_size=4"),
    ],
)
def test_overrides_mean_what_they_mean_there(name, text):
    """T21, T20: the same words of a command line give the same configuration."""
    ours, live_config = resolved(name, params_overrides=[text]), exp_factory.get_exp_config(name)
    assert_same(ours, hyperparams.override_params_dict(live_config, text, is_strict=True))


def test_one_item_of_a_list_is_set_by_its_number():
    """T20: which Model Garden's flags cannot; the list keeps its other values."""
    sets = ["task.task_routines.0.task_weight=3", "task.task_routines[-1].task_config.train_data.global_batch_size=4"]
    first, last = resolved("two_heads", *sets).config.task.task_routines
    assert (first.task_weight, first.task_config.train_data.global_batch_size) == (3.0, 10)
    assert (last.task_weight, last.task_config.train_data.global_batch_size) == (0.5, 4)


WRONG = [
    ("two_heads", ["task.task_routines.0.task_wieght=3"], r"wieght: unknown field of TaskRoutine; .*'task_weight'"),
    ("two_heads", ["task.task_routines.2.task_weight=3"], r"routines.2: there is no such item; allowed: 0 to 1"),
    ("two_heads", ["task.model.hiden=3"], r"task.model.hiden: unknown field of TwoHeadsConfig; did you.*'hidden'"),
    ("two_heads", ["task.model.heads.0.unit=3"], r"heads\[0\].unit: unknown field of HeadConfig; did you.*'units'"),
    ("two_heads", ["trainer.task_sampler={type: annealing, annealing: {steps_per_epoch: null}}"],
     r"annealing.steps_per_epoch: must be at least 1, got null"),
    ("two_heads", ["trainer.task_sampler.proportional.alpha=null"], r"proportional.alpha: is null; set a value"),
    ("two_heads", ["trainer.task_sampler.proportional=null"], r"task_sampler.proportional: is null; set a value"),
    ("two_heads", ["trainer.task_sampler=null"], r"trainer.task_sampler: a section cannot be null"),
    ("two_heads", ["task.task_routines=null"], r"task.task_routines: is null; set a value"),
    ("two_heads", ["task.task_routines.1=null"], r"task.task_routines\[1\]: is null; set a value"),
    ("points_on_sets", ["eval_tasks=null"], r"eval_tasks: is null; set a value"),
    ("two_heads", ["task.task_routines.1.task_weight=null"], r"\[1\].task_weight: must be .* 0, got null"),
    ("two_heads", ["task.task_routines.1.task_config.name=null"], r"\[1\].task_name: is not set; name the task"),
    ("two_heads", ["task.task_routines.1.task_config=null"], r"\[1\].task_config: is not set; add the section"),
]  # fmt: skip


def test_what_is_wrong_is_said_with_its_place():
    """T21, N8: by our rules for several tasks, in their sections."""
    for name, sets, said in WRONG:
        with pytest.raises(ConfigError, match=said):
            resolved(name, *sets)


def test_a_sampler_that_joint_training_does_not_read_is_warned_of():
    """T21, T20: there it goes unsaid."""
    found = resolved("two_heads", JOINT, "trainer.task_sampler.type=uniform")
    assert [w.message for w in found.warnings] == ["--set: trainer.task_sampler: has no effect with trainer_type=joint"]
    assert resolved("two_heads", JOINT).warnings == ()
    assert resolved("two_heads", JOINT, "trainer.task_sampler.type=proportional").warnings == ()


def test_equal_experiments_are_of_one_class_and_one_that_changes_is_read_anew(monkeypatch):
    """T14: nothing of a workspace is kept, whose files change."""
    assert type(resolved("two_heads").config) is type(resolved("two_heads").config)
    monkeypatch.setitem(exp_factory._REGISTERED_CONFIGS, "two_heads", module().points_alone)
    assert resolved("two_heads").config.task.shift == 0.0


def test_what_is_no_experiment_is_refused(tmp_path):
    """T14: a factory that returns a section, or one that another module has registered."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "wrong.py").write_text(
        "from official.core import config_definitions, exp_factory\n"
        "@exp_factory.register_config_factory('no_experiment')\n"
        "def no_experiment():\n    return config_definitions.TaskConfig()\n"
        "if False:\n"
        "    @exp_factory.register_config_factory('two_heads')\n"
        "    def two_heads(): ...\n"
    )
    resolved("two_heads")
    with pytest.raises(
        ConfigError, match=r"factory of experiment 'no_experiment' must return an Exp.*got a\s+TaskConfig"
    ):
        registry.get_config("no_experiment", tmp_path)
    with pytest.raises(ConfigError, match=r"experiment 'two_heads' is registered twice, at .*wrong\.py:7"):
        registry.get_config("two_heads", tmp_path)
