"""Invalid values: bool bytes other than 0 and 1, padding bits of packed types that are not 0.

Reads a part in bounded memory, which also checks that it decodes to its declared size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tensorglot.errors import FormatError
from tensorglot.model.nonzero_bools import stored_payload
from tensorglot.model.payload import Encoded, as_bytes, buffers
from tensorglot.model.tensor import Part, check_spare_bits

__all__ = ["check_bytes"]


def check_bytes(part: Part, tensor: str, advance: Callable[[int], None]) -> None:
    """Raises if a part has an invalid value or cannot be decoded. `advance` is called with the number of bytes read."""
    is_bool = part.dtype is not None and part.dtype.name == "bool"
    is_packed = part.dtype is not None and part.dtype.packed
    if not (is_bool or is_packed or isinstance(part.payload, Encoded)):
        advance(part.nbytes)
        return
    last = b""
    for piece in map(as_bytes, buffers(stored_payload(part.payload).chunks())):
        if is_bool and len(piece) and int(np.frombuffer(piece, np.uint8).max()) > 1:
            raise FormatError("a bool byte must be 0 or 1", rule="values.bool", offset=part.offset, tensor=tensor)
        last = bytes(piece[-1:]) or last
        advance(len(piece))
    if is_packed and part.dtype is not None:
        check_spare_bits(np.frombuffer(last, np.uint8), part.shape, part.dtype, tensor, part.offset)
