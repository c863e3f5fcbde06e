"""Stores in tests: tensors to commit, packs taken apart and put together, and what must hold of every store."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from blake3 import blake3
from numpy.typing import NDArray

import tensorglot as tg
from tensorglot.store import Store
from tensorglot.wire.cid import CID, DAG_CBOR, RAW, block_cid, encode_node

__all__ = [
    "HOSTILE", "Pack", "PackRecord", "array_node", "assert_clean", "commit_node", "files", "flip", "inner", "leaf",
    "link", "nodes_pack", "packs", "same_tensors", "step", "stray_files", "tensors", "write_ref",
]  # fmt: skip

HOSTILE = (tg.TensorglotError, OSError)
"""What may leave the library for any bytes."""


def tensors(seed: int, large: int = 300_000) -> dict[str, NDArray[Any]]:
    """Two small tensors and one of more than a chunk."""
    random = np.random.default_rng(seed)
    return {
        "big": random.normal(0, 1, large).astype(np.float32),
        "small": random.integers(0, 9, 200).astype(np.int16),
        "tiny": np.float64(seed),  # type: ignore[dict-item]
    }


def step(old: Mapping[str, NDArray[Any]], seed: int, share: float = 0.01) -> dict[str, NDArray[Any]]:
    """The tensors with some elements of the large one changed."""
    random = np.random.default_rng(seed)
    new = {name: np.array(array) for name, array in old.items()}
    big = new["big"]
    big[random.choice(len(big), int(len(big) * share), replace=False)] += np.float32(0.5)
    return new


def same_tensors(archive: tg.Archive, expected: Mapping[str, Any]) -> bool:
    return archive.keys() == expected.keys() and all(
        archive[name].numpy().tobytes() == np.asarray(array).tobytes() for name, array in expected.items()
    )


def assert_clean(store: Store) -> None:
    report = store.check(data=True)
    assert report.ok, report.problems


def files(root: Path) -> dict[str, bytes]:
    """All files of a store by their paths."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def packs(root: Path) -> list[Path]:
    return sorted((root / "packs").glob("*.pack"))


def stray_files(root: Path) -> list[str]:
    """What is neither a ref, nor a pack, nor a lock."""
    known = {"tensorglot-store.json", "lock", "collect.lock"}
    found = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return [
        str(path)
        for path in found
        if str(path) not in known
        and not (path.parts[0] == "refs" and not path.name.startswith("."))
        and not (path.parts[0] == "packs" and path.suffix == ".pack" and not path.name.startswith("."))
    ]


def flip(path: Path, offset: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


# Packs by hand

MAGIC = b"tgpack\x001"
NO_BASE = 0xFFFFFFFF


@dataclass
class PackRecord:
    """One record, with anything in its fields."""

    body: bytes
    blocks: list[tuple[bytes, int, int]]
    """Digest, begin, size."""
    decoded: int
    encoding: int = 0
    base: bytes | None = None
    depth: int = 0
    chain: int | None = None
    offset: int | None = None
    """Where the index says that it is."""
    stored: int | None = None


@dataclass
class Pack:
    """Written by the layout of docs/store.md, with columns that can be made wrong."""

    records: list[PackRecord] = field(default_factory=list)
    bases: int | None = None
    """Entries of the table of bases that are kept."""
    version: int = 1
    """In version 2 the index does not say where records are."""

    def add(self, block: bytes, digest: bytes | None = None, **fields: Any) -> PackRecord:
        """A block in full, under its own digest unless another is given."""
        name = blake3(block).digest() if digest is None else digest
        fields = {"body": block, "blocks": [(name, 0, len(block))], "decoded": len(block), **fields}
        self.records.append(PackRecord(**fields))
        return self.records[-1]

    def encode(self) -> bytes:
        magic = MAGIC[:-1] + str(self.version).encode()
        body, at, table = magic, len(magic), list[tuple[int, ...]]()
        bases: dict[bytes, int] = {}
        blocks = []
        for row, record in enumerate(self.records):
            known = NO_BASE if record.base is None else bases.setdefault(record.base, len(bases))
            stored = len(record.body) if record.stored is None else record.stored
            chain = len(record.body) if record.chain is None else record.chain
            offset = at if record.offset is None else record.offset
            table.append((offset, stored, record.decoded, chain, known, record.encoding, record.depth))
            blocks += [(digest, row, begin, nbytes) for digest, begin, nbytes in record.blocks]
            body += record.body
            at += len(record.body)
        blocks.sort()
        kept = list(bases)[: self.bases]
        index = struct.pack("<III", len(blocks), len(table), len(kept)) + b"".join(block[0] for block in blocks)
        words = b"".join(struct.pack("<I", block[column]) for column in (1, 2, 3) for block in blocks)
        if self.version == 1:
            index += words
            for column, kind in enumerate("QIIIIBB"):
                index += b"".join(struct.pack(f"<{kind}", row[column]) for row in table)
            index += b"".join(kept)
        else:
            words += b"".join(struct.pack("<I", row[column]) for column in (1, 2, 3, 4) for row in table)
            numbers = b"".join(words[plane::4] for plane in range(4)) + bytes(row[i] for i in (5, 6) for row in table)
            index += b"".join(kept) + zstandard.ZstdCompressor().compress(numbers)
        return body + index + struct.pack("<QQ32s8s", at, len(index), blake3(index).digest(), magic)

    def write(self, root: Path, name: str = "0000000000000000-0") -> Path:
        path = root / "packs" / f"{name}.pack"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(self.encode())
        return path


def nodes_pack(blocks: Iterable[bytes]) -> Pack:
    pack = Pack()
    for block in blocks:
        pack.add(block)
    return pack


def write_ref(root: Path, name: str, cid: CID | str, kind: str = "branch", file: str | None = None) -> Path:
    """A ref as another program would write it."""
    path = root / "refs" / (name if file is None else file)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"cid": str(cid), "count": 1, "kind": kind, "nonce": "00"}, sort_keys=True))
    return path


def link(block: bytes) -> CID:
    return block_cid(block, DAG_CBOR)


def array_node(type: str, data: bytes | CID, size: int | None = None) -> bytes:
    cid = data if isinstance(data, CID) else block_cid(data, RAW)
    nbytes = size if size is not None else len(data)  # type: ignore[arg-type]
    return encode_node({"data": cid, "dynd": 1, "size": nbytes, "type": type})


def leaf(entries: Mapping[str, CID]) -> bytes:
    return encode_node({"links": list(entries.values()), "names": list(entries)})


def inner(entries: Mapping[str, CID]) -> bytes:
    return encode_node({"first": list(entries), "links": list(entries.values())})


def commit_node(manifest: CID, parents: Iterable[CID] = (), **fields: Any) -> bytes:
    node = {
        "dynd": 1, "kind": "commit", "message": "", "metadata": None, "parents": list(parents),
        "tensors": manifest, "time": 0,
    }  # fmt: skip
    return encode_node({**node, **fields})
