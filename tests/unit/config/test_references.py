"""N30: a value that refers to other fields: typed, with layers, escapes, circles and messages."""

import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer.config import ConfigError, ExperimentConfig, dump, explain, resolve
from official_trainer.config import optimization as opt
from official_trainer.config.compare import changes
from official_trainer.config.optimization import LENGTHS
from official_trainer.config.reading import plain
from official_trainer.config.reference_text import escaped, refers, unescaped
from tests.support.config.sample import Model, model, problems, resolved

COSINE = "trainer.optimizer_config.learning_rate.cosine"


VALUES = [
    ("integer=${trainer.train_steps}", 100),
    ("number=${trainer.train_steps}", 100.0),
    ("truth=${trainer.async_checkpoint}", True),
    ("text=${task.model.word}", "adam"),
    ("text=${trainer.train_steps}", "100"),
    ("text=adam $${x}", "adam ${x}"),
    ("maybe_integer=${task.model.integer}", 3),
    ("maybe_text=${task.model.maybe_integer}", None),
    ("flag_or_text=${task.model.truth}", False),
    ("many=${ task.model.integer }", 3),
    ("filters=['${task.model.integer}', 7]", (3, 7)),
    ("filters+=${task.model.integer}", (32, 64, 3)),
    ("nested=['${task.model.filters}']", ((32, 64),)),
    ("plain_list=${task.model.filters}", (32.0, 64.0)),
    ("weights={a: '${task.model.share}'}", {"a": 0.1}),
    ("anything=${task.model.number}", 0.5),
    ("anything='${task.model.text}'", "abc"),
    ("integer=${task.model.filters[-1]}", 64),
    ("integer=${task.model.filters.0}", 32),
    ("integer=${task.model.blocks[0].x}", 1),
]


def test_values_are_of_the_type_of_their_field():
    """N30: read as that text would be, in each type of field; `messages.yaml` has what is refused."""
    for override, expected in VALUES:
        field = re.match(r"\w+", override)[0]
        assert getattr(model(f"task.model.{override}"), field) == expected, override


def test_a_one_of_by_a_word_elsewhere():
    result = model("task.model.text=square", "task.model.shape=${task.model.text}", "task.model.shape.square.width=9")
    assert (result.shape.type, result.shape.square.width) == ("square", 9)


def test_files_and_flags_refer_to_the_result_of_all_layers(write):
    """N30: a later override of a field changes all that refer to it, also from a base file."""
    write("trainer: {validation_interval: '${trainer.train_steps}'}", "base.yaml")
    file = write("base: base.yaml\ntrainer:\n  checkpoint_interval: ${trainer.validation_interval}\n")
    for steps in (400, 800):
        trainer = resolved(f"trainer.train_steps={steps}", config_files=[file]).config.trainer
        assert (trainer.validation_interval, trainer.checkpoint_interval) == (steps, steps)
    trainer = resolved("trainer.validation_interval=7", config_files=[file]).config.trainer
    assert (trainer.validation_interval, trainer.checkpoint_interval) == (7, 7)


def test_in_items_of_params_override():
    """N30: the commas and brackets of a list of items do not end one."""
    result = resolved(
        params_overrides=["task.model.weights={'a,b': 0.5},task.model.number=${task.model.weights.'a,b'},"]
    )
    assert result.config.task.model.number == 0.5


def test_a_python_value_is_a_text():
    """N30: a factory computes in Python; its `${` is text, and is written escaped."""
    result = resolved(model=Model(text="${trainer.train_steps}"))
    assert result.config.task.model.text == "${trainer.train_steps}"
    assert "text: '$${trainer.train_steps}'  # experiment\n" in dump(result, origins=True)


def test_a_long_chain():
    """N30, N34: Python's own limit of calls inside each other does not count."""
    sets = [f"free.w{i}=${{free.w{i + 1}}}" for i in range(900)]
    free = resolve(Model(), params_overrides=["free={w900: 7}", ";".join(sets)]).config.free
    assert set(free.values()) == {7} and len(free) == 901


def test_too_many():
    """N30, N34: so that resolving takes a second at most."""
    items = ", ".join(["'${task.model.integer}'"] * 1001)
    (message,) = problems(f"task.model.filters=[{items}]")
    assert "task.model.filters[1000]: is one more than the 1000 references that are allowed; write the value" in message


# Where values come from.

EXPLAINED = """\
trainer.summary_interval: an integer at least 1
  steps between two rows of training metrics.

  value    4
  default  1000
  set by   a.yaml:2:21, as ${task.model.blocks[-1].x}
"""


def test_explained(write):
    """N30, N8: the text and its place, what it resolved to, and who set what it refers to."""
    file = write("trainer:\n  summary_interval: ${task.model.blocks[-1].x}\n")
    result = resolved("task.model.blocks[0].x=4", config_files=[file])
    lines = explain(result, "trainer.summary_interval").splitlines()
    assert [*lines[:1], *lines[2:]] == [*EXPLAINED.splitlines()[:1], *EXPLAINED.splitlines()[2:]]


def test_what_is_explained_only_prints():
    """N8: a control character is shown as an escape, in a value and in a section."""
    config = resolved("task.model.text=a\x1b")
    for text in (explain(config, "task.model.text"), explain(config, "task.model")):
        assert "\x1b" not in text and "a\\x1b" in text


def test_explained_after_it_was_overridden(write):
    """N30: a text that is not in force refers to nothing."""
    file = write("trainer: {train_steps: '${nowhere}'}")
    text = explain(resolved("trainer.train_steps=5", config_files=[file]), "trainer.train_steps")
    assert text.endswith("  set by   --set, column 21\n")


