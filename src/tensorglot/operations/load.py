"""Loading archives into memory: as arrays, as values of another library, or as Tensors.

An archive of raw dense tensors is loaded by its columns (`_load_rows`). Any other is
loaded tensor by tensor on a pool of threads; a large one in several compressed frames
has its frames decoded in parallel. A tensor that NumPy cannot represent is returned as a
Tensor in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.arguments import as_integer, as_names, check_mapping
from tensorglot.errors import InputError, TensorNotFound, UnsupportedError
from tensorglot.io.source import Backend, is_stream
from tensorglot.limits import Limits
from tensorglot.memory import ALONE_NBYTES, Slab
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import dtype_of
from tensorglot.model.index import Index
from tensorglot.model.payload import Encoded, Memory, Threaded
from tensorglot.model.strided import Strided
from tensorglot.model.tensor import NESTED, NUMPY_RANK, Part, Tensor
from tensorglot.operations._load_rows import is_plain, is_shared, load_rows, view_rows
from tensorglot.operations._outputs import output_arrays
from tensorglot.operations._places import locate
from tensorglot.operations._reads import BATCH
from tensorglot.operations.open import ArchiveLike, OpenOptions, Verify, open_source
from tensorglot.providers import provided
from tensorglot.threads import for_each

__all__ = ["load", "load_archive", "loads"]

Framework: TypeAlias = Literal["numpy", "np", "torch", "pt", "pytorch", "jax", "flax", "awkward"]

FEW, FEW_NBYTES = 8, 1 << 20
"""Up to this many tensors and bytes, loading one by one is faster: working by columns costs as much as 8 tensors."""


def load(
    source: ArchiveLike,
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
    """All tensors of a file, or those in `names` and in their order, as arrays in memory.

    They are NumPy arrays, or with `framework="torch"` (or `"pt"`), `"jax"` or `"awkward"`
    values of that library. What NumPy cannot represent (ragged and nested values, sparse and
    quantized tensors, unknown element types) is returned as a `Tensor` in memory; with
    PyTorch and JAX it is an error. `out` maps names to arrays, or PyTorch tensors on the
    CPU, to read into; they are returned for those names, and must not overlap in memory.
    """
    library = provided("bridges.framework_name")(framework)
    convert = provided("bridges.framework")(library)
    if out is not None:
        check_mapping(out, "out", "load.out")
    if threads is not None:
        threads = as_integer(threads, "threads", "load.threads", least=1)
    options = OpenOptions.of(format, backend, strict, verify, limits, defer=names is not None)
    with (
        nullcontext(source) if isinstance(source, Archive) else open_source(locate(source, storage_options), options)
    ) as archive:
        given = output_arrays(out or {})
        wanted = None if names is None else as_names(names, "names", "load.names")
        arrays = load_archive(archive, wanted, given, threads, nested_arrays=library != "awkward")
    del archive  # its index, before there are all arrays
    loaded = arrays()
    values: dict[str, Any] = {**loaded, **out} if out else loaded
    for name, value in loaded.items() if library != "numpy" else ():
        if name not in given:
            values[name] = _export(name, value, library, convert)
    return values if wanted is None else {name: values[name] for name in wanted}


def load_archive(
    archive: Archive,
    names: Collection[str] | None,
    out: Mapping[str, NDArray[Any]],
    threads: int | None = None,
    *,
    nested_arrays: bool = True,
) -> Callable[[], dict[str, NDArray[Any] | Tensor]]:
    """Reads tensors of an open archive, those in `out` into its arrays, which do not overlap.

    Returns a function that makes the arrays: see `load_rows`. With `nested_arrays` a nested
    tensor is returned as an array if NumPy has a type for it.
    """
    if names is not None:
        archive = archive.select(names)
    rows = _rows(archive.index, names)
    # By columns if possible: without a Tensor for each. A mapped file is returned as views of its memory.
    direct = _all_direct(archive.index, rows, out)
    few = len(rows) <= FEW and archive.index.tensor_nbytes[rows].sum() < FEW_NBYTES
    shared = is_shared(archive) if not few and direct and is_plain(archive) else None
    if shared is False:
        return load_rows(archive, rows, out, threads)
    views = view_rows(archive, rows, threads) if shared and not out else None
    loaded = _load_each(archive, rows, out, threads, nested_arrays) if views is None else views
    return lambda: loaded


def _export(name: str, value: NDArray[Any] | Tensor, library: str, convert: Callable[[str, NDArray[Any]], Any]) -> Any:
    """The value of another library for an array or a Tensor."""
    if library == "awkward":
        tensor = value if isinstance(value, Tensor) else Tensor.of_array(name, value, dtype_of(value.dtype, name))
        try:
            return tensor.awkward()
        except UnsupportedError as error:
            error.tensor = name
            raise
    if isinstance(value, Tensor):
        raise UnsupportedError(
            f"{value!r} is not an array and cannot be converted to {library}: pass framework='numpy' for a Tensor, "
            "or names= without it",
            rule="load.framework",
            tensor=name,
        )
    return convert(name, value)


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
    """`load` for the bytes of a file in memory."""
    if isinstance(data, (str, os.PathLike, list, tuple, Archive)) or is_stream(data):
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


def _rows(index: Index, names: Iterable[str] | None) -> NDArray[np.int64]:
    """Positions of the selected tensors, in the order of the file."""
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
    """Whether all arrays of the caller are contiguous. An array for a tensor that is not read is an error."""
    if out:
        every = len(rows) == len(index.names)
        names = (index.positions if every else dict.fromkeys(index.names[row] for row in rows.tolist())).keys()
        for name in out.keys() - names:
            raise TensorNotFound.among(name, names)
    return all(array.flags.c_contiguous for array in out.values())


def _load_each(
    archive: Archive,
    rows: NDArray[np.int64],
    out: Mapping[str, NDArray[Any]],
    threads: int | None,
    nested_arrays: bool,
) -> dict[str, NDArray[Any] | Tensor]:
    index = archive.index
    names = [index.names[row] for row in rows.tolist()]
    loaded: dict[str, NDArray[Any] | Tensor] = dict.fromkeys(names, np.empty(0))
    sizes = index.tensor_nbytes[rows].tolist()

    # One for all: the end of each slab is in small pages, a tenth of the pages if there is one for each batch.
    # None without encoded rows: making it is a fiftieth of the instructions of loading one small tensor.
    encoded = bool(index.codecs) or index.payloads is not None
    slab = Slab.for_arrays([nbytes for nbytes in sizes if nbytes < ALONE_NBYTES]) if encoded else None

    def read(several: Sequence[int]) -> None:
        for i in several:
            tensor, array = archive[names[i]], out.get(names[i])
            if array is not None:
                loaded[names[i]] = tensor.numpy(array)
            elif _is_array(tensor):
                loaded[names[i]] = tensor.numpy(_room(tensor, slab))
            else:
                loaded[names[i]] = _read_parts(tensor, nested_arrays)

    others = []
    for i, nbytes in enumerate(sizes):
        if nbytes >= ALONE_NBYTES and _threaded(archive, int(rows[i])):
            read([i])
        else:
            others.append(i)
    batch = max(1, min(BATCH, len(others) // 32))  # about 32 jobs at least, so that all threads have work
    for_each(read, [others[start : start + batch] for start in range(0, len(others), batch)], threads)
    return loaded


def _is_array(tensor: Tensor) -> bool:
    """Dense, with an element type and a rank that NumPy has."""
    if tensor.layout != "dense":
        return False
    try:
        tensor.parts["data"].numpy_dtype()
    except UnsupportedError:
        return False
    return True


def _read_parts(tensor: Tensor, nested_arrays: bool) -> NDArray[Any] | Tensor:
    """The tensor with all parts in memory, so that its file can be closed.

    With `nested_arrays` a nested one is an array if NumPy has a type for it. A string or
    bytes value stays a tensor: as an array it would be numbers.
    """
    held = replace(tensor, parts={name: _read_part(part, tensor.name) for name, part in tensor.parts.items()})
    if tensor.layout != NESTED or not nested_arrays:
        return held
    from tensorglot.model.types.algebra import Bytes, String, TypeType

    if not isinstance(tensor.type, String | Bytes | TypeType):
        with suppress(UnsupportedError):
            return held.numpy()
    return held


def _read_part(part: Part, tensor: str) -> Part:
    known = part.dtype is not None and part.dtype.numpy is not None and not part.dtype.packed
    try:
        if known and len(part.shape) <= NUMPY_RANK:
            array = part.array(tensor)
        else:
            array = np.frombuffer(part.payload.read(0, part.nbytes), np.uint8)
    except UnsupportedError:  # the caller gets the tensor; reading this part of it raises the error again
        return part if isinstance(part.payload, Memory) else part._replace(payload=part.payload._replace(check=None))
    return Part(part.dtype, part.shape, Memory(array), unknown_dtype=part.unknown_dtype)


def _threaded(archive: Archive, position: int) -> bool:
    """Whether the codec of a tensor decodes with several threads. It cannot if a thread of our pool calls it."""
    parts = archive.tensor_at(position).parts.values()
    encoded = [part.payload for part in parts if isinstance(part.payload, Encoded)]
    return any(isinstance(payload.codec, Threaded) and payload.codec.threaded(payload) for payload in encoded)


def _room(tensor: Tensor, slab: Slab | None) -> NDArray[Any] | None:
    """Memory for an array that is decoded in pieces; None for one that its codec allocates."""
    if slab is None:
        return None
    part = tensor.parts["data"] if tensor.layout == "dense" else None
    if part is None or part.dtype is None or part.dtype.packed or not isinstance(part.payload, Encoded):
        return None
    if isinstance(part.payload.codec, Strided):
        return None
    dtype = part.numpy_dtype(tensor.name)
    try:
        return np.ndarray(part.shape, dtype, slab.take(part.nbytes))
    except (OSError, OverflowError):  # out of memory: the normal path raises the error
        return None
