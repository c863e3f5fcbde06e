"""W1 to W4 as zTensor: by us, in 0.1 and in 2, and by the package in 2, the only version that it has.

The package has no element type for NumPy's bfloat16, so in W2 it gets the same bits
as uint16. It reads and writes small tensors at multiples of 4096, as canonical form
would make gigabytes of padding of W3 and W4; so do we in 2 where we compare with it.
Our 0.1 has checksums, computed on saving and compared on loading: "no checksums" is the
same save without them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import workloads
from benchmarks.case import Case
from benchmarks.containers import NBYTES, check_load, check_open, memory_limit, save_bare, save_theirs
from benchmarks.containers import load_theirs as load_package
from benchmarks.containers import prepare as prepare_files
from benchmarks.peers import bits


def prepare(workload: str, folder: Path) -> None:
    import ztensor.numpy

    import tensorglot as tg

    prepare_files(workload, ["safetensors"], folder)
    if (folder / f"{workload}.zt").exists():
        return
    tensors = workloads.tensors(workload, folder)
    tg.save(folder / f"{workload}.zt", tensors, durable=False)
    ztensor.numpy.save_file(
        bits(tensors), folder / f"{workload}.2.zt", align=None if workload in ("W1", "W2") else 4096
    )
    if workload in ("W1", "W2"):
        tg.save(folder / f"{workload}.z.zt", tensors, durable=False, compression="zstd")
        ztensor.numpy.save_file(bits(tensors), folder / f"{workload}.z2.zt", compression=True)


def imported() -> ModuleType:
    """tensorglot with everything that a first use loads."""
    import tensorglot as tg

    for format in ("ztensor@0.1", "ztensor@2"):
        tg.loads(tg.dumps({}, format=format, compression="zstd"))
    return tg


def load_ours(workload: str, suffix: str, folder: Path) -> Callable[[], Any]:
    tg = imported()
    return lambda: tg.load(folder / f"{workload}.{suffix}")


def load_theirs(workload: str, suffix: str, folder: Path) -> Callable[[], Any]:
    import ztensor.numpy

    return lambda: ztensor.numpy.load_file(folder / f"{workload}.{suffix}", copy=True)


def decode_bare(workload: str, suffix: str, folder: Path) -> Callable[[], Any]:
    """The same frames, read and decoded on every processor, and nothing else: no index, no check, no arrays."""
    import os
    import threading
    from concurrent.futures import ThreadPoolExecutor

    import zstandard

    from tensorglot.memory import Scratch, allocate

    with imported().open(folder / f"{workload}.{suffix}") as archive:
        payloads = [archive[name].parts["data"].payload for name in archive]
    spans = [(payload.begin, payload.end - payload.begin, payload.nbytes) for payload in payloads]
    file = os.open(folder / f"{workload}.{suffix}", os.O_RDONLY)
    kept = threading.local()

    def decode(job: tuple[int, int, memoryview]) -> None:
        if not hasattr(kept, "scratch"):
            kept.scratch = Scratch(max(size for _, size, _ in spans))
        begin, size, out = job
        encoded = kept.scratch.room(size, begin)
        os.preadv(file, [encoded], begin)
        zstandard.ZstdDecompressor().stream_reader(encoded, read_across_frames=True).readinto(out)

    def run() -> memoryview:
        out, jobs, at = allocate(sum(nbytes for _, _, nbytes in spans)), [], 0
        for begin, size, nbytes in spans:
            jobs.append((begin, size, out[at : at + nbytes]))
            at += nbytes
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            deque(pool.map(decode, jobs), maxlen=0)
        return out

    return run


def save_ours(
    workload: str, format: str, compression: str | None, folder: Path, checksum: str | None = "auto"
) -> Callable[[], Any]:
    tg = imported()
    tensors = workloads.tensors(workload, folder)
    how = {"format": format, "compression": compression, "checksum": checksum}
    return lambda: tg.save(folder / "saved.zt", tensors, **how, durable=False)


def save_package(workload: str, compression: bool, folder: Path) -> Callable[[], Any]:
    import ztensor.numpy

    tensors = bits(workloads.tensors(workload, folder))
    align = None if compression or workload in ("W1", "W2") else 4096
    return lambda: ztensor.numpy.save_file(tensors, folder / "saved2.zt", align=align, compression=compression)


def check_save(workload: str, folder: Path, library: str, result: Any) -> None:
    """What any of them wrote, read back by us."""
    (saved,) = folder.glob("saved*")
    if library == "bare":
        assert saved.read_bytes() == (folder / f"{workload}.zt").read_bytes()
    else:
        workloads.same(workload, folder, imported().load(saved))


def check_decoded(workload: str, folder: Path, library: str, result: Any) -> None:
    if library == "bare":
        assert result.nbytes == (folder / f"{workload}.raw").stat().st_size
    else:
        check_load(workload, folder, library, result)


def open_ours(workload: str, suffix: str, folder: Path) -> Callable[[], Any]:
    tg = imported()
    return lambda: tg.open(folder / f"{workload}.{suffix}")


def open_theirs(workload: str, suffix: str, folder: Path) -> Callable[[], Any]:
    import ztensor

    return lambda: ztensor.open(str(folder / f"{workload}.{suffix}"))


def verify_ours(folder: Path) -> Callable[[], Any]:
    tg = imported()

    def run() -> None:
        report = tg.verify(folder / "W1.2.zt")
        assert report.ok
        assert report.checksums == 8

    return run


def hash_alone(folder: Path) -> Callable[[], Any]:
    """XXH3 over the same bytes, which are in memory already."""
    import xxhash

    data = (folder / "W1.2.zt").read_bytes()
    return lambda: xxhash.xxh3_64_intdigest(data)


def case(
    name: str,
    ours: Any,
    theirs: dict[str, Any],
    goals: dict[str, float],
    repeats: int = 1,
    requires: tuple[str, ...] = (),
) -> Case:
    workload = name.split()[0]
    kinds = {"load": check_decoded, "save": check_save, "open": check_open}
    check = next((partial(check, workload) for kind, check in kinds.items() if kind in name), None)
    make = partial(prepare, workload)
    return Case(
        name, {"tensorglot": ours, **theirs}, make, NBYTES[workload], repeats, goals, memory_limit(name), check,
        first_use=repeats == 1, requires=("ztensor", *requires), quick=name in QUICK,
    )  # fmt: skip


QUICK = ("W3 zTensor 0.1 load", "W4 zTensor 2 open")


def cases() -> list[Case]:
    rows = []
    for workload, goal in (("W1", 4.0), ("W2", 4.0), ("W3", 4.0), ("W4", 4.0)):
        for version, suffix in (("0.1", "zt"), ("2", "2.zt")):
            peers: dict[str, Any] = {"ztensor": partial(load_theirs, workload, "2.zt")}
            goals = {"ztensor": goal}
            if version == "0.1" and workload in ("W1", "W2"):
                peers["safetensors"] = partial(load_package, "safetensors", workload)
                goals["safetensors"] = 3.0
            rows.append(case(f"{workload} zTensor {version} load", partial(load_ours, workload, suffix), peers, goals))
    for workload in ("W1", "W2", "W3", "W4"):
        peers = {"ztensor": partial(save_package, workload, False)}
        goals = {"ztensor": 1.0}
        if workload in ("W1", "W2"):
            peers |= {
                "safetensors": partial(save_theirs, "safetensors", workload),
                "no checksums": partial(save_ours, workload, "ztensor@0.1", None, checksum=None),
                "bare": partial(save_bare, f"{workload}.zt"),
            }
            goals |= {"safetensors": 1.0, "no checksums": 1 / 1.1, "bare": 0.8}
        else:
            peers |= {"safetensors": partial(save_theirs, "safetensors", workload)}
            goals = {"safetensors": 4.0}
        rows.append(
            case(f"{workload} zTensor 0.1 save", partial(save_ours, workload, "ztensor@0.1", None), peers, goals)
        )
    for workload in ("W1", "W2"):
        rows.append(
            case(
                f"{workload} zTensor 2 save, canonical",
                partial(save_ours, workload, "ztensor@2", None),
                {"ztensor": partial(save_package, workload, False)},
                {"ztensor": 1.0},
            )
        )
        for version, suffix in (("0.1", "z.zt"), ("2", "z2.zt")):
            rows.append(
                case(
                    f"{workload} zTensor {version} load, zstd",
                    partial(load_ours, workload, suffix),
                    {
                        "ztensor": partial(load_theirs, workload, "z2.zt"),
                        "bare": partial(decode_bare, workload, suffix),
                    },
                    {"ztensor": 3.0},
                )
            )
            rows.append(
                case(
                    f"{workload} zTensor {version} save, zstd",
                    partial(save_ours, workload, f"ztensor@{version}", "zstd"),
                    {"ztensor": partial(save_package, workload, True)},
                    {"ztensor": 3.0},
                )
            )
    for workload in ("W2", "W4"):
        for version, suffix in (("0.1", "zt"), ("2", "2.zt")):
            rows.append(
                case(
                    f"{workload} zTensor {version} open",
                    partial(open_ours, workload, suffix),
                    {"ztensor": partial(open_theirs, workload, "2.zt")},
                    {"ztensor": 3.0},
                    repeats=5,
                )
            )
    rows.append(case("W1 zTensor 2 verify", verify_ours, {"xxh3": hash_alone}, {"xxh3": 0.7}, repeats=3))
    return rows
