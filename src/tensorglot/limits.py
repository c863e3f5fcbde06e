"""The bounds that a reader enforces before it allocates or loops.

Each is a property of the reader, not of a format: a file beyond one of them may be
valid, and a caller who trusts it raises the bound.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from tensorglot.errors import InputError, LimitError

__all__ = ["DEFAULT", "HEADER_NBYTES_MAX", "TENSORS_MAX", "Limits", "as_limits"]

HEADER_NBYTES_MAX = 100_000_000

TENSORS_MAX = 1 << 20
"""Both are for formats that define no limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds for reading; `Limits(rank=300)` raises one of them."""

    header_nbytes: int | None = None
    """The header, index or manifest. None is the format's default: 100,000,000, and 2**30 in zTensor and deltas."""
    tensors: int | None = None
    """Tensors in a file. None is the format's default: 2**20, and 1,388,888 in BinTensors."""
    rank: int = 64
    """Dimensions of a tensor."""
    name_nbytes: int = 100_000
    """The UTF-8 form of one name."""
    type_nbytes: int = 1 << 16
    """The text of one type."""
    type_depth: int = 64
    """Nesting of a type string, and of values in `array[T]`."""
    cbor_depth: int = 32
    """Nesting of a CBOR item."""
    zstd_window: int = 1 << 27
    """The window that a zstd frame may ask for."""
    gzip_ratio: int = 16
    """Bytes that a gzipped dump may give for each byte of it, once they are more than 1 MiB."""
    view_ratio: int = 1024
    """Bytes that tensors may have beyond those of the file, for each byte of it, once they are more than 1 MiB: views
    of repeated elements (stride 0), fill values, and further names of the same bytes (raw in zTensor: 16 GiB)."""
    path_ratio: int = 4
    """Bytes that the paths of vectors may take for each byte of BSON documents, once they are more than 1 MiB."""
    store_ratio: int = 1024
    """Bytes that the tensors of a commit may have for each byte of a store's packs, once they are more than 16 GiB."""
    void_count: int = 1 << 20
    """Elements of a dimension whose elements take no bytes."""

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
        return default if self.header_nbytes is None else self.header_nbytes

    def tensors_or(self, default: int = TENSORS_MAX) -> int:
        return default if self.tensors is None else self.tensors

    def fill_in(self, message: str, tensors_max: int = TENSORS_MAX) -> str:
        """A message with `{tensors}`, `{rank}` or `{name_nbytes}`, with the bound in its place."""
        return message.format(tensors=self.tensors_or(tensors_max), rank=self.rank, name_nbytes=self.name_nbytes)

    def check_header(
        self, nbytes: int, what: str, *, rule: str, offset: int | None = None, default: int = HEADER_NBYTES_MAX
    ) -> None:
        """`what` has the size: an index, a manifest."""
        most = self.header_or(default)
        if nbytes > most:
            raise LimitError(
                f"{what} of {nbytes} bytes exceeds Limits.header_nbytes ({most})", rule=rule, offset=offset
            )

    def check_tensors(self, count: int, *, rule: str, offset: int | None = None, what: str = "tensors") -> None:
        most = self.tensors_or()
        if count > most:
            raise LimitError(f"{count} {what} exceed Limits.tensors ({most})", rule=rule, offset=offset)

    def check_rank(self, rank: int, *, rule: str, offset: int | None = None, tensor: str | None = None) -> None:
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
