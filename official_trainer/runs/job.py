"""A job: an experiment, its config, a mode and a run directory; and what can be refused at once.

Owns: every check of a job that needs no TensorFlow.
Does not own: building or running anything.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from official_trainer import config as configuration
from official_trainer import files, lazy
from official_trainer.checkpoints.manifest import RunFacts
from official_trainer.config import ConfigError, Problem, Resolved, fields, installed, learning_rate, modes
from official_trainer.config.components import Component
from official_trainer.distributed import parameter_server
from official_trainer.distributed.cluster import Cluster
from official_trainer.distributed.strategy import strategy_name
from official_trainer.garden.gin_bindings import Bindings
from official_trainer.inputs import BatchSizeError, DataError
from official_trainer.lock import DirectoryLock, command_text
from official_trainer.runs.resume import config_changes, garden_run
from official_trainer.shown import first_few
from official_trainer.tasks import optimization, registry
from official_trainer.tracking import git_state
from official_trainer.tracking.record import check_name

if TYPE_CHECKING:
    from official_trainer.engine.events import DueSteps

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prebuilt:
    """What a program has built that calls the engine, and writes to the run directory too.

    Attributes:
      trainer: a Trainer with the config of the job; nothing else is built.
      due: the loop's `DueSteps`; None for those of the config.
      actions: actions to run, beside those of the trainer, the task and the config.
      summaries: takes the tracker of TensorBoard's files, and returns the one to use.
    """

    trainer: Any
    due: DueSteps | None = None
    actions: Sequence[Any] = ()
    summaries: Callable[[Any], Any] = lambda board: board


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One run to do: an experiment, its config, and where it leaves what it makes.

    Attributes:
      experiment: registered name.
      resolved: its config, and who set what.
      model_dir: the run directory.
      mode: one of `modes.MODES`.
      quiet: whether nothing is printed while it runs.
      argv: the command line, for the record.
      allow_config_change: whether a run may continue with another config than its checkpoint's.
      cluster: the processes that take part; None for this one alone.
      gin: what the gin flags bind; None without gin flags.
      prebuilt: what the caller has built; None for a job that is described by its config.
      gpus: how many GPUs each process will get, as far as that is known before it runs.
      until_step: the step at which this process stops, before `trainer.train_steps`; None for no such step.
    """

    experiment: str
    resolved: Resolved
    model_dir: str
    mode: str
    quiet: bool = False
    argv: Sequence[str] = ()
    allow_config_change: bool = False
    cluster: Cluster | None = None
    gin: Bindings | None = None
    prebuilt: Prebuilt | None = None
    gpus: int = 0
    until_step: int | None = None

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief: only the chief writes to the run directory."""
        return self.cluster is None or self.cluster.is_chief

    @property
    def serves(self) -> bool:
        """Whether this process only does what a coordinator sends it."""
        cluster = self.cluster
        has_coordinator = strategy_name(self.config.runtime, cluster) == "parameter_server"
        return cluster is not None and has_coordinator and cluster.role in parameter_server.SERVING

    @property
    def shares_directory(self) -> bool:
        """Whether others may have written to the run directory: the calling program, or Model Garden's driver."""
        return self.prebuilt is not None or garden_run.is_one(self.model_dir)

    @property
    def config_digest(self) -> str:
        """A checksum of the config, the same in all processes of a run."""
        return configuration.digest(self.config.replace(runtime=self.config.runtime.replace(task_index=None)))

    @property
    def config(self) -> Any:
        """The resolved config."""
        return self.resolved.config

    @property
    def chosen_fields(self) -> set[str]:
        """The fields that tell this run from others of its experiment: those that files and flags have set.

        A program makes its config itself: those that differ from their defaults. What leaves the weights of each step
        as they are, such as intervals, is left out.
        """
        trail = self.resolved.trail
        paths = [path.partition("[")[0] for path in trail.touched()] + trail.touched()  # in a list, that list
        if self.prebuilt is not None:
            paths = [path for path in configuration.flat(self.config) if trail.origin(path).kind == "experiment"]
        return {path for path in paths if not config_changes.is_safe(path) or path == "task.init_checkpoint"}

    @property
    def facts(self) -> RunFacts:
        """What the manifests of its checkpoints say about the run, before its data is built."""
        bound = {} if self.gin is None or self.gin.bound is None else dict(self.gin.bound)
        text = configuration.dump(self.config, shared=True)
        return RunFacts(experiment=self.experiment, config=text, gin=bound, commit=git_state.given_commit())

    @property
    def launch(self) -> dict[str, Any]:
        """How this process was started, for the record."""
        return {
            "experiment": self.experiment,
            "mode": self.mode,
            "argv": self.argv,
            "config_digest": self.config_digest,
        }

    def check_changes(self, step: int | None = None) -> tuple[config_changes.Change, ...]:
        """Returns what has changed since the checkpoint of `step`, or the newest, from which training continues.

        Raises:
          ConfigError: a change is not safe, and changes are not allowed.
        """
        return config_changes.accepted_changes(
            self.model_dir,
            self.resolved,
            self.gin,
            git_state.given_commit(),
            allow_config_change=self.allow_config_change,
            step=step,
        )

    def lock(self, directory: str, **options: Any) -> DirectoryLock:
        """Returns a lock on a directory that shows other processes what this one does there."""
        description = {"command": command_text(self.argv), "mode": self.mode}
        return DirectoryLock(directory, description=description, **options)

    def path(self, *names: str) -> str:
        """Returns a path inside the run directory."""
        return files.join(self.model_dir, *names)


