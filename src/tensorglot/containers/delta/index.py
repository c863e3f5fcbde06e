"""The index of a delta: names, rows and the spans of bodies, as bytes and as checked values.

    index = DAG-CBOR {"bases", "bodies", "metadata", "names", "removed", "rows", "special", "types", "version": 1}

`rows`, `bases` and `bodies` are byte strings of fixed-size records. Everything is checked
before it is used: numbers of types, bases and rows, sizes against types, the order of
chunks, and that bodies fill the file.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from tensorglot.containers.table import check_header
from tensorglot.dynd.schema import fixed_nbytes
from tensorglot.errors import FormatError, TruncatedError, UnsupportedError, plural
from tensorglot.limits import Limits
from tensorglot.model.payload import Source
from tensorglot.model.types.algebra import symbolic
from tensorglot.model.types.text import parse_canonical
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


# Those of which an index has many are not frozen: creating one would take three times as long.


@dataclass(slots=True)
class Base:
    """The value that a row was made from."""

    type: str
    nbytes: int
    digest: bytes
    """Digest of the data: of a leaf up to the size of a chunk, of a tree of chunks beyond."""


@dataclass(slots=True)
class Body:
    """One chunk that differs."""

    position: int
    """Position of the chunk in the value."""
    encoding: int
    begin: int
    end: int
    """The span of its bytes in the file."""


@dataclass(slots=True)
class Change:
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
        """The rows of each tensor."""
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
        self.fixed = [self._nbytes(text) for text in self.types]

    def _texts(self, key: str) -> list[str]:
        texts: list[str] = self.node[key]
        if not all(isinstance(text, str) for text in texts) or len(set(texts)) != len(texts):
            raise _malformed(f"{key} must be different texts")
        return texts

    def _nbytes(self, text: str) -> int | None:
        """The size of values of a type, if all have the same size."""
        type = parse_canonical(text, self.limits)
        if symbolic(type):
            raise _malformed(f"symbolic type {text:.60} cannot have data")
        return fixed_nbytes(type)

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
        rows = list(self._rows())
        counts = np.bincount([row.tensor for row in rows], minlength=len(self.names)).tolist()
        for position, count in enumerate(counts):
            if count != (len(special[position].parts) if position in special else 1):
                raise _malformed(f"tensor {position} has {plural(count, 'row')}")
        if any(a.tensor > b.tensor for a, b in pairwise(rows)) or not special.keys() <= set(range(len(self.names))):
            raise _malformed("rows are not in the order of the names")
        return DeltaIndex(self.names, rows, removed, special, self.node["metadata"])

    def _rows(self) -> Iterator[Change]:
        rows, bodies = self._columns("rows", _ROW), self._columns("bodies", _BODY)
        if len(rows) and int(rows["tensor"].max()) >= len(self.names):
            raise _malformed("a row of a tensor that does not exist")
        counts = rows["bodies"].astype(np.int64)
        ends = len(MAGIC) + np.cumsum(bodies["stored"].astype(np.int64))
        if int(counts.sum()) != len(bodies) or (int(ends[-1]) if len(ends) else len(MAGIC)) != self.end:
            raise _malformed("the bodies do not fill the file")
        begins = (ends - bodies["stored"]).tolist()
        bases = [Base(self._type(type, size), size, old) for type, size, old in self._columns("bases", _BASE).tolist()]
        parts = list(zip(bodies["position"].tolist(), bodies["encoding"].tolist(), begins, ends.tolist(), strict=True))
        made: list[Change] = []
        used = at = 0
        for tensor, type, base, tied, count, nbytes, checksum, digest in rows.tolist():
            text = self._type(type, nbytes)
            old = None
            if base == used and used < len(bases):
                old, used = bases[used], used + 1
            elif base == _UNCHANGED:
                old = Base(text, nbytes, digest)
            elif base != _ADDED:
                raise _malformed("a row does not have the next base")
            bodies_here = tuple([Body(*part) for part in parts[at : at + count]])
            row = Change(tensor, text, nbytes, digest, old, bodies_here, checksum=checksum)
            at += count
            if tied != _NO_ROW:
                row = replace(row, tied=self._tie(row, tied, made))
            _check_bodies(row)
            made.append(row)
            yield row
        if used != len(bases):
            raise _malformed("a base without a row")

    def _type(self, number: int, nbytes: int) -> str:
        if number >= len(self.types):
            raise _malformed("a type that does not exist")
        if nbytes != (self.fixed[number] if self.fixed[number] is not None else nbytes) or nbytes >= 1 << 62:
            raise _malformed(f"a value of type {self.types[number]:.60} cannot have {nbytes} bytes")
        return self.types[number]

    def _tie(self, row: Change, tied: int, made: Sequence[Change]) -> int:
        value_of = attrgetter("type", "nbytes", "digest", "base")
        if tied >= len(made) or made[tied].tied is not None or row.bodies or value_of(made[tied]) != value_of(row):
            raise _malformed("a row must be tied to an earlier row of the same type and shape")
        return tied

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


def _check_bodies(row: Change) -> None:
    """Checks that a row's chunks ascend and lie in the value, and that each comes from the delta or the base."""
    if not row.bodies and row.base is not None and row.base.nbytes >= row.nbytes:
        return  # all chunks are in the base
    chunks = max(1, -(-row.nbytes // CHUNK_NBYTES))
    positions = [body.position for body in row.bodies]
    if any(a >= b for a, b in pairwise(positions)) or (positions and positions[-1] >= chunks):
        raise _malformed("the chunks of a row are not in order")
    if any(body.encoding >= _ENCODINGS for body in row.bodies):
        raise _malformed("an unknown encoding")
    held = 0 if row.base is None else max(1, -(-row.base.nbytes // CHUNK_NBYTES))
    # Positions ascend and are below `chunks`, so if all chunks past the base are there, their number is chunks - held.
    if row.tied is None and len(positions) - bisect_left(positions, held) < chunks - held:
        raise _malformed("a chunk is neither in the delta nor in the base")
    if row.state == "unchanged" and positions:
        raise _malformed("a row that is unchanged has a body")


def _malformed(what: str) -> FormatError:
    return FormatError(f"malformed delta: {what}", rule="delta.index")
