"""`run_experiment`: Model Garden's driver function, for programs with a strategy, a task and parameters of their own.

Owns: its signature and return value, what each argument means here, and the refusal of arguments without a meaning.
Does not own: training (`runs/train.py`), evaluating (`runs/evaluate.py`), conversion of configs
(`garden/from_garden.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import orbit

from official_trainer.actions.action import Action, Callback, Run
from official_trainer.config import (
    ConfigError,
    DataConfig,
    ExperimentConfig,
    ExportConfig,
    Problem,
    Resolved,
    RuntimeConfig,
    TrainerConfig,
    checks,
    fields,
    provenance,
)
from official_trainer.config.decode import normalised
from official_trainer.config.modes import TRAINING_MODES, refuse_unknown
from official_trainer.engine import process
from official_trainer.engine.step_context import TrainerOptions
from official_trainer.engine.trainer import Trainer
from official_trainer.errors import ExitCode, UserError
from official_trainer.garden import to_garden
from official_trainer.garden.from_garden import from_description
from official_trainer.garden.spec import describe, is_config_class, is_free
from official_trainer.lazy import keras, tf
from official_trainer.nearest import nearest
from official_trainer.runs import evaluate, train
from official_trainer.runs.build import best_checkpoint, with_named_sets
from official_trainer.runs.job import Job, Prebuilt
from official_trainer.runs.mistakes import report
from official_trainer.stopping import StopRequest
from official_trainer.tasks import random_streams
from official_trainer.tracking import IMAGES, Image, Tracker, Trackers


class ArgumentError(UserError, TypeError):
    """An argument of `run_experiment` that cannot mean anything here."""

    exit_code = ExitCode.CONFIG


def run_experiment(  # noqa: PLR0913 - the signature is Model Garden's
    distribution_strategy: tf.distribute.Strategy,
    task: Any,
    mode: str,
    params: Any,
    model_dir: str,
    run_post_eval: bool = False,
    save_summary: bool = True,
    train_actions: list[orbit.Action] | None = None,
    eval_actions: list[orbit.Action] | None = None,
    trainer: Trainer | None = None,
    controller_cls: Any = orbit.Controller,
    summary_manager: orbit.utils.SummaryManagerInterface | None = None,
    eval_summary_manager: orbit.utils.SummaryManagerInterface | None = None,
    enable_async_checkpointing: bool = False,
    *,
    allow_config_change: bool = False,
) -> tuple[keras.Model, Mapping[str, Any]]:
    """Does what `official.core.train_lib.run_experiment` does, as a run of this engine.

    With a config of Model Garden, a seed that the program sets before, by Keras's `set_random_seed`, gives the initial
    weights that it gives there. Without one, and with a config of ours, it is `runtime.seed`.

    Args:
      distribution_strategy: under which the model is built; None for the one in scope. Of one process.
      task: the task, Model Garden's or ours.
      mode: `train`, `eval`, `train_and_eval`, `train_and_post_eval` or `continuous_eval`.
      params: the experiment's config, Model Garden's or ours. Fields that Model Garden's does not have are at their
        defaults.
      model_dir: the run directory; what the caller writes there stays as it is.
      run_post_eval: whether the results of the last evaluation are returned; mode `train` makes one at the end then.
      save_summary: whether TensorBoard files are written.
      train_actions: called every `steps_per_loop` steps with what `train_loop_end` returned for these. Then each of
        them has its summary too.
      eval_actions: called after each evaluation with what `evaluate` returned.
      trainer: a Trainer of this package, or derived from it, built under the strategy; its best checkpoint is the
        exporter's that it has. None builds one.
      controller_cls: there is no controller here; anything but `orbit.Controller` is refused.
      summary_manager: takes the numbers of training in place of TensorBoard files, names of nested ones joined.
      eval_summary_manager: the same for evaluations.
      enable_async_checkpointing: whether training continues while a checkpoint is written; with a config of ours, which
        has this field too, only true has an effect.
      allow_config_change: not of Model Garden: whether the run in `model_dir` goes on with other values than its
        checkpoint was saved with, such as those of a program's next stage.

    Returns:
      The model, and what the last evaluation returned if `run_post_eval` is set or mode is `train_and_post_eval`, else
      `{}`. Of an evaluation that an earlier process made, its flat numbers.

    Raises:
      ArgumentError: an argument cannot mean anything here.
      ConfigError: values of `params` are wrong.
      UserError: as the command line would raise; `exit_code` is for the kind of failure.

    Example:
      >>> import numpy as np
      >>> from official_trainer import Task, inputs, run_experiment
      >>> from official_trainer.config import DataConfig, ExperimentConfig, ExportConfig, TaskConfig, TrainerConfig
      >>> from official_trainer.lazy import keras, tf
      >>> class Line(Task):
      ...     def build_model(self):
      ...         return keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
      ...
      ...     def build_inputs(self, params, input_context=None):
      ...         x = np.linspace(-1, 1, 64, dtype="float32")[:, None]
      ...         return inputs.from_arrays((x, 3 * x + 1), params, input_context)
      ...
      ...     def build_losses(self, labels, model_outputs, aux_losses=None):
      ...         return keras.losses.mean_squared_error(labels, model_outputs)
      ...
      ...     @classmethod
      ...     def create_optimizer(cls, optimizer_config, runtime_config=None, dp_config=None):
      ...         return keras.optimizers.SGD(0.3)
      >>> data = DataConfig(global_batch_size=16)
      >>> params = ExperimentConfig(
      ...     task=TaskConfig(train_data=data, validation_data=data),
      ...     trainer=TrainerConfig(train_steps=100, export=ExportConfig(at_end=False)),
      ... )
      >>> model, results = run_experiment(
      ...     tf.distribute.get_strategy(), Line(params.task), "train_and_eval", params, "runs/line", run_post_eval=True
      ... )
      Line: 2 parameters on 1 CPU, starting in runs/line
      step 1/100  loss ...
      saved ckpt-100
      finished at step 100: runs/line
      saved there: ckpt-100, metrics.jsonl
      time: ...
      >>> f"{results['validation_loss']:.3f}"
      '0.000'
      >>> sorted(path for path in tf.io.gfile.listdir("runs/line") if path.startswith("ckpt-100"))
      ['ckpt-100.data-00000-of-00001', 'ckpt-100.index', 'ckpt-100.manifest.json']
    """
    _check_arguments(distribution_strategy, mode, model_dir, controller_cls)
    strategy = distribution_strategy or tf.distribute.get_strategy()
    config = _engine_config(params, is_async=enable_async_checkpointing)
    _check_trainer(trainer, mode, getattr(config, "eval_tasks", ()))
    name = type(task).__name__
    on_train = [*(train_actions or ())]
    prunes = bool(getattr(params.task, "pruning", None))
    if on_train or prunes:
        config = _with_summary_of_each_loop(config)
    job = Job(
        experiment=name,
        resolved=Resolved(config, name, provenance.Trail(config, name)),
        model_dir=str(model_dir),
        mode="train_and_post_eval" if mode == "train" and run_post_eval else mode,
        argv=tuple(sys.argv),
        allow_config_change=allow_config_change,
    )
    if job.mode in TRAINING_MODES and not config.trainer.train_steps and config.trainer.train_epochs is None:
        raise ConfigError([Problem("is 0, so there is nothing to train", "trainer.train_steps", fix="set it")])
    process.configure_steps(config.runtime)
    with random_streams.enabled(config.runtime.seed, keeps_seeds=not isinstance(params, ExperimentConfig)):
        with strategy.scope():
            trainer = trainer or _build_trainer(job, task, params)
        trainer.use_config(_as_read(config, params))
        if prunes and job.mode in TRAINING_MODES:
            on_train.append(_pruning_action(trainer, job.model_dir))
        results = _Results()
        wants_results = run_post_eval or mode == "train_and_post_eval"
        actions = [
            *(_OrbitAction(action, on="train") for action in on_train),
            *(_OrbitAction(action, on="eval") for action in eval_actions or ()),
            *([results] if wants_results else []),
        ]
        managers = {"train": summary_manager if save_summary else None, "validation": eval_summary_manager}
        prebuilt = Prebuilt(
            trainer=trainer,
            actions=actions,
            summaries=lambda board: _Managed(managers, board if save_summary else Tracker()),
        )
        metrics = _run(dataclasses.replace(job, prebuilt=prebuilt))
        return trainer.model, dict(results.newest or metrics) if wants_results else {}


def _run(job: Job) -> Mapping[str, Any]:
    with StopRequest.of(job.config.runtime) as stop, report.noted():
        if job.mode in TRAINING_MODES:
            try:
                return train.train(job, stop, is_whole_command=False)
            except UserError as error:
                if "--allow_config_change" in str(error):
                    error.add_note("In a program: run_experiment(…, allow_config_change=True)")
                raise
        if job.mode == "continuous_eval":
            return evaluate.continuous_eval(job, stop)
        return evaluate.evaluate(job, "latest")


# Arguments.


def _check_arguments(strategy: Any, mode: str, model_dir: Any, controller_cls: Any) -> None:
    refuse_unknown(mode)
    if mode in ("continuous_train_and_eval", "predict"):
        raise ArgumentError(f"mode {mode} has no arguments here; use official-trainer train --mode={mode}")
    if not model_dir:
        raise ArgumentError(f"model_dir is {model_dir!r}; name the directory of the run")
    if controller_cls is not orbit.Controller:
        name = getattr(controller_cls, "__name__", repr(controller_cls))
        raise ArgumentError(
            f"controller_cls={name}: there is no orbit.Controller here whose place it could take. Leave it out; for "
            "what is to happen at a step use train_actions, eval_actions, or an Action (docs/guides/actions.md)"
        )
    is_of_many = isinstance(strategy, tf.distribute.ParameterServerStrategy | tf.distribute.MultiWorkerMirroredStrategy)
    cluster = strategy.cluster_resolver.cluster_spec().as_dict() if strategy is not None and is_of_many else {}
    if (num_processes := sum(map(len, cluster.values()))) > 1:
        raise ArgumentError(
            f"distribution_strategy: {type(strategy).__name__} over {num_processes} processes, of which only one may "
            "lead a run; official-trainer starts them so (docs/guides/launch.md)"
        )


def _check_trainer(trainer: Any, mode: str, routines: Sequence[Any]) -> None:
    """Refuses what is no Trainer of this package, or would not evaluate the sets of the config."""
    if trainer is not None and not isinstance(trainer, Trainer):
        cls = type(trainer)
        raise ArgumentError(
            f"trainer is a {cls.__module__}.{cls.__qualname__}; this loop runs official_trainer.engine.Trainer, which "
            "has the same constructor and override points: derive from that, or give none"
        )
    if trainer is not None and mode != "train" and routines and not trainer.context.options.eval_tasks:
        names = ", ".join(routine.name for routine in routines)
        raise ArgumentError(
            f"trainer: it evaluates none of the sets of params.eval_tasks ({names}). Build it with options="
            "TrainerOptions(eval_tasks=[Part(name=…, task=…), …]), or leave it out: one that evaluates them is built"
        )


# Configs.


def _engine_config(params: Any, *, is_async: bool) -> ExperimentConfig:
    """Returns the engine's view of `params`, checked."""
    if isinstance(params, ExperimentConfig):
        config = params
        if is_async:
            config = config.replace(trainer=config.trainer.replace(async_checkpoint=True))
    else:
        if not is_config_class(type(params)) or is_free(params) or not hasattr(params, "trainer"):
            raise ArgumentError(
                f"params is a {type(params).__name__}; it must be an ExperimentConfig, Model Garden's "
                "(official.core.config_definitions) or ours (official_trainer.config)"
            )
        _refuse_unknown_fields(params)
        config = from_description(describe(params))
        task: Any = config.task
        for name in ("train_data", "validation_data"):
            if getattr(task, name, 0) is None:  # datasets come with the trainer
                task = task.replace(**{name: DataConfig()})
        # A model of Model Garden does not define what a server would call it with, so nothing is exported.
        trainer = config.trainer.replace(async_checkpoint=is_async, export=ExportConfig(at_end=False))
        runtime = config.runtime.replace(distribution_strategy=config.runtime.distribution_strategy.lower())  # as there
        config = config.replace(task=task, trainer=trainer, runtime=runtime)
    _check_config(config)
    return config


