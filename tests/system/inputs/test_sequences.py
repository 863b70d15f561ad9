"""Real runs over mixtures and packed rows: several strategies, and killed."""

import functools
import shutil
from pathlib import Path

import pytest

from official_trainer.tracking.jsonl import read_rows
from tests.support import chaos
from tests.support.cases import full
from tests.support.chaos.compare import id_lines
from tests.support.chaos.contract import RUN, Case, Shared, Step, check
from tests.support.forked import Command, run_command

MIXED = """task.train_data.source={type: mixture, parts: {
  few: {weight: 0.25, source: {type: sentences, count: 40}},
  many: {weight: 0.75, source: {type: sentences, count: 300, first: 100}}}}"""
WAYS = {
    "packed": ["task.way=packed"],
    "mixed": ["task.way=mixed", MIXED, "task.validation_data.source={type: sentences, count: 50}"],
}
STRATEGIES = {
    "off": [],
    "mirrored": ["runtime={distribution_strategy: mirrored, num_logical_cpus: 2}"],
    "xla": ["runtime.enable_xla=true"],
}
QUICK = ["trainer.export.at_end=false"]


def make_workspace(folder):
    folder = Path(folder)
    here = Path(chaos.__path__[0])
    for name, target in {"sequences": "experiments/sequences", "sentences_source": "sources/sentences"}.items():
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(here / f"{name}.py", folder / f"{target}.py")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sequences")
    make_workspace(folder)
    return folder


def words(model_dir, sets):
    return ["train", "--experiment=sequences", f"--model_dir={model_dir}", *(f"--set={word}" for word in sets)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("way", WAYS)
def test_a_run_trains(way, strategy, workspace, tmp_path):
    """N44: packed parts that are mixed, and a mixture of a config; also compiled by XLA in windows."""
    model_dir = tmp_path / f"run-{strategy}"
    sets = [*WAYS[way], *STRATEGIES[strategy], *QUICK]
    done = run_command(words(model_dir, sets), cwd=workspace, folder=tmp_path)
    assert done.code == 0, done.err
    losses = [row["training_loss"] for row in read_rows(f"{model_dir}/metrics.jsonl") if row["split"] == "train"]
    assert losses[-1] < losses[0]
    if strategy != "xla":
        lengths = {int(seen.split()[-1]) for _, _, seen in id_lines(model_dir)}
        assert lengths == {32}


def test_mistakes_in_parts_are_refused_before_training(workspace, tmp_path):
    """N44: at the config's place: a part without a source, a weight of 0, a part whose library is not installed."""
    needs = workspace / "sources" / "far.py"
    text = (workspace / "sources" / "sentences.py").read_text().replace("SentencesConfig", "FarConfig")
    needs.write_text(text.replace("    count: P", '    NEEDS = ("no_such_library",)\n\n    count: P'))
    for part, said in {
        "{weight: 2}": "task.train_data.source.parts.a.source: is not set",
        "{weight: 0, source: {type: sentences}}": "task.train_data.source.parts.a.weight: must be greater than 0",
        "{source: {type: far}}": "'far' needs no_such_library, which is not installed",
        "{source: {type: sentence}}": "did you mean 'sentences'?",
    }.items():
        sets = ["task.way=mixed", f"task.train_data.source={{type: mixture, parts: {{a: {part}}}}}"]
        done = run_command(words(tmp_path / "run", sets), cwd=workspace, folder=tmp_path)
        assert done.code == 2, done.err
        assert said in " ".join(done.err.split())


def start(way, workspace, shared, folder, *more, first=None):
    sets = [*WAYS[way], *QUICK, *more]
    return Command(words(folder / RUN, sets), cwd=workspace, folder=folder, first=first)


@pytest.mark.parametrize("kills", [5, full(20)])
@pytest.mark.parametrize("way", WAYS)
def test_kills_change_no_example(way, kills, workspace, tmp_path):
    """N44, N1: SIGKILL after any of many steps, on one run: the tokens of each step are those of an unbroken run."""
    case = Case(f"sequences-{way}", functools.partial(start, way, workspace))
    strikes = [Step(step) for step in range(2, 42, 40 // kills)]
    sets = ("trainer.steps_per_loop=1", "trainer.checkpoint_interval=2", "trainer.async_checkpoint=false")
    check(Shared(tmp_path / "shared"), case, strikes, tmp_path / "broken", sets)
