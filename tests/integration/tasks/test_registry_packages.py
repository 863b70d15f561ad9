"""T25: what packages of users register: read from their source, imported when it is named, never confused."""

import sys

import pytest

from official_trainer.config import ConfigError
from official_trainer.tasks import registry
from tests.support import packages
from tests.support.light import _clean_keras, _devices  # noqa: F401
from tests.support.packages import entry_point, registering, write


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with packages.as_it_was(monkeypatch):
        yield


def pyproject(folder, *modules):
    (folder / "pyproject.toml").write_text(f"[tool.official-trainer]\nexperiments = {list(modules)!r}\n")
    return folder


def said(problems):
    return [problem.message for problem in problems]


def test_names_are_read_without_an_import(tmp_path):
    """T25: of the whole package, without its tests."""
    root = write(
        tmp_path,
        experiments__a=registering("own"),
        mine__wave=registering("wave", steps=4),
        mine__wave_test=registering("tried"),
        other=registering("other"),
    )
    pyproject(root, "other", "mine")
    found, problems = registry.listed(root)
    assert (list(found), problems) == (["own", "other", "wave"], [])
    assert (found["wave"].module, found["wave"].path) == ("mine.wave", root / "mine" / "wave.py")
    assert registry.named(root) == found
    assert not {"mine", "other", "experiments.a"} & sys.modules.keys()
    assert registry.get_config("wave", root).trainer.train_steps == 4
    assert not {"other", "experiments.a"} & sys.modules.keys(), "only what registers it"


def test_computed_names_are_found_when_they_are_named(tmp_path):
    """T25: in a workspace and in packages; `list` says which files have some, and lists them once it imports them."""
    root = write(
        tmp_path,
        experiments__a=registering("computed", steps=3, computed=True),
        mine__names=registering("far", steps=5, computed=True),
        mine__broken="1 / 0\n" + registering("never", computed=True),
    )
    pyproject(root, "mine.names")
    found, problems = registry.listed(root)
    assert found == {}
    assert [each.partition(":")[0] for each in said(problems)] == [
        "experiments/a.py",
        f"{root}/mine/broken.py",
        f"{root}/mine/names.py",
    ]
    assert registry.get_config("computed", root).trainer.train_steps == 3
    assert registry.get_config("far", root).trainer.train_steps == 5
    found, problems = registry.listed(root, ["mine.names", "experiments.a"])
    assert (found["computed"].path, found["computed"].line) == (root / "experiments" / "a.py", 5)
    assert found["far"].summary == "The experiment far."
    assert said(problems)[0].startswith(f"{root}/mine/broken.py:11: it computes names; ")
    with pytest.raises(registry.UnknownExperimentError) as error:
        registry.get_config("fat", root)
    reason = "mine/broken.py:1: mine.broken cannot be imported (named by "
    assert reason in error.value.problems[0].message
    assert error.value.problems[0].near == "far"


@pytest.mark.parametrize("computed", [False, True])
def test_two_that_register_one_name(tmp_path, computed):
    """T25: listed with both places, refused where it is named; the others work."""
    write(tmp_path, one=registering("same", computed=computed), two=registering("same", computed=computed))
    root = pyproject(
        write(tmp_path, three=registering("other"), experiments__x=registering("own")), "one", "two", "three"
    )
    twice = f"experiment 'same' is registered twice, at {root}/one.py:5 and {root}/two.py:5; rename one"
    if not computed:
        found, problems = registry.listed(root)
        assert sorted(found) == ["other", "own", "same"]
        assert said(problems) == [twice]
    with pytest.raises(ConfigError, match="experiment 'same' is registered twice") as error:
        registry.get_config("same", root)
    assert said(error.value.problems) == [twice]
    assert registry.get_config("other", root)
    assert registry.get_config("own", root)


def test_what_two_modules_share_is_no_conflict(tmp_path):
    """T25: a flag, `pyproject.toml` and an entry point may all lead to one file."""
    write(tmp_path, mine__wave=registering("wave", 6))
    entry_point(tmp_path, "mine.wave")
    root = pyproject(tmp_path, "mine.wave", "mine")
    sys.path.insert(0, str(tmp_path))
    found, problems = registry.listed(root, ["mine.wave"])
    assert "wave" in found and problems == []  # beside what other tests have imported
    assert registry.get_config("wave", root, ["mine.wave"]).trainer.train_steps == 6


def test_a_broken_entry_point_is_a_warning(tmp_path, monkeypatch, caplog):
    """T25: the other experiments work; a name that is nowhere gets the reason."""
    entry_point(tmp_path / "site", "broken_one.experiments")
    monkeypatch.syspath_prepend(tmp_path / "site")
    root = write(tmp_path / "w", experiments__x=registering("literal"))
    reason = "entry point mine of mine: there is no module 'broken_one'; searched: "
    found, [problem] = registry.listed(root)
    assert list(found) == ["literal"]
    assert problem.message.startswith(reason)
    assert registry.get_config("literal", root)
    assert [record.levelname for record in caplog.records if record.getMessage().startswith(reason)] == ["WARNING"]
    with pytest.raises(registry.UnknownExperimentError) as error:
        registry.get_config("literl", root)
    assert reason in str(error.value)


def test_a_module_of_the_flag_has_to_be_there(tmp_path):
    """T25: what is only declared is imported with its experiments."""
    root = pyproject(write(tmp_path, bad="1 / 0\n" + registering("x")), "bad")
    division = "bad.py:1: bad cannot be imported (named by {}): ZeroDivisionError: division by zero"
    assert list(registry.listed(root)[0]) == ["x"]
    for call, named_by in (
        (lambda: registry.get_config("x", root), "pyproject.toml:2"),
        (lambda: registry.listed(root, ["bad"]), "--import=bad"),
    ):
        with pytest.raises(ConfigError) as error:
            call()
        assert said(error.value.problems) == [division.format(named_by)]
