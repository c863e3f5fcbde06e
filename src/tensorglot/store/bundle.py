"""Bundles: a commit and all that it leads to, as one CAR file (version 1).

    CAR = header | blocks;  each is a varint of its size, then its bytes
    header = DAG-CBOR {"roots": [link of the bundle node], "version": 1}
    block = CID | bytes

The root is {"commit": link, "dynd": 1, "have": [links], "kind": "bundle", "ref", "tag"}.
Any CAR reader can check the blocks. For a receiver that has other commits (`have`), blocks
of these are left out, and chunks may come as deltas from them:
{"base": link, "block": link, "body": bytes, "dynd": 1, "encoding": number, "kind": "delta",
"nbytes": number}, named by the hash of their own bytes. A base comes before its deltas.

A bundle is read twice: first its nodes are stored, which tell what each chunk replaced;
then the chunks, as deltas where these are smaller (`lineage.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tensorglot.errors import FormatError, InputError, IntegrityError, LimitError, TensorglotError, TruncatedError
from tensorglot.io.local import BaseSource
from tensorglot.operations._progress import Progress
from tensorglot.store.copying import Copy, add_chunk, add_copy, restore
from tensorglot.store.encoder import Encoded
from tensorglot.store.encodings import IS_DELTA, Encoding
from tensorglot.store.lineage import Origin, commits_from, find_origins
from tensorglot.store.packs import Packs, pack_key
from tensorglot.store.reach import Walk
from tensorglot.store.refs import Ref, check_ref_name
from tensorglot.store.session import Session
from tensorglot.store.transfer import bases_of
from tensorglot.wire.cid import BLAKE3, CHUNK_NBYTES, CID, DAG_CBOR, RAW, block_cid, decode_node, encode_node

__all__ = ["Bundle", "incomplete", "read_bundle", "write_bundle"]

_CID_NBYTES = 36
_MOST_NBYTES = 2 * CHUNK_NBYTES
"""Most bytes of a block."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """The root of a bundle."""

    commit: CID
    ref: str
    tag: bool
    have: tuple[CID, ...]

    def encode(self) -> bytes:
        fields = {"commit": self.commit, "have": list(self.have), "ref": self.ref, "tag": self.tag}
        return encode_node({"dynd": 1, "kind": "bundle", **fields})


def write_bundle(packs: Packs, ref: Ref, have: tuple[CID, ...], progress: Progress | None = None) -> Iterator[bytes]:
    """The bytes of a bundle, in pieces."""
    packs.refresh()
    known = Walk(packs)
    for _ in known.visit(have):
        pass
    theirs = {cid.digest for cid in known.seen}
    walk = Walk(packs)
    walk.seen |= known.seen
    missing = list(walk.visit([ref.cid]))
    for damaged in (*known.broken, *walk.broken):
        raise damaged[1]
    wanted = bases_of(packs, missing, theirs.__contains__)
    places = {digest: packs.locate(digest) for digest in wanted}
    root = Bundle(ref.cid, ref.name, ref.kind == "tag", have).encode()
    yield _frame(encode_node({"roots": [block_cid(root, DAG_CBOR)], "version": 1}))
    yield _block(block_cid(root, DAG_CBOR), root)
    done, total = 0, sum(stored.record.nbytes for stored in places.values())
    # By depth: a base comes before its deltas.
    for digest in sorted(places, key=lambda digest: places[digest].order):
        record = places[digest].record
        done += record.nbytes
        if progress is not None:
            progress(done, total)
        cid = CID(digest, wanted[digest])
        if not theirs or record.base is None:
            yield _block(cid, packs.read(digest, cid.codec))
            continue
        body = packs.backend.read(pack_key(places[digest].pack), record.offset, record.stored)
        node = {"base": CID(record.base), "block": cid, "body": bytes(body), "encoding": record.encoding}
        delta = encode_node({"dynd": 1, "kind": "delta", "nbytes": record.nbytes, **node})
        yield _block(block_cid(delta, DAG_CBOR), delta)


def _block(cid: CID, data: bytes) -> bytes:
    return _frame(bytes(cid) + data)


def _frame(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number >= 128:
        digits.append(number & 127 | 128)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def read_bundle(source: BaseSource, session: Session, progress: Progress | None = None) -> Bundle:
    """Stores the blocks of a bundle that are not in the store; returns its root."""
    frames = _frames(source)
    root = _read_header(frames)
    bundle = None
    chunks: dict[bytes, tuple[int, int]] = {}
    deltas: list[tuple[int, int]] = []
    for offset, frame in frames:
        cid, block = _checked(frame, offset)
        node = decode_node(block) if cid.codec == DAG_CBOR else None
        if progress is not None:
            progress(offset // 2, source.size)
        if cid == root:
            bundle = _parse(node, offset)
        elif isinstance(node, dict) and node.get("kind") == "delta":
            deltas.append((offset, len(frame)))
        elif not session.known(cid.digest):
            _check_size(block, offset)
            if cid.codec == RAW:
                chunks[cid.digest] = offset, len(frame)
            else:
                session.add(cid.digest, block, cid.codec)
    if bundle is None:
        raise FormatError("the root of the bundle is missing", rule="bundle.root")
    session.flush()  # only what is in a pack can be read
    for number, _ in enumerate(_add_chunks(source, session, bundle.commit, chunks), 1):
        if progress is not None:
            progress(source.size // 2 + source.size * number // (2 * len(chunks)), source.size)
    for offset, nbytes in deltas:
        _add_delta(bundle, decode_node(_read_block(source, offset, nbytes)), session, offset)
    return bundle


def incomplete(bundle: Bundle, missing: CID) -> TensorglotError:
    """The error for a block that is neither in a bundle nor in the store."""
    what = f"block {missing} is neither in the bundle nor in the store"
    if bundle.have:
        return InputError(f"{what}: the bundle was made for a store that has {bundle.have[0]}", rule="bundle.have")
    return FormatError(what, rule="bundle.incomplete")


def _read_header(frames: Iterator[tuple[int, bytes]]) -> CID:
    """The link of the root."""
    try:
        header = decode_node(next(frames, (0, b""))[1])
    except FormatError as error:
        raise FormatError(
            f"not a bundle, which is a CAR file of version 1 ({error.message})", rule="bundle.header", offset=0
        ) from error
    roots = header.get("roots") if isinstance(header, dict) and header.get("version") == 1 else None
    if not isinstance(roots, list) or len(roots) != 1 or not isinstance(roots[0], CID):
        raise FormatError("not a CAR file of version 1 with one root", rule="bundle.header", offset=0)
    return roots[0]


def _add_chunks(
    source: BaseSource, session: Session, commit: CID, chunks: Mapping[bytes, tuple[int, int]]
) -> Iterator[bytes]:
    """Adds chunks, given by where they are in the file, as deltas from those that they replaced; yields each."""

    def read(digest: bytes) -> bytes:
        return _read_block(source, *chunks[digest]) if digest in chunks else session.packs.read(digest)

    origins: dict[bytes, Origin] = {}
    with contextlib.suppress(FormatError):  # what is missing is found when all is there
        origins = find_origins(session.packs, reversed(list(commits_from(session.packs, [commit]))))
    for digest in dict.fromkeys((*(digest for digest in origins if digest in chunks), *chunks)):
        origin = origins.get(digest, Origin(1, None))
        known = origin.base is not None and session.known(origin.base)
        add_chunk(session, digest, read(digest), origin, read if known else None)
        yield digest


def _read_block(source: BaseSource, offset: int, nbytes: int) -> bytes:
    """The block of a frame that was checked before, and is checked again, since a file can change."""
    return _checked(source.read_bytes(offset + len(_varint(nbytes)), nbytes), offset)[1]


def _check_size(block: bytes, offset: int) -> None:
    if len(block) > CHUNK_NBYTES:
        raise LimitError(f"a block of {len(block)} bytes exceeds {CHUNK_NBYTES}", rule="bundle.block", offset=offset)


def _frames(source: BaseSource) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of each frame. Its size is compared with what is left before it is read."""
    at = 0
    while at < source.size:
        head = source.read_bytes(at, min(5, source.size - at))
        length = used = 0
        for used, byte in enumerate(head, 1):
            length |= (byte & 127) << 7 * (used - 1)
            if byte < 128:
                break
        else:
            raise TruncatedError("file truncated within the size of a block", rule="bundle.varint", offset=at)
        if head[used - 1] == 0 and used > 1:
            raise FormatError("the size of a block is not in its shortest form", rule="bundle.varint", offset=at)
        if length > _MOST_NBYTES:
            raise LimitError(f"a block of {length} bytes exceeds {_MOST_NBYTES}", rule="bundle.block", offset=at)
        if length > source.size - at - used:
            raise TruncatedError(
                f"file truncated: needs {at + used + length} bytes, has {source.size}", rule="bundle.block", offset=at
            )
        yield at, source.read_bytes(at + used, length)
        at += used + length


