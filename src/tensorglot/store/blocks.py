"""The blocks of a store as a mapping from CIDs to bytes: what links load from and are saved to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping

from tensorglot.errors import InputError
from tensorglot.store.packs import Packs
from tensorglot.store.session import Session
from tensorglot.wire.cid import BLAKE3, CID, RAW

__all__ = ["Blocks", "NewBlocks"]


class Blocks(Mapping[CID, bytes]):
    """All blocks. Each is compared with its CID when it is read."""

    def __init__(self, packs: Packs) -> None:
        self._packs = packs

    def __getitem__(self, cid: CID) -> bytes:
        if cid not in self:
            self._packs.refresh()
        if cid not in self:
            raise KeyError(cid)
        return self._packs.read(cid.digest, cid.codec)

    def __contains__(self, cid: object) -> bool:
        return isinstance(cid, CID) and cid.hash == BLAKE3 and self._packs.find(cid.digest) is not None

    def __iter__(self) -> Iterator[CID]:
        """The CIDs, all with the codec of raw blocks: a store finds blocks by their digests alone."""
        for index in self._packs.indexes.values():
            for digest in index.digests:
                yield CID(digest.tobytes(), RAW)

    def __len__(self) -> int:
        return sum(len(index.digests) for index in self._packs.indexes.values())


class NewBlocks(Blocks, MutableMapping[CID, bytes]):
    """The blocks of a session: new ones are written to its pack."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.packs)
        self._session = session

    def __contains__(self, cid: object) -> bool:
        return super().__contains__(cid) or (isinstance(cid, CID) and self._session.is_new(cid.digest))

    def __setitem__(self, cid: CID, block: bytes) -> None:
        self._session.put(block, cid.codec)

    def __delitem__(self, cid: CID) -> None:
        raise InputError(
            "a block cannot be deleted: Store.collect() removes those that no ref leads to", rule="store.block.delete"
        )
