"""W1 to W4: BinTensors by us and by its package; safetensors, pickle, Arrow and bare system calls beside them.

Arrow has no bfloat16, so in W2 it gets the same bits as uint16, and its names are
not in its file.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.case import Case
from benchmarks.workloads import WORKLOADS

NBYTES = {"W1": 8 << 26, "W2": 610_000_000, "W3": 10_240_000, "W4": 1_600_000}


def prepare(workload: str, folder: Path) -> None:
    """One file of each kind, once."""
    import bintensors.numpy
    import numpy as np
    import pyarrow as pa
    import safetensors.numpy

    import tensorglot as tg

    if (folder / f"{workload}.safetensors").exists():
        return
    tensors = WORKLOADS[workload]()
    tg.save(folder / f"{workload}.0.bt", tensors, durable=False)
    bintensors.numpy.save_file(tensors, folder / f"{workload}.bt")
    safetensors.numpy.save_file(tensors, folder / f"{workload}.safetensors")
    (folder / f"{workload}.pickle").write_bytes(pickle.dumps(tensors, 5))
    with pa.OSFile(str(folder / f"{workload}.arrow"), "wb") as file:
        for array in tensors.values():
            plain = array if array.dtype.kind == "f" else array.view(np.uint16)
            pa.ipc.write_tensor(pa.Tensor.from_numpy(plain), file)


# A library is imported by the process that measures it, and by no other, before the clock starts.


def imported() -> ModuleType:
    """tensorglot with everything that a first use loads, as the peers have it after their import."""
    import tensorglot as tg

    tg.loads(tg.dumps({}, format="bintensors"))
    return tg


def load_tensorglot(workload: str, folder: Path) -> Callable[[], Any]:
    tg = imported()

    return lambda: tg.load(folder / f"{workload}.0.bt")


def load_tensorglot_out(workload: str, folder: Path) -> Callable[[], Any]:
    tg = imported()

    arrays = tg.load(folder / f"{workload}.0.bt")
    return lambda: tg.load(folder / f"{workload}.0.bt", out=arrays)


def load_bintensors(workload: str, folder: Path) -> Callable[[], Any]:
    from bintensors.numpy import load_file

    return lambda: load_file(folder / f"{workload}.bt")


def load_safetensors(workload: str, folder: Path) -> Callable[[], Any]:
    from safetensors.numpy import load_file

    return lambda: load_file(folder / f"{workload}.safetensors")


def load_pickle(workload: str, folder: Path) -> Callable[[], Any]:
    import numpy  # noqa: F401 - as the others have it before the clock starts

    def load() -> object:
        with (folder / f"{workload}.pickle").open("rb") as file:
            return pickle.load(file)

    return load


def load_arrow(workload: str, folder: Path) -> Callable[[], Any]:
    import pyarrow as pa

    count = len(WORKLOADS[workload]())

    def load() -> object:
        with pa.OSFile(str(folder / f"{workload}.arrow")) as file:
            return [pa.ipc.read_tensor(file).to_numpy() for _ in range(count)]

    return load


def load_bare(workload: str, folder: Path) -> Callable[[], Any]:
    """The whole file into huge pages, by two threads."""
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(2)
    list(pool.map(int, range(8)))

    def load() -> object:
        with (folder / f"{workload}.0.bt").open("rb", buffering=0) as file:
            size, piece = os.fstat(file.fileno()).st_size, 8 << 20
            room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            room.madvise(mmap.MADV_HUGEPAGE)
            whole = memoryview(room)

            def read(at: int) -> None:
                os.preadv(file.fileno(), [whole[at : at + piece]], at)

            list(pool.map(read, range(0, size, piece)))
            return whole

    return load


def save_tensorglot(workload: str, folder: Path) -> Callable[[], Any]:
    tg = imported()

    tensors = WORKLOADS[workload]()
    return lambda: tg.save(folder / "saved.bt", tensors, durable=False)


def save_bintensors(workload: str, folder: Path) -> Callable[[], Any]:
    from bintensors.numpy import save_file

    tensors = WORKLOADS[workload]()
    return lambda: save_file(tensors, folder / "saved.bt")


def save_safetensors(workload: str, folder: Path) -> Callable[[], Any]:
    from safetensors.numpy import save_file

    tensors = WORKLOADS[workload]()
    return lambda: save_file(tensors, folder / "saved.safetensors")


def save_bare(workload: str, folder: Path) -> Callable[[], Any]:
    """The same bytes, written and nothing else."""
    data = memoryview((folder / f"{workload}.0.bt").read_bytes())

    def write() -> None:
        with (folder / "saved.bare").open("wb", buffering=0) as file:
            done = 0
            while done < len(data):
                done += file.write(data[done:])

    return write


def open_tensorglot(workload: str, folder: Path) -> Callable[[], Any]:
    tg = imported()

    return lambda: tg.open(folder / f"{workload}.0.bt")


def open_bintensors(workload: str, folder: Path) -> Callable[[], Any]:
    from bintensors import safe_open

    return lambda: safe_open(folder / f"{workload}.bt", framework="np")


def open_safetensors(workload: str, folder: Path) -> Callable[[], Any]:
    from safetensors import safe_open

    return lambda: safe_open(folder / f"{workload}.safetensors", framework="np")


ONE = "model.layers.50.mlp.up_proj.weight"


def one_tensorglot(folder: Path) -> Callable[[], Any]:
    tg = imported()

    return lambda: tg.open(folder / "W2.0.bt")[ONE].numpy()


def one_bintensors(folder: Path) -> Callable[[], Any]:
    from bintensors import safe_open

    def read() -> object:
        with safe_open(folder / "W2.bt", framework="np") as file:
            return file.get_tensor(ONE)

    return read


def one_safetensors(folder: Path) -> Callable[[], Any]:
    from safetensors import safe_open

    def read() -> object:
        with safe_open(folder / "W2.safetensors", framework="np") as file:
            return file.get_tensor(ONE)

    return read


def slice_tensorglot(folder: Path) -> Callable[[], Any]:
    tg = imported()

    return lambda: tg.open(folder / "W1.0.bt")["layer.3.weight"][2000:2041]


def slice_bintensors(folder: Path) -> Callable[[], Any]:
    from bintensors import safe_open

    def read() -> object:
        with safe_open(folder / "W1.bt", framework="np") as file:
            return file.get_slice("layer.3.weight")[2000:2041]

    return read


def slice_safetensors(folder: Path) -> Callable[[], Any]:
    from safetensors import safe_open

    def read() -> object:
        with safe_open(folder / "W1.safetensors", framework="np") as file:
            return file.get_slice("layer.3.weight")[2000:2041]

    return read


def case(name: str, actions: list[Callable[..., Any]], goals: dict[str, float], repeats: int = 1) -> Case:
    """A row whose workload is the first word of its name."""
    workload = name.split()[0]
    named = {}
    for action in actions:
        library = action.__name__.partition("_")[2].partition("_")[0]
        takes_workload = action.__code__.co_argcount == 2
        named[library] = partial(action, workload) if takes_workload else action
    return Case(name, named, partial(prepare, workload), NBYTES[workload], repeats, goals)


def cases() -> list[Case]:
    load = [load_tensorglot, load_bintensors, load_safetensors]
    large = [*load, load_pickle, load_arrow, load_bare]
    small = [*load, load_pickle]
    save = [save_tensorglot, save_bintensors, save_safetensors, save_bare]
    opening = [open_tensorglot, open_bintensors, open_safetensors]
    not_slower = {"bintensors": 1.0, "safetensors": 1.0}
    return [
        case("W1 load, new process", large,
             {"bintensors": 4.0, "safetensors": 4.0, "pickle": 1.7, "arrow": 1.7, "bare": 0.7}),
        case("W2 load, new process", large,
             {"bintensors": 4.0, "safetensors": 4.0, "pickle": 1.25, "arrow": 1.25, "bare": 0.7}),
        case("W1 load, repeated", load, {}, repeats=5),
        case("W2 load into out=, repeated", [load_tensorglot_out, load_bintensors, load_safetensors],
             {"bintensors": 2.0, "safetensors": 2.0}, repeats=5),
        case("W3 load", small, {"bintensors": 4.0, "pickle": 2.0}),
        case("W4 load", small, {"bintensors": 4.0, "pickle": 2.0}),
        case("W1 save", save, not_slower | {"bare": 0.8}),
        case("W2 save", save, not_slower | {"bare": 0.8}),
        case("W3 save", save[:3], {"safetensors": 4.0}),
        case("W4 save", save[:3], {"safetensors": 4.0}),
        case("W2 open", opening, {"bintensors": 2.0, "safetensors": 8.0}, repeats=20),
        case("W4 open", opening, {"bintensors": 2.0, "safetensors": 8.0}, repeats=5),
        case("W2 open and read one", [one_tensorglot, one_bintensors, one_safetensors], not_slower, repeats=20),
        case("W1 slice of 1 %", [slice_tensorglot, slice_bintensors, slice_safetensors], not_slower, repeats=20),
    ]  # fmt: skip
