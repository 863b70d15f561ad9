"""What a run exports, where it lies as versions for a server, and that a server never sees a part of one."""

import functools
import json
import shutil
import signal

import pytest
import tensorflow as tf

from official_trainer import files
from official_trainer.actions import Action
from official_trainer.actions.early_stopping import EarlyStoppingConfig
from official_trainer.config import ConfigError, ExportConfig
from official_trainer.config.optimization import EMAConfig
from official_trainer.lazy import keras
from official_trainer.tasks import export
from tests import ROOT
from tests.support import jobs, runs, scripted_runs, shuffled_runs, toy
from tests.support.chaos import disk
from tests.support.forked import Command, run_command, trained_digits

SCORES = (0.5, 0.7, 0.6, 0.65, 0.7, 0.6, 0.6, 0.6)  # the best is that of step 20
KEEPS_BEST = {"best_checkpoint_eval_metric": "score", "ema": EMAConfig(average_decay=0.5), "scores": SCORES}


def about(model_dir, *names):
    return json.loads(files.read_text(files.join(str(model_dir), "export", *names, "export.json")))


def kernels(prefix):
    return {bits for name, bits in runs.bits(prefix).items() if "kernel" in name}


def test_what_a_run_exports_at_its_end_is_one_field(model_dir):
    """T19: the best weights with the results of their step, or the latest; its version is the newest that is there."""
    best = ExportConfig(checkpoint="best", max_to_keep=2)
    scripted_runs.do(model_dir, **KEEPS_BEST, export=best)
    assert files.list_dir(f"{model_dir}/export") == ["20"]
    assert (about(model_dir, "20")["step"], about(model_dir, "20")["metrics"]["score"]) == (20, 0.7)
    assert kernels(f"{model_dir}/export/20/variables/variables") == kernels(f"{model_dir}/best/ckpt-20")
    scripted_runs.do(model_dir, **KEEPS_BEST, export=ExportConfig(max_to_keep=2))
    assert files.list_dir(f"{model_dir}/export") == ["20", "80"]
    scripted_runs.do(model_dir, **KEEPS_BEST, export=best)  # a server that watches the folder goes back to it
    assert files.list_dir(f"{model_dir}/export") == ["20"]


class WeightsAtEnd(Action):
    """Takes the weights that a hook at the end of a run sees."""

    def on_end(self, run, failure):
        self.seen = run.trainer.model.get_weights()


def test_a_run_that_is_killed_before_its_export_exports_the_best(model_dir, monkeypatch):
    """T19, N1, T13: after early stopping, what the command exports, bit by bit; the run keeps its last weights."""
    settings = {"ema": KEEPS_BEST["ema"], "best_checkpoint_eval_metric": "score"}
    settings["export"] = ExportConfig(checkpoint="best")
    stop, hook = EarlyStoppingConfig(monitor="score", patience=3), WeightsAtEnd()
    with scripted_runs.killed(monkeypatch, "after the row", 50):
        scripted_runs.do(model_dir, stop, scores=SCORES, **settings)
    assert not files.exists(f"{model_dir}/export")
    monkeypatch.setattr(scripted_runs.ScriptedTask, "build_actions", lambda task, trainer: [hook])
    scripted_runs.do(model_dir, stop, scores=SCORES, **settings)
    resolved, by_command = scripted_runs.resolve(stop, **settings), f"{model_dir}/by_command"
    jobs.export("scripted", resolved, model_dir=str(model_dir), checkpoint="best", output_dir=by_command)
    of_run, of_command = (
        tf.saved_model.load(path).signatures["serving_default"](features=tf.constant(toy.FEATURES))["logits"].numpy()
        for path in (f"{model_dir}/export/20", by_command)
    )
    assert (of_run == of_command).all()
    assert {value.tobytes() for value in hook.seen} <= set(runs.bits(f"{model_dir}/ckpt-50").values())


