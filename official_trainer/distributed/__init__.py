"""The processes and devices that compute together.

Owns: the cluster, the strategy, and the messages between its processes. Does not own: the computation (`engine/`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
