"""T17: gin. What may be bound and when, and what a run keeps of it."""

import hashlib
import json
import logging
import re
import shutil
import sys
from pathlib import Path

import gin
import pytest

from official_trainer import config as configuration
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.config import ConfigError, schema
from official_trainer.engine import consistency
from official_trainer.errors import ExitCode
from official_trainer.garden import gin_bindings
from official_trainer.lazy import keras
from official_trainer.runs import run
from official_trainer.runs.resume.config_changes import ConfigChangeError
from official_trainer.tasks import registry
from tests.support import jobs, toy
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


def text(model_dir, name):
    return Path(model_dir, f"{name}.gin").read_text()


def record(model_dir):
    return json.loads(Path(model_dir, "run.json").read_text())


def do(model_dir, *params, files=(), sets=(), mode="train", **kwargs):
    keras.backend.clear_session()
    sets = ("trainer.export.at_end=false", *sets)
    resolved = configuration.resolve(registry.get_config("toy_gin"), experiment="toy_gin", sets=sets)
    bindings = gin_bindings.read(files, params)
    return jobs.run("toy_gin", resolved, mode=mode, model_dir=str(model_dir), quiet=True, gin=bindings, **kwargs)


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


def test_bindings_of_code_stay_and_those_of_a_run_go(model_dir, monkeypatch):
    """T17: a second run in the process starts from what the first one found; processes compare their bindings."""
    compared = []
    monkeypatch.setattr(consistency, "check", lambda peers, facts: compared.append(facts()))
    gin.bind_parameter("toy_names.second", "kept")
    try:
        do(model_dir, "toy_units.units = 4")
        assert gin.query_parameter("toy_names.second") == "kept"
        with pytest.raises(ValueError, match="toy_units"):
            gin.query_parameter("toy_units.units")
        assert "toy_names.second = 'kept'" in text(model_dir, "config.train")
        assert compared[0]["gin toy_units.units"] == "4"
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
    """T17: the run's own file has the bindings; an evaluator beside training keeps its own, under its mode's name."""
    do(model_dir, "toy_units.units = 4")
    do(model_dir, "toy_units.units = 4", mode="continuous_eval")
    assert "inner/toy_units.units = 4" in text(model_dir, "operative_config.continuous_eval")
    assert "toy_units.units = 4" in text(model_dir, "config.continuous_eval")
    caplog.clear()
    resolved = configuration.resolve(registry.get_config("toy_gin"), experiment="toy_gin")
    own = gin_bindings.read([f"{model_dir}/config.train.gin"], ())
    jobs.export("toy_gin", resolved, model_dir=model_dir, gin=own)
    do(model_dir, mode="eval", files=[f"{model_dir}/config.train.gin"])
    assert not [line for line in warned(caplog) if "other gin bindings" in line]
    with pytest.raises(Exception, match="shape"):
        do(model_dir, mode="eval")
    said = [line for line in warned(caplog) if "other gin bindings" in line]
    assert said == [
        f"checkpoint 20 was saved under other gin bindings; --gin_file={model_dir}/config.train.gin has them:\n"
        "  gin toy_units.units: 4 -> not bound"
    ]
    assert not Path(model_dir, "config.eval.gin").exists(), "eval changes nothing in the run directory"


def test_check_binds_too(model_dir):
    """T17: the step that is tried is that of training."""
    keras.backend.clear_session()
    resolved = configuration.resolve(registry.get_config("toy_gin"), experiment="toy_gin")
    bindings = gin_bindings.read((), ["toy_units.units = 4"])
    steps = list(jobs.check("toy_gin", resolved, mode="train", model_dir=model_dir, gin=bindings))
    assert [step.error for step in steps] == [None] * len(steps)
    build = next(step for step in steps if step.name == "build")
    assert build.outcome.startswith(f"{6 * 4 + 4 + 4 * 3 + 3} trainable parameters")


# Going on with a run.


