"""One rank of a distributed checkpoint: saves a state in every way, loads it sharded differently, and compares.

    python tests/dcp_ranks.py FOLDER WORLD RANK WAY…

`launch` starts all ranks as processes (gloo, which meet through a file) and waits. They
leave `full.pt`, what rank 0 has of the whole state, and a checkpoint for each way of
saving: a directory `torch`, `safetensors`, `ztensor`, `async`; or at the URL that is the
way: `s3://bucket/folder`, `store://path#ref`. Run as

    python tests/dcp_ranks.py corpus FOLDER

it makes the folder tests/corpus/dcp, with torch 2.13.0.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

WAYS = ("torch", "safetensors", "ztensor", "async")


def launch(folder: Path, world: int, ways: Sequence[str] = WAYS, environment: Mapping[str, str] | None = None) -> None:
    command = [sys.executable, __file__, str(folder), str(world)]
    running = [
        subprocess.Popen(
            [*command, str(rank), *ways],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        for rank in range(world)
    ]
    said = [process.communicate(timeout=240)[0] for process in running]
    if any(process.returncode for process in running):
        raise AssertionError("\n".join(said))


def states(world: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The full values, the state as it is saved, and an empty one as it is loaded: with other placements."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    line = init_device_mesh("cpu", (world,))
    grid = init_device_mesh("cpu", (2, world // 2))
    torch.manual_seed(5)
    placed = {
        "rows to columns": (torch.randn(17, 6), line, [Shard(0)], [Shard(1)]),
        "columns to rows": (torch.randn(5, 11).bfloat16(), line, [Shard(1)], [Shard(0)]),
        "mesh": (torch.randint(-9, 9, (7, 9)), grid, [Shard(0), Shard(1)], [Shard(1), Shard(0)]),
        "mesh of rows": (torch.randn(13, 3, 2).half(), grid, [Shard(0), Replicate()], [Replicate(), Shard(1)]),
        "replicated": (torch.randn(4, 3).double(), line, [Replicate()], [Shard(0)]),
        "to replicated": (torch.rand(9) > 0.5, line, [Shard(0)], [Replicate()]),
        "fewer rows than ranks": (torch.randn(1, 5), line, [Shard(0)], [Shard(1)]),
        "middle": (torch.randn(3, 8, 2, dtype=torch.complex64), line, [Shard(1)], [Shard(0)]),
    }
    whole = {
        "plain": torch.arange(6).reshape(2, 3),
        "turned": torch.arange(12.0).reshape(3, 4).t(),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "small": torch.randn(2, 3).to(torch.float8_e4m3fn),
    }
    values = {
        "step": 7,
        "lr": 1e-3,
        "name": "é",
        "nothing": None,
        "betas": (0.9, 0.999),
        "big": 2**70,
        "raw": b"\0\xff",
    }
    full = {"model": {name: tensor for name, (tensor, *_) in placed.items()}, "extra": whole, "values": values}
    before = {name: distribute_tensor(tensor, mesh, old) for name, (tensor, mesh, old, _) in placed.items()}
    after = {
        name: distribute_tensor(torch.zeros_like(tensor), mesh, new) for name, (tensor, mesh, _, new) in placed.items()
    }
    blank = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    saved = {"model": before, "extra": whole, "values": values}
    return full, saved, {"model": after, "extra": blank, "values": dict.fromkeys(values)}


def run(folder: Path, world: int, rank: int, ways: Sequence[str]) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import FileSystemWriter, StorageReader, StorageWriter

    from tensorglot.bridges.dcp import Reader, Writer

    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    full, saved, _ = states(world)
    if rank == 0:
        torch.save(full, folder / "full.pt")
    for way in ways:
        path = way if "://" in way else folder / way
        if way == "torch":
            dcp.save(saved, storage_writer=FileSystemWriter(path))
        elif way == "async":
            dcp.async_save(saved, storage_writer=Writer(path)).result()  # type: ignore[union-attr]
        else:
            writer = Writer(path, "safetensors" if "://" in way else way)
            assert isinstance(writer, StorageWriter)
            dcp.save(saved, storage_writer=writer)
            dcp.save(saved, storage_writer=writer)  # over the first
        _, _, loaded = states(world)
        reader = Reader(path)
        assert isinstance(reader, StorageReader)
        dcp.load(loaded, storage_reader=reader)
        for group in ("model", "extra"):
            for name, tensor in loaded[group].items():
                found = tensor.full_tensor() if group == "model" else tensor
                one, two = (value.reshape(-1).view(torch.uint8) for value in (found, full[group][name]))
                assert torch.equal(one, two), (way, name)
        values = dict(full["values"])
        if way == "torch":
            values["betas"] = list(values["betas"])
        assert loaded["values"] == values, (way, loaded["values"])
    dist.destroy_process_group()


def make_corpus(folder: Path) -> None:
    """Directories of PyTorch, and what its own `dcp_to_torch_save` finds in them."""
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    manifest: dict[str, Any] = {}
    for world in (2, 4):
        with tempfile.TemporaryDirectory() as temporary:
            launch(Path(temporary), world)
            target = folder / f"ranks{world}"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(Path(temporary) / "torch", target)
            dcp_to_torch_save(target, Path(temporary) / "joined.pt")
            joined = torch.load(Path(temporary) / "joined.pt", weights_only=True)
        manifest[target.name] = {
            f"{group}.{name}": [
                str(tensor.dtype).removeprefix("torch."),
                list(tensor.shape),
                hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest(),
            ]
            for group in ("model", "extra")
            for name, tensor in joined[group].items()
        }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "corpus":
        make_corpus(Path(sys.argv[2]))
    else:
        run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
