"""T17: gin. What may be bound and when, what a run keeps of it, and what is said of bindings that do nothing."""

import hashlib
import logging
import re
import shutil
import sys
from pathlib import Path

import gin
import pytest
from official.core import config_definitions

from official_trainer import config as configuration
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.config import Config, ConfigError, schema
from official_trainer.engine import consistency
from official_trainer.errors import ExitCode
from official_trainer.garden import gin_bindings
from official_trainer.lazy import keras
from official_trainer.runs import run
from official_trainer.runs.resume.config_changes import ConfigChangeError
from official_trainer.tasks import registry
from tests.support import toy
from tests.support.garden.operative_config import record, text
from tests.support.runs import values


@gin.configurable
def toy_units(units=8, name="hidden"):
    """What the model of `GinTask` is made of."""
    if units < 0:
        raise ValueError("a negative number of units")
    return units


@gin.configurable
def toy_names(first, second="b"):
    return first, second


@gin.configurable("twins", module="one")
def twins_of_one(x=0):
    return x


@gin.configurable("twins", module="two")
def twins_of_two(x=0):
    return x


@gin.configurable(denylist=["secret"])
def toy_guarded(secret=1, open=2):
    return secret, open


@gin.configurable
class ToySection(Config):
    """A config section that somebody has given to gin."""


gin.external_configurable(config_definitions.DataConfig, "GardenDataConfig")


class GinConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(GinConfig)
class GinTask(toy.ToyTask):
    """The toy task with as many hidden units as gin says."""

    def build_model(self):
        with gin.config_scope("inner"):
            units = toy_units(name="said by the caller")
        inputs = keras.Input((6,), name="features")
        hidden = keras.layers.Dense(units, "tanh", name="hidden")(inputs)
        return keras.Model(inputs, keras.layers.Dense(3, name="logits")(hidden))


@registry.register_config_factory("toy_gin")
def toy_gin():
    """Twenty steps."""
    base = toy.experiment(steps_per_loop=10, checkpoint_interval=10, validation_interval=20)
    task = GinConfig(
        train_data=schema.DataConfig(global_batch_size=10), validation_data=schema.DataConfig(global_batch_size=32)
    )
    return base.replace(task=task, trainer=base.trainer.replace(train_steps=20))


@pytest.fixture(autouse=True)
def _gin_is_given_back():
    """No test, whatever way it ends, leaves a binding."""
    yield
    assert not gin.config_is_locked()
    assert gin.config_str() == ""


def do(model_dir, *params, files=(), sets=(), mode="train", **kwargs):
    keras.backend.clear_session()
    sets = ("trainer.export.at_end=false", *sets)
    resolved = configuration.resolve(registry.get_config("toy_gin"), experiment="toy_gin", sets=sets)
    bindings = gin_bindings.read(files, params)
    return run.run("toy_gin", resolved, mode=mode, model_dir=str(model_dir), quiet=True, gin=bindings, **kwargs)


def num_units(model_dir, step=20):
    found = [value for name, value in values(model_dir, step).items() if "bias" in name and "OPTIMIZER" not in name]
    return max(len(value) for value in found)


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    """A run of ten steps with four units."""
    model_dir = tmp_path_factory.mktemp("gin") / "run"
    do(model_dir, "toy_units.units = 4", sets=["trainer.train_steps=10"])
    return model_dir


@pytest.fixture
def ten_steps(trained_once, model_dir):
    """A directory with the run of ten steps."""
    shutil.copytree(trained_once, model_dir)
    return model_dir


def bind(*params, files=()):
    """Binds as a run does, with nothing in it."""
    with gin_bindings.in_force(gin_bindings.read(files, params)):
        pass


def refused(*params, files=()):
    with pytest.raises(ConfigError) as caught:
        bind(*params, files=files)
    assert caught.value.exit_code == ExitCode.CONFIG
    return str(caught.value)


def warned(caplog):
    return [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]


# What a run does with bindings.


def test_a_bound_argument_is_used_and_what_was_used_is_kept(model_dir, tmp_path):
    """T17: in Model Garden's file, with checksums in run.json; parameters come after files."""
    (tmp_path / "a.gin").write_text("toy_units.units = 5\n")
    do(model_dir, "toy_units.units = 13", files=[str(tmp_path / "a.gin")])
    assert num_units(model_dir) == 13
    assert "\ntoy_units.units = 13\n" in text(model_dir, "config.train")
    operative = text(model_dir, "operative_config.train")
    assert "\ninner/toy_units.units = 13\n" in operative
    assert "build_optimizer.use_legacy_optimizer = True" in operative, "Model Garden's own functions are there too"
    assert record(model_dir)["gin"] == {
        "config_sha256": hashlib.sha256(text(model_dir, "config.train").encode()).hexdigest(),
        "operative_config_sha256": hashlib.sha256(operative.encode()).hexdigest(),
    }


