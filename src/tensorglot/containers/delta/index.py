"""The index of a delta: names, rows and the spans of bodies, as bytes and as checked values.

    index = DAG-CBOR {"bases", "bodies", "metadata", "names", "removed", "rows", "special", "types", "version": 1}

`rows`, `bases` and `bodies` are byte strings of fixed-size records. Everything is checked
as columns before it is used: numbers of types, bases and rows, sizes against types, the
order of chunks, and that bodies fill the file. Rows are tuples, which are made in a third of
the time that objects of a frozen dataclass take: there may be a million.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from tensorglot.arrays import prefix_sums
from tensorglot.containers.table import check_header
from tensorglot.dynd.sizes import VARIABLE, measure
from tensorglot.errors import FormatError, TruncatedError, UnsupportedError, plural
from tensorglot.limits import Limits
from tensorglot.model.payload import Source
from tensorglot.model.types.text import parse_canonical, parse_each
from tensorglot.tuples import NamedTuple
from tensorglot.wire.cid import CHUNK_NBYTES, decode_node, encode_node

__all__ = [
    "INDEX_NBYTES",
    "MAGIC",
    "Base",
    "Body",
    "Change",
    "DeltaIndex",
    "PartName",
    "Special",
    "encode_index",
    "read_index",
]

INDEX_NBYTES = 1 << 30
MAGIC = b"tgdelta1"
_FOOTER = struct.Struct("<QQ32s8s")
_UNCHANGED, _ADDED = 0xFFFFFFFE, 0xFFFFFFFF
"""Values of the field `base` that are not the number of a base."""
_NO_ROW = 0xFFFFFFFF
_MOST_NBYTES = 1 << 62
"""No value is as large."""
_ROW = np.dtype(
    [("tensor", "<u4"), ("type", "<u4"), ("base", "<u4"), ("tied", "<u4"), ("bodies", "<u4"), ("nbytes", "<u8"),
     ("checksum", "<u8"), ("digest", "V32")]
)  # fmt: skip
_BASE = np.dtype([("type", "<u4"), ("nbytes", "<u8"), ("digest", "V32")])
_BODY = np.dtype([("position", "<u4"), ("stored", "<u4"), ("encoding", "u1")])
_ENCODINGS = 8
"""The number of known encodings, which are 0 to 7."""
_KINDS: dict[str, Any] = {
    "bases": bytes, "bodies": bytes, "metadata": (dict, type(None)), "names": list, "removed": list, "rows": bytes,
    "special": list, "types": list, "version": int,
}  # fmt: skip


PartName: TypeAlias = tuple[str, str | None, tuple[int, ...] | None]
"""The name of a part; if its element type is unknown, also the type's name and the shape."""


class Base(NamedTuple):
    """The value that a row was made from."""

    type: str
    nbytes: int
    digest: bytes
    """Digest of the data: of a leaf up to the size of a chunk, of a tree of chunks beyond."""


class Body(NamedTuple):
    """One chunk that differs."""

    position: int
    """Position of the chunk in the value."""
    encoding: int
    begin: int
    end: int
    """The span of its bytes in the file."""


class Change(NamedTuple):
    """One row: a value of the new version, and how it is made."""

    tensor: int
    """Position of the name."""
    type: str
    nbytes: int
    digest: bytes
    base: Base | None
    """None for a value that the old version does not have."""
    bodies: tuple[Body, ...] = ()
    tied: int | None = None
    """An earlier row that shares its memory, and has the bodies."""
    checksum: int = 0
    """XXH3 of the bodies."""

    @property
    def state(self) -> str:
        if self.base is None:
            return "added"
        return "unchanged" if (self.base.digest, self.base.type) == (self.digest, self.type) else "changed"


