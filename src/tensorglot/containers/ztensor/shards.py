"""Shards of version 2: files in the same directory, described by name, size and digest (§7).

A shard is opened on the first read from it, so the tensors of a root can be listed without
its shards. A shard whose size differs from the root's entry is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from tensorglot.containers.ztensor.constants import FOOTER_2, MAGIC_2
from tensorglot.containers.ztensor.lazy import texts_at
from tensorglot.containers.ztensor.rules import SIZE_END
from tensorglot.containers.ztensor.scan import Field, Record, scan
from tensorglot.errors import FormatError, IntegrityError, UnsupportedError
from tensorglot.memory import cut
from tensorglot.model.lazy_source import OpenedOnce
from tensorglot.model.names import Names
from tensorglot.model.payload import PIECE_NBYTES, Source
from tensorglot.wire import checksums
from tensorglot.wire.cbor import MAP, Cursor

__all__ = ["Shard", "ShardSource", "check_shard_name", "read_shards"]

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", re.ASCII)
_SHARD = Record(
    "shard",
    Field("name", "name"),
    Field("size", "uint", required=True),
    Field("digest", "digest", required=True),
    named=True,
    text_keys=False,
)


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard as the root describes it."""

    name: str
    size: int
    digest: str


def check_shard_name(name: str, offset: int) -> None:
    """§7.1: the name must be safe as part of a file name."""
    if _NAME.fullmatch(name) is None:
        raise FormatError(
            "a shard name must be 1 to 64 characters of A-Z a-z 0-9 . _ - and not begin with a dot",
            rule="ztensor.shard.name",
            offset=offset,
        )


def read_shards(cursor: Cursor) -> dict[str, Shard]:
    """Reads the shard table at the cursor."""
    found = scan(cursor, cursor.count("shards", MAP), _SHARD)
    names = Names(found.data, *found.records.numbers["name"])
    digests = texts_at(found.data, found.records.numbers["digest"])
    shards = {}
    for row, size in enumerate(found.records.numbers["size"].tolist()):
        offset = found.base + int(found.records.places[row])
        check_shard_name(names[row], offset)
        if not len(MAGIC_2) + FOOTER_2 <= size < SIZE_END - 1:
            raise FormatError(f"invalid shard size {size}", rule="ztensor.shard.size", offset=offset)
        shards[names[row]] = Shard(names[row], size, digests[row] or "")
    return shards


class ShardSource(OpenedOnce):
    """The bytes of a shard, from the file beside the root."""

    def __init__(self, shard: Shard, root: str | None, open_file: Callable[[str], Source] | None) -> None:
        super().__init__()
        self.shard = shard
        self._root = root
        self._open_file = open_file

    def open_file(self) -> Source:
        """Opens the file; refuses it if size or magic numbers are wrong."""
        if self._root is None or self._open_file is None:
            raise UnsupportedError(
                f"shard '{self.shard.name}' is in another file; open the root by its path", rule="ztensor.shard.path"
            )
        name = f"{PurePosixPath(self._root).stem}-{self.shard.name}.zt"
        try:
            source = self._open_file(name)
        except FileNotFoundError as error:
            message = f"shard {name} is missing"
            raise FormatError(message, rule="ztensor.shard.missing", path=error.filename) from error
        magics = {source.read_bytes(at, 8) for at in (0, self.size - 8)} if source.size == self.size else set()
        if magics != {MAGIC_2}:
            getattr(source, "close", bool)()
            message = f"{name} is not the shard of {self.size} bytes that the root names"
            raise IntegrityError(message, rule="ztensor.shard.size", path=getattr(source, "path", None))
        return source

    def check_digest(self) -> None:
        """Reads the whole shard and compares its digest with that in the root (§7.3)."""
        expected = checksums.parse(self.shard.digest)
        if expected.digest is None:
            return
        hasher = checksums.hasher(expected.algorithm)
        for offset, nbytes in cut(self.size, PIECE_NBYTES):
            hasher.update(self.read(offset, nbytes))
        if hasher.digest() != expected.digest:
            raise IntegrityError(f"the digest of shard '{self.shard.name}' does not match", rule="ztensor.shard.digest")

    @property
    def size(self) -> int:
        """The size that the root declares; `open_file` compares it with the file's."""
        return self.shard.size
