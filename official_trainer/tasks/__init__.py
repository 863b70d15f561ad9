"""What the author of an experiment writes and calls.

Owns: the Task contract, the registry of experiments, and what a step may use: random streams, published values,
metrics, optimizers, exports. Does not own: running steps (`engine/`).
"""
