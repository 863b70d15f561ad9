"""What is done to a child process before it does its work: strike it at a step or in a phase; make it forget.

Imports no TensorFlow at the top; each function is named in `Child(first=…)`, alone or in a `functools.partial`.
"""

import os
import signal
import threading
import time


def strike_at_step(step, by):
    """A signal as the first window of steps ends that reaches `step`."""
    from official_trainer.engine.trainer import Trainer

    run_steps = Trainer.run_steps
    is_struck = False

    def run_and_strike(self, *arguments, **keywords):
        nonlocal is_struck
        ran = run_steps(self, *arguments, **keywords)
        if not is_struck and int(self.global_step.numpy()) >= step:
            is_struck = True
            os.kill(os.getpid(), by)
            while by == signal.SIGTERM and self.process_group.stop.reason is None:
                time.sleep(0.001)  # the thread that reads signals needs a moment
        return ran

    Trainer.run_steps = run_and_strike


def stop_in_phase(phase, seconds, by):
    """A signal so many seconds after the process enters a phase for the first time, while its main thread works."""
    from official_trainer.runs.training_process import TrainingProcess

    enter, is_struck = TrainingProcess.enter, False

    def enter_and_stop(self, name, *step):
        nonlocal is_struck
        enter(self, name, *step)
        if name == phase and not is_struck:
            is_struck = True
            threading.Timer(seconds, os.kill, (os.getpid(), by)).start()

    TrainingProcess.enter = enter_and_stop


# Forgetting: as if this item had been left out of the state of a run.


def forget_random():
    """Random streams count the steps of the process, not of the run."""
    import tensorflow as tf

    from official_trainer.tasks.random_streams import RandomStreams

    begin_step = RandomStreams.begin_step

    def begin_process_step(self, step, *share):
        if not isinstance(step, tf.Variable):  # of an evaluation, which has no step
            return begin_step(self, step, *share)
        with tf.init_scope():
            start = int(step.numpy())
        return begin_step(self, step - start, *share)

    RandomStreams.begin_step = begin_process_step


def forget_position():
    """Data starts at its beginning."""
    from official_trainer.engine.train_iterator import DatasetBuilder

    build = DatasetBuilder.build
    DatasetBuilder.build = lambda self, start_step=0, *others: build(self, 0, *others)


def forget_slots():
    _forget(lambda trainer: [v for v in trainer.optimizer.variables() if v is not trainer.optimizer.iterations])


def forget_metrics():
    _forget(lambda trainer: [v for metric in trainer.train_metrics for v in metric.variables])


def forget_average():
    _forget(lambda trainer: trainer.context.average.values)


def _forget(variables_of):
    """After the restore, and before the first step, some variables are again what they were when they were made."""
    from official_trainer.engine.trainer import Trainer

    construct, begin = Trainer.__init__, Trainer.train_loop_begin
    fresh = {}

    def remember(self, *args, **kwargs):
        construct(self, *args, **kwargs)
        fresh.update({i: v.numpy() for i, v in enumerate(variables_of(self))})

    def restore_fresh(self):
        for i, variable in enumerate(variables_of(self)):
            if i in fresh:
                variable.assign(fresh.pop(i))
        begin(self)

    Trainer.__init__, Trainer.train_loop_begin = remember, restore_fresh
