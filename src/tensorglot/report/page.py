"""The numbers and the assets as one HTML file, which requests nothing from elsewhere.

Numbers are JSON in inert script elements, in ASCII, with `<` escaped: nothing in a file
can end the element. A policy in the page forbids every request, and every script but the
one whose hash it has. Cards are written as they are computed, and parsed when they are
opened.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias

from tensorglot.errors import escape
from tensorglot.io.sink import Writable
from tensorglot.io.storage_options import StorageOptions
from tensorglot.io.target import open_target
from tensorglot.io.urls import shown
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive
from tensorglot.operations._as_archive import Given, as_archive
from tensorglot.operations._places import options_for, options_for_each
from tensorglot.operations._progress import Progress, start_progress
from tensorglot.operations.diff import Change, diff
from tensorglot.report.changes import by_tensor, change_card, summarize_changes
from tensorglot.report.data import card, cells_for, describe, spark
from tensorglot.threads import ordered_map

__all__ = ["CARDS_TOGETHER", "Mode", "name_of", "opener", "shell", "write"]

Mode: TypeAlias = Literal["report", "view", "open"]
"""Cards are in the page; requested from the server; or absent, as the file is read by the browser."""

CARDS_TOGETHER = 32
"""Cards in one script element, parsed together."""
_SCRIPTS = ("text.js", "index.js", "readers.js", "cbor.js", "map.js", "list.js", "chart.js", "card.js", "app.js")


@cache
def _asset(name: str) -> str:
    return (files("tensorglot.report") / "assets" / name).read_text("utf-8")


@cache
def _script() -> str:
    return "\n".join(map(_asset, _SCRIPTS))


def _policy(mode: Mode) -> str:
    connect = "'self'" if mode == "view" else "'none'"
    return (
        f"default-src 'none'; script-src {_hash(_script())}; style-src {_hash(_asset('style.css'))}; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def shell(mode: Mode, title: str) -> tuple[str, str]:
    """The page before and after its numbers."""
    text = _asset("page.html")
    for key, value in {"policy": _policy(mode), "title": html.escape(title), "style": _asset("style.css")}.items():
        text = text.replace("{{" + key + "}}", value)
    before, _, after = text.partition("{{numbers}}")
    return before, after.replace("{{script}}", _script())


def numbers(identifier: str, value: Any) -> str:
    """A value as an inert element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{identifier}">{text}</script>\n'


def opener(target: Writable, *, storage_options: Mapping[str, Any] | None = None) -> int:
    """Writes a page that opens files dropped on it: the browser reads their headers, and sends nothing anywhere.

    Returns its size.
    """
    before, after = shell("open", "tensorglot")
    return _write([before, numbers("page", {"mode": "open"}), after], target, options_for(target, storage_options))


def name_of(source: Given) -> str:
    """What to call a source on the page."""
    if isinstance(source, (str, os.PathLike)):
        return shown(os.fsdecode(source))
    path = getattr(getattr(source, "source", None), "path", None)
    return path if isinstance(path, str) else "(memory)"


def write(
    source: Given,
    target: Writable,
    *,
    other: Given | None = None,
    format: str | None = None,
    progress: Progress | bool | None = None,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Writes the report of a file, or of what changed from one to another, atomically. Returns its size.

    `storage_options` are for whichever of the three is a URL.
    """
    of_one, of_two, of_target = options_for_each(storage_options, source, other, target)
    with (
        as_archive(source, format=format, limits=limits, storage_options=of_one) as one,
        as_archive(other, limits=limits, storage_options=of_two) if other is not None else nullcontext() as two,
        start_progress(progress, "reading") as report,
    ):
        names = (name_of(source), name_of(other) if other is not None else "")
        return _write(_page(one, two, names, report), target, of_target)


def _write(texts: Iterable[str], target: Writable, options: StorageOptions | None) -> int:
    with open_target(target, options=options) as file:
        return file.write(map(str.encode, texts))


@dataclass(slots=True)
class _Job:
    """What the threads that make cards share."""

    one: Archive
    two: Archive | None
    cells: int
    changes: dict[str, list[Change]] = field(default_factory=dict)

    def cards(self, names: list[str]) -> list[dict[str, Any]]:
        return [self.card(name) for name in names]

    def card(self, name: str) -> dict[str, Any]:
        archive = self.one if name in self.one or self.two is None else self.two
        made = card(archive[name], self.cells)
        changes = self.changes.get(name)
        if changes and self.two is not None:
            made["changes"] = change_card(changes, self.one, self.two, self.cells)
            if archive is self.one and name in self.two:
                made["after"] = card(self.two[name], self.cells)
        return made


def _page(one: Archive, two: Archive | None, paths: tuple[str, str], progress: Progress | None) -> Iterator[str]:
    names = [*one, *(name for name in two or () if name not in one)]
    found: dict[str, Any] = {"mode": "report", "together": CARDS_TOGETHER, "one": describe(one, paths[0])}
    job = _Job(one, two, cells_for(len(names)))
    if two is not None:
        compared = diff(one, two)
        job.changes = by_tensor(compared)
        found |= {"two": describe(two, paths[1]), "changes": summarize_changes(compared, paths[1])}
        found["changed"] = {i: _short(job.changes[name]) for i, name in enumerate(names) if name in job.changes}
    title = " → ".join(escape(os.path.basename(path) or path) for path in paths if path)  # noqa: PTH119
    before, after = shell("report", f"{title} · tensorglot")
    yield before
    batches = [names[i : i + CARDS_TOGETHER] for i in range(0, len(names), CARDS_TOGETHER)]
    sparks: list[str | None] = []
    odd: list[int] = []
    done, total = 0, sum(found["one"]["nbytes"])
    for i, cards in enumerate(ordered_map(job.cards, batches)):
        odd += [len(sparks) + at for at, made in enumerate(cards) if _is_odd(made)]
        sparks += map(spark, cards)
        yield numbers(f"cards-{i}", cards)
        done += sum(found["one"]["nbytes"][i * CARDS_TOGETHER : (i + 1) * CARDS_TOGETHER])
        if progress is not None:
            progress(done, total)
    yield numbers("page", {**found, "sparks": sparks, "odd": odd})
    yield after


def _short(changes: list[Change]) -> list[Any]:
    """The kinds of a tensor's changes, and the largest share of elements that changed."""
    shares = [change.values.share for change in changes if change.values is not None]
    return [sorted({change.kind for change in changes}), max(shares, default=None)]


def _is_odd(made: dict[str, Any]) -> bool:
    """Whether a tensor deserves a look: NaN, Inf, or values that cannot be read."""
    return any(part.get("nan") or part.get("inf") or part.get("problem") for part in made["parts"])
