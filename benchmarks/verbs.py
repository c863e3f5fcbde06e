"""convert against copying the file, verify against the checksum alone, diff against comparing bytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.case import Case
from benchmarks.containers import imported

COUNT, TENSOR_NBYTES = 16, 1 << 26
NBYTES = COUNT * TENSOR_NBYTES
ALGORITHMS = ("crc32c", "sha256", "xxh3")


def prepare(folder: Path) -> None:
    import tensorglot as tg

    if (folder / "verbs.safetensors").exists():
        return
    noise = np.random.default_rng(0).standard_normal(TENSOR_NBYTES // 4, np.float32)
    with tg.Writer(folder / "verbs.safetensors", durable=False) as out:
        for i in range(COUNT):
            out.add(f"layers.{i}.weight", np.roll(noise, i).reshape(4096, -1))
    tg.convert(folder / "verbs.safetensors", folder / "verbs.zt", durable=False)
    tg.convert(folder / "verbs.safetensors", folder / "one.bt", select="layers.0.weight", durable=False)
    for algorithm in ALGORITHMS:
        format = "ztensor@2" if algorithm == "xxh3" else "ztensor@0.1"
        target = folder / f"verbs.{algorithm}.zt"
        tg.convert(folder / "verbs.safetensors", target, format=format, checksum=algorithm, durable=False)


def convert(source: str, target: str, options: dict[str, Any], folder: Path) -> Callable[[], Any]:
    tg = imported()
    tg.convert({}, folder / target, durable=False)
    (folder / target).unlink()
    return lambda: tg.convert(folder / source, folder / target, durable=False, **options)


def copy(source: str, folder: Path) -> Callable[[], Any]:
    (folder / "copied").unlink(missing_ok=True)

    def run() -> None:
        nbytes = (folder / source).stat().st_size
        with (folder / source).open("rb") as one, (folder / "copied").open("wb") as two:
            done = 0
            while done < nbytes:
                done += os.copy_file_range(one.fileno(), two.fileno(), nbytes - done)

    return run


def verify(source: str, folder: Path) -> Callable[[], Any]:
    tg = imported()
    tg.verify(tg.dumps({}, format="ztensor"))

    def run() -> None:
        report = tg.verify(folder / source)
        assert report.ok
        assert report.checksums == COUNT

    return run


def checksum(algorithm: str, folder: Path) -> Callable[[], Any]:
    """The algorithm over as many bytes in memory."""
    from tensorglot.wire.checksums import hasher

    data = memoryview(bytearray(os.urandom(1 << 20)) * (TENSOR_NBYTES >> 20))

    def run() -> None:
        for _ in range(COUNT):
            running = hasher(algorithm)
            running.update(data)
            running.digest()

    return run


def diff(folder: Path) -> Callable[[], Any]:
    tg = imported()

    def run() -> None:
        assert tg.diff(folder / "verbs.safetensors", folder / "verbs.zt").same

    return run


def compare_bytes(folder: Path) -> Callable[[], Any]:
    import filecmp

    (folder / "twin").unlink(missing_ok=True)
    os.link(folder / "verbs.safetensors", folder / "twin")
    return lambda: filecmp._do_cmp(folder / "verbs.safetensors", folder / "twin")  # type: ignore[attr-defined]


def cases() -> list[Case]:
    pairs = {
        "safetensors to zTensor": ("verbs.safetensors", "made.zt", {}),
        "zTensor to safetensors": ("verbs.zt", "made.safetensors", {}),
    }
    found = [
        Case(
            f"convert {name}",
            {"tensorglot": partial(convert, *how), "copy_file_range": partial(copy, how[0])},
            prepare,
            NBYTES // 2,
            goals={"copy_file_range": 0.8},
        )
        for name, how in pairs.items()
    ]
    cast = ("verbs.safetensors", "made.bt", {"dtype": "bfloat16"})
    found.append(
        Case(
            "convert float32 to bfloat16",
            {"tensorglot": partial(convert, *cast), "copy_file_range": partial(copy, cast[0])},
            prepare,
            NBYTES // 2,
        )
    )
    found += [
        Case(
            f"verify {algorithm}",
            {
                "tensorglot": partial(verify, f"verbs.{algorithm}.zt"),
                f"{algorithm} alone": partial(checksum, algorithm),
            },
            prepare,
            TENSOR_NBYTES,
            repeats=3,
            goals={f"{algorithm} alone": 0.7},
        )
        for algorithm in ALGORITHMS
    ]
    found.append(Case("diff", {"tensorglot": diff, "filecmp": compare_bytes}, prepare, TENSOR_NBYTES, repeats=3))
    return found
