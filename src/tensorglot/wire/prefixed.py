"""A header behind its length, a number of eight bytes: what BinTensors and safetensors files begin with.

The length is checked against what is left and against the bound before anything is
allocated. What the header says is its format's business.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorglot.errors import FormatError, LimitError, TruncatedError

__all__ = ["LENGTH_NBYTES", "read_header"]

LENGTH_NBYTES = 8


def read_header(
    read_bytes: Callable[[int, int], bytes], size: int, *, most: int, rule: str, multiple: int = 1
) -> bytes:
    """The header of a file of `size` bytes, of at most `most`, whose length is a multiple of `multiple`."""
    if size < LENGTH_NBYTES:
        raise TruncatedError("shorter than the header's length field", rule=f"{rule}.header.length", offset=0)
    nbytes = int.from_bytes(read_bytes(0, LENGTH_NBYTES), "little")
    if nbytes > most:
        raise LimitError(
            f"a header of {nbytes} bytes is beyond Limits.header_nbytes", rule=f"{rule}.limit.header", offset=0
        )
    if nbytes > size - LENGTH_NBYTES:
        raise TruncatedError(f"a header of {nbytes} bytes in a file of {size}", rule=f"{rule}.header.length", offset=0)
    if nbytes % multiple:
        raise FormatError(f"the header's length is no multiple of {multiple}", rule=f"{rule}.header.multiple", offset=0)
    return read_bytes(LENGTH_NBYTES, nbytes)
