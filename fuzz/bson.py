"""Mutants of BSON documents: `python fuzz/bson.py [COUNT] [SEED]`.

The invariant: for any bytes, and every function that reads them, only our errors are
raised: no struct.error, KeyError, MemoryError, RecursionError, UnicodeDecodeError, and no
warning. What `decode_document` accepts encodes to the same bytes again. What `strict`
accepts, saved, gives the same file. Where two functions both return a matrix it is the
same, also after it was encoded again.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import tensorglot as tg
from tensorglot.bson import (
    Int64,
    Raw,
    Vector,
    decode_document,
    decode_matrix,
    encode_document,
    encode_documents,
    inspect,
)

BOUNDARIES = (0, 1, 2, 3, 4, 5, 9, 127, 128, 255, 256, 0x7FFF, 0x8000, 2**31 - 1, 2**31, 2**32 - 1)


def corpus() -> list[bytes]:
    """Valid documents, small enough that most mutations hit something that matters."""
    rng = np.random.default_rng(0)
    vectors = {
        "f": Vector(rng.standard_normal(3), "float32"),
        "i": Vector([1, -2, 3], "int8"),
        "b": Vector([True, False, True] * 3),
    }
    everything: dict[str, Any] = {
        "_id": Raw(7, bytes(range(12))), "n": None, "t": True, "i": 1, "l": Int64(2), "d": 1.5, "s": "héllo",
        "x": b"abc", "a": [1, [2.0, {"y": "z"}]], "re": Raw(0x0B, b"a*\0i\0"), "code": Raw(0x0D, b"\2\0\0\0f\0"),
        "dec": Raw(0x13, bytes(16)), "min": Raw(0xFF, b""), "ts": Raw(0x11, bytes(8)), **vectors,
    }  # fmt: skip
    documents = [
        encode_document(vectors),
        encode_document({"a": {"b": vectors["f"], "c": {"d": vectors["i"]}}, "e": [vectors["b"], 1]}),
        encode_document(everything),
        encode_document({}),
    ]
    matrix = rng.standard_normal((3, 2), np.float32)
    return [
        *documents,
        documents[0] * 3,
        tg.bson.encode_documents(matrix, "f", range(3)),
        tg.dumps({"f": matrix, "a.i": np.ones((3, 2), np.int8), "a.b": np.ones((3, 5), bool)}, format="bson"),
    ]


def mutants(count: int, seed: int) -> Iterator[bytes]:
    """Lengths and bytes replaced, pieces cut, doubled and inserted, the outer length set right again or not."""
    rng, seeds = random.Random(seed), corpus()
    for _ in range(count):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
            _mutate(data, rng, seeds)
        if rng.random() < 0.5 and len(data) >= 5:
            data[:4] = struct.pack("<I", len(data))
            data[-1] = 0
        yield bytes(data)


def _mutate(data: bytearray, rng: random.Random, seeds: list[bytes]) -> None:
    if not data:
        data += rng.choice(seeds)
        return
    at = rng.randrange(len(data))
    kind = rng.randrange(8)
    if kind == 0:
        data[at] = rng.randrange(256)
    elif kind == 1:
        data[at] ^= 1 << rng.randrange(8)
    elif kind <= 4 and len(data) >= 4:
        at = min(at, len(data) - 4)
        old = struct.unpack_from("<I", data, at)[0]
        value = rng.choice((*BOUNDARIES, old + 1, old - 1, len(data), len(data) + 1, len(data) - at))
        struct.pack_into("<I", data, at, value & 0xFFFFFFFF)
    elif kind == 5:
        del data[at : at + rng.choice((1, 2, 4, 8))]
    elif kind == 6:
        piece = data[at : at + rng.randrange(1, 24)]
        where = rng.randrange(len(data))
        data[where:where] = piece
    else:
        data[at : at + 1] = rng.choice((b"\0", b"\5\x09", b"\3", b"\4", b"f\0", b"\x27\0", b"\x10\7", b"\xff"))


def _open(data: bytes) -> dict[str, Any]:
    found = {}
    with tg.open(data, format="bson") as archive:
        for name in archive:
            repr(archive[name])
            try:
                found[name] = archive[name].numpy()
            except tg.UnsupportedError:
                continue
    return found


def _whole(data: bytes) -> None:
    assert encode_document(decode_document(data)) == data


def _strict(data: bytes) -> None:
    with tg.open(data, format="bson", strict=True) as archive:
        assert tg.dumps(archive, format="bson") == data


def _agree(data: bytes) -> None:
    tensors = _open(data)
    for name, values in tensors.items():
        found = decode_matrix(data, name)
        assert (found.dtype, found.shape, found.tobytes()) == (values.dtype, values.shape, values.tobytes())
        documents = encode_documents(found, name)
        assert np.array_equal(decode_matrix(documents, name), found, equal_nan=found.dtype == np.float32)


WAYS: dict[str, Callable[[bytes], object]] = {
    "decode": tg.bson.decode,
    "document": _whole,
    "matrix": lambda data: decode_matrix(data, "f", on_missing="nan", ids=True),
    "nested": lambda data: decode_matrix(data, "a.b", on_missing="skip", ignored_bits="zero"),
    "only": decode_matrix,
    "inspect": inspect,
    "archive": _agree,
    "strict": _strict,
    "detected": lambda data: tg.open(data).close(),
}


def check(data: bytes) -> list[str]:
    """Calls every function that reads BSON; returns for each "accepted" or the rule that refused."""
    outcomes = []
    for way, call in WAYS.items():
        try:
            call(data)
            outcomes.append(f"{way}: accepted")
        except tg.TensorglotError as error:
            assert str(error).isprintable()
            outcomes.append(f"{way}: {error.rule}")
    return outcomes


if __name__ == "__main__":
    from campaign import campaign

    campaign(mutants, check)
