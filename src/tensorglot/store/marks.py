"""Marks of damage: which bytes of a pack are no longer what was written.

`check(data=True)` leaves an empty object beside a pack for each span of records that do
not decode to their blocks: `packs/NAME.BEGIN-END.damaged`. Whoever lists the packs sees
the marks with them. A writer does not rely on a marked record and stores its blocks
again; a reader tries other copies first. So a mark that is wrong costs a few bytes and
never a value, and the next check removes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain

from tensorglot.store.backend import Backend

__all__ = ["Marks", "Span", "delete_marks", "merge_spans", "parse_marks", "update_marks"]

Span = tuple[int, int]
"""Begin and end of damaged bytes."""
Marks = dict[str, frozenset[Span]]
"""The damaged spans of packs, by name."""

_KEY = re.compile(r"(.+)\.(\d{1,18})-(\d{1,18})\.damaged", re.ASCII)
_MOST = 64
"""Spans of a pack that are marked one by one."""


def parse_marks(names: Iterable[str]) -> Marks:
    """The marks among the names of objects beside packs."""
    found: dict[str, set[Span]] = {}
    for mark in filter(None, map(_KEY.fullmatch, names)):
        found.setdefault(mark[1], set()).add((int(mark[2]), int(mark[3])))
    return {pack: frozenset(spans) for pack, spans in found.items()}


def merge_spans(spans: Iterable[Span]) -> frozenset[Span]:
    """Joins spans that touch; more than a few dozen become one."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return frozenset(merged if len(merged) <= _MOST else [(merged[0][0], merged[-1][1])])


def update_marks(backend: Backend, present: Marks, found: Marks) -> None:
    """Replaces the marks of the store by marks of the damage that was found."""
    for pack in sorted(present.keys() | found.keys()):
        old, new = present.get(pack, frozenset()), found.get(pack, frozenset())
        for span in sorted(new - old):
            backend.swap(_key(pack, span), None, b"")
        delete_marks(backend, {pack: old - new})


def delete_marks(backend: Backend, marks: Marks) -> None:
    for key in chain.from_iterable((_key(pack, span) for span in spans) for pack, spans in marks.items()):
        backend.delete(key)


def _key(pack: str, span: Span) -> str:
    return f"packs/{pack}.{span[0]}-{span[1]}.damaged"
