"""Which learning rate is on record."""

import keras as keras3
import pytest
import tensorflow as tf
import tf_keras as keras

from official_trainer.config import ConfigError, OptimizationConfig
from official_trainer.tasks import optimization
from official_trainer.tasks.optimization import learning_rates


def test_the_rate_is_that_of_the_next_update():
    """G9: in both Kerases; what tf_keras has beside its legacy optimizers tells that of the update before."""
    for module, kind, behind in [
        (keras, keras.optimizers.legacy.SGD, 0),
        (keras3, keras3.optimizers.SGD, 0),
        (keras, keras.optimizers.SGD, 1),
    ]:
        optimizer = kind(module.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5))
        weight = keras3.Variable([1.0]) if module is keras3 else tf.Variable([1.0])
        for updates in range(1, 4):
            optimizer.apply_gradients([(tf.constant([1.0]), weight)])
            rates = learning_rates(optimizer, tf.Variable(7))  # which no optimizer with a counter of its own asks for
            assert float(rates["learning_rate"]) == pytest.approx(0.1 * 0.5 ** (updates - behind)), (kind, updates)


def test_a_section_that_a_task_passes_on_without_a_type():
    """T15: from a `create_optimizer` of its own, in words of the config, for either Keras."""
    with pytest.raises(ConfigError, match=r"optimizer_config\.optimizer\.type: is not set, .* for example .*=adam"):
        optimization.build_optimizer(OptimizationConfig())
