"""`from_tfds`: prepared TensorFlow Datasets, read like any other record files; and the files behind a data section.

Owns: finding record files and features by a name and a split, without ever downloading; finding the file behind an
error of TensorFlow, by `tfds_name` or `input_path`. Does not own: the order of examples (`records.py`), messages about
a file (`files.py`).

TFDS's own reader cannot start at a step or at an epoch's seed, so `records.py` reads its files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from official_trainer.inputs import files as record_files
from official_trainer.inputs import order
from official_trainer.inputs.context import DataError
from official_trainer.inputs.files import RecordFile
from official_trainer.inputs.records import from_files
from official_trainer.lazy import tf
from official_trainer.nearest import did_you_mean, nearest


def from_tfds(
    params: Any,
    input_context: Any = None,
    *,
    transform_fn: order.TransformFn | None = None,
) -> tf.data.Dataset:
    """Returns batches of a prepared TFDS dataset: `tfds_name`, `tfds_split`, `tfds_data_dir`, `tfds_as_supervised`.

    Order, repetition, sharding, `cache` and starting at a step are those of `from_tfrecords`.

    Args:
      params: the data section, with `is_training` set, as a task's `build_inputs` gets it.
      input_context: the place of this pipeline in the job; None means that it feeds a single replica.
      transform_fn: augmentation `(batch, seeds) -> batch`; `seeds` is `[batch, 2]` int64, as for `from_arrays`.

    Returns:
      Batches of one replica, as dictionaries of tensors `[batch, …]` by the names of the features, or as pairs
      `(input, label)`.

    Raises:
      DataError: the dataset is not prepared, has no such split, or no (input, label) pair.

    Example:
      >>> import tensorflow_datasets as tfds
      >>> from official_trainer import inputs
      >>> from official_trainer.config import DataConfig
      >>> from official_trainer.lazy import tf
      >>> prepared = tfds.dataset_builders.store_as_tfds_dataset(
      ...     name="numbers",
      ...     version="1.0.0",
      ...     data_dir="data",
      ...     features=tfds.features.FeaturesDict({"x": tfds.features.Scalar(tf.int64)}),
      ...     split_datasets={"train": tf.data.Dataset.from_tensor_slices({"x": tf.range(10, dtype=tf.int64)})},
      ...     disable_shuffling=True,
      ... )
      Downloading and preparing dataset ...
      Dataset numbers downloaded and prepared to data/numbers/1.0.0...
      >>> params = DataConfig(tfds_name="numbers", tfds_split="train[:40%]", tfds_data_dir="data", is_training=False)
      >>> [batch["x"].numpy().tolist() for batch in inputs.from_tfds(params)]
      [[0, 1, 2, 3]]
    """
    builder = _builder(params)
    features = builder.info.features
    pair = builder.info.supervised_keys if params.tfds_as_supervised else None
    if params.tfds_as_supervised and pair is None:
        raise DataError(
            f"{params.tfds_name} declares no (input, label) pair; its features are "
            f"{', '.join(sorted(features))}. Set tfds_as_supervised: false and pick in your task",
            field="tfds_as_supervised",
        )

    def parse_fn(record: tf.Tensor) -> Any:
        example = features.deserialize_example(record)
        return example if pair is None else tf.nest.map_structure(lambda key: example[key], pair)

    files = _split_files(builder, params)
    return from_files(files, params, input_context, parse_fn=parse_fn, transform_fn=transform_fn)


def explain_data_error(
    error: Exception, params_or_files: Any, section: str = "", find_record: Callable[[], str] = lambda: ""
) -> DataError | None:
    """Returns an error that names the file and the offset, or the user's function, behind TensorFlow's error, or None.

    TensorFlow reports that a record is damaged but not in which file, so the files are read again, one by one.

    Args:
      error: what the loop raised.
      params_or_files: a data section, a path or pattern, or a sequence of them.
      section: path of the data section in the configuration, for the message; empty if it is in none.
      find_record: returns the record that the task cannot parse, if that is known.
    """
    if isinstance(error, tf.errors.InvalidArgumentError):  # of a function of the task, whatever the files hold
        return record_files.explain(error, (), section, find_record)
    try:
        if getattr(params_or_files, "tfds_name", ""):
            files = _split_files(_builder(params_or_files), params_or_files)
        else:
            is_path = isinstance(params_or_files, str | list | tuple)
            input_path = params_or_files if is_path else getattr(params_or_files, "input_path", "")
            files = record_files.find_files(input_path) if is_path or input_path else []
    except DataError as explained:  # the files themselves are gone
        if explained.field and section:
            explained.field = f"{section}.{explained.field}"
        return explained
    return record_files.explain(error, files, section)


def _builder(params: Any) -> Any:
    """Returns a builder that only reads; TFDS's `builder()` would look for an unprepared dataset on the network."""
    import tensorflow_datasets
    from tensorflow_datasets.core import read_only_builder, registered

    name, data_dir = params.tfds_name, os.path.expanduser(params.tfds_data_dir) or None
    if not name:
        raise DataError("is empty; set it to the name of a prepared dataset, such as mnist", field="tfds_name")
    try:
        builder = read_only_builder.builder_from_files(name, data_dir=data_dir)
    except registered.DatasetNotFoundError:
        raise _not_prepared(name, data_dir or tensorflow_datasets.core.constants.DATA_DIR, params) from None
    except ValueError as error:  # not a name, or found in several places
        raise DataError(f"{name!r}: {str(error).splitlines()[0]}", field="tfds_name") from error
    file_format = builder.info.file_format
    if file_format is not None and file_format.value != "tfrecord":
        raise DataError(
            f"{name!r}: {builder.data_dir} holds {file_format.value} files; only tfrecord is read. "
            f"Prepare it again with: tfds build {name} --file_format=tfrecord",
            field="tfds_name",
        )
    return builder


