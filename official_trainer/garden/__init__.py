"""Model Garden inside: the experiments and configurations of `tf-models-official`, on this engine.

Owns: finding its experiments, our sections for its configurations, its objects made of these again, gin. Its Tasks are
not wrapped: `task_of` in `runs/build.py` → `get_task_cls` in `tasks/registry.py` → `build_task` in `to_garden.py`
makes one, and the engine calls it as it is, by the contract that both share (`tasks/task.py`, `engine/trainer.py`).
What only our Tasks have is asked for where it is used: search for "Model Garden's tasks have none". Importing this
package imports neither TensorFlow nor `official`.
Does not own: that contract; other code that imports `official`, for its optimizers (`tasks/keras/keras2.py`), its
`MultiTask` (`tasks/multi_task/garden.py`) and its driver function (`program/run_experiment.py`); checkpoints and run
directories of its driver (`checkpoints/garden.py`, `runs/resume/garden_run.py`).
"""
