"""Differences of two archives: names, types, shapes, values, metadata.

A difference is a value, like a problem of `verify`. Formats do not count: the same
tensors in two formats are equal, and what one of the formats cannot store is ignored.
Tensors are read side by side, in bounded memory; many small ones that are equal are found
by the columns of both indexes, before any Tensor is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, TypeAlias

from tensorglot.containers.table import named
from tensorglot.errors import InputError, UnsupportedError, add_tensor_to_errors, escape, plural
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive
from tensorglot.model.tensor import TYPE_ATTRIBUTE, Tensor
from tensorglot.operations._as_archive import TensorsLike, as_archive
from tensorglot.operations._compare import EXACT, Comparison, Tolerance, compare, compare_streams, has_numbers
from tensorglot.operations._dequantize import can_dequantize, real_values
from tensorglot.operations._equal_rows import not_shown_equal
from tensorglot.operations._executor import JOB_NBYTES, name_batches, refer_to, run_jobs
from tensorglot.operations._jsonable import Record, field_dict
from tensorglot.operations._places import locate_each
from tensorglot.operations._progress import Progress, count_off, start_progress
from tensorglot.operations._same_value import same_value
from tensorglot.operations.open import OpenOptions
from tensorglot.threads import Executor, ordered_map

__all__ = ["Change", "Diff", "Kind", "diff", "metadata_changes", "tensor_changes"]

_BATCH_NBYTES = 4 << 20

Kind: TypeAlias = Literal[
    "removed", "added", "layout", "type", "shape", "values", "bits", "unreadable", "attributes", "metadata"
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change(Record):
    """One difference. `old` is of the first archive, `new` of the second."""

    kind: Kind
    tensor: str | None = None
    key: str | None = None
    """The part of a tensor that has several, or the key of the metadata."""
    old: Any = None
    new: Any = None
    values: Comparison | None = None

    def __str__(self) -> str:
        where = "#".join(escape(name, longest=60) for name in (self.tensor, self.key) if name is not None)
        return f"{where}: {self.what}"

    @property
    def what(self) -> str:
        """The change as text, without the tensor's name."""
        if self.kind == "removed":
            return f"only in the first, {self.old}"
        if self.kind == "added":
            return f"only in the second, {self.new}"
        if self.kind == "unreadable":
            return f"cannot be compared: {self.new}"
        if self.values is None:
            return f"{self.kind} {_short(self.old)} → {_short(self.new)}"
        if self.kind == "bits":
            return f"the same numbers, {self.values.bits_only:,} of {self.values.count:,} with different bits"
        return _describe(self.values)


def _describe(values: Comparison) -> str:
    text = f"{values.changed:,} of {values.count:,} elements ({values.share:.2%})"
    if values.largest_absolute:
        text += f", by at most {values.largest_absolute:.6g}, relative {values.largest_relative:.3g}"
    return text + (f", {values.nan:,} NaN on one side" if values.nan else "")


def _short(value: Any) -> str:
    return escape("none" if value is None else str(value), longest=60)


@dataclass(frozen=True, slots=True, repr=False)
class Diff(Record):
    """The result of `diff`."""

    formats: tuple[str, str]
    tensors: int = 0
    """Names in either archive."""
    equal: int = 0
    """Tensors without any change."""
    changes: tuple[Change, ...] = field(default=())

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not self.changes

    def to_dict(self) -> dict[str, Any]:
        return field_dict(self, "same", "formats", "tensors", "equal", "changes")

    def __repr__(self) -> str:
        if self.same:
            return f"Diff(same, {plural(self.tensors, 'tensor')})"
        kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(c.kind for c in self.changes).items())
        tensors = f"{self.tensors - self.equal} of {plural(self.tensors, 'tensor')}"
        return f"Diff({tensors} differ: {kinds}; first: {self.changes[0]})"


