"""Numbers and histograms in the cells of a table, for terminals and notebooks."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["bars", "number"]

_BARS = "▁▂▃▄▅▆▇█"


def bars(counts: Sequence[int], most: int = 16) -> str:
    """A bar for each bin, `most` at most: adjacent bins are added up. A bin that is not empty is never blank."""
    each = -(-len(counts) // most)
    counts = [sum(counts[i : i + each]) for i in range(0, len(counts), each or 1)]
    top = max(counts, default=0)
    return "".join(" " if not count else _BARS[(len(_BARS) - 1) * count // top] for count in counts).rstrip()


def number(value: float | complex | None) -> str:
    """Three significant digits in the shortest form: 0.00721, 2.44e26. Integers, and 1,000 to a million, in full."""
    if value is None:
        return "-"
    if isinstance(value, int) or (isinstance(value, float) and 1000 <= abs(value) < 999_999.5):
        return f"{value:.0f}"
    return re.sub(r"e([+-])0*(\d)", lambda found: f"e{found[1].strip('+')}{found[2]}", f"{value:.3g}")
