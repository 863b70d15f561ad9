"""Several tasks trained as one.

Owns: their common step, data and model, and the choice of the task for each step. Does not own: the tasks.
"""
