"""Mutants that change nothing that a caller could see, each with the reason. `tests/mutants.py` leaves them out."""

from __future__ import annotations

__all__ = ["EQUIVALENT"]

EQUIVALENT: dict[str, str] = {
    "containers/canonical.py: 4096  →  4097": "bytes of padding that are read at a time",
    "operations/_elements.py: if filled:  →  if True:": "copies a block that could be given as it is: the same bytes",
    "store/pack.py: 256  →  257": "bytes that are read at once, in the hope that the index fits",
    "operations/load.py: return allocate(nbytes)  →  return None": "NumPy allocates the array itself: the same values",
    "store/packs.py: found[at] if at in found else self.read(digest)  →  found[at] if False else self.read(digest)": (
        "reads and compares each block by itself: the same bytes, more slowly"
    ),
}
"""`module: line  →  changed line`, as the campaign prints it, and why."""
