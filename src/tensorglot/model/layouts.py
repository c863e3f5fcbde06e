"""Layouts: the parts of sparse and quantized tensors, and the rules that they obey.

The layouts and their names are zTensor 2's profiles; other containers use them, too.
`arrange` checks what can be checked without reading a value (the names, types and sizes of
the parts) and returns the tensor's type and the parts' shapes. `check_values` reads the
index parts of a sparse tensor and checks that they are in bounds and in order. A tensor of
an unknown layout is kept, with its parts as flat blocks of elements or GGML's blocks.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import distinct
from tensorglot.errors import FormatError, InputError, escape
from tensorglot.model.dtypes import BY_NAME, DType, dtype_of
from tensorglot.model.index import AnyLayout, BlockLayout, Index, Layout, RowLayout
from tensorglot.model.tensor import NESTED, TYPE_ATTRIBUTE, Tensor
from tensorglot.model.types.algebra import Type
from tensorglot.model.types.text import parse_canonical
from tensorglot.tuples import NamedTuple

__all__ = [
    "COO",
    "CSR",
    "DESCRIPTION",
    "LAYOUTS",
    "MX",
    "QUANT_GROUP",
    "SPARSE",
    "Arrangement",
    "Piece",
    "arrange",
    "assemble",
    "check_values",
    "describe_codes",
    "replace_attributes",
    "user_attributes",
]

CSR = "zt.sparse_csr/1"
COO = "zt.sparse_coo/1"
QUANT_GROUP = "zt.quant_group/1"
MX = "zt.mx/1"
SPARSE = (CSR, COO)
GGML = "gguf."
"""Prefix of the layouts of GGML's block types; only the reader of GGUF knows the contents of a block."""

DESCRIPTION: dict[str, tuple[str, ...]] = {
    QUANT_GROUP: ("axis", "bits", "group_size", "packing", "scale_form", "zero_point"),
    MX: ("axis", "block_size", "scale_form"),
    NESTED: (TYPE_ATTRIBUTE,),
}
"""For each layout, the attributes that describe its parts; all other attributes are the user's."""

Shape = tuple[int, ...]


class Piece(NamedTuple):
    """A part before it is read: its element type and size."""

    dtype: DType | None
    nbytes: int


class Arrangement(NamedTuple):
    """The layout of a tensor of several parts, with its type, and the shape of each part."""

    layout: AnyLayout
    shapes: Mapping[str, Shape]


Found = tuple[DType | Type | None, Mapping[str, Shape]]
"""The type of a tensor, or the element type of a block, None if that is unknown; and the shape of each part."""


def arrange(
    layout: str,
    shape: Shape,
    pieces: Mapping[str, Piece],
    attributes: Mapping[str, Any],
    tensor: str,
    offset: int | None = None,
    type: RowLayout | None = None,
) -> Arrangement:
    """Checks the parts of a tensor against the rules of its layout, without reading them. `type` is the type of a
    nested tensor, if that has been read."""
    rules = LAYOUTS.get(layout) or (_ggml_blocks if layout.startswith(GGML) else _unknown)
    try:
        if type is not None:
            return Arrangement(type, _flat(pieces))
        found, shapes = rules(shape, pieces, attributes)
    except FormatError as error:
        raise FormatError(f"{escape(layout)}: {error.message}", rule=error.rule, tensor=tensor, offset=offset) from None
    return Arrangement(Layout(layout, found) if isinstance(found, Type) else BlockLayout(layout, found, shape), shapes)


def user_attributes(index: Index, tensor: int) -> list[str]:
    """The attributes of a tensor that do not describe its parts."""
    layout = index.layouts.get(tensor)
    description = () if layout is None else DESCRIPTION.get(layout.name, ())
    return [key for key in index.attributes.get(tensor, ()) if key not in description]


