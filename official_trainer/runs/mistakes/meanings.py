"""What known messages of TensorFlow, Keras and Python probably mean in a task, and whether the data is at fault.

Owns: the table, and an error's message in one line. Does not own: where the error was raised. Imports no TensorFlow.
"""

from __future__ import annotations

import builtins
import dataclasses
import re
import types
from collections.abc import Iterable, Sequence

from official_trainer.errors import first_line, text_of
from official_trainer.nearest import nearest
from official_trainer.runs.mistakes.frames import copies_of

_MOST_NAMES = 5
_CONVERTED = re.compile(r"outer_factory\.<locals>\.inner_factory\.<locals>\.tf__")
"""In front of the name of a function that AutoGraph has converted."""


@dataclasses.dataclass(frozen=True)
class Meaning:
    """What an error probably means.

    Attributes:
      text: in a sentence or two; empty if it is unknown.
      is_data: whether the data is at fault; None if the meaning does not tell.
    """

    text: str = ""
    is_data: bool | None = None


_DATA = (
    (
        r"Received a label value of (\S+) which is outside the valid range of \[0, 1\)",
        "The model returns one number for each example, so that {0} is no class of it: give the last layer one unit "
        "for each class; or for yes and no, use binary_crossentropy.",
        False,
    ),
    (
        r"Received a label value of (-\d+) which is outside the valid range",
        "Labels are counted from 0, and the data holds {0}: map the labels where the data is read.",
        True,
    ),
    (
        r"Received a label value of (\S+) which is outside the valid range of \[0, (\d+)\)",
        "The model has {1} classes, so labels are below {1}, and the data holds {0}: map the labels "
        "where the data is read, or give the last layer more units.",
        True,
    ),
    (
        r"Cast string to (\w+) is not supported|Unable to cast.*string|Value for attr 'T' of string",
        "The data holds strings where numbers are needed: map them in build_inputs, for example with a StringLookup "
        "layer or tf.strings.to_number. With the type of a column in column_types, CSV says which row is no number.",
        True,
    ),
    (
        r"StringToNumberOp could not correctly convert string: (.*)",
        "The data holds '{0}' where a number is expected.",
        True,
    ),
    (
        r"Field \d+ (?:in record|is required)|Expect \d+ fields but|(?:JPEG|PNG|GIF|BMP|image) (?:data|header|file)",
        "A line or a file of the data cannot be parsed.",
        True,
    ),
    (
        r"Feature: (\S+) \(data type: (\w+)\) is required but could not be found",
        "A record has no feature {0}: the file was written with another schema than parse_fn reads.",
        True,
    ),
    (
        r"Key: (\S+?)\.\s+(Data types don't match|Can't parse serialized Example|Number of \w+ values)",
        "The feature {0} of a record has another type or length than parse_fn reads: the file has another schema.",
        True,
    ),
    (
        r"indices\[[\d, ]*\] = \d+ is not in \[0, \d+\)\s+\[\[\{\{node \S*big_bird_attention",
        "BigBird draws blocks over max_position_embeddings, and an example has fewer tokens: set "
        "max_position_embeddings of its encoder to the length of the examples, seq_length.",
        False,
    ),
    (
        r"indices\[[\d, ]*\] = (-?\d+) is not in \[0, (\d+)\)",
        "What looks rows up, an Embedding or tf.gather, has {1} of them, numbered from 0, and is asked for {0}: "
        "give it more rows (input_dim of an Embedding), or map the numbers where the data is read.",
        True,
    ),
    (
        r"`generator` yielded an element of shape \((.*?),?\) where an element of shape \((.*?),?\) was expected",
        "The generator yields shape [{0}], and its output_signature says [{1}]: change one of them.",
        True,
    ),
    (
        r"Cannot batch tensors with different shapes in component \d+\. First element had shape (\[.*?\]) and "
        r"element \d+ had shape (\[.*?\])",
        "Examples of one batch differ in shape, {0} and {1}: bring all to one shape, or use padded_batch.",
        True,
    ),
    (
        r"value returned by pyfunc_\d+ is (\w+), but expects (\w+)",
        "The function given to tf.numpy_function returns {0}, and Tout says {1}: convert its result with .astype.",
        False,
    ),
    (
        r"Could not parse example input",
        "A record is no tf.train.Example: the file was written in another way than parse_fn reads.",
        True,
    ),
)

