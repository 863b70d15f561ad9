"""What this package uses of others without a public name: what a new release may move or change.

Not listed is what is found from a public name: the modules of operations (`keyed_draws.attribute_of`), those of the
reader of checkpoints (`first_weights.py`), classes of protocol buffers (`lazy.message`), of graphs (`keyed_draws.py`);
and what is replaced, which docs/design/patches.md lists.
"""

import ast
import re

from tests.support.source import ENGINE, PATHS, nodes_of

PRIVATE = {
    "checkpoints/matching.py": {"python.training.saving.saveable_object_util"},
    "checkpoints/store.py": {"python.checkpoint.functional_saver"},
    "tasks/keyed_draws.py": {"python.eager.context"},
}
"""Modules of TensorFlow, by module of this package, where a comment says why. One that is used no longer fails."""

ATTRIBUTES = {
    "TensorFlow": {
        "__internal__": "AutoGraph for a function that the traced one calls; `tf.autograph` has its own context",
        "_allow_run_without_coordinator": "evaluations of a chief run there; else each call writes a warning",
        "_cluster": "one worker, which the coordinator offers to no caller",
        "_cluster_resolver": "of ParameterServerStrategy, whose public property `cluster_resolver` is None",
        "_functions": "whether the function of a `map` draws; a dataset has no public way to its functions",
        "_gather_serialized_tensors": "the values of a checkpoint at this step; `write` reads and writes at once",
        "_rng": "the generator of operations' seeds, see `_seed`",
        "_seed": "`tf.random.set_seed` drops resources of others, and nothing reads what it has set",
        "_value_specs": "what one replica gets; a distributed dataset says what all get together",
    },
    "tf_keras, Keras 3": {
        *("_SEED_GENERATOR", "_built", "_create_all_weights"),
        *("_flatten_layers", "_fn", "_generator", "_hyper", "_hypers_created", "_initial_epoch"),
        *("_is_graph_network", "_keras_logits", "_learning_rate", "_loss_tracker"),
        *(
            "_compile_metrics",
            "_maybe_load_initial_counters_from_ckpt",
            "_non_trainable_variables",
            "_output_names",
            "_rng_type",
            "_seed_generators",
        ),
        *(
            "_steps_per_execution",
            "_symbolic_build",
            "_test_counter",
            "_train_counter",
            "_trainable_variables",
            "_user_loss_weights",
        ),
        *("_user_losses", "_user_weighted_metrics", "_value"),
    },
    "Model Garden": {
        *("_REGISTERED_CONFIGS", "_crop_size", "_eval_options", "_min_resize", "_num_frames", "_optimizer"),
        *("_output_audio", "_restrictions", "_sp_tokenizer", "_stride"),
    },
    "Python": {
        *("_ActionsContainer", "_ArgumentGroup", "_action_groups", "_exit", "_fields", "_getframe"),
        "_run_exitfuncs",
    },
    "Optuna": {"_trial_id"},
    "Hugging Face Datasets": {"_fingerprint"},
}
"""Private attributes that this package reads or sets, by the library; those of TensorFlow with the reason."""


def private_names(nodes):
    """Returns the modules below `tensorflow.python`, `.core`, … that a source imports, or names in a string."""
    said = []
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            said.append(node.value)
        elif isinstance(node, ast.Import):
            said += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.startswith("tensorflow.") and node.module.endswith(("protobuf", ".python", ".ops"))
            said += [f"{node.module}.{each.name}" for each in node.names] if parts else [node.module]
    found = (re.fullmatch(r"tensorflow\.((?:python|core|compiler|tsl|lite)\.[\w.]+)", each) for each in said)
    return {each[1] for each in found if each}


def names_in(nodes):
    """Returns the private names that a source gives to something: those of functions, variables, attributes."""
    named = set()
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            named.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            named.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            named.add(node.attr)
    return named


def is_self(node):
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_attributes(nodes, own):
    """Returns the private attributes in a source that it does not name, nor `own`, those of all sources, for `self`."""
    here, found = names_in(nodes), set()
    for node in nodes:
        if isinstance(node, ast.Attribute):
            found |= {node.attr} - (own if is_self(node.value) else here)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            found |= {node.args[1].value} - here if isinstance(node.args[1], ast.Constant) else set()
    return {each for each in found if re.match(r"_[^_]|__internal__", each)}


def test_the_private_modules_of_tensorflow_are_these():
    found = {path.relative_to(ENGINE).as_posix(): private_names(nodes_of(path)) for path in PATHS}
    assert {name: names for name, names in found.items() if names} == PRIVATE
    assert sum(map(len, PRIVATE.values())) <= 4, "each has to be looked up again for each release of TensorFlow"


def test_the_private_attributes_are_these():
    own = set().union(*(names_in(nodes_of(path)) for path in PATHS))
    found = set().union(*(private_attributes(nodes_of(path), own) for path in PATHS))
    listed = [name for names in ATTRIBUTES.values() for name in names]
    assert found - set(listed) == set(), "not listed"
    assert set(listed) - found == set(), "listed, and used no more"
    assert len(listed) == len(set(listed)), "listed twice"
    assert len(ATTRIBUTES["TensorFlow"]) <= 9, "each has to be looked up again for each release of TensorFlow"


SPELLINGS = (
    ("mapped._functions()", {"_functions"}),
    ("getattr(spec, '_value_specs', ())", {"_value_specs"}),
    ("tf.__internal__.autograph", {"__internal__"}),
    ("class A(theirs.A):\n    def f(self): return self._theirs", {"_theirs"}),
    ("eager._seed = 1", {"_seed"}),
    ("class A:\n    def __init__(self): self._own = 1\n    def f(self, other): return other._own", set()),
    ("class A(B):\n    def f(self): return self._of_b", set()),
    ("thing.__name__", set()),
)


def test_a_private_attribute_is_seen_in_each_spelling():
    for source, names in SPELLINGS:
        assert private_attributes([*ast.walk(ast.parse(source))], {"_of_b", "_own"}) == names


def test_a_private_module_is_seen_in_each_spelling():
    for source, names in {
        "from tensorflow.core.protobuf import saved_model_pb2": {"core.protobuf.saved_model_pb2"},
        "import tensorflow.python.ops.gen_image_ops as ops": {"python.ops.gen_image_ops"},
        "ops = load('tensorflow.python.ops.gen_image_ops')": {"python.ops.gen_image_ops"},
        "import tensorflow as tf\ntf.compat.v1.train\nload('tensorflow')": set(),
    }.items():
        assert private_names(ast.walk(ast.parse(source))) == names
