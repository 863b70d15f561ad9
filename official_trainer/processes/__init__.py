"""Processes of this machine: forked from one with TensorFlow imported, watched, and ended together.

Owns: the process that forks (`starter.py`) and what runs in those that it forks (`commands.py`); the processes of one
job on loopback, and the restarts of the job (`local.py`). Does not own: other machines (`launch/`), which trial is next
(`sweeps/`), what a process does (`runs/run.py`).
"""
