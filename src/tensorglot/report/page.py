"""The numbers and the assets as one HTML file, which makes no request to another host.

Numbers are JSON in inert script elements, in ASCII, with `<` escaped: nothing in a file
can end the element. The page's Content-Security-Policy forbids every request, and every
script but the one whose hash it has. Cards are written as they are computed, and parsed
when they are opened.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias

from tensorglot.errors import escape
from tensorglot.io.place import as_place
from tensorglot.io.sink import Writable
from tensorglot.io.target import open_target
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive
from tensorglot.operations._as_archive import TensorsLike, as_archive
from tensorglot.operations._places import locate, locate_each
from tensorglot.operations._progress import Progress, ProgressCounter, start_progress
from tensorglot.operations.diff import Change, diff
from tensorglot.operations.open import OpenOptions
from tensorglot.report.cards import Cards
from tensorglot.report.changes import by_tensor, in_short, summarize_changes
from tensorglot.report.data import cells_for, describe, spark
from tensorglot.threads import ordered_map

__all__ = ["CARDS_TOGETHER", "Mode", "name_of", "numbers", "opener", "shell", "title_of", "write"]

Mode: TypeAlias = Literal["report", "view", "open"]
"""report: cards are in the page; view: they are requested from the server; open: the browser reads dropped files."""

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


def title_of(*paths: str) -> str:
    """The title of a page of one file or two."""
    names = " → ".join(escape(os.path.basename(path) or path) for path in paths if path)  # noqa: PTH119
    return f"{names} · tensorglot"


def numbers(identifier: str, value: Any) -> str:
    """A value as an inert element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{identifier}">{text}</script>\n'


def opener(target: Writable, *, storage_options: Mapping[str, Any] | None = None) -> int:
    """Writes a page that opens files dropped on it: the browser reads their headers, and sends nothing anywhere.

    Returns its size.
    """
    before, after = shell("open", "tensorglot")
    return _write([before, numbers("page", {"mode": "open"}), after], locate(target, storage_options))


def name_of(source: TensorsLike) -> str:
    """The name of a source on the page."""
    if isinstance(source, (str, os.PathLike)):
        return as_place(source).shown
    path = getattr(getattr(source, "source", None), "path", None)
    return path if isinstance(path, str) else "(memory)"


def write(
    source: TensorsLike,
    target: Writable,
    *,
    other: TensorsLike | None = None,
    format: str | None = None,
    progress: Progress | bool | None = None,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Writes the report of a file, or of what changed from one to another, atomically. Returns its size.

    `storage_options` are for whichever of the three is a URL.
    """
    source, other, target = locate_each(storage_options, source, other, target)
    options = OpenOptions.of(format, limits=limits)
    with (
        as_archive(source, options) as one,
        as_archive(other, options._replace(format=None)) if other is not None else nullcontext() as two,
        start_progress(progress, "reading") as report,
    ):
        names = (name_of(source), name_of(other) if other is not None else "")
        return _write(_page(one, two, names, report), target)


def _write(texts: Iterable[str], target: Writable) -> int:
    with open_target(target) as file:
        return file.write(map(str.encode, texts))


def _page(one: Archive, two: Archive | None, paths: tuple[str, str], progress: Progress | None) -> Iterator[str]:
    found: dict[str, Any] = {"mode": "report", "together": CARDS_TOGETHER, "one": describe(one, paths[0])}
    changes: dict[str, list[Change]] = {}
    names = Cards(one, two, 0).names
    if two is not None:
        compared = diff(one, two)
        changes = by_tensor(compared)
        found |= {"two": describe(two, paths[1]), "changes": summarize_changes(compared)}
        found["changed"] = {i: in_short(changes[name]) for i, name in enumerate(names) if name in changes}
    cards = Cards(one, two, cells_for(len(names)), changes)
    before, after = shell("report", title_of(*paths))
    yield before
    batches = [names[i : i + CARDS_TOGETHER] for i in range(0, len(names), CARDS_TOGETHER)]
    sparks: list[str | None] = []
    odd: list[int] = []
    nbytes = found["one"]["nbytes"]
    count = ProgressCounter(progress, sum(nbytes))
    for i, batch in enumerate(ordered_map(lambda names: [cards.card(name) for name in names], batches)):
        odd += [len(sparks) + at for at, made in enumerate(batch) if _is_odd(made)]
        sparks += map(spark, batch)
        yield numbers(f"cards-{i}", batch)
        count(sum(nbytes[i * CARDS_TOGETHER : (i + 1) * CARDS_TOGETHER]))
    yield numbers("page", {**found, "sparks": sparks, "odd": odd})
    yield after


def _is_odd(made: dict[str, Any]) -> bool:
    """Whether a tensor of either file has NaN, Inf, or values that cannot be read: the summary of the page lists it."""
    parts = [*made["parts"], *made.get("after", {}).get("parts", ())]
    return any(part.get("nan") or part.get("inf") or part.get("problem") for part in parts)