def check_ready(job: Job) -> None:
    """Refuses, before TensorFlow is imported, what could only fail later.

    Raises:
      UserError: the mode is unknown, the config lacks what the mode needs, or `model_dir` has an unfit name.
    """
    modes.refuse_unknown(job.mode)
    check_name(job.model_dir)
    task_classes = [registry.get_task_cls(task, path) for path, task in _tasks(job.config)]
    problems = [*_cluster_problems(job), *_gpu_problems(job)]
    if job.until_step is not None and job.mode not in modes.TRAINING_MODES:
        what, fix = f"would have no effect with mode {job.mode}", "leave one of them out"
        problems.append(Problem(what, "until_step", got=str(job.until_step), fix=fix))
    if any(lazy.imports_keras_3(getattr(cls, "__module__", "")) for cls in task_classes):
        problems += keras_3_problems(job)
    if job.mode in (*modes.TRAINING_MODES, "continuous_train_and_eval"):
        problems += _training_problems(job)
        rate_finding = learning_rate.finding(job.resolved)
        problems += [rate_finding.problem] if rate_finding is not None and rate_finding.is_fatal else []
    if job.mode not in ("eval", "predict"):
        problems += _tracker_problems(job)
    problems += [*_source_problems(job), *format_problems(job)]
    if problems:
        raise ConfigError(problems)


def warn(job: Job) -> None:
    """Warns, in one line each, of what a job that is ready to train was likely not meant to do."""
    trains = job.mode in (*modes.TRAINING_MODES, "continuous_train_and_eval")
    if job.is_chief and trains and (rate_finding := learning_rate.finding(job.resolved)) is not None:
        _logger.warning("%s", rate_finding.problem.message)


def format_problems(job: Job) -> Iterator[Problem]:
    """Yields what keeps the formats of `trainer.export.formats` from being written, such as a missing library."""
    if job.mode in ("eval", "predict") or not (formats := job.config.trainer.export.formats):
        return
    path = "trainer.export.formats"
    if hasattr(job.config.task, "task_routines"):
        what, fix = "are of one task, and this experiment has several", "leave them out: the SavedModel has all tasks"
        yield _problem(job, path, what, fix)
    if job.cluster is not None:  # batches of several processes come to all of them together, and one exports
        fix = "leave them out, and afterwards: official-trainer export --model_dir=DIR --format=…"
        yield _problem(job, path, "are written by a single process, and this run has several", fix)
    kinds = installed.load_part("official_trainer.formats.kinds", path)
    for what, fix in kinds.missing(formats):
        yield _problem(job, path, what, fix)


def keras_3_problems(job: Job) -> Iterator[Problem]:
    """Yields that Keras 3 cannot compute under the strategy of a job, whose model is of it."""
    name = strategy_name(job.config.runtime, job.cluster)
    if name not in ("parameter_server", "tpu"):
        return
    fix = "use mirrored or multi_worker_mirrored; or build the model with `from official_trainer.lazy import keras`"
    if job.config.runtime.distribution_strategy == "auto" and job.cluster is not None:
        fix = f"leave out the parameter servers of {job.cluster.source}; {fix.partition('; ')[2]}"
    what = f"{name} is for models of tf_keras, and this experiment's is of Keras 3"
    yield _problem(job, "runtime.distribution_strategy", what, fix)


