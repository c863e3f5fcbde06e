"""Links: values of `merkle[T]`, which hold the CID of a value (the hash of its bytes) instead of the value.

    empty     neither a value nor a CID
    mutable   a value, which may still change, and no CID
    lazy      a CID, and perhaps the store to load its value from: the state after deserializing
    frozen    both; neither changes any more

States change in one direction: empty → mutable → frozen, lazy → frozen. To freeze is to
serialize the value into new memory and hash that, so a frozen link does not follow the
array that it was made from. Its value is read-only.

The serialized form of a value contains the CIDs of the links in it, so these are frozen
first. A link that leads back to itself would need a hash that contains itself: the
graph of links has no cycles, by construction.

A store is any mapping from CIDs to blocks. It holds the plain serialized bytes; the
type is in the link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from functools import partial
from threading import RLock
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd.atoms import CID_NBYTES
from tensorglot.dynd.codec.decode import decode_all
from tensorglot.dynd.link_columns import LinkArray, connect, has_cids, may_link
from tensorglot.dynd.match import matches
from tensorglot.dynd.schema import Kind, plan_of
from tensorglot.dynd.tensors import from_tensor, to_tensor
from tensorglot.dynd.value import Lists, Value
from tensorglot.errors import FormatError, InputError, IntegrityError, TensorNotFound, escape
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.algebra import Merkle, Type, symbolic
from tensorglot.wire.cid import CID, data_bytes, data_cid

__all__ = ["Link", "fetch_block", "links_at", "links_of", "save_links"]

State = Literal["empty", "mutable", "lazy", "frozen"]


class Link:
    """A value of `merkle[T]`, in one of its four states. Threads may share it."""

    __slots__ = ("_cid", "_lock", "_store", "_tensor", "_type")

    def __init__(self, type: Type | str, cid: CID | str | None = None, store: Mapping[CID, Any] | None = None) -> None:
        """An empty link to values of a type, or with a CID a lazy link to the value that has it."""
        from tensorglot.dynd.coerce.anything import as_type  # here, because coerce imports this module

        self._type = as_type(type)
        self._cid = CID.parse(cid) if isinstance(cid, str) else cid
        self._store = store
        self._tensor: Tensor | None = None
        self._lock = RLock()
        if not isinstance(self._cid, CID | None):
            raise InputError(f"a CID must be a CID or its text, not {cid.__class__.__name__}", rule="dynd.merkle.cid")
        if cid is not None and symbolic(self._type):
            raise InputError(
                f"a link with a CID needs the type of its value; {self._type} is symbolic", rule="dynd.symbolic"
            )

    @classmethod
    def to(cls, value: Any, type: Type | str | None = None) -> Link:
        """A mutable link to a value. An array is shared until the link is frozen."""
        link = cls("Any" if type is None else type)
        link.set(value)
        return link

    @property
    def type(self) -> Type:
        """Type of the value. An empty link may have a symbolic type, which its value must match."""
        return self._type

    @property
    def state(self) -> State:
        """What the link has: nothing, only its CID, only its value, or both."""
        if self._tensor is None:
            return "empty" if self._cid is None else "lazy"
        return "mutable" if self._cid is None else "frozen"

    @property
    def cid(self) -> CID:
        """The CID of the value. Asking for it freezes a mutable link."""
        return self.freeze() if self._cid is None else self._cid

    @property
    def value(self) -> Tensor:
        """The value. That of a lazy link is loaded from the store that the link came from."""
        return self.load() if self._tensor is None else self._tensor

    def set(self, value: Any) -> None:
        """Sets the value of an empty or mutable link. A lazy link accepts only the value that has its CID."""
        tensor = _as_tensor(value, self._type)
        with self._lock:
            if self.state == "frozen":
                raise InputError("a frozen link cannot be changed: make another with Link.to", rule="dynd.merkle.state")
            if self._cid is not None:
                tensor, cid = _freeze(tensor)
                if cid != self._cid:
                    raise IntegrityError(f"the value has CID {cid}, expected {self._cid}", rule="dynd.merkle.value")
            self._tensor, self._type = tensor, tensor.type

    def freeze(self, store: MutableMapping[CID, bytes] | None = None) -> CID:
        """Computes the CID. `store` receives the blocks of all values that can be reached, inner links first.

        The value of a lazy link that has no store to load from cannot be stored; its CID is kept.
        """
        with self._lock:
            if self._cid is None:
                if self._tensor is None:
                    raise InputError("an empty link cannot be frozen: call set() first", rule="dynd.merkle.state")
                self._tensor, self._cid = _freeze(self._tensor)
        if store is not None:
            _save([self], store)
        return self._cid

    def load(self, store: Mapping[CID, Any] | None = None) -> Tensor:
        """The value. A lazy link loads it from `store`, or from the store it came from, and checks it."""
        with self._lock:
            if self._tensor is None:
                source = self._store if store is None else store
                if self._cid is None or source is None:
                    hint = "call set() first" if self._cid is None else "pass a store to load()"
                    raise InputError(f"the link is {self.state} and has no value: {hint}", rule="dynd.merkle.state")
                self._tensor, self._store = _load(self._type, self._cid, source), None
            return self._tensor

    def __bytes__(self) -> bytes:
        return bytes(self.cid)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Link):
            return NotImplemented
        named = self._cid is not None and self._cid == other._cid
        return self is other or (named and self._type == other._type)

    def __hash__(self) -> int:
        """Freezes a mutable link: a key must not change."""
        return hash((self._type, self.cid))

    def __repr__(self) -> str:
        name = "" if self._cid is None else f", {self._cid}"
        return f"Link({escape(str(self._type))}, {self.state}{name})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._type, self._cid, self._store, self._tensor)

    def _leads_beyond(self, store: Mapping[CID, Any]) -> bool:
        """Whether the link has or can load a value that may be absent from a store."""
        if self._tensor is None and (self._store is None or self._store is store):
            return False
        return may_link(self._type) or self.cid not in store


def _restore(type: Type, cid: CID | None, store: Mapping[CID, Any] | None, tensor: Tensor | None) -> Link:
    link = Link(type, cid, store)
    if tensor is not None:
        link.set(tensor)
    return link


def links_at(type: Type, cids: NDArray[np.uint8]) -> list[Link]:
    """The links of a column of CIDs, one in each row, to values of a type."""
    known, store = (cids.known, cids.store) if isinstance(cids, LinkArray) else ({}, None)
    raw = np.ascontiguousarray(cids).tobytes()
    names = [CID.from_bytes(raw[at : at + CID_NBYTES]) for at in range(0, len(raw), CID_NBYTES)]
    return [known.get(name) or Link(type, name, store) for name in names]


def fetch_block(store: Mapping[CID, Any], cid: CID) -> Any:
    """A block of a store."""
    _check_store(store, mutable=False)
    try:
        return store[cid]
    except KeyError as error:
        raise TensorNotFound(f"the store has no block {cid}", rule="dynd.merkle.store") from error


def _check_store(store: object, *, mutable: bool) -> None:
    if not isinstance(store, MutableMapping if mutable else Mapping):
        kind = "mutable mapping" if mutable else "mapping"
        raise InputError(
            f"a store must be a {kind} from CIDs to blocks, not {type(store).__name__}", rule="dynd.merkle.store"
        )


def save_links(tensor: Tensor, store: MutableMapping[CID, bytes]) -> None:
    """Stores the values of all links that can be reached from a tensor."""
    _check_store(store, mutable=True)
    if may_link(tensor.type):
        _save(_links_in(from_tensor(_freeze(tensor)[0])), store)


def links_of(tensor: Tensor) -> Iterator[Link]:
    """The links in a value."""
    return _links_in(from_tensor(tensor)) if may_link(tensor.type) else iter(())


def _as_tensor(value: Any, pattern: Type) -> Tensor:
    from tensorglot.dynd import array

    if not symbolic(pattern):
        return array(value, pattern)
    tensor = array(value)
    if not matches(pattern, tensor.type):
        raise InputError(f"merkle[{pattern}] cannot link to a value of type {tensor.type}", rule="dynd.merkle.type")
    return tensor


def _freeze(tensor: Tensor) -> tuple[Tensor, CID]:
    """A read-only copy of the value, and its CID."""
    from tensorglot.dynd import serialize

    # Computing their CIDs freezes the links inside, so `serialize` below sees links that no longer change.
    known = {link.cid: link for link in links_of(tensor)}
    data = serialize(tensor).toreadonly()
    return to_tensor(_seal(decode_all(data, tensor.type), known, None)), data_cid([data])[0]


def _load(type: Type, cid: CID, store: Mapping[CID, Any]) -> Tensor:
    try:
        data = data_bytes(cid, partial(fetch_block, store), plan_of(type).root.nbytes)
        return to_tensor(_seal(decode_all(data, type), {}, store))
    except InputError as error:
        if error.rule == "dynd.merkle.store":  # the caller's mistake, not corrupt bytes
            raise
        raise FormatError(error.message, rule=error.rule) from error


def _seal(value: Value, known: Mapping[CID, Link], store: Mapping[CID, Any] | None) -> Value:
    """The same value with columns that are read-only and know their links."""
    _make_readonly(value)
    return connect(value, known, store)


def _make_readonly(value: Value) -> None:
    for column in value.columns:
        if isinstance(column, list):
            for box in column:
                _make_readonly(box)
        for array in column if isinstance(column, Lists) else [column]:
            if isinstance(array, np.ndarray):
                array.setflags(write=False)


def _links_in(value: Value) -> Iterator[Link]:
    for node in value.plan.nodes:
        if node.kind is Kind.BOX:
            for box in value.boxes(node):
                yield from _links_in(box)
        elif has_cids(node) and node.atom is not None and isinstance(node.atom.type, Merkle):
            yield from links_at(node.atom.type.element, value.array(node))


def _save(links: Iterable[Link], store: MutableMapping[CID, bytes]) -> None:
    """Puts the values of links into a store, inner links first, each value once however often it is linked.

    Inner first, so that an interrupted save never leaves a block whose links are absent from the store.
    """
    from tensorglot.dynd import serialize

    _check_store(store, mutable=True)
    done: set[tuple[Type, CID]] = set()
    stack = [(link, False) for link in links]
    while stack:
        link, inner_done = stack.pop()
        if inner_done:
            data_cid([serialize(link.value)], store.__setitem__)
            done.add((link.type, link.cid))
        elif (link.type, link.cid) not in done and link._leads_beyond(store):
            stack.append((link, True))
            stack.extend((inner, False) for inner in links_of(link.value))
