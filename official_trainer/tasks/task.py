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

from official_trainer.lazy import keras, tf
from official_trainer.tasks import accumulation, publish
from official_trainer.tasks.autograph import do_not_convert
from official_trainer.tasks.results import Results
from official_trainer.tasks.variables import flatten

if TYPE_CHECKING:
    from official_trainer.config.optimization import OptimizationConfig
    from official_trainer.config.schema import RuntimeConfig
    from official_trainer.inputs import InputContext


class Task:
    """One learning problem, seen from one replica. Subclasses override what differs.

    `build_model` and `build_inputs` are required. Most tasks add `build_losses` and `build_metrics` and nothing else.
    """

    loss: ClassVar[str] = "loss"
    """Key under which step logs carry the loss."""

    metric_directions: ClassVar[Mapping[str, str]] = {}
    """Which values of an evaluation's metrics are better, `max` or `min`, by their names (`accuracy`, `dev|accuracy`).

    The engine needs it where a metric's class is not known to it. A name without `|` also applies inside named sets.
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
        """
        raise NotImplementedError(f"{type(self).__name__} must define build_inputs(params, input_context)")

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        """Returns the metrics of training or of evaluation; their names must differ."""
        return []

    @classmethod
    def create_optimizer(
        cls,
        optimizer_config: OptimizationConfig,
        runtime_config: RuntimeConfig | None = None,
        dp_config: Any = None,
    ) -> keras.optimizers.Optimizer:
        """Returns the optimizer of `trainer.optimizer_config`; override to bring your own."""
        from official_trainer.tasks import optimization

        if dp_config is not None:
            raise NotImplementedError("differential privacy is not supported; override Task.create_optimizer")
        return optimization.build_optimizer(optimizer_config, runtime_config)

    def initialize(self, model: keras.Model) -> None:
        """Gives a fresh run its first weights; called only when `model_dir` holds no checkpoint.

        The default restores the model from `task_config.init_checkpoint`, strictly, and logs what was restored.
        """
        from official_trainer.checkpoints import restore

        if self.task_config.init_checkpoint:
            items = getattr(model, "checkpoint_items", None) or {"model": model}
            restore.read_init_checkpoint(
                self.task_config.init_checkpoint,
                items,
                allow_missing=getattr(self.task_config, "init_checkpoint_allow_missing", ()),
            )

    # What a step computes. Called in replica context, traced.

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor | None:
        """Returns the loss of one replica's batch: one value per example, `[batch, …]`, or a scalar.

        Return per-example values where you can: the engine averages them. Losses that layers add with
        `add_loss` (regularisation and the like) are added by the engine, so `aux_losses` is None here; a task that
        needs nothing else leaves this method out.
        """
        return None

    def process_metrics(self, metrics: list[keras.metrics.Metric], labels: Any, model_outputs: Any) -> None:
        """Updates `metrics` with one batch."""
        for metric in metrics:
            metric.update_state(labels, model_outputs)

    def after_step(self, model: keras.Model) -> None:
        """Changes the model after each optimizer update (weight constraints and the like); traced with the step."""
        return None  # AutoGraph cannot convert a function without a statement

    def train_step(
        self,
        inputs: Any,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        metrics: list[keras.metrics.Metric] | None = None,
    ) -> dict[str, Any]:
        """Runs forward, backward and update on one replica's batch.

        Returns:
          Logs; `logs[self.loss]` is this replica's mean loss, scalar float32.
        """
        features, labels = split_inputs(inputs)
        with tf.GradientTape() as tape:
            outputs = model(features, training=True)
            loss = total_loss(self, labels, outputs, model)
            scaled = scaled_loss(loss, optimizer)
        if update(tape, scaled, model, optimizer):
            self.after_step(model)
        if metrics:
            self.process_metrics(metrics, labels, outputs)
        return {self.loss: loss}

    def validation_step(
        self, inputs: Any, model: keras.Model, metrics: list[keras.metrics.Metric] | None = None
    ) -> dict[str, Any]:
        """Evaluates one replica's batch; called only with at least one example.

        Returns:
          Logs; `logs[self.loss]` is this replica's mean loss. Add outputs that `aggregate_logs` needs.
        """
        features, labels = split_inputs(inputs)
        outputs = self.inference_step(features, model)
        loss = total_loss(self, labels, outputs, model)
        if metrics:
            self.process_metrics(metrics, labels, outputs)
        return {self.loss: loss}

    def inference_step(self, inputs: Any, model: keras.Model) -> Any:
        """Returns the model's outputs for features alone."""
        return model(inputs, training=False)

    # What happens to step outputs during an evaluation. Called on the host, eagerly.

    def aggregate_logs(self, state: Any, step_logs: Mapping[str, Any]) -> Any:
        """Folds one step's logs into `state` (None at first) and returns the new state.

        Args:
          state: what the last call returned.
          step_logs: what `validation_step` returned; each value is a tuple with one tensor per replica that had data.
        """
        return None

    def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: Any = None) -> dict[str, Any]:
        """Turns the folded state of a whole evaluation into metrics, which may be nested by name.

        The default returns the numbers of `results.Results`, and none of any other state.
        """
        return aggregated_logs.as_logs() if isinstance(aggregated_logs, Results) else {}

    # What else happens while it is trained.

    def build_actions(self, trainer: Any) -> Sequence[Any]:
        """Returns actions of this task, in addition to `trainer.actions`: `action.Action`s, their configs, callables.

        Args:
          trainer: has `model`, `optimizer`, `strategy`, `config`.
        """
        return ()

    # What is exported.

    def build_signatures(self, model: keras.Model) -> dict[str, Any]:
        """Returns the serving functions of a SavedModel by name: traced functions with an input signature.

        The default is one `serving_default` that takes the model's inputs, any batch size, and returns its outputs.
        """
        from official_trainer.tasks import export

        return export.default_signatures(self, model)