def _cluster_problems(job: Job) -> Iterator[Problem]:
    """Refuses a strategy that does not go with the processes that take part."""
    path, cluster = "runtime.distribution_strategy", job.cluster
    name = strategy_name(job.config.runtime, cluster)
    what, fix = "", ""
    if cluster is None or len(cluster.training) < 2:
        if name == "multi_worker_mirrored" and job.mode in modes.TRAINING_MODES:
            what = f"{name} needs several workers, and their addresses are not configured"
            fix = "set TF_CONFIG, or runtime.worker_hosts and runtime.task_index, or start it with a launcher"
    else:
        if name in ("off", "one_device", "mirrored"):
            members = " and ".join(f"{len(addresses)} × {role}" for role, addresses in cluster.addresses.items())
            what = f"{name} is for one process, and by {cluster.source} this is {cluster.name} of {members}"
            fix = f"use auto, or start it without {cluster.source}"
        elif job.mode == "continuous_train_and_eval" or (job.serves and job.mode not in modes.TRAINING_MODES):
            what, fix = f"mode {job.mode} runs in one process, and this is {cluster.name}", "start it alone"
        elif name == "parameter_server" and (missing := parameter_server.missing_roles(cluster)):
            what = f"{name} needs a chief, workers and parameter servers, and {cluster.source} has no"
            what, fix = f"{what} {' and no '.join(missing)}", "add them, or use multi_worker_mirrored"
    if what:
        yield _problem(job, path, what, fix)
    elif cluster is not None:
        for field, unset in (("num_logical_cpus", (None, 1)), ("tpu", (None, ""))):
            if getattr(job.config.runtime, field) not in unset:
                what = f"has no effect in the cluster of {cluster.source}"
                yield _problem(job, f"runtime.{field}", what, "leave it out")


def say_place(error: BaseException, job: Job) -> None:
    """Puts the file and line that set a field into the error of data that the field describes wrongly."""
    if isinstance(error, DataError) and error.field:
        with contextlib.suppress(ConfigError):  # a section that a caller has built in Python
            origin = job.resolved.origin(error.field)
            error.place = origin.brief if origin.kind == "file" else ""


def _problem(job: Job, path: str, what: str, fix: str) -> Problem:
    return Problem(what, path, fix=fix, origin=job.resolved.origin(path))


def _gpu_problems(job: Job) -> Iterator[Problem]:
    """Refuses GPUs that processes do not get or cannot use, and batches that do not divide over what shares them."""
    path, wanted = "runtime.num_gpus", job.config.runtime.num_gpus
    name = strategy_name(job.config.runtime, job.cluster)
    used = job.gpus if wanted is None else min(wanted, job.gpus)  # 0 where that is not known before it runs
    if job.gpus and (wanted or 0) > job.gpus:
        what = f"asks for {wanted} GPUs, and each process is given {job.gpus}"
        yield _problem(job, path, what, f"leave it out, or set resources.gpus to {wanted}")
    elif name == "parameter_server" and used > 1:
        what = f"is {used} in each worker, and under a coordinator a worker uses one"
        yield _problem(job, path, what, "set resources.gpus to 1, and start a worker for each GPU")
    count = len(job.cluster.training) if name == "multi_worker_mirrored" and job.cluster is not None else 1
    if name in ("multi_worker_mirrored", "mirrored", "auto") and used > 1:
        yield from batch_size_problems(job, count * used, "GPUs")
    else:
        yield from batch_size_problems(job, count, "workers")


def batch_size_problems(job: Job, count: int, what: str) -> Iterator[Problem]:
    """Yields what is wrong with batches that `count` replicas share; `what` is the word for them in messages."""
    names = ("train_data", "validation_data")
    sections = ((f"{path}.{name}", getattr(task, name, None)) for path, task in _tasks(job.config) for name in names)
    for path, section in sections:
        if section is None or (path.startswith("eval_tasks") and path.endswith("train_data")):
            continue
        size, accumulated = section.global_batch_size, job.config.trainer.gradient_accumulation_steps
        micro_batches = accumulated if path.endswith("train_data") else 1
        if size % (count * micro_batches):
            shares = [f"{count} {what}"] * (count > 1) + [f"{micro_batches} micro-batches"] * (micro_batches > 1)
            fix = f"use {BatchSizeError(size, count * micro_batches).choices}"
            fix += ", or another trainer.gradient_accumulation_steps" if micro_batches > 1 else ""
            yield _problem(
                job, f"{path}.global_batch_size", f"{size} does not divide over {' with '.join(shares)}", fix
            )


