"""Columns that are decoded on demand: checksums, and the attributes of tensors.

An index of a hundred thousand tensors has as many digests, and attributes of any depth.
Their CBOR is validated when the file is opened; Python objects are created when needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tensorglot.cached import cached_property
from tensorglot.wire.cbor import Cursor
from tensorglot.wire.checksums import TextColumn

__all__ = ["Attributes", "LazyMap", "metadata_at", "texts_at"]

_EMPTY_TEXT, _TEXT_8 = 0x60, 0x78
"""CBOR heads of texts: 0x60 to 0x77 contain the length; 0x78 is followed by one byte with the length."""
EAGER_NBYTES = 1 << 10
"""Metadata up to this size is decoded at once."""


def texts_at(data: bytes, positions: NDArray[np.int64], *, copy: bool = False) -> TextColumn:
    """Texts at positions of validated CBOR; position 0 means None. With `copy`, the CBOR is kept only if they differ
    in length, which digests of one algorithm do not."""
    joined = _join(data, positions) if copy else None
    return Texts(data, positions) if joined is None else AlikeTexts(joined, len(joined) // len(positions))


class Texts(TextColumn):
    """Texts at positions of validated CBOR; position 0 means None."""

    def __init__(self, data: bytes, positions: NDArray[np.int64]) -> None:
        self._data = data
        self._positions = positions

    @overload
    def __getitem__(self, index: int) -> str | None: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str | None]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str | None] | None:
        if isinstance(index, slice):
            some = texts_at(self._data, self._positions[index], copy=True)
            return some[:] if isinstance(some, AlikeTexts) else [some[i] for i in range(len(some))]
        position = int(self._positions[index])
        return Cursor(self._data, pos=position).text("checksum") if position else None

    def __iter__(self) -> Iterator[str | None]:
        return iter(self[:])

    def joined(self) -> bytes | None:
        return _join(self._data, self._positions)

    def __len__(self) -> int:
        return len(self._positions)


class AlikeTexts(TextColumn):
    """ASCII texts of one length, concatenated."""

    def __init__(self, joined: bytes, length: int) -> None:
        self._joined = joined
        self._length = length

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        length, places = self._length, range(0, len(self._joined), self._length)[index]
        if isinstance(places, int):
            return self._joined[places : places + length].decode()
        text = self._joined.decode()
        return [text[place : place + length] for place in places]

    def __iter__(self) -> Iterator[str]:
        return iter(self[:])

    def joined(self) -> bytes:
        return self._joined

    def __len__(self) -> int:
        return len(self._joined) // self._length


def _join(data: bytes, positions: NDArray[np.int64]) -> bytes | None:
    """All texts concatenated, if they are ASCII and have one length, so that one gather copies all; otherwise None."""
    if not len(positions) or not positions.all():
        return None
    every = np.frombuffer(data, np.uint8)
    head = int(every[positions[0]])
    head_nbytes = 1 if _EMPTY_TEXT <= head < _TEXT_8 else 2
    length = head - _EMPTY_TEXT if head_nbytes == 1 else int(every[positions[0] + 1])
    if not _EMPTY_TEXT < head <= _TEXT_8 or not length:
        return None
    heads = every[positions[:, None] + np.arange(head_nbytes)]
    if (heads != heads[0]).any():
        return None
    joined = sliding_window_view(every, length)[positions + head_nbytes].tobytes()
    return joined if joined.isascii() else None


class Attributes(Mapping[int, Mapping[str, Any]]):
    """Maps of validated CBOR, by tensor, decoded on each access."""

    def __init__(
        self, data: bytes, begins: Mapping[int, int], entries: NDArray[np.int64], hidden: Mapping[str, str | None]
    ) -> None:
        """`hidden` has keys that are not attributes; a key with a value is hidden only if it has that value.

        They are hidden in maps that are the entry of a tensor, at `entries`, and not in maps within an entry.
        """
        self._data = data
        self._begins = begins
        self._entries = entries
        self._hidden = hidden

    def __getitem__(self, tensor: int) -> dict[str, Any]:
        begin = self._begins[tensor]
        fields: dict[str, Any] = Cursor(self._data, pos=begin).value()
        if not self._hidden or begin != self._entries[tensor]:
            return fields
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
    """A map of validated CBOR that is decoded on first use."""

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


def metadata_at(data: bytes, begin: int) -> Mapping[str, Any]:
    """The metadata of a file, a map with text keys."""
    lazy = LazyMap(data, begin)
    end = Cursor(data, pos=begin).skip()[1]
    return dict(lazy) if end - begin <= EAGER_NBYTES else lazy