def replace_attributes(layout: str, own: Mapping[str, Any], new: Mapping[str, Any], tensor: str) -> dict[str, Any]:
    """Replaces the user's attributes of a tensor, and keeps those that describe its parts."""
    kept = {key: own[key] for key in DESCRIPTION.get(layout, ()) if key in own}
    for key in kept.keys() & new.keys():
        if new[key] != kept[key]:
            message = f"the attribute '{key}' describes the layout {escape(layout)} and cannot be replaced"
            raise InputError(message, rule="save.attributes", tensor=tensor)
    return {**kept, **new}


def assemble(
    name: str, layout: str, shape: Shape, arrays: Mapping[str, NDArray[Any]], attributes: Mapping[str, Any]
) -> Tensor:
    """A tensor in memory from the parts of its layout. Arrays may have any shape with the right number of elements."""
    if (
        not isinstance(layout, str)
        or not isinstance(arrays, Mapping)
        or not all(isinstance(part, str) for part in arrays)
    ):
        raise InputError(
            f"expected the name of a layout and a mapping of parts by name, not {type(layout).__name__} and "
            f"{type(arrays).__name__}",
            rule="layout.parts",
            tensor=name,
        )
    dims = tuple(operator.index(size) for size in shape)
    given = {part: np.asarray(array) for part, array in arrays.items()}
    dtypes = {part: dtype_of(array.dtype, name) for part, array in given.items()}
    pieces = {part: Piece(dtypes[part], dtypes[part].nbytes(array.size)) for part, array in given.items()}
    try:
        arranged = arrange(layout, dims, pieces, attributes, name)
    except FormatError as error:
        raise InputError(error.message, rule=error.rule, tensor=name) from None
    parts = {
        part: Tensor.of_array(name, array.reshape(arranged.shapes[part]), dtypes[part]).parts["data"]
        for part, array in given.items()
    }
    return Tensor(name, parts, layout, arranged.layout.type, attributes)


def _require(condition: bool, rule: str, message: str) -> None:
    if not condition:
        raise FormatError(message, rule=f"layout.{rule}")


def _require_one_of(found: object, choices: Iterable[str], rule: str, what: str) -> None:
    known = (*choices,)
    _require(found in known, rule, f"{what} must be {'one of ' if len(known) > 1 else ''}{', '.join(known)}")


def _require_dtype(piece: Piece, names: Iterable[str], part: str) -> None:
    _require_one_of(None if piece.dtype is None else piece.dtype.name, names, part, part)


def _require_multiple(shape: Shape, axis: int, size: int, rule: str) -> None:
    fits = size and shape[axis] % size == 0
    _require(bool(fits), rule, f"dimension {axis} of size {shape[axis]} is not a multiple of {rule} {size}")


def _require_parts(pieces: Mapping[str, Piece], *names: str) -> None:
    found = ", ".join(map(escape, pieces)) or "none"
    _require(set(pieces) == set(names), "parts", f"expected the parts {', '.join(names)}, found {found}")


def _index_dtype(piece: Piece, name: str) -> DType:
    if piece.dtype is None or piece.dtype.numpy is None or piece.dtype.numpy.kind not in "iu":
        raise FormatError(f"{name} must be integers", rule="layout.index")
    return piece.dtype


def _elements(piece: Piece, name: str) -> int:
    """The number of elements of a part; the number of bytes if the element type is unknown."""
    if piece.dtype is None:
        return piece.nbytes
    count, rest = divmod(piece.nbytes * 8, piece.dtype.bits)
    _require(rest == 0 or piece.dtype.packed, "size", f"{name} is not a whole number of elements")
    return count


def _flat(pieces: Mapping[str, Piece]) -> dict[str, Shape]:
    return {name: (_elements(piece, name),) for name, piece in pieces.items()}


def _require_count(piece: Piece, count: int, name: str) -> None:
    if piece.dtype is not None:
        _require(
            piece.nbytes == piece.dtype.nbytes(count),
            "size",
            f"{name} has {piece.nbytes} bytes, {count} elements of {piece.dtype.name} need {piece.dtype.nbytes(count)}",
        )


