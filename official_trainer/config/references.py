"""Values that refer to other fields: settled when all layers are merged, each as the text that its field would take.

Owns: the order in which they are settled, circles, fields that follow others while they are null (`Config.follows`).
Does not own: the grammar (`reference_text.py`), the types of fields (`decode.py`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from official_trainer.config import checks, fields, reference_text
from official_trainer.config.declaration import Config, OneOf
from official_trainer.config.decode import Decoder
from official_trainer.config.errors import ConfigError, Origin, Problem
from official_trainer.config.reading import Node, node_at
from official_trainer.config.reference_text import Reference, WrongReferenceError
from official_trainer.config.text import flow, written_items


def settle(decoder: Decoder) -> bool:
    """Puts the values in the places of the references; returns whether all of them are known.

    What is wrong with one is added to the problems of the decoder.
    """
    for _ in range(2):  # a field may follow another only once a reference has chosen its section
        for path, section in list(checks.sections_in_force(decoder.root)):
            for name, followed in section.follows():
                if fields.at(decoder.root, fields.parse_path(followed)) not in (0, None, Ellipsis):
                    keys = fields.parse_path(f"{path}.{name}" if path else name)
                    reference = Reference(f"${{{followed}}}", Origin("default"))
                    node = Node("reference", reference, reference.origin)
                    decoder.merge(node_at(keys, node, node))
        references = {path: value for path, value in fields.walk(decoder.root) if isinstance(value, Reference)}
        if not references:
            return True
        _settle_all(decoder, references)
        if any(isinstance(value, Reference) for _, value in fields.walk(decoder.root)):
            return False
    return True


class _UnsettledError(Exception):
    """A value is not known yet, because the one at `path` refers to another."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def _settle_all(decoder: Decoder, references: dict[str, Reference]) -> None:
    """Puts values in the places of references; one that needs another is tried again when that is known."""
    needs: dict[str, str] = {}
    waiting: dict[str, list[str]] = {}
    todo = list(reversed(references))
    while todo:
        path = todo.pop()
        needs.pop(path, None)
        reference = references[path]
        try:
            if _put(decoder, path, reference, _at(decoder.root, reference_text.path_of(reference.text))):
                todo += waiting.pop(path, [])
        except _UnsettledError as other:
            needs[path] = other.path
            waiting.setdefault(other.path, []).append(path)
        except WrongReferenceError as error:
            _fail(decoder, path, reference, f"{error}", error.fix)
    seen: set[str] = set()
    for path in needs:  # each leads to one that is wrong, or into a circle
        way: dict[str, Reference] = {}
        while path in needs and path not in seen:
            seen.add(path)
            way[path] = references[path]
            path = needs[path]
        if path in way:
            circle = list(way)[list(way).index(path) :]
            steps = [f"{member} = {way[member].shown} ({way[member].origin.brief})" for member in circle]
            what = f"fields refer to each other in a circle: {', '.join(steps)}"
            _fail(decoder, path, way[path], what, "write one of them as a value")


def _at(root: Config, path: str) -> Any:
    """Returns the value at a path, all of which is known."""
    reached: str = ""
    value: Any = root
    for key in fields.parse_path(path):
        (key,) = fields.settle(value, (key,))
        part = fields.child(value, key)
        if part is Ellipsis:
            raise _unknown_path(root, path)
        if isinstance(value, OneOf) and key != "type":
            type_path = fields.join(reached, "type")
            if isinstance(value.type, Reference):
                raise _UnsettledError(type_path)
            if key != value.type:
                what = f"refers to {path}, which is not in force: {type_path} is {fields.show(value.type)}"
                raise WrongReferenceError(what, "refer to another field")
        value, reached = part, fields.join(reached, key)
        if isinstance(value, Reference):
            raise _UnsettledError(reached)
    if fields.is_section(value):
        raise WrongReferenceError(f"refers to {path}, which is a section", "refer to a field of it")
    for inside, part in fields.walk(value, reached):
        if isinstance(part, Reference):
            raise _UnsettledError(inside)
    return value


def _put(decoder: Decoder, path: str, reference: Reference, value: Any) -> bool:
    keys = fields.parse_path(path)
    mark = Node("scalar", "", reference.origin, reference.origin.length)
    count = len(decoder.problems)
    decoder.merge(node_at(keys, mark, _node(value, mark)))
    if new := decoder.problems[count:]:  # of a value that stands in another place
        got = f"{fields.show(value)} from {reference.shown}"
        decoder.problems[count:] = [dataclasses.replace(problem, got=got, fix="") for problem in new]
    elif not isinstance(fields.at(decoder.root, keys), Reference):
        decoder.trail.references[path] = reference
        return True
    return False


def _fail(decoder: Decoder, path: str, reference: Reference, what: str, fix: str) -> None:
    decoder.problems.append(Problem(what, path, fix=fix, origin=reference.origin))


def _unknown_path(root: Any, path: str) -> WrongReferenceError:
    """Returns the error that there is no field at `path`, with the nearest."""
    try:
        fields.find(root, path)
    except ConfigError as error:
        (problem,) = error.problems
        around, _, _ = problem.path.rpartition(".")
        near = fields.join(around, problem.near) if problem.near else ""
        is_a_name = "." not in path  # such as that of an environment variable
        fix = f"write $${{{path}}} for the text itself" if is_a_name else f"allowed: {problem.allowed}"
        fix = f"did you mean '${{{near}}}'?" if near else problem.fix or fix
        return WrongReferenceError(f"refers to {problem.path}, and there is no such field", fix)
    raise AssertionError(f"there is a value at {path}")


def _node(value: Any, at: Node) -> Node:
    """Returns a value as the text that gives it, at the place of a reference."""
    if isinstance(value, tuple | list):
        return dataclasses.replace(at, form="list", value=tuple(_node(item, at) for item in value))
    if fields.is_section(value) or isinstance(value, dict):
        pairs = (
            (dataclasses.replace(at, value=key, quoted=True), _node(part, at)) for key, part in written_items(value)
        )
        return dataclasses.replace(at, form="mapping", value=tuple(pairs))
    if isinstance(value, str):
        return dataclasses.replace(at, value=reference_text.escaped(value), quoted=True)
    return dataclasses.replace(at, value=flow(value))
