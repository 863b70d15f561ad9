"""Sweeps written by hand, as the driver leaves them, for tests of what reads them."""

import json

from official_trainer.sweeps import trial as trials
from official_trainer.sweeps.trial import Trial

RATE = "trainer.optimizer_config.learning_rate.cosine.initial_learning_rate"
SPACE = {
    "task.model.type": "choice(mlp, cnn)",
    "task.train_data.global_batch_size": "int(32, 128, 32)",
    RATE: "log(1e-4, 1e-1)",
    "task.model.mlp.dropout": "float(0, 0.5)",
}
OBJECTIVE = {"metric": "accuracy", "direction": "max", "evaluation": "best", "others": {}}


def write_sweep(directory, records, *, space=SPACE, objective=OBJECTIVE, population=None):
    """Writes `sweep.json` and the records of trials; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    content = {"experiment": "digits_mlp", "sweep": {"objective": objective, "space": space}}
    content["sweep"]["population"] = population
    (directory / "sweep.json").write_text(json.dumps(content))
    for record in records:
        trials.write(str(directory), record)
    return directory


def ended(number, value=None, *, state="complete", step=200, others=(), reason=""):
    """Returns the record of a trial that has ended, with two evaluations if it has a value."""
    return Trial(
        number=number,
        values={"task.model.type": "cnn", RATE: 0.001 * (number + 1)},
        state=state,
        value=value if state == "complete" else None,
        others=dict(others),
        step=None if value is None else step,
        reason=reason,
        reports=() if value is None else ((step // 2, value / 2), (step, value)),
    )


def write_run(directory, number, *, status="done", step=200, end=200, seconds=1.5, rows=()):
    """Writes the record and the evaluations of a trial's run."""
    folder = directory / "trials" / str(number) / "run"
    folder.mkdir(parents=True)
    record = {"run_id": "a", "experiment": "digits_mlp", "status": status, "steps": {"current": step, "end": end}}
    (folder / "run.json").write_text(json.dumps(record | {"time": {"total": {"wall_seconds": seconds}}}))
    lines = [json.dumps({"step": at, "split": "validation", "time": 1.0, "accuracy": value}) for at, value in rows]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder
