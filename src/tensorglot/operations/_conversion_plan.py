"""What a conversion will do, as a value, before it does anything.

A plan is made of what the index of the source says and what the spec of the target
format can hold; no tensor is read. It names every loss: what the target has no place
for. Whether a loss is acceptable is the caller's decision, and none of the plan's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from tensorglot.arguments import check_mapping
from tensorglot.containers.table import UNNAMED, Format
from tensorglot.errors import TensorglotError, escape
from tensorglot.limits import DEFAULT
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME, TABLE, DType
from tensorglot.model.index import UNKNOWN, Layout
from tensorglot.model.payload import place
from tensorglot.model.tensor import human_nbytes
from tensorglot.model.types.algebra import leading
from tensorglot.operations._dequantize import can_dequantize
from tensorglot.operations._patterns import DTypes, Rename, Select, check_dtypes, new_dtype, renamed, selected
from tensorglot.operations.collect import check_name

__all__ = ["Action", "Loss", "LossKind", "Plan", "Step", "make_plan"]

LossKind: TypeAlias = Literal["metadata", "attributes", "checksum", "layout", "dtype", "name"]
Action: TypeAlias = Literal["copy", "decode", "swap", "cast", "dequantize"]
"""The stored bytes as they are, decompressed, in the other byte order, as another type, or as the real values of
quantized ones."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One thing that the target has no place for."""

    kind: LossKind
    message: str
    tensor: str | None = None
    fatal: bool = False
    """The tensor as a whole has no place, and will be left out."""

    @property
    def refused(self) -> bool:
        """Something of the contents is lost. A checksum is none: it has done its work when it has been checked."""
        return self.kind != "checksum"

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "message": self.message, "tensor": self.tensor, "left_out": self.fatal}

    def __str__(self) -> str:
        return str(TensorglotError(self.message, rule=f"convert.{self.kind}", tensor=self.tensor))


@dataclass(frozen=True, slots=True)
class Step:
    """One tensor on its way."""

    source: str
    target: str
    action: Action
    old: str
    new: str
    """Types: of elements, or of the whole value where it is not dense."""
    shape: tuple[int, ...]
    stored_nbytes: int
    """In the source."""
    nbytes: int
    """In the target, before any compression."""
    tied: str | None = None
    """The tensor of the target, earlier on, that has the same bytes in the source."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "target": self.target,
            "action": self.action,
            "old": self.old,
            "new": self.new,
            "shape": list(self.shape),
            "stored_nbytes": self.stored_nbytes,
            "nbytes": self.nbytes,
            "tied": self.tied,
        }


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """Steps, losses and sizes of a conversion."""

    source: str
    target: str
    """Formats."""
    compression: str | None
    checksum: str | None
    metadata: Mapping[str, Any] | None
    steps: tuple[Step, ...]
    losses: tuple[Loss, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of values to be written, before any compression."""
        return sum(step.nbytes for step in self.steps)

    @property
    def stored_nbytes(self) -> int:
        """Bytes of values to be read."""
        return sum(step.stored_nbytes for step in self.steps if step.tied is None)

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "target": self.target,
            "compression": self.compression,
            "checksum": self.checksum,
            "nbytes": self.nbytes,
            "stored_nbytes": self.stored_nbytes,
            "metadata": None if self.metadata is None else sorted(self.metadata),
            "losses": [loss.to_dict() for loss in self.losses],
            "steps": [step.to_dict() for step in self.steps],
        }

    def __repr__(self) -> str:
        lost = f", {len(self.losses)} losses" if self.losses else ""
        return f"Plan({self.source} → {self.target}, {len(self.steps)} tensors, {human_nbytes(self.nbytes)}{lost})"


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """What the caller said."""

    select: Select | None = None
    rename: Rename | None = None
    dtype: DTypes | None = None
    metadata: Mapping[str, Any] | None = None
    compression: str | None = None
    checksum: str | None = None
    sums: bool = False


def make_plan(archive: Archive, spec: Format, version: str, wanted: ConvertOptions) -> Plan:
    """The plan for an archive and a spec of the table of formats."""
    losses: list[Loss] = []
    names = selected(archive.index.names, wanted.select)
    check_dtypes(wanted.dtype, archive.index.names)
    checksum = wanted.checksum
    if checksum is None:
        checksum = _kept_checksum(archive, names, spec, version, wanted.sums, losses)
    metadata = _metadata(archive.metadata if wanted.metadata is None else wanted.metadata, spec, losses)
    columns = _Columns(archive, spec, version, wanted.dtype)
    steps: list[Step] = []
    for old, new in renamed(names, wanted.rename, archive.index.names).items():
        if len(new) > DEFAULT.name_nbytes // 4:
            check_name(new)
        found = list(columns.losses(old))
        if not spec.names:
            found += _unnamed(spec, old, new, bool(steps))
            new = UNNAMED
        losses += found
        if not any(loss.fatal for loss in found):
            steps.append(columns.step(old, new))
    return Plan(
        archive.format,
        f"{spec.name}@{version}",
        wanted.compression,
        checksum,
        metadata,
        tuple(_tied(archive, steps)),
        tuple(losses),
    )


def _unnamed(spec: Format, old: str, new: str, taken: bool) -> Iterator[Loss]:
    """What a format of one tensor without a name loses of a tensor."""
    if taken:
        yield Loss("name", f"{spec.name} has room for one tensor", old, fatal=True)
    elif new != UNNAMED:
        yield Loss("name", f"{spec.name} keeps no name: the tensor is called '{UNNAMED}' when it is read", old)


def _kept_checksum(
    archive: Archive, names: list[str], spec: Format, version: str, sums: bool, losses: list[Loss]
) -> str | None:
    """Checksums go on: the same algorithm where the target has it, else the target's own, else a sidecar."""
    index = archive.index
    if index.checksums is None:
        return None
    rows = (part for name in names for part in index.rows(index.positions[name]))
    first = next((text for part in rows if (text := index.checksums[part]) is not None), None)
    if first is None or (first.startswith("crc32:") and "crc32" not in spec.checksums):
        return None  # nobody asked for the checksums of ZIP: its members have them always
    offered = spec.checksums_in(version)
    if not offered:
        if not sums:
            losses.append(Loss("checksum", f"{spec.name} has no checksums, and the source has"))
        return None
    algorithm = first.partition(":")[0]
    return algorithm if algorithm in offered else offered[0]


def _metadata(metadata: Mapping[str, Any] | None, spec: Format, losses: list[Loss]) -> Mapping[str, Any] | None:
    """The metadata as the target can have it: none, text, or as it is."""
    if metadata is not None:
        check_mapping(metadata, "metadata", "save.metadata")
    if not metadata or spec.metadata == "any":
        return metadata if spec.metadata != "none" else None
    if spec.metadata == "none":
        losses.append(Loss("metadata", f"{spec.name} has no metadata: {', '.join(map(escape, metadata))}"))
        return None
    kept: dict[str, Any] = {}
    for key, value in metadata.items():
        if isinstance(value, str):
            kept[key] = value
            continue
        try:
            kept[key] = json.dumps(value, ensure_ascii=False)
            became = "becomes JSON"
        except (TypeError, ValueError):
            became = "is left out"
        kind = type(value).__name__
        losses.append(Loss("metadata", f"metadata of {spec.name} is text: '{escape(key)}', of {kind}, {became}"))
    return kept


_REAL = BY_NAME["float128"]
"""Stands for real numbers of any type: nobody can ask for this one."""


