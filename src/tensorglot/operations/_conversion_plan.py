"""The plan of a conversion: what will be done with each tensor, and what will be lost.

It is computed from the index of the source and the spec of the target format; no tensor
is read. A loss is something that the target cannot store; the caller decides whether it
is acceptable.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from tensorglot.arguments import check_mapping
from tensorglot.containers.table import UNNAMED, Format, holders_of, shape_faults
from tensorglot.errors import Hint, InputError, UnsupportedError, escape, human_nbytes, plural
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME, TABLE
from tensorglot.model.index import UNKNOWN, Index
from tensorglot.model.layouts import DESCRIPTION, SPARSE, user_attributes
from tensorglot.model.payload import Encoded, Undecodable
from tensorglot.model.types.algebra import leading
from tensorglot.operations._dequantize import can_dequantize
from tensorglot.operations._jsonable import Record, field_dict
from tensorglot.operations._options import AUTO, Choice, SaveOptions, keep_checksums
from tensorglot.operations._patterns import (
    DTypes,
    NewDType,
    Rename,
    Schemes,
    Select,
    by_pattern,
    rename_all,
    select_names,
    settle_dtypes,
)
from tensorglot.operations.quantize import Scheme, scheme_fault, scheme_of

__all__ = ["Action", "ConvertOptions", "Loss", "LossKind", "Plan", "Step", "make_plan"]

LossKind: TypeAlias = Literal[
    "metadata", "attributes", "checksum", "ties", "layout", "dtype", "encoding", "name", "shape"
]  # fmt: skip
Action: TypeAlias = Literal["copy", "decode", "swap", "cast", "dequantize", "quantize"]
"""Keep the stored bytes, decompress them, swap their byte order, change their type, compute the real values, or round
them to small integers with scales."""


@dataclass(frozen=True, slots=True)
class Loss(Record):
    """One thing that the target cannot store."""

    kind: LossKind
    message: str
    tensor: str | None = None
    fatal: bool = False
    """The whole tensor cannot be stored and is left out."""
    hint: Hint | None = None

    @property
    def refused(self) -> bool:
        """Whether contents are lost. A checksum has been compared by then, and ties lose only their sharing."""
        return self.kind not in ("checksum", "ties")

    def to_dict(self) -> dict[str, Any]:
        return {**field_dict(self, "kind", "message", "tensor"), "left_out": self.fatal}

    def __str__(self) -> str:
        return str(self.error)

    @property
    def error(self) -> UnsupportedError:
        """What refuses it, and describes it for both interfaces."""
        return UnsupportedError(self.message, rule=f"convert.{self.kind}", tensor=self.tensor, hint=self.hint)


@dataclass(slots=True, unsafe_hash=True)
class Step(Record):
    """What will be done with one tensor.

    Never modified. It is not `frozen`, because setting each field by a call would be a sixth of
    the instructions for a small tensor.
    """

    source: str
    target: str
    action: Action
    old: str
    new: str
    """Types: of elements, or of the whole value where it is not dense."""
    shape: tuple[int, ...]
    stored_nbytes: int
    """Bytes in the source."""
    nbytes: int
    """Bytes in the target, before any compression."""
    tied: str | None = None
    """An earlier tensor of the target that has the same bytes in the source."""
    scheme: str | None = None
    """How the tensor is quantized."""


@dataclass(frozen=True, slots=True, repr=False)
class Plan(Record):
    """Steps, losses and sizes of a conversion."""

    source: str
    target: str
    """Formats."""
    save: SaveOptions
    """Options for writing; if the caller chose no checksum, each tensor has the algorithm that it has in the source."""
    metadata: Mapping[str, Any] | None
    steps: tuple[Step, ...]
    losses: tuple[Loss, ...]

    @property
    def compression(self) -> Choice:
        return self.save.compression

    @property
    def checksum(self) -> Choice:
        return self.save.checksum

    @property
    def nbytes(self) -> int:
        """Bytes of values to be written, before any compression."""
        return sum(step.nbytes for step in self.steps)

    @property
    def stored_nbytes(self) -> int:
        """Bytes of values to be read."""
        return sum(step.stored_nbytes for step in self.steps if step.tied is None)

    def to_dict(self) -> dict[str, Any]:
        metadata = None if self.metadata is None else sorted(self.metadata)
        sizes = field_dict(self, "source", "target", "compression", "checksum", "nbytes", "stored_nbytes")
        return {**sizes, "metadata": metadata, **field_dict(self, "losses", "steps")}

    def __repr__(self) -> str:
        lost = f", {plural(len(self.losses), 'loss', 'losses')}" if self.losses else ""
        tensors = plural(len(self.steps), "tensor")
        return f"Plan({self.source} → {self.target}, {tensors}, {human_nbytes(self.nbytes)}{lost})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertOptions:
    """The caller's options for the tensors; `save` has those for writing."""

    select: Select | None = None
    rename: Rename | None = None
    dtype: DTypes | None = None
    quantize: Schemes | None = None
    metadata: Mapping[str, Any] | None = None
    sums: bool = False
    save: SaveOptions = field(default_factory=SaveOptions)


