"""N8, N23, T20: which layer wins, who is recorded, how files include each other."""

import pytest

from official_trainer.config import ConfigError, ExperimentConfig, TrainerConfig, resolve
from tests.support.config.sample import Block, Model, WideBlock, base, model, problems, resolved


def test_each_layer_beats_the_one_below(write):
    """N8, T20: defaults < factory < base files < files < flags < overrides < sets, and who set it is known."""
    write("trainer: {train_steps: 1}\n", "below.yaml")
    first = write("base: below.yaml\ntrainer:\n  summary_interval: 2\n", "first.yaml")
    second = write("trainer:\n  train_steps: 3\n", "second.yaml")
    flag, override, item = [("--steps", "trainer.train_steps", "4")], "trainer.train_steps=5", "trainer.train_steps=6"
    layers = [
        ({}, 100, "experiment sample"),
        ({"config_files": [first]}, 1, "below.yaml:1:24"),
        ({"config_files": [first, second]}, 3, "second.yaml:2:16"),
        ({"flags": flag}, 4, "--steps, column 1"),
        ({"params_overrides": [override]}, 5, "--params_override, column 21"),
        ({"params_overrides": [override, "{trainer: {train_steps: 55}}"]}, 55, "--params_override, column 25"),
        ({"sets": [item]}, 6, "--set, column 21"),
        ({"sets": [item, " trainer.train_steps=7"]}, 7, "--set, column 22"),
    ]
    everything = {}
    for layer, steps, origin in layers:
        everything |= layer
        result = resolve(base(), experiment="sample", **everything)
        assert (result.config.trainer.train_steps, str(result.origin("trainer.train_steps"))) == (steps, origin)
    assert str(result.origin("trainer.summary_interval")) == "first.yaml:3:21"
    assert str(result.origin("trainer.checkpoint_interval")) == "class default"


def test_a_flag_that_is_not_given_changes_nothing(write):
    """T20: the value of a file survives when the flag for the same field is absent."""
    file = write("runtime: {num_gpus: 2}\n")
    assert resolved(config_files=[file]).config.runtime.num_gpus == 2
    assert resolved(config_files=[file], flags=[("--num_gpus", "runtime.num_gpus", "0")]).config.runtime.num_gpus == 0


ORIGINS = {
    "trainer.train_steps": "experiment sample",
    "task.train_data.global_batch_size": "experiment sample",
    "task.validation_data.global_batch_size": "class default",
    "task.model.filters": "class default",
    "task.model.filters[0]": "class default",
    "task.model.blocks[0].x": "class default",
    "task.model.integer": "a.yaml:4:14",
    "task.model.weights.a": "--set, column 24",
    "trainer.optimizer_config.optimizer.adam.beta_1": "class default",
}


def test_every_leaf_has_an_origin(write):
    """N8: class, experiment, file with line and column, or flag with column."""
    result = resolved("task.model.weights={a: 1}", config_files=[write("task:\n  # why\n  model:\n    integer: 4\n")])
    assert {path: str(result.origin(path)) for path in ORIGINS} == ORIGINS


def test_an_experiment_that_repeats_the_default_set_nothing():
    result = resolve(ExperimentConfig(trainer=TrainerConfig(train_steps=0)), experiment="same")
    assert str(result.origin("trainer.train_steps")) == "class default"


def test_a_replaced_list_forgets_who_set_the_old_items():
    """N8: fields of new items that nobody set belong to their class."""
    old = Model(blocks=(Block(x=5, names=("a",)),))
    result = resolved("task.model.blocks=[{x: 7}]", model=old)
    assert result.config.task.model.blocks == (Block(x=7),)
    assert str(result.origin("task.model.blocks[0].x")) == "--set, column 24"
    assert str(result.origin("task.model.blocks[0].names")) == "class default"


def test_origin_of_a_section_or_of_nothing_is_an_error():
    result = resolved()
    with pytest.raises(ConfigError, match="trainer: is a section, and only values have an origin; name a field of it"):
        result.origin("trainer")
    with pytest.raises(ConfigError, match="unknown field of TrainerConfig; did you mean 'train_steps'"):
        result.origin("trainer.train_stepz")


# Files.


