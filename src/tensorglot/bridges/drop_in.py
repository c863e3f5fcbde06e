"""The functions of safetensors and bintensors, by their names and argument orders, over every format.

`tensorglot.numpy`, `tensorglot.torch` and `tensorglot.jax` have them for their framework.
They call `tg.open`, `tg.load` and `tg.save`, raise the error classes that callers of those
packages catch, and refuse PyTorch tensors that share memory. The format follows from the
suffix of a file; for an unknown suffix it is safetensors.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.arguments import as_names, check_mapping
from tensorglot.bridges.table import FRAMEWORKS
from tensorglot.bridges.table import framework as converter
from tensorglot.containers.table import TABLE, for_target, named
from tensorglot.errors import InputError, MissingFile, UnsupportedError
from tensorglot.extras import jax
from tensorglot.io.source import Backend, Readable, is_stream
from tensorglot.memory import ALONE_NBYTES, SMALL_NBYTES, Slab
from tensorglot.model.archive import Archive
from tensorglot.model.payload import Span
from tensorglot.model.tensor import Tensor
from tensorglot.operations.load import load, load_archive
from tensorglot.operations.open import open
from tensorglot.operations.save import dumps, save

__all__ = ["DropIn", "SafeOpen", "Slice", "format_for", "safe_open", "their_errors"]

_ARRAYS = {"numpy": "numpy.ndarray", "torch": "torch.Tensor", "jax": "jax.Array"}
_DEFAULT = "safetensors"
_SLAB_NBYTES = 8 << 20
"""Tensors that are read one by one share slabs of this size. A tensor that is kept keeps its whole slab alive."""


def safe_open(
    filename: Readable, framework: str, device: Any = "cpu", *, backend: Backend = "auto", format: str | None = None
) -> SafeOpen:
    """Opens a file of any format, to read tensors of a framework ("pt", "np", "jax", …) from it, one by one."""
    return SafeOpen(filename, framework, device, backend, format)


class SafeOpen:
    """An open file. It and its slices can be used until the `with` block ends."""

    def __init__(self, filename: Readable, framework: str, device: Any, backend: Backend, format: str | None) -> None:
        self._framework = _framework(framework)
        self._place = _placer(self._framework, device)
        self._slab = Slab(_SLAB_NBYTES)
        with their_errors():
            self._archive: Archive | None = open(filename, backend=backend, format=format)

    @property
    def archive(self) -> Archive:
        """The archive, while it is open."""
        if self._archive is None:
            raise InputError("the file is closed: its `with` block has ended", rule="archive.closed")
        return self._archive

    def keys(self) -> list[str]:
        """The names of all tensors, sorted."""
        return sorted(self.archive)

    def offset_keys(self) -> list[str]:
        """The names of all tensors in the order of their bytes, shard by shard."""
        index = self.archive.index
        firsts = index.row_offsets[:-1]
        shards: dict[int, int] = {}
        places = [shards.setdefault(id(index.sources.get(row)), len(shards)) for row in firsts.tolist()]
        return [index.names[i] for i in np.lexsort((index.begins[firsts], np.array(places))).tolist()]

    def metadata(self) -> dict[str, Any] | None:
        """The metadata of the file; None where it has none."""
        found = self.archive.metadata
        return None if found is None else dict(found)

    def get_tensor(self, name: str) -> Any:
        """A whole tensor."""
        tensor = self._tensor(name)
        return self.convert(name, tensor.numpy(_slab_array(tensor, self._slab)))

    def get_tensors(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """All tensors, or those in `names` and in their order, read together."""
        wanted = self.offset_keys() if names is None else as_names(names, "names", "load.names")
        arrays = load_archive(self.archive, wanted, {})()
        return {name: self.convert(name, _as_array(arrays[name])) for name in wanted}

    def get_slice(self, name: str) -> Slice:
        """A tensor to index: `f.get_slice("w")[:, 2:5]` reads only that."""
        return Slice(self, self._tensor(name))

    def _tensor(self, name: str) -> Tensor:
        if not isinstance(name, str):
            raise InputError(f"a tensor name must be a str, not {type(name).__name__}", rule="tensor.name")
        return self.archive[name]

    def convert(self, name: str, array: NDArray[Any]) -> Any:
        """The framework's array, on the device."""
        return self._place(name, array)

    def __enter__(self) -> SafeOpen:
        return self

    def __exit__(self, *error: object) -> None:
        archive, self._archive = self._archive, None
        if archive is not None:
            archive.close()

    def __repr__(self) -> str:
        return f"safe_open({'closed' if self._archive is None else self._archive}, {self._framework})"


