"""N8, N23: configurations as text. What is written is read back equal, by this package and by any YAML reader."""

import dataclasses
import hashlib
import math
import re

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer.config import (
    Config,
    ExperimentConfig,
    FrozenDict,
    TaskConfig,
    digest,
    dump,
    flow,
    resolve,
)
from official_trainer.config.multitask import TaskRoutine
from official_trainer.config.optimization import AdamConfig, OptimizerConfig, SGDConfig
from tests.support.config.sample import Block, Model, Shape, Strict, WideBlock, base, resolved
from tests.support.config.texts import FLOATS, FREE, INTEGERS, TEXTS

BLOCKS = st.builds(Block, x=INTEGERS, names=st.tuples(TEXTS))
MODELS = st.builds(
    Model,
    integer=st.integers(-5000, 1000),
    number=FLOATS,
    truth=st.booleans(),
    text=TEXTS,
    word=st.sampled_from(["adam", "sgd", "off"]),
    level=st.sampled_from([1, 2, 3]),
    share=st.floats(0, 1),
    maybe_integer=st.none() | INTEGERS,
    maybe_text=st.none() | TEXTS,
    maybe_section=st.none() | BLOCKS,
    either=TEXTS | st.lists(TEXTS, max_size=2).map(tuple),
    count=INTEGERS | FLOATS,
    flag_or_text=st.booleans() | TEXTS,
    many=INTEGERS | st.just("auto"),
    scale=st.none() | st.just("dynamic") | st.floats(0, exclude_min=True),
    filters=st.lists(st.integers(1, 2**63 - 1), max_size=3).map(tuple),
    window=st.tuples(INTEGERS, FLOATS),
    nested=st.lists(st.lists(INTEGERS, max_size=2).map(tuple), max_size=2).map(tuple),
    plain_list=st.lists(FLOATS, max_size=2).map(tuple),
    weights=st.dictionaries(TEXTS, FLOATS, max_size=2).map(FrozenDict),
    blocks=st.lists(BLOCKS, max_size=2).map(tuple),
    named=st.dictionaries(TEXTS, BLOCKS, max_size=2).map(FrozenDict),
    strict=st.none() | st.builds(Strict, size=st.integers(-9, 9)),
    free=st.dictionaries(TEXTS, FREE, max_size=3).map(FrozenDict),
    anything=FREE,
    shape=st.just(Shape()) | st.builds(Shape, type=st.just("round"), round=BLOCKS),
)


@settings(max_examples=20)
@given(MODELS)
def test_dump_load_equal(tmp_path_factory, found):
    """N23: a dump read onto the experiment gives an equal configuration and, dumped again, the same bytes."""
    config = resolve(found).config
    text = dump(config)
    file = tmp_path_factory.mktemp("dump") / "params.yaml"
    file.write_text(text, encoding="utf-8")
    again = resolve(Model(), config_files=[str(file)]).config
    assert again == config
    assert dump(again) == text
    assert digest(again) == digest(config)
    for loader in (yaml.SafeLoader, yaml.CSafeLoader):
        assert yaml.load(text, Loader=loader) == config.as_dict()


@settings(max_examples=60)
@given(FREE)
def test_flow_is_read_the_same_by_any_reader(value):
    assert yaml.safe_load(f"v: {flow(value)}") == {"v": _plain(value)}


def _plain(value):
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


VALUES = [
    (1e-7, "1.0e-07"),
    (1e22, "1.0e+22"),
    (1.5e-9, "1.5e-09"),
    (0.1, "0.1"),
    (-0.0, "-0.0"),
    (math.inf, ".inf"),
    (-math.inf, "-.inf"),
    (math.nan, ".nan"),
    (1000000.0, "1000000.0"),
    (True, "true"),
    (None, "null"),
    ("off", "'off'"),
    ("Y", "'Y'"),
    ("1e5", "'1e5'"),
    ("it's", "'it''s'"),
    ("a\nb", '"a\\nb"'),
    ("\x00\u2028\U0001f600", '"\\x00\\u2028\U0001f600"'),
    ("a\u202eb\u2066\u200f", '"a\\u202eb\\u2066\\u200f"'),
    ("gs://bucket/a.txt", "gs://bucket/a.txt"),
    ((1, ("a",), {}), "[1, [a], {}]"),
    (Block(x=2), "{x: 2, names: []}"),
]


def test_values():
    assert [flow(value) for value, _ in VALUES] == [text for _, text in VALUES]


