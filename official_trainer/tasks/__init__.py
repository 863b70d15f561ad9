"""The API that the author of an experiment implements and calls.

Owns: the Task contract, the registry of experiments, and the tools of a step: random streams, published values,
metrics, optimizers, exports. Does not own: running steps (`engine/`).
"""
