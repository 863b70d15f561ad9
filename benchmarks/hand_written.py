"""The `digits_mlp` job as one writes it by hand, without a trainer: a `tf.function` loop, and what goes with it.

It trains the same model on the same data with the same optimizer as `experiments/digits.py`, evaluates, saves and
writes summaries at the same steps, keeps the best checkpoint, continues from its newest one, and exports a SavedModel.
"""

import argparse
import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # the Keras of Model Garden, and here; Keras 3 takes longer to import

import tensorflow as tf
import tf_keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

STEPS = {"train_steps": 2000, "summary_interval": 100, "validation_interval": 200, "checkpoint_interval": 400}


class Schedule(tf_keras.optimizers.schedules.LearningRateSchedule):
    """Rises to 3e-3 over 50 steps, then falls like a cosine."""

    def __init__(self, train_steps):
        self._train_steps = train_steps

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        cosine = tf_keras.optimizers.schedules.CosineDecay(3e-3, self._train_steps)
        return tf.where(step < 50, 3e-3 * step / 50, cosine(step))


def load_data():
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).astype("float32").reshape(-1, 8, 8, 1)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels.astype("int32"), test_size=0.2, random_state=0, stratify=labels
    )
    train = tf.data.Dataset.from_tensor_slices((train_x, train_y)).shuffle(len(train_y)).repeat()
    test = tf.data.Dataset.from_tensor_slices((test_x, test_y)).batch(360)
    return train.batch(64, drop_remainder=True).prefetch(tf.data.AUTOTUNE), test


def build_model():
    image = tf_keras.Input([8, 8, 1], name="image")
    x = tf_keras.layers.Dense(64, activation="relu")(tf_keras.layers.Flatten()(image))
    return tf_keras.Model(image, tf_keras.layers.Dense(10, name="logits")(tf_keras.layers.Dropout(0.2)(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_dir", required=True)
    for name, default in STEPS.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    model_dir = arguments.model_dir

    (train, test), model = load_data(), build_model()
    optimizer = tf_keras.optimizers.legacy.Adam(Schedule(arguments.train_steps))
    cross_entropy = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loss, accuracy = tf_keras.metrics.Mean(), tf_keras.metrics.SparseCategoricalAccuracy()
    step = tf.Variable(0, dtype=tf.int64)

    @tf.function
    def train_steps(iterator, num_steps):
        for _ in tf.range(num_steps):
            images, labels = next(iterator)
            with tf.GradientTape() as tape:
                logits = model(images, training=True)
                value = cross_entropy(labels, logits)
            optimizer.apply_gradients(
                zip(tape.gradient(value, model.trainable_variables), model.trainable_variables, strict=True)
            )
            loss.update_state(value)
            accuracy.update_state(labels, logits)
            step.assign_add(1)

    @tf.function
    def evaluate_batch(images, labels):
        logits = model(images, training=False)
        loss.update_state(cross_entropy(labels, logits), sample_weight=tf.shape(labels)[0])
        accuracy.update_state(labels, logits)

    def results(writer, name):
        values = {"loss": float(loss.result()), "accuracy": float(accuracy.result())}
        rate = {"learning_rate": float(optimizer.learning_rate(step))} if name == "train" else {}
        with writer.as_default(step=step):
            for key, value in {**values, **rate}.items():
                tf.summary.scalar(key, value)
        writer.flush()
        print(f"{name} | step: {int(step)} | {values}")
        loss.reset_states()
        accuracy.reset_states()
        return values

    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=step)
    manager = tf.train.CheckpointManager(checkpoint, model_dir, max_to_keep=5, step_counter=step)
    best = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), os.path.join(model_dir, "best"), max_to_keep=1)
    manager.restore_or_initialize()
    writers = {name: tf.summary.create_file_writer(os.path.join(model_dir, name)) for name in ("train", "validation")}
    iterator, best_accuracy = iter(train), 0.0
    while step < arguments.train_steps:
        train_steps(iterator, tf.constant(arguments.summary_interval))
        results(writers["train"], "train")
        if step % arguments.checkpoint_interval == 0:
            manager.save(checkpoint_number=step)
        if step % arguments.validation_interval == 0:
            for images, labels in test:
                evaluate_batch(images, labels)
            found = results(writers["validation"], "validation")
            if found["accuracy"] > best_accuracy:
                best_accuracy = found["accuracy"]
                best.save(checkpoint_number=step)

    export(model, os.path.join(model_dir, "export"))


def export(model, directory):
    @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 1], name="image")])
    def serve(image):
        logits = model(image, training=False)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    tf.saved_model.save(model, directory, signatures={"serving_default": serve})


if __name__ == "__main__":
    main()
