"""The densest files below 64 KB are opened or refused within 10 MB, and within 10 ms or a bound of their own.

Interpreted kernels have twenty times the time.
"""

from __future__ import annotations

import contextlib
import gc
from functools import cache
from pathlib import Path

import pytest

import tensorglot as tg
from bounds import INTERPRETED, MB, allocated_nbytes, seconds
from densest import DENSEST
from figures import seen
from peers import needs

_Cache = type(cache(lambda: None))
SECONDS = 0.010
SLOWER: dict[str, float] = {
    what: milliseconds / 1000
    for milliseconds, files in {
        20: [
            "pt zip: a tensor and constants",
            "pt zip: names of one tensor",
            "store: arrays",
        ],
        40: ["dynd: distinct dimensions", "dynd: quoted names"],
        100: ["dynd: invalid at its end"],
        140: ["dynd: distinct sizes"],
        170: ["dynd: distinct maps"],
        200: ["dynd: distinct options", "dynd: distinct structs", "dynd: distinct tuples"],
    }.items()
    for what in files
}
"""Files that take longer, or nearly so, with bounds of about twice what was measured."""


@pytest.mark.parametrize("what", DENSEST)
def test_opened_or_refused_within_bounds(what: str, tmp_path: Path) -> None:
    if what.startswith("hdf5"):
        needs("h5py")
    format, make = DENSEST[what]
    path = make(tmp_path)

    def opened() -> None:
        with contextlib.suppress(tg.TensorglotError):
            tg.open(path, format=format or None).close()

    opened()  # imports what it needs
    caches = [
        held for held in gc.get_objects() if type(held) is _Cache and str(held.__module__).startswith("tensorglot")
    ]

    def opened_again() -> None:
        for held in caches:  # a hostile file is opened once: what is remembered of it does not count
            held.cache_clear()
        opened()

    assert allocated_nbytes(opened_again) < 10 * MB
    bound = SLOWER.get(what, SECONDS) * (20 if INTERPRETED else 1)
    assert seconds(opened_again, bound) < bound
    seen("hostile files")
