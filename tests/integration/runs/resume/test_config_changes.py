"""N9: a run that goes on with another config. What has changed, how bad that is, and how to get out of it."""

import dataclasses
import functools
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer import config as configuration
from official_trainer import files
from official_trainer.checkpoints.manifest import CheckpointError, committed_steps
from official_trainer.config import ConfigError, ExperimentConfig, fields
from official_trainer.errors import ExitCode, UserError
from official_trainer.runs.job import Job
from official_trainer.runs.resume import config_changes
from official_trainer.runs.resume.config_changes import ConfigChangeError, changes_since
from official_trainer.tasks import registry
from tests import ROOT
from tests.support import toy
from tests.support.cases import cases
from tests.support.config import sample
from tests.support.config.texts import FLOATS, FREE, TEXTS
from tests.support.light import LIGHT

BATCH = "task.train_data.global_batch_size"


# What a change of a field means.


def undeclared(section, path=""):
    """Yields the fields below a section class that declare no meaning of a change, nor does a section around them."""
    for name, hint in fields.hints(section).items():
        field_path = fields.join(path, name)
        inner = [arm for arm in fields.arms(hint) if fields.is_section_type(arm)]
        if name not in fields.change_kinds(section):
            yield from [deeper for arm in inner for deeper in undeclared(arm, field_path)] if inner else [field_path]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewTrainer(configuration.TrainerConfig):
    brand_new: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewExperiment(ExperimentConfig):
    trainer: NewTrainer = NewTrainer()


def test_every_field_of_the_engine_says_what_a_change_of_it_means():
    """N9: at the field; one that does not is refused."""
    schemas = (ExperimentConfig, configuration.MultiTaskExperimentConfig, configuration.MultiEvalExperimentConfig)
    assert [path for schema in (*schemas, configuration.TaskRoutine) for path in undeclared(schema)] == []
    assert list(undeclared(NewExperiment)) == ["trainer.brand_new"]
    assert config_changes.kind_of("trainer.brand_new") == "guarded"


KINDS = {
    "safe": (
        *("trainer.export.best", "trainer.actions[0].monitor", "task.train_data.prefetch_buffer_size"),
        *("task.validation_data.global_batch_size", "task.validation_data.of_a_task"),
        "eval_tasks[0].task_config.model.of_a_task",
    ),
    "guarded": (
        *("task.train_data.global_batch_size", "task.train_data.of_a_task", "task.of_a_task", "runtime.num_gpus"),
        *("trainer.optimizer_config.learning_rate.type", "trainer.optimizer_config.optimizer.lars.momentum"),
        *("trainer.optimizer_config.ema.average_decay", "task.task_routines[0].task_config.of_a_task"),
    ),
    "variables": (
        *("task.model.of_a_task", "trainer.optimizer_config.optimizer.type", "trainer.optimizer_config.ema"),
        *("trainer.optimizer_config.optimizer.adamw.amsgrad", "runtime.loss_scale"),
    ),
}


def test_what_a_change_means_stands_at_the_field_or_at_the_section_around_it():
    """N9: all inside what is safe is safe; otherwise the inner one counts."""
    for kind, paths in KINDS.items():
        assert {path: config_changes.kind_of(path) for path in paths} == dict.fromkeys(paths, kind)


# Comparing.


def plain(resolved):
    """What a manifest holds, as it is read back."""
    return config_changes.parse(configuration.dump(resolved.config))


def changes(before, now):
    return changes_since(plain(before), now)