def test_the_last_line_of_a_run_says_what_was_exported(model_dir, capsys):
    """T19: beside the best value, which may be of another step."""
    rate = "trainer.optimizer_config.learning_rate={type: constant, constant: {learning_rate: 1.0e-30}}"
    resolved = shuffled_runs.resolve(rate, "trainer.export.checkpoint=best")  # the first one stays the best
    jobs.run("toy_run", resolved, mode="train_and_eval", model_dir=model_dir)
    assert f"at step 40, exported best: {model_dir}" in capsys.readouterr().out


def test_a_run_without_a_best_checkpoint_exports_nothing_as_the_best(model_dir, caplog):
    """T19: a server would take it for the best; the message has the command for later."""
    scripted_runs.do(model_dir, mode="train", **KEEPS_BEST, export=ExportConfig(checkpoint="best"))
    assert not files.exists(f"{model_dir}/export")
    fix = f"official-trainer export --model_dir={model_dir} --checkpoint=best"
    assert "nothing is exported: trainer.export.checkpoint=best" in caplog.text
    assert fix in caplog.text


def test_the_command_writes_beside_what_the_run_exports(model_dir):
    """T19: another checkpoint does not become the version that is served; the run's own choice does."""
    shuffled_runs.do(model_dir)
    kept = files.read_text(f"{model_dir}/export/80/export.json")

    def exports(checkpoint, *sets):
        path = jobs.export("toy_run", shuffled_runs.resolve(*sets), model_dir=model_dir, checkpoint=checkpoint)
        return path.removeprefix(f"{model_dir}/export/")

    best = json.loads(files.read_text(f"{model_dir}/run.json"))["best"]
    assert exports("best") == f"best/{best['step']}"
    assert about(model_dir, "best", str(best["step"]))["metrics"]["accuracy"] == best["value"]
    assert exports("60") == "steps/60"
    assert exports("latest", "trainer.export.checkpoint=best") == "steps/80"
    assert files.list_dir(f"{model_dir}/export") == ["80", "best", "steps"]
    assert exports("latest") == "80"
    assert files.read_text(f"{model_dir}/export/80/export.json") == kept


def test_what_the_run_did_not_write_stays(model_dir):
    """T19, N1: folders and files of others in `export/` are no versions, whatever their names are."""
    shuffled_runs.do(model_dir, "trainer.train_steps=20", mode="train")
    for name in ("7", "20261101", "007", "²"):
        files.make_dirs(f"{model_dir}/export/{name}")
        files.write_text_atomically(f"{model_dir}/export/{name}/mine", "mine")
    files.write_text_atomically(f"{model_dir}/export/42", "mine")
    shuffled_runs.do(model_dir, "trainer.train_steps=40", "trainer.export.max_to_keep=1", mode="train")
    assert set(files.list_dir(f"{model_dir}/export")) == {"40", "7", "20261101", "007", "²", "42"}


