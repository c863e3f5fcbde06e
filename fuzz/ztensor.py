"""Mutants of valid zTensor files of every version, by field and by byte: `python fuzz/ztensor.py [COUNT] [SEED]`.

The invariant: whatever the bytes are,

- only a TensorglotError leaves, and it says its rule in printable words;
- what is opened can be listed, its attributes and metadata decoded, and each of its
  tensors read, or refused by a FormatError or an UnsupportedError;
- `verify` ends with a report, and says ok only where every read is;
- what is read can be saved again as 0.1, and gives the same values;
- what strict accepts and verifies is what our writer makes of it, byte for byte.

A file is a tree of values, so that a mutation can change one number, text or map and
have the size, the hash and the footer made right again; or it is bytes, with and
without such repairs.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
import xxhash
import zstandard

import tensorglot as tg
from ztensor_builder import MAGIC_01, MAGIC_1, MAGIC_2, Long, Open, Pairs, Raw, cbor, deterministic

NUMBERS = (
    0, 1, 2, 3, 8, 63, 64, 65, 4096, 65536, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1,
    -(1 << 63),
)  # fmt: skip
TEXTS = (
    "", "a", "dense", "raw", "zstd", "float32", "bool", "u8", "f32", "little", "big", "crc32c:0x00000000", "xxh3:00",
    "sha256:" + "0" * 64, "zt.sparse_csr/1", "zt.mx/1", "zt.zstd-seekable/1", "\0", "../x", "é", "n" * 300,
)  # fmt: skip
ODD = (
    None, True, 1.5, b"\0", [], {}, [1], {"a": 1}, Raw(b"\xf7"), Raw(b"\xc1\0"), Raw(b"\x61\xff"), Raw(b"\xff"),
    Raw(b""), Raw(b"\x9f"), Raw(b"\x1c"), Raw(b"\x7b" + b"\xff" * 8), Open([1]), Open("text"), Long(64), [[[[1]]]],
)  # fmt: skip


@dataclass
class File:
    """Blobs at their offsets, and a tree that describes them."""

    version: str
    tree: Any
    blobs: dict[int, bytes] = field(default_factory=dict)
    broken_size: int | None = None

    def render(self) -> bytes:
        magic = {"0.1": MAGIC_01, "1": MAGIC_1, "2": MAGIC_2}[self.version]
        end = max((offset + len(blob) for offset, blob in self.blobs.items()), default=len(magic))
        body = bytearray(max(end, len(magic)))
        body[: len(magic)] = magic
        for offset, blob in self.blobs.items():
            body[offset : offset + len(blob)] = blob
        if self.version == "2":
            body += bytes(-len(body) % 4096 if len(body) > 8 else 4088)
            encoded = cbor(deterministic(self.tree))
            size = len(encoded) if self.broken_size is None else self.broken_size
            hashed = xxhash.xxh3_64_intdigest(encoded)
            return (
                bytes(body) + encoded + struct.pack("<QQQII", len(body), size & (1 << 64) - 1, hashed, 2, 0) + MAGIC_2
            )
        encoded = cbor(self.tree)
        size = len(encoded) if self.broken_size is None else self.broken_size
        tail = struct.pack("<Q", size & (1 << 64) - 1) + (MAGIC_1 if self.version == "1" else b"")
        return bytes(body) + encoded + tail


DTYPES = {"float32": ("f32", 4), "uint8": ("u8", 1), "int16": ("i16", 2), "bool": ("u8", 1), "float64": ("f64", 8)}


def _data(r: random.Random, dtype: str, count: int) -> bytes:
    if dtype == "bool":
        return bytes(r.randrange(2) for _ in range(count))
    return r.randbytes(count * DTYPES[dtype][1])


def valid_file(r: random.Random) -> File:
    """A random file: dense, compressed, sparse and quantized tensors, checksums, attributes."""
    version = r.choice(("0.1", "0.1", "1", "2", "2"))
    step = 4096 if version == "2" else 64
    file = File(version, None)
    offset = step
    things: list[tuple[str, Any]] = []
    for i in range(r.choice((0, 1, 1, 2, 3, 5))):
        dtype = r.choice(list(DTYPES))
        shape = [r.choice((0, 1, 2, 3)) for _ in range(r.randrange(4))]
        data = _data(r, dtype, int(np.prod(shape, dtype=int)))
        name = f"t{i}" if r.random() < 0.9 else r.choice(TEXTS) + str(i)
        if r.random() < 0.3:
            thing, offset = _parted(r, file, name, offset, step)
        else:
            thing, offset = _dense(r, file, name, dtype, shape, data, offset, step)
        things += thing
    attributes = {"k": [1, {"z": None}]} if r.random() < 0.3 else None
    if version == "0.1":
        if attributes is not None:
            custom = {"metadata": attributes}
            things.append(("", {"name": "__metadata__", "offset": step, "size": 0, "dtype": "uint8", "shape": [0],
                                "encoding": "raw", **custom}))  # fmt: skip
        file.tree = [thing for _, thing in things]
    else:
        file.tree = {"objects": dict(things)} | ({} if attributes is None else {"attributes": attributes})
        if version == "1":
            file.tree["version"] = "1.1.0"
    return file


def _store(r: random.Random, file: File, data: bytes, offset: int, step: int) -> tuple[str, bytes, int]:
    """Puts data into the file, compressed or not: its encoding, the bytes, and where the next blob goes."""
    encoding = "raw"
    stored = data
    if r.random() < 0.3:
        encoding = "zstd"
        cut = r.randrange(len(data) + 1)
        compressor = zstandard.ZstdCompressor(write_checksum=True)
        if file.version == "2":
            frame = compressor.compress(data) if data else b""
            sizes = struct.pack("<II", len(frame), len(data)) if data else b""
            table = sizes + struct.pack("<IBI", len(sizes) // 8, 0, 0x8F92EAB1)
            stored = frame + struct.pack("<II", 0x184D2A5E, len(table)) + table
            encoding = "zt.zstd-seekable/1"
        else:
            stored = compressor.compress(data[:cut]) + compressor.compress(data[cut:])
    file.blobs[offset] = stored
    return encoding, stored, offset + -(-max(len(stored), 1) // step) * step


def _dense(
    r: random.Random, file: File, name: str, dtype: str, shape: list[int], data: bytes, offset: int, step: int
) -> tuple[list[tuple[str, Any]], int]:
    encoding, stored, following = _store(r, file, data, offset, step)
    if file.version == "0.1":
        entry = {
            "name": name,
            "offset": offset,
            "size": len(stored),
            "dtype": dtype,
            "shape": shape,
            "encoding": encoding,
        }
        if r.random() < 0.7:
            entry["layout"] = "dense"
        if r.random() < 0.3 and DTYPES[dtype][1] > 1:
            entry["data_endianness"] = r.choice(("little", "big"))
        if r.random() < 0.3:
            entry["custom"] = r.choice((1, "x", [1, [2]], {"b": 1, "a": {}}))
        if r.random() < 0.3:
            entry["checksum"] = _crc32c(stored)
        keys = list(entry)
        r.shuffle(keys)
        return [(name, {key: entry[key] for key in keys})], following
    part: dict[str, Any] = {"dtype": DTYPES[dtype][0]}
    if file.version == "2":
        part["blob"] = [offset, len(stored)]
        if dtype == "bool":
            part["type"] = "bool"
        if encoding != "raw":
            part |= {"encoding": encoding, "decoded_length": len(data)}
        if r.random() < 0.5:
            part["digest"] = f"xxh3:{xxhash.xxh3_64_hexdigest(data)}"
        return [(name or "x", {"shape": shape, "layout": "dense", "parts": {"data": part}})], following
    part |= {"offset": offset, "length": len(stored)}
    if encoding != "raw":
        part |= {"encoding": "zstd", "uncompressed_length": len(data)}
    return [(name, {"shape": shape, "format": "dense", "components": {"data": part}})], following


def _crc32c(data: bytes) -> str:
    import crc32c

    return f"crc32c:0x{crc32c.crc32c(data):08X}"


@dataclass(frozen=True)
class Profile:
    """A tensor of parts: each has a storage type, a type that says more or none, and its bytes."""

    layout: str
    shape: list[int]
    attributes: dict[str, Any]
    parts: dict[str, tuple[str, str | None, bytes]]


def _le(kind: str, *values: int) -> bytes:
    return np.array(values, kind).tobytes()


PROFILES = (
    Profile("zt.sparse_csr/1", [2, 3], {"a": 1}, {
        "values": ("f32", None, _le("<f4", 0, 1, 2)), "indices": ("u32", None, _le("<u4", 0, 2, 1)),
        "indptr": ("u32", None, _le("<u4", 0, 2, 3))}),
    Profile("zt.sparse_coo/1", [2, 3], {}, {
        "values": ("f32", "complex64", _le("<c8", 1, 2)), "coords": ("u64", None, _le("<u8", 0, 1, 2, 0))}),
    Profile("zt.mx/1", [2, 4], {"block_size": 2, "axis": 1}, {
        "data": ("u8", "f4_e2m1", bytes(range(4))), "scales": ("u8", "f8_e8m0", b"\x7f\x80\xff\0")}),
    Profile("zt.quant_group/1", [2, 4], {
        "bits": 4, "group_size": 2, "axis": 1, "scale_form": "f16_factors",
        "packing": {"word": "u8", "per_word": 2, "order": "lsb_first"},
        "zero_point": {"form": "tensor", "packing": "plain"}}, {
        "data": ("u8", None, bytes(range(4))), "scales": ("f16", None, _le("<f2", 1, 2, 3, 4)),
        "zeros": ("u8", None, bytes(4))}),
    Profile("dense", [3], {}, {"data": ("u8", "f4_e2m1", b"\x12\x03")}),
    Profile("dense", [2], {"a": {}}, {"data": ("f64", "complex128", _le("<c16", 1, 2))}),
    Profile("x.y/1", [5], {"k": [1]}, {"p": ("u16", None, b"abc"), "q": ("u8", "my.type", b"d")}),
)  # fmt: skip
LONG = {"f64": "float64", "f32": "float32", "f16": "float16", "u64": "uint64", "u32": "uint32", "u16": "uint16",
        "u8": "uint8", "f4_e2m1": "float4_e2m1fn", "f8_e8m0": "float8_e8m0fnu"}  # fmt: skip
FORMATS_1 = {"zt.sparse_csr/1": "sparse_csr", "zt.sparse_coo/1": "sparse_coo"}


def _parted(r: random.Random, file: File, name: str, offset: int, step: int) -> tuple[list[tuple[str, Any]], int]:
    """A tensor of parts, as the version has it."""
    profile = r.choice(PROFILES)
    rows: list[tuple[str, Any]] = []
    parts: dict[str, Any] = {}
    for i, (part, (dtype, kind, data)) in enumerate(profile.parts.items()):
        file.blobs[offset] = data
        if file.version == "0.1":
            entry: dict[str, Any] = {"name": f"{name}#{part}", "offset": offset, "size": len(data), "layout": "dense",
                                     "dtype": LONG[dtype], "shape": [len(data) // (int(dtype[1:]) // 8)],
                                     "encoding": "raw", "part_of": name, "part": part}  # fmt: skip
            if len(data) % (int(dtype[1:]) // 8):
                entry["dtype"] += " in part"
            elif kind is not None:
                entry |= {"dtype": "uint8", "shape": [len(data)], "logical_type": LONG.get(kind, kind)}
            if i == 0:
                entry |= {"logical_layout": profile.layout, "logical_shape": profile.shape}
                entry |= {"attributes": profile.attributes} if profile.attributes else {}
            rows.append((name, entry))
        elif file.version == "2":
            parts[part] = {"dtype": dtype, "blob": [offset, len(data)]} | ({} if kind is None else {"type": kind})
        else:
            parts[part] = {"dtype": kind or dtype, "offset": offset, "length": len(data)}
        offset += step
    if file.version == "2":
        thing: dict[str, Any] = {"shape": profile.shape, "layout": profile.layout, "parts": parts}
        rows = [(name or "x", thing | ({"attributes": profile.attributes} if profile.attributes else {}))]
    elif file.version == "1":
        form = FORMATS_1.get(profile.layout, profile.layout)
        rows = [(name, {"shape": profile.shape, "format": form, "components": parts})]
    return rows, offset


def mutants(count: int, seed: int = 0) -> Iterator[bytes]:
    """`count` files: valid ones, and those with a few things changed."""
    r = random.Random(seed)
    while count > 0:
        file = valid_file(r)
        yield file.render()
        count -= 1
        for _ in range(min(count, 20)):
            yield _mutant(r, file)
            count -= 1


def _mutant(r: random.Random, file: File) -> bytes:
    kind = r.random()
    if kind < 0.6:
        changed = File(file.version, _copy(file.tree), dict(file.blobs))
        for _ in range(r.choice((1, 1, 1, 2, 3))):
            changed.tree = _change(r, changed.tree, len(file.render()))
        if r.random() < 0.05:
            changed.broken_size = r.choice(NUMBERS)
        return changed.render()
    if kind < 0.75 and file.blobs:
        offset = r.choice(list(file.blobs))
        changed = File(file.version, _copy(file.tree), file.blobs | {offset: _bytes(r, file.blobs[offset])})
        if r.random() < 0.7:
            _repair(changed, offset)
        return changed.render()
    data = file.render()
    changed_bytes = _bytes(r, data)
    if file.version == "2" and r.random() < 0.7 and len(changed_bytes) == len(data):
        begin = struct.unpack_from("<Q", data, len(data) - 40)[0]
        manifest = changed_bytes[begin:-40]
        return changed_bytes[:-40] + struct.pack(
            "<QQQII", begin, len(manifest), xxhash.xxh3_64_intdigest(manifest), 2, 0
        ) + MAGIC_2  # fmt: skip
    return changed_bytes


def _repair(file: File, offset: int) -> None:
    """Makes sizes and checksums of a blob right again, where they are of stored bytes."""
    blob = file.blobs[offset]
    for container, key in _nodes(file.tree):
        thing = container[key]
        if not isinstance(thing, dict):
            continue
        if thing.get("blob", [None])[0] == offset:
            thing["blob"] = [offset, len(blob)]
            if "digest" in thing and "encoding" not in thing:
                thing["digest"] = f"xxh3:{xxhash.xxh3_64_hexdigest(blob)}"
        elif thing.get("offset") == offset:
            thing["size" if "size" in thing else "length"] = len(blob)
            if "checksum" in thing:
                thing["checksum"] = _crc32c(blob)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a tree that holds a value: its container and its key there."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(pairs):
        yield value, key
        yield from _nodes(item)


def _change(r: random.Random, tree: Any, size: int) -> Any:
    """One change somewhere in a tree."""
    places = list(_nodes(tree))
    if not places or r.random() < 0.02:
        return _copy(r.choice(ODD))
    container, key = r.choice(places)
    old = container[key]
    kind = r.random()
    if kind < 0.35 and isinstance(old, int):
        near = r.choice((old + 1, old - 1, old + 64, old * 2, size - 1, size, size + 1, *NUMBERS))
        container[key] = r.choice((max(-(1 << 64), min(near, (1 << 64) - 1)), Long(abs(old) & (1 << 64) - 1)))
    elif kind < 0.5 and isinstance(old, str):
        container[key] = r.choice((*TEXTS, old + "x", old[:-1], Open(old), old.upper()))
    elif kind < 0.65:
        other, name = r.choice(places)
        container[key] = _copy(other[name])
    elif kind < 0.75 and isinstance(container, dict):
        del container[key]
    elif kind < 0.8 and isinstance(container, dict):
        container[r.choice((*TEXTS, 1, b"k", None))] = r.choice((*NUMBERS, *TEXTS))
    elif kind < 0.85 and isinstance(old, dict):
        container[key] = r.choice((Open(old), Pairs((*old.items(), *list(old.items())[:1]))))
    elif kind < 0.9 and isinstance(old, list):
        container[key] = r.choice((Open(old), old * 2, old[::-1], [*old, r.choice(NUMBERS)]))
    else:
        container[key] = _copy(r.choice((*ODD, *NUMBERS, *TEXTS)))
    return tree


def _bytes(r: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(r.choice((1, 1, 2, 4))):
        kind = r.random()
        at = r.randrange(len(changed) + 1)
        if kind < 0.4 and at < len(changed):
            changed[at] ^= 1 << r.randrange(8)
        elif kind < 0.6 and at < len(changed):
            changed[at] = r.randrange(256)
        elif kind < 0.7:
            del changed[at : at + r.choice((1, 1, 4, 16))]
        elif kind < 0.8:
            changed[at:at] = r.randbytes(r.choice((1, 1, 4)))
        elif kind < 0.9:
            changed[at : at + 8] = struct.pack("<Q", r.choice(NUMBERS) & (1 << 64) - 1)
        else:
            del changed[at:]
    return bytes(changed)


def check(data: bytes) -> str:
    """Holds the invariant for one file; returns the rule that it broke, "accepted" or "strict"."""
    try:
        archive = tg.open(data)
    except tg.FormatError as error:
        _check_error(error)
        report = tg.verify(data)
        assert not report.ok
        return error.rule
    values, problems = _read(archive)
    report = tg.verify(data, deep=True)
    assert not report.ok or not problems, problems
    values.pop("__metadata__", None)  # in 0.1 this may be a tensor that cannot be written
    if values:
        _check_saved(archive, values)
    return _strict(data, archive, report)


def _check_saved(archive: tg.Archive, values: dict[str, Any]) -> None:
    try:
        data = tg.dumps({name: archive[name] for name in values}, format="ztensor")
    except tg.UnsupportedError as error:
        if error.rule == "ztensor.write.layout":  # a custom field of somebody else
            assert "layout" in archive[str(error.tensor)].attributes
            return
        assert error.rule == "ztensor.write.part"  # without the others it would be a part
        assert values.keys() != archive.keys()
        return
    again = tg.loads(data)
    for name, array in values.items():
        assert again[name].tobytes() == array.tobytes()
        assert (again[name].dtype, again[name].shape) == (array.dtype, array.shape)


def _check_error(error: tg.TensorglotError) -> None:
    assert error.rule
    assert error.rule.isascii()
    assert str(error).isprintable()


def _read(archive: tg.Archive) -> tuple[dict[str, Any], list[str]]:
    """Reads everything in an archive; returns the arrays that could be read, and the rules that were broken."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    assert repr(archive)
    _ = archive.metadata == {}
    _ = archive.attributes
    for name in archive:
        tensor = archive[name]
        assert repr(tensor).isprintable()
        archive.info(name)
        verbs = [tensor.numpy] if tensor.layout == "dense" else [tensor.scipy, tensor.dequantize]
        verbs += [partial(part.array, name) for part in tensor.parts.values()]
        for verb in verbs:
            try:
                result = verb()
            except tg.UnsupportedError as error:
                _check_error(error)
            except tg.FormatError as error:
                _check_error(error)
                problems.append(error.rule)
            else:
                if verb == tensor.numpy:
                    values[name] = result
    return values, problems


def _strict(data: bytes, archive: tg.Archive, report: tg.Report) -> str:
    try:
        tg.open(data, strict=True)
    except tg.FormatError as error:
        _check_error(error)
        assert report.canonical is False
        return "accepted"
    if archive.format.startswith("ztensor@1"):
        return "accepted"
    assert report.canonical
    if report.ok and (archive.format == "ztensor@2" or report.checksums == len(report.unverified) == 0):
        assert tg.dumps(archive, format=archive.format) == data
    return "strict"


if __name__ == "__main__":
    from campaign import campaign

    campaign(mutants, check)
