"""dump and load: any stream, in pieces, chained, in bounded memory."""

from __future__ import annotations

import hashlib
import io
import os
import threading

import numpy as np
import pytest
import zstandard

from bounds import INTERPRETED, MB, resident_nbytes
from tensorglot import dynd
from tensorglot.dynd.codec.encode import type_header
from tensorglot.dynd.codec.growable import GrowableBuffer
from tensorglot.dynd.schema import plan_of
from tensorglot.dynd.tensors import tensor_pieces
from tensorglot.errors import FormatError, InputError, TruncatedError
from tensorglot.wire.cid import data_cid

RAGGED = "var * {name: string, xs: var * float32, n: ?int32}"
VALUE = [
    {"name": f"n{i}" * (i % 5), "xs": [float(j) for j in range(i % 7)], "n": i if i % 3 else None} for i in range(500)
]


class Dribble(io.RawIOBase):
    """Reads and writes a few bytes at a time."""

    def __init__(self, data=b"", size=7):
        self.inner, self.size = io.BytesIO(data), size

    def read(self, nbytes=-1):
        return self.inner.read(min(nbytes, self.size))

    def write(self, data):
        return self.inner.write(bytes(data[: self.size]))


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_streams_that_give_and_take_little(size):
    data = bytes(dynd.serialize(VALUE, RAGGED))
    sink = Dribble(size=size)
    assert dynd.dump(VALUE, sink, RAGGED) == len(data)
    assert sink.inner.getvalue() == data
    source = Dribble(data + b"next", size)
    assert dynd.load(source, RAGGED).tolist() == VALUE
    assert source.inner.read() == b"next"


def test_closed_streams_are_refused():
    stream = io.BytesIO(b"\x01")
    stream.close()
    for use in (lambda: dynd.load(stream, "int8"), lambda: dynd.dump(1, stream)):
        with pytest.raises(InputError, match="closed file") as caught:
            use()
        assert caught.value.rule == "dynd.stream"


def test_a_stream_that_would_block_is_an_error():
    class Full(io.RawIOBase):
        def write(self, data):
            return None

    with pytest.raises(BlockingIOError):
        dynd.dump([1, 2], Full())


def test_values_one_after_the_other():
    stream = io.BytesIO()
    values = [(3, "int8"), (["a", None], "var * ?string"), (np.arange(5), "5 * int64"), (VALUE, RAGGED)]
    for value, text in values:
        dynd.dump(value, stream, text)
    for value in values:
        dynd.dump(value[0], stream, "array[Any]")
    stream.seek(0)
    for value, text in values:
        assert dynd.load(stream, text).serialize() == dynd.serialize(value, text)
    for value, _ in values:
        inner = dynd.load(stream, "array[Any]").tolist()
        assert inner.type == dynd.typeof(value)
        assert inner.serialize() == dynd.serialize(value)
    with pytest.raises(TruncatedError):
        dynd.load(stream, "int8")


def test_output_is_chained_into_a_compressor_and_a_hasher():
    data = bytes(dynd.serialize(VALUE, RAGGED))
    packed = io.BytesIO()
    with zstandard.ZstdCompressor().stream_writer(packed, closefd=False) as writer:
        dynd.dump(VALUE, writer, RAGGED)
    assert len(packed.getvalue()) < len(data)
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed.getvalue()))
    assert dynd.load(reader, RAGGED).tolist() == VALUE

    class Hasher:
        def __init__(self):
            self.hash = hashlib.sha256()

        def write(self, data):
            self.hash.update(data)

    hasher = Hasher()
    dynd.dump(VALUE, hasher, RAGGED)
    assert hasher.hash.hexdigest() == hashlib.sha256(data).hexdigest()


def test_a_pipe():
    reading, writing = os.pipe()
    array = np.arange(300_000, dtype=np.float64)
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb", buffering=0) as sink:
        thread = threading.Thread(target=lambda: (dynd.dump(array, sink, "array[Any]"), sink.close()))
        thread.start()
        assert (dynd.load(source, "array[Any]").tolist().numpy() == array).all()
        thread.join()


class Counting:
    """Takes everything and keeps nothing."""

    def __init__(self):
        self.nbytes = 0

    def write(self, data):
        self.nbytes += len(data)


class Zeros:
    """Endless zeros behind some bytes."""

    def __init__(self, head=b""):
        self.head, self.zeros = head, bytes(1 << 20)

    def read(self, nbytes):
        piece, self.head = self.head[:nbytes], self.head[nbytes:]
        return piece or self.zeros[:nbytes]


SIZE = 192 << 20
F_ORDER = "storage[6144 * 4096 * float64, order='F']"


