"""The items of a tuple or a struct in canonical text, found by the depth of brackets instead of a parser.

Knows brackets, quotes and names; what an item is stays text. Where anything is unusual the
answer is None, and the parser finds what is wrong and where.
"""

from __future__ import annotations

import re

import numpy as np

from tensorglot.model.types.base import quote
from tensorglot.model.types.scan import unescape

__all__ = ["split_items"]

_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'")
_LEVELS = np.zeros(128, np.int32)
_LEVELS[[ord(c) for c in "([{"]] = 1
_LEVELS[[ord(c) for c in ")]}"]] = -1


def split_items(text: str) -> list[tuple[str | None, str]] | None:
    """The name, None in a tuple, and the type of each item of `(…)` or `{…}`; None for any other text."""
    if text[:1] + text[-1:] not in ("()", "{}") or len(text) == 2 or not text.isascii():
        return None
    bare = _QUOTED.sub(lambda found: "_" * len(found[0]), text) if "'" in text else text
    marks = np.frombuffer(bare.encode(), np.uint8)
    levels = _LEVELS[marks].cumsum()
    if levels[-1] != 0 or levels[:-1].min() < 1:
        return None
    commas = np.flatnonzero((marks == ord(",")) & (levels == 1))
    if (marks[commas + 1] != ord(" ")).any():
        return None
    ends = [*commas.tolist(), len(text) - 1]
    begins = [1, *[end + 2 for end in ends[:-1]]]
    if text[0] == "(":
        return [(None, text[begin:end]) for begin, end in zip(begins, ends, strict=True)]
    found: list[tuple[str | None, str]] = []
    for begin, end in zip(begins, ends, strict=True):
        colon = bare.find(": ", begin, end)
        name = text[begin:colon] if colon > 0 else ""
        if not name.isidentifier():
            held = unescape(name[1:-1])
            if held is None or quote(held) != name:
                return None
            name = held
        found.append((name, text[colon + 2 : end]))
    return found
