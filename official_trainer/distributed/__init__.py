"""Which processes and devices compute together.

Owns: the cluster, the strategy, and what its processes tell each other. Does not own: what they compute (`engine/`).
"""
