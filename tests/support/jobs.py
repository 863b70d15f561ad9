"""What `official_trainer.runs.run` does with a job, from the name of an experiment, its config and fields of `Job`."""

from official_trainer.runs import run as engine
from official_trainer.runs.job import Job

_OPTIONS = ("checkpoint", "stop", "prediction", "output_dir")
"""Arguments of the engine's functions that are no fields of a job."""


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
