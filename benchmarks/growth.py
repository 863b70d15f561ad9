"""How time and memory grow: with steps, checkpoints, rows, experiments, fields, runs, files of examples, workers.

Owns: what is measured at which sizes, and the exponent: the slope between the two largest sizes where both axes are
logarithmic, 1 for what is linear. Does not own: tables of targets (`report.py`).

Each is measured in a process of its own, forked from one that has imported TensorFlow and executed nothing; commands
are measured from their start to their exit. Steps, checkpoints and workers are simulated: a step does nothing, a
checkpoint is the copy of a small one under another step, and a worker is its place in the job.

Run as a process of its own (`python -m benchmarks.growth FILE --rounds=N`), because it imports TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import growth_data as data
from benchmarks import processes
from benchmarks.report import Comparison, Target

MOST = 1.15
"""What is linear takes some percent more for each of many things: they do not fit into the caches of a processor."""
LEAST_SECONDS, LEAST_MEBIBYTES = 0.005, 8.0
"""What takes less counts as this much: the noise of a process."""

Timed = Callable[[], None]
"""What is measured."""

Command = tuple[Path, list[str]]
"""The folder in which `official-trainer` is started, and its words."""


@dataclasses.dataclass(frozen=True)
class Growing:
    """Something that grows.

    Attributes:
      name: what is done.
      of: what there is more and more of.
      sizes: how many, rising.
      prepare: makes what there is, in a folder that all measurements of the same data share, and returns what is timed.
      command: makes what there is, and returns a command, for what is no part of a process.
    """

    name: str
    of: str
    sizes: tuple[int, int, int]
    prepare: Callable[[Path, int], Timed] | None = None
    command: Callable[[Path, int], Command] | None = None


def exponent(sizes: Sequence[int], values: Sequence[float], least: float) -> float:
    """Returns the slope between the two largest sizes.

    Example:
      >>> from benchmarks.growth import exponent
      >>> exponent([10, 100, 1000], [1.0, 2.0, 200.0], least=0.0)
      2.0
    """
    small, large = (max(value, least) for value in values[-2:])
    return math.log(large / small) / math.log(sizes[-1] / sizes[-2])


# Steps.


class _NoSteps:
    """A trainer whose steps do nothing."""

    mean_loss = 0.5

    def __init__(self, config: Any) -> None:
        self.config = types.SimpleNamespace(trainer=config)
        self.context = types.SimpleNamespace(traces=types.SimpleNamespace(take=list), workers=None)
        self.global_step = types.SimpleNamespace(numpy=lambda: self.step)
        self.train_iterator = types.SimpleNamespace(epoch=lambda step: step / 1000, skipped_steps=0)
        self.step = 0

        self.checkpoint_state = self.windows = self

    def initialize(self) -> None:
        """Has no weights."""

    train_loop_begin = synchronize = before_save = initialize

    def non_finite_weights(self) -> list[str]:
        return []

    def train_loop_end(self) -> Mapping[str, float]:
        return {"training_loss": self.mean_loss}

    def run_steps(self, num_steps: int, *, publish: bool) -> int:
        self.step += num_steps
        return num_steps


def loop(folder: Path, size: int) -> Timed:
    from official_trainer.actions.schedule import Schedule
    from official_trainer.checkpoints.store import NoStore
    from official_trainer.config.schema import TrainerConfig
    from official_trainer.engine.events import DueSteps, LoopObserver
    from official_trainer.engine.loop import Loop
    from official_trainer.runs.health.time_account import TimeAccount
    from official_trainer.tracking.jsonl import JsonlTracker

    config = TrainerConfig(train_steps=size, summary_interval=min(1000, size), checkpoint_interval=size)
    account = TimeAccount()

    class Accounted(LoopObserver):
        def on_window(self, state: Any, num_steps: int, seconds: float, loss: float) -> None:
            account.window(num_steps, seconds, examples=num_steps, has_traced=False)

        def on_summary(self, step: int) -> None:
            account.end_stretch()

    def run() -> None:
        rows = folder / f"{size}.jsonl"
        rows.unlink(missing_ok=True)
        trainer, due = _NoSteps(config), DueSteps(config, "never")
        Loop(
            trainer=trainer,
            store=NoStore(),
            metric_writer=JsonlTracker(str(rows)),
            due=due,
            observer=Accounted(),
            actions=Schedule(),
        ).run()

    return run


def first_batch(folder: Path, size: int) -> Timed:
    import numpy as np

    from official_trainer import inputs
    from official_trainer.config import DataConfig

    arrays = np.zeros([100_000, 16], np.float32), np.zeros([100_000], np.int32)
    params = DataConfig(global_batch_size=64, is_training=True, shuffle=True)

    def run() -> None:
        context = inputs.InputContext(start_step=size)
        next(iter(inputs.from_arrays(arrays, params, context)))

    return run


# Checkpoints that are kept.


def save(folder: Path, size: int) -> Timed:
    directory, checkpoint = data.checkpoints(folder, size)
    from official_trainer.checkpoints.store import CheckpointStore

    store = CheckpointStore(directory, checkpoint, max_to_keep=size)
    return lambda: store.save(max(store.steps()) + 1)


def restore(folder: Path, size: int) -> Timed:
    directory, checkpoint = data.checkpoints(folder, size)
    from official_trainer.checkpoints.store import CheckpointStore

    return lambda: _nothing(CheckpointStore(directory, checkpoint, max_to_keep=size).restore())


def opened_checkpoints(folder: Path, size: int) -> Timed:
    directory, _ = data.checkpoints(folder, size)
    from official_trainer import reports

    return lambda: _nothing(reports.open(directory).checkpoints)


# Rows of metrics.


def rows_at_restart(folder: Path, size: int) -> Timed:
    path = data.rows(folder, size) / "metrics.jsonl"
    from official_trainer.tracking.jsonl import JsonlTracker

    def run() -> None:
        rows = JsonlTracker(str(path))
        rows.rewind(data.AFTER_ALL)
        last = rows.last()
        assert last is not None and rows.holds(last)
        assert rows.row(last["step"], last["split"])

    return run


def events_at_restart(folder: Path, size: int) -> Timed:
    directory = data.events(folder, size)
    from official_trainer.tracking.tensorboard import TensorBoardTracker

    def run() -> None:
        tracker = TensorBoardTracker(directory)
        tracker.rewind(data.AFTER_ALL)
        tracker.describe("digits", {"trainer.train_steps": size})
        tracker.close()

    return run


def compare_rows(folder: Path, size: int) -> Command:
    places = data.rows(folder, 21), data.rows(folder, size)  # of one run there is no table
    return _command("compare", *places, "--metrics=accuracy:max,train/training_loss:min")


def report_rows(folder: Path, size: int) -> Command:
    return _command("report", data.rows(folder, size), f"--output={folder}/{size}.html")


# Experiments in a workspace.


def listed(folder: Path, size: int) -> Command:
    return data.workspace(folder, size), ["list"]


def shown(folder: Path, size: int) -> Command:
    return data.workspace(folder, size), ["show", f"experiment_{size - 1}"]


def found(folder: Path, size: int) -> Timed:
    """What `train` does first: it finds the experiment, and resolves its config."""
    workspace = data.workspace(folder, size)
    from official_trainer import config
    from official_trainer.tasks import registry

    name = f"experiment_{size - 1}"
    return lambda: _nothing(config.resolve(registry.get_config(name, workspace), experiment=name))


# Fields of a config.


def read_fields(folder: Path, size: int) -> Timed:
    from official_trainer.config import resolve

    path = data.fields_file(folder, size)
    return lambda: _nothing(resolve(data.wide_config(), config_files=[str(path)]))


def printed_fields(folder: Path, size: int) -> Timed:
    from official_trainer import config

    resolved = config.resolve(data.wide_config(), config_files=[str(data.fields_file(folder, size))])

    def run() -> None:
        config.dump(resolved, origins=True)
        config.flat(resolved.config)
        list(config.settings(resolved.config))

    return run


def compared_fields(folder: Path, size: int) -> Timed:
    from official_trainer import config
    from official_trainer.config.compare import differences
    from official_trainer.config.written import fields_of
    from official_trainer.runs import differing
    from official_trainer.runs.resume import config_changes

    resolved = config.resolve(data.wide_config(), config_files=[str(data.fields_file(folder, size))])
    text = config.dump(resolved)
    other = text.replace("0.5", "0.25")

    def run() -> None:
        assert len(differences(config_changes.parse(other), resolved)) >= size // 4
        differing.fields([fields_of(text)[0], fields_of(other)[0]])

    return run


# Runs in a directory.


def compare_runs(folder: Path, size: int) -> Command:
    return _command("compare", data.runs(folder, size))


def list_runs(folder: Path, size: int) -> Command:
    return _command("runs", data.runs(folder, size))


def report_runs(folder: Path, size: int) -> Command:
    return _command("report", data.runs(folder, size), f"--output={folder}/{size}.html")


# Files of examples.


def files_first_batch(folder: Path, size: int, *, start_step: int = 0) -> Timed:
    pattern = data.record_files(folder, size)
    from official_trainer import inputs
    from official_trainer.config import DataConfig

    params = DataConfig(input_path=pattern, global_batch_size=32, is_training=True, shuffle_buffer_size=64)

    def run() -> None:
        context = inputs.InputContext(start_step=start_step)
        next(iter(inputs.from_tfrecords(params, context, parse_fn=len_of)))

    return run


def len_of(record: Any) -> Any:
    """Returns how long a record is, in place of parsing it."""
    from official_trainer.lazy import tf

    return tf.strings.length(record)


# Workers.


def shares(folder: Path, size: int, *, files_per_worker: float) -> Timed:
    """The shares of all pipelines, which the first one prints and records."""
    pattern = data.record_files(folder, round(size * files_per_worker))
    from official_trainer import inputs
    from official_trainer.config import DataConfig

    params = DataConfig(input_path=pattern, global_batch_size=size, is_training=True, shuffle_buffer_size=64)
    context = inputs.InputContext(num_input_pipelines=size, num_replicas_in_sync=size)
    inputs.from_tfrecords(params, context, parse_fn=len_of)
    assert context.sharing is not None
    sharing = context.sharing
    return lambda: _nothing(str(sharing()), list(sharing().warnings()))


def meeting(folder: Path, size: int) -> Timed:
    """One worker waits until it has reached all others; here they listen at one address."""
    import socket

    from official_trainer.distributed import peers

    server = socket.create_server(("127.0.0.1", 0), backlog=4096)
    address = f"127.0.0.1:{server.getsockname()[1]}"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        own = f"127.0.0.1:{probe.getsockname()[1]}"
    addresses = {"worker 0": own, **{f"worker {number}": address for number in range(1, size)}}
    data.accept_all(server)
    return lambda: peers.meet("worker 0", addresses, 60.0)


def described(folder: Path, size: int) -> Timed:
    """One worker's `TF_CONFIG` is written, and read."""
    from official_trainer.distributed.cluster import Cluster
    from official_trainer.distributed.environment import cluster_env

    addresses = {"worker": tuple(f"10.0.{number // 250}.{number % 250 + 1}:2222" for number in range(size))}
    cluster = Cluster(addresses=addresses, role="worker", index=size - 1, source="launch")
    return lambda: _nothing(cluster_env({"TF_CONFIG": json.dumps(cluster.tf_config())}))