def test_only_the_selected_branch_is_written():
    adam = OptimizerConfig(type="adam", adam=AdamConfig(beta_1=0.5), sgd=SGDConfig(momentum=0.9))
    start = base()
    optimization = start.trainer.optimizer_config.replace(optimizer=adam)
    config = start.replace(trainer=start.trainer.replace(optimizer_config=optimization))
    plain = yaml.safe_load(dump(config))["trainer"]["optimizer_config"]
    assert set(plain["optimizer"]) == {"type", "adam"}
    assert plain["warmup"] == {"type": None}
    assert OptimizerConfig(type="").as_dict() == {"type": ""}  # a default of Model Garden
    assert resolve(config, params_overrides=[dump(config)]).config == resolve(config).config


def test_comments_say_who_set_what(write):
    """N8: values set by files and flags carry their place; the first line names the experiment."""
    file = write(
        "task:\n  model:\n    blocks: [{x: 3}]\n    filters: [1]\n    weights: {a: 1}\n    named: {n: {x: 1}}\n"
    )
    result = resolved("runtime.seed=3", config_files=[file])
    text = dump(result, origins=True)
    assert text.startswith("# experiment: sample\ntask:\n")
    assert "  seed: 3  # --set\n" in text
    assert "    filters: [1]  # a.yaml:4\n" in text
    assert "    blocks:  # a.yaml:3\n      - x: 3  # a.yaml:3\n        names: []\n" in text
    assert "    weights:\n      a: 1.0  # a.yaml:5\n" in text
    assert "  train_steps: 100  # experiment\n" in text
    assert dump(result) == re.sub(r"  # .*|^# .*\n", "", text)
    again = write(text, "params.yaml")
    assert resolved(config_files=[again]).config == result.config


def test_names_in_comments_stay_on_their_line():
    result = resolve(ExperimentConfig(), experiment="a\nb: 1", flags=[("--x\ny", "runtime.seed", "1")])
    assert dump(result, origins=True).startswith("# experiment: a?b: 1\n")
    assert yaml.safe_load(dump(result, origins=True)) == yaml.safe_load(dump(result))


def test_lists_of_mixed_items():
    config = resolved("task.model.anything=[{a: 1}, 2, [{b: 3}], {}]").config
    assert "    anything:\n      - a: 1\n      - 2\n      - [{b: 3}]\n      - {}\n" in dump(config)
    assert resolved(params_overrides=[dump(config)]).config == config


def test_subclasses_in_lists_survive():
    start = Model(blocks=(WideBlock(width=9),), named=FrozenDict(a=WideBlock(width=8)))
    config = resolved("task.model.blocks[0].x=5", model=start).config
    text = dump(config)
    assert resolve(base(start), params_overrides=[text]).config == config


def test_digest_is_of_the_meaning():
    """N8: twelve digits, equal for equal configurations, whatever form Python or text gave them."""
    assert re.fullmatch(r"[0-9a-f]{12}", digest(ExperimentConfig()))
    assert (
        digest(base(Model(number=1)))
        == digest(base(Model(number=1.0)))
        == digest(resolved("task.model.number=1").config)
    )
    assert digest(base()) != digest(base(Model(number=1)))
    unused = OptimizerConfig(type="adam", sgd=SGDConfig(momentum=0.9))
    assert digest(ExperimentConfig().replace(trainer=_with(unused))) == digest(
        ExperimentConfig().replace(trainer=_with(OptimizerConfig(type="adam")))
    )


def test_the_digest_does_not_drift():
    canonical = b'{"names":["a"],"x":1}'
    assert digest(Block(x=1, names=("a",))) == hashlib.sha256(canonical).hexdigest()[:12]


def _with(optimizer):
    trainer = ExperimentConfig().trainer
    return trainer.replace(optimizer_config=trainer.optimizer_config.replace(optimizer=optimizer))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Derived(TaskConfig):
    extra: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Several(Config):
    tasks: tuple[TaskRoutine, ...] = (TaskRoutine(task_name="a", task_config=Derived(extra=7)),)


def test_a_list_that_is_read_back_keeps_the_classes_of_sections_in_its_items(tmp_path):
    """N23: an item's section may be of a class derived from the declared one; its values are not kept."""
    file = tmp_path / "params.yaml"
    file.write_text(dump(Several()))
    assert resolve(Several(), config_files=[str(file)]).config == Several()
    again = resolve(Several(), params_overrides=["{tasks: [{task_name: b}]}"]).config
    assert again.tasks == (TaskRoutine(task_name="b", task_config=Derived(extra=1)),)