def test_other_bindings_are_a_change_that_has_to_be_allowed(ten_steps):
    """T17, N9: named with both values, their place, and the way back."""
    before = text(ten_steps, "config.train")
    with pytest.raises(ConfigChangeError) as caught:
        do(ten_steps, "toy_units.units = 4\ninner/toy_units.units = 4\ntoy_guarded.open = 'x'")
    said = str(caught.value)
    assert "May change which weights there are" in said
    assert "  gin inner/toy_units.units: not bound -> 4\n" in said
    assert "gin toy_units.units:" not in said
    assert "leave out the binding of inner/toy_units.units" in said
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
    assert "  gin toy_units.units: 4 -> not bound\n" in str(caught.value)
    back = re.search(r"add --gin_params '(.*?)'", str(caught.value))[1]
    with gin_bindings.in_force(gin_bindings.read((), [back])):  # pasted as it is, it binds what the run had
        assert gin.query_parameter("toy_units.units") == 4


def test_a_run_that_goes_on_without_bindings_keeps_no_file_of_them(model_dir):
    """T17: a file that says what is bound says it of the run as it is now."""
    do(model_dir, "toy_guarded.open = 3", sets=["trainer.train_steps=10"])
    do(model_dir, allow_config_change=True)
    assert not list(Path(model_dir).glob("*.gin"))
    assert record(model_dir)["gin"] is None


# What may be bound.


UNBOUND = [
    ("toy_unit.units = 1", r"No configurable matching 'toy_unit'\. In bindings string line 1 toy_unit\.units = 1"),
    ("toy_units.unit = 1", r"Configurable 'toy_units' doesn't have a parameter named 'unit'\. .* line 1"),
    ("twins.x = 1", r"Ambiguous selector 'twins', matches"),
    ("toy_guarded.secret = 3", r"Configurable 'toy_guarded' has denylisted kwarg 'secret'"),
    ("\ntoy_names.first = @toy_unitz()", r"No configurable matching reference '@toy_unitz\(\)'\. .* line 2"),
    ("toy_names.first = %size", r"No bindings specified for 'size/gin\.macro'"),
    ("import no_such_module_at_all", r"No module named 'no_such_module_at_all' In bindings string line 1"),
    ("toy_names.first = %gin.REQUIRED", r"toy_names\.first set to `%gin\.REQUIRED` but not subsequently"),
    ("a.b = true", r"Failed to parse token 'true' \(line 1\)"),
    ("a.b 3", r"Couldn't parse statement, expected ':' or '='\. \(line 1\)"),
    ("a.b = [1,\n 2", r"EOF in multi-line statement \(line \d\)"),
    ("f.x = " + "[" * 5000 + "]" * 5000, r"nested"),
]


def test_what_cannot_be_bound():
    """T17: unknown bindings are errors, with gin's words, the line and the flag."""
    for params, said in UNBOUND:
        assert re.search(f"--gin_params: gin: .*{said}", refused(params)), params[:40]


def test_files_are_named_with_the_line(tmp_path, monkeypatch):
    """T17: also one that another one includes, and one whose brackets stay open."""
    monkeypatch.chdir(tmp_path)
    Path("blocks.gin").write_text("# of b\n\ntoy_units:\n    units = 3\n    unitz = 3\n")
    Path("model.gin").write_text("include 'blocks.gin'\n")
    Path("open.gin").write_text("\na.b = [1,\n")
    Path("loop.gin").write_text("include 'loop.gin'\n")
    Path("bytes.gin").write_bytes(b"\xff\xfe")
    said = refused(files=["model.gin"])
    assert "--gin_file=model.gin: gin: Configurable 'toy_units' doesn't have a parameter named 'unitz'" in said
    assert 'In file "blocks.gin", line 5' in said
    assert re.search(r"--gin_file=open.gin: gin: .*\(line \d\)", refused(files=["open.gin"]))
    assert "--gin_file=loop.gin: gin: brackets or files are nested too deep" in refused(files=["loop.gin"])
    assert "--gin_file=bytes.gin: gin: 'utf-8' codec can't decode" in refused(files=["bytes.gin"])
    assert "--gin_file=none.gin: gin: Unable to open file: none.gin" in refused(files=["none.gin"])


def test_a_file_in_the_home_directory(tmp_path, monkeypatch):
    """T17: `~`, which gin itself does not know."""
    (tmp_path / "a.gin").write_text("toy_names.first = 1\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    with gin_bindings.in_force(gin_bindings.read(["~/a.gin"], ())):
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
