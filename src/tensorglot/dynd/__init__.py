"""DyND serialization: one canonical byte string for every typed value.

    parse("var * {name: string, score: ?float32}")     a type; str() of it is canonical
    serialize(value, type)     deserialize(data, type)     the data alone
    pack(value)                unpack(data)                the type, and the data
    dump(value, stream, type)  load(stream, type)          in pieces, in bounded memory
    to_cbor(value)             from_cbor(data, type)       CBOR, for exchange
    to_json(value)             from_json(text, type)       JSON, for people
    to_table(value), to_pandas(value), to_polars(value)    back with array(table)
    to_parquet(value, path)    from_parquet(path)          Parquet files

A value is anything that `tg.save` accepts: a Tensor, an array of NumPy, awkward or Arrow,
plain Python. The result is a Tensor: `.numpy()`, `.tolist()`, `.awkward()`, `.arrow()`,
`.cid()`. A type is a Type or its text; the default is `typeof(value)`.

The mapping is a bijection: bytes that are accepted serialize to the same bytes again.

    coerce          any value to a Tensor
    export          a Tensor to NumPy, plain Python, a dense Tensor
    codec           columns to canonical bytes, and back
    schema          a type as the tree of columns that its values have
    sizes           sizes of the values of types, without a schema
    value           one value, as these columns; a selection of its rows
    columns         a value from the parts of a nested tensor; parts of a file are checked
    tensors         values as tensors; tensors as values and as canonical bytes
    maps            the order of the pairs of a `map[K, V]`
    temporal        dates, times and decimals between integers, Python's objects and text
    atoms           values of a fixed size; python_atoms: Python's numbers as these
    match           whether a type is an instance of a symbolic one
    merkle          links by hash; link_columns: columns of them
    cbor, json      values as CBOR and as JSON
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from functools import partial
from json import dumps
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from tensorglot.arguments import check_choice
from tensorglot.dynd import cbor
from tensorglot.dynd import json as json_form
from tensorglot.dynd.codec import inputs
from tensorglot.dynd.codec.decode import decode, decode_all
from tensorglot.dynd.codec.encode import encode, type_header
from tensorglot.dynd.coerce.anything import as_type, coerce, typeof
from tensorglot.dynd.export.numpy import check_type, to_numpy
from tensorglot.dynd.export.python import to_python
from tensorglot.dynd.link_columns import connect
from tensorglot.dynd.match import check_holds
from tensorglot.dynd.merkle import Link, fetch_block, save_links
from tensorglot.dynd.schema import check_readable, plan_of
from tensorglot.dynd.tensors import check_value, from_tensor, tensor_nbytes, tensor_pieces, to_tensor
from tensorglot.errors import FormatError, InputError, LimitError, UnsupportedError
from tensorglot.limits import DEFAULT, Limits, as_limits
from tensorglot.model.tensor import NESTED, Tensor
from tensorglot.model.types.algebra import ANY, Array, Type
from tensorglot.model.types.text import parse, text_of
from tensorglot.providers import provided
from tensorglot.wire.cid import CID, DAG_CBOR, block_cid, data_cid

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
    "from_json",
    "from_parquet",
    "load",
    "numpy",
    "pack",
    "parse",
    "serialize",
    "to_cbor",
    "to_json",
    "to_pandas",
    "to_parquet",
    "to_polars",
    "to_table",
    "tolist",
    "typeof",
    "unpack",
]


def __dir__() -> list[str]:
    return __all__


Profile = Literal["exchange", "dag"]


class Writable(Protocol):
    """A binary stream, a hasher, a compressor."""

    def write(self, data: memoryview, /) -> Any: ...


def array(value: Any, type: Type | str | None = None) -> Tensor:
    """A value as a tensor in memory."""
    return coerce(value, _type_or_none(type))


def _type_or_none(type: Type | str | None) -> Type | None:
    return None if type is None else as_type(type)


def serialize(value: Any, type: Type | str | None = None) -> memoryview:
    """The canonical bytes of a value, without its type."""
    return _bytes(array(value, type), b"")


def _bytes(tensor: Tensor, before: bytes) -> memoryview:
    """`before`, then the canonical bytes of a tensor, in new memory."""
    _check_readable(tensor)
    if tensor.layout != "dense":
        data = encode(from_tensor(tensor))
        return np.concatenate([np.frombuffer(before, np.uint8), data]).data if before else data.data
    nbytes = len(before) + tensor_nbytes(tensor)
    try:
        out = np.empty(nbytes, np.uint8).data
    except MemoryError as error:
        raise LimitError(f"out of memory: {nbytes} bytes needed", rule="memory.size", tensor=tensor.name) from error
    out[: len(before)] = before
    at = len(before)
    for piece in tensor_pieces(tensor):
        out[at : at + len(piece)] = piece
        at += len(piece)
    return out


def _check_readable(tensor: Tensor) -> None:
    try:
        check_readable(tensor.type)
    except InputError as error:
        if tensor.offset is None:
            raise
        # A tensor of a file: the file exceeds the limit, not the caller.
        raise LimitError(error.message, rule=error.rule, tensor=tensor.name, offset=tensor.offset) from error


def deserialize(data: Any, type: Type | str, *, limits: Limits = DEFAULT) -> Tensor:
    """Decodes a value of a type. A value of a fixed size shares the memory of the bytes."""
    return to_tensor(decode_all(data, as_type(type), as_limits(limits)))


def pack(value: Any) -> memoryview:
    """A value as `array[Any]`: its type, and its bytes."""
    tensor = coerce(value)
    return _bytes(tensor, type_header(tensor.type))


def unpack(data: Any, *, limits: Limits = DEFAULT) -> Tensor:
    """The value in an `array[Any]`."""
    value = decode_all(data, Array(ANY), as_limits(limits), depth=-1)  # the array[Any] of `pack` is not counted
    return to_tensor(value.boxes(value.plan.root)[0])


def dump(value: Any, stream: Writable, type: Type | str | None = None) -> int:
    """Writes the bytes of a value to a stream, in pieces, and returns their number.

    With the type `array[Any]` the value's own type is written before it.
    """
    if not hasattr(stream, "write"):
        raise InputError(f"{_kind(stream)} has no write(): pass a binary stream", rule="dynd.stream")
    total = 0
    for piece in _pieces(value, _type_or_none(type)):
        at = 0
        while at < len(piece):  # a raw stream may write less
            try:
                written = stream.write(piece[at:])
            except (TypeError, ValueError) as error:  # a text file, a closed file, one opened for reading
                raise InputError(
                    f"{_kind(stream)} does not accept bytes (open it in binary mode): {error}", rule="dynd.stream"
                ) from error
            if not written and isinstance(stream, io.RawIOBase):
                raise BlockingIOError(errno.EAGAIN, "the stream would block")
            at = at + written if isinstance(written, int) and 0 < written < len(piece) - at else len(piece)
        total += len(piece)
    return total


def _pieces(value: Any, type: Type | None) -> Iterator[memoryview]:
    """The canonical bytes of any value, in bounded memory, also inside an `array[T]`."""
    if isinstance(type, Array) and not (isinstance(value, Tensor) and value.layout == NESTED):
        inner = coerce(value)
        check_holds(type, inner.type)
        _check_readable(inner)
        yield memoryview(type_header(inner.type))
        yield from tensor_pieces(inner)
    else:
        tensor = coerce(value, type)
        _check_readable(tensor)
        yield from tensor_pieces(tensor)


def load(stream: inputs.Readable, type: Type | str, *, limits: Limits = DEFAULT) -> Tensor:
    """Reads one value from a stream, and nothing that follows it."""
    return to_tensor(decode(inputs.Stream(stream), as_type(type), as_limits(limits)))


def _kind(value: object) -> str:
    return value.__class__.__name__


def to_cbor(
    value: Any,
    type: Type | str | None = None,
    *,
    profile: Profile = "exchange",
    store: MutableMapping[CID, bytes] | None = None,
    limits: Limits = DEFAULT,
) -> bytes:
    """A value as CBOR: for exchange, or as a DAG-CBOR node, with its bytes in it or in a store."""
    check_choice(profile, get_args(Profile), "profile", "dynd.cbor.profile")
    tensor = array(value, type)
    text_of(tensor.type)  # raises if the type exceeds the limits of a reader
    _check_readable(tensor)
    if profile == "exchange":
        return cbor.to_exchange(from_tensor(tensor), as_limits(limits))
    if store is None:
        data = bytes(serialize(tensor))
        return cbor.to_dag(tensor.type, data, len(data))
    save_links(tensor, store)
    link, size = data_cid(tensor_pieces(tensor), store.__setitem__)
    return cbor.to_dag(tensor.type, link, size)


def from_cbor(
    data: Any,
    type: Type | str | None = None,
    *,
    profile: Profile = "exchange",
    store: Mapping[CID, Any] | None = None,
    limits: Limits = DEFAULT,
) -> Tensor:
    """Decodes a value from CBOR, which states its type; `type`, where given, must be the same."""
    check_choice(profile, get_args(Profile), "profile", "dynd.cbor.profile")
    wanted = _type_or_none(type)
    limits = as_limits(limits)
    raw = inputs.Memory(data).window.tobytes()
    content: bytes | memoryview
    if profile == "exchange":
        found, content = cbor.from_exchange(raw, limits)
    else:
        found, content = cbor.from_dag(raw, None if store is None else partial(fetch_block, store), limits)
    if wanted not in (None, found):
        raise FormatError(f"the CBOR has a value of type {found}, expected {wanted}", rule="dynd.cbor.type")
    value = decode_all(content, found, limits)
    return to_tensor(value if store is None else connect(value, {}, store))


def to_json(value: Any, type: Type | str | None = None) -> str:
    """A value as JSON text, in the form of the command line: bytes are {"$hex": …}, dates and decimals text."""
    return dumps(json_form.to_json(array(value, type)), allow_nan=False, ensure_ascii=False)


def from_json(text: str | bytes, type: Type | str | None = None) -> Tensor:
    """The value of a JSON text; the type decides how it is read, and is inferred where none is given."""
    if not isinstance(text, str | bytes | bytearray):
        raise InputError(f"JSON must be str or bytes, not {_kind(text)}", rule="dynd.json")
    return json_form.from_json(text, _type_or_none(type))


def to_table(value: Any, type: Type | str | None = None) -> Any:
    """An Arrow table: records have a column for each field, other values one. `array(table)` restores the value."""
    return provided("dynd.to_table")(value, _type_or_none(type))


def to_pandas(value: Any, type: Type | str | None = None) -> Any:
    """A pandas DataFrame of records, or a Series of other values, with Arrow's types."""
    return provided("dynd.to_pandas")(value, _type_or_none(type))


