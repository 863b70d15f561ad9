"""Windows compiled by XLA."""

import os
import subprocess
import sys

from tests import ROOT

WINDOWS_OF_MANY_LENGTHS = """
from official_trainer.engine import windows
from official_trainer.engine.step_clock import StepClock
from official_trainer.engine.traces import Traces
from official_trainer.lazy import tf

total = tf.Variable(0)
loop = windows.block_loop(lambda batch: total.assign_add(batch[0]), Traces(1), compiles=True)
blocks = windows.Blocks(iter(tf.data.Dataset.range(8, output_type=tf.int32).batch(1).batch(8).repeat()), StepClock())
for num_steps in (3, 8, 1, 5, 7):
    loop(blocks, tf.constant(num_steps))
assert total.numpy() == 3 * sum(range(8)), total
"""


def test_windows_of_any_length_are_one_program(tmp_path):
    """XLA compiles once, wherever windows start and stop in a block: compiling takes longer than thousands of steps."""
    environ = {**os.environ, "XLA_FLAGS": f"--xla_dump_to={tmp_path}", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", WINDOWS_OF_MANY_LENGTHS], env=environ, check=True)
    programs = [path.name for path in tmp_path.glob("*before_optimizations.txt")]
    assert len(programs) == 1, programs