def make_plan(archive: Archive, spec: Format, version: str, options: ConvertOptions) -> Plan:
    """The plan for an archive and the spec of the target's format."""
    losses: list[Loss] = []
    index = archive.index
    every = list(index.positions)
    names = select_names(every, options.select)
    new_names = rename_all(names, options.rename, every)
    new_dtype = None if options.dtype is None else settle_dtypes(options.dtype, every)
    save = options.save
    automatic = isinstance(save.checksum, str) and save.checksum == AUTO
    metadata = index.metadata if options.metadata is None else options.metadata
    metadata = _expressible_metadata(metadata, spec, version, losses)
    schemes = _settle_schemes(index, names, every, options.quantize)
    planner = _Planner(archive, spec, version, new_dtype, schemes)
    if automatic and not spec.checksums_in(version):
        automatic, save = False, save._replace(checksum=None)
        losses += () if options.sums else planner.find_checksum_losses(names)
    steps: list[Step] = []
    for old, new in new_names.items():
        step = planner.make_step(old, new if spec.names else UNNAMED)
        found = list(planner.find_losses(step, new))
        if not spec.names:
            found += _name_losses(spec, old, new, bool(steps))
        losses += found
        if not any(loss.fatal for loss in found):
            steps.append(step)
    if len(steps) < len(new_names):
        save = _choices_of_kept(save, list(new_names.values()), {step.target for step in steps})
    steps = _with_ties(archive, steps)
    if automatic:
        kept = keep_checksums(index, spec, version)
        chosen = {step.target: kept.of(step.source) for step in steps} if kept.exceptions else kept.default
        save = save._replace(checksum=chosen)
    if not spec.ties:
        losses += [
            Loss(
                "ties",
                f"{spec.name} cannot share bytes between tensors: stored separately from '{escape(step.tied)}'",
                step.source,
            )
            for step in steps
            if step.tied is not None
        ]
    return Plan(index.format, f"{spec.name}@{version}", save, metadata, tuple(steps), tuple(losses))


def _choices_of_kept(save: SaveOptions, names: list[str], kept: set[str]) -> SaveOptions:
    """Choices by name for the tensors that are not left out; a pattern may match only those that are."""
    compression, checksum = (
        {name: choice for name, choice in by_pattern(chosen, names).items() if name in kept}
        if isinstance(chosen, Mapping)
        else chosen
        for chosen in (save.compression, save.checksum)
    )
    return save._replace(compression=compression, checksum=checksum)


def _name_losses(spec: Format, old: str, new: str, taken: bool) -> Iterator[Loss]:
    """Losses of a tensor in a format that stores one tensor without a name."""
    if taken:
        yield Loss("name", f"{spec.name} stores one tensor only", old, fatal=True)
    elif new != UNNAMED:
        yield Loss("name", f"{spec.name} stores no names: the tensor will be read as '{UNNAMED}'", old)


