"""`Writer` and `Reader` for `torch.distributed.checkpoint`: no pickle, any container."""

from __future__ import annotations

from tensorglot.bridges.dcp import Reader, Writer

__all__ = ["Reader", "Writer"]
