"""Handwritten digits with Keras 3: 1,797 images of 8 by 8 pixels, in scikit-learn. `digits_keras3`."""

import dataclasses

import keras

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import DataConfig, ExperimentConfig, Fraction, Positive, TaskConfig, TrainerConfig, opt


@dataclasses.dataclass(frozen=True, kw_only=True)
class DigitImagesConfig(TaskConfig):
    """Digits and their classifier.

    Attributes:
      filters: channels of each block of convolutions.
      shift: share of its size by which a training image is moved at most, in each direction.
      dropout: share of the features set to zero while training.
      held_out: share of the images kept for validation.
    """

    filters: tuple[Positive, ...] = (32, 64)
    shift: Fraction = 0.1
    dropout: Fraction = 0.3
    held_out: Fraction = 0.2


@register_task_cls(DigitImagesConfig)
class DigitImagesTask(Task):
    """Says which digit an image shows."""

    def build_model(self):
        params = self.task_config
        image = keras.Input([8, 8, 1], name="image")
        x = keras.layers.RandomTranslation(params.shift, params.shift, fill_mode="constant")(image)
        for filters in params.filters:
            x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.9)(x))
            x = keras.layers.MaxPooling2D()(x)
        x = keras.layers.Dropout(params.dropout)(keras.layers.Flatten()(x))
        return keras.Model(image, keras.layers.Dense(10, dtype="float32", name="logits")(x))

    def build_inputs(self, params, input_context=None):
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        arrays = (pixels / 16).astype("float32").reshape(-1, 8, 8, 1), labels
        return inputs.from_arrays(arrays, params, input_context, held_out=self.task_config.held_out)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)

    def build_metrics(self, training=True):
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def predict_step(self, inputs, model, labels=None):
        return {"probabilities": keras.activations.softmax(self.inference_step(inputs, model))}


@register_config_factory("digits_keras3")
def digits_keras3():
    """Handwritten digits, a small convolutional network of Keras 3."""
    data = DataConfig(global_batch_size=64)
    trainer = TrainerConfig(
        train_steps=1000,
        summary_interval=100,
        checkpoint_interval=200,
        validation_interval=200,
        best_checkpoint_eval_metric="accuracy",
        optimizer_config=opt.adam(3e-3, decay="cosine", warmup_steps=50),
    )
    return ExperimentConfig(task=DigitImagesConfig(train_data=data, validation_data=data), trainer=trainer)
