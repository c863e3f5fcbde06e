"""The names of an index as spans of the header's text, without a str for each.

A file of 100,000 tensors opens without creating 100,000 strings. They are created together
when the names are listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import prefix_sums
from tensorglot.cached import cached_property
from tensorglot.errors import FormatError, InputError
from tensorglot.kernels import names as kernel
from tensorglot.kernels.gather import gather
from tensorglot.limits import DEFAULT

__all__ = ["Names", "check_name"]


class Names(Sequence[str]):
    """Names at `begins` to `ends` of `text`, which is valid UTF-8."""

    def __init__(self, text: bytes, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        self._text = text
        self._begins = begins
        self._ends = ends

    @cached_property
    def _list(self) -> list[str]:
        return kernel.decode(self._text, self._begins, self._ends)

    def compact(self) -> Names:
        """The same names in a text of their own, so that a header with much else need not be kept."""
        sizes = self._ends - self._begins
        offsets = prefix_sums(sizes)
        text = np.empty(int(offsets[-1]), np.uint8)
        gather(self._text, self._begins, sizes, text, offsets[:-1])
        return Names(text.tobytes(), offsets[:-1], offsets[1:])

    def first_duplicate(self) -> int | None:
        """The position of the first repeated name, or None. Names are decoded only if hashes collide."""
        if len(self) < 2 or not kernel.may_repeat(self._text, self._begins, self._ends):
            return None
        seen: set[str] = set()
        for position, name in enumerate(self._list):
            if name in seen:
                return position
            seen.add(name)
        return None

    def refuse_duplicates(self, rule: str, offset: int, end: int) -> None:
        """Refuses a name that occurs twice. The text is at `offset` of the file, which has no names after `end`."""
        twice = self.first_duplicate()
        if twice is not None:
            at = offset + min(int(self._begins[twice]), end)
            raise FormatError("duplicate tensor name", rule=rule, offset=at, tensor=self[twice])

    def find(self, name: str) -> int | None:
        """The position of a name, by a linear scan; None if there is no such name."""
        try:
            position = kernel.find(self._text, self._begins, self._ends, name.encode())
        except UnicodeEncodeError:
            return None
        return None if position < 0 else position

    def offset(self, position: int) -> int:
        """Where a name begins in the text."""
        return int(self._begins[position])

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[str]: ...
    def __getitem__(self, position: Any) -> Any:
        if "_list" in self.__dict__ or isinstance(position, slice):
            return self._list[position]
        return self._text[self._begins.item(position) : self._ends.item(position)].decode()

    def __iter__(self) -> Iterator[str]:
        return iter(self._list)

    def __len__(self) -> int:
        return len(self._begins)


def check_name(name: object) -> None:
    """Refuses a name that is invalid in every format."""
    if not isinstance(name, str):
        raise InputError(f"a tensor name must be a str, not {type(name).__name__}", rule="name.text")
    try:
        nbytes = len(name.encode())
    except UnicodeEncodeError as error:
        raise InputError(
            "the name has a lone surrogate, which UTF-8 cannot encode", rule="name.utf8", tensor=name
        ) from error
    if nbytes > DEFAULT.name_nbytes:
        raise InputError(
            f"the name has {nbytes} bytes; readers accept {DEFAULT.name_nbytes}", rule="name.length", tensor=name
        )
