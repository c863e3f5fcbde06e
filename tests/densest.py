"""The densest files below 64 KB: for each format, as many of each kind of entry as the bytes can hold.

An entry costs a reader time and memory however few bytes it has in the file. A row has the
format, and what writes the file into a folder; what counts for a directory is its index.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np

import bson_samples
import gguf_builder
import tensorglot as tg
import test_dcp
import test_onnx
import test_pt
import test_shards
import ztensor_builder as zt
from bintensors_builder import Row, build, header
from dynd_random import sized, varint
from stores import array_node, commit_node, leaf, link, nodes_pack, write_ref
from tensorglot.containers.delta.index import MAGIC, Base, Change, DeltaIndex, encode_index
from tensorglot.store import Store
from tensorglot.wire.cid import encode_node

__all__ = ["DENSEST", "NBYTES", "index_nbytes"]

NBYTES = 64_000
Make = Callable[[Path], Path | str]


def names() -> Iterator[str]:
    """The shortest distinct names; in order, where they are of one length."""
    for length in count(1):
        yield from map("".join, product(ascii_lowercase, repeat=length))


def fill(one: Callable[[str], bytes], room: int = NBYTES - 200, most: int = 1 << 30) -> list[bytes]:
    """Entries of distinct names, as many as there is room for."""
    found: list[bytes] = []
    for name in names():
        entry = one(name)
        room -= len(entry)
        if room < 0 or len(found) == most:
            return found
        found.append(entry)
    raise AssertionError


def count_of(one: Callable[[str], bytes], room: int = NBYTES - 200) -> list[str]:
    """The names of such entries."""
    return [name for name, _ in zip(names(), fill(one, room), strict=False)]


def file(name: str, data: Callable[[], bytes]) -> Make:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(data())
        assert path.stat().st_size <= 64 << 10, path.stat().st_size
        return path

    return make


def index_nbytes(path: Path | str) -> int:
    """The bytes of a file, or of the index of a directory or a store."""
    path = Path(str(path).removeprefix("store://").partition("#")[0])
    if path.is_file():
        return path.stat().st_size
    return sum(found.stat().st_size for found in path.rglob("*") if found.is_file())


# BinTensors


def bintensors(layout: int, **fields: Any) -> bytes:
    rows = [
        Row(name, 1, fields.get("shape", (0,)), 0, 0)
        for name in count_of(lambda name: bytes(len(name) + len(fields.get("shape", (0,))) + 5 + (layout == 0) * 3))
    ]
    return build(header(layout, rows), b"")


def bintensors_metadata(layout: int) -> bytes:
    pairs = [(name, "") for name in count_of(lambda name: bytes(len(name) + 2))]
    return build(header(layout, [], metadata=pairs), b"")


# zTensor


def zt01(suffix: str = "", **fields: Any) -> bytes:
    """Tensors of such entries; if they have a part, parts of a tensor of the name without the suffix."""

    def one(name: str) -> bytes:
        whole = {"part_of": name} if "part" in fields else {}
        return zt.cbor(zt.entry(name + suffix, **({"size": 0, "shape": [0]} | fields | whole)))

    rows = fill(one)
    return zt01_index(zt.head(4, len(rows)) + b"".join(rows))


def zt01_index(index: bytes) -> bytes:
    return zt.file01(zt.Raw(index), body=b"\0")


def zt01_metadata() -> bytes:
    pairs = fill(lambda name: zt.cbor(name) + b"\x60")
    value = zt.Raw(zt.head(5, len(pairs)) + b"".join(pairs))
    return zt.file01([zt.entry("__metadata__", size=0, shape=[0], metadata=value)], body=b"\0")


def zt01_chunks() -> bytes:
    """A key of empty chunks."""
    key = zt.Raw(b"\x7f" + b"\x60" * 63_000 + b"\x61a" + b"\xff")
    fields = zt.entry("a", size=0, shape=[0])
    return zt.file01([zt.Pairs(((key, 0), *fields.items()))], body=b"\0")


def zt1(format: str = "dense", part: str = "data", **fields: Any) -> bytes:
    component = {"dtype": "u8", "offset": 64, "length": 0} | fields

    def one(name: str) -> bytes:
        return zt.cbor(name) + zt.cbor({"shape": [0], "format": format, "components": {part: component}})

    return zt1_objects(fill(one))


def zt1_objects(rows: list[bytes]) -> bytes:
    return zt.file1({"version": "1.1.0", "objects": zt.Raw(zt.head(5, len(rows)) + b"".join(rows))}, body=b"")


def zt1_open() -> zt.Raw:
    """A map of names to numbers, of indefinite length."""
    return zt.Raw(b"\xbf" + b"".join(fill(lambda name: zt.cbor(name) + b"\0")) + b"\xff")


def zt1_components() -> bytes:
    component = zt.cbor({"dtype": "x", "offset": 64, "length": 0, "encoding": "y"})
    parts = fill(lambda name: zt.cbor(name) + component)
    held = {"shape": [0], "format": "x", "components": zt.Raw(zt.head(5, len(parts)) + b"".join(parts))}
    return zt1_objects([zt.cbor("a") + zt.cbor(held)])


def zt1_attributes(value: bytes) -> bytes:
    return zt.file1({"version": "1.1.0", "objects": {}, "attributes": {"a": zt.Raw(value)}}, body=b"")


def zt2(objects: bytes, count: int, **more: Any) -> bytes:
    manifest = {"objects": zt.Raw(zt.head(5, count) + objects), "version": "2.0.0", **more}
    encoded = zt.cbor(zt.deterministic(manifest))
    start = zt.MAGIC_2 + bytes(4096 - 8)
    return start + encoded + zt.footer(len(start), encoded)


def zt2_tensors(shape: Any = (0,)) -> bytes:
    part = {"dtype": "u8", "blob": [4096, 0]}
    value = zt.cbor(zt.deterministic({"shape": list(shape), "layout": "dense", "parts": {"data": part}}))
    rows = fill(lambda name: zt.cbor(name) + value, NBYTES - 4400)
    return zt2(b"".join(rows), len(rows))


def zt2_nested(*types: str) -> bytes:
    """A nested tensor of each type."""
    part = {"data": {"dtype": "u8", "blob": [4096, 0]}}
    tensor = {"shape": [0], "layout": "nested", "parts": part}
    held = [zt.cbor(zt.deterministic({**tensor, "attributes": {"dynd": type}})) for type in types]
    return zt2(b"".join(zt.cbor(f"{i:03}") + value for i, value in enumerate(held)), len(held))


def zt2_layout(layout: str, shape: tuple[int, ...], *parts: str, **fields: Any) -> bytes:
    """Tensors of such parts, without bytes."""
    part = {"dtype": "u64", "blob": [4096, 0], **fields}
    held = {"shape": [*shape], "layout": layout, "parts": dict.fromkeys(parts, part)}
    value = zt.cbor(zt.deterministic(held))
    rows = fill(lambda name: zt.cbor(name) + value, NBYTES - 4400)
    return zt2(b"".join(rows), len(rows))


def zt2_described(layout: str, parts: dict[str, tuple[str, str | None]], attributes: dict[str, Any]) -> bytes:
    """Tensors of parts of a dtype and logical type, with attributes."""
    held = {
        name: {"dtype": dtype, "blob": [4096, 0], **({} if type is None else {"type": type})}
        for name, (dtype, type) in parts.items()
    }
    value = {"shape": [0], "layout": layout, "parts": held, "attributes": attributes}
    encoded = zt.cbor(zt.deterministic(value))
    rows = fill(lambda name: zt.cbor(name) + encoded, NBYTES - 4400)
    return zt2(b"".join(rows), len(rows))


def zt2_shards() -> bytes:
    shard = zt.cbor({"size": 48, "digest": "xxh3:" + "0" * 16})
    shards = fill(lambda name: zt.cbor(name) + shard, NBYTES - 4400)
    return zt2(b"", 0, shards=zt.Raw(zt.head(5, len(shards)) + b"".join(shards)))


def zt2_parts() -> bytes:
    value = zt.cbor(zt.deterministic({"dtype": "u8", "blob": [4096, 0]}))
    parts = fill(lambda name: zt.cbor(name) + value, NBYTES - 4400)
    held = {"shape": [0], "layout": "x", "parts": zt.Raw(zt.head(5, len(parts)) + b"".join(parts))}
    return zt2(zt.cbor("a") + zt.cbor(zt.deterministic(held)), 1)


def zt2_attributes(value: bytes) -> bytes:
    return zt2(b"", 0, attributes={"a": zt.Raw(value)})


CBOR = {
    "numbers": lambda: zt.head(4, 58_000) + bytes(58_000),
    "arrays": lambda: zt.head(4, 58_000) + b"\x80" * 58_000,
    "nested arrays": lambda: zt.head(4, 29_000) + b"\x81\x80" * 29_000,
    "texts": lambda: zt.head(4, 58_000) + b"\x60" * 58_000,
    "keys": lambda: zt.head(5, len(keys := fill(lambda n: zt.cbor(n) + b"\0", 57_000))) + b"".join(keys),
}
"""Values of an attribute; CBOR that is refused where a version demands sorted keys."""


# JSON


def safetensors(shape: str = "[0]", dtype: str = "U8") -> bytes:
    rows = fill(lambda n: f'"{n}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,0]}},'.encode())
    return safetensors_file(b"{" + b"".join(rows)[:-1] + b"}")


def safetensors_file(head: bytes) -> bytes:
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head


def safetensors_metadata() -> bytes:
    rows = fill(lambda n: f'"{n}":"",'.encode())
    return safetensors_file(b'{"__metadata__":{' + b"".join(rows)[:-1] + b"}}")


# NumPy


def npz(method: str | None = None) -> Make:
    def make(folder: Path) -> Path:
        tg.save(folder / "a.npz", dict.fromkeys(map(str, range(220)), np.zeros(0, np.uint8)), durable=False)
        return folder / "a.npz"

    return make


def npz_members() -> bytes:
    """As many members as fit, none of which is an array."""
    import io
    import zipfile

    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name in [name for name, _ in zip(names(), range(760), strict=False)]:
            archive.writestr(zipfile.ZipInfo(name), b"")
    return held.getvalue()


def npz_deflated(count: int, header: str) -> bytes:
    """Arrays without elements, whose headers are compressed."""
    import io
    import zipfile

    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in [name for name, _ in zip(names(), range(count), strict=False)]:
            member = zipfile.ZipInfo(f"{name}.npy")
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, npy(header))
    return held.getvalue()


def npy(text: str) -> bytes:
    head = text.encode() + b"\n"
    return b"\x93NUMPY\x02\x00" + len(head).to_bytes(4, "little") + head


# GGUF


def gguf_tensors(rank: int) -> bytes:
    rows = fill(lambda name: gguf_builder.tensor(name, [0] * rank, 24, 0))
    return gguf_builder.build(rows)


def gguf_pairs() -> bytes:
    return gguf_builder.build([], fill(lambda name: gguf_builder.pair(name, 7, b"\0")))


def gguf_array(kind: int, item: bytes) -> bytes:
    count = (NBYTES - 100) // len(item)
    return gguf_builder.build([], [gguf_builder.pair("k", 9, struct.pack("<IQ", kind, count) + count * item)])


def gguf_nested() -> bytes:
    """Arrays of one number in an array."""
    count = (NBYTES - 100) // 13
    arrays = struct.pack("<IQ", 9, count) + struct.pack("<IQB", 0, 1, 0) * count
    return gguf_builder.build([], [gguf_builder.pair("k", 9, arrays)])


def gguf_arrays() -> bytes:
    return gguf_builder.build([], fill(lambda name: gguf_builder.pair(name, 9, struct.pack("<IQ", 4, 0))))


# Pickles


def pickle_list(item: bytes, room: int = NBYTES - 500) -> bytes:
    return test_pt.pickled(b"](" + item * (room // len(item)) + b"e")


def called(name: bytes, call: bytes) -> bytes:
    """Calls of a global, which is the first entry of the memo, in a list."""
    calls = b"](" + call * (62_000 // len(call)) + b"e"
    return test_pt.pickled(b"}(c" + name + b"\n\x94tb\x8c\1a" + calls + b"s")


PICKLES: dict[str, Callable[[], bytes]] = {
    "lists": lambda: pickle_list(b"]\x94"),
    "dicts": lambda: pickle_list(b"}\x94"),
    "tuples of none": lambda: pickle_list(b")"),
    "tuples of one": lambda: pickle_list(b")\x85"),
    "marked tuples": lambda: pickle_list(b"(t"),
    "marked lists": lambda: pickle_list(b"(l"),
    "constants in turns": lambda: pickle_list(b"N\x88"),
    "numbers": lambda: pickle_list(b"K\0"),
    "numbers and constants": lambda: pickle_list(b"K\0N"),
    "texts": lambda: pickle_list(b"\x8c\0"),
    "memo": lambda: pickle_list(b"N\x94"),
    "put": lambda: pickle_list(b"Nq\0"),
    "pairs": lambda: test_pt.pickled(
        b"}(" + b"".join(fill(lambda n: b"\x8c" + bytes([len(n)]) + n.encode() + b"N")) + b"u"
    ),
    "pairs of lists": lambda: test_pt.pickled(
        b"}(" + b"".join(fill(lambda n: b"\x8c" + bytes([len(n)]) + n.encode() + b"]\x94")) + b"u"
    ),
    "nested lists": lambda: pickle_list(b"](Ne\x94"),
    "appended": lambda: test_pt.pickled(b"]" + b"Na" * 31_000),
    "set": lambda: test_pt.pickled(b"}" + b"".join(fill(lambda n: b"\x8c" + bytes([len(n)]) + n.encode() + b"Ns"))),
    "frames": lambda: pickle_list(b"\x95" + bytes(8)),
    "marks": lambda: test_pt.pickled(b"(" * 30_000 + b"t" * 30_000),
    "names": lambda: pickle_list(b"ctorch\nint8\n"),
    "calls": lambda: called(b"collections\nOrderedDict", b"h\0)R"),
    "calls of a size": lambda: called(b"torch\nSize", b"h\0)\x85R\x94"),
    "storages": lambda: test_pt.pickled(
        b"}((" + test_pt.stored()[1:-1] + b"\x94tb\x8c\1a](" + b"h\0Q" * 20_000 + b"es"
    ),
    "stack globals": lambda: test_pt.pickled(
        b"}(\x8c\5torch\x94\x8c\4int8\x94tb\x8c\1a](" + b"h\0h\1\x93" * 12_000 + b"es"
    ),
    "calls of a list": lambda: called(b"collections\nOrderedDict", b"h\0]\x85R\x94"),
    "built": lambda: test_pt.pickled(b"}" + b"Nb" * 31_000),
    "longs": lambda: pickle_list(b"\x8a\0"),
    "large numbers": lambda: pickle_list(b"M\0\0"),
    "got": lambda: test_pt.pickled(b"](N\x94" + b"h\0" * 31_000 + b"e"),
    "got in turns": lambda: test_pt.pickled(b"](N\x94" + b"h\0N" * 20_000 + b"e"),
}


def pt_tensors() -> bytes:
    """Views of one storage, by entries of the memo."""
    head = b"ctorch._utils\n_rebuild_tensor_v2\n\x94" + test_pt.stored() + b"\x94" + b")\x94"
    rows = fill(lambda n: b"\x8c" + bytes([len(n)]) + n.encode() + b"h\0(h\1K\0))\x89NtR", NBYTES - 1500)
    return test_pt.zipped(test_pt.pickled(b"}(" + head + b"tb(" + b"".join(rows) + b"u"), test_pt.DATA)


def pt_list(items: bytes) -> bytes:
    """A tensor, the first entry of the memo, an element type, the second, and other items."""
    head = test_pt.view() + b"\x94" + test_pt.name("torch.int8") + b"\x94"
    return test_pt.zipped(test_pt.pickled(b"](" + head + items + b"e"), test_pt.DATA)


def pt_lists() -> bytes:
    """Lists of a tensor, each of its own."""
    return pt_list(b"]h\0a" * 15_000)


def pt_calls(function: str, *arguments: bytes) -> bytes:
    """Calls of a function with the same arguments, as many as the work of calls allows."""
    head = test_pt.name(function) + b"\x94(" + b"".join(arguments) + b"t\x94"
    rows = fill(lambda n: b"\x8c" + bytes([len(n)]) + n.encode() + b"h\0h\1R", NBYTES - 2500)
    storages = {**test_pt.SPARSE, "2": bytes(6)}
    return test_pt.zipped(test_pt.pickled(b"}(" + head + b"tb(" + b"".join(rows) + b"u"), storages)


def pt_sparse() -> bytes:
    layout = test_pt.made("torch.serialization._get_layout", test_pt.text("torch.sparse_coo"))
    indices = test_pt.view(test_pt.LONG, shape=test_pt.integers(2, 2), strides=test_pt.integers(2, 1))
    parts = b"(" + indices + test_pt.PAIR + test_pt.integers(2, 2) + b"\x88t"
    return pt_calls("torch._utils._rebuild_sparse_tensor", layout, parts)


def pt_quantized(shape: bytes) -> bytes:
    codes = test_pt.stored("2", 6, "torch.QInt8Storage")
    scale = b"(" + test_pt.name("torch.per_tensor_affine") + b"G" + struct.pack(">d", 0.5) + b"K\3t"
    return pt_calls("torch._utils._rebuild_qtensor", codes, b"K\0", shape, shape, scale, b"\x89", b"N")


def pt_storages() -> bytes:
    head = b"ctorch._utils\n_rebuild_tensor_v2\n\x94" + b"\x8c\7storage\x94ctorch\nByteStorage\n\x94\x8c\3cpu\x94"

    def one(n: str) -> bytes:
        text = b"\x8c" + bytes([len(n)]) + n.encode()
        return text + b"h\0((h\1h\2" + text + b"h\3K\0tQK\0))\x89NtR"

    rows = fill(one, 30_000, 430)
    storages = {n: b"" for n, _ in zip(names(), rows, strict=False)}
    return test_pt.zipped(test_pt.pickled(b"}(" + head + b"tb(" + b"".join(rows) + b"u"), storages)


# ONNX


def onnx_tensors(**fields: Any) -> bytes:
    def one(name: str) -> bytes:
        if fields:
            return test_onnx.field(5, test_onnx.tensor(name, **fields))
        return test_onnx.field(5, test_onnx.field(8, name.encode()))

    return test_onnx.model(more=b"".join(fill(one)))


def onnx_external(location: str | None = None) -> bytes:
    """Tensors in another file, or each in a file of its name."""

    def one(name: str) -> bytes:
        place = test_onnx.entry("location", location or name)
        return test_onnx.field(5, test_onnx.tensor(name, 2, (0,), location=1) + place)

    return test_onnx.model(more=b"".join(fill(one)))


def onnx_sparse(
    value: bytes = b"", indices: tuple[int, ...] = (0,), shape: Callable[[int], bytes] = lambda _: b"\1"
) -> bytes:
    """Sparse tensors of one value or none, with indices of a shape; and the packed shape of each tensor."""
    number = count()

    def one(name: str) -> bytes:
        index = {"int64": bytes(math.prod(indices))} if value else {}
        parts = (
            test_onnx.tensor(name, 2, (len(value),), **({"raw": value} if value else {})),
            test_onnx.tensor("", 7, indices, **index),
        )
        dims = test_onnx.field(3, shape(next(number)))
        return test_onnx.field(15, test_onnx.field(1, parts[0]) + test_onnx.field(2, parts[1]) + dims)

    return test_onnx.model(more=b"".join(fill(one)))


def onnx_entries() -> bytes:
    entries = fill(lambda n: test_onnx.field(13, test_onnx.field(1, n.encode())))
    held = test_onnx.field(2, 1) + test_onnx.field(8, b"a") + test_onnx.field(14, 1) + b"".join(entries)
    return test_onnx.model(held)


# DyND


def dynd(type: str, data: bytes = b"") -> bytes:
    return sized(type.encode()) + data


def dynd_fields(type: str, value: bytes = b"", room: int = NBYTES - 200) -> bytes:
    fields = count_of(lambda n: f"{n}: {type}, ".encode() + value, room)
    return dynd("{" + ", ".join(f"{n}: {type}" for n in fields) + "}", value * len(fields))


def dynd_sizes() -> bytes:
    """Each of a type of its own."""
    fields = count_of(lambda n: f"{n}: 9999 * 0 * int8, ".encode())
    return dynd("{" + ", ".join(f"{n}: {i} * 0 * int8" for i, n in enumerate(fields)) + "}")


def dynd_options() -> bytes:
    """Each of a type of its own, and of variable size."""
    fields = count_of(lambda n: f"{n}: ?9999 * void, ".encode() + b"\0")
    return dynd("{" + ", ".join(f"{n}: ?{i} * void" for i, n in enumerate(fields)) + "}", bytes(len(fields)))


def distinct(type: str, room: int = NBYTES - 300) -> str:
    """Types that all differ in a number, as many as there is room for."""
    return ", ".join(type % i for i in range(1, 1 + room // len(f"{type % 9999}, ")))


def dynd_distinct(type: str, begin: str = "(", end: str = ")", data: bytes = b"") -> bytes:
    """Such types, in a tuple or other text."""
    return dynd(begin + distinct(type) + end, data)


def dynd_boxes(type: str, value: bytes, of: str = "array") -> bytes:
    """Values that bring their types, which all differ in a number, before another value."""
    room, boxes = NBYTES - 300, []
    while room > 0:
        boxes.append(sized((type.replace("%d", str(len(boxes)))).encode()) + value)
        room -= len(boxes[-1])
    return dynd(f"{{a: var * {of}[Any], b: var * int8}}", varint(len(boxes)) + b"".join(boxes) + b"\0")


def dynd_table(type: str = "0 * int8") -> bytes:
    """The third form."""
    number = count()
    rows = fill(lambda n: sized(n.encode()) + sized(type.replace("%d", str(next(number))).encode()) + bytes(8))
    table = "{tensors: var * {name: string, type: type, nbytes: int64}, values: bytes}"
    return dynd(table, varint(len(rows)) + b"".join(rows) + b"\0")


# BSON


def bson_vectors() -> bytes:
    one = bson_samples.document(bson_samples.vector("", b"\x03\0"))
    return one * (NBYTES // len(one))


def bson_elements(element: Callable[[str], bytes]) -> bytes:
    return bson_samples.document(*fill(element))


def bson_nested(depth: int) -> bytes:
    inside = bson_samples.vector("", b"\x03\0")
    for _ in range(depth):
        inside = bson_samples.element(3, "", bson_samples.document(inside))
    one = bson_samples.document(inside)
    return one * (NBYTES // len(one))


# Directories


def dcp_json(folder: Path, one: Callable[[str], tuple[str, Any]], key: str, **more: Any) -> Path:
    entries = dict(one(n) for n in count_of(lambda n: json.dumps(dict([one(n)]), separators=(",", ":"))[:-1].encode()))
    test_dcp.write_index(folder, **{key: entries}, **more)
    return folder


def dcp_boxes(folder: Path) -> Path:
    boxes = [[0, "a", [i], [1]] for i in range(4000)]
    while len(json.dumps(boxes, separators=(",", ":"))) > NBYTES - 300:
        boxes = boxes[:-50]
    held = {"dtype": "uint8", "itemsize": 1, "shape": [len(boxes)], "boxes": boxes}
    test_dcp.write_index(folder, files=["a.safetensors"], tensors={"a": held})
    return folder


def dcp_pickle(data: Callable[[], bytes]) -> Make:
    def make(folder: Path) -> Path:
        (folder / ".metadata").write_bytes(data())
        return folder

    return make


def dcp_tensors() -> bytes:
    entries = 90
    held = {n: ("uint8", (0,), []) for n, _ in zip(names(), range(entries), strict=False)}
    return test_dcp.assemble(test_dcp.metadata(held, []))


def shards(folder: Path, files: int) -> Path:
    found = [f"{n}.safetensors" for n, _ in zip(names(), range(files), strict=False)]
    for name in found:
        tg.save(folder / name, {}, durable=False)
    test_shards.write_index(
        folder, dict(zip(count_of(lambda n: f'"{n}": "{found[-1]}", '.encode()), [*found] * 5000, strict=False))
    )
    return folder


def shards_missing(folder: Path) -> Path:
    """Each tensor in a file of its own, none of which is there."""
    one = {n: f"{n}.safetensors" for n in count_of(lambda n: f'"{n}": "{n}.safetensors", '.encode())}
    test_shards.write_index(folder, one)
    return folder


# Stores


def store(fill_it: Callable[[Path], None]) -> Make:
    def make(folder: Path) -> str:
        Store.create(folder / "store")
        fill_it(folder / "store")
        assert index_nbytes(folder / "store") <= 66_000, index_nbytes(folder / "store")
        return f"store://{folder / 'store'}#main"

    return make


def store_tensors(root: Path) -> None:
    held = array_node("0 * int8", b"")
    tensors = {n: link(held) for n in sorted(count_of(lambda n: bytes(len(n) + 42), 60_000))}
    tree = leaf(tensors)
    commit = commit_node(link(tree))
    nodes_pack([held, b"", tree, commit]).write(root)
    write_ref(root, "main", link(commit))


def store_arrays(root: Path, type: str) -> None:
    """Each tensor a node of its own."""
    held = [array_node(type % i, b"") for i in range(1, 260)]
    tree = leaf({f"{i:03}": link(node) for i, node in enumerate(held)})
    commit = commit_node(link(tree))
    nodes_pack([*held, b"", tree, commit]).write(root)
    write_ref(root, "main", link(commit))


def store_names(root: Path, type: str, data: bytes) -> None:
    """Names of one record."""
    held = array_node(type, data)
    room = 62_000 - len(held) - 2 * len(data)
    tree = leaf({n: link(held) for n in sorted(count_of(lambda n: bytes(len(n) + 42), room))})
    commit = commit_node(link(tree))
    nodes_pack([held, data, tree, commit]).write(root)
    write_ref(root, "main", link(commit))


def store_metadata(root: Path) -> None:
    tree = leaf({})
    commit = commit_node(link(tree), metadata=dict.fromkeys(count_of(lambda n: bytes(len(n) + 2), 60000), ""))
    nodes_pack([tree, commit]).write(root)
    write_ref(root, "main", link(commit))


def store_blocks(root: Path) -> None:
    tree = leaf({})
    commit = commit_node(link(tree))
    nodes_pack([tree, commit, *(i.to_bytes(2, "big") for i in range(600))]).write(root)
    write_ref(root, "main", link(commit))


def store_packs(root: Path) -> None:
    tree = leaf({})
    commit = commit_node(link(tree))
    for i in range(1, 200):
        nodes_pack([bytes([i])]).write(root, f"{i:016x}-0")
    nodes_pack([tree, commit]).write(root)
    write_ref(root, "main", link(commit))


def store_refs(root: Path) -> None:
    tree = leaf({})
    commit = commit_node(link(tree))
    nodes_pack([tree, commit]).write(root)
    for n, _ in zip(names(), range(400), strict=False):
        write_ref(root, f"r{n}", link(commit))
    write_ref(root, "main", link(commit))


def store_parents(root: Path) -> None:
    tree = leaf({})
    commit = commit_node(link(tree), [link(encode_node(i)) for i in range(1400)])
    nodes_pack([tree, commit]).write(root)
    write_ref(root, "main", link(commit))


# Deltas


def delta(folder: Path, number: int, change: bool) -> Path:
    old = dict.fromkeys(
        (n for n, _ in zip(names(), range(number), strict=False)), np.zeros(1 if change else 0, np.uint8)
    )
    new = {name: array + change for name, array in old.items()}
    tg.store.delta(old, new, folder / "a.tgdelta", durable=False)
    return folder / "a.tgdelta"


def delta_types(folder: Path, types: list[str]) -> Path:
    """A row of each type."""
    rows = [Change(i, type, 0, bytes(32), Base(type, 0, bytes(32))) for i, type in enumerate(types)]
    found = [name for name, _ in zip(names(), rows, strict=False)]
    path = folder / "a.tgdelta"
    path.write_bytes(MAGIC + encode_index(DeltaIndex(found, rows), len(MAGIC)))
    return path


# HDF5


def hdf5(fill_it: Callable[[Any], object], libver: str = "latest") -> Make:
    def make(folder: Path) -> Path:
        import h5py

        with h5py.File(folder / "a.h5", "w", libver=libver) as held:
            fill_it(held)
        return folder / "a.h5"

    return make


def several(number: int, one: Callable[[Any, str], object]) -> Callable[[Any], None]:
    def fill_it(held: Any) -> None:
        for name, _ in zip(names(), range(number), strict=False):
            one(held, name)

    return fill_it


def hdf5_links(held: Any) -> None:
    held["a"] = np.zeros(0, np.uint8)
    several(1950, lambda held, name: held.__setitem__(f"_{name}", held["a"]))(held)


def hdf5_chunks(held: Any) -> None:
    data = held.create_dataset("a", (1500,), "u1", chunks=(1,), maxshape=(None,))
    data[...] = 1


def hdf5_references(count: int, nbytes: int) -> Make:
    """A list of texts that are all the last of `count` objects, of `nbytes` each, in a global heap."""
    number = 900

    def fill_it(held: Any) -> None:
        import h5py

        held.attrs.create("text", "x" * (count * (16 + nbytes)), dtype=h5py.string_dtype())
        held.attrs.create("refs", [""] * number, dtype=h5py.string_dtype())

    def make(folder: Path) -> Path:
        path = hdf5(fill_it, "earliest")(folder)
        data = bytearray(path.read_bytes())
        heap, refs = data.index(b"GCOL"), data.index(b"refs\0\0\0\0") + 56  # behind the name, type and shape
        objects = b"".join(struct.pack("<HHIQ", i + 1, 1, 0, nbytes) + bytes(nbytes) for i in range(count))
        data[heap + 16 : heap + 16 + len(objects)] = objects
        data[refs : refs + 16 * number] = struct.pack("<IQI", 0, heap, count) * number
        path.write_bytes(data)
        assert len(data) <= 64 << 10, len(data)
        return path

    return make


DENSEST: dict[str, tuple[str, Make]] = {
    **{
        f"bintensors@{n}: {what}": (f"bintensors@{n}", file("a.bt", partial(make, n)))
        for n in (0, 1)
        for what, make in {
            "tensors": bintensors,
            "tensors of no dimensions": partial(bintensors, shape=()),
            "dimensions": partial(bintensors, shape=(0,) * 64),
            "metadata": bintensors_metadata,
        }.items()
    },
    "ztensor@0.1: tensors": ("ztensor", file("a.zt", zt01)),
    **{
        f"ztensor@0.1: {what}": ("ztensor", file("a.zt", make))
        for what, make in {
            "unknown dtypes": partial(zt01, dtype="x"),
            "unknown dtypes and encodings": partial(zt01, dtype="x", encoding="y"),
            "parts": partial(zt01, "#a", part="a", logical_layout="x", logical_shape=[0]),
            "parts of unknown dtypes": partial(zt01, "#a", part="a", layout="x", logical_type="x", logical_shape=[0]),
            "fields of parts": partial(zt01, "#data", part="data", logical_type="x"),
            "metadata": zt01_metadata,
            "chunks of a key": zt01_chunks,
            "numbers": lambda: zt01_index(b"\x9f" + bytes(63_000) + b"\xff"),
        }.items()
    },
    "ztensor@1: tensors": ("ztensor", file("a.zt", zt1)),
    **{
        f"ztensor@1: {what}": ("ztensor", file("a.zt", make))
        for what, make in {
            "unknown formats": partial(zt1, "x"),
            "unknown dtypes": partial(zt1, dtype="x"),
            "unknown dtypes and encodings": partial(zt1, "x", "a", dtype="x", encoding="y"),
            "components": zt1_components,
            "fields": lambda: zt.file1(
                zt.Raw(b"\xbf" + b"".join(fill(lambda n: zt.cbor(n) + b"\0")) + b"\xff"), body=b""
            ),
            "objects of numbers": lambda: zt.file1(
                {"objects": zt.Raw(b"\xbf" + b"".join(fill(lambda n: zt.cbor(n) + b"\0")) + b"\xff")}, body=b""
            ),
        }.items()
    },
    **{
        f"ztensor@1: attribute of {k}": ("ztensor", file("a.zt", lambda v=v: zt1_attributes(v())))
        for k, v in CBOR.items()
    },
    "ztensor@2: tensors": ("ztensor", file("a.zt", zt2_tensors)),
    "ztensor@2: dimensions": ("ztensor", file("a.zt", partial(zt2_tensors, (0,) * 64))),
    "ztensor@2: parts": ("ztensor", file("a.zt", zt2_parts)),
    "ztensor@2: nested tensors": (
        "ztensor",
        file("a.zt", lambda: zt2_nested(*[f"{{a{i}: {{}}}}" for i in range(680)])),
    ),
    "ztensor@2: a type of distinct structs": (
        "ztensor",
        file("a.zt", lambda: zt2_nested(f"({distinct('{a%d: {}}', 59_000)})")),
    ),
    "ztensor@2: sparse tensors": (
        "ztensor",
        file("a.zt", partial(zt2_layout, "zt.sparse_coo/1", (1,), "values", "coords")),
    ),
    "ztensor@2: products of many dimensions": ("ztensor", file("a.zt", partial(zt2_tensors, (0, *[2] * 63)))),
    "ztensor@2: unknown layouts of many dimensions": (
        "ztensor",
        file("a.zt", partial(zt2_layout, "x", (0,) * 64, "a")),
    ),
    "ztensor@2: fractions of elements": (
        "ztensor",
        file("a.zt", partial(zt2_layout, "x", (0,), "a", encoding="y", decoded_length=1)),
    ),
    "ztensor@2: unknown parts": (
        "ztensor",
        file("a.zt", partial(zt2_layout, "x", (0,), "a", type="x", encoding="y", decoded_length=0)),
    ),
    "ztensor@2: scaled tensors": (
        "ztensor",
        file(
            "a.zt",
            partial(
                zt2_described,
                "zt.mx/1",
                {"data": ("u8", "f4_e2m1"), "scales": ("u8", "f8_e8m0")},
                {"block_size": 2},
            ),
        ),
    ),
    "ztensor@2: shards": ("ztensor", file("a.zt", zt2_shards)),
    "ztensor@2: unknown layouts": ("ztensor", file("a.zt", partial(zt2_layout, "x", (0,), "a"))),
    "ztensor@2: unknown types": ("ztensor", file("a.zt", partial(zt2_layout, "dense", (0,), "data", type="x"))),
    "ztensor@2: unknown encodings": (
        "ztensor",
        file("a.zt", partial(zt2_layout, "dense", (0,), "data", encoding="x", decoded_length=0)),
    ),
    **{
        f"ztensor@2: attribute of {k}": ("ztensor", file("a.zt", lambda v=v: zt2_attributes(v())))
        for k, v in CBOR.items()
    },
    "safetensors: tensors": ("safetensors", file("a.safetensors", safetensors)),
    "safetensors: dimensions": (
        "safetensors",
        file("a.safetensors", partial(safetensors, str([0] * 64).replace(" ", ""))),
    ),
    "safetensors: unknown dtypes": ("safetensors", file("a.safetensors", partial(safetensors, dtype="F4"))),
    "safetensors: metadata": ("safetensors", file("a.safetensors", safetensors_metadata)),
    "safetensors: nested": (
        "safetensors",
        file("a.safetensors", lambda: safetensors_file(b'{"a":' + b"[" * 31000 + b"]" * 31000 + b"}")),
    ),
    "safetensors: numbers": (
        "safetensors",
        file(
            "a.safetensors",
            lambda: safetensors_file(b'{"a":{"dtype":"U8","data_offsets":[0,0],"shape":[' + b"0," * 31000 + b"0]}}"),
        ),
    ),
    "npz: arrays": ("npz", npz()),
    "npz: members": ("npz", file("a.npz", npz_members)),
    **{
        f"npz: compressed headers of {what}": ("npz", file("a.npz", partial(npz_deflated, count, header)))
        for what, count, header in (
            ("an array", 330, "{'descr': '|u1', 'fortran_order': False, 'shape': (0,)}"),
            ("blanks", 260, "{'descr': '|u1', 'fortran_order': False, 'shape': (0,)" + " " * 65_000 + "}"),
            (
                "equal fields",
                170,
                "{'descr': [" + "('a','|u1')," * 4000 + "], 'fortran_order': False, 'shape': (0,)}",
            ),
            (
                "fields",
                6,
                "{'descr': ["
                + "".join(f"('a{i}','|u1')," for i in range(3000))
                + "], 'fortran_order': False, 'shape': (0,)}",
            ),
        )
    },
    "npy: fields of shapes": (
        "npy",
        file(
            "a.npy",
            lambda: npy(
                "{'descr': ["
                + b"".join(fill(lambda n: f"('{n}','|u1',(0,)),".encode())).decode()
                + "], 'fortran_order': False, 'shape': (0,)}"
            ),
        ),
    ),
    "npy: keys": ("npy", file("a.npy", lambda: npy("{" + "'a':1," * 10_000 + "}"))),
    "npy: digits": ("npy", file("a.npy", lambda: npy("{'shape': (" + "9" * 60_000 + ",)}"))),
    "npy: dimensions": (
        "npy",
        file("a.npy", lambda: npy("{'descr': '|u1', 'fortran_order': False, 'shape': (" + "0," * 30000 + ")}")),
    ),
    "npy: nested": (
        "npy",
        file("a.npy", lambda: npy("{'descr': " + "[" * 30000 + "]" * 30000 + ", 'fortran_order': False, 'shape': ()}")),
    ),
    "npy: fields": (
        "npy",
        file("a.npy", lambda: npy("{'descr': [" + "('a', '|u1')," * 4000 + "], 'fortran_order': False, 'shape': ()}")),
    ),
    "gguf: tensors": ("gguf", file("a.gguf", partial(gguf_tensors, 1))),
    "gguf: dimensions": ("gguf", file("a.gguf", partial(gguf_tensors, 4))),
    "gguf: scalars": ("gguf", file("a.gguf", partial(gguf_tensors, 0))),
    "gguf: pairs": ("gguf", file("a.gguf", gguf_pairs)),
    "gguf: pairs of arrays": ("gguf", file("a.gguf", gguf_arrays)),
    "gguf: texts": ("gguf", file("a.gguf", partial(gguf_array, 8, bytes(8)))),
    "gguf: truths": ("gguf", file("a.gguf", partial(gguf_array, 7, b"\0"))),
    "gguf: bytes": ("gguf", file("a.gguf", partial(gguf_array, 0, b"\0"))),
    "gguf: arrays of a number": ("gguf", file("a.gguf", gguf_nested)),
    "gguf: arrays": ("gguf", file("a.gguf", partial(gguf_array, 9, struct.pack("<IQ", 4, 0)))),
    **{f"pt zip: {k}": ("pt", file("a.pt", lambda v=v: test_pt.zipped(v()))) for k, v in PICKLES.items()},
    **{f"pt legacy: {k}": ("pt", file("a.pt", lambda v=v: test_pt.legacy(v(), (), b""))) for k, v in PICKLES.items()},
    "pt zip: tensors": ("pt", file("a.pt", pt_tensors)),
    "pt zip: storages": ("pt", file("a.pt", pt_storages)),
    "pt zip: strided tensors": (
        "pt",
        file(
            "a.pt",
            partial(
                pt_calls,
                "torch._utils._rebuild_tensor_v2",
                test_pt.stored("0", 6),
                b"K\0",
                test_pt.integers(2),
                test_pt.integers(0),
                b"\x89N",
            ),
        ),
    ),
    "pt zip: sparse tensors": ("pt", file("a.pt", pt_sparse)),
    "pt zip: quantized tensors": ("pt", file("a.pt", partial(pt_quantized, test_pt.integers(1)))),
    "pt zip: unsupported tensors": ("pt", file("a.pt", partial(pt_quantized, b")"))),
    "pt zip: lists of a tensor": ("pt", file("a.pt", pt_lists)),
    "pt zip: names of one tensor": ("pt", file("a.pt", partial(pt_list, b"h\0" * 31_000))),
    "pt zip: a tensor and element types": ("pt", file("a.pt", partial(pt_list, b"h\1" * 31_000))),
    "pt zip: a tensor and constants": ("pt", file("a.pt", partial(pt_list, b"N" * 62_000))),
    "pt zip: a tensor and lists": ("pt", file("a.pt", partial(pt_list, b"]\x94" * 31_000))),
    "onnx: names": ("onnx", file("a.onnx", onnx_tensors)),
    "onnx: tensors": ("onnx", file("a.onnx", partial(onnx_tensors, dims=(0,)))),
    "onnx: scalars": ("onnx", file("a.onnx", partial(onnx_tensors, type=2, dims=(), raw=b"\0"))),
    "onnx: varints": ("onnx", file("a.onnx", partial(onnx_tensors, type=2, dims=(), int32=b"\0"))),
    "onnx: external": ("onnx", file("a.onnx", partial(onnx_external, "a"))),
    "onnx: external files": ("onnx", file("a.onnx", onnx_external)),
    "onnx: dimensions": ("onnx", file("a.onnx", partial(onnx_tensors, dims=(0,) * 64))),
    "onnx: sparse": ("onnx", file("a.onnx", onnx_sparse)),
    "onnx: sparse of one value": ("onnx", file("a.onnx", partial(onnx_sparse, b"\0", (1,)))),
    "onnx: sparse of positions": ("onnx", file("a.onnx", partial(onnx_sparse, b"\0", (1,), lambda _: b"\1\1"))),
    "onnx: sparse of rows": ("onnx", file("a.onnx", partial(onnx_sparse, b"\0", (1, 2), lambda _: b"\1\1"))),
    "onnx: sparse of shapes": (
        "onnx",
        file("a.onnx", partial(onnx_sparse, shape=lambda i: bytes([1 + i % 127, 1 + i // 127]))),
    ),
    "onnx: sparse of dimensions": (
        "onnx",
        file("a.onnx", partial(onnx_sparse, shape=lambda i: b"\1" * 62 + bytes([1 + i % 127, 1 + i // 127]))),
    ),
    "onnx: packed dimensions": (
        "onnx",
        file(
            "a.onnx",
            lambda: test_onnx.model(
                more=b"".join(
                    fill(lambda n: test_onnx.field(5, test_onnx.tensor(n, 1, ()) + test_onnx.field(1, b"\0")))
                )
            ),
        ),
    ),
    "onnx: texts": ("onnx", file("a.onnx", partial(onnx_tensors, type=8, dims=(1,), string=b""))),
    "onnx: unknown types": ("onnx", file("a.onnx", partial(onnx_tensors, type=300, dims=(1,)))),
    "onnx: pieces of text": (
        "onnx",
        file("a.onnx", lambda: test_onnx.model(test_onnx.tensor("a", 8, (1,)) + b"\x32\0" * 31_900)),
    ),
    "onnx: entries": ("onnx", file("a.onnx", onnx_entries)),
    "onnx: nodes": ("onnx", file("a.onnx", lambda: test_onnx.model(more=b"\x0a\0" * 31_900))),
    "onnx: fields": ("onnx", file("a.onnx", lambda: test_onnx.field(7, b"") + b"\x48\0" * 31_900)),
    "onnx: fields of a tensor": (
        "onnx",
        file("a.onnx", lambda: test_onnx.model(test_onnx.tensor("a", 1, (0,)) + b"\x62\0" * 31_900)),
    ),
    "onnx: opsets": ("onnx", file("a.onnx", lambda: test_onnx.field(7, b"") + b"\x42\0" * 31_900)),
    "onnx: domains": (
        "onnx",
        file(
            "a.onnx",
            lambda: (
                test_onnx.field(7, b"") + b"".join(fill(lambda n: test_onnx.field(8, test_onnx.field(1, n.encode()))))
            ),
        ),
    ),
    "onnx: properties": (
        "onnx",
        file(
            "a.onnx",
            lambda: (
                test_onnx.field(7, b"") + b"".join(fill(lambda n: test_onnx.field(14, test_onnx.field(1, n.encode()))))
            ),
        ),
    ),
    "dynd: fields": ("dynd", file("a.dynd", partial(dynd_fields, "0 * int8"))),
    "dynd: void fields": ("dynd", file("a.dynd", partial(dynd_fields, "void"))),
    "dynd: fields of one byte": ("dynd", file("a.dynd", partial(dynd_fields, "int8", b"\0"))),
    "dynd: fields of each size": ("dynd", file("a.dynd", dynd_sizes)),
    "dynd: fields of text": ("dynd", file("a.dynd", partial(dynd_fields, "string", b"\0"))),
    "dynd: fields of lists": ("dynd", file("a.dynd", partial(dynd_fields, "var * int8", b"\0"))),
    "dynd: fields of options": ("dynd", file("a.dynd", partial(dynd_fields, "?string", b"\0"))),
    "dynd: fields of sub-byte elements": ("dynd", file("a.dynd", partial(dynd_fields, "0 * int4"))),
    "dynd: fields of structs": ("dynd", file("a.dynd", partial(dynd_fields, "{}"))),
    "dynd: fields of tuples": ("dynd", file("a.dynd", partial(dynd_fields, "()"))),
    "dynd: tuple": ("dynd", file("a.dynd", lambda: dynd("(" + ", ".join(["int8"] * 9000) + ")", bytes(9000)))),
    "dynd: tuples": ("dynd", file("a.dynd", lambda: dynd("(" + ", ".join(["()"] * 15900) + ")"))),
    "dynd: tuple of void": ("dynd", file("a.dynd", lambda: dynd("(" + ", ".join(["void"] * 10000) + ")"))),
    "dynd: nested tuples": ("dynd", file("a.dynd", lambda: dynd("(" + ", ".join(["(" * 60 + ")" * 60] * 520) + ")"))),
    "dynd: options": ("dynd", file("a.dynd", lambda: dynd("(" + ", ".join(["?int8"] * 8000) + ")", bytes(8000)))),
    "dynd: dimensions": ("dynd", file("a.dynd", lambda: dynd("(" + ", ".join(["0 * " * 60 + "int8"] * 250) + ")"))),
    "dynd: power": ("dynd", file("a.dynd", lambda: dynd("(" + ", ".join(["0 ** 60 * int8"] * 3900) + ")"))),
    **{
        f"dynd: distinct {what}": ("dynd", file("a.dynd", partial(dynd_distinct, type)))
        for what, type in {
            "dimensions": "%d * " + "1 * " * 60 + "string",
            "sizes": "bytes[%d]",
            "options": "?%d * void",
            "text options": "?%d * string",
            "tuples": "(%d * int8)",
            "structs": "{a%d: {}}",
            "maps": "map[void, %d * void]",
            "arrays": "array[%d * A]",
            "functions": "array[(%d * A) -> A]",
            "nested tuples": "(" * 60 + "%d * void" + ")" * 60,
            "time zones": "datetime['s', tz='%d']",
            "storages": "storage[%d * " + "1 * " * 59 + "int8, axis=[" + ", ".join(map(str, range(59, -1, -1))) + "]]",
            "dimensions of structs": "1 * 1 * 1 * 1 * {a%d: {}}",
            "structs of two": "{a: {}, b%d: ()}",
        }.items()
    },
    **{
        f"dynd: distinct structs, {what}": (
            "dynd",
            file("a.dynd", partial(dynd_distinct, "{a%d: {}}", *ends)),
        )
        for what, ends in {
            "then nothing": ("(", ", !)"),
            "then nothing within": ("((", "), !)"),
            "not canonical": ("(", ", int)"),
            "not canonical within": ("{a: ((", ", int))}"),
            "unclosed": ("(", ""),
            "too deep": ("(", f", {'(' * 70}{')' * 70})"),
            "a variable": ("(", ", N * int8)"),
            "a name twice": ("{a: (", "), a: int8}"),
            "a name twice within": ("(", ", {a: int8, a: int8})"),
            "more bytes": ("(", ")", b"\0"),
        }.items()
    },
    **{
        f"dynd: {what}": ("dynd", file("a.dynd", partial(dynd_boxes, *box)))
        for what, box in {
            "boxes": ("void", b""),
            "boxes of text": ("string", b"\0"),
            "distinct boxes": ("%d * void", b""),
            "distinct boxes of options": ("?%d * void", b"\0"),
            "distinct boxes of structs": ("{a%d: ()}", b""),
            "links": ("%d * void", b"\1\x55\x1e\x20" + bytes(32), "merkle"),
        }.items()
    },
    "dynd: a box of a long type": (
        "dynd",
        file("a.dynd", lambda: dynd("{a: array[Any], b: int8}", dynd_distinct("{a%d: {}}") + b"\0")),
    ),
    "dynd: table of distinct options": ("dynd", file("a.dynd", partial(dynd_table, "?%d * string"))),
    "dynd: table of distinct structs": ("dynd", file("a.dynd", partial(dynd_table, "{a%d: {}}"))),
    "dynd: escapes": ("dynd", file("a.dynd", lambda: dynd("{'" + "\\u0080" * 10_000 + "': int8}", b"\0"))),
    "dynd: quoted names": (
        "dynd",
        file("a.dynd", lambda: dynd("{" + ", ".join(f"'\\u{0x80 + i:04x}': {{}}" for i in range(4200)) + "}")),
    ),
    "dynd: invalid at its end": ("dynd", file("a.dynd", lambda: dynd("(" + "(), " * 15800 + "!)"))),
    "dynd: unclosed quotes": ("dynd", file("a.dynd", lambda: dynd("(" + "'\\" * 31500))),
    "dynd: fields of void dimensions": ("dynd", file("a.dynd", partial(dynd_fields, "1000000 * void"))),
    "dynd: fields of lists of void": ("dynd", file("a.dynd", partial(dynd_fields, "var * 99999 * void", b"\x09"))),
    "dynd: fields of distinct options": ("dynd", file("a.dynd", dynd_options)),
    "dynd: table": ("dynd", file("a.dynd", dynd_table)),
    "dynd: table of text": ("dynd", file("a.dynd", partial(dynd_table, "bytes"))),
    "bson: vectors": ("bson", file("a.bson", bson_vectors)),
    "bson: vectors of a document": (
        "bson",
        file("a.bson", lambda: bson_elements(lambda n: bson_samples.vector(n, b"\x03\0"))),
    ),
    "bson: numbers": ("bson", file("a.bson", lambda: bson_elements(lambda n: bson_samples.element(10, n, b"")))),
    "bson: documents": ("bson", file("a.bson", lambda: bson_samples.document() * (NBYTES // 5))),
    "bson: documents of a document": (
        "bson",
        file("a.bson", lambda: bson_elements(lambda n: bson_samples.element(3, n, bson_samples.document()))),
    ),
    "bson: nested": ("bson", file("a.bson", partial(bson_nested, 90))),
    "bson: two levels": ("bson", file("a.bson", partial(bson_nested, 1))),
    "dcp: tensors": (
        "dcp",
        partial(
            dcp_json, one=lambda n: (n, {"dtype": "uint8", "itemsize": 1, "shape": [0], "boxes": []}), key="tensors"
        ),
    ),
    "dcp: tensors of a box": (
        "dcp",
        partial(
            dcp_json,
            one=lambda n: (n, {"dtype": "uint8", "itemsize": 1, "shape": [0], "boxes": [[0, n, [0], [0]]]}),
            key="tensors",
            files=["a.safetensors"],
        ),
    ),
    "dcp: values": ("dcp", partial(dcp_json, one=lambda n: (n, 0), key="values")),
    "dcp: paths": ("dcp", partial(dcp_json, one=lambda n: (n, []), key="paths")),
    "dcp: boxes": ("dcp", dcp_boxes),
    "dcp: nested values": (
        "dcp",
        lambda folder: (test_dcp.write_index(folder, values={"a": [[]] * 20_000}), folder)[1],
    ),
    **{f"dcp pickle: {k}": ("dcp", dcp_pickle(v)) for k, v in PICKLES.items()},
    "dcp pickle: tensors": ("dcp", dcp_pickle(dcp_tensors)),
    "delta: unchanged": ("delta", partial(delta, number=850, change=False)),
    "delta: changed": ("delta", partial(delta, number=500, change=True)),
    "delta: one type": ("delta", partial(delta_types, types=[f"({', '.join(['void'] * 5000)})"] * 440)),
    "delta: distinct types": ("delta", partial(delta_types, types=[f"{{a{i}: {{}}}}" for i in range(580)])),
    "delta: a type of distinct structs": (
        "delta",
        partial(delta_types, types=[f"({distinct('{a%d: {}}', 62_000)})"]),
    ),
    "shards: tensors": ("", partial(shards, files=1)),
    "shards: missing files": ("", shards_missing),
    "shards: files": ("", partial(shards, files=100)),
    "store: tensors": ("", store(store_tensors)),
    "store: arrays": ("", store(partial(store_arrays, type="%d * 0 * int8"))),
    "store: arrays of structs": ("", store(partial(store_arrays, type="{a%d: {}}"))),
    **{
        f"store: names of {what}": (
            "",
            store(partial(store_names, type=f"({', '.join([type] * count)})", data=bytes(count * size))),
        )
        for what, type, count, size in (
            ("a tuple of void", "void", 800, 0),
            ("a wide tuple of void", "void", 4000, 0),
            ("a tuple of bools", "bool", 800, 1),
            ("a wide tuple of bools", "bool", 4000, 1),
            ("a tuple of text", "string", 800, 1),
        )
    },
    "store: a type of distinct structs": (
        "",
        store(partial(store_names, type=f"({distinct('{a%d: {}}', 60_000)})", data=b"")),
    ),
    "store: names of empty dimensions": ("", store(partial(store_names, type="1000000 * void", data=b""))),
    "store: metadata": ("", store(store_metadata)),
    "store: blocks": ("", store(store_blocks)),
    "store: packs": ("", store(store_packs)),
    "store: refs": ("", store(store_refs)),
    "store: parents": ("", store(store_parents)),
    "hdf5: datasets": ("hdf5", hdf5(several(200, lambda held, n: held.create_dataset(n, (0,), "u1")))),
    "hdf5: groups": ("hdf5", hdf5(several(380, lambda held, n: held.create_group(n)))),
    "hdf5: groups of the earliest form": ("hdf5", hdf5(several(40, lambda held, n: held.create_group(n)), "earliest")),
    "hdf5: attributes": ("hdf5", hdf5(several(900, lambda held, n: held.attrs.__setitem__(n, 0)))),
    "hdf5: names": ("hdf5", hdf5(hdf5_links)),
    "hdf5: references to a text": ("hdf5", hdf5_references(1, 30_000)),
    "hdf5: references to a heap": ("hdf5", hdf5_references(1800, 0)),
    "hdf5: chunks": ("hdf5", hdf5(hdf5_chunks)),
    "hdf5: chunks of the earliest form": ("hdf5", hdf5(hdf5_chunks, "earliest")),
}
