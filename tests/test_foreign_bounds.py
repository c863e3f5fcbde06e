"""Every hostile file of other formats is refused within 8 MB + 40 × its bytes, and 10 ms + 3 µs × its bytes."""

from __future__ import annotations

import pytest

import tensorglot as tg
from bounds import INTERPRETED, MB, allocated_nbytes, seconds
from test_gguf import REFUSED as GGUF
from test_numpy_files import NPZ_REFUSED as NPZ
from test_numpy_files import REFUSED as NPY
from test_onnx import REFUSED as ONNX
from test_pt import REFUSED as PT
from test_safetensors import REFUSED as SAFETENSORS

CASES: dict[str, tuple[bytes, str]] = {
    f"{format}: {case}": (row[0], format)
    for format, table in (
        ("safetensors", SAFETENSORS),
        ("npy", NPY),
        ("npz", NPZ),
        ("gguf", GGUF),
        ("pt", PT),
        ("onnx", ONNX),
    )
    for case, row in table.items()
}


@pytest.mark.parametrize("case", CASES)
def test_refused_within_bounds(case: str) -> None:
    data, format = CASES[case]

    def refused() -> None:
        with pytest.raises(tg.TensorglotError):
            tg.open(data, format=format)

    assert allocated_nbytes(refused) < 8 * MB + 40 * len(data)
    bound = (0.010 + 3e-6 * len(data)) * (5 if INTERPRETED else 1)
    assert seconds(refused, bound) < bound
