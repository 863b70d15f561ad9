"""Runs as people look at them: opened in Python, beside each other, as a page; and what is tried out before a run.

Owns: a run directory as an object (`opened.py`), what is compared and how it is shown; `find-lr` and
`--overfit_batches`, which leave no run directory behind. Does not own: what a run directory holds (`runs/`), sweeps
(`sweeps/`), without which it works.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
