"""`dcp.json`, the index of a checkpoint that `tensorglot.bridges.dcp` writes, and how to make it.

    {"tensorglot": "dcp", "version": 1,
     "files": ["4f1c-00000.safetensors", …],
     "tensors": {"w": {"dtype": "bfloat16", "itemsize": 2, "shape": [8, 4],
                       "boxes": [[0, "w", [0, 0], [4, 4]], …]}},
     "values": {"step": 7},
     "paths": {"w": ["model", "w"]}}

A box is the number of its file, its name there, where it starts and how wide it is. Paths
are the keys that lead to a tensor or value in the dict that was saved.
"""

from __future__ import annotations

import json as standard_json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorglot.containers.dcp import plain
from tensorglot.containers.dcp.checkpoint import Checkpoint, Place, StoredTensor, check_shape
from tensorglot.errors import FormatError, LimitError, escape
from tensorglot.limits import Limits
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.payload import Source
from tensorglot.wire import json

__all__ = ["INDEX", "Manifest", "parse_manifest", "read_manifest"]

INDEX = "dcp.json"
VERSION = 1
_DEPTH = 2 * plain.DEPTH + 8
_END = 1 << 63


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is written; values are in the form of `plain.encode`."""

    files: Sequence[str]
    tensors: Mapping[str, Any]
    values: Mapping[str, Any]
    paths: Mapping[str, Sequence[str | int]]

    def encode(self) -> bytes:
        index = {"tensorglot": "dcp", "version": VERSION, "files": self.files, "tensors": self.tensors}
        index |= {"values": self.values, "paths": self.paths}
        return standard_json.dumps(index, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def parse_manifest(source: Source, limits: Limits) -> Manifest:
    """The index as it was written; of tensors and values only that they are dicts is checked."""
    if source.size > limits.header_or():
        raise LimitError(f"an index of {source.size} bytes exceeds Limits.header_nbytes", rule="dcp.limit")
    index = json.parse(source.read_bytes(0, source.size), depth=_DEPTH, rule="dcp.json")
    if not isinstance(index, dict) or index.get("tensorglot") != "dcp" or index.get("version") != VERSION:
        raise FormatError(f"not an index of version {VERSION} of a distributed checkpoint", rule="dcp.index")
    files = index.get("files")
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise FormatError("the index needs a list of files", rule="dcp.index")
    for key in ("tensors", "values", "paths"):
        if not isinstance(index.get(key), dict):
            raise FormatError(f"the index needs {key}", rule="dcp.index")
    for name, path in index["paths"].items():
        if not isinstance(path, list) or not all(type(key) in (str, int) for key in path):
            raise FormatError("a path is a list of strings and numbers", rule="dcp.index", tensor=name)
    return Manifest(files, index["tensors"], index["values"], index["paths"])


def read_manifest(source: Source, limits: Limits) -> Checkpoint:
    manifest = parse_manifest(source, limits)
    tensors = manifest.tensors
    if len(tensors) > limits.tensors_or():
        raise LimitError("more tensors than Limits.tensors allows", rule="dcp.limit.tensors")
    stored = [_read_tensor(name, entry, manifest.files, limits) for name, entry in tensors.items()]
    return Checkpoint("json", stored, {}, {name: plain.decode(value) for name, value in manifest.values.items()})


def _read_tensor(name: str, entry: Any, files: Sequence[str], limits: Limits) -> StoredTensor:
    fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype: Any
    itemsize: Any
    shape: Any
    boxes: Any
    dtype, itemsize, shape, boxes = (fields.get(key) for key in ("dtype", "itemsize", "shape", "boxes"))
    if not (isinstance(dtype, str) and _are_sizes([itemsize]) and _are_sizes(shape) and isinstance(boxes, list)):
        raise FormatError("a tensor needs dtype, itemsize, shape and boxes", rule="dcp.index", tensor=name)
    known = BY_NAME.get(dtype)
    if not 1 <= itemsize <= 16 or (known is not None and not known.packed and known.bits != 8 * itemsize):
        raise FormatError(f"{escape(dtype)} does not have {itemsize} bytes", rule="dcp.index", tensor=name)
    check_shape(shape, itemsize, limits, name)
    if not all(_is_box(box, len(shape), len(files)) for box in boxes):
        raise FormatError("a box is [file, name, starts, counts]", rule="dcp.index", tensor=name)
    return StoredTensor(
        name,
        dtype if known is None or known.packed else known,
        itemsize,
        tuple(shape),
        np.array([box[2] for box in boxes], np.int64).reshape(len(boxes), len(shape)),
        np.array([box[3] for box in boxes], np.int64).reshape(len(boxes), len(shape)),
        [Place(files[box[0]], name=box[1]) for box in boxes],
    )


def _is_box(box: Any, rank: int, files: int) -> bool:
    if not isinstance(box, list) or len(box) != 4 or not _are_sizes(box[:1]) or not isinstance(box[1], str):
        return False
    return box[0] < files and all(_are_sizes(sizes) and len(sizes) == rank for sizes in box[2:])


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < _END for size in value)
