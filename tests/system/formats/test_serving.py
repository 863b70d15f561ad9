"""`serve`: a process that answers as TensorFlow Serving does, whatever its clients send."""

import concurrent.futures
import contextlib
import functools
import http.client
import json
import random
import re
import socket
import time

import numpy as np
import pytest

from experiments.digits import load_digits
from official_trainer.formats import readers, serving
from official_trainer.formats.kinds import FormatError
from tests import ROOT
from tests.support.forked import TIMEOUT_SECONDS, run_command
from tests.support.formats.exports import rows
from tests.support.formats.server import save_documented, serving_at


@pytest.fixture(scope="module")
def server(exported, tmp_path_factory):
    """A server of the run's newest export."""
    folder = tmp_path_factory.mktemp("server")
    words = ("--name=digits", "--max_mebibytes=1", "--max_batch_size=64")
    with serving_at(exported[0], folder, *words) as started:
        yield started


@functools.cache
def images():
    return load_digits(0.2)[1][0]


def answer_of(place):
    """Returns the status and the JSON that come over a socket."""
    answer = http.client.HTTPResponse(place)
    answer.begin()
    return answer.status, json.loads(answer.read())


def test_a_thousand_concurrent_requests_are_the_rows_of_predict(exported, server, tmp_path):
    """N47: by instances and by inputs, of several sizes; nothing is lost, and nothing is mixed up."""
    wanted = rows(exported[0], tmp_path)

    def ask(number):
        draws = random.Random(number)
        chosen = draws.sample(range(len(images())), draws.randint(1, 5))
        given = images()[chosen].tolist()
        if number % 2:
            status, said = server.predict({"instances": [{"image": each} for each in given]})
            found = {name: [row[name] for row in said["predictions"]] for name in wanted}
        else:
            status, said = server.predict({"signature_name": "serving_default", "inputs": given})
            found = said["outputs"]
        return status == 200 and all(
            np.shape(found[name]) == (len(chosen), 10) and np.allclose(found[name], wanted[name][chosen], atol=1e-5)
            for name in wanted
        )

    with concurrent.futures.ThreadPoolExecutor(32) as clients:
        assert list(clients.map(ask, range(1000))) == [True] * 1000


