"""The section of a mixture: what it refuses, and what it builds, without TensorFlow."""

import dataclasses

import pytest
import yaml

from official_trainer.config import ConfigError, ExperimentConfig, SourceConfig, dump, resolve
from official_trainer.config.compare import changes
from official_trainer.sources.mixture import MixtureConfig, PartConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listed(SourceConfig):
    count: int = 3

    def build(self):
        return [{"id": number} for number in range(self.count)]


def test_a_part_needs_a_source():
    """N44"""
    assert [name for name, *_ in MixtureConfig().problems()] == ["parts"]
    assert [name for name, *_ in MixtureConfig(parts={"a": PartConfig()}).problems()] == ["parts.a.source"]


SOURCE = "task.train_data.source"


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (
            "nwe.weight=2",
            f"--set: {SOURCE}.parts.nwe.source: is not set; for example source: {{type: parquet, …}}; "
            "did you mean new?",
        ),
        ("nwe={type: npy}", f"--set: {SOURCE}.parts.nwe.type: unknown field of PartConfig; put it under source, as "),
    ],
)
def test_a_mistake_in_a_part_is_told_where_it_is(part, said):
    """N44: a misspelt name, in the flag that has it; a source without its field."""
    sets = [
        f"{SOURCE}={{type: mixture, parts: {{new: {{source: {{type: csv, files: a.csv}}}}}}}}",
        f"{SOURCE}.parts.{part}",
    ]
    with pytest.raises(ConfigError) as caught:
        resolve(ExperimentConfig(), sets=sets)
    (problem,) = caught.value.problems
    assert problem.message.startswith(said) and problem.origin.text == sets[1]


def test_a_section_builds_its_parts():
    """N44: each with its weight, in their order."""
    parts = {"a": PartConfig(weight=3, source=Listed()), "b": PartConfig(source=Listed(count=2))}
    mixture = MixtureConfig(parts=parts).build()
    assert mixture.shares == {"a": 0.75, "b": 0.25}
    assert [mixture[index] for index in (2, 3)] == [{"id": 2}, {"id": 0}]
    assert mixture.where(4) == "b: example 1 of list"


def test_another_type_is_one_change():
    """N8: of the whole section, whose fields are others; the override restores it."""
    source = "task.train_data.source"
    before = resolve(ExperimentConfig(), sets=[f"{source}={{type: npy, files: {{x: a.npy}}}}"])
    after = resolve(ExperimentConfig(), sets=[f"{source}={{type: parquet, files: b.parquet}}"])
    (change,) = changes(yaml.safe_load(dump(before)), after)
    assert (change.path, change.before["type"], change.after["type"]) == (source, "npy", "parquet")
    assert change.undo == ("task.train_data.source={type: npy, files: {x: a.npy}}",)
