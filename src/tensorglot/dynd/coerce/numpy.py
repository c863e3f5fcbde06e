"""NumPy arrays to types and columns, without a copy where the elements have the type already.

An axis of the array corresponds to a dimension of the type, fixed or not; a field of a
record to a field. Elements of another type are converted as plain Python values are
(`python_atoms`).
"""

from __future__ import annotations

import reprlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import has_masked, is_masked_array, ranks
from tensorglot.dynd.atoms import Atom
from tensorglot.dynd.python_atoms import atoms_to_array
from tensorglot.dynd.schema import Kind, Node, Plan
from tensorglot.dynd.temporal import counts_of_array, numpy_unit_type
from tensorglot.dynd.value import Column, Lists, Value
from tensorglot.errors import InputError, UnsupportedError
from tensorglot.model.dtypes import dtype_of
from tensorglot.model.types.algebra import Fixed, FixedBytes, FixedString, Option, Struct, Type, dense
from tensorglot.model.types.temporal import Date, Unit

__all__ = ["element_type", "from_numpy", "numpy_type"]


def numpy_type(array: NDArray[Any]) -> Type:
    """The type of an array: its shape, and the type of its elements."""
    type = element_type(array.dtype)
    if has_masked(array) and not isinstance(type, Option):
        type = Option(type)
    for size in reversed(array.shape):
        type = Fixed(size, type)
    return type


def element_type(dtype: np.dtype[Any]) -> Type:
    """The type of elements of a NumPy type. Times are options, since any of them may be NaT."""
    if dtype.names is not None and dtype.fields is not None:
        return Struct(tuple((name, element_type(dtype.fields[name][0])) for name in dtype.names))
    if dtype.subdtype is not None:
        type = element_type(dtype.subdtype[0])
        for size in reversed(dtype.shape):
            type = Fixed(size, type)
        return type
    if dtype.type is np.void:
        return FixedBytes(dtype.itemsize)
    if dtype.kind in "mM":
        return Option(numpy_unit_type(dtype))
    if dtype.kind in "SU" and dtype.itemsize:
        size = dtype.itemsize // (4 if dtype.kind == "U" else 1)
        return FixedString(size, "utf32" if dtype.kind == "U" else "ascii")
    return dense(dtype_of(dtype), ())


def from_numpy(array: NDArray[Any], plan: Plan) -> Value | None:
    """The value of an array, or None where the conversion must go through Python objects."""
    columns: list[Column] = [None] * len(plan.nodes)
    stack: list[tuple[Node, NDArray[Any]]] = [(plan.root, array[np.newaxis])]
    while stack:
        node, values = stack.pop()
        if node.kind is Kind.BLOCK:
            columns[node.id] = _block(node, node.block, values)
        elif node.kind is Kind.OPTION:
            columns[node.id], values = _option(node, values)
            stack.append((node.child, values))
        elif node.kind is Kind.LIST and values.ndim > 1 and values.dtype.kind != "O":
            count, size = values.shape[:2]
            edges = np.arange(count + 1) * size
            columns[node.id] = Lists(edges[:-1], edges[1:])
            stack.append((node.child, values.reshape((count * size, *values.shape[2:]))))
        elif node.kind is Kind.REPEAT and values.dtype.kind != "O" and not _are_chars(node, values):
            stack.append((node.child, _repeat(node, values)))
        elif node.kind is Kind.SEQUENCE and isinstance(node.type, Struct) and values.dtype.names is not None:
            names = node.names
            if tuple(names) != values.dtype.names or values.ndim != 1:
                raise InputError(
                    f"an array with fields {values.dtype.names} cannot become {node.type}", rule="dynd.value"
                )
            stack.extend((child, values[name]) for child, name in zip(node.children, names, strict=True))
        else:
            return None
    return Value(plan, tuple(columns))


def _are_chars(node: Node, values: NDArray[Any]) -> bool:
    """Whether texts stand where a type has dimensions: each is a sequence of `char`."""
    return values.dtype.kind in "SU" and values.ndim <= len(node.shape)


