"""Tests of Model Garden's objects."""

from tests.support.garden.annotations import _annotations_read_once  # noqa: F401
