"""An object at a URL as a source: read by ranges, several at a time, all of one version.

The first request reads the first 256 KiB, and yields the size and the ETag. Every later
request sends that ETag (`If-Match`), and every answer is compared with it: an object that
was replaced meanwhile is an error, never a mixture of versions. An answer with too few or
too many bytes is an error, too; no more than requested is read of it.

Headers (`read_bytes`) are read with a margin and kept, and a header at the end of the
object is read at once, so that no byte of a header is requested twice. Tensors are read
exactly, in pieces of 1 to 8 MiB, so that all connections are busy. Consecutive short reads
are taken for a scan of the whole, and the bytes after them are read ahead. Nothing is kept
on disk.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from tensorglot.errors import InputError, RemoteError
from tensorglot.io.local import BaseSource, change_error
from tensorglot.io.objects import Address, PreconditionFailed, address_of, guarded
from tensorglot.io.ranges import GAP_NBYTES, HEADER_GAP_NBYTES, PIECE_NBYTES, Range, clamp, plan_ranges
from tensorglot.io.storage_options import OptionsLike, StorageOptions
from tensorglot.io.urls import refuse_credentials
from tensorglot.memory import cut
from tensorglot.threads import REQUESTS, for_each_request

__all__ = ["RemoteSource", "Version"]

HEAD_NBYTES = 256 << 10
"""Size of the first request, and the least that is read of a header."""
_TAIL_NBYTES = range(HEAD_NBYTES, 4 << 20)
"""For a header at the end of an object, half of the object is read, within these bounds: room for 20,000 tensors."""
_FEW_READERS = 4
"""If at most this many threads read, each read is cut into several requests."""
_SPLIT = 16
"""The number of requests for all of these threads together."""
_AHEAD_NBYTES = range(2 << 20, 4 << 20)
"""Bytes that are read ahead in a scan."""
_SCAN_READS = 4
"""This many consecutive short reads are a scan."""
_KEPT_NBYTES = 32 << 20
"""The most bytes that are kept: headers, and bytes that were read ahead."""
_STREAMS = 16
"""Scans that are tracked at a time."""
_CHUNK_NBYTES = 256 << 10
"""Bytes that are copied at a time while an answer arrives: they are still in the processor's cache."""


Version: TypeAlias = tuple[int, str | None, Any]
"""Size, ETag and time of the last change of an object."""


class _Window:
    """A part of the object that is being read and will be kept. Other threads wait for it instead of requesting it."""

    def __init__(self, begin: int, stop: int, *, header: bool) -> None:
        self.begin = begin
        self.stop = stop
        self.least = PIECE_NBYTES.stop if header else PIECE_NBYTES.start
        """The least size of one request; larger for a header, which is read by few requests."""
        self.data = memoryview(bytearray(stop - begin))
        self.arrived = threading.Event()


