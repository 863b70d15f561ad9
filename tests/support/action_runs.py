"""Whole runs of the toy task with actions, of forty steps, in this process."""

from tests.support import toy

NAME = "toy_acting"
do = toy.runs_of(
    NAME, toy.ToyTask, train_steps=40, steps_per_loop=7, summary_interval=10, checkpoint_interval=20,
    validation_interval=20, export=toy.NO_EXPORT,
)  # fmt: skip