def test_dumped(write):
    """N30: the value, so that Model Garden reads it; where it comes from, as a comment."""
    file = write("trainer:\n  summary_interval: ${trainer.train_steps}\n")
    result = resolved(config_files=[file])
    assert "summary_interval: 100  # = ${trainer.train_steps} of a.yaml:2\n" in dump(result, origins=True)
    assert yaml.safe_load(dump(result))["trainer"]["summary_interval"] == 100


def test_a_run_that_continues_compares_values():
    """N30, N9: a reference in place of its value is no change; a literal `${` is none either."""
    before = plain(
        dump(resolved("trainer.summary_interval=100", "task.model.text=$${a} b", "task.model.share=0.5")), "p"
    )
    now = ["task.model.text=$${a} b", "task.model.share=0.5", "trainer.summary_interval=${trainer.train_steps}"]
    assert changes(before, resolved(*now)) == []


# Fields that follow others.


def following(*sets, schedule="cosine", **fields):
    section = getattr(opt.LrConfig(), schedule).replace(initial_learning_rate=0.1, **fields)
    rate = opt.LrConfig(type=schedule, **{schedule: section})
    config = ExperimentConfig().replace(
        trainer=ExperimentConfig().trainer.replace(optimizer_config=opt.OptimizationConfig(learning_rate=rate))
    )
    return resolve(config, sets=sets)


def test_a_schedule_ends_with_training():
    """N31: unless its length is set."""
    for schedule, length in LENGTHS.items():
        for item, expected in (("offset=0", 500), (f"{length}=30", 30), (f"{length}=null", 500)):
            branch = f"trainer.optimizer_config.learning_rate.{schedule}"
            found = following("trainer.train_steps=500", f"{branch}.{item}", schedule=schedule)
            assert getattr(found.config.trainer.optimizer_config.learning_rate.get(), length) == expected


def test_what_follows_is_explained_and_written():
    """N31, N8: `class default`, and the field that it follows."""
    result = following("trainer.train_steps=500")
    text = explain(result, f"{COSINE}.decay_steps")
    assert "  set by   class default, as ${trainer.train_steps}\n" in text
    assert "decay_steps: 500  # = ${trainer.train_steps}\n" in dump(result, origins=True)


def test_what_follows_can_be_referred_to():
    """N30, N31"""
    found = following("trainer.train_steps=500", f"trainer.validation_interval=${{{COSINE}.decay_steps}}")
    assert found.config.trainer.validation_interval == 500


def test_a_schedule_chosen_by_a_reference_follows_too():
    sets = ["trainer.best_checkpoint_export_subdir=cosine", "trainer.train_steps=5"]
    choice = "trainer.optimizer_config.learning_rate=${trainer.best_checkpoint_export_subdir}"
    found = following(*sets, choice, schedule="cosine").config
    assert found.trainer.optimizer_config.learning_rate.get().decay_steps == 5


def test_more_steps_for_a_run_change_the_schedule_that_follows():
    """N31, N9: that is a change of its own, with the override that keeps the old schedule."""
    before = plain(dump(following("trainer.train_steps=500")), "params.yaml")
    steps, length = sorted(changes(before, following("trainer.train_steps=900")), key=lambda each: each.path)[::-1]
    assert (steps.path, steps.after) == ("trainer.train_steps", 900)
    assert (length.path, length.before, length.after) == (f"{COSINE}.decay_steps", 500, 900)
    kept = following("trainer.train_steps=900", *length.undo)
    assert kept.config.trainer.optimizer_config.learning_rate.get().decay_steps == 500


def test_nothing_to_follow():
    """N31: the length of training is not known, or the schedule starts again and again, or later."""
    for sets, fields in (
        ([], {}),
        (["trainer.train_steps=5"], {"cycle": True}),
        (["trainer.train_steps=5"], {"offset": 2}),
    ):
        with pytest.raises(ConfigError, match=r"decay_steps: must be set when learning_rate\.type is") as refused:
            following(*sets, schedule="polynomial", **fields)
        assert ("or else trainer.train_steps, which it follows" in str(refused.value)) is not bool(fields)


def test_a_section_alone_does_not_follow():
    """N31: there is no `trainer.train_steps` in it."""
    with pytest.raises(ConfigError, match="must be set"):
        resolve(opt.LrConfig(type="cosine", cosine=opt.CosineLrConfig(initial_learning_rate=0.1)))


# All kinds of references.

_FIELDS = ["integer", "number", "weights.a", "maybe_integer"]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_resolving_again_changes_nothing(data):
    """N30: a dump of what was resolved, over the same experiment, is the same; so is any order of the overrides."""
    sets = ["truth=true"]
    for i, path in enumerate(_FIELDS):
        earlier = data.draw(st.sampled_from([None, *_FIELDS[:i]]))
        sets.append(f"{path}={data.draw(st.integers(1, 10**4)) if earlier is None else f'${{{earlier}}}'}")
    result = resolve(Model(), sets=sets)
    assert resolve(Model(), sets=data.draw(st.permutations(sets))).config == result.config
    again = resolve(Model(), params_overrides=[dump(result)])
    assert again.config == result.config
    assert not again.trail.references


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="${}a"))
def test_an_escaped_text_is_that_text(text):
    """N30: whatever it is, it then refers to nothing and gives itself back."""
    assert not refers(escaped(text))
    assert unescaped(escaped(text)) == text
