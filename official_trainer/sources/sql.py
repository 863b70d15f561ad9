"""Rows of a table or a query of a database, by a key, on SQLAlchemy.

Owns: the keys, one query for a batch, which row is gone. Does not own: what Python's values become
(`inputs/source.py`), drivers of databases.

The keys are read once, sorted here, because databases sort text differently, and held in memory. Nothing is written:
give the user of a server the right to read alone.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from official_trainer.config import SourceConfig
from official_trainer.files import near_hint
from official_trainer.inputs import DataError
from official_trainer.inputs.arrow_columns import check_names
from official_trainer.inputs.source import Batched, as_array
from official_trainer.nearest import did_you_mean
from official_trainer.shown import first_few, passwords_in, without_secrets

_MOST_KEYS = 1000  # in one query; Oracle takes no more
_PART = 100_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class SqlConfig(SourceConfig):
    """Rows of a database, each a dict of its columns, in the order of a key; for example `sqlite:///data/examples.db`.

    A batch is one query `WHERE key IN (…)` for each 1,000 of its rows. Integers become int64 and floats float64. A
    column of SQLite that has both, which other databases do not allow, is float64.

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
            yield "url", "or url_env must be set, one of the two; for example url: sqlite:///data/examples.db"
        elif self.url and "://" not in self.url:
            yield "url", f"is no URL: {self.url!r}; for a file of SQLite, write sqlite:///{self.url}"
        if passwords_in(self.url):
            what = "holds a password, which would be written to params.yaml"
            yield "url", f"{what}; put the URL into an environment variable, and name that in url_env"
        if bool(self.table) == bool(self.query):
            yield "table", "or query must be set, one of the two"
        if not self.key:
            yield "key", "is needed: the column with another integer or text in each row"

    def build(self) -> SqlRows:
        return SqlRows(self)