def _refuse_unknown_fields(params: Any) -> None:
    """Refuses misspelt fields of sections that only the engine reads; Model Garden's take any assignment."""
    problems = []
    for name in ("trainer", "runtime"):
        section = getattr(params, name)
        fields = [field.name for field in dataclasses.fields(section)]
        for unknown in sorted(vars(section).keys() - fields) if not is_free(section) else ():
            if not unknown.startswith("_"):
                near = nearest(unknown, fields)
                problems.append(Problem("unknown field", f"{name}.{unknown}", near=near[0] if near else ""))
    if problems:
        raise ConfigError(problems)


def _check_config(config: ExperimentConfig) -> None:
    """Refuses values that the engine's own sections do not take.

    Raises:
      ConfigError: with all of them.
    """
    problems: list[Problem] = []
    for name, base in (("trainer", TrainerConfig), ("runtime", RuntimeConfig)):
        for field, hint in fields.hints(base).items():
            value = getattr(getattr(config, name), field)
            if not fields.is_section(value):
                problems += normalised(value, hint, f"{name}.{field}")[1]
    if not problems:
        problems += checks.rules(list(checks.sections_in_force(config)), provenance.Trail(config), [])
    if problems:
        raise ConfigError(problems)


def _with_summary_of_each_loop(config: ExperimentConfig) -> ExperimentConfig:
    trainer = config.trainer
    if trainer.summary_interval % trainer.steps_per_loop:
        what = f"must be a multiple of steps_per_loop={trainer.steps_per_loop}, after which train_actions are called"
        raise ConfigError([Problem(what, "trainer.summary_interval", got=str(trainer.summary_interval))])
    return config.replace(trainer=trainer.replace(summary_interval=trainer.steps_per_loop))


