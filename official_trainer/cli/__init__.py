"""The command line: `official-trainer VERB`, `python -m official_trainer VERB` and `train.py`.

Owns: verbs, flags, what is printed, and turning errors into exit codes (`dispatch.py`). One file per verb.
Does not own: anything a verb does; it calls `config`, `registry` and `run`. Only `run` imports TensorFlow.
"""

from official_trainer.cli.dispatch import main

__all__ = ["main"]
