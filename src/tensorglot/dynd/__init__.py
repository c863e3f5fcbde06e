"""DyND serialization: one canonical byte string for every typed value.

    parse("var * {name: string, score: ?float32}")     a type; str() of it is canonical
    serialize(value, type)     deserialize(data, type)     the data alone
    pack(value)                unpack(data)                the type, and the data
    dump(value, stream, type)  load(stream, type)          in pieces, in bounded memory
    to_cbor(value)             from_cbor(data, type)       CBOR, for exchange

A value is a Tensor, an array of NumPy, awkward or Arrow, or plain Python. What comes
back is a Tensor: `.numpy()`, `.tolist()`, `.awkward()`, `.arrow()`, `.cid()`. A type is
given as a Type or as text; where none is given, `typeof(value)` says it.

If bytes are accepted, serializing the result gives the same bytes again.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd import cbor
from tensorglot.dynd.codec import inputs
from tensorglot.dynd.codec.decode import decode
from tensorglot.dynd.codec.encode import encoded, type_header
from tensorglot.dynd.coerce.value import (
    as_tensor,
    as_type,
    as_value,
    is_block,
    tensor_nbytes,
    tensor_pieces,
    typeof,
    value_pieces,
)
from tensorglot.dynd.export.numpy import to_numpy
from tensorglot.dynd.export.python import to_python
from tensorglot.dynd.merkle import Link, found_in
from tensorglot.dynd.schema import check_readable
from tensorglot.dynd.tensors import from_tensor, to_tensor
from tensorglot.dynd.value import Value
from tensorglot.errors import FormatError, InputError
from tensorglot.limits import DEFAULT, Limits, as_limits
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.algebra import ANY, Array
from tensorglot.model.types.base import Type
from tensorglot.model.types.text import parse, text_of
from tensorglot.wire.cid import CID, DAG_CBOR, block_cid, data_cid, encode_node

__all__ = [
    "CID",
    "Link",
    "Type",
    "array",
    "array_node",
    "cid",
    "deserialize",
    "dump",
    "from_cbor",
    "load",
    "numpy",
    "pack",
    "parse",
    "serialize",
    "to_cbor",
    "tolist",
    "typeof",
    "unpack",
]


Profile: TypeAlias = Literal["exchange", "dag"]


class Writable(Protocol):
    """A binary stream, a hasher, a compressor: whatever takes bytes."""

    def write(self, data: memoryview, /) -> Any: ...


def array(value: Any, type: Type | str | None = None) -> Tensor:
    """A value as a tensor in memory."""
    return as_tensor(value, None if type is None else as_type(type))


def serialize(value: Any, type: Type | str | None = None) -> memoryview:
    """The canonical bytes of a value, without its type."""
    wanted = None if type is None else as_type(type)
    if is_block(value, wanted):
        return _joined(as_tensor(value), b"")
    return encoded(as_value(value, wanted)).data


def _joined(tensor: Tensor, before: bytes) -> memoryview:
    """All bytes of a dense tensor, in memory of their own."""
    check_readable(tensor.type)
    out = np.empty(len(before) + tensor_nbytes(tensor), np.uint8).data
    out[: len(before)] = before
    at = len(before)
    for piece in tensor_pieces(tensor):
        out[at : at + len(piece)] = piece
        at += len(piece)
    return out


def deserialize(data: Any, type: Type | str, *, limits: Limits = DEFAULT) -> Tensor:
    """The value of a type that the bytes are. What has a fixed size shares their memory."""
    return to_tensor(_decoded(data, as_type(type), limits))


def _decoded(data: Any, type: Type, limits: Limits, depth: int = 0) -> Value:
    source = inputs.Memory(data)
    value = decode(source, type, as_limits(limits), depth)
    source.finish()
    return value


def pack(value: Any) -> memoryview:
    """A value as `array[Any]`: its type, and its bytes."""
    if is_block(value, None):
        tensor = as_tensor(value)
        return _joined(tensor, type_header(tensor.type))
    whole = as_value(value)
    header = np.frombuffer(type_header(whole.plan.type), np.uint8)
    return np.concatenate([header, encoded(whole)]).data


def unpack(data: Any, *, limits: Limits = DEFAULT) -> Tensor:
    """The value in an `array[Any]`."""
    value = _decoded(data, Array(ANY), limits, depth=-1)  # what `pack` adds is not counted
    return to_tensor(value.boxes(value.plan.root)[0])


def dump(value: Any, stream: Writable, type: Type | str | None = None) -> int:
    """Writes the bytes of a value to a stream, in pieces, and returns their number.

    With the type `array[Any]` the value's own type is written before it.
    """
    if not hasattr(stream, "write"):
        raise InputError(f"a binary stream has write(), {_kind(stream)} has not", rule="dynd.stream")
    total = 0
    for piece in value_pieces(value, None if type is None else as_type(type)):
        at = 0
        while at < len(piece):  # a raw stream may write less
            try:
                written = stream.write(piece[at:])
            except TypeError as error:
                raise InputError(f"{_kind(stream)} takes no bytes: {error}", rule="dynd.stream") from error
            at = at + written if isinstance(written, int) and 0 < written < len(piece) - at else len(piece)
        total += len(piece)
    return total


def load(stream: inputs.Readable, type: Type | str, *, limits: Limits = DEFAULT) -> Tensor:
    """Reads one value from a stream, and nothing that follows it."""
    return to_tensor(decode(inputs.Stream(stream), as_type(type), as_limits(limits)))


def _kind(value: object) -> str:
    return value.__class__.__name__


def _check_profile(profile: str) -> None:
    if profile not in ("exchange", "dag"):
        raise InputError(f"the profile of CBOR is 'exchange' or 'dag', not {profile!r:.40}", rule="dynd.cbor.profile")


def to_cbor(
    value: Any,
    type: Type | str | None = None,
    *,
    profile: Profile = "exchange",
    store: MutableMapping[CID, bytes] | None = None,
    limits: Limits = DEFAULT,
) -> bytes:
    """A value as CBOR: for exchange, or as a DAG-CBOR node, with its bytes in it or in a store."""
    _check_profile(profile)
    if profile == "exchange":
        return cbor.to_exchange(as_value(value, None if type is None else as_type(type)), as_limits(limits))
    tensor = array(value, type)
    if store is None:
        data = bytes(serialize(tensor))
        return cbor.to_dag(tensor.type, data, len(data))
    link, size = data_cid(tensor_pieces(tensor), lambda cid, block: store.__setitem__(cid, bytes(block)))
    return cbor.to_dag(tensor.type, link, size)


def from_cbor(
    data: Any,
    type: Type | str | None = None,
    *,
    profile: Profile = "exchange",
    store: Mapping[CID, Any] | None = None,
    limits: Limits = DEFAULT,
) -> Tensor:
    """The value of CBOR bytes. They say its type; one that is given must be the same."""
    _check_profile(profile)
    limits = as_limits(limits)
    raw = inputs.Memory(data).window.tobytes()
    if profile == "exchange":
        found, content = cbor.from_exchange(raw, limits)
    else:
        found, content = cbor.from_dag(raw, None if store is None else partial(found_in, store), limits)
    if type is not None and as_type(type) != found:
        raise FormatError(f"a value of type {found}, not {as_type(type)}", rule="dynd.cbor.type")
    return to_tensor(_decoded(content, found, limits))


def tolist(tensor: Tensor) -> Any:
    """Plain Python values."""
    return to_python(from_tensor(tensor), to_tensor)


def numpy(tensor: Tensor) -> NDArray[Any]:
    """The array of a tensor that is not dense, if NumPy has one."""
    return to_numpy(from_tensor(tensor))


def array_node(tensor: Tensor) -> bytes:
    """The DAG-CBOR block that says what a tensor is: its type, its size, and a link to its bytes."""
    data, size = data_cid(tensor_pieces(tensor))
    return encode_node({"data": data, "dynd": 1, "size": size, "type": text_of(tensor.type)})


def cid(tensor: Tensor) -> str:
    """The identity of a value."""
    return str(block_cid(array_node(tensor), DAG_CBOR))
