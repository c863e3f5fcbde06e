"""A tensor is a type and named flat parts, which are read on demand.

A dense tensor has one part, `data`. Other layouts (sparse, quantized, nested) have several
parts, which upper layers interpret: these provide the methods that export a tensor (`cid`,
`awkward`, `dequantize`, …) as extension points.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import is_masked_array, overlaps_itself
from tensorglot.errors import (
    FormatError,
    InputError,
    OutOfRange,
    TensorglotError,
    TruncatedError,
    UnsupportedError,
    escape,
    human_nbytes,
)
from tensorglot.kernels.buffers import Exporter
from tensorglot.model.dtypes import DType, pack, unpack
from tensorglot.model.payload import (
    PIECE_NBYTES,
    Chunk,
    Composed,
    Encoded,
    Memory,
    Payload,
    Span,
    as_bytes,
    read_pieces,
)
from tensorglot.model.slicing import (
    ALL,
    Rows,
    Selection,
    c_strides,
    leading_rows,
    read_block,
    read_in_place,
    read_run,
    read_strided,
    select,
)
from tensorglot.model.slicing import Index as BasicIndex
from tensorglot.model.strided import Strided
from tensorglot.providers import provided
from tensorglot.tuples import NamedTuple

if TYPE_CHECKING:
    from tensorglot.model.types.base import Type

__all__ = ["NESTED", "NUMPY_RANK", "TYPE_ATTRIBUTE", "Part", "Tensor"]

NESTED = "nested"
"""The layout of ragged and nested values: the parts are the columns of the type."""
TYPE_ATTRIBUTE = "dynd"
"""The attribute that has the type of a nested tensor, in containers that store attributes but no types."""

STRIP_NBYTES = 2 << 20
"""Size of the strips in which values are copied to their places: a strip stays in the processor's cache."""
NUMPY_RANK = 64
"""Dimensions of a NumPy array; a file may have more."""
_BUFFER_FORMAT = 4
"""PyBUF_FORMAT: the consumer of a buffer asks for the type of its elements."""


class Part(NamedTuple):
    """One flat block of one element type."""

    dtype: DType | None
    """None for an unknown element type."""
    shape: tuple[int, ...]
    payload: Payload
    big_endian: bool = False
    checksum: str | None = None
    checksum_decoded: bool = False
    """The checksum covers the decoded bytes, not the stored ones."""
    unknown_dtype: str | None = None
    """The file's name for an unknown element type."""

    @property
    def dtype_name(self) -> str:
        """The name of the element type, or the file's name if it is unknown."""
        return self.unknown_dtype or "?" if self.dtype is None else self.dtype.name

    @property
    def encoding(self) -> str:
        return self.payload.codec.name if isinstance(self.payload, Encoded) else "raw"

    @property
    def nbytes(self) -> int:
        return self.payload.nbytes

    def array(self, tensor: str | None = None, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """The values, in new memory unless the source is mapped or shared."""
        dtype = self.numpy_dtype(tensor)
        if out is not None:
            return self._array_into(out, dtype, tensor)
        if self.dtype is not None and self.dtype.packed:
            raw = np.frombuffer(self.payload.read(0, self.payload.nbytes), np.uint8)
            check_spare_bits(raw[-1:], self.shape, self.dtype, tensor, self.offset)
            return unpack(raw, math.prod(self.shape), self.dtype).reshape(self.shape)
        if isinstance(self.payload, Memory):
            return self.payload.array if self.payload.array.dtype == dtype else self.payload.array.astype(dtype)
        shared = self.payload.view()
        values: NDArray[Any]
        if isinstance(self.payload, Encoded) and isinstance(self.payload.codec, Strided):
            values = self.payload.codec.array(self.payload, self._stored(dtype))
        else:
            buffer = self.payload.read(0, self.payload.nbytes) if shared is None else shared
            values = np.ndarray(self.shape, self._stored(dtype), buffer)
        if self.big_endian or (shared is None and not values.flags.aligned):
            values = values.astype(dtype)
        check_bool(values, tensor, self.offset)
        return values

    def _array_into(self, given: NDArray[Any], dtype: np.dtype[Any], tensor: str | None) -> NDArray[Any]:
        out = plain_array(given, tensor)
        check_out(out, self.shape, dtype, tensor)
        direct = out.flags.c_contiguous and not self.big_endian and out.itemsize * out.size == self.payload.nbytes
        if direct and not isinstance(self.payload, Memory):
            self.payload.read_into(0, as_bytes(out))
            check_bool(out, tensor, self.offset)
        else:
            out[...] = self.array(tensor)
        return given

    def select(self, index: BasicIndex, tensor: str | None = None) -> Any:
        """What NumPy's `array[index]` would return, a scalar included. Reads only the bytes that it needs."""
        dtype = self.numpy_dtype(tensor)
        rows = leading_rows(index, self.shape) if self._is_raw() else None
        if rows is not None:
            return self._read_rows(rows, dtype, tensor)
        from tensorglot.model.advanced_indexing import pick

        picks = pick(index, self.shape)
        if picks is not None:
            if isinstance(self.payload, Memory) or (self.dtype is not None and self.dtype.packed):
                return self.array(tensor)[picks.index]
            read = partial(self.select, tensor=tensor)
            return picks.gather(read, self.shape, dtype.itemsize, decoding=isinstance(self.payload, Encoded))
        selection = select(index, self.shape)
        if isinstance(self.payload, Memory) or (self.dtype is not None and self.dtype.packed):
            return self.array(tensor)[index]
        stored = self._stored(dtype)
        values: NDArray[Any]
        if isinstance(self.payload, Encoded) and isinstance(self.payload.codec, Composed):
            values = np.empty([axis.count for axis in selection.axes], stored)
            self.payload.codec.fill(self.payload, selection.axes, values)
        else:
            values = self._read_selection(selection, stored)
        if selection.finish != (ALL,) * len(self.shape):
            values = values[(*selection.finish, ...)]
        if self.big_endian:
            values = values.astype(dtype)
        check_bool(values, tensor, self.offset)
        return values[()] if selection.scalar else values

    def select_into(self, index: Sequence[slice], out: NDArray[Any], tensor: str | None = None) -> None:
        """Reads what `select` would return into `out`, of the same shape and type and with any strides.

        Slices have positive steps. Values that cannot be read directly to their places are read
        in strips along the first axis, and copied.
        """
        whole = out.shape == self.shape
        if isinstance(self.payload, Encoded) and isinstance(self.payload.codec, Composed):
            self.payload.codec.fill(self.payload, select(tuple(index), self.shape).axes, out)
            check_bool(out, tensor, self.offset)
        elif not out.size:
            return
        elif whole and (out.flags.c_contiguous or self.nbytes <= PIECE_NBYTES or not self.shape):
            self.array(tensor, out)
        elif self._is_run(index, out):
            self.payload.read_into(index[0].start * self.nbytes // self.shape[0], as_bytes(out))
            check_bool(out, tensor, self.offset)
        else:
            if whole:
                self.payload.verify()
            if self._read_in_place(index, out, tensor):
                return
            rows = max(1, STRIP_NBYTES * len(out) // out.nbytes)
            for start in range(0, len(out), rows):
                taken = range(*index[0].indices(self.shape[0]))[start : start + rows]
                strip = (slice(taken.start, taken[-1] + 1, taken.step), *index[1:])
                out[start : start + rows] = self.select(strip, tensor)

    def _read_in_place(self, index: Sequence[slice], out: NDArray[Any], tensor: str | None) -> bool:
        """Reads directly into `out` if that is faster; returns whether it did."""
        payload = self.payload
        if not self._is_raw() or not isinstance(payload, Span) or payload.view(whole=False) is not None:
            return False
        start, _, steps = select(tuple(index), self.shape).strided(c_strides(self.shape, out.itemsize))
        done = read_in_place(payload, start, steps, out)
        if done:
            check_bool(out, tensor, self.offset)
        return done

    def _is_run(self, index: Sequence[slice], out: NDArray[Any]) -> bool:
        """Whether the index selects adjacent slices along the first axis, contiguous in the file and in `out`."""
        stored = isinstance(self.payload, Memory) or self.encoding == "strided" or self.big_endian
        packed = self.dtype is None or self.dtype.packed
        return not (stored or packed) and (
            out.flags.c_contiguous and out.shape[1:] == self.shape[1:] and (index[0].step or 1) == 1
        )

    def _is_raw(self) -> bool:
        """Whether the bytes of the source are the elements in C order, as NumPy has them in memory."""
        known = self.dtype is not None and not self.dtype.packed
        return known and not self.big_endian and isinstance(self.payload, Span)

    def _read_rows(self, rows: Rows, dtype: np.dtype[Any], tensor: str | None) -> NDArray[Any]:
        stored, payload, nbytes = self._stored(dtype), self.payload, self.payload.nbytes
        begin = rows.start * nbytes // max(1, self.shape[0])
        shared = payload.view(whole=math.prod(rows.shape) * dtype.itemsize == nbytes)
        values: NDArray[Any]
        if shared is None:
            values = read_run(payload, begin, rows.shape, stored)
        else:
            values = np.ndarray(rows.shape, stored, shared, begin)
        if dtype.kind == "b":
            check_bool(values, tensor, self.offset)
        return values

    def _read_selection(self, selection: Selection, stored: np.dtype[Any]) -> NDArray[Any]:
        payload, read = self.payload, read_block
        if isinstance(payload, Encoded) and isinstance(payload.codec, Strided):
            strides: Sequence[int] = payload.codec.strides
            payload, read = payload.codec.below(payload), read_strided
        else:
            strides = c_strides(self.shape, stored.itemsize)
        begin, counts, steps = selection.strided(strides)
        shared = payload.view(whole=counts == self.shape)
        if shared is None or 0 in counts:
            return read(payload, begin, counts, steps, stored)
        return np.ndarray(counts, stored, shared, begin, steps)

    def swapped_chunks(self) -> Iterator[Chunk]:
        """The bytes of a big-endian part, converted to little-endian."""
        dtype = self._stored(self.numpy_dtype())
        self.payload.verify()
        for piece in read_pieces(self.payload):
            yield as_bytes(np.frombuffer(piece, dtype).byteswap())

    @property
    def offset(self) -> int | None:
        """Where the stored bytes begin in their source."""
        return None if isinstance(self.payload, Memory) else self.payload.begin

    def numpy_dtype(self, tensor: str | None = None) -> np.dtype[Any]:
        """NumPy's type of the elements; UnsupportedError if NumPy cannot represent the part."""
        if len(self.shape) > NUMPY_RANK:
            raise UnsupportedError(
                f"{len(self.shape)} dimensions; NumPy supports {NUMPY_RANK}", rule="tensor.rank", tensor=tensor
            )
        if self.dtype is None:
            raise UnsupportedError(
                f"unknown element type '{escape(self.unknown_dtype or '')}'",
                rule="dtype.known",
                tensor=tensor,
            )
        dtype = self.dtype.require_numpy(tensor)
        if 0 in self.shape and math.prod(size for size in self.shape if size) * dtype.itemsize >= 1 << 63:
            raise UnsupportedError(
                f"NumPy does not support shape {list(self.shape)}: its other dimensions exceed 2^63 bytes",
                rule="tensor.shape",
                tensor=tensor,
            )
        return dtype

    def _stored(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The dtype in the byte order of the stored bytes."""
        if self.big_endian == (sys.byteorder == "big"):
            return dtype
        return dtype.newbyteorder(">" if self.big_endian else "<")


def check_bool(values: NDArray[Any], tensor: str | None, offset: int | None) -> None:
    """Refuses bools of a file whose bytes are neither 0 nor 1."""
    if has_bad_bool(values):
        raise FormatError("a bool byte is neither 0 nor 1", rule="values.bool", offset=offset, tensor=tensor)


def has_bad_bool(values: NDArray[Any]) -> bool:
    """Whether the byte of a bool is neither 0 nor 1. NumPy would treat it as equal to neither True nor False."""
    return values.dtype.kind == "b" and values.size > 0 and bool(values.view(np.uint8).max() > 1)


def check_spare_bits(
    last: NDArray[np.uint8], shape: tuple[int, ...], dtype: DType, tensor: str | None, offset: int | None
) -> None:
    """Checks that the unused bits after the last element of a packed type are zero."""
    used = math.prod(shape) * dtype.bits % 8
    if used and last.size and int(last[-1]) >> used:
        raise FormatError(
            "the unused bits after the last element must be zero", rule="values.packed", offset=offset, tensor=tensor
        )


def plain_array(out: object, tensor: str | None) -> NDArray[Any]:
    """An array of the caller to read into, as a plain one: a matrix, for example, would keep two dimensions.

    A masked array is refused, since its mask would hide values that were read.
    """
    if not isinstance(out, np.ndarray) or is_masked_array(out):
        raise InputError(f"out must be a NumPy array, not {type(out).__name__}", rule="out.array", tensor=tensor)
    return out if type(out) is np.ndarray else out.view(np.ndarray)


def check_out(out: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any], tensor: str | None) -> None:
    """Checks that a plain array is writable, of the given shape and type, and has memory for each element."""
    if not out.flags.writeable:
        raise InputError("out is read-only", rule="out.writable", tensor=tensor)
    if out.shape != shape or out.dtype != dtype:
        raise InputError(
            f"out must be {dtype}{list(shape)}, not {out.dtype}{list(out.shape)}", rule="out.shape", tensor=tensor
        )
    if not out.flags.forc and overlaps_itself(shape, out.strides, out.itemsize):
        raise InputError(
            "elements of the array in out overlap in memory, as those of a broadcast view do: pass a copy",
            rule="out.overlap",
            tensor=tensor,
        )


# Never modified. Not frozen: setting each field by a call would be a fifth of the instructions of looking up a tensor.
@dataclass(slots=True, eq=False, repr=False)
class Tensor(Exporter):
    """A named tensor of an archive or in memory.

    Values are read when they are asked for: by `numpy()`, by an index, or by a function of
    NumPy, which takes a tensor like an array. `==` compares objects; `np.array_equal(a, b)`
    compares values, and `a.cid() == b.cid()` types and values.
    """

    name: str
    parts: Mapping[str, Part]
    layout: str = "dense"
    declared: Type | None = None
    """The type of a tensor that is not dense."""
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_array(cls, name: str, array: NDArray[Any], dtype: DType) -> Tensor:
        """A dense tensor in memory."""
        at_rest = pack(array, dtype) if dtype.packed else array
        return cls(name, {"data": Part(dtype, array.shape, Memory(at_rest))})

    @classmethod
    def of_parts(
        cls,
        name: str,
        layout: str,
        shape: tuple[int, ...],
        parts: Mapping[str, NDArray[Any]],
        attributes: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """A sparse or quantized tensor in memory, from the parts that its layout requires."""
        from tensorglot.model.layouts import assemble

        return assemble(name, layout, shape, parts, attributes or {})

    def verify(self) -> None:
        """Compares the checksums of all parts, unless that was done before or is turned off.

        Reading a whole tensor does the same. A part with an unsupported encoding is skipped.
        """
        for part in self.parts.values():
            check = None if isinstance(part.payload, Memory) else part.payload.check
            if check is not None:
                with nullcontext() if check.strict else suppress(UnsupportedError):
                    part.payload.verify()

    @property
    def type(self) -> Type:
        """The DyND type of the value; `bytes[N]` if the element type is unknown."""
        if self.declared is not None:
            return self.declared
        # Imported late: 23 classes, 8 ms in a new process, and most programs that load or save never ask for a type.
        from tensorglot.model.types.algebra import FixedBytes, dense

        part = self.parts["data"]
        return FixedBytes(part.nbytes) if part.dtype is None else dense(part.dtype, part.shape)

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """NumPy's type of the elements, ml_dtypes included; None if the tensor is not dense or NumPy has no type."""
        part = self.parts.get("data") if self.layout == "dense" else None
        return part.dtype.numpy if part is not None and part.dtype is not None else None

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the leading fixed dimensions; all dimensions of a dense tensor."""
        if self.declared is None:
            return self.parts["data"].shape
        from tensorglot.model.types.algebra import leading

        return leading(self.declared)[0]

    @property
    def ndim(self) -> int:
        """The number of dimensions in `shape`."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements of `shape`."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Decoded bytes of all parts."""
        return sum(part.nbytes for part in self.parts.values())

    @property
    def stored_nbytes(self) -> int:
        """Encoded bytes of all parts."""
        return sum(
            part.payload.end - part.payload.begin if isinstance(part.payload, Encoded) else part.nbytes
            for part in self.parts.values()
        )

    @property
    def encoding(self) -> str:
        """How the first part is stored: `raw`, or the name of its compression or other encoding."""
        return next(iter(self.parts.values())).encoding

    @property
    def checksum(self) -> str | None:
        """The checksum of the first part, as `algorithm:digest`; None if it has none."""
        return next(iter(self.parts.values())).checksum

    @property
    def offset(self) -> int | None:
        """Where the first part begins in its source; None in memory."""
        return next(iter(self.parts.values())).offset

    def numpy(self, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """The array: in new memory, or a view if the archive was opened with backend="mmap"."""
        if self.layout == NESTED:
            return self._nested(out)
        try:
            return self._dense().array(self.name, out)
        except TruncatedError as error:
            error.tensor = self.name
            raise

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name: str) -> Any:
            hint = f": use .numpy().{name}" if hasattr(np.ndarray, name) else ""
            if name in {"cpu", "cuda", "to"}:
                hint = ": .torch(device) returns a tensor of PyTorch"
            raise AttributeError(f"'Tensor' object has no attribute '{name}'{hint}", name=name, obj=self)

    def __getitem__(self, index: BasicIndex) -> Any:
        """`array[index]` as in NumPy, reading only the bytes that it needs.

        The index is basic, or has a list, an array or a mask along one axis. A nested value can
        be indexed by rows, slices and fields (`t["name"]`); the result is a tensor or an element.
        """
        if self.layout == NESTED:
            return self._export("select", index=index)
        try:
            return self._dense().select(index, self.name)
        except (OutOfRange, TruncatedError) as error:
            error.tensor = self.name
            raise

    def _nested(self, out: NDArray[Any] | None) -> NDArray[Any]:
        values: NDArray[Any] = self._export("numpy")
        if out is None:
            return values
        plain = plain_array(out, self.name)
        check_out(plain, values.shape, values.dtype, self.name)
        plain[...] = values
        return out

    def _dense(self) -> Part:
        if self.layout != "dense":
            raise UnsupportedError(
                f"a tensor of layout {escape(self.layout)} is not a dense array: use .parts, .scipy() or .dequantize()",
                rule="tensor.dense",
                tensor=self.name,
            )
        return self.parts["data"]

    def __len__(self) -> int:
        if self.layout == NESTED:
            return self._export("length")  # type: ignore[no-any-return]
        if not self.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if self.layout == NESTED:
            return self._export("rows")  # type: ignore[no-any-return]
        return (self[i] for i in range(len(self)))

    def _number(self) -> NDArray[Any]:
        """The value of a tensor without dimensions, for conversions to a number.

        Without this check, `int(t)` would parse the buffer of a larger tensor as text.
        """
        if self.shape or self.layout != "dense":
            raise TypeError(f"only a dense tensor without dimensions can become a number, not {self!r}")
        return self.numpy()

    def __float__(self) -> float:
        return float(self._number())

    def __int__(self) -> int:
        return int(self._number())

    def __complex__(self) -> complex:
        return complex(self._number())

    def __index__(self) -> int:
        return operator.index(self._number().item())

    def __bool__(self) -> bool:
        return len(self) > 0 if self.shape or self.layout == NESTED else bool(self._number())

    def torch(self, device: Any = None) -> Any:
        """A PyTorch tensor, on the CPU or on a device."""
        return self._export("torch", device=device)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.numpy(), dtype, copy=copy)

    def _buffer(self, flags: int) -> memoryview:
        """The elements as `numpy` returns them, for `memoryview(t)`. On Python 3.11 this needs compiled kernels.

        An element type without a buffer format (bfloat16) is exported as bytes, but only to a
        consumer that requests no format, such as `file.write(t)`.
        """
        try:
            array = self.numpy()
        except UnsupportedError as error:
            raise BufferError(str(error)) from error
        if array.dtype.isnative:
            array = array.view(array.dtype.newbyteorder("="))  # memoryview cannot index elements of format "<f"
        try:
            view = array.data
            if array.dtype.names is not None:
                np.asarray(view)  # raises if NumPy cannot read the format that it has written, as for nested records
        except (ValueError, RuntimeError):
            if flags & _BUFFER_FORMAT or not array.flags.c_contiguous:
                raise BufferError(f"{array.dtype.name} has no buffer format: use numpy()") from None
            return as_bytes(array)
        else:
            return view

    def __dlpack__(self, **options: Any) -> Any:
        return self._export("dlpack", **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def serialize(self) -> memoryview:
        """The canonical bytes of the value."""
        return self._export("serialize")  # type: ignore[no-any-return]

    def cid(self) -> str:
        """The CID of the value, the same in every container."""
        return self._export("cid")  # type: ignore[no-any-return]

    def tolist(self) -> Any:
        """Plain Python values."""
        return self._export("tolist")

    def awkward(self) -> Any:
        """An awkward array."""
        return self._export("awkward")

    def arrow(self) -> Any:
        """An Arrow array."""
        return self._export("arrow")

    def scipy(self) -> Any:
        """A scipy.sparse array of a sparse tensor."""
        return self._export("scipy")

    def dequantize(self) -> NDArray[Any]:
        """The real values of a quantized tensor."""
        return self._export("dequantize")  # type: ignore[no-any-return]

    def _repr_html_(self) -> str:
        """The tensor in a notebook."""
        return provided("report.html")(self)  # type: ignore[no-any-return]

    def _export(self, verb: str, **options: Any) -> Any:
        try:
            return provided(f"tensor.{verb}")(self, **options)
        except TensorglotError as error:
            error.tensor = error.tensor or self.name or None
            raise

    def __repr__(self) -> str:
        part = self.parts.get("data") if self.layout == "dense" else None
        if part is not None:
            what = f"{escape(part.dtype_name)}{list(part.shape)}"
        else:
            what = f"{escape(self.layout)} {self.type}"
        name = f"{escape(self.name, longest=60)}: " if self.name else ""
        return f"Tensor({name}{what}, {human_nbytes(self.nbytes)})"
