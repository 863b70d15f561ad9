"""Mistakes in the user's code, met while it runs: the message, in a few lines, says where and what."""

import json
import shutil

import pytest

from official_trainer.cli import terminal
from tests.support import mistakes
from tests.support.cases import full
from tests.support.mistakes import MODULE, MORE, Mistake

LOSS = "return keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)"
METRICS = 'return [keras.metrics.SparseCategoricalAccuracy(name="accuracy"), Share(name="share")]'
PREPARED = 'return {**features, "text": features["text"] * 2.0}, label'
PYTHON = "tf.py_function(Counter().on_step, [0], tf.int32)"
CLEANED = 'tf.ensure_shape(tf.numpy_function(cleaned, [features["text"]], tf.float32), [None, 32])'
DOUBLE = CLEANED.replace("cleaned", "lambda text: text.astype('float64')")
UNKNOWN = 'tf.numpy_function(abs, [features["text"]], tf.float32)'
LOGITS = 'keras.layers.Dense(3, name="logits")(joined)'
RETURNED = 'return inputs.from_arrays(({"text": text, "age": age}, label), params, input_context).map(prepare)'
EMBEDDED = "keras.layers.Dense(3)(keras.layers.Flatten()(keras.layers.Embedding(1, 4)(tf.cast(age * 9, tf.int32))))"
ROWS = """def rows():
    while True:
        yield [1.0] * 31, [2.0], 0


def prepare("""
SHAPE_OF_ROWS = "(tf.TensorSpec([32]), tf.TensorSpec([1]), tf.TensorSpec([], tf.int64))"
GENERATED = (
    f"return tf.data.Dataset.from_generator(rows, output_signature={SHAPE_OF_ROWS})"
    ".map(lambda text, age, label: ({'text': text, 'age': age}, label)).batch(8)"
)
LINES = """rows = ["a,b,c", *(f"{i},{'' if i == 20 else i},{i % 3}" for i in range(30))]
        with open("data.csv", "w") as file:
            file.write("\\n".join(rows))

        def parse(line):
            age, text, label = tf.io.decode_csv(line, [[0.0], tf.constant([], tf.float32), [0]])
            return {"age": [age], "text": tf.repeat(text, 32)}, label

        if params.is_training:
            return inputs.from_arrays(({"text": text, "age": age}, label), params, input_context)
        return tf.data.TextLineDataset(params.input_path).skip(1).map(parse).batch(8)"""
RESULT = """    def result(self):
        self.total


def prepare("""
OPTIMIZER = "    @classmethod\n    def create_optimizer(cls, *_):\n        return "
STEP = """    def train_step(self, inputs, model, optimizer, metrics=None):
        features, labels = inputs
        with tf.GradientTape() as tape:
            loss = mean_loss(labels, model(features, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return {"loss": loss}

"""
REGISTER = "@register_task_cls(TicketsConfig)"
WEIGHTED = f"""def weighted(labels, outputs):
    weights = tf.ones([5])
    return outputs * weights


{REGISTER}"""
MEAN_LOSS = f"""def mean_loss(labels, outputs):
    tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True))


{REGISTER}"""
RETURNS_LOSS = MEAN_LOSS.replace("tf.reduce_mean", "return tf.reduce_mean")
LAYER = f"""class Gate(keras.layers.Layer):
    def call(self, inputs):
        gate = tf.ones([7])
        return inputs * gate


class Whole(keras.Model):
    def __init__(self):
        super().__init__()
        self.gate, self.head = Gate(), keras.layers.Dense(3)

    def call(self, inputs, training=None):
        return self.head(self.gate(inputs["text"]))


{REGISTER}"""
BATCH = "batch: features {text: float32[8,32], age: float32[8,1]}, labels int64[8]"

