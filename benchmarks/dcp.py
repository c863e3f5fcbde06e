"""Saving and loading a distributed checkpoint, beside the two storages of PyTorch.

    python -m benchmarks.dcp [megabytes] [ranks] [rounds]

Every rank is a process (gloo). The state is row-sharded; it is saved to a new directory
(cold), saved over it (warm), loaded as it is, and loaded by columns. A time is that of the
slowest rank, the least of the rounds; the storages take turns in each round. Before each
time, memory for two checkpoints is touched and freed: a virtual machine's host gives pages
that were not used for a while slowly, and only the first storage would wait for them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import warm

COLUMNS = ("save cold", "save warm", "load", "reshard")


def main(megabytes: int, ranks: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.dcp", folder, *map(str, (megabytes, ranks, rounds))]
        running = [subprocess.Popen([*command, str(rank)]) for rank in range(ranks)]
        codes = [process.wait() for process in running]
        if any(codes):
            raise SystemExit(1)


def run(folder: Path, megabytes: int, ranks: int, rounds: int, rank: int) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import (
        FileSystemReader,
        FileSystemWriter,
        HuggingFaceStorageReader,
        HuggingFaceStorageWriter,
    )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    from tensorglot.bridges.dcp import Reader, Writer

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    storages: dict[str, tuple[Callable[[str], object], Callable[[str], object]]] = {
        "FileSystemWriter": (FileSystemWriter, FileSystemReader),
        "HuggingFaceStorageWriter": (
            lambda path: HuggingFaceStorageWriter(path, save_distributed=True),
            HuggingFaceStorageReader,
        ),
        "tensorglot .safetensors": (Writer, Reader),
        "tensorglot .zt": (lambda path: Writer(path, "ztensor"), Reader),
    }
    shape, count = (1024, 5120), max(1, round(megabytes * 1e6 / (1024 * 5120 * 4)))

    def state(axis: int, fill: bool) -> dict[str, DTensor]:
        torch.manual_seed(7)
        make = torch.randn if fill else torch.zeros
        return {f"layer.{i}": distribute_tensor(make(shape), mesh, [Shard(axis)]) for i in range(count)}

    saved = state(0, fill=True)
    targets = {"load": state(0, fill=False), "reshard": state(1, fill=False)}
    expected = {"load": saved, "reshard": state(1, fill=True)}

    def seconds(work: Callable[[], object]) -> float:
        warm(2 * 4 * count * shape[0] * shape[1] // ranks)
        dist.barrier()
        begun = time.perf_counter()
        work()
        dist.barrier()
        return time.perf_counter() - begun

    best = {name: dict.fromkeys(COLUMNS, float("inf")) for name in storages}
    for number in range(rounds):
        for name, (writer, reader) in storages.items():
            path = str(folder / f"{number}-{name.replace(' ', '-')}")
            times = {
                what: seconds(lambda: dcp.save(saved, storage_writer=writer(path)))  # type: ignore[arg-type] # noqa: B023
                for what in COLUMNS[:2]
            }
            for what, target in targets.items():
                for tensor in target.values():
                    tensor.to_local().zero_()
                times[what] = seconds(lambda: dcp.load(target, storage_reader=reader(path)))  # type: ignore[arg-type] # noqa: B023
                for key, tensor in target.items():
                    if not torch.equal(tensor.to_local(), expected[what][key].to_local()):
                        raise AssertionError(f"{name}, {what}: {key} differs")
            best[name] = {what: min(best[name][what], times[what]) for what in COLUMNS}
            dist.barrier()
            if rank == 0:
                shutil.rmtree(path)
    if rank == 0:
        total = count * shape[0] * shape[1] * 4
        print(f"{total / 1e6:.0f} MB in {count} tensors, {ranks} ranks, seconds (least of {rounds} rounds)\n")
        print(f"| | {' | '.join(COLUMNS)} |\n|---|{'---|' * len(COLUMNS)}")
        for name, times in best.items():
            print(f"| {name} | {' | '.join(f'{times[what]:.2f}' for what in COLUMNS)} |")
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if len(sys.argv) == 6:
        run(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    else:
        main(*map(int, [*sys.argv[1:], *("420", "2", "3")[len(sys.argv) - 1 :]]))
