"""N28: what is said of a dataclass that Python refuses can be done, in our configs and in those of Model Garden."""

import dataclasses

import pytest
from official.core import config_definitions
from official.modeling import hyperparams

from official_trainer.config import Config, FrozenDict, Origin, TaskConfig, fields
from official_trainer.tasks import explained

NAMES = {
    "dataclasses": dataclasses,
    "Config": Config,
    "TaskConfig": TaskConfig,
    "FrozenDict": FrozenDict,
    "Garden": hyperparams.Config,
    "GardenTask": config_definitions.TaskConfig,
    "__name__": "declared",
}
FROZEN, PLAIN = "@dataclasses.dataclass(frozen=True, kw_only=True)", "@dataclasses.dataclass"


def declared(source):
    """Returns the class that a source declares last, which can hold values."""
    names = dict(NAMES)
    exec(source, names)
    cls = names["Own"]
    cls()
    if issubclass(cls, Config):
        fields.hints(cls)
    return cls


def of(base, field, part="", above=FROZEN):
    return f"{part}\n\n{above}\nclass Own({base}):\n    {field}\n"


def part(above, base):
    return f"{above}\nclass Part{base}:\n    units: int = 1"


OURS, THEIRS = part(FROZEN, "(Config)"), part(PLAIN, "(Garden)")
BY_FACTORY = "part: Part = dataclasses.field(default_factory=Part)"

ROWS = {
    "a section that is no config": (
        of("TaskConfig", "part: Part = Part()", part(PLAIN, "")),
        f"make Part a subclass of config.Config, and write {FROZEN} above class Part",
        of("TaskConfig", "part: Part = Part()", OURS),
    ),
    "a section that is not frozen": (
        of("TaskConfig", "part: Part = Part()", part(PLAIN, "(Config)")),
        f"write {FROZEN} above the class",
        of("TaskConfig", "part: Part = Part()", OURS),
    ),
    "a section of the Garden's in ours": (
        of("TaskConfig", "part: Part = Part()", THEIRS),
        "make Part a subclass of config.Config, and write",
        of("TaskConfig", "part: Part = Part()", OURS),
    ),
    "a set": (
        of("TaskConfig", "units: set = {1}"),
        "give 'units' a tuple: tuple[int, ...] = (1, 2)",
        of("TaskConfig", "units: tuple[int, ...] = (1, 2)"),
    ),
    "a dict": (
        of("TaskConfig", "units: dict[str, int] = {'a': 1}"),
        "give 'units' config.FrozenDict(…)",
        of("TaskConfig", "units: dict[str, int] = FrozenDict(a=1)"),
    ),
    "a field without a default": (
        of("TaskConfig", "rate: float = 0.5\n    units: int", above="@dataclasses.dataclass(frozen=True)"),
        f"write {FROZEN} above the class",
        None,  # it is given where the config is made
    ),
    "a section of the Garden's": (
        of("GardenTask", "part: Part = Part()", THEIRS, PLAIN),
        "write part: … = dataclasses.field(default_factory=Part)",
        of("GardenTask", BY_FACTORY, THEIRS, PLAIN),
    ),
    "a section of the Garden's that is no config": (
        of("GardenTask", "part: Part = Part()", part(PLAIN, ""), PLAIN),
        "dataclasses.field(default_factory=Part), and make Part a subclass of hyperparams.Config",
        of("GardenTask", BY_FACTORY, THEIRS, PLAIN),
    ),
    "a frozen config of the Garden's": (
        of("GardenTask", "units: int = 1"),
        "write @dataclasses.dataclass above the class: Model Garden's Config is not frozen",
        of("GardenTask", "units: int = 1", above=PLAIN),
    ),
    "a list of the Garden's": (
        of("GardenTask", "units: list = [1, 2]", above=PLAIN),
        "write units: … = dataclasses.field(default_factory=lambda: [1, 2])",
        of("GardenTask", "units: list = dataclasses.field(default_factory=lambda: [1, 2])", above=PLAIN),
    ),
    "an empty dict of the Garden's": (
        of("GardenTask", "units: dict = {}", above=PLAIN),
        "write units: … = dataclasses.field(default_factory=dict)",
        of("GardenTask", "units: dict = dataclasses.field(default_factory=dict)", above=PLAIN),
    ),
    "a field of the Garden's without a default": (
        of("GardenTask", "units: int", above=PLAIN),
        "give 'units' a default",
        of("GardenTask", "units: int = 1", above=PLAIN),
    ),
    "a section of ours in the Garden's": (
        of("GardenTask", "part: Part = Part()", OURS, PLAIN),
        "a config of Model Garden cannot contain a Part; allowed: numbers, text, lists, dicts and subclasses of hyp",
        of("GardenTask", BY_FACTORY, THEIRS, PLAIN),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_fix_of_a_declaration_is_one(name):
    """N28, N7: what is said, written into the module, is the end of the error."""
    source, fix, fixed = ROWS[name]
    with pytest.raises((TypeError, ValueError)) as caught:
        declared(source)
    problem = explained.problem("cannot be imported", caught.value, Origin("file", "declared.py", 1))
    assert fix in problem.fix
    if fixed is not None:
        assert dataclasses.fields(declared(fixed))


def test_a_value_of_another_library():
    """N28: no class of it can be changed."""
    import numpy as np

    NAMES["np"] = np
    with pytest.raises(ValueError, match="mutable default") as caught:
        declared(of("TaskConfig", "units: object = np.zeros(3)"))
    problem = explained.problem("cannot be imported", caught.value, Origin("file", "declared.py", 1))
    assert problem.fix == "a configuration cannot contain a ndarray"
