"""Measures a call: processor time, memory that Python and NumPy allocate, and resident memory.

Time is processor time, the least of several repeats. It is scaled to a reference machine: work
of known cost (`_YARDSTICK`) is timed as well, and a machine that is slow or busy is allowed as
many times more. Both kinds of memory are peaks during the call, above the value before it.
"""

from __future__ import annotations

import signal
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["INTERPRETED", "MB", "allocated_nbytes", "at_once", "resident_nbytes", "seconds"]

MB = 1_000_000


def _interpreted() -> bool:
    from tensorglot.kernels import bintensors

    return str(bintensors.__file__).endswith(".py")


INTERPRETED = _interpreted()


_PATIENCE = 5.0
"""Seconds that repeating may take."""


_YARDSTICK = 0.0027
"""Seconds of the machine for which the bounds are written, for what `_slowness` does."""


def _slowness() -> float:
    """How many times longer known work takes here and now; never below 1, so no bound becomes tighter."""
    start = time.process_time()
    table = {}
    for number in range(20_000):
        table[number] = str(number)
    return max(1.0, (time.process_time() - start) / _YARDSTICK)


def seconds(call: Callable[[], object], enough: float, repeats: int = 50) -> float:
    """The quickest run. Repeats until one takes less than `enough`, since a busy machine slows any of them."""
    best, spent = float("inf"), 0.0
    for _ in range(repeats):
        start = time.process_time()
        call()
        taken = time.process_time() - start
        best, spent = min(best, taken), spent + taken
        if best < enough:
            break
        best = min(best, taken / _slowness())
        if best < enough or spent > _PATIENCE:
            break
    return best


@contextmanager
def at_once() -> Iterator[None]:
    """A limit for calls that must not wait: fails after seconds that suffice even on a busy machine."""

    def waited(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, waited)
    signal.setitimer(signal.ITIMER_REAL, 5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def allocated_nbytes(call: Callable[[], object]) -> int:
    """The peak of what is allocated, whether it is touched or not."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def resident_nbytes(call: Callable[[], object]) -> int:
    """The peak of resident memory; 0 where the operating system does not tell."""
    reset, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if not (reset.exists() and status.exists()):
        return 0
    reset.write_text("5")
    before = _field(status, "VmRSS")
    call()
    return _field(status, "VmHWM") - before


def _field(status: Path, name: str) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024
