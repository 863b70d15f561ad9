"""The public names: each has a docstring with an example, and the example does what it says, typed by a user."""

import ast
import doctest
import importlib
import inspect
import io
import itertools
import re
import sys
import types
import typing
from pathlib import Path

import pytest

from official_trainer.config import declaration
from official_trainer.tasks import registry

FACES = ("", ".actions", ".config", ".engine", ".inputs", ".program", ".tasks", ".tracking")
MORE = {
    ".config.optimization": {"EMAConfig", "LrConfig", "OptimizerConfig", "WarmupConfig"},
    ".distributed.trees": {
        *("assert_replica_integrity", "from_json", "gather", "paths", "read", "to_json", "write"),
    },
    ".lazy": {""},
    ".tasks.publish": {"histogram", "image", "is_wanted", "scalar"},
    ".tasks.random_streams": {"enable", "seed", "seeds"},
    ".tasks.registry": {"", "find_workspace", "get_config", "get_task_cls", "named"},
    ".tasks.results": {"Mean", "Results", "SampledSet"},
}
"""Public names of modules without a stub; "" is the module itself."""
WITHOUT_EXAMPLE = {
    # One starts processes, the others need a workspace: their examples are programs of docs/guides/.
    "": {"RunResult", "check", "overfit", "run", "sweep"},
    ".config": {"digest", "flow", "format_override"},
    ".inputs": {
        *("call_build_inputs", "check_element_structure", "explain_data_error", "skip", "stack_windows"),
        *("with_training_flag", "without_tuning"),
    },
    ".tracking": {"Trackers", "closing", "flatten"},
}
"""What these offer to other packages of ours, which no user calls."""

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MODULE = "typed_by_a_user"


def public():
    """Returns the public names with their values; a value that several modules offer, under the first name."""
    names = {}
    for face in FACES:
        offered = set(importlib.import_module(f"official_trainer{face}").__all__)
        left_out = WITHOUT_EXAMPLE.get(face, set())
        assert left_out <= offered
        names[face] = offered - left_out
    values = {}
    for face, offered in {**names, **MORE}.items():
        module = importlib.import_module(f"official_trainer{face}")
        for name in sorted(offered):
            value = getattr(module, name) if name else module
            if not any(value is other for other in values.values()):
                values[f"official_trainer{face}.{name}"] = value
    return values


def problem_of(value):
    """Returns what the docstring of a public name lacks; empty if that is nothing."""
    if not (inspect.getdoc(value) or "").strip():
        return "has no docstring"
    is_exception = isinstance(value, type) and issubclass(value, BaseException)
    is_alias = isinstance(value, types.UnionType) or typing.get_origin(value) is typing.Annotated
    if not is_exception and not is_alias and not examples_of(value):
        return "has no example: add one under `Example:` in its docstring, with lines that begin with >>>"
    methods = vars(value).values() if isinstance(value, type) else ()
    for docstring in [value.__doc__, *(method.__doc__ for method in methods if callable(method))]:
        if match := re.search(r"^ *(?:Returns|Yields):\n *([^\n]*):", docstring or "", re.MULTILINE):
            return f"Sphinx shows the words before the colon as a type: {match[1]}"
    return ""


def examples_of(value):
    """Returns the examples in the docstrings of a class and its methods, of a function or of a module alone."""
    if isinstance(value, types.ModuleType):
        tests = [doctest.DocTestParser().get_doctest(value.__doc__ or "", {}, "module", None, 0)]
    else:
        tests = doctest.DocTestFinder().find(value, "name", module=False, globs={})
    return [test for test in tests if test.examples]


def failures_of(value, patch):
    """Runs the examples of a name, each docstring's for itself, and returns what failed, as text."""
    for registered in ("_factories", "_tasks"):
        patch.setattr(registry, registered, dict(getattr(registry, registered)))  # later tests do not see theirs
    report = io.StringIO()
    for test in examples_of(value):
        module = types.ModuleType(MODULE)  # where classes that are typed look for their module
        module.__loader__ = doctest  # anything: AutoGraph asks for it before it reads the source of a function
        patch.setitem(sys.modules, MODULE, module)
        test.globs = vars(module)
        doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=report.write, clear_globs=False)
    return report.getvalue()


def test_the_examples_of_public_names_are_right(tmp_path):
    """Each in an empty working directory, which Python searches as in a session."""
    problems = {}
    for number, (name, value) in enumerate(public().items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.syspath_prepend(folder)
            if problem := problem_of(value) or failures_of(value, patch):
                problems[name] = problem
    assert not problems, "\n".join(f"{name}: {problem}" for name, problem in problems.items())


def test_types_of_numbers_are_explained():
    """In a line below each, because such a name has no docstring of its own."""
    nodes = ast.parse(Path(declaration.__file__).read_text(encoding="utf-8")).body
    explained = {
        node.targets[0].id
        for node, after in itertools.pairwise(nodes)
        if isinstance(node, ast.Assign) and isinstance(getattr(after, "value", None), ast.Constant)
    }
    numbers = {name for name, value in vars(declaration).items() if typing.get_origin(value) is typing.Annotated}
    assert numbers and numbers <= explained


def wrong():
    """Adds.

    Example:
      >>> 1 + 1
      3
    """


def test_what_is_wrong_is_noticed(monkeypatch):
    assert problem_of(lambda: None) == "has no docstring"
    assert problem_of(wrong) == "" and "Expected:\n    3\nGot:\n    2\n" in failures_of(wrong, monkeypatch)
