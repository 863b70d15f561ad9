"""Processes that are forked from one with TensorFlow imported: those of jobs, trials of a sweep, a user's commands.

Owns: the process that forks, what it imports before, what a forked process runs; the warm server. Does not own: which
processes a job has and what the end of one means (`launch/local/`), which trial is next (`sweeps/`).
"""
