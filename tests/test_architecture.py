"""The house is as `docs/architecture.md` says: who imports whom, sizes, what importing does, which rows are proven."""

import ast
import dataclasses
import io
import json
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENGINE = ROOT / "official_trainer"
TEMPLATE = ENGINE / "template"
PATHS = sorted(path for path in ENGINE.rglob("*.py") if TEMPLATE not in path.parents)

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 40
MAX_PARAMETERS = 6

# Each exception has its reason and its own limit; one that is no longer needed fails, so that it gets removed.
LONG_MODULES = {
    "config/optimization.py": (520, "a catalogue: one small class for each optimizer and schedule, no logic"),
}
MANY_PARAMETERS = {
    "driver.py run_experiment": (14, "the signature is Model Garden's"),
    "program/checkpoint.py ProgramCheckpoint.__init__": (10, "the signature is Keras's"),
    "program/compiled.py Compiled.compile": (11, "the signature is Keras's, with rewards"),
    "program/program.py Program.evaluate": (8, "the signature is Keras's"),
    "program/program.py Program.fit": (16, "the signature is Keras's"),
    "run.py run": (11, "the public entry: one keyword for each flag of the command line, and who stops it"),
    "trainer.py Trainer.__init__": (10, "the signature is Model Garden's, and the named validation sets"),
}


def name_of(path):
    return str(path.relative_to(ENGINE))


def room_of(path):
    """Returns `cli/` for a module of a package, `loop.py` for any other."""
    parts = path.relative_to(ENGINE).parts
    return f"{parts[0]}/" if len(parts) > 1 else parts[0]


ROOMS = {room_of(path) for path in PATHS} - {"__init__.py"}
_PLAIN = {room.rstrip("/").removesuffix(".py"): room for room in ROOMS}


def rooms_imported(path):
    """Returns the rooms of this package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative imports hide where an arrow points"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            package, _, rest = name.partition(".")
            if package == "official_trainer" and rest.split(".")[0] in _PLAIN:
                found.add(_PLAIN[rest.split(".")[0]])
    return found


@dataclasses.dataclass(frozen=True)
class Room:
    """One row of the table."""

    imports: frozenset
    imports_tensorflow: bool


def read_table():
    """Returns the rows of the table of rooms in docs/architecture.md, from top to bottom."""
    rows = {}
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.split("## The rooms, and who may import whom")[1].split("\n## ")[0]
    for row in re.findall(r"^\| `([\w/.]+)` \| .*? \|(.*?)\| (yes|no) \|$", section, flags=re.MULTILINE):
        room, imports, tensorflow = row
        names = re.findall(r"`(\w+)`", imports)
        rows[room] = Room(frozenset(_PLAIN[name] for name in names), tensorflow == "yes")
    return rows


TABLE = read_table()


def test_every_room_is_in_the_table():
    """A new module gets its row in the same commit."""
    assert TABLE.keys() == ROOMS


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_imports_what_its_row_says(room):
    """No more, and no less: a right that nobody uses is taken away."""
    used = set().union(*(rooms_imported(path) for path in PATHS if room_of(path) == room)) - {room}
    assert used == TABLE[room].imports


EXPERIMENTS_IMPORT = {
    "config/",
    "inputs/",
    "lazy.py",
    "multi_task.py",
    "publish.py",
    "random_streams.py",
    "registry.py",
    "results.py",
    "task.py",
}
COMMANDS = {"__main__.py", "cli/", "run.py"}
COMPOSITION = {
    "driver.py",
    "following.py",
    "predicting.py",
    "preflight.py",
    "training.py",
    "worker.py",
    "build.py",
    "program/",
}


def test_arrows_point_down():
    """A row names rows below it only."""
    place = {room: number for number, room in enumerate(TABLE)}
    assert not [(room, below) for room, row in TABLE.items() for below in row.imports if place[below] <= place[room]]


def test_only_the_composition_root_knows_the_engine():
    """What is built, and what the builder is made of, never know who builds them."""
    above = COMPOSITION | COMMANDS
    assert {room for room, row in TABLE.items() if row.imports & above} <= above
    assert {room for room, row in TABLE.items() if "loop.py" in row.imports} == {"training.py", "program/"}
    assert {room for room, row in TABLE.items() if "trainer.py" in row.imports} == COMPOSITION
    contracts = {"action.py", "errors.py", "stopping.py", "triggers.py", "config/", "modes.py", "tracking/"}
    assert TABLE["loop.py"].imports <= contracts | {"hooks.py", "pace.py", "recovery.py"}
    for room in ("config/", "tracking/", "files.py", "record.py", "manifest.py", "stopping.py", "triggers.py"):
        assert not TABLE[room].imports & {"trainer.py", "loop.py", "job.py", "registry.py", "inputs/"}, room


@pytest.mark.parametrize(
    "path",
    [*sorted((ROOT / "experiments").rglob("*.py")), *sorted((TEMPLATE / "experiments").rglob("*.py"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_experiments_know_contracts_only(path):
    """An experiment can be read, listed and copied without the engine."""
    assert rooms_imported(path) <= EXPERIMENTS_IMPORT


# What importing does.

_WATCH = """
import importlib, json, os, sys
done, own = [], sys.argv[1]
def watch(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        inside = isinstance(path, str) and os.path.abspath(path).startswith(own)
        if writes or (inside and not path.endswith((".py", ".pyc"))):
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


def dotted(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def light_modules():
    """Returns the dotted names of the modules that the table says import no TensorFlow."""
    rooms = {room for room, row in TABLE.items() if not row.imports_tensorflow} | {"__init__.py"}
    return [dotted(path) for path in PATHS if room_of(path) in rooms and path.name != "__main__.py"]


def imported(names, folder):
    command = [sys.executable, "-B", "-c", _WATCH, str(ROOT), *names]
    environ = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_does_nothing_and_needs_no_tensorflow(tmp_path):
    """N7: every module that the table says is light; no file, network, process or environment is touched."""
    names = light_modules()
    assert {"official_trainer.runs.run", "official_trainer.tasks.task", "official_trainer.cli.train"} <= set(names)
    found = imported(names, tmp_path)
    assert found == {"done": [], "heavy": []}
    assert not list(tmp_path.iterdir())


def test_the_watch_sees_what_it_should(tmp_path):
    """The test above can fail."""
    (tmp_path / "busy.py").write_text("import os, numpy\nopen('x', 'w').close()\nos.environ['A'] = '1'\n")
    found = imported(["busy"], tmp_path)
    assert [event for event, *_ in found["done"]][-2:] == ["open", "os.putenv"]
    assert "numpy" in found["heavy"]


# Size, names, docstrings.


def code_lines(source):
    """Returns the numbers of lines that hold code: no comments, no blank lines, no docstrings."""
    lines = set()
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, docstring.end_lineno + 1))
    return lines


