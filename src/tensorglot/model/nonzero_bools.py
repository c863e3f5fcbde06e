"""A codec for bools in formats where every non-zero byte is true.

Decoded bytes are 0 or 1, so a value has the same form in memory, in other files and in its
CID. `stored_payload` gives the bytes as they are in the file.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tensorglot.model.payload import Buffer, Codec, Encoded, Payload, Span, Threaded, as_bytes, buffers, inner_payload
from tensorglot.tuples import NamedTuple

__all__ = ["AnyNonZero", "stored_payload"]


class AnyNonZero(NamedTuple):
    """A codec: one byte per bool, true unless zero."""

    inner: Codec | None = None
    """The codec of the stored bytes, if they are encoded."""

    @property
    def name(self) -> str:
        return "raw" if self.inner is None else self.inner.name

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        self.stored(payload).read_into(offset, out)
        values = np.frombuffer(out, np.uint8)
        np.not_equal(values, 0, out=values.view(np.bool_))

    def chunks(self, payload: Encoded) -> Iterator[Buffer]:
        for chunk in buffers(self.stored(payload).chunks()):
            yield as_bytes(np.frombuffer(as_bytes(chunk), np.uint8) != 0)

    def threaded(self, payload: Encoded) -> bool:
        stored = self.stored(payload)
        return isinstance(stored, Encoded) and isinstance(stored.codec, Threaded) and stored.codec.threaded(stored)

    def stored(self, payload: Encoded) -> Span | Encoded:
        """The bytes as they are in the file."""
        return inner_payload(payload, self.inner, payload.nbytes)


def stored_payload(payload: Payload) -> Payload:
    """The bytes of the file, before non-zero bytes become 1."""
    if isinstance(payload, Encoded) and isinstance(payload.codec, AnyNonZero):
        return payload.codec.stored(payload)
    return payload