def test_status_and_metadata(server):
    """N47: in TensorFlow Serving's words."""
    status = {"version": "20", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    assert server.ask("GET") == (200, {"model_version_status": [status]})
    assert server.ask("GET", "/versions/20") == (200, {"model_version_status": [status]})
    code, said = server.ask("GET", "/metadata")
    assert (code, said["model_spec"]["name"], said["model_spec"]["version"]) == (200, "digits", "20")
    image = said["metadata"]["signature_def"]["signature_def"]["serving_default"]["inputs"]["image"]
    assert image["dtype"] == "DT_FLOAT"
    assert [each["size"] for each in image["tensor_shape"]["dim"]] == ["-1", "8", "8", "1"]


ONE = [[[0.0]] * 8] * 8
BAD = [
    (b"{", 400, "the request is no JSON: "),
    (b"[" * 100_000, 400, "the request is no JSON: "),
    (b"\xff\xfe", 400, "the request is no JSON: "),
    ([], 400, "an object with either 'instances' or 'inputs'"),
    ({"instances": [ONE], "inputs": [ONE]}, 400, "either 'instances' or 'inputs'"),
    ({"instances": ONE[0][0]}, 400, "the input 'image' is float32 [any, 8, 8, 1] by its contract, and the data give"),
    ({"instances": {}}, 400, "'instances' is a dict; it has to be a list"),
    ({"instances": []}, 400, "the input 'image' is float32 [any, 8, 8, 1]"),
    ({"inputs": {"picture": [ONE]}}, 400, "inputs are image, and the request has picture"),
    ({"instances": [{"image": ONE}, {"picture": ONE}]}, 400, "inputs are image, and instance 1 has picture"),
    ({"instances": [["a"]]}, 400, "the input 'image' is float32, and the request has"),
    ({"instances": [ONE, ONE[:4]]}, 400, "the input 'image' cannot be read as float32: "),
    ({"instances": [ONE] * 65}, 400, "the request has 65 examples, and at most 64 are computed at once"),
    ({"signature_name": "other", "instances": [ONE]}, 400, "there is no signature 'other'; there is serving_default"),
    (b" " * (1 << 20) + b"{}", 413, "the request has more than 1 MiB"),
]


@pytest.mark.parametrize(("said", "code", "words"), BAD, ids=range(len(BAD)))
def test_what_cannot_be_answered_is_an_error_and_the_next_request_is_answered(server, said, code, words):
    """N47: malformed or too large."""
    found, answer = server.predict(said)
    assert (found, set(answer)) == (code, {"error"})
    assert words in answer["error"]
    assert server.predict({"instances": [ONE]})[0] == 200


TAGS = [
    {"tag": "foo", "signal": [1, 2, 3, 4, 5], "sensor": [[1, 2], [3, 4]]},
    {"tag": "bar", "signal": [3, 4, 1, 2, 5], "sensor": [[4, 5], [6, 8]]},
]
COLUMNS = {name: [row[name] for row in TAGS] for name in TAGS[0]}


def test_the_requests_of_tensorflow_servings_page(tmp_path):
    """N47: rows, columns, a signature, bytes, a version, metadata, status and an error, as the page has them."""
    path = tmp_path / "half_plus_three" / "123"
    first = functools.partial(save_documented, str(path))
    with serving_at(path, tmp_path, "--name=half_plus_three", first=first) as started:
        assert started.predict({"instances": [1.0, 2.0, 5.0]}) == (200, {"predictions": [3.5, 4.0, 5.5]})
        assert started.predict({"inputs": [1.0, 2.0, 5.0]}) == (200, {"outputs": [3.5, 4.0, 5.5]})
        assert started.predict({"instances": [{"x": 1}, {"x": 2}]}) == (200, {"predictions": [3.5, 4.0]})
        assert started.predict({"inputs": {"x": [1, 2]}}) == (200, {"outputs": [3.5, 4.0]})
        versioned = started.ask("POST", "/versions/123:predict", b'{"instances": [5.0]}')
        assert versioned == (200, {"predictions": [5.5]})

        sums, encoded = [25.0, 38.0], [{"b64": "Zm9v"}, {"b64": "YmFy"}]
        rows = [{"sum": s, "tag_bytes": e, "text": t["tag"]} for s, e, t in zip(sums, encoded, TAGS, strict=True)]
        for tags in (["foo", "bar"], encoded):
            instances = [{**row, "tag": tag} for row, tag in zip(TAGS, tags, strict=True)]
            said = {"signature_name": "three", "instances": instances}
            assert started.predict(said) == (200, {"predictions": rows})
        outputs = {"sum": sums, "tag_bytes": encoded, "text": ["foo", "bar"]}
        assert started.predict({"signature_name": "three", "inputs": COLUMNS}) == (200, {"outputs": outputs})

        _, said = started.ask("GET", "/metadata")
        assert said["model_spec"] == {"name": "half_plus_three", "signature_name": "", "version": "123"}
        found = said["metadata"]["signature_def"]["signature_def"]
        assert found.keys() == {"serving_default", "three"}
        assert found["three"]["method_name"] == "tensorflow/serving/predict"
        assert found["three"]["inputs"]["tag"]["dtype"] == "DT_STRING"
        assert found["three"]["outputs"]["sum"]["tensor_shape"]["dim"] == [{"size": "-1", "name": ""}]
        ok = {"error_code": "OK", "error_message": ""}
        status = {"model_version_status": [{"version": "123", "state": "AVAILABLE", "status": ok}]}
        assert started.ask("GET") == started.ask("GET", "/versions/123") == (200, status)
        for verb in ("classify", "regress"):
            code, said = started.ask("POST", f":{verb}", b'{"examples": [{"x": 1.0}]}')
            assert code == 400 and f"{verb} is not served, because no signature here is of that kind" in said["error"]


def test_places_that_are_not_there(server):
    """N47: with TensorFlow Serving's form of an error; another host could be a page of the web."""
    code, said = server.ask("GET", "/versions/7")
    assert code == 404 and said["error"].startswith("Servable not found for request: digits, version 7; here is digits")
    assert server.ask("POST", ":train", b"{}") == (405, {"error": "Method Not Allowed"})
    assert server.ask("GET", "/a/b") == (404, {"error": "Not Found"})
    code, said = server.ask("GET", Host="example.org")
    assert (code, said) == (403, {"error": "this model is served to this machine alone"})


def test_a_chunked_request_that_is_too_large(server):
    """N47: its size is not known before."""
    chunks = iter([b" " * 100_000] * 20)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the answer may come before the rest is sent
        assert server.ask("POST", ":predict", chunks)[0] == 413
    assert server.predict({"instances": [ONE]})[0] == 200


def test_slow_and_cut_off_requests(exported, tmp_path):
    """N47: one that is slow gets an error in time, one that is cut off costs nothing; others are answered meanwhile."""
    with serving_at(exported[0], tmp_path, "--timeout_seconds=5") as started:
        slow, _ = started.begin({"instances": [ONE]})
        cut, _ = started.begin({"instances": [ONE]})
        cut.close()
        assert started.predict({"instances": [ONE]})[0] == 200
        with contextlib.closing(slow):
            assert answer_of(slow) == (408, {"error": "the request did not come within 5 s"})
        assert started.predict({"instances": [ONE]})[0] == 200


@pytest.mark.parametrize("name", ["model.onnx", "model_int8.tflite", "model.keras"])
def test_a_stop_in_the_middle_loses_nothing(exported, tmp_path, name):
    """N47: what had begun to come is answered, also of other formats; then the process ends with 0."""
    with serving_at(exported[1] / name, tmp_path) as started:
        assert started.place == "/v1/models/model"
        begun = [started.begin({"instances": [image.tolist()]}) for image in images()[:5]]
        assert started.ask("GET")[0] == 200  # it has read what came before
        started.stop()
        with pytest.raises(OSError):
            while True:  # until it listens no more
                socket.create_connection(("127.0.0.1", started.port), timeout=TIMEOUT_SECONDS).close()
                time.sleep(0.02)
        for place, rest in begun:
            with contextlib.closing(place):
                place.sendall(rest)
                status, said = answer_of(place)
                assert status == 200 and len(said["predictions"]) == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "name what to serve: a run directory, a SavedModel or a file"),
        (["{run}/none"], 2, "there is no such file or folder"),
        (["{run}/export/20/model.weights.h5"], 1, "holds numbers and no model; name a file of another format"),
        (["{run}", "--port=0"], 2, "--port=0"),
        (["{empty}"], 2, "has no export; write one: official-trainer export --model_dir="),
    ],
)
def test_what_cannot_be_served_is_said_at_once(exported, tmp_path, words, code, said):
    """N47: before anything listens."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "params.yaml").touch()
    words = [word.format(run=exported[0], empty=tmp_path / "empty") for word in words]
    refused = run_command(["serve", *words], cwd=ROOT, folder=tmp_path)
    assert refused.code == code and said in refused.err


def test_a_port_that_is_taken(exported, tmp_path):
    """N47: is named."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run_command(["serve", str(exported[0]), f"--port={port}"], cwd=ROOT, folder=tmp_path)
    assert refused.code == 2 and f"--port={port}: " in refused.err and "name another port" in refused.err


