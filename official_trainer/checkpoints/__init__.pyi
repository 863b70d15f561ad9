from .best import BestCheckpoint as BestCheckpoint
from .manifest import CheckpointError as CheckpointError
from .manifest import committed_steps as committed_steps
from .store import CheckpointStore as CheckpointStore
from .store import SaveError as SaveError
