"""The CRC-32C of a span: the form for the interpreted kernel; `crc32c_step.pxd` is the C form.

Never compiled, and slow: real work uses the crc32c package, because `is_fast` is false here.
"""

from __future__ import annotations

from typing import Any

_POLYNOMIAL = 0x82F6_3B78


def crc32c_has_instruction() -> int:
    """Whether the processor's CRC-32C instruction is used: 0, because Python cannot."""
    return 0


def crc32c_step(data: Any, begin: int, end: int) -> int:
    """The checksum of the bytes from `begin` to `end`."""
    crc = 0xFFFF_FFFF
    for byte in bytes(data[begin:end]):
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFF_FFFF
