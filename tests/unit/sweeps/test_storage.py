"""The study of a sweep in a database."""

import contextlib
import sqlite3
import sys
from pathlib import Path

import optuna
import pytest
from sqlalchemy import exc

from official_trainer import config
from official_trainer.cli import terminal
from official_trainer.config import ConfigError
from official_trainer.lock import DirectoryLock
from official_trainer.sweeps import storage
from official_trainer.sweeps.observer import Observer
from official_trainer.sweeps.settings import Objective, SweepConfig
from official_trainer.sweeps.space import read_free
from official_trainer.sweeps.study import Study
from official_trainer.sweeps.trial import SweepError, Trial
from tests.support.launch.jobs import until

ID = "0123456789abcdef"
SPACE = {"rate": "log(1e-3, 1)", "units": "choice(a, b)"}
STATES = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}


class Heard(Observer):
    def __init__(self):
        self.said = []

    def warn(self, text):
        self.said.append(text)


def trial(number, state="complete", value=0.5):
    ended = {"value": value, "step": 4} if state == "complete" else {"reason": f"why {number}"}
    values = {"rate": 0.01 * (number + 1), "units": "ab"[number % 2]}
    return Trial(number=number, values=values, state=state, reports=((2, 1.0), (4, 0.5)), **ended)


def by_number(*found):
    return {each.number: each for each in found}


@pytest.fixture
def study():
    resolved = config.resolve(SweepConfig(), params_overrides=[config.flow({"space": SPACE})])
    return Study(read_free(SPACE, lambda keys: None), resolved, Objective("loss", "min", "best"))


@pytest.fixture
def place(tmp_path):
    (tmp_path / "out").mkdir()
    return str(tmp_path / "out"), f"sqlite:///{tmp_path}/db.sqlite"


def stored(url, name="out-01234567"):
    database = optuna.storages.RDBStorage(url)
    try:
        return optuna.load_study(study_name=name, storage=database).trials
    finally:
        database.engine.dispose()


def lose_database(folder):
    """Puts a folder in the place of the database, which cannot be opened then."""
    (folder / "db.sqlite").unlink()
    (folder / "db.sqlite").mkdir()


