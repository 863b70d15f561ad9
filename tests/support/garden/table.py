"""What each of Model Garden's experiments does here, tried one by one; writes docs/project/model_garden.md.

    python -m tests.support.garden.table [EXPERIMENT …]

Every experiment is resolved, written and read back, and its model built at its real size, in a process of its own with
limits of time and memory. Those for which `families.py` has data are trained for a few steps. With names, only these
are tried, and the rest of the table stays.
"""

import contextlib
import json
import multiprocessing
import os
import re
import resource
import sys
import tempfile
from pathlib import Path

from tests import ROOT
from tests.support.forked import start_server

os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3", TF_USE_LEGACY_KERAS="1")

PAGE = ROOT / "docs/project/model_garden.md"
BEGIN, END = "<!-- experiments: begin -->", "<!-- experiments: end -->"
LIMIT_SECONDS = 240
LIMIT_BYTES = 16 << 30
COLUMNS = ("experiment", "resolved", "round trip", "built", "trained", "with what, or why not")

_context = multiprocessing.get_context("forkserver")


def attempt(name, path):
    """Tries an experiment as far as it goes; notes each success at once, for what comes next may end the process."""
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    found = {}

    def note(**changes):
        found.update(changes)
        Path(path).write_text(json.dumps(found))

    note(reason="the process died, or took more memory than there is")
    try:
        for changes in _steps(name):
            note(**changes)
        note(reason=found.get("no_data", ""))
    except Exception as error:
        note(reason=f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}")


def _steps(name):
    from official_trainer import config as configuration
    from official_trainer.garden.to_garden import with_garden_objects
    from official_trainer.tasks import registry, variables

    base = registry.get_config(name)
    needed = NEEDED.get(name, [])
    resolved = configuration.resolve(base, experiment=name, sets=needed)
    yield {"resolved": True}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(configuration.dump(resolved, origins=True, shared=True))
        file.flush()
        again = configuration.resolve(base, experiment=name, config_files=[file.name])
    yield {"round trip": again.config == resolved.config}
    with tempfile.TemporaryDirectory() as folder:
        read = with_garden_objects(resolved.config)
        model = registry.get_task_cls(resolved.config.task)(read.task, logging_dir=folder).build_model()
        try:
            count = variables.count(model).trainable
        except ValueError:  # it has none before it is called
            count = 0
        yield {"built": f"{count / 1e6:.1f} M" if count else "yes"}
    yield from _trained(name)


def _trained(name):
    from official_trainer import cli
    from tests.support.garden import data
    from tests.support.garden.families import FAMILIES

    family = next((family for family in FAMILIES.values() if family.experiment == name), None)
    if family is None:
        yield {"no_data": "no data of this kind is generated"}
        return
    with tempfile.TemporaryDirectory() as folder:
        data.write(Path(folder) / "tiny_data", [family.data])
        os.chdir(folder)
        argv = ["train", f"--experiment={name}", f"--config_file={family.overlay}", "--model_dir=run", "--quiet"]
        assert cli.main(argv, is_process=False) == 0, "the run failed"
        yield {"trained": "yes"}


_IMAGE = ["task.model.input_size=[256,256,3]", "task.model.num_classes=21"]
_BOXES = "[12,16],[19,36],[40,28],[36,75],[76,55],[72,146],[142,110],[192,243],[459,401]"
_ANCHORS = f"task.model.anchor_boxes.boxes=[{', '.join(f'{{box: [{box}]}}' for box in _BOXES[1:-1].split('],['))}]"
NEEDED = {
    "bert/tagging": ["task.class_names=[O, NOUN, VERB]"],
    "centernet_hourglass_coco": ["task.model.input_size=[512,512,3]"],
    "darknet_classification": _IMAGE,
    "image_classification": _IMAGE,
    "rcnn_maxvit_coco": [
        "task.model.backbone.maxvit.window_size=20",
        "task.model.backbone.maxvit.grid_size=20",
        "task.model.backbone.maxvit.scale_ratio='20/7'",
    ],
    "retinanet": _IMAGE,
    "semantic_segmentation": _IMAGE,
    "video_classification": ["task.train_data.num_classes=9", "task.validation_data.num_classes=9"],
    "wmt_transformer/large": ["task.sentencepiece_model_path=x"],
    "yolo": [*_IMAGE, _ANCHORS],
    "yolov7": [*_IMAGE, _ANCHORS],
}
"""What an experiment leaves to its user, and cannot be resolved or built without."""

