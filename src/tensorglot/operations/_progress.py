"""Progress of a verb: a function of the caller is called, or a bar is drawn on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeAlias, TypeVar

from tensorglot.errors import InputError, human_nbytes
from tensorglot.memory import cut
from tensorglot.model.payload import Chunk, Span, as_bytes

__all__ = ["Progress", "ProgressCounter", "bar", "count_off", "counted", "follow", "start_progress"]

T = TypeVar("T")

_FOLLOWED_NBYTES = 32 << 20
"""Larger chunks are cut, so that progress is visible."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes done so far and the total."""


@contextmanager
def start_progress(progress: Progress | bool | None, what: str) -> Iterator[Progress | None]:
    """The caller's function, a bar for True, or None."""
    if progress is True:
        with bar(what) as drawn:
            yield drawn
    elif progress is None or progress is False:
        yield None
    elif callable(progress):
        yield progress
    else:
        raise InputError(f"progress must be a function or True, not {type(progress).__name__}", rule="progress.kind")


class ProgressCounter:
    """Adds up what was done, by several threads, and calls `progress`, one thread at a time."""

    def __init__(self, progress: Progress | None, total: int = 0) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._done, self._total = 0, total

    def expect(self, more: int) -> None:
        """Adds to the total."""
        self._total += more

    def __call__(self, more: int, begun: int = 0) -> None:
        """`more` was done; `begun` counts only until the next call."""
        if self._progress is not None:
            with self._lock:
                self._done += more
                self._progress(min(self._done + begun, self._total), self._total)

    def finish(self) -> None:
        """Counts what did not have to be done, or could not be."""
        if self._done < self._total:
            self(self._total - self._done)


def counted(items: Iterable[T], size: Callable[[T], int], count: ProgressCounter) -> Iterator[T]:
    """Passes items on; each is counted when the next one is requested."""
    for item in items:
        yield item
        count(size(item))


def count_off(results: Iterable[T], nbytes: Sequence[int], report: Progress | None) -> Iterator[T]:
    """Passes results on; after each, reports the sum of `nbytes` up to it."""
    count = ProgressCounter(report, sum(nbytes))
    for size, result in zip(nbytes, results, strict=True):
        yield result
        count(size)


@contextmanager
def follow(
    chunks: Iterator[Chunk], total: int, progress: Progress | bool | None, what: str
) -> Iterator[Iterator[Chunk]]:
    """The same chunks; progress is reported as they are consumed."""
    with start_progress(progress, what) as report:
        yield chunks if report is None else _follow(chunks, total, report)


def _follow(chunks: Iterator[Chunk], total: int, progress: Progress) -> Iterator[Chunk]:
    done = 0
    for chunk in chunks:
        whole = chunk if isinstance(chunk, Span) else as_bytes(chunk)
        for offset, nbytes in cut(whole.nbytes, _FOLLOWED_NBYTES):
            if isinstance(whole, Span):
                begin = whole.begin + offset
                yield Span(whole.source, begin, begin + nbytes)
            else:
                yield whole[offset : offset + nbytes]
            done += nbytes
            progress(min(done, total), total)
    if done < total:  # compressed, or shared
        progress(total, total)


@contextmanager
def bar(what: str, unit: str = "bytes") -> Iterator[Progress]:
    """A bar, called with the units done and the total. Nothing is drawn before the first call, so an early error
    is printed without a bar."""
    with ExitStack() as stack:
        update: Progress | None = None

        def progress(done: int, total: int) -> None:
            nonlocal update
            if update is None:
                update = _start_bar(stack, what, unit)
            update(done, total)

        yield progress


def _start_bar(stack: ExitStack, what: str, unit: str) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn(what), BarColumn(), TextColumn("{task.fields[amount]}"), TimeRemainingColumn()
    drawn = stack.enter_context(Progress(*columns, console=Console(file=sys.stderr), transient=True))
    task = drawn.add_task(what, total=None, amount="")
    begun = time.monotonic()

    def update(done: int, total: int) -> None:
        amount = f"{done:,} of {total:,} {unit}"
        if unit == "bytes":
            rate = done / max(time.monotonic() - begun, 1e-3)
            amount = f"{human_nbytes(done)} of {human_nbytes(total)}, {human_nbytes(rate)}/s"
        drawn.update(task, completed=done, total=total, amount=amount)

    return update