def test_an_export_replaces_nothing_but_an_export(tmp_path):
    """T19, N7: a directory of something else is refused before anything is deleted."""
    model_dir = str(tmp_path / "run")
    shuffled_runs.do(model_dir, "trainer.train_steps=20", mode="train")
    (tmp_path / "notes.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    for name, said in (("run", "holds .*, which the export would replace"), ("notes.txt", "name a new folder")):
        with pytest.raises(ConfigError, match=said):
            jobs.export("toy_run", shuffled_runs.resolve(), model_dir=model_dir, output_dir=str(tmp_path / name))
        assert sorted(tmp_path.rglob("*")) == before


def test_no_part_of_a_version_is_ever_visible(tmp_path, monkeypatch):
    """T19, N1: a folder whose name is a number is whole, while one is written, replaced and deleted."""
    trainer, folder, seen = toy.build(toy.experiment()), str(tmp_path / "export"), []

    def look(call):
        def looking(*args, **kwargs):
            for name in files.list_dir(folder) if files.exists(folder) else ():
                if name.isdigit():
                    whole = {"export.json", "fingerprint.pb", "saved_model.pb", "variables"}
                    assert whole <= set(files.list_dir(f"{folder}/{name}"))
                    assert call is not files.remove or args[0] != f"{folder}/{name}"
            seen.append(args[0])
            return call(*args, **kwargs)

        return looking

    for name in ("remove", "rename", "make_dirs", "write_text_atomically"):
        monkeypatch.setattr(files, name, look(getattr(files, name)))
    for step in (3, 3, 7):
        trainer.model.variables[0].assign_add(tf.ones([6, 8]))
        export.save_version(folder, trainer.task, trainer.model, step=step, metrics={}, max_to_keep=1)
    export.delete_after(folder, 5)
    assert files.list_dir(folder) == []
    for step in (3, 7):
        assert any(path.startswith(f"{folder}/{step}.removing-") for path in seen)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A run with an export of its step."""
    folder = tmp_path_factory.mktemp("exported")
    run_dir = trained_digits(folder)
    assert run_command(["export", f"--model_dir={run_dir}"], cwd=ROOT, folder=folder).code == 0
    return run_dir


@pytest.mark.parametrize(
    ("change", "number", "is_new"),
    [("rename to export/20\n", 1, False), ("/export.json\n", 2, True)],  # 1 writes it, 2 removes the older one
    ids=["before", "after"],
)
def test_a_kill_while_an_export_is_replaced_leaves_one_of_the_two(exported, tmp_path, change, number, is_new):
    """T19, N1: whole, under its name: the older one up to the moment of the exchange, then the new one."""
    disk.require()
    run_dir, options = tmp_path / "run", {"cwd": ROOT, "folder": tmp_path}
    shutil.copytree(exported, run_dir)
    words = ["export", f"--model_dir={run_dir}", "--format=weights"]
    first = functools.partial(disk.arm, str(run_dir), number, -signal.SIGKILL, only=change)
    assert Command(words, first=first, **options).wait().code == -signal.SIGKILL
    place = run_dir / "export" / "20"
    assert ("formats" in json.loads((place / "export.json").read_text())) == is_new
    assert (place / "model.weights.h5").exists() == is_new
    assert "serving_default" in tf.saved_model.load(str(place)).signatures
    assert run_command(words, **options).code == 0
    assert [path.name for path in (run_dir / "export").iterdir()] == ["20"]


def test_what_killed_processes_left_is_removed(tmp_path):
    """T19: folders that were being written, or deleted; no server takes their names for versions."""
    trainer, folder = toy.build(toy.experiment()), str(tmp_path / "export")
    for name in ("3.writing", "4.removing", "5.writing-0123abcd", "6.removing-0123abcd", "best", "7.notes"):
        files.make_dirs(f"{folder}/{name}")
    export.save_version(folder, trainer.task, trainer.model, step=9, metrics={}, max_to_keep=1)
    assert files.list_dir(folder) == ["7.notes", "9", "best"]


def test_layers_are_traced_for_signatures_alone(tmp_path):
    """T19: not once more, as Keras does; tables and weights are there, under the names of a checkpoint."""
    traced = []

    class Scaled(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight("scale", shape=[shape[-1]], initializer="ones")

        def call(self, x):
            traced.append(self.name)
            return x * self.scale

    class WordTask(toy.ToyTask):
        def predict_step(self, inputs, model, labels=None):
            return {"value": model(inputs, training=False)}

    word = keras.Input([1], dtype=tf.string, name="word")
    known = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")
    model = keras.Model(word, Scaled()(known(word)))
    traced.clear()
    export.save(str(tmp_path / "1"), WordTask(None), model, step=1)
    assert len(traced) == 1
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    value = loaded.signatures["serving_default"](word=tf.constant([["b"], ["z"]]))["value"].numpy()
    assert value.tolist() == [[0, 0, 1], [1, 0, 0]]
    checkpoint = tf.train.Checkpoint(model=model).write(str(tmp_path / "checkpoint"))
    assert runs.bits(tmp_path / "1" / "variables" / "variables") == runs.bits(checkpoint)
