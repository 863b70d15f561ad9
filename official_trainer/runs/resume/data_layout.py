"""How training data is divided over replicas and input pipelines: recorded, and compared when a run continues.

Owns: the layout in a checkpoint's manifest, the refusal of another one where the order of examples depends on it, what
the console and `run.json` show of it. Does not own: which process reads what (`inputs/`), changes of the config
(`config_changes.py`).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal

from official_trainer.checkpoints import manifest
from official_trainer.errors import ExitCode, UserError
from official_trainer.inputs import InputContext

_logger = logging.getLogger(__name__)

KEY = "input"
"""Where a manifest's metadata, and `run.json`, hold the layout."""

Order = Literal["global", "by_pipeline", "service"]
"""What decides which examples are in a global batch: the seed and the step alone, or also the number of pipelines, or
which data worker of a tf.data service is faster."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """How the training data of a run is divided.

    Attributes:
      replicas: that share a global batch.
      pipelines: input pipelines, one for each host.
      order: what the order of examples depends on.
    """

    replicas: int
    pipelines: int
    order: Order

    @classmethod
    def of(cls, context: InputContext) -> Layout:
        """Returns the layout that a pipeline was built for."""
        order: Order = "by_pipeline" if context.order_depends_on_pipelines else "global"
        order = "service" if context.served_by else order
        return cls(replicas=context.num_replicas_in_sync, pipelines=context.num_input_pipelines, order=order)

    @classmethod
    def saved(cls, model_dir: str, step: int) -> Layout | None:
        """Returns the layout that a checkpoint was saved with; None if it has no record of it."""
        values = manifest.read(model_dir, step).metadata.get(KEY)
        known = {field.name for field in dataclasses.fields(cls)}
        return None if values is None else cls(**{name: values[name] for name in known})


class LayoutChangeError(UserError, ValueError):
    """A run that would continue with other input pipelines, and so with its examples in another order."""

    exit_code = ExitCode.CONFIG

    def __init__(self, model_dir: str, step: int, before: Layout, pipelines: int) -> None:
        super().__init__(
            f"--model_dir={model_dir}: ckpt-{step} was saved with {_pipelines(before.pipelines)}, now there "
            f"{'are' if pipelines > 1 else 'is'} {pipelines}. {_MEANING}\n"
            f"To continue as before, start {_workers(before.pipelines)} again\n"
            "To continue anyway, add --allow_config_change\n"
            "Data in memory (from_arrays) keeps its order for any number of workers"
        )


_MEANING = (
    "The order of this training data depends on how many share it out: some examples of the current epoch would be "
    "seen again, and others not before the next one."
)


def check(model_dir: str, step: int, pipelines: int, *, allow_change: bool) -> str | None:
    """Compares the layout of the checkpoint that a run continues from with the current one.

    Args:
      model_dir: the run directory.
      step: of the checkpoint.
      pipelines: input pipelines of the run now.
      allow_change: whether examples may come in another order.

    Returns:
      A notice about a change that is accepted; None without a change.

    Raises:
      LayoutChangeError: the order would change, which is not allowed.
    """
    before = Layout.saved(model_dir, step)
    if before is None or before.pipelines == pipelines or before.order == "service":
        return None
    what = f"{_pipelines(before.pipelines)} until step {step}, {pipelines} from here on"
    if before.order == "global":
        return f"{what}; the order of examples stays"
    if not allow_change:
        raise LayoutChangeError(model_dir, step, before, pipelines)
    return f"{what}, by --allow_config_change. {_MEANING}"


class LayoutReport:
    """Reports how the training data of a process is divided, the first time that it is built."""

    def __init__(
        self,
        *,
        remember: Callable[[Mapping[str, Any]], object],
        record: Callable[[Mapping[str, Any]], object],
        show: Callable[[str], object],
        is_chief: bool = True,
    ) -> None:
        """Prepares.

        Args:
          remember: takes the layout for the manifests of checkpoints.
          record: takes the layout for `run.json`.
          show: takes lines for the console.
          is_chief: whether this process is the chief; others only remember.
        """
        self._remember, self._record, self._show = remember, record, show
        self._is_chief = is_chief
        self._is_done = False

    def __call__(self, context: InputContext) -> None:
        """Takes the context that the data was built for."""
        if self._is_done:
            return
        self._is_done = True
        layout = dataclasses.asdict(Layout.of(context))
        self._remember({KEY: layout})
        if not self._is_chief:
            return
        if context.served_by:
            layout = layout | {"service": context.served_by}
            self._show(
                f"training data from the tf.data service at {context.served_by}: batches come in no fixed order, so "
                "a run that is interrupted continues near where it was, not exactly there"
            )
        if context.num_input_pipelines > 1 and context.sharing is not None:
            sharing = context.sharing()
            layout = layout | {"sharing": sharing.as_dict()}
            self._show(str(sharing))
            for warning in sharing.warnings():
                _logger.warning("%s", warning)
        self._record(layout)


def _pipelines(count: int) -> str:
    return f"{count} input pipelines" if count != 1 else "one input pipeline"


def _workers(count: int) -> str:
    return f"{count} workers" if count != 1 else "one worker"
