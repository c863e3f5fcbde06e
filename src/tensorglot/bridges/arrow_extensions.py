"""Arrow's extension types, converted to arrays of plain types with the same values.

The storage array alone would lose the shape of a tensor, the meaning of a bool byte, or the
closed side of an interval. So an extension type that is not in the table is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from tensorglot.errors import UnsupportedError, escape
from tensorglot.extras import compute, pa

__all__ = ["without_extension"]


def without_extension(array: Any) -> Any:
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
        inner = _fixed_lists(inner, count, length)
    if not storage.null_count:
        return inner
    mask = compute.if_else(storage.is_valid(), True, None)
    return pa.Array.from_buffers(inner.type, len(inner), [mask.buffers()[0]], children=[inner.values])


def _fixed_lists(values: Any, count: int, length: int) -> Any:
    """`count` lists. Made from buffers, since pyarrow's constructor cannot count lists of length 0."""
    return pa.Array.from_buffers(pa.list_(values.type, length), count, [None], children=[values])


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