CONTRACT = {
    "inputs": [
        {"name": "text", "dtype": "string", "shape": [None]},
        {"name": "size", "dtype": "int32", "shape": [None, None]},
    ],
    "outputs": [{"name": "text", "dtype": "string", "shape": [None]}],
}


@pytest.fixture
def texts(monkeypatch):
    """A model that takes texts and whole numbers."""
    monkeypatch.setattr(readers, "signatures", lambda path: {"serving_default": (CONTRACT, dict)})
    return serving.Served("texts", "/models/7/model.onnx")


def test_texts_bytes_and_whole_numbers(texts):
    """N47: as TensorFlow Serving reads them; requests of different lengths are not one batch."""
    said = {"instances": [{"text": "é", "size": [1, 2]}, {"text": {"b64": "AP8="}, "size": [3, 4]}]}
    key, inputs, size, by_instances = texts.read(json.dumps(said).encode())
    assert (inputs["text"].tolist(), inputs["size"].tolist()) == (["é".encode(), b"\x00\xff"], [[1, 2], [3, 4]])
    assert (size, by_instances, texts.version, inputs["size"].dtype.name) == (2, True, "7", "int32")
    longer = {"inputs": {"text": ["a"], "size": [[1, 2, 3]]}}
    assert texts.read(json.dumps(longer).encode())[0] != key


@pytest.mark.parametrize(
    ("text", "size", "said"),
    [
        (1, [1], "the input 'text' cannot be read as string: int is no text"),
        ({"b64": "?"}, [1], "cannot be read as string: b64: "),
        ("a", [1.5], "the input 'size' is int32, and the request has float64"),
        ("a", [1 << 40], "the input 'size' cannot be read as int32: "),
        ("a", [True], "the input 'size' is int32, and the request has bool"),
    ],
)
def test_values_of_another_type_are_refused(texts, text, size, said):
    """N47: and not rounded."""
    with pytest.raises(FormatError, match=re.escape(said)):
        texts.read(json.dumps({"instances": [{"text": text, "size": size}]}).encode())


def test_inputs_with_other_numbers_of_examples_are_refused(texts):
    """N47: there would be rows without an answer."""
    with pytest.raises(FormatError, match=r"inputs need the same number of examples, at least one; they have \[1, 2\]"):
        texts.read(json.dumps({"inputs": {"text": ["a", "b"], "size": [[1]]}}).encode())
