"""Content identifiers (CIDs), and the trees of chunks that identify large data.

A CID is version 1: a codec, a hash function, a digest. A leaf is plain bytes. Data
larger than a chunk is a tree: its chunks are leaves, and a node is the DAG-CBOR map
{"chunks": [links], "size": bytes below it} with at most FANOUT links; further levels are
added as needed. So every block is small, the tree of given data is unique, and hashing
needs the memory of a few chunks whatever the size.

Knows bytes and links; knows no tensor. `docs/identity.md` has the frozen definition.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import blake3
import numpy as np

from tensorglot.errors import FormatError, InputError, IntegrityError, LimitError
from tensorglot.threads import thread_pool
from tensorglot.wire import cbor

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

__all__ = [
    "BLAKE3",
    "CHUNK_NBYTES",
    "CID",
    "DAG_CBOR",
    "DIGEST_NBYTES",
    "FANOUT",
    "LINK_HEAD",
    "LINK_NBYTES",
    "NODE_HEAD",
    "PROFILE",
    "RAW",
    "SHA256",
    "ChunkTree",
    "Cutter",
    "blake3_cids",
    "block_cid",
    "chunk_links",
    "cid_texts",
    "data_blocks",
    "data_bytes",
    "data_cid",
    "decode_node",
    "encode_node",
    "parse_chunk_node",
    "parse_digests",
    "parse_links",
]

RAW, DAG_CBOR = 0x55, 0x71
SHA256, BLAKE3 = 0x12, 0x1E
CHUNK_NBYTES = 1 << 20
FANOUT = 8192
DIGEST_NBYTES = 32
BLOCK_NBYTES = 1 << 20
"""The largest block of a tree: a chunk. A node of FANOUT links is smaller."""

_MOST_PER_STORED = 1024
"""The most bytes of data for each byte of distinct chunks. Equal chunks, as in sparse tensors, are stored once, so a
small store can describe huge data."""

Buffer: TypeAlias = "bytes | bytearray | memoryview"
Sink: TypeAlias = "Callable[[CID, bytes], object]"
Fetch: TypeAlias = "Callable[[CID], Any]"

_LINK_TAG = 42
LINK_HEAD = bytes.fromhex("d82a582500")
"""Tag 42, a byte string of 37 bytes, and the 0 before the CID."""
LINK_NBYTES = len(LINK_HEAD) + 4 + DIGEST_NBYTES
PROFILE = replace(
    cbor.DETERMINISTIC, keys="text", floats="double", nonfinite=False, tags=frozenset({_LINK_TAG}), depth=64
)
"""DAG-CBOR."""


@dataclass(frozen=True, slots=True, order=True)
class CID:
    """A CIDv1: `str` is its base32 text, `bytes` its binary form."""

    digest: bytes
    codec: int = RAW
    hash: int = BLAKE3

    def __post_init__(self) -> None:
        kinds = (type(self.digest), type(self.codec), type(self.hash)) == (bytes, int, int)
        known = kinds and self.codec in (RAW, DAG_CBOR) and self.hash in (SHA256, BLAKE3)
        if not known or len(self.digest) != DIGEST_NBYTES:
            raise InputError(_FORM, rule="cid.form")

    def __bytes__(self) -> bytes:
        return bytes((1, self.codec, self.hash, len(self.digest))) + self.digest

    def __str__(self) -> str:
        return "b" + base64.b32encode(bytes(self)).decode("ascii").lower().rstrip("=")

    def __repr__(self) -> str:
        return f"CID({self})"

    @classmethod
    def from_bytes(cls, data: Buffer) -> CID:
        """The CID of its binary form, 36 bytes."""
        raw = _as_bytes(data)
        if len(raw) != 4 + DIGEST_NBYTES or raw[0] != 1 or raw[3] != DIGEST_NBYTES:
            raise FormatError(_FORM, rule="cid.form")
        try:
            return cls(raw[4:], raw[1], raw[2])
        except InputError as error:
            raise FormatError(error.message, rule=error.rule) from error

    @classmethod
    def parse(cls, text: str) -> CID:
        """Parses the canonical text, in lower case."""
        if not isinstance(text, str):
            raise InputError(f"a CID must be a str, not {type(text).__name__}", rule="cid.text")
        try:
            data = base64.b32decode(text[1:].upper() + "=" * (-len(text[1:]) % 8))
        except (binascii.Error, ValueError) as error:
            raise InputError("not a CID: expected 'b' followed by base32", rule="cid.text") from error
        try:
            cid = cls.from_bytes(data)
        except FormatError as error:
            raise InputError(error.message, rule=error.rule) from error
        if str(cid) != text:
            raise InputError("not the canonical text of a CID (lower case, no padding)", rule="cid.text")
        return cid


def blake3_cids(digests: Iterable[bytes], codec: int) -> list[CID]:
    """CIDs of 32-byte BLAKE3 digests, without the checks of `CID`: three times as fast, for commits of 100,000."""
    found = []
    for digest in digests:
        cid = _new(CID)
        _set_digest(cid, digest)
        _set_codec(cid, codec)
        _set_hash(cid, BLAKE3)
        found.append(cid)
    return found


_new = object.__new__
_set_digest, _set_codec, _set_hash = (vars(CID)[name].__set__ for name in ("digest", "codec", "hash"))
"""Set the fields of the frozen dataclass without its `__init__`, and so without its checks."""


def parse_links(block: bytes, begin: int, count: int) -> list[CID] | None:
    """Parses `count` adjacent links from `begin` on; None if there is anything else."""
    end = begin + count * LINK_NBYTES
    if not count or end > len(block):
        return None if count else []
    alike = parse_digests(block, begin, count)
    if alike is None:
        links = [block[at : at + LINK_NBYTES] for at in range(begin, end, LINK_NBYTES)]
        if not all(link.startswith(LINK_HEAD) for link in links):
            return None
        return [CID.from_bytes(link[len(LINK_HEAD) :]) for link in links]
    return blake3_cids(alike[1], alike[0])


def parse_digests(block: bytes, begin: int, count: int) -> tuple[int, list[bytes]] | None:
    """The codec and the digests of `count` adjacent links; None unless all have the same codec and use BLAKE3."""
    end = begin + count * LINK_NBYTES
    if not count or end > len(block):
        return None
    size = LINK_NBYTES - DIGEST_NBYTES
    first = block[begin : begin + size]
    if first[:-4] != LINK_HEAD or first[-2:] != bytes((BLAKE3, DIGEST_NBYTES)):
        return None
    if {block[at : at + size] for at in range(begin, end, LINK_NBYTES)} != {first}:
        return None
    codec = CID.from_bytes(block[begin + len(LINK_HEAD) : begin + LINK_NBYTES]).codec
    return codec, [block[at - DIGEST_NBYTES : at] for at in range(begin + LINK_NBYTES, end + 1, LINK_NBYTES)]


def cid_texts(cids: Sequence[bytes]) -> list[str]:
    """The texts of CIDs that are given in binary form. For many, a hundred times faster than `str(CID)`."""
    if not cids:
        return []
    bits = np.unpackbits(np.frombuffer(b"".join(cids), np.uint8).reshape(len(cids), -1), axis=1)
    bits = np.pad(bits, ((0, 0), (0, -bits.shape[1] % 5)))
    digits = np.packbits(bits.reshape(-1, 5), axis=1) >> 3
    text = _BASE32[digits].tobytes().decode("ascii")
    width = bits.shape[1] // 5
    return [f"b{text[start : start + width]}" for start in range(0, len(text), width)]


NODE_HEAD = bytes((1, DAG_CBOR, BLAKE3, DIGEST_NBYTES))
"""What precedes the digest in the CID of a DAG-CBOR block."""
_BASE32 = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz234567", np.uint8)
_FORM = "not a CIDv1 of a raw or DAG-CBOR block with BLAKE3-256 or SHA-256"


def _as_bytes(data: Any) -> bytes:
    """Copies to immutable bytes; `bytes(5)` would be five zeros, and `bytes("a")` a TypeError."""
    try:
        return data if isinstance(data, bytes) else bytes(memoryview(data))
    except (TypeError, ValueError, BufferError) as error:
        raise InputError(f"expected bytes, got {type(data).__name__}", rule="cid.data") from error


def block_cid(block: Buffer, codec: int = RAW, hash: int = BLAKE3) -> CID:
    """Hashes one block."""
    try:
        digest = blake3.blake3(block).digest() if hash == BLAKE3 else hashlib.sha256(block).digest()
    except (TypeError, ValueError, BufferError) as error:
        raise InputError(f"expected the bytes of a block, got {type(block).__name__}", rule="cid.data") from error
    return CID(digest, codec, hash)


def checkpoint_block(cids: Mapping[str, bytes]) -> bytes:
    """The block of a checkpoint node without metadata and parents; `cids` has the binary CID of each tensor."""
    empty = encode_node({"dynd": 1, "kind": "checkpoint", "meta": {}, "parents": [], "tensors": {}})
    entries = sorted((len(key), key, cid) for key, cid in ((name.encode(), cid) for name, cid in cids.items()))
    heads = {size: cbor.head(3, size) for size in {size for size, _, _ in entries}}
    pairs = b"".join([heads[size] + key + LINK_HEAD + cid for size, key, cid in entries])
    return empty[:-1] + cbor.head(5, len(cids)) + pairs  # the map of tensors is the last value


def encode_node(node: Any) -> bytes:
    """Encodes a DAG-CBOR block; CIDs become links."""
    return cbor.encode(_with_links(node, PROFILE.depth), PROFILE)


def decode_node(block: Buffer) -> Any:
    """Decodes a DAG-CBOR block; links become CIDs."""
    return cbor.decode(_as_bytes(block), PROFILE, tag=_link)


def _with_links(value: Any, depth: int) -> Any:
    if isinstance(value, CID):
        return cbor.Tag(_LINK_TAG, b"\0" + bytes(value))
    if isinstance(value, str | bytes | bytearray | memoryview) or not isinstance(value, Mapping | Sequence):
        return value
    if depth == 0:
        raise InputError(f"nested deeper than {PROFILE.depth} levels", rule="cbor.depth")
    if isinstance(value, Mapping):
        return {key: _with_links(item, depth - 1) for key, item in value.items()}
    return [_with_links(item, depth - 1) for item in value]


def _link(_: int, value: Any) -> CID:
    """The profile allows no other tag."""
    if not isinstance(value, bytes) or value[:1] != b"\0":
        raise FormatError("a DAG-CBOR link must be a byte string that begins with 0", rule="cid.link")
    return CID.from_bytes(value[1:])


def data_cid(buffers: Iterable[Buffer], sink: Sink | None = None) -> tuple[CID, int]:
    """Hashes data of any size; returns its CID and size. `sink` receives every block, children before parents.

    A buffer must not change until the second buffer after it is requested: its chunks are
    hashed on all processors while the next buffer is produced. A sink receives copies, made
    before hashing.
    """
    tree = ChunkTree(sink)
    size = 0
    for chunk, cid in _leaves(buffers, copy=sink is not None):
        if sink is not None:
            sink(cid, bytes(chunk))
        size += len(chunk)
        tree.add(0, cid, len(chunk))
    return tree.root(), size


class ChunkTree:
    """Builds a tree bottom-up. `levels` has, for each level, the links and sizes that have no parent yet."""

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


def _leaves(buffers: Iterable[Buffer], *, copy: bool) -> Iterator[tuple[Buffer, CID]]:
    """Yields the chunks and their CIDs, in order. Empty data is one empty chunk."""
    cutter = Cutter()
    pending: list[tuple[Buffer, Future[CID]]] = []
    several = False
    for buffer in buffers:
        chunks = [bytes(chunk) if copy else chunk for chunk in cutter.cut(buffer)]
        for chunk, future in pending:
            yield chunk, future.result()
        several = several or bool(chunks)
        pending = [(chunk, _pool(os.getpid()).submit(block_cid, chunk)) for chunk in chunks]
    for chunk, future in pending:
        yield chunk, future.result()
    if cutter.held or not several:
        yield cutter.held, block_cid(cutter.held)


class Cutter:
    """Splits buffers into chunks. A chunk within one buffer is not copied."""

    def __init__(self) -> None:
        self.held = bytearray()

    def cut(self, buffer: Buffer) -> list[Buffer]:
        """Returns the chunks that a buffer completes; the rest is kept for the next."""
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
    return thread_pool(min(8, os.cpu_count() or 1), "tensorglot-hash")


def data_blocks(cid: CID, fetch: Fetch, nbytes: int | None = None) -> Iterator[bytes]:
    """Yields the chunks of the data of a CID, in order, each checked against its hash.

    Only the tree that `data_cid` builds is accepted. Its shape follows from the size in the
    root, so a node is checked before anything below it is fetched. `nbytes` is the expected
    size of the data, if known.
    """
    if cid.codec == RAW:
        block = _fetch_checked(cid, fetch)
        _check_size(cid, len(block), nbytes)
        yield block
        return
    for link, size in chunk_links(cid, fetch, nbytes):
        block = _fetch_checked(link, fetch)
        if len(block) != size:
            raise _other_tree(cid)
        yield block


def data_bytes(cid: CID, fetch: Fetch, nbytes: int | None = None) -> memoryview:
    """Reads all data of a CID into new, read-only memory."""
    if cid.codec == DAG_CBOR and (nbytes is None or nbytes > _MOST_PER_STORED * CHUNK_NBYTES):
        _check_expansion(cid, fetch, nbytes)
    out = bytearray()
    try:
        for block in data_blocks(cid, fetch, nbytes):
            out += block
    except MemoryError as error:
        raise LimitError(f"the data of {cid} does not fit in memory", rule="cid.expansion") from error
    return memoryview(out).toreadonly()


def _check_expansion(cid: CID, fetch: Fetch, nbytes: int | None) -> None:
    """Refuses huge data of a few repeated chunks, before any chunk is fetched."""
    size = parse_chunk_node(_fetch_checked(cid, fetch))[1]
    if size > _MOST_PER_STORED * CHUNK_NBYTES:
        stored = sum(chunk for _, chunk in chunk_links(cid, fetch, nbytes, set()))
        if size > _MOST_PER_STORED * stored:
            raise LimitError(
                f"{cid} expands to {size} bytes from {stored} bytes of distinct chunks; "
                f"at most {_MOST_PER_STORED} times as many are read into memory",
                rule="cid.expansion",
            )


def chunk_links(
    cid: CID, fetch: Fetch, nbytes: int | None, seen: set[tuple[CID, int]] | None = None
) -> Iterator[tuple[CID, int]]:
    """Yields the CIDs and sizes of all chunks of a tree; with `seen`, each distinct pair once."""
    root = parse_chunk_node(_fetch_checked(cid, fetch))
    size = root[1]
    _check_size(cid, size, nbytes)
    # The shape of the tree follows from the size: a link of level n covers CHUNK_NBYTES * FANOUT**n bytes.
    capacity = CHUNK_NBYTES
    while capacity < size:
        capacity *= FANOUT
    stack = [(cid, capacity, size)]
    while stack:
        link, capacity, size = stack.pop()
        if (link.codec == RAW) != (capacity == CHUNK_NBYTES):
            raise _other_tree(cid)
        if seen is not None:
            if (link, size) in seen:
                continue
            seen.add((link, size))
        if link.codec == RAW:
            yield link, size
            continue
        links, stated = root if link is cid else parse_chunk_node(_fetch_checked(link, fetch))
        capacity //= FANOUT
        starts = range(0, size, capacity)
        if stated != size or len(links) != len(starts):
            raise _other_tree(cid)
        stack.extend((links[i], capacity, min(capacity, size - starts[i])) for i in reversed(range(len(links))))


def _check_size(cid: CID, nbytes: int, expected: int | None) -> None:
    if expected is not None and nbytes != expected:
        raise FormatError(f"{cid} has {nbytes} bytes, expected {expected}", rule="cid.size")


def _fetch_checked(link: CID, fetch: Fetch) -> bytes:
    """Fetches and checks a block. It is copied before hashing, so that it cannot change afterwards."""
    given = fetch(link)
    try:
        nbytes = memoryview(given).nbytes
        block = _as_bytes(given) if nbytes <= BLOCK_NBYTES else b""
    except (TypeError, InputError) as error:
        raise IntegrityError(
            f"expected the bytes of block {link}, got {type(given).__name__}", rule="cid.hash"
        ) from error
    if nbytes > BLOCK_NBYTES:
        raise FormatError(f"block {link} of {nbytes} bytes exceeds the limit of {BLOCK_NBYTES}", rule="cid.tree")
    if block_cid(block, link.codec, link.hash) != link:
        raise IntegrityError(f"block does not match its CID {link}", rule="cid.hash")
    return block


def _other_tree(cid: CID) -> FormatError:
    return FormatError(f"the tree of {cid} does not have the shape that its size requires", rule="cid.tree")


def parse_chunk_node(block: bytes) -> tuple[list[CID], int]:
    """Parses a node; returns its links and the number of bytes below it."""
    cbor.check(block, PROFILE)
    cursor = cbor.Cursor(block, rule="cid.tree")
    if cursor.count("a node", cbor.MAP) == 2 and cursor.text("size") == "size":
        size = cursor.uint("size")
        if cursor.text("chunks") == "chunks" and 0 < size < 1 << 63:
            count = cursor.count("chunks")
            links = parse_links(block, cursor.pos, count)
            if links is not None and cursor.pos + count * LINK_NBYTES == len(block):
                return links, size
    raise FormatError("not a chunk node: expected a map of size and chunks", rule="cid.tree")
