"""What byte planes before zstd would gain: `python -m benchmarks compression`.

Weights as they are, and with the bytes of their elements grouped by significance (planes),
compressed by zstd at level 1 in pieces of 1 MiB: the size as a share of the original, and
the speed of both directions by processor time, the best of several rounds. The store does
this; a container can only do what its format has an encoding for.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import zstandard
from numpy.typing import NDArray

from benchmarks.run import RESULTS, commit
from benchmarks.store import real_model
from tensorglot.kernels import planes

__all__ = ["main", "measure"]

PIECE_NBYTES = 1 << 20
LEVEL = 1
ROUNDS = 3


def weights(elements: int) -> dict[str, NDArray[Any]]:
    """Flat arrays of weights by name: random ones, and those of the real model if it is installed."""
    normal = np.float32(0.05) * np.random.default_rng(9).standard_normal(elements, np.float32)
    found = {"random, float32": normal, "random, bfloat16": normal.astype(ml_dtypes.bfloat16)}
    if model := real_model():
        flat = np.concatenate([array.reshape(-1) for array in model.values()])[:elements]
        found |= {"real, float32": flat, "real, bfloat16": flat.astype(ml_dtypes.bfloat16)}
    return found


def gbps(work: Callable[[], object], nbytes: int) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return nbytes / best / 1e9


def measure(array: NDArray[Any], in_planes: bool) -> dict[str, float]:
    """Size and speeds of one kind of weights."""
    data, width = array.view(np.uint8), array.itemsize
    pieces = [data[at : at + PIECE_NBYTES] for at in range(0, len(data), PIECE_NBYTES)]
    packer, unpacker = zstandard.ZstdCompressor(LEVEL), zstandard.ZstdDecompressor()
    out = np.empty(PIECE_NBYTES, np.uint8)

    def encode(piece: NDArray[np.uint8]) -> bytes:
        if not in_planes:
            return packer.compress(piece.data)
        assert planes.split(piece, width, out[: len(piece)])
        return packer.compress(out[: len(piece)].data)

    def decode(frame: bytes, nbytes: int) -> NDArray[np.uint8]:
        plain = np.frombuffer(unpacker.decompress(frame), np.uint8)
        if not in_planes:
            return plain
        planes.merge(plain, width, out[:nbytes])
        return out[:nbytes]

    frames = [encode(piece) for piece in pieces]
    assert all(np.array_equal(decode(frame, len(piece)), piece) for frame, piece in zip(frames, pieces, strict=True))
    return {
        "share": sum(map(len, frames)) / len(data),
        "encode_gbps": gbps(lambda: [encode(piece) for piece in pieces], len(data)),
        "decode_gbps": gbps(
            lambda: [decode(frame, len(piece)) for frame, piece in zip(frames, pieces, strict=True)], len(data)
        ),
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks compression", description=__doc__)
    parser.add_argument("--elements", type=float, default=2e7, help="at most, of each kind of weights")
    parser.add_argument("--json", type=Path, default=RESULTS / "compression.json")
    options = parser.parse_args(arguments)
    rows = []
    for name, array in weights(int(options.elements)).items():
        row = {"weights": name, "zstd": measure(array, False), "planes": measure(array, True)}
        print(row, flush=True)
        rows.append(row)
    when, load = datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), round(os.getloadavg()[0], 1)
    found = {"compression": {"when": when, "commit": commit(), "load": load, "rows": rows}}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1) + "\n")
