"""The generated pages of the documentation are complete, and its picture is current."""

import html
import re

import pytest

from docs import generate
from docs.extensions.links import relink
from docs.generators import api, config, packages
from official_trainer.config import SourceConfig
from official_trainer.config.fields import docs, hints
from official_trainer.config.schema import ExperimentConfig
from tests import ROOT

PAGES = generate.pages()


def test_every_field_of_the_schema_is_documented():
    """N7: what `explain` and the reference show exists for each field."""
    several = [entry.cls for entry in config.several()]
    assert len(several) > 5
    for cls in [*(cls for _, cls in config.sections(ExperimentConfig)), *several]:
        assert [name for name in hints(cls) if not docs(cls).get(name)] == []


@pytest.mark.parametrize(
    "name", [name for name, module in SourceConfig.names().items() if module.startswith("official_trainer.")]
)
def test_every_type_of_source_is_on_its_page(name):
    """N41: with all its fields, each with its meaning; `type` has no default."""
    cls, page = SourceConfig.named(name), PAGES["config/sources.md"]
    (section,) = re.findall(rf"^## `{name}`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    own = [field for field in hints(cls) if field != "type"]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == own
    assert [field for field in own if not docs(cls).get(field)] == []
    assert "| `type` | *text*<br>" in page


def test_every_public_name_is_described():
    """Those that the stubs of the packages list, and those of the whole package."""
    for package in api.packages_with_names():
        for name in api.public_names(package):
            if name.definition is not None:
                assert f":: official_trainer.{package}.{name.name}\n" in PAGES[f"api/{package}.md"]
    text = "".join(PAGES[name] for name in PAGES if name.startswith("api/"))
    assert all(
        f"`{name.name} <official_trainer." in text for name in api.public_names("") if name.definition is not None
    )


def test_the_picture_of_the_packages_is_current():
    """Its arrows are the imports that there are; `python docs/generate.py packages` draws it."""
    drawn = html.unescape((generate.IMAGES / "packages.svg").read_text(encoding="utf-8"))
    arrows = {tuple(found) for found in re.findall(r"<title>(\w+)/->(\w+)/</title>", drawn)}
    assert arrows == packages.drawn_imports()
    assert len(arrows) > 10


@pytest.mark.parametrize(
    ("link", "becomes"),
    [
        ("[a](../reference/config.md#trainer)", "[a](../reference/config.md#trainer)"),
        ("[a](#here) [b](https://x.org/y)", "[a](#here) [b](https://x.org/y)"),
        ("[a](../../launch/slurm.yaml)", "[a](path:../../launch/slurm.yaml)"),
        ("[a](../../launch/)", "[a](path:../../launch/README.md)"),
        ("[a](../../benchmarks/README.md#one)", "[a](../project/benchmarks.md#one)"),
    ],
)
def test_links_of_a_page_lead_to_pages_of_the_site(link, becomes):
    """A file of the repository that is no page gets one; a file that is shown as a page is that page."""
    page = ROOT / "docs/guides/config.md"
    assert relink(link, page.parent, page) == becomes


def test_links_of_an_included_file_count_from_its_own_folder():
    page = ROOT / "docs/project/benchmarks.md"
    assert relink("[a](../docs/guides/gin.md)", ROOT / "benchmarks", page) == "[a](../guides/gin.md)"
    assert relink("[a](job.py)", ROOT / "benchmarks", page) == "[a](path:../../benchmarks/job.py)"
