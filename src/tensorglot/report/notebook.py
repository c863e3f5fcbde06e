"""Values in a notebook: the HTML of an archive, a tensor, and of the results of verbs.

Each is a small table with the styles of the notebook, numbers aligned to the right, and
one line above it. All text from files is escaped twice: unprintable characters as
elsewhere (`escape`), then for HTML. Reads an index, never a value. A table has a bounded
number of rows.
"""

from __future__ import annotations

import html as markup
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from tensorglot.errors import escape, human_nbytes, plural
from tensorglot.model.archive import Archive
from tensorglot.model.tensor import TYPE_ATTRIBUTE, Tensor
from tensorglot.operations._cells import bars, number
from tensorglot.operations.convert import Conversion
from tensorglot.operations.diff import Diff
from tensorglot.operations.identify import Identity
from tensorglot.operations.stats import Stats
from tensorglot.operations.verify import Report

__all__ = ["html", "table"]

NUMBERS = {"size", "min", "50%", "max", "mean", "std", "norm", "zeros", "NaN", "Inf"}
"""Columns that are aligned to the right; notebooks align all cells alike."""
ROWS = 30
"""Rows of a table; the line below it says how many more there are."""


def html(value: Any) -> str:
    """The HTML of a value of the library."""
    for kind, render in _RENDERERS:
        if isinstance(value, kind):
            return str(render(value))
    return _fields(type(value).__name__, _public(value))


def _text(value: object) -> str:
    return markup.escape(escape(str(value)))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], count: int) -> str:
    """A table of the first rows, and how many there are in all."""
    head = "".join(_cells("th", columns, columns))
    body = "".join("<tr>" + "".join(_cells("td", columns, row)) + "</tr>" for row in islice(rows, ROWS))
    more = f"<p>… {count - ROWS:,} more</p>" if count > ROWS else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if count else ""
    return f"<div><p><b>{_text(title)}</b></p>{table}{more}</div>"


def _cells(tag: str, columns: Sequence[str], row: Sequence[object]) -> Iterator[str]:
    for column, cell in zip(columns, row, strict=True):
        style = "text-align: right; white-space: nowrap" if column in NUMBERS else "text-align: left"
        yield f'<{tag} style="{style}">{_text(cell)}</{tag}>'


def _fields(title: str, fields: dict[str, object]) -> str:
    return table(title, ("", ""), fields.items(), len(fields))


def _public(value: Any) -> dict[str, object]:
    """The fields of a dataclass that are not empty; numbers of bytes with their unit."""
    fields: dict[str, object] = {}
    for name in value.__dataclass_fields__:
        found = getattr(value, name)
        if name.endswith("_nbytes"):
            fields[name.removesuffix("_nbytes")] = human_nbytes(found)
        elif found not in (None, "", ()):
            fields[name] = ", ".join(map(str, found)) if isinstance(found, tuple) else found
    return fields


def _archive(archive: Archive) -> str:
    if archive.source is None and not archive.index.sources and archive.index.payloads is None:
        return table(f"Archive, {archive.format}, closed", (), (), 0)
    nbytes = int(archive.index.nbytes.sum())
    title = f"{archive.format}: {plural(len(archive), 'tensor')}, {human_nbytes(nbytes)}"
    if archive.metadata:
        title += f", {plural(len(archive.metadata), 'metadata key')}"
    tensors = [archive.tensor_at(i) for i in range(min(ROWS, len(archive)))]
    columns: tuple[str, ...] = ("name", "type", "shape", "size", "encoding")
    if all(tensor.encoding in ("raw", "joined") for tensor in tensors):
        columns = columns[:-1]
    return table(title, columns, (_tensor_cells(tensor)[: len(columns)] for tensor in tensors), len(archive))


def _tensor_cells(tensor: Tensor) -> tuple[object, ...]:
    return _name(tensor.name), _kind(tensor), list(tensor.shape), human_nbytes(tensor.nbytes), tensor.encoding


def _name(name: str) -> str:
    """A name in a table. An empty name is shown as '', as in errors."""
    return name or "''"


def _kind(tensor: Tensor) -> str:
    part = tensor.parts.get("data") if tensor.layout == "dense" else None
    return f"{tensor.layout} {tensor.type}" if part is None else part.dtype_name


def _tensor(tensor: Tensor) -> str:
    fields = {
        "type": tensor.type,
        "shape": list(tensor.shape),
        "size": human_nbytes(tensor.nbytes),
        "layout": tensor.layout,
        "encoding": tensor.encoding,
        "checksum": tensor.checksum or "none",
        **{key: value for key, value in tensor.attributes.items() if key != TYPE_ATTRIBUTE},
    }
    return _fields(f"Tensor {escape(_name(tensor.name))}", fields)


def _diff(found: Diff) -> str:
    if found.same:
        return table(f"the same: {plural(found.tensors, 'tensor')}", (), (), 0)
    title = f"{found.tensors - found.equal:,} of {plural(found.tensors, 'tensor')} differ"
    rows = (
        (
            _name("#".join(name for name in (change.tensor, change.key) if name is not None)),
            change.kind,
            change.what.removeprefix(f"{change.kind} "),
        )
        for change in found.changes
    )
    return table(title, ("name", "change", "difference"), rows, len(found.changes))


def _report(report: Report) -> str:
    title = repr(report) if report.ok else plural(len(report.problems), "problem")
    rows = (
        (problem.rule, "" if problem.tensor is None else _name(problem.tensor), problem.message)
        for problem in report.problems
    )
    return table(title, ("rule", "tensor", "problem"), rows, len(report.problems))


def _conversion(report: Conversion) -> str:
    if not report.losses or not report.ok:
        return _report(report)
    title = repr(report).partition(":")[0] + ")"
    rows = ((loss.kind, "" if loss.tensor is None else _name(loss.tensor), loss.message) for loss in report.losses)
    return table(title, ("loss", "tensor", "why"), rows, len(report.losses))


def _stats(stats: Stats) -> str:
    columns = ("name", "min", "50%", "max", "mean", "std", "norm", "zeros", "NaN", "Inf", "histogram")
    rows = (
        (
            _name(row.name) if row.part == "data" else f"{row.name}#{row.part}",
            *map(number, (row.min, (row.percentiles or {}).get("50"), row.max, row.mean, row.std, row.norm)),
            f"{row.zeros:,}",
            f"{row.nan:,}",
            f"{row.inf:,}",
            bars(row.histogram),
        )
        for row in stats.rows
    )
    return table(repr(stats), columns, rows, len(stats.rows))


def _identity(identity: Identity) -> str:
    rows = [
        *((_name(name), cid) for name, cid in identity.tensors.items()),
        *((_name(problem.tensor or ""), problem.message) for problem in identity.problems),
    ]
    return table(f"{identity.cid}: {plural(len(identity.tensors), 'tensor')}", ("name", "CID"), rows, len(rows))


_RENDERERS: tuple[tuple[type, Any], ...] = (
    (Archive, _archive),
    (Tensor, _tensor),
    (Diff, _diff),
    (Stats, _stats),
    (Conversion, _conversion),
    (Report, _report),
    (Identity, _identity),
)
