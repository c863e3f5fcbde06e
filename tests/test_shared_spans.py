"""Tensors that share bytes: a few names are ties, thousands of them are a bomb.

HDF5 has tests of its own: no two of its chunks may share a byte.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

import tensorglot as tg
import test_onnx
import ztensor_builder as zt
from peers import needs

LARGE = 1 << 20
HUGE = 64 << 20
"""So large that a thousand names of it have more than 16 GiB."""


def onnx_external(names: int, nbytes: int = LARGE) -> bytes:
    """Float tensors that are all the same span of one file."""

    def one(number: int) -> bytes:
        described = test_onnx.tensor(f"t{number}", 1, (nbytes // 4,), location=1)
        return described + test_onnx.entry("location", "w")

    return test_onnx.model(*map(one, range(names)))


def pt_storage(names: int) -> bytes:
    torch = needs("torch")
    whole, file = torch.zeros(LARGE // 4), io.BytesIO()
    torch.save({f"t{number}": whole[number % 2 :] for number in range(names)}, file)
    return file.getvalue()


def zstd_blob(names: int) -> bytes:
    blob = zstandard.compress(bytes(LARGE))
    entries = [zt.entry(f"t{i}", encoding="zstd", size=len(blob), shape=[LARGE]) for i in range(names)]
    return zt.file01(entries, blob)


def raw_blob(names: int) -> bytes:
    return zt.file01([zt.entry(f"t{i}", size=HUGE, shape=[HUGE]) for i in range(names)], bytes(HUGE))


def raw_blob_2(names: int) -> bytes:
    one = zt.tensor(shape=[HUGE], parts={"data": zt.part(blob=[4096, HUGE])})
    return zt.file2({"objects": {f"t{i}": one for i in range(names)}}, bytes(HUGE))


FILES: dict[str, tuple[str, Callable[[int], bytes], int, int]] = {
    "onnx": ("onnx", onnx_external, 1000, 1300),
    "pt": ("pt", pt_storage, 1000, 1300),
    "zstd": ("ztensor", zstd_blob, 65, 500),
    "raw, version 0.1": ("ztensor", raw_blob, 1340, 1350),
    "raw, version 2": ("ztensor", raw_blob_2, 1340, 1350),
}
"""A format, what makes a file with so many names of the same bytes, how many are accepted, and how many refused."""


@pytest.mark.parametrize("kind", FILES)
def test_names_of_the_same_bytes_are_limited(kind: str) -> None:
    format, make, few, many = FILES[kind]
    assert len(tg.open(make(few), format=format)) == few
    with pytest.raises(tg.LimitError, match=r"Limits\.view_ratio") as caught:
        tg.open(make(many), format=format)
    assert caught.value.rule == f"{format}.limit.repeated"
    assert len(tg.open(make(many), format=format, limits=tg.Limits(view_ratio=1 << 20))) == many


def test_parts_of_one_file_do_not_share(tmp_path: Path) -> None:
    """Spans one after the other, however many, are no aliases."""

    def one(number: int) -> bytes:
        described = test_onnx.tensor(f"t{number}", 1, (LARGE // 4,), location=1)
        return described + test_onnx.entry("location", "w") + test_onnx.entry("offset", str(number * LARGE))

    assert len(tg.open(test_onnx.model(*map(one, range(3000))), format="onnx")) == 3000


@pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_what_is_saved_can_be_read(format: str, compression: Any) -> None:
    """Any number of names of one array; zeros take almost no bytes."""
    zeros = np.zeros(LARGE, np.uint8)
    data = tg.dumps({f"t{i}": zeros for i in range(2000)}, format=format, compression=compression)
    assert len(data) < 3 * LARGE
    with tg.open(data) as archive:
        assert len(archive) == 2000
        assert not archive["t1999"].numpy().any()


@pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2"])
def test_names_that_a_reader_would_refuse_are_not_saved(format: str) -> None:
    zeros = np.zeros(HUGE, np.uint8)
    assert len(tg.open(tg.dumps(dict.fromkeys(map(str, range(1340)), zeros), format=format))) == 1340
    with pytest.raises(tg.InputError) as caught:
        tg.dumps(dict.fromkeys(map(str, range(1350)), zeros), format=format)
    assert caught.value.rule == "ztensor.write.repeated"