def _expressible_metadata(
    metadata: Mapping[str, Any] | None, spec: Format, version: str, losses: list[Loss]
) -> Mapping[str, Any] | None:
    """The metadata that the target can store: none, text, or any values."""
    if metadata is not None:
        check_mapping(metadata, "metadata", "save.metadata")
    if metadata and spec.metadata == "any":
        faults = spec.container.metadata_faults(metadata, version)
        losses += [
            Loss("metadata", f"{spec.name} cannot store the metadata '{escape(key)}': {fault}")
            for key, fault in faults.items()
        ]
        return {key: value for key, value in metadata.items() if key not in faults}
    if not metadata:
        return metadata if spec.metadata != "none" else None
    if spec.metadata == "none":
        losses.append(Loss("metadata", f"{spec.name} cannot store metadata: {', '.join(map(escape, metadata))}"))
        return None
    kept: dict[str, Any] = {}
    for key, value in metadata.items():
        if isinstance(value, str):
            kept[key] = value
            continue
        try:
            kept[key] = json.dumps(value, ensure_ascii=False, allow_nan=False)
            became = "becomes JSON text"
        except (TypeError, ValueError):
            became = "is left out"
        kind = type(value).__name__
        losses.append(
            Loss("metadata", f"{spec.name} stores only text as metadata: '{escape(key)}', of type {kind}, {became}")
        )
    return kept


def _settle_schemes(index: Index, names: list[str], every: list[str], quantize: Schemes | None) -> dict[str, Scheme]:
    """The scheme of each selected tensor that is to be quantized.

    A single scheme is for the dense matrices that it fits. One by name or pattern is for all
    tensors that match, and one that does not fit is an error.
    """
    if quantize is None:
        return {}
    if isinstance(quantize, Mapping):
        by_name = {name: scheme_of(text, name) for name, text in by_pattern(quantize, every).items()}
    else:
        by_name = dict.fromkeys(names, scheme_of(quantize))
    chosen: dict[str, Scheme] = {}
    for name in names:
        if name not in by_name:
            continue
        position = index.positions[name]
        row, layout = index.rows(position)[0], index.layouts.get(position)
        shape = index.shape(row) if layout is None else leading(layout.type)[0]
        fault = scheme_fault(by_name[name], index.dtype(row), "dense" if layout is None else layout.name, shape)
        if fault is None and (isinstance(quantize, Mapping) or (layout is None and len(shape) > 1)):
            chosen[name] = by_name[name]
        elif isinstance(quantize, Mapping):
            raise InputError(f"cannot quantize to {by_name[name].name}: {fault}", rule="quantize.value", tensor=name)
    return chosen


_REAL = BY_NAME["float128"]
"""Stands for the element type of dequantized values, which is any real type, when a new type is looked up.

No caller can request float128 itself, so it never equals the new type."""


