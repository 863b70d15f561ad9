"""Model Garden's own `train.py`, on an experiment of `workspace/experiments/two_heads.py`, in a process of its own.

It is `official.nlp.train`, with the workspace's file in place of `registry_imports`, which imports all of its projects.
"""

import functools
import sys
import types

from tests.support.forked import Child


def garden_command(argv, *, cwd, folder):
    """Runs `train.py ARGV…` to its end; `cwd` is a workspace."""
    return Child(functools.partial(_main, list(argv)), cwd=cwd, folder=folder).wait()


def _main(argv):
    from absl import flags, logging
    from official import common

    # Model Garden's tree of modules, of which only what the experiment needs.
    common.registry_imports = sys.modules["official.common.registry_imports"] = types.ModuleType("registry_imports")
    import experiments.two_heads  # noqa: F401 - registers them
    from official.common import flags as their_flags
    from official.nlp import train

    logging.set_verbosity(logging.ERROR)
    their_flags.define_flags()
    flags.FLAGS(["train.py", *argv])
    train.main(None)