SHAPES = [
    Mistake(
        name="one_unit_for_three_classes_in_a_metric",
        changes={"keras.layers.Dense(3,": "keras.layers.Dense(1,"},
        at=METRICS,
        words=("while training at step 1", BATCH, "sparse_"),
    ),
    Mistake(
        name="one_unit_for_three_classes_in_the_loss",
        changes={"keras.layers.Dense(3,": "keras.layers.Dense(1,", METRICS: "return []"},
        at=LOSS,
        words=("while training at step 1", "valid range of [0, 1)", "one unit for each class", BATCH),
    ),
    Mistake(
        name="input_of_another_size",
        changes={"16 * 32, ": "16 * 33, ", ".reshape(16, 32)": ".reshape(16, 33)"},
        at="return keras.Model",
        words=("text: float32[8,33]", "is built for shape [None, 32]", "change keras.Input"),
    ),
    Mistake(
        name="classes_for_a_loss_of_vectors",
        changes={LOSS: "return keras.losses.categorical_crossentropy(labels, model_outputs)"},
        at="categorical_crossentropy(labels",
        words=("Shapes (8,) and (8, 3) are incompatible", "sparse_"),
    ),
    Mistake(
        name="a_dictionary_where_the_loss_wants_a_tensor",
        changes={'{"text": text, "age": age}, logits)': '{"text": text, "age": age}, {"queue": logits})'},
        at=LOSS,
        words=("take one by its name"),
    ),
    Mistake(
        name="dimensions_that_differ",
        changes={LOSS: "return tf.reduce_sum(model_outputs * tf.ones([8, 4]), axis=-1)"},
        at="tf.ones([8, 4])",
        words=("3 and 4", "do not go together"),
    ),
    Mistake(
        name="an_input_that_the_model_is_not_given",
        changes={'keras.Model({"text": text, "age": age}, logits)': 'keras.Model({"text": text}, logits)'},
        at="return keras.Model",
        words=("Graph disconnected", "name all of them, as in keras.Model([a, b], …)"),
    ),
    Mistake(
        name="a_reshape_that_does_not_fit",
        changes={LOSS: "return tf.reduce_sum(tf.reshape(model_outputs, [8, 4]), axis=-1)"},
        at="tf.reshape(model_outputs",
        words=("24 elements", "-1 leaves one dimension open"),
    ),
    Mistake(
        name="dtypes_that_differ",
        changes={LOSS: "return tf.reduce_sum(model_outputs, axis=-1) - labels"},
        at="axis=-1) - labels",
        words=("float32", "int64", "tf.cast", BATCH),
    ),
]  # fmt: skip

LOSSES = [
    Mistake(
        name="no_loss",
        changes={LOSS: LOSS.removeprefix("return ")},
        at="def build_losses",
        words=("TicketsTask has no loss", "Return a loss from build_losses()"),
    ),
    Mistake(
        name="a_text_as_a_loss",
        changes={LOSS: "return 'mse'"},
        at="return 'mse'",
        words=("returned a str: use a function of keras.losses",),
    ),
    Mistake(
        name="a_class_as_a_loss",
        changes={LOSS: "return keras.losses.SparseCategoricalCrossentropy"},
        at="return keras.losses",
        words=("the class SparseCategoricalCrossentropy: call it with labels and outputs",),
    ),
    Mistake(
        name="an_object_as_a_loss",
        changes={LOSS: "return keras.losses.SparseCategoricalCrossentropy()"},
        at="return keras.losses",
        words=("returned a SparseCategoricalCrossentropy: call it with labels and outputs",),
    ),
    Mistake(
        name="a_dictionary_of_losses",
        changes={LOSS: "return {'a': 1.0}"},
        at="return {'a'",
        words=("returned a dict: add its values up, and log them in train_step",),
    ),
    Mistake(
        name="gradients_without_their_variables",
        changes={MORE: STEP.replace("zip(gradients, model.trainable_variables)", "gradients"), REGISTER: RETURNS_LOSS},
        at="optimizer.apply_gradients(gradients)",
        words=("Python takes a tensor for a list: apply_gradients takes zip(gradients, model.trainable_variables)",),
    ),
    Mistake(
        name="a_step_of_ones_own_without_a_loss",
        changes={MORE: STEP, REGISTER: MEAN_LOSS},
        at="gradients = tape.gradient",
        words=("while training at step 1", "A value is None", BATCH),
    ),
    Mistake(
        name="a_step_that_returns_no_loss",
        changes={
            MORE: STEP.replace('{"loss": loss}', '{"mean": loss}'),
            REGISTER: RETURNS_LOSS,
        },
        at='return {"mean"',
        words=("TicketsTask.train_step must return 'loss', got ['mean']",),
    ),
    Mistake(
        name="a_step_that_returns_nothing",
        changes={'return {**logs, "sizes"': '{**logs, "sizes"'},
        at="def validation_step",
        words=("while evaluating validation_data at step 2", "must return a dictionary of logs, got NoneType"),
    ),
    Mistake(
        name="numpy_in_the_loss",
        changes={LOSS: "return -np.log(np.maximum(model_outputs, 1e-7))"},
        at="return -np.log",
        words=("NumPy is called on a tensor",),
    ),
    Mistake(
        name="the_value_of_a_tensor_in_the_loss",
        changes={LOSS: "return float(model_outputs.numpy().mean())"},
        at="model_outputs.numpy()",
        words=("has no attribute 'numpy'", "has no value in Python"),
    ),
    Mistake(
        name="a_loss_that_does_not_depend_on_the_weights",
        changes={LOSS: "return tf.ones([8])"},
        at="return tf.ones",
        words=("No gradients provided for any variable", "does not depend on the weights"),
    ),
    Mistake(
        name="a_variable_made_in_a_step",
        changes={LOSS: "return tf.Variable(1.0) * model_outputs"},
        at="tf.Variable(1.0)",
        words=("create layers, metrics and variables in build_model",),
    ),
    Mistake(
        name="a_name_that_is_misspelled",
        changes={LOSS: LOSS.replace("model_outputs", "model_output")},
        at="model_output, from_logits",
        words=("NameError", "Did you mean model_outputs?"),
    ),
    Mistake(
        name="a_function_that_the_loss_calls",
        changes={LOSS: "return weighted(labels, model_outputs)", REGISTER: WEIGHTED},
        at="return outputs * weights",
        words=("called from experiments/tickets.py", "in build_losses", "3 and 5"),
    ),
]  # fmt: skip

