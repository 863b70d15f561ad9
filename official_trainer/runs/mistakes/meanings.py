"""What the messages of TensorFlow, Keras and Python that users meet most often mean in a task, and whose fault it is.

Owns: the table, the names that an unknown one may mean. Does not own: where the error was raised (`report.py`). Imports
no TensorFlow.
"""

from __future__ import annotations

import builtins
import dataclasses
import re
import traceback

from official_trainer.errors import text_of
from official_trainer.nearest import nearest

_MOST_NAMES = 5


_OF_CODE = (
    (
        r"Received a label value of (\S+) which is outside the valid range of \[0, 1\)",
        "The model returns one number for each example, so that {0} is no class of it: give the last layer one unit "
        "for each class; or for yes and no, use binary_crossentropy.",
    ),
    (
        r"has no attribute '(?:task_config|logging_dir)'|Task\.__init__\(\) (?:takes|got|missing)",
        "A Task with an __init__ of its own has to call super().__init__(params, **options) in it.",
    ),
    (
        r"object has no attribute '(?:config|params|cfg|hparams)'",
        "A Task has the values of its section in self.task_config.",
    ),
    (
        r"must be an instance of class Layer\. Received: layer=.* of type <class 'keras\.|<tf_keras\.\S+ object at|"
        r"must be KerasTensors\. .*<class 'tf_keras\.|can be added to a Sequential model.*KerasTensor\(type_spec|"
        r"'tuple' object has no attribute 'rank'|'KerasTensor' object has no attribute 'node'",
        "Layers of Keras 2, that is tf_keras, and of Keras 3 are in one model: take all of them from `import keras`, "
        "or all from `from official_trainer.lazy import keras`.",
    ),
    (
        r"Graph disconnected: cannot obtain value",
        "The outputs depend on an input that keras.Model is not given: name all of them, as in keras.Model([a, b], …).",
    ),
    (
        r"Input (\S+)(?: with name '[^']*')? of layer [\"'][^\"']+[\"'] is incompatible with the layer: expected "
        r"shape=\(([^)]*)\), found shape=\(([^)]*)\)",
        "Input {0} of the model is built for shape [{1}], and the batch holds [{2}]: change keras.Input, or the data. "
        "With one dimension too many, the data may be batched twice.",
    ),
    (
        r"Invalid input shape for input .* Expected shape \(([^)]*)\), but input has incompatible shape \(([^)]*)\)",
        "The model is built for inputs of shape [{0}], and gets [{1}]: change keras.Input, or the data. With one "
        "dimension too many, the data may be batched twice.",
    ),
    (
        r"is incompatible with the layer: expected (?:min_)?ndim=(\d+), found ndim=(\d+)",
        "A layer wants inputs of {0} dimensions, the first for the batch, and gets {1}: change keras.Input, or the "
        "data. Images are [batch, height, width, channels], grey ones with one channel.",
    ),
    (
        r"[Tt]able not initialized",
        "A layer with a vocabulary, such as TextVectorization, has none: call its adapt(…) in build_model, or give it "
        "vocabulary=….",
    ),
    (
        r"expected axis -?\d+ of input shape to have value (\d+), but received input with shape \(?([^)]*)\)?",
        "A layer was built for inputs of size {0}, and gets [{1}]: change keras.Input, or the data.",
    ),
    (
        r"Missing data for input \"[^\"]+\"|Layer \"[^\"]+\" expects \d+ (?:named )?input\(s\)",
        "The inputs of the model are not the features of the batch: give keras.Model those that build_inputs yields, "
        "under the same names.",
    ),
    (
        r"KerasTensor|Keras symbolic input",
        "A tensor between the layers of a model stands for no batch: name it among the outputs of keras.Model, and "
        "take it from what the model returns.",
    ),
    (
        r"Can ?not squeeze dim\[[-\d]+\], expected a dimension of 1, got \d+|`output` must have rank|"
        r"`target` and `output` must have the same (?:rank|shape)|Shapes \(.*?\) and \(.*?\) are incompatible|"
        r"`?logits`? and `?labels`? must have the same (?:first dimension|shape)|`labels.shape` must equal",
        "Labels and outputs do not fit: `sparse_…` takes class numbers [batch] and outputs [batch, classes]; without "
        "`sparse_`, both have the same shape.",
    ),
    (
        r"update_state\(\) (?:takes|got an unexpected|missing)",
        "A metric is called as update_state(y_true, y_pred); others, and sample_weight, need defaults.",
    ),
    (
        r"No gradients provided for any variable",
        "The loss does not depend on the weights: compute it inside the GradientTape, from outputs of the model, with "
        "functions of TensorFlow.",
    ),
    (
        r"This optimizer can only be called for the variables it was originally built with",
        "An optimizer changes the variables that it was first given; that of the config, those of the model. Make "
        "another one for another model.",
    ),
    (
        r"(?:Dict|dict)['\"]? object has no attribute|unsupported operand type\(s\) .*'dict'|"
        r"Expected any non-tensor type, but got a tensor instead|"
        r"Attempt to convert a value \(\{.*to a Tensor|value \(\{.*with an unsupported type \(<class 'dict'>\)",
        "A dictionary stands where a tensor is expected, of outputs or of labels: take one by its name, in "
        "build_losses and, for metrics, in process_metrics.",
    ),
    (
        r"Cannot convert a symbolic .*? to a numpy array|NumPy call, which is not supported",
        "NumPy is called on a tensor of a graph: use the function of TensorFlow (tf.math, tf.reduce_mean), or wrap "
        "yours in tf.numpy_function.",
    ),
    (
        r"^InaccessibleTensorError: ",
        "A loop or a branch over tensors, or an earlier call of the step, has computed this tensor, and behind that it "
        "is not there: collect it in a tf.TensorArray, or assign it to a tf.Variable.",
    ),
    (
        r"is out of scope and cannot be used here|not 'SymbolicTensor'|"
        r"'SymbolicTensor' object has no attribute|SymbolicTensor\.__format__|captures graph tensor|"
        r"has no attribute 'numpy'",
        "A tensor of a traced step has no value in Python: inside the step, use functions of TensorFlow; to have the "
        "number later, return it in the logs of the step, or assign it to a tf.Variable.",
    ),
    (
        r"Iterating over a symbolic `?tf.Tensor`? is not allowed",
        "Python takes a tensor for a list: apply_gradients takes zip(gradients, model.trainable_variables), and a loop "
        "over a tensor is one of tf.map_fn, or of operations on all of it.",
    ),
    (
        r"[Uu]sing a symbolic `?tf.Tensor`? as a Python `bool`|using a `?tf.Tensor`? as a Python `bool`",
        "An `if` or `while` depends on a tensor where AutoGraph cannot convert it: use tf.cond or tf.where.",
    ),
    (
        r"tf.function only supports singleton tf.Variables|tf.function-decorated function tried to create variables",
        "A step creates variables: create layers, metrics and variables in build_model, build_metrics or __init__.",
    ),
    (
        r"Detected unsupported operations when trying to compile.*?: (\w+) \(No registered",
        "XLA cannot compile the operation {0}, as none of strings or of Python: move it to build_inputs, or set "
        "runtime.enable_xla=false, in a Program jit_compile=False.",
    ),
    (
        r"cannot compute \S+ as input #\d+\(zero-based\) was expected to be a \w+ tensor but is a \w+ tensor|"
        r"[Ii]nput '\w+' of '\w+' Op has type \w+ that does not match type \w+",
        "Two tensors have different dtypes: convert one with tf.cast.",
    ),
    (
        r"None values not supported|to be differentiated, but received None|Attempt to convert a value \(None\)|"
        r"Tried to convert '\w+' to a tensor and failed|Length for attr 'output_\w+' of 0 must be at least|"
        r"'NoneType' object is not (?:iterable|subscriptable|callable)|argument of type 'NoneType'|"
        r"'NoneType' object has no attribute|not 'NoneType'",
        "A value is None: does a function, or one that map() is given, end without `return`?",
    ),
    (r"OOM when allocating tensor", "The device has no memory left: use a smaller global_batch_size."),
)
"""A pattern of a message, behind the class of its error, and what that means: the first one counts."""

