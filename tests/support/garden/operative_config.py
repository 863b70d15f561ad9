"""What a run keeps of gin's bindings."""

import json
from pathlib import Path


def text(model_dir, name):
    return Path(model_dir, f"{name}.gin").read_text()


def record(model_dir, name="run.json"):
    return json.loads(Path(model_dir, name).read_text())