def _not_prepared(name: str, data_dir: Any, params: Any) -> DataError:
    folder = os.path.expanduser(os.fspath(data_dir))
    depths = ("*/*", "*/*/*")  # `name/version`, and `name/config/version`
    found_at = [path for depth in depths for path in tf.io.gfile.glob(os.path.join(folder, depth, "features.json"))]
    prepared = sorted("/".join(os.path.relpath(path, folder).split(os.sep)[:-2]) for path in found_at)
    close = nearest(name, prepared)
    if close:
        hint = f"did you mean {close[0]}?"
    elif prepared:
        hint = f"prepared there: {', '.join(prepared[:8])}{', …' if len(prepared) > 8 else ''}."
    else:
        hint = "nothing is prepared there."
    option = f" --data_dir={params.tfds_data_dir}" if params.tfds_data_dir else ""
    return DataError(
        f"{name!r}: no prepared dataset of this name in {folder}; {hint} "
        f"Prepare it with: tfds build {name}{option} (training never downloads), or set tfds_data_dir",
        field="tfds_name",
    )


def _split_files(builder: Any, params: Any) -> list[RecordFile]:
    splits = sorted(builder.info.splits)
    try:
        instructions = builder.info.splits[params.tfds_split].file_instructions
    except (KeyError, ValueError, AssertionError) as error:
        name = params.tfds_split.split("[")[0]
        hint = "." if name in splits else did_you_mean(name, splits, otherwise=".")
        raise DataError(
            f"{params.tfds_split!r} is not in {builder.data_dir}{hint} "
            f"It has: {', '.join(splits)}; parts are written {splits[0]}[:90%]",
            field="tfds_split",
        ) from error
    if not instructions:
        what = f"{params.tfds_split!r} of {params.tfds_name} selects no example; widen it"
        raise DataError(what, field="tfds_split")
    return [RecordFile(str(part.filename), part.skip, part.take) for part in instructions]
