"""Saving, verifying, restoring and retaining checkpoints.

Owns: the files of a checkpoint, and which of them exist. Does not own: what is in a checkpoint (`engine/trainer.py`),
or when one is saved (`engine/loop.py`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
