"""A TFDS dataset on disk, prepared once for all tests of inputs."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """A prepared dataset `tiny_numbers` with 23 training examples in three files and 5 for test."""
    import tensorflow_datasets as tfds

    folder = str(tmp_path_factory.mktemp("prepared"))

    class TinyNumbers(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        supervised_keys = ("number", "label")

        def _info(self):
            features = {"number": np.int64, "label": tfds.features.ClassLabel(num_classes=3)}
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict(features),
                supervised_keys=self.supervised_keys,
                disable_shuffling=True,
            )

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(0, 23), "test": self._generate_examples(23, 28)}

        def _generate_examples(self, start, stop):
            for number in range(start, stop):
                yield number, {"number": number, "label": number % 3}

    class PlainNumbers(TinyNumbers):
        VERSION = tfds.core.Version("1.0.0")
        supervised_keys = None

    config = tfds.download.DownloadConfig(num_shards=3, try_download_gcs=False)
    for builder in (TinyNumbers, PlainNumbers):
        builder.pkg_dir_path = tmp_path_factory.mktemp("code")
        builder(data_dir=folder).download_and_prepare(download_config=config)
    return folder