MODELS_AND_METRICS = [
    Mistake(
        name="a_layer_that_is_misspelled",
        changes={"keras.layers.Dense(3": "keras.layers.Dence(3"},
        at="keras.layers.Dence",
        words=("while building the run", "Did you mean Dense?"),
    ),
    Mistake(
        name="a_layer_of_ones_own",
        changes={"Dense(3, name=\"logits\")(joined)": "Lambda(lambda x: tf.reshape(x, [7, 5, 3]))(joined)"},
        at="keras.layers.Lambda",
        method="<lambda>",
        words=("while building the run",),
    ),
    Mistake(
        name="a_model_of_ones_own",
        changes={'return keras.Model({"text": text, "age": age}, logits)': "return Whole()", REGISTER: LAYER},
        at="return inputs * gate",
        words=("while tracing the first step", "called from experiments/tickets.py", "32 and 7"),
    ),
    Mistake(
        name="python_in_a_step",
        changes={LOSS: f"{PYTHON}\n        {LOSS}", "self.calls += 1": "return run.steps"},
        at="return run.steps",
        words=("while training at step 1", "no attribute 'steps'"),
    ),
    Mistake(
        name="an_optimizer_of_ones_own",
        changes={MORE: OPTIMIZER + "keras.optimizers.Adams()\n"},
        at="keras.optimizers.Adams",
        words=("while building the run", "Adam"),
    ),
    Mistake(
        name="first_weights",
        changes={MORE: "    def initialize(self, model):\n        model.get_layer('head').set_weights([])\n"},
        at="model.get_layer",
        words=("while initializing the weights", "No such layer: head"),
    ),
    Mistake(
        name="a_result_of_a_metric_that_is_none",
        changes={"def prepare(": RESULT},
        at="return [keras.metrics",
        words=("while summarizing training at step 2", "For metric share, got result None"),
    ),
    Mistake(
        name="two_metrics_of_one_name",
        changes={METRICS: 'return [Share(name="share"), keras.metrics.Mean(name="share")]'},
        at="return [Share",
        words=("while building the run", "two training metrics are named 'share' (Share and Mean)"),
    ),
    Mistake(
        name="a_metric_that_takes_no_labels",
        changes={"y_true, y_pred, sample_weight=None": "y_pred", "(first, sample_weight)": "(first)"},
        at="return [keras.metrics",
        words=(": update_state() takes 2 positional", "called as update_state(y_true, y_pred)"),
    ),
    Mistake(
        name="a_field_that_the_config_does_not_have",
        changes={LOGITS: "keras.layers.Dense(self.task_config.classes)(joined)"},
        at="self.task_config.classes",
        words=("'classes'", "TicketsConfig has the fields init_checkpoint, "),
    ),
    Mistake(
        name="a_task_that_forgets_its_config",
        changes={MORE: "    def __init__(self, *params, **options):\n        self.classes = 3\n"},
        at="class TicketsTask",
        method="TicketsTask",
        words=("no attribute 'task_config'", "has to call super().__init__(params, **options) in it"),
    ),
    Mistake(
        name="a_log_of_an_evaluation_that_is_none",
        changes={'"sizes": tf.shape(inputs[1])[:1]': '"sizes": None'},
        at='"sizes": None',
        words=("while evaluating validation_data at step 2", "returns 'sizes', of NoneType, which is no tensor"),
    ),
    Mistake(
        name="folded_logs",
        changes={'step_logs["sizes"]': 'step_logs["size"]'},
        at='step_logs["size"]',
        words=("while evaluating validation_data at step 2", "KeyError: 'size'", "Did you mean 'sizes'?"),
    ),
    Mistake(
        name="reduced_logs_that_are_none",
        changes={'return {"tickets": float(aggregated_logs)}': "float(aggregated_logs)"},
        at="def reduce_aggregated_logs",
        words=("while evaluating validation_data at step 2", "without `return`"),
    ),
    Mistake(
        name="a_model_whose_inputs_are_unknown",
        changes={'return keras.Model({"text": text, "age": age}, logits)': "return Whole()",
                 'features["text"] * 2.0': 'tf.sparse.from_dense(features["text"])',
                 REGISTER: LAYER.replace("tf.ones([7])", "tf.ones([32])").replace(
                     'inputs["text"]', 'tf.ensure_shape(tf.sparse.to_dense(inputs["text"]), [None, 32])')},
        at="class TicketsTask",
        method="TicketsTask",
        words=("while exporting the model of step 4", "was not built with keras.Input", "define build_signatures"),
    ),
]  # fmt: skip

