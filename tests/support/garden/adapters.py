"""Our classes with the constructors that Model Garden's tests, and orbit's, call."""

import contextlib
import types

import orbit

from official_trainer.checkpoints.best import BestCheckpoint
from official_trainer.engine.evaluation import Evaluation, ValidationSet
from official_trainer.engine.step_context import StepContext, TrainerOptions
from official_trainer.engine.train_iterator import DatasetBuilder, TrainIterator
from official_trainer.engine.train_steps import TrainStep, WindowRunner
from official_trainer.lazy import tf
from official_trainer.program.run_experiment import run_experiment
from official_trainer.tasks.task import Task


class Exporter(BestCheckpoint):
    """Model Garden's `BestCheckpointExporter(export_dir, metric_name, metric_comp)`."""

    def __init__(self, export_dir, metric_name, metric_comp):
        super().__init__(export_dir, metric=metric_name, comp=metric_comp)


class Runner:
    """Model Garden's `OrbitExperimentRunner(...).run()`."""

    def __init__(self, **arguments):
        self._arguments = arguments

    def run(self):
        return run_experiment(**self._arguments)


def context_of(options):
    """What the parts of a trainer share, without a task."""
    trainer = types.SimpleNamespace(
        train_tf_function=options.use_tf_function,
        train_tf_while_loop=options.use_tf_while_loop,
        eval_tf_function=True,
        eval_tf_while_loop=True,
    )
    config = types.SimpleNamespace(trainer=trainer)
    return StepContext(config, Task(None), tf.Module(), None, TrainerOptions(measures_loss=False), None)


class OrbitTrainer(orbit.StandardTrainer):
    """orbit's `StandardTrainer(train_dataset, options)`: our windows around a step that a subclass has.

    A subclass makes `global_step` before it calls this.
    """

    def __init__(self, train_dataset, options=None):
        super().__init__(None, options)
        context = context_of(self._train_options)
        context.global_step = self.global_step
        builder = DatasetBuilder(Task(None), None, training=True, seed=0, service_timeout_seconds=1)
        iterator = TrainIterator(builder, self.global_step, on_data_end="error", dataset=train_dataset)
        self._windows = WindowRunner(context, self, TrainStep(context, None, trains=False), iterator)

    def create_train_loop_fn(self):
        return self._windows.create_loop()

    def train(self, num_steps):
        self.train_loop_begin()
        self._windows.run_steps(int(num_steps), False, None)
        return self.train_loop_end()


class OrbitEvaluator(orbit.StandardEvaluator):
    """orbit's `StandardEvaluator(eval_dataset, options)`: our evaluation around a step that a subclass has."""

    def __init__(self, eval_dataset, options=None):
        super().__init__(None, options)
        context = context_of(self._eval_options)
        builder = DatasetBuilder(context.task, None, training=False, seed=0, service_timeout_seconds=1)
        own = ValidationSet(context, context.task, context.model, builder)
        own.dataset = eval_dataset
        nothing = contextlib.nullcontext()  # the model has no variables
        state = types.SimpleNamespace(synchronize=lambda: None, preserved=lambda only_shared: nothing)
        self._evaluation = Evaluation(context, self, [own], state, None, counts_examples=False)

    def weights_averaged(self):
        return contextlib.nullcontext()

    def create_eval_loop_fn(self, has_state):
        is_reduced = type(self).eval_reduce is not OrbitEvaluator.eval_reduce
        return self._evaluation.create_loop(self._eval_options, folds=has_state or is_reduced)

    def evaluate(self, num_steps):
        return self._evaluation.run(int(num_steps))
