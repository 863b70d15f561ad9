"""The house is as `docs/design/architecture.md` says: imports, sizes, what importing does, which rows are proven."""

import ast
import dataclasses
import functools
import io
import json
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import grimp
import pytest

from tests import ROOT
from tests.support.source import ENGINE, PATHS, TEMPLATE, nodes_of, tree_of

MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 6
MAX_ARROWS = 36
MAX_METHODS, MAX_FIELDS = 20, 12
MOST_METHODS = 25
"""Above this no reason helps."""

CORE = {
    *("actions", "checkpoints", "cli", "config", "distributed", "engine", "garden", "inputs", "processes", "runs"),
    *("tasks", "tracking"),
}
SATELLITES = {"formats", "launch", "program", "reports", "sources", "sweeps"}

MAX_LINES = {
    **{"formats": 800, "launch": 2350, "program": 4450, "reports": 2000, "sources": 1250, "sweeps": 2050},
    **{"tasks": 7400, "runs": 5700, "engine": 5450, "config": 6050, "inputs": 3450, "cli": 2900, "tracking": 3050},
    **{"actions": 2150, "checkpoints": 2500, "distributed": 2000, "garden": 1500, "processes": 1000},
}
"""The most lines of a package, `.py` and `.pyi`. A change that needs more says why in its commit."""
MAX_TEST_LINES = 62_350
"""The most lines of all tests and what they share."""

# Each exception has its reason and its own limit; one that is no longer needed fails, so that it gets removed.
MANY_PARAMETERS = {
    "engine/trainer.py Trainer.__init__": (10, "the signature is Model Garden's, and the named validation sets"),
    "program/checkpoint.py ProgramCheckpoint.__init__": (10, "the signature is Keras's"),
    "program/loop.py exponential": (7, "the signature is GoMLX's"),
    "program/program.py Program.compile": (10, "the signature is Keras's, with rewards"),
    "program/program.py Program.evaluate": (8, "the signature is Keras's"),
    "program/program.py Program.fit": (16, "the signature is Keras's"),
    "runs/from_python.py run": (10, "one for each flag of `train` that a program has a use for"),
    "program/run_experiment.py run_experiment": (15, "the signature is Model Garden's, and one name more"),
}


def name_of(path):
    return str(path.relative_to(ENGINE))


