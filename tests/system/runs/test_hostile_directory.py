"""A file or a folder of a run directory that is damaged, replaced or another run's, for every verb that reads there."""

import concurrent.futures
import contextlib
import functools
import io
import itertools
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from official_trainer.cli import verbs
from tests import ROOT
from tests.support.checkpoint_damage import cut_in_half, flip
from tests.support.forked import Child, run_command


def _instead(make):
    """Returns a harm that removes what is at a path, and then makes something else there."""

    def replace(path, *_):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        make(path)

    return replace


def _flipped(path, *_):
    if path.stat().st_size:
        flip(1 / 2, mask=0x40)(path)


def _swapped(path, *_):
    """Exchanges the contents of a file and its neighbour in the directory."""
    others = sorted(other for other in path.parent.iterdir() if other.is_file() and other != path)
    if others:
        other = others[0]
        mine, theirs = path.read_bytes(), other.read_bytes()
        path.write_bytes(theirs)
        other.write_bytes(mine)


def _foreign(path, run, other_run):
    """Puts the file of another run of the same config there."""
    theirs = other_run / path.relative_to(run)
    if not theirs.is_file():  # the name has a time in it
        theirs = next(theirs.parent.glob("*.tfevents.*"))
    shutil.copyfile(theirs, path)


FILE_HARMS = {
    "truncated": lambda path, *_: cut_in_half(path),
    "flipped": _flipped,
    "deleted": lambda path, *_: path.unlink(),
    "zeroed": lambda path, *_: path.write_bytes(bytes(path.stat().st_size)),
    "swapped": _swapped,
    "directory": _instead(Path.mkdir),
    "link": _instead(lambda path: path.symlink_to(path.parent / "nothing" / "here")),
    "foreign": _foreign,
    "empty": lambda path, *_: path.write_bytes(b""),
    "nested": lambda path, *_: path.write_text("[" * 100_000),
    "pipe": _instead(os.mkfifo),
}
"""What is done to one file: each takes its path, the run directory, and that of another run."""

FOLDER_HARMS = {
    "deleted": lambda path, *_: shutil.rmtree(path),
    "file": _instead(Path.touch),
    "link": _instead(lambda path: path.symlink_to(path.parent / "nothing" / "here")),
    "pipe": _instead(os.mkfifo),
}
"""What is done to one folder."""

# By which commands it is met.

CONFIG = ["--experiment=digits_mlp", "--config_file=configs/smoke/digits_mlp.yaml"]
SETS = [
    "trainer.best_checkpoint_eval_metric=accuracy",
    "trainer.max_to_keep=10",
    "trainer.continuous_eval_timeout=0",
    "trainer.export.best=true",
    "trainer.actions=[{type: command, name: said, argv: [echo, said], events: [end]}]",
    "runtime.enable_op_determinism=true",
]


def _with_config(verb, *more):
    return lambda run: [*verb.split(), f"--model_dir={run}", *CONFIG, *SETS, *more]


VERBS = {
    "train": _with_config("train", "trainer.train_steps=30"),
    "continuous_eval": _with_config("train --mode=continuous_eval"),
    "eval": lambda run: ["eval", f"--model_dir={run}"],
    "eval_best": lambda run: ["eval", f"--model_dir={run}", "--checkpoint=best"],
    "predict": lambda run: ["predict", f"--model_dir={run}", "--format=jsonl"],
    "export": lambda run: ["export", f"--model_dir={run}"],
    "check": _with_config("check"),
    "show": lambda run: ["show", str(run)],
    "runs": lambda run: ["runs", str(run)],
    "compare": lambda run: ["compare", str(run), str(run.parent / "whole")],
    "report": lambda run: ["report", str(run), f"--output={run.parent / 'report.html'}"],
    "show_changed": lambda run: ["show", str(run), "trainer.train_steps=5"],
}
"""The commands that read or write a run directory."""

NO_EXPORTS = ["trainer.export.best=false", "trainer.export.at_end=false"]
"""For `train`, where what is damaged is no export: these take half of its time."""


def relevant(kind):
    """Returns the commands that read, write or replace what is at a place, and those that cost nothing."""
    verbs = ["train", "continuous_eval", "predict", "show", "show_changed", "runs", "compare", "report"]
    if kind in ("run.json", "params.yaml", ".lock", ".lock.json", "status.json"):
        return tuple(VERBS)
    if kind.startswith(("ckpt", "checkpoint", "export/N")) or kind == "export":
        verbs += ["eval", "export"]
    if kind.startswith("best"):
        verbs += ["eval_best"]
    return tuple(verb for verb in VERBS if verb in verbs)


NO_RUN_DIRECTORY = {
    *("data", "data_service", "doctor", "find_lr", "init", "job", "launch", "list", "sweep"),
}
"""Verbs without one; `launch` and `sweep` only start `train`, and look at it with the function of `train`."""

