"""Every callback that Keras has, under `Program.fit` as under Keras's own."""

from __future__ import annotations

import http.server
import inspect
import threading
from pathlib import Path

import numpy as np
import pytest

from official_trainer.engine.recovery import NonFiniteError
from official_trainer.lazy import keras
from official_trainer.program import ArgumentError, Program
from tests.support.cases import cases, full

EPOCHS = 5


class Overfitted(keras.layers.Layer):
    """Makes the loss of a validation rise: what stops, or reduces a rate, has something to do."""

    def build(self, shape):
        self.rate = self.add_weight("rate", [], initializer="ones")

    def call(self, inputs, training=None):
        return inputs * self.rate if training else inputs * self.rate**9


def build():
    keras.utils.set_random_seed(3)
    inputs = keras.Input([4])
    return keras.Model(inputs, keras.layers.Dense(1)(Overfitted()(inputs)))


def data():
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    return x, 3 * x[:, :1]


CALLBACKS = {
    "BackupAndRestore": lambda folder: keras.callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=False),
    "CSVLogger": lambda folder: keras.callbacks.CSVLogger(folder / "log.csv"),
    "Callback": lambda folder: keras.callbacks.Callback(),
    "EarlyStopping": lambda folder: keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True),
    "History": lambda folder: keras.callbacks.History(),
    "LambdaCallback": lambda folder: keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: Path(folder, f"epoch-{epoch}").write_text(str(sorted(logs.items())))
    ),
    "LearningRateScheduler": lambda folder: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
    "ModelCheckpoint": lambda folder: keras.callbacks.ModelCheckpoint(
        str(folder / "{epoch:02d}-{val_loss:.2f}.h5"), save_best_only=True
    ),
    "ProgbarLogger": lambda folder: keras.callbacks.ProgbarLogger("steps"),
    "ReduceLROnPlateau": lambda folder: keras.callbacks.ReduceLROnPlateau(patience=1),
    "RemoteMonitor": lambda folder: keras.callbacks.RemoteMonitor("http://127.0.0.1:1"),
    "SidecarEvaluatorModelExport": lambda folder: keras.callbacks.SidecarEvaluatorModelExport(
        str(folder / "export"), str(folder / "checkpoints")
    ),
    "TensorBoard": lambda folder: keras.callbacks.TensorBoard(folder, histogram_freq=1, update_freq=2),
    "TerminateOnNaN": lambda folder: keras.callbacks.TerminateOnNaN(),
}


def test_every_callback_of_keras_is_tried():
    """K5"""
    found = {name for name, cls in vars(keras.callbacks).items() if inspect.isclass(cls)} - {"CallbackList"}
    assert found - {"BaseLogger"} == set(CALLBACKS)


@pytest.mark.parametrize("owner", [full(lambda model: model), Program])
def test_a_callback_that_keras_itself_cannot_call_fails_alike(owner):
    """K5: `BaseLogger` looks for what `fit` has not told callbacks since TensorFlow 2."""
    program = owner(build())
    program.compile("sgd", "mse")
    with pytest.raises(KeyError, match="metrics"):
        program.fit(*data(), callbacks=[keras.callbacks.BaseLogger()], verbose=0)


@pytest.mark.parametrize("name", cases(list(CALLBACKS), "EarlyStopping"))
def test_callbacks_of_keras_do_what_they_do_there(name, tmp_path):
    """K5: same history, same weights, same attributes, same files."""
    found = []
    for owner in (lambda model: model, Program):
        folder = tmp_path / str(len(found))
        folder.mkdir()
        program = owner(build())
        program.compile("sgd", "mse", metrics=["mae"])
        callback = CALLBACKS[name](folder)
        history = program.fit(
            *data(), epochs=EPOCHS, batch_size=8, validation_split=0.2, shuffle=False, callbacks=[callback], verbose=0
        )
        plain = {key: value for key, value in vars(callback).items() if isinstance(value, bool | int | float)}
        names = sorted(path.suffix if name == "TensorBoard" else path.name for path in folder.rglob("*"))
        weights = getattr(program, "model", program).get_weights()
        found.append((history.history, history.epoch, plain, len(names), weights))
    theirs, ours = found
    assert ours[:2] == theirs[:2]
    assert ours[2] == pytest.approx(theirs[2], nan_ok=True)
    assert ours[3] == theirs[3], "files"
    for value, expected in zip(ours[4], theirs[4], strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_a_backup_beside_a_run_directory_is_refused(tmp_path):
    program = Program(build(), str(tmp_path / "run"))
    program.compile("sgd", "mse")
    with pytest.raises(
        ArgumentError, match=r"BackupAndRestore: training continues at the checkpoint in .*; leave it out"
    ):
        program.fit(*data(), callbacks=[keras.callbacks.BackupAndRestore(tmp_path / "backup")])


class _Monitor(http.server.BaseHTTPRequestHandler):
    received: list

    def do_POST(self):
        self.received.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments):
        pass


