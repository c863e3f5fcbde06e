"""Checksums before values: what `verify=` asks of every read."""

from __future__ import annotations

from tensorglot.errors import InputError, IntegrityError
from tensorglot.model.archive import Verifier
from tensorglot.model.tensor import Tensor

__all__ = ["verifier_for"]


def verifier_for(mode: str) -> Verifier | None:
    """What an archive calls before it hands out values: nothing, or a check."""
    if mode not in ("never", "lazy", "require"):
        raise InputError(f"verify is 'never', 'lazy' or 'require', not {mode!r}", rule="verify.mode")
    return _require if mode == "require" else None


def _require(tensor: Tensor) -> None:
    for part in tensor.parts.values():
        if part.checksum is None:
            raise IntegrityError("no checksum to verify", rule="verify.absent", tensor=tensor.name, offset=part.offset)
