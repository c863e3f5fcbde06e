"""The codec of values that ONNX stores as varints: small integers, and the bits of small floats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError
from tensorglot.model.payload import Buffer, Encoded, Span, as_bytes

__all__ = ["Varints", "decode_varints"]

_VARINT_NBYTES = 10


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


def decode_varints(data: NDArray[np.uint8]) -> NDArray[np.uint64] | None:
    """The numbers of consecutive varints; None if the last one is cut or one has more than 10 bytes."""
    ends = np.flatnonzero(data < 0x80)
    if (int(ends[-1]) + 1 if ends.size else 0) != data.size:
        return None
    begins = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))[: ends.size]
    widths = ends - begins + 1
    if ends.size and int(widths.max()) > _VARINT_NBYTES:
        return None
    numbers = np.zeros(ends.size, np.uint64)
    # Byte `place` of all varints that have one, at a time: at most ten vector operations.
    for place in range(int(widths.max(initial=0))):
        wide = np.flatnonzero(widths > place)
        numbers[wide] |= (data[begins[wide] + place] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * place)
    return numbers
