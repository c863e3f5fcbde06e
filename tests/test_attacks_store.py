"""Stores made by an attacker: each is refused by our errors, in little time and memory, whatever is done with it.

An attack is a function that fills a store's directory. What it claims can be looked at by
every verb; `check` never raises, and says what is wrong where something is.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from blake3 import blake3

import tensorglot as tg
from bounds import INTERPRETED, MB, allocated_nbytes, seconds
from stores import (
    HOSTILE,
    Pack,
    PackRecord,
    array_node,
    assert_clean,
    commit_node,
    inner,
    leaf,
    link,
    nodes_pack,
    packs,
    same_tensors,
    write_ref,
)
from tensorglot.store import Store
from tensorglot.store.encoder import encode
from tensorglot.store.encodings import Encoding
from tensorglot.wire import zstd
from tensorglot.wire.cid import CHUNK_NBYTES, CID, DAG_CBOR, FANOUT, RAW, SHA256, block_cid, encode_node

Attack = Callable[[Path], None]

DATA = np.arange(6, dtype=np.int32).tobytes()
ARRAY = array_node("6 * int32", DATA)
OTHER = bytes(range(100, 124))
WITH_KEY_OF_DATA = CID(blake3(DATA).digest()[:8] + bytes(24), RAW)
"""Tables of packs are sorted by the first eight bytes of a digest."""


def publish(root: Path, *nodes: bytes, tensor: CID | None = None, manifest: bytes | None = None, **fields: Any) -> None:
    """A commit of one tensor `w`, or of a manifest, in a pack with further blocks."""
    names = manifest if manifest is not None else leaf({"w": tensor if tensor is not None else link(nodes[-1])})
    commit = commit_node(link(names), **fields)
    nodes_pack([*nodes, names, commit]).write(root)
    write_ref(root, "main", link(commit))


# Packs


def with_pack(change: Callable[[Pack], object]) -> Attack:
    """An honest pack, changed before it is written."""

    def attack(root: Path) -> None:
        names = leaf({"w": link(ARRAY)})
        commit = commit_node(link(names))
        pack = nodes_pack([DATA, ARRAY, names, commit])
        change(pack)
        pack.write(root)
        write_ref(root, "main", link(commit))

    return attack


def with_bytes(change: Callable[[bytes], bytes]) -> Attack:
    def attack(root: Path) -> None:
        with_pack(lambda pack: None)(root)
        (path,) = packs(root)
        path.write_bytes(change(path.read_bytes()))

    return attack


def footer(offset: int, nbytes: int) -> Attack:
    return with_bytes(lambda data: data[:-56] + struct.pack("<QQ", offset, nbytes) + data[-40:])


def index_of(data: bytes, index: bytes) -> bytes:
    """The pack with another index that matches its hash."""
    at = struct.unpack("<Q", data[-56:-48])[0]
    return data[:at] + index + struct.pack("<QQ32s8s", at, len(index), blake3(index).digest(), data[-8:])


def counts(blocks: int, records: int, bases: int) -> Attack:
    return with_bytes(lambda data: index_of(data, struct.pack("<III", blocks, records, bases) + bytes(64)))


def block_of_no_record(data: bytes) -> bytes:
    at = struct.unpack("<Q", data[-56:-48])[0]
    index = bytearray(data[at:-56])
    struct.pack_into("<I", index, 12 + 32 * struct.unpack_from("<I", index)[0], 99)  # behind the digests
    return index_of(data, bytes(index))


def version_2(change: Callable[[Pack], object] = lambda pack: None) -> Attack:
    return with_pack(lambda pack: (setattr(pack, "version", 2), change(pack)))


def numbers(change: Callable[[bytes], bytes], count: Sequence[int] = (4, 4, 0)) -> Attack:
    """An index of version 2, of four blocks, with other numbers behind its digests."""

    def attack(root: Path) -> None:
        version_2()(root)
        (path,) = packs(root)
        data = path.read_bytes()
        index = data[struct.unpack("<Q", data[-56:-48])[0] : -56]
        digests, frame = index[12 : 12 + 4 * 32], index[12 + 4 * 32 :]
        path.write_bytes(index_of(data, struct.pack("<III", *count) + digests + change(frame)))

    return attack


def frame_of(nbytes: int) -> bytes:
    return zstandard.ZstdCompressor().compress(bytes(nbytes))


def set_record(number: int = 0, **fields: Any) -> Attack:
    return with_pack(lambda pack: [setattr(pack.records[number], name, value) for name, value in fields.items()])


def chain(length: int, *, circle: bool = False, depths: Callable[[int], int] = lambda i: i) -> Attack:
    """Deltas on each other, whose results have the right digests, or (in a circle) claim to."""

    def attack(root: Path) -> None:
        versions = [np.full(300, i, np.int32).tobytes()[:-1] + b"x" for i in range(length + 1)]
        pack = Pack()
        for i, version in enumerate(versions):
            digest, base = blake3(version).digest(), versions[i - 1] if i else (versions[-1] if circle else None)
            if base is None:
                pack.add(version)
                continue
            encoded = encode(memoryview(version), 4, memoryview(base))
            record = PackRecord(bytes(encoded.body), [(digest, 0, len(version))], len(version), int(encoded.encoding))
            if encoded.encoding >= Encoding.SPARSE_XOR:
                record.base, record.depth = blake3(base).digest(), depths(i)
            pack.records.append(record)
        commit_array(root, pack, array_node(f"{len(versions[-1])} * uint8", versions[-1]))

    return attack


def commit_array(root: Path, pack: Pack, array: bytes) -> None:
    """Writes a pack with a commit of one tensor, and a ref to it."""
    names = leaf({"w": link(array)})
    commit = commit_node(link(names))
    for node in (array, names, commit):
        pack.add(node)
    pack.write(root)
    write_ref(root, "main", link(commit))


def same_key_chain(root: Path) -> None:
    """Digests that begin with the same eight bytes, each a delta from the next: the table cannot tell them apart."""
    digests = [bytes(8) + bytes([i]) * 24 for i in range(40)]
    pack = Pack()
    for i, digest in enumerate(digests):
        pack.records.append(
            PackRecord(b"\x01" + bytes(8), [(digest, 0, 8)], 8, Encoding.SPARSE_XOR, digests[(i + 1) % 40], 1 + i % 12)
        )
    pack.records.append(PackRecord(bytes(8), [(bytes(8) + b"\xff" * 24, 0, 8)], 8))
    commit_array(root, pack, array_node("8 * uint8", CID(digests[0]), 8))


def orphan(pack: Pack) -> None:
    pack.records[0].base, pack.records[0].depth = bytes(32), 1


def rebase(pack: Pack, base: bytes, encoding: Encoding) -> None:
    """Says that the first record is a delta from a base, and adds another block."""
    pack.add(OTHER)
    pack.records[0].base, pack.records[0].depth, pack.records[0].encoding = base, 1, int(encoding)


PACKS: dict[str, Attack] = {
    "no bytes": with_bytes(lambda data: b""),
    "the magic alone": with_bytes(lambda data: data[:8]),
    "half": with_bytes(lambda data: data[: len(data) // 2]),
    "one byte less": with_bytes(lambda data: data[:-1]),
    "one byte more": with_bytes(lambda data: data + b"\0"),
    "a page of zeros": with_bytes(lambda data: bytes(4096)),
    "no footer": with_bytes(lambda data: data[:-56]),
    "an index outside": footer(1 << 40, 100),
    "an index of 2^63 bytes": footer(8, 1 << 63),
    "an index that wraps": footer((1 << 64) - 8, 72),
    "an index over the magic": footer(0, 10),
    "an index without hash": with_bytes(lambda data: data[:-40] + bytes(32) + data[-8:]),
    "counts of 2^32": counts((1 << 32) - 1, (1 << 32) - 1, (1 << 32) - 1),
    "counts of nothing": counts(0, 0, 0),
    "counts of one": counts(1, 1, 0),
    "an index of two bytes": with_bytes(lambda data: index_of(data, b"ab")),
    "numbers that are not there": numbers(lambda frame: b""),
    "numbers that are no frame": numbers(lambda frame: b"numbers!"),
    "numbers cut": numbers(lambda frame: frame[:-1]),
    "numbers and a byte": numbers(lambda frame: frame + b"\0"),
    "a number less": numbers(lambda frame: frame_of(4 * 12 + 4 * 18 - 1)),
    "a number more": numbers(lambda frame: frame_of(4 * 12 + 4 * 18 + 1)),
    "numbers that expand to 100 MB": numbers(lambda frame: frame_of(100_000_000)),
    "no blocks, and numbers": numbers(lambda frame: frame, (0, 0, 0)),
    "more numbers than memory": numbers(lambda frame: frame, ((1 << 32) - 1, (1 << 32) - 1, 0)),
    "more blocks than digests": numbers(lambda frame: frame_of(9 * 12 + 4 * 18), (9, 4, 0)),
    "more records than blocks": numbers(lambda frame: frame_of(4 * 12 + 5 * 18), (4, 5, 0)),
    "more bases than records": numbers(lambda frame: frame_of(2 * 12 + 1 * 18), (2, 1, 2)),
    "records of 4 GiB each": version_2(lambda pack: [setattr(record, "stored", 0xFFFFFFFF) for record in pack.records]),
    "records up to the index and beyond": version_2(lambda pack: setattr(pack.records[-1], "stored", 100_000)),
    "a record outside": set_record(offset=1 << 40),
    "a record that wraps": set_record(offset=(1 << 64) - 4),
    "a record over the magic": set_record(offset=0),
    "a record over the index": set_record(stored=100_000),
    "a record of 4 GiB": set_record(decoded=0xFFFFFFFF),
    "a record of more than a chunk": set_record(decoded=CHUNK_NBYTES + 1),
    "a record of more bytes than a chunk": set_record(body=bytes(CHUNK_NBYTES + 1)),
    "an unknown encoding": set_record(encoding=99),
    "a delta without a base": set_record(encoding=int(Encoding.SPARSE_XOR)),
    "a delta without a base, of depth 3": set_record(encoding=int(Encoding.SPARSE_XOR), depth=3),
    "a base without a delta": set_record(base=bytes(32), depth=1),
    "a base that is there, without a delta": with_pack(lambda pack: rebase(pack, blake3(OTHER).digest(), Encoding.RAW)),
    "a base with the key of another block": with_pack(
        lambda pack: rebase(pack, blake3(OTHER).digest()[:8] + bytes(24), Encoding.SPARSE_XOR)
    ),
    "a base of depth 0": set_record(base=bytes(32), encoding=int(Encoding.SPARSE_XOR)),
    "a base that is not there": set_record(base=bytes(32), depth=1, encoding=int(Encoding.SPARSE_XOR)),
    "a base outside the table": with_pack(lambda pack: (setattr(pack, "bases", 0), orphan(pack))),
    "a delta from itself": set_record(base=blake3(DATA).digest(), depth=1, encoding=int(Encoding.SPARSE_XOR)),
    "depth 255": set_record(base=bytes(32), depth=255, encoding=int(Encoding.SPARSE_XOR)),
    "a block of no record": with_bytes(block_of_no_record),
    "a block outside its record": with_pack(
        lambda pack: setattr(pack.records[0], "blocks", [(blake3(DATA).digest(), 20, 24)])
    ),
    "a block that is larger than its record": with_pack(
        lambda pack: setattr(pack.records[0], "blocks", [(blake3(DATA).digest(), 0, 0xFFFFFFFF)])
    ),
    "blocks that do not match their names": with_pack(lambda pack: setattr(pack.records[0], "body", bytes(24))),
    "two blocks with each other's names": with_pack(
        lambda pack: (
            setattr(pack.records[0], "blocks", [(blake3(ARRAY).digest(), 0, 24)]),
            setattr(pack.records[1], "blocks", [(blake3(DATA).digest(), 0, len(ARRAY))]),
        )
    ),
    "a small chunk as a megabyte": set_record(decoded=CHUNK_NBYTES, blocks=[(blake3(DATA).digest(), 0, CHUNK_NBYTES)]),
    "nodes that are no frame": set_record(encoding=int(Encoding.NODES)),
    "nodes of another size": set_record(body=frame_of(23), encoding=int(Encoding.NODES)),
    "nodes that refer to what is not there": set_record(
        body=zstd.compress_after(bytes(range(256)), bytes(range(100, 124))), encoding=int(Encoding.NODES)
    ),
    "nodes with a base": with_pack(lambda pack: rebase(pack, blake3(OTHER).digest(), Encoding.NODES)),
    "a constant of no bytes": set_record(body=b"", encoding=int(Encoding.CONSTANT)),
    "deltas in a circle": chain(3, circle=True, depths=lambda i: 1),
    "deltas in a circle with depths": chain(3, circle=True, depths=lambda i: 1 + i),
    "a chain of 40 deltas of depth 1": chain(40, depths=lambda i: 1),
    "a chain of 40 deltas of depth 12": chain(40, depths=lambda i: min(i, 12)),
    "a chain of 40 deltas with one key": same_key_chain,
}


# Nodes


@functools.cache
def tree(levels: int) -> tuple[list[bytes], CID, int]:
    """A chunk tree of full nodes that all link to one chunk."""
    nodes, cid, size = [bytes(CHUNK_NBYTES)], block_cid(bytes(CHUNK_NBYTES)), CHUNK_NBYTES
    for _ in range(levels):
        size *= FANOUT
        node = encode_node({"chunks": [cid] * FANOUT, "size": size})
        nodes.append(node)
        cid = link(node)
    return nodes, cid, size


def lying_tree(size: int, chunks: list[bytes], stated: int | None = None) -> Attack:
    def attack(root: Path) -> None:
        node = encode_node({"chunks": [block_cid(chunk) for chunk in chunks], "size": size})
        claimed = size if stated is None else stated
        publish(root, *chunks, node, array_node(f"{claimed} * uint8", link(node), claimed))

    return attack


def huge(levels: int) -> Attack:
    def attack(root: Path) -> None:
        nodes, cid, size = tree(levels)
        publish(root, *nodes, array_node(f"{size} * uint8", cid, size))

    return attack


def linking(type: str) -> Attack:
    """An array of links, or of one link to it, that claims 8100 MiB of one chunk."""
    count = 8100
    size = count * CHUNK_NBYTES
    node = encode_node({"chunks": [block_cid(bytes(CHUNK_NBYTES))] * count, "size": size})
    links = array_node(f"{size // 36} * merkle[int8]", link(node), size)

    def attack(root: Path) -> None:
        target = bytes(link(node))
        last = [links] if type == "links" else [target, array_node(f"merkle[{size // 36} * merkle[int8]]", target)]
        publish(root, bytes(CHUNK_NBYTES), node, *last)

    return attack


def deep_manifest(levels: int) -> Attack:
    def attack(root: Path) -> None:
        node = leaf({"a": link(ARRAY)})
        nodes = [DATA, ARRAY, node]
        for _ in range(levels):
            node = inner({"a": link(node)})
            nodes.append(node)
        publish(root, *nodes, manifest=node)

    return attack


def fan_manifest(levels: int) -> Attack:
    """Each level links the one below 200 times."""

    def attack(root: Path) -> None:
        node = leaf({f"{i:03}": link(ARRAY) for i in range(200)})
        nodes = [DATA, ARRAY, node]
        for _ in range(levels):
            node = encode_node({"first": [f"{i:03}" for i in range(200)], "links": [link(node)] * 200})
            nodes.append(node)
        publish(root, *nodes, manifest=node)

    return attack


def two_levels(**leaves: tuple[str, ...]) -> Attack:
    """A node above others: the names that it claims they begin with, and those that they have."""

    def attack(root: Path) -> None:
        below = {name: leaf(dict.fromkeys(names, link(ARRAY))) for name, names in leaves.items()}
        top = inner({name: link(node) for name, node in below.items()})
        publish(root, DATA, ARRAY, *below.values(), manifest=top)

    return attack


def manifest(node: Any) -> Attack:
    return lambda root: publish(root, DATA, ARRAY, manifest=encode_node(node))


def tensor_node(**fields: Any) -> Attack:
    def attack(root: Path) -> None:
        node = {
            "attributes": {}, "dynd": 1, "kind": "tensor", "layout": "dense",
            "parts": [{"array": link(ARRAY), "name": "data"}], "type": "6 * int32",
        }  # fmt: skip
        publish(root, DATA, ARRAY, encode_node({**node, **fields}))

    return attack


def sparse_node(type: str) -> Attack:
    """A CSR tensor of 2 × 3 int32 that says that it has another type."""
    datas = {
        "values": ("6 * int32", DATA),
        "indices": ("6 * uint64", np.array([0, 1, 2, 0, 1, 2], "<u8").tobytes()),
        "indptr": ("3 * uint64", np.array([0, 3, 6], "<u8").tobytes()),
    }
    arrays = {name: array_node(*given) for name, given in datas.items()}
    node = {
        "attributes": {}, "dynd": 1, "kind": "tensor", "layout": "zt.sparse_csr/1", "type": type,
        "parts": [{"array": link(arrays[name]), "name": name} for name in datas],
    }  # fmt: skip
    return lambda root: publish(root, *(data for _, data in datas.values()), *arrays.values(), encode_node(node))


def array(type: str, data: Any = DATA, size: int | None = None) -> Attack:
    return lambda root: publish(root, DATA, array_node(type, data, size))


def many_short(root: Path) -> None:
    """Arrays that are read together, and are shorter than they say."""
    nodes = [array_node(f"{7 + i} * int32", DATA, 4 * (7 + i)) for i in range(10)]
    publish(root, DATA, *nodes, manifest=leaf({f"w{i}": link(node) for i, node in enumerate(nodes)}))


def commit(**fields: Any) -> Attack:
    return lambda root: publish(root, DATA, ARRAY, **fields)


def exponential_commits(root: Path) -> None:
    """Sixty commits, each with the one before as both of its parents: 2^60 ways to the first."""
    names = leaf({})
    node = commit_node(link(names))
    nodes = [names, node]
    for _ in range(60):
        node = commit_node(link(names), [link(node), link(node)])
        nodes.append(node)
    nodes_pack(nodes).write(root)
    write_ref(root, "main", link(node))


def long_history(root: Path) -> None:
    names = leaf({})
    node = commit_node(link(names))
    nodes = [names, node]
    for _ in range(300):
        node = commit_node(link(names), [link(node)])
        nodes.append(node)
    body, blocks = b"".join(nodes), []
    at = 0
    for each in nodes:
        blocks.append((blake3(each).digest(), at, len(each)))
        at += len(each)
    Pack([PackRecord(body, blocks, len(body))]).write(root)
    write_ref(root, "main", link(node))


NODES: dict[str, Attack] = {
    "ten arrays that are too short": many_short,
    "a size that lies": array("6 * int32", DATA, 28),
    "a size of 2^62": array("var * uint8", DATA, 1 << 62),
    "a size of 2^63": array("var * uint8", DATA, 1 << 63),
    "a size of 2^64 - 1": array("var * uint8", DATA, (1 << 64) - 1),
    "a type that lies": array("7 * int32"),
    "a type of 2^62 elements": array("4611686018427387904 * int8"),
    "a type that wraps": array("4294967296 * 4294967296 * int32"),
    "a symbolic type": array("N * int32"),
    "no type": array("("),
    "a type of 100,000 levels": array("1 * " * 100_000 + "int8"),
    "a ragged value that lies": array("var * var * int32"),
    "a value that links nowhere": array("merkle[int8]", block_cid(bytes(36)), 36),
    "a value with links to nowhere": lambda root: publish(
        root, bytes(block_cid(b"x")), array_node("merkle[1 * merkle[int8]]", bytes(block_cid(b"x")))
    ),
    "data that is a commit": lambda root: publish(root, array_node("6 * int32", link(ARRAY), 24)),
    "data named by SHA-256": lambda root: publish(
        root, DATA, array_node("6 * int32", CID(blake3(DATA).digest(), RAW, SHA256), 24)
    ),
    "an array named by SHA-256": lambda root: publish(
        root, DATA, ARRAY, tensor=CID(blake3(ARRAY).digest(), DAG_CBOR, SHA256)
    ),
    "a raw array": lambda root: publish(root, DATA, ARRAY, tensor=block_cid(ARRAY)),
    "an array that is not there": lambda root: publish(root, tensor=link(ARRAY)),
    "data that is not there": lambda root: publish(root, ARRAY),
    "64 TiB of one chunk": huge(2),
    "8 GiB of one chunk": huge(1),
    "8100 MiB of links": linking("links"),
    "a link to 8100 MiB of links": linking("one link"),
    "a tree of one chunk": lying_tree(CHUNK_NBYTES, [bytes(CHUNK_NBYTES)]),
    "a tree of short chunks": lying_tree(CHUNK_NBYTES + 9, [bytes(9), bytes(CHUNK_NBYTES)]),
    "a tree whose chunks lie": lying_tree(CHUNK_NBYTES + 9, [bytes(CHUNK_NBYTES), bytes(8)]),
    "a tree of another size": lying_tree(CHUNK_NBYTES + 9, [bytes(CHUNK_NBYTES), bytes(9)], CHUNK_NBYTES + 8),
    "a tree with too few chunks": lying_tree(3 * CHUNK_NBYTES, [bytes(CHUNK_NBYTES)] * 2),
    "a manifest of 64 levels": deep_manifest(64),
    "a manifest of 300 levels": deep_manifest(300),
    "a manifest that fans out": fan_manifest(8),
    "a manifest of no map": manifest([1, 2]),
    "a manifest of text": manifest("x"),
    "a manifest without names": manifest({"links": [link(ARRAY)], "names": []}),
    "an inner node of nothing": manifest({"first": [], "links": []}),
    "unsorted names": manifest({"links": [link(ARRAY)] * 2, "names": ["b", "a"]}),
    "a name twice": manifest({"links": [link(ARRAY)] * 2, "names": ["a", "a"]}),
    "names that are numbers": manifest({"links": [link(ARRAY)], "names": [1]}),
    "links that are text": manifest({"links": ["x"], "names": ["a"]}),
    "a name of 1 MB": manifest({"links": [link(ARRAY)], "names": ["n" * 1_000_000]}),
    "names of control characters": manifest({"links": [link(ARRAY)], "names": ["\x00\x1b[2J"]}),
    "a node that begins with another name": two_levels(b=("a", "c")),
    "a node that is empty": two_levels(b=()),
    "nodes that overlap": two_levels(a=("a", "c"), b=("b",)),
    "nodes with one name": two_levels(a=("a", "b"), b=("b",)),
    "a node that is raw bytes": manifest({"first": ["a"], "links": [block_cid(DATA)]}),
    "a manifest of three keys": manifest({"links": [link(ARRAY)], "names": ["a"], "x": 1}),
    "a manifest of other keys": manifest({"links": [link(ARRAY)], "named": ["a"]}),
    "a manifest of two kinds": manifest({"first": ["a"], "names": ["a"]}),
    "more names than links": manifest({"links": [link(ARRAY)], "names": ["a", "b"]}),
    "links that are shorter": manifest({"links": [link(ARRAY), 5], "names": ["a", "b"]}),
    "a manifest that is a commit": lambda root: publish(root, manifest=commit_node(link(ARRAY))),
    "a tensor without parts": tensor_node(parts=[]),
    "parts that are numbers": tensor_node(parts=[1, 2]),
    "parts with one name": tensor_node(parts=[{"array": link(ARRAY), "name": "data"}] * 2),
    "a part without an array": tensor_node(parts=[{"name": "data"}]),
    "a part of no shape": tensor_node(parts=[{"array": link(ARRAY), "name": "data", "dtype": "q", "shape": 5}]),
    "a part of shape 2^62": tensor_node(
        parts=[{"array": link(ARRAY), "name": "data", "dtype": "q", "shape": [1 << 62, 1 << 62]}]
    ),
    "a sparse tensor of one dimension": tensor_node(layout="zt.sparse_csr/1"),
    "a sparse tensor without indices": tensor_node(layout="zt.sparse_csr/1", type="2 * 3 * int32"),
    "a layout of control characters": tensor_node(layout="\x1b[2J"),
    "a sparse tensor of another type": sparse_node(type="2 * 3 * float32"),
    "a sparse tensor of no array type": sparse_node(type="var * int32"),
    "a dense tensor of another type": tensor_node(type="7 * int64"),
    "a tensor of no type": tensor_node(type="(("),
    "attributes that are deep": tensor_node(attributes={"a": [[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]}),
    "attributes that claim a type": tensor_node(attributes={"dynd.type": "9 * int8"}),
    "a time of 2^62": commit(time=1 << 62),
    "a time below 0": commit(time=-(1 << 62)),
    "a message of bytes": commit(message=b"x"),
    "metadata of a list": commit(metadata=[1]),
    "metadata of links": commit(metadata={"a": block_cid(b"nowhere")}),
    "a parent that is not there": commit(parents=[CID(bytes(32), DAG_CBOR)]),
    "a parent that is raw": commit(parents=[CID(bytes(32))]),
    "a parent that is an array": commit(parents=[link(ARRAY)]),
    "a parent named by SHA-256": commit(parents=[CID(bytes(32), DAG_CBOR, SHA256)]),
    "a commit with more fields": commit(more=1),
    "commits with two parents each": exponential_commits,
    "300 commits": long_history,
}


# Refs


def ref(name: str, content: bytes | None = None, cid: CID | str | None = None) -> Attack:
    def attack(root: Path) -> None:
        publish(root, DATA, ARRAY)
        path = root / "refs" / name
        if content is not None:
            path.write_bytes(content)
        else:
            write_ref(root, "x", cid if cid is not None else link(ARRAY), file=name)

    return attack


def fields(**values: Any) -> bytes:
    good = {"cid": str(link(ARRAY)), "count": 1, "kind": "branch", "nonce": "00"}
    return json.dumps({**good, **values}, sort_keys=True).encode()


def large_ref(root: Path) -> None:
    publish(root, DATA, ARRAY)
    with (root / "refs" / "large").open("wb") as file:
        file.truncate(1 << 36)


REFS: dict[str, Attack] = {
    "to nothing": ref("x", cid=CID(bytes(32), DAG_CBOR)),
    "to raw bytes": ref("x", cid=block_cid(DATA)),
    "to an array": ref("x", cid=link(ARRAY)),
    "by SHA-256": ref("x", cid=CID(blake3(ARRAY).digest(), DAG_CBOR, SHA256)),
    "of no bytes": ref("x", b""),
    "of 64 GiB": large_ref,
    "of no JSON": ref("x", b"\xff\xfe"),
    "of deep JSON": ref("x", b"[" * 60_000),
    "of a list": ref("x", b"[]"),
    "of a number of 5,000 digits": ref("x", fields(count=0).replace(b"0,", b"9" * 5000 + b",")),
    "of two spellings": ref("x", fields() + b" "),
    "without a CID": ref("x", fields(cid=5)),
    "of another kind": ref("x", fields(kind="leaf")),
    "with a count that is true": ref("x", fields(count=True)),
    "with a nonce that is a list": ref("x", fields(nonce=[1])),
    "named ..": ref("%2e%2e", fields()),
    "named ../x": ref("..%2Fx", fields()),
    "named by another spelling of main": ref("%6dain", fields()),
    "named by lower-case quotes": ref("a%2fb", fields()),
    "with a control character": ref("a%1Bb", fields()),
    "with NUL": ref("a%00b", fields()),
    "of bytes that are not UTF-8": ref("a%FFb", fields()),
    "of half a quote": ref("a%", fields()),
    "of 250 bytes": ref("n" * 250, fields()),
}

ATTACKS: dict[str, Attack] = {
    **{f"pack: {name}": attack for name, attack in PACKS.items()},
    **{f"node: {name}": attack for name, attack in NODES.items()},
    **{f"ref: {name}": attack for name, attack in REFS.items()},
}
HARMLESS = {
    "pack: one byte more",  # read from its end, which is no footer
    "pack: a chain of 40 deltas of depth 12",
    "node: 8 GiB of one chunk",
    "node: 64 TiB of one chunk",
    "node: a manifest of 64 levels",
    "node: a name of 1 MB",
    "node: names of control characters",
    "node: commits with two parents each",
    "node: 300 commits",
    "node: attributes that are deep",
    "node: attributes that claim a type",
    "node: a layout of control characters",
    "node: a ragged value that lies",  # found when it is decoded
    "node: a part of shape 2^62",  # of an unknown element type
    "ref: to an array",
    "ref: named ../x",  # files that begin with a dot are those of writers
}
"""Nothing in the store is wrong, or nothing that can be seen without decoding values."""


def uses(root: Path) -> dict[str, Callable[[], object]]:
    """Every verb, on a store opened anew."""

    def everything(archive: tg.Archive) -> None:
        for tensor in archive.values():
            repr(tensor)
            if tensor.nbytes < 10 * MB:
                tensor.serialize()
                tensor.tolist()
            else:
                tensor[:10]
                tensor[tensor.shape[0] - 10 :] if tensor.shape else None

    def push() -> None:
        to = root.with_name("to")
        Store(root).push(to if to.exists() else _made(to))

    return {
        "refs": lambda: Store(root).refs(),
        "log": lambda: Store(root).log("main"),
        "checkout": lambda: everything(Store(root).checkout("main")),
        "stats": lambda: Store(root).stats(),
        "costs": lambda: Store(root).costs("main"),
        "commit": lambda: Store(root).commit("main", {"w": np.arange(6, dtype=np.int32)}),
        "tag": lambda: Store(root).tag("t", "main"),
        "push": push,
        "bundle": lambda: Store(root).bundle(io.BytesIO(), "main"),
        "collect": lambda: Store(root).collect(0),
        "repack": lambda: Store(root).repack(0),
    }


def _made(path: Path) -> Path:
    Store.create(path)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return _made(tmp_path / "store")


def attempt(call: Callable[[], object]) -> bool:
    """Whether it was refused, in one printable line."""
    said = "fine"
    try:
        call()
    except HOSTILE as error:
        said = str(error)
    assert said.isprintable()
    return said != "fine"


FOUND: dict[str, str] = {
    "pack.footer": "no bytes|the magic alone|half|one byte less|one byte more|a page of zeros|no footer|"
    "an index outside|an index of 2^63 bytes|an index that wraps|an index over the magic",
    "pack.index": "an index without hash|counts of 2^32|counts of nothing|counts of one|an index of two bytes|"
    "numbers that are not there|numbers that are no frame|numbers cut|numbers and a byte|a number less|a number more|"
    "numbers that expand to 100 MB|no blocks, and numbers|more numbers than memory|more blocks than digests|"
    "more records than blocks|"
    "more bases than records",
    "pack.record": "records of 4 GiB each|records up to the index and beyond|"
    "a record outside|a record that wraps|a record over the magic|a record over the index|"
    "a record of more than a chunk|a record of more bytes than a chunk|a delta without a base, of depth 3|"
    "a base of depth 0|a base outside the table|depth 255",
    "pack.block": "a block of no record|a block outside its record|a block that is larger than its record",
    "store.encoding": "an unknown encoding|a constant of no bytes|a small chunk as a megabyte",
    "store.chain": "a delta without a base|a base that is there, without a delta",
    "store.chain.base": "a base with the key of another block|"
    "a base without a delta|a base that is not there|a delta from itself|deltas in a circle|"
    "deltas in a circle with depths|a chain of 40 deltas of depth 1|a chain of 40 deltas of depth 12|"
    "a chain of 40 deltas with one key",
    "store.block.hash": "blocks that do not match their names|two blocks with each other's names",
    "store.array": "a size that lies|a size of 2^63|a size of 2^64 - 1|a type that lies|a type of 2^62 elements|"
    "a type that wraps|a symbolic type",
    "dynd.type.syntax": "no type",
    "dynd.type.length": "a type of 100,000 levels",
    "cid.tree": "data that is a commit|a size of 2^62|data named by SHA-256|a tree of one chunk|a tree of short chunks|"
    "a tree whose chunks lie|a tree with too few chunks",
    "cid.size": "a tree of another size",
    "store.node": "an array named by SHA-256|a raw array",
    "store.block.missing": "a value that links nowhere|an array that is not there|data that is not there|"
    "a parent that is not there|a parent named by SHA-256|metadata of links|to nothing",
    "store.tensor": "a tensor without parts|parts that are numbers|parts with one name|a part without an array|"
    "a part of no shape|a dense tensor of another type|a tensor of no type|"
    "a sparse tensor of another type|a sparse tensor of no array type",
    "layout.rank": "a sparse tensor of one dimension",
    "layout.parts": "a sparse tensor without indices",
    "store.commit": "a parent that is an array",
    "store.ref": "to raw bytes|by SHA-256|of no bytes|of no JSON|of deep JSON|of a list|of a number of 5,000 digits|"
    "of two spellings|without a CID|of another kind|with a count that is true|with a nonce that is a list",
    "store.ref.name": "named ..|named by another spelling of main|named by lower-case quotes|with a control character|"
    "with NUL|of bytes that are not UTF-8|of half a quote|of 250 bytes",
}
"""The rule that a check finds broken, and the attacks that break it."""


@pytest.mark.parametrize("rule", FOUND)
def test_a_check_finds_the_rule_that_is_broken(rule: str, tmp_path: Path) -> None:
    for number, name in enumerate(FOUND[rule].split("|")):
        root = _made(tmp_path / str(number))
        {**PACKS, **NODES, **REFS}[name](root)
        found = {problem.rule: problem.message for problem in Store(root).check(data=True).problems}
        assert rule in found, name
        assert rule != "store.ref.name" or found[rule].endswith("is not the name of a ref; remove it"), name


RULES = {
    "a node that begins with another name": "store.manifest.order",
    "a node that is empty": "store.manifest.order",
    "nodes that overlap": "store.manifest.order",
    "nodes with one name": "store.manifest.order",
    "unsorted names": "store.manifest.order",
    "a name twice": "store.manifest.order",
    "a node that is raw bytes": "store.manifest",
    "a manifest of three keys": "store.manifest",
    "a manifest of other keys": "store.manifest",
    "a manifest of two kinds": "store.manifest",
    "more names than links": "store.manifest",
    "links that are shorter": "store.manifest",
    "a manifest of 300 levels": "store.manifest",
}


@pytest.mark.parametrize("name", RULES)
def test_the_rule_that_a_manifest_breaks(name: str, root: Path) -> None:
    NODES[name](root)
    with pytest.raises(tg.FormatError) as caught:
        list(Store(root).checkout("main"))
    assert caught.value.rule == RULES[name]
    assert not Store(root).check().ok


def test_a_manifest_of_more_tensors_than_allowed(root: Path) -> None:
    two_levels(a=("a", "b"), c=("c",))(root)
    with (
        pytest.raises(tg.FormatError) as caught,
        tg.open(f"store://{root}#main", limits=tg.Limits(tensors=2)) as archive,
    ):
        list(archive)
    assert caught.value.rule == "store.manifest.count"
    with tg.open(f"store://{root}#main", limits=tg.Limits(tensors=3)) as archive:
        assert list(archive) == ["a", "b", "c"]


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_ends_in_our_errors(name: str, root: Path) -> None:
    ATTACKS[name](root)
    before = {path.name: path.read_bytes() for path in packs(root)}
    report = Store(root).check()
    deep = Store(root).check(data=True)
    assert all(str(problem).isprintable() for problem in (*report.problems, *deep.problems))
    refused = 0
    for use, call in uses(root).items():
        if use in ("collect", "repack", "commit", "tag"):
            continue
        refused += attempt(call)
    if name not in HARMLESS:
        assert refused, "nothing was refused"
        assert not deep.ok, "check has found nothing"
    assert {path.name: path.read_bytes() for path in packs(root)} == before
    for use in ("tag", "commit", "collect", "repack"):
        attempt(uses(root)[use])


LONG = ("node: 300 commits", "node: a manifest of 300 levels", "node: 8 GiB of one chunk")


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in LONG])
def test_an_attack_costs_little(name: str, root: Path) -> None:
    """Of a store below 64 KB; the larger ones in proportion."""
    ATTACKS[name](root)
    nbytes = sum(path.stat().st_size for path in packs(root))
    calls = uses(root)

    def look() -> None:
        Store(root).check(data=True)
        for use in ("refs", "log", "checkout", "stats", "bundle" if "one chunk" not in name else "refs"):
            with contextlib.suppress(*HOSTILE):
                calls[use]()

    look()
    assert allocated_nbytes(look) <= 16 * MB + 40 * nbytes
    if not INTERPRETED:
        enough = 0.3 + 1e-6 * nbytes
        assert seconds(look, enough) < enough


@pytest.mark.parametrize("name", ["64 TiB of one chunk", "8100 MiB of links"])
def test_a_store_may_not_claim_far_more_than_it_holds(name: str, root: Path) -> None:
    """The nodes are valid, so `check` has nothing to say; who trusts the store raises the limit."""
    NODES[name](root)
    url = f"store://{root}#main"
    calls: list[Callable[[], object]] = [
        lambda: tg.open(url)["w"], lambda: list(tg.open(url)), lambda: tg.stats(url), lambda: tg.identify(url),
        lambda: tg.diff(url, url), lambda: tg.convert(url, root / "new.zt"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(tg.LimitError) as caught:
            call()
        assert caught.value.rule == "limit.store"
    assert [problem.rule for problem in tg.verify(url).problems] == ["limit.store"]
    trusted = tg.open(url, limits=tg.Limits(store_ratio=1 << 50))["w"]
    assert trusted.nbytes >= 8100 * CHUNK_NBYTES
    if "links" not in name:
        assert not trusted[-3:].any()


def test_zeros_are_no_attack(root: Path) -> None:
    zeros = np.zeros((300, CHUNK_NBYTES), np.uint8)
    Store(root).commit("main", {"w": zeros})
    assert sum(path.stat().st_size for path in packs(root)) * 1024 < zeros.nbytes
    assert Store(root).checkout("main")["w"].shape == zeros.shape


def test_a_small_store_may_claim_gigabytes(root: Path) -> None:
    """As one of zeros does. Only what is asked for is decoded."""
    NODES["8 GiB of one chunk"](root)
    assert not tg.open(f"store://{root}#main")["w"][-3:].any()


# Bundles


def frame(data: bytes) -> bytes:
    size, length = bytearray(), len(data)
    while length >= 128:
        size.append(length & 127 | 128)
        length >>= 7
    return bytes([*size, length]) + data


def car(*blocks: bytes, root: Any = None, header: Any = None, **changes: Any) -> bytes:
    """A bundle of nodes, of which the last is the commit."""
    fields = {"commit": link(blocks[-1]) if blocks else link(ARRAY), "have": [], "ref": "main", "tag": False}
    node = encode_node({"dynd": 1, "kind": "bundle", **fields, **changes}) if root is None else root
    head = encode_node({"roots": [link(node)], "version": 1} if header is None else header)
    pieces = [frame(head), frame(bytes(link(node)) + node)]
    return b"".join([*pieces, *(frame(bytes(link(block)) + block) for block in blocks)])


NAMES = leaf({})
COMMIT = commit_node(link(NAMES))
GOOD = car(NAMES, COMMIT)


def delta_node(**fields: Any) -> bytes:
    encoding = int(Encoding.SPARSE_XOR)
    good = {"base": block_cid(DATA), "block": block_cid(DATA[:4]), "body": b"", "encoding": encoding, "nbytes": 4}
    return encode_node({"dynd": 1, "kind": "delta", **good, **fields})


BUNDLES: dict[str, bytes] = {
    "no bytes": b"",
    "zeros": bytes(100),
    "text": b"not a bundle at all",
    "half": GOOD[: len(GOOD) // 2],
    "one byte less": GOOD[:-1],
    "one byte more": GOOD + b"\x05",
    "a block of 2^34 bytes": GOOD + b"\xff\xff\xff\xff\x3f",
    "a block of 2^63 bytes": GOOD + b"\xff" * 9 + b"\x7f",
    "an endless varint": GOOD + b"\xff" * 40,
    "a long varint": GOOD + b"\x80\x00",
    "a block of no bytes": GOOD + b"\x00",
    "a block of half a CID": GOOD + frame(bytes(link(ARRAY))[:20]),
    "a block that does not match": GOOD + frame(bytes(link(ARRAY)) + DATA),
    "a CID of version 0": GOOD + frame(b"\x12\x20" + bytes(40)),
    "a block by SHA-256": GOOD + frame(bytes(block_cid(DATA, RAW, SHA256)) + DATA),
    "a block of 2 MiB": car(NAMES, COMMIT) + frame(bytes(block_cid(bytes(2 << 20))) + bytes(2 << 20)),
    "a block of more than a chunk": GOOD + frame(bytes(block_cid(bytes(CHUNK_NBYTES + 1))) + bytes(CHUNK_NBYTES + 1)),
    "a node that is no DAG-CBOR": GOOD + frame(bytes(link(b"\xff")) + b"\xff"),
    "a node of 100,000 levels": GOOD + frame(bytes(link(b"\x81" * 100_000)) + b"\x81" * 100_000),
    "version 2": car(NAMES, COMMIT, header={"roots": [link(COMMIT)], "version": 2}),
    "no roots": car(NAMES, COMMIT, header={"roots": [], "version": 1}),
    "two roots": car(NAMES, COMMIT, header={"roots": [link(COMMIT)] * 2, "version": 1}),
    "a root that is a number": car(NAMES, COMMIT, header={"roots": [5], "version": 1}),
    "a header of a list": car(NAMES, COMMIT, header=[1]),
    "a root that is not there": car(NAMES, COMMIT, header={"roots": [link(ARRAY)], "version": 1}),
    "a root that is no bundle": car(NAMES, COMMIT, root=encode_node({"kind": "bundle"})),
    "a root of another kind": car(NAMES, COMMIT, root=COMMIT),
    "no commit": car(NAMES),
    "a commit that is not there": car(commit=link(COMMIT)),
    "a commit that is raw": car(NAMES, COMMIT, commit=block_cid(COMMIT)),
    "a commit by SHA-256": car(NAMES, COMMIT, commit=CID(blake3(COMMIT).digest(), DAG_CBOR, SHA256)),
    "a commit without its names": car(COMMIT),
    "a commit without its parent": car(NAMES, commit_node(link(NAMES), [link(ARRAY)])),
    "a ref named ..": car(NAMES, COMMIT, ref=".."),
    "a ref named ../../x": car(NAMES, COMMIT, ref="../../x"),
    "a ref of control characters": car(NAMES, COMMIT, ref="\x1b[2J"),
    "a ref of 4 KB": car(NAMES, COMMIT, ref="n" * 4096),
    "a ref that is a number": car(NAMES, COMMIT, ref=5),
    "have of numbers": car(NAMES, COMMIT, have=[1]),
    "a delta that is empty": GOOD + frame(bytes(link(delta_node())) + delta_node()),
    **{
        f"a delta with {name} {value!r:.20}": GOOD
        + frame(bytes(link(delta_node(**{name: value}))) + delta_node(**{name: value}))
        for name, value in [
            ("encoding", 0), ("encoding", 99), ("encoding", -1), ("encoding", 1 << 63), ("nbytes", 0), ("nbytes", -1),
            ("nbytes", 1 << 40), ("body", "text"), ("body", bytes(50)), ("base", 5), ("block", 5), ("more", 5),
            ("base", block_cid(DATA, RAW, SHA256)), ("base", block_cid(b"nothing")), ("dynd", 2),
            ("base", WITH_KEY_OF_DATA),
        ]
    },
}  # fmt: skip
BUNDLE_RULES: dict[str, str] = {
    "no bytes": "bundle.header",
    "zeros": "bundle.header",
    "text": "bundle.header",
    "a block of 2^63 bytes": "bundle.varint",
    "an endless varint": "bundle.varint",
    "a long varint": "bundle.varint",
    "a block of no bytes": "cid.form",
    "a block of half a CID": "cid.form",
    "a CID of version 0": "cid.form",
    "a block that does not match": "bundle.hash",
    "a block by SHA-256": "bundle.hash",
    "a node that is no DAG-CBOR": "cbor.indefinite",
    "a node of 100,000 levels": "cbor.depth",
    "version 2": "bundle.header",
    "no roots": "bundle.header",
    "two roots": "bundle.header",
    "a root that is a number": "bundle.header",
    "a header of a list": "bundle.header",
    "a root that is not there": "bundle.root",
    "a root that is no bundle": "bundle.root",
    "a root of another kind": "bundle.root",
    "a ref that is a number": "bundle.root",
    "have of numbers": "bundle.root",
    "no commit": "store.commit",
    "a commit that is not there": "bundle.incomplete",
    "a commit without its names": "bundle.incomplete",
    "a commit without its parent": "bundle.incomplete",
    "a commit that is raw": "store.node",
    "a commit by SHA-256": "store.node",
    "a ref named ..": "store.ref.name",
    "a ref named ../../x": "store.ref.name",
    "a ref of control characters": "store.ref.name",
    "a ref of 4 KB": "store.ref.name",
    "a delta that is empty": "store.encoding",
    f"a delta with body {bytes(50)!r:.20}": "store.encoding",
    f"a delta with base {block_cid(DATA, RAW, SHA256)!r:.20}": "bundle.incomplete",
    f"a delta with base {block_cid(b'nothing')!r:.20}": "bundle.incomplete",
    f"a delta with base {WITH_KEY_OF_DATA!r:.20}": "bundle.incomplete",
}
"""Of all others it is `bundle.delta` or `bundle.block`, as they say."""


@pytest.mark.parametrize("name", BUNDLES)
def test_a_hostile_bundle_changes_nothing(name: str, root: Path) -> None:
    store = Store(root)
    given = {"x": np.arange(5)}
    store.commit("mine", given)
    store.put(np.frombuffer(DATA, np.uint8))  # the base of the deltas
    refs = store.refs()
    with pytest.raises((tg.FormatError, tg.InputError)) as caught:
        store.unbundle(BUNDLES[name])
    assert str(caught.value).isprintable()
    assert caught.value.rule == BUNDLE_RULES.get(name, "bundle.delta" if name.startswith("a delta") else "bundle.block")
    assert store.refs() == refs
    assert_clean(store)
    assert same_tensors(store.checkout("mine"), given)
    assert not list((root / "writers").iterdir())


def test_a_good_bundle_made_by_hand(root: Path) -> None:
    assert Store(root).unbundle(GOOD).cid == str(link(COMMIT))
    assert_clean(Store(root))


@pytest.mark.parametrize("name", [name for name, data in BUNDLES.items() if len(data) < 1 << 16])
def test_a_hostile_bundle_costs_little(name: str, root: Path) -> None:
    store = Store(root)
    assert allocated_nbytes(lambda: attempt(lambda: store.unbundle(BUNDLES[name]))) < 10 * MB


# Others in the same directory


def test_entries_of_others_are_not_followed(root: Path, tmp_path: Path) -> None:
    """Links planted where the store writes: nothing outside is written to."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    store = Store(root)
    store.commit("main", {"x": np.zeros(3)})
    (root / "refs" / "planted").symlink_to(victim)
    (root / "lock").unlink()
    (root / "lock").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        store.commit("main", {"x": np.ones(3)})
    (root / "lock").unlink()
    with pytest.raises(HOSTILE):
        store.commit("planted", {"x": np.ones(3)})
    store.delete("planted")
    assert not (root / "refs" / "planted").is_symlink()
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("folder", ["packs", "refs", "condemned", "writers"])
def test_a_folder_that_is_a_link_is_refused(folder: str, root: Path, tmp_path: Path) -> None:
    """What a commit writes and what a collection removes is below the store's directory."""
    store = Store(root)
    for value in (1, 2):
        store.commit("main", {"a": np.full(3, value)})
    store.collect(0)
    outside = tmp_path / "outside"
    outside.mkdir()
    if (root / folder).exists():
        (root / folder).rename(tmp_path / "moved")
    (outside / "precious").write_text("x")
    (root / folder).symlink_to(outside)
    uses: list[Callable[[], object]] = [
        lambda: Store(root).commit("other", {"b": np.zeros(3)}),
        lambda: Store(root).collect(0),
        lambda: Store(root).tag("v1", "main"),
    ]
    for use in uses:
        with pytest.raises(tg.FormatError, match=r"rule store\.folder"):
            use()
    assert [path.name for path in outside.iterdir()] == ["precious"]