def _checked(frame: bytes, offset: int) -> tuple[CID, bytes]:
    try:
        cid = CID.from_bytes(frame[:_CID_NBYTES])
    except FormatError as error:
        error.offset = offset
        raise
    block = frame[_CID_NBYTES:]
    if cid.hash != BLAKE3:
        raise FormatError("a block must be named by BLAKE3", rule="bundle.hash", offset=offset)
    if block_cid(block, cid.codec) != cid:
        raise IntegrityError(f"block does not match its CID {cid}", rule="bundle.hash", offset=offset)
    return cid, block


def _parse(node: Any, offset: int) -> Bundle:
    fields = {"commit": CID, "have": list, "ref": str, "tag": bool}
    if (
        not isinstance(node, dict)
        or node.keys() != {"dynd", "kind", *fields}
        or (node["dynd"], node["kind"]) != (1, "bundle")
        or not all(isinstance(node[key], kind) for key, kind in fields.items())
        or not all(isinstance(cid, CID) for cid in node["have"])
    ):
        raise FormatError("not the root of a bundle", rule="bundle.root", offset=offset)
    try:
        check_ref_name(node["ref"])
    except InputError as error:
        raise FormatError(error.message, rule=error.rule, offset=offset) from error
    return Bundle(node["commit"], node["ref"], node["tag"], tuple(node["have"]))


def _add_delta(bundle: Bundle, node: dict[str, Any], session: Session, offset: int) -> None:
    """Decodes a delta, compares the result with its CID, and stores the delta, unless the block is there."""
    fields = {"base": CID, "block": CID, "body": bytes, "encoding": int, "nbytes": int}
    if (
        node.keys() != {"dynd", "kind", *fields}
        or node["dynd"] != 1
        or not all(isinstance(node[key], kind) for key, kind in fields.items())
        or node["encoding"] not in IS_DELTA
        or not 0 < node["nbytes"] <= CHUNK_NBYTES
    ):
        raise FormatError("not a delta", rule="bundle.delta", offset=offset)
    block, base, nbytes = node["block"].digest, node["base"].digest, node["nbytes"]
    if session.known(block):
        return
    if session.is_new(base):
        session.flush()  # only what is in a pack can be read
    if session.packs.find(base) is None:
        raise incomplete(bundle, node["base"])
    try:
        data = restore(session.packs, block, Encoding(node["encoding"]), node["body"], base, nbytes)
    except FormatError as error:
        error.offset = offset
        raise
    add_copy(session, Copy(block, RAW, data, Encoded(Encoding(node["encoding"]), node["body"]), base))