def _as_read(config: ExperimentConfig, params: Any) -> Any:
    """Returns the config that task and Trainer read: the caller's own task and optimizer sections, all else ours."""
    if isinstance(params, ExperimentConfig):
        return config
    trainer = config.trainer.replace(optimizer_config=params.trainer.optimizer_config)
    config = config.replace(task=params.task, trainer=trainer)
    if not (routines := getattr(config, "eval_tasks", ())):
        return config
    theirs = [routine.task_config for routine in params.eval_tasks]
    return config.replace(eval_tasks=[r.replace(task_config=t) for r, t in zip(routines, theirs, strict=True)])


# Parts.


def _build_trainer(job: Job, task: Any, params: Any) -> Trainer:
    """Returns a Trainer for the task, built as Model Garden builds it; called in the strategy's scope."""
    trains, evaluates = job.mode in TRAINING_MODES, job.mode != "train"
    model = task.build_model()
    create_optimizer = functools.partial(to_garden.create_optimizer, task, params, model)
    if isinstance(params, ExperimentConfig):
        create_optimizer = functools.partial(task.create_optimizer, params.trainer.optimizer_config, params.runtime)
    config, named = with_named_sets(_as_read(job.config, params), job.model_dir)
    return Trainer(
        config,
        task,
        model,
        create_optimizer() if trains else None,
        train=trains,
        evaluate=evaluates,
        checkpoint_exporter=best_checkpoint(job) if evaluates and job.mode != "eval" else None,
        options=TrainerOptions(eval_tasks=named),
    )