def total_loss(task: Any, labels: Any, outputs: Any, model: keras.Model) -> tf.Tensor:
    """Returns the mean of a task's loss plus everything the model added in its last call, scalar float32.

    Raises:
      ValueError: there is neither.
    """
    loss = task.build_losses(labels, outputs)
    terms = [] if loss is None else [tf.reduce_mean(tf.cast(loss, tf.float32))]
    terms += [tf.cast(term, tf.float32) for term in model.losses]
    if not terms:
        raise ValueError(
            f"{type(task).__name__} has no loss: build_losses() returned None and no layer called add_loss(). "
            "Return a loss from build_losses()."
        )
    return tf.add_n(terms)


def scaled_loss(loss: tf.Tensor, optimizer: keras.optimizers.Optimizer) -> tf.Tensor:
    """Returns what the gradients of an update are taken of, for one replica's mean `loss`."""
    # Gradients are summed over replicas, so each brings its share of the mean.
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    share = loss if replicas == 1 else loss / replicas
    return optimizer.get_scaled_loss(share) if hasattr(optimizer, "get_scaled_loss") else share


def update(tape: tf.GradientTape, scaled: tf.Tensor, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> bool:
    """Updates a model by the gradients of what `scaled_loss` returned; returns whether it is one, or only added up."""
    from official_trainer.tasks import optimization

    variables = model.trainable_variables
    gradients = tape.gradient(scaled, variables)
    if hasattr(optimizer, "get_unscaled_gradients"):
        gradients = optimizer.get_unscaled_gradients(gradients)
    if publish.is_wanted():
        _publish_gradients(model, variables, gradients)
    optimization.apply_gradients(optimizer, zip(gradients, variables, strict=True), after=scaled)
    return accumulation.is_update()


def _publish_gradients(model: keras.Model, variables: Sequence[tf.Variable], gradients: Sequence[Any]) -> None:
    """Publishes the gradients of the mean loss over all replicas, before any clipping, and their norm."""
    found = [(v, tf.convert_to_tensor(g)) for v, g in zip(variables, gradients, strict=True) if g is not None]
    if not found:
        return
    context = tf.distribute.get_replica_context()
    summed = [gradient for _, gradient in found]
    if context.num_replicas_in_sync > 1:
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, summed)
    paths = {id(variable): path for path, variable in flatten(model).items()}
    for (variable, _), gradient in zip(found, summed, strict=True):
        publish.histogram(f"gradients/{paths[id(variable)]}", gradient)
    publish.scalar("gradient_norm", tf.linalg.global_norm(summed))


@do_not_convert
def split_inputs(inputs: Any) -> tuple[Any, Any]:
    """Returns `(features, labels)` of a batch; features alone are their own labels."""
    if isinstance(inputs, tuple) and len(inputs) == 2:
        return inputs
    return inputs, inputs
