"""Replaces an object only if it still has the ETag that was read.

A small object is replaced by one conditional put, a large one at S3 by a multipart upload
whose completion is conditional: the server compares and replaces in one step. obstore has
no condition for multipart uploads. If `multipart` cannot be used, either (other servers,
credentials other than keys), the ETag is compared just before the upload is completed.
That comparison is always made, because a server may ignore conditions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorglot.io.local import change_error
from tensorglot.io.multipart import MultipartUpload, multipart_upload
from tensorglot.io.objects import Address, PreconditionFailed
from tensorglot.threads import for_each_request

__all__ = ["Replacement"]

_TOGETHER = 3
"""Parts that are uploaded concurrently. An object of at most this many parts is one put."""


class Replacement:
    """Has the methods of obstore's writer. `open_writer` opens a real one, for uploads without a condition."""

    def __init__(
        self, url: str, address: Address, expect: str, part_nbytes: int, open_writer: Callable[[], Any]
    ) -> None:
        self._url = url
        self._address = address
        self._expect = expect
        self._part_nbytes = part_nbytes
        self._open_writer = open_writer
        self._upload: MultipartUpload | None = None
        self._writer: Any = None
        self._waiting = bytearray()
        self._etags: list[str] = []

    def write(self, data: bytes) -> None:
        if self._writer is not None:
            self._writer.write(data)
            return
        self._waiting += data
        if len(self._waiting) <= _TOGETHER * self._part_nbytes:
            return
        if self._upload is None:
            begun = multipart_upload(self._url, self._address.options)
            if begun is None:
                self._writer = self._open_writer()
                self._writer.write(bytes(self._waiting))
                self._waiting.clear()
                return
            self._upload = begun.begin()
        self._send(self._upload, len(self._waiting) // self._part_nbytes * self._part_nbytes)

    def _send(self, upload: MultipartUpload, nbytes: int) -> None:
        """Uploads the first `nbytes` of the waiting bytes, all parts concurrently."""
        data, first = memoryview(self._waiting), len(self._etags)
        begins = range(0, nbytes, self._part_nbytes)
        self._etags += [""] * len(begins)

        def send(number: int) -> None:
            part = data[begins[number] : min(nbytes, begins[number] + self._part_nbytes)]
            self._etags[first + number] = upload.send(first + number + 1, part)

        try:
            for_each_request(send, range(len(begins)))
        finally:
            data.release()
        del self._waiting[:nbytes]

    def close(self) -> None:
        if self._upload is not None:
            self._send(self._upload, len(self._waiting))
            self._upload.complete(self._etags, self._expect)
            return
        meta = self._address.call("head", self._address.key)
        if meta["e_tag"] != self._expect:
            raise change_error(self._address.name)
        if self._writer is not None:
            self._writer.close()
            return
        condition = {key: meta[key] for key in ("e_tag", "version") if meta[key] is not None}
        try:
            self._address.call("put", self._address.key, bytes(self._waiting), mode=condition)
        except PreconditionFailed:
            raise change_error(self._address.name) from None

    def __exit__(self, kind: type[BaseException], error: BaseException, trace: None) -> None:
        """Aborts the upload. Called only after an error."""
        if self._writer is not None:
            self._writer.__exit__(kind, error, trace)
        if self._upload is not None:
            self._upload.abort()
