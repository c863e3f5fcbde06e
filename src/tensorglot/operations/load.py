"""Loading whole archives into memory, as fast as the machine allows.

Large tensors get memory of their own; small neighbours share slabs, each read at
once. All reads go to a pool of threads, in file order; of a large tensor in several
compressed frames, each frame by itself. Checksums are compared on the way. Then the
arrays are made as views; a run of equal shapes is one array that is taken apart, which
costs a fraction of making each. What is no array comes as a Tensor in memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.arguments import as_names, check_mapping
from tensorglot.errors import InputError, TensorNotFound, TruncatedError, UnsupportedError
from tensorglot.io.local import Backend, Readable
from tensorglot.limits import Limits
from tensorglot.memory import allocate
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME, TABLE, dtype_of
from tensorglot.model.index import Index, Placement, permuted, placed
from tensorglot.model.payload import Encoded, Memory, Source, Threaded, as_bytes
from tensorglot.model.strided import Strided
from tensorglot.model.tensor import NESTED, NUMPY_RANK, Part, Tensor, check_bool, check_out
from tensorglot.model.types.algebra import Bytes, String, TypeType
from tensorglot.operations._checksums import RowChecks, row_checks
from tensorglot.operations._outputs import output_arrays
from tensorglot.operations._reads import BATCH, Piece, Runs, fill
from tensorglot.operations.open import Verify, open
from tensorglot.providers import provided
from tensorglot.threads import for_each

__all__ = ["load", "loads"]

Framework: TypeAlias = Literal["numpy", "torch", "jax", "awkward"]

ALONE_NBYTES = 4 << 20
"""From here on a tensor has memory of its own."""
SLAB_NBYTES = 32 << 20
"""Smaller ones share memory up to about this size, so that keeping one keeps no more than that."""
_ALIGNMENT = 64


def load(
    source: Readable,
    *,
    names: Iterable[str] | None = None,
    out: Mapping[str, Any] | None = None,
    threads: int | None = None,
    framework: Framework = "numpy",
    format: str | None = None,
    backend: Backend = "auto",
    strict: bool = False,
    verify: Verify = "auto",
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All tensors of a file, or those of `names`, as arrays in memory of their own.

    They are NumPy arrays, or with `framework="torch"`, `"jax"` or `"awkward"` values of
    that library. What is no NumPy array (ragged and nested values, sparse and quantized
    tensors, elements that are not known here) comes as a `Tensor` in memory; PyTorch and
    JAX have no place for those, and the first of them is an error. `out` has arrays, or
    tensors of PyTorch on the CPU, to read into, by name; they are returned for those
    names, and must not share memory with each other.
    """
    convert = provided("bridges.framework")(framework)
    if out is not None:
        check_mapping(out, "out", "load.out")
    if threads is not None and (not isinstance(threads, int) or threads < 1):
        raise InputError(f"threads must be a positive integer, not {threads!r}", rule="load.threads")
    with open(
        source,
        format=format,
        backend=backend,
        strict=strict,
        verify=verify,
        limits=limits,
        storage_options=storage_options,
    ) as archive:
        given = output_arrays(out or {})
        loaded = _load(archive, _rows(archive.index, names), given, threads)
    values: dict[str, Any] = {**loaded, **(out or {})}
    for name, value in loaded.items() if framework != "numpy" else ():
        if name not in given:
            values[name] = _exported(name, value, framework, convert)
    return values


def _exported(
    name: str, value: NDArray[Any] | Tensor, framework: Framework, convert: Callable[[str, NDArray[Any]], Any]
) -> Any:
    """What a value of a file is in another library."""
    if framework == "awkward":
        tensor = value if isinstance(value, Tensor) else Tensor.of_array(name, value, dtype_of(value.dtype, name))
        try:
            return tensor.awkward()
        except UnsupportedError as error:
            error.tensor = name
            raise
    if isinstance(value, Tensor):
        raise UnsupportedError(
            f"{value!r} is not an array and cannot be converted to {framework}: pass framework='numpy' for a Tensor, "
            "or names= without it",
            rule="load.framework",
            tensor=name,
        )
    return convert(name, value)


def _load(
    archive: Archive, rows: NDArray[np.int64], out: Mapping[str, NDArray[Any]], threads: int | None
) -> dict[str, NDArray[Any] | Tensor]:
    if _all_direct(archive.index, rows, out) and _all_plain(archive):
        loaded: dict[str, NDArray[Any] | Tensor] = {}
        checks = row_checks(archive)
        for held, its_rows in _by_source(archive, rows):
            loaded |= _load_plain(archive.index, held, its_rows, out, threads, checks)
        return loaded
    return _load_each(archive, rows, out, threads)


