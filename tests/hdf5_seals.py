"""Makes the checksums of a changed HDF5 file fit again, so that what is behind them is tested, too."""

from __future__ import annotations

import re

import tensorglot as tg

_PLACE = re.compile(r"at byte (\d+), computed 0x([0-9a-f]{8})")


def resealed(data: bytes, rounds: int = 20) -> bytes:
    """The file with the checksums that its reader computes: one after the other, as the reader meets them."""
    sealed = bytearray(data)
    for _ in range(rounds):
        try:
            tg.open(bytes(sealed), format="hdf5").close()
        except tg.IntegrityError as error:
            found = _PLACE.search(str(error))
            if error.rule != "hdf5.checksum" or found is None:
                break
            sealed[int(found[1]) : int(found[1]) + 4] = int(found[2], 16).to_bytes(4, "little")
        except tg.TensorglotError:
            break
        else:
            break
    return bytes(sealed)
