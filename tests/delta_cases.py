"""Delta files that must be refused: the files of tests/corpus/delta, each with one thing changed, and the rule.

A change of the index is made under a hash that is right, so that the field itself has to
be checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing import delta

__all__ = ["CORPUS", "REFUSED"]

CORPUS = Path(__file__).parent / "corpus" / "delta"
"""Written by `tg.store.delta`; kept, because compressed bytes may differ with the version of zstd."""
NONE = 0xFFFFFFFF

Change = Callable[[dict[str, Any]], None]


def _set(**fields: Any) -> Change:
    return lambda index: index.update(fields)


def _drop(key: str) -> Change:
    return lambda index: index.pop(key)


def _record(column: str, dtype: np.dtype[Any], row: int, **fields: Any) -> Change:
    def change(index: dict[str, Any]) -> None:
        table = np.frombuffer(index[column], dtype).copy()
        for name, value in fields.items():
            table[name][row] = value
        index[column] = table.tobytes()

    return change


def _row(row: int, **fields: Any) -> Change:
    return _record("rows", delta.ROW, row, **fields)


def _body(row: int, **fields: Any) -> Change:
    return _record("bodies", delta.BODY, row, **fields)


def _both(*changes: Change) -> Change:
    def change(index: dict[str, Any]) -> None:
        for each in changes:
            each(index)

    return change


def _special(**fields: Any) -> dict[str, Any]:
    """The description of a tensor that is not only its array."""
    described = {"attributes": {}, "layout": "x", "parts": [{"name": "data"}], "tensor": 0}
    return {**described, "type": "40 * 30 * bfloat16", **fields}


INDEXES: dict[str, tuple[Change, str]] = {
    "version 2": (_set(version=2), "delta.version"),
    "a key less": (_drop("names"), "delta.index"),
    "a key more": (_set(extra=1), "delta.index"),
    "names that are a map": (_set(names={}), "delta.index"),
    "a name that is a number": (lambda index: index["names"].__setitem__(0, 7), "delta.index"),
    "a name twice": (lambda index: index["names"].__setitem__(1, index["names"][0]), "delta.index"),
    "a name less": (lambda index: index["names"].pop(), "delta.index"),
    "half a row": (lambda index: index.update(rows=index["rows"][:-1]), "delta.index"),
    "half a body": (lambda index: index.update(bodies=index["bodies"][:-1]), "delta.index"),
    "half a base": (lambda index: index.update(bases=index["bases"][:-1]), "delta.index"),
    "a row of no tensor": (_row(0, tensor=1000), "delta.index"),
    "a type that is not there": (_row(0, type=1000), "delta.index"),
    "a base that is not there": (_row(0, base=1000), "delta.index"),
    "a row tied to itself": (_row(0, tied=0), "delta.index"),
    "a row tied to a later one": (_row(0, tied=2), "delta.index"),
    "more bodies than there are": (_row(0, bodies=1000), "delta.index"),
    "a size that lies": (_row(0, nbytes=1 << 62), "delta.index"),
    "a body beyond the value": (_body(0, position=1 << 30), "delta.index"),
    "a body of 4 GiB": (_body(0, stored=(1 << 32) - 1), "delta.index"),
    "an encoding that is unknown": (_body(0, encoding=200), "delta.index"),
    "the encoding behind the last": (_body(0, encoding=8), "delta.index"),
    "a type of 2^62 elements": (
        lambda index: index["types"].__setitem__(0, "4611686018427387904 * int8"), "delta.index",
    ),
    "4 TiB of which no chunk is there": (
        lambda index: (
            index["types"].__setitem__(4, f"{1 << 42} * int8"), _row(4, nbytes=1 << 42, base=NONE)(index)
        ), "delta.index",
    ),
    "a symbolic type": (lambda index: index["types"].__setitem__(0, "N * int8"), "delta.index"),
    "no type": (lambda index: index["types"].__setitem__(0, "("), "dynd.type.syntax"),
    "a tensor that is removed and kept": (_set(removed=["a"]), "delta.index"),
    "rows in another order": (_both(_row(3, tensor=4), _row(4, tensor=3)), "delta.index"),
    "two rows of a tensor": (_row(4, tensor=3), "delta.index"),
    "a base without a row": (lambda index: index.update(bases=index["bases"] + index["bases"][:44]), "delta.index"),
    "no body and no base": (_row(4, base=NONE), "delta.index"),
    "a body of what is unchanged": (_row(0, base=NONE - 1), "delta.index"),
    "a description twice": (_set(special=[_special(), _special()]), "delta.index"),
    "a description of no tensor": (_set(special=[_special(tensor=5)]), "delta.index"),
    "a description that is a text": (_set(special=["dense"]), "delta.index"),
    "a description of other keys": (_set(special=[{**_special(), "more": 1}]), "delta.index"),
    "a layout that is a number": (_set(special=[_special(layout=1)]), "delta.index"),
    "a description without parts": (_set(special=[_special(parts=[])]), "delta.index"),
    "a part twice": (_set(special=[_special(parts=[{"name": "x"}, {"name": "x"}])]), "delta.index"),
    "a part that is a text": (_set(special=[_special(parts=["data"])]), "delta.index"),
    "a part whose name is a number": (_set(special=[_special(parts=[{"name": 1}])]), "delta.index"),
    "a part of another key": (_set(special=[_special(parts=[{"name": "x", "size": 1}])]), "delta.index"),
    "a part of a size below 0": (
        _set(special=[_special(parts=[{"name": "x", "dtype": "f4", "shape": [-1]}])]), "delta.index",
    ),
    "more parts than rows": (
        _set(special=[_special(parts=[{"name": "x"}, {"name": "y", "dtype": "f4", "shape": [1]}])]), "delta.index",
    ),
}  # fmt: skip


def _files() -> Iterator[tuple[str, bytes, str]]:
    good = (CORPUS / "in_place.tgdelta").read_bytes()
    bodies, _ = delta.split(good)
    yield "no bytes", b"", "delta.footer"
    yield "half", good[: len(good) // 2], "delta.footer"
    yield "one byte less", good[:-1], "delta.footer"
    yield "one byte more", good + b"\0", "delta.footer"
    yield "another magic", b"tgdelta9" + good[8:], "delta.magic"
    yield (
        "an index that wraps",
        good[:-56] + delta.FOOTER.pack((1 << 64) - 8, 72, bytes(32), delta.MAGIC),
        "delta.footer",
    )
    yield "an index of another hash", good[:-48] + bytes(32) + good[-8:], "delta.footer"
    yield "a byte between", delta.join(bodies + b"\0", delta.split(good)[1]), "delta.index"
    flipped = bytearray(good)
    flipped[len(bodies) // 2] ^= 1
    yield "a body with another checksum", bytes(flipped), "checksum.mismatch"
    for name, (change, rule) in INDEXES.items():
        _, index = delta.split(good)
        change(index)
        yield name, delta.join(bodies, index), rule


REFUSED = {name: (data, rule) for name, data, rule in _files()}
