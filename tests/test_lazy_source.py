"""Files beside the one that is open, when threads open and close them at the same moment."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tensorglot as tg
from tensorglot.model.lazy_source import OpenedOnce
from tensorglot.model.payload import Source


class Stored:
    """A source that knows whether it was closed."""

    size = 3

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class Beside(OpenedOnce):
    def __init__(self, meanwhile: Callable[[Beside], object]) -> None:
        super().__init__()
        self.made: list[Stored] = []
        self.meanwhile = meanwhile

    def open_file(self) -> Source:
        self.made.append(Stored())
        source = self.made[-1]
        meanwhile, self.meanwhile = self.meanwhile, lambda _: None
        meanwhile(self)
        return source  # type: ignore[return-value]


def test_of_two_that_open_at_once_one_stays() -> None:
    beside = Beside(lambda source: source.open())
    assert beside.open() is beside.open()
    first, second = beside.made
    assert beside.open() is second  # the one that was stored first
    assert (first.closed, second.closed) == (1, 0)
    beside.close()
    assert (first.closed, second.closed) == (1, 1)


def test_a_file_that_is_opened_during_close_is_closed() -> None:
    beside = Beside(lambda source: source.close())
    beside.open()
    assert [source.closed for source in beside.made] == [1]
    with pytest.raises(tg.InputError) as caught:
        beside.open()
    assert caught.value.rule == "archive.closed"
    assert len(beside.made) == 1
