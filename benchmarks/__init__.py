"""Side by side with what a user would pick instead: hand-written loops, Keras's fit, Model Garden, tf.data.

__main__.py      python -m benchmarks [PART …] [--rounds=N] [--quick] [--readme]
harness.py       promises, measuring in turns, the table of what was kept
processes.py     running a command, and when it printed which step
garden.py        the digits experiments for Model Garden, and its driver
hand_written.py  digits_mlp as a script without a trainer
all others       a part: its PROMISES, its ROUNDS, and `measure`
"""
