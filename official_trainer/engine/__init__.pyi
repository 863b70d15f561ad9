from .loop import Loop as Loop
from .trainer import Trainer as Trainer
