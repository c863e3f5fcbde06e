"""Mutants read by us and by the package of their format: `python fuzz/differential.py [COUNT] [SEED]`.

safetensors, numpy (.npy, .npz), gguf, onnx, h5py, pymongo's bson and cbor2. The invariant:

- what both accept has the same names, dtypes, shapes and bytes;
- what the package accepts and we refuse is refused by a rule of REFUSED, which has the
  reasons: where the format is damaged and the package does not look, or where we set a limit;
  or in an attribute of an HDF5 file;
- what `strict` accepts of safetensors, .npy, .npz and BSON, the package accepts.
"""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import tensorglot as tg
from fuzzing import bson, changes, foreign, oracles
from tensorglot.bson import Vector, decode_document, encode_document
from tensorglot.wire import cbor

FORMATS = ("safetensors", "npy", "npz", "gguf", "onnx", "hdf5", "bson", "cbor")
STRICT = ("safetensors", "npy", "npz")
MOST_NBYTES = 1 << 22
CBOR = replace(cbor.LENIENT, simple=False, tags=frozenset())
"""Tags and simple values are what each reader makes of them."""
ZIP = "ZIP headers that zipfile does not compare with the directory, or flags and fields that it ignores"
VALUES = "bool bytes other than 0 and 1, and bits after the last packed element"
PROTOBUF = "protobuf takes fields of the wrong wire type as unknown ones, and text that is not UTF-8"
REFUSED: dict[str, dict[str, str]] = {
    "safetensors": {
        "safetensors.duplicate*": "the last of several entries of one name counts",
        "safetensors.field*": "other fields are ignored",
        "safetensors.json.*": "white space around the header, and JSON that ends with anything",
        "safetensors.header.*": "white space around the header",
        "safetensors.metadata*": "metadata that is null",
        "safetensors.limit.*": "we have limits",
        "values.*": VALUES,
    },
    "npy": {
        "npy.data.trailing": "bytes after the array are not read",
        "npy.header.*": "the header is a literal of Python: comments, operators, strings in pieces",
        "npy.descr": "the old letter a for strings",
        "npy.version": "versions that differ in nothing",
        "values.*": VALUES,
    },
    "npz": {
        "npz.zip.*": ZIP,
        "npz.metadata.*": "the comment of the ZIP is ignored; ours is JSON",
        "npz.deflate.*": "what a deflate stream has beyond the size of the member is dropped",
        "npz.member.*": "members that are no arrays are bytes",
        "npy.*": "as for .npy",
        "values.*": VALUES,
    },
    "gguf": {
        "gguf.data.trailing": "bytes after the last tensor are not read",
        "gguf.offset*": "tensors may overlap and leave holes",
        "gguf.padding": "padding is not read",
        "gguf.metadata.bool": "bool bytes other than 0 and 1",
        "gguf.shape.product": "the product of the dimensions wraps, also to 0",
    },
    "onnx": {
        "onnx.field": PROTOBUF,
        "onnx.field.twice": "of a field that is there twice, the last one counts",
        "onnx.utf8": PROTOBUF,
        "onnx.name.duplicate": "names are not compared; what the test makes of the model has the last one",
        "onnx.graph": "a model without a graph has no tensors",
        "onnx.sparse": "sparse tensors are not looked at until they are used",
        "onnx.data.*": "sparse tensors are not looked at until they are used; lists that are not packed",
        "onnx.tensor.*": "segments are ignored",
        "values.*": VALUES,
    },
    "hdf5": {
        "hdf5.name": "names that are not UTF-8",
        "hdf5.chunk.index": "an index of chunks that has more of them than the shape needs",
        "hdf5.data.size": "the size of a contiguous dataset follows from its shape, not from its size field",
        "hdf5.data.overlap": "datasets and chunks may share bytes, also a chunk that is said to be longer than it is",
        "hdf5.chunk.size": "a compressed chunk may decode to fewer bytes than its shape needs",
        "hdf5.chunk.place": "of two chunks at one place, one is not read",
        "hdf5.type": "the properties of a type may run into the next message",
        "hdf5.object.message": "so may the dimensions of a shape",
        "hdf5.checksum": "what is not needed to read a dataset is not read, for example the index of an empty one",
        "hdf5.tree": "likewise",
        "hdf5.end": "likewise: where chunks would be that no element needs",
        "hdf5.dataset": "messages of an object that it does not know are skipped",
        "hdf5.space": "likewise",
    },
    "bson": {
        "bson.utf8": "keys of arrays are not read, and text below a vector's path",
        "bson.key.*": "duplicate keys, and keys of arrays other than 0, 1, 2",
        "bson.duplicate*": "the last of several values of a key counts",
        "bson.array*": "keys of arrays are not read",
        "bson.depth": "more than 100 levels",
        "bson.vector.*": "padding and ignored bits are looked at when a vector is decoded",
    },
    "cbor": {
        "cbor.duplicate": "the last of several values of a key counts",
        "cbor.key": "keys that are floats, arrays or maps, which this profile forbids",
        "cbor.simple": "undefined and other simple values, which this profile forbids",
        "cbor.tag": "tags, which this profile forbids",
    },
}
"""Patterns of rules by format, each with its reason."""
Mutant = tuple[str, bytes]


