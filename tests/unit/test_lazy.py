"""How TensorFlow gets imported; a small module stands for it here."""

import concurrent.futures
import gc
import inspect
import sys
import typing

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


def test_a_collector_that_was_off_stays_off(heavy):
    gc.disable()
    lazy.load(heavy)
    assert not gc.isenabled()


def test_a_failed_import_turns_it_on_again(heavy):
    with pytest.raises(ModuleNotFoundError):
        lazy.load("no_such_module_at_all")
    assert gc.isenabled()


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
    """Data are read in one thread while another one imports a part of TensorFlow."""
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
    finally:
        for name in ("long_module", "short_module", "rare_module"):
            sys.modules.pop(name, None)
        gc.unfreeze()


def test_a_rarely_used_module_that_is_loaded_is_taken_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "rare_module.py").write_text("value = 42\n")
    (tmp_path / "heavy_module.py").write_text("import rare_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(lazy, "RARELY_USED", ("rare_module",))
    try:
        import rare_module

        assert lazy.load("heavy_module").rare_module is rare_module
        assert sys.modules["rare_module"] is rare_module
    finally:
        for name in ("heavy_module", "rare_module"):
            sys.modules.pop(name, None)
        gc.unfreeze()


def test_signatures_are_the_same_during_an_import_and_after_it(tmp_path, monkeypatch):
    """A module that keeps `inspect.signature` from its import asks anew afterwards."""
    (tmp_path / "heavy_module.py").write_text(
        "import functools, inspect, typing\n"
        "from inspect import getfullargspec, signature\n"
        "def plain(a, b=1, *c, d, e=2, **f): pass\n"
        "def bare(): pass\n"
        "def annotated(a: int, *, b: str = 'x') -> float: pass\n"
        "@functools.wraps(annotated)\n"
        "def wrapped(*args): pass\n"
        "functions = plain, bare, annotated, wrapped, functools.partial(plain, 1), int.bit_length, type('C', (), {})\n"
        "seen = [(signature(each), signature(each), getfullargspec(each)) for each in functions]\n"
        "one = typing.TypeVar('one', '_atypes.A', '_atypes.B')\n"
        "two = typing.TypeVar('two', '_atypes.A', 'Other')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    usual = inspect.signature, inspect.getfullargspec
    try:
        module = lazy.load("heavy_module")
        assert (inspect.signature, inspect.getfullargspec) == usual
        for function, (first, second, spec) in zip(module.functions, module.seen, strict=True):
            assert first == second == inspect.signature(function)
            assert spec == inspect.getfullargspec(function)
        assert module.seen[0][0] is module.seen[0][1], "it was remembered"
        assert module.one.__constraints__ == (typing.ForwardRef("_atypes.A"), typing.ForwardRef("_atypes.B"))
        assert module.one.__constraints__[0] is module.two.__constraints__[0]
        assert module.two.__constraints__[1] == typing.ForwardRef("Other")
        module.plain.__defaults__ = (7,)
        assert module.signature(module.plain).parameters["b"].default == 7
    finally:
        sys.modules.pop("heavy_module", None)
        gc.unfreeze()


def test_the_collector_works_rarely_in_a_block_and_as_usual_after_it():
    usual = gc.get_threshold()
    with pytest.raises(KeyError), lazy.collecting_rarely():
        assert gc.isenabled() and gc.get_threshold()[0] > usual[0]
        raise KeyError
    assert gc.get_threshold() == usual
