"""What a profile for Kubernetes says in Kubernetes' own words, merged into what is rendered.

Owns: the merge, and that it changes nothing on which the job relies.
Does not own: the rendered object (`kubernetes.py`); whether fields exist, which the API server checks.

Mappings merge key by key, items of lists merge by `name` (mounts by `mountPath`), other items are appended, null
removes a key, and any other value replaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from official_trainer.shown import shorten

_MAY_CHANGE = frozenset(("securityContext", "resources", "nodeSelector"))


def merged(rendered: Any, fragment: Any) -> Any:
    """Returns a rendered value with a fragment merged into it; neither is changed."""
    if isinstance(fragment, Mapping):
        before = rendered if isinstance(rendered, Mapping) else {}
        both = {**before, **{key: merged(before.get(key), part) for key, part in fragment.items()}}
        return {key: value for key, value in both.items() if value is not None}
    if not isinstance(fragment, list | tuple):
        return fragment
    items = list(rendered) if isinstance(rendered, list) else []
    for part in fragment:
        number = next((i for i, item in enumerate(items) if _name(part) and _name(item) == _name(part)), None)
        if number is None:
            items.append(merged(None, part))
        else:
            items[number] = merged(items[number], part)
    return items


def forbidden_changes(path: str, rendered: Any, result: Any) -> Iterator[str]:
    """Yields what a fragment has changed or removed in a rendered object; it may add what it likes.

    Args:
      path: of both in the profile.
      rendered: the object without the fragment.
      result: the object with it.
    """
    before, after = _parts(rendered), _parts(result)
    if before is None or after is None:
        if rendered != result:
            what = "removes it" if result is None else f"makes it {_shown(result)}"
            yield f"{path} is {_shown(rendered)}, on which the job relies, and the fragment {what}; leave that out"
        return
    for key, part in before.items():
        if key[1:] not in _MAY_CHANGE:
            yield from forbidden_changes(f"{path}{key}", part, after.get(key))


def _parts(value: Any) -> dict[str, Any] | None:
    """Returns the parts of a mapping, or of a list of mappings, by what stands for them in a path; None for others."""
    if isinstance(value, Mapping):
        return {f".{key}": part for key, part in value.items()}
    if isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        return {f"[{_name(item) or number}]": item for number, item in enumerate(value)}
    return None


def _name(item: Any) -> str:
    """Returns what tells an item of a list from others; empty if nothing does."""
    return str(item.get("mountPath") or item.get("name") or "") if isinstance(item, Mapping) else ""


def _shown(value: Any) -> str:
    return shorten(repr(value), 60)
