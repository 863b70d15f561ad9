"""The experiments: importing this registers them."""

from configs import level  # noqa: F401