_CODE = (
    (
        r"Detected unsupported operations when trying to compile.*?: (\w+) \(No registered",
        "XLA cannot compile the operation {0}, as none of strings or of Python: move it to build_inputs, or set "
        "runtime.enable_xla=false, in a Program jit_compile=False.",
    ),
    (
        r"Length for attr 'output_\w+' of 0 must be at least",
        "A function given to map() returns nothing: is a `return` missing?",
    ),
    (
        r"Iterating over a symbolic `?tf.Tensor`? is not allowed",
        "Python takes a tensor for a list: apply_gradients takes zip(gradients, model.trainable_variables), and a loop "
        "over a tensor is one of tf.map_fn, or of operations on all of it.",
    ),
    (
        r"Graph disconnected: cannot obtain value",
        "The outputs depend on an input that keras.Model is not given: name all of them, as in keras.Model([a, b], …).",
    ),
    (
        r"has no attribute '(?:task_config|logging_dir)'",
        "A Task with an __init__ of its own has to call super().__init__(params, **options) in it.",
    ),
    (
        r"update_state\(\) (?:takes|got an unexpected|missing)",
        "A metric is called as update_state(y_true, y_pred); others, and sample_weight, need defaults.",
    ),
    (
        r"must be an instance of class Layer\. Received: layer=.* of type <class 'keras\.|<tf_keras\.\S+ object at|"
        r"must be KerasTensors\. .*<class 'tf_keras\.|"
        r"'tuple' object has no attribute 'rank'|'KerasTensor' object has no attribute 'node'",
        "Layers of Keras 2, that is tf_keras, and of Keras 3 are in one model: take all of them from `import keras`, "
        "or all from `from official_trainer.lazy import keras`.",
    ),
    (
        r"None values not supported|to be differentiated, but received None|"
        r"Attempt to convert a value \(None\)|Tried to convert '\w+' to a tensor and failed",
        "A value is None where a tensor is needed: a function without `return`, or a loss that is not there.",
    ),
    (
        r"does not apply preprocessing, but the model received string input",
        "A Task calls a model of KerasHub without its preprocessor: call it in build_inputs, and build the model with "
        "preprocessor=None.",
    ),
    (
        r"No gradients provided for any variable",
        "The loss does not depend on the weights: compute it inside the GradientTape, from outputs of the model, with "
        "functions of TensorFlow.",
    ),
    (
        r"Can ?not squeeze dim\[[-\d]+\], expected a dimension of 1, got \d+|`output` must have rank|"
        r"`target` and `output` must have the same (?:rank|shape\. )|"
        r"Shapes \(.*?\) and \(.*?\) are incompatible",
        "Labels and outputs do not fit: `sparse_…` takes class numbers [batch] and outputs [batch, classes]; without "
        "`sparse_`, both have the same shape.",
    ),
    (
        r"`?logits`? and `?labels`? must have the same (first dimension|shape)|`labels.shape` must equal|"
        r"`target` and `output` must have the same shape up until",
        "Labels and outputs do not fit: compare their shapes below.",
    ),
    (
        r"Input (\S+) of layer \"([^\"]+)\" is incompatible with the layer: expected shape=\(([^)]*)\), found "
        r"shape=\(([^)]*)\)",
        "The model was built for {0} of shape [{2}], and the batch holds [{3}]: change keras.Input, or the data.",
    ),
    (
        r"expected axis (-?\d+) of input shape to have value (\d+), but received input with shape \(?([^)]*)\)?",
        "A layer was built for inputs of size {1}, and gets [{2}]: change keras.Input, or the data.",
    ),
    (
        r"Missing data for input \"([^\"]+)\"",
        "The model has an input {0}, which is no feature of the batch: give both the same names.",
    ),
    (
        r"Layer \"([^\"]+)\" expects (\d+) input\(s\), but it received (\d+)",
        "The model takes {1} inputs, and the batch holds {2}: give keras.Model the features that build_inputs yields.",
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
        r"KerasTensor|Keras symbolic input",
        "A tensor between the layers of a model stands for no batch: name it among the outputs of keras.Model, and "
        "take it from what the model returns.",
    ),
    (
        r"Using a symbolic `?tf.Tensor`? as a Python `bool`|using a `?tf.Tensor`? as a Python `bool`",
        "An `if` or `while` depends on a tensor where AutoGraph cannot convert it: use tf.cond or tf.where.",
    ),
    (
        r"(?:Dict|dict)['\"]? object has no attribute|unsupported operand type\(s\) .*'dict'|"
        r"Expected any non-tensor type, but got a tensor instead|"
        r"Attempt to convert a value \(\{.*to a Tensor|value \(\{.*with an unsupported type \(<class 'dict'>\)",
        "A dictionary stands where a tensor is expected, of outputs or of labels: take one by its name, in "
        "build_losses and, for metrics, in process_metrics.",
    ),
    (
        r"tf.function only supports singleton tf.Variables|tf.function-decorated function tried to create variables",
        "A step creates variables: create layers, metrics and variables in build_model, build_metrics or __init__.",
    ),
    (
        r"Dimensions must be equal, but are (\d+) and (\d+)|Incompatible shapes: (\[[^]]*\]) vs\. (\[[^]]*\])|"
        r"required broadcastable shapes|Matrix size-incompatible",
        "Two tensors have shapes that do not go together: compare them below.",
    ),
    (
        r"Cannot reshape a tensor with (\d+) elements|Input to reshape is a tensor with (\d+) values",
        "A reshape does not fit the size of its tensor: -1 leaves one dimension open, as for the batch.",
    ),
    (
        r"cannot compute \S+ as input #\d+\(zero-based\) was expected to be a (\w+) tensor but is a (\w+) tensor|"
        r"[Ii]nput '\w+' of '\w+' Op has type (\w+) that does not match type (\w+)",
        "Two tensors have different dtypes: convert one with tf.cast.",
    ),
    (
        r"'NoneType' object is not (iterable|subscriptable|callable)|argument of type 'NoneType'|"
        r"'NoneType' object has no attribute",
        "A value is None: does a function end without `return`?",
    ),
    (r"OOM when allocating tensor", "The device has no memory left: use a smaller global_batch_size."),
)


