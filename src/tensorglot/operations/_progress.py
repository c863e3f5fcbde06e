"""Progress of a verb: reported to a function of the caller, or drawn as a bar on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

from tensorglot.errors import InputError, human_nbytes
from tensorglot.memory import cut
from tensorglot.model.payload import Chunk, Span, as_bytes

__all__ = ["Progress", "bar", "follow", "shown"]

_FOLLOWED_NBYTES = 32 << 20
"""Larger chunks are cut, so that progress is seen."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes done so far and the bytes in all."""


@contextmanager
def shown(progress: Progress | bool | None, what: str) -> Iterator[Progress | None]:
    """What a verb reports to: the caller's function, a bar for True, or None."""
    if progress is True:
        with bar(what) as drawn:
            yield drawn
    elif progress is None or progress is False:
        yield None
    elif callable(progress):
        yield progress
    else:
        raise InputError(f"progress must be a function or True, not {type(progress).__name__}", rule="progress.kind")


@contextmanager
def follow(
    chunks: Iterator[Chunk], total: int, progress: Progress | bool | None, what: str
) -> Iterator[Iterator[Chunk]]:
    """The same chunks of a file; whoever takes them moves the progress."""
    with shown(progress, what) as told:
        yield chunks if told is None else _told(chunks, total, told)


def _told(chunks: Iterator[Chunk], total: int, progress: Progress) -> Iterator[Chunk]:
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


@contextmanager
def bar(what: str, unit: str = "bytes") -> Iterator[Progress]:
    """A bar to call with the units done and the units in all.

    It is drawn at the first call, so a failure before that prints only its error.
    """
    with ExitStack() as stack:
        update: Progress | None = None

        def progress(done: int, total: int) -> None:
            nonlocal update
            if update is None:
                update = _started(stack, what, unit)
            update(done, total)

        yield progress


def _started(stack: ExitStack, what: str, unit: str) -> Progress:
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