EXPLAINED = {
    r"KeyError: 0": "tensorflow-model-optimization cannot walk through its segmentation head; nor can it there, with "
    "Model Garden's own driver",
    r"UnregisteredTaskError: .*recommendation.ranking": "needs tensorflow_recommenders, which is not installed with it",
    r"NotFoundError: x; No such": "needs a sentencepiece model of yours",
    r"ModuleNotFoundError: No module named 'official\.(.*)'": r"the release lacks its own module official.\1",
}
"""Messages that do not say by themselves what is missing, as patterns, and in words."""


def explained(reason):
    """Returns why something does not work, in words."""
    for pattern, words in EXPLAINED.items():
        if match := re.match(pattern, reason):
            return match.expand(words)
    return reason


def try_all(names):
    """Returns what came of each experiment."""
    from official_trainer.garden import index

    _context.set_forkserver_preload(
        ["official.core.train_lib", "official_trainer.runs.run", "official_trainer.runs.train"]
    )
    start_server()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(names):
            path = os.path.join(folder, f"{number}.json")
            child = _context.Process(target=attempt, args=(name, path))
            child.start()
            child.join(LIMIT_SECONDS)
            late = child.is_alive()
            child.kill()
            child.join()
            with contextlib.suppress(OSError, ValueError):
                results[name] = json.loads(Path(path).read_text())
            if late:
                results[name]["reason"] = f"not done within {LIMIT_SECONDS} s on two cores"
            results[name].setdefault("reason", "")
            if name in index.failures():
                results[name]["reason"] = f"the release cannot import it: {index.failures()[name]}"
            print(number + 1, "of", len(names), name, results[name], file=sys.stderr, flush=True)
    assert set(results) <= set(index.entries())
    return results


def row(name, result):
    """Returns a line of the table."""
    words = {True: "yes", False: "no", None: "–"}
    cells = [str(words.get(result.get(key), result.get(key))) for key in COLUMNS[1:5]]
    needed = re.sub(r"\[{.*}\]", "[…]", " ".join(NEEDED.get(name, [])))
    reasons = [f"with `{needed}`"] if needed else []
    if result["reason"]:
        reasons.append(explained(re.sub(r"[|<>]", "", result["reason"])))
    reason = "; ".join(reasons)
    return f"| `{name}` | {' | '.join(cells)} | {reason} |"


def write(results):
    """Puts the results into the page, over older ones of the same experiments."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    old, _, after = rest.partition(END)
    rows = {match[1]: match[0] for match in re.finditer(r"\| `(.+?)` \|.*", old)}
    rows |= {name: row(name, result) for name, result in results.items()}
    head = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    table = "\n".join([*head, *(rows[name] for name in sorted(rows))])
    cells = [line.split(" | ") for line in rows.values()]
    counts = [sum(line[number] not in ("no", "–") for line in cells) for number in range(1, 5)]
    said = "{} are listed, {} resolve, {} come back from their `params.yaml`, {} build their model, {} train."
    PAGE.write_text(f"{before}{BEGIN}\n\n{said.format(len(rows), *counts)}\n\n{table}\n\n{END}{after}")


if __name__ == "__main__":
    from official_trainer.garden.index import entries

    write(try_all(sys.argv[1:] or [name for name in entries() if name != "mock"]))
