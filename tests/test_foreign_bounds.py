"""Every hostile file of other formats, and every heavy one, is opened or refused within the bounds of promise 3.

8 MB + 40 × its bytes of memory, and 10 ms + 3 µs × its bytes; for a directory the bytes are
those of its index. BinTensors, zTensor, DyND and BSON have tests of their own.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import tensorglot as tg
from bounds import INTERPRETED, MB, allocated_nbytes, seconds
from figures import seen
from hostile import cases
from peers import needs

FAMILIES = ("safetensors", "npy", "npz", "gguf", "pt", "onnx", "hdf5", "dcp", "delta", "heavy")


@pytest.mark.parametrize("family", FAMILIES)
def test_opened_or_refused_within_bounds(family: str, tmp_path: Path) -> None:
    if family in ("hdf5", "heavy"):
        needs("h5py")
    for number, case in enumerate(cases(family)):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = Path(case.make(folder))

        def opened(path: Path = path, format: str | None = case.format) -> None:
            with contextlib.suppress(tg.TensorglotError):
                tg.open(path, format=format).close()

        index = next(iter([*path.glob(".metadata"), *path.glob("dcp.json")]), path)
        nbytes = index.stat().st_size
        opened()  # imports what it needs
        assert allocated_nbytes(opened) < 8 * MB + 40 * nbytes, case.what
        bound = (0.010 + 3e-6 * nbytes) * (5 if INTERPRETED else 1)
        assert seconds(opened, bound) < bound, case.what
        seen("hostile files")
