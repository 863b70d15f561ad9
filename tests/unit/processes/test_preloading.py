"""What a process imports for those that are forked from it, once one of them has needed it."""

import os
import sys

import pytest

from official_trainer.processes.preloading import Imports


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Writes installed packages; returns a function that takes name and source."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    written = []

    def write(name, source=""):
        written.append(name)
        (folder / f"{name}.py").write_text(f"import os\nPID = os.getpid()\n{source}\n")

    yield write
    for name in written:
        sys.modules.pop(name, None)


def import_in_a_fork(imports, *names):
    pid = os.fork()
    if not pid:
        try:
            imports.tell()
            for name in names:
                __import__(name)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    imports.hear()


def settle(imports):
    """Tries everything that waits; returns what was imported."""
    while imports.wait_seconds() is not None:
        imports.advance()
        while imports._trial is not None:
            imports.look()
    return imports.packages


def test_what_a_forked_process_imports_is_imported_for_the_next_one(packages):
    """N26: in the process that is forked, once a trial in another one went well."""
    packages("first_early")
    packages("second_early", "import first_early")
    imports = Imports(quiet_seconds=0)
    assert imports.wait_seconds() is None
    import_in_a_fork(imports, "second_early")
    assert "second_early" not in sys.modules
    assert settle(imports) == ["second_early", "first_early"]
    assert sys.modules["second_early"].PID == sys.modules["first_early"].PID == os.getpid()


BAD = {
    "starts a thread": "import threading, time; threading.Thread(target=time.sleep, args=[60], daemon=True).start()",
    "ends the process": "os._exit(0 if os.getpid() == 1 else 3)",
    "holds something of TensorFlow": "class Layer: pass\nLayer.__module__ = 'tensorflow.python.layers'",
    "holds a module of gin": "import types; gin = types.ModuleType('gin')",
}


@pytest.mark.parametrize("source", BAD.values(), ids=BAD)
def test_what_others_could_notice_is_not_imported_early(packages, source):
    """N26: and it is tried once."""
    packages("bad_early", source)
    packages("good_early")
    imports = Imports(quiet_seconds=0)
    import_in_a_fork(imports, "good_early")
    import_in_a_fork(imports, "bad_early")
    assert settle(imports) == ["good_early"] and "bad_early" not in sys.modules
    import_in_a_fork(imports, "bad_early")
    assert imports.wait_seconds() is None


def test_what_cannot_be_imported_is_left_to_those_who_try(packages):
    """N26: as one that is missing, or that a workspace holds."""
    packages("broken_early", "raise ValueError")
    imports = Imports(quiet_seconds=0)
    for name in ("broken_early", "missing_early"):
        pid = os.fork()
        if not pid:
            imports.tell()
            try:
                __import__(name)
            except Exception:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        imports.hear()
    settle(imports)
    assert not {"broken_early", "missing_early"} & sys.modules.keys()


def test_a_module_that_is_not_installed_is_never_imported(tmp_path, monkeypatch):
    """N26: files of a workspace are edited, and are read anew by each command."""
    (tmp_path / "experiments_early.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    imports = Imports(quiet_seconds=0)
    import_in_a_fork(imports, "experiments_early")
    assert imports.wait_seconds() is None and "experiments_early" not in sys.modules