class _Columns:
    """The columns of an index as lists, which is what makes a plan for 100,000 tensors in a moment."""

    def __init__(self, archive: Archive, spec: Format, version: str, dtype: DTypes | None) -> None:
        self._archive = archive
        self._index = archive.index
        self._spec = spec
        self._dtype = dtype
        self._version = version
        self._held = spec.dtypes_in(version)
        self._dtypes = [None if code == UNKNOWN else TABLE[code] for code in self._index.dtypes.tolist()]
        self._nbytes: list[int] = self._index.nbytes.tolist()
        self._stored: list[int] = (self._index.ends - self._index.begins).tolist()
        self._shapes = self._index.shapes
        self._attributed = set() if spec.attributes else set(self._index.attributes)

    def losses(self, name: str) -> Iterator[Loss]:
        """What the target has no place for of a tensor."""
        index, spec = self._index, self._spec
        position = index.positions[name]
        layout = index.layouts.get(position)
        real = None if layout is None else self._real(name, layout)
        if real is not None:
            if real.name not in self._held:
                yield Loss("dtype", f"{spec.name} has no {real.name}", name, fatal=True)
            return
        if position in self._attributed and index.attributes[position]:
            fields = ", ".join(map(escape, index.attributes[position]))
            yield Loss("attributes", f"{spec.name} has no attributes: {fields}", name)
        if layout is not None and not {layout.name, "*"} & {*spec.layouts}:
            hint = "; a dtype gives its real values" if can_dequantize(layout.name) else ""
            yield Loss("layout", f"{spec.name} has no layout '{escape(layout.name)}'{hint}", name, fatal=True)
            return
        for part in index.rows(position):
            old = self._dtypes[part]
            new = self._new_dtype(name, part) or old
            if new is None:
                unknown = index.unknown_dtypes[part]
                if self._archive.format.partition("@")[0] != spec.name or not spec.keeps(self._version, unknown):
                    yield Loss("dtype", f"{spec.name} has no element type '{escape(unknown)}'", name, fatal=True)
            elif new.name not in self._held:
                yield Loss("dtype", f"{spec.name} has no {new.name}", name, fatal=True)

    def _new_dtype(self, name: str, row: int) -> DType | None:
        return new_dtype(name, self._dtypes[row], self._dtype)

    def _real(self, name: str, layout: Layout) -> DType | None:
        """The type that the real values of a quantized tensor are wanted in, if they are."""
        return new_dtype(name, _REAL, self._dtype) if can_dequantize(layout.name) else None

    def step(self, old: str, new: str) -> Step:
        """What is to be done with a tensor."""
        index = self._index
        position = index.positions[old]
        rows = index.rows(position)
        layout = index.layouts.get(position)
        real = None if layout is None else self._real(old, layout)
        if layout is not None and real is not None:
            shape = leading(layout.type)[0]
            stored = sum(self._stored[row] for row in rows)
            return Step(old, new, "dequantize", layout.name, real.name, shape, stored, real.nbytes(math.prod(shape)))
        if layout is not None:
            type_ = str(layout.type)
            action: Action = "decode" if any(row in index.codecs for row in rows) else "copy"
            stored, nbytes = sum(self._stored[row] for row in rows), sum(self._nbytes[row] for row in rows)
            return Step(old, new, action, type_, type_, (), stored, nbytes)
        row = rows[0]
        was, shape = self._dtypes[row], self._shapes[row]
        becomes = self._new_dtype(old, row)
        before = index.unknown_dtypes[row] if was is None else was.name
        if becomes is not None:
            nbytes = becomes.nbytes(math.prod(shape))
            return Step(old, new, "cast", before, becomes.name, shape, self._stored[row], nbytes)
        action = "decode" if row in index.codecs else "swap" if row in index.big_endian else "copy"
        return Step(old, new, action, before, before, shape, self._stored[row], self._nbytes[row])


def _tied(archive: Archive, steps: list[Step]) -> Iterator[Step]:
    """Steps whose bytes are those of an earlier one know it."""
    index = archive.index
    if index.payloads is None and not index.shares_spans:
        yield from steps
        return
    seen: dict[tuple[object, ...], str] = {}
    for step in steps:
        row = index.rows(index.positions[step.source])[0]
        key = (place(archive.payload(row, step.source)), step.old, step.new, step.shape)
        first = seen.setdefault(key, step.target)
        yield step if first == step.target or not step.nbytes else replace(step, tied=first)