_OF_DATA = (
    (
        r"Received a label value of (-\d+) which is outside the valid range",
        "Labels are counted from 0, and the data holds {0}: map the labels where the data is read.",
    ),
    (
        r"Received a label value of (\S+) which is outside the valid range of \[0, (\d+)\)",
        "The model has {1} classes, so labels are below {1}, and the data holds {0}: map the labels "
        "where the data is read, or give the last layer more units.",
    ),
    (
        r"Cast string to (\w+) is not supported|Unable to cast.*string|Value for attr 'T' of string",
        "The data holds strings where numbers are needed: map them in build_inputs, for example with a StringLookup "
        "layer or tf.strings.to_number. With the type of a column in column_types, CSV says which row is no number.",
    ),
    (
        r"StringToNumberOp could not correctly convert string|Field \d+ (?:in record|is required)|"
        r"Expect \d+ fields but|(?:JPEG|PNG|GIF|BMP|image) (?:data|header|file)",
        "A value, a line or a file of the data cannot be parsed.",
    ),
    (
        r"Feature: (\S+) \(data type: \w+\) is required but could not be found|"
        r"Key: (\S+?)\.\s+(?:Data types don't match|Can't parse serialized Example|Number of \w+ values)",
        "A record has no feature {0}{1} of the type and length that parse_fn reads: the file has another schema.",
    ),
    (
        r"indices\[[\d, ]*\] = (-?\d+) is not in \[0, (\d+)\)",
        "What looks rows up, an Embedding or tf.gather, has {1} of them, numbered from 0, and is asked for {0}: "
        "give it more rows (input_dim of an Embedding), or map the numbers where the data is read.",
    ),
    (
        r"`generator` yielded an element of shape \((.*?),?\) where an element of shape \((.*?),?\) was expected",
        "The generator yields shape [{0}], and its output_signature says [{1}]: change one of them.",
    ),
    (
        r"Cannot batch tensors with different shapes in component \d+\. First element had shape (\[.*?\]) and "
        r"element \d+ had shape (\[.*?\])",
        "Examples of one batch differ in shape, {0} and {1}: bring all to one shape, or use padded_batch.",
    ),
)
"""The same, where the data is at fault."""


