"""Published configs of Model Garden: by our parser, by theirs, and from our params.yaml by both."""

import re

import pytest
from official.modeling import hyperparams

from official_trainer import config as configuration
from official_trainer.config import learning_rate
from official_trainer.garden import index, to_garden
from tests import ROOT
from tests.support.cases import cases
from tests.support.garden.configs import assert_same, flat, theirs
from tests.support.jobs import resolved

PUBLISHED = sorted((ROOT / "tests" / "support" / "garden" / "published").glob("*.yaml"))
SHIPPED = sorted(index.package_dir().rglob("*.yaml"))


def experiment_of(path):
    return re.sub(r"\.\d+$", "", path.stem).replace("+", "/")


def test_a_word_for_an_optional_section_reaches_the_task_as_it_is_written(tmp_path):
    """T20: `aug_type: autoaug`, as some published files have it, is a text there."""
    path = tmp_path / "params.yaml"
    path.write_text("task: {train_data: {aug_type: 'autoaug'}}")
    ours = resolved("resnet_imagenet", config_files=[str(path)])
    assert to_garden.with_garden_objects(ours.config).task.train_data.aug_type == "autoaug"
    assert "aug_type: autoaug\n" in configuration.dump(ours, origins=False, shared=True)


def test_the_installed_release_ships_no_config_that_could_be_read_too():
    assert SHIPPED == []
    assert len(PUBLISHED) == 10


def test_nothing_is_said_of_the_learning_rate_of_a_published_config():
    """N31: their schedules fit the length of their training."""
    for path in PUBLISHED:
        assert learning_rate.finding(resolved(experiment_of(path), config_files=[str(path)])) is None


@pytest.mark.parametrize("path", cases(PUBLISHED, *PUBLISHED[::4]), ids=lambda path: path.stem)
def test_a_published_config_has_the_values_that_model_gardens_parser_gives(path, tmp_path):
    """T20: value by value, in what is resolved, in what the Task receives, and in params.yaml, read by both."""
    name = experiment_of(path)
    ours = resolved(name, config_files=[str(path)])
    live_config = hyperparams.override_params_dict(theirs(name), str(path), is_strict=True)
    assert_same(ours, live_config)
    received = to_garden.with_garden_objects(ours.config).task
    assert flat(received.as_dict()) == flat(live_config.task.as_dict())
    params = tmp_path / "params.yaml"
    params.write_text(configuration.dump(ours, origins=True, shared=True))
    assert resolved(name, config_files=[str(params)]).config == ours.config
    assert_same(ours, hyperparams.override_params_dict(theirs(name), str(params), is_strict=True))
