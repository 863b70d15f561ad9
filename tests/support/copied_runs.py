"""A run directory that is copied, and what is compared of it and its copies."""

import json

import tensorflow as tf

from official_trainer.checkpoints.store import CheckpointStore


def save(directory, step):
    CheckpointStore(str(directory), tf.train.Checkpoint(v=tf.Variable(float(step))), max_to_keep=None).save(step)


def source(folder):
    """Makes a run directory with two checkpoints, a best one, and files that are this run's alone."""
    run = folder / "source"
    for step in (10, 20):
        save(run, step)
    save(run / "best", 10)
    save(run / "quarantine", 5)
    (run / "train").mkdir()
    for name in ("metrics.jsonl", "params.yaml", "train/events", "best/info.json"):
        (run / name).write_text(name)
    for name in (".lock", ".lock.json", "status.json", "wandb.json", "ckpt-30.saving", "metrics.jsonl.tmp-1-0123abcd"):
        (run / name).write_text("{}")
    (run / "export").mkdir()
    (run / "run.json").write_text(json.dumps({"run_id": "1", "experiment": "e", "restarts": 3}))
    return run


def content(run):
    """Returns each file of a run with its bytes, without the name of the run."""
    found = {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    record = json.loads(found.pop("run.json"))
    return found | {"run.json": record | {"run_id": ""}}
