"""SavedModels of a run that is killed in the middle of one and goes on."""

import os
import re

import pytest
import tensorflow as tf

from official_trainer import files
from tests.support.export_runs import ACTIONS, do, exports


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    model_dir = str(tmp_path_factory.mktemp("exports") / "run")
    do(model_dir, ACTIONS)
    return model_dir


def test_a_restart_leaves_the_same_exports(finished, tmp_path, monkeypatch):
    """T19, N1: killed in the middle of one; what is there already is not written again."""
    model_dir, written = str(tmp_path / "run"), []
    save = tf.saved_model.save

    class Killed(BaseException):
        pass

    def dies(module, path, **options):
        save(module, path, **options)
        if "/steps/15.writing-" in path:
            raise Killed
        written.append(path)

    monkeypatch.setattr(tf.saved_model, "save", dies)
    with pytest.raises(Killed):
        do(model_dir, ACTIONS)
    files.make_dirs(f"{model_dir}/export/steps/15.writing-0123abcd/new")
    monkeypatch.setattr(tf.saved_model, "save", lambda m, path, **kw: (written.append(path), save(m, path, **kw)))
    do(model_dir, ACTIONS)
    assert exports(model_dir) == exports(finished)
    names = [os.path.relpath(re.sub(r"\.writing-\w+/new$", "", path), f"{model_dir}/export") for path in written]
    assert sorted(names) == sorted(
        [*(f"often/{step}" for step in (3, 6, 9, 12, 15, 18)), *(f"steps/{step}" for step in (5, 10, 15, 20))]
    )
