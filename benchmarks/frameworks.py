"""W2 into PyTorch: loading alone, mapped or read, and into a module, by us, safetensors and fastsafetensors.

`bare` is load_state_dict of tensors that are in memory already: what every loader pays
after it. The memory of a module is in use before the clock starts, the file is in the
page cache, and every loader has loaded a small file before, for everyone alike:
fastsafetensors imports torch when it is first used. Rows that have an action in common
take turns in one loop, and with more rounds than others: page faults of half a gigabyte
vary more than our differences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import workloads
from benchmarks.case import Case
from benchmarks.containers import LOAD_EXTRA_NBYTES, NBYTES, check_load, imported

FILE = "W2.safetensors"
ROUNDS = 11


def prepare(folder: Path) -> None:
    import tensorglot as tg

    workloads.prepare("W2", folder)
    if not (folder / FILE).exists():
        tg.save(folder / FILE, workloads.tensors("W2", folder), durable=False)


Load = Callable[[Path], Callable[[], Mapping[str, Any]]]


def tensorglot(folder: Path, backend: str = "auto") -> Callable[[], Mapping[str, Any]]:
    tg = imported()
    return lambda: tg.load(folder / FILE, framework="torch", backend=backend)


def drop_in(folder: Path) -> Callable[[], Mapping[str, Any]]:
    tg = imported()
    return lambda: tg.torch.load_file(folder / FILE, backend="mmap")


def safetensors(folder: Path) -> Callable[[], Mapping[str, Any]]:
    from safetensors.torch import load_file

    return lambda: load_file(folder / FILE)


def cloned(folder: Path) -> Callable[[], Mapping[str, Any]]:
    """What we return: tensors that no longer depend on the file."""
    load = safetensors(folder)
    return lambda: {name: tensor.clone() for name, tensor in load().items()}


def fastsafetensors(folder: Path) -> Callable[[], Mapping[str, Any]]:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    def load() -> Mapping[str, Any]:
        loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True)
        loader.add_filenames({0: [str(folder / FILE)]})
        buffer = loader.copy_files_to_device()
        return Held({name: buffer.get_tensor(name) for name in loader.get_keys()}, loader, buffer)

    return load


class Held(dict[str, Any]):
    """Tensors, and what owns their memory."""

    def __init__(self, tensors: Mapping[str, Any], *owners: Any) -> None:
        super().__init__(tensors)
        self.owners = owners


def module(folder: Path) -> Any:
    """A module with the parameters of the file, whose memory is in use already."""
    import torch

    import tensorglot as tg

    root = torch.nn.Module()
    with tg.open(folder / FILE) as archive:
        for name, tensor in archive.items():
            inner = root
            *path, last = name.split(".")
            for part in path:
                if not hasattr(inner, part):
                    inner.add_module(part, torch.nn.Module())
                inner = getattr(inner, part)
            values = torch.ones(tensor.shape, dtype=torch.bfloat16)
            inner.register_parameter(last, torch.nn.Parameter(values, requires_grad=False))
    return root


def into_module(load: Load, folder: Path) -> Callable[[], Any]:
    model, read = module(folder), load(folder)

    def run() -> Any:
        model.load_state_dict(read())
        return model.state_dict()

    return run


def bare(folder: Path) -> Callable[[], Any]:
    model, tensors = module(folder), tensorglot(folder)()

    def run() -> Any:
        model.load_state_dict(tensors)
        return model.state_dict()

    return run


def into_tensors(folder: Path) -> Callable[[], Any]:
    """tensorglot, directly into the memory of a module."""
    tg = imported()
    model = module(folder)
    return lambda: tg.load(folder / FILE, framework="torch", out=model.state_dict())


def model_tensorglot(folder: Path) -> Callable[[], Any]:
    tg = imported()
    model = module(folder)

    def run() -> Any:
        tg.torch.load_model(model, folder / FILE)
        return model.state_dict()

    return run


def model_safetensors(folder: Path) -> Callable[[], Any]:
    from safetensors.torch import load_model

    model = module(folder)

    def run() -> Any:
        load_model(model, folder / FILE)
        return model.state_dict()

    return run


def check(folder: Path, library: str, result: Any) -> None:
    """Checks that the loaded tensors are those of W2."""
    check_load("W2", folder, "tensorglot", result)


def cases() -> list[Case]:
    into: dict[str, Any] = {
        "safetensors": partial(into_module, safetensors),
        "fastsafetensors": partial(into_module, fastsafetensors),
    }
    half_more = {"safetensors": 1.5, "fastsafetensors": 1.5}

    def case(name: str, together: str, actions: Mapping[str, Any], goals: dict[str, float], payload: int = 0) -> Case:
        return Case(
            name, actions, prepare, NBYTES["W2"], 1, goals, {"extra_nbytes": payload + LOAD_EXTRA_NBYTES}, check,
            first_use=True, requires=("torch", "safetensors"), rounds=ROUNDS, together=together,
        )  # fmt: skip

    loads = {"tensorglot": tensorglot, "safetensors": safetensors, "safetensors, cloned": cloned}
    loads["fastsafetensors"] = fastsafetensors
    state = {"tensorglot": partial(into_module, tensorglot), **into, "bare": bare}
    return [
        case("torch load", "load", loads, {"safetensors, cloned": 2.5, "fastsafetensors": 2.5}, NBYTES["W2"]),
        case(
            "torch load, mmap",
            "load",
            {"tensorglot": partial(tensorglot, backend="mmap"), "safetensors": safetensors},
            {"safetensors": 1.0},
        ),
        case(
            "torch load_file, mmap", "load", {"tensorglot": drop_in, "safetensors": safetensors}, {"safetensors": 1.0}
        ),
        case("torch load and load_state_dict", "module", state, half_more, NBYTES["W2"]),
        case(
            "torch load and load_state_dict, mmap",
            "module",
            {"tensorglot": partial(into_module, partial(tensorglot, backend="mmap")), **into},
            {},
            NBYTES["W2"],  # the pages of the file that are mapped
        ),
        case("torch load, out=", "module", {"tensorglot": into_tensors, **into}, half_more),
        case(
            "torch load_model",
            "module",
            {"tensorglot": model_tensorglot, "safetensors": model_safetensors},
            {"safetensors": 1.5},
        ),
    ]
