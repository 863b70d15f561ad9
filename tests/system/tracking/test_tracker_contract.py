"""What every tracker keeps to: the packaged ones, found by their files, and those that a run always has."""

import io
import socket
from pathlib import Path

import numpy as np
import pytest

from official_trainer import lazy
from official_trainer.config import TrackerConfig
from official_trainer.tracking import Histogram, Image, Outcome, Table, Text, Tracker, Trackers
from official_trainer.tracking.console import Console
from official_trainer.tracking.jsonl import JsonlTracker
from official_trainer.tracking.threads import ThreadedTracker
from tests.support.tracking.readers import READERS

FIXED = {
    "console": lambda place: Console(io.StringIO(), end_step=40),
    "jsonl": lambda place: JsonlTracker(f"{place.directory}/metrics.jsonl"),
}
CONFIGURED = sorted(TrackerConfig.names())

MEDIA = {
    "weights": Histogram(np.linspace(-1, 1, 100)),
    "dev/sample": Image(np.zeros((4, 6, 3), np.uint8)),
    "note": Text("*so*"),
    "cells": Table(["word", "count"], [["a|b", np.int64(3)], ["c", 0.5]]),
}
SHOWS_MEDIA = {"tensorboard", "mlflow", "wandb"}


def build(name, place):
    if name in FIXED:
        return FIXED[name](place)
    config = TrackerConfig.named(name)()
    missing = [module for module in config.NEEDS if lazy.spec_of(module) is None]
    if missing:
        pytest.skip(f"NOT TESTED: {', '.join(missing)} is not installed; pip install '{config.INSTALL}'")
    return config.build(place)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Names of other machines are not even looked up."""

    look_up = socket.getaddrinfo

    def refuse(host, *args, **kwargs):
        assert host == "127.0.0.1", f"a tracker looks for {host!r}"
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr("socket.getaddrinfo", refuse)


def part(tracker, start, steps, end=None):
    """What one process of a run does with it, through what a run puts around it."""
    told = Trackers([ThreadedTracker(tracker, name="x", on_error="fail")])
    told.rewind(start)
    told.describe("digits", {"trainer.train_steps": 40, "task.model.filters[0]": "a", "task.none": None})
    for step in steps:
        told.log("train", step, {"loss": np.float32(step), "odd": float("nan")})
        told.publish("train", step, MEDIA)
        told.log("validation", step, {"dev": {"accuracy": step / 100}, "far": float("inf")})
    told.flush()
    if end is not None:
        told.end(end)
    told.close()


def test_every_type_can_be_read_here():
    """A new tracker says in `readers.py` how what it writes is read."""
    assert READERS.keys() == {*CONFIGURED, *FIXED} - {"console", "prometheus"}


@pytest.mark.parametrize("name", [*FIXED, *CONFIGURED])
def test_a_tracker_keeps_its_contract(name, place, capfd):
    """B6, T18: each point is there once, whatever was rewound and opened again; and it prints nothing."""
    tracker = build(name, place)
    assert isinstance(tracker, Tracker)
    tracker.rewind(0)
    tracker.flush()
    tracker.close()
    assert list(Path(place.directory).iterdir()) == [], "nothing is left where a run ends before its first number"
    part(build(name, place), 0, [10, 20, 30])
    part(build(name, place), 20, [30, 40], Outcome(step=40, metrics={"dev/accuracy": 0.4}))
    part(build(name, place), 40, [], Outcome(step=40, metrics={"dev/accuracy": 0.4}))
    assert capfd.readouterr() == ("", "")
    if name not in READERS:
        return
    found = [(place, step) for place, step, _ in READERS[name](Path(place.directory))]
    media = [f"train/{each}" for each in MEDIA] if name in SHOWS_MEDIA else []
    for point in ("train/loss", "train/odd", "validation/dev/accuracy", "validation/far", *media):
        assert sorted(step for place, step in found if place == point) == [10, 20, 30, 40], point
