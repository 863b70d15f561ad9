"""The configuration: typed, layered, frozen, with the origin of each value. Does not import TensorFlow.

Owns: everything between what a user writes (YAML, flags, an experiment's Python) and one `ExperimentConfig`.
Does not own: which experiments there are (`tasks/registry.py`), or what the fields do.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
