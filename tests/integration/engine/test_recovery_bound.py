"""Which losses of a step are good, with and without a bound."""

import itertools
import math

import tensorflow as tf

from official_trainer.engine.recovery import LossBound


def test_a_loss_is_good_if_it_is_finite_and_not_above_its_bound():
    """T12, G8: a loss that is not finite is bad at any step, also at those before `recovery_begin_steps`."""
    unbounded, bounded = LossBound(), LossBound(largest=10.0, from_step=5)
    never = itertools.product((unbounded, bounded), (math.nan, math.inf), (1, 5), (False,))
    for bound, loss, step, is_good in [
        *never,
        (unbounded, 1e30, 1, True),
        (bounded, 11.0, 4, True),
        (bounded, 11.0, 5, False),
        (bounded, 10.0, 5, True),
    ]:
        told = bool(bound.allows(tf.constant(loss), tf.constant(step, tf.int64)))
        assert told == is_good, (bound, loss, step)
        assert (bound.problem(loss, step) is None) == is_good, (bound, loss, step)