def test_includes_are_relative_depth_first_and_in_order(write):
    """N23: bases apply before the file that names them, each after its own bases."""
    write("task: {model: {integer: 1, text: deep, number: 1}}\n", "lib/deep.yaml")
    write("base: deep.yaml\ntask: {model: {integer: 2, number: 2}}\n", "lib/one.yaml")
    write("task: {model: {integer: 3}}\n", "lib/two.yaml")
    top = write("base: [lib/one.yaml, lib/two.yaml, lib/two.yaml]\ntask: {model: {truth: true}}\n", "top.yaml")
    found = resolved(config_files=[top])
    built = found.config.task.model
    assert (built.text, built.number, built.integer, built.truth) == ("deep", 2.0, 3, True)
    assert str(found.origin("task.model.text")) == "lib/deep.yaml:1:34"


def test_files_that_include_each_other(write):
    """N23: a circle is reported where it closes."""
    write("base: b.yaml\n", "a.yaml")
    write("base: a.yaml\n", "b.yaml")
    assert problems(config_files=["a.yaml"]) == [
        "b.yaml:1: base: files include each other in a circle: a.yaml → b.yaml → a.yaml"
    ]


def test_an_empty_file_changes_nothing(write):
    """N7: a warning names it, as one that was cut off looks the same, but for `{}`, which says so."""
    for text in ("", "# nothing\n", "---\n", "{}\n"):
        found = resolved(config_files=[write(text)])
        assert found.config == resolved().config
        said = "a.yaml: sets nothing: it is empty, or holds only comments"
        assert list(map(str, found.warnings)) == ([] if text == "{}\n" else [said])


def test_a_byte_order_mark_is_read(write):
    assert resolved(config_files=[write("\ufeffruntime: {seed: 4}\n")]).config.runtime.seed == 4


def test_anchors_merge_keys_and_dotted_names(write):
    """N23: YAML's own ways to share text work, and `a.b: 1` is `b: 1` inside `a`."""
    file = write(
        """
        x-data: &data {global_batch_size: 16, cache: true}
        task:
          train_data: {<<: *data, seed: 1}
          validation_data: {<<: [*data], cache: false}
        trainer.export.best: true
        task.model.blocks[0].x: 9
        task.model.filters: !!python/tuple [1, 2]
        """
    )
    config = resolved(config_files=[file]).config
    assert (config.task.train_data.global_batch_size, config.task.train_data.cache) == (16, True)
    assert (config.task.validation_data.global_batch_size, config.task.validation_data.cache) == (16, False)
    assert config.trainer.export.best
    assert (config.task.model.blocks, config.task.model.filters) == ((Block(x=9),), (1, 2))


def test_append_in_a_file(write):
    """N23: lists and mappings grow."""
    file = write(
        """
        task:
          model:
            filters: !append [128, 256]
            weights: !append {b: 2}
            named: !append {left: {x: 5}}
        """
    )
    start = Model(weights={"a": 1.0}, named={"left": WideBlock(width=9), "right": Block(x=2)})
    config = resolved(model=start, config_files=[file]).config
    assert config.task.model.filters == (32, 64, 128, 256)
    assert config.task.model.weights == {"a": 1.0, "b": 2.0}
    assert config.task.model.named == {"left": WideBlock(x=5, width=9), "right": Block(x=2)}


# Sections keep their class.


def test_the_class_the_factory_chose_stays():
    """N7: fields of a subclass can be set although the field is declared with its base."""
    start = Model(maybe_section=WideBlock(), blocks=(WideBlock(width=2), Block()), named={"a": WideBlock()})
    found = model(
        "task.model.maybe_section.width=8",
        "task.model.blocks=[{width: 3}, {x: 2}]",
        "task.model.named={a: {width: 5}}",
        model=start,
    )
    assert found.maybe_section == WideBlock(width=8)
    assert found.blocks == (WideBlock(width=3), Block(x=2))
    assert found.named == {"a": WideBlock(width=5)}


def test_an_unset_section_starts_from_its_class():
    result = resolved("task.model.maybe_section.x=5", "trainer.optimizer_config.ema={}")
    assert result.config.task.model.maybe_section == Block(x=5)
    assert result.config.trainer.optimizer_config.ema.average_decay == 0.99
    assert str(result.origin("task.model.maybe_section.names")) == "class default"


def test_a_section_can_be_unset():
    start = Model(maybe_section=Block(x=4))
    assert model("task.model.maybe_section=null", model=start).maybe_section is None
    again = model("task.model.maybe_section=null", "task.model.maybe_section={}", model=start)
    assert again.maybe_section == Block()


def test_single_texts_are_taken_as_one_layer(write):
    file = write("runtime: {seed: 4}\n")
    assert resolve(base(), config_files=file, sets="trainer.train_steps=5").config.runtime.seed == 4