def _csr(shape: Shape, pieces: Mapping[str, Piece], attributes: Mapping[str, Any]) -> Found:
    _require(len(shape) == 2, "rank", f"expected 2 dimensions, found {len(shape)}")
    _require_parts(pieces, "values", "indices", "indptr")
    dtype = _index_dtype(pieces["indices"], "indices")
    _require(pieces["indptr"].dtype is dtype, "index", "indptr and indices must have the same type")
    nnz = _elements(pieces["indices"], "indices")
    _require_count(pieces["indptr"], shape[0] + 1, "indptr")
    _require_count(pieces["values"], nnz, "values")
    shapes = {"values": (nnz,), "indices": (nnz,), "indptr": (shape[0] + 1,)}
    return pieces["values"].dtype, shapes


def _coo(shape: Shape, pieces: Mapping[str, Piece], attributes: Mapping[str, Any]) -> Found:
    _require(len(shape) >= 1, "rank", "expected 1 dimension or more")
    _require_parts(pieces, "values", "coords")
    _index_dtype(pieces["coords"], "coords")
    nnz, rest = divmod(_elements(pieces["coords"], "coords"), len(shape))
    _require(rest == 0, "size", f"coords must have {len(shape)} indices for each value")
    _require_count(pieces["values"], nnz, "values")
    return pieces["values"].dtype, {"values": (nnz,), "coords": (len(shape), nnz)}


MX_ELEMENTS = ("float4_e2m1fn", "float8_e4m3fn", "float8_e5m2", "int8")


def _mx(shape: Shape, pieces: Mapping[str, Piece], attributes: Mapping[str, Any]) -> Found:
    _require_parts(pieces, "data", "scales")
    axis = _axis(shape, attributes, default=len(shape) - 1)
    block = _natural(attributes, "block_size")
    _require(block >= 2, "block_size", "block_size must be 2 or more")
    _require_multiple(shape, axis, block, "block_size")
    _require_one_of(attributes.get("scale_form", "e8m0_exponent"), ["e8m0_exponent"], "scale_form", "scale_form")
    data, scales = pieces["data"], pieces["scales"]
    if data.dtype is not None:
        _require_dtype(data, MX_ELEMENTS, "data")
    _require_dtype(scales, ["float8_e8m0fnu"], "scales")
    _require_count(data, math.prod(shape), "data")
    blocks = _replace_size(shape, axis, shape[axis] // block)
    _require_count(scales, math.prod(blocks), "scales")
    return BY_NAME["float32"], {"data": shape, "scales": blocks}


SCALE_FORMS: dict[str, tuple[str, ...]] = {
    "f32_factors": ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
                    "float8_e4m3fnuz", "float8_e5m2fnuz"),
    "f16_factors": ("float16", "bfloat16"),
    "e8m0_exponent": ("float8_e8m0fnu",),
}  # fmt: skip
WORDS: dict[str, tuple[str, ...]] = {f"u{bits}": (f"uint{bits}", f"int{bits}") for bits in (8, 16, 32, 64)}


