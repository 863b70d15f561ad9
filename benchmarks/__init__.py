"""Side by side with what a user would pick instead: hand-written loops, Model Garden, tf_keras fit.

__main__.py   python -m benchmarks [--only=steps,job,cli] [--rounds=N] [--markdown]
steps.py      microseconds per training step of a small model
job.py        a whole job, process start to exit: wall time and peak memory
start.py      a cold start: a short job beside hand_written.py, a script without a trainer
commands.py   commands that never import TensorFlow
garden.py     the digits experiments as Model Garden tasks; garden_train.py is its driver
processes.py, rounds.py, report.py   measuring and printing
"""
