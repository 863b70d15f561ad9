"""Values that refer to other fields: settled when all layers are merged, each as the text that its field would take.

Owns: the order in which they are settled, circles, fields that follow others while they are null (`Config.follows`).
Does not own: the grammar (`reference_text.py`), the types of fields (`decode.py`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from official_trainer.config import checks, fields, limits, reference_text
from official_trainer.config.declaration import OneOf
from official_trainer.config.decode import Decoder
from official_trainer.config.errors import ConfigError, Origin, Problem
from official_trainer.config.reading import Node, node_at
from official_trainer.config.reference_text import Reference, WrongReferenceError
from official_trainer.config.text import flow, written_items


def settle(decoder: Decoder) -> bool:
    """Puts the values in the places of the references; returns whether all of them are known.

    What is wrong with one is added to the problems of the decoder.
    """
    done = 0
    for _ in range(2):  # a field may follow another only once a reference has chosen its section
        for path, section in list(checks.sections_in_force(decoder.root)):
            for name, followed in section.follows():
                if fields.at(decoder.root, fields.parse_path(followed)) not in (0, None, Ellipsis):
                    keys = fields.parse_path(f"{path}.{name}" if path else name)
                    reference = Reference(f"${{{followed}}}", Origin("default"))
                    node = Node("reference", reference, reference.origin)
                    decoder.merge(node_at(keys, node, node))
        if decoder.num_references == done:
            break
        done, settling = decoder.num_references, _Settling(decoder)
        for path, value in list(fields.walk(decoder.root)):
            if isinstance(value, Reference):
                settling.settle(path, value)
    return not done or not any(isinstance(value, Reference) for _, value in fields.walk(decoder.root))


class _UnknownError(Exception):
    """A value is not known because another one is not, about which a problem is reported."""


class _Settling:
    """Gives references their values, each after those that it refers to."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._open: dict[str, Reference] = {}
        self._failed: set[str] = set()

    def settle(self, path: str, reference: Reference) -> bool:
        """Puts the value of a reference in its place; returns whether there is one now."""
        if path in self._open:
            members = list(self._open)
            circle = members[members.index(path) :]
            steps = [f"{member} = {self._open[member].shown} ({self._open[member].origin.brief})" for member in circle]
            what = f"fields refer to each other in a circle: {', '.join(steps)}"
            self._fail(path, reference, what, "write one of them as a value")
            self._failed.update(self._open)
        elif len(self._open) >= limits.MAX_DEPTH:
            what = f"is the last of a chain of more than {limits.MAX_DEPTH} references"
            self._fail(path, reference, what, "write one of them as a value")
            self._failed.update(self._open)
        if path in self._failed:
            return False
        if not isinstance(fields.at(self._decoder.root, fields.parse_path(path)), Reference):
            return True  # another one needed it before
        self._open[path] = reference
        try:
            return self._put(path, reference, self._value(reference))
        except WrongReferenceError as error:
            self._fail(path, reference, f"{error}", error.fix)
        except _UnknownError:
            self._failed.add(path)
        finally:
            del self._open[path]
        return False

    def _value(self, reference: Reference) -> Any:
        pieces = reference_text.parse(reference.text)
        if len(pieces) == 3 and not pieces[0] and not pieces[2]:
            return self._at(pieces[1])
        values = [self._at(piece) if number % 2 else piece for number, piece in enumerate(pieces)]
        for value in values:
            if value is None or isinstance(value, dict | tuple):
                what = f"puts {fields.show(value)} into a text"
                raise WrongReferenceError(what, "only numbers and texts can be put there")
        return "".join(value if isinstance(value, str) else flow(value) for value in values)

    def _at(self, path: str) -> Any:
        """Returns the value at a path, after those that it refers to itself."""
        reached, value = "", self._decoder.root
        for key in fields.parse_path(path):
            (key,) = fields.settle(value, (key,))
            if isinstance(value, OneOf) and key not in ("type", self._known(fields.join(reached, "type"), value.type)):
                chosen = f"{fields.join(reached, 'type')} is {fields.show(value.type)}"
                if fields.child(value, key) is not Ellipsis:
                    what = f"refers to {path}, which is not in force: {chosen}"
                    raise WrongReferenceError(what, "refer to another field")
            part = fields.child(value, key)
            if part is Ellipsis:
                raise _unknown_path(self._decoder.root, path)
            reached = fields.join(reached, key)
            value = self._known(reached, part)
        if fields.is_section(value):
            raise WrongReferenceError(f"refers to {path}, which is a section", "refer to a field of it")
        for inside, part in list(fields.walk(value, reached)):
            self._known(inside, part)
        return fields.at(self._decoder.root, fields.parse_path(reached))

    def _known(self, path: str, value: Any) -> Any:
        """Returns the value at `path`, which is settled first if it refers to others."""
        if not isinstance(value, Reference):
            return value
        if not self.settle(path, value):
            raise _UnknownError
        return fields.at(self._decoder.root, fields.parse_path(path))

    def _put(self, path: str, reference: Reference, value: Any) -> bool:
        decoder, keys = self._decoder, fields.parse_path(path)
        mark = Node("scalar", "", reference.origin, reference.length)
        count = len(decoder.problems)
        decoder.merge(node_at(keys, mark, _node(value, mark)))
        if new := decoder.problems[count:]:  # of a value that stands in another place
            got = f"{fields.show(value)} from {reference.shown}"
            decoder.problems[count:] = [dataclasses.replace(problem, got=got, fix="") for problem in new]
        elif not isinstance(fields.at(decoder.root, keys), Reference):
            decoder.trail.references[path] = reference
            return True
        self._failed.add(path)
        return False

    def _fail(self, path: str, reference: Reference, what: str, fix: str) -> None:
        self._failed.add(path)
        problem = Problem(what, path, fix=fix, origin=reference.origin, length=reference.length)
        self._decoder.problems.append(problem)


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
