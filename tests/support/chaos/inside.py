"""What is done to a child process before it runs its command: stop it at a step, kill it at a write, make it forget.

Imports no TensorFlow at the top; each function is named in `Command(first=…)`, alone or in a `functools.partial`.
"""

import os
import signal
import sys


def stop_after_step(step):
    """SIGTERM during the step that makes it `step` steps; the experiment looks."""
    os.environ["CHAOS_STOP_AFTER_STEP"] = str(step)


def kill_at_write(number, folder, counter=None, by=signal.SIGKILL):
    """SIGKILL just before write operation `number` (from 1) below `folder`; None only counts, in the file `counter`."""
    done = 0
    descriptor = None if counter is None else os.open(counter, os.O_WRONLY | os.O_CREAT)

    def watch(event, arguments):
        nonlocal done
        if not _writes(event, arguments) or not str(arguments[0]).startswith(f"{folder}/"):
            return
        done += 1
        if done == number:
            os.kill(os.getpid(), by)
        if descriptor is not None:
            os.pwrite(descriptor, str(done).encode(), 0)

    sys.addaudithook(watch)


def _writes(event, arguments):
    if event == "open":
        return isinstance(arguments[2], int) and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    return event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir")


# Forgetting: as if this item had been left out of the state of a run.


def forget_random():
    """Random streams count the steps of the process, not of the run."""
    import tensorflow as tf

    from official_trainer.tasks.random_streams import RandomStreams

    begin_step = RandomStreams.begin_step

    def begin_process_step(self, step):
        with tf.init_scope():
            start = int(step.numpy())
        begin_step(self, step - start)

    RandomStreams.begin_step = begin_process_step


def forget_position():
    """Data starts at its beginning."""
    from official_trainer.engine.train_iterator import DatasetBuilder

    build = DatasetBuilder.build
    DatasetBuilder.build = lambda self, start_step=0, window_steps=None: build(self, 0, window_steps)


def forget_slots():
    _forget(lambda trainer: [v for v in trainer.optimizer.variables() if v is not trainer.optimizer.iterations])


def forget_metrics():
    _forget(lambda trainer: [v for metric in trainer.train_metrics for v in metric.variables])


def forget_loss():
    _forget(lambda trainer: trainer.train_loss.variables)


def forget_average():
    _forget(lambda trainer: trainer.checkpoint.average.values)


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
