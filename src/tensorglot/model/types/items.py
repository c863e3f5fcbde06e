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


def split_items(text: str) -> tuple[list[str] | None, list[str]] | None:
    """The names, None in a tuple, and the types of the items of `(…)` or `{…}`; None for any other text."""
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
    if text.count(", ") == len(commas):
        items = text[1:-1].split(", ")
    else:
        ends = [*commas.tolist(), len(text) - 1]
        items = [text[begin:end] for begin, end in zip([1, *[end + 2 for end in ends]], ends, strict=False)]
    return (None, items) if text[0] == "(" else _split_names(items)


def _split_names(items: list[str]) -> tuple[list[str], list[str]] | None:
    """The names and the types of the fields of a struct."""
    pairs = [item.partition(": ") for item in items]
    names, types = [name for name, _, _ in pairs], [type for _, _, type in pairs]
    if not all(map(str.isidentifier, names)):
        for i, item in enumerate(items):
            if not names[i].isidentifier():
                quoted = _QUOTED.match(item)
                name = None if quoted is None else unescape(quoted[0][1:-1])
                if name is None or not item.startswith(written := f"{quote(name)}: "):
                    return None
                names[i], types[i] = name, item[len(written) :]
    return names, types
