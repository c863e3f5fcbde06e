"""Counts what tests have tried: executions, faults, kills, bits. pytest prints the sums at its end.

`tests/promises.py` takes them from there into docs/trust.md.
"""

from __future__ import annotations

from collections import Counter

__all__ = ["LABEL", "SEEN", "seen"]

LABEL = "figures: "
SEEN: Counter[str] = Counter()


def seen(what: str, count: int = 1) -> None:
    SEEN[what] += count