def test_a_pack_without_blocks_is_no_problem(root: Path) -> None:
    version_2()(root)
    (path,) = packs(root)
    data, index = path.read_bytes(), struct.pack("<III", 0, 0, 0)
    empty = data[:8] + index + struct.pack("<QQ32s8s", 8, len(index), blake3(index).digest(), data[-8:])
    path.with_name(f"{path.stem[::-1]}.pack").write_bytes(empty)
    assert_clean(Store(root))
    assert len(packs(root)) == 2


def test_a_store_behind_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    Store(tmp_path / "link").commit("main", {"a": np.ones(3)})
    assert tg.load(f"store://{root}#main")["a"].tolist() == [1, 1, 1]


def test_tensors_of_2_to_the_63_bytes_in_all(root: Path) -> None:
    """Each is smaller than that, and offsets beyond it would wrap."""
    nodes, cid, size = tree(3)
    array = array_node(f"{size} * uint8", cid, size)
    names = leaf({f"w{i:02}": link(array) for i in range(-(-(1 << 63) // size))})
    publish(root, *nodes, array, manifest=names)
    with pytest.raises(tg.LimitError) as caught:
        len(tg.open(f"store://{root}#main", limits=tg.Limits(store_ratio=1 << 62)))
    assert caught.value.rule == "store.size"


@pytest.mark.parametrize(("type", "rule"), [("void", "dynd.void"), ("int8", "dynd.limit.columns")])
def test_names_of_one_wide_value(type: str, rule: str, root: Path) -> None:
    """A name takes fifty bytes, and a verb has to make the columns of each value."""
    data = b"" if type == "void" else bytes(4000)
    array = array_node(f"({', '.join([type] * 4000)})", data)
    publish(root, data, array, manifest=leaf({f"w{i:03}": link(array) for i in range(300)}))
    with pytest.raises(tg.LimitError) as caught:
        list(tg.open(f"store://{root}#main"))
    assert caught.value.rule == rule
    assert len(tg.open(f"store://{root}#main", limits=tg.Limits(void_count=1 << 21, tensors=1 << 21))) == 300


def test_many_small_blocks_that_are_longer_than_their_arrays_say(root: Path) -> None:
    """They are read together, where a longer block would move those after it."""
    array = array_node("2 * int32", block_cid(DATA), 8)
    publish(root, DATA, array, manifest=leaf({f"w{i:02}": link(array) for i in range(20)}))
    with pytest.raises(tg.FormatError) as caught:
        tg.load(f"store://{root}#main")
    assert caught.value.rule == "store.block.size"
    assert not Store(root).check(data=True).ok


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("a base that is there, without a delta", "store.chain"),
        ("a base with the key of another block", "store.block.missing"),
        ("a delta without a base", "store.chain"),
    ],
)
def test_a_delta_with_a_false_base_is_not_read(name: str, rule: str, root: Path) -> None:
    PACKS[name](root)
    with pytest.raises(tg.FormatError) as caught:
        tg.load(f"store://{root}#main")
    assert caught.value.rule == rule
    with pytest.raises(tg.FormatError, match=f"rule {rule}"):
        Store(root).push(_made(root.parent / "other"))
    assert Store(root.parent / "other").refs() == {}