def dotted(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(module):
    """Returns `tasks` for `official_trainer.tasks.task`; nothing for the whole package."""
    return f"{module}.".split(".")[1]


# Packages, and who may import whom. The contracts themselves are in pyproject.toml.


def test_the_import_contracts_hold():
    """Imports go downwards only, and no circle exists between files or packages."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_there_are_twelve_packages_around_which_are_satellites():
    """A new package, or a new arrow in the core, needs a reason in docs/design/architecture.md."""
    graph = grimp.build_graph("official_trainer", cache_dir=None)
    assert {path.parent.name for path in ENGINE.glob("*/__init__.py")} == CORE | SATELLITES
    arrows = {
        (package_of(module), package_of(imported))
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    }
    assert len([(a, b) for a, b in arrows if a != b and {a, b} <= CORE]) <= MAX_ARROWS
    assert len(list(ENGINE.glob("*.py"))) <= 12


STRINGS = {
    "cli/verbs/__init__.py": "the name of a group of entry points",
    "cli/verbs/train.py": "a part that can be taken away",
    "config/components.py": "a component is a file of `actions`, `tracking` or `sources`, or an entry point of a group",
    "config/optimization.py": "the names of two groups of entry points",
    "config/schema.py": "the name of a group of entry points",
    "launch/targets/__init__.py": "the name of a group of entry points",
    "processes/forked.py": "what the process imports that others are forked from",
    "processes/training_imports.py": "the modules that it imports in turn",
    "runs/build.py": "a part that can be taken away",
    "runs/job.py": "a part that can be taken away",
    "tasks/sources.py": "the name of a group of entry points",
    "tracking/mlflow.py": "the name of a tag",
}
"""Modules that name a module of this package in a string: an import that the contracts do not see."""


def test_no_module_is_imported_by_a_string_unseen():
    """A string that names a module of this package has its reason above."""
    found = set()
    for path in PATHS:
        names_one = re.search(r"[\"']official_trainer", path.read_text(encoding="utf-8"))
        for node in nodes_of(path) if names_one else ():
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if re.match(r"official_trainer\.\w*$|official_trainer(\.\w+)+$", text):
                found.add(name_of(path))
    assert found == STRINGS.keys()


EXPERIMENTS_IMPORT = {"official_trainer", "config", "inputs", "lazy", "tasks"}


@pytest.mark.parametrize(
    "path",
    [*sorted((ROOT / "experiments").rglob("*.py")), *sorted((TEMPLATE / "experiments").rglob("*.py"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_experiments_import_contracts_only(path):
    """An experiment can be read, listed and copied without the engine."""
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "official_trainer":
            found.add((node.module + ".").split(".")[1] or "official_trainer")
    assert found <= EXPERIMENTS_IMPORT


# What importing does.

_WATCH = """
import importlib, json, os, sys
done, own = [], sys.argv[1]
def watch(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        inside = isinstance(path, str) and os.path.abspath(path).startswith(own)
        if writes or (inside and not path.endswith((".py", ".pyc", ".pyi"))):
            done.append([event, str(path)])
    elif event.partition(".")[0] in ("socket", "subprocess", "shutil", "tempfile", "signal"):
        done.append([event])
    elif event in ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.system", "os.putenv", "os.unsetenv"):
        done.append([event])
sys.addaudithook(watch)
for name in sys.argv[2:]:
    importlib.import_module(name)
heavy = sorted({"tensorflow", "tf_keras", "keras", "orbit", "official", "numpy", "rich", "sklearn"} & set(sys.modules))
print(json.dumps({"done": done, "heavy": heavy}))
"""


NEED_TENSORFLOW = {
    *("checkpoints/best.py", "runs/build.py", "runs/check.py", "runs/evaluate.py"),
    *(
        "runs/chosen_checkpoint.py",
        "runs/continuing.py",
        "runs/observer.py",
        "runs/train.py",
        "runs/training_process.py",
        "runs/worker.py",
    ),
    *("tasks/keras/garden3.py", "tasks/keras/keras3.py", "tasks/metrics.py", "tasks/numbers.py"),
    *("tasks/keras/weight_files.py", "tasks/multi_task/model.py", "tasks/vocabularies.py"),
    "processes/training_imports.py",
    "cli/template/experiments/my_experiment.py",  # as a module of a user's, where `import keras` waits until it is used
}
"""Modules that import TensorFlow when they are imported, beside those of `engine/` and `program/`."""

NEED_AN_EXTRA = {f"sweeps/{name}.py" for name in ("distributions", "driver", "plan", "space", "study", "sweep")}
"""Modules that import a package which not every user has."""


def light_modules():
    """Returns the dotted names of the modules that import no TensorFlow."""
    return [
        dotted(path)
        for path in PATHS
        if name_of(path) not in NEED_TENSORFLOW | NEED_AN_EXTRA
        and path.relative_to(ENGINE).parts[0] not in ("engine", "program")
        and path.name != "__main__.py"
    ]


def imported(names, folder):
    command = [sys.executable, "-B", "-c", _WATCH, str(ROOT), *names]
    environ = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_does_nothing_and_needs_no_tensorflow(tmp_path):
    """N7: every module that is light; no file, network, process or environment is touched."""
    names = light_modules()
    assert {"official_trainer.runs.run", "official_trainer.tasks.task", "official_trainer.cli.verbs.train"} <= set(
        names
    )
    found = imported(names, tmp_path)
    assert found == {"done": [], "heavy": []}
    assert not list(tmp_path.iterdir())


# Size, names, docstrings.


def code_lines(path):
    """Returns the numbers of lines that hold code: no comments, no blank lines, no docstrings."""
    source = path.read_text(encoding="utf-8")
    lines = set()
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in nodes_of(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, docstring.end_lineno + 1))
    return lines


@functools.cache
def functions(path):
    """Returns (qualified name, node) of every function of a file."""

    def walk(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{prefix}{child.name}", child
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            yield from walk(child, f"{prefix}{child.name}." if named else prefix)

    return [*walk(tree_of(path), "")]


def over_limit(sizes, limit, exceptions):
    """Returns what is too large, and what has an exception that it does not need."""
    too_large = {name: size for name, size in sizes.items() if size > exceptions.get(name, (limit,))[0]}
    needless = [name for name in exceptions if sizes.get(name, 0) <= limit]
    return too_large, needless


def test_packages_stay_as_small_as_they_are():
    """A package grows only with a reason; one that has shrunk gets a smaller number."""
    lines = dict.fromkeys(CORE | SATELLITES, 0)
    for path in (*ENGINE.glob("*/**/*.py"), *ENGINE.glob("*/**/*.pyi")):
        lines[path.relative_to(ENGINE).parts[0]] += len(path.read_text(encoding="utf-8").splitlines())
    assert lines.keys() == MAX_LINES.keys()
    assert {name: count for name, count in lines.items() if not MAX_LINES[name] - 200 < count <= MAX_LINES[name]} == {}


def test_tests_stay_as_few_as_they_are():
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "tests").rglob("*.py"))
    assert MAX_TEST_LINES - 500 < lines <= MAX_TEST_LINES


def test_functions_are_short():
    """At most 60 lines of code."""
    sizes = {}
    for path in PATHS:
        spans = {name: range(node.lineno, node.end_lineno + 1) for name, node in functions(path)}
        lines = code_lines(path) if any(len(span) > MAX_FUNCTION_LINES for span in spans.values()) else set()
        sizes |= {f"{name_of(path)} {name}": len(lines.intersection(span)) for name, span in spans.items()}
    assert over_limit(sizes, MAX_FUNCTION_LINES, {}) == ({}, [])
    assert len(sizes) > 300


def test_functions_have_few_parameters():
    """At most 6, not counting self and cls."""
    sizes = {}
    for path in PATHS:
        for name, node in functions(path):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            sizes[f"{name_of(path)} {name}"] = len([a for a in arguments if a.arg not in ("self", "cls")])
    assert over_limit(sizes, MAX_PARAMETERS, MANY_PARAMETERS) == ({}, [])


CONTRACTS = {
    # Model Garden's Trainer and orbit's, rows T1 to T9.
    *("train", "evaluate", "train_loop_begin", "next_train_inputs", "train_step", "train_loop_end"),
    *("eval_begin", "next_eval_inputs", "eval_step", "eval_reduce", "eval_end", "initialize", "init_async"),
    *("coordinator_for_async", "join", "create_train_loop_fn", "create_eval_loop_fn", "distribute_dataset"),
    *("strategy", "config", "task", "model", "optimizer", "global_step", "train_loss", "validation_loss"),
    *("train_metrics", "validation_metrics", "checkpoint", "checkpoint_exporter", "train_dataset", "eval_dataset"),
    # Model Garden's Task.
    *("build_model", "build_inputs", "build_losses", "build_metrics", "process_metrics", "process_compiled_metrics"),
    *("validation_step", "inference_step", "aggregate_logs", "reduce_aggregated_logs", "create_optimizer"),
    # Keras's Model, row K.
    *("compile", "fit", "predict", "train_on_batch", "test_on_batch", "predict_on_batch", "compute_metrics"),
    *("compute_loss", "compute_reward", "get_metrics_result", "compile_from_config", "metrics"),
    *("fit_async", "evaluate_async", "predict_async", "load_weights", "load", "save", "history", "metrics_names"),
}
"""Methods that a contract of Model Garden or Keras asks for; those of callbacks begin with `on_`."""


@dataclasses.dataclass(frozen=True)
class Class:
    """A class as its source has it, with what it inherits from our own."""

    docstring: str
    methods: frozenset
    fields: frozenset


def attributes_assigned(node):
    """Yields the names that a class declares, and those that its methods assign to `self`."""
    for child in node.body:
        if isinstance(child, ast.AnnAssign) and "ClassVar" not in ast.unparse(child.annotation):
            yield child.target.id
    for child in ast.walk(node):
        is_assigned = isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store)
        if is_assigned and isinstance(child.value, ast.Name) and child.value.id == "self":
            yield child.attr


def read_classes():
    """Returns every class of the package by `module Class`, but for sections of a config."""
    nodes = {}
    for path in PATHS:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                nodes[f"{name_of(path)} {node.name}"] = node

    def bases(key):
        for base in nodes[key].bases:
            name = base.value if isinstance(base, ast.Subscript) else base
            ours = [other for other in nodes if other.endswith(f" {getattr(name, 'id', '')}")]
            yield from ours[:1]

    def read(key):
        node, inherited = nodes[key], [read(base) for base in bases(key)]
        methods = {child.name for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)}
        counted = {name for name in methods - CONTRACTS if not name.startswith(("on_", "__"))}
        return Class(
            ast.get_docstring(node) or "",
            frozenset(counted).union(*(each.methods for each in inherited)),
            frozenset(attributes_assigned(node)).union(*(each.fields for each in inherited)),
        )

    def is_section(key):
        return key.endswith(("Config", "Profile")) or any(is_section(base) for base in bases(key))

    return {key: read(key) for key in nodes if not is_section(key) and not key.startswith("garden/sect")}


def test_classes_are_small():
    """At most 20 methods and 12 fields, or a line `Size: …` in the docstring that gives the reason; 25 at most."""
    sizes, wrong = {}, []
    for name, found in read_classes().items():
        sizes[name] = len(found.methods)
        is_large = len(found.methods) > MAX_METHODS or len(found.fields) > MAX_FIELDS
        has_reason = re.search(r"^\s*Size: ", found.docstring, flags=re.MULTILINE) is not None
        if has_reason != is_large:
            wrong.append((name, sorted(found.methods), sorted(found.fields)))
    assert over_limit(sizes, MOST_METHODS, {}) == ({}, [])
    assert not wrong
    assert len(sizes) > 300


VAGUE = r"\b(nobody|somebody|no one|someone|anyone|whoever|whichever)\b"


def test_sentences_have_a_subject():
    """At most 15 of the words that hide who does something; the field has a noun for each of them."""
    texts = [
        path.read_text(encoding="utf-8") for path in sorted(ENGINE.rglob("*")) if path.suffix in (".py", ".md", ".sh")
    ]
    assert sum(len(re.findall(VAGUE, text, flags=re.IGNORECASE)) for text in texts) <= 15


def test_names_say_something():
    """No file for leftovers, no function that may or may not do what it is called."""
    files = [path.name for folder in (ENGINE, ROOT / "experiments", ROOT / "tests") for path in folder.rglob("*.py")]
    assert not [name for name in files if re.fullmatch(r"(utils?|common|helpers?|misc|base_\w+)\.py", name)]
    contract = {"checkpoints/best.py BestCheckpoint.maybe_export_checkpoint"}  # Model Garden's exporter is called so
    vague = {f"{name_of(path)} {name}" for path in PATHS for name, _ in functions(path) if "maybe_" in name}
    assert vague == contract


def test_every_module_says_what_it_owns():
    """In its docstring; the package itself shows the flow, `__main__` is four lines."""
    silent = [name_of(path) for path in PATHS if "Owns: " not in (ast.get_docstring(tree_of(path)) or "")]
    assert silent == ["__init__.py", "__main__.py"]


def test_modules_named_in_docstrings_exist():
    """Beside the module, in the engine, or in the repository."""
    stale = [
        f"{name_of(path)}: {name}"
        for path in PATHS
        for name in re.findall(r"`([\w/]+\.py)`", ast.get_docstring(tree_of(path)) or "")
        if not any((folder / name).exists() for folder in (path.parent, ENGINE, ROOT))
    ]
    assert not stale


# Where tests are.


TESTED_THROUGH = {
    "integration/actions/test_average_checkpoints.py": "actions/batch_norm",
    "integration/checkpoints/test_store.py": (
        "checkpoints/directory checkpoints/leeway checkpoints/manifest checkpoints/matching checkpoints/restore"
    ),
    "integration/engine/test_changed_state.py": "tasks/attached",
    "integration/engine/test_trainer.py": (
        "distributed/collective distributed/strategy engine/checkpoint_state engine/evaluation "
        "engine/measures engine/step_context tasks/keras/keras2 "
        "tasks/keras/weight_files tasks/scopes"
    ),
    "integration/garden/test_index.py": "garden/scan garden/sections garden/spec",
    "integration/inputs/test_arrays.py": "inputs/order",
    "integration/program/test_program.py": (
        "program/compiled_model program/epochs program/keras_fit/keras2 program/running program/trainer"
    ),
    "integration/program/test_program_async.py": "program/async_methods",
    "integration/runs/health/test_time_account.py": "engine/step_clock",
    "integration/runs/test_predict.py": "engine/inference",
    "integration/runs/test_predictions.py": "runs/prediction_formats",
    "integration/runs/test_run.py": "runs/build runs/continuing runs/training_process",
    "integration/sources/test_parquet.py": "inputs/arrow_columns sources/columns",
    "integration/sources/test_tfrecord.py": "sources/paths sources/records",
    "integration/tasks/multi_task/test_task.py": "tasks/multi_task/data tasks/multi_task/model",
    "integration/tasks/test_optimization.py": "config/optimization",
    "system/distributed/test_multi_worker.py": "engine/consistency runs/worker",
    "system/engine/test_trainer_in_hand.py": "inputs/in_hand",
    "system/formats/test_writing.py": "formats/convert formats/readers",
    "unit/launch/test_profiles.py": "launch/job_spec",
    "system/processes/test_forked.py": "processes/training_imports",
    "system/processes/test_local.py": "processes/attempt processes/job processes/output processes/signals",
    "system/program/test_program_keras3.py": "program/keras_fit/keras3",
    "system/runs/test_messages.py": "runs/mistakes/report user_code",
    "system/sweeps/test_sweep.py": "sweeps/from_python sweeps/plan sweeps/rehearsal sweeps/settings",
    "unit/cli/test_flags.py": "cli/parser config/modes",
    "unit/cli/verbs/test_runs.py": "runs/differing runs/recorded",
    "unit/cli/verbs/test_train.py": "cli/verbs/data_service cli/verbs/eval cli/verbs/export cli/verbs/predict",
    "unit/config/test_components.py": "config/installed",
    "unit/config/test_dump.py": "config/multitask config/provenance",
    "unit/config/test_errors.py": "config/checks config/reading config/text errors nearest shown",
    "unit/config/test_references.py": "config/reference_text",
    "unit/distributed/test_cluster.py": "distributed/environment",
    "unit/engine/test_loop.py": "engine/events",
    "unit/launch/targets/test_kubernetes.py": ("launch/targets/kubernetes_profile launch/targets/rendering"),
    "unit/launch/targets/test_tpu.py": "launch/targets/tpu_profile",
    "unit/launch/test_code.py": "launch/spec",
    "unit/launch/test_submit.py": "launch/launches launch/verbs/job",
    "unit/reports/test_page.py": "reports/content",
    "unit/reports/verbs/test_compare.py": "reports/formats reports/measures reports/pair reports/table",
    "unit/sweeps/test_space.py": "sweeps/distributions",
    "unit/sweeps/verbs/test_sweep.py": "sweeps/shown",
    "unit/test_help_text.py": "cli/help_text",
}
"""Test → the modules that have no test file of their own, because they are parts of what it tests."""


def test_the_tests_of_a_module_are_found_by_its_path():
    """`tests/*/P/test_M*.py` are those of `official_trainer/P/M.py`; of any other module the table names one."""
    assert not [name for name in TESTED_THROUGH if not (ROOT / "tests" / name).exists()]
    through = " ".join(TESTED_THROUGH.values()).split()
    assert len(through) == len(set(through))
    stems = {}
    for path in (ROOT / "tests").glob("*/**/test_*.py"):
        stems.setdefault("/".join(path.relative_to(ROOT / "tests").parts[1:-1]), set()).add(path.stem)

    def has_a_file(module):
        folder, _, name = module.rpartition("/")
        return any(stem == f"test_{name}" or stem.startswith(f"test_{name}_") for stem in stems.get(folder, ()))

    modules = {name_of(path.with_suffix("")) for path in PATHS if not path.name.startswith("__")}
    assert {module for module in modules if not has_a_file(module)} == set(through)


# The state of each feature.


def features():
    """Returns row id → state of docs/project/features.md."""
    page = (ROOT / "docs/project/features.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([TGBKCN]\d+) \| .+? \| (works|partly|not yet)(?:: .+?)? \|$", page, re.MULTILINE)
    assert len(rows) == len(dict(rows))
    return dict(rows)


def rows_named():
    """Returns the row ids that the docstrings of tests name."""
    docstring = re.compile(r'def test_\w+\([^)]*\):\n +"""(.*?)"""', re.DOTALL)
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    return {row for text in texts for words in docstring.findall(text) for row in re.findall(r"\b[TGBKCN]\d+\b", words)}


def test_the_page_of_features_has_every_row():
    """A row without a state is a promise nobody keeps."""
    counts = {"T": 27, "G": 20, "B": 15, "K": 9, "C": 6, "N": 54}
    rows = {f"{kind}{i}" for kind, count in counts.items() for i in range(1, count + 1)}
    assert features().keys() == rows - {"N35", "N43", "N47", "N49", "N50"}, "five promises were taken back"


def test_what_works_is_proven_and_what_is_proven_is_said():
    """A row that works, wholly or partly, is named by a test, and no other is."""
    assert rows_named() == {row for row, state in features().items() if state != "not yet"}
