"""An exported model behind TensorFlow Serving's REST words, on this machine alone: predict, status, metadata.

Owns: requests and answers, limits on their size and time, the server until it is told to stop. Does not own: batches
(`batching.py`), running a file (`readers.py`).

It listens on 127.0.0.1 and answers only requests that name it so, as the page of `report --watch` does.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import dataclasses
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Hashable, Mapping
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from official_trainer import files
from official_trainer.errors import ExitCode, UserError
from official_trainer.formats import contract as contracts
from official_trainer.formats import readers
from official_trainer.formats.batching import Batches, QueueFullError
from official_trainer.formats.kinds import SIGNATURE, FormatError
from official_trainer.formats.readers import Arrays

HOST = "127.0.0.1"
_GONE = 499  # of a client that left, which reads no answer


class PortError(UserError, OSError):
    """A port that cannot be listened on."""

    exit_code = ExitCode.CONFIG


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server takes, as the flags of `serve` say."""

    port: int = 8501
    max_batch_size: int = 1024
    max_waiting: int = 1000
    max_mebibytes: int = 32
    timeout_seconds: int = 60


class Served:
    """A model that is loaded, and its name.

    Attributes:
      name: in addresses.
      version: the number of its folder; 1 for a file without one.
    """

    def __init__(self, name: str, path: str) -> None:
        self.name, self._signatures = name, readers.signatures(path)
        parts = os.path.abspath(path).split(os.sep)[:-3:-1]
        self.version = next((part for part in parts if part.isdecimal()), "1")

    def compute(self, key: Hashable, inputs: Arrays) -> Arrays:
        """Returns the outputs of a signature, with which a key begins."""
        assert isinstance(key, tuple)
        return self._signatures[key[0]][1](inputs)

    def read(self, body: bytes) -> tuple[tuple[Hashable, ...], Arrays, int, bool]:
        """Returns what a request asks for: a key of what it may be computed with, inputs, rows, whether by instances.

        Raises:
          FormatError: it is none of TensorFlow Serving's, or not for this model.
        """
        try:
            said = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"the request is no JSON: {error}") from error
        if not isinstance(said, dict) or ("instances" in said) == ("inputs" in said):
            raise FormatError("the request has to be an object with either 'instances' or 'inputs'")
        name = said.get("signature_name") or SIGNATURE
        if name not in self._signatures:
            raise FormatError(f"there is no signature {name!r}; there is {', '.join(sorted(self._signatures))}")
        contract, by_instances = self._signatures[name][0], "instances" in said
        rows, given = contract["inputs"], said["instances" if by_instances else "inputs"]
        if by_instances:
            given = _columns(given, rows)
        elif not isinstance(given, dict) and len(rows) == 1:
            given = {rows[0]["name"]: given}
        if not isinstance(given, dict) or set(given) != {row["name"] for row in rows}:
            had = ", ".join(map(str, given)) if isinstance(given, dict) else type(given).__name__
            raise FormatError(f"inputs are {', '.join(row['name'] for row in rows)}, and the request has {had}")
        inputs = {row["name"]: _array(given[row["name"]], row) for row in rows}
        contracts.check_inputs("the model", contract, inputs)
        sizes = {value.shape[0] for value in inputs.values() if value.ndim}
        if len(sizes) != 1 or 0 in sizes:
            raise FormatError(f"inputs need the same number of examples, at least one; they have {sorted(sizes)}")
        free = all(row["shape"] and row["shape"][0] is None for row in rows)
        shapes = tuple(value.shape[1:] for value in inputs.values())
        return (name, shapes if free else object()), inputs, sizes.pop(), by_instances

    def metadata(self) -> dict[str, Any]:
        """Returns what TensorFlow Serving says of the signatures."""
        found = {
            name: {
                **{kind: {row["name"]: _info(row) for row in contract[kind]} for kind in ("inputs", "outputs")},
                "method_name": "tensorflow/serving/predict",
            }
            for name, (contract, _) in self._signatures.items()
        }
        spec = {"name": self.name, "signature_name": "", "version": self.version}
        return {"model_spec": spec, "metadata": {"signature_def": {"signature_def": found}}}