def test_the_study_has_the_trials_in_their_order_as_they_are_recorded(place, study):
    """N21: a trial that has ended waits for those before it; none is written twice."""
    directory, url = place
    database = storage.Database(url, directory, ID, study)
    known = by_number(trial(0), trial(1, "pruned"), trial(2, "failed"), trial(4))
    database.write(known)
    database.write(known)
    found = stored(url)
    assert [each.number for each in found] == [0, 1, 2]
    for one, record in zip(found, known.values(), strict=False):
        assert one.state.name == STATES[record.state] and one.params == record.values
        assert one.intermediate_values == dict(record.reports)
        assert one.values == ([record.value] if record.value is not None else None)
        assert one.user_attrs.get("reason", "") == record.reason
        assert one.user_attrs["run"] == f"{directory}/trials/{one.number}/run"
    assert found[0].distributions["rate"] == optuna.distributions.FloatDistribution(1e-3, 1, log=True)
    database.write(known | by_number(trial(3)))
    assert [each.number for each in stored(url)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("later", [by_number(trial(0), trial(1, value=0.1)), by_number(trial(0))])
def test_a_study_that_differs_from_the_records_is_written_again(later, place, study):
    """N21: such as after `sweep retry`."""
    directory, url = place
    database = storage.Database(url, directory, ID, study)
    database.write(by_number(trial(0), trial(1)))
    database.write(later)
    assert [each.value for each in stored(url)] == [each.value for each in later.values()]


def test_a_database_that_fails_is_said_once_and_so_is_that_it_has_all_again(place, study, tmp_path, monkeypatch):
    """N21: while the sweep runs."""
    directory, url = place
    heard = Heard()
    observer = storage.observed(url, directory, ID, study, heard, {})
    lose_database(tmp_path)
    observer.know(by_number(trial(0)))
    observer.end(trial(1), "complete")
    why = f"unable to open database file. {storage._FIX}. The sweep goes on, and writes its trials there"
    assert heard.said == [f"storage={url} cannot be written: {why} as soon as it can"]
    (tmp_path / "db.sqlite").rmdir()
    observer.close()
    assert heard.said[1:] == [f"storage={url} has all trials again"] and len(stored(url)) == 2


def test_a_database_that_does_not_answer_is_said(place, study, monkeypatch):
    """N21: or that another driver writes for long: before the first trial, while the sweep runs, at its end."""
    directory, url = place
    heard, known = Heard(), by_number(trial(0), trial(1))
    observer = storage.observed(url, directory, ID, study, heard, {})
    with DirectoryLock(directory, name="storage"), monkeypatch.context() as patched:
        for name in ("_WRITE_SECONDS", "_OPEN_SECONDS"):
            patched.setattr(storage, name, 0.1)
        with pytest.raises(SweepError, match=r"db.sqlite cannot be used: it does not answer. Start the database"):
            storage.observed(url, directory, ID, study, heard, {})
        observer.know(by_number(trial(0)))
        observer.end(trial(1), "complete")
        what = f"storage={url} cannot be written: it does not answer"
        assert [each.partition(". ")[0] for each in heard.said] == [what]
        observer.close()
        assert f"storage={url} lacks trials of this sweep (it does not answer). All" in heard.said[1]
    until(lambda: observer._call.is_done)
    observer = storage.observed(url, directory, ID, study, heard, known)
    observer.know(known)
    assert len(heard.said) == 2 and len(stored(url)) == 2
    observer.close()


def test_a_database_that_fails_is_said_where_nothing_else_is(place, study, tmp_path, capsys):
    """N21: with `--quiet`, which keeps warnings."""
    directory, url = place
    with terminal.log_shown(quiet=True):
        observer = storage.observed(url, directory, ID, study, Observer(), {})
        lose_database(tmp_path)
        observer.say("waiting: other processes work on the trials that are left")
        observer.know(by_number(trial(0)))
        observer.close()
    printed = capsys.readouterr()
    assert f"warning: storage={url} lacks trials of this sweep (unable to open database file)" in printed.err
    assert "waiting" not in printed.err and not printed.out


def drop_rows(rows):
    """Returns what removes rows, but not those that belong to them, as a tool that knows the tables in part may."""

    def damage(path):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(f"delete from {rows}")
            connection.commit()

    return damage


DAMAGES = {  # what is done to the file → why it cannot be written; none if it is written again
    "missing": (Path.unlink, None),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:40_000]), "disk image is malformed"),
    "text": (lambda path: path.write_text("no database\n" * 99), "file is not a database"),
    "a trial is gone": (drop_rows("trials where number = 1"), "UNIQUE constraint failed"),
    "folder": (lambda path: (path.unlink(), path.mkdir()), "unable to open database file"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_said_of_a_damaged_database_is_what_happens(name, place, study, tmp_path):
    """N21: the same command writes it again, once what was said is done; nothing is said where it does so at once."""
    directory, url = place
    path, (damage, expected) = tmp_path / "db.sqlite", DAMAGES[name]
    known = by_number(trial(0), trial(1, "pruned"), trial(2))
    storage.Database(url, directory, ID, study).write(known)
    heard = Heard()
    observer = storage.observed(url, directory, ID, study, heard, known)
    damage(path)
    known |= by_number(trial(3))
    observer.know(known)
    observer.close()
    if expected is None:
        assert heard.said == []
    else:
        what = f"{storage._FIX}; then the same command, given again, writes them there, also when the sweep is done"
        assert expected in heard.said[-1] and f"All are on record here. {what}" in heard.said[-1], heard.said
        path.rmdir() if path.is_dir() else path.unlink()
        heard.said.clear()
        observer = storage.observed(url, directory, ID, study, heard, known)
        observer.know(known)
        observer.close()
    assert heard.said == [] and [each.number for each in stored(url)] == list(known)


def test_a_file_that_is_no_database_is_named_before_the_first_trial(place, study, tmp_path):
    """N21: and stays as it is, because it may be something else of the user's."""
    (tmp_path / "db.sqlite").write_text("my notes\n" * 99)
    what = f"cannot be used: file is not a database. {storage._FIX}, or leave storage out: the sweep needs no database"
    with pytest.raises(SweepError, match=what):
        storage.observed(place[1], place[0], ID, study, Observer(), {})
    assert (tmp_path / "db.sqlite").read_text().startswith("my notes")


DOWN = exc.OperationalError("SELECT 1", {}, Exception('connection to server at "127.0.0.1" failed: refused'))


def opened_after(monkeypatch, *errors):
    """Has the first attempts to open a database fail; returns those that were made."""
    tries, left = [], list(errors)
    init = optuna.storages.RDBStorage.__init__

    def open_one(self, *arguments, **options):
        tries.append(arguments)
        if left:
            raise left.pop(0)
        init(self, *arguments, **options)

    monkeypatch.setattr(optuna.storages.RDBStorage, "__init__", open_one)
    monkeypatch.setattr(storage, "_PAUSES_SECONDS", (0.0, 0.0))
    return tries


def test_a_database_that_fails_at_first_is_tried_again(place, study, monkeypatch):
    """N21: many sweeps may start on a new one, and make Optuna's tables at the same time; else the reason is said."""
    tries = opened_after(monkeypatch, DOWN, DOWN)
    storage.observed(place[1], place[0], ID, study, Observer(), {}).close()
    assert len(tries) >= 3
    opened_after(monkeypatch, DOWN, DOWN, DOWN)
    monkeypatch.setitem(sys.modules, "psycopg", sys)
    with pytest.raises(SweepError, match=r"refused\. Start the database, or look at its URL; ") as caught:
        storage.observed("postgresql://me:secret@host/db", place[0], ID, study, Observer(), {})
    assert str(caught.value).startswith("storage=postgresql://me:***@host/db cannot be used: connection to server at")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "variable SWEEP_DB is not set; set it to the URL"),
        ("redis://me:secret@host", r"SWEEP_DB=redis://me:\*\*\*@host is no URL of a database; expected one of"),
        ("postgres://host/db", r"SWEEP_DB=postgres://host/db is no URL .*; did you mean postgresql://\?$"),
    ],
)
def test_a_text_that_is_no_url_is_refused(url, message, monkeypatch):
    """N21: of a variable that `env:NAME` names, and in the file, where that is offered."""
    monkeypatch.setenv("SWEEP_DB", url)
    with pytest.raises(SweepError, match=message):
        storage.url_of("env:SWEEP_DB")
    if url:
        with pytest.raises(ConfigError, match=r"is no URL of a database; expected .*; env:NAME takes"):
            config.resolve(SweepConfig(), params_overrides=[config.flow({"space": SPACE, "storage": url})])


@pytest.mark.parametrize(
    ("url", "missing", "message"),
    [
        ("postgresql://h/d", "psycopg", r"needs a Python package that is not here: pip install 'psycopg\[binary\]'"),
        ("mysql://h/d", "pymysql", "needs a Python package that is not here: pip install 'pymysql'"),
        ("grpc://h:1", "grpc", "needs a Python package that is not here: pip install 'grpcio'"),
        ("grpc://host", "", r"storage=grpc://host names no host and port; write grpc://HOST:PORT"),
        ("env:SWEEP_DB", "", r"storage=env:SWEEP_DB cannot be used: unable to open database file"),
    ],
)
def test_what_cannot_be_used_is_named_before_the_first_trial(url, missing, message, place, study, monkeypatch):
    """N21: a driver that is not installed, a proxy without a port, of which Optuna would take another one; no URL."""
    monkeypatch.setenv("SWEEP_DB", "sqlite:////no/such/folder/db.sqlite")
    monkeypatch.setitem(sys.modules, "grpc", sys)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SweepError, match=message):
        storage.observed(url, place[0], ID, study, Observer(), {})
