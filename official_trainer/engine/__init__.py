"""Traced steps and the outer loop.

Owns: the Trainer, its training and evaluation steps, and the order of events in a run. Does not own: files of a run
directory (`runs/`), the contents of a task (`tasks/`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
