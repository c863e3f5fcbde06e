"""convert against copying the file, verify against the checksum alone, diff against comparing bytes.

The checkpoint that is converted has 4 GB in 344 tensors, large and small, as language
models have them. `python -m benchmarks convert --folder DISK` needs 12 GB there.
"""

from __future__ import annotations

import atexit
import filecmp
import math
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks import workloads
from benchmarks.case import FIRST_USE, Case
from benchmarks.containers import imported

COUNT, TENSOR_NBYTES = 16, 1 << 26
NBYTES = COUNT * TENSOR_NBYTES
ALGORITHMS = ("crc32c", "sha256", "xxh3")
CONVERT_MAX_NBYTES = 64_000_000
"""What a conversion may take beyond the process, whatever the size of the file."""


def checkpoint_shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors of a language model in bfloat16: 4.0 GB."""
    yield "model.embed_tokens.weight", (32_000, 3072)
    for layer in range(38):
        for name, shape in (
            ("input_layernorm.weight", (3072,)),
            ("mlp.down_proj.weight", (3072, 8192)),
            ("mlp.gate_proj.weight", (8192, 1024)),
            ("mlp.up_proj.weight", (8192, 1024)),
            ("post_attention_layernorm.weight", (3072,)),
            ("self_attn.k_proj.weight", (1024, 3072)),
            ("self_attn.o_proj.weight", (1024, 1024)),
            ("self_attn.q_proj.weight", (1024, 1024)),
            ("self_attn.v_proj.weight", (1024, 3072)),
        ):
            yield f"model.layers.{layer}.{name}", shape
    yield "model.norm.weight", (3072,)


def prepare_checkpoint(folder: Path) -> None:
    import tensorglot as tg

    if (folder / "checkpoint.zt").exists():
        return
    shapes = [("weight", (4, 4))] if folder.name == FIRST_USE else list(checkpoint_shapes())
    noise = np.random.default_rng(0).integers(0, 1 << 16, 100_000_000 if len(shapes) > 1 else 16, np.uint16)
    with tg.Writer(folder / "checkpoint.safetensors", durable=False) as out:
        for i, (name, shape) in enumerate(shapes):
            out.add(name, noise[i : i + math.prod(shape)].view(ml_dtypes.bfloat16).reshape(shape))
    tg.convert(folder / "checkpoint.safetensors", folder / "checkpoint.zt", durable=False)


def prepare(folder: Path) -> None:
    import tensorglot as tg

    if (folder / "verbs.safetensors").exists():
        return
    count = 4096 if folder.name == FIRST_USE else TENSOR_NBYTES // 4
    noise = np.random.default_rng(0).standard_normal(count, np.float32)
    with tg.Writer(folder / "verbs.safetensors", durable=False) as out:
        for i in range(COUNT):
            out.add(f"layers.{i}.weight", np.roll(noise, i).reshape(4096, -1))
    tg.convert(folder / "verbs.safetensors", folder / "verbs.zt", durable=False)
    for algorithm in ALGORITHMS:
        format = "ztensor@2" if algorithm == "xxh3" else "ztensor@0.1"
        target = folder / f"verbs.{algorithm}.zt"
        tg.convert(folder / "verbs.safetensors", target, format=format, checksum=algorithm, durable=False)


def convert(source: str, target: str, options: dict[str, Any], folder: Path) -> Callable[[], Any]:
    tg = imported()
    return _followed(folder / target, lambda: tg.convert(folder / source, folder / target, durable=False, **options))


def _followed(target: Path, action: Callable[[], Any]) -> Callable[[], Any]:
    """Removes the target before the next call, which would otherwise find the disk busy with it."""

    def run() -> None:
        action()
        atexit.register(target.unlink)

    return run


def check_convert(source: str, target: str, cast: bool, folder: Path, library: str, result: Any) -> None:
    """The same tensors; after a cast the same names and shapes, and one tensor element by element."""
    tg = imported()
    if library != "tensorglot":
        assert filecmp.cmp(folder / source, folder / "copied", shallow=False)
        return
    if not cast:
        assert tg.diff(folder / source, folder / target).same
        return
    with tg.open(folder / source) as before, tg.open(folder / target) as after:
        assert {name: tensor.shape for name, tensor in before.items()} == {
            name: tensor.shape for name, tensor in after.items()
        }
        name = next(iter(before))
        wanted = before[name].numpy().astype(ml_dtypes.bfloat16)
        assert np.array_equal(after[name].numpy().view(np.uint16), wanted.view(np.uint16))


def copy_file_range(source: str, folder: Path) -> Callable[[], Any]:
    def run() -> None:
        nbytes = (folder / source).stat().st_size
        with (folder / source).open("rb") as one, (folder / "copied").open("wb") as two:
            done = 0
            while done < nbytes:
                done += os.copy_file_range(one.fileno(), two.fileno(), nbytes - done)

    return _followed(folder / "copied", run)


def copyfile(source: str, folder: Path) -> Callable[[], Any]:
    return _followed(folder / "copied", lambda: shutil.copyfile(folder / source, folder / "copied"))


def verify(source: str, folder: Path) -> Callable[[], Any]:
    tg = imported()
    tg.verify(tg.dumps({}, format="ztensor"))

    def run() -> None:
        report = tg.verify(folder / source)
        assert report.ok
        assert report.checksums == COUNT

    return run


def checksum(algorithm: str, folder: Path) -> Callable[[], Any]:
    """The algorithm over the same file, which is in memory already."""
    from tensorglot.wire.checksums import hasher

    data = memoryview((folder / f"verbs.{algorithm}.zt").read_bytes())

    def run() -> None:
        for start in range(0, len(data), TENSOR_NBYTES):
            running = hasher(algorithm)
            running.update(data[start : start + TENSOR_NBYTES])
            running.digest()

    return run


def read_and_hash(algorithm: str, folder: Path) -> Callable[[], Any]:
    """The file read in pieces that stay in the cache and hashed, a tensor by each thread: no index, no comparison."""
    from concurrent.futures import ThreadPoolExecutor

    from tensorglot.memory import Scratch
    from tensorglot.wire.checksums import hasher

    with imported().open(folder / f"verbs.{algorithm}.zt") as archive:
        spans = [(tensor.offset, tensor.nbytes) for tensor in archive.values()]
    pool = ThreadPoolExecutor(2)
    list(pool.map(int, range(8)))

    def run() -> None:
        with (folder / f"verbs.{algorithm}.zt").open("rb", buffering=0) as file:

            def hash(span: tuple[int, int]) -> bytes:
                running, memory = hasher(algorithm), Scratch(1 << 20)
                for at in range(span[0], span[0] + span[1], 1 << 20):
                    piece = memory.room(min(1 << 20, span[0] + span[1] - at), at)
                    os.preadv(file.fileno(), [piece], at)
                    running.update(piece)
                return running.digest()

            list(pool.map(hash, spans))

    return run


def diff(folder: Path) -> Callable[[], Any]:
    tg = imported()

    def run() -> None:
        assert tg.diff(folder / "verbs.safetensors", folder / "verbs.zt").same

    return run


def compare_bytes(folder: Path) -> Callable[[], Any]:
    if not (folder / "twin").exists():  # not a link: its bytes would be in the processor's cache already
        shutil.copyfile(folder / "verbs.safetensors", folder / "twin")

    def run() -> None:
        filecmp.clear_cache()
        assert filecmp.cmp(folder / "verbs.safetensors", folder / "twin", shallow=False)

    return run


def cases() -> list[Case]:
    pairs = {
        "safetensors to zTensor": ("checkpoint.safetensors", "made.zt", {}),
        "zTensor to safetensors": ("checkpoint.zt", "made.safetensors", {}),
    }
    found = [
        Case(
            f"convert {name}, 4 GB",
            {
                "tensorglot": partial(convert, *how),
                "shutil.copyfile": partial(copyfile, how[0]),
                "copy_file_range": partial(copy_file_range, how[0]),
            },
            prepare_checkpoint,
            2 << 30,  # what is written stays in memory as well
            goals={"shutil.copyfile": 0.8, "copy_file_range": 0.8},
            limits={"extra_nbytes": CONVERT_MAX_NBYTES},
            check=partial(check_convert, *how[:2], False),
            first_use=True,
        )
        for name, how in pairs.items()
    ]
    cast = ("verbs.safetensors", "made.bt", {"dtype": "bfloat16"})
    found.append(
        Case(
            "convert float32 to bfloat16",
            {"tensorglot": partial(convert, *cast), "copy_file_range": partial(copy_file_range, cast[0])},
            prepare,
            NBYTES // 2,
            limits={"extra_nbytes": CONVERT_MAX_NBYTES},
            check=partial(check_convert, *cast[:2], True),
            first_use=True,
        )
    )
    found += [
        Case(
            f"verify {algorithm}",
            {
                "tensorglot": partial(verify, f"verbs.{algorithm}.zt"),
                f"{algorithm} alone": partial(checksum, algorithm),
                "bare": partial(read_and_hash, algorithm),
            },
            prepare,
            TENSOR_NBYTES,
            repeats=3,
            goals={f"{algorithm} alone": 0.7},
        )
        for algorithm in ALGORITHMS
    ]
    found.append(
        Case(
            "diff",
            {"tensorglot": diff, "filecmp": compare_bytes},
            prepare,
            TENSOR_NBYTES,
            repeats=3,
            goals={"filecmp": 1.5},
        )
    )
    found += [
        Case(
            f"{verb} 100,000 small tensors",
            {"tensorglot": action, "filecmp": compare_small},
            prepare_small,
            10_000_000,
            limits={"ms": 1000} if verb == "diff" else {},
            first_use=True,
            quick=True,
        )
        for verb, action in (("verify", verify_small), ("diff", diff_small))
    ]
    return found


def prepare_small(folder: Path) -> None:
    workloads.prepare("W4", folder)
    tensors = workloads.tensors("W4", folder)
    for name in ("one", "two"):
        imported().save(folder / f"W4.{name}.zt", tensors, durable=False)


def verify_small(folder: Path) -> Callable[[], Any]:
    tg = imported()
    count = len(workloads.expected("W4", folder))

    def run() -> None:
        report = tg.verify(folder / "W4.one.zt")
        assert report.ok
        assert report.checksums == count

    return run


def diff_small(folder: Path) -> Callable[[], Any]:
    tg = imported()

    def run() -> None:
        assert tg.diff(folder / "W4.one.zt", folder / "W4.two.zt").same

    return run


def compare_small(folder: Path) -> Callable[[], Any]:
    """The bytes alone, which say nothing of tensors: the least that any comparison could take."""

    def run() -> None:
        filecmp.clear_cache()
        assert filecmp.cmp(folder / "W4.one.zt", folder / "W4.two.zt", shallow=False)

    return run