def to_polars(value: Any, type: Type | str | None = None) -> Any:
    """A polars DataFrame of records, or a Series of other values. To convert it back, pass the type to `array`."""
    return provided("dynd.to_polars")(value, _type_or_none(type))


def to_parquet(
    value: Any,
    path: str | os.PathLike[str],
    type: Type | str | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Writes a value as a Parquet file, atomically; also at a URL."""
    provided("dynd.to_parquet")(value, path, _type_or_none(type), storage_options)


def from_parquet(
    path: str | os.PathLike[str],
    columns: Iterable[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> Tensor:
    """Reads a Parquet file, or some of its columns, as one value; also at a URL."""
    tensor: Tensor = provided("dynd.from_parquet")(path, columns, storage_options)
    return tensor


def tolist(value: Any) -> Any:
    """Plain Python values."""
    return to_python(from_tensor(coerce(value)), to_tensor)


def numpy(value: Any) -> NDArray[Any]:
    """The NumPy array of a value of any type, where one exists."""
    tensor = coerce(value)
    try:
        check_type(plan_of(tensor.type))
    except UnsupportedError:
        check_value(tensor)  # the error of a damaged value comes first
        raise
    return to_numpy(from_tensor(tensor))


def array_node(value: Any) -> bytes:
    """The DAG-CBOR block of a value: its type, its size, and a link to its bytes."""
    tensor = coerce(value)
    data, nbytes = data_cid(tensor_pieces(tensor))
    return cbor.array_block(text_of(tensor.type), nbytes, data)


def cid(value: Any) -> str:
    """The identity of a value."""
    return str(block_cid(array_node(value), DAG_CBOR))
