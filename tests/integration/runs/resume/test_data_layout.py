"""N25: a run that goes on with other replicas or input pipelines keeps its examples in order, or refuses."""

import dataclasses
import json

import pytest

from official_trainer import files
from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.errors import ExitCode
from official_trainer.runs.resume import data_layout
from official_trainer.runs.resume.data_layout import LayoutChangeError
from tests.support import toy

do = toy.runs_of("layout_run", toy.InMemory, train_steps=4, checkpoint_interval=2, export=toy.NO_EXPORT)


def test_data_whose_order_depends_on_the_pipelines_refuses_another_number(model_dir):
    """N25, N9: with the ways out; once it is allowed, with a notice."""
    toy.commit(model_dir, 4, manifest.RunFacts(data={"replicas": 2, "pipelines": 2, "order": "by_pipeline"}))
    assert data_layout.notice_of_change(model_dir, 4, 2, allow_change=False) is None
    with pytest.raises(LayoutChangeError) as caught:
        data_layout.notice_of_change(model_dir, 4, 3, allow_change=False)
    assert caught.value.exit_code == ExitCode.CONFIG
    text = str(caught.value)
    assert f"--model_dir={model_dir}: ckpt-4 was saved with 2 input pipelines, now there are 3." in text
    assert "start 2 workers again" in text and "add --allow_config_change" in text
    notice = data_layout.notice_of_change(model_dir, 4, 3, allow_change=True)
    assert notice.startswith("2 input pipelines until step 4, 3 from here on, by --allow_config_change.")


def test_a_run_says_how_its_data_is_divided_and_compares(model_dir):
    """N25: in its checkpoints and `run.json`; a checkpoint of other pipelines is refused, and nothing is saved."""
    do(model_dir, "trainer.train_steps=2", mode="train")
    expected = {"replicas": 1, "pipelines": 1, "order": "global"}
    assert manifest.read(model_dir, 2).run.data == expected
    found = json.loads(files.read_text(f"{model_dir}/run.json"))["input"]
    assert {name: found[name] for name in expected} == expected
    saved = manifest.read(model_dir, 2)
    other = {"replicas": 2, "pipelines": 2, "order": "by_pipeline"}
    manifest.write(model_dir, dataclasses.replace(saved, run=dataclasses.replace(saved.run, data=other)))
    with pytest.raises(LayoutChangeError, match="ckpt-2 was saved with 2 input pipelines, now there is 1"):
        do(model_dir, mode="train")
    assert committed_steps(model_dir) == (2,)


def test_a_checkpoint_that_does_not_say_is_no_reason_to_refuse(model_dir):
    """N25: as those of Model Garden."""
    toy.commit(model_dir, 4)
    assert data_layout.notice_of_change(model_dir, 4, 3, allow_change=False) is None


def test_a_damaged_manifest_entry_is_not_taken_for_a_layout(model_dir):
    """N25: what another version wrote beside it is left alone."""
    data = {"replicas": 1, "pipelines": 1, "order": "global", "later": 1}
    toy.commit(model_dir, 4, manifest.RunFacts(data=data))
    assert data_layout.notice_of_change(model_dir, 4, 1, allow_change=False) is None
    assert data_layout.notice_of_change(model_dir, 4, 2, allow_change=False) == (
        "one input pipeline until step 4, 2 from here on; the order of examples stays"
    )
