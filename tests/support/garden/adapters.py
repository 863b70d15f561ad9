"""Our classes with the constructors that Model Garden's tests call."""

from official_trainer.checkpoints.best import BestCheckpoint
from official_trainer.program.run_experiment import run_experiment


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
