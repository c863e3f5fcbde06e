"""Columns that are decoded on demand: checksums, and the attributes of tensors.

An index of a hundred thousand tensors has as many digests, and attributes of any depth.
Their CBOR is checked when the file is opened; Python objects are made when needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tensorglot.cached import cached_property
from tensorglot.wire.cbor import Cursor

__all__ = ["Attributes", "LazyMap", "Texts", "metadata_at"]

_EMPTY_TEXT, _TEXT_8 = 0x60, 0x78
"""Heads of texts: with the length in the head, from this up to 0x77; with the length in the next byte."""
EAGER_NBYTES = 1 << 10
"""Metadata up to this size is decoded at once."""


class Texts(Sequence[str | None]):
    """Texts at positions of checked CBOR; 0 is None."""

    def __init__(self, data: bytes, positions: NDArray[np.int64]) -> None:
        self._data = data
        self._positions = positions

    @overload
    def __getitem__(self, index: int) -> str | None: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str | None]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str | None] | None:
        if isinstance(index, slice):
            return self._alike(self._positions[index]) or [self[i] for i in range(len(self))[index]]
        position = int(self._positions[index])
        return Cursor(self._data, pos=position).text("checksum") if position else None

    def _alike(self, positions: NDArray[np.int64]) -> list[str] | None:
        """ASCII texts of one length, which digests of one algorithm are, cut out together; None for others."""
        if not len(positions) or not positions.all():
            return None
        data = np.frombuffer(self._data, np.uint8)
        head = int(data[positions[0]])
        head_nbytes = 1 if _EMPTY_TEXT <= head < _TEXT_8 else 2
        length = head - _EMPTY_TEXT if head_nbytes == 1 else int(data[positions[0] + 1])
        if not _EMPTY_TEXT < head <= _TEXT_8 or not length:
            return None
        heads = data[positions[:, None] + np.arange(head_nbytes)]
        if (heads != heads[0]).any():
            return None
        table = sliding_window_view(data, length)[positions + head_nbytes]
        joined = table.tobytes()
        if not joined.isascii():
            return None
        text = joined.decode()
        return [text[begin : begin + length] for begin in range(0, len(text), length)]

    def __len__(self) -> int:
        return len(self._positions)


class Attributes(Mapping[int, Mapping[str, Any]]):
    """Maps of checked CBOR, by tensor."""

    def __init__(self, data: bytes, begins: Mapping[int, int], hidden: Mapping[str, str | None]) -> None:
        """`hidden` are keys that are not attributes, or, with a value, are not if they have that value."""
        self._data = data
        self._begins = begins
        self._hidden = hidden

    def __getitem__(self, tensor: int) -> dict[str, Any]:
        fields: dict[str, Any] = Cursor(self._data, pos=self._begins[tensor]).value()
        return {
            key: value
            for key, value in fields.items()
            if key not in self._hidden or self._hidden[key] not in (None, value)
        }

    def __iter__(self) -> Iterator[int]:
        return iter(self._begins)

    def __len__(self) -> int:
        return len(self._begins)


class LazyMap(Mapping[str, Any]):
    """A map of checked CBOR that is decoded on first use."""

    def __init__(self, data: bytes, begin: int) -> None:
        self._data = data
        self._begin = begin

    @cached_property
    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = Cursor(self._data, pos=self._begin).value()
        return values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


def metadata_at(data: bytes, begin: int | None) -> Mapping[str, Any] | None:
    """The metadata of a file, a map with text keys, or None."""
    if begin is None:
        return None
    lazy = LazyMap(data, begin)
    end = Cursor(data, pos=begin).skip()[1]
    return dict(lazy) if end - begin <= EAGER_NBYTES else lazy
