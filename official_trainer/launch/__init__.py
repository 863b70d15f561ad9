"""Starting the processes of one run, and ending them together.

Owns: what a job consists of (`spec.py`), and its processes on this machine (`launch/local/local.py`).
Does not own: what a process does (`runs/run.py`), how processes find each other (`distributed/cluster.py`). Imports no
TensorFlow, but in the process that others are forked from (`launch/local/starter.py`).
"""
