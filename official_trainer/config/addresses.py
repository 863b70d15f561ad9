"""Addresses of services in a config, and the secrets that they may hold.

Owns: what in an address looks like a secret. Does not own: the fields, or asking a service.

The config of a run is written to many places: `params.yaml`, each checkpoint's manifest, `run.json` (as flags), the
files of a launched job, every tracker. So a secret does not come into it: a config that holds one is refused.
"""

from __future__ import annotations

import re
import urllib.parse

_TOKEN = re.compile(r"(?=[^/]*\d)(?=[^/]*[A-Za-z])[A-Za-z0-9_%.~-]{20,}")


def secret_problem(address: str, env: str) -> str | None:
    """Returns why an address may not stand in a config, and the fix; None if it may.

    Args:
      address: a URL; a password or a token in it, a query, or a long part of its path with letters and digits is taken
        for a secret.
      env: how an environment variable is named instead.
    """
    try:
        parts = urllib.parse.urlsplit(address)
        has_token = any(map(_TOKEN.fullmatch, parts.path.split("/")))
        what = "a user or a password" if "@" in parts.netloc else "a query" if parts.query else has_token and "a token"
    except ValueError:  # no URL
        return None
    if not what:
        return None
    return f"holds {what}, which would be written to params.yaml, checkpoints and trackers with the config; {env}"
