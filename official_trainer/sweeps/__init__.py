"""Sweeps: many runs of one experiment, whose values are drawn from a space, one table of their results.

Owns: the file that describes a sweep, drawing values with Optuna, the record of each trial, the processes of trials.
Does not own: a trial's run (`official-trainer train` in a process of its own), the process that they are forked from
(`processes/`), what a value of a config may be (`config/`).

What stands in the directories of the trials is the truth. Optuna's study is made from it, in memory, for each draw.
"""
