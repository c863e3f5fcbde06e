"""The codec of values that ONNX stores as varints: small integers, and the bits of small floats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tensorglot.errors import FormatError
from tensorglot.model.payload import Buffer, Encoded, Span, as_bytes
from tensorglot.wire.protobuf import decode_varints

__all__ = ["Varints"]


@dataclass(frozen=True, slots=True)
class Varints:
    """`count` varints, each a number of `width` bytes, `signed` or not. A varint has a byte or more: so the decoded
    size is at most `width` times the stored one."""

    count: int
    width: int
    signed: bool

    name = "varints"

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        out[:] = self._decode(payload)[offset : offset + len(out)]

    def chunks(self, payload: Encoded) -> Iterator[Buffer]:
        yield self._decode(payload)

    def _decode(self, payload: Encoded) -> memoryview:
        stored = Span(payload.source, payload.begin, payload.end)
        numbers = decode_varints(np.frombuffer(stored.read(0, stored.nbytes), np.uint8))
        if numbers is None or numbers.size != self.count:
            found = "invalid varints" if numbers is None else f"{numbers.size} values"
            raise FormatError(
                f"the shape needs {self.count} values, the field has {found}",
                rule="onnx.data.count",
                offset=payload.begin,
                tensor=payload.tensor,
            )
        whole = numbers.view(np.int64) if self.signed else numbers
        narrow = whole.astype(f"<{'i' if self.signed else 'u'}{self.width}")
        if not (narrow == whole).all():
            raise FormatError(
                f"a value exceeds {self.width} bytes",
                rule="onnx.data.range",
                offset=payload.begin,
                tensor=payload.tensor,
            )
        return as_bytes(narrow)
