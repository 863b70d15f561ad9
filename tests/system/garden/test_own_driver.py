"""The programs of docs/guides/own_driver.md, before and after the change."""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from official_trainer.engine import Trainer
from tests import ROOT
from tests.support import runs
from tests.support.docs import changes, children, pages
from tests.support.forked import Child, Completed

PAGE = Path("docs/guides/own_driver.md")
WORDS = {"own_trainer": ["--experiment=own_digits", "--mode=train_and_eval"], "own_loop": []}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The programs of the page, as files."""
    place = tmp_path_factory.mktemp("own_driver")
    for block in pages.blocks(PAGE):
        if block.path:
            (place / block.path).write_text(block.text)
        elif block.language == pages.DIFF:
            before, after = changes.names(block.text)
            (place / after).write_text(changes.changed((place / before).read_text(), block.text))
    return place


def argv_of(name, model_dir):
    return [f"--model_dir={model_dir}", *WORDS[name.removesuffix("_here")]]


def run(folder, name, model_dir):
    """Runs a program; returns its last line."""
    target = functools.partial(children.run_program, f"{name}.py", argv_of(name, model_dir), is_module=False)
    return last_line(Child(target, cwd=folder, folder=model_dir.parent).wait())


def run_as_its_user(folder, name, model_dir):
    """The same in a new Python, without any setting of Keras."""
    environ = {key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"}
    command = [sys.executable, f"{name}.py", *argv_of(name, model_dir)]
    done = subprocess.run(
        command, cwd=folder, env={**environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=240
    )
    return last_line(Completed(done.returncode, done.stdout, done.stderr))


def last_line(done):
    assert done.code == 0, done.out[-2000:] + done.err[-2000:]
    return done.out.splitlines()[-1]


@pytest.fixture(scope="module", params=list(WORDS))
def both(request, folder):
    """The name of a program, after it and the changed one have run; with the last line of each."""
    name = request.param
    changed = {"own_trainer": run_as_its_user, "own_loop": run}[name]
    return name, [run(folder, name, folder / name), changed(folder, f"{name}_here", folder / f"{name}_here")]


def test_the_changed_program_gives_what_the_original_gives(both, folder):
    """T1, T3: bit by bit, the weights, the optimizer's slots and the last evaluation."""
    name, (before, after) = both
    assert re.fullmatch(r"accuracy 0\.9\d+", before)
    assert after == before
    theirs, ours = (runs.values(folder / each, 300) for each in (name, f"{name}_here"))
    compared = [key for key in theirs if key.startswith(("model/", "optimizer/"))]
    assert len(compared) >= 4 + 2 * 4
    for key in compared:
        np.testing.assert_array_equal(ours[key], theirs[key], err_msg=key)


def test_what_the_page_says_a_trainer_has_is_there():
    """T3, T9: methods and properties of its table."""
    text = (ROOT / PAGE).read_text()
    table = text.partition("derived from `base_trainer.Trainer` |")[2].partition("\n\n")[0]
    public = [name for name in re.findall(r"`self\.(\w+)`", table) if not name.startswith("_")]
    private = [name[1:] for name in re.findall(r"`self\.(_\w+)`", table) if name != "_runtime_options"]
    methods = re.findall(r"`((?:train|eval|next)_\w+)`", table.splitlines()[2])
    assert len(methods) == 9
    own = {"strategy", "model", "task", "optimizer", "config"}  # set by the constructor, as metrics are
    own |= {f"{kind}_{what}" for kind in ("train", "validation") for what in ("loss", "metrics")}
    assert {name for name in (*public, *private, *methods) if not hasattr(Trainer, name)} <= own
