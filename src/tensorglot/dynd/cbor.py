"""DyND values as CBOR, in two profiles.

Exchange: values of types that are native to CBOR (bool, null, int64, float64, strings,
bytes, typed arrays of RFC 8746, arrays of such, maps with sorted keys) are written
natively; every other value is tag "dynd" around its type and its bytes. The type alone
decides which form is used, and a reader can tell the type from the CBOR.

DAG-CBOR: {"data": bytes or link, "dynd": 1, "size": n, "type": text}.

Both decoders accept exactly what the encoders write.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tensorglot.dynd.codec.encode import encode, varint
from tensorglot.dynd.codec.packing import packed_bytes
from tensorglot.dynd.python_atoms import array_to_atoms
from tensorglot.dynd.schema import Kind, Node
from tensorglot.dynd.sizes import read_types
from tensorglot.dynd.value import Value
from tensorglot.errors import FormatError, InputError, LimitError
from tensorglot.limits import Limits
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.types import algebra as ty
from tensorglot.model.types.base import Type
from tensorglot.model.types.text import text_of
from tensorglot.wire import cbor
from tensorglot.wire.cid import CID, DIGEST_NBYTES, LINK_HEAD, data_bytes, decode_node, encode_node

__all__ = [
    "ARRAY_HEAD",
    "array_block",
    "array_block_ends",
    "from_dag",
    "from_exchange",
    "is_native",
    "to_dag",
    "to_exchange",
]

TAG = 0x64796E64  # "dynd" in ASCII
C_ORDER, F_ORDER = 40, 1040  # RFC 8746 §3.1: multi-dimensional arrays, row-major and column-major

# RFC 8746 §2.1: typed arrays, the little-endian ones.
TYPED = {
    "uint8": 64, "uint16": 69, "uint32": 70, "uint64": 71,
    "int8": 72, "int16": 77, "int32": 78, "int64": 79,
    "float16": 84, "float32": 85, "float64": 86, "float128": 87,
}  # fmt: skip
_BY_TAG = {tag: ty.Scalar(BY_NAME[name]) for name, tag in TYPED.items()}
_INT64, _FLOAT64, _BOOL = ty.Scalar(BY_NAME["int64"]), ty.Scalar(BY_NAME["float64"]), ty.Scalar(BY_NAME["bool"])

# docs/dynd-format.md, "Profile A, for exchange": one encoding for each value.
_PROFILE = replace(cbor.DETERMINISTIC, keys="text", floats="double", tags=frozenset({TAG, C_ORDER, F_ORDER, *_BY_TAG}))
ARRAY_HEAD = b"\xa4\x64data" + LINK_HEAD
"""The beginning of an array in DAG-CBOR, up to the CID of its bytes."""
MOST_DEPTH = 128
"""Upper bound of Limits.cbor_depth: each level takes a frame of Python's stack."""


def is_native(type: Type) -> bool:
    """Whether values of a type have a native form in CBOR."""
    stack = [type]
    while stack:
        inner = stack.pop()
        if isinstance(inner, ty.Tuple):
            stack.extend(inner.elements)
        elif isinstance(inner, ty.Struct):
            # A CBOR map is written with sorted keys: a struct with fields in another order could not be restored.
            keys = [cbor.text(name) for name, _ in inner.fields]
            if keys != sorted(keys):
                return False
            stack.extend(inner.children)
        elif isinstance(inner, ty.Fixed | ty.Storage):
            if not _is_typed_array(inner):
                return False
        elif not (isinstance(inner, ty.Bytes | ty.String | ty.Void) or inner in (_INT64, _FLOAT64, _BOOL)):
            return False
    return True


def _is_typed_array(type: ty.Fixed | ty.Storage) -> bool:
    inner = type.element if isinstance(type, ty.Storage) else type
    shape, element = ty.leading(inner)
    reversed_axes = tuple(range(len(shape)))[::-1]
    if isinstance(type, ty.Storage) and type.axis != reversed_axes:
        return False
    return isinstance(element, ty.Scalar) and element.dtype.name in TYPED


