"""The CRC-32C of a span, for the kernel that runs interpreted; `crc32c_step.pxd` is the C form.

Never compiled, and slow: the package's function is there for real work.
"""

from __future__ import annotations

from typing import Any

_POLYNOMIAL = 0x82F6_3B78


def crc32c_has_instruction() -> int:
    """Whether the processor's instruction is used: not by Python."""
    return 0


def crc32c_step(data: Any, begin: int, end: int) -> int:
    """The checksum of the bytes from `begin` to `end`."""
    crc = 0xFFFF_FFFF
    for byte in bytes(data[begin:end]):
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFF_FFFF
