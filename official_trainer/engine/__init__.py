"""Traced steps and the outer loop.

Owns: the Trainer, its training and evaluation steps, and the order of events in a run. Does not own: files of a run
directory (`runs/`), the contents of a task (`tasks/`).
"""