DATA_AND_ACTIONS = [
    Mistake(
        name="a_label_out_of_range",
        changes={"np.arange(16) % 3": "np.arange(16) % 4"},
        at=LOSS,
        words=("while training at step 1", "label value of 3", "The model has 3 classes", BATCH),
        code=3,
    ),
    Mistake(
        name="a_label_below_0",
        changes={"np.arange(16) % 3": "np.arange(16) % 3 - 1"},
        at=LOSS,
        words=("while training at step 1", "Labels are counted from 0, and the data holds -1", BATCH),
        code=3,
    ),
    Mistake(
        name="an_import_in_a_method",
        changes={LOSS: "import tensorflow_io\n        " + LOSS},
        at="import tensorflow_io",
        words=("No module named 'tensorflow_io'",),
    ),
    Mistake(
        name="labels_that_are_words",
        changes={"np.arange(16) % 3": "(np.arange(16) % 3).astype(str)"},
        at=LOSS,
        words=("while training at step 1", "labels string[8]", "strings where numbers are needed"),
        code=3,
    ),
    Mistake(
        name="a_map_function",
        changes={PREPARED: PREPARED.replace('features["text"]', 'features["txt"]')},
        at='features["txt"]',
        words=("while building validation_data", "KeyError: 'txt'", "Did you mean 'text'?"),
    ),
    Mistake(
        name="a_map_function_that_fails_on_an_example",
        changes={PREPARED: PREPARED.replace("label", "label + tf.strings.to_number(['seven'], tf.int64)")},
        at=".map(prepare)",
        words=("while training at step 1", "'seven' where a number is expected"),
        code=3,
    ),
    Mistake(
        name="a_line_of_a_file_that_cannot_be_parsed",
        changes={RETURNED: LINES.replace("params.input_path", "'data.csv'")},
        at="def build_inputs",
        words=('Field 1 is required but missing',),
        code=3,
    ),
    Mistake(
        name="a_number_that_the_embedding_does_not_have",
        changes={LOGITS: EMBEDDED, "keras.layers.Concatenate()([text, age])": "None"},
        at="return keras.Model",
        words=("= 1 is not in [0, 1)", "has 1 of them, numbered from 0", "input_dim of an Embedding"),
        code=3,
    ),
    Mistake(
        name="a_generator_of_another_shape",
        changes={"def prepare(": ROWS, RETURNED: GENERATED},
        at="return tf.data.Dataset",
        words=("while training at step 1", "yields shape [31], and its output_signature says [32]"),
        code=3,
    ),
    Mistake(
        name="a_map_function_that_returns_nothing",
        changes={PREPARED: PREPARED.removeprefix("return ")},
        at=".map(prepare)",
        words=("while building validation_data", "or one that map() is given, end without `return`?"),
    ),
    Mistake(
        name="a_map_function_of_one_argument",
        changes={"def prepare(features, label)": "def prepare(example)", PREPARED: "return example"},
        at=".map(prepare)",
        words=("TypeError: prepare() takes 1 positional argument but 2 were given",),
    ),
    Mistake(
        name="numpy_of_another_dtype",
        changes={PREPARED: PREPARED.replace('features["text"] * 2.0', DOUBLE)},
        at=".map(prepare)",
        code=3,
        words=("is double, but expects float",),
    ),
    Mistake(
        name="an_example_whose_shape_is_unknown",
        changes={PREPARED: PREPARED.replace('features["text"] * 2.0', UNKNOWN)},
        at="return keras.Model",
        words=("while training at step 1", "text: float32[...]"),
    ),
    Mistake(
        name="build_inputs",
        changes={"dtype=\"float32\")[:, None]": "dtype=\"float32\")[:, None].normalised()"},
        at=".normalised()",
        words=("while building validation_data", "AttributeError"),
    ),
    Mistake(
        name="an_action",
        changes={"self.calls += 1": "self.calls += run.steps"},
        at="run.steps",
        words=("while calling on_step of the action 'Counter' at step 2", "Did you mean step?"),
    ),
    Mistake(
        name="an_action_that_returns_a_text",
        changes={"self.calls += 1": "return 'stop'"},
        at="return 'stop'",
        words=("it returned 'stop'; a hook returns None, or Stop, Save, ",),
    ),
    Mistake(
        name="the_class_of_an_action",
        changes={"return [Counter()]": "return [Counter]"},
        at="return [Counter]",
        words=("while building the actions", "the class Counter is not an action; write Counter(…)"),
    ),
    Mistake(
        name="the_actions",
        changes={"return [Counter()]": "return [Counters()]"},
        at="Counters()",
        words=("while building the actions", "NameError", "Did you mean Counter?"),
    ),
]  # fmt: skip