def agreeing(folder: Path, size: int) -> Timed:
    """The facts of all workers are compared."""
    from official_trainer import config
    from official_trainer.config.schema import ExperimentConfig
    from official_trainer.engine import consistency

    facts = consistency.of_run("digits", "train", "/runs/digits", config.flat(ExperimentConfig()))
    peers: Any = types.SimpleNamespace(count=size, exchange=lambda own: [dict(own) for _ in range(size)])
    return lambda: consistency.check(peers, lambda: facts)


def rendered(folder: Path, size: int) -> Command:
    profile = data.profile(folder, size)
    batches = [f"task.{section}.global_batch_size={size}" for section in ("train_data", "validation_data")]
    words = ["--", "digits_mlp", "--model_dir=/shared/runs/digits", *batches]
    return _command("launch", "slurm", f"--profile={profile}", *words)


FEW, MANY, MOST_OF_ALL = (10, 100, 1000), (10**2, 10**3, 10**4), (10**4, 10**5, 10**6)

THINGS = [
    Growing("training with steps that do nothing", "steps", (10**5, 10**6, 10**7), loop),
    Growing("the first batch of arrays at that step", "steps", (10**3, 10**5, 10**7), first_batch),
    Growing("a save beside those", "checkpoints", FEW, save),
    Growing("restoring the newest", "checkpoints", FEW, restore),
    Growing("opening the run in Python", "checkpoints", FEW, opened_checkpoints),
    Growing("metrics.jsonl at a restart", "rows", MOST_OF_ALL, rows_at_restart),
    Growing("TensorBoard's files at a restart", "rows", (10**3, 10**4, 10**5), events_at_restart),
    Growing("compare --metrics", "rows", MOST_OF_ALL, command=compare_rows),
    Growing("report of the run", "rows", MOST_OF_ALL, command=report_rows),
    Growing("list", "experiments", FEW, command=listed),
    Growing("show NAME", "experiments", FEW, command=shown),
    Growing("the start of train", "experiments", FEW, found),
    Growing("reading a file", "fields", MANY, read_fields),
    Growing("printing", "fields", MANY, printed_fields),
    Growing("comparing", "fields", MANY, compared_fields),
    Growing("compare DIR", "runs", MANY, command=compare_runs),
    Growing("runs DIR", "runs", MANY, command=list_runs),
    Growing("report DIR", "runs", MANY, command=report_runs),
    Growing("the first batch", "files", (10**3, 10**4, 10**5), files_first_batch),
    Growing(
        "the first batch at a later step",
        "files",
        (10**3, 10**4, 10**5),
        functools.partial(files_first_batch, start_step=10**7),
    ),
    Growing("shares, two files each", "workers", FEW, functools.partial(shares, files_per_worker=2)),
    Growing("shares of fewer files", "workers", FEW, functools.partial(shares, files_per_worker=0.5)),
    Growing("meeting all others", "workers", FEW, meeting),
    Growing("TF_CONFIG of one", "workers", FEW, described),
    Growing("comparing what all were started with", "workers", FEW, agreeing),
    Growing("launch slurm", "workers", FEW, command=rendered),
]


