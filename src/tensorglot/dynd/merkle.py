"""Links: values of `merkle[T]`, which are named by the hash of their bytes instead of being there.

    empty     names nothing yet
    mutable   has a value, and no name
    lazy      has a name only: what comes out of serialized bytes
    frozen    has both

A store is any mapping from CIDs to blocks. It holds the plain serialized bytes; the
type lives in the link.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Literal

import numpy as np

from tensorglot.errors import InputError, TensorNotFound
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.base import Type
from tensorglot.wire.cid import CID, data_blocks, data_cid

__all__ = ["Link", "found_in"]


class Link:
    """A value of `merkle[T]`, in one of its four states."""

    __slots__ = ("_cid", "_tensor", "type")

    def __init__(self, type: Type, cid: CID | None = None, tensor: Tensor | None = None) -> None:
        self.type = type
        self._cid = cid
        self._tensor = tensor

    @classmethod
    def to(cls, value: Any, type: Type | str | None = None) -> Link:
        """A mutable link to a value."""
        from tensorglot.dynd import array

        tensor = array(value, type)
        return cls(tensor.type, None, tensor)

    @property
    def state(self) -> Literal["empty", "mutable", "lazy", "frozen"]:
        if self._tensor is None:
            return "empty" if self._cid is None else "lazy"
        return "mutable" if self._cid is None else "frozen"

    @property
    def cid(self) -> CID:
        """The name. A mutable link freezes when it is asked for it."""
        if self._cid is None:
            return self.freeze()
        return self._cid

    @property
    def value(self) -> Tensor:
        """The value of a mutable or frozen link."""
        if self._tensor is None:
            raise InputError(f"the link is {self.state}: load its value from a store first", rule="dynd.merkle.state")
        return self._tensor

    def set(self, value: Any) -> None:
        """Gives a link another value; it is mutable then."""
        from tensorglot.dynd import array

        self._tensor, self._cid = array(value, self.type), None

    def freeze(self, store: MutableMapping[CID, bytes] | None = None) -> CID:
        """Names the value by its bytes, and puts these into a store if one is given."""
        from tensorglot.dynd.pieces import tensor_pieces

        sink = None if store is None else lambda cid, block: store.__setitem__(cid, bytes(block))
        self._cid, _ = data_cid(tensor_pieces(self.value), sink)
        return self._cid

    def load(self, store: Mapping[CID, Any]) -> Tensor:
        """The value, from a store where the link is lazy. The bytes are checked against the name."""
        from tensorglot.dynd import deserialize

        if self._tensor is None:
            blocks = [bytes(block) for block in data_blocks(self.cid, lambda cid: found_in(store, cid))]
            data = np.frombuffer(b"".join(blocks), np.uint8)
            self._tensor = deserialize(data, self.type)
        return self._tensor

    def __bytes__(self) -> bytes:
        return bytes(self.cid)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Link) and (self.type, self.cid) == (other.type, other.cid)

    def __hash__(self) -> int:
        return hash((self.type, self.cid))

    def __repr__(self) -> str:
        name = "" if self._cid is None else f", {self._cid}"
        return f"Link({self.type}, {self.state}{name})"


def found_in(store: Mapping[CID, Any], cid: CID) -> Any:
    """A block of a store."""
    try:
        return store[cid]
    except KeyError as error:
        raise TensorNotFound(f"the store has no block {cid}", rule="dynd.merkle.store") from error
