"""The typed sections every experiment has: `ExperimentConfig{task, trainer, runtime}`.

Owns: field names, types, defaults and their documentation; Model Garden's names wherever it has the field.
Does not own: the optimizer's section (`optimization.py`), the fields of one task (in its file in `experiments/`).

Every field here is read by the engine. Remove a field that nothing reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from official_trainer.config.components import ActionConfig, Component, TrackerConfig
from official_trainer.config.declaration import (
    Between,
    Config,
    FrozenDict,
    Guarded,
    NonNegative,
    OfVariables,
    Positive,
    PositiveFloat,
    Safe,
)
from official_trainer.config.decode import check_section
from official_trainer.config.folders import folder_problem
from official_trainer.config.optimization import OptimizationConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceConfig(Component):
    """Where examples come from, as random access by their number: the field `source` of a data section.

    `type` is the name of a file in `sources/`, of the package or of the workspace, or of an entry point
    `official_trainer.sources` of an installed package. Subclasses define `build()`, which takes nothing and returns an
    `inputs.Source`, or any object with `__len__` and `__getitem__`; `inputs.from_source` calls it.

    Example:
      A file `sources/squares.py` of the workspace, used by `task.train_data.source={type: squares, count: 100}`:

      >>> import dataclasses
      >>> from official_trainer.config import Positive, SourceConfig
      >>> @dataclasses.dataclass(frozen=True, kw_only=True)
      ... class SquaresConfig(SourceConfig):
      ...     count: Positive = 10
      ...
      ...     def build(self):
      ...         return [{"x": float(number), "y": float(number**2)} for number in range(self.count)]
      >>> SquaresConfig(count=3).build()[2]
      {'x': 2.0, 'y': 4.0}
    """

    FOLDER: ClassVar[str] = "sources"
    GROUP: ClassVar[str] = "official_trainer.sources"

    def class_names(self) -> tuple[str, ...]:
        """Returns the names of the classes, in the order of their labels from 0; empty if they are not known."""
        return ()

    def check_values(self) -> None:
        """Refuses what a file could not set either: for a section that code gives to `inputs.from_source` itself.

        Raises:
          ConfigError: with all problems.
        """
        check_section(self, "source")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """Where examples come from and how they become batches.

    Attributes:
      source: where examples are read by their number, for `inputs.from_source`; `type` names a file of `sources/`.
        Not with `input_path` or `tfds_name`.
      workers: threads that read a `source` at the same time; unset means one for each core, at most 16. The order of
        examples does not depend on it.
      use_multiprocessing: whether processes read a `source` instead, for transforms that take long in Python.
      allow_non_finite: names of features and labels that may hold NaN or infinities, because the model handles them;
        `check` does not list these. It is so, too, of columns for which `fill_null` of a source is NaN.
      input_path: file path or pattern, or a list of them; for file-based pipelines. Not with `tfds_name`.
      tfds_name: name of a TensorFlow Datasets builder, such as `mnist` or `my_set:1.0.0`. Not with `input_path`.
      tfds_split: split to read, such as `train[:90%]`; needed with `tfds_name`.
      tfds_data_dir: directory with prepared TFDS data; empty means TFDS's own default.
      tfds_as_supervised: whether TFDS yields `(input, label)` pairs instead of dictionaries.
      global_batch_size: examples in a batch, summed over all replicas.
      is_training: whether the data is repeated, and shuffled by default. Unset means true for `train_data`
        and false for `validation_data`.
      shuffle: whether the order of examples changes from epoch to epoch. Unset means the same as `is_training`.
      shuffle_buffer_size: examples in the buffer that shuffles a stream of files. Data in memory is shuffled fully.
      drop_remainder: whether a last, smaller batch is dropped. Unset means only in training, so that an evaluation
        uses every example.
      cache: whether the serialized examples of files are read into memory at the start, and then shuffled fully.
      cycle_length: files read at the same time; unset means up to 16.
      block_length: consecutive examples taken from one file before the next.
      prefetch_buffer_size: batches prepared ahead; unset means 2.
      sharding: whether each input pipeline of a multi-host job reads its own part of the files.
      seed: seed of the order of examples; unset means `runtime.seed`.
      enable_tf_data_service: whether a tf.data service prepares the batches of `train_data`. Their order is then not
        fixed, so an interrupted run continues near its position in the data, not exactly at it.
      tf_data_service_address: its dispatcher, `grpc://host:port`.
      tf_data_service_job_name: name under which trainers, or the input pipelines of one, share a pass over the data;
        unset gives each its own. Needed with several input pipelines.

    Example:
      >>> from official_trainer.config import DataConfig
      >>> train_data = DataConfig(input_path="data/train-*.tfrecord", global_batch_size=256, cache=True)
      >>> validation_data = train_data.replace(input_path="data/validation.tfrecord")
      >>> validation_data.global_batch_size
      256
    """

    source: SourceConfig | None = None
    workers: Safe[Positive | None] = None
    use_multiprocessing: Safe[bool] = False
    allow_non_finite: Safe[tuple[str, ...]] = ()
    input_path: str | tuple[str, ...] = ""
    tfds_name: str = ""
    tfds_split: str = ""
    tfds_data_dir: str = ""
    tfds_as_supervised: bool = False
    global_batch_size: Positive = 32
    is_training: bool | None = None
    shuffle: bool | None = None
    shuffle_buffer_size: Positive = 10_000
    drop_remainder: bool | None = None
    cache: bool = False
    cycle_length: Positive | None = None
    block_length: Positive = 1
    prefetch_buffer_size: Safe[NonNegative | None] = None
    sharding: bool = True
    seed: int | None = None
    enable_tf_data_service: bool = False
    tf_data_service_address: Safe[str | None] = None
    tf_data_service_job_name: Safe[str | None] = None

    def problems(self) -> Iterator[tuple[str, ...]]:
        if self.enable_tf_data_service and not self.tf_data_service_address:
            what = "is needed with enable_tf_data_service: grpc://host:port of the dispatcher"
            yield "tf_data_service_address", what, "enable_tf_data_service"
        if self.input_path and self.tfds_name:
            yield "tfds_name", "cannot be set together with input_path; keep one of the two", "input_path"
        if self.source is not None and (self.input_path or self.tfds_name):
            other = "input_path" if self.input_path else "tfds_name"
            yield "source", f"cannot be set together with {other}; keep one of the two", other
        if self.tfds_name and not self.tfds_split:
            yield "tfds_split", "is needed with tfds_name, for example tfds_split: train", "tfds_name"
        if self.tfds_split and not self.tfds_name:
            yield "tfds_split", "has no effect without tfds_name"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig(Config):
    """What is learned: model, data, losses. A task declares a subclass with its own `model` and fields.

    Attributes:
      init_checkpoint: checkpoint (or directory with one, or SavedModel) whose model weights a fresh run starts from.
        For a model of Keras 3 it may also be a `.weights.h5`, a `.keras`, or a preset directory of KerasHub.
      init_checkpoint_allow_missing: patterns (shell style) of model variables that `init_checkpoint` may lack, such as
        `head/*`. Every other variable must be restored.
      init_checkpoint_names: names of values in a checkpoint, with those of the model's variables that they are for.
        What a `*` stands for on the left stands for it on the right: `"model/old-*/kernel": "encoder/dense_*/kernel"`.
      model: the model's own section.
      train_data: training examples.
      validation_data: examples for evaluation.

    Example:
      >>> import dataclasses
      >>> from official_trainer.config import Config, DataConfig, Fraction, Positive, TaskConfig
      >>> @dataclasses.dataclass(frozen=True, kw_only=True)
      ... class MlpConfig(Config):
      ...     units: Positive = 64
      >>> @dataclasses.dataclass(frozen=True, kw_only=True)
      ... class DigitsConfig(TaskConfig):
      ...     model: MlpConfig = MlpConfig()
      ...     held_out: Fraction = 0.2
      >>> DigitsConfig(train_data=DataConfig(global_batch_size=64)).held_out
      0.2
    """

    init_checkpoint: Safe[str] = ""
    init_checkpoint_allow_missing: Safe[tuple[str, ...]] = ()
    init_checkpoint_names: Safe[dict[str, str]] = FrozenDict()
    model: OfVariables[Config] = Config()
    train_data: Guarded[DataConfig] = DataConfig()
    validation_data: Safe[DataConfig] = DataConfig()


ExportFormat = Literal[
    "saved_model", "tflite", "tflite_float16", "tflite_dynamic", "tflite_int8", "onnx", "keras", "weights"
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig(Config):
    """SavedModels for serving, written by the run itself.

    Attributes:
      at_end: whether the run ends with an export to `model_dir/export/<step>`, the version that a server serves.
      checkpoint: which weights that export has: those of the last step, or of the best checkpoint.
      best: whether every new best checkpoint is also exported, to `model_dir/export/best/<step>`.
      max_to_keep: how many versions are kept in `export`, and how many in `export/best`, newest first.
      formats: files of other formats in each of these versions, beside the SavedModel; each is read back and compared
        with the model on validation data.
      max_difference: by how much outputs of `tflite_float16`, `tflite_dynamic` and `tflite_int8` may differ from the
        model's, as a mean, in parts of the range of an output. The others compute in float32: theirs is 1e-5, as a
        maximum.

    Example:
      >>> from official_trainer.config import ExportConfig, TrainerConfig
      >>> trainer = TrainerConfig(best_checkpoint_eval_metric="accuracy", export=ExportConfig(best=True, max_to_keep=2))
      >>> trainer.export.best
      True
    """

    at_end: bool = True
    checkpoint: Literal["latest", "best"] = "latest"
    best: bool = False
    max_to_keep: Positive = 1
    formats: tuple[ExportFormat, ...] = ()
    max_difference: PositiveFloat = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainerConfig(Config):
    """How long, how often, and when to stop.

    Attributes:
      optimizer_config: optimizer, learning rate, warm-up and weight averaging.
      train_steps: global step at which training ends.
      train_epochs: passes over the training data, instead of `train_steps`.
      on_data_end: what happens when training data ends early. `error` fails with exit code 3, `stop` ends the run
        there, `repeat` starts the next epoch. Pipelines that repeat by themselves never end.
      steps_per_loop: the largest number of steps in one traced call. It affects speed, never results: every event
        happens at exactly its step.
      summary_interval: steps between two rows of training metrics.
      checkpoint_interval: steps between two checkpoints.
      async_checkpoint: whether training continues while a checkpoint is written. From the first one on, the host needs
        memory for one more copy of model and optimizer.
      max_to_keep: how many of the newest checkpoints are kept; the best ones are kept separately. While a
        `continuous_eval` runs, checkpoints that it has not evaluated yet are kept too.
      keep_checkpoint_every_n_steps: checkpoints at multiples of this step are never deleted, for any `max_to_keep`;
        unset means none. Must be a multiple of `checkpoint_interval`.
      restore_allow_mismatch: patterns (shell style) of variables that may differ between a checkpoint and the program
        when a run continues, such as `optimizer/*` for another optimizer. They start from fresh values; a variable
        that differs and is not named here is refused.
      validation_interval: steps between two evaluations, counted on the global step.
      validation_steps: batches of an evaluation; -1 means all data.
      continuous_eval_timeout: seconds that `continuous_eval` and `continuous_train_and_eval` wait for a new
        checkpoint before they end.
      best_checkpoint_eval_metric: evaluation metric by which the best checkpoint is kept; `a|b` names `b` inside `a`;
        empty keeps none.
      best_checkpoint_metric_comp: whether a `higher` or a `lower` value is better; the opposite of what the metric or
        its task declares is refused.
      best_checkpoint_max_to_keep: how many checkpoints are kept as best, by their values; of equal ones the earlier.
        `best` in a flag, and `info.json` in their folder, mean the first of them.
      best_checkpoint_export_subdir: folder in `model_dir` for the best checkpoint.
      validation_summary_subdir: folder in `model_dir` for TensorBoard files of evaluations.
      loss_upper_bound: training stops when its loss, averaged since the last summary, is above this.
      recovery_begin_steps: steps before which `loss_upper_bound` is not enforced.
      recovery_max_trials: how often a run whose loss is not finite or above the bound returns to its last checkpoint,
        before it fails with exit code 4. A negative number turns the bound off; a state that is not finite is never
        saved.
      recovery_checkpoints_back: how many checkpoints a recovery goes back; later checkpoints are deleted.
      recovery_data: the training data after a recovery. `skip` continues after the data of the lost steps, `skip_batch`
        repeats it without the batch that failed, `repeat` repeats all of it, for failures of the machine.
      recovery_learning_rate_scale: each recovery multiplies the learning rate by this; 1 does not change it.
      gradient_accumulation_steps: number of micro-batches that a batch is split into, for models for which a batch does
        not fit into memory. Their mean gradient is applied as one update, like the gradient of the batch; steps count
        updates. Batch norm uses micro-batches.
      train_tf_function: whether training steps are traced.
      train_tf_while_loop: whether the loop over steps is traced too.
      eval_tf_function: whether evaluation steps are traced.
      eval_tf_while_loop: whether the loop over evaluation steps is traced too. If a task aggregates logs, which is done
        on the host after each step, only the steps are traced.
      max_traces: how often training or evaluation steps may be traced before the run fails with exit code 3. Batches
        with new shapes cause a new trace.
      export: SavedModel exports.
      actions: what is done at chosen steps, in the order of their priorities; each has a `type`.
      trackers: where metrics are written besides the console, `metrics.jsonl` and TensorBoard, whose files a section of
        the type `tensorboard` sets; each has a `type`.

    Example:
      >>> from official_trainer.config import ExperimentConfig, TrainerConfig, resolve
      >>> trainer = TrainerConfig(
      ...     train_steps=10_000,
      ...     steps_per_loop=500,
      ...     validation_interval=1000,
      ...     best_checkpoint_eval_metric="accuracy",
      ... )
      >>> watched = resolve(ExperimentConfig(trainer=trainer), sets=["trainer.trackers=[wandb]"]).config
      >>> watched.trainer.trackers[0].type
      'wandb'
    """

    optimizer_config: Guarded[OptimizationConfig] = OptimizationConfig()
    train_steps: Safe[NonNegative] = 0
    train_epochs: Safe[Positive | None] = None
    on_data_end: Safe[Literal["error", "stop", "repeat"]] = "error"
    steps_per_loop: Safe[Positive] = 1000
    summary_interval: Safe[Positive] = 1000
    checkpoint_interval: Safe[Positive] = 1000
    async_checkpoint: Safe[bool] = True
    max_to_keep: Safe[Positive] = 5
    keep_checkpoint_every_n_steps: Safe[Positive | None] = None
    restore_allow_mismatch: Safe[tuple[str, ...]] = ()
    validation_interval: Safe[Positive] = 1000
    validation_steps: Safe[Annotated[int, Between(-1)]] = -1
    continuous_eval_timeout: Safe[NonNegative] = 3600
    best_checkpoint_eval_metric: Safe[str] = ""
    best_checkpoint_metric_comp: Safe[Literal["higher", "lower"]] = "higher"
    best_checkpoint_max_to_keep: Safe[Positive] = 1
    best_checkpoint_export_subdir: Safe[str] = "best"
    validation_summary_subdir: Safe[str] = "validation"
    loss_upper_bound: Safe[float] = 1e6
    recovery_begin_steps: Safe[NonNegative] = 0
    recovery_max_trials: Safe[int] = 0
    recovery_checkpoints_back: Safe[Positive] = 1
    recovery_data: Safe[Literal["skip", "skip_batch", "repeat"]] = "skip"
    recovery_learning_rate_scale: Safe[PositiveFloat] = 1.0
    gradient_accumulation_steps: Guarded[Positive] = 1
    train_tf_function: Safe[bool] = True
    train_tf_while_loop: Safe[bool] = True
    eval_tf_function: Safe[bool] = True
    eval_tf_while_loop: Safe[bool] = False
    max_traces: Safe[Positive] = 20
    export: Safe[ExportConfig] = ExportConfig()
    actions: Safe[tuple[ActionConfig, ...]] = ()
    trackers: Safe[tuple[TrackerConfig, ...]] = ()

    def problems(self) -> Iterator[tuple[str, ...]]:
        if self.train_epochs is not None and self.train_steps:
            what = f"cannot be set together with train_steps={self.train_steps}"
            what += "; set train_epochs=null to count steps, or train_steps=0 to count epochs"
            yield "train_epochs", what, "train_steps"
        if self.validation_steps == 0:
            yield "validation_steps", "must be -1 (all data) or at least 1"
        if self.recovery_learning_rate_scale > 1:
            yield "recovery_learning_rate_scale", "must be at most 1: a larger rate makes a run that failed fail again"
        forever, interval = self.keep_checkpoint_every_n_steps, self.checkpoint_interval
        if forever is not None and forever % interval:
            near = interval * max(1, round(forever / interval))
            yield (
                "keep_checkpoint_every_n_steps",
                f"is {forever}, which is not a multiple of checkpoint_interval={interval}, so most of these steps have "
                f"no checkpoint; for example {near}",
                "checkpoint_interval",
            )
        if self.train_tf_while_loop and not self.train_tf_function:
            yield (
                "train_tf_while_loop",
                "needs train_tf_function; set train_tf_while_loop=false too",
                "train_tf_function",
            )
        if self.eval_tf_while_loop and not self.eval_tf_function:
            yield "eval_tf_while_loop", "needs eval_tf_function; set eval_tf_while_loop=false too", "eval_tf_function"
        names: set[str] = set()
        for index, name in enumerate(action.name or action.type for action in self.actions):
            if name in names:
                yield f"actions[{index}]", f"is the second action called {name}; give one of them another name"
            names.add(name)
        if self.export.checkpoint == "best" and not self.best_checkpoint_eval_metric:
            what = "is 'best', and no best checkpoint is kept; set best_checkpoint_eval_metric"
            yield "export.checkpoint", what, "best_checkpoint_eval_metric"
        yield from self._folder_problems()

    def _folder_problems(self) -> Iterator[tuple[str, ...]]:
        """Yields folders outside of the run directory, those of other parts, and one folder for two fields."""
        best, validation = self.best_checkpoint_export_subdir, self.validation_summary_subdir
        if best:
            if problem := folder_problem(best, default="best"):
                yield "best_checkpoint_export_subdir", problem
        elif self.best_checkpoint_eval_metric:
            what = "must name a folder when best_checkpoint_eval_metric is set"
            yield "best_checkpoint_export_subdir", what, "best_checkpoint_eval_metric"
        if problem := folder_problem(validation, default="validation"):
            yield "validation_summary_subdir", problem
        taken = {(False, best): "best_checkpoint_export_subdir"} if self.best_checkpoint_eval_metric else {}
        if validation == best:
            what = f"is {best!r}, like best_checkpoint_export_subdir; set another"
            yield "validation_summary_subdir", what, "best_checkpoint_export_subdir"
        for index, action in enumerate(self.actions):
            if not hasattr(action, "max_to_keep") or (directory := getattr(action, "directory", None)) is None:
                continue
            folder = (action.type == "export_saved_model", directory)  # its folders lie in `export/`
            if folder in taken:
                what = f"is {directory!r}, like {taken[folder]}, and each would delete the other's; set another"
                yield f"actions[{index}].directory", what
            taken[folder] = f"that of another {action.type}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuntimeConfig(Config):
    """What the experiment runs on: devices, precision, compiler, seed.

    Attributes:
      distribution_strategy: `auto` uses a cluster or TPU that the environment describes, else all GPUs
        of the machine (one device: no strategy at all). `off` takes none, `one_device` OneDeviceStrategy, `mirrored`
        all GPUs or logical CPUs of this machine (one of them: the same as `off`), `multi_worker_mirrored` those of all
        workers, `parameter_server` workers under a coordinator, `tpu` a Cloud TPU.
      num_gpus: GPUs to use; unset means all, 0 means the CPU.
      num_logical_cpus: splits the CPU into this many devices, to try `mirrored` without GPUs.
      all_reduce_alg: how gradients are summed: `nccl` or `hierarchical_copy` for `mirrored`, `nccl` or `ring` for
        `multi_worker_mirrored`; unset lets TensorFlow choose.
      num_packs: packs of gradients in one all-reduce of `mirrored`.
      worker_hosts: `host:port` of all workers, separated by commas, if the environment does not describe them.
      task_index: the index of this process in `worker_hosts`, from 0.
      rendezvous_timeout_seconds: how long a process waits for the others at the start; then it names the missing ones
        and ends with exit code 75.
      collective_timeout_seconds: how long a worker waits for the others within a step; then it ends with exit code 75.
        Workers that have died are noticed within seconds, for any value.
      mixed_precision_dtype: compute precision; variables stay float32.
      loss_scale: `dynamic` or a fixed factor, for float16 only.
      enable_xla: whether the training window is compiled by XLA, which rounds differently and draws different dropout
        masks. On a CPU, use it for small dense models only: its convolutions are many times slower there.
      enable_op_determinism: whether TensorFlow's operations give the same bits each time on GPUs too; some are slower,
        and operations that cannot are refused. On a CPU they always do. How long steps wait for data is not known then.
      run_eagerly: whether all steps run without tracing, for debugging.
      seed: seed of weights, data order and every random stream.
      stop_grace_seconds: seconds from SIGTERM, SIGINT or the end of `max_wall_seconds` within which the process ends.
        A step that is not finished by then is lost, with exit code 75: the last checkpoint counts. Set it below the
        grace period of the scheduler, which kills the process after that.
      max_wall_seconds: seconds after which the run saves and ends with exit code 143, as if preempted; unset means no
        limit. Set it below the scheduler's time limit.
      stall_floor_seconds: a time without progress that is longer than this, and ten times as long as the longest one
        before in that phase, is a stall: the process ends with exit code 5 and the stacks of all threads. Unset means
        never.
      stall_startup_seconds: the same for work that the process does for the first time: tracing, compiling, filling
        buffers.
      tpu: the Cloud TPU of strategy `tpu`: its name, `local` for the one of this machine, or `grpc://host:8470`,
        or several separated by commas. Unset means the environment variable `TPU_NAME`.

    Example:
      >>> from official_trainer.config import ExperimentConfig, RuntimeConfig, resolve
      >>> runtime = RuntimeConfig(distribution_strategy="mirrored", num_gpus=4, mixed_precision_dtype="bfloat16")
      >>> resolve(ExperimentConfig(runtime=runtime)).config.runtime.num_gpus
      4
    """

    distribution_strategy: Guarded[
        Literal["auto", "off", "one_device", "mirrored", "multi_worker_mirrored", "parameter_server", "tpu"]
    ] = "auto"
    num_gpus: Guarded[NonNegative | None] = None
    num_logical_cpus: Guarded[Positive | None] = None
    all_reduce_alg: Guarded[Literal["nccl", "hierarchical_copy", "ring"] | None] = None
    num_packs: Guarded[Positive] = 1
    worker_hosts: Safe[str | None] = None
    task_index: Safe[NonNegative | None] = None
    rendezvous_timeout_seconds: Safe[PositiveFloat] = 600.0
    collective_timeout_seconds: Safe[PositiveFloat] = 600.0
    mixed_precision_dtype: OfVariables[Literal["float32", "float16", "bfloat16"] | None] = None
    loss_scale: OfVariables[Literal["dynamic"] | PositiveFloat | None] = None
    enable_xla: Guarded[bool] = False
    enable_op_determinism: Guarded[bool] = False
    run_eagerly: Guarded[bool] = False
    seed: Guarded[int] = 0
    stop_grace_seconds: Safe[PositiveFloat] = 25.0
    max_wall_seconds: Safe[PositiveFloat | None] = None
    stall_floor_seconds: Safe[PositiveFloat | None] = 600.0
    stall_startup_seconds: Safe[PositiveFloat] = 3600.0
    tpu: Safe[str | None] = None

    def problems(self) -> Iterator[tuple[str, ...]]:
        yield from self.idle()
        if self.enable_xla and self.run_eagerly:
            yield "enable_xla", "cannot be combined with run_eagerly; set one of the two to false", "run_eagerly"
        strategy, chosen = self.distribution_strategy, "distribution_strategy"
        if self.all_reduce_alg is not None and strategy not in _ALL_REDUCING[self.all_reduce_alg]:
            yield "all_reduce_alg", f"{self.all_reduce_alg} has no effect with {chosen}={strategy}", chosen
        if self.worker_hosts is not None and strategy not in ("multi_worker_mirrored", "auto"):
            yield "worker_hosts", f"has no effect with {chosen}={strategy}", chosen
        if (self.worker_hosts is None) != (self.task_index is None):
            yield "task_index", "worker_hosts and task_index belong together: set both, or neither", "worker_hosts"
        if self.num_packs > 1 and strategy not in ("mirrored", "auto"):
            yield "num_packs", f"has no effect with {chosen}={strategy}; leave it at 1", chosen
        if strategy in ("off", "one_device") and (self.num_gpus or 0) > 1:
            yield "num_gpus", f"{chosen}={strategy} uses one device; set it to 1, or that to mirrored", chosen
        if strategy == "tpu" and self.mixed_precision_dtype == "float16":
            what = "TPUs compute in bfloat16 and float32, not in float16; use bfloat16"
            yield "mixed_precision_dtype", what, chosen
        if strategy == "tpu" and self.run_eagerly:
            yield "run_eagerly", "TPUs run traced steps only; set it to false, or debug on a CPU", chosen

    def idle(self) -> Iterator[tuple[str, ...]]:
        """Yields fields that have no effect with the other values; warnings in Model Garden's experiments."""
        if self.loss_scale is not None and self.mixed_precision_dtype != "float16":
            yield "loss_scale", "has no effect unless mixed_precision_dtype is float16", "mixed_precision_dtype"
        strategy, chosen = self.distribution_strategy, "distribution_strategy"
        if self.tpu and strategy not in ("tpu", "auto"):
            yield "tpu", f"has no effect with {chosen}={strategy}; set that to tpu", chosen
        on_tpu = f"has no effect with {chosen}=tpu"
        if strategy == "tpu" and self.num_gpus:
            yield "num_gpus", f"{on_tpu}; leave it out", chosen
        if strategy == "tpu" and self.num_logical_cpus is not None:
            yield "num_logical_cpus", f"{on_tpu}; leave it out", chosen
        if strategy == "tpu" and self.enable_xla:
            yield "enable_xla", f"{on_tpu}, where XLA compiles every step; leave it out", chosen