def test_without_the_flags_gin_is_left_alone(model_dir):
    """T17: nothing is written, and empty flags say nothing."""
    do(model_dir, "", files=[""])
    assert num_units(model_dir) == 8
    assert not list(Path(model_dir).glob("*.gin"))
    assert record(model_dir)["gin"] is None


def test_bindings_of_code_stay_and_those_of_a_run_go(model_dir):
    """T17: a second run in the process starts from what the first one found."""
    gin.bind_parameter("toy_names.second", "kept")
    try:
        do(model_dir, "toy_units.units = 4")
        assert gin.query_parameter("toy_names.second") == "kept"
        with pytest.raises(ValueError, match="toy_units"):
            gin.query_parameter("toy_units.units")
        assert "toy_names.second = 'kept'" in text(model_dir, "config.train")
    finally:
        gin.clear_config()


def test_a_run_that_fails_while_it_is_built_leaves_what_it_used(model_dir):
    """T17: Model Garden writes the file after training, so a failed run has none."""
    with pytest.raises(ValueError, match="a negative number of units"):
        do(model_dir, "toy_units.units = -1")
    assert "inner/toy_units.units = -1" in text(model_dir, "operative_config.train")
    assert record(model_dir)["status"] == "failed"
    assert set(record(model_dir)["gin"]) == {"config_sha256", "operative_config_sha256"}


def test_export_and_eval_say_when_a_checkpoint_had_other_bindings(model_dir, caplog):
    """T17: its model may be another one; the run's own file has the bindings."""
    do(model_dir, "toy_units.units = 4")
    caplog.clear()
    resolved = configuration.resolve(registry.get_config("toy_gin"), experiment="toy_gin")
    own = gin_bindings.read([f"{model_dir}/config.train.gin"], ())
    run.export("toy_gin", resolved, model_dir=model_dir, gin=own)
    do(model_dir, mode="eval", files=[f"{model_dir}/config.train.gin"])
    assert not [line for line in warned(caplog) if "other gin bindings" in line]
    with pytest.raises(Exception, match="shape"):
        do(model_dir, mode="eval")
    said = [line for line in warned(caplog) if "other gin bindings" in line]
    assert said == [
        f"checkpoint 20 was saved under other gin bindings; --gin_file={model_dir}/config.train.gin has them:\n"
        "  gin tests.integration.garden.test_gin_bindings.toy_units.units: 4 -> not bound"
    ]
    assert not Path(model_dir, "config.eval.gin").exists(), "eval changes nothing in the run directory"


def test_an_evaluator_beside_training_keeps_its_own(model_dir):
    """T17: under its mode's name, as Model Garden's is."""
    do(model_dir, "toy_units.units = 4")
    do(model_dir, "toy_units.units = 4", mode="continuous_eval")
    assert "inner/toy_units.units = 4" in text(model_dir, "operative_config.continuous_eval")
    assert "toy_units.units = 4" in text(model_dir, "config.continuous_eval")


def test_check_binds_too(model_dir, caplog):
    """T17: what training would warn of is known after a minute."""
    keras.backend.clear_session()
    resolved = configuration.resolve(registry.get_config("toy_gin"), experiment="toy_gin")
    bindings = gin_bindings.read((), ["toy_units.units = 4\ntoy_names.second = 'x'"])
    steps = list(run.check("toy_gin", resolved, mode="train", model_dir=model_dir, gin=bindings))
    assert [step.error for step in steps] == [None] * len(steps)
    build = next(step for step in steps if step.name == "build")
    assert build.outcome.startswith(f"{6 * 4 + 4 + 4 * 3 + 3} trainable parameters")
    assert warned(caplog)[-1].startswith("--gin_params: gin binding toy_names.second = 'x' had no effect")


# Going on with a run.