# Actions and summaries.


def _pruning_action(trainer: Trainer, model_dir: str) -> Any:
    """Returns Model Garden's action without which steps of a model that is pruned fail."""
    from official.core import actions as garden_actions

    return garden_actions.PruningAction(export_dir=model_dir, model=trainer.model, optimizer=trainer.optimizer)


class _OrbitAction(Callback):
    """An action of orbit; gets what the trainer returned, unchanged."""

    def on_step(self, run: Run) -> None:
        if self._on == "train":
            self._function(dict(run.outputs))

    def on_eval(self, run: Run, logs: Mapping[str, float]) -> None:
        if self._on == "eval":
            self._function(dict(run.outputs))


class _Results(Action):
    """Keeps what the newest evaluation returned, off the device."""

    name = "results of run_experiment"

    def __init__(self) -> None:
        self.newest: Mapping[str, Any] = {}

    def on_eval(self, run: Run, logs: Mapping[str, float]) -> None:
        self.newest = tf.nest.map_structure(orbit.utils.get_value, dict(run.outputs))


class _Managed(Trackers):
    """Lets orbit's summary managers write their splits; they take the step from the run's variable.

    Of media they get what Model Garden's takes: images whose names begin with `image/`, `[1, height, width, channels]`.
    """

    def __init__(self, managers: Mapping[str, Any], rest: Tracker) -> None:
        super().__init__([rest])
        self._managers = managers

    def log(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        if (manager := self._managers.get(split)) is None:
            super().log(split, step, values)
        else:
            manager.write_summaries(dict(values))
            manager.flush()

    def publish(self, split: str, step: int, media: Mapping[str, Any]) -> None:
        manager = self._managers.get(split)
        if manager is not None:
            named = {name: thing for name, thing in media.items() if name.startswith(IMAGES)}
            images = {name: thing.pixels[None] for name, thing in named.items() if isinstance(thing, Image)}
            self.log(split, step, images)
            media = {name: thing for name, thing in media.items() if name not in images}
        super().publish(split, step, media)
