"""Task: what is learned. The contract between an experiment and the engine.

Owns: Model Garden's Task methods with working defaults: build model, inputs, losses and metrics; one training step, one
evaluation step; folding step outputs; signatures for serving.
Does not own: when anything runs (`engine/loop.py`), on how many devices (`distributed/strategy.py`), where it is saved.

Importing this module does not import TensorFlow, so an experiment's config and task can live in one file and still be
listed and checked in milliseconds. The contract is duck-typed: a Model Garden task runs here, and a task written
against this class runs in Model Garden's own driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from official_trainer.inputs.context import BatchesError
from official_trainer.lazy import keras, tf
from official_trainer.tasks import accumulation, contract, publish
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.autograph import convert, do_not_convert
from official_trainer.tasks.variables import flatten
from official_trainer.tracking.monitored import Rule

if TYPE_CHECKING:
    from official_trainer.config.optimization import OptimizationConfig
    from official_trainer.config.schema import RuntimeConfig
    from official_trainer.inputs import InputContext


class Task:
    """One learning problem, seen from one replica. Subclasses override what differs.

    `build_model` and `build_inputs` are required. Most tasks add `build_losses` and `build_metrics` and nothing else.

    Attributes:
      task_config: the task's section of the config.
      logging_dir: the run directory; empty for none.
      name: what the task is called.

    Example:
      >>> import dataclasses
      >>> import numpy as np
      >>> from official_trainer import Task, inputs, register_task_cls
      >>> from official_trainer.config import Positive, TaskConfig
      >>> from official_trainer.lazy import keras
      >>> @dataclasses.dataclass(frozen=True, kw_only=True)
      ... class LargestConfig(TaskConfig):
      ...     units: Positive = 8
      >>> @register_task_cls(LargestConfig)
      ... class LargestTask(Task):
      ...     '''Says which of four numbers is the largest.'''
      ...
      ...     def build_model(self):
      ...         numbers = keras.Input([4], name="numbers")
      ...         x = keras.layers.Dense(self.task_config.units, activation="relu")(numbers)
      ...         return keras.Model(numbers, keras.layers.Dense(4, dtype="float32")(x))
      ...
      ...     def build_inputs(self, params, input_context=None):
      ...         numbers = np.random.RandomState(0).randn(1000, 4).astype("float32")
      ...         numbers = numbers[:800] if params.is_training else numbers[800:]
      ...         return inputs.from_arrays((numbers, numbers.argmax(axis=1)), params, input_context)
      ...
      ...     def build_losses(self, labels, model_outputs, aux_losses=None):
      ...         return keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
      ...
      ...     def build_metrics(self, training=True):
      ...         return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
      >>> task = LargestTask(LargestConfig(units=16))
      >>> task.inference_step(np.zeros([2, 4], "float32"), task.build_model()).shape
      TensorShape([2, 4])
    """

    loss: ClassVar[str] = "loss"
    """Key under which step logs carry the loss."""

    metric_directions: ClassVar[Mapping[str, str | Rule]] = {}
    """Which values of an evaluation's metrics are better, `max` or `min`, by their names (`accuracy`, `dev|accuracy`).

    The engine needs it where a metric's class is not known to it. A name without `|` also applies inside named sets.
    Where several numbers decide together, it is a function `is_better(numbers, than)` of the numbers inside a name, of
    two evaluations. Numbers are what a restart knows of earlier evaluations, so it gets nothing else.
    """

    random_streams: ClassVar[Sequence[str]] = ()
    """Names of the streams of random numbers that each step of this task needs: `random_streams.seeds()` has a seed for
    each of them."""

    unsaved_state: ClassVar[Sequence[str]] = ()
    """Patterns of variables, such as `task/cache` or `task/last/*`, that checkpoints need not hold though steps change
    them.

    Checkpoints hold what is attached to the Task and to layers of the model: optimizers, layers, metrics, variables,
    hash tables. That a training step changes anything else is an error before it runs.
    """

    gin_modules: ClassVar[Sequence[str]] = ()
    """Modules with functions that `--gin_file` and `--gin_params` may bind; imported before bindings are resolved.

    For modules that the task imports later, inside its methods: gin knows a function once its module is imported.
    """

    def __init__(self, params: Any, logging_dir: str | None = None, name: str | None = None) -> None:
        self.task_config = params
        self.logging_dir = logging_dir or ""
        self.name = name or type(self).__name__

    # What to build. Called once, under the strategy's scope, eagerly.

    def build_model(self) -> keras.Model:
        """Returns a new, built model."""
        raise NotImplementedError(f"{type(self).__name__} must define build_model()")

    def build_inputs(self, params: Any, input_context: InputContext | None = None) -> tf.data.Dataset:
        """Returns the batches of `params` (the `train_data` or `validation_data` section).

        Batches have the per-replica size, `input_context.get_per_replica_batch_size(params.global_batch_size)`.
        `inputs.from_arrays`, `from_tfrecords` and `from_tfds` do this, and start at any step in no time.

        A batch is `(features, labels)`, or features alone, which then serve as their own labels.

        Args:
          params: the data section; `is_training` is set.
          input_context: the place of this pipeline in the job.
        """
        raise NotImplementedError(f"{type(self).__name__} must define build_inputs(params, input_context)")

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        """Returns the metrics of training or of evaluation; their names must differ.

        Args:
          training: whether they are those of training.
        """
        return []

    @classmethod
    def create_optimizer(
        cls,
        optimizer_config: OptimizationConfig,
        runtime_config: RuntimeConfig | None = None,
        dp_config: Any = None,
    ) -> keras.optimizers.Optimizer:
        """Returns the optimizer; override to bring your own.

        Args:
          optimizer_config: the section `trainer.optimizer_config`.
          runtime_config: the section `runtime`; with float16 the optimizer scales the loss.
          dp_config: differential privacy of Model Garden; refused here.
        """
        from official_trainer.tasks import optimization

        if dp_config is not None:
            raise NotImplementedError("differential privacy is not supported; override Task.create_optimizer")
        return optimization.build_optimizer(optimizer_config, runtime_config)

    def initialize(self, model: keras.Model) -> None:
        """Gives a fresh run its first weights; called only when `model_dir` holds no checkpoint.

        The default restores the model from `task_config.init_checkpoint`, strictly, and logs what was restored.

        Args:
          model: of `build_model`, with the initial values of its layers.
        """
        from official_trainer.tasks import initial_weights

        if self.task_config.init_checkpoint:
            initial_weights.restore_model(
                model,
                self.task_config.init_checkpoint,
                names=getattr(self.task_config, "init_checkpoint_names", None),
                allow_missing=getattr(self.task_config, "init_checkpoint_allow_missing", ()),
            )

    # What a step computes. Called in replica context, traced.

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor | None:
        """Returns the loss of one replica's batch: one value per example, `[batch, …]`, or a scalar.

        Return per-example values where you can: the engine averages them. Losses that layers add with
        `add_loss` (regularisation and the like) are added by the engine; a task that needs nothing else leaves this
        method out.

        Args:
          labels: those of the batch, as `build_inputs` yields them.
          model_outputs: what the model returned for the features of the batch.
          aux_losses: None here; Model Garden's own driver passes the losses that layers add.
        """
        return None

    @do_not_convert
    def process_metrics(self, metrics: list[keras.metrics.Metric], labels: Any, model_outputs: Any) -> None:
        """Updates metrics with one batch of one replica.

        Args:
          metrics: those of `build_metrics`.
          labels: those of the batch.
          model_outputs: what the model returned for it.
        """
        for metric in metrics:
            contract.check_metric(metric, labels, model_outputs)
            convert(metric.update_state)(labels, model_outputs)

    @do_not_convert
    def after_step(self, model: keras.Model) -> None:
        """Changes the model after each optimizer update (weight constraints and the like); traced with the step.

        Args:
          model: of `build_model`, with the updated weights.
        """

    @do_not_convert
    def train_step(
        self,
        inputs: Any,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        metrics: list[keras.metrics.Metric] | None = None,
    ) -> dict[str, Any]:
        """Runs forward, backward and update on one replica's batch.

        Args:
          inputs: an element of `build_inputs`: `(features, labels)`, tensors `[batch, …]`, or features alone.
          model: of `build_model`.
          optimizer: its update is applied here.
          metrics: those of `build_metrics(training=True)`.

        Returns:
          Logs; `logs[self.loss]` is this replica's mean loss, scalar float32. Other single numbers are recorded by
          their names, joined with `/` where they are nested: means over the steps since the last summary.
        """
        features, labels = split_inputs(inputs)
        with tf.GradientTape() as tape:
            outputs = convert(model.__call__)(features, training=True)
            loss = total_loss(self, labels, outputs, model)
            scaled = scaled_loss(loss, optimizer)
        if update(tape, scaled, model, optimizer):
            convert(self.after_step)(model)
        if metrics:
            convert(self.process_metrics)(metrics, labels, outputs)
        return {self.loss: loss}

    @do_not_convert
    def validation_step(
        self, inputs: Any, model: keras.Model, metrics: list[keras.metrics.Metric] | None = None
    ) -> dict[str, Any]:
        """Evaluates one replica's batch; called only with at least one example.

        Args:
          inputs: an element of `build_inputs`, as for `train_step`.
          model: of `build_model`, with averaged weights if the run averages.
          metrics: those of `build_metrics(training=False)`.

        Returns:
          Logs; `logs[self.loss]` is this replica's mean loss. Add outputs that `aggregate_logs` needs.
        """
        features, labels = split_inputs(inputs)
        outputs = convert(self.inference_step)(features, model)
        loss = total_loss(self, labels, outputs, model)
        if metrics:
            convert(self.process_metrics)(metrics, labels, outputs)
        return {self.loss: loss}

    @do_not_convert
    def inference_step(self, inputs: Any, model: keras.Model) -> Any:
        """Returns the model's outputs for features alone, as losses and metrics of an evaluation take them.

        Args:
          inputs: features `[batch, …]`.
          model: of `build_model`.
        """
        return convert(model.__call__)(inputs, training=False)

    @do_not_convert
    def predict_step(self, inputs: Any, model: keras.Model, labels: Any = None) -> Any:
        """Returns what `predict` writes for a batch, and what an exported model returns: by default `inference_step`'s.

        Override it for what a user of the model wants: probabilities beside logits, or the id of each example.

        Args:
          inputs: features `[batch, …]`.
          model: of `build_model`, with averaged weights if the run averages.
          labels: of the batch, as `build_inputs` yields them; None for data without labels, and in an exported model.

        Returns:
          Nests of tensors `[batch, …]`; those that are None are left out.

        Example:
          >>> from official_trainer import Task
          >>> from official_trainer.lazy import keras, tf
          >>> class Digits(Task):
          ...     def predict_step(self, inputs, model, labels=None):
          ...         logits = self.inference_step(inputs, model)
          ...         return {"probabilities": tf.nn.softmax(logits), "label": labels}
          >>> zeros = keras.Sequential([keras.Input([3]), keras.layers.Dense(2, kernel_initializer="zeros")])
          >>> Digits(params=None).predict_step(tf.ones([1, 3]), zeros)["probabilities"].numpy().tolist()
          [[0.5, 0.5]]
        """
        return convert(self.inference_step)(inputs, model)

    # What happens to step outputs during an evaluation. Called on the host, eagerly.

    def aggregate_logs(self, state: Any, step_logs: Mapping[str, Any]) -> Any:
        """Folds one step's logs into `state` (None at first) and returns the new state.

        Args:
          state: what the last call returned.
          step_logs: what `validation_step` returned; each value is a tuple with one tensor per replica that had data.

        Example:
          The error over all examples, exact for any number of batches and replicas:

          >>> from official_trainer import Task
          >>> from official_trainer.lazy import tf
          >>> from official_trainer.tasks.results import Mean, Results
          >>> class Depth(Task):
          ...     def validation_step(self, inputs, model, metrics=None):
          ...         logs = super().validation_step(inputs, model, metrics)
          ...         features, depth = inputs
          ...         return {**logs, "errors": tf.abs(self.inference_step(features, model) - depth)}
          ...
          ...     def aggregate_logs(self, state, step_logs):
          ...         batch = Results({"error": Mean.of(step_logs["errors"])})
          ...         return batch if state is None else state.merge(batch)
          >>> task = Depth(params=None)
          >>> state = task.aggregate_logs(None, {"errors": (tf.constant([1.0, 2.0]), tf.constant([3.0]))})
          >>> state = task.aggregate_logs(state, {"errors": (tf.constant([4.0]),)})
          >>> task.reduce_aggregated_logs(state)
          {'error': 2.5}
        """
        return None

    def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: Any = None) -> dict[str, Any]:
        """Turns the folded state of a whole evaluation into results: numbers, images, texts and so on, nested by name.

        The default returns the state's `as_logs()`, as of `results.Results`, and nothing of a state that has none.
        Trackers record whatever `tracking.points` takes; metrics by which something is decided are numbers.

        Args:
          aggregated_logs: what `aggregate_logs` returned last; None without it.
          global_step: the step of the evaluation, a scalar int64 variable.
        """
        return aggregated_logs.as_logs() if hasattr(aggregated_logs, "as_logs") else {}

    # What else happens while it is trained.

    def build_actions(self, trainer: Any) -> Sequence[Any]:
        """Returns actions of this task, in addition to `trainer.actions`: each an `Action`, its config, or a callable.

        Args:
          trainer: has `model`, `optimizer`, `strategy`, `config`.
        """
        return ()

    # What is exported.

    def build_signatures(self, model: keras.Model) -> dict[str, Any]:
        """Returns the serving functions of a SavedModel by name: traced functions with an input signature.

        The default is one `serving_default` that takes the model's inputs, any batch size, and returns its outputs.

        Args:
          model: of `build_model`, with the weights to export.
        """
        from official_trainer.tasks import export

        return export.default_signatures(self, model)

    def build_contract(self, model: keras.Model) -> Mapping[str, Any]:
        """Returns what the numbers of an exported model mean, for the `contract.json` beside its files.

        Args:
          model: of `build_model`, with the weights to export.

        Returns:
          Anything that JSON can hold, such as the names of classes, units, and what is done before the model.

        Example:
          >>> from official_trainer import Task
          >>> class Digits(Task):
          ...     def build_contract(self, model):
          ...         return {"labels": {"logits": list("0123456789")}, "values": {"image": "0 is white, 1 is black"}}
        """
        return {}


@do_not_convert
def makes_optimizer(task_cls: Any) -> bool:
    """Whether a Task has a `create_optimizer` of its own, which needs no `trainer.optimizer_config`."""
    if not (isinstance(task_cls, type) and issubclass(task_cls, Task)):
        return False  # of Model Garden
    own, usual = (getattr(cls.create_optimizer, "__func__", None) for cls in (task_cls, Task))
    return own is not usual


def total_loss(task: Any, labels: Any, outputs: Any, model: keras.Model) -> tf.Tensor:
    """Returns the mean of a task's loss plus everything the model added in its last call, scalar float32.

    Args:
      task: its `build_losses` is called.
      labels: of one replica's batch, `[batch, …]`.
      outputs: of the model for that batch.
      model: its `losses` are added: regularisation, and what layers passed to `add_loss`.

    Raises:
      ValueError: there is neither.

    Example:
      >>> from official_trainer.lazy import keras, tf
      >>> from official_trainer.tasks import Task, total_loss
      >>> class Regression(Task):
      ...     def build_losses(self, labels, model_outputs, aux_losses=None):
      ...         return keras.losses.mean_squared_error(labels, model_outputs)
      >>> model = keras.Sequential([keras.layers.Dense(1, activity_regularizer=keras.regularizers.L2(1.0))])
      >>> outputs = model(tf.zeros([2, 3]))
      >>> float(total_loss(Regression(None), tf.ones([2, 1]), outputs, model))
      1.0
    """
    before = len(contract.operations())
    loss = convert(task.build_losses)(labels, outputs)
    contract.warn_of_pairs(task, labels, outputs, before)
    terms = [] if loss is None else [_mean_loss(task, loss)]
    terms += [tf.cast(term, tf.float32) for term in model.losses]
    if not terms:
        raise ValueError(
            f"{type(task).__name__} has no loss: build_losses() returned None and no layer called add_loss(). "
            "Return a loss from build_losses()."
        )
    return tf.add_n(terms)


def _mean_loss(task: Any, loss: Any) -> tf.Tensor:
    """Returns the mean of what `build_losses` returned."""
    if isinstance(loss, str | Mapping | tuple | type) or callable(loss):
        got = f"the class {loss.__name__}" if isinstance(loss, type) else f"a {type(loss).__name__}"
        fix = "call it with labels and outputs" if callable(loss) else "add its values up, and log them in train_step"
        fix = "use a function of keras.losses" if isinstance(loss, str) else fix
        raise TypeError(
            f"{type(task).__name__}.build_losses must return a tensor, one value per example or a scalar, and "
            f"returned {got}: {fix}"
        )
    return tf.reduce_mean(tf.cast(loss, tf.float32))


@do_not_convert
def scaled_loss(loss: tf.Tensor, optimizer: keras.optimizers.Optimizer) -> tf.Tensor:
    """Returns what the gradients of an update are taken of, for one replica's mean `loss`; both scalar float32.

    It divides by the number of replicas, because gradients are summed over them, and multiplies by the loss scale of
    float16. Call it inside the tape, and give the result to `update`.

    Example:
      >>> from official_trainer.lazy import keras, tf
      >>> from official_trainer.tasks import scaled_loss
      >>> float(scaled_loss(tf.constant(2.0), keras.optimizers.SGD()))
      2.0
    """
    # Gradients are summed over replicas, so each brings its share of the mean.
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    share = loss if replicas == 1 else loss / replicas
    return kerases.of(optimizer).scale_loss(optimizer, share)


@do_not_convert
def update(tape: tf.GradientTape, scaled: tf.Tensor, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> bool:
    """Applies the gradients of what `scaled_loss` returned to a model: the last line of a `train_step` of your own.

    Args:
      tape: has recorded the forward pass.
      scaled: what `scaled_loss` returned.
      model: its trainable variables change.
      optimizer: the one that `train_step` was called with.

    Returns:
      Whether the model was updated. With `trainer.gradient_accumulation_steps` the gradients of all micro-batches but
      the last are only added up.

    Example:
      >>> from official_trainer.lazy import keras, tf
      >>> from official_trainer.tasks import scaled_loss, update
      >>> model = keras.Sequential([keras.layers.Dense(1, use_bias=False, input_shape=[1], kernel_initializer="ones")])
      >>> optimizer = keras.optimizers.SGD(0.25)
      >>> with tf.GradientTape() as tape:
      ...     loss = tf.reduce_mean(tf.square(model(tf.ones([4, 1]))))
      ...     scaled = scaled_loss(loss, optimizer)
      >>> update(tape, scaled, model, optimizer)
      True
      >>> model.get_weights()[0].tolist()
      [[0.5]]
    """
    implementation, variables = kerases.of(optimizer), model.trainable_variables
    gradients = implementation.unscale(optimizer, tape.gradient(scaled, variables))
    if publish.is_wanted():
        _publish_gradients(model, variables, gradients)
    implementation.apply(optimizer, list(zip(gradients, variables, strict=True)), after=scaled)
    return accumulation.is_update()


def _publish_gradients(model: keras.Model, variables: Sequence[tf.Variable], gradients: Sequence[Any]) -> None:
    """Publishes the gradients of the mean loss over all replicas, before any clipping, and their norm."""
    both = zip(variables, gradients, strict=True)
    pairs = [(kerases.value(variable), tf.convert_to_tensor(value)) for variable, value in both if value is not None]
    if not pairs:
        return
    context = tf.distribute.get_replica_context()
    summed = [gradient for _, gradient in pairs]
    if context.num_replicas_in_sync > 1:
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, summed)
    paths = {id(variable): path for path, variable in flatten(model).items()}
    for (variable, _), gradient in zip(pairs, summed, strict=True):
        publish.histogram(f"gradients/{paths[id(variable)]}", gradient)
    publish.scalar("gradient_norm", tf.linalg.global_norm(summed))


@do_not_convert
def split_inputs(inputs: Any) -> tuple[Any, Any]:
    """Returns `(features, labels)` of a batch; features alone are their own labels.

    Example:
      >>> from official_trainer.tasks import split_inputs
      >>> split_inputs(("features", "labels"))
      ('features', 'labels')
      >>> split_inputs("features")
      ('features', 'features')

    Raises:
      BatchesError: there are three parts, as with Keras's weights of examples.
    """
    if isinstance(inputs, tuple) and len(inputs) == 3:
        fix = 'put weights of examples into the labels, as in (x, {"y": y, "weight": w}), and use them in build_losses'
        raise BatchesError(f"batches have 3 parts, and steps take (features, labels); {fix}; features may be a dict")
    features, labels = features_and_labels(inputs)
    return features, features if features is inputs else labels


@do_not_convert
def features_and_labels(inputs: Any) -> tuple[Any, Any]:
    """Returns `(features, labels)` of a batch; labels are None where a batch is features alone."""
    return inputs if isinstance(inputs, tuple) and len(inputs) == 2 else (inputs, None)
