"""What a session runs in child processes, which are forked from one that has imported TensorFlow."""

import linecache
import runpy
import signal
import sys
import traceback
import types


def run_command(program, argv):
    from official_trainer import cli
    from official_trainer.launch.targets.slurm import SlurmProfile
    from tests.support.processes.from_here import fork_processes

    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if pytest runs in the background
    fork_processes()
    SlurmProfile.__init__.__kwdefaults__["node_local"] = ()  # the session's folder, often in /tmp, is /shared here
    return cli.main(argv[1:], script="train.py") if program == "python" else cli.main(argv)


def run_program(name, argv, *, is_module):
    sys.argv = [name, *argv]
    try:
        (runpy.run_module if is_module else runpy.run_path)(name, run_name="__main__")
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
            return 1
        return error.code


def interpret(connection):
    """Executes blocks as parts of one program, and answers each with its error, if there is one.

    What comes is the page's name, its program so far with each line at its place on the page, and how many lines of it
    have been executed.
    """
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    while True:
        try:
            name, source, before = connection.recv()
        except EOFError:
            return 0
        lines = source.splitlines(keepends=True)
        linecache.cache[name] = (len(source), None, lines, name)  # tracebacks and AutoGraph read it there
        try:
            exec(compile("\n" * before + "".join(lines[before:]), name, "exec"), module.__dict__)
        except BaseException as error:
            own = error.__traceback__
            connection.send("".join(traceback.format_exception(error.with_traceback(own and own.tb_next))))
        else:
            connection.send("")
