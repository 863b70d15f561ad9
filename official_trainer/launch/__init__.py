"""Jobs of one run: their processes on this machine, and the files and commands that hand them to an engine.

Owns: what a job consists of (`spec.py`), its processes on this machine (`local/`), engines such as Slurm (`targets/`).
Does not own: what a process does (`runs/run.py`), how processes find each other (`distributed/cluster.py`). It imports
TensorFlow only in the process that others are forked from (`warm/starter.py`).
"""
