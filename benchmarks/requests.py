"""Requests to a server: how many open a file, and how many bytes are read for one tensor.

A local HTTP server counts. The file has 64 tensors of 1 MiB and 1,000 small ones. Time
means nothing here: there is no network.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tensorglot as tg
from benchmarks.case import Case, Counted

FORMATS = {"BinTensors": "bt", "safetensors": "safetensors", "zTensor 0.1": "zt", "zTensor 2": "2.zt"}
ONE = "layer.31.weight"
REQUESTS, BYTES = "requests to open", "times the bytes of a tensor"


def tensors() -> dict[str, Any]:
    rng = np.random.default_rng(8)
    large = {f"layer.{i}.weight": rng.standard_normal((512, 512), np.float32) for i in range(64)}
    return large | {f"layer.{i}.scale": rng.standard_normal(16, np.float32) for i in range(1000)}


def prepare(format: str, folder: Path) -> None:
    path = folder / f"served.{FORMATS[format]}"
    if not path.exists():
        tg.save(path, tensors(), format="ztensor@2" if format == "zTensor 2" else None, durable=False)


def read_one(format: str, folder: Path) -> Callable[[], Counted]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from http_servers import serve

    path = folder / f"served.{FORMATS[format]}"
    data, stack = path.read_bytes(), ExitStack()
    site = stack.enter_context(serve())
    site.files[f"/{path.name}"] = data
    atexit.register(stack.close)
    wanted = tensors()[ONE]

    def run() -> Counted:
        with tg.open(f"{site.url}/{path.name}") as archive:
            opening = len(site.requests)
            assert np.array_equal(archive[ONE].numpy(), wanted)
        nbytes = sum(_nbytes(request.range, len(data)) for request in site.requests[opening:])
        return Counted({REQUESTS: opening, BYTES: nbytes / wanted.nbytes})

    return run


def _nbytes(range: str | None, size: int) -> int:
    """What the answer to a request has."""
    if range is None:
        return size
    first, last = range.removeprefix("bytes=").split("-")
    return min(int(last) + 1, size) - int(first) if first and last else int(last or size - int(first))


def cases() -> list[Case]:
    return [
        Case(
            f"HTTP, {format}",
            {"tensorglot": partial(read_one, format)},
            partial(prepare, format),
            0,
            limits={REQUESTS: 2, BYTES: 1.05},
            requires=("obstore",),
            rounds=1,
        )
        for format in FORMATS
    ]
