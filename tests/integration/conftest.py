"""Tests in this process: two logical CPU devices, no GPU, seeded generators."""

from tests.support.devices import _clean_keras, _devices, _freed_memory  # noqa: F401
