"""The command line: `official-trainer VERB`, `python -m official_trainer VERB` and `train.py`.

Owns: verbs, flags, what is printed, and turning errors into exit codes (`dispatch.py`). One file per verb.
Does not own: anything a verb does; it calls `config`, `registry` and `run`. Only `run` imports TensorFlow.
"""

from __future__ import annotations

from collections.abc import Sequence

from official_trainer.cli import process


def main(argv: Sequence[str] | None = None, *, script: str | None = None) -> int:
    """Runs one command and returns its exit code.

    Args:
      argv: the words after the program's name; those of this process when None.
      script: the path of a train.py that stands for the verb `train`.
    """
    if argv is None:
        process.prepare()
    from official_trainer.cli import dispatch  # what takes time to import comes after the lines above

    return dispatch.main(argv, script=script)


__all__ = ["main"]