def functions(path):
    """Yields (qualified name, node) of every function of a file."""

    def walk(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{prefix}{child.name}", child
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            yield from walk(child, f"{prefix}{child.name}." if named else prefix)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), "")


def over_limit(sizes, limit, exceptions):
    """Returns what is too large, and what has an exception that it does not need."""
    too_large = {name: size for name, size in sizes.items() if size > exceptions.get(name, (limit,))[0]}
    needless = [name for name in exceptions if sizes.get(name, 0) <= limit]
    return too_large, needless


def test_modules_are_short():
    """At most 400 lines."""
    sizes = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in PATHS}
    assert over_limit(sizes, MAX_MODULE_LINES, LONG_MODULES) == ({}, [])


def test_functions_are_short():
    """At most 40 lines of code."""
    sizes = {}
    for path in PATHS:
        lines = code_lines(path.read_text(encoding="utf-8"))
        for name, node in functions(path):
            sizes[f"{name_of(path)} {name}"] = len(lines & set(range(node.lineno, node.end_lineno + 1)))
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


def test_names_say_something():
    """No file for leftovers, no function that may or may not do what it is called."""
    files = [path.name for folder in (ENGINE, ROOT / "experiments", ROOT / "tests") for path in folder.rglob("*.py")]
    assert not [name for name in files if re.fullmatch(r"(utils?|common|helpers?|misc|base_\w+)\.py", name)]
    contract = {"best.py BestCheckpoint.maybe_export_checkpoint"}  # Model Garden's exporter is called so
    vague = {f"{name_of(path)} {name}" for path in PATHS for name, _ in functions(path) if "maybe_" in name}
    assert vague == contract


def test_every_module_says_what_it_owns():
    """In its docstring; the package itself shows the flow, `__main__` is four lines."""
    silent = [
        name_of(path)
        for path in PATHS
        if "Owns: " not in (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
    ]
    assert silent == ["__init__.py", "__main__.py"]


def test_modules_named_in_docstrings_exist():
    """Beside the module, in the engine, or in the repository."""
    stale = [
        f"{name_of(path)}: {name}"
        for path in PATHS
        for name in re.findall(r"`([\w/]+\.py)`", ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
        if not any((folder / name).exists() for folder in (path.parent, ENGINE, ROOT))
    ]
    assert not stale


# The state of each feature.


@dataclasses.dataclass(frozen=True)
class Feature:
    """One row of docs/features.md."""

    state: str
    tested_in: tuple


def read_features():
    rows = {}
    for line in (ROOT / "docs" / "features.md").read_text(encoding="utf-8").splitlines():
        if match := re.fullmatch(r"\| ([TGBKCN]\d+) \| .+? \| (works|partly|not yet)(?:: .+?)? \|(.*)\|", line):
            assert match[1] not in rows, match[1]
            rows[match[1]] = Feature(match[2], tuple(re.findall(r"`([\w/]+\.py)`", match[3])))
    return rows


def rows_named():
    """Returns row id → files of tests (without `tests/`) with a test whose docstring names it."""
    named = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, node in functions(path):
            if name.rpartition(".")[2].startswith("test_"):
                for row in re.findall(r"\b[TGBKCN]\d+\b", ast.get_docstring(node) or ""):
                    named.setdefault(row, set()).add(str(path.relative_to(ROOT / "tests")))
    return named


def test_the_page_of_features_has_every_row():
    """A row without a state is a promise nobody keeps."""
    counts = {"T": 21, "G": 16, "B": 11, "K": 7, "C": 6, "N": 25}
    assert read_features().keys() == {f"{kind}{i}" for kind, count in counts.items() for i in range(1, count + 1)}


def test_what_works_is_proven_and_what_is_proven_is_said():
    """A row that works, wholly or partly, is named by a test in each file that the page gives, and vice versa."""
    named = rows_named()
    for row, feature in read_features().items():
        if feature.state == "not yet":
            assert not feature.tested_in, row
        else:
            assert feature.tested_in, row
            assert set(feature.tested_in) <= named.get(row, set()), row
    assert named.keys() <= {row for row, feature in read_features().items() if feature.state != "not yet"}