CODES = {0, 2, 75}


def make_run(folder, *sets):
    """Makes a run directory with everything that a run, an evaluator and predictions leave, and locks of dead ones."""
    run = trained(folder, *sets)
    for name, more in (("continuous_eval", sets), ("predict", ())):
        done = run_command([*VERBS[name](run), *more], cwd=ROOT, folder=folder)
        assert done.code == 0, done.err
    (run / ".lock.json").write_text(json.dumps({"owner": "dead", "pid": 1, "machine": "other", "renewals": 1}))
    lease = {"host": "other", "pid": 1, "renewed": 0.0, "done": [10]}
    (run / "continuous_eval" / "lease.json").write_text(json.dumps(lease))
    return run


def trained(folder, *sets):
    """Makes a run directory with what a run leaves."""
    run = folder / "run"
    argv = [word for word in VERBS["train"](run) if word != "trainer.train_steps=30"]
    done = run_command([*argv, *sets], cwd=ROOT, folder=folder)
    assert done.code == 0, done.err
    return run


def targets(run):
    """Returns one file, the newest, or one folder for each kind of name in a run directory, by that kind."""
    found = {}
    for path in sorted(run.rglob("*"), key=lambda path: (len(path.name), path.name)):
        name = str(path.relative_to(run))
        kind = re.sub(r"tfevents\..*", "tfevents", name)
        found[re.sub(r"\d+", "N", kind)] = path.relative_to(run)
    return found


def all_cases(run):
    """Returns every kind of file and folder with every harm."""
    return [
        (kind, harm)
        for kind, path in targets(run).items()
        for harm in (FOLDER_HARMS if (run / path).is_dir() else FILE_HARMS)
    ]


def harm(run, other_run, kind, how):
    """Damages one file or folder of `run`."""
    path = run / targets(run)[kind]
    (FOLDER_HARMS if path.is_dir() else FILE_HARMS)[how](path, run, other_run)


class Try(Child):
    """A process that carries out all commands, each on a damaged copy of its own of a run directory."""

    def __init__(self, run, other_run, kind, how, folder, verbs=tuple(VERBS)):
        folder.mkdir()
        self._results = folder / "results.json"
        target = functools.partial(_try_all, str(run), str(other_run), kind, how, str(folder), verbs)
        super().__init__(target, cwd=ROOT, folder=folder)

    def results(self):
        """Waits; returns verb → exit code, output, and what became of the directory."""
        done = self.wait()
        assert done.code == 0, done.err
        return json.loads(self._results.read_text())


def _try_all(run, other_run, kind, how, folder, verbs):
    from official_trainer import cli, lock
    from official_trainer.lazy import keras
    from official_trainer.runs import evaluate

    lock.LEASE_SECONDS, lock._POLL_SECONDS, evaluate.POLL_SECONDS = 0.02, 0.01, 0.01
    results = {}
    for verb in verbs:
        copy = Path(folder) / verb / "run"
        shutil.copytree(run, copy)
        if verb == "compare":
            shutil.copytree(run, copy.parent / "whole")
        if how is not None:
            harm(copy, Path(other_run), kind, how)
        out, err = io.StringIO(), io.StringIO()
        keras.backend.clear_session()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            more = NO_EXPORTS if verb == "train" and kind is not None and not kind.startswith("export") else []
            code = cli.main([*VERBS[verb](copy), *more])
        results[verb] = {"code": code, "out": out.getvalue(), "err": err.getvalue(), **_left(copy)}
        shutil.rmtree(copy.parent)
    Path(folder, "results.json").write_text(json.dumps(results))


def _left(run):
    """Returns checksums of the values that are left: of checkpoints, exports and predictions."""
    import hashlib

    from tests.support.runs import bits

    found = {}
    for index in sorted(path for path in run.rglob("*.index") if path.is_file()):
        if any(path.is_fifo() for path in index.parent.glob(f"{index.stem}.data-*")):
            continue  # TensorFlow would wait
        with contextlib.suppress(Exception):  # damaged
            values = bits(str(index.with_suffix("")))
            found[str(index.relative_to(run))] = hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()
    for path in sorted(run.glob("predictions/*.jsonl")):
        if path.is_file():
            found[str(path.relative_to(run))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"left": found}