def _check_shape(node: Node, values: NDArray[Any], shape: tuple[int, ...]) -> None:
    if values.shape[1 : 1 + len(shape)] != shape:
        raise InputError(f"an array of shape {list(values.shape[1:])} cannot become {node.type}", rule="dynd.length")


def _repeat(node: Node, values: NDArray[Any]) -> NDArray[Any]:
    _check_shape(node, values, node.shape)
    rank = 1 + len(node.shape)
    if node.axis:
        values = values.transpose((*node.stored_axes(), *range(rank, values.ndim)))
    return values.reshape((len(values) * node.size, *values.shape[rank:]))


def _option(node: Node, values: NDArray[Any]) -> tuple[NDArray[np.int64] | None, NDArray[Any]]:
    """The position of each value, or None if missing values have a bit pattern; and the values."""
    kind = node.temporal if values.dtype.kind in "mM" and values.ndim == 1 else None
    if is_masked_array(values):
        if values.ndim != 1:
            raise UnsupportedError(
                "masked elements inside an option are not supported: use .tolist()", rule="dynd.numpy"
            )
        present = ~np.ma.getmaskarray(values)
        values = np.asarray(values)
        if kind is not None:
            present &= ~np.isnat(values)
        if _is_plain(node.child, values):
            return np.where(present, np.arange(len(values)), -1), values
        # Masked elements may have any bytes: they are neither converted nor checked.
        return ranks(present), values[present]
    if kind is not None:
        return None, counts_of_array(kind, values, missing=True)
    return np.arange(len(values)), values


def _is_plain(node: Node, values: NDArray[Any]) -> bool:
    """Whether the values are elements of a BLOCK already, and all bits of such elements are valid."""
    if node.kind is not Kind.BLOCK or node.block.tail or node.block.check != "any":
        return False
    return bool(values.dtype == node.block.base)


def _block(node: Node, atom: Atom, values: NDArray[Any]) -> NDArray[Any]:
    _check_shape(node, values, node.shape)
    if is_masked_array(values):
        if np.ma.getmaskarray(values).any():
            raise InputError(f"masked elements cannot become {node.type}: use ?T for missing values", rule="dynd.value")
        values = np.asarray(values)
    kind = values.dtype
    if (
        isinstance(atom.type, FixedBytes | FixedString)
        and kind.type in (np.void, np.bytes_, np.str_)
        and not kind.names
    ):
        return _texts(node, atom, values)
    if values.shape[1:] != node.shape or kind.names is not None:
        raise InputError(f"an array of {kind}{list(values.shape[1:])} cannot become {node.type}", rule="dynd.value")
    if kind == atom.base and not atom.tail:
        return values
    if kind.kind in "mM" and isinstance(atom.type, Date | Unit):
        return counts_of_array(atom.type, values)
    # Elements of another type are converted like Python numbers, with the same checks of range.
    flat = values.reshape(-1)
    return atoms_to_array(atom, flat.astype(kind.newbyteorder("="))).reshape((*values.shape, *atom.tail))


def _texts(node: Node, atom: Atom, values: NDArray[Any]) -> NDArray[Any]:
    kind = values.dtype.kind
    # NumPy's "U" is UTF-32. Its bytes are taken as they are: for `bytes[N]`, and for text of one-byte units.
    units = {"utf32": "U", "utf16": ""}.get(atom.type.encoding, "SV") if isinstance(atom.type, FixedString) else "SV"
    if kind not in units or values.dtype.itemsize != atom.nbytes:
        items = values.reshape(-1).tolist()
        if kind == "S" and isinstance(atom.type, FixedString):
            items = [_decode(atom.type, item) for item in items]
        return atoms_to_array(atom, items).reshape((*values.shape, *atom.tail))
    plain = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return plain.reshape((*values.shape, 1)).view(np.uint8).reshape((*values.shape, atom.nbytes))


def _decode(type: FixedString, item: bytes) -> str:
    try:
        return item.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{reprlib.repr(item)} is not valid UTF-8, and cannot become {type}", rule="dynd.utf8"
        ) from error