def _columns(instances: Any, rows: Any) -> dict[str, list[Any]]:
    if not isinstance(instances, list):
        raise FormatError(f"'instances' is a {type(instances).__name__}; it has to be a list of examples")
    names = [row["name"] for row in rows]
    is_named = bool(instances) and isinstance(instances[0], dict) and set(instances[0]) != {"b64"}
    if not is_named and len(names) == 1:
        return {names[0]: instances}
    for number, each in enumerate(instances):
        if not isinstance(each, dict) or set(each) != set(names):
            had = ", ".join(map(str, each)) if isinstance(each, dict) else type(each).__name__
            raise FormatError(f"inputs are {', '.join(names)}, and instance {number} has {had}")
    return {name: [each[name] for each in instances] for name in names}


def _array(value: Any, row: Mapping[str, Any]) -> Any:
    """Returns a value of JSON as the input of a row of the contract."""
    import numpy as np

    name, dtype = row["name"], row["dtype"]
    try:
        if dtype == "string":
            return np.array(_decoded(value), dtype=object)
        found = np.array(value)
        if found.dtype.kind not in {"bool": "b", "uint": "iu", "int": "iu"}.get(dtype.rstrip("0123456789"), "iuf"):
            raise FormatError(f"the input {name!r} is {dtype}, and the request has {found.dtype.name}")
        return np.array(value, dtype=dtype)
    except (ValueError, OverflowError, TypeError) as error:
        raise FormatError(f"the input {name!r} cannot be read as {dtype}: {error}") from error


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(each) for each in value]
    if isinstance(value, dict) and set(value) == {"b64"}:
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, TypeError) as error:
            raise ValueError(f"b64: {error}") from error
    if not isinstance(value, str):
        raise ValueError(f"{type(value).__name__} is no text")
    return value.encode()


def _info(row: Mapping[str, Any]) -> dict[str, Any]:
    kind = {"float32": "DT_FLOAT", "float64": "DT_DOUBLE", "float16": "DT_HALF"}.get(row["dtype"])
    sizes = [{"size": str(-1 if size is None else size), "name": ""} for size in row["shape"] or ()]
    shape = {"dim": sizes, "unknown_rank": row["shape"] is None}
    return {"dtype": kind or f"DT_{row['dtype'].upper()}", "tensor_shape": shape, "name": row["name"]}


def _answer(outputs: Arrays, rows: int, *, by_instances: bool) -> dict[str, Any]:
    """Returns outputs in the form in which inputs came."""
    lists = {name: _encoded(value.tolist(), name) for name, value in outputs.items()}
    if not by_instances:
        return {"outputs": next(iter(lists.values())) if len(lists) == 1 else lists}
    if short := [name for name, value in lists.items() if not isinstance(value, list) or len(value) != rows]:
        raise FormatError(f"the output {short[0]!r} has no row for each instance; send 'inputs' instead")
    if len(lists) == 1:
        return {"predictions": next(iter(lists.values()))}
    return {"predictions": [{name: value[number] for name, value in lists.items()} for number in range(rows)]}


