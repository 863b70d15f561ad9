"""A schedule with one action, and a run for it to see: events without a loop."""

import types

from official_trainer.actions.action import LoopState, Run
from official_trainer.actions.schedule import Schedule
from official_trainer.stopping import StopRequest


class Events:
    """A schedule with one action, and a run of 100 steps for it to see."""

    def __init__(self, action, model_dir, on_error="warn"):
        action.on_error = on_error
        self.action, self.schedule = action, Schedule([action])
        trainer = types.SimpleNamespace(process_group=types.SimpleNamespace(stop=StopRequest()))
        self.run = Run(state=LoopState(end_step=100), trainer=trainer, model_dir=str(model_dir), tracker=None)
        self.schedule.start(self.run)

    def step(self, step, **logs):
        self.run.state.step = self.run.summary_step = step
        self.run.train_logs = logs
        self.schedule.step(summarized=True, ended=step == 100)

    def eval(self, step, **logs):
        self.run.state.step = step
        self.schedule.evaluation(logs, ended=step == 100)

    def end(self, failure=None):
        self.schedule.end(failure)
