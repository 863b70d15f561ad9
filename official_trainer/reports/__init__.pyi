from .opened import Checkpoint as Checkpoint
from .opened import NoRunError as NoRunError
from .opened import OpenedRun as OpenedRun
from .opened import open as open
from .opened import open_all as open_all
