"""Which formats models can have, on tiny data: `python -m tests.support.formats.table [FOLDER] [NAME …]`.

Each model is trained for some steps in a process of its own, because a process has one Keras; then each format of its
newest checkpoint is tried, and nothing is exported. A cell is how far outputs are from those of the model, as the limit
of the format counts; below the table is why others are `no`. Some rows are in docs/guides/predict_and_export.md.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import get_args

from official_trainer import config, files
from official_trainer.config.schema import ExportFormat
from official_trainer.errors import UserError
from official_trainer.formats.kinds import missing
from official_trainer.runs import recorded
from official_trainer.runs.job import Job
from official_trainer.runs.run import import_tensorflow
from official_trainer.tasks import registry
from tests import ROOT
from tests.support.garden import data
from tests.support.garden.families import FAMILIES

FORMATS = get_args(ExportFormat)
HERE = ROOT / "tests" / "support" / "formats"


@dataclasses.dataclass(frozen=True)
class Model:
    """How a model is trained: the words after `train`, the workspace, and the kind of data that it needs.

    `exported` are values that its export has, and its training has not.
    """

    words: tuple[str, ...]
    workspace: Path = ROOT
    data: str = ""
    exported: tuple[str, ...] = ()


def _ours(name, *sets):
    short = ("trainer.train_steps=20", "trainer.validation_interval=20", "trainer.checkpoint_interval=20")
    return Model((name, *short, "trainer.summary_interval=20", "trainer.steps_per_loop=20", *sets))


def _garden(family, *exported):
    found = FAMILIES[family]
    overlay = (f"--experiment={found.experiment}", f"--config_file={found.overlay}")
    return Model(
        (*overlay, "trainer.train_steps=4", "trainer.validation_interval=4"), data=found.data, exported=exported
    )


WARMUP = "trainer.optimizer_config.warmup.linear.warmup_steps=2"
FLOAT32 = tuple(
    f"{place}=float32"
    for place in ("runtime.mixed_precision_dtype", "task.train_data.dtype", "task.validation_data.dtype")
)
MODELS = {
    "digits_mlp, tf_keras": _ours("digits_mlp"),
    "digits_cnn, tf_keras": _ours("digits_cnn"),
    "breast_cancer, tf_keras": _ours("breast_cancer"),
    "diabetes, tf_keras": _ours("diabetes"),
    "two inputs, tf_keras": Model(("formats_pair",), HERE),
    "LSTM, tf_keras": Model(("formats_series",), HERE),
    "LSTM unrolled, tf_keras": Model(("formats_series", "task.unroll=true"), HERE),
    "python_docs_lm, Model Garden's layers": _ours("python_docs_lm"),
    "digits_keras3": _ours("digits_keras3", WARMUP),
    "GRU and two inputs, Keras 3": Model(("formats_pair3",), HERE),
    "python_topics, KerasHub": _ours("python_topics", WARMUP),
    "resnet_imagenet": _garden("resnet"),
    "bert/sentence_prediction": _garden("bert_sentence_prediction"),
    "mnv2_deeplabv3_pascal": _garden("mobilenet_segmentation"),
    "retinanet_resnetfpn_coco, bfloat16": _garden("retinanet"),
    "retinanet_resnetfpn_coco, exported in float32": _garden("retinanet", *FLOAT32),
}


def tried(run_dir, sets):
    """Returns the cell of each format of the newest checkpoint of a run, with these values; `no: …` has a reason."""
    found = dict.fromkeys(FORMATS, "")
    for name in FORMATS:
        for what, fix in missing([name]):
            found[name] = f"no: {what}; {fix}"
    run = recorded.read(run_dir, now_seconds=0.0)
    experiment, workspace = run.experiment, run.record.get("workspace") or registry.find_workspace()
    base = registry.get_config(experiment, workspace, run.record.get("imports") or [])
    params = [files.join(run_dir, files.PARAMS_FILE)]
    resolved = config.resolve(base, experiment=experiment, config_files=params, sets=sets)
    job = Job(experiment=experiment, resolved=resolved, model_dir=run_dir, mode="export", quiet=True)
    import_tensorflow(quiet=True)
    from official_trainer.formats.writing import Formats
    from official_trainer.runs.chosen_checkpoint import build_at
    from official_trainer.tasks import export

    trainer, step = build_at(job, "latest")
    with trainer.weights_averaged(), tempfile.TemporaryDirectory() as work:
        folder = files.join(work, str(step))
        export.save(folder, trainer.task, trainer.model, step=step)
        formats = Formats(trainer, folder, job.config.trainer.export.max_difference)
        record, failures = formats.write([name for name in FORMATS if not found[name]])
    found |= {name: f"no: {why}" for name, why in failures.items()}
    for name, row in record["formats"].items():
        found[name] = cell_of(row)
    return found


def cell_of(row):
    """Returns what was measured of a format as a cell."""
    if why := row.get("not_compared"):
        return f"no: {why}"
    if "limit_of" not in row:
        return "yes"  # weights, bit by bit
    apart = max(each[row["limit_of"]] for each in row["difference"].values())
    number = f"{apart:.0e}".replace("e-0", "e-") if apart else "0"
    return f"{number}, random" if "compared_on" in row else number


def rows(folder, names):
    """Yields the lines of the table, in Markdown."""
    yield f"| model | {' | '.join(FORMATS)} |"
    yield f"|---{'|---' * len(FORMATS)}|"
    reasons = {}
    for number, (name, model) in enumerate(MODELS.items()):
        if names and not any(each in name for each in names):
            continue
        run = folder / f"run-{number}"
        if model.data:
            data.write(folder / "tiny_data", [model.data])
        train = [sys.executable, "-m", "official_trainer", "train", *model.words, f"--model_dir={run}"]
        cwd = folder if model.data else model.workspace
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        for command in (
            [*train, "trainer.export.at_end=false"],
            [sys.executable, "-m", "tests.support.formats.table", "--json", str(run), *model.exported],
        ):
            done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
            if done.returncode:
                lines = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
                cells = dict.fromkeys(FORMATS, f"no: {lines[-1]}")
                break
        else:
            cells = json.loads(done.stdout.strip().splitlines()[-1])
        yield f"| {name} | {' | '.join(cell.partition(':')[0] for cell in cells.values())} |"
        for kind, cell in cells.items():
            if cell.startswith("no: "):
                reasons.setdefault((name, cell), []).append(kind)
    yield ""
    for (name, cell), kinds in reasons.items():
        yield f"- {name}, {', '.join(kinds)}: {' '.join(cell.removeprefix('no: ').split())}"


def main(words):
    """Prints the table; returns the exit code."""
    if words[:1] == ["--json"]:
        try:
            print(json.dumps(tried(words[1], words[2:])))
        except UserError as error:
            print(str(error).replace("\n", " "), file=sys.stderr)
            return int(error.exit_code)
        return 0
    folder = Path(words[0] if words else tempfile.mkdtemp()).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for line in rows(folder, words[1:]):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
