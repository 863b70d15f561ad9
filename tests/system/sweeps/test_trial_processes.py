"""Trials that follow each other in one process: equal to the bit to the same commands in processes of their own."""

import contextlib

import pytest

from official_trainer.launch.local.children import PRELOAD, Process, Processes, Starter
from official_trainer.launch.local.output import Lines
from official_trainer.launch.local.signals import Signals
from official_trainer.launch.spec import Member
from official_trainer.launch.verdict import Restarts
from tests import ROOT
from tests.support.cases import cases
from tests.support.chaos.compare import differences

WORDS = ("train", "digits_mlp", "--config_file=configs/smoke/digits_mlp.yaml", "--quiet")
EMA = "trainer.optimizer_config.ema.average_decay=0.9"
RATE = "trainer.optimizer_config.learning_rate.cosine.initial_learning_rate"
RUNTIMES = {
    "plain": (),
    "xla": ("runtime.enable_xla=true",),
    "mirrored": ("runtime.distribution_strategy=mirrored", "runtime.num_logical_cpus=2"),
    "bfloat16": ("runtime.mixed_precision_dtype=bfloat16",),
}
BEFORE = (  # what the process has done, which has other layers, optimizers, metrics and random streams
    ("task.model.type=cnn", "runtime.seed=7", "task.train_data.global_batch_size=32"),
    ("task.model.mlp.hidden=[8,8]", "trainer.optimizer_config.optimizer.type=sgd", EMA),
)
TRIAL = ("task.model.mlp.dropout=0.4", f"{RATE}=0.01", EMA)
RUNTIME_STARTED = "tests.support.launch.runtime_started"


@pytest.fixture(scope="module")
def run():
    """Runs commands, which may share processes, and returns the pid of each and the end of its output."""
    patch = pytest.MonkeyPatch()
    patch.chdir(ROOT)
    patch.syspath_prepend(str(ROOT))  # earlier tests of this process may have entered a workspace with tests of its own
    patch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with contextlib.ExitStack() as held:
        held.callback(patch.undo)
        signals, starter = held.enter_context(Signals()), held.enter_context(Starter(preload=PRELOAD))
        processes = held.enter_context(Processes(starter, signals))

        def run(module, *words, like="", is_first=False):
            member = Member(role="chief", index=0, argv=(module, *words), environ={})
            process = Process(member, Lines(lambda lines: None, None), Restarts(), most=9, like=like)
            processes.start(process, is_first=is_first)
            while (found := processes.wait(None)) is None or found[1] is None:
                pass
            assert found[1] == 0, process.lines.last
            return process.pid, list(process.lines.last)

        yield run


@pytest.mark.parametrize("name", cases(RUNTIMES, "plain"))
def test_a_trial_after_others_is_equal_to_one_alone(run, tmp_path, name):
    """N21: each variable and slot, the rows, the event files, the best checkpoint, the export and the record."""
    runtime = RUNTIMES[name]
    for number, words in enumerate(BEFORE):
        before, _ = run("official_trainer", *WORDS, f"--model_dir={tmp_path}/{number}", *words, *runtime, like=name)
    shared, said = run("official_trainer", *WORDS, f"--model_dir={tmp_path}/shared", *TRIAL, *runtime, like=name)
    assert not said
    alone, _ = run("official_trainer", *WORDS, f"--model_dir={tmp_path}/alone", *TRIAL, *runtime, is_first=True)
    assert shared == before != alone
    assert differences(tmp_path / "shared", tmp_path / "alone") == {}


@pytest.mark.parametrize("name", cases(RUNTIMES, "mirrored"))
def test_a_trial_after_the_check_is_equal_to_one_alone(run, tmp_path, name):
    """N21: the check builds and trains the same model, with dropout and averaged weights, and leaves nothing."""
    words = (*TRIAL, *RUNTIMES[name])
    tried, _ = run(
        "official_trainer", "check", *WORDS[1:], f"--model_dir={tmp_path}/tried", *words, like=f"{name} tried"
    )
    after, said = run("official_trainer", *WORDS, f"--model_dir={tmp_path}/after", *words, like=f"{name} tried")
    assert not said
    alone, _ = run("official_trainer", *WORDS, f"--model_dir={tmp_path}/alone", *words, is_first=True)
    assert after == tried != alone
    assert differences(tmp_path / "after", tmp_path / "alone") == {}


def test_the_process_that_forks_trials_never_starts_the_runtime(run):
    """N26: what it forks finds a TensorFlow that has executed nothing; the same look after an operation finds more."""
    assert run(RUNTIME_STARTED, is_first=True)[1] == ["before: False", "after: True"]
