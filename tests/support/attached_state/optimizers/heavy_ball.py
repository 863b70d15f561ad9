"""An optimizer of the workspace's own, of the Keras that its learning rate is of."""

import dataclasses

from official_trainer.config import CustomOptimizerConfig, Fraction


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeavyBallConfig(CustomOptimizerConfig):
    """Gradient descent with momentum.

    Attributes:
      momentum: share of the last update that is kept.
    """

    momentum: Fraction = 0.9

    def build(self, learning_rate):
        if type(learning_rate).__mro__[1].__module__.startswith("tf_keras"):
            import tf_keras as keras
        else:
            import keras

        return keras.optimizers.SGD(learning_rate, momentum=self.momentum)
