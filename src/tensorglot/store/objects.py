"""The nodes of a store: arrays, tensors of several parts, commits. All are DAG-CBOR blocks.

    array   {"data": link, "dynd": 1, "size": bytes, "type": text}: the identity of a value
    tensor  {"attributes", "dynd": 1, "kind": "tensor", "layout", "parts", "type"}: a value
            that has attributes, or that is stored as parts: sparse, quantized, unknown
    commit  {"dynd": 1, "kind": "commit", "message", "metadata", "parents", "tensors": link
            of the manifest, "time": microseconds since 1970}

`docs/identity.md` defines the first, `docs/store.md` the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tensorglot.dynd.cbor import ARRAY_HEAD, array_block
from tensorglot.errors import FormatError, Hint, InputError, TensorglotError, UnsupportedError, escape
from tensorglot.operations._jsonable import Record, field_dict
from tensorglot.tuples import NamedTuple
from tensorglot.wire.cid import (
    BLAKE3,
    CID,
    DAG_CBOR,
    DIGEST_NBYTES,
    RAW,
    cid_texts,
    decode_node,
    encode_node,
)

__all__ = [
    "LEAF_HEAD",
    "LEAF_NBYTES",
    "ArrayNode",
    "Commit",
    "PartNode",
    "TensorNode",
    "check_message",
    "check_metadata",
    "parse_array",
    "parse_tensor",
]

_ARRAY = re.compile(
    re.escape(ARRAY_HEAD)
    + rb"(.{36})\x64dynd\x01\x64size"
    + rb"([\x00-\x17]|\x18.|\x19.{2}|\x1a.{4}|\x1b.{8})"
    + rb"\x64type(?:[\x60-\x77]|\x78.|\x79.{2}|\x7a.{4})(.*)",
    re.S,
)
"""An array node, read without a CBOR decoder: a commit may have 100,000 of them."""


class ArrayNode(NamedTuple):
    """A value: its type and its serialized bytes."""

    type: str
    nbytes: int
    data: CID

    def encode(self) -> bytes:
        return array_block(self.type, self.nbytes, self.data)


LEAF_NBYTES = len(ARRAY_HEAD) + 4 + DIGEST_NBYTES
"""The end of the digest in the node of an array that is one block; it begins after LEAF_HEAD."""
LEAF_HEAD = ARRAY_HEAD + bytes((1, RAW, BLAKE3, DIGEST_NBYTES))


def parse_array(block: bytes) -> ArrayNode:
    """Parses an array node; any other bytes are refused."""
    found = _ARRAY.fullmatch(block)
    if found is not None:
        data, size, text = found.groups()
        try:
            node = ArrayNode(text.decode(), int.from_bytes(size[1:] or size, "big"), CID.from_bytes(data))
        except UnicodeDecodeError:
            pass
        else:
            if node.encode() == block and node.nbytes < 1 << 63:  # in the shortest form
                return node
    raise FormatError("not an array node", rule="store.array")


@dataclass(frozen=True, slots=True)
class PartNode:
    """One part of a tensor."""

    name: str
    array: CID
    dtype: str | None = None
    """The name of an element type that is unknown here; the array has its bytes."""
    shape: tuple[int, ...] | None = None
    """The shape of the part; None unless `dtype` is set."""


@dataclass(frozen=True, slots=True)
class TensorNode:
    """A tensor with attributes, or of several parts."""

    layout: str
    type: str
    parts: tuple[PartNode, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        parts = [
            {"array": part.array, "name": part.name}
            | ({} if part.dtype is None else {"dtype": part.dtype, "shape": list(part.shape or ())})
            for part in self.parts
        ]
        return _encode(
            {
                "attributes": dict(self.attributes),
                "dynd": 1,
                "kind": "tensor",
                "layout": self.layout,
                "parts": parts,
                "type": self.type,
            },
            "attributes",
        )


def parse_tensor(block: bytes) -> TensorNode:
    """Parses the node of a tensor of several parts."""
    node = _node(block, "tensor", {"attributes": dict, "layout": str, "parts": list, "type": str})
    parts = []
    for part in node["parts"]:
        known = isinstance(part, dict) and isinstance(part.get("array"), CID) and isinstance(part.get("name"), str)
        opaque = (
            known
            and part.keys() == {"array", "dtype", "name", "shape"}
            and (type(part["dtype"]), type(part["shape"])) == (str, list)
        )
        if opaque and all(type(size) is int and 0 <= size < 1 << 63 for size in part["shape"]):
            parts.append(PartNode(part["name"], part["array"], part["dtype"], tuple(part["shape"])))
        elif known and part.keys() == {"array", "name"}:
            parts.append(PartNode(part["name"], part["array"]))
        else:
            raise FormatError("not a part of a tensor", rule="store.tensor")
    if not parts or len({part.name for part in parts}) < len(parts):
        raise FormatError("a tensor needs parts with different names", rule="store.tensor")
    return TensorNode(node["layout"], node["type"], tuple(parts), node["attributes"])


@dataclass(frozen=True, slots=True, repr=False)
class Commit(Record):
    """A version of a set of tensors."""

    cid: str
    parents: tuple[str, ...]
    message: str
    time: datetime
    metadata: Mapping[str, Any] | None
    tensors: CID
    """The link of the manifest."""

    def to_dict(self) -> dict[str, Any]:
        return {**field_dict(self, "cid", "parents", "message", "metadata"), "time": self.time.isoformat()}

    def __repr__(self) -> str:
        message = f", {escape(self.message, longest=50)}" if self.message else ""
        return f"Commit({self.cid[:19]}…, {self.time:%Y-%m-%d %H:%M}{message})"

    @staticmethod
    def encode(
        tensors: CID, parents: tuple[CID, ...], message: str, metadata: Mapping[str, Any] | None, time: int
    ) -> bytes:
        """The node of a commit; `time` is in microseconds since 1970."""
        return _encode(
            {
                "dynd": 1,
                "kind": "commit",
                "message": message,
                "metadata": None if metadata is None else dict(metadata),
                "parents": list(parents),
                "tensors": tensors,
                "time": time,
            },
            "metadata",
        )

    @classmethod
    def parse(cls, cid: CID, block: bytes) -> Commit:
        """The commit of a node."""
        kinds = {"message": str, "metadata": (dict, type(None)), "parents": list, "tensors": CID, "time": int}
        node = _node(block, "commit", kinds)
        if not all(isinstance(parent, CID) and parent.codec == DAG_CBOR for parent in node["parents"]):
            raise FormatError("a parent of a commit is not a link to a node", rule="store.commit")
        try:
            time = datetime.fromtimestamp(node["time"] / 1e6, UTC)
        except (ValueError, OverflowError, OSError) as error:
            raise FormatError(f"the time of a commit, {node['time']}, is out of range", rule="store.commit") from error
        parents = tuple(cid_texts([bytes(parent) for parent in node["parents"]]))
        return cls(str(cid), parents, node["message"], time, node["metadata"], node["tensors"])


def _encode(node: dict[str, Any], what: str) -> bytes:
    try:
        return encode_node(node)
    except TensorglotError as error:
        raise UnsupportedError(f"{what} cannot be stored as DAG-CBOR: {error.message}", rule=f"store.{what}") from error


def _node(block: bytes, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    node = decode_node(block)
    if (
        not isinstance(node, dict)
        or node.keys() != {"dynd", "kind", *fields}
        or node["dynd"] != 1
        or node["kind"] != kind
        or not all(isinstance(node[key], kinds) for key, kinds in fields.items())
    ):
        raise FormatError(f"not a {kind} node", rule=f"store.{kind}")
    return node


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Refuses metadata that a commit cannot have, before anything is stored."""
    for key, value in metadata.items():
        try:
            encode_node(value)
        except TensorglotError as error:
            raise UnsupportedError(
                f"a commit cannot store the metadata '{escape(key)}': {error.message}",
                rule="store.metadata",
                hint=Hint("pass metadata= without it", "pass --metadata KEY=VALUE for what to keep"),
            ) from error


def check_message(message: str) -> str:
    if not isinstance(message, str):
        raise InputError(f"message must be a str, not {type(message).__name__}", rule="store.message")
    try:
        message.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the message '{escape(message, longest=60)}' is not valid Unicode", rule="store.message"
        ) from error
    return message
