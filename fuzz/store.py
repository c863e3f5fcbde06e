"""Mutants of the parts of a store: `python fuzz/store.py [COUNT] [SEED]`.

A small store in memory: two packs with deltas, a ref, a bundle for each commit. One of
them is changed: bytes of a pack or of its index (whose hash is then made right again),
bytes of a node (stored under its new CID, with every node above it made again), a ref, a
bundle. The invariant:

- only errors of ours leave, in one printable line; `check` raises nothing;
- if `check(data=True)` finds nothing and the ref still names the commit that we made, its
  tensors are those that we made;
- a bundle that is accepted brings a commit that can be read, one that is refused moves no ref.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import struct
from collections.abc import Iterable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from blake3 import blake3

import tensorglot as tg
from tensorglot.containers.store import MARKER
from tensorglot.io.local import BufferSource
from tensorglot.limits import DEFAULT
from tensorglot.store.backend import Entry
from tensorglot.store.bundle import read_bundle, write_bundle
from tensorglot.store.check import check_store
from tensorglot.store.checkout import CommitArchive, read_node, value_chunks
from tensorglot.store.ingest import Value, ingest
from tensorglot.store.manifest import Manifest, build
from tensorglot.store.objects import Commit, parse_array
from tensorglot.store.packs import Packs
from tensorglot.store.reach import first_missing
from tensorglot.store.refs import Ref, list_refs
from tensorglot.store.session import start_session
from tensorglot.wire.cid import CID, DAG_CBOR, RAW, block_cid

NUMBERS = (0, 1, 2, 8, 12, 13, 24, 255, 256, 1 << 16, 1 << 20, (1 << 20) + 1, (1 << 31) - 1, (1 << 32) - 1, 1 << 62)


class _File:
    def __init__(self) -> None:
        self.data = b""

    def write(self, pieces: Iterable[Any]) -> int:
        self.data += b"".join(bytes(piece) for piece in pieces)
        return len(self.data)


class _Writer:
    id = "writer"

    def note(self, text: str) -> None:
        pass


class Memory:
    """A backend of a dict, for one user."""

    url = "memory"
    concurrency: int | None = None

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        self.objects = {} if objects is None else dict(objects)
        self._numbers = itertools.count(1)

    def read(self, key: str, offset: int, nbytes: int) -> memoryview:
        return memoryview(BufferSource(self._object(key)).read_bytes(offset, nbytes))

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        BufferSource(self._object(key)).read_into(offset, out)

    def read_tail(self, key: str, nbytes: int) -> tuple[memoryview, int]:
        data = self._object(key)
        return memoryview(data)[max(0, len(data) - nbytes) :], len(data)

    def _object(self, key: str) -> bytes:
        if key not in self.objects:
            raise FileNotFoundError(2, "no such object", key)
        return self.objects[key]

    def get(self, key: str) -> bytes | None:
        return self.objects.get(key, b"{}" if key == MARKER else None)

    def swap(self, key: str, old: bytes | None, new: bytes | None) -> bool:
        if self.objects.get(key) != old:
            return False
        self.objects.pop(key, None)
        if new is not None:
            self.objects[key] = new
        return True

    @contextlib.contextmanager
    def create(self, key: str) -> Iterator[_File]:
        file = _File()
        yield file
        self.objects[key] = file.data

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def list(self, folder: str) -> list[Entry]:
        return [
            Entry(key.removeprefix(f"{folder}/"), len(data), 0.0)
            for key, data in self.objects.items()
            if key.startswith(f"{folder}/")
        ]

    @contextlib.contextmanager
    def announce(self) -> Iterator[_Writer]:
        writer = _Writer()
        writer.id = f"{next(self._numbers):016x}"
        yield writer

    def writers(self) -> dict[str, str]:
        return {}

    def clean(self, grace: float) -> None:
        pass

    @contextlib.contextmanager
    def exclusive(self, what: str) -> Iterator[None]:
        yield

    def close(self) -> None:
        pass


class Made(NamedTuple):
    objects: dict[str, bytes]
    blocks: dict[bytes, bytes]
    commits: list[CID]
    tensors: list[dict[str, Any]]
    bundles: list[bytes]


def commit(backend: Memory, tensors: dict[str, Any], parent: CID | None) -> CID:
    packs = Packs(backend)
    read = partial(read_node, packs)

    def previous(name: str, part: str) -> Value | None:
        assert parent is not None
        found = Manifest(Commit.parse(parent, read(parent)).tensors, read).find(name)
        if found is None or part != "data" or read(found)[:1] != b"\xa4":
            return None
        node = parse_array(read(found))
        return Value(node.type, value_chunks(packs, node))

    with start_session(backend, packs) as session:
        entries = ingest(
            session,
            tg.open(tg.dumps(tensors, format="ztensor")),
            None if parent is None else previous,
            lambda nbytes: None,
        )
        manifest = build(entries, session.put)
        parents = () if parent is None else (parent,)
        return session.put(Commit.encode(manifest, parents, "message", {"step": "1"}, 1_700_000_000_000_000))


@cache
def made() -> Made:
    backend = Memory()
    rng = np.random.default_rng(0)
    first = {
        "big": rng.normal(0, 1, 4200).astype(np.float32),
        "same": np.arange(9000, dtype=np.int16),
        "ragged": tg.dynd.array([[1, 2], [], [3]], "var * var * int64"),
        "link": tg.dynd.array([[b"x"]], "1 * 1 * bytes"),
        **{f"t{i:02}": np.int32(i) for i in range(8)},
    }
    second = {**first, "big": first["big"].copy(), "t05": np.int32(99)}
    second["big"][::100] += 1
    one = commit(backend, first, None)
    two = commit(backend, second, one)
    ref = Ref("main", two, "branch", 1, "00")
    backend.objects["refs/main"] = ref.encode()
    packs = Packs(backend)
    blocks = {
        digest.tobytes(): packs.read(digest.tobytes()) for index in packs.indexes.values() for digest in index.digests
    }
    bundles = [b"".join(write_bundle(packs, ref, ())), b"".join(write_bundle(packs, ref, (one,)))]
    return Made(backend.objects, blocks, [one, two], [first, second], bundles)


class Mutant(NamedTuple):
    kind: str
    objects: dict[str, bytes]
    bundle: bytes | None = None

    def __repr__(self) -> str:
        return f"Mutant({self.kind})"


def change(r: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(r.choice((1, 1, 1, 2, 4))):
        at = r.randrange(len(changed) + 1)
        kind = r.randrange(7)
        if kind == 0:
            changed[at : at + 1] = r.randbytes(1)
        elif kind == 1:
            width = r.choice((1, 2, 4, 8))
            changed[at : at + width] = (r.choice(NUMBERS) % (1 << 8 * width)).to_bytes(
                width, r.choice(("little", "big"))
            )
        elif kind == 2:
            del changed[at:]
        elif kind == 3:
            changed[at:at] = r.randbytes(r.choice((1, 4, 20)))
        elif kind == 4:
            del changed[at : at + r.choice((1, 4, 36))]
        elif kind == 5:
            begin = r.randrange(len(changed) + 1)
            changed[at : at + 32] = changed[begin : begin + 32]
        elif len(changed):
            changed[at % len(changed)] ^= 1 << r.randrange(8)
    return bytes(changed)


def pack_mutant(r: random.Random) -> Mutant:
    objects = dict(made().objects)
    key = r.choice([key for key in objects if key.startswith("packs/")])
    data = objects[key]
    if r.random() < 0.3:
        objects[key] = change(r, data)
        return Mutant("pack", objects)
    at, _ = struct.unpack("<QQ", data[-56:-40])
    index = change(r, data[at:-56])
    body = change(r, data[:at]) if r.random() < 0.2 else data[:at]
    objects[key] = body + index + struct.pack("<QQ32s8s", len(body), len(index), blake3(index).digest(), data[-8:])
    return Mutant("index", objects)


def node_mutant(r: random.Random) -> Mutant:
    """A node is changed, and everything that leads to it is made again, up to the ref."""
    found = made()
    packs = Packs(Memory(found.objects))
    nodes = [digest for digest, block in found.blocks.items() if block[:1] in b"\xa2\xa4\xa6\xa7"]
    digest = r.choice(nodes)
    new = {digest: change(r, found.blocks[digest])}
    head = found.commits[1]
    while True:
        above = {
            parent: block
            for parent, block in found.blocks.items()
            if parent not in new and any(old in block for old in new) and parent in nodes
        }
        if not above:
            break
        for parent, block in above.items():
            for old, replaced in list(new.items()):
                block = block.replace(old, blake3(replaced).digest())
            new[parent] = block
    backend = Memory(found.objects)
    with start_session(backend, packs) as session:
        for block in new.values():
            name = blake3(block).digest()
            if not session.known(name):
                session.add(name, block, DAG_CBOR)
    top = CID(blake3(new[head.digest]).digest(), DAG_CBOR) if head.digest in new else head
    backend.objects["refs/main"] = Ref("main", top, "branch", 1, "00").encode()
    return Mutant("node", backend.objects)


def ref_mutant(r: random.Random) -> Mutant:
    objects = dict(made().objects)
    data = change(r, objects.pop("refs/main"))
    name = change(r, b"main").decode("latin-1").replace("/", "%2F") if r.random() < 0.5 else "main"
    objects[f"refs/{name}"] = data
    return Mutant("ref", objects)


def bundle_mutant(r: random.Random) -> Mutant:
    """Half of them with blocks that match their names."""
    which = r.randrange(2)
    data = made().bundles[which]
    objects = {} if which == 0 else made().objects
    if r.random() < 0.4:
        return Mutant("bundle", objects, change(r, data))
    frames, at = [], 0
    while at < len(data):
        length = shift = 0
        while True:
            byte = data[at]
            length |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                break
        frames.append(data[at : at + length])
        at += length
    for _ in range(r.choice((1, 1, 2))):
        position = r.randrange(len(frames))
        frame = frames[position]
        kind = r.randrange(4)
        if kind == 0:
            del frames[position]
        elif kind == 1:
            frames.insert(r.randrange(len(frames)), frame)
        elif position:
            block = change(r, frame[36:])
            frames[position] = bytes(block_cid(block, frame[1] if frame[1] in (RAW, DAG_CBOR) else RAW)) + block
        else:
            frames[0] = change(r, frame)
        if not frames:
            break
    return Mutant("bundle", objects, b"".join(_frame(frame) for frame in frames))


def _frame(data: bytes) -> bytes:
    size, length = bytearray(), len(data)
    while length >= 128:
        size.append(length & 127 | 128)
        length >>= 7
    return bytes([*size, length]) + data


def mutants(count: int, seed: int) -> Iterator[Mutant]:
    r = random.Random(seed)
    for _ in range(count):
        yield r.choice((pack_mutant, pack_mutant, node_mutant, node_mutant, ref_mutant, bundle_mutant))(r)


def same(archive: tg.Archive, expected: dict[str, Any]) -> bool:
    return archive.keys() == expected.keys() and all(
        archive[name].serialize() == tg.dynd.array(value).serialize() for name, value in expected.items()
    )


def check(mutant: Mutant) -> str:
    backend = Memory(mutant.objects)
    if mutant.bundle is not None:
        return _check_bundle(backend, mutant.bundle)
    packs = Packs(backend)
    report = check_store(backend, packs, data=True, progress=None)
    assert all(str(problem).isprintable() for problem in report.problems), report.problems
    try:
        refs = {ref.name: ref.cid for ref in list_refs(backend)}
        for cid in refs.values():
            archive = CommitArchive(packs, Commit.parse(cid, read_node(packs, cid)), DEFAULT, None)
            for tensor in archive.values():
                repr(tensor)
                if tensor.nbytes < 1 << 22:
                    tensor.serialize()
    except (tg.TensorglotError, OSError) as error:
        assert str(error).isprintable(), error
        return f"{mutant.kind}: {'refused' if not report.ok else 'refused, and check finds nothing'}"
    for cid, tensors in zip(made().commits, made().tensors, strict=True):
        if report.ok and cid in refs.values():
            assert same(CommitArchive(packs, Commit.parse(cid, read_node(packs, cid)), DEFAULT, None), tensors)
    return f"{mutant.kind}: {'accepted' if report.ok else 'read, and check finds damage'}"


def _check_bundle(backend: Memory, data: bytes) -> str:
    packs = Packs(backend)
    before = {key: value for key, value in backend.objects.items() if key.startswith("refs/")}
    try:
        with start_session(backend, packs) as session:
            bundle = read_bundle(BufferSource(data), session)
            session.flush()
            if first_missing(session.packs, bundle.commit) is not None:
                return "bundle: incomplete"
            found = Commit.parse(bundle.commit, read_node(session.packs, bundle.commit))
    except (tg.TensorglotError, OSError) as error:
        assert str(error).isprintable(), error
        assert {key: value for key, value in backend.objects.items() if key.startswith("refs/")} == before
        return "bundle: refused"
    assert check_store(backend, Packs(backend), data=True, progress=None).ok
    if CID.parse(found.cid) == made().commits[1]:
        assert same(CommitArchive(Packs(backend), found, DEFAULT, None), made().tensors[1])
        return "bundle: accepted"
    return "bundle: another commit"


if __name__ == "__main__":
    from campaign import campaign

    campaign(mutants, check)
