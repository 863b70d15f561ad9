"""Runs of forty steps with every action, and the server that their webhooks post to."""

import contextlib
import http.server
import threading

from official_trainer.lazy import keras
from official_trainer.runs import run
from tests.support.actions.samples import SAMPLES
from tests.support.shuffled_runs import resolve

SETS = (
    "trainer.train_steps=40",
    "trainer.checkpoint_interval=20",
    "trainer.validation_interval=20",
    "trainer.optimizer_config.ema=null",
)


@contextlib.contextmanager
def server():
    """For a server that takes every request; returns its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running.server_port
        running.shutdown()


def train(model_dir, port=None, *, stop=None):
    """Trains with all actions, or, without a port, with none."""
    keras.backend.clear_session()
    text = ", ".join(SAMPLES.values()).replace("{port}", str(port))
    sets = SETS if port is None else (*SETS, f"trainer.actions=[{text}]")
    return run.run("toy_run", resolve(*sets), mode="train_and_eval", model_dir=str(model_dir), quiet=True, stop=stop)