def loads(
    data: bytes | bytearray | memoryview,
    *,
    names: Iterable[str] | None = None,
    out: Mapping[str, Any] | None = None,
    threads: int | None = None,
    framework: Framework = "numpy",
    format: str | None = None,
    strict: bool = False,
    verify: Verify = "auto",
    limits: Limits | None = None,
) -> dict[str, Any]:
    """All tensors of a file that is in memory, as `load` gives those of a file."""
    if isinstance(data, (str, os.PathLike)) or hasattr(data, "read"):
        raise InputError(f"loads takes bytes, not {type(data).__name__}; use load for a file", rule="loads.data")
    return load(
        data,
        names=names,
        out=out,
        threads=threads,
        framework=framework,
        format=format,
        strict=strict,
        verify=verify,
        limits=limits,
    )


def _all_plain(archive: Archive) -> bool:
    """Bytes at spans that are the arrays, nothing to share, and a dimension to spare for runs."""
    if not archive.index.plain:
        return False
    ranks = np.diff(archive.index.dim_offsets)
    if ranks.size and ranks.max() >= NUMPY_RANK:
        return False
    shared = any(held.view(0, 0) is not None for held, _ in _by_source(archive, np.empty(0, np.int64)))
    kinds = [TABLE[code] for code in np.unique(archive.index.dtypes).tolist()]
    return not shared and all(kind.numpy is not None and not kind.packed for kind in kinds)


def _by_source(archive: Archive, rows: NDArray[np.int64]) -> list[tuple[Source, NDArray[np.int64]]]:
    """The rows wanted of each file that the archive has."""
    held = {id(source): source for source in (archive.source, *archive.index.sources.values()) if source is not None}
    if len(held) == 1:
        return [(source, rows) for source in held.values()]
    ids = np.array([id(archive.index.sources.get(row, archive.source)) for row in rows.tolist()], np.int64)
    return [(source, rows[ids == key]) for key, source in held.items()]


def _rows(index: Index, names: Iterable[str] | None) -> NDArray[np.int64]:
    """Positions of the tensors wanted, in the order of the file."""
    if names is None:
        return np.arange(len(index.names))
    wanted = set()
    for name in as_names(names, "names", "load.names"):
        position = index.positions.get(name)
        if position is None:
            raise TensorNotFound.among(name, index.names)
        wanted.add(position)
    return np.array(sorted(wanted), np.int64)


