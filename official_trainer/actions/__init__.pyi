from .action import Action as Action
from .action import Assign as Assign
from .action import CallAt as CallAt
from .action import Result as Result
from .action import Rollback as Rollback
from .action import Run as Run
from .action import Save as Save
from .action import Stop as Stop
