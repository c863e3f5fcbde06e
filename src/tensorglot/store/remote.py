"""A folder of an object store as the place of a store: the same keys as in a directory.

A ref is changed by a conditional put: `If-None-Match` to create it, `If-Match` to replace
it; at Google by the generation of the object, which obstore calls its version. A server
that ignores these conditions would lose commits, so it is found out before the first
change, by creating one object twice, and refused. There is no conditional delete: a ref
that is removed is replaced by a mark, which is read as nothing.

An answer may be lost after the server has done what it was asked to. Then the request is
repeated, and its condition fails: what is there is read, and if it is what was to be
written, it has been written. A ref has a nonce, so it is never another writer's.

Packs are read by ranges and written by uploads that are visible when they are complete.
Writers announce themselves by leases (`lease.py`), since a server has no locks.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from tensorglot.errors import FormatError, InputError, RemoteError, TruncatedError, UnsupportedError
from tensorglot.io.objects import Address, PreconditionFailed, address_of
from tensorglot.io.remote import RemoteSource, Version
from tensorglot.io.upload import Upload
from tensorglot.io.urls import check_target
from tensorglot.store.backend import REMOVED, Entry, File, Writer, require_store
from tensorglot.store.lease import LEASE_SECONDS, Lease
from tensorglot.threads import REQUESTS, for_each_request
from tensorglot.tuples import NamedTuple

__all__ = ["Bucket"]

_OPEN_PACKS = 8
_SMALL_NBYTES = 1 << 20
"""No object but a pack is larger."""
_CHECKED: set[tuple[object, ...]] = set()
"""Servers that honour conditions."""


class _Small(NamedTuple):
    """A small object as it was read."""

    data: bytes
    condition: Mapping[str, str]
    """The condition for a put, that it is still the object that was read: servers compare the ETag or the version."""
    modified: datetime


_NEVER = {"e_tag": '"0123456789abcdef0123456789abcdef"', "version": "1"}
"""No object has these."""


class Bucket:
    """A store at `s3://bucket/folder`."""

    concurrency: int | None = REQUESTS

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        check_target(url)
        self._url = f"{url.rstrip('/')}/"
        self._address = address_of(self._url, options)
        self.url = self._address.name.rstrip("/")
        self._versions: dict[str, Version] = {}
        self._open: OrderedDict[str, RemoteSource] = OrderedDict()
        self._lock = threading.Lock()
        self._leases: set[Lease] = set()
        self._clock_skew = 0.0
        """Seconds by which the server's clock is ahead of ours."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Bucket, (self._url, self._address.options)

    def _object(self, key: str) -> Address:
        return self._address.with_key(f"{self._address.key}{key}")

    # Packs

    def _pack(self, key: str) -> RemoteSource:
        with self._lock:
            found = self._open.get(key)
            if found is None:
                found = RemoteSource(f"{self._url}{key}", self._address.options, self._versions.get(key))
                self._open[key] = found
                if len(self._open) > _OPEN_PACKS:
                    self._open.popitem(last=False)
            self._open.move_to_end(key)
            return found

    def read(self, key: str, offset: int, nbytes: int) -> memoryview:
        out = memoryview(bytearray(nbytes))
        self.read_into(key, offset, out)
        return out

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        self._pack(key).read_into(offset, out)

    def read_tail(self, key: str, nbytes: int) -> tuple[memoryview, int]:
        address = self._object(key)
        try:
            # Azure has no ranges that count from the end.
            begin = max(0, address.size() - nbytes) if self._url.startswith("az://") else -nbytes
            data, version = _whole(address, begin, nbytes)
        except RemoteError as error:
            if error.rule != "remote.http.416":
                raise
            return memoryview(b""), 0  # an empty object has no ranges
        self._versions[key] = version
        return data, version[0]

    @contextmanager
    def create(self, key: str) -> Iterator[File]:
        with Upload(f"{self._url}{key}", self._address.options) as file:
            yield file

    # Small objects

    def get(self, key: str) -> bytes | None:
        found = self._get(key)
        return None if found is None or found.data.startswith(REMOVED) else found.data

    def _get(self, key: str) -> _Small | None:
        address = self._object(key)
        try:
            answer = address.call("get", address.key)
        except FileNotFoundError:
            return None
        meta = answer.meta
        if meta["size"] > _SMALL_NBYTES:
            raise FormatError(f"an object of {meta['size']} bytes is too large", rule="store.object", path=address.name)
        data = address.body(answer, meta["size"])
        if len(data) != meta["size"]:
            raise TruncatedError("the server sent a part of the object", rule="remote.short", path=address.name)
        condition = {key: meta[key] for key in ("e_tag", "version") if meta[key] is not None}
        return _Small(data, condition, meta["last_modified"])

    def swap(self, key: str, old: bytes | None, new: bytes | None) -> bool:
        self._check_conditions()
        for lease in tuple(self._leases):
            lease.check()
        data = REMOVED + os.urandom(8).hex().encode() if new is None else new
        found = None if old is None else self._get(key)
        if old is not None and (found is None or found.data != old):
            return False
        if self._put(key, data, None if found is None else found.condition):
            return True
        now = self._get(key)
        if now is not None and old is None and now.data.startswith(REMOVED):
            return self._put(key, data, now.condition) or self.get(key) == data
        return now is not None and now.data == data

    def _put(self, key: str, data: bytes, condition: Mapping[str, str] | None) -> bool:
        """Creates an object, or replaces the one that meets a condition. False if the condition does not hold."""
        address = self._object(key)
        mode = "create" if condition is None else condition
        try:
            address.call("put", address.key, data, mode=mode)
        except PreconditionFailed:
            return False
        return True

    def delete(self, key: str) -> None:
        address = self._object(key)
        with contextlib.suppress(FileNotFoundError):
            address.call("delete", address.key)

    def list(self, folder: str) -> list[Entry]:
        prefix = f"{self._address.key}{folder}/" if folder else self._address.key
        return [
            Entry(found["path"].rpartition("/")[2], found["size"], self._local_time(found["last_modified"]))
            for found in self._address.list(prefix)
        ]

    def _local_time(self, found: Any) -> float:
        seconds: float = found.timestamp()
        return seconds - self._clock_skew

    def _check_conditions(self) -> None:
        server = (self._address.server, *self._address.options.key)
        if server in _CHECKED:
            return
        key = f"probe/{os.urandom(8).hex()}"
        try:
            honoured = self._put(key, b"1", None) and not self._put(key, b"2", None)
            honoured = honoured and not self._put(key, b"3", _NEVER)
        except (RemoteError, UnsupportedError) as error:
            if error.rule not in ("remote.http.501", "remote.http.405", "remote.range"):
                raise
            honoured = False
        finally:
            with contextlib.suppress(OSError):
                self.delete(key)
        if not honoured:
            raise UnsupportedError(
                "the server ignores conditional requests (If-None-Match, If-Match), and would lose commits of "
                "concurrent writers: a store needs a server that honours them",
                rule="store.conditions",
                path=self.url,
            )
        _CHECKED.add(server)

    # Writers and collectors

    def _server_time(self) -> float:
        """The server's clock, read off an object that is written now."""
        address = self._object("clock")
        address.call("put", address.key, os.urandom(8).hex().encode())
        written: float = address.call("head", address.key)["last_modified"].timestamp()
        self._clock_skew = written - time.time()
        return written

    @contextmanager
    def announce(self) -> Iterator[Writer]:
        self._check_conditions()  # before much is written
        require_store(self)
        name = os.urandom(8).hex()
        address = self._object(f"writers/{name}")
        with Lease(name, address).held() as lease:
            self._leases.add(lease)
            try:
                yield lease
            finally:
                self._leases.discard(lease)

    def writers(self) -> dict[str, str]:
        self._server_time()
        found: dict[str, str] = {}

        def look(entry: Entry) -> None:
            if time.time() - entry.time > LEASE_SECONDS:
                self.delete(f"writers/{entry.name}")  # its process has ended
                return
            note = self.get(f"writers/{entry.name}")
            if note is not None:
                found[entry.name] = note.decode("utf-8", "replace")

        for_each_request(look, self.list("writers"))
        return found

    def clean(self, grace: float) -> None:
        """Nothing: an upload that was not completed is not an object."""

    @contextmanager
    def exclusive(self, what: str) -> Iterator[None]:
        self._check_conditions()
        require_store(self)
        key = f"{what}.lock"
        name = os.urandom(8).hex()
        while not self._put(key, name.encode(), None):
            held = self._get(key)
            if held is None:
                continue
            if self._server_time() - held.modified.timestamp() < LEASE_SECONDS:
                raise InputError(f"another process runs {what} on this store", rule="store.lock", path=self.url)
            if self._put(key, name.encode(), held.condition):
                break
        with Lease(name, self._object(key)).held():
            yield

    def close(self) -> None:
        with self._lock:
            self._open.clear()


def _whole(address: Address, begin: int, nbytes: int) -> tuple[memoryview, Version]:
    """The last bytes of an object, from `begin` on, which is negative if it counts from the end."""
    answer = address.get(begin)
    meta = answer.meta
    data = memoryview(address.body(answer, nbytes))
    if len(data) != min(nbytes, meta["size"]):
        raise TruncatedError("the server sent a part of the pack", rule="remote.short", path=address.name)
    return data, (meta["size"], meta["e_tag"], meta["last_modified"])
