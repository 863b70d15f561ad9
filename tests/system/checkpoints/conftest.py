"""Saves that fail at one operation after another."""

from tests.support.chaos.faulty_saves import faults, whole  # noqa: F401