class RemoteSource(BaseSource):
    """One version of an object. Threads may share it; pickled, it opens the object again."""

    concurrency = REQUESTS

    def __init__(self, url: str, options: OptionsLike = None, version: Version | None = None) -> None:
        """If the version is known, the first request is not made."""
        self._url = url
        self._address = address_of(url, options)
        self.path = self._address.name
        self._located: Address | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, memoryview] = OrderedDict()
        self._streams: OrderedDict[int, int] = OrderedDict()
        """For each offset at which a read ended, the number of consecutive reads up to there."""
        self._coming: list[_Window] = []
        """The windows that are being read."""
        self._readers = 0
        self.version = version
        self.size = 0 if version is None else version[0]
        if version is None and not self._locate_and_read():
            head = memoryview(bytearray(HEAD_NBYTES))
            got = self._fetch(0, [head])
            self._check_complete(0, got, min(HEAD_NBYTES, self.size))
            self._keep(0, head[:got])

    def __repr__(self) -> str:
        return f"RemoteSource({self.path})"

    def __reduce__(self) -> tuple[Any, ...]:
        refuse_credentials(self._url)
        return _reopen, (self._url, self._address.options, self.version)

    def close(self) -> None:
        """Reads in progress complete, later ones are refused."""
        self._closed = True
        with self._lock:
            self._kept.clear()

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        out = bytearray(nbytes)
        self._read(offset, memoryview(out), header=True)
        return bytes(out)

    def read_into(self, offset: int, out: memoryview) -> None:
        self._read(offset, out, header=False)

    def read_runs(self, begins: Sequence[int], sizes: Sequence[int], offsets: Sequence[int], out: memoryview) -> None:
        outs = [out[offset : offset + nbytes] for offset, nbytes in zip(offsets, sizes, strict=True)]
        self.read_together(begins, outs, lambda *filled: None)

    def read_together(
        self, begins: Sequence[int], outs: Sequence[memoryview], filled: Callable[[int, int, int], None]
    ) -> None:
        """Joins reads that are close together to one request, and makes all requests concurrently."""
        for begin, out in zip(begins, outs, strict=True):
            if begin + len(out) > self.size:
                raise self.truncation_error(begin, len(out))

        def work(wanted: Range) -> None:
            self._read_range(wanted.begin, wanted.outs)
            for part in wanted.filled:
                filled(*part)

        for_each_request(work, plan_ranges(begins, outs, GAP_NBYTES))

    def read_many(self, begins: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        outs = [memoryview(bytearray(nbytes)) for nbytes in sizes]
        ranges = plan_ranges(begins, outs, HEADER_GAP_NBYTES)
        for_each_request(lambda wanted: self._read_range(wanted.begin, wanted.outs), ranges)
        return [bytes(out) for out in outs]

    def _read_range(self, begin: int, outs: Sequence[memoryview]) -> None:
        """Reads adjacent bytes into buffers, without waiting for windows.

        It runs on the threads for requests. If these waited for a window, none might be left
        to read the pieces of that window.
        """
        self._check_open()
        left, end = deque(outs), begin + sum(map(len, outs))
        with self._lock:
            while left and (done := self._copy_kept(begin, left[0])):
                begin += done
                rest = left.popleft()[done:]
                if rest:
                    left.appendleft(rest)
            while left and (missing := self._copy_kept_end(end - len(left[-1]), left[-1])) < len(left[-1]):
                last = left.pop()
                end -= len(last) - missing
                if missing:
                    left.append(last[:missing])
        if left:
            self._fetch_all(begin, left)

    def _check_open(self) -> None:
        if self._closed:
            raise InputError("the archive is closed", rule="archive.closed")

    def _read(self, offset: int, out: memoryview, *, header: bool) -> None:
        if offset + len(out) > self.size:
            raise self.truncation_error(offset, len(out))
        self._check_open()
        ahead = 0 if header else self._ahead(offset, len(out))
        done = 0
        while True:
            with self._lock:
                done += self._copy_kept(offset + done, out[done:])
                if done == len(out):
                    return
                out = out[: done + self._copy_kept_end(offset + done, out[done:])]
                begin, end = offset + done, offset + len(out)
                coming = next((window for window in self._coming if window.begin <= begin < window.stop), None)
                mine = None if coming is not None else self._window(begin, end, ahead, header=header)
                if mine is not None:
                    self._coming.append(mine)
            if mine is not None:
                self._fill(mine)
                piece = mine.data[begin - mine.begin : end - mine.begin]
                out[done : done + len(piece)] = piece
                done += len(piece)
            elif coming is not None:
                coming.arrived.wait()
            else:
                break
        self._fetch_pieces(begin, out[done:])

    def _window(self, begin: int, end: int, ahead: int, *, header: bool) -> _Window | None:
        """The window to read and keep for a header or in a scan; None to read just the requested bytes."""
        tail = max(0, self.size - clamp(self.size >> 1, _TAIL_NBYTES))
        if header and begin >= tail:  # the whole tail, except for the bytes at its beginning that are kept already
            kept = (start + len(data) for start, data in self._kept.items() if start <= tail < start + len(data))
            return _Window(max(0, tail, *kept), self.size, header=True)
        if not header and begin + ahead <= end:
            return None
        # A header's window is twice as large as the window directly before it, so a long header needs few requests.
        before = max((len(data) for start, data in self._kept.items() if 0 < start == begin - len(data)), default=0)
        least = clamp(2 * before, _TAIL_NBYTES) if header else ahead
        stop = min(self.size, max(end, begin + least))
        return _Window(begin, min([stop, *(start for start in self._kept if begin < start)]), header=header)

    def _fill(self, window: _Window) -> None:
        try:
            self._fetch_pieces(window.begin, window.data, window.least)
            self._keep(window.begin, window.data)
        finally:
            with self._lock:
                self._coming.remove(window)
            window.arrived.set()

    def _copy_kept(self, offset: int, out: memoryview) -> int:
        """Copies the beginning of a read from kept windows, as far as they have it; returns the number of bytes."""
        done = 0
        while done < len(out):
            at = offset + done
            begin = next((begin for begin, data in self._kept.items() if begin <= at < begin + len(data)), None)
            if begin is None:
                break
            self._kept.move_to_end(begin)
            piece = self._kept[begin][at - begin : offset + len(out) - begin]
            out[done : done + len(piece)] = piece
            done += len(piece)
        return done

    def _copy_kept_end(self, offset: int, out: memoryview) -> int:
        """Copies the end of a read from a kept window; returns the number of bytes still missing before it."""
        end = offset + len(out)
        for begin, data in self._kept.items():
            if begin < end <= begin + len(data):
                missing = max(0, begin - offset)
                out[missing:] = data[offset + missing - begin : end - begin]
                return missing
        return len(out)

    def _keep(self, begin: int, data: memoryview) -> None:
        with self._lock:
            if self._closed or len(data) > _KEPT_NBYTES // 2:
                return
            self._kept[begin] = data
            while sum(map(len, self._kept.values())) > _KEPT_NBYTES:
                self._kept.popitem(last=False)

    def _ahead(self, offset: int, nbytes: int) -> int:
        """The number of bytes to read ahead: 0 unless this read continues a scan. Records where this read ends."""
        if nbytes >= _AHEAD_NBYTES.start:
            return 0
        with self._lock:
            reads = self._streams.pop(offset, 0)
            self._streams[offset + nbytes] = reads + 1
            if len(self._streams) > _STREAMS:
                self._streams.popitem(last=False)
        return 0 if reads < _SCAN_READS else clamp(reads << 20, _AHEAD_NBYTES)

    def _fetch_pieces(self, begin: int, out: memoryview, least: int = PIECE_NBYTES.start) -> None:
        """Reads by several concurrent requests; the fewer threads read at present, the more requests."""
        with self._reading() as readers:
            share = -(-len(out) * readers // _SPLIT) if readers <= _FEW_READERS else len(out)
            each = max(least, clamp(share, PIECE_NBYTES))
            for_each_request(
                lambda piece: self._fetch_all(begin + piece[0], [out[piece[0] : sum(piece)]]), cut(len(out), each)
            )

    @contextmanager
    def _reading(self) -> Iterator[int]:
        with self._lock:
            self._readers += 1
            readers = self._readers
        try:
            yield readers
        finally:
            with self._lock:
                self._readers -= 1

    def _fetch_all(self, begin: int, outs: Collection[memoryview]) -> None:
        self._check_complete(begin, self._fetch(begin, outs), sum(map(len, outs)))

    def _check_complete(self, begin: int, got: int, nbytes: int) -> None:
        if got < nbytes:
            raise RemoteError(
                f"the server sent {got} of {nbytes} bytes", rule="remote.short", offset=begin + got, path=self.path
            )

    def _fetch(self, begin: int, outs: Collection[memoryview]) -> int:
        """Makes one request for adjacent bytes; returns the number of bytes received."""
        wanted = sum(map(len, outs))
        answer = self._request(begin, begin + wanted)
        if answer is None:
            return 0
        stream, left, got = answer.stream(_CHUNK_NBYTES), deque(outs), 0
        while (chunk := guarded(self._address.name, partial(next, stream, None))) is not None:
            got += len(chunk)
            if got > wanted:
                raise RemoteError(
                    f"the server sent more than the {wanted} bytes that were requested",
                    rule="remote.long",
                    offset=begin,
                    path=self.path,
                )
            _scatter(memoryview(chunk), left)
        return got

    def _request(self, begin: int, end: int) -> Any:
        """The answer to a request for a range; None if this is the first request and the object is empty."""
        address = self._located or self._locate(None)
        try:
            answer = self._get(address, begin, end)
        except PermissionError:
            if self.version is None or address.start in (None, address.server):
                raise
            # The signed URL that a redirect led to has expired: follow the redirect again.
            answer = self._get(self._locate(address), begin, end)
        except RemoteError as error:
            if self.version is None and error.rule == "remote.http.416" and address.size() == 0:
                return None
            raise
        meta = answer.meta
        found: Version = meta["size"], meta["e_tag"], meta["last_modified"]
        if self.version is None:
            self.version, self.size = found, meta["size"]
        elif not _is_same(found, self.version):
            raise change_error(self._address.name)
        return answer

    def _get(self, address: Address, begin: int, end: int) -> Any:
        etag = None if self.version is None else self.version[1]
        try:
            # RFC 9110, §13.1.1: If-Match never matches a weak ETag. Answers are compared with it all the same.
            return address.get(begin, end, match=None if etag is None or etag.startswith("W/") else etag)
        except PreconditionFailed:
            pass
        raise change_error(self._address.name)

    def _locate_and_read(self) -> bool:
        """Follows redirects by a request for the first bytes; returns whether the answer could be used for them."""
        self._located, answer = self._address.locate(f"bytes=0-{HEAD_NBYTES - 1}", HEAD_NBYTES)
        if answer is None:
            return False
        span, etag = answer.span(), answer.headers.get("ETag")
        if span is None or etag is None or (span[0], len(answer.body)) != (0, min(HEAD_NBYTES, span[1])):
            return False  # the request is repeated by obstore, and its error is reported
        self.version, self.size = (span[1], etag, None), span[1]
        self._keep(0, memoryview(answer.body))
        return True

    def _locate(self, old: Address | None) -> Address:
        """Locates the object again, unless another thread has done so since `old` was located."""
        with self._lock:
            if self._located is old or self._located is None:
                self._located, _ = self._address.locate()
            return self._located


def _is_same(one: Version, two: Version) -> bool:
    """Compares versions by size and ETag; without an ETag, by size and modification time."""
    return one[:2] == two[:2] and (one[1] is not None or one == two)


def _scatter(chunk: memoryview, outs: deque[memoryview]) -> None:
    """Copies a chunk to the first buffers of `outs`, and removes the buffers that are full."""
    while chunk:
        out = outs.popleft()
        nbytes = min(len(out), len(chunk))
        out[:nbytes] = chunk[:nbytes]
        chunk = chunk[nbytes:]
        if nbytes < len(out):
            outs.appendleft(out[nbytes:])


def _reopen(url: str, options: StorageOptions, version: Version) -> RemoteSource:
    source = RemoteSource(url, options)
    if source.version is None or not _is_same(source.version, version):
        raise change_error(source.path or url)
    return source
