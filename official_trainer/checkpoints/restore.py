"""Reading a checkpoint into live objects: all of it, exactly, or nothing.

Owns: the refusal of variables that do not match, and starting from another run's weights (`task.init_checkpoint`).
Does not own: which checkpoint of a run is restored (`store.py`), which one a user means (`init_checkpoint.py`), or how
variables are paired (`matching.py`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from official_trainer.checkpoints import garden, init_checkpoint
from official_trainer.checkpoints.leeway import (
    allows,
    begin_anew,
    is_by_position,
    of_other_weights,
    suggested,
)
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.checkpoints.matching import (
    Matching,
    RestoreReport,
    Trackable,
    VariableSpec,
    names_in,
    never_updated,
    saved_specs,
)
from official_trainer.lazy import tf

_logger = logging.getLogger(__name__)

REPLICA_VALUES = "training/replicas/"
"""Where a checkpoint holds the values of each replica; a run that continues with fewer or more loses nothing."""

RETURNED_NUMBERS = ("training/numbers/returned/", "training/numbers_of_replicas/")
"""Where a checkpoint holds the means of what steps return beside the loss; the code may return others by now."""


def read_exactly(
    checkpoint: tf.train.Checkpoint,
    prefix: str,
    step: int | None = None,
    *,
    allow_mismatch: Sequence[str] = (),
    allow_other_weights: bool = False,
    initial: dict[str, Any] | None = None,
) -> RestoreReport:
    """Restores all that `checkpoint` holds from files that hold exactly this.

    Args:
      checkpoint: what is restored.
      prefix: of the files.
      step: for the report.
      allow_mismatch: patterns, as for `allows`, of variables that only one side may have, or in another shape. What
        only the checkpoint has is ignored.
      allow_other_weights: whether other weights may be trained or averaged than before.
      initial: the initial values of what checkpoints have lacked, for further calls; see `begin_anew`.

    Raises:
      CheckpointError: any other variable is missing, extra or of another shape. Nothing was assigned.
    """
    items = tf.train.TrackableView.children(checkpoint)
    matching = _match(prefix, items)
    report = matching.report(step=step)
    differing = [*report.missing, *report.extra, *(mismatch.live for mismatch in report.wrong_shape)]
    may_differ = [f"{folder}*" for folder in (REPLICA_VALUES, *RETURNED_NUMBERS)]
    if garden.wrote(prefix):
        may_differ += [*garden.LACKS, *never_updated(prefix)]
    expected = [spec for spec in differing if any(allows(pattern, spec) for pattern in may_differ)]
    unexpected = [spec for spec in differing if spec not in expected]
    others = of_other_weights(report) if allow_other_weights else ()
    allowed = [s for s in unexpected if s in others or any(allows(pattern, s) for pattern in allow_mismatch)]
    if refused := [spec for spec in unexpected if spec not in allowed]:
        raise CheckpointError(_refusal(report, refused))
    by_position: list[VariableSpec] = []
    if any(is_by_position(spec) for spec in allowed):  # then a position is of another weight than before
        by_position = [spec for spec in report.restored if is_by_position(spec)]
    if report.extra or report.wrong_shape or by_position:
        _assign(matching, leave_out=[spec.key for spec in by_position])
    else:
        _read_values(matching, is_complete=report.is_exact and not report.deferred)
    lacking = [spec.key for spec in (*allowed, *by_position) if spec not in report.extra]
    begin_anew(lacking, matching.live, {} if initial is None else initial)
    if allowed:
        _logger.warning("restored what matches; variables that may differ keep the program's values: %s", report)
    return report


def _refusal(report: RestoreReport, refused: Sequence[VariableSpec]) -> str:
    """Returns the message about a checkpoint with variables that may not differ."""
    others = of_other_weights(report)
    has_others_alone = all(spec in others for spec in refused)
    said = f"checkpoint of another model; nothing was restored.\n{report}\n"
    back = "Continue this run with the code and the config it was started with (params.yaml in its directory), or "
    if has_others_alone:
        return f"{said}{back}add --allow_config_change to train, or average, other weights than before from here on."
    return (
        f"{said}{back}start a new run from its weights: set task.init_checkpoint={report.path} and another "
        "--model_dir. To continue anyway, name the variables that may differ in trainer.restore_allow_mismatch, for "
        f"example [{suggested(refused)}]."
    )


def read_items(prefix: str, items: Mapping[str, Trackable], *, allow_extra: Sequence[str] = ()) -> RestoreReport:
    """Restores `items` from a checkpoint that holds more, for evaluating or exporting it.

    Args:
      prefix: of the files.
      items: what is restored, by the name it has in the checkpoint.
      allow_extra: patterns of variables, as for `read_init_checkpoint`, of which the checkpoint may have more.

    Raises:
      CheckpointError: any variable of `items` is missing or of another shape, or the checkpoint has more of them.
        Nothing was assigned.
    """
    matching = _match(prefix, items)
    report = matching.report(items_only=True)
    extra = [spec for spec in report.extra if not any(allows(pattern, spec) for pattern in allow_extra)]
    if extra or report.missing or report.wrong_shape:
        raise CheckpointError(
            f"checkpoint of another model; nothing was restored.\n{report}\n"
            "Use the code and the config that the run was trained with (params.yaml in its directory)."
        )
    _read_values(matching, is_complete=not report.deferred)
    return report


def read_init_checkpoint(
    path_or_dir: str, items: Mapping[str, Trackable], *, allow_missing: Sequence[str] = ()
) -> RestoreReport:
    """Restores the weights of another run into `items`; what else its checkpoint holds is ignored.

    Args:
      path_or_dir: prefix of a checkpoint (`runs/a/ckpt-100`), or a directory: of this package, of Model Garden, or of
        anything that writes TensorFlow checkpoints.
      items: what is restored, by the name it has in the checkpoint; mostly `{"model": model}`.
      allow_missing: patterns (shell style) of variables that may keep their initial values because the checkpoint
        lacks them or has them in another shape. They are matched with the path, with or without the item's name, and
        with the variable's own name: `head/*`.

    Raises:
      CheckpointError: there is no checkpoint, or it does not restore every variable that must be. Nothing was assigned.
    """
    prefix = init_checkpoint.find(str(path_or_dir))
    try:
        matching = _match(prefix, items)
        report = matching.report(items_only=True)
        check_init(report, items, matching.roots, allow_missing)
        if report.wrong_shape:
            _assign(matching)
        else:
            _read_values(matching, is_complete=not report.missing)
    except CheckpointError as error:
        raise CheckpointError(f"{init_checkpoint.FIELD}: {error}") from error
    _logger.info("initial weights from %s", report)
    return report


def check_init(report: RestoreReport, wanted: Iterable[str], held: Iterable[str], allow_missing: Sequence[str]) -> None:
    """Refuses initial weights that do not fit; `wanted` and `held` name what is restored, and what is there.

    Raises:
      CheckpointError: nothing fits, a variable that has to be restored is missing, or a pattern matches no variable.
    """
    if not report.restored:
        raise CheckpointError(
            f"{report.path} restores no variable of {', '.join(wanted)}; "
            f"it holds {', '.join(sorted(held)) or 'nothing'}.\n{report}"
        )
    lacking = [*report.missing, *(mismatch.live for mismatch in report.wrong_shape)]
    for pattern in allow_missing:
        if not any(allows(pattern, spec) for spec in (*lacking, *report.restored)):
            raise CheckpointError(
                f"{report.path}: task.init_checkpoint_allow_missing: {pattern!r} matches no variable of the model. Its "
                f"variables are named like {lacking[0] if lacking else report.restored[0]}."
            )
    refused = [spec for spec in lacking if not any(allows(pattern, spec) for pattern in allow_missing)]
    if refused:
        raise CheckpointError(
            f"{report.path} does not fit the model: {len(refused)} of {len(lacking) + len(report.restored)} variables "
            f"cannot be restored; nothing was restored.\n{report}\nTo train these variables from scratch, name them in "
            f"task.init_checkpoint_allow_missing, for example [{suggested(refused)}]."
        )


def _assign(matching: Matching, leave_out: Sequence[str] = ()) -> None:
    """Assigns the saved values to live variables one by one, but for those at some keys.

    TensorFlow's own function cannot leave out those of another shape, and makes an optimizer create every slot that the
    checkpoint has. What an optimizer creates later is lost here.
    """
    reader = tf.compat.v1.train.NewCheckpointReader(matching.prefix)
    left_out = [matching.live[key] for key in leave_out]
    for live, key in matching.pairs:
        if any(live is other for other in left_out):
            continue
        if hasattr(live, "assign"):
            live.assign(reader.get_tensor(key))
        elif hasattr(live, "insert"):  # a hash table, of which each lookup of tf_keras has an empty one
            live.insert(reader.get_tensor(f"{key}-keys"), reader.get_tensor(f"{key}-values"))
    read_vocabularies(matching, keeps_size=True)


def read_vocabularies(matching: Matching, *, keeps_size: bool) -> None:
    """Gives layers the vocabularies of a checkpoint; `keeps_size` leaves out those with another number of entries."""
    for live, saved in matching.vocabularies():
        if saved is None:
            live.keep()
        else:
            live.deserialize(saved, keeps_size=keeps_size)


def saved_names(prefix: str, path: str) -> list[str]:
    """Returns the names of what a checkpoint holds in an object, `training/numbers`; none if it has no such object.

    Raises:
      CheckpointError: it cannot be read.
    """
    with _faults_explained(prefix):
        return names_in(prefix, path)


def saved_keys(prefix: str) -> Collection[str]:
    """Returns the keys of all values that a checkpoint holds.

    Raises:
      CheckpointError: it cannot be read.
    """
    with _faults_explained(prefix):
        return saved_specs(prefix)


def _match(prefix: str, items: Mapping[str, Trackable]) -> Matching:
    with _faults_explained(prefix):
        return Matching(prefix, items)


@contextlib.contextmanager
def _faults_explained(prefix: str) -> Iterator[None]:
    """Turns errors of reading a checkpoint into one that names it."""
    try:
        yield
    except CheckpointError:
        raise
    except (tf.errors.OpError, ValueError, IndexError) as error:
        raise CheckpointError(f"{prefix} cannot be read: {error}") from error


def _read_values(matching: Matching, *, is_complete: bool) -> None:
    # A new root leaves out the save counter that tf.train.Checkpoint may have; everything else is the same objects.
    items, prefix = matching.items, matching.prefix
    root = tf.train.Checkpoint(*items.values()) if matching.item_is_root else tf.train.Checkpoint(**items)
    try:
        status = root.read(prefix)
    except (tf.errors.OpError, IndexError) as error:
        raise CheckpointError(f"{prefix} is damaged: {error}") from error
    status.expect_partial()
    unsaved = [live for live, saved in matching.vocabularies() if saved is None]
    for live in unsaved:
        live.keep()
    if is_complete and not unsaved:
        status.assert_existing_objects_matched()  # TensorFlow must agree with our report
