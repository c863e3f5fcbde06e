"""Vectors as other databases have them, against the real packages where they are installed."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peers import missing, needs
from tensorglot.bson import Vector, decode, from_database, to_database
from tensorglot.errors import FormatError, InputError, TensorglotError, UnsupportedError

FLOATS = Vector([1.5, -2.0, 0.1], "float32")
BYTES = Vector([1, -128, 127], "int8")
BITS = Vector(
    [True, False, False, False, False, False, False, False, True, True, True, False, False, False, False, True]
)
ODD_BITS = Vector([True, False, True])


@pytest.mark.parametrize(
    ("vector", "database", "raw"),
    [
        (FLOATS, "pgvector", struct.pack(">HH3f", 3, 0, 1.5, -2.0, 0.1)),
        (BITS, "pgvector", b"\0\0\0\x10\x80\xe1"),
        (ODD_BITS, "pgvector", b"\0\0\0\3\xa0"),
        (FLOATS, "sqlite-vec", struct.pack("<3f", 1.5, -2.0, 0.1)),
        (BYTES, "sqlite-vec", struct.pack("<3b", 1, -128, 127)),
        (BITS, "sqlite-vec", b"\x01\x87"),
        (FLOATS, "redis", struct.pack("<3f", 1.5, -2.0, 0.1)),
        (Vector([], "float32"), "redis", b""),
    ],
)
def test_the_bytes_of_each_database(vector: Vector, database: Any, raw: bytes) -> None:
    assert to_database(vector, database) == raw
    assert from_database(raw, database, vector.dtype) == vector
    assert from_database(bytearray(raw), database, vector.dtype) == vector


@pytest.mark.parametrize(
    ("vector", "database", "fault"),
    [
        (BYTES, "pgvector", "form"),
        (BYTES, "redis", "form"),
        (BITS, "redis", "form"),
        (ODD_BITS, "sqlite-vec", "padding"),
        (Vector(np.zeros(16_001, np.float32)), "pgvector", "size"),
    ],
)
def test_what_another_database_does_not_have(vector: Vector, database: Any, fault: str) -> None:
    with pytest.raises(UnsupportedError, match=f"rule database.{fault}"):
        to_database(vector, database)


def test_a_database_of_another_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InputError, match="'pgvector', 'sqlite-vec', 'redis'"):
        to_database(FLOATS, "sqlite")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("raw", "database", "dtype", "rule"),
    [
        (b"", "pgvector", "float32", "database.header"),
        (b"\0\1\0", "pgvector", "float32", "database.header"),
        (b"\0\1\0\1\0\0\0\0", "pgvector", "float32", "database.header"),
        (b"\0\2\0\0\0\0\0\0", "pgvector", "float32", "database.size"),
        (b"\0\1\0\0\0\0\0", "pgvector", "float32", "database.size"),
        (b"\xff\xff\xff\xff", "pgvector", "packed_bit", "database.size"),
        (b"\x7f\xff\xff\xff\0", "pgvector", "packed_bit", "database.size"),
        (b"\0\0\0\x08", "pgvector", "packed_bit", "database.size"),
        (b"\0\0\0\x00\0", "pgvector", "packed_bit", "database.size"),
        (b"\0\0\0\3\xa1", "pgvector", "packed_bit", "bson.vector.ignored_bits"),
        (b"abc", "sqlite-vec", "float32", "database.size"),
        (b"abcde", "redis", "float32", "database.size"),
    ],
)
def test_bytes_that_are_not_a_vector(raw: bytes, database: Any, dtype: Any, rule: str) -> None:
    with pytest.raises(FormatError, match=f"rule {rule}"):
        from_database(raw, database, dtype)


@given(
    st.binary(max_size=24),
    st.sampled_from(["pgvector", "sqlite-vec", "redis"]),
    st.sampled_from(["float32", "int8", "packed_bit"]),
)
def test_what_is_accepted_is_what_we_write(raw: bytes, database: Any, dtype: Any) -> None:
    try:
        vector = from_database(raw, database, dtype)
    except TensorglotError:
        return
    assert to_database(vector, database) == raw


@pytest.mark.mongo
def test_pgvector() -> None:
    pgvector = needs("pgvector")
    rng = np.random.default_rng(7)
    for count in (1, 3, 1536, 16_000):
        values = rng.standard_normal(count, np.float32)
        raw = to_database(Vector(values), "pgvector")
        assert raw == pgvector.Vector(values).to_binary()
        assert pgvector.Vector.from_binary(raw).to_numpy().tobytes() == values.tobytes()
        assert from_database(pgvector.Vector(values).to_binary(), "pgvector") == Vector(values)
        bits = rng.integers(0, 2, count).astype(bool)
        assert to_database(Vector(bits), "pgvector") == pgvector.Bit(bits).to_binary()
        assert from_database(pgvector.Bit(bits).to_binary(), "pgvector", "packed_bit") == Vector(bits)


@pytest.mark.mongo
def test_sqlite_vec() -> None:
    sqlite_vec = needs("sqlite_vec")
    connection = _sqlite_with_extensions()
    connection.enable_load_extension(True)
    connection.load_extension(sqlite_vec.loadable_path())

    def ask(sql: str, *values: Any) -> Any:
        return next(iter(connection.execute(f"select {sql}", values)))[0]

    floats, small, bits = [0.5, -2.0, 3.25], [1, -128, 127], [1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1]
    assert ask("vec_to_json(vec_f32(?))", to_database(Vector(floats), "sqlite-vec")) == "[0.500000,-2.000000,3.250000]"
    assert ask("vec_to_json(vec_int8(?))", to_database(Vector(small, "int8"), "sqlite-vec")) == "[1,-128,127]"
    assert ask("vec_to_json(vec_bit(?))", to_database(BITS, "sqlite-vec")) == str(bits).replace(" ", "")
    assert to_database(Vector(floats), "sqlite-vec") == sqlite_vec.serialize_float32(floats)
    assert to_database(Vector(small, "int8"), "sqlite-vec") == sqlite_vec.serialize_int8(small)
    assert from_database(ask("vec_f32('[0.5, -2, 3.25]')"), "sqlite-vec") == Vector(floats)
    assert from_database(ask("vec_int8('[1, -128, 127]')"), "sqlite-vec", "int8") == Vector(small, "int8")
    signs = [1.0 if bit else -1.0 for bit in bits]
    assert from_database(ask("vec_quantize_binary(?)", str(signs)), "sqlite-vec", "packed_bit") == BITS


def _sqlite_with_extensions() -> Any:
    """Some Pythons are built without loadable extensions; apsw brings an SQLite that has them."""
    import sqlite3

    if hasattr(sqlite3.Connection, "enable_load_extension"):
        return sqlite3.connect(":memory:")
    try:
        return needs("apsw").Connection(":memory:")
    except ModuleNotFoundError:
        missing("neither sqlite3 with extensions nor apsw")


def test_ignored_bits_that_are_set_are_refused() -> None:
    kept = decode(b"\x10\x04\xff", ignored_bits="keep")
    with pytest.raises(InputError) as caught:
        to_database(kept, "pgvector")
    assert caught.value.rule == "bson.vector.ignored_bits"