def _encoded(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return [_encoded(each, name) for each in value]
    if not isinstance(value, bytes):
        return value
    return {"b64": base64.b64encode(value).decode()} if name.endswith("_bytes") else value.decode(errors="replace")


class _App:
    """The answers of a server."""

    def __init__(self, served: Served, limits: Limits) -> None:
        self._served, self._limits = served, limits
        self._batches = Batches(served.compute, max_rows=limits.max_batch_size, max_waiting=limits.max_waiting)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(self._batches.work())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def predict(self, request: Request) -> Response:
        self._check(request)
        seconds = self._limits.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                body = await self._body(request)
        except TimeoutError:
            raise HTTPException(408, f"the request did not come within {seconds} s") from None
        except ClientDisconnect:
            raise HTTPException(_GONE, "the client left") from None
        try:
            key, inputs, rows, by_instances = await run_in_threadpool(self._served.read, body)
            if rows > (most := self._limits.max_batch_size):
                raise FormatError(f"the request has {rows} examples, and at most {most} are computed at once")
            async with asyncio.timeout(seconds):
                outputs = await self._batches.answer(key, inputs, rows)
            return _json(await run_in_threadpool(_answer, outputs, rows, by_instances=by_instances))
        except FormatError as error:
            raise HTTPException(400, str(error)) from error
        except QueueFullError as error:
            raise HTTPException(503, str(error)) from error
        except TimeoutError:
            raise HTTPException(504, f"no answer was computed within {seconds} s") from None
        except Exception as error:  # of the model
            raise HTTPException(500, f"{type(error).__name__}: {error}") from error

    async def _body(self, request: Request) -> bytes:
        most, body = self._limits.max_mebibytes << 20, bytearray()
        length = request.headers.get("content-length", "0")
        async for chunk in request.stream():
            body += chunk
            if len(body) > most or int(length) > most:
                raise HTTPException(413, f"the request has more than {self._limits.max_mebibytes} MiB", CLOSE)
        return bytes(body)

    async def refuse(self, request: Request) -> Response:
        self._check(request)
        what = f"{request.url.path.rpartition(':')[2]} is not served, because no signature here is of that kind"
        raise HTTPException(400, f"{what}; send the features to :predict")

    async def status(self, request: Request) -> Response:
        self._check(request)
        state = {"version": self._served.version, "state": "AVAILABLE"}
        return _json({"model_version_status": [{**state, "status": {"error_code": "OK", "error_message": ""}}]})

    async def metadata(self, request: Request) -> Response:
        self._check(request)
        return _json(self._served.metadata())

    def _check(self, request: Request) -> None:
        if request.url.hostname not in (HOST, "localhost"):
            raise HTTPException(403, "this model is served to this machine alone")
        name, version = request.path_params["name"], request.path_params.get("version", self._served.version)
        if (name, version) != (self._served.name, self._served.version):
            here = f"{self._served.name}, version {self._served.version}"
            raise HTTPException(404, f"Servable not found for request: {name}, version {version}; here is {here}")


CLOSE = {"Connection": "close"}


def _json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(content), status, headers, "application/json")  # NaN as TensorFlow Serving writes it


async def _error(request: Request, error: Any) -> Response:
    return _json({"error": error.detail}, error.status_code, error.headers)


def app(served: Served, limits: Limits) -> Starlette:
    """Returns the server's ASGI application."""
    answers = _App(served, limits)
    routes = []
    for place in ("/v1/models/{name}", "/v1/models/{name}/versions/{version}"):
        routes.append(Route(f"{place}/metadata", answers.metadata))
        routes.append(Route(f"{place}:predict", answers.predict, methods=["POST"]))
        routes += [Route(f"{place}:{verb}", answers.refuse, methods=["POST"]) for verb in ("classify", "regress")]
        routes.append(Route(place, answers.status))
    return Starlette(routes=routes, exception_handlers={HTTPException: _error}, lifespan=answers.lifespan)


def listening(port: int) -> socket.socket:
    """Returns a socket that listens on this machine alone.

    Raises:
      PortError: another process has the port, or it is not allowed.
    """
    try:
        place = socket.create_server((HOST, port), backlog=1024)
        # Else each answer, which is sent in two parts, waits 40 ms for the client to confirm the first.
        place.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return place
    except (OSError, OverflowError) as error:
        raise PortError(f"--port={port}: {files.reason_of(error)}; name another port") from error


def serve(served: Served, place: socket.socket, limits: Limits) -> None:
    """Answers until SIGTERM or SIGINT, and then what was taken before it."""
    config = uvicorn.Config(
        app(served, limits),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=2 * limits.timeout_seconds,
    )
    server = uvicorn.Server(config)

    def stop(*_: Any) -> None:  # before uvicorn listens to signals, and at its end, when it sends them again
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    asyncio.run(server.serve([place]))
