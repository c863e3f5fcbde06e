"""W1 to W4 in formats of others: safetensors by tensorglot and by its package, .npz by tensorglot and by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import workloads
from benchmarks.case import Case
from benchmarks.containers import (
    NBYTES,
    check_load,
    check_open,
    check_save,
    imported,
    load_theirs,
    memory_limit,
    open_safetensors,
    save_theirs,
)
from benchmarks.containers import prepare as prepare_files


def prepare(workload: str, folder: Path) -> None:
    import numpy as np

    prepare_files(workload, ["safetensors"], folder)
    if workload == "W3":
        np.savez(folder / f"{workload}.npz", **workloads.tensors(workload, folder))


def open_tensorglot(workload: str, folder: Path) -> Callable[[], Any]:
    tg = imported()
    return lambda: tg.open(folder / f"{workload}.safetensors")


def load_tensorglot(workload: str, folder: Path) -> Callable[[], Any]:
    tg = imported()
    return lambda: tg.load(folder / f"{workload}.safetensors")


def save_tensorglot(workload: str, folder: Path) -> Callable[[], Any]:
    tg = imported()
    tensors = workloads.tensors(workload, folder)
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
    kinds = {"load": check_load, "open": check_open}
    kind = name.split()[1]
    check = partial(kinds[kind], workload) if kind in kinds else partial(check_save, workload, "")
    requires = () if "npz" in name else ("safetensors",)
    make = partial(prepare, workload)
    limits = memory_limit(name)
    return Case(name, named, make, NBYTES[workload], 1, goals, limits, check, first_use=True, requires=requires)


def cases() -> list[Case]:
    opening = {"tensorglot": open_tensorglot, "safetensors": open_safetensors}
    load = {"tensorglot": load_tensorglot, "safetensors": partial(load_theirs, "safetensors")}
    save = {"tensorglot": save_tensorglot, "safetensors": partial(save_theirs, "safetensors")}
    npz = {"tensorglot": load_npz_tensorglot, "numpy": load_npz_numpy}
    return [
        case("W1 load safetensors", load, {"safetensors": 4.0}),
        case("W4 open safetensors", opening, {"safetensors": 4.0}),
        case("W4 load safetensors", load, {"safetensors": 4.0}),
        case("W4 save safetensors", save, {"safetensors": 4.0}),
        case("W3 load npz", npz, {"numpy": 1.0}),
    ]
