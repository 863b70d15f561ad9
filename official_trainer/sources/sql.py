"""Rows of a table or a query of a database, by a key, on SQLAlchemy.

Owns: the keys, one query for a batch, connections that only read, which row is gone. Does not own: what Python's values
become (`inputs/source.py`), drivers of databases.

The keys are read once, sorted here, because databases sort text differently, and held in memory.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from official_trainer.config import SourceConfig
from official_trainer.files import near_hint
from official_trainer.inputs import DataError
from official_trainer.inputs.arrow_columns import check_names
from official_trainer.inputs.source import as_array
from official_trainer.nearest import did_you_mean
from official_trainer.shown import passwords_in, shorten, without_secrets
from official_trainer.sources.columns import Columns, column_problems

_MOST_KEYS = 1000  # in one query; Oracle takes no more
_PART = 100_000
_READ_ONLY = {
    "sqlite": "PRAGMA query_only = ON",
    "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
    "mariadb": "SET SESSION TRANSACTION READ ONLY",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SqlConfig(SourceConfig):
    """Rows of a database, each a dict of its columns, in the order of a key; for example `sqlite:///data/examples.db`.

    A batch is one query `WHERE key IN (…)` for each 1,000 of its rows. Integers become int64 and floats float32.

    Attributes:
      url: of SQLAlchemy, without a password: `postgresql+psycopg://user@host/name`. Not with `url_env`.
      url_env: the environment variable that holds the URL, for one with a password.
      table: the table, or `schema.table`. Not with `query`.
      query: a SELECT statement.
      key: its column with another integer or text in each row; an index on it makes batches quick.
      columns: the columns that are read; empty means all.
    """

    NEEDS: ClassVar[tuple[str, ...]] = ("sqlalchemy",)
    INSTALL: ClassVar[str] = "official-trainer[sql]"

    url: str = ""
    url_env: str = ""
    table: str = ""
    query: str = ""
    key: str = ""
    columns: tuple[str, ...] = ()

    def problems(self) -> Iterator[tuple[str, str]]:
        if bool(self.url) == bool(self.url_env):
            both = "cannot be set together with url_env; keep one of the two"
            yield "url", both if self.url else "is needed, or url_env: for example sqlite:///data/examples.db"
        if passwords_in(self.url):
            what = "holds a password, which would be written to params.yaml"
            yield "url", f"{what}; put the URL into an environment variable, and name that in url_env"
        if bool(self.table) == bool(self.query):
            yield "table", "cannot be set together with query; keep one" if self.table else "is needed, or query"
        if not self.key:
            yield "key", "is needed: the column with another integer or text in each row"
        yield from column_problems(self.columns)

    def build(self) -> SqlRows:
        return SqlRows(self)


class SqlRows(Columns):
    """Rows of a table or a query."""

    def __init__(self, config: SqlConfig) -> None:
        """Reads the names of the columns, and all keys.

        Raises:
          DataError: the database cannot be read, there is no such column, or the key is not unique.
        """
        self._config, self._what = config, config.table or "the query"
        self._lock = threading.Lock()
        self._engine: Any = None
        import sqlalchemy

        try:
            self._check_url()
            with self._connection() as connection:
                head = connection.execute(self._select(sqlalchemy.text("*")).where(sqlalchemy.false()))
                names = list(head.keys())
                self._columns = list(config.columns) or names
                check_names([config.key], names, self._what, "key")
                check_names(self._columns, names, self._what, "columns")
                self._keys = self._read_keys(connection)
        except (sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
            field = "url" if config.url else "url_env"
            raise DataError(f"{self._shown(error)}{self._near_table()}", field=field) from None

    def _check_url(self) -> None:
        import sqlalchemy

        config, variable = self._config, self._config.url_env
        if variable and not os.environ.get(variable):
            raise DataError(f"names {variable}, which is not set in the environment", field="url_env")
        url = sqlalchemy.make_url(config.url or os.environ[variable])
        path = url.database or ""
        if url.get_backend_name() == "sqlite" and not path.startswith("file:") and not os.path.isfile(path):
            raise DataError(f"there is no file {path!r}{near_hint(path)}", field="url")  # SQLite would make one

    def _near_table(self) -> str:
        import sqlalchemy

        try:
            assert self._engine is not None
            names = sqlalchemy.inspect(self._engine).get_table_names()
        except Exception:  # the database cannot be reached at all
            return ""
        return "" if self._config.table in ("", *names) else did_you_mean(self._config.table, names)

    def _connection(self) -> Any:
        """Returns a connection of the pool, which gives each thread another."""
        import sqlalchemy

        with self._lock:
            if self._engine is None:
                url = sqlalchemy.make_url(self._config.url or os.environ[self._config.url_env])
                self._engine = sqlalchemy.create_engine(url, pool_pre_ping=True, pool_size=16)
                statement = _READ_ONLY.get(self._engine.dialect.name)

                def only_reads(connection: Any, _: Any) -> None:
                    if statement is not None:
                        connection.cursor().execute(statement)
                        connection.commit()

                sqlalchemy.event.listen(self._engine, "connect", only_reads)
        return self._engine.connect()

    def _select(self, *columns: Any) -> Any:
        import sqlalchemy

        schema, _, name = self._config.table.rpartition(".")
        query = self._config.query.rstrip().rstrip(";").replace(":", r"\:")  # a colon would begin a parameter
        found: Any = sqlalchemy.table(name, schema=schema or None) if name else sqlalchemy.text(f"({query}) examples")
        return sqlalchemy.select(*columns).select_from(found)

    def _read_keys(self, connection: Any) -> Any:
        """Returns all keys, sorted: an array of integers, or a list of texts."""
        import numpy as np
        import sqlalchemy

        name = self._config.key
        result = connection.execution_options(yield_per=_PART).execute(self._select(sqlalchemy.column(name)))
        parts: list[Any] = []
        for part in result.scalars().partitions(_PART):
            kinds = {type(key) for key in part}
            if kinds not in ({int}, {str}) or (parts and isinstance(parts[0], list) != (kinds == {str})):
                said = ", ".join(sorted(kind.__name__ for kind in kinds))
                what = f"'{name}' must have an integer or a text in each row, all of one type, and has {said}"
                raise DataError(f"{what}; take another column, or CAST it in a query", field="key")
            parts.append(np.asarray(part, np.int64) if kinds == {int} else list(part))
        if not parts:
            return []
        is_text = isinstance(parts[0], list)
        keys: Any = sorted(key for part in parts for key in part) if is_text else np.sort(np.concatenate(parts))
        twice = next((row for row in range(1, len(keys)) if keys[row] == keys[row - 1]), None) if is_text else None
        if not is_text and (same := np.flatnonzero(keys[1:] == keys[:-1])).size:
            twice = int(same[0]) + 1
        if twice is not None:
            value = keys[twice] if is_text else int(keys[twice])
            what = f"'{name}' is not unique: more than one row of {self._what} has {value!r}"
            raise DataError(f"{what}; take a column that has another value in each row", field="key")
        return keys

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_engine")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock(), _engine=None)

    def __len__(self) -> int:
        return len(self._keys)

    def take(self, indices: Sequence[int]) -> Any:
        import sqlalchemy

        keys = [self._key(index) for index in indices]
        key: Any = sqlalchemy.column(self._config.key)
        columns: list[Any] = [sqlalchemy.column(name) for name in self._columns]
        found: dict[Any, Any] = {}
        try:
            with self._connection() as connection:
                for first in range(0, len(keys), _MOST_KEYS):
                    wanted = self._select(key.label("key_"), *columns).where(key.in_(keys[first : first + _MOST_KEYS]))
                    found.update((row[0], row[1:]) for row in connection.execute(wanted))
        except sqlalchemy.exc.OperationalError as error:
            raise ConnectionError(self._shown(error)) from None
        except sqlalchemy.exc.SQLAlchemyError as error:
            raise ValueError(self._shown(error)) from None
        if (gone := next((each for each in keys if each not in found), None)) is not None:
            raise ValueError(f"the row {self._config.key} = {gone!r} is gone since the run began; put it back")
        rows = [found[each] for each in keys]
        return {name: _column(name, [row[place] for row in rows]) for place, name in enumerate(self._columns)}

    def _key(self, index: int) -> Any:
        key = self._keys[index]
        return key if isinstance(key, str) else int(key)

    def where(self, index: int) -> str:
        return f"{self._what}, {self._config.key} = {self._key(index)!r}"

    def fingerprint(self) -> str:
        """Returns a checksum of the keys; it does not change with the other columns."""
        keys = self._keys.tobytes() if hasattr(self._keys, "tobytes") else "\0".join(self._keys).encode()
        return hashlib.blake2b(keys + repr(len(self._keys)).encode(), digest_size=16).hexdigest()

    def _shown(self, error: Exception) -> str:
        """Returns what a driver says, without passwords."""
        said = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        for password in passwords_in(self._config.url or os.environ.get(self._config.url_env, "")):
            said = said.replace(password, "***")
        return without_secrets(said)


def _column(name: str, values: list[Any]) -> Any:
    """Returns the values of a column as an array.

    Raises:
      ValueError: one is missing, or is no number, truth value or text.
    """
    values = [bytes(value) if isinstance(value, memoryview | bytearray) else value for value in values]
    kinds = {type(value) for value in values}
    if type(None) in kinds:
        raise ValueError(f"{name} is NULL; fill in what is missing, for example with COALESCE in a query")
    if len(kinds) > 1:
        said = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(f"{name} has values of several types ({said}); CAST it in a query")
    if not kinds <= {bool, int, float, str, bytes}:
        said = f"{name} is a {kinds.pop().__name__}, which no tensor holds: {shorten(str(values[0]))}"
        raise ValueError(f"{said}; CAST it in a query to a number or text, or leave it out of `columns`")
    return as_array(values, name)