def arrays():
    """Large values, each with its type and the bytes that it takes in memory."""
    base = np.zeros(SIZE // 8)
    yield "plain", base, None
    yield "transposed", base.reshape(4096, 6144).T, None
    yield "fortran", base.reshape(4096, 6144).T, F_ORDER
    yield "strided", np.zeros(SIZE // 4)[::2], None
    yield "big-endian", base.astype(">f8"), None
    yield "records", np.zeros(SIZE // 16, [("a", "<i8"), ("b", "<f8")]), None
    yield "boxed", base, "array[Any]"
    yield "variable", base, "var * float64"


@pytest.mark.skipif(INTERPRETED, reason="the kernels as Python are too slow for this")
@pytest.mark.parametrize(
    "kind", ["plain", "transposed", "fortran", "strided", "big-endian", "records", "boxed", "variable"]
)
def test_dump_takes_at_most_64_mb_beyond_the_array(kind):
    value, text = next((value, text) for name, value, text in arrays() if name == kind)
    value.sum() if value.dtype.names is None else value["a"].sum()
    sink = Counting()
    assert resident_nbytes(lambda: dynd.dump(value, sink, text)) <= 64 * MB
    assert SIZE <= sink.nbytes <= SIZE + 40
    if text != "array[Any]":
        pieces = tensor_pieces(dynd.array(value, text))
        assert resident_nbytes(lambda: data_cid(pieces)) <= 64 * MB


@pytest.mark.skipif(INTERPRETED, reason="the kernels as Python are too slow for this")
@pytest.mark.parametrize(
    ("text", "head"),
    [
        (f"{SIZE // 8} * float64", b""),
        ("var * float64", b"\x80\x80\x80\x0c"),
        (F_ORDER, b""),
        (f"{SIZE // 16} * {{a: int64, b: float64}}", b""),
        ("array[Any]", bytes(type_header(dynd.parse(f"{SIZE // 8} * float64")))),
        ("1 * var * var * float64", b"\x01\x80\x80\x80\x0c"),
    ],
    ids=["fixed", "variable", "fortran", "records", "boxed", "nested"],
)
def test_load_takes_at_most_64_mb_beyond_the_array(text, head):
    held = []
    stream = Zeros(head)
    used = resident_nbytes(lambda: held.append(dynd.load(stream, text)))
    assert SIZE / 2 <= held[0].nbytes <= SIZE + 1000
    assert used <= held[0].nbytes + 64 * MB


@pytest.mark.skipif(INTERPRETED, reason="the kernels as Python are too slow for this")
def test_ragged_lists_stream_in_bounded_memory():
    lists = SIZE // 64
    offsets = np.arange(lists + 1) * 4
    value = dynd.value.Value(
        plan_of(dynd.parse(f"{lists} * var * float64")),
        (None, dynd.value.lists_of(offsets), np.zeros(4 * lists)),
    )
    tensor = dynd.tensors.to_tensor(value)
    sink = Counting()
    np.add.reduce(value.columns[2])
    assert resident_nbytes(lambda: dynd.dump(tensor, sink)) <= 64 * MB
    assert sink.nbytes == lists * 33


@pytest.mark.parametrize("text", ["20000 * var * int16", "20000 * string", "20000 * ?bytes", "20000 * var * char"])
def test_memory_grows_in_few_steps(text, monkeypatch):
    """However small the values are that a stream brings."""
    steps = []
    grow = GrowableBuffer.grow
    monkeypatch.setattr(GrowableBuffer, "grow", lambda room, capacity: (steps.append(capacity), grow(room, capacity)))
    data = (b"\1" if "?" in text else b"") + b"\2" + b"ab" * (2 if "int16" in text else 1)
    tensor = dynd.load(io.BytesIO(data * 20_000), text)
    assert tensor.serialize() == data * 20_000
    assert 3 < len(steps) < 100


def test_a_promise_is_not_memory():
    """A stream that says much and has little."""
    for text, data in (
        ("1000000000000 * float64", b"x" * 100),
        ("var * float64", b"\xff" * 8 + b"\x7f" + b"x" * 100),
        ("array[Any]", bytes(type_header(dynd.parse("1000000000000 * int8"))) + b"x" * 100),
        ("1000000000000 * string", b"\x01a" * 50),
    ):
        assert resident_nbytes(lambda text=text, data=data: _refused(text, data)) <= 10 * MB


def _refused(text, data):
    with pytest.raises(FormatError):
        dynd.load(io.BytesIO(data), text)


def test_what_does_not_fit_array():
    with pytest.raises(InputError) as caught:
        dynd.dump(np.arange(3), io.BytesIO(), "array[2 * int64]")
    assert caught.value.rule == "dynd.array.type"
