"""The examples in the docstrings of public names: finding them, and running them as a user would type them."""

import doctest
import importlib
import inspect
import io
import re
import sys
import types
import typing

from official_trainer.tasks import registry

_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_MODULE = "typed_by_a_user"
_TAKEN_FOR_A_TYPE = re.compile(r"^ *(?:Returns|Yields):\n *([^\n]*):", re.MULTILINE)


def public(faces, more, left_out):
    """Returns public names, with their values: each value under the first of its names.

    Args:
      faces: modules that say what they offer: packages with a stub do.
      more: module → names, for other modules; "" means the module itself.
      left_out: module → names that it offers, but that are not checked.
    """
    offered = {face: set(importlib.import_module(face).__all__) for face in faces}
    for face, names in left_out.items():
        assert names <= offered[face], f"{face} does not offer {', '.join(sorted(names - offered[face]))}"
        offered[face] -= names
    found = {}
    for face, names in {**offered, **more}.items():
        module = importlib.import_module(face)
        for name in sorted(names):
            found[f"{face}.{name}".strip(".")] = getattr(module, name) if name else module
    first = {id(value): name for name, value in reversed(found.items())}
    return {name: value for name, value in found.items() if first[id(value)] == name}


def check(value, name, patch):
    """Refuses a public name whose docstring lacks something, or whose examples fail."""
    assert problem_of(value, name) is None
    failures = failures_of(value, name, patch)
    assert not failures, failures


def problem_of(value, name):
    """Returns what the docstring of a public name lacks, or None."""
    if not (inspect.getdoc(value) or "").strip():
        return f"{name} has no docstring"
    if _needs_example(value) and not examples_of(value, name):
        return f"{name} has no example: add one under `Example:` in its docstring, with lines that begin with >>>"
    parts = vars(value).values() if isinstance(value, type) else ()
    for docstring in [value.__doc__, *(part.__doc__ for part in parts if callable(part))]:
        if match := _TAKEN_FOR_A_TYPE.search(docstring or ""):
            return f"{name}: Sphinx shows the words before the colon as a type: {match[1]}"
    return None


def _needs_example(value):
    """Whether one line is not enough; it is for exceptions and names of types."""
    is_exception = isinstance(value, type) and issubclass(value, BaseException)
    is_alias = isinstance(value, types.UnionType) or typing.get_origin(value) is typing.Annotated
    return not is_exception and not is_alias


def examples_of(value, name):
    """Returns the examples in the docstrings of a class and its methods, of a function or of a module alone."""
    if isinstance(value, types.ModuleType):
        found = [doctest.DocTestParser().get_doctest(value.__doc__ or "", {}, name, None, 0)]
    else:
        found = doctest.DocTestFinder().find(value, name, module=False, globs={})
    return [test for test in found if test.examples]


def failures_of(value, name, patch):
    """Runs the examples of a name, each docstring's for itself, and returns what failed, as text."""
    for registered in ("_factories", "_tasks"):
        patch.setattr(registry, registered, dict(getattr(registry, registered)))  # later tests do not see theirs
    report = io.StringIO()
    for test in examples_of(value, name):
        module = types.ModuleType(_MODULE)  # where classes that are typed look for their module
        module.__loader__ = doctest  # anything: AutoGraph asks for it before it reads the source of a function
        patch.setitem(sys.modules, _MODULE, module)
        test.globs = vars(module)
        doctest.DocTestRunner(optionflags=_OPTIONS).run(test, out=report.write, clear_globs=False)
    return report.getvalue()
