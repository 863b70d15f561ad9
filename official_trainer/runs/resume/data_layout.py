"""How training data is divided over replicas and input pipelines: recorded, and compared when a run continues.

Owns: the layout in a checkpoint's manifest, the refusal of another one where the order of examples depends on it, what
the console and `run.json` show of it. Does not own: which process reads what (`inputs/`), changes of the config
(`config_changes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer.checkpoints import manifest
from official_trainer.errors import ExitCode, UserError
from official_trainer.inputs import InputContext
from official_trainer.shown import shorten

COMPARED = ("replicas", "pipelines", "order", "sources")
"""What of the layout a manifest holds (`RunFacts.data`): the `replicas` that share a global batch; `pipelines`, one for
each host; the `order`, what decides which examples are in a global batch: `global` is the seed and the step alone,
`by_pipeline` also the number of pipelines, `service` which data worker of a tf.data service is faster; and `sources`,
if examples are read by their number.
"""


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
    layout = manifest.read(model_dir, step).run.data
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


def sources_of(context: InputContext) -> list[dict[str, Any]]:
    """Returns what says of each source of examples that it is the same, with its data section."""
    return [{"section": source.section, **source.facts()} for source in context.sources]


def change_of_sources(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> str:
    """Returns how sources differ from those of a checkpoint, in words; empty if they do not, or are other ones."""
    changes = []
    for old, new in zip(before, now, strict=False):
        for name, what in _SAID_OF_SOURCE.items():
            if old["section"] == new["section"] and old.get(name) != new.get(name):
                was, is_now = (shorten(str(source.get(name, "unknown"))) for source in (old, new))
                changes.append(f"{old['section']}: {what} {was} -> {is_now}")
    return "; ".join(changes)


_SAID_OF_SOURCE = {"examples": "number of examples", "fingerprint": "fingerprint of the data", "order": "order by"}


def accepted(place: str, change: str, *, allow_change: bool) -> str:
    """Returns the notice about a change of the training data.

    Raises:
      LayoutChangeError: it is not allowed.
    """
    if allow_change:
        return f"the training data has changed, by --allow_config_change: {change}"
    raise LayoutChangeError(
        f"{place} was saved with other training data: {change}. From here on other examples would come than in the run "
        "as it began: some of the current epoch again, and others not before the next one\n"
        "To continue as before, put the data, or the version of the library that orders it, back\n"
        "To continue anyway, add --allow_config_change"
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
    if sources := sources_of(context):
        layout["sources"] = sources
    if context.served_by:
        layout["service"] = context.served_by
        show(
            f"training data from the tf.data service at {context.served_by}: batches come in no fixed order, so a run "
            "that is interrupted continues near where it was, not exactly there"
        )
    return layout
