"""Other libraries: conversion of their values, both ways, and verbs in their own terms.

    table       the bridge for the library of a value
    drop_in     the functions of safetensors and bintensors, for `tensorglot.numpy`, `.torch` and `.jax`
    torch       tensors; torch_layouts sparse and quantized ones; torch_module whole modules; torch_sharing memory
    dcp         distributed checkpoints of PyTorch: a writer and a reader
    jax         arrays
    dask        lazy arrays of any source
    dlpack      any exporter of DLPack, small floats included
    awkward     ragged arrays, by their layouts
    arrow       arrays, by their buffers; arrow_plain decodes their encodings and extension types,
                arrow_export makes arrays of tensors, arrow_tables makes tables that keep the
                type of a value, for pandas and polars, too
    parquet     these tables in files
    pandas      columns and tables; polars likewise
    scipy       sparse matrices
    pymongo     BSON vectors, ours and the driver's

A library is imported when its first value is converted, never before. `bridges.dask` and
`bridges.dcp`, which callers use by name, are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorglot.bridges import dask as dask
    from tensorglot.bridges import dcp as dcp

__all__: list[str] = []
_MODULES = ["dask", "dcp"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"tensorglot.bridges.{name}")
    raise AttributeError(f"module 'tensorglot.bridges' has no attribute '{name}'", name=name)


def __dir__() -> list[str]:
    return _MODULES
