"""Mutants of delta files: `python fuzz/delta.py [COUNT] [SEED]`.

The invariant: whatever the bytes are,

- only our errors leave `open`, `verify`, `apply` and `patch`, each with its rule, in printable words;
- tensors in memory are the old version or the new one of the delta afterwards, nothing else;
- a file that is written has the new version.
"""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Iterator
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from blake3 import blake3
from xxhash import xxh3_64_intdigest

import tensorglot as tg
from tensorglot.containers.delta.index import MAGIC
from tensorglot.wire.cid import decode_node, encode_node

Arrays = dict[str, Any]
ROW = np.dtype(
    [("tensor", "<u4"), ("type", "<u4"), ("base", "<u4"), ("tied", "<u4"), ("bodies", "<u4"), ("nbytes", "<u8"),
     ("checksum", "<u8"), ("digest", "V32")]
)  # fmt: skip
BODY = np.dtype([("position", "<u4"), ("stored", "<u4"), ("encoding", "u1")])
FOOTER = struct.Struct("<QQ32s8s")
NUMBERS = (0, 1, 2, 255, 0xFFFF, 1 << 20, (1 << 31) - 1, (1 << 32) - 2, (1 << 32) - 1)


@cache
def versions() -> tuple[Arrays, Arrays]:
    rng = np.random.default_rng(1)
    old = {
        "a": rng.standard_normal((40, 30)).astype(ml_dtypes.bfloat16),
        "b": rng.standard_normal(300).astype(np.float32),
        "c": np.arange(600, dtype=np.int64),
        "d": np.zeros((2, 0), np.uint8),
        "e": np.arange(3, dtype=np.complex64),
    }
    new = {name: array.copy() for name, array in old.items()}
    new["a"].view(np.uint16)[::7, ::3] += 1
    new["b"] += np.float32(1e-3)
    new["c"][:] = 5
    return old, new


@cache
def bases() -> list[bytes]:
    """Deltas: in place, and with tensors that are added, removed and resized."""
    old, new = versions()
    other = {**new, "a": np.concatenate([new["a"], new["a"][:3]]), "f": [[1], [2, 3]]}
    del other["c"]
    return [make(old, new), make(old, other)]


def make(old: Arrays, new: Arrays) -> bytes:
    file = io.BytesIO()
    tg.store.delta(old, new, file)
    return file.getvalue()


def split(data: bytes) -> tuple[bytes, dict[str, Any]]:
    """The bodies with the magic, and the index."""
    offset, nbytes, _, _ = FOOTER.unpack(data[-FOOTER.size :])
    return data[:offset], decode_node(data[offset : offset + nbytes])


def join(bodies: bytes, index: Any) -> bytes:
    node = encode_node(index)
    return bodies + node + FOOTER.pack(len(bodies), len(node), blake3(node).digest(), MAGIC)


def mutants(count: int, seed: int) -> Iterator[bytes]:
    """Changes of bytes, of bodies, and of fields of the index under a hash that is right."""
    r = random.Random(seed)
    for _ in range(count):
        bodies, index = split(r.choice(bases()))
        kind = r.randrange(6)
        if kind == 0:
            data = bytearray(join(bodies, index))
            _mutate(r, data)
            yield bytes(data)
            continue
        changed = bytearray(bodies)
        if kind in (1, 2):
            _mutate(r, changed)
            if kind == 2:
                del changed[len(bodies) :]
                changed += bytes(len(bodies) - len(changed))
                index["rows"] = checked(bytes(changed), index)
        else:
            _mutate_index(r, index)
        yield join(bytes(changed), index)


def checked(bodies: bytes, index: dict[str, Any]) -> bytes:
    """The rows with checksums that match the bodies."""
    rows = np.frombuffer(index["rows"], ROW).copy()
    ends = len(MAGIC) + np.cumsum([0, *np.frombuffer(index["bodies"], BODY)["stored"].tolist()])
    at = 0
    for row in rows:
        row["checksum"] = xxh3_64_intdigest(bodies[ends[at] : ends[at + int(row["bodies"])]])
        at += int(row["bodies"])
    return rows.tobytes()


def _mutate(r: random.Random, data: bytearray) -> None:
    for _ in range(r.choice((1, 1, 2, 5))):
        at = r.randrange(len(data) + 1)
        kind = r.randrange(5)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << r.randrange(8)
        elif kind == 1:
            data[at : at + 4] = r.choice(NUMBERS).to_bytes(4, "little")
        elif kind == 2:
            del data[at : at + r.choice((1, 4, 40))]
        elif kind == 3:
            data[at:at] = r.randbytes(r.choice((1, 4, 40)))
        else:
            del data[at:]


def _mutate_index(r: random.Random, index: dict[str, Any]) -> None:
    key = r.choice(list(index))
    value = index[key]
    if isinstance(value, bytes) and value and r.random() < 0.9:
        column = bytearray(value)
        if r.random() < 0.7:
            at = r.randrange(len(column)) // 4 * 4
            column[at : at + 4] = (r.choice((*NUMBERS, len(column))) % (1 << 32)).to_bytes(4, "little")
            del column[len(value) :]
        else:
            _mutate(r, column)
        index[key] = bytes(column)
    elif isinstance(value, list) and value and r.random() < 0.8:
        kind = r.randrange(4)
        if kind == 0:
            value.pop(r.randrange(len(value)))
        elif kind == 1:
            value.append(r.choice(value))
        elif kind == 2:
            r.shuffle(value)
        else:
            value[r.randrange(len(value))] = r.choice(("", "a", "3 * int8", "N * int8", "9" * 30 + " * int8", 7, None))
    elif r.random() < 0.3:
        del index[key]
    else:
        index[key] = r.choice((None, 0, 1, 2, -1, "x", [], {}, b"", [1], {"k": 1}))


def check(data: bytes) -> str:
    """Holds the invariant for one file; returns what became of it."""
    old, new = versions()
    outcome = "opened"
    try:
        for tensor in tg.open(data, format="delta").values():
            repr(tensor)
        tg.verify(data, format="delta", deep=True)
    except tg.TensorglotError as error:
        outcome = _said(error)
    held = {name: array.copy() for name, array in old.items()}
    try:
        tg.store.apply(data, held)
        outcome = "applied"
    except tg.TensorglotError as error:
        outcome = outcome if outcome != "opened" else _said(error)
        for name, array in old.items():
            assert held[name].tobytes() == array.tobytes(), "a delta that was refused has changed a tensor"
    else:
        for name, array in held.items():
            assert array.tobytes() in (old[name].tobytes(), new[name].tobytes()), "neither the old version nor the new"
    try:
        file = io.BytesIO()
        tg.store.patch(data, old, file, format="dynd")
    except tg.TensorglotError as error:
        _said(error)
    else:
        outcome = "patched" if outcome != "applied" else outcome
        tg.loads(file.getvalue(), format="dynd")
    return outcome


def _said(error: tg.TensorglotError) -> str:
    assert error.rule, "an error without a rule"
    # The error of a type has lines: the text, and a mark below it.
    assert str(error).replace("\n", "").isprintable(), "an error that cannot be printed"
    return error.rule


if __name__ == "__main__":
    from campaign import campaign

    campaign(mutants, check)
