"""Rows of a database by their key, in the order that is asked for; what is gone, and passwords that stay hidden."""

import concurrent.futures
import pickle
import sqlite3

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.config.schema import DataConfig
from official_trainer.sources.sql import SqlConfig
from tests.support.source_cases import tables


def database(folder, *statements):
    with sqlite3.connect(folder / "rows.db") as connection:
        for statement in statements:
            connection.execute(statement)
    return f"sqlite:///{folder}/rows.db"


def build(url, **fields):
    return SqlConfig(**{"url": url, "table": "t", "key": "k", **fields}).build()


def failure(source):
    context = inputs.InputContext()
    params = DataConfig(global_batch_size=8, is_training=False)
    try:
        list(inputs.from_source(source, params, context))
    except tf.errors.InvalidArgumentError:
        return str(context.failure())
    except inputs.DataError as error:
        return str(error)
    raise AssertionError("all rows were read")


def test_rows_come_in_the_order_that_is_asked_for(tmp_path):
    """N41: more of them than a query has keys, in threads, and after pickling."""
    source = tables.sql(tmp_path, 2500).build()
    order = np.random.RandomState(0).permutation(2500).tolist()
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        found = list(threads.map(source.take, [order, order[:7], [5, 5], order]))
    assert [batch["id"].tolist() for batch in found] == [order, order[:7], [5, 5], order]
    again = pickle.loads(pickle.dumps(source)).take(order)
    assert again["text"].tolist() == [f"row {number}".encode() for number in order]
    assert again["x"].dtype == np.float64 and again["id"].dtype == np.int64


def test_values_and_texts_as_keys(tmp_path):
    """N41: a query with a colon and a semicolon; bytes with zeros; keys are sorted as Python does."""
    url = database(
        tmp_path,
        "CREATE TABLE t (k TEXT, b BLOB, f REAL)",
        "INSERT INTO t VALUES ('b', x'6100', 0.5), ('B', x'62', 1), ('a:', x'63', 2)",
    )
    source = build(url, table="", query="SELECT * FROM t WHERE k <> ':x' ;")
    batch = source.take([0, 1, 2])
    assert batch["k"].tolist() == [b"B", b"a:", b"b"] and batch["b"].tolist() == [b"b", b"c", b"a\0"]
    assert source.where(1) == "the query, k = 'a:'"
    assert failure(build(url, columns=("k",), table="", query="SELECT k FROM t LIMIT 0")).endswith("has no example")


def test_numbers_keep_all_their_digits(tmp_path):
    """N41: as in CSV; a column that has whole and other numbers is float64 also in a batch of whole ones."""
    url = database(
        tmp_path,
        "CREATE TABLE t (k INTEGER, r REAL, mixed NUMERIC, n INTEGER)",
        "INSERT INTO t VALUES (1, 1700000000.125, 16777217, 9007199254740993), (2, 1700000001.125, 0.5, 16777217)",
    )
    source = pickle.loads(pickle.dumps(build(url)))
    batches = [source.take(each) for each in ([0, 1], [0], [1])]
    assert [batch["r"].tolist() for batch in batches] == [
        [1700000000.125, 1700000001.125],
        [1700000000.125],
        [1700000001.125],
    ]
    assert [batch["mixed"].tolist() for batch in batches] == [[16777217.0, 0.5], [16777217.0], [0.5]]
    assert batches[0]["n"].tolist() == [9007199254740993, 16777217]
    for batch in batches:
        assert {name: str(array.dtype) for name, array in batch.items()} == {
            **{"k": "int64", "r": "float64", "mixed": "float64", "n": "int64"}
        }
    whole = next(iter(inputs.from_source(build(url), DataConfig(global_batch_size=2, is_training=False))))
    assert whole["r"].dtype == tf.float64 and whole["r"].numpy().tolist() == [1700000000.125, 1700000001.125]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"key": "ky"}, "key: t has no column 'ky'; there are k, n, s"),
        ({"columns": ("k", "nn")}, "columns: t has no column 'nn'"),
        ({"key": "s"}, "key: 's' is not unique: more than one row of t has 'x'"),
        ({"key": "n"}, "key: 'n' must have an integer or a text in each row, all of one type, and has NoneType"),
        ({"key": "f"}, "key: 'f' must have an integer or a text in each row, all of one type, and has float"),
        ({"table": "tt_"}, "table: there is no table 'tt_'; there are t, view"),
        ({"table": "viev"}, "table: there is no table 'viev'; did you mean view?"),
        ({"table": "", "query": "SELEC 1"}, "query: near"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, fields, message):
    """N45"""
    url = database(
        tmp_path,
        "CREATE TABLE t (k INTEGER, n INTEGER, s TEXT, f REAL)",
        "CREATE VIEW view AS SELECT k FROM t",
        "INSERT INTO t VALUES (1, NULL, 'x', 0.5), (2, 2, 'x', 0.25)",
    )
    with pytest.raises(inputs.DataError) as caught:
        build(url, **fields)
    assert message in str(caught.value)


