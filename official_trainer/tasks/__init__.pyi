from . import publish as publish
from . import random_streams as random_streams
from . import registry as registry
from .registry import register_config_factory as register_config_factory
from .registry import register_task_cls as register_task_cls
from .task import Task as Task