def test_other_bindings_are_a_change_that_has_to_be_allowed(ten_steps):
    """T17, N9: named with both values, their place, and the way back."""
    before = text(ten_steps, "config.train")
    with pytest.raises(ConfigChangeError) as caught:
        do(ten_steps, "toy_units.units = 4\ninner/toy_units.units = 4\ntoy_guarded.open = 'x'")
    said = str(caught.value)
    assert "May change which variables there are" in said
    assert (
        "  gin inner/tests.integration.garden.test_gin_bindings.toy_units.units: not bound -> 4 (--gin_params)\n"
        in said
    )
    assert "gin tests.integration.garden.test_gin_bindings.toy_units.units:" not in said
    assert "leave out the binding of inner/tests.integration.garden.test_gin_bindings.toy_units.units" in said
    assert text(ten_steps, "config.train") == before, "a refused start changes nothing"
    do(ten_steps, "inner/toy_units.units = 4", allow_config_change=True)
    assert committed_steps(ten_steps) == (10, 20)
    assert "inner/toy_units.units = 4" in text(ten_steps, "config.train")


def test_leaving_the_bindings_out_is_refused_before_tensorflow(ten_steps):
    """T17, N9: nothing has to be imported to see it."""
    resolved = configuration.resolve(registry.get_config("toy_gin"), experiment="toy_gin")
    from official_trainer.runs.job import Job

    job = Job(experiment="toy_gin", resolved=resolved, model_dir=ten_steps, mode="train")
    with pytest.raises(ConfigChangeError) as caught:
        run.check_startable(job)
    assert "  gin tests.integration.garden.test_gin_bindings.toy_units.units: 4 -> not bound\n" in str(caught.value)
    assert "add --gin_params 'tests.integration.garden.test_gin_bindings.toy_units.units = 4'" in str(caught.value)


def test_the_way_back_that_is_named_works(ten_steps):
    """T17, N9: pasted as it is, it goes on."""
    with pytest.raises(ConfigChangeError) as caught:
        do(ten_steps, "toy_units.units = 5")
    back = re.search(r"--gin_params '(.*?)'", str(caught.value))[1]
    do(ten_steps, "toy_units.units = 5", back)
    assert num_units(ten_steps) == 4


def test_a_run_that_goes_on_without_bindings_keeps_no_file_of_them(model_dir):
    """T17: a file that says what is bound says it of the run as it is now."""
    do(model_dir, "toy_guarded.open = 3", sets=["trainer.train_steps=10"])
    do(model_dir, allow_config_change=True)
    assert not list(Path(model_dir).glob("*.gin"))
    assert record(model_dir)["gin"] is None


# What may be bound.


@pytest.mark.parametrize(
    ("params", "said"),
    [
        (
            "toy_unit.units = 1",
            r"--gin_params: toy_unit: gin has no function of this name; .* did you mean 'toy_units'\?",
        ),
        ("a.b.toy_units.units = 1", r"a\.b\.toy_units: gin has no function of this name; .* `import MODULE`"),
        ("toy_units.unit = 1", r"toy_units\.unit: toy_units has no argument 'unit'; allowed: units, name; .*'units'\?"),
        ("x/toy_units.uni = 1", r"x/toy_units\.uni: toy_units has no argument"),
        ("twins.x = 1", r"twins: several functions have this name; allowed: one\.twins, two\.twins"),
        ("toy_guarded.secret = 3", r"toy_guarded\.secret: Configurable 'toy_guarded' has denylisted kwarg 'secret'"),
        (
            "toy_names.first = @toy_unitz()",
            r"toy_unitz: gin has no function of this name; .* did you mean 'toy_units'\?",
        ),
        ("toy_names.first = [1, {'a': @toy_unitz}]", r"toy_unitz: gin has no function of this name"),
        ("toy_names.first = %size", r"%size: no macro or constant has this name; add size = VALUE"),
        (
            "ToySection.x = 1",
            r"ToySection\.x: ToySection is a section of the configuration, .* set it in YAML, or with",
        ),
        (
            "GardenDataConfig.global_batch_size = 3",
            r"GardenDataConfig is a section of the configuration, which gin never",
        ),
        ("import no_such_module_at_all", r"cannot be imported: ModuleNotFoundError: No module named 'no_such_module"),
        ("toy_names.first = %gin.REQUIRED", r"gin: toy_names\.first set to `%gin\.REQUIRED` but not subsequently"),
        (
            "from __gin__ import dynamic_registration\nnowhere.f.x = 1",
            r"nowhere\.f: 'nowhere' was not provided by an import statement",
        ),
    ],
)
def test_what_cannot_be_bound(params, said):
    """T17: unknown bindings are errors, with the place, what is allowed, and the nearest match."""
    assert re.search(said, refused(params))


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ("a.b = true", r"true is not a value; allowed: True, None, .* did you mean 'True'\?\n.*a\.b = true\n +\| +\^"),
        ("a.b = adam", r"adam is not a value; .* put text in quotes: 'adam'"),
        ("a.b = ", r"the value is missing; allowed: True, None"),
        ("a.b = 'x", r"(the value is missing|unterminated string literal).*\n.*a\.b = 'x\n +\| {20}\^"),  # from 3.12 on
        ("a.b 3", r"not gin's syntax: Couldn't parse statement, expected ':' or '='; write function\.argument = value"),
        ("a.b = [1,\n 2", r"not gin's syntax: (unexpected )?EOF in multi-line statement"),
        ("a:\n    b = 1\n  c = 2", r"not gin's syntax: unindent does not match any outer indentation level"),
    ],
)
def test_what_is_not_gin(params, said):
    """T17: said before TensorFlow is imported, with a caret."""
    with pytest.raises(ConfigError, match=said):
        gin_bindings.read((), [params])


