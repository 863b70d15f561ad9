"""Our classes with the constructors that Model Garden's tests, and orbit's, call."""

import orbit

from official_trainer.checkpoints.best import BestCheckpoint
from official_trainer.distributed.collective import ProcessGroup
from official_trainer.engine.evaluation import Evaluator
from official_trainer.engine.input_wait import InputMark
from official_trainer.engine.traces import Traces
from official_trainer.engine.train_iterator import DatasetBuilder, TrainIterator
from official_trainer.engine.train_steps import Stepper
from official_trainer.engine.validation_sets import ValidationSet
from official_trainer.garden import run_experiment
from official_trainer.lazy import tf
from official_trainer.stopping import StopRequest
from official_trainer.tasks import metrics
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


class OrbitTrainer(Stepper):
    """orbit's `StandardTrainer(train_dataset, options)`: our windows around a step that a subclass has.

    A subclass makes `global_step` before it calls this.
    """

    def __init__(self, train_dataset, options=None):
        self._strategy = tf.distribute.get_strategy()
        self.stop, self.process_group = StopRequest(), ProcessGroup(self._strategy)
        self._input_mark, self._traces = InputMark(), Traces(20)
        self._enable_xla, self._average, self._accumulator = False, None, None
        self._global_step = self.global_step
        orbit.StandardTrainer.__init__(self, None, options)
        feed = DatasetBuilder(Task(None), None, training=True, seed=0, service_timeout_seconds=1)
        self._train_iterator = TrainIterator(feed, self.global_step, on_data_end="error", given=train_dataset)


class OrbitEvaluator(Evaluator):
    """orbit's `StandardEvaluator(eval_dataset, options)`: our evaluation around a step that a subclass has."""

    def __init__(self, eval_dataset, options=None):
        self._strategy = tf.distribute.get_strategy()
        self.stop, self.process_group = StopRequest(), ProcessGroup(self._strategy)
        self._task, self._model, self._average, self._traces = Task(None), tf.Module(), None, Traces(20)
        feed = DatasetBuilder(self._task, None, training=False, seed=0, service_timeout_seconds=1)
        self._own_set = self._set = ValidationSet(self._task, self._model, feed)
        self._own_set.dataset, self._named_sets = eval_dataset, []
        self._examples_evaluated, self._held = metrics.example_counter(), []
        orbit.StandardEvaluator.__init__(self, eval_dataset, options)