def meaning_of(error: BaseException) -> tuple[str, bool]:
    """Returns what an error probably means, in a sentence or two, and whether the data is at fault.

    Args:
      error: the one that was raised first, before Keras and AutoGraph added text.

    Returns:
      An empty text if the meaning is unknown.
    """
    if near := _near(error):
        return f"Did you mean {' or '.join(near)}?", False
    text = f"{type(error).__name__}: {text_of(error)}"
    for table in (_OF_CODE, _OF_DATA):
        for pattern, meaning in table:
            if match := re.search(pattern, text, re.DOTALL):
                return meaning.format(*(group or "" for group in match.groups())), table is _OF_DATA
    if isinstance(error, AttributeError) and dataclasses.is_dataclass(error.obj) and not isinstance(error.obj, type):
        names = [field.name for field in dataclasses.fields(error.obj)]
        return f"{type(error.obj).__name__} has the fields {', '.join(names)}.", False
    return "", False


def swap_of(error: BaseException, batch: str) -> str:
    """Returns what to say if a batch, `features int64[32], labels float32[32,13]`, is the wrong way round; else ""."""
    wanted = re.search(r"xpected shape[ =]\(None, ([\d, ]+)\)", text_of(error))
    if wanted is None or not re.search(rf"labels \w+\[[\d?]+,{wanted[1].replace(' ', '')}\]", batch):
        return ""
    return "The labels have the shape of the model's input: have build_inputs yield (features, labels), in this order."


def _near(error: BaseException) -> list[str]:
    """Returns the names that an unknown one may be a misspelling of."""
    name: object = getattr(error, "name", None)
    options: set[str] = set()
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1:]
    if isinstance(error, AttributeError) and name:
        options = {*dir(error.obj)}
    elif isinstance(error, NameError):
        options = {*dir(builtins)}.union(*((*frame.f_locals, *frame.f_globals) for frame in frames))
    elif isinstance(error, KeyError) and error.args:
        name = error.args[0]
        mappings = [value for frame in frames for value in frame.f_locals.values() if isinstance(value, dict)]
        options = {key for mapping in mappings for key in mapping if isinstance(key, str)}
    if not isinstance(name, str):
        return []
    near = nearest(name, [option for option in options if not option.startswith("__") and option != name])
    return [repr(option) if isinstance(error, KeyError) else option for option in near][:_MOST_NAMES]
