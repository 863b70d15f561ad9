"""What a profile for Kubernetes says in Kubernetes' own words, merged into what is rendered.

Owns: the merge, and what it cannot change or add.
Does not own: the rendered object (`kubernetes.py`); whether fields exist, which the API server checks.

Mappings merge key by key, items of lists merge by `name` (mounts by `mountPath`), other items are appended, null
removes a key, and any other value replaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from official_trainer.shown import shorten

_MAY_CHANGE = frozenset(("securityContext", "resources", "nodeSelector"))
_NOT_ADDED = (
    (r"(pod|job|template)\.metadata\.(name|generateName|namespace)", "the profile has name and namespace"),
    (r"spec\.(hostname|subdomain)", "processes find each other by names that JobSet gives"),
    (r"spec\.(successPolicy|backoffLimitPerIndex)", "what ends the job follows from its roles and max_restarts"),
    (r"spec\.replicatedJobs\[[^]]*\]", "each role of the job is one; the profile sets how many processes it has"),
    (
        r"(pod|template\.spec\.template)\.spec\.activeDeadlineSeconds",
        "a pod that it ends starts again, and a Job does not",
    ),
    (r"spec\.containers\[trainer\]\.env\[[^]]*\]\.value", "variables with values are under environ"),
)
"""Of paths that end so: why they cannot be added."""


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
        place = next((i for i, item in enumerate(items) if _name(part) and _name(item) == _name(part)), None)
        if place is None:
            items.append(merged(None, part))
        else:
            items[place] = merged(items[place], part)
    return items


def forbidden_changes(place: str, rendered: Any, result: Any) -> Iterator[str]:
    """Yields what a fragment must not have done to a rendered object.

    Args:
      place: the fragment's field in the profile.
      rendered: the object without it.
      result: the object with it.
    """
    for path, before, after in _differences(place, rendered, result):
        if before is not None:
            what = "removes it" if after is None else f"makes it {_shown(after)}"
            yield f"{path} is {_shown(before)}, on which the job relies, and the fragment {what}; leave that out"
        else:
            found = [why for end, why in _NOT_ADDED if re.search(rf"\b{end}$", path)]
            yield from (f"{path} cannot be added: {why}; leave it out" for why in found)


def _differences(path: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields path, value before and value after of each change; None for what is not there."""
    old, new = _parts(before), _parts(after)
    if before is None:
        yield path, None, after
    elif old is None or new is None:
        if before != after:
            yield path, before, after
        return
    old, new = old or {}, new or {}
    for key in dict.fromkeys([*old, *new]):
        if key[1:] not in _MAY_CHANGE:
            yield from _differences(f"{path}{key}", old.get(key), new.get(key))


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