def _tasks(config: Any) -> Iterator[tuple[str, Any]]:
    """Yields the sections that a Task is built from, each with its path: the task, or several and those inside."""
    yield "task", config.task
    for path, routines in (("task.task_routines", config.task), ("eval_tasks", config)):
        for number, routine in enumerate(getattr(routines, path.rpartition(".")[2], ())):
            yield f"{path}[{number}].task_config", routine.task_config


def _training_problems(job: Job) -> Iterator[Problem]:
    trainer = job.config.trainer
    if not trainer.train_steps and trainer.train_epochs is None:
        what, fix = "is 0, so there is nothing to train", "set it, or trainer.train_epochs"
        yield _problem(job, "trainer.train_steps", what, fix)
    if job.mode == "continuous_train_and_eval" and not job.config.task.init_checkpoint:
        fix = f"{job.mode} starts from the checkpoints of that directory"
        yield _problem(job, "task.init_checkpoint", "is not set", fix)
    for problem in () if _makes_optimizer(job) else optimization.unset(trainer.optimizer_config):
        yield dataclasses.replace(problem, origin=job.resolved.origin(problem.path))
    if strategy_name(job.config.runtime, job.cluster) == "parameter_server":
        for path, what, fix in parameter_server.unsupported(job.config):
            yield _problem(job, path, what, fix)


def _makes_optimizer(job: Job) -> bool:
    from official_trainer.tasks.task import makes_optimizer

    with contextlib.suppress(ConfigError):  # that there is no Task is said where it is made
        return makes_optimizer(registry.get_task_cls(job.config.task))
    return False


def _not_installed(job: Job, component: Component, path: str) -> Iterator[Problem]:
    """Yields that a component at `path` needs what is not installed."""
    missing = [name for name in component.NEEDS if lazy.spec_of(name) is None]
    if missing:
        what = f"'{component.type}' needs {', '.join(missing)}, which is not installed"
        fix = f"pip install '{component.INSTALL or ' '.join(missing)}'"
        yield _problem(job, f"{path}.type", what, fix)


def _source_problems(job: Job) -> Iterator[Problem]:
    for task_path, task in _tasks(job.config):
        classes: dict[str, tuple[str, ...]] = {}
        for name in ("train_data", "validation_data"):
            source = getattr(getattr(task, name, None), "source", None)
            for path, section in fields.in_force(source, f"{task_path}.{name}.source"):
                if isinstance(section, configuration.SourceConfig):  # parts of a mixture are sources, too
                    yield from _not_installed(job, section, path)
                    classes |= {path: names} if (names := section.class_names()) else {}
        if job.mode != "predict":  # which needs no labels
            yield from _class_problems(job, classes)


def _class_problems(job: Job, classes: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    """Refuses sources whose labels would stand for other classes than those of the first; they are given by path."""
    first, wanted = next(iter(classes.items()), ("", ()))
    for path, names in classes.items():
        lacking, more = ([name for name in a if name not in b] for a, b in ((wanted, names), (names, wanted)))
        if names != wanted:
            said = [f"it lacks {first_few(lacking)}"] * bool(lacking) + [f"it adds {first_few(more)}"] * bool(more)
            what = f"its labels are not those of {first}: {', and '.join(said) or 'the classes are in another order'}"
            fix = "name all classes, in one order, in the field `classes` of both"
            yield Problem(what, path, fix=fix, origin=job.resolved.origin(f"{path}.type"))


def _tracker_problems(job: Job) -> Iterator[Problem]:
    trackers = job.config.trainer.trackers
    for number, tracker in enumerate(trackers):
        path = f"trainer.trackers[{number}]"
        yield from _not_installed(job, tracker, path)
        same = [other for other in trackers[:number] if other.replace(on_error=tracker.on_error) == tracker]
        if same:
            what = f"is there twice, as trainer.trackers[{trackers.index(same[0])}] too: both would write the same"
            yield Problem(what, path, fix="remove one", origin=job.resolved.origin(f"{path}.type"))
        elif any((tracker.type, other.type) == ("tensorboard", "tensorboard") for other in trackers[:number]):
            what = "is the second section of type 'tensorboard', and there is one for the run's files"
            yield _problem(job, f"{path}.type", what, "put the settings into one section")
