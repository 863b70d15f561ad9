"""Model Garden's sections read the annotations of their classes once, not at every assignment, which is slow."""

import functools

import pytest


@pytest.fixture(scope="session", autouse=True)
def _annotations_read_once():
    from official.modeling.hyperparams import base_config

    read, patch = functools.cache(base_config.Config._get_annotations.__func__), pytest.MonkeyPatch()
    patch.setattr(base_config.Config, "_get_annotations", classmethod(lambda cls: dict(read(cls))))
    yield
    patch.undo()
