"""How training data is divided over replicas and input pipelines: recorded, and compared when a run continues.

Owns: the layout in a checkpoint's manifest, the refusal of another one where the order of examples depends on it, what
the console and `run.json` show of it. Does not own: which process reads what (`inputs/`), changes of the config
(`config_changes.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from official_trainer.checkpoints import manifest
from official_trainer.errors import ExitCode, UserError
from official_trainer.inputs import InputContext

_logger = logging.getLogger(__name__)

KEY = "input"
"""Where a manifest's metadata, and `run.json`, hold the layout: the `replicas` that share a global batch; `pipelines`,
one for each host; and the `order`, what decides which examples are in a global batch. `global` is the seed and the
step alone, `by_pipeline` also the number of pipelines, `service` which data worker of a tf.data service is faster.
"""

COMPARED = ("replicas", "pipelines", "order")
"""What of it a manifest holds."""


class LayoutChangeError(UserError, ValueError):
    """A run that would continue with other input pipelines, and so with its examples in another order."""

    exit_code = ExitCode.CONFIG


_MEANING = (
    "The order of this training data depends on how many share it out: some examples of the current epoch would be "
    "seen again, and others not before the next one."
)


def notice_of_change(model_dir: str, step: int, pipelines: int, *, allow_change: bool) -> str | None:
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
    layout = manifest.read(model_dir, step).metadata.get(KEY)
    if layout is None or layout["pipelines"] == pipelines or layout["order"] == "service":
        return None
    before = layout["pipelines"]
    had = f"{before} input pipelines" if before != 1 else "one input pipeline"
    what = f"{had} until step {step}, {pipelines} from here on"
    if layout["order"] == "global":
        return f"{what}; the order of examples stays"
    if allow_change:
        return f"{what}, by --allow_config_change. {_MEANING}"
    raise LayoutChangeError(
        f"--model_dir={model_dir}: ckpt-{step} was saved with {had}, now there {'are' if pipelines > 1 else 'is'} "
        f"{pipelines}. {_MEANING}\n"
        f"To continue as before, start {f'{before} workers' if before != 1 else 'one worker'} again\n"
        "To continue anyway, add --allow_config_change\n"
        "Data in memory (from_arrays) keeps its order for any number of workers"
    )


def report(context: InputContext, show: Callable[[str], object]) -> dict[str, Any]:
    """Returns the layout of the data that was built for a context, as `run.json` holds it: `COMPARED` and more.

    Args:
      context: the data is built for it.
      show: takes lines for the console.
    """
    order = "by_pipeline" if context.order_depends_on_pipelines else "global"
    layout: dict[str, Any] = {
        "replicas": context.num_replicas_in_sync,
        "pipelines": context.num_input_pipelines,
        "order": "service" if context.served_by else order,
    }
    if context.served_by:
        layout["service"] = context.served_by
        show(
            f"training data from the tf.data service at {context.served_by}: batches come in no fixed order, so a run "
            "that is interrupted continues near where it was, not exactly there"
        )
    if context.num_input_pipelines > 1 and context.sharing is not None:
        sharing = context.sharing()
        layout["sharing"] = sharing.as_dict()
        show(str(sharing))
        for warning in sharing.warnings():
            _logger.warning("%s", warning)
    return layout
