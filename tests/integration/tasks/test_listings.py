"""T25: what modules register is found out by another process, kept, and never out of date."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from official_trainer.config import ConfigError
from official_trainer.tasks import listings, registry, sources
from tests.support import packages
from tests.support.cases import cases
from tests.support.light import _clean_keras, _devices  # noqa: F401
from tests.support.packages import entry_point, registering, write

LITERAL = """
    from official_trainer import register_config_factory
    from official_trainer.config import ExperimentConfig

    @register_config_factory("literal")
    def literal():
        return ExperimentConfig()
"""


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with packages.as_it_was(monkeypatch):
        yield


@pytest.fixture
def started(monkeypatch):
    """The processes that were started."""
    calls = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: calls.append(args) or run(*args, **options))
    return calls


def pyproject(folder, *modules):
    (folder / "pyproject.toml").write_text(f"[tool.official-trainer]\nexperiments = {list(modules)!r}\n")
    return folder


def said(problems):
    return [problem.message for problem in problems]


def test_computed_names_of_a_workspace(tmp_path, started):
    """T25: a loop, a file that only imports a package, a literal beside a computed name; shown, and found to run."""
    root = write(
        tmp_path,
        experiments__a=registering("computed", steps=3),
        experiments__b="from mine import wave\n",
        experiments__c=LITERAL + "    register_config_factory('LIT' + 'ERAL')(literal)\n",
        experiments__layers="import tensorflow as tf\nimport numpy as np\n",
        mine__wave=registering("wave", steps=4),
    )
    found, problems = registry.listed(root)
    assert list(found) == ["literal", "computed", "LITERAL", "wave"]
    assert (found["wave"].module, found["wave"].path) == ("experiments.b", root / "mine" / "wave.py")
    assert (found["computed"].line, found["computed"].summary) == (5, "The experiment computed.")
    assert problems == []
    assert len(started) == 3, "one for each file, and none for what only has layers"
    assert registry.get_config("wave", root).trainer.train_steps == 4
    assert registry.get_config("computed", root).trainer.train_steps == 3
    assert "experiments.c" not in sys.modules, "only what registers it"


def test_nothing_is_imported_in_this_process_and_nothing_twice(tmp_path, started):
    """T25: `list` is as quick as ever once it is known; also in a later process, by another way to start."""
    root = pyproject(write(tmp_path, mine__names=registering("kept")), "mine.names")
    assert list(registry.listed(root, finds_out=False)[0]) == [], "nothing is known yet"
    assert list(registry.listed(root)[0]) == ["kept"]
    assert list(registry.listed(root)[0]) == list(registry.listed(root, finds_out=False)[0]) == ["kept"]
    assert len(started) == 1
    assert "mine" not in sys.modules
    sys.path.insert(0, os.path.dirname(sys.executable))
    assert list(registry.listed(root, finds_out=False)[0]) == ["kept"]


NAMES = """
    import json
    from pathlib import Path
    from mine import make

    here = Path(__file__).parent
    for name in json.loads((here / "names.json").read_text()):
        make.register(name)
    for path in (here / "more").glob("*.txt"):
        make.register(path.stem)
"""
MAKE = """
    from official_trainer import register_config_factory
    from official_trainer.config import ExperimentConfig
    from helper import PREFIX

    def register(name):
        register_config_factory(PREFIX + name)(ExperimentConfig)
