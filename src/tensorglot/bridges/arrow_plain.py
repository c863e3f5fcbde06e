"""Arrow arrays of every encoding, as arrays of the few types that `arrow` reads.

Plain are numbers, bool, null, large texts and binaries, fixed-size binaries, date32, times,
decimal128, and large lists, fixed-size lists, structs and maps of plain arrays. Dictionaries
and runs are decoded, views become lists and texts. An array that is plain already is returned
unchanged, and so are other types, which `arrow` refuses by name.

Of an extension type, the storage array alone would lose the shape of a tensor, the meaning of
a bool byte, or the closed side of an interval. So the types in a table are converted, and all
others are refused by name.

Children are converted first: pyarrow cannot select elements of several encodings, and its
cast of list views to lists gives wrong offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import prefix_sums
from tensorglot.errors import UnsupportedError, escape
from tensorglot.extras import compute, pa
from tensorglot.model.types.temporal import DIGITS_MAX

__all__ = ["as_plain", "take", "valid_rows"]


def as_plain(array: Any) -> Any:
    """An array of plain types with the same values."""
    is_, kind = pa.types, array.type
    if isinstance(kind, pa.BaseExtensionType):
        return as_plain(_without_extension(array))
    if is_.is_dictionary(kind):
        values = as_plain(array.dictionary)
        # Without values there are only nulls, and the indices of rows that a null struct hides, which are arbitrary.
        return take(values, array.indices) if len(values) else pa.nulls(len(array), values.type)
    if is_.is_run_end_encoded(kind):
        return as_plain(compute.run_end_decode(array))
    if is_.is_string(kind) or is_.is_string_view(kind):
        return array.cast(pa.large_string())
    if is_.is_binary(kind) or is_.is_binary_view(kind):
        return array.cast(pa.large_binary())
    if is_.is_date64(kind):
        return array.cast(pa.date32())
    if is_.is_decimal(kind) and not is_.is_decimal128(kind) and kind.precision <= DIGITS_MAX:
        return array.cast(pa.decimal128(kind.precision, kind.scale))
    if is_.is_list(kind) or is_.is_large_list(kind):
        return _lists(array)
    if is_.is_list_view(kind) or is_.is_large_list_view(kind):
        return _views(array)
    if is_.is_fixed_size_list(kind):
        return _fixed_lists(array)
    if is_.is_struct(kind):
        return _structs(array)
    return _maps(array) if is_.is_map(kind) else array


def take(array: Any, positions: Any) -> Any:
    """The elements at some positions.

    They are taken from a copy (concat_arrays), because pyarrow 26 takes the wrong elements from a slice of
    fixed-size lists in fixed-size lists.
    """
    return pa.concat_arrays([array]).take(positions)


def valid_rows(array: Any) -> NDArray[np.bool_]:
    """Which elements are not null."""
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def _mask(array: Any) -> Any:
    """Which elements are null; None if none is."""
    return pa.array(~valid_rows(array)) if array.null_count else None


def _lists(array: Any) -> Any:
    given = array.values
    values = as_plain(given)
    if values is given and pa.types.is_large_list(array.type):
        return array
    offsets = np.asarray(array.offsets).astype(np.int64, copy=False)
    return pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=_mask(array))


def _views(array: Any) -> Any:
    """Lists of views, which may overlap and be in any order."""
    starts = np.asarray(array.offsets).astype(np.int64)
    sizes = np.where(valid_rows(array), np.asarray(array.sizes), 0).astype(np.int64)
    edges = prefix_sums(sizes)
    positions = np.arange(int(edges[-1])) + np.repeat(starts - edges[:-1], sizes)
    values = take(as_plain(array.values), pa.array(positions))
    return pa.LargeListArray.from_arrays(pa.array(edges), values, mask=_mask(array))


def _fixed_lists(array: Any) -> Any:
    given = array.values
    values = as_plain(given)
    if values is given:
        return array
    kind = pa.list_(values.type, array.type.list_size)
    validity = array.buffers()[0]
    return pa.Array.from_buffers(kind, len(array), [validity], offset=array.offset, children=[values])


def _structs(array: Any) -> Any:
    given = [array.field(i) for i in range(array.type.num_fields)]
    fields = [as_plain(each) for each in given]
    if all(new is old for new, old in zip(fields, given, strict=True)):
        return array
    kinds = [pa.field(old.name, new.type) for old, new in zip(array.type, fields, strict=True)]
    return pa.StructArray.from_arrays(fields, fields=kinds, mask=_mask(array))


def _maps(array: Any) -> Any:
    given = array.keys, array.items
    keys, items = map(as_plain, given)
    if keys is given[0] and items is given[1]:
        return array
    return pa.MapArray.from_arrays(pa.array(np.asarray(array.offsets)), keys, items, mask=_mask(array))


def _without_extension(array: Any) -> Any:
    """An array of an extension type as one of a plain type."""
    name = array.type.extension_name
    convert = _CONVERSIONS.get(name)
    if convert is None:
        hint = _HINTS.get(name, "pass its stored values (array.storage)")
        raise UnsupportedError(
            f"Arrow's extension type '{escape(name)}' is not supported: {hint}", rule="arrow.extension"
        )
    return convert(array)


def _tensors(array: Any) -> Any:
    """Tensors of one shape as nested lists of fixed sizes."""
    kind, storage = array.type, array.storage
    if kind.permutation not in (None, list(range(len(kind.shape)))):
        raise UnsupportedError(
            "Arrow's tensors with a permutation are not supported: use array.to_numpy_ndarray()", rule="arrow.extension"
        )
    begin, size = storage.offset, storage.type.list_size
    inner = storage.values[begin * size : (begin + len(storage)) * size]
    counts = [len(storage)]
    for length in kind.shape:
        counts.append(counts[-1] * length)
    for count, length in zip(counts[-2::-1], kind.shape[::-1], strict=True):
        # From buffers: pyarrow's constructor cannot tell the number of lists of length 0.
        inner = pa.Array.from_buffers(pa.list_(inner.type, length), count, [None], children=[inner])
    if not storage.null_count:
        return inner
    mask = compute.if_else(storage.is_valid(), True, None)
    return pa.Array.from_buffers(inner.type, len(inner), [mask.buffers()[0]], children=[inner.values])


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "arrow.bool8": lambda array: array.storage.cast(pa.bool_()),
    "arrow.fixed_shape_tensor": _tensors,
    "arrow.json": attrgetter("storage"),
    "arrow.uuid": attrgetter("storage"),
}
_HINTS = {
    "awkward": "pass the awkward array itself (ak.from_arrow)",
    "pandas.interval": "use the columns .array.left and .array.right",
    "pandas.period": "use .dt.to_timestamp()",
}