@cache
def bases() -> dict[str, list[bytes]]:
    """Valid inputs of each format."""
    found = {format: [data for data in foreign.bases()[format] if len(data) < 20_000] for format in FORMATS[:6]}
    found["bson"] = [data for data in bson.corpus() if len(data) == int.from_bytes(data[:4], "little")]
    values = [{"a": [1, -2, 1.5], "b": {"c": b"xyz", "é": None}, "": True}, [[[]], {}, 2**40, -(2**63)], "text", 1e300]
    found["cbor"] = [cbor.encode(value, cbor.DETERMINISTIC) for value in values]
    found["cbor"] += [
        bytes.fromhex("9f018202039f0405ffff"),
        bytes.fromhex("bf61610161629f0203ffff"),
        b"\x1b\0\0\0\0\0\0\0\1",
    ]
    return found


def mutants(count: int, seed: int = 0) -> Iterator[Mutant]:
    """A format and an input of it with none to three changes; lengths and checksums are often made right."""
    r = random.Random(seed)
    for _ in range(count):
        format = FORMATS[int(r.random() * len(FORMATS))]
        data, other = r.choice(bases()[format]), r.choice(bases()[format])
        if r.random() < 0.9:
            data = changes.change(r, data, other)
        yield format, foreign.repaired(r, format, data)


@cache
def oracle() -> oracles.Oracle:
    return oracles.Oracle()


def ours(format: str, data: bytes) -> oracles.Found:
    """What we find in bytes, in the form of the oracles."""
    if format == "bson":
        return {name: _field(value) for name, value in decode_document(data).items()}
    if format == "cbor":
        return {"": ("", None, oracles.spelled(cbor.decode(data, CBOR)))}
    with tg.open(data, format=format) as archive:
        return {name: _tensor(tensor) for name, tensor in archive.items()}


def _tensor(tensor: tg.Tensor) -> tuple[str, tuple[int, ...], bytes | None]:
    if tensor.layout.startswith("gguf."):
        return tensor.layout.removeprefix("gguf."), tensor.shape, tensor.parts["data"].array().tobytes()
    if tensor.dtype is None or tensor.layout != "dense":
        return "", tensor.shape, None
    if tensor.nbytes > MOST_NBYTES:
        return tensor.dtype.name, tensor.shape, None
    return oracles.plain(tensor.numpy())


def _field(value: Any) -> tuple[str, int | None, bytes | None]:
    if isinstance(value, Vector):
        return value.dtype, value.padding, tg.bson.encode(value, ignored_bits="keep")[2:]
    known = isinstance(value, bool | int | float | str | bytes | None)
    return "", None, encode_document({"": value}) if known else None


def check(mutant: Mutant) -> str:
    """Holds the invariant for one input; returns what became of it."""
    format, data = mutant
    theirs = oracle().ask(format, data)
    try:
        found = ours(format, data)
    except tg.TensorglotError as error:
        if theirs is None:
            return f"{format}: both refuse"
        listed = any(fnmatch(error.rule, pattern) for pattern in REFUSED.get(format, {})) or _in_attributes(error)
        assert listed, f"{error.rule} is not on the list: {error}; the package found {str(theirs)[:300]}"
        return f"{format}: we refuse, {error.rule}"
    if theirs is None:
        assert format not in STRICT or not _strict(format, data), "strict accepts what the package refuses"
        return f"{format}: the package refuses"
    assert _compare(found, theirs) is None, _compare(found, theirs)
    return f"{format}: equal"


def _in_attributes(error: tg.TensorglotError) -> bool:
    """Whether the error is in an attribute of an HDF5 file: we read attributes on opening, h5py on demand."""
    return any(frame.f_code.co_name == "read_attributes" for frame, _ in traceback.walk_tb(error.__traceback__))


def _strict(format: str, data: bytes) -> bool:
    try:
        tg.open(data, format=format, strict=True).close()
    except tg.TensorglotError:
        return False
    return True


def _compare(found: oracles.Found, theirs: oracles.Found) -> str | None:
    """The first difference. What one of them does not tell is not compared."""
    if found.keys() != theirs.keys():
        return f"names {sorted(found.keys() ^ theirs.keys())}"
    for name, (dtype, shape, content) in found.items():
        other = theirs[name]
        if dtype and other[0] and (dtype, shape) != other[:2]:
            return f"{name}: {dtype} {shape}, theirs {other[:2]}"
        if None not in (content, other[2]) and content != other[2]:
            return f"{name}: other bytes"
    return None


if __name__ == "__main__":
    from campaign import campaign

    campaign(mutants, check)