def to_exchange(value: Value, limits: Limits) -> bytes:
    """A value as CBOR for exchange."""
    text = text_of(value.plan.type)
    native = is_native(value.plan.type)
    item = _native(value, value.plan.root) if native else cbor.Tag(TAG, [text, encode(value).tobytes()])
    return cbor.encode(item, _profile(limits))


def _profile(limits: Limits) -> cbor.Profile:
    return cbor.with_depth(_PROFILE, min(limits.cbor_depth, MOST_DEPTH))


def _native(value: Value, node: Node) -> Any:
    """A value of a native type as an item. Native types have no lists or options, so every node has one value."""
    if node.kind is Kind.SEQUENCE:
        items = [_native(value, child) for child in node.children]
        return dict(zip(node.names, items, strict=True)) if isinstance(node.type, ty.Struct) else items
    if node.kind is Kind.LIST:
        lists = value.lists(node)
        raw = value.array(node.child)[int(lists.starts[0]) : int(lists.stops[0])].tobytes()
        return raw.decode() if isinstance(node.type, ty.String) else raw
    if node.kind is Kind.BLOCK and not node.shape and node.atom is not None:
        return array_to_atoms(node.atom, value.array(node))[0]
    return _typed_array(value, node)


def _typed_array(value: Value, node: Node) -> cbor.Tag:
    order = F_ORDER if isinstance(node.type, ty.Storage) else C_ORDER
    shape, element = ty.leading(node.type.element if isinstance(node.type, ty.Storage) else node.type)
    assert isinstance(element, ty.Scalar)  # noqa: S101
    leaf = node
    while leaf.kind is Kind.REPEAT:
        leaf = leaf.child
    raw = packed_bytes(value, leaf, len(value.array(leaf)))
    assert raw is not None  # noqa: S101
    array = cbor.Tag(TYPED[element.dtype.name], raw.tobytes())
    return array if len(shape) == 1 else cbor.Tag(order, [list(shape), array])


def from_exchange(data: bytes, limits: Limits) -> tuple[Type, bytes]:
    """The type and the serialized bytes of a value in CBOR for exchange."""
    item = cbor.decode(data, _profile(limits))
    tagged = isinstance(item, cbor.Tag) and item.number == TAG
    type, raw = _dynd(*_pair(item), limits) if tagged else _item(item, limits)
    # The type of a native value is inferred from the CBOR, so no parser has checked the length of its text.
    if len(str(type)) > limits.type_nbytes:
        raise LimitError(
            f"the type has {len(str(type))} characters; Limits.type_nbytes allows {limits.type_nbytes}",
            rule="dynd.type.length",
        )
    return type, b"".join(raw)


def _refuse(message: str, rule: str) -> FormatError:
    return FormatError(message, rule=f"dynd.cbor.{rule}")


def _item(item: Any, limits: Limits) -> tuple[Type, list[bytes]]:
    """The type and the bytes of an item. The recursion is bounded: `cbor.decode` has checked the depth."""
    if isinstance(item, cbor.Tag):
        return _decode_tag(item, limits)
    if item is None or isinstance(item, bool):
        return (ty.Void(), []) if item is None else (_BOOL, [bytes([item])])
    if isinstance(item, int):
        if not -(1 << 63) <= item < 1 << 63:
            raise _refuse(f"integer {item} does not fit in int64", "integer")
        return _INT64, [item.to_bytes(8, "little", signed=True)]
    if isinstance(item, float):
        return _FLOAT64, [np.float64(item).tobytes()]
    if isinstance(item, str | bytes):
        raw = item.encode() if isinstance(item, str) else item
        return ty.String() if isinstance(item, str) else ty.Bytes(), [varint(len(raw)), raw]
    if isinstance(item, dict):
        inner = [_item(each, limits) for each in item.values()]
        type: Type = ty.Struct(tuple(zip(item, (t for t, _ in inner), strict=True)))
    else:
        inner = [_item(each, limits) for each in item]
        type = ty.Tuple(tuple(t for t, _ in inner))
    return type, [piece for _, raw in inner for piece in raw]


