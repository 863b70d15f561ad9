"""What a profile for Kubernetes says in Kubernetes' own words, merged into what is rendered.

Owns: the merge. Does not own: the rendered object (`kubernetes.py`); whether the result is right, which the API server
and its user know.

Mappings merge key by key, items of lists merge by `name` (mounts by `mountPath`), other items are appended, null
removes a key, and any other value replaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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


def _name(item: Any) -> str:
    """Returns what tells an item of a list from others; empty if nothing does."""
    return str(item.get("mountPath") or item.get("name") or "") if isinstance(item, Mapping) else ""
