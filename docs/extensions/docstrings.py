"""Docstrings of this package on the site: names in single backticks, and signatures of configs.

Owns: the role of single backticks, which becomes a link where it is a name that the site describes.
Does not own: the sections of a docstring (napoleon).
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.domains.python import PyObject
from sphinx.util.docutils import SphinxRole

from official_trainer.config import Config

_NAME = re.compile(r"[A-Za-z_][\w.]*(\(\))?")


class NameRole(SphinxRole):
    """`Task.build_model` is a link, `--mode=train` is code."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Returns the node for the text between the backticks."""
        code = nodes.literal(self.text, self.text, classes=["xref", "py"])
        if not _NAME.fullmatch(self.text):
            return [code], []
        target = self.text.removesuffix("()")
        names = {name: self.env.ref_context.get(name) for name in ("py:module", "py:class")}
        reference = addnodes.pending_xref(
            "", code, refdomain="py", reftype="obj", reftarget=target, refdoc=self.env.docname, **names
        )
        return [reference], []


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the role and the signatures."""
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"  # as the docstrings say, in place of Sphinx's “Variables”
    app.add_role("name", NameRole())
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-skip-member", _skip)
    app.connect("missing-reference", _described_elsewhere)
    return {"parallel_read_safe": True}


def _signature(
    _app: Sphinx, what: str, _name: str, obj: Any, _options: Any, signature: str | None, returns: str | None
) -> tuple[str, str | None] | None:
    """A config has its fields below; its constructor, with all of them and their defaults, only repeats these."""
    if what == "class" and dataclasses.is_dataclass(obj) and issubclass(obj, Config):
        return "", None
    return None


def _skip(_app: Sphinx, _what: str, name: str, obj: Any, _skip: bool, _options: Any) -> bool | None:
    """The rules of a section are no methods that a user calls; nor is a method that stands for a private one."""
    owner = getattr(obj, "__qualname__", "").partition(".")[0]
    is_rule = name in _RULES and owner not in ("Config", "OneOf")
    return True if is_rule or getattr(obj, "__name__", "").startswith("_") else None


def _described_elsewhere(app: Sphinx, env: Any, node: addnodes.pending_xref, content: nodes.Node) -> nodes.Node | None:
    """Finds the one class or function that the site describes by this name, in whichever package it is."""
    target = node.get("reftarget", "")
    name = target.rpartition(".")[2]
    if node.get("refdomain") != "py" or not (name[:1].isupper() or "." in target):
        return None
    domain = env.domains.python_domain
    found = [
        full for full, each in domain.objects.items() if f".{full}".endswith(f".{name}") and each.objtype in _KINDS
    ]
    if len(found) != 1:
        return None
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", found[0], node, content)


_RULES = ("problems", "ignored", "as_dict")
_KINDS = ("class", "exception", "function", "method")