def _decode_tag(item: cbor.Tag, limits: Limits) -> tuple[Type, list[bytes]]:
    if item.number in _BY_TAG:
        if not isinstance(item.value, bytes):
            raise _refuse(f"tag {item.number} (typed array) must be around a byte string", "array")
        element = _BY_TAG[item.number]
        count, rest = divmod(len(item.value), element.dtype.bits // 8)
        if rest:
            raise _refuse(
                f"tag {item.number} (typed array): {len(item.value)} bytes are not a whole number of elements", "array"
            )
        return ty.Fixed(count, element), [item.value]
    if item.number == TAG:
        raise _refuse("the dynd tag must not be inside an array or a map", "native")
    return _several_dims(item.number, *_pair(item), limits)


def _pair(item: cbor.Tag) -> tuple[Any, Any]:
    if not isinstance(item.value, list) or len(item.value) != 2:
        raise _refuse(f"tag {item.number} must be around an array of two items", "array")
    return item.value[0], item.value[1]


def _several_dims(order: int, shape: Any, inner: Any, limits: Limits) -> tuple[Type, list[bytes]]:
    typed = isinstance(inner, cbor.Tag) and inner.number in _BY_TAG
    if not typed or not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 1 << 63 for size in shape):
        raise _refuse(f"tag {order} (multi-dimensional array) must be around its sizes and a typed array", "array")
    if not 2 <= len(shape) <= limits.rank:
        raise _refuse(f"tag {order} needs 2 to {limits.rank} dimensions, found {len(shape)}", "array")
    flat, raw = _decode_tag(inner, limits)
    assert isinstance(flat, ty.Fixed)  # noqa: S101
    if math.prod(shape) != flat.size:
        raise _refuse(f"sizes {shape} do not multiply to the {flat.size} elements of the typed array", "array")
    whole = ty.dense(_BY_TAG[inner.number].dtype, tuple(shape))
    return (ty.Storage.of(whole, tuple(range(len(shape)))[::-1]) if order == F_ORDER else whole), raw


def _dynd(text: Any, raw: Any, limits: Limits) -> tuple[Type, list[bytes]]:
    if not isinstance(text, str) or not isinstance(raw, bytes):
        raise _refuse("the dynd tag must be around the text of a type and a byte string", "array")
    type = read_types([text], limits).type(0)
    if is_native(type):
        raise _refuse(f"{text:.60} is native to CBOR: the dynd tag must not be used for it", "native")
    return type, [raw]


def to_dag(type: Type, data: bytes | CID, size: int) -> bytes:
    """A value as a DAG-CBOR block."""
    return encode_node({"data": data, "dynd": 1, "size": size, "type": text_of(type)})


def array_block(type: str, nbytes: int, data: CID) -> bytes:
    """The DAG-CBOR block of an array: the text of its type, and a link to its bytes. Quicker than `to_dag`."""
    size, text = cbor.head(0, nbytes), cbor.text(type)
    return b"".join((ARRAY_HEAD, bytes(data), b"\x64dynd\x01\x64size", size, b"\x64type", text))


def array_block_ends(type: str, nbytes: int) -> tuple[bytes, bytes]:
    """What is before and after the digest in the block of an array whose bytes are one block."""
    digest = b"\xff" * DIGEST_NBYTES
    before, _, behind = array_block(type, nbytes, CID(digest)).partition(digest)
    return before, behind


def from_dag(block: bytes, fetch: Callable[[CID], Any] | None, limits: Limits) -> tuple[Type, bytes | memoryview]:
    """The type and the serialized bytes of a value in DAG-CBOR. `fetch` returns a linked block."""
    node = decode_node(block)
    if not isinstance(node, dict) or node.keys() != {"data", "dynd", "size", "type"}:
        raise _refuse("a node must be a map of data, dynd, size and type", "node")
    data, size, text = node["data"], node["size"], node["type"]
    numbers = type(size) is int and type(node["dynd"]) is int
    if not numbers or node["dynd"] != 1 or not isinstance(text, str):
        raise _refuse("a node must have dynd 1, an integer size and the text of a type", "node")
    if isinstance(data, CID):
        if fetch is None:
            raise InputError("the data is in another block: pass store=", rule="dynd.cbor.link")
        data = data_bytes(data, fetch, size)
    if not isinstance(data, bytes | memoryview) or len(data) != size:
        raise _refuse(f"a node must have as many bytes of data as its size says ({size})", "node")
    return read_types([text], limits).type(0), data
