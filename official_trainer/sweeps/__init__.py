"""Sweeps: many runs of one experiment, whose values are drawn from a space, one table of their results.

Owns: the file that describes a sweep, the space and its check, the driver that runs trials in processes of their own.
Does not own: drawing, pruning and the study (Optuna), a trial's run (`official-trainer train`), the process that trials
are forked from (`processes/forked.py`), what a value of a config may be (`config/`).
"""
