"""SavedModels during training, one folder for each step.

Owns: when and where they are written, and that a restart writes the same ones. Does not own: how one is written
(`tasks/export.py`), the exports of the best model and of the last one (`trainer.export`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from official_trainer import files
from official_trainer.actions.action import Action, Run
from official_trainer.config import ActionConfig, Positive, When
from official_trainer.config.folders import folder_problem
from official_trainer.tasks import export


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportSavedModelConfig(ActionConfig):
    """Writes a SavedModel, with averaged weights if the run averages, as evaluation uses them.

    It goes to `model_dir/export/<directory>/<step>`, and is there whole or not at all. One that is there already is
    written again only if its weights are others, because the run went back and took another way.

    Attributes:
      directory: folder in `model_dir/export`.
      max_to_keep: how many are kept, newest first.
    """

    when: When | None = When(after_eval=True)
    directory: str = "steps"
    max_to_keep: Positive = 1

    def problems(self) -> Iterator[tuple[str, str]]:
        if problem := export_folder_problem(self.directory):
            yield "directory", problem

    def build(self) -> ExportSavedModel:
        return ExportSavedModel(self.directory, self.max_to_keep)


class ExportSavedModel(Action):
    """Exports the model when it is due; after an evaluation, with its results."""

    def __init__(self, directory: str, max_to_keep: int) -> None:
        self._directory, self._max_to_keep = directory, max_to_keep

    def on_step(self, run: Run) -> None:
        self._export(run, {})

    def on_eval(self, run: Run, logs: Mapping[str, float]) -> None:
        self._export(run, logs)

    def on_end(self, run: Run, failure: BaseException | None) -> None:
        if failure is None:  # an earlier attempt may have exported later steps
            export.delete_after(self._folder(run), run.step)

    def _export(self, run: Run, logs: Mapping[str, float]) -> None:
        with run.trainer.weights_averaged():
            task, model, kept = run.trainer.task, run.trainer.model, self._max_to_keep
            export.save_version(self._folder(run), task, model, step=run.step, metrics=logs, max_to_keep=kept)

    def _folder(self, run: Run) -> str:
        return files.join(run.model_dir, "export", self._directory)


def export_folder_problem(name: str) -> str | None:
    """Returns what is wrong with the name of a folder in `model_dir/export`, or None."""
    if name.isdigit():  # a server would take it for one
        return f"is {name!r}, and a folder of export/ whose name is a number is a version of the model; name another"
    return folder_problem(name, reserved=("best",))  # of `trainer.export`