"""


def change_a_module(root):
    (root / "helper.py").write_text("PREFIX = 'c'\n")
    return ["ca", "cb"]


def change_data(root):
    (root / "mine" / "names.json").write_text('["b"]')
    return ["pb"]


def add_a_file(root):
    (root / "mine" / "more" / "z.txt").touch()
    return ["pa", "pb", "pz"]


def keep_the_time(root):
    path = root / "helper.py"
    before = path.stat()
    path.write_text("PREFIX = 'qq'\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return ["qqa", "qqb"]


@pytest.mark.parametrize(
    "change", cases([change_a_module, change_data, add_a_file, keep_the_time], change_data, add_a_file)
)
def test_it_is_never_out_of_date(change, tmp_path, started):
    """T25: of a module that it imports, a file that it reads, a folder that it lists; content counts, not time."""
    root = pyproject(write(tmp_path, mine__names=NAMES, mine__make=MAKE, helper="PREFIX = 'p'\n"), "mine.names")
    (root / "mine" / "names.json").write_text('["a", "b"]')
    (root / "mine" / "more").mkdir()
    assert sorted(registry.listed(root)[0]) == ["pa", "pb"]
    (root / "notes.txt").touch()
    (root / "helper.py").touch()
    assert sorted(registry.listed(root)[0]) == ["pa", "pb"]
    assert len(started) == 1
    expected = change(root)
    assert sorted(registry.listed(root)[0]) == expected
    assert len(started) == 2


def test_two_that_register_one_name(tmp_path):
    """T25: listed with both places, refused where it is named; the others work."""
    root = pyproject(
        write(
            tmp_path,
            one=registering("same"),
            two=registering("same") + registering("other").replace("make", "made"),
            experiments__x=registering("own").replace("\"\".join(['o', 'w', 'n'])", "'own'"),
        ),
        "one",
        "two",
    )
    twice = f"experiment 'same' is registered twice, at {root}/one.py:5 and {root}/two.py:5; rename one"
    found, problems = registry.listed(root)
    assert sorted(found) == ["other", "own", "same"]
    assert said(problems) == [twice]
    with pytest.raises(ConfigError, match="experiment 'same' is registered twice") as error:
        registry.get_config("same", root)
    assert said(error.value.problems) == [twice]
    assert registry.get_config("other", root)
    assert registry.get_config("own", root)


def test_what_two_modules_share_is_no_conflict(tmp_path):
    """T25: a flag, a file of the workspace and an entry point may all lead to one file."""
    write(tmp_path, experiments__x="from mine import wave\n", mine__wave=registering("wave", 6))
    entry_point(tmp_path, "mine.wave")
    root = pyproject(tmp_path, "mine.wave", "mine")
    sys.path.insert(0, str(tmp_path))
    found, problems = registry.listed(root, ["mine.wave"])
    assert list(found) == ["wave"]
    assert said(problems) == [
        "pyproject.toml:2: importing mine registers no experiment; import mine.wave in it",
    ]
    assert registry.get_config("wave", root, ["mine.wave"]).trainer.train_steps == 6


def test_a_broken_entry_point_is_a_warning(tmp_path, monkeypatch, caplog):
    """T25: the other experiments work; a name that is nowhere gets the reason."""
    entry_point(tmp_path / "site", "broken_one.experiments")
    monkeypatch.syspath_prepend(tmp_path / "site")
    root = write(tmp_path / "w", experiments__x=LITERAL)
    reason = "entry point mine of mine: there is no module 'broken_one'; searched: "
    found, [problem] = registry.listed(root)
    assert list(found) == ["literal"]
    assert problem.message.startswith(reason)
    assert registry.get_config("literal", root)
    assert [record.levelname for record in caplog.records if record.getMessage().startswith(reason)] == ["WARNING"]
    with pytest.raises(registry.UnknownExperimentError) as error:
        registry.get_config("literl", root)
    assert reason in str(error.value)


def test_a_module_that_ends_its_process(tmp_path):
    """T25: also without Python's knowledge; its last line is shown, and what it prints does not matter."""
    text = "import os, sys\nprint('{}')\nprint('no memory', file=sys.stderr, flush=True)\nos._exit(7)\n"
    root = pyproject(write(tmp_path, crashing=text), "crashing")
    assert said(registry.listed(root)[1]) == [
        "pyproject.toml:2: crashing cannot be imported: its process ends with exit code 7: no memory"
    ]


def test_what_a_module_prints_and_starts_does_not_matter(tmp_path, capfd):
    """T25: nor does a thread that never ends."""
    loud = "import os, threading\nos.system('echo shell')\nprint('python')\n"
    loud += "threading.Thread(target=threading.Event().wait).start()\n"
    root = pyproject(write(tmp_path, loud=loud + registering("loud")), "loud")
    assert list(registry.listed(root)[0]) == ["loud"]
    assert capfd.readouterr() == ("", "")


def test_a_module_of_the_flag_has_to_be_there(tmp_path):
    """T25: what is only declared is a problem that is listed."""
    root = pyproject(write(tmp_path, bad="1 / 0\n"), "bad")
    division = "bad.py:1: bad cannot be imported (named by {}): ZeroDivisionError: division by zero"
    assert said(registry.listed(root)[1]) == [division.format("pyproject.toml:2")]
    with pytest.raises(ConfigError) as error:
        registry.listed(root, ["bad"])
    assert str(error.value) == division.format("--import=bad")


def test_a_damaged_cache_is_no_cache(tmp_path, started):
    """T25."""
    root = pyproject(write(tmp_path, mine=registering("kept")), "mine")
    registry.listed(root)
    [source], _ = sources.declared(root)[0][:1], None
    path = Path(listings._cache(source).path)
    for text in ("{", "[]", '{"state": 1}', '{"state": {"files": {}, "folders": {}}, "experiments": 3}'):
        path.write_text(text)
        assert list(registry.listed(root)[0]) == ["kept"]
    assert len(started) == 5
