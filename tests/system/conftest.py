"""Tests of whole systems; those that also compute in this process have the same devices as the integration tests."""

from tests.support.devices import _clean_keras, _devices, _freed_memory  # noqa: F401
from tests.support.reports.browser import chromium  # noqa: F401  one for all modules: a process can have one only