class SqlRows(Batched):
    """Rows of a table or a query."""

    def __init__(self, config: SqlConfig) -> None:
        """Reads the names of the columns, and all keys.

        Raises:
          DataError: the database cannot be read, there is no such column, or the key is not unique.
        """
        import sqlalchemy

        self._config, self._what = config, config.table or "the query"
        if config.url_env and not os.environ.get(config.url_env):
            raise DataError(f"names {config.url_env}, which is not set in the environment", field="url_env")
        try:
            with self._engine.connect() as connection:
                head = connection.execute(self._select(sqlalchemy.text("*")).where(sqlalchemy.false()))
                names = list(head.keys())
                self._columns = list(config.columns) or names
                check_names([config.key], names, self._what, "key")
                check_names(self._columns, names, self._what, "columns")
                self._keys = self._read_keys(connection)
                self._of_floats = self._with_floats(connection)
        except (sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
            if wrong := "" if isinstance(error, ImportError) else self._lacks_table():
                raise DataError(wrong, field="table") from None
            is_of_query = isinstance(error, sqlalchemy.exc.DBAPIError) and config.query and self._tables() is not None
            field = "query" if is_of_query else "url" if config.url else "url_env"
            raise DataError(self._shown(error), field=field) from None

    def _tables(self) -> list[str] | None:
        """Returns the names of tables and views that there are beside the one that is wanted; None if none tells."""
        import sqlalchemy

        schema = self._config.table.rpartition(".")[0] or None
        try:
            found = sqlalchemy.inspect(self._engine)
            return sorted([*found.get_table_names(schema), *found.get_view_names(schema)])
        except (sqlalchemy.exc.SQLAlchemyError, ImportError):
            return None

    def _lacks_table(self) -> str:
        """Returns that there is no such table, and which there are; empty if there is one, or if nothing tells."""
        schema, dot, name = self._config.table.rpartition(".")
        names = self._tables()
        if not name or names is None or name in names:
            return ""
        near = did_you_mean(name, names, prefix=schema + dot, otherwise=f"; there are {first_few(names) or 'none'}")
        return f"there is no table '{self._config.table}'{near}"

    @functools.cached_property
    def _engine(self) -> Any:
        """The engine, whose pool gives each thread another connection."""
        import sqlalchemy

        url = sqlalchemy.make_url(self._config.url or os.environ[self._config.url_env])
        path = url.database or ""
        if url.get_backend_name() == "sqlite" and not path.startswith("file:") and not os.path.isfile(path):
            raise DataError(f"there is no file {path!r}{near_hint(path)}", field="url")  # SQLite would make one
        return sqlalchemy.create_engine(url, pool_pre_ping=True, pool_size=16)

    def _select(self, *columns: Any) -> Any:
        import sqlalchemy

        schema, _, name = self._config.table.rpartition(".")
        query = self._config.query.rstrip().rstrip(";").replace(":", r"\:")  # a colon would begin a parameter
        found: Any = sqlalchemy.table(name, schema=schema or None) if name else sqlalchemy.text(f"({query}) examples")
        return sqlalchemy.select(*columns).select_from(found)

    def _read_keys(self, connection: Any) -> Any:
        """Returns all keys, sorted, `[n]`: int64, or texts."""
        import numpy as np
        import sqlalchemy

        name, kinds, parts = self._config.key, set[type](), [np.empty(0, np.int64)]
        result = connection.execution_options(yield_per=_PART).execute(self._select(sqlalchemy.column(name)))
        for part in result.scalars().partitions(_PART):
            kinds |= {type(key) for key in part}
            if kinds not in ({int}, {str}):
                said = ", ".join(sorted(kind.__name__ for kind in kinds))
                what = f"'{name}' must have an integer or a text in each row, all of one type, and has {said}"
                raise DataError(f"{what}; take another column, or CAST it in a query", field="key")
            parts.append(np.asarray(part, np.int64 if kinds == {int} else object))
        keys, counts = np.unique(np.concatenate(parts), return_counts=True)
        if (twice := keys[counts > 1]).size:
            what = f"'{name}' is not unique: more than one row of {self._what} has {twice[:1].tolist()[0]!r}"
            raise DataError(f"{what}; take a column that has another value in each row", field="key")
        return keys

    def _with_floats(self, connection: Any) -> set[str]:
        """Returns the columns in which SQLite, whose values have a type each, holds a float in any row."""
        import sqlalchemy

        if connection.dialect.name != "sqlite":
            return set()
        columns: list[Any] = [sqlalchemy.column(name) for name in self._columns]
        tests = [sqlalchemy.func.max(sqlalchemy.func.typeof(column) == "real") for column in columns]
        found = connection.execute(self._select(*tests)).one()
        return {name for name, has_floats in zip(self._columns, found, strict=True) if has_floats}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_engine"}

    def __len__(self) -> int:
        return len(self._keys)

    def take(self, indices: Sequence[int]) -> Any:
        import sqlalchemy

        keys = self._keys[list(indices)].tolist()
        found: dict[Any, Any] = {}
        key: Any = sqlalchemy.column(self._config.key)
        columns: list[Any] = [sqlalchemy.column(name) for name in self._columns]
        try:
            with self._engine.connect() as connection:
                for first in range(0, len(keys), _MOST_KEYS):
                    wanted = self._select(key.label("key_"), *columns).where(key.in_(keys[first : first + _MOST_KEYS]))
                    found.update((row[0], row[1:]) for row in connection.execute(wanted))
        except sqlalchemy.exc.OperationalError as error:
            raise ConnectionError(self._shown(error)) from None
        except sqlalchemy.exc.SQLAlchemyError as error:
            raise ValueError(self._shown(error)) from None
        if gone := [each for each in keys if each not in found]:
            raise ValueError(f"the row {self._config.key} = {gone[0]!r} is gone since the run began; put it back")
        rows = [found[each] for each in keys]
        return {name: self._array([row[at] for row in rows], name) for at, name in enumerate(self._columns)}

    def _array(self, values: Sequence[Any], name: str) -> Any:
        """Returns values of a column as an array, which has the column's type also where all of them are integers."""
        if any(each is None for each in values):
            fix = f"take COALESCE({name}, 0) in a query, or leave such rows out of the data"
            raise ValueError(f"{name} is NULL; {fix}")
        kind = float if name in self._of_floats else int
        return as_array([kind(each) if type(each) is int else _plain(each) for each in values], name, floats="float64")

    def where(self, index: int) -> str:
        return f"{self._what}, {self._config.key} = {self._keys[[index]].tolist()[0]!r}"

    def fingerprint(self) -> str:
        """Returns a checksum of the keys; it does not change with the other columns."""
        digest = hashlib.blake2b(digest_size=16)
        for first in range(0, len(self), _PART):
            digest.update(repr(self._keys[first : first + _PART].tolist()).encode())
        return digest.hexdigest()

    def _shown(self, error: Exception) -> str:
        """Returns what a driver says, without passwords."""
        said = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        for password in passwords_in(self._config.url or os.environ.get(self._config.url_env, "")):
            said = said.replace(password, "***")
        return without_secrets(said)


def _plain(value: Any) -> Any:
    """Returns bytes as Python has them: drivers return views of them."""
    return bytes(value) if isinstance(value, memoryview | bytearray) else value
