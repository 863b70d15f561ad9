"""The section of a mixture: what it needs, and what it builds, without TensorFlow."""

import dataclasses

import yaml

from official_trainer.config import ExperimentConfig, SourceConfig, dump, resolve
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
