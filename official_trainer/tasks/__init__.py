"""The API that the author of an experiment implements and calls.

Owns: the Task contract, the registry of experiments, and the tools of a step: random streams, published values,
metrics, optimizers, exports. Does not own: running steps (`engine/`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