def test_a_file_that_is_not_there_is_not_made(tmp_path):
    """N45: SQLite would make an empty one."""
    database(tmp_path, "CREATE TABLE t (k INTEGER)")
    with pytest.raises(inputs.DataError, match=r"url: there is no file .*row.db'; did you mean .*rows.db\?"):
        build(f"sqlite:///{tmp_path}/row.db")
    assert not (tmp_path / "row.db").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("DELETE FROM t WHERE k = 7", "t, k = 7: the row k = 7 is gone since the run began"),
        (
            "UPDATE t SET v = NULL WHERE k = 7",
            "t, k = 7: v is NULL; take COALESCE(v, 0) in a query, or leave such rows out of the data",
        ),
        ("UPDATE t SET v = 'x' WHERE k = 7", "t, k = 7: v is text, and in the first example int64"),
        ("DROP TABLE t", "no such table: t"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path, change, message):
    """N45"""
    url = database(tmp_path, "CREATE TABLE t (k INTEGER, v)", "INSERT INTO t VALUES (3, 1), (7, 2), (9, 3)")
    source = build(url)
    database(tmp_path, change)
    assert message in failure(source)


def test_a_path_is_no_url(tmp_path):
    """N45: it is answered with the URL, by a config and by code; a file that is no database is a matter of the URL."""
    wrong = SqlConfig(url="npy/t.db", table="t", key="k")
    assert dict(wrong.problems()) == {"url": "is no URL: 'npy/t.db'; for a file of SQLite, write sqlite:///npy/t.db"}
    with pytest.raises(ValueError, match=r"source.url: is no URL: 'npy/t.db'; .* write sqlite:///npy/t.db"):
        inputs.from_source(wrong, DataConfig(is_training=False))
    (tmp_path / "text.db").write_text("no database, " * 100)
    with pytest.raises(inputs.DataError, match="url: file is not a database"):
        build(f"sqlite:///{tmp_path}/text.db")


def test_a_password_is_never_shown(tmp_path, monkeypatch):
    """N45: neither in the config, which must not have one, nor in what a driver says, nor in what is pickled."""
    assert "url_env" in dict(SqlConfig(url="postgresql://me:pass-1@h/db", table="t", key="k").problems())["url"]
    monkeypatch.setenv("TAB_URL", "postgresql+psycopg://me:pass-word-1@127.0.0.1:1/db?connect_timeout=2")
    with pytest.raises(inputs.DataError, match=r"url_env: (connection failed|No module named 'psycopg')") as caught:
        build("", url_env="TAB_URL")
    assert "pass-word-1" not in str(caught.value) and caught.value.__cause__ is None
    monkeypatch.setenv("TAB_URL", "nodriver://me:pass-word-1@h/db")
    with pytest.raises(inputs.DataError) as caught:
        build("", url_env="TAB_URL")
    assert "pass-word-1" not in str(caught.value)
    monkeypatch.delenv("TAB_URL")
    with pytest.raises(inputs.DataError, match=r"url_env: names TAB_URL, which is not set"):
        build("", url_env="TAB_URL")
    url = database(tmp_path, "CREATE TABLE t (k INTEGER)", "INSERT INTO t VALUES (1)")
    monkeypatch.setenv("TAB_URL", url)
    assert url.encode() not in pickle.dumps(build("", url_env="TAB_URL"))


def test_the_fingerprint_is_that_of_the_keys(tmp_path):
    """N45"""
    url = database(tmp_path, "CREATE TABLE t (k INTEGER)", "INSERT INTO t VALUES (1), (2)")
    first = build(url).fingerprint()
    assert build(url, table="", query="SELECT k FROM t ORDER BY k DESC").fingerprint() == first
    database(tmp_path, "INSERT INTO t VALUES (3)")
    assert build(url).fingerprint() != first
