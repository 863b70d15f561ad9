"""A run with every action that is stopped and continued."""

import http.server
import threading

import pytest

from official_trainer import files
from official_trainer.checkpoints.manifest import read
from official_trainer.lazy import keras
from official_trainer.runs import run
from official_trainer.stopping import PreemptedError, StopRequest
from tests.support.actions.samples import SAMPLES
from tests.support.runs import differences
from tests.support.shuffled import resolve

SETS = (
    "trainer.train_steps=40",
    "trainer.checkpoint_interval=20",
    "trainer.validation_interval=20",
    "trainer.optimizer_config.ema=null",
)


@pytest.fixture(scope="module")
def port():
    """A server that takes every request."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("every_action")


def train(model_dir, port, *, actions=True, stop=None):
    keras.backend.clear_session()
    text = ", ".join(SAMPLES.values()).replace("{port}", str(port))
    sets = (*SETS, f"trainer.actions=[{text}]") if actions else SETS
    return run.run("toy_run", resolve(*sets), mode="train_and_eval", model_dir=str(model_dir), quiet=True, stop=stop)


def test_all_of_them_together_survive_a_stop(folder, port, monkeypatch):
    """N2, N5: a run that is stopped and continued ends with the bits, the rows and the states of an unbroken one."""
    if not files.exists(f"{folder}/all/ckpt-40.index"):
        train(folder / "all", port)
    from official_trainer.engine.trainer import Trainer

    stop, steps = StopRequest(), Trainer.run_steps

    def run_steps(self, num_steps, **options):
        ran = steps(self, num_steps, **options)
        if int(self.global_step.numpy()) >= 13 and not stop.reason:
            stop.reason = "SIGTERM"
        return ran

    with monkeypatch.context() as patch, pytest.raises(PreemptedError):
        patch.setattr(Trainer, "run_steps", run_steps)
        train(folder / "stopped", port, stop=stop)
    train(folder / "stopped", port)
    assert differences(str(folder / "stopped"), str(folder / "all")) == []
    left, right = (read(str(folder / name), 40).extra for name in ("stopped", "all"))
    for extra in (left, right):
        del extra["called"]["profile"]  # it also looks for its file every few seconds
    assert left == right
