"""The study of a sweep in a database, for optuna-dashboard and other tools that read Optuna's storages.

Owns: the URL and its messages, the study with the trials that have ended, catching up after a failure.
Does not own: records (`trial.py`), which are the truth, and claims (`claims.py`): no process asks the database for
a trial. Imports Optuna when a database is opened.

Trial k of the study is trial k of the sweep, so a trial that has ended waits for those before it. Each is added with
its end, in one transaction: a process that is killed leaves no half trial, and none that seems to run. Where the study
differs from the records, as after `sweep retry`, it is deleted and written again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import itertools
import json
import os
import re
import time
import urllib.parse
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.errors import ExitCode
from official_trainer.lock import DirectoryLock
from official_trainer.shown import passwords_in, without_secrets
from official_trainer.sweeps import trial as trials
from official_trainer.sweeps.observer import Observer
from official_trainer.sweeps.settings import url_problem
from official_trainer.sweeps.study import Study
from official_trainer.sweeps.trial import SweepError, Trial
from official_trainer.threads import Call, run_bounded

DIGEST = "official_trainer_digest"
"""User attribute of a trial: what its record holds."""

_DIRECTORY = "directory"
_DRIVERS = {"postgresql": ("psycopg", "psycopg[binary]"), "mysql": ("pymysql", "pymysql"), "grpc": ("grpc", "grpcio")}
_CONNECT_SECONDS = 10
_OPEN_SECONDS = 30.0
_WRITE_SECONDS = 10.0
_BUSY_SECONDS = 0.2
_PAUSES_SECONDS = (0.5, 1.0)
_FIX = "Start the database, or look at its URL; remove a file that is damaged or no database, or name another one"


def url_of(given: str) -> str:
    """Returns the URL of a database, which `env:NAME` takes from a variable.

    Raises:
      SweepError: the variable is not set, or its value is no such URL.
    """
    kind, _, name = given.partition(":")
    if kind != "env":
        return given
    if not (url := os.environ.get(name, "")):
        raise SweepError(f"storage={given}: the environment variable {name} is not set; set it to the URL")
    if problem := url_problem(url):
        raise SweepError(f"storage={given}: {name}={without_secrets(url)} {problem}")
    return url


class Database:
    """The study of one sweep in a database; each call opens it anew, and may hang."""

    def __init__(self, given: str, directory: str, sweep_id: str, study: Study) -> None:
        """Takes what `storage` is set to, and whose study it is."""
        self.shown, self._url = f"storage={without_secrets(given)}", url_of(given)
        self._directory, self._study = files.absolute(directory), study
        self._name = f"{os.path.basename(self._directory.rstrip('/'))}-{sweep_id[:8]}"

    def write(self, ended: Mapping[int, Trial], pauses_seconds: Sequence[float] = ()) -> None:
        """Makes the study hold these trials, up to the first that is missing; waits while another process writes.

        Args:
          ended: the trials; those behind one that is missing wait for it.
          pauses_seconds: after each of which it tries again: sweeps that start on a new database at the same time make
            Optuna's tables for each other.
        """
        lock = DirectoryLock(self._directory, name="storage")
        while not lock.try_acquire():
            time.sleep(_BUSY_SECONDS)
        wanted = [ended[number] for number in itertools.takewhile(ended.__contains__, itertools.count())]
        try:
            for pause in (*pauses_seconds, None):
                try:
                    with self._opened() as storage:
                        self._write(storage, wanted)
                    return
                except Exception:
                    if pause is None:
                        raise
                    time.sleep(pause)
        finally:
            lock.release()

    def why(self, error: BaseException) -> str:
        """Returns what the driver of the database says, in one line and without the password."""
        found: BaseException | None = error
        while found is not None and not hasattr(found, "orig"):  # SQLAlchemy and Optuna have made others of it
            found = found.__cause__ or found.__context__
        text = " ".join(str(getattr(found, "orig", error)).split()) or type(error).__name__
        for each in passwords_in(self._url):
            text = text.replace(each, "***").replace(urllib.parse.unquote(each), "***")
        return without_secrets(text)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        import optuna

        warnings.filterwarnings(
            "ignore", category=optuna.exceptions.ExperimentalWarning
        )  # the gRPC proxy, metric names
        scheme, _, rest = self._url.partition("://")
        if scheme == "grpc":
            host, _, port = rest.rstrip("/").rpartition(":")
            proxy = optuna.storages.GrpcStorageProxy(host=host, port=int(port))
            try:
                proxy.wait_server_ready(timeout=_CONNECT_SECONDS)
                yield proxy
            finally:
                proxy.close()
            return
        url = f"{scheme}+{_DRIVERS[scheme][0]}://{rest}" if scheme in _DRIVERS else self._url
        arguments = {"connect_timeout": _CONNECT_SECONDS} if scheme in _DRIVERS else {}
        storage = optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": arguments})
        try:
            yield storage
        finally:
            storage.remove_session()
            storage.engine.dispose()

    def _write(self, storage: Any, wanted: list[Trial]) -> None:
        import optuna

        texts = [json.dumps(dataclasses.asdict(each), sort_keys=True) for each in wanted]
        digests = [hashlib.sha256(each.encode()).hexdigest()[:16] for each in texts]
        directions: list[Any] = list(self._study.directions)  # Optuna names two words
        made = {"study_name": self._name, "storage": storage, "directions": directions}
        study = optuna.create_study(**made, load_if_exists=True)
        there = [each.user_attrs.get(DIGEST) for each in study.get_trials(deepcopy=False)]
        if there != digests[: len(there)]:
            optuna.delete_study(study_name=self._name, storage=storage)
            study, there = optuna.create_study(**made), []
        if not there:
            study.set_user_attr(_DIRECTORY, self._directory)
            study.set_metric_names(self._study.metrics)
        for trial, digest in list(zip(wanted, digests, strict=True))[len(there) :]:
            run_dir = trials.run_directory(self._directory, trial.number)
            known = {"run": run_dir, "reason": trial.reason, "step": trial.step, "parent": trial.parent}
            attributes = {name: value for name, value in known.items() if value not in (None, "")}
            study.add_trial(self._study.frozen(trial, {**attributes, DIGEST: digest}))


class Stored(Observer):
    """Writes each trial that has ended to a database, beside what another observer shows."""

    def __init__(self, shown: Observer, database: Database) -> None:
        """Takes what shows the sweep too."""
        self._shown, self._database = shown, database
        self.start, self.report, self.wait, self.say = shown.start, shown.report, shown.wait, shown.say  # type: ignore[method-assign]
        self.warn, self.look = shown.warn, shown.look  # type: ignore[method-assign]
        self._ended: dict[int, Trial] = {}
        self._tried: dict[int, Trial] | None = None
        self._call: Call | None = None
        self._error: BaseException | None = None

    def know(self, trials: Mapping[int, Trial]) -> None:
        self._shown.know(trials)
        self._ended = {number: each for number, each in trials.items() if each.state is not None}
        if self._ended != self._tried:
            self._write()

    def end(self, trial: Trial, result: str, failure: Any = None) -> None:
        self._shown.end(trial, result, failure)
        self._ended = self._ended | {trial.number: trial}
        self._write()

    def close(self) -> None:
        if self._error is not None or self._ended != self._tried:
            self._write(is_last=True)
        self._shown.close()

    def _write(self, *, is_last: bool = False) -> None:
        """Writes what has ended, for so long at most; what could not be written waits for the next trial that ends."""
        self._tried = ended = self._ended
        if self._call is None or self._call.is_done:  # else the one before still hangs
            self._call = run_bounded(lambda: self._database.write(ended), _WRITE_SECONDS, "sweep-storage")
        before, self._error = self._error, _error_of(self._call)
        error, shown = self._error, self._database.shown
        if error is None and before is not None:
            self.warn(f"{shown} has all trials again")
        elif error is not None and is_last:
            self.warn(
                f"{shown} lacks trials of this sweep ({self._database.why(error)}). All are on record here. {_FIX}; "
                "then the same command, given again, writes them there, also when the sweep is done"
            )
        elif error is not None and before is None:
            self.warn(
                f"{shown} cannot be written: {self._database.why(error)}. {_FIX}. The sweep goes on, and writes its "
                "trials there as soon as it can"
            )


def observed(
    given: str, directory: str, sweep_id: str, study: Study, shown: Observer, found: Mapping[int, Trial]
) -> Observer:
    """Returns an observer that writes to a database too, once that was tried where no trial is on record.

    Raises:
      SweepError: the database cannot be used; where trials are on record, one that does not answer is tried later.
    """
    database = Database(given, directory, sweep_id, study)
    scheme, _, rest = url_of(given).partition("://")
    module, package = _DRIVERS.get(scheme, ("sqlalchemy", "sqlalchemy"))
    if importlib.util.find_spec(module) is None:
        raise SweepError(f"{database.shown} needs a Python package that is not here: pip install '{package}'")
    if scheme == "grpc" and not re.fullmatch(r"[^:/]+:\d+/?", rest):
        raise SweepError(f"{database.shown} names no host and port; write grpc://HOST:PORT")
    if not found:
        call = run_bounded(lambda: database.write({}, _PAUSES_SECONDS), _OPEN_SECONDS, "sweep-storage-check")
        if (error := _error_of(call)) is not None:
            what = f"{database.shown} cannot be used: {database.why(error)}"
            fix = f"{_FIX}, or leave storage out: the sweep needs no database"
            raise SweepError(f"{what}. {fix}", ExitCode.CONFIG) from None  # the error may hold the password
    return Stored(shown, database)


def _error_of(call: Call) -> BaseException | None:
    return call.error if call.is_done else TimeoutError("it does not answer")
