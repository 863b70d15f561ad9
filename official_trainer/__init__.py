"""official-trainer: experiments in the style of TensorFlow Model Garden, with nothing lost on the way.

    train.py / official-trainer <verb>
         │ flags
         ▼
    cli/ ──► config/ (layers → one typed, frozen ExperimentConfig)      tasks/registry.py ◄── experiments/*.py
         │
         ▼
    runs/       refuses what it can, then imports TensorFlow; one module for each mode
         │
         ├── build.py builds, in this order:
         │     distributed/   RuntimeConfig → tf.distribute.Strategy
         │     tasks/         what is learned                        ◄── experiments/<family>.py
         │     engine/        traced training and evaluation steps
         │     checkpoints/   save, verify, restore, retain
         │     tracking/      console, metrics.jsonl, TensorBoard, run.json, …
         │     actions/       what happens at a step
         ▼
    engine/loop.py   restore → [ window → check loss → summary → actions → check weights → save → evaluate ]* → export

The names below are what experiments and programs need most. Each is imported when it is first used, so importing this
package imports nothing else.
"""

import contextlib

with contextlib.suppress(ModuleNotFoundError):  # `doctor` runs without any dependency, to name those that are missing
    import lazy_loader

    __getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
