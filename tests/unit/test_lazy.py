"""How TensorFlow gets imported; a small module stands for it here."""

import concurrent.futures
import gc
import sys

import pytest

from official_trainer import lazy


@pytest.fixture
def heavy(tmp_path, monkeypatch):
    """The name of a module that notes whether the collector was on while it was imported."""
    (tmp_path / "heavy_module.py").write_text("import gc\ncollector_was_on = gc.isenabled()\nvalue = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "heavy_module"
    sys.modules.pop("heavy_module", None)
    gc.unfreeze()
    gc.enable()


def test_the_collector_rests_during_an_import(heavy):
    module = lazy.load(heavy)
    assert not module.collector_was_on
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0, "what was imported is not walked again"
    gc.unfreeze()
    assert lazy.load(heavy) is module
    assert gc.get_freeze_count() == 0, "only an import freezes"


def test_the_collector_is_afterwards_as_it_was(heavy):
    """Also where the import fails."""
    with pytest.raises(ModuleNotFoundError):
        lazy.load("no_such_module_at_all")
    assert gc.isenabled()
    gc.disable()
    lazy.load(heavy)
    assert not gc.isenabled()


def test_a_lazy_module_is_imported_at_its_first_attribute(heavy):
    module = lazy.LazyModule(heavy)
    assert heavy not in sys.modules
    assert module.value == 42
    assert "value" in dir(module)


def test_a_module_that_another_thread_imports_is_waited_for(tmp_path, monkeypatch):
    """Two runs in one process may need the same module first at the same time."""
    (tmp_path / "slow_module.py").write_text("import gate\ngate.begun.set()\ngate.going.wait(60)\nvalue = 42\n")
    (tmp_path / "gate.py").write_text("import threading\nbegun, going = threading.Event(), threading.Event()\n")
    monkeypatch.syspath_prepend(tmp_path)
    import gate

    try:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            first = pool.submit(lazy.load, "slow_module")
            assert gate.begun.wait(60)
            second = pool.submit(lambda: lazy.load("slow_module").value)
            with pytest.raises(TimeoutError):
                second.result(0.2)
            gate.going.set()
            assert (first.result(60).value, second.result(60)) == (42, 42)
    finally:
        gate.going.set()
        for name in ("slow_module", "gate"):
            sys.modules.pop(name, None)
        gc.unfreeze()
        gc.enable()


def test_what_is_rarely_used_is_imported_at_its_first_use(tmp_path, monkeypatch):
    """Also by those who import it later, and only if it is there."""
    (tmp_path / "rare_module.py").write_text("value = 42\n")
    (tmp_path / "heavy_module.py").write_text(
        "import rare_module\n"
        "try:\n    import absent_module\nexcept ImportError:\n    absent_module = None\n"
        "def use():\n    return rare_module.value\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(lazy, "RARELY_USED", ("rare_module", "absent_module", "absent_package.module"))
    try:
        module = lazy.load("heavy_module")
        assert module.absent_module is None
        assert "rare_module" not in sys.modules
        assert module.use() == 42
        import rare_module

        assert sys.modules["rare_module"] is rare_module and rare_module.__file__
    finally:
        for name in ("heavy_module", "rare_module"):
            sys.modules.pop(name, None)
        gc.unfreeze()


def test_a_module_stays_deferred_while_one_of_two_imports_that_defer_it_goes_on(tmp_path, monkeypatch):
    """A part of TensorFlow imports another one; what is loaded already is taken as it is."""
    (tmp_path / "rare_module.py").write_text("value = 42\n")
    (tmp_path / "short_module.py").write_text("import rare_module\n")
    (tmp_path / "long_module.py").write_text(
        "from official_trainer.lazy import load\nload('short_module')\nimport rare_module\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(lazy, "RARELY_USED", ("rare_module",))
    try:
        module = lazy.load("long_module")
        assert "rare_module" not in sys.modules
        assert module.rare_module.value == 42
        import rare_module

        sys.modules.pop("long_module")
        assert lazy.load("long_module").rare_module is rare_module is sys.modules["rare_module"]
    finally:
        for name in ("long_module", "short_module", "rare_module"):
            sys.modules.pop(name, None)
        gc.unfreeze()


def test_a_module_of_a_package_that_is_not_there_is_not_found(heavy):
    """N48: and none is imported."""
    assert lazy.spec_of("no_such_package.module") is None
    assert lazy.spec_of(heavy) is not None and heavy not in sys.modules
