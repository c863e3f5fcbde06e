"""Dask: the tensors of any source as lazy arrays.

A block of an array is read by the worker that needs it: only the path, the name of the
tensor and a slice are sent. A worker keeps the archives that it has opened. To run the
verbs on a cluster, pass its client as `executor=`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.arguments import as_names
from tensorglot.errors import InputError, TensorNotFound, UnsupportedError
from tensorglot.extras import library
from tensorglot.model.archive import Archive
from tensorglot.operations._as_archive import as_archive
from tensorglot.operations._executor import Reference, refer_to
from tensorglot.operations._places import locate
from tensorglot.operations.open import ArchiveLike, OpenOptions

if TYPE_CHECKING:
    import dask.array

__all__ = ["open"]

_KEPT = 16
"""Archives that a worker keeps open."""


def open(
    source: ArchiveLike,
    chunks: Any = "128MiB",
    *,
    names: Iterable[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, dask.array.Array]:
    """The dense tensors of a source, or those in `names`, as Dask arrays. No tensor is read.

    `chunks` is what Dask takes: the size of a block as text, or its shape. A tensor that is
    not an array, or that `chunks` cannot divide, is an error.
    """
    array = library("dask.array", "dask")
    source = locate(source, storage_options)
    with as_archive(source) as opened:
        reference = refer_to(source, opened, OpenOptions())
        return {
            name: _array(array, _Lazy(reference, opened, name), chunks)
            for name in (opened if names is None else as_names(names, "names", "dask.names"))
        }


def _array(array: Any, lazy: _Lazy, chunks: Any) -> dask.array.Array:
    meta: NDArray[Any] = np.empty((0,) * lazy.ndim, lazy.dtype)
    try:
        # name=False: a random name, since hashing the contents would read them.
        made: dask.array.Array = array.from_array(lazy, chunks=chunks, name=False, meta=meta)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        why = str(error).partition("\n")[0]
        raise InputError(f"chunks cannot divide the tensor: {why}", rule="dask.chunks", tensor=lazy.name) from error
    return made


@lru_cache(_KEPT)
def _opened(reference: Reference) -> Archive:
    return reference.open()


class _Lazy:
    """The array-like that Dask slices: a tensor of a source, which a worker opens when a block is computed."""

    def __init__(self, reference: Reference, archive: Archive, name: str) -> None:
        if name not in archive:
            raise TensorNotFound.among(name, archive.index.names)
        tensor = archive[name]
        if tensor.dtype is None:
            raise UnsupportedError(
                f"{tensor!r} is not an array: pass names= without it", rule="dask.dense", tensor=name
            )
        self.shape, self.dtype, self.ndim = tensor.shape, tensor.dtype, tensor.ndim
        self._reference = reference
        self.name = name

    def __getitem__(self, index: Any) -> NDArray[Any]:
        source = self._reference.source
        opened = source if isinstance(source, Archive) else _opened(self._reference)
        return np.asarray(opened[self.name][index])