def _nothing(*results: object) -> None:
    """Takes results, of which only the time counts."""


def _command(*words: str | Path) -> Command:
    return processes.ROOT, [*map(str, words)]


# Measuring.


def measured(thing: Growing, folder: Path, size: int) -> tuple[float, float]:
    """Returns the seconds and the peak of memory in MiB: of a command, or of a fork beyond what it began with."""
    shared = folder / thing.of
    shared.mkdir(exist_ok=True)
    if thing.command is not None:
        place, words = thing.command(shared, size)
        usage = processes.run([sys.executable, "-m", "official_trainer", *words], folder=place)
        return usage.wall_seconds, usage.peak_bytes / 2**20
    assert thing.prepare is not None
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(writing, json.dumps(_timed(thing.prepare(shared, size))).encode())
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError(f"{thing.name} failed with {size:,} {thing.of}")
    seconds, mebibytes = json.loads(said)
    return seconds, mebibytes


def _timed(timed: Timed) -> tuple[float, float]:
    """Measures once: a second time would find what the first has kept."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, start = _memory("VmRSS"), time.perf_counter()
    timed()
    return time.perf_counter() - start, max(0.0, _memory("VmHWM") - before)


def _memory(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


Figures = list[list[list[tuple[float, float]]]]
"""Seconds and MiB of each thing, round by round, size by size."""


def measure_all(num_rounds: int) -> Figures:
    """Measures what is no command."""
    data.import_all()
    return _measured([thing for thing in THINGS if thing.command is None], num_rounds)


def _measured(things: Sequence[Growing], num_rounds: int) -> Figures:
    found: Figures = []
    with tempfile.TemporaryDirectory() as folder:
        for thing in things:
            found.append([])
            for number in range(num_rounds):
                by_size = {}
                for size in thing.sizes[:: 1 if number % 2 == 0 else -1]:
                    what = f"{thing.name}: {size:,} {thing.of}"
                    print(f"\r{what:<90}", end="", file=sys.stderr, flush=True)
                    by_size[size] = measured(thing, Path(folder), size)
                found[-1].append([by_size[size] for size in thing.sizes])
    print(f"\r{'':<90}\r", end="", file=sys.stderr, flush=True)
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Growth(Comparison):
    """Exponents, which are promised, with the figures that they are of.

    Attributes:
      figures: of each, the median at each size, as text.
      figures_unit: of those.
    """

    figures: Mapping[str, Sequence[str]]
    figures_unit: str

    def rows_of_values(self) -> list[list[str]]:
        header = [self.title, f"{self.figures_unit}, at the smallest", "middle", "and largest size", "exponent"]
        exponents = [f"{statistics.median(values):.2f}" for values in self.values.values()]
        names = zip(self.figures.items(), exponents, strict=True)
        return [header, *([name, *texts, exponent] for (name, texts), exponent in names)]


def compare(num_rounds: int) -> list[Comparison]:
    """Measures commands here, and all else in a child process, so that this one stays small."""
    commands = iter(_measured([thing for thing in THINGS if thing.command is not None], num_rounds))
    others = iter(processes.results_of("benchmarks.growth", num_rounds))
    return comparisons(THINGS, [next(others if thing.command is None else commands) for thing in THINGS])


def comparisons(things: Sequence[Growing], found: Figures) -> list[Comparison]:
    """Returns the tables of figures: time, then memory."""
    tables: list[Comparison] = []
    for place, (title, unit, least, digits) in enumerate(
        [("time", "s", LEAST_SECONDS, 3), ("memory", "MiB", LEAST_MEBIBYTES, 0)]
    ):
        values, figures = {}, {}
        for thing, rounds in zip(things, found, strict=True):
            name = f"{thing.of}: {thing.name}"
            by_round = [[each[place] for each in by_size] for by_size in rounds]
            values[name] = [exponent(thing.sizes, each, least) for each in by_round]
            medians = [statistics.median(column) for column in zip(*by_round, strict=True)]
            pairs = zip(thing.sizes, medians, strict=True)
            figures[name] = [f"{size:,}: {median:.{digits}f}" for size, median in pairs]
        targets = [Target(name=name, at_most=MOST) for name in values]
        more = {"figures": figures, "figures_unit": unit}
        tables.append(Growth(title=f"growth of {title}", unit="", values=values, targets=targets, digits=2, **more))
    return tables


if __name__ == "__main__":
    processes.write_results(measure_all)
