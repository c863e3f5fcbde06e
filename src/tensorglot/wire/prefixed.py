"""What BinTensors and safetensors share: a length-prefixed header, then the data.

The length is checked against the file size and the limit before anything is allocated.
Both formats require that the last tensor ends the file, and write tensors in the same
order. The contents of the header are parsed elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError, LimitError, TruncatedError

__all__ = ["LENGTH_NBYTES", "check_data_end", "join_texts", "read_header", "writer_order"]

LENGTH_NBYTES = 8


def read_header(
    read_bytes: Callable[[int, int], bytes], size: int, *, head: bytes, most: int, rule: str, multiple: int = 1
) -> bytes:
    """Reads the header of a file of `size` bytes; its length is at most `most` and a multiple of `multiple`.

    `head` is the beginning of the file if it has been read already, else empty.
    """
    if size < LENGTH_NBYTES:
        raise TruncatedError(
            f"file truncated: the header's length needs 8 bytes, has {size}" if size else "the file is empty",
            rule=f"{rule}.header.length",
            offset=0,
        )
    first = head if len(head) >= LENGTH_NBYTES else read_bytes(0, LENGTH_NBYTES)
    nbytes = int.from_bytes(first[:LENGTH_NBYTES], "little")
    if nbytes > most:
        why = f"header of {nbytes} bytes exceeds Limits.header_nbytes ({most})"
        if nbytes > size - LENGTH_NBYTES:
            why = f"not a {rule} file, or damaged: a header of {nbytes} bytes in a file of {size}"
        raise LimitError(why, rule=f"{rule}.limit.header", offset=0)
    if nbytes > size - LENGTH_NBYTES:
        raise TruncatedError(
            f"file truncated: the header needs {nbytes} bytes, has {size - LENGTH_NBYTES}",
            rule=f"{rule}.header.length",
            offset=0,
        )
    if nbytes % multiple:
        raise FormatError(
            f"header length {nbytes} is not a multiple of {multiple}", rule=f"{rule}.header.multiple", offset=0
        )
    if LENGTH_NBYTES + nbytes <= len(first):
        return first[LENGTH_NBYTES : LENGTH_NBYTES + nbytes]
    return read_bytes(LENGTH_NBYTES, nbytes)


def check_data_end(ends: NDArray[np.int64], begin: int, size: int, *, rule: str, name: Callable[[int], str]) -> None:
    """Checks that the last tensor ends the file; `ends` ascend, `begin` is where the data begins."""
    end = ends.item(-1) if len(ends) else begin
    if end > size:
        raise TruncatedError(
            f"file truncated: needs {end} bytes, has {size}",
            rule=f"{rule}.data.end",
            offset=size,
            tensor=name(int(np.searchsorted(ends, size, side="right"))),
        )
    if end < size:
        raise FormatError(
            f"{size - end} trailing bytes after the last tensor", rule=f"{rule}.data.trailing", offset=end
        )


def writer_order(codes: NDArray[np.int16], names: Sequence[str]) -> NDArray[np.int64]:
    """Returns rows in the order of writing: by dtype code descending, which aligns every tensor, then by name."""
    by_name = np.fromiter(sorted(range(len(codes)), key=names.__getitem__), np.int64, len(codes))
    return by_name[np.argsort(-codes[by_name], kind="stable")]


def join_texts(texts: Sequence[str]) -> tuple[bytes, NDArray[np.int64]]:
    """Concatenates texts in UTF-8; returns the bytes and the offset of each, plus the end of the last."""
    joined = "".join(texts)
    lengths = map(len, texts) if joined.isascii() else (len(text.encode()) for text in texts)
    return joined.encode(), np.cumsum(np.fromiter(chain((0,), lengths), np.int64, len(texts) + 1), dtype=np.int64)