def meaning_of(error: BaseException, frames: Sequence[types.FrameType] = ()) -> Meaning:
    """Returns what an error probably means.

    Args:
      error: what was raised.
      frames: running frames, whose names may be meant where one is unknown.
    """
    first = copies_of(error)[-1]
    text = _with_names_of_inputs(f"{type(first).__name__}: {text_of(first)}", frames)
    for pattern, meaning, is_data in _DATA:
        if found := re.search(pattern, text):
            return Meaning(meaning.format(*_groups(found)), is_data)
    if near := _meant(first, frames):
        return Meaning(f"Did you mean {' or '.join(near)}?")
    for pattern, meaning in _CODE:
        if found := re.search(pattern, text, re.DOTALL):
            return Meaning(meaning.format(*_groups(found)))
    if isinstance(first, AttributeError) and dataclasses.is_dataclass(first.obj) and not isinstance(first.obj, type):
        names = [field.name for field in dataclasses.fields(first.obj)]
        return Meaning(f"{type(first.obj).__name__} has the fields {', '.join(names)}.")
    return Meaning()


def _with_names_of_inputs(text: str, frames: Sequence[types.FrameType]) -> str:
    """Returns a message of Keras with the name of a model's input in place of its number, if the model is at hand."""
    found = re.search(r"Input (\d+) of layer \"([^\"]+)\"", text)
    models = [frame.f_locals["model"] for frame in frames if "model" in frame.f_locals] if found else []
    for model in models:
        names = getattr(model, "input_names", None) or []
        if found is not None and getattr(model, "name", "") == found[2] and int(found[1]) < len(names):
            return text.replace(f"Input {found[1]} of", f"Input '{names[int(found[1])]}' of")
    return text


def _groups(found: re.Match[str]) -> list[str]:
    return [group or "" for group in found.groups()]


def _meant(error: BaseException, frames: Sequence[types.FrameType]) -> list[str]:
    """Returns the names that an unknown one may be a misspelling of."""
    name = getattr(error, "name", None)
    options: Iterable[str] = ()
    if isinstance(error, AttributeError) and name:
        options = dir(error.obj)
    elif isinstance(error, NameError) and name and frames:
        options = [*frames[-1].f_locals, *frames[-1].f_globals, *dir(builtins)]
    elif isinstance(error, TypeError):
        return re.findall(r"Did you mean '(\w+)'", str(error))
    elif isinstance(error, KeyError) and error.args and frames:
        name = error.args[0]
        mappings = [value for value in frames[-1].f_locals.values() if isinstance(value, dict)]
        options = [key for mapping in mappings for key in mapping if isinstance(key, str)]
    if not isinstance(name, str):
        return []
    near = nearest(name, [option for option in options if not option.startswith("__") and option != name])
    return [repr(each) if isinstance(error, KeyError) else each for each in near][:_MOST_NAMES]


def in_one_line(error: BaseException, frames: Sequence[types.FrameType] = ()) -> str:
    """Returns class and message of the error that was raised first, with the model's names, without those of nodes."""
    first = copies_of(error)[-1]
    text = _CONVERTED.sub("", _with_names_of_inputs(first_line(first), frames))
    name = type(first).__name__
    return text if text.startswith(f"{name}: ") else f"{name}: {text}" if text else name