@dataclass(frozen=True, slots=True)
class Special:
    """A tensor with attributes, or of several parts."""

    layout: str
    type: str
    parts: tuple[PartName, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeltaIndex:
    """The contents of a delta's index."""

    names: list[str]
    rows: list[Change]
    removed: list[str] = field(default_factory=list)
    special: dict[int, Special] = field(default_factory=dict)
    """Tensors with attributes or of several parts, by the positions of their names."""
    metadata: Mapping[str, Any] | None = None
    """Metadata of the new version."""

    def rows_of(self) -> list[list[Change]]:
        """The rows of each tensor, which has at least one; they are in the order of the names."""
        if len(self.rows) == len(self.names):
            return [[row] for row in self.rows]
        found: list[list[Change]] = [[] for _ in self.names]
        for row in self.rows:
            found[row.tensor].append(row)
        return found


# Writing


def encode_index(index: DeltaIndex, offset: int) -> bytes:
    """The index and the footer of a file whose bodies end at `offset`."""
    types: dict[str, int] = {}
    bases: list[tuple[int, int, bytes]] = []
    rows: list[tuple[Any, ...]] = []
    for row in index.rows:
        base = _ADDED if row.base is None else _UNCHANGED
        if row.base is not None and row.state == "changed":
            base = len(bases)
            bases.append((types.setdefault(row.base.type, len(types)), row.base.nbytes, row.base.digest))
        tied = _NO_ROW if row.tied is None else row.tied
        number = types.setdefault(row.type, len(types))
        rows.append((row.tensor, number, base, tied, len(row.bodies), row.nbytes, row.checksum, row.digest))
    bodies = [(body.position, body.end - body.begin, body.encoding) for row in index.rows for body in row.bodies]
    data = encode_node(
        {
            "bases": np.array(bases, _BASE).tobytes(),
            "bodies": np.array(bodies, _BODY).tobytes(),
            "metadata": None if index.metadata is None else dict(index.metadata),
            "names": index.names,
            "removed": index.removed,
            "rows": np.array(rows, _ROW).tobytes(),
            "special": [_special_node(position, special) for position, special in index.special.items()],
            "types": list(types),
            "version": 1,
        }
    )
    check_header(len(data), "delta")
    return data + _FOOTER.pack(offset, len(data), blake3(data).digest(), MAGIC)


def _special_node(position: int, special: Special) -> dict[str, Any]:
    parts = [
        {"name": name} | ({} if dtype is None else {"dtype": dtype, "shape": list(shape or ())})
        for name, dtype, shape in special.parts
    ]
    node = {"attributes": dict(special.attributes), "layout": special.layout, "parts": parts, "type": special.type}
    return {**node, "tensor": position}


# Reading


def read_index(source: Source, limits: Limits) -> DeltaIndex:
    """Reads and checks the index of a delta."""
    least = len(MAGIC) + _FOOTER.size
    if source.size < least:
        raise TruncatedError(
            f"file truncated: a delta has at least {least} bytes, this has {source.size}",
            rule="delta.footer",
            offset=source.size,
        )
    if source.read_bytes(0, len(MAGIC)) != MAGIC:
        raise FormatError("not a delta: wrong magic", rule="delta.magic", offset=0)
    offset, nbytes, digest, magic = _FOOTER.unpack(source.read_bytes(source.size - _FOOTER.size, _FOOTER.size))
    if magic != MAGIC:
        raise TruncatedError(
            "file truncated: no footer at its end", rule="delta.footer", offset=source.size - _FOOTER.size
        )
    footer = source.size - _FOOTER.size
    limits.check_header(nbytes, "index", rule="delta.limit.header", offset=footer, default=INDEX_NBYTES)
    if offset < len(MAGIC) or offset + nbytes + _FOOTER.size != source.size:
        raise FormatError(
            f"the footer says that the index has {nbytes} bytes at byte {offset}, which do not end at the footer",
            rule="delta.footer",
            offset=offset,
        )
    data = source.read_bytes(offset, nbytes)
    if blake3(data).digest() != digest:
        raise FormatError("the index does not match its hash", rule="delta.index", offset=offset)
    try:
        return _Reader(decode_node(data), offset, limits).index()
    except FormatError as error:
        error.offset = offset
        raise


class _Reader:
    """Turns a decoded index into a checked one."""

    def __init__(self, node: Any, end: int, limits: Limits) -> None:
        if (
            not isinstance(node, dict)
            or node.keys() != _KINDS.keys()
            or not all(isinstance(node[key], kind) for key, kind in _KINDS.items())
        ):
            raise _malformed("not the index of a delta")
        if node["version"] != 1:
            raise UnsupportedError(
                f"version {node['version']} of deltas is not supported (supported: 1)", rule="delta.version"
            )
        self.node, self.end, self.limits = node, end, limits
        self.names, self.types = self._texts("names"), self._texts("types")
        types = parse_each(self.types, limits)
        for number in np.flatnonzero(types.symbolic[types.roots])[:1].tolist():
            raise _malformed(f"symbolic type {self.types[number]:.60} cannot have data")
        self.fixed = measure(types).nbytes[types.roots]
        """The size of values of each type, or VARIABLE."""

    def _texts(self, key: str) -> list[str]:
        texts: list[str] = self.node[key]
        if not {*map(type, texts)} <= {str} or len(set(texts)) != len(texts):
            raise _malformed(f"{key} must be different texts")
        return texts

    def _columns(self, key: str, kind: np.dtype[Any]) -> NDArray[Any]:
        data = self.node[key]
        if len(data) % kind.itemsize:
            raise _malformed(f"{key} has {len(data)} bytes, not a multiple of {kind.itemsize}")
        return np.frombuffer(data, kind)

    def index(self) -> DeltaIndex:
        special = dict(map(self._special, self.node["special"]))
        if len(special) != len(self.node["special"]):
            raise _malformed("a tensor is described twice")
        removed = self._texts("removed")
        if not set(removed).isdisjoint(self.names):
            raise _malformed("a tensor is removed and kept")
        if not all(0 <= position < len(self.names) for position in special):
            raise _malformed("the description of a tensor that does not exist")
        return DeltaIndex(self.names, self._rows(special), removed, special, self.node["metadata"])

    def _rows(self, special: Mapping[int, Special]) -> list[Change]:
        rows, bases, bodies = self._columns("rows", _ROW), self._columns("bases", _BASE), self._columns("bodies", _BODY)
        self._check_tensors(rows["tensor"], special)
        spans = len(MAGIC) + prefix_sums(bodies["stored"])
        if int(rows["bodies"].sum(dtype=np.int64)) != len(bodies) or int(spans[-1]) != self.end:
            raise _malformed("the bodies do not fill the file")
        for column in (bases, rows):
            self._check_types(column)
        _check_bases(rows, bases)
        _check_bodies(rows, bases, bodies)
        olds = [Base(self.types[type], nbytes, digest) for type, nbytes, digest in bases.tolist()]
        columns = (bodies["position"], bodies["encoding"], spans[:-1], spans[1:])
        held = list(map(Body._make, zip(*(column.tolist() for column in columns), strict=True)))
        made: list[Change] = []
        at = 0
        for tensor, type, base, _, count, nbytes, checksum, digest in rows.tolist():
            text = self.types[type]
            old = olds[base] if base < _UNCHANGED else Base(text, nbytes, digest) if base == _UNCHANGED else None
            made.append(Change(tensor, text, nbytes, digest, old, tuple(held[at : at + count]), None, checksum))
            at += count
        for row in np.flatnonzero(rows["tied"] != _NO_ROW).tolist():
            made[row] = made[row]._replace(tied=_tie(made, row, int(rows["tied"][row])))
        return made

    def _check_tensors(self, tensors: NDArray[np.uint32], special: Mapping[int, Special]) -> None:
        """Checks that each tensor has as many rows as parts, and that these are in the order of the names."""
        if len(tensors) and int(tensors.max()) >= len(self.names):
            raise _malformed("a row of a tensor that does not exist")
        counts, needed = np.bincount(tensors, minlength=len(self.names)), np.ones(len(self.names), np.int64)
        needed[list(special)] = [len(each.parts) for each in special.values()]
        for position in np.flatnonzero(counts != needed)[:1].tolist():
            raise _malformed(f"tensor {position} has {plural(int(counts[position]), 'row')}")
        if np.any(tensors[1:] < tensors[:-1]):
            raise _malformed("rows are not in the order of the names")

    def _check_types(self, values: NDArray[Any]) -> None:
        """Checks the types of bases or rows, and their sizes against these."""
        if len(values) and int(values["type"].max()) >= len(self.types):
            raise _malformed("a type that does not exist")
        fixed = np.append(self.fixed, VARIABLE)[values["type"]]
        wrong = (fixed != VARIABLE) & (values["nbytes"] != fixed.astype(np.uint64))
        wrong |= values["nbytes"] >= _MOST_NBYTES
        for type, nbytes in values[["type", "nbytes"]][wrong][:1].tolist():
            raise _malformed(f"a value of type {self.types[type]:.60} cannot have {nbytes} bytes")

    def _special(self, node: Any) -> tuple[int, Special]:
        kinds = {"attributes": dict, "layout": str, "parts": list, "tensor": int, "type": str}
        if (
            not isinstance(node, dict)
            or node.keys() != kinds.keys()
            or not all(isinstance(node[key], kind) for key, kind in kinds.items())
        ):
            raise _malformed("not the description of a tensor")
        parse_canonical(node["type"], self.limits)
        parts = tuple(map(_part, node["parts"]))
        if not parts or len({part[0] for part in parts}) < len(parts):
            raise _malformed("a tensor needs parts with different names")
        return node["tensor"], Special(node["layout"], node["type"], parts, node["attributes"])


def _part(node: Any) -> PartName:
    if isinstance(node, dict) and isinstance(node.get("name"), str):
        if node.keys() == {"name"}:
            return node["name"], None, None
        if (
            node.keys() == {"name", "dtype", "shape"}
            and isinstance(node["dtype"], str)
            and isinstance(node["shape"], list)
            and all(type(size) is int and 0 <= size < 1 << 62 for size in node["shape"])
        ):
            return node["name"], node["dtype"], tuple(node["shape"])
    raise _malformed("not a part of a tensor")


def _check_bases(rows: NDArray[Any], bases: NDArray[Any]) -> None:
    """Checks that rows with a base of their own have the bases in order."""
    used = rows["base"][rows["base"] < _UNCHANGED]
    if not np.array_equal(used, np.arange(len(used))) or len(used) > len(bases):
        raise _malformed("a row does not have the next base")
    if len(used) < len(bases):
        raise _malformed("a base without a row")


def _check_bodies(rows: NDArray[Any], bases: NDArray[Any], bodies: NDArray[Any]) -> None:
    """Checks that a row's chunks ascend and lie in the value, and that each comes from the delta or the base."""
    chunks = _chunk_counts(rows["nbytes"])
    row_of, positions = np.repeat(np.arange(len(rows)), rows["bodies"]), bodies["position"]
    if np.any((positions[1:] <= positions[:-1]) & (row_of[1:] == row_of[:-1])) or np.any(positions >= chunks[row_of]):
        raise _malformed("the chunks of a row are not in order")
    if np.any(bodies["encoding"] >= _ENCODINGS):
        raise _malformed("an unknown encoding")
    based = np.flatnonzero(rows["base"] < _UNCHANGED)
    held = np.where(rows["base"] == _ADDED, 0, chunks)
    held[based] = _chunk_counts(bases["nbytes"])
    # Positions ascend and are below `chunks`, so if all chunks past the base are there, their number is chunks - held.
    past = np.bincount(row_of[positions >= held[row_of]], minlength=len(rows))
    if np.any((past < chunks - held) & (rows["tied"] == _NO_ROW)):
        raise _malformed("a chunk is neither in the delta nor in the base")
    unchanged = rows["base"] == _UNCHANGED
    same = (_words(rows["digest"][based]) == _words(bases["digest"])).all(axis=1)
    unchanged[based] = same & (rows["type"][based] == bases["type"])
    if np.any(rows["bodies"][unchanged]):
        raise _malformed("a row that is unchanged has a body")


def _chunk_counts(nbytes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Empty data is one empty chunk."""
    return np.maximum(1, -(-nbytes.astype(np.int64) // CHUNK_NBYTES))


def _words(digests: NDArray[np.void]) -> NDArray[np.uint64]:
    """Four words for each digest, because NumPy compares numbers faster than bytes."""
    return np.ascontiguousarray(digests).view("<u8").reshape(-1, 4)


def _tie(made: Sequence[Change], row: int, tied: int) -> int:
    value_of = attrgetter("type", "nbytes", "digest", "base")
    if tied >= row or made[tied].tied is not None or made[row].bodies or value_of(made[tied]) != value_of(made[row]):
        raise _malformed("a row must be tied to an earlier row of the same type and shape")
    return tied


def _malformed(what: str) -> FormatError:
    return FormatError(f"malformed delta: {what}", rule="delta.index")
