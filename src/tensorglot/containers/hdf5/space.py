"""Dataspaces: the shape of a dataset or an attribute (IV.A.2.b)."""

from __future__ import annotations

from tensorglot.containers.hdf5.objects import Objects
from tensorglot.errors import UnsupportedError

__all__ = ["UNLIMITED", "parse_most", "parse_shape"]

UNLIMITED = (1 << 64) - 1


def parse_shape(objects: Objects, data: bytes, address: int) -> tuple[int, ...] | None:
    """None for a space without elements, which h5py calls empty."""
    version, rank, _, kind = objects.unpack("<4B", data, address)
    if version not in (1, 2):
        raise UnsupportedError(
            f"unsupported dataspace version {version}", rule="hdf5.space", offset=objects.begin + address
        )
    if version == 2 and kind == 2:
        return None
    return objects.unpack(f"<{rank}Q", data, address, 8 if version == 1 else 4)


def parse_most(objects: Objects, data: bytes, address: int) -> tuple[int, ...]:
    """The largest shape of a space that `parse_shape` accepts; UNLIMITED for an axis without limit."""
    version, rank, flags, _ = objects.unpack("<4B", data, address)
    begin = 8 if version == 1 else 4
    return objects.unpack(f"<{rank}Q", data, address, begin + (8 * rank if flags & 1 else 0))
