"""Refs: names that stand for commits. A branch moves with each commit, a tag stays.

A ref is a small JSON object that is changed by compare-and-swap. It has a counter, so
that writing an old commit back is a change, too. Its key is the name with every byte
quoted that could mean something to a file system: names are data.
"""

from __future__ import annotations

import json
import os
import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, unquote

from tensorglot.errors import FormatError, InputError, TensorglotError, TensorNotFound, did_you_mean, escape
from tensorglot.store.backend import Backend
from tensorglot.wire.cid import BLAKE3, CID, DAG_CBOR

__all__ = ["Ref", "check_ref_name", "delete_ref", "inspect_refs", "list_refs", "missing_ref", "read_ref", "swap_ref"]

Kind = Literal["branch", "tag"]

_FOLDER = "refs"
_MOST_NBYTES = 200
_SAFE = frozenset(string.ascii_letters + string.digits + "._-")


@dataclass(frozen=True, slots=True)
class Ref:
    """What a name stands for."""

    name: str
    cid: CID
    kind: Kind
    count: int
    """Changes so far."""
    nonce: str
    """Random: no two writers write the same bytes."""

    @classmethod
    def new(cls, name: str, cid: CID, kind: Kind, old: Ref | None) -> Ref:
        return cls(name, cid, kind, 1 if old is None else old.count + 1, os.urandom(8).hex())

    def encode(self) -> bytes:
        fields = {"cid": str(self.cid), "count": self.count, "kind": self.kind, "nonce": self.nonce}
        return json.dumps(fields, sort_keys=True).encode()


def check_ref_name(name: str) -> str:
    """Refuses names that are hard to type, to print or to tell apart."""
    if not isinstance(name, str):
        raise InputError(f"the name of a ref must be a str, not {type(name).__name__}", rule="store.ref.name")
    if (
        not name.isprintable()
        or not name
        or name != name.strip()
        or name[0] in ".-"
        or any(mark in name for mark in ("#", "..", "//"))
        or name.endswith("/")
        or name.startswith("/")
        or len(name.encode()) > _MOST_NBYTES
    ):
        raise InputError(
            f"'{escape(name, longest=60)}' is not the name of a ref: up to {_MOST_NBYTES} bytes of printable text "
            "without '#', '..' and '//', not beginning with '.', '-' or '/'",
            rule="store.ref.name",
        )
    if _is_cid(name):
        raise InputError(f"{name} is a CID, which cannot be the name of a ref", rule="store.ref.name")
    return name


def _is_cid(text: str) -> bool:
    try:
        CID.parse(text)
    except InputError:
        return False
    return True


def _key(name: str) -> str:
    quoted = "".join(c if c in _SAFE else quote(c, safe="") for c in check_ref_name(name))
    if len(quoted) > 250:
        raise InputError(f"the name of a ref is too long: '{escape(name, longest=60)}'", rule="store.ref.name")
    return f"{_FOLDER}/{quoted}"


def read_ref(backend: Backend, name: str) -> Ref | None:
    data = backend.get(_key(name))
    return None if data is None else _parse(name, data)


def _parse(name: str, data: bytes) -> Ref:
    fields: Any = None
    try:
        fields = json.loads(data)
        ref = Ref(name, CID.parse(fields["cid"]), fields["kind"], fields["count"], fields["nonce"])
    except (ValueError, KeyError, TypeError, RecursionError, TensorglotError) as error:
        raise _damaged(name) from error
    known = ref.kind in ("branch", "tag") and ref.cid.codec == DAG_CBOR and ref.cid.hash == BLAKE3
    if not known or (type(ref.count), type(ref.nonce)) != (int, str) or ref.encode() != data:
        raise _damaged(name)
    return ref


def _damaged(name: str) -> FormatError:
    return FormatError(
        f"the ref '{escape(name)}' is damaged: delete it, and pull it from a copy or tag its commit", rule="store.ref"
    )


def list_refs(backend: Backend) -> Iterator[Ref]:
    """All refs, by name. A damaged ref is an error, since the commit that it names is unknown."""
    for found in inspect_refs(backend):
        if isinstance(found, TensorglotError):
            raise found
        yield found


def inspect_refs(backend: Backend) -> Iterator[Ref | TensorglotError]:
    """All refs, by name; in place of one that is damaged, what is wrong with it."""
    for key in sorted(entry.name for entry in backend.list(_FOLDER)):
        try:
            ref = read_ref(backend, _name_of(key))
        except TensorglotError as error:
            yield error
        else:
            if ref is not None:
                yield ref


def _name_of(key: str) -> str:
    """The name that has this key, which no other one may have."""
    name = unquote(key)
    try:
        matches = _key(name) == f"{_FOLDER}/{key}"
    except InputError:
        matches = False
    if not matches:
        raise FormatError(
            f"{_FOLDER}/{escape(key, longest=60)} is not the name of a ref; remove it", rule="store.ref.name"
        )
    return name


def delete_ref(backend: Backend, name: str) -> bool | None:
    """Removes a ref, even a damaged one. None if it does not exist, False if it was changed meanwhile."""
    key = f"{_FOLDER}/{name}" if _is_cid(name) else _key(name)  # which earlier versions accepted
    try:
        data = backend.get(key)
    except FormatError:  # far larger than a ref
        backend.delete(key)
        return True
    return None if data is None else backend.swap(key, data, None)


def swap_ref(backend: Backend, name: str, old: Ref | None, new: Ref | None) -> bool:
    """Replaces a ref if it is still `old`; None is an absent one."""
    return backend.swap(_key(name), None if old is None else old.encode(), None if new is None else new.encode())


def missing_ref(name: str, backend: Backend) -> TensorNotFound:
    known = [ref.name for ref in inspect_refs(backend) if isinstance(ref, Ref)]
    shown = ", ".join(escape(ref, longest=60) for ref in known[:8]) + (", …" if len(known) > 8 else "")
    near = did_you_mean(name, known) or (f"; its refs are {shown}" if known else "; the store has no commits yet")
    return TensorNotFound(
        f"no ref, tag or commit '{escape(name, longest=80)}'{near}", rule="store.ref.missing", path=backend.url
    )
