"""Code that is called at chosen steps: one file for each action, whose name is the `type` in YAML.

Owns: the actions, their contract (`action.py`), calling them (`schedule.py`). Does not own: the loop.

Each file has an `ActionConfig` with the fields of the section and the `Action` that it builds. A file is imported when
a config names it, and importing it does not import TensorFlow. A workspace's own `actions/` are found too.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
