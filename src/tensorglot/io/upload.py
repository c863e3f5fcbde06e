"""Writes an object at a URL atomically: it is uploaded in parts, and visible when it is complete.

After an error the upload is aborted, and its parts are removed. A process that is killed
leaves invisible parts; lifecycle rules of the bucket can remove them. Memory holds only the
parts in flight, whatever the size of the object.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import Any

from tensorglot.io.objects import address_of, guarded
from tensorglot.io.pieces import Piece, read_all
from tensorglot.io.storage_options import OptionsLike
from tensorglot.io.urls import check_target
from tensorglot.memory import cut

__all__ = ["Upload"]

_PART_NBYTES = 8 << 20
_MOST_PARTS = 9_000
"""S3 allows 10,000 parts; the margin is for sizes that were only estimated."""
_IN_FLIGHT_NBYTES = 40 << 20


class Upload:
    """An object being written. It appears at the end of the `with` block; after an error nothing has changed.

    With `expect` the object must still have that ETag when it is replaced.
    """

    def __init__(self, url: str, options: OptionsLike = None, *, expect: str | None = None) -> None:
        check_target(url)
        self._url = url
        self._address = address_of(url, options)
        self._expect = expect
        self._part_nbytes = _PART_NBYTES
        self._writer: Any = None
        self._position = 0

    def __enter__(self) -> Upload:
        return self

    def reserve(self, nbytes: int) -> None:
        """Chooses the size of parts, so that there are not too many for about `nbytes`."""
        self._part_nbytes = max(_PART_NBYTES, -(-nbytes // _MOST_PARTS))

    def write(self, pieces: Iterable[Piece]) -> int:
        """Appends all pieces. Returns the size of the object so far."""
        writer = self._opened()
        for data in read_all(pieces):
            for offset, nbytes in cut(len(data), _PART_NBYTES):
                # A copy, because the upload continues while the next piece is read into the same memory.
                guarded(self._address.name, partial(writer.write, bytes(data[offset : offset + nbytes])))
            self._position += len(data)
        return self._position

    def _opened(self) -> Any:
        if self._writer is not None:
            return self._writer
        if self._expect is None:
            self._writer = self._open_writer()
        else:
            from tensorglot.io.replacement import Replacement

            self._writer = Replacement(self._url, self._address, self._expect, self._part_nbytes, self._open_writer)
        return self._writer

    def _open_writer(self) -> Any:
        return self._address.call(
            "open_writer",
            self._address.key,
            buffer_size=self._part_nbytes,
            max_concurrency=max(2, _IN_FLIGHT_NBYTES // self._part_nbytes),
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        writer = self._opened() if kind is None else self._writer
        if writer is None:
            return
        if kind is None:
            try:
                guarded(self._address.name, writer.close)
            except BaseException as failed:
                self._abort(writer, failed)
                raise
        else:
            self._abort(writer, error)

    def _abort(self, writer: Any, error: BaseException | None) -> None:
        """Lets obstore abort the upload. If that fails, too, the first error is the one to report."""
        with contextlib.suppress(Exception):
            writer.__exit__(type(error), error, None)
