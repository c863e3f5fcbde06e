"""A header behind its length, the data behind the header: what BinTensors and safetensors have in common.

The length is checked against what is left and against the bound before anything is
allocated. What the header says is its format's business; that the data ends where the
file does, and the order in which a writer puts tensors, is the same in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError, LimitError, TruncatedError

__all__ = ["LENGTH_NBYTES", "check_data_end", "join_texts", "offsets_of", "read_header", "writer_order"]

LENGTH_NBYTES = 8


def read_header(
    read_bytes: Callable[[int, int], bytes], size: int, *, most: int, rule: str, multiple: int = 1
) -> bytes:
    """The header of a file of `size` bytes, of at most `most`, whose length is a multiple of `multiple`."""
    if size < LENGTH_NBYTES:
        raise TruncatedError(
            f"file truncated: the header's length needs 8 bytes, has {size}", rule=f"{rule}.header.length", offset=0
        )
    nbytes = int.from_bytes(read_bytes(0, LENGTH_NBYTES), "little")
    if nbytes > most:
        raise LimitError(
            f"a header of {nbytes} bytes is beyond Limits.header_nbytes", rule=f"{rule}.limit.header", offset=0
        )
    if nbytes > size - LENGTH_NBYTES:
        raise TruncatedError(
            f"file truncated: the header needs {nbytes} bytes, has {size - LENGTH_NBYTES}",
            rule=f"{rule}.header.length",
            offset=0,
        )
    if nbytes % multiple:
        raise FormatError(
            f"the header's length is not a multiple of {multiple}", rule=f"{rule}.header.multiple", offset=0
        )
    return read_bytes(LENGTH_NBYTES, nbytes)


def check_data_end(ends: NDArray[np.int64], begin: int, size: int, *, rule: str, name: Callable[[int], str]) -> None:
    """Refuses tensors that do not end where the file does: at `ends`, ascending, in data from `begin` on."""
    end = int(ends[-1]) if len(ends) else begin
    if end > size:
        raise TruncatedError(
            f"file truncated: needs {end} bytes, has {size}",
            rule=f"{rule}.data.end",
            offset=size,
            tensor=name(int(np.searchsorted(ends, size, side="right"))),
        )
    if end < size:
        raise FormatError(f"{size - end} bytes behind the last tensor", rule=f"{rule}.data.trailing", offset=end)


def writer_order(codes: NDArray[np.int16], names: Sequence[str]) -> NDArray[np.int64]:
    """Rows as a writer puts them: by dtype code descending, so that every tensor is aligned, then by name."""
    by_name = np.array(sorted(range(len(codes)), key=names.__getitem__), np.int64)
    return by_name[np.argsort(-codes[by_name], kind="stable")]


def join_texts(texts: Sequence[str]) -> tuple[bytes, NDArray[np.int64]]:
    """The texts in UTF-8 one behind the other, and where each begins, with the end of the last."""
    joined = "".join(texts)
    return joined.encode(), offsets_of(map(len, texts) if joined.isascii() else (len(text.encode()) for text in texts))


def offsets_of(lengths: Iterable[int]) -> NDArray[np.int64]:
    """Where things of these lengths begin, one behind the other, with the end of the last."""
    return np.cumsum(np.fromiter((0, *lengths), np.int64), dtype=np.int64)