def test_all_that_is_wrong_is_said_at_once_with_files_and_lines(tmp_path):
    """T17: in files, their includes and the parameters."""
    (tmp_path / "b.gin").write_text("# of b\n\ntoy_units:\n    units = 3\n    unitz = 3\n")
    (tmp_path / "a.gin").write_text(f"include '{tmp_path}/b.gin'\ntoy_unitz.x = 1\n")
    said = refused("toy_names.third = 3", files=[str(tmp_path / "a.gin")])
    assert said.startswith("3 problems in the configuration\n")
    assert f"{tmp_path}/b.gin:5: toy_units.unitz: toy_units has no argument 'unitz'" in said
    assert "    5 |     unitz = 3\n      |     ^" in said
    assert f"{tmp_path}/a.gin:2: toy_unitz: gin has no function of this name" in said
    assert "--gin_params: toy_names.third: toy_names has no argument 'third'" in said


def test_files_that_are_not_there(tmp_path, monkeypatch):
    """T17: a missing include too, for which gin itself fails with an AttributeError."""
    monkeypatch.chdir(tmp_path)
    Path("model.gin").write_text("include 'blocks.gin'\n")
    Path("loop.gin").write_text("include 'loop.gin'\n")
    Path("bytes.gin").write_bytes(b"\xff\xfe")
    Path("folder.gin").mkdir()
    with pytest.raises(ConfigError) as caught:
        gin_bindings.read(["mode.gin", "/no/such.gin", "model.gin", "loop.gin", "bytes.gin", "folder.gin"], ())
    lines = [line for line in str(caught.value).splitlines() if "gin:" in line or "gin_file:" in line]
    relative = "a relative path starts at the current directory, an importable package, or a search path of gin"
    assert lines == [
        f"--gin_file: there is no file 'mode.gin'; {relative}; did you mean 'model.gin'?",
        "--gin_file: there is no file '/no/such.gin'",
        f"model.gin:1: there is no file 'blocks.gin'; {relative}",
        "loop.gin:1: 'loop.gin' includes itself; remove the include",
        "--gin_file: 'bytes.gin' cannot be read: it is not text",
        "--gin_file: 'folder.gin' is a directory; name a file",
    ]


@pytest.mark.parametrize("where", ["home", "package", "search path"])
def test_where_files_are_looked_up(where, tmp_path, monkeypatch):
    """T17: `~`, packages and gin's own search paths."""
    folder = tmp_path / "gin_package"
    folder.mkdir()
    (folder / "a.gin").write_text("toy_names.first = 1\n")
    name = {"home": "~/gin_package/a.gin", "package": "gin_package/a.gin", "search path": "a.gin"}[where]
    monkeypatch.setenv("HOME", str(tmp_path))
    if where == "package":
        monkeypatch.syspath_prepend(tmp_path)
    if where == "search path":
        monkeypatch.setattr(gin.config, "_LOCATION_PREFIXES", ["", str(folder)])
    with gin_bindings.in_force(gin_bindings.read([name], ())):
        assert toy_names() == (1, "b")


def test_without_gin_the_way_to_install_it_is_said(monkeypatch):
    """T17: who never passes the flags does not need it."""
    monkeypatch.setitem(sys.modules, "gin", None)
    with pytest.raises(
        ConfigError, match=r"--gin_file and --gin_params need gin.*; pip install 'gin-config>=0\.5,<0\.6'"
    ):
        gin_bindings.read((), ["a.b = 1"])