def _slab_array(tensor: Tensor, slab: Slab) -> NDArray[Any] | None:
    """An array in the slab, for a tensor too small for huge pages of its own; None if `Tensor.numpy` allocates one."""
    part = tensor.parts["data"] if tensor.layout == "dense" else None
    if part is None or not isinstance(part.payload, Span) or not SMALL_NBYTES <= part.nbytes < ALONE_NBYTES:
        return None
    dtype = part.numpy_dtype(tensor.name)
    begin = part.payload.begin
    if part.nbytes != math.prod(part.shape) * dtype.itemsize or begin % dtype.itemsize:
        return None
    if part.payload.source.view(begin, 0) is not None:
        return None
    return np.ndarray(part.shape, dtype, slab.take(part.nbytes, begin))


@dataclass(frozen=True, slots=True, repr=False)
class Slice:
    """A tensor of an open file, read where it is indexed."""

    file: SafeOpen
    tensor: Tensor

    def get_shape(self) -> list[int]:
        return list(self._open().shape)

    def get_dtype(self) -> str:
        """The element type by safetensors' name ("F32", "BF16"), or by ours if safetensors has none."""
        part = self._open().parts.get("data")
        if part is None or part.dtype is None:
            return str(self.tensor.type)
        codes = named(_DEFAULT)[0].container.dtypes
        return next((code for code, name in codes.items() if name == part.dtype.name), part.dtype.name)

    def __getitem__(self, index: Any) -> Any:
        tensor = self._open()
        return self.file.convert(tensor.name, np.asarray(tensor[index]))

    def _open(self) -> Tensor:
        self.file.archive  # noqa: B018 - refused once the file is closed
        return self.tensor

    def __repr__(self) -> str:
        return f"Slice({self.tensor!r})"


@contextmanager
def _refusals_of_layouts() -> Iterator[None]:
    """Raises InputError, a ValueError as in safetensors, for a sparse or quantized tensor that cannot be stored."""
    try:
        yield
    except UnsupportedError as error:
        if error.rule != "save.layout":
            raise
        message = f"{error.message}; convert it with to_dense() or dequantize()"
        raise InputError(message, rule=error.rule, tensor=error.tensor, path=error.path) from error


@dataclass(frozen=True)
class DropIn:
    """The functions of one framework."""

    framework: str
    is_tensor: Callable[[Any], bool]
    refuse: Callable[[Mapping[str, Any], bool], None] = lambda tensors, ties: None
    """Called with the tensors and whether the format keeps ties; raises if loading would not restore the tensors."""

    def save_file(
        self,
        tensors: Mapping[str, Any],
        filename: str | os.PathLike[str],
        metadata: Mapping[str, str] | None = None,
        *,
        format: str | None = None,
        **options: Any,
    ) -> None:
        """Writes tensors to a file: atomic, and durable when it returns. `options` are passed to `tg.save`."""
        format = format_for(filename, format)
        self._check(tensors, format)
        with _refusals_of_layouts():
            save(filename, tensors, format=format, metadata=metadata, **options)

    def save(
        self, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None, *, format: str = _DEFAULT
    ) -> bytes:
        """The bytes of a file with these tensors."""
        self._check(tensors, format)
        with _refusals_of_layouts():
            return dumps(tensors, format=format, metadata=metadata)

    def save_with_checksum(
        self,
        tensors: Mapping[str, Any],
        metadata: Mapping[str, str] | None = None,
        hasher: Callable[[bytes], Any] | None = None,
        *,
        format: str = _DEFAULT,
    ) -> tuple[bytes, bytes]:
        """A digest of the bytes of a file with these tensors (SHA-1 by default, as in bintensors), and these bytes."""
        import hashlib  # loads OpenSSL

        data = self.save(tensors, metadata, format=format)
        return (hasher or hashlib.sha1)(data).digest(), data

    def load_file(
        self, filename: Readable, device: Any = "cpu", *, backend: Backend = "auto", format: str | None = None
    ) -> dict[str, Any]:
        """All tensors of a file of any format. With `backend="mmap"` they share the memory of the file."""
        return self._load(filename, device, backend, format)

    def load(self, data: bytes | bytearray | memoryview, *, format: str | None = None) -> dict[str, Any]:
        """All tensors of the bytes of a file."""
        if isinstance(data, (str, os.PathLike)) or is_stream(data):
            raise InputError(f"load takes bytes, not {type(data).__name__}: use load_file", rule="loads.data")
        return self._load(data, "cpu", "auto", format)

    def _load(self, source: Readable, device: Any, backend: Backend, format: str | None) -> dict[str, Any]:
        place = _placer(self.framework, device)
        with their_errors():
            loaded = load(source, backend=backend, format=format)
        names = list(loaded)
        # Popped one by one, so that an array is freed as soon as it has been copied to the device.
        return {name: place(name, _as_array(loaded.pop(name))) for name in names}

    def _check(self, tensors: Mapping[str, Any], format: str) -> None:
        if hasattr(tensors, "state_dict"):
            instead = "use tensorglot.torch.save_model"
            raise InputError(f"tensors must be a mapping, not a module: {instead}", rule="save.tensors")
        check_mapping(tensors, "tensors", "save.tensors")
        for name, value in tensors.items():
            if not self.is_tensor(value):
                expected, got = _ARRAYS[self.framework], _type_name(type(value))
                raise InputError(f"expected a {expected}, not {got}", rule="save.tensors", tensor=name)
        self.refuse(tensors, for_target(None, format)[0].ties)


