"""Sweeps written by hand, as a driver leaves them, for tests of what reads them."""

import json

import optuna
from optuna.trial import TrialState

from official_trainer.sweeps import distributions, study
from official_trainer.sweeps.settings import Objective

RATE = "trainer.optimizer_config.learning_rate.cosine.initial_learning_rate"
SPACE = {
    "task.model.type": "choice(mlp, cnn)",
    "task.train_data.global_batch_size": "int(32, 128, 32)",
    RATE: "log(1e-4, 1e-1)",
    "task.model.mlp.dropout": "float(0, 0.5)",
}


def write_sweep(directory, trials, *, space=SPACE):
    """Writes `sweep.json` and the study of trials, which are those of `trial`; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    objective = {"metric": "accuracy", "direction": "max", "evaluation": "best"}
    described = {"objective": objective, "space": space}
    content = {"experiment": "digits_mlp", "sweep": described}
    (directory / "sweep.json").write_text(json.dumps(content))
    kept = study.create(study.storage_of(str(directory)), Objective(**objective))
    kinds = {path: distributions.read(path, written).distribution for path, written in space.items()}
    for each in trials:
        each["distributions"] = {path: kinds[path] for path in each["params"]}
        kept.add_trial(optuna.trial.create_trial(**each))
    return directory


def trial(value=None, *, state="COMPLETE", params=None, reports=None, **facts):
    """Returns a trial for `write_sweep`; `facts` are its attributes."""
    params = {"task.model.type": "cnn", RATE: 0.001} if params is None else params
    found = {"state": TrialState[state], "params": params, "user_attrs": facts, "intermediate_values": reports or {}}
    return found | ({} if value is None else {"value": value})


def write_run(directory, number, *, status="done", step=200, end=200, seconds=1.5, rows=(), error=""):
    """Writes the record and the evaluations of a trial's run."""
    folder = directory / "trials" / str(number) / "run"
    folder.mkdir(parents=True)
    record = {"run_id": "a", "experiment": "digits_mlp", "status": status, "steps": {"current": step, "end": end}}
    record |= {"time": {"total": {"wall_seconds": seconds}}} | ({"error": error} if error else {})
    (folder / "run.json").write_text(json.dumps(record))
    lines = [json.dumps({"step": at, "split": "validation", "time": 1.0, "accuracy": value}) for at, value in rows]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder
