"""Python's numbers, bytes and strings to arrays of values of a fixed size, and back.

A value that a type cannot hold is refused: an integer out of range, a float for an
integer, a finite float that would become infinite. A float is rounded to a narrower one.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import is_masked_array
from tensorglot.dynd.atoms import Atom, integers, refuse
from tensorglot.dynd.link_columns import LinkArray
from tensorglot.dynd.merkle import Link, links_at
from tensorglot.dynd.temporal import (
    count_of,
    counts_of_array,
    decimal_of_unscaled,
    is_integer,
    python_objects,
    unscaled_of,
)
from tensorglot.errors import InputError
from tensorglot.model.dtypes import dtype_of
from tensorglot.model.types.algebra import Complex, FixedBytes, FixedString, Merkle, Scalar, Type, Void
from tensorglot.model.types.temporal import Date, Decimal, Unit
from tensorglot.wire.cid import BLAKE3, CID

__all__ = ["array_to_atoms", "atoms_to_array"]

Items: TypeAlias = "Sequence[Any] | NDArray[Any]"

_CODECS = {"utf8": "utf-8", "ascii": "ascii", "utf16": "utf-16-le", "utf32": "utf-32-le"}


def atoms_to_array(atom: Atom, items: Items) -> NDArray[Any]:
    """An array of the atom's base with one row for each item."""
    type = atom.type
    if isinstance(type, Scalar) and type.dtype.numpy is not None:
        return _numbers(type, items)
    if isinstance(type, Complex) and type.part.dtype.numpy is not None:
        return _complexes(atom, type.part, _to_array(type, items))
    items = _widen(items) if isinstance(items, np.ndarray) else items
    if isinstance(type, Date | Unit):
        if isinstance(items, np.ndarray) and items.dtype.kind in "mM":
            return counts_of_array(type, items, missing=atom.optional)
        return np.fromiter((count_of(type, item) for item in items), atom.base, len(items))
    raw = b"".join([_raw(type, atom.nbytes, item) for item in items])
    array = np.frombuffer(raw, np.uint8).reshape(len(items), atom.nbytes)
    if isinstance(type, Merkle):
        return LinkArray.of(array, {item.cid: item for item in items if isinstance(item, Link)})
    return array


def _numbers(type: Scalar, items: Items) -> NDArray[Any]:
    row = type.dtype
    base = row.require_numpy().newbyteorder("<")
    if len(items) == 0:
        return np.empty(0, base)
    given = _to_array(type, items)
    if given.dtype == base:
        return given
    given = _widen(given)
    if row.name == "bool":
        return _convert(type, given, "b", base)
    if row.kind == "integer":
        # NumPy converts a list with values of both int64 and uint64 to float64, which loses digits.
        if given.dtype.kind not in "biuO" and not isinstance(items, np.ndarray):
            given = np.array(items, object)
        return _integers(type, given, base)
    return _narrow(type, _convert(type, given, "biufO", np.dtype(np.float64)), base)


def _complexes(atom: Atom, part: Scalar, given: NDArray[Any]) -> NDArray[Any]:
    if not atom.tail and given.dtype == atom.base:
        return given
    whole = _convert(atom.type, _widen(given), "biufcO", np.dtype(np.complex128))
    parts = _narrow(atom.type, whole.view(np.float64).reshape(-1, 2), part.dtype.require_numpy().newbyteorder("<"))
    return parts if atom.tail else parts.view(atom.base).reshape(-1)


def _to_array(type: Type, items: Items) -> NDArray[Any]:
    """The items as an array of the type that NumPy infers."""
    try:
        given = np.array(items)
    except (ValueError, TypeError, OverflowError, RuntimeError, UserWarning) as error:
        raise refuse(type, items) from error
    if given.ndim != 1:
        raise refuse(type, items[0])
    # NumPy takes its constant `masked` for NaN.
    if given.dtype.kind in "fc" and np.isnan(given).any() and any(map(is_masked_array, items)):
        raise refuse(type, items)
    return given


def _widen(given: NDArray[Any]) -> NDArray[Any]:
    """Numbers of ml_dtypes, most of which have the kind "V", as int64 or float64; other arrays as they are."""
    if given.dtype.kind != "V" or given.dtype.type is np.void:
        return given
    with np.errstate(invalid="ignore"):  # converting a signaling NaN raises the flag
        return given.astype(np.int64 if dtype_of(given.dtype).kind == "integer" else np.float64)


def _convert(type: Type, given: NDArray[Any], kinds: str, to: np.dtype[Any]) -> NDArray[Any]:
    if given.dtype.kind not in kinds or (given.dtype.kind == "O" and not all(isinstance(i, int) for i in given)):
        raise refuse(type, given.tolist())
    try:
        with np.errstate(invalid="ignore"):  # converting a signaling NaN raises the flag
            return given.astype(to)
    except (OverflowError, TypeError, ValueError) as error:
        raise refuse(type, given.tolist()) from error


def _integers(type: Scalar, given: NDArray[Any], base: np.dtype[Any]) -> NDArray[Any]:
    if given.dtype.kind not in "biuO":
        raise refuse(type, given[0])
    for item in given.tolist() if given.dtype.kind == "O" else ():
        if not (isinstance(item, bool | np.bool_) or is_integer(item)):
            raise refuse(type, item)
    _check_range(type, int(given.min()))
    _check_range(type, int(given.max()))
    return given.astype(base)


def _check_range(type: Scalar, number: int) -> None:
    if number not in integers(type.dtype):
        raise InputError(f"{number} is out of range for {type}", rule="dynd.range")


def _narrow(type: Type, wide: NDArray[Any], base: np.dtype[Any]) -> NDArray[Any]:
    """Floats rounded to a narrower type. A finite value that would become infinite or NaN is refused."""
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = wide.astype(base)
        back = narrow.astype(np.float64)
    lost = (np.isfinite(wide) != np.isfinite(back)) | (np.isnan(wide) != np.isnan(back))
    if base.itemsize == 1:  # some conversions to 8 bits saturate instead of overflowing
        most = float(ml_dtypes.finfo(base).max)  # type: ignore[no-untyped-call]
        lost |= np.isfinite(wide) & (np.abs(wide) > most)
    if lost.any():
        raise InputError(f"{wide[lost][0]} is out of range for {type}", rule="dynd.range")
    return narrow


def _raw(type: Type, nbytes: int, item: Any) -> bytes:
    """The bytes of a value that NumPy has no type for."""
    if isinstance(type, Void) and item is None:
        return b""
    if isinstance(type, Merkle):
        return _link(type, item)
    if isinstance(type, Decimal):
        return unscaled_of(type, item).to_bytes(nbytes, "little", signed=True)
    if isinstance(type, FixedString) and isinstance(item, str):
        return _fixed_text(type, item)
    if isinstance(type, Scalar) and type.dtype.name != "float128" and (is_integer(item) or isinstance(item, np.bool_)):
        _check_range(type, int(item))
        return int(item).to_bytes(nbytes, "little", signed=type.dtype.signed)
    carried = isinstance(type, FixedBytes | Complex) or (isinstance(type, Scalar) and type.dtype.name == "float128")
    if carried and isinstance(item, bytes | bytearray | memoryview | np.void):
        raw = item.tobytes() if isinstance(item, np.void) else bytes(item)
        if len(raw) == nbytes:
            return raw
    raise refuse(type, item)


def _link(type: Merkle, item: Any) -> bytes:
    if isinstance(item, Link):
        if item.type != type.element:
            raise InputError(f"{type} cannot hold a link to {item.type}", rule="dynd.value")
        item = item.cid
    elif isinstance(item, str):
        item = CID.parse(item)
    if not isinstance(item, CID) or item.hash != BLAKE3:
        raise refuse(type, item)
    return bytes(item)


def _fixed_text(type: FixedString, item: str) -> bytes:
    if "\0" in item:
        raise InputError("a fixed_string cannot contain NUL, which ends it", rule="dynd.fixed_string.nul")
    try:
        raw = item.encode(_CODECS[type.encoding])
    except UnicodeEncodeError as error:
        raise InputError(f"{reprlib.repr(item)} cannot be encoded as {type.encoding}", rule="dynd.utf8") from error
    if len(raw) > type.nbytes:
        raise InputError(f"{reprlib.repr(item)} does not fit in {type}", rule="dynd.length")
    return raw.ljust(type.nbytes, b"\0")


def array_to_atoms(atom: Atom, array: NDArray[Any]) -> Any:
    """A list of Python objects, one for each row of an array."""
    type = atom.type
    if isinstance(type, Scalar) and type.dtype.numpy is not None:
        return _widen(array).tolist()
    if isinstance(type, Complex) and not atom.tail:
        return array.tolist()
    if isinstance(type, Complex) and type.part.dtype.numpy is not None:
        return [complex(*pair) for pair in array.tolist()]
    if isinstance(type, Date | Unit):
        return python_objects(type, array.tolist())
    if isinstance(type, Void):
        return [None] * len(array)
    if isinstance(type, Merkle):
        return links_at(type.element, array)
    raw = np.ascontiguousarray(array).tobytes()
    read = _reader(type)
    return [read(raw[i * atom.nbytes : (i + 1) * atom.nbytes]) for i in range(len(array))]


def _reader(type: Type) -> Callable[[bytes], Any]:
    if isinstance(type, FixedString):
        codec = _CODECS[type.encoding]
        return lambda raw: raw.decode(codec).rstrip("\0")
    if isinstance(type, Decimal):
        return lambda raw: decimal_of_unscaled(type, int.from_bytes(raw, "little", signed=True))
    if isinstance(type, Scalar) and type.dtype.name != "float128":
        signed = type.dtype.signed
        return lambda raw: int.from_bytes(raw, "little", signed=signed)
    return bytes
