"""Processes of jobs and sweeps, forked from this one, which has imported TensorFlow: that is most of what they cost."""

import multiprocessing
import signal


def fork_processes():
    """Has the processes of this launcher, or driver, forked from it; it must not have started TensorFlow's runtime."""
    from official_trainer.processes import forked

    run = forked._run

    def run_anew(argv, environ, output):
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run(argv, environ, output)

    forked.CONTEXT, forked._run = multiprocessing.get_context("fork"), run_anew