def test_the_rest_of_gins_language(tmp_path):
    """T17: macros, constants, references, blocks, scopes, lines, imports, dynamic registration."""
    (tmp_path / "mine.py").write_text("def plain(x=0, y=0):\n    return x, y\n")
    gin.constant("toy_gin.SIZE", 7)
    try:
        params = "size = 3\ntoy_names.first = [%size, @toy_units(), (1,), {'a': -1}]\ntoy_names.second = %toy_gin.SIZE"
        more = "a/toy_units:\n  units = 11\n\ntwo.twins.x = @a/toy_units()"
        with gin_bindings.in_force(gin_bindings.read((), [params, more])):
            assert toy_names() == ([3, 8, (1,), {"a": -1}], 7)
            assert (twins_of_one(), twins_of_two()) == (0, 11)
        sys.path.insert(0, str(tmp_path))
        with gin_bindings.in_force(
            gin_bindings.read((), ["from __gin__ import dynamic_registration\nimport mine", "mine.plain.x = 5"])
        ):
            import mine

            assert gin.get_configurable(mine.plain)() == (5, 0)
            assert "import mine" in gin.config_str()
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("mine", None)
        gin.clear_config(clear_constants=True)


# What came to nothing.


def said_of(params, use, caplog):
    caplog.clear()
    with gin_bindings.in_force(gin_bindings.read((), [params])):
        use()
    return [line.removeprefix("--gin_params: gin binding ") for line in warned(caplog)]


def within(scope, function, *args, **kwargs):
    def use():
        with gin.config_scope(scope):
            function(*args, **kwargs)

    return use


@pytest.mark.parametrize(
    ("params", "use", "said"),
    [
        ("toy_units.units = 3", toy_units, []),
        ("toy_units.units = 3", lambda: None, ["toy_units.units = 3 had no effect: nothing has called the function"]),
        (
            "toy_units.units = 3",
            lambda: toy_units(4),
            ["toy_units.units = 3 had no effect: it is bound in gin but passed explicitly by the code that calls the "
             "function"],
        ),
        ("toy_units.units = 3", lambda: (toy_units(4), toy_units()), []),
        (
            "train/toy_units.units = 3",
            within("eval", toy_units),
            ["train/toy_units.units = 3 had no effect: nothing that gin configures was called in a scope 'train'"],
        ),
        ("train/toy_units.units = 3", within("train/deeper", toy_units), []),
        (
            "train/toy_units.units = 3",
            within("train", toy_guarded),
            ["train/toy_units.units = 3 had no effect: nothing has called the function"],
        ),
        (
            "toy_units.units = 3\na/toy_units.units = 4",
            within("a", toy_units),
            ["toy_units.units = 3 had no effect: another binding takes precedence in every scope in which the "
             "function was called"],
        ),
        ("size = 3\ntoy_units.units = %size", toy_units, []),
        ("size = 3", toy_units, ["size = 3 had no effect: nothing refers to it"]),
        ("toy_names.first = @toy_units", toy_names, []),
    ],
)  # fmt: skip
def test_what_had_no_effect_is_said(params, use, said, caplog):
    """T17: with the reason; a call with explicit arguments beats gin without a word otherwise."""
    assert said_of(params, use, caplog) == said


def test_the_place_of_what_had_no_effect(tmp_path, caplog):
    """T17: the file and the line that bind it last."""
    (tmp_path / "a.gin").write_text("\ntoy_units.units = 3\n\ntoy_units.units = 4\n")
    bind(files=[str(tmp_path / "a.gin")])
    assert warned(caplog) == [
        f"{tmp_path}/a.gin:4: gin binding toy_units.units = 4 had no effect: nothing has called the function"
    ]


def test_nothing_is_said_of_a_run_that_failed(caplog):
    """T17: much was not called yet."""
    with pytest.raises(KeyError), gin_bindings.in_force(gin_bindings.read((), ["toy_units.units = 3"])):
        raise KeyError
    assert warned(caplog) == []


# Several processes.


def test_processes_compare_their_bindings(model_dir, monkeypatch):
    """T17: workers that were not told the same do not train together."""
    seen = []
    monkeypatch.setattr(consistency, "check", lambda peers, facts: seen.append(facts()))
    do(model_dir, "inner/toy_units.units = 3", sets=["trainer.train_steps=10"])
    assert seen[0]["gin inner/tests.integration.garden.test_gin_bindings.toy_units.units"] == "3"
