"""Models of Keras 3 of every shape: their names are the same in each process, and no two values have one name."""

EXPECTED = {
    "functional": ["dense/kernel", "norm/beta", "norm/moving_mean", "norm/moving_variance", "head/kernel"],
    "built_later": ["dense/kernel", "dense_1/kernel"],
    "lists": ["scale", "variable", "variable_1", "dense/kernel", "dense_1/kernel", "same/kernel", "same_2/kernel"],
    "nested": ["functional/same/kernel", "functional_1/same/kernel", "sequential/dense/kernel", "dense/kernel"],
    "shared": ["dense/kernel", "dense_1/kernel"],
    "wrapped": [
        "bidirectional/forward_gru/gru_cell/kernel", "bidirectional/forward_gru/gru_cell/recurrent_kernel",
        "bidirectional/backward_gru/gru_cell/kernel", "bidirectional/backward_gru/gru_cell/recurrent_kernel",
    ],
    "numbered": ["dense/kernel", "dense_1/kernel", "dense_2/kernel"],
}  # fmt: skip


def build(shape):
    """Returns a new model."""
    import keras
    from keras.layers import Dense

    def dense(size=4, **options):
        return Dense(size, use_bias=False, **options)

    def encoder():
        given = keras.Input([4])
        return keras.Model(given, dense(name="same")(given))

    class Lists(keras.Model):
        def __init__(self):
            super().__init__()
            self.steps = [dense(), dense()]
            self.named = {"a": dense(name="same"), "b": dense(name="same")}
            self.scale = self.add_weight(shape=[], name="scale")
            self.first, self.second = keras.Variable(1.0), keras.Variable(2.0)
            self(keras.ops.ones([1, 4]))

        def call(self, inputs):
            for layer in [*self.steps, *self.named.values()]:
                inputs = layer(inputs)
            return inputs * self.scale * self.first * self.second

    given = keras.Input([4])
    if shape == "functional":
        return keras.Model(
            given, dense(name="head")(keras.layers.BatchNormalization(scale=False, name="norm")(dense()(given)))
        )
    if shape == "built_later":
        model = keras.Sequential([dense(), dense()])
        model.build([None, 4])
        return model
    if shape == "lists":
        return Lists()
    if shape == "nested":
        both = keras.ops.add(encoder()(given), encoder()(given))
        return keras.Model(given, dense()(keras.Sequential([keras.Input([4]), dense()])(both)))
    if shape == "shared":
        layer = dense()
        inside = keras.Model(given, layer(given))
        return keras.Model(given, dense()(inside(layer(layer(given)))))
    if shape == "wrapped":
        sequence = keras.Input([3, 4])
        return keras.Model(sequence, keras.layers.Bidirectional(keras.layers.GRU(2, use_bias=False))(sequence))
    return keras.Model(
        given, dense(name="dense_60000")(dense()(dense(name="dense_70000")(given)))
    )  # numbers that Keras has not reached


def names(model):
    """Returns the names of a model's values, and the places of its optimizer's in a checkpoint."""
    import keras

    from official_trainer.tasks import keras as kerases

    optimizer = keras.optimizers.SGD(momentum=0.9)
    optimizer.build(model.trainable_variables)
    kind = kerases.of(model)
    return [name for name, _ in kind.named(model)], sorted(_leaves(kind.trackable_optimizer(optimizer, model), ""))


def _leaves(tree, place):
    for name, value in tree.items():
        if hasattr(value, "items"):
            yield from _leaves(value, f"{place}{name}/")
        else:
            yield place + name