HOW = [
    Mistake(name="mirrored", changes={"np.arange(16) % 3": "np.arange(16) % 4"}, at=LOSS,
            words=("label value of 3", "while training at step 1", "text: float32[4,32]", "on each of 2 replicas"),
            code=3,
            values=("runtime.distribution_strategy=mirrored",)),
    Mistake(name="mirrored_while_traced", changes={LOSS: LOSS.replace("model_outputs", "model_output")},
            at="model_output, from_logits", words=("Did you mean model_outputs?", "float32[4,"),
            values=("runtime.distribution_strategy=mirrored",)),
    Mistake(name="xla", changes={LOSS: "return tf.reduce_sum(model_outputs * tf.ones([8, 4]), axis=-1)"},
            at="tf.ones([8, 4])", words=("3 and 4", "outputs: float32[8,3]"),
            values=("runtime.enable_xla=true",)),
    Mistake(name="python_under_xla", changes={LOSS: f"tf.numpy_function(print, [labels], [])\n        {LOSS}"},
            at="tf.numpy_function(print", values=("runtime.enable_xla=true",),
            words=("XLA cannot compile the operation PyFunc", "or set runtime.enable_xla=false")),
    Mistake(name="float16", changes={LOSS: "return tf.reduce_sum(model_outputs * tf.ones([3]), axis=-1)"},
            at="tf.ones([3])", words=("outputs: float16[8,3]", "convert one with tf.cast"),
            values=("runtime.mixed_precision_dtype=float16", "runtime.loss_scale=dynamic")),
    Mistake(name="check", changes={"float(aggregated_logs)": 'aggregated_logs["tickets"]'}, verb="check",
            at='aggregated_logs["tickets"]',
            words=("while evaluating validation_data",)),
    Mistake(name="a_message_of_bytes", changes={MORE: OPTIMIZER + r"int('a \udcff b')" + "\n"}, at="udcff",
            words=("invalid literal for int()",)),
    Mistake(name="a_number_of_many_digits", changes={MORE: OPTIMIZER + "float(10**6000)\n"}, at="10**6000",
            words=("OverflowError",)),
    Mistake(name="an_error_without_a_message", changes={MORE: OPTIMIZER.replace("return", "raise") + "ValueError\n"},
            at="raise ValueError", words=("raise ValueError ValueError",)),
    Mistake(name="a_log_with_the_name_of_a_metric",
            changes={MORE: """    def train_step(self, inputs, model, optimizer, metrics=None):
        return {**super().train_step(inputs, model, optimizer, metrics), 'share': tf.constant(1.0)}
"""}, words=("TicketsTask.train_step returns 'share', which is the name of a training metric (Share)",)),
    Mistake(name="an_iterator_that_has_ended", changes={"(state or 0) + sum": "next(iter([])) + sum"},
            words=("TicketsTask.aggregate_logs raised StopIteration",)),
    Mistake(name="the_end_of_the_process", changes={MORE: OPTIMIZER + "exit(0)\n"},
            words=("your code ended the process, by sys.exit(0)",)),
]  # fmt: skip


