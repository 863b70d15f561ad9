"""What `official_trainer.runs.run` does with a job, from the name of an experiment, its config and fields of `Job`."""

from official_trainer import config as configuration
from official_trainer.lazy import keras
from official_trainer.runs import run as engine
from official_trainer.runs.job import Job
from official_trainer.tasks import registry

_OPTIONS = ("checkpoint", "stop", "prediction", "output_dir")
"""Arguments of the engine's functions that are no fields of a job."""


def resolved(name, *sets, config=None, **layers):
    """Returns the resolved config of a registered experiment, or of one that has no name."""
    return configuration.resolve(config or registry.get_config(name), experiment=name, sets=sets, **layers)


def do(name, model_dir, *sets, mode="train_and_eval", config=None, config_files=(), **options):
    """Runs an experiment in this process; returns what the run returns."""
    keras.backend.clear_session()
    as_resolved = resolved(name, *sets, config=config, config_files=config_files)
    return run(name, as_resolved, mode=mode, model_dir=str(model_dir), **{"quiet": True, **options})


def run(experiment, resolved, **fields):
    return _called(engine.run, experiment, resolved, fields)


def check(experiment, resolved, **fields):
    return _called(engine.check, experiment, resolved, fields)


def export(experiment, resolved, **fields):
    return _called(engine.export, experiment, resolved, {"mode": "export", "quiet": True, **fields})


def model_of(experiment, resolved, **fields):
    return _called(engine.model_of, experiment, resolved, {"mode": "export", "quiet": True, **fields})


def _called(function, experiment, resolved, fields):
    options = {name: fields.pop(name) for name in _OPTIONS if name in fields}
    return function(Job(experiment=experiment, resolved=resolved, **fields), **options)