def _quant_group(shape: Shape, pieces: Mapping[str, Piece], attributes: Mapping[str, Any]) -> Found:
    zero = _map(attributes, "zero_point")
    _require_one_of(zero.get("form"), ["none", "implied", "tensor"], "zero_point", "zero_point.form")
    with_zeros = zero["form"] == "tensor"
    _require_parts(pieces, "data", "scales", *(("zeros",) if with_zeros else ()))
    per_word, word = _packing(pieces["data"], attributes)
    axis = _axis(shape, attributes, default=None)
    group = _natural(attributes, "group_size")
    if group:
        _require_multiple(shape, axis, group, "group_size")
    codes = math.prod(shape)
    _require(codes % per_word == 0, "size", f"{codes} codes do not fill words of {per_word} codes each")
    _require_count(pieces["data"], codes // per_word, "data")

    form, scales = attributes.get("scale_form"), pieces["scales"]
    _require_one_of(form, SCALE_FORMS, "scale_form", "scale_form")
    _require_dtype(scales, SCALE_FORMS[str(form)], "scales")
    groups = _group_shape(shape, axis, group, _elements(scales, "scales"))
    _require_count(scales, math.prod(groups), "scales")
    shapes = {"data": (codes // per_word,), "scales": groups}
    if zero["form"] == "implied":
        _require(type(zero.get("value")) is int, "zero_point", "zero_point.value must be an integer")
    if with_zeros:
        packing, zeros = zero.get("packing"), pieces["zeros"]
        _require_one_of(packing, ["plain", "same_as_data"], "zero_point", "zero_point.packing")
        count, rest = (math.prod(groups), 0) if packing == "plain" else divmod(math.prod(groups), per_word)
        _require(rest == 0, "size", "the zero points do not fill whole words")
        if packing == "same_as_data":
            _require_dtype(zeros, WORDS[word], "zeros")
        _require(zeros.dtype is not None, "zeros", "the element type of zeros is unknown")
        _require_count(zeros, count, "zeros")
        shapes["zeros"] = groups if packing == "plain" else (count,)
    return scales.dtype if scales.dtype is BY_NAME["float64"] else BY_NAME["float32"], shapes


def describe_codes(bits: int, axis: int, zero_point: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes for codes packed into bytes, lowest bits first, with one scale for each position of an axis."""
    return {
        "axis": axis,
        "bits": bits,
        "group_size": 0,
        "packing": {"order": "lsb_first", "per_word": 8 // bits, "word": "u8"},
        "scale_form": "f32_factors",
        "zero_point": zero_point,
    }


def _packing(data: Piece, attributes: Mapping[str, Any]) -> tuple[int, str]:
    packing = _map(attributes, "packing")
    bits = _natural(attributes, "bits")
    _require_one_of(packing.get("word"), WORDS, "packing", "packing.word")
    word = str(packing["word"])
    _require_dtype(data, WORDS[word], "data")
    _require_one_of(packing.get("order"), ["lsb_first", "msb_first"], "packing", "packing.order")
    width = int(word[1:])
    _require(bits in (2, 3, 4, 5, 6, 8) and width % bits == 0, "bits", f"codes of {bits} bits do not fill {word}")
    _require(packing.get("per_word") == width // bits, "packing", f"packing.per_word must be {width // bits}")
    return width // bits, word


def _group_shape(shape: Shape, axis: int, group: int, scales: int) -> Shape:
    """The shape of the scales: one for each group; without groups, one for each position of the axis or element."""
    if group:
        return _replace_size(shape, axis, shape[axis] // group)
    if scales == shape[axis]:
        return tuple(shape[axis] if i == axis else 1 for i in range(len(shape)))
    return shape


def _axis(shape: Shape, attributes: Mapping[str, Any], default: int | None) -> int:
    axis = attributes.get("axis", default)
    _require(
        type(axis) is int and 0 <= axis < len(shape), "axis", f"axis must be an integer from 0 to {len(shape) - 1}"
    )
    return int(axis)


def _natural(attributes: Mapping[str, Any], key: str) -> int:
    value = attributes.get(key)
    _require(type(value) is int and value >= 0, key, f"{key} must be an unsigned integer")
    return int(value)  # type: ignore[arg-type]


def _map(attributes: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = attributes.get(key)
    if not isinstance(value, Mapping):
        raise FormatError(f"{key} must be a map", rule=f"layout.{key}")
    return value


def _replace_size(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _nested(shape: Shape, pieces: Mapping[str, Piece], attributes: Mapping[str, Any]) -> Found:
    """The columns of a DyND value, whose type is an attribute."""
    text = attributes.get(TYPE_ATTRIBUTE)
    try:
        type = parse_canonical(text if isinstance(text, str) else "")
    except FormatError as error:
        raise FormatError(
            f"the attribute '{TYPE_ATTRIBUTE}' must be the canonical text of a type: {error.message}",
            rule="layout.dynd",
        ) from error
    return type, _flat(pieces)


def _ggml_blocks(shape: Shape, pieces: Mapping[str, Piece], attributes: Mapping[str, Any]) -> Found:
    """GGML's quantized numbers: each row is a whole number of blocks of bytes."""
    rows = math.prod(shape[:-1])
    data = pieces.get("data")
    if len(pieces) > 1 or data is None or data.dtype is not BY_NAME["uint8"] or not rows or data.nbytes % rows:
        return _unknown(shape, pieces, attributes)
    return BY_NAME["float32"], {"data": (*shape[:-1], data.nbytes // rows)}


def _unknown(shape: Shape, pieces: Mapping[str, Piece], attributes: Mapping[str, Any]) -> Found:
    return None, _flat(pieces)


LAYOUTS: dict[str, Callable[[Shape, Mapping[str, Piece], Mapping[str, Any]], Found]] = {
    CSR: _csr,
    COO: _coo,
    QUANT_GROUP: _quant_group,
    MX: _mx,
    NESTED: _nested,
}


def check_values(tensor: Tensor) -> None:
    """Checks the values of a sparse tensor; other layouts have no rules for values."""
    if tensor.layout == CSR:
        _check_csr(tensor)
    elif tensor.layout == COO:
        _check_coo(tensor)


def _fault(tensor: Tensor, part: str, rule: str, message: str) -> FormatError:
    return FormatError(
        f"{part}: {message}", rule=f"layout.values.{rule}", tensor=tensor.name, offset=tensor.parts[part].offset
    )


def _check_csr(tensor: Tensor) -> None:
    columns = tensor.shape[1]
    indices, indptr = (tensor.parts[name].array(tensor.name) for name in ("indices", "indptr"))
    if indptr[0] != 0 or indptr[-1] != indices.size or (indptr[1:] < indptr[:-1]).any():
        raise _fault(tensor, "indptr", "indptr", f"must not decrease, from 0 to {indices.size}")
    if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < columns:
        raise _fault(tensor, "indices", "bounds", f"an index is out of bounds for {columns} columns")
    # Indices must increase within a row; between the last of a row and the first of the next they may fall.
    falls = indices[1:] <= indices[:-1]
    starts = indptr[(indptr > 0) & (indptr < indices.size)].astype(np.int64)
    falls[starts - 1] = False
    if falls.any():
        raise _fault(tensor, "indices", "order", "the indices of a row must increase")


def _check_coo(tensor: Tensor) -> None:
    coords = tensor.parts["coords"].array(tensor.name)
    for axis, size in enumerate(tensor.shape):
        if coords.shape[1] and not 0 <= int(coords[axis].min()) <= int(coords[axis].max()) < size:
            raise _fault(tensor, "coords", "bounds", f"an index is out of bounds for dimension {axis} of size {size}")
    if _repeats(coords, tensor.shape):
        raise _fault(tensor, "coords", "unique", "two values have the same coordinates")


def _repeats(coords: NDArray[Any], shape: Shape) -> bool:
    """Whether two values have the same coordinates: by their flat positions if these fit int64, else by sorting."""
    if math.prod(shape) < 1 << 63:
        cells = np.zeros(coords.shape[1], np.int64)
        for row, size in zip(coords, shape, strict=True):
            cells = cells * size + row.astype(np.int64)
        return bool(distinct(cells).size < cells.size)
    ordered = coords[:, np.lexsort(coords)]
    return bool((ordered[:, 1:] == ordered[:, :-1]).all(axis=0).any())
