"""Model Garden inside: the experiments, configurations and drivers of `tf-models-official`, on this engine.

Owns: everything that knows Model Garden's code. Importing it imports neither TensorFlow nor `official`.
Does not own: names and contracts that both share (`task.py`, `trainer.py`).
"""