@pytest.mark.full
def test_a_remote_monitor_hears_of_each_epoch():
    """K5"""
    received = []
    handler = type("Monitor", (_Monitor,), {"received": received})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for owner in (lambda model: model, Program):
            program = owner(build())
            program.compile("sgd", "mse")
            monitor = keras.callbacks.RemoteMonitor(f"http://127.0.0.1:{server.server_port}", send_as_json=True)
            program.fit(*data(), epochs=2, shuffle=False, callbacks=[monitor], verbose=0)
        server.shutdown()
    assert len(received) == 4
    assert received[:2] == received[2:]


def test_training_ends_at_what_is_no_number():
    """K5: `TerminateOnNaN` sees the batch, and the epoch ends as in Keras."""
    x, y = data()
    x[20] = np.inf
    found = []
    for owner in (lambda model: model, Program):
        program = owner(build())
        program.compile("sgd", "mse")
        callbacks = [keras.callbacks.TerminateOnNaN()]
        found.append(program.fit(x, y, batch_size=4, shuffle=False, epochs=3, verbose=0, callbacks=callbacks))
    assert found[0].epoch == found[1].epoch == [0]
    assert np.isnan(found[1].history["loss"]).tolist() == np.isnan(found[0].history["loss"]).tolist()


def test_what_is_no_number_does_not_get_into_a_checkpoint(tmp_path):
    """K6: a run directory is an experiment's."""
    x, y = data()
    x[20] = np.inf
    program = Program(build(), str(tmp_path / "run"))
    program.compile("sgd", "mse")
    with pytest.raises(NonFiniteError, match=r"the training loss is (nan|inf) at step") as caught:
        program.fit(x, y, batch_size=4, shuffle=False, epochs=3, verbose=0)
    assert "are inf, in row 0" in str(caught.value)
    assert "build_inputs" not in str(caught.value)  # no method of the caller's
    assert not list(tmp_path.glob("run/*.manifest.json"))


class Live(keras.callbacks.Callback):
    """Reads the metrics of the model where callbacks can."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def _read(self, where):
        self.seen.append((where, *(float(metric.result()) for metric in self.model.metrics)))

    def on_epoch_begin(self, epoch, logs=None):
        self._read("epoch begins")

    def on_train_batch_end(self, batch, logs=None):
        self._read("batch")

    def on_epoch_end(self, epoch, logs=None):
        self._read("epoch")

    def on_train_end(self, logs=None):
        self._read("end")


@pytest.mark.parametrize("has_directory", cases([False, True], False))
@pytest.mark.parametrize("is_validated", cases([False, True], True))
def test_metrics_that_a_callback_reads_are_those_of_keras(tmp_path, is_validated, has_directory):
    """K8: also at the last batch of an epoch, at its end, and after `fit`."""
    x, y = data()
    found = []
    for owner in (lambda model: model, lambda model: Program(model, *[str(tmp_path)] * has_directory)):
        program, live = owner(build()), Live()
        program.compile("sgd", "mse", metrics=["mae"])
        validation = {"validation_data": (x[:8], y[:8])} if is_validated else {}
        program.fit(x, y, batch_size=10, epochs=3, shuffle=False, verbose=0, callbacks=[live], **validation)
        found.append((live.seen, {name: float(value) for name, value in program.get_metrics_result().items()}))
    (theirs, their_result), (ours, our_result) = found
    assert [where for where, *_ in ours] == [where for where, *_ in theirs]
    for (_, *mine), (where, *keras_has) in zip(ours[1:], theirs[1:], strict=True):  # Keras has none before a batch
        assert mine == pytest.approx(keras_has, rel=1e-5), where
    assert our_result == pytest.approx(their_result, rel=1e-5)
    assert our_result["mae"] > 0
