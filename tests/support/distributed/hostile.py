"""A worker that sends pickles, as another program with access to the port could."""

import os
import pickle

MARK = "LOADED_MARK"


class Loadable:
    """Leaves a mark in the process that unpickles it."""

    def __reduce__(self):
        return _leave_mark, ()


def _leave_mark():
    with open(os.environ[MARK], "w"):
        pass


def send_pickles():
    """Makes each message of this process a pickle; called in a process before its command."""
    from official_trainer.distributed import multi_worker

    multi_worker.to_json = lambda value: pickle.dumps(Loadable(), protocol=0).decode()
