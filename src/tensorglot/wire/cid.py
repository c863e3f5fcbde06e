"""Content identifiers: what bytes are called, wherever they are.

A CID is version 1: a codec, a hash function, a digest. A leaf is plain bytes. Data of
more than a chunk is a tree: its chunks are leaves, and a node is the DAG-CBOR map
{"chunks": [links], "size": bytes below it}. A node has at most FANOUT links; where
more are needed, the nodes of one level are the children of the next. So every block
stays small, the tree of given data is always the same, and hashing needs the memory of
a few chunks whatever the size.

Knows bytes and links; knows no tensor. `docs/identity.md` has the frozen definition.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import blake3

from tensorglot.errors import FormatError, InputError, IntegrityError
from tensorglot.wire import cbor

__all__ = [
    "BLAKE3",
    "CHUNK_NBYTES",
    "CID",
    "DAG_CBOR",
    "FANOUT",
    "RAW",
    "SHA256",
    "block_cid",
    "data_blocks",
    "data_cid",
    "decode_node",
    "encode_node",
]

RAW, DAG_CBOR = 0x55, 0x71
SHA256, BLAKE3 = 0x12, 0x1E
CHUNK_NBYTES = 1 << 20
FANOUT = 8192
DIGEST_NBYTES = 32

Buffer: TypeAlias = "bytes | bytearray | memoryview"
Sink: TypeAlias = "Callable[[CID, Buffer], None]"

_LINK_TAG = 42
_PROFILE = cbor.Profile(
    indefinite=False,
    long_heads=False,
    sorted_keys=True,
    keys="text",
    floats="double",
    nonfinite=False,
    simple=False,
    tags=frozenset({_LINK_TAG}),
    depth=64,
)


@dataclass(frozen=True, slots=True, order=True)
class CID:
    """A CIDv1: `str` is its base32 text, `bytes` its binary form."""

    digest: bytes
    codec: int = RAW
    hash: int = BLAKE3

    def __bytes__(self) -> bytes:
        return bytes((1, self.codec, self.hash, len(self.digest))) + self.digest

    def __str__(self) -> str:
        return "b" + base64.b32encode(bytes(self)).decode("ascii").lower().rstrip("=")

    def __repr__(self) -> str:
        return f"CID({self})"

    @classmethod
    def from_bytes(cls, data: Buffer) -> CID:
        head, digest = bytes(data[:4]), bytes(data[4:])
        known = len(head) == 4 and head[0] == 1 and head[1] in (RAW, DAG_CBOR) and head[2] in (SHA256, BLAKE3)
        if not known or head[3] != DIGEST_NBYTES or len(digest) != DIGEST_NBYTES:
            raise FormatError("no CIDv1 of a raw or DAG-CBOR block, by BLAKE3 or SHA-256", rule="cid.form")
        return cls(digest, head[1], head[2])

    @classmethod
    def parse(cls, text: str) -> CID:
        """The CID of a text. Only the canonical text, in lower case, will do."""
        try:
            data = base64.b32decode(text[1:].upper() + "=" * (-len(text[1:]) % 8))
        except (binascii.Error, ValueError) as error:
            raise InputError("a CID is 'b' and base32", rule="cid.text") from error
        try:
            cid = cls.from_bytes(data)
        except FormatError as error:
            raise InputError(error.message, rule=error.rule) from error
        if str(cid) != text:
            raise InputError("not the canonical text of a CID", rule="cid.text")
        return cid


def block_cid(block: Buffer, codec: int = RAW, hash: int = BLAKE3) -> CID:
    """The CID of one block."""
    digest = blake3.blake3(block).digest() if hash == BLAKE3 else hashlib.sha256(block).digest()
    return CID(digest, codec, hash)


def encode_node(node: Any) -> bytes:
    """A DAG-CBOR block. A CID in it becomes a link."""
    return cbor.encode(_with_links(node), _PROFILE)


def decode_node(block: Buffer) -> Any:
    """The value of a DAG-CBOR block, with its links as CIDs."""
    return _without_links(cbor.decode(bytes(block), _PROFILE))


def _with_links(value: Any) -> Any:
    if isinstance(value, CID):
        return cbor.Tag(_LINK_TAG, b"\0" + bytes(value))
    if isinstance(value, dict):
        return {key: _with_links(item) for key, item in value.items()}
    return [_with_links(item) for item in value] if isinstance(value, list) else value


def _without_links(value: Any) -> Any:
    if isinstance(value, cbor.Tag):
        if not isinstance(value.value, bytes) or value.value[:1] != b"\0":
            raise FormatError("a link is a byte string that begins with 0", rule="cid.link")
        return CID.from_bytes(value.value[1:])
    if isinstance(value, dict):
        return {key: _without_links(item) for key, item in value.items()}
    return [_without_links(item) for item in value] if isinstance(value, list) else value


def data_cid(buffers: Iterable[Buffer], sink: Sink | None = None) -> tuple[CID, int]:
    """The link to data of any size, and that size. `sink` is given every block, children before parents.

    A buffer must stay as it is until the second one after it is asked for: chunks are
    hashed on all processors while the next buffer is made.
    """
    tree = _Tree(sink)
    size = 0
    for chunk, cid in _leaves(buffers):
        if sink is not None:
            sink(cid, chunk)
        size += len(chunk)
        tree.add(0, cid, len(chunk))
    return tree.root(), size


class _Tree:
    """Links of each level that have no parent yet."""

    def __init__(self, sink: Sink | None) -> None:
        self.sink = sink
        self.levels: list[list[tuple[CID, int]]] = [[]]

    def add(self, level: int, cid: CID, nbytes: int) -> None:
        if level == len(self.levels):
            self.levels.append([])
        if len(self.levels[level]) == FANOUT:
            self.close(level)
        self.levels[level].append((cid, nbytes))

    def close(self, level: int) -> None:
        links, self.levels[level] = self.levels[level], []
        nbytes = sum(size for _, size in links)
        block = encode_node({"chunks": [cid for cid, _ in links], "size": nbytes})
        cid = block_cid(block, DAG_CBOR)
        if self.sink is not None:
            self.sink(cid, block)
        self.add(level + 1, cid, nbytes)

    def root(self) -> CID:
        level = 0
        while level < len(self.levels) - 1 or len(self.levels[level]) > 1:
            self.close(level)
            level += 1
        return self.levels[level][0][0]


def _leaves(buffers: Iterable[Buffer]) -> Iterator[tuple[Buffer, CID]]:
    """The chunks and their CIDs, in order. No data is one empty chunk."""
    cutter = _Cutter()
    pending: list[tuple[Buffer, Future[CID]]] = []
    several = False
    for buffer in buffers:
        chunks = cutter.cut(buffer)
        for chunk, future in pending:
            yield chunk, future.result()
        several = several or bool(chunks)
        pending = [(chunk, _pool(os.getpid()).submit(block_cid, chunk)) for chunk in chunks]
    for chunk, future in pending:
        yield chunk, future.result()
    if cutter.held or not several:
        yield cutter.held, block_cid(cutter.held)


class _Cutter:
    """Cuts what comes in buffers into chunks. A chunk that lies within one buffer is not copied."""

    def __init__(self) -> None:
        self.held = bytearray()

    def cut(self, buffer: Buffer) -> list[Buffer]:
        """The chunks that a buffer completes. What is left is held for the next."""
        view = memoryview(buffer).cast("B")
        chunks: list[Buffer] = []
        at = 0
        if self.held:
            at = min(len(view), CHUNK_NBYTES - len(self.held))
            self.held += view[:at]
            if len(self.held) == CHUNK_NBYTES:
                chunks.append(self.held)
                self.held = bytearray()
        while len(view) - at >= CHUNK_NBYTES:
            chunks.append(view[at : at + CHUNK_NBYTES])
            at += CHUNK_NBYTES
        self.held += view[at:]
        return chunks


@cache
def _pool(pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="tensorglot-hash")


def data_blocks(cid: CID, fetch: Callable[[CID], Buffer]) -> Iterator[Buffer]:
    """The chunks of the data that a link names, in order, each checked against its hash.

    After the last one the tree itself is checked: only the one that `data_cid` makes will do.
    """
    tree = _Tree(None)
    size = 0
    stack = [(cid, 0)]
    while stack:
        link, depth = stack.pop()
        block = fetch(link)
        if block_cid(block, link.codec, link.hash) != link:
            raise IntegrityError(f"a block is not the one that {link} names", rule="cid.hash")
        if link.codec == DAG_CBOR:
            if depth == _MOST_LEVELS:
                raise FormatError("a tree of chunks deeper than any data needs", rule="cid.tree")
            stack.extend((child, depth + 1) for child in reversed(_links(block)))
            continue
        if size % CHUNK_NBYTES or len(block) > CHUNK_NBYTES or (size and not len(block)):
            raise _other_tree(cid)
        tree.add(0, link, len(block))
        size += len(block)
        yield block
    if tree.root() != cid:
        raise _other_tree(cid)


def _other_tree(cid: CID) -> FormatError:
    return FormatError(f"{cid} names another tree of chunks than its data has", rule="cid.tree")


_MOST_LEVELS = 6
"""FANOUT to this power is more chunks than there can be."""


def _links(block: Buffer) -> list[CID]:
    node = decode_node(block)
    links = node.get("chunks") if isinstance(node, dict) and node.keys() == {"chunks", "size"} else None
    if not isinstance(links, list) or not links or not all(isinstance(link, CID) for link in links):
        raise FormatError("no node of chunks", rule="cid.tree")
    return links
