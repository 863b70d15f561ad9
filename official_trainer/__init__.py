"""official-trainer: experiments in the style of TensorFlow Model Garden, with nothing lost on the way.

    train.py / official-trainer <verb>
         │ flags
         ▼
    cli/ ──► config/ (layers → one typed, frozen ExperimentConfig)      registry.py ◄── experiments/*.py
         │
         ▼
    run.py      refuses what it can, then imports TensorFlow
         ▼
    training.py, following.py, preflight.py: the modes and `check`, with what they write
         │
         ├── build.py builds, in this order:
         │     distribute.py   RuntimeConfig → tf.distribute.Strategy
         │     task.py         what is learned                        ◄── experiments/<family>.py
         │     trainer.py      traced training and evaluation steps
         │     checkpoints.py  save, verify, restore, retain
         ├── record.py     run.json, status.json
         ├── tracking/     console, metrics.jsonl, TensorBoard, …
         ├── actions/      what else happens at a step: schedule.py calls them, triggers.py says when
         ▼
    loop.py     restore → [ train window → summary → check finite → actions → save → evaluate ]* → export

Importing this package imports nothing else; take names from its modules.
"""