def _all_direct(index: Index, rows: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> bool:
    """All arrays of the caller are contiguous. One for a tensor that is not to be read is refused."""
    names = [index.names[row] for row in rows.tolist()] if out else []
    for name in out.keys() - set(names):
        raise TensorNotFound.among(name, names)
    return all(array.flags.c_contiguous for array in out.values())


def _load_each(
    archive: Archive, rows: NDArray[np.int64], out: Mapping[str, NDArray[Any]], threads: int | None
) -> dict[str, NDArray[Any] | Tensor]:
    index = archive.index
    names = [index.names[row] for row in rows.tolist()]
    loaded: dict[str, NDArray[Any] | Tensor] = dict.fromkeys(names, np.empty(0))
    first_rows = np.arange(len(index.names) + 1) if index.first_rows is None else index.first_rows
    before = np.append(0, np.cumsum(index.nbytes))
    sizes = (before[first_rows[rows + 1]] - before[first_rows[rows]]).tolist()

    def read(several: Sequence[int]) -> None:
        slab = _Slab(sum(sizes[i] for i in several))
        for i in several:
            tensor, array = archive[names[i]], out.get(names[i])
            if array is not None:
                loaded[names[i]] = tensor.numpy(array)
            elif _is_array(tensor):
                loaded[names[i]] = tensor.numpy(_room(tensor, slab))
            else:
                loaded[names[i]] = _held(tensor)

    others = []
    for i, nbytes in enumerate(sizes):
        if nbytes >= ALONE_NBYTES and _threaded(archive, int(rows[i])):
            read([i])
        else:
            others.append(i)
    batch = max(1, min(BATCH, len(others) // 32))
    for_each(read, [others[start : start + batch] for start in range(0, len(others), batch)], threads)
    return loaded


def _is_array(tensor: Tensor) -> bool:
    """Dense, and of a type and a shape that NumPy has."""
    if tensor.layout != "dense":
        return False
    try:
        tensor.parts["data"].numpy_dtype()
    except UnsupportedError:
        return False
    return True


def _held(tensor: Tensor) -> NDArray[Any] | Tensor:
    """What outlives its file: all parts in memory. A nested value that NumPy has a type for is an array.

    A text or a byte string stays what it is: it would be an array of numbers.
    """
    held = replace(tensor, parts={name: _held_part(part, tensor.name) for name, part in tensor.parts.items()})
    if tensor.layout == NESTED and not isinstance(tensor.type, String | Bytes | TypeType):
        with suppress(UnsupportedError):
            return held.numpy()
    return held


def _held_part(part: Part, tensor: str) -> Part:
    known = part.dtype is not None and part.dtype.numpy is not None and not part.dtype.packed
    try:
        if known and len(part.shape) <= NUMPY_RANK:
            array = part.array(tensor)
        else:
            array = np.frombuffer(part.payload.read(0, part.nbytes), np.uint8)
    except UnsupportedError:  # whoever reads it is told so
        return part if isinstance(part.payload, Memory) else replace(part, payload=replace(part.payload, check=None))
    return Part(part.dtype, part.shape, Memory(array), unknown_dtype=part.unknown_dtype)


def _threaded(archive: Archive, position: int) -> bool:
    """Several threads read this tensor, if one asks for it that is none of ours."""
    parts = archive.tensor_at(position).parts.values()
    encoded = [part.payload for part in parts if isinstance(part.payload, Encoded)]
    return any(isinstance(payload.codec, Threaded) and payload.codec.threaded(payload) for payload in encoded)


class _Slab:
    """Memory for arrays that come one after the other: large ones have their own, small ones share it."""

    def __init__(self, nbytes: int) -> None:
        """For `nbytes` in all."""
        self._wanted = nbytes
        self._left = memoryview(bytearray())

    def take(self, nbytes: int) -> memoryview:
        if nbytes >= ALONE_NBYTES:
            return allocate(nbytes)
        if nbytes > len(self._left):
            self._left = allocate(max(nbytes, min(SLAB_NBYTES, self._wanted)))
        room, self._left = self._left[:nbytes], self._left[nbytes + -nbytes % _ALIGNMENT :]
        self._wanted -= nbytes
        return room


def _room(tensor: Tensor, slab: _Slab) -> NDArray[Any] | None:
    """Memory for an array that is decoded in pieces; None for those that make their own."""
    part = tensor.parts["data"] if tensor.layout == "dense" else None
    if part is None or part.dtype is None or part.dtype.packed or not isinstance(part.payload, Encoded):
        return None
    if isinstance(part.payload.codec, Strided):
        return None
    dtype = part.numpy_dtype(tensor.name)
    try:
        return np.ndarray(part.shape, dtype, slab.take(part.nbytes))
    except (OSError, OverflowError):  # more than there is: reading it by the usual way says so
        return None


def _load_plain(
    index: Index,
    source: Source,
    rows: NDArray[np.int64],
    out: Mapping[str, NDArray[Any]],
    threads: int | None,
    checks: RowChecks | None,
) -> dict[str, NDArray[Any] | Tensor]:
    given = _given(index, rows, out)
    fresh = rows[~np.isin(rows, list(given))] if given else rows
    order = fresh[np.argsort(index.begins[fresh], kind="stable")]
    begins, ends = index.begins[order], index.ends[order]
    places = placed(begins, ends, ALONE_NBYTES, SLAB_NBYTES)
    tails = places.offsets + ends - begins
    buffers = [allocate(int(tails[b - 1]), int(begins[a])) for a, b in pairwise(places.groups)]
    group_of = np.repeat(np.arange(len(buffers)), np.diff(places.groups)).tolist()
    pieces, scattered = _reads(places, begins, tails, buffers, order, checks)
    for row, array in given.items():
        memory = as_bytes(array)
        follower = None if checks is None else checks.follower(memory, [row], [0], [len(memory)])
        pieces.append(Piece(int(index.begins[row]), memory, follower))
    try:
        fill(source, pieces, scattered, threads)
    except TruncatedError as error:
        missing = error.offset or 0
        error.tensor = index.names[int(rows[np.argmax((index.begins[rows] <= missing) & (missing < index.ends[rows]))])]
        raise

    arrays: list[NDArray[Any]] = []
    steps = np.diff(places.offsets, append=0)
    for a, b in pairwise(_runs(index, order, places.groups, steps)):
        arrays += _views(index, int(order[a]), b - a, buffers[group_of[a]], int(places.offsets[a]), int(steps[a]))
    if len(order) == len(index.names):
        in_order = [arrays[i] for i in np.argsort(order).tolist()]
        loaded = dict(zip(index.names, in_order, strict=True))
    else:
        by_row = given | dict(zip(order.tolist(), arrays, strict=True))
        loaded = {index.names[row]: by_row[row] for row in rows.tolist()}
    for row in np.flatnonzero(index.dtypes[rows] == BY_NAME["bool"].code).tolist():
        name = index.names[int(rows[row])]
        check_bool(loaded[name], name, int(index.begins[rows[row]]))
    return dict(loaded)


def _reads(
    places: Placement,
    begins: NDArray[np.int64],
    tails: NDArray[np.int64],
    buffers: list[memoryview],
    order: NDArray[np.int64],
    checks: RowChecks | None,
) -> tuple[list[Piece], list[Runs]]:
    """What is to be read into the memory of each group: in one piece, or in several runs."""
    starts, lasts = np.array(places.runs[:-1], np.int64), np.array(places.runs[1:], np.int64) - 1
    offsets = places.offsets[starts]
    sizes = tails[lasts] - offsets
    firsts = np.searchsorted(starts, places.groups).tolist()
    rows = _Rows(order.tolist(), places.offsets.tolist(), tails.tolist())
    pieces: list[Piece] = []
    scattered: list[Runs] = []
    for buffer, (a, b), (first, last) in zip(buffers, pairwise(firsts), pairwise(places.groups), strict=True):
        if b - a == 1:
            follower = None if checks is None else checks.follower(buffer, *rows.between(first, last))
            pieces.append(Piece(int(begins[first]), buffer, follower))
        else:
            follow = None if checks is None else partial(_compare, checks, buffer, rows, places.runs)
            scattered.append(Runs(buffer, begins[starts[a:b]], sizes[a:b], offsets[a:b], follow, a))
    return pieces, scattered


class _Rows(NamedTuple):
    """Rows in the order of the file, and where each starts and stops in the memory of its group."""

    rows: list[int]
    starts: list[int]
    stops: list[int]

    def between(self, first: int, last: int) -> _Rows:
        return _Rows(self.rows[first:last], self.starts[first:last], self.stops[first:last])


def _compare(checks: RowChecks, buffer: memoryview, rows: _Rows, runs: list[int], first: int, last: int) -> None:
    """The checksums of the rows in some runs."""
    checks.compare(buffer, *rows.between(runs[first], runs[last]))


def _given(index: Index, rows: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> dict[int, NDArray[Any]]:
    """The arrays of the caller, by row."""
    given = {}
    for row in rows.tolist() if out else ():
        array = out.get(index.names[row])
        if array is not None:
            check_out(array, index.shape(row), TABLE[index.dtypes[row]].require_numpy(), index.names[row])
            given[row] = array
    return given


def _runs(index: Index, order: NDArray[np.int64], groups: list[int], steps: NDArray[np.int64]) -> list[int]:
    """Where the shape, the type or the memory changes, or the distance from one to the next."""
    count = len(order)
    if count == 0:
        return [0]
    dims, offsets = permuted(index.dims, index.dim_offsets, order)
    ranks, dtypes = np.diff(offsets), index.dtypes[order]
    same = np.zeros(count, np.bool_)
    same[1:] = (ranks[1:] == ranks[:-1]) & (dtypes[1:] == dtypes[:-1])
    previous = np.arange(len(dims)) - np.repeat(ranks, ranks)
    differing = np.zeros(len(dims) + 1, np.int64)
    np.cumsum(dims != dims[previous], out=differing[1:])
    same &= differing[offsets[1:]] == differing[offsets[:-1]]
    new = ~same
    new[groups[:-1]] = True
    new[2:] |= ~new[1:-1] & (steps[1:-1] != steps[:-2])
    return [*np.flatnonzero(new).tolist(), count]


def _views(index: Index, row: int, count: int, buffer: memoryview, start: int, step: int) -> list[NDArray[Any]]:
    """Arrays of one shape, the first at `start`, each `step` behind the one before."""
    dtype = TABLE[index.dtypes[row]].require_numpy(index.names[row])
    shape = index.shape(row)
    if count > 1 and shape and 0 not in shape:
        within = [math.prod(shape[i + 1 :]) * dtype.itemsize for i in range(len(shape))]
        views = list(np.ndarray((count, *shape), dtype, buffer, start, (step, *within)))
    else:
        views = [np.ndarray(shape, dtype, buffer, start + i * step) for i in range(count)]
    return views if views[0].flags.aligned else [view.copy() for view in views]