class _Planner:
    """The columns of an index as lists: fast enough to plan 100,000 tensors."""

    def __init__(
        self, archive: Archive, spec: Format, version: str, new_dtype: NewDType | None, schemes: Mapping[str, Scheme]
    ) -> None:
        self._archive = archive
        self._index = index = archive.index
        self._encoded = bool(index.codecs) or index.payloads is not None
        self._tensor_fault = spec.container.tensor_fault
        self._shape_faults = shape_faults(index)
        self._schemes = schemes
        self._format = index.format.partition("@")[0]
        self._spec = spec
        self._version = version
        self._held = spec.dtypes_in(version)
        self._new_dtype = new_dtype
        self._positions = index.positions
        self._first_rows: list[int] = index.row_offsets.tolist()
        self._nbytes: list[int] = index.nbytes.tolist()
        self._shapes = index.shapes
        self._stored: list[int] = (index.ends - index.begins).tolist()
        self._dtypes = [None if code == UNKNOWN else TABLE[code] for code in index.dtypes.tolist()]

    def _rows(self, position: int) -> range:
        return range(self._first_rows[position], self._first_rows[position + 1])

    def find_checksum_losses(self, names: list[str]) -> Iterator[Loss]:
        """One loss if the source was given checksums, for a target that stores none."""
        checksums = self._index.checksums
        rows = (row for name in names for row in self._rows(self._positions[name]))
        texts = () if checksums is None else (checksums[row] for row in rows)
        algorithm = next((text.partition(":")[0] for text in texts if text is not None), None)
        if algorithm not in (None, "crc32"):  # every ZIP member has a crc32, whether it was asked for or not
            target = self._spec.name
            hint = Hint("a sidecar can: pass sums=True", "a sidecar can: pass --sums")
            yield Loss("checksum", f"{target} cannot store the checksums of the source", hint=hint)

    def make_step(self, old: str, new: str) -> Step:
        """What will be done with a tensor, whether the target can store the result or not."""
        index, position = self._index, self._positions[old]
        rows, layout, scheme = self._rows(position), index.layouts.get(position), self._schemes.get(old)
        stored = sum(self._stored[row] for row in rows)
        if scheme is not None:
            shape = self._shapes[rows[0]] if layout is None else leading(layout.type)[0]
            before = index.dtype_name(rows[0]) if layout is None else layout.name
            nbytes = sum(dtype.nbytes(math.prod(dims)) for dtype, dims in scheme.shapes(shape).values())
            return Step(old, new, "quantize", before, scheme.layout, shape, stored, nbytes, scheme=scheme.name)
        values = self._values_row(position)
        dtype = None if values is None else self._dtypes[values]
        if values is None and layout is not None and can_dequantize(layout.name):
            dtype = _REAL
        becomes = self._new_dtype and self._new_dtype(old, dtype)
        if becomes is not None and values is not None:
            shape = self._shapes[values] if layout is None else leading(layout.type)[0]
            nbytes = becomes.nbytes(math.prod(self._shapes[values]))
            nbytes += sum(self._nbytes[row] for row in rows if row != values)
            return Step(old, new, "cast", index.dtype_name(values), becomes.name, shape, stored, nbytes)
        if layout is None:
            row = rows[0]
            before = index.unknown_dtypes[row] if dtype is None else dtype.name
            action: Action = "decode" if row in index.codecs else "swap" if row in index.big_endian else "copy"
            return Step(old, new, action, before, before, self._shapes[row], stored, self._nbytes[row])
        if becomes is not None:
            shape = leading(layout.type)[0]
            nbytes = becomes.nbytes(math.prod(shape))
            return Step(old, new, "dequantize", layout.name, becomes.name, shape, stored, nbytes)
        type_ = str(layout.type)
        action = "decode" if any(row in index.codecs for row in rows) else "copy"
        return Step(old, new, action, type_, type_, (), stored, sum(self._nbytes[row] for row in rows))

    def find_losses(self, step: Step, new_name: str) -> Iterable[Loss]:
        """What the target cannot store of a tensor; of one that is left out, only the reasons for that."""
        position = self._positions[step.source]
        fatal = list(self._type_losses(step, position))
        if not fatal and self._encoded:
            fatal = list(self._encoding_losses(step, position))
        if not fatal and (self._shape_faults or self._tensor_fault is not None):
            fatal = list(self._other_fault(step, position, new_name))
        if not fatal and position in self._index.attributes:
            return self._attribute_losses(step, position)
        return fatal

    def _type_losses(self, step: Step, position: int) -> Iterator[Loss]:
        """Losses of a tensor whose layout or element type the target cannot store."""
        spec, layout, name = self._spec, self._index.layouts.get(position), step.source
        if step.action == "quantize":
            if not spec.holds_layout(step.new):
                yield Loss("layout", f"{spec.name} cannot store '{step.new}'", name, fatal=True)
            return
        if step.action == "dequantize":
            if step.new not in self._held:
                yield Loss("dtype", f"{spec.name} cannot store {step.new}", name, fatal=True)
            return
        if layout is not None and not spec.holds_layout(layout.name):
            what = f"{spec.name} cannot store layout '{escape(layout.name)}'{holders_of(layout.name)}"
            hint = "; cast it to a float type to convert its real values" if can_dequantize(layout.name) else ""
            yield Loss("layout", what + hint, name, fatal=True)
            return
        if layout is not None and layout.name.startswith(f"{spec.name}."):
            return  # the format's own layout: its parts are not tensors there and need no element type of the format
        cast = self._values_row(position) if step.action == "cast" else None
        for row in self._rows(position):
            dtype = self._dtypes[row]
            if dtype is None:
                unknown = self._index.unknown_dtypes[row]
                if self._format != spec.name or not spec.container.keeps(self._version, unknown):
                    yield Loss("dtype", f"{spec.name} cannot store element type '{escape(unknown)}'", name, fatal=True)
            elif (new := step.new if row == cast else dtype.name) not in self._held:
                yield Loss("dtype", f"{spec.name} cannot store {new}", name, fatal=True)

    def _encoding_losses(self, step: Step, position: int) -> Iterator[Loss]:
        """The loss of a tensor whose stored bytes can neither be decoded nor be copied."""
        codecs, payloads = self._index.codecs, self._index.payloads
        for row in self._rows(position):
            held = None if payloads is None else payloads[row]
            codec = held.codec if isinstance(held, Encoded) else codecs.get(row)
            if not isinstance(codec, Undecodable):
                continue
            if not self._spec.container.copies(codec) or step.action not in ("copy", "decode"):
                payload = self._archive.payload(row, step.source)
                assert isinstance(payload, Encoded)  # noqa: S101
                yield Loss("encoding", codec.refuse(payload).message, step.source, fatal=True)
                return

    def _other_fault(self, step: Step, position: int, new_name: str) -> Iterator[Loss]:
        """The loss of a tensor whose name or shape the target cannot store."""
        layout, row = self._index.layouts.get(position), self._first_rows[position]
        fault = next((self._shape_faults[row] for row in self._rows(position) if row in self._shape_faults), None)
        if fault is None and self._tensor_fault is not None:
            shape = self._shapes[row] if layout is None else leading(layout.type)[0]
            dtype = BY_NAME[step.new] if step.action == "cast" else self._dtypes[row]
            fault = self._tensor_fault(new_name, shape, dtype if layout is None else None, self._version)
        if fault is not None:
            message = f"{self._spec.name} cannot store the tensor: {fault.message}"
            yield Loss("name" if fault.rule == "name" else "shape", message, step.source, fatal=True)

    def _values_row(self, position: int) -> int | None:
        """The row with the values of the tensor: its only row if it is dense, the part `values` if it is sparse."""
        layout, rows = self._index.layouts.get(position), self._rows(position)
        if layout is None:
            return rows[0]
        names = self._index.part_names
        return rows[list(names[rows.start : rows.stop]).index("values")] if layout.name in SPARSE and names else None

    def _attribute_losses(self, step: Step, position: int) -> Iterator[Loss]:
        index, spec, name = self._index, self._spec, step.source
        own = user_attributes(index, position)
        if not spec.attributes:
            if own:
                fields = ", ".join(map(escape, own))
                yield Loss("attributes", f"{spec.name} cannot store attributes: {fields}", name)
            return
        if step.action == "quantize":
            for key in [key for key in own if key in DESCRIPTION.get(step.new, ())]:
                yield Loss("attributes", f"the attribute '{key}' describes how the tensor is quantized", name)
        dense = step.action == "dequantize" or (step.action != "quantize" and position not in index.layouts)
        attributes = {key: index.attributes[position][key] for key in own}
        dtype = step.new if dense else None  # only a dense tensor has one
        for key, fault in spec.container.attribute_faults(attributes, dtype, self._version).items():
            yield Loss("attributes", f"{spec.name} cannot store the attribute '{escape(key)}': {fault}", name)


def _with_ties(archive: Archive, steps: list[Step]) -> list[Step]:
    """Marks each step that has the same bytes and the same new type as an earlier one."""
    ties = archive.find_ties()
    if not ties:
        return steps
    positions = archive.index.positions
    seen: dict[tuple[int, str, str | None], str] = {}
    tied: list[Step] = []
    for step in steps:
        position = positions[step.source]
        first = seen.setdefault((ties.get(position, position), step.new, step.scheme), step.target)
        tied.append(step if first == step.target else replace(step, tied=first))
    return tied