def broken_by(run, other_run, case, expected, folder, without=()):
    """Tries a case; returns a line for each thing that must not be.

    Args:
      run: the whole directory.
      other_run: that of another run.
      case: the kind of file or folder, and the harm.
      expected: the results of the commands on the whole directory.
      folder: for the copies.
      without: commands that are left out.
    """
    kind, how = case
    verbs = tuple(verb for verb in relevant(kind) if verb not in without)
    damaged = str(targets(run)[kind]).partition(".")[0]
    whole = {
        name: checksum
        for name, checksum in _left(run)["left"].items()
        if name.startswith("ckpt-") and name != f"{damaged}.index"
    }
    try:
        results = Try(run, other_run, kind, how, folder, verbs).results()
    except AssertionError as error:
        return [f"{kind} {how}: {error}"]
    return [
        f"{kind} {how}, {verb}: {problem}"
        for verb, result in results.items()
        for problem in _problems(case, verb, result, expected[verb], whole)
    ]


def _problems(case, verb, result, expected, whole):
    """Yields what must not be: a traceback, a silent failure, other values than without damage, a lost checkpoint."""
    text, left, kind = result["err"], result["left"], case[0]
    harms_rows = kind.startswith("predictions/predictions-") or case == ("predictions/.lock", "swapped")
    if result["code"] not in CODES:
        yield f"exit code {result['code']}: {text[-500:]}"
    if "Traceback" in text:
        yield f"a traceback: {text[-500:]}"
    if result["code"] and "error: " not in text:
        yield "a failure without a message"
    if result["code"] == 0:
        names = {"train": ["ckpt-30.index"], "export": ["export/20/variables/variables.index"]}.get(verb, [])
        if kind == "params.yaml" and verb == "export":
            names = []  # another seed is exported with the same weights
        if verb == "predict" and not harms_rows:  # a file of rows that is there is done
            names = [name for name in expected["left"] if name.startswith("predictions/")]
        yield from (f"other values: {name}" for name in names if left.get(name) != expected["left"][name])
        if verb.startswith("eval") and result["out"] != expected["out"]:
            yield f"other metrics: {result['out']} instead of {expected['out']}"
    yield from (f"lost: {name}" for name, checksum in whole.items() if left.get(name) != checksum)


FEW = {
    "run.json": ["nested", "foreign"],
    "params.yaml": ["link", "nested"],
    "status.json": ["pipe"],
    "metrics.jsonl": ["directory", "zeroed"],
    "ckpt-N.index": ["swapped"],
    "ckpt-N.data-N-of-N": ["flipped"],
    "ckpt-N.manifest.json": ["truncated"],
    "best": ["file", "deleted"],
    "continuous_eval/lease.json": ["empty"],
}
"""What the quick test damages, and how: each harm at least once; the full one finds every kind of file and folder."""

DEAR = ("train", "check", "export", "eval_best", "continuous_eval", "compare", "report")
"""Commands that meet only the first harm of each file in the quick test: they read as the others do."""

CHEAP = ("status.json", "ckpt-N.index", "ckpt-N.manifest.json")
"""Files whose harm they do not meet there; for training after it, see `checkpoints/test_store_corruption.py`."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The directory of a run, and the results of all commands on a copy of it."""
    run = make_run(tmp_path_factory.mktemp("one"))
    expected = Try(run, run, None, None, tmp_path_factory.mktemp("whole") / "try").results()
    assert {result["code"] for result in expected.values()} == {0}, expected
    return run, expected


def broken(whole, other, cases, folder, without=lambda case: ()):
    run, expected = whole

    def check(numbered):
        number, case = numbered
        return broken_by(run, other, case, expected, folder / str(number), without(case))

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return [*itertools.chain.from_iterable(pool.map(check, enumerate(cases)))]


def test_every_verb_is_tried_or_has_no_run_directory():
    """N6: a new verb has to say which."""
    tried = {VERBS[name](Path("run"))[0] for name in VERBS}
    assert tried | NO_RUN_DIRECTORY == {name.replace("-", "_") for name in verbs.names()}


def test_damage_to_a_run_directory_is_said_and_never_gives_other_values(whole, tmp_path):
    """N3, N6, N34: exit code 0, 2 or 75, a message, no traceback, no hang; each harm to one place."""
    cases = [(kind, harm) for kind, harms in FEW.items() for harm in harms]
    assert {harm for _, harm in cases} == {*FILE_HARMS, *FOLDER_HARMS}
    assert {*cases} <= {*all_cases(whole[0])}
    other = trained(tmp_path, "runtime.seed=2", *NO_EXPORTS)  # of which one file is used
    assert broken(whole, other, cases, tmp_path, _without) == []


def _without(case):
    kind, harm = case
    return () if harm == FEW[kind][0] and kind not in CHEAP else DEAR


@pytest.mark.full
def test_every_damage_to_every_kind_of_file_and_folder(whole, tmp_path):
    """N3, N6, N34: as above, for all of them."""
    cases, other = all_cases(whole[0]), make_run(tmp_path, "runtime.seed=2")
    assert len(cases) > 400
    assert broken(whole, other, cases, tmp_path) == []
