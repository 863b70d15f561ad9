"""Mistakes in the section of a source."""

import pytest

from official_trainer.config import ConfigError, ExperimentConfig, resolve

MISTAKES = {
    "{type: npy, files: {}}": "source.files: is not set; write the file of each field",
    "{type: npy, files: {a: 'gs://b/c'}}": "source.files.a: gs://b/c is",
    "{type: tfrecord}": "task.train_data.source.files: is not set; set it to a path",
    "{type: tfrecord, files: 'gs://a/b'}": "source.files: gs://a/b is a URL, and examples are read",
    "{type: tfrecord, file: a}": "unknown field",
    "{type: images}": "source.folder: is not set",
    "{type: images, folder: a, channels: 2}": "source.channels: must be 1, 3 or 4",
    "{type: images, folder: a, classes: [b, c, b]}": "source.classes: has 'b' twice",
    "{type: images, folder: a, size: [0, 3]}": "source.size[0]: must be at least 1",
    "{type: images, folder: a, resize: squash}": "source.resize",
    "{type: images, folder: a, size: 16 24}": "got '16 24'",
}


def test_mistakes_in_a_section_are_errors_of_the_configuration():
    """N41: before anything is read."""
    for section, message in MISTAKES.items():
        with pytest.raises(ConfigError) as caught:
            resolve(ExperimentConfig(), sets=[f"task.train_data.source={section}"])
        assert message in str(caught.value), section
