"""The bounds that a reader enforces before it allocates or loops.

Each is a property of the reader, not of a format: a file beyond one of them may be
valid, and a caller who trusts it raises the bound.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields

from tensorglot.errors import InputError, LimitError

__all__ = ["DEFAULT", "HEADER_NBYTES_MAX", "TENSORS_MAX", "Limits", "as_limits"]

# The defaults for formats that define no limit of their own.
HEADER_NBYTES_MAX = 100_000_000
TENSORS_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that readers enforce. `Limits(rank=300)` accepts up to 300 dimensions and keeps the other defaults."""

    header_nbytes: int | None = None
    """The header, index or manifest. None is the format's default: 100,000,000, and 2**30 in zTensor and deltas."""
    tensors: int | None = None
    """Tensors in a file. None is the format's default: 2**20, and 1,388,888 in BinTensors. Also the columns of nested
    values of a commit whose type others have."""
    rank: int = 64
    """Dimensions of a tensor."""
    name_nbytes: int = 100_000
    """Bytes of one name in UTF-8."""
    type_nbytes: int = 1 << 16
    """Characters of the text of one type."""
    type_depth: int = 64
    """Nesting of a type string, and of values in `array[T]`."""
    cbor_depth: int = 32
    """Nesting of a CBOR item."""
    zstd_window: int = 1 << 27
    """The window that a zstd frame may ask for."""
    gzip_ratio: int = 16
    """Decompressed bytes for each byte of a gzipped dump; up to 1 MiB is always allowed."""
    header_ratio: int = 4
    """Bytes of the compressed headers in an .npz file for each byte of the file; up to 64 KiB is always allowed."""
    view_ratio: int = 1024
    """Bytes by which the tensors may together exceed the file, for each byte of the file; up to 1 MiB is always
    allowed. Tensors exceed it by repeated elements (stride 0), by fill values, and by several names for the same
    bytes (raw in zTensor: up to 16 GiB is always allowed)."""
    path_ratio: int = 4
    """Bytes of the paths of all vectors for each byte of BSON documents; up to 1 MiB is always allowed."""
    store_ratio: int = 1024
    """Bytes of a commit's tensors for each byte of a store's packs; up to 16 GiB is always allowed."""
    void_count: int = 1 << 20
    """Length of a dimension whose elements take no bytes, so that the file's size does not bound it; also what the
    nested values of a DyND file or a commit have of them together."""

    def __post_init__(self) -> None:
        for field in fields(self):
            bound = getattr(self, field.name)
            if field.name in ("header_nbytes", "tensors") and bound is None:
                continue
            if not isinstance(bound, int) or not 0 <= bound < 1 << 63:
                raise InputError(
                    f"{field.name} must be an integer from 0 to 2**63 - 1, not {bound!r}", rule="limits.number"
                )

    def header_or(self, default: int = HEADER_NBYTES_MAX) -> int:
        """`header_nbytes`, or the default of a format."""
        return default if self.header_nbytes is None else self.header_nbytes

    def tensors_or(self, default: int = TENSORS_MAX) -> int:
        """`tensors`, or the default of a format."""
        return default if self.tensors is None else self.tensors

    def fill_in(self, message: str, tensors_max: int = TENSORS_MAX) -> str:
        """Replaces `{tensors}`, `{rank}` and `{name_nbytes}` in a message by the bounds."""
        return message.format(tensors=self.tensors_or(tensors_max), rank=self.rank, name_nbytes=self.name_nbytes)

    def check_header(
        self, nbytes: int, what: str, *, rule: str, offset: int | None = None, default: int = HEADER_NBYTES_MAX
    ) -> None:
        """Raises LimitError for a header, index or manifest (`what`) of more bytes than allowed."""
        most = self.header_or(default)
        if nbytes > most:
            raise LimitError(
                f"{what} of {nbytes} bytes exceeds Limits.header_nbytes ({most})", rule=rule, offset=offset
            )

    def check_tensors(self, count: int, *, rule: str, offset: int | None = None, what: str = "tensors") -> None:
        """Raises LimitError for more tensors, or other items (`what`), than allowed."""
        most = self.tensors_or()
        if count > most:
            raise LimitError(f"{count} {what} exceed Limits.tensors ({most})", rule=rule, offset=offset)

    def check_names(self, names: Collection[str], rule: str) -> None:
        """Raises LimitError for more tensors than allowed, or a longer name. `rule` is the name of the format."""
        most = self.tensors_or()
        if len(names) > most:
            raise LimitError(f"more than {most} tensors (Limits.tensors)", rule=f"{rule}.limit.tensors")
        longest = max(map(len, names), default=0)
        if 4 * longest > self.name_nbytes and any(len(name.encode()) > self.name_nbytes for name in names):
            raise LimitError(
                f"a tensor name has more than {self.name_nbytes} bytes (Limits.name_nbytes)", rule=f"{rule}.limit.name"
            )

    def check_rank(self, rank: int, *, rule: str, offset: int | None = None, tensor: str | None = None) -> None:
        """Raises LimitError for more dimensions than allowed."""
        if rank > self.rank:
            raise LimitError(
                f"{rank} dimensions exceed Limits.rank ({self.rank})", rule=rule, offset=offset, tensor=tensor
            )


DEFAULT = Limits()


def as_limits(limits: Limits | None) -> Limits:
    """The limits that a caller passed; the default for None."""
    if limits is None:
        return DEFAULT
    if not isinstance(limits, Limits):
        raise InputError(f"limits must be a tensorglot.Limits, not {type(limits).__name__}", rule="limits.type")
    return limits