def diff(
    a: TensorsLike,
    b: TensorsLike,
    *,
    atol: float = 0.0,
    rtol: float = 0.0,
    executor: Executor | None = None,
    limits: Limits | None = None,
    progress: Progress | bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Diff:
    """Compares two files, archives or mappings of arrays: names, types, shapes, values, metadata.

    Numbers are the same if they differ by at most `atol` plus `rtol` times the larger of
    the two magnitudes. Equal numbers with different bits (0 and -0) are a change only if
    both tolerances are 0. With an `executor` (anything with `submit`), workers compare the
    tensors. `storage_options` apply to the sources that are URLs.
    """
    tolerance = _tolerance(atol, rtol)
    a, b = locate_each(storage_options, a, b)
    options = OpenOptions.of(limits=limits)
    with as_archive(a, options) as one, as_archive(b, options) as two:
        names = _all_names(one.index.names[:], two.index.names[:])
        nbytes = [*one.index.tensor_nbytes.tolist(), *([0] * (len(names) - len(one)))]
        equal, changes = 0, list(metadata_changes(one, two))
        parts, sizes = name_batches(names, nbytes, _BATCH_NBYTES if executor is None else JOB_NBYTES)
        firsts = accumulate(map(len, parts), initial=0)
        if executor is None:
            jobs = zip(parts, firsts, strict=False)
            results = ordered_map(lambda job: tensor_changes(job[0], one, two, tolerance, job[1]), jobs)
        else:
            both = refer_to(a, one, options), refer_to(b, two, options)
            sent = [(part, *both, tolerance, first) for part, first in zip(parts, firsts, strict=False)]
            results = run_jobs(executor, tensor_changes, sent)
        with start_progress(progress, "comparing") as report:
            for part, found in zip(parts, count_off(results, sizes, report), strict=True):
                equal += len(part) - len({change.tensor for change in found})
                changes += found
        return Diff((one.format, two.format), len(names), equal, tuple(changes))


def _all_names(one: Sequence[str], two: Sequence[str]) -> Sequence[str]:
    """The names of the first, followed by the names that only the second has."""
    if one == two:
        return one
    known = set(one)
    return [*one, *(name for name in two if name not in known)]


def tensor_changes(
    names: Sequence[str], one: Archive, two: Archive, tolerance: Tolerance = EXACT, first: int = 0
) -> list[Change]:
    """The changes of some tensors, of which most are equal. `first` is the position of the first in both archives,
    if these have the tensors in the same order."""
    changes: list[Change] = []
    for name in not_shown_equal(one, two, names, first):
        with add_tensor_to_errors(name):
            changes += _find_changes(name, one, two, tolerance)
    return changes


def _tolerance(atol: object, rtol: object) -> Tolerance:
    for name, value in (("atol", atol), ("rtol", rtol)):
        if not isinstance(value, (int, float)) or not value >= 0:
            raise InputError(f"{name} must be a number of at least 0, not {value!r}", rule="diff.tolerance")
    return Tolerance(atol, rtol)  # type: ignore[arg-type]


def metadata_changes(one: Archive, two: Archive) -> Iterator[Change]:
    if _holds(one, "metadata") and _holds(two, "metadata"):
        old, new = one.metadata or {}, two.metadata or {}
        for key in sorted({*old, *new}):
            if key not in old or key not in new or not same_value(old[key], new[key]):
                yield Change("metadata", None, key, *(_present(found, key) for found in (old, new)))


def _present(metadata: Mapping[str, Any], key: str) -> Any:
    """A value, None if there is none; a value that is itself None is the text "null"."""
    value = metadata.get(key)
    return "null" if value is None and key in metadata else value


def _holds(archive: Archive, what: Literal["metadata", "attributes"]) -> bool:
    """Whether the format can store it; for arrays in memory, whether they have any."""
    if archive.format == "memory":
        return archive.metadata is not None if what == "metadata" else bool(archive.index.attributes)
    spec = named(archive.format)[0]
    return spec.attributes if what == "attributes" else spec.metadata != "none"


def _find_changes(name: str, one: Archive, two: Archive, tolerance: Tolerance) -> Iterator[Change]:
    if name not in two:
        yield Change("removed", name, old=str(one[name].type))
        return
    if name not in one:
        yield Change("added", name, new=str(two[name].type))
        return
    x, y = one[name], two[name]
    if _holds(one, "attributes") and _holds(two, "attributes"):
        old, new = _attributes(x), _attributes(y)
        if not same_value(old, new):
            yield Change("attributes", name, old=old, new=new)
    try:
        found = list(_value_changes(x, y, tolerance))
    except UnsupportedError as error:
        yield Change("unreadable", name, new=error.message)
        return
    if found and not x.layout == y.layout == "dense" and _same_value(x, y):
        return
    yield from found


def _attributes(tensor: Tensor) -> dict[str, Any]:
    """The attributes, without the type of a nested tensor: types are compared as types."""
    return {key: value for key, value in tensor.attributes.items() if key != TYPE_ATTRIBUTE}


def _value_changes(x: Tensor, y: Tensor, tolerance: Tolerance) -> Iterator[Change]:
    if x.layout != y.layout:
        yield Change("layout", x.name, old=x.layout, new=y.layout)
        return
    if x.declared is not None and x.type != y.type:
        yield Change("type", x.name, old=str(x.type), new=str(y.type))
    for part in {**x.parts, **y.parts}:
        yield from _part_changes(part, x, y, tolerance)


def _same_value(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors have the same CID: one value may be stored in different parts, or sparse and dense."""
    try:
        return x.type == y.type and x.cid() == y.cid()
    except UnsupportedError:  # a value that cannot be decoded has no identity
        return False


def _part_changes(name: str, x: Tensor, y: Tensor, tolerance: Tolerance) -> Iterator[Change]:
    label = None if x.layout == "dense" else name
    if name not in x.parts or name not in y.parts:
        kind: Kind = "added" if name in y.parts else "removed"
        old, new = (None if name not in tensor.parts else tensor.parts[name].dtype_name for tensor in (x, y))
        yield Change(kind, x.name, name, old, new)
        return
    one, two = x.parts[name], y.parts[name]
    if one.dtype_name != two.dtype_name:
        yield Change("type", x.name, label, one.dtype_name, two.dtype_name)
    if one.shape != two.shape:
        yield Change("shape", x.name, label, list(one.shape), list(two.shape))
        return
    if one.payload is two.payload:
        return
    if one.nbytes != two.nbytes and not (has_numbers(one) and has_numbers(two)):
        yield Change("values", x.name, label, f"{one.nbytes} bytes", f"{two.nbytes} bytes")
        return
    # GGUF's blocks: first the stored bytes, without a tolerance; only if they differ, the real values.
    values = compare(one, two, x.name, EXACT if x.layout.startswith("gguf.") else tolerance)
    if values.changed and x.layout.startswith("gguf.") and can_dequantize(x.layout):
        label, values = None, compare_streams(real_values(x), real_values(y), tolerance)
    if values.changed:
        yield Change("values", x.name, label, values=values)
    elif values.bits_only and not tolerance:
        yield Change("bits", x.name, label, values=values)
