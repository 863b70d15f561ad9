"""What trackers have written, read with the libraries of those who read it: (split/name, step, value) of each point."""

import json
import struct
from pathlib import Path

import tensorflow as tf


def jsonl(directory):
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [(f"{row['split']}/{name}", row["step"], value) for row in rows for name, value in row.items()]


def tensorboard(directory):
    found = []
    for path in sorted(directory.rglob("*.tfevents.*")):
        folder = path.parent.relative_to(directory)
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                is_scalar = value.metadata.plugin_data.plugin_name == "scalars"
                number = float(tf.make_ndarray(value.tensor)) if is_scalar else None
                found.append((f"{folder}/{value.tag}", event.step, number))
    return found


def mlflow(directory):
    """One run; media are artifacts."""
    import mlflow as library

    client = library.MlflowClient(f"sqlite:///{directory}/mlflow.db")
    (run,) = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    found = [
        (name, metric.step, metric.value)
        for name in run.data.metrics
        for metric in client.get_metric_history(run.info.run_id, name)
    ]
    (artifacts,) = directory.glob("mlartifacts/*/artifacts")
    media = [path.relative_to(artifacts) for path in artifacts.rglob("*.*")]
    return [*found, *((str(path.parent), int(path.stem), None) for path in media)]


def wandb(directory):
    """The files of all processes of a run."""
    found = []
    for path in sorted(directory.glob("wandb/offline-run-*/*.wandb")):
        for record in wandb_records(path):
            row = {".".join([*item.nested_key] or [item.key]): item.value_json for item in record.history.item}
            step = int(row.pop("_step", -1))
            found += [(name.removesuffix("._type"), step, _number(text)) for name, text in row.items() if "/" in name]
    names = {(name, step) for name, step, _ in found}
    return [p for p in found if not (p[2] is None and (p[0].rpartition(".")[0], p[1]) in names)]


def wandb_records(path):
    """The records of W&B's own file: blocks of 32 KiB with chunks of (checksum, length, kind), after seven bytes."""
    from wandb.proto import wandb_internal_pb2

    content, at, whole = Path(path).read_bytes(), 7, b""
    while at + 7 <= len(content):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last chunk
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def _number(text):
    value = json.loads(text)
    return float(value) if isinstance(value, int | float) else None


READERS = {"jsonl": jsonl, "tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