_ALL_REDUCING = {
    "nccl": ("mirrored", "multi_worker_mirrored", "auto"),
    "hierarchical_copy": ("mirrored", "auto"),
    "ring": ("multi_worker_mirrored", "auto"),
}
"""Strategies that each way of summing gradients is for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig(Config):
    """An experiment: what is learned, how it is trained, what it runs on.

    Attributes:
      task: model, data and losses.
      trainer: optimizer, length and intervals.
      runtime: devices and precision.

    Example:
      >>> from official_trainer.config import DataConfig, ExperimentConfig, TaskConfig, TrainerConfig
      >>> config = ExperimentConfig(
      ...     task=TaskConfig(train_data=DataConfig(global_batch_size=64)),
      ...     trainer=TrainerConfig(train_steps=2000),
      ... )
      >>> config.trainer.train_steps
      2000
    """

    task: TaskConfig = TaskConfig()
    trainer: TrainerConfig = TrainerConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    def tasks(self) -> Iterator[tuple[str, TaskConfig]]:
        """Yields each task that is trained, with its path."""
        if isinstance(self.task, TaskConfig):  # another class is reported elsewhere
            yield "task", self.task

    def problems(self) -> Iterator[tuple[str, ...]]:
        for path, task in self.tasks():
            yield from self._problems_of_data(path, task)
        if self.runtime.distribution_strategy == "tpu":
            for name in ("train_tf_function", "eval_tf_function"):
                if not getattr(self.trainer, name):
                    what = "TPUs run traced steps only; leave it on, or debug on a CPU"
                    yield f"trainer.{name}", what, "runtime.distribution_strategy"

    def _problems_of_data(self, path: str, task: TaskConfig) -> Iterator[tuple[str, ...]]:
        partial = getattr(task.train_data, "drop_remainder", None) is False
        accumulates = self.trainer.gradient_accumulation_steps > 1
        if partial and (accumulates or self.runtime.distribution_strategy == "tpu"):
            cause = "trainer.gradient_accumulation_steps" if accumulates else "runtime.distribution_strategy"
            what = f"{cause}{'' if accumulates else '=tpu'} needs batches that are all of one size; remove it"
            yield f"{path}.train_data.drop_remainder", what, cause
        service = "enable_tf_data_service"
        if task.validation_data.enable_tf_data_service:
            what = "is for training data only: a service may lose examples of an evaluation; remove it here"
            yield f"{path}.validation_data.{service}", what
        trainer = self.trainer
        is_repeated = trainer.recovery_max_trials > 0 and trainer.recovery_data == "skip_batch"
        if task.train_data.enable_tf_data_service and is_repeated:
            cause = f"{path}.train_data.{service}"
            what = f"skip_batch needs batches in a fixed order, which {cause} does not have; set it to skip"
            yield "trainer.recovery_data", what, cause
