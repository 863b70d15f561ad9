"""Model Garden inside: the experiments and configurations of `tf-models-official`, on this engine.

Owns: everything that knows Model Garden's code. Importing it imports neither TensorFlow nor `official`.
Does not own: names and contracts that both share (`tasks/task.py`, `engine/trainer.py`), its driver function
(`program/run_experiment.py`).
"""
