"""Warm-up requests of an exported model: where a server finds them, and that none fails there."""

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import files
from official_trainer.tasks import export
from official_trainer.tasks.warmup import WarmupError
from tests.support import toy, warmup


@pytest.fixture(scope="module")
def model():
    return toy.build().model


def saved(folder, model, requests, signatures=None):
    class Warm(toy.ToyTask):
        def build_warmup_requests(self, model):
            return requests

        def build_signatures(self, model):
            return signatures or super().build_signatures(model)

    export.save(str(folder), Warm(None), model, step=1)
    return str(folder)


def test_requests_lie_where_a_server_reads_them(tmp_path, model):
    """T19: records of its own messages, whose inputs the signatures take; large ones and texts too."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def length(text):
        return {"length": tf.strings.length(text)}

    many = np.arange(600, dtype="float32").reshape(100, 6)
    signatures = {"serving_default": export.default_signatures(toy.ToyTask(None), model)["serving_default"]}
    requests = {
        "serving_default": [{"features": np.ones([1, 6])}, {"features": many}],
        "length": [{"text": ["a", "bcd"]}],
    }
    folder = saved(tmp_path / "1", model, requests, {**signatures, "length": length})
    found = warmup.read(folder)
    assert [name for name, _ in found] == ["serving_default", "serving_default", "length"]
    assert found[0][1]["features"].tolist() == [[1.0] * 6]
    assert found[1][1]["features"].tobytes() == many.tobytes()
    loaded = tf.saved_model.load(folder)
    for name, inputs in found:
        answer = loaded.signatures[name](**{key: tf.constant(value) for key, value in inputs.items()})
        assert len(next(iter(answer.values()))) == len(next(iter(inputs.values())))


def test_without_requests_there_is_no_file(tmp_path, model):
    """T19: a server takes an empty one for a mistake."""
    assert not files.exists(f"{saved(tmp_path / '1', model, {})}/assets.extra")


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        (
            {"serving_defaults": [{}]},
            "there is no signature 'serving_defaults'; known: serving_default; did you mean serving_default?",
        ),
        (
            {"serving_default": [{"feature": [[0.0] * 6]}]},
            "request 0 of 'serving_default': there is no input 'feature'; known: features; did you mean features?",
        ),
        ({"serving_default": [{}]}, "request 0 of 'serving_default' lacks features"),
        (
            {"serving_default": [{"features": [[0.0] * 5]}]},
            r"request 0 of 'serving_default': features has shape \[1, 5\]; the signature takes \[…, 6\]",
        ),
        ({"serving_default": [{"features": [["a"] * 6]}]}, r"features must be float32 \[…, 6\]: "),
        (
            {"serving_default": [{"features": [[0.0] * 6]}] * 1001},
            "build_warmup_requests returns 1001 requests; a server takes 1000 at most",
        ),
    ],
)
def test_a_request_that_a_server_would_refuse_is_an_error(tmp_path, model, requests, message):
    """T19, N7: at the export, because a server would not load the model; nothing is left that one could load."""
    with pytest.raises(WarmupError, match=message):
        saved(tmp_path / "1", model, requests)
    assert not files.exists(tmp_path / "1")
