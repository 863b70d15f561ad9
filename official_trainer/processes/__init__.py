"""Processes of this machine: forked from one with TensorFlow imported, watched, and ended together.

Owns: processes that a fork server forks (`forked.py`); those of one job on loopback, and the restarts of the job
(`local.py`). Does not own: other machines (`launch/`), which trial is next
(`sweeps/`), what a process does (`runs/run.py`).
"""
