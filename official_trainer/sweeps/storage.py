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
import sqlite3
import time
import urllib.parse
import warnings
from collections.abc import Iterator, Mapping
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

SWEEP_ID, DIGEST = "official_trainer_sweep", "official_trainer_digest"
"""User attributes: of the study, which sweep it is of; of a trial, what its record holds."""

_DIRECTORY = "directory"
_DRIVERS = {"postgresql": ("psycopg", "psycopg[binary]"), "mysql": ("pymysql", "pymysql"), "grpc": ("grpc", "grpcio")}
_CONNECT_SECONDS = 10
_OPEN_SECONDS = 30.0
_WRITE_SECONDS = 10.0
_BUSY_SECONDS = 0.2
_PAUSES_SECONDS = (0.5, 1.0)


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
        self._directory, self._sweep_id, self._study = files.absolute(directory), sweep_id, study
        self.name = f"{os.path.basename(self._directory.rstrip('/'))}-{sweep_id[:8]}"

    def check(self) -> None:
        """Returns if the database can be reached and has no study of another sweep by this name."""
        for pause in (*_PAUSES_SECONDS, None):
            try:
                with self._opened() as storage:
                    self._found(storage)
                return
            except ForeignStudyError:
                raise
            except Exception:  # another process may make Optuna's tables at the same time: the next look finds them
                if pause is None:
                    raise
                time.sleep(pause)

    def write(self, ended: Mapping[int, Trial]) -> None:
        """Makes the study hold these trials, up to the first that is missing; waits while another process writes."""
        lock = DirectoryLock(self._directory, name="storage")
        while not lock.try_acquire():
            time.sleep(_BUSY_SECONDS)
        try:
            with self._opened() as storage:
                in_order = itertools.takewhile(ended.__contains__, itertools.count())  # others wait for those before
                self._write(storage, [ended[number] for number in in_order])
        finally:
            lock.release()

    def why(self, error: BaseException) -> str:
        """Returns an error in one line, without the password."""
        text = " ".join(str(_of_driver(error)).split()) or type(error).__name__
        for each in passwords_in(self._url):
            text = text.replace(each, "***").replace(urllib.parse.unquote(each), "***")
        return without_secrets(text)

    def fix(self, error: BaseException) -> str:
        """Returns what to do about an error, as the beginning of a sentence."""
        if not self._url.startswith("sqlite:"):
            return "Start the database and look at its URL"
        found = _of_driver(error)
        is_damaged = isinstance(found, sqlite3.DatabaseError) and not isinstance(found, sqlite3.OperationalError)
        damaged = "Remove the file, which is damaged or no database, or name another one"
        return damaged if is_damaged else "Look at the file and at its folder"

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

    def _found(self, storage: Any) -> Any:
        """Returns the study, or None if there is none yet."""
        import optuna

        try:
            study = optuna.load_study(study_name=self.name, storage=storage)
        except KeyError:
            return None
        owner = study.user_attrs.get(SWEEP_ID)
        if owner == self._sweep_id or (owner is None and not study.get_trials(deepcopy=False)):
            return study  # without an owner: its process was killed as it made the study
        raise ForeignStudyError(
            f"{self.shown} holds a study {self.name!r} of another sweep; name another database, or "
            f"delete it: optuna delete-study --study-name={self.name} --storage=URL"
        )

    def _write(self, storage: Any, wanted: list[Trial]) -> None:
        import optuna

        texts = [json.dumps(dataclasses.asdict(each), sort_keys=True) for each in wanted]
        digests = [hashlib.sha256(each.encode()).hexdigest()[:16] for each in texts]
        if (study := self._found(storage)) is not None:
            there = [each.user_attrs.get(DIGEST) for each in study.get_trials(deepcopy=False)]
            if there != digests[: len(there)]:
                optuna.delete_study(study_name=self.name, storage=storage)
                study = None
        if study is None:
            directions: list[Any] = list(self._study.directions)  # Optuna names two words
            study = optuna.create_study(storage=storage, study_name=self.name, directions=directions)
            there = []
        if study.user_attrs.get(SWEEP_ID) is None:
            study.set_user_attr(_DIRECTORY, self._directory)
            study.set_user_attr(SWEEP_ID, self._sweep_id)
            study.set_metric_names(self._study.metrics)
        for trial, digest in list(zip(wanted, digests, strict=True))[len(there) :]:
            run_dir = files.join(trials.directory(self._directory, trial.number), trials.RUN)
            known = {"run": run_dir, "reason": trial.reason, "step": trial.step, "parent": trial.parent}
            attributes = {name: value for name, value in known.items() if value not in (None, "")}
            study.add_trial(self._study.frozen(trial, {**attributes, DIGEST: digest}))


class ForeignStudyError(SweepError):
    """The study is of another sweep."""


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
        before, self._error = self._error, self._call.error if self._call.is_done else _no_answer()
        error, shown = self._error, self._database.shown
        if error is None and before is not None:
            self.warn(f"{shown} has all trials again")
        elif error is not None and is_last:
            self.warn(
                f"{shown} lacks trials of this sweep ({self._database.why(error)}). All are on record here. "
                f"{self._database.fix(error)}; then the same command, given again, writes them there, also when the "
                "sweep is done"
            )
        elif error is not None and before is None:
            self.warn(
                f"{shown} cannot be written: {self._database.why(error)}. {self._database.fix(error)}. The sweep goes "
                "on, and writes its trials there as soon as it can"
            )


def observed(given: str, directory: str, sweep_id: str, study: Study, shown: Observer, *, has_trials: bool) -> Observer:
    """Returns an observer that writes to a database too, once that was tried.

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
    call = run_bounded(database.check, _OPEN_SECONDS, "sweep-storage-check")
    error = call.error if call.is_done else _no_answer()
    if isinstance(error, ForeignStudyError):
        raise error
    if error is not None and not has_trials:
        what = f"{database.shown} cannot be used: {database.why(error)}"
        fix = f"{database.fix(error)}, or leave storage out: the sweep needs no database"
        raise SweepError(f"{what}. {fix}", ExitCode.CONFIG) from None  # the error may hold the password
    return Stored(shown, database)


def _no_answer() -> TimeoutError:
    return TimeoutError("it does not answer")


def _of_driver(error: BaseException) -> BaseException:
    """Returns the error of the database's driver that SQLAlchemy and Optuna have made others of; else the error."""
    found: BaseException | None = error
    while found is not None:
        if original := getattr(found, "orig", None):
            return original
        found = found.__cause__ or found.__context__
    return error