REPEATED = {
    *("an_object_as_a_loss", "a_log_with_the_name_of_a_metric", "mirrored_while_traced", "xla", "float16"),
    *("check", "a_kept_tensor_under_xla"),
}
"""Mistakes that other rows have in another phase, another method, or another kind of step."""

KEEPS = """    def __init__(self, params, **options):
        super().__init__(params, **options)
        self.seen = []

    def train_step(self, inputs, model, optimizer, metrics=None):
        logs = super().train_step(inputs, model, optimizer, metrics)
        self.seen.append(logs["loss"])
        return logs

"""
USED_LATER = ("has no value in Python", "return it in the logs of the step, or assign it to a tf.Variable")
USED_IN_A_STEP = (
    "a tensor of another trace is used here; it was computed at",
    MODULE,
    "in tr",
)
JOINED = "        joined = keras.layers.Concatenate()([text, age])\n"
LOOP = "        seen = []\n        for i in tf.range(3):\n            seen.append(tf.cast(i, tf.float32))\n"
KEPT = [
    Mistake(
        name="a_kept_tensor_in_an_evaluation",
        changes={MORE: KEEPS, LOSS: f"{LOSS} + sum(self.seen, 0.0)"},
        at=LOSS,
        words=(*USED_IN_A_STEP, USED_LATER[1]),
    ),
    Mistake(
        name="a_kept_tensor_under_xla",
        changes={MORE: KEEPS, LOSS: f"{LOSS} + sum(self.seen, 0.0)"},
        at=LOSS,
        words=USED_IN_A_STEP,
        values=("runtime.enable_xla=true",),
    ),
    Mistake(
        name="a_kept_tensor_in_an_export",
        changes={
            MORE: f"{KEEPS}    def predict_step(self, inputs, model, labels=None):\n        return self.seen[0]\n"
        },
        at="return self.seen[0]",
        words=("a tensor of another trace",),
    ),
    Mistake(
        name="a_kept_tensor_of_a_map",
        changes={
            "def prepare(features, label):\n": "SEEN = []\n\n\ndef prepare(features, label):\n    SEEN.append(label)\n",
            LOSS: f"{LOSS} + tf.reduce_mean(tf.cast(SEEN[-1], tf.float32))",
        },
        at=LOSS,
        words=("a tensor of another trace is used here; it was computed at", "in build_inputs"),
    ),
    Mistake(
        name="a_kept_tensor_in_an_action",
        changes={MORE: KEEPS, "self.calls += 1": "self.calls += tf.reduce_mean(run.trainer.task.seen)"},
        at="self.calls += tf",
        words=(*USED_LATER, f"computed at {MODULE}:"),
    ),
    Mistake(
        name="a_kept_tensor_as_a_number",
        changes={MORE: KEEPS, "float(aggregated_logs)": "float(self.seen[0])"},
        at="float(self.seen[0])",
        words=USED_LATER,
    ),
    Mistake(
        name="a_kept_tensor_in_a_metric",
        changes={
            "        return super().update_state(first, sample_weight)\n": "        self.first = first\n"
            "        return super().update_state(first, sample_weight)\n\n"
            "    def result(self):\n        return tf.reduce_mean(self.first)\n"
        },
        at="return tf.reduce_mean(self.first)",
        words=USED_LATER,
    ),
    Mistake(
        name="a_tensor_of_the_model",
        changes={JOINED: f"{JOINED}        self.joined = joined\n", LOSS: f"{LOSS} + tf.reduce_mean(self.joined)"},
        at=LOSS,
        words=("between the layers of a model", "name it among the outputs of keras.Model"),
    ),
    Mistake(
        name="a_tensor_of_the_model_as_a_log",
        changes={
            JOINED: f"{JOINED}        self.joined = joined\n",
            MORE: KEEPS.replace("return logs", "return {**logs, 'joined': tf.reduce_mean(self.joined)}"),
        },
        at="return {**logs, 'joined'",
        words=("TicketsTask.train_step returned a KerasTensor as 'joined'", "between the layers of a model"),
    ),
    Mistake(
        name="a_tensor_of_a_loop",
        changes={f"        {LOSS}": f"{LOOP}        {LOSS} + seen[0]"},
        at=LOSS,
        words=("A loop or a branch over tensors", "tf.TensorArray", f"computed at {MODULE}:"),
    ),
    Mistake(
        name="a_method_that_super_cannot_call",
        changes={"labels, model_outputs, aux_losses=None": "labels", MORE: KEEPS},
        at="logs = super().train_step(inputs",
        words=("build_losses() takes 2 positional arguments but 3 were given",),
    ),
]
MISTAKES = [*SHAPES, *LOSSES, *MODELS_AND_METRICS, *DATA_AND_ACTIONS, *HOW, *KEPT]


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """What the task leaves without a mistake, in a workspace that tests copy."""
    folder = tmp_path_factory.mktemp("right")
    with pytest.MonkeyPatch.context() as monkeypatch:
        return mistakes.outcome(Mistake(name="none", changes={}, code=0), folder, monkeypatch)


