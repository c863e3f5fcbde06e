"""`dcp.json`, the index of a checkpoint that `tensorglot.bridges.dcp` writes: encoded and parsed.

    {"tensorglot": "dcp", "version": 1,
     "files": ["4f1c-00000.safetensors", …],
     "tensors": {"w": {"dtype": "bfloat16", "itemsize": 2, "shape": [8, 4],
                       "boxes": [[0, "w", [0, 0], [4, 4]], …]}},
     "values": {"step": 7},
     "paths": {"w": ["model", "w"]}}

A box is the number of its file, its name there, its start and its size. Paths are the keys
that lead to a tensor or value in the dict that was saved.
"""

from __future__ import annotations

import json as standard_json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.containers.dcp import plain
from tensorglot.containers.dcp.checkpoint import Checkpoint, Place, StoredTensor, check_shape
from tensorglot.errors import FormatError, escape
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
    """The contents of the index; values are in the form of `plain.encode`."""

    files: Sequence[str]
    tensors: Mapping[str, Any]
    values: Mapping[str, Any]
    paths: Mapping[str, Sequence[str | int]]

    def encode(self) -> bytes:
        index = {"tensorglot": "dcp", "version": VERSION, "files": self.files, "tensors": self.tensors}
        index |= {"values": self.values, "paths": self.paths}
        return standard_json.dumps(index, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def parse_manifest(source: Source, limits: Limits) -> Manifest:
    """Parses the index. Of tensors and values it only checks that they are dicts; `read_manifest` checks the rest."""
    limits.check_header(source.size, "an index", rule="dcp.limit")
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
            raise FormatError("a path must be a list of strings and integers", rule="dcp.index", tensor=name)
    return Manifest(files, index["tensors"], index["values"], index["paths"])


def read_manifest(source: Source, limits: Limits) -> Checkpoint:
    manifest = parse_manifest(source, limits)
    limits.check_tensors(len(manifest.tensors), rule="dcp.limit.tensors")
    stored = [_read_tensor(name, entry, manifest.files, limits) for name, entry in manifest.tensors.items()]
    return Checkpoint("json", stored, {}, {name: plain.decode(value) for name, value in manifest.values.items()})


def _read_tensor(name: str, entry: Any, files: Sequence[str], limits: Limits) -> StoredTensor:
    fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype: Any
    itemsize: Any
    shape: Any
    boxes: Any
    dtype, itemsize, shape = fields.get("dtype"), fields.get("itemsize"), fields.get("shape")
    boxes = fields.get("boxes")
    if not (type(dtype) is str and type(itemsize) is int and _are_sizes(shape) and type(boxes) is list):
        raise FormatError("a tensor needs dtype, itemsize, shape and boxes", rule="dcp.index", tensor=name)
    known = BY_NAME.get(dtype)
    if not 1 <= itemsize <= 16 or (known is not None and not known.packed and known.bits != 8 * itemsize):
        raise FormatError(f"itemsize {itemsize} is not that of {escape(dtype)}", rule="dcp.index", tensor=name)
    check_shape(shape, itemsize, limits, name)
    element = dtype if known is None or known.packed else known
    if not boxes:
        none = np.zeros((0, len(shape)), np.int64)
        return StoredTensor(name, element, itemsize, tuple(shape), none, none, ())
    if len(boxes) == 1 and _is_whole(boxes[0], shape, len(files)):  # the common case, in a third of the time
        number, text, start, count = boxes[0]
        columns = np.array([start], np.int64), np.array([count], np.int64)
        return StoredTensor(name, element, itemsize, tuple(shape), *columns, (Place(files[number], name=text),))
    if not all(type(box) is list and len(box) == 4 for box in boxes):
        raise FormatError("a box must be [file, name, starts, counts]", rule="dcp.index", tensor=name)
    numbers, inner, starts, counts = zip(*boxes, strict=True)
    at = _matrix([numbers], len(boxes))
    first, sizes = _matrix(starts, len(shape)), _matrix(counts, len(shape))
    if at is None or at.max(initial=-1) >= len(files) or not set(map(type, inner)) <= {str}:
        raise FormatError("a box needs the number of a file and a name", rule="dcp.index", tensor=name)
    if first is None or sizes is None:
        raise FormatError(f"a box needs {len(shape)} starts and counts", rule="dcp.index", tensor=name)
    return StoredTensor(
        name,
        element,
        itemsize,
        tuple(shape),
        first,
        sizes,
        [Place(files[number], name=text) for number, text in zip(numbers, inner, strict=True)],
    )


def _is_whole(box: Any, shape: list[int], files: int) -> bool:
    """Whether a box is all of its tensor, in a file that there is."""
    if type(box) is not list or len(box) != 4:
        return False
    number, text, start, count = box
    known = type(number) is int and 0 <= number < files and type(text) is str
    return known and count == shape and _are_sizes(count) and _are_sizes(start) and start == [0] * len(shape)


def _matrix(rows: Sequence[Any], width: int) -> NDArray[np.int64] | None:
    """A matrix from lists of `width` integers from 0 to 2**63 - 1 each; None if they are anything else."""
    if not all(type(row) in (list, tuple) and len(row) == width for row in rows):
        return None
    values = list(chain.from_iterable(rows))
    if not values:
        return np.zeros((len(rows), width), np.int64)
    if not set(map(type, values)) <= {int}:
        return None
    try:
        matrix = np.array(values, np.int64).reshape(len(rows), width)
    except OverflowError:
        return None
    return matrix if matrix.min(initial=0) >= 0 else None


def _are_sizes(value: Any) -> bool:
    return type(value) is list and not [size for size in value if type(size) is not int or not 0 <= size < _END]
