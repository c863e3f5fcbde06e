"""A paper model of size: what a checkpoint of 1 TB and its updates cost on machines that we do not have.

    python -m benchmarks.size_model [megabytes]

First the rates of this machine are measured, on a state of that many megabytes: saving,
loading, hashing, a delta between two steps, the index of a million boxes. Then the model:
rates of disks, networks and object stores are assumptions, printed with the result, and a
time is that of the slowest part of what runs at once. Nothing is fitted.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tensorglot as tg
from tensorglot.containers.dcp.manifest import Manifest

GB = 1e9
TB = 1e12


@dataclass(frozen=True)
class Assumed:
    """What we cannot measure here."""

    checkpoint: float = TB
    """Bytes of bfloat16."""
    ranks: int = 1024
    ranks_per_host: int = 8
    host_network: float = 12.5 * GB
    """Bytes a second: 100 Gbit/s."""
    storage: float = 200 * GB
    """Bytes a second that the shared storage takes and gives, in total."""
    servers: int = 10_000
    server_network: float = 3.125 * GB
    """25 Gbit/s, each direction."""
    fan_out: int = 4
    """Servers that one server forwards to."""
    piece: float = 8e6
    latency: float = 0.001
    """Seconds for a piece to be accepted and passed on."""


@dataclass(frozen=True)
class Rates:
    """Bytes a second for one process here, and sizes as fractions."""

    save: float
    load: float
    hash: float
    delta: float
    """Bytes of weights for which a delta is made."""
    apply: float
    """Bytes of weights that are made from a base and a delta."""
    delta_share: float
    """Size of a delta, relative to the weights."""
    index_bytes: float
    """Of the index, for each box."""
    index_seconds: float
    """To write and to read the index, for each box."""


def seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    best = math.inf
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begun)
    return best


def step_of(values: np.ndarray[Any, Any], seed: int) -> np.ndarray[Any, Any]:
    """The next step of training: the lowest bits of 2 % of all weights change."""
    random = np.random.default_rng(seed)
    after = values.copy()
    at = random.choice(values.size, values.size // 50, replace=False)
    after.reshape(-1)[at] ^= random.integers(1, 4, at.size, np.uint16)
    return after


def measure(megabytes: int) -> Rates:
    import ml_dtypes

    random = np.random.default_rng(1)
    shape = (megabytes * 1_000_000 // 2 // 1024 // 4, 1024)
    old = {f"w{i}": random.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16) for i in range(4)}
    new = {name: step_of(value.view(np.uint16), 2).view(ml_dtypes.bfloat16) for name, value in old.items()}
    nbytes = sum(value.nbytes for value in old.values())
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        save = seconds(lambda: tg.save(folder / "a.safetensors", old))
        load = seconds(lambda: tg.load(folder / "a.safetensors"))
        hashing = seconds(lambda: tg.identify(folder / "a.safetensors"), 1)
        with tg.store.Store.create(str(folder / "store")) as store:
            store.commit("main", old)
            before = store.stats().stored_nbytes
            delta = seconds(lambda: store.commit("main", new), 1)
            share = (store.stats().stored_nbytes - before) / nbytes
            apply = seconds(lambda: tg.load(f"store://{folder / 'store'}#main"), 1)
    boxes = 100_000
    manifest = _manifest(boxes)
    encode = seconds(manifest.encode, 1)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "dcp.json"
        path.write_bytes(manifest.encode())
        size = path.stat().st_size
        parse = seconds(lambda: tg.open(temporary).close(), 1)
    return Rates(
        nbytes / save,
        nbytes / load,
        nbytes / hashing,
        nbytes / delta,
        nbytes / apply,
        share,
        size / boxes,
        (encode + parse) / boxes,
    )


def _manifest(boxes: int, per_tensor: int = 1000) -> Manifest:
    """An index of tensors that are cut into many rows."""
    names = [f"model.layers.{i}.mlp.down_proj.weight" for i in range(boxes // per_tensor)]
    files = [f"0123abcd-{rank:05d}.safetensors" for rank in range(per_tensor)]
    tensors = {
        name: {
            "dtype": "bfloat16",
            "itemsize": 2,
            "shape": [8 * per_tensor, 8192],
            "boxes": [[rank, name, [8 * rank, 0], [8, 8192]] for rank in range(per_tensor)],
        }
        for name in names
    }
    return Manifest(files, tensors, {}, {})


def save_seconds(rates: Rates, at: Assumed) -> dict[str, float]:
    """Each part of saving the checkpoint once; all but the index run at the same time."""
    each = at.checkpoint / at.ranks
    boxes = 1000 * at.ranks
    return {
        "rank writes its file": each / rates.save,
        "host sends its ranks' files": each * at.ranks_per_host / at.host_network,
        "storage takes all": at.checkpoint / at.storage,
        "index of 1,000 tensors": boxes * rates.index_seconds,
    }


@dataclass(frozen=True)
class Update:
    """One way to bring new weights to every server."""

    way: str
    stored: float
    """Bytes that the trainer publishes."""
    source: float
    """Bytes that leave the storage."""
    server: float
    """Bytes that the busiest server receives and sends."""
    moved: float
    """Seconds until every server has the bytes."""
    seconds: float
    """Until every server has the weights; a server works on what has arrived."""


def updates(rates: Rates, at: Assumed) -> list[Update]:
    delta = at.checkpoint * rates.delta_share
    made = at.checkpoint / at.ranks / rates.delta  # each rank makes the delta of its own shard
    applied = at.checkpoint / 8 / rates.apply  # eight processes on a server
    loaded = at.checkpoint / 8 / rates.load
    found = []
    for way, nbytes, before, after in (("full", at.checkpoint, 0.0, loaded), ("delta", delta, made, applied)):
        served = max(at.servers * nbytes / at.storage, nbytes / at.server_network)
        found.append(Update(way, nbytes, at.servers * nbytes, nbytes, before + served, before + max(served, after)))
    moved, levels = tree_seconds(delta, at)
    found.append(
        Update(
            f"delta, tree of {levels} levels",
            delta,
            at.fan_out * delta,
            (1 + at.fan_out) * delta,
            made + moved,
            made + max(moved, applied),
        )
    )
    return found


def tree_seconds(nbytes: float, at: Assumed) -> tuple[float, int]:
    """When the last server has the last piece, and how many levels there are.

    A server forwards each piece to its children while it receives the next: level after
    level, a piece leaves when it has arrived and the one before it has left.
    """
    levels = math.ceil(math.log(at.servers * (at.fan_out - 1) / at.fan_out + 1, at.fan_out))
    pieces = math.ceil(nbytes / at.piece)
    sending = at.piece * at.fan_out / at.server_network
    arrived = np.zeros(pieces)
    for _ in range(levels):
        gone = np.maximum.accumulate(arrived - np.arange(pieces) * sending) + np.arange(1, pieces + 1) * sending
        arrived = gone + at.latency
    return float(arrived[-1]), levels


def human(nbytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} PB"


def clock(seconds: float) -> str:
    for unit, many in (("s", 60.0), ("min", 60.0)):
        if seconds < many:
            return f"{seconds:.2g} {unit}"
        seconds /= many
    return f"{seconds:.2g} h"


def main(megabytes: int) -> None:
    rates, at = measure(megabytes), Assumed()
    print("Measured here, one process:\n")
    print("| save | load | hash | make a delta | apply a delta | size of a delta | index, each box |")
    print("|---|---|---|---|---|---|---|")
    speeds = [rates.save, rates.load, rates.hash, rates.delta, rates.apply]
    print(
        f"| {' | '.join(f'{human(speed)}/s' for speed in speeds)} | {rates.delta_share:.1%} "
        f"| {rates.index_bytes:.0f} B, {rates.index_seconds * 1e6:.1f} µs |\n"
    )
    print(
        f"Assumed: {at.ranks_per_host} ranks on a host with {human(at.host_network)}/s, storage of "
        f"{human(at.storage)}/s, servers with {human(at.server_network)}/s, each forwarding to {at.fan_out}.\n"
    )
    print(f"Saving {human(at.checkpoint)} on {at.ranks:,} ranks:\n\n| | time |\n|---|---|")
    parts = save_seconds(rates, at)
    for what, spent in parts.items():
        print(f"| {what} | {clock(spent)} |")
    *together, index = parts.values()
    print(f"| all of it | {clock(max(together) + index)} |\n")
    print(f"New weights for {at.servers:,} servers, 2 % of them changed:\n")
    print("| | published | leaves the storage | busiest server moves | received after | in memory after |")
    print("|---|---|---|---|---|---|")
    for update in updates(rates, at):
        sizes = " | ".join(human(nbytes) for nbytes in (update.stored, update.source, update.server))
        print(f"| {update.way} | {sizes} | {clock(update.moved)} | {clock(update.seconds)} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