def test_the_task_itself_has_no_mistake(right):
    """N28: what the rows change trains, evaluates and exports."""
    assert (right.code, right.message) == (0, ""), right.text


@pytest.mark.parametrize(
    "mistake", [full(each) if each.name in REPEATED else each for each in MISTAKES], ids=lambda mistake: mistake.name
)
def test_the_message_names_the_line_and_the_cause(mistake, tmp_path, monkeypatch):
    """N28, N6: file, line, method, phase, batch, in at most 15 lines without others' frames; exit code 1, or 3."""
    found = mistakes.outcome(mistake, tmp_path, monkeypatch)
    mistakes.check(mistake, found)
    if mistake.verb == "train":
        mistakes.check_record(found)


def test_a_narrow_terminal_breaks_no_word_of_the_message(tmp_path, monkeypatch):
    """N28: its lines end between words at 60 columns; the record has the usual width."""
    monkeypatch.setattr(terminal, "width", lambda stream=None: 60)
    (mistake,) = (each for each in DATA_AND_ACTIONS if each.name == "a_label_out_of_range")
    found = mistakes.outcome(mistake, tmp_path, monkeypatch)
    assert [line for line in found.message.splitlines() if len(line) > 60] == []
    assert (
        "\n  The model has 3 classes, so labels are below 3, and the\n  data holds 3: map the labels" in found.message
    )
    assert json.loads((found.model_dir / "run.json").read_text())["error"].split() == found.message.split()[1:]


INFER = """    def inference_step(self, inputs, model):
        return model(inputs, training=False)["logits"]

"""
LATER = [
    Mistake(name="predict", verb="predict", changes={MORE: INFER}, at='["logits"]',
            words=("while predicting batch 0", "features {text: float32[?,32], age: float32[?,1]}")),
    Mistake(name="eval", verb="eval", changes={MORE: INFER}, at='["logits"]',
            words=("while evaluating validation_data at step 4", "batch: features")),
    Mistake(name="export", verb="export", changes={MORE: INFER}, at='["logits"]',
            words=("while exporting the model of step 4",)),
]  # fmt: skip


@pytest.mark.parametrize("mistake", LATER, ids=lambda mistake: mistake.name)
def test_a_mistake_that_comes_after_training_is_said_too(mistake, right, tmp_path, monkeypatch):
    """N28: in evaluation, prediction and export; the run stays as it is, the traceback is elsewhere."""
    assert right.code == 0
    shutil.copytree(right.model_dir, tmp_path / "run")
    record = (tmp_path / "run/run.json").read_bytes()
    found = mistakes.outcome(mistake, tmp_path, monkeypatch)
    mistakes.check(mistake, found)
    assert (tmp_path / "run/run.json").read_bytes() == record
    assert not (tmp_path / "run/traceback.txt").exists()