def _type_name(kind: type) -> str:
    """`torch.Tensor`, `numpy.ndarray`, `float`"""
    package = kind.__module__.partition(".")[0]
    return kind.__qualname__ if package == "builtins" else f"{package}.{kind.__qualname__}"


def _as_array(value: NDArray[Any] | Tensor) -> NDArray[Any]:
    """A value of `load` as an array. A Tensor that NumPy cannot represent raises an error that says why."""
    return value.numpy() if isinstance(value, Tensor) else value


def format_for(filename: object, format: str | None) -> str:
    """The format that is named, else the format of the suffix, else safetensors."""
    if format is not None:
        return format
    suffix = Path(filename).suffix.lower() if isinstance(filename, (str, os.PathLike)) else ""
    if not any(suffix in spec.suffixes for spec in TABLE):
        return _DEFAULT
    spec, version = for_target(filename, None)
    return f"{spec.name}@{version}"


def _framework(name: object) -> str:
    found = FRAMEWORKS.get(name) if isinstance(name, str) else None
    if found is None or found == "awkward":  # whose arrays have no device, and no slices of a file
        known = ", ".join(repr(known) for known in FRAMEWORKS if known != "awkward")
        raise InputError(f"framework must be one of {known}, not {name!r}", rule="load.framework")
    return found


def _placer(framework: str, device: Any) -> Callable[[str, NDArray[Any]], Any]:
    """A function that converts an array to the framework's, on a device. An unknown device is refused at once."""
    convert = converter(framework)
    if framework == "torch":
        from tensorglot.bridges.torch import as_device, from_numpy

        where = as_device(device)
        return from_numpy if where.type == "cpu" else lambda name, array: from_numpy(name, array).to(where)
    if framework == "numpy" or convert is None:
        if device is not None and str(device) != "cpu":
            raise InputError(f"NumPy arrays are on the CPU, not on {device!r}", rule="load.device")
        return lambda name, array: array
    chosen = _jax_device(device)
    return lambda name, array: jax.device_put(convert(name, array), chosen)


def _jax_device(device: Any) -> Any:
    """A device or sharding of JAX: itself, or a device by the name of its platform, and number: "gpu:1"."""
    if not isinstance(device, str):
        if device is not None and type(device).__module__.partition(".")[0] not in ("jax", "jaxlib"):
            raise InputError(f"{device!r} is not a device: pass 'gpu:1' or a jax.Device", rule="load.device")
        return device
    platform, _, number = device.partition(":")
    try:
        return jax.devices(platform)[int(number or 0)]
    except (RuntimeError, ValueError, IndexError) as error:
        message = str(error).partition("\n")[0]
        raise InputError(f"{device!r} is not a device: {message}", rule="load.device") from error


@contextmanager
def their_errors() -> Iterator[None]:
    """Raises MissingFile for a missing file: both a FileNotFoundError and a TensorglotError."""
    try:
        yield
    except FileNotFoundError as error:
        path = None if error.filename is None else os.fsdecode(error.filename)
        raise MissingFile(MissingFile.strerror, rule="source.missing", path=path) from error
