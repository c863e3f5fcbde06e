"""W1 to W4 in other people's formats: safetensors by us and by its package, .npz by us and by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.case import Case
from benchmarks.containers import (
    NBYTES,
    imported,
    load_safetensors,
    open_safetensors,
    save_safetensors,
)
from benchmarks.workloads import WORKLOADS


def prepare(workload: str, folder: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    tensors = WORKLOADS[workload]()
    if not (folder / f"{workload}.safetensors").exists():
        save_file(tensors, folder / f"{workload}.safetensors")
    if workload == "W3":
        np.savez(folder / f"{workload}.npz", **tensors)


def open_tensorglot(workload: str, folder: Path) -> Callable[[], Any]:
    tg = imported()
    return lambda: tg.open(folder / f"{workload}.safetensors")


def load_tensorglot(workload: str, folder: Path) -> Callable[[], Any]:
    tg = imported()
    return lambda: tg.load(folder / f"{workload}.safetensors")


def save_tensorglot(workload: str, folder: Path) -> Callable[[], Any]:
    tg = imported()
    tensors = WORKLOADS[workload]()
    return lambda: tg.save(folder / "saved.safetensors", tensors, durable=False)


def load_npz_tensorglot(workload: str, folder: Path) -> Callable[[], Any]:
    tg = imported()
    return lambda: tg.load(folder / f"{workload}.npz")


def load_npz_numpy(workload: str, folder: Path) -> Callable[[], Any]:
    import numpy as np

    def read() -> object:
        with np.load(folder / f"{workload}.npz") as file:
            return {name: file[name] for name in file}

    return read


def case(name: str, actions: dict[str, Callable[..., Any]], goals: dict[str, float]) -> Case:
    """A row whose workload is the first word of its name."""
    workload = name.split()[0]
    named = {library: partial(action, workload) for library, action in actions.items()}
    return Case(name, named, partial(prepare, workload), NBYTES[workload], 1, goals)


def cases() -> list[Case]:
    opening = {"tensorglot": open_tensorglot, "safetensors": open_safetensors}
    load = {"tensorglot": load_tensorglot, "safetensors": load_safetensors}
    save = {"tensorglot": save_tensorglot, "safetensors": save_safetensors}
    npz = {"tensorglot": load_npz_tensorglot, "numpy": load_npz_numpy}
    return [
        case("W1 load safetensors", load, {"safetensors": 4.0}),
        case("W4 open safetensors", opening, {"safetensors": 4.0}),
        case("W4 load safetensors", load, {"safetensors": 4.0}),
        case("W4 save safetensors", save, {"safetensors": 4.0}),
        case("W3 load npz", npz, {"numpy": 1.0}),
    ]