def meaning(resolved):
    """Text that is equal for configs that mean the same: 1.0 is 1, a NaN is itself, true is not 1."""

    def spelled(value):
        if isinstance(value, dict):
            return {key: spelled(part) for key, part in value.items()}
        if isinstance(value, list):
            return [spelled(item) for item in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return json.dumps(spelled(resolved.config.as_dict()), sort_keys=True)


def section(**parts):
    return st.fixed_dictionaries({}, optional=parts)


def branch(**branches):
    """A one-of: no type, or one branch with some of its fields."""
    chosen = [section(**parts).map(lambda p, n=name: {"type": n, n: p}) for name, parts in branches.items()]
    return st.one_of(st.just({"type": None}), *chosen)


BLOCK = section(x=st.integers(-3, 3), names=st.lists(TEXTS, max_size=2))
WORDS = st.sampled_from(["a", "b", "c d", "it's"])
VALUES = {
    "trainer.train_steps": st.integers(0, 3),
    "trainer.optimizer_config.optimizer": branch(
        adam={"beta_1": st.sampled_from([0.8, 0.9]), "amsgrad": st.booleans()}, sgd={"momentum": st.floats(0, 1)}
    ),
    "trainer.optimizer_config.ema": st.none() | section(average_decay=st.floats(0, 1)),
    "runtime.seed": st.integers(0, 2),
    BATCH: st.integers(1, 3),
    "task.train_data.input_path": TEXTS | st.lists(TEXTS, max_size=2),
    "task.model.number": FLOATS | st.just(float("nan")),
    "task.model.text": TEXTS,
    "task.model.maybe_text": st.none() | TEXTS,
    "task.model.flag_or_text": st.booleans() | TEXTS,
    "task.model.count": st.integers(0, 2) | FLOATS,
    "task.model.filters": st.lists(st.integers(1, 2), max_size=2),
    "task.model.weights": st.dictionaries(WORDS, st.sampled_from([0.0, 1.0]), max_size=2),
    "task.model.free": st.dictionaries(WORDS, FREE, max_size=2),
    "task.model.blocks": st.lists(BLOCK, max_size=2),
    "task.model.named": st.dictionaries(WORDS, BLOCK, max_size=2),
    "task.model.maybe_section": st.none() | BLOCK,
    "task.model.shape": branch(round={"x": st.integers(0, 2)}, square={"x": st.integers(0, 2), "width": st.just(5)}),
    "task.model.maybe_shape": st.none() | branch(round={"x": st.integers(0, 2)}, square={}),
}
SETS = st.fixed_dictionaries({}, optional=VALUES).map(
    lambda found: [configuration.format_override(path, value) for path, value in found.items()]
)


@pytest.mark.parametrize("max_examples", cases([15, 1000], 15))
def test_no_change_means_no_difference_and_undo_brings_the_old_config_back(max_examples):
    """N9: for any two configs of one experiment, written and read back; each reported change is one."""

    @settings(max_examples=max_examples)
    @given(SETS, SETS)
    def holds(old, new):
        before, now = sample.resolved(*old), sample.resolved(*new)
        found = changes(before, now)
        assert (not found) == (meaning(before) == meaning(now))
        undone = sample.resolved(*new, *(override for change in found for override in change.undo))
        assert meaning(undone) == meaning(before)
        assert not changes(before, undone)
        for change in found:
            assert json.dumps(change.before) != json.dumps(change.after), change
        assert [change.path for change in found] == sorted({change.path for change in found})

    holds()


def test_a_change_says_what_it_was_what_it_is_and_who_did_it():
    """N9: as values, for whoever builds the run, and as a line."""
    before, now = sample.resolved(), sample.resolved("task.model.filters=[16]", "trainer.train_steps=200")
    filters, steps = changes(before, now)
    assert (filters.path, filters.before, filters.after, filters.kind) == (
        "task.model.filters", [32, 64], [16], "variables",
    )  # fmt: skip
    assert filters.undo == ("task.model.filters=[32, 64]",)
    assert str(filters) == "task.model.filters: [32, 64] -> [16] (--set)"
    assert (steps.kind, str(steps)) == ("safe", "trainer.train_steps: 100 -> 200 (--set)")
    with pytest.raises(dataclasses.FrozenInstanceError):
        steps.kind = "guarded"


def test_a_value_taken_back_is_the_experiments():
    """N9: a flag that is left out this time is a change too."""
    (steps,) = changes(sample.resolved("trainer.train_steps=7"), sample.resolved())
    assert str(steps) == "trainer.train_steps: 7 -> 100 (experiment sample)"


def test_another_branch_of_a_one_of_is_one_change_and_its_own_settings():
    """N9: what the old branch held is not listed field by field, but `undo` knows it."""
    optimizer = "trainer.optimizer_config.optimizer"
    before = sample.resolved(f"{optimizer}=adam", f"{optimizer}.adam.beta_1=0.8")
    now = sample.resolved(f"{optimizer}=sgd", f"{optimizer}.sgd.momentum=0.5")
    momentum, chosen = changes(before, now)
    assert str(chosen) == f"{optimizer}.type: adam -> sgd (--set)"
    assert str(momentum) == f"{optimizer}.sgd.momentum: 0.0 -> 0.5 (--set)"
    assert chosen.undo == (f"{optimizer}.type=adam", f"{optimizer}.adam.beta_1=0.8")
    assert momentum.undo == ()


def test_a_section_that_comes_or_goes_is_one_change():
    """N9: averaging is switched on by one of its fields."""
    ema = "trainer.optimizer_config.ema"
    with_ema = sample.resolved(f"{ema}.average_decay=0.5")
    (on,) = changes(sample.resolved(), with_ema)
    assert str(on).startswith(f"{ema}: null -> {{trainable_weights_only: true,")
    assert (on.origin.brief, on.kind, on.undo) == ("--set", "variables", (f"{ema}=null",))
    (off,) = changes(with_ema, sample.resolved())
    assert off.after is None
    (decay,) = changes(with_ema, sample.resolved(f"{ema}.average_decay=0.6"))
    assert (decay.path, decay.kind) == (f"{ema}.average_decay", "guarded")


def test_another_way_to_write_a_value_is_no_change():
    """N9: what counts is what a value means, and a field that an older version did not have is its default."""
    now = sample.resolved("task.model.number=0.0001", "task.model.count=2.0", "task.model.filters=[3]")
    model = "{number: 1e-4, count: 2, filters: [0x3], blocks: [{x: 1}]}"
    text = f"task: {{model: {model}, train_data: {{global_batch_size: 8}}}}"
    assert changes_since(config_changes.parse(text), now)[0].path == "trainer.train_steps"  # its default is 0
    assert changes_since(config_changes.parse(f"{text}\ntrainer: {{train_steps: 100.0}}"), now) == ()


def test_one_is_not_true():
    """N9: Python takes them for equal."""
    (change,) = changes(sample.resolved("task.model.free={a: 1}"), sample.resolved("task.model.free={a: true}"))
    assert str(change) == "task.model.free: {a: 1} -> {a: true} (--set)"


def test_a_field_that_is_gone():
    """N9: of an older version of the engine, or of the experiment; no override brings it back."""
    before = plain(sample.resolved())
    before["task"]["model"]["gone"] = 3
    before["task"]["old"] = {"a": 1}
    gone, old = changes_since(before, sample.resolved())
    assert str(gone) == "task.model.gone: 3 -> removed; there is no such field any more"
    assert (old.path, old.after, old.origin, old.undo) == ("task.old", ..., None, ())


def test_a_branch_that_is_gone_and_a_field_without_default():
    """N9: there is nothing to bring back, and nothing breaks."""
    before = plain(sample.resolved())
    before["task"]["model"]["shape"] = {"type": "oval", "oval": {"x": 1}}
    before["task"]["model"]["strict"] = {"other": 1}
    shape, size = changes_since(before, sample.resolved("task.model.strict={size: 3, other: 1}"))
    assert (shape.before, shape.after, shape.undo) == ("oval", None, ())
    assert str(size) == "task.model.strict.size: nothing -> 3 (--set)"


# Refusing.


def job(model_dir, *sets, **kwargs):
    resolved = sample.resolved(*sets)
    return Job(experiment="sample", resolved=resolved, model_dir=model_dir, mode="train", **kwargs)


def save(model_dir, step, *sets):
    toy.commit(model_dir, step, job(model_dir, *sets).facts)


def refusal(model_dir, *sets):
    with pytest.raises(ConfigChangeError) as caught:
        job(model_dir, *sets).check_changes()
    return caught.value


def test_a_run_without_a_checkpoint_may_change_anything(model_dir):
    """N9: a config that never led to a checkpoint binds nobody, nor does half a checkpoint."""
    assert job(model_dir).check_changes() == ()
    os.makedirs(model_dir)
    config_changes.write_params(model_dir, sample.resolved())
    assert job(model_dir, "runtime.seed=1").check_changes() == ()
    save(model_dir, 10)
    assert job(model_dir).check_changes() == ()
    os.remove(f"{model_dir}/ckpt-10.index")
    assert job(model_dir, "runtime.seed=1").check_changes() == ()


def test_the_refusal_shows_everything_and_three_ways_out(model_dir):
    """N9: letter by letter."""
    save(model_dir, 10)
    error = refusal(model_dir, f"{BATCH}=4", "task.model.text='a b'", "trainer.train_steps=200")
    assert (
        str(error)
        == f"""\
--model_dir={model_dir}: the config is not the one that ckpt-10 was saved with
Changes what the run computes from here on:
  {BATCH}: 8 -> 4 (--set)
May change which weights there are, and which are trained. Those that are trained only from here on begin with new \
slots of the optimizer; if one is new or has another shape, name it in trainer.restore_allow_mismatch:
  task.model.text: abc -> 'a b' (--set)
Safe:
  trainer.train_steps: 100 -> 200 (--set)
To continue with the new values, add --allow_config_change
To continue with the old ones, add --set task.model.text=abc --set {BATCH}=8
To start a new run, name another --model_dir; --set task.init_checkpoint={model_dir} gives it the weights of this one"""
    )
    assert error.exit_code == ExitCode.CONFIG
    assert isinstance(error, UserError)
    assert isinstance(error, ValueError)
    assert [problem.path for problem in error.problems] == ["task.model.text", BATCH]
    assert len(error.changes) == 3


COSINE = "trainer.optimizer_config.learning_rate={type: cosine, cosine: {initial_learning_rate: 1, decay_steps: 50}}"


def test_the_refusal_says_what_would_not_be_learned(model_dir, caplog):
    """N54, N31: no step is left, or the schedule has ended; with the flag, a rate of 0 is warned of."""
    save(model_dir, 100)
    said = str(refusal(model_dir, "task.model.text='a b'"))
    assert "trainer.train_steps: is 100, and this run is at step 100: no step is left" in said
    assert "set it above 100" in said
    more = "trainer.train_steps=200", COSINE
    assert "the learning rate is 0 from step 50 on, and this run continues from 100" in str(refusal(model_dir, *more))
    job(model_dir, *more, allow_config_change=True).check_changes()
    assert re.search(r"so nothing more is learned; add --set=.*decay_steps=200", caplog.text)


def test_the_old_values_can_be_given_as_shown(model_dir):
    """N9: the line of overrides is one for a shell."""
    save(model_dir, 10, "task.model.text=it's [mine]; or $HOME", "task.model.free={'a b': [1, '2']}")
    error = refusal(model_dir, "task.model.shape=round", "task.model.shape.round.x=5")
    (line,) = [line for line in str(error).splitlines() if line.startswith("To continue with the old ones, add ")]
    words = shlex.split(line.partition(" add ")[2])
    sets = [word for word in words if word != "--set"]
    mine = ["task.model.shape=round", "task.model.shape.round.x=5"]
    assert job(model_dir, *mine, *sets).check_changes() == ()


def test_the_checkpoint_counts_not_the_last_attempt(model_dir):
    """N9: a change that was accepted and then killed before a save is still one; going back is none."""
    save(model_dir, 10)
    save(model_dir, 20, "runtime.seed=1")
    config_changes.write_params(model_dir, sample.resolved("runtime.seed=2"))
    (change,) = refusal(model_dir, "runtime.seed=2").changes
    assert (change.before, change.after) == (1, 2)
    assert job(model_dir, "runtime.seed=1").check_changes() == ()


def test_a_checkpoint_without_its_config(model_dir, caplog):
    """N9: as of a store that belongs to no run; names the file and the way out, or goes on and says that."""
    toy.commit(model_dir, 10)
    said = f"{model_dir}/ckpt-10.manifest.json holds no configuration, so it is unknown what has changed"
    with pytest.raises(ConfigError, match="continue without the check with --allow_config_change") as caught:
        job(model_dir).check_changes()
    assert str(caught.value).startswith(said)
    with caplog.at_level(logging.WARNING):
        assert job(model_dir, allow_config_change=True).check_changes() == ()
    assert f"continuing without knowing what has changed: {said}" in caplog.text


def test_a_config_with_surprises(model_dir):
    """N9: dates, numbers as names, values where sections belong: differences, not crashes."""
    text = "task: 3\nruntime: {1: 2020-01-01, seed: [0]}\ntrainer: {train_steps: 2020-01-01}\n"
    toy.commit(model_dir, 10, dataclasses.replace(job(model_dir).facts, config=text))
    said = str(refusal(model_dir))
    assert "task: 3 -> {init_checkpoint: ''" in said
    assert "runtime.1: '2020-01-01' -> removed" in said
    assert "runtime.seed: [0] -> 0" in said
    assert "trainer.train_steps: '2020-01-01' -> 100" in said


# params.yaml.


def test_history_is_kept_byte_by_byte(model_dir):
    """N9: `params.<n>.yaml`, also of a file that nobody can read."""
    os.makedirs(model_dir)
    for seed in (1, 1, 2):
        config_changes.write_params(model_dir, sample.resolved(f"runtime.seed={seed}"))
    Path(model_dir, "params.yaml").write_bytes(b"\xff")
    config_changes.write_params(model_dir, sample.resolved("runtime.seed=3"))
    kept = sorted(name for name in os.listdir(model_dir) if name.startswith("params."))
    assert kept == ["params.1.yaml", "params.2.yaml", "params.yaml"]
    assert "seed: 1" in files.read_text(f"{model_dir}/params.1.yaml")
    assert files.read_bytes(f"{model_dir}/params.2.yaml") == b"\xff"
    assert "seed: 3" in files.read_text(f"{model_dir}/params.yaml")


# Whole runs.

GUARDED = {"train_steps": 4, "checkpoint_interval": 2, "summary_interval": 2, "export": toy.NO_EXPORT}
train = functools.partial(toy.runs_of("guarded_run", toy.InMemory, **GUARDED), mode="train")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run to its end, which tests copy."""
    model_dir = str(tmp_path_factory.mktemp("trained") / "run")
    train(model_dir)
    return model_dir


def test_a_whole_run_is_refused_allowed_and_told(trained, model_dir, capsys):
    """N9: nothing of the run is touched by a refusal; what is accepted is printed and kept."""
    shutil.copytree(trained, model_dir)
    before = {path: path.read_bytes() for path in Path(model_dir).rglob("*") if path.is_file()}
    sets = ["trainer.train_steps=6", "runtime.seed=3"]
    with pytest.raises(ConfigChangeError, match=r"runtime\.seed: 0 -> 3"):
        train(model_dir, *sets)
    assert {path: path.read_bytes() for path in Path(model_dir).rglob("*") if path.is_file()} == before
    capsys.readouterr()
    train(model_dir, *sets, quiet=False, allow_config_change=True)
    said = capsys.readouterr().out.splitlines()
    assert said[1:4] == [
        "config changed since step 4:",
        "  runtime.seed: 0 -> 3 (--set), by --allow_config_change",
        "  trainer.train_steps: 4 -> 6 (--set)",
    ]
    assert committed_steps(model_dir) == (2, 4, 6)
    assert "seed: 0" in files.read_text(f"{model_dir}/params.1.yaml")
    train(model_dir, *sets, quiet=False)
    assert "config changed" not in capsys.readouterr().out


def test_a_killed_attempt_does_not_hide_its_change(trained, model_dir, monkeypatch):
    """N9, N1: killed between accepting and saving, the next start is told the same."""
    shutil.copytree(trained, model_dir)

    def killed(*_, **__):
        raise KeyboardInterrupt

    sets = ["trainer.train_steps=6", f"{BATCH}=20"]
    monkeypatch.setattr("official_trainer.engine.trainer.Trainer.run_steps", killed)
    with pytest.raises(KeyboardInterrupt):
        train(model_dir, *sets, allow_config_change=True)
    assert "global_batch_size: 20" in files.read_text(f"{model_dir}/params.yaml")
    with pytest.raises(ConfigChangeError, match=r"global_batch_size: 10 -> 20"):
        train(model_dir, *sets)


def test_another_optimizer_is_refused_by_the_checkpoint_itself(trained, model_dir):
    """N9, N4: the flag is no promise that the variables fit."""
    shutil.copytree(trained, model_dir)
    sets = ["trainer.train_steps=6", "trainer.optimizer_config.optimizer=sgd"]
    with pytest.raises(ConfigChangeError, match=r"May change which weights.*\n.*optimizer\.type: adam -> sgd"):
        train(model_dir, *sets)
    with pytest.raises(CheckpointError, match=r"checkpoint of another model; nothing was restored"):
        train(model_dir, *sets, allow_config_change=True)
    assert committed_steps(model_dir) == (2, 4)


def test_evaluating_with_another_config_is_nobodys_business(trained, model_dir):
    """N9, T10: modes that do not train change nothing, so nothing is refused."""
    shutil.copytree(trained, model_dir)
    assert train(model_dir, f"{BATCH}=20", mode="eval")["validation_loss"] > 0


def test_the_command_line_refuses_without_tensorflow(tmp_path):
    """N9, N6: exit code 2 at once; the flag is offered."""
    model_dir = str(tmp_path / "run")
    resolved = configuration.resolve(registry.get_config("digits_mlp", ROOT), experiment="digits_mlp")
    before = Job(experiment="digits_mlp", resolved=resolved, model_dir=model_dir, mode="train")
    toy.commit(model_dir, 10, before.facts)
    Path(model_dir, "run.json").write_text(json.dumps({"experiment": "digits_mlp", "run_id": "1"}))
    argv = ["train", "--experiment=digits_mlp", f"--model_dir={model_dir}", f"{BATCH}=32"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", LIGHT, *argv], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"error: --model_dir={model_dir}: the config is not the one that ckpt-10 was saved")
    assert f"{BATCH}: 64 -> 32 (--set)" in done.stderr
    assert "add --allow_config_change" in done.stderr
