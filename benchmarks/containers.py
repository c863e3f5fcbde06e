"""W1 to W4: BinTensors by tensorglot and by its package, other tensor files, and bare system calls.

The peers are those of `peers`. W3 leaves zarr out and W4 also h5py and torch: with a
directory, a dataset or a storage for each tensor they take minutes.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks import workloads
from benchmarks.case import Action, Case
from benchmarks.peers import PEERS, installed

NBYTES = {"W1": 8 << 26, "W2": 505_000_000, "W3": 10_240_000, "W4": 1_600_000}
LOAD_EXTRA_NBYTES, SAVE_EXTRA_NBYTES = 32_000_000, 64_000_000
"""The most memory that loading may take beyond the payload, and saving beyond the arrays."""


def memory_limit(name: str) -> dict[str, float]:
    """The limit of a case by its name, which has the workload and the verb."""
    workload, _, rest = name.partition(" ")
    if "load" in rest:
        return {"extra_nbytes": LOAD_EXTRA_NBYTES + (0 if "out=" in rest else NBYTES[workload])}
    return {"extra_nbytes": SAVE_EXTRA_NBYTES} if "save" in rest else {}


def prepare(workload: str, libraries: Iterable[str], folder: Path) -> None:
    """A file of each library, once."""
    import tensorglot as tg

    workloads.prepare(workload, folder)
    files = {library: folder / f"{workload}.{PEERS[library].suffix}" for library in libraries if library in PEERS}
    missing = {library: path for library, path in files.items() if installed(library) and not path.exists()}
    if not missing and (folder / f"{workload}.bt").exists():
        return
    tensors = workloads.tensors(workload, folder)
    if not (folder / f"{workload}.bt").exists():
        tg.save(folder / f"{workload}.bt", tensors, durable=False)
    for library, path in missing.items():
        PEERS[library].save(path, tensors)()


# A library is imported by the process that measures it, and by no other, before the clock starts.


def imported() -> ModuleType:
    """tensorglot with everything that a first use loads, as the peers have it after their import."""
    import tensorglot as tg

    tg.loads(tg.dumps({}, format="bintensors"))
    return tg


def load_ours(workload: str, folder: Path) -> Callable[[], Any]:
    tg = imported()
    return lambda: tg.load(folder / f"{workload}.bt")


def load_ours_out(workload: str, folder: Path) -> Callable[[], Any]:
    tg = imported()
    arrays = tg.load(folder / f"{workload}.bt")
    for array in arrays.values():
        array.view(np.uint8)[...] = 0
    return lambda: tg.load(folder / f"{workload}.bt", out=arrays)


def load_theirs(library: str, workload: str, folder: Path) -> Callable[[], Any]:
    peer = PEERS[library]
    return peer.load(folder / f"{workload}.{peer.suffix}")


def load_bare(workload: str, folder: Path) -> Callable[[], Any]:
    """The whole file into huge pages, by two threads."""
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(2)
    list(pool.map(int, range(8)))

    def load() -> object:
        with (folder / f"{workload}.bt").open("rb", buffering=0) as file:
            size, piece = os.fstat(file.fileno()).st_size, 8 << 20
            room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            room.madvise(mmap.MADV_HUGEPAGE)
            whole = memoryview(room)

            def read(at: int) -> None:
                os.preadv(file.fileno(), [whole[at : at + piece]], at)

            list(pool.map(read, range(0, size, piece)))
            return whole

    return load


def load_bare_out(workload: str, folder: Path) -> Callable[[], Any]:
    """Every tensor from its span of the file into its array, by two threads: no index, no check."""
    from concurrent.futures import ThreadPoolExecutor

    tg = imported()
    arrays = tg.load(folder / f"{workload}.bt")
    with tg.open(folder / f"{workload}.bt") as archive:
        offsets = {name: tensor.offset for name, tensor in archive.items()}
    jobs = [(array.reshape(-1).view(np.uint8).data, offsets[name]) for name, array in arrays.items()]
    halves = [jobs[::2], jobs[1::2]]
    pool = ThreadPoolExecutor(2)
    list(pool.map(int, range(8)))

    def load() -> dict[str, Any]:
        with (folder / f"{workload}.bt").open("rb", buffering=0) as file:

            def read(half: list[Any]) -> None:
                for room, offset in half:
                    os.preadv(file.fileno(), [room], offset)

            list(pool.map(read, halves))
        return arrays

    return load


def check_load(workload: str, folder: Path, library: str, result: Any) -> None:
    if library == "bare" and not isinstance(result, dict):
        assert result == (folder / f"{workload}.bt").read_bytes()
    else:
        workloads.same(workload, folder, result)


def save_ours(workload: str, folder: Path) -> Callable[[], Any]:
    tg = imported()
    tensors = workloads.tensors(workload, folder)
    return lambda: tg.save(folder / "saved.bt", tensors, durable=False)


def save_theirs(library: str, workload: str, folder: Path) -> Callable[[], Any]:
    peer = PEERS[library]
    return peer.save(folder / f"saved.{peer.suffix}", workloads.tensors(workload, folder))


def save_bare(source: str, folder: Path) -> Callable[[], Any]:
    """The bytes of a file, written and nothing else."""
    data = memoryview((folder / source).read_bytes())

    def write() -> None:
        with (folder / "saved.bare").open("wb", buffering=0) as file:
            done = 0
            while done < len(data):
                done += file.write(data[done:])

    return write


def check_save(workload: str, source: str, folder: Path, library: str, result: Any) -> None:
    """What was written is read back: by us or by the library that wrote it."""
    (saved,) = folder.glob("saved*")
    if library == "bare":
        assert saved.read_bytes() == (folder / source).read_bytes()
    elif library in PEERS:
        workloads.same(workload, folder, PEERS[library].load(saved)())
    else:
        workloads.same(workload, folder, imported().load(saved))


def open_ours(workload: str, folder: Path) -> Callable[[], Any]:
    tg = imported()
    return lambda: tg.open(folder / f"{workload}.bt")


def open_bintensors(workload: str, folder: Path) -> Callable[[], Any]:
    from bintensors import safe_open

    return lambda: safe_open(folder / f"{workload}.theirs.bt", framework="np")


def open_safetensors(workload: str, folder: Path) -> Callable[[], Any]:
    from safetensors import safe_open

    return lambda: safe_open(folder / f"{workload}.safetensors", framework="np")


def check_open(workload: str, folder: Path, library: str, result: Any) -> None:
    assert set(result.keys()) == workloads.expected(workload, folder).keys()


ONE = "model.layers.50.mlp.up_proj.weight"
SLICED, ROWS = "layer.3.weight", slice(2000, 2041)


def one_ours(folder: Path) -> Callable[[], Any]:
    tg = imported()
    return lambda: tg.open(folder / "W2.bt")[ONE].numpy()


def slice_ours(folder: Path) -> Callable[[], Any]:
    tg = imported()
    return lambda: tg.open(folder / "W1.bt")[SLICED][ROWS]


def one_theirs(library: str, folder: Path) -> Callable[[], Any]:
    opening = OPEN[library]("W2", folder)

    def read() -> object:
        with opening() as file:
            return file.get_tensor(ONE)

    return read


def slice_theirs(library: str, folder: Path) -> Callable[[], Any]:
    opening = OPEN[library]("W1", folder)

    def read() -> object:
        with opening() as file:
            return file.get_slice(SLICED)[ROWS]

    return read


OPEN = {"bintensors": open_bintensors, "safetensors": open_safetensors}


def check_one(folder: Path, library: str, result: Any) -> None:
    assert workloads.digest(result) == workloads.expected("W2", folder)[ONE]


def check_slice(folder: Path, library: str, result: Any) -> None:
    assert np.array_equal(result, workloads.tensors("W1", folder)[SLICED][ROWS])


def cases() -> list[Case]:
    def case(
        name: str,
        actions: dict[str, Action],
        goals: dict[str, float],
        check: Callable[..., None],
        repeats: int = 1,
        quick: bool = False,
    ) -> Case:
        """A row whose workload is the first word of its name."""
        workload = name.split()[0]
        make = partial(prepare, workload, tuple(actions))
        return Case(
            name, actions, make, NBYTES[workload], repeats, goals, memory_limit(name), check, repeats == 1, quick=quick
        )

    def load(name: str, libraries: str, goals: dict[str, float], repeats: int = 1, quick: bool = False) -> Case:
        workload = name.split()[0]
        ours = load_ours_out if "out=" in name else load_ours
        actions: dict[str, Action] = {"tensorglot": partial(ours, workload)}
        actions |= {library: partial(load_theirs, library, workload) for library in libraries.split()}
        if "bare" in goals:
            actions["bare"] = partial(load_bare_out if "out=" in name else load_bare, workload)
        return case(name, actions, goals, partial(check_load, workload), repeats, quick)

    def save(name: str, libraries: str, goals: dict[str, float], quick: bool = False) -> Case:
        workload = name.split()[0]
        actions: dict[str, Action] = {"tensorglot": partial(save_ours, workload)}
        actions |= {library: partial(save_theirs, library, workload) for library in libraries.split()}
        if "bare" in goals:
            actions["bare"] = partial(save_bare, f"{workload}.bt")
        return case(name, actions, goals, partial(check_save, workload, f"{workload}.bt"), quick=quick)

    def opening(name: str, repeats: int, quick: bool = False) -> Case:
        workload = name.split()[0]
        actions: dict[str, Action] = {"tensorglot": partial(open_ours, workload)}
        actions |= {library: partial(action, workload) for library, action in OPEN.items()}
        goals = {"bintensors": 2.0, "safetensors": 8.0}
        return case(name, actions, goals, partial(check_open, workload), repeats, quick)

    two, four = "bintensors safetensors", {"bintensors": 4.0, "safetensors": 4.0}
    every = f"{two} pickle arrow h5py zarr torch"
    fastest = ("pickle", "arrow", "h5py", "zarr", "torch")
    not_slower = {"bintensors": 1.0, "safetensors": 1.0}
    writing = not_slower | dict.fromkeys(fastest, 1.0) | {"bare": 0.8}
    one: dict[str, Action] = {"tensorglot": one_ours, **{peer: partial(one_theirs, peer) for peer in OPEN}}
    some: dict[str, Action] = {"tensorglot": slice_ours, **{peer: partial(slice_theirs, peer) for peer in OPEN}}
    small = {"bintensors": 4.0, "pickle": 2.0}
    return [
        load("W1 load, new process", every, four | dict.fromkeys(fastest, 1.7) | {"bare": 0.7}),
        load("W2 load, new process", every, four | dict.fromkeys(fastest, 1.25) | {"bare": 0.7}),
        load("W1 load, repeated", two, {}, repeats=5),
        load("W2 load into out=, repeated", two, {"bintensors": 2.0, "safetensors": 2.0, "bare": 0.7}, repeats=5),
        load("W3 load", f"{two} pickle h5py torch", small, quick=True),
        load("W4 load", f"{two} pickle", small, quick=True),
        save("W1 save", every, writing),
        save("W2 save", every, writing),
        save("W3 save", f"{two} pickle h5py torch", {"safetensors": 4.0}, quick=True),
        save("W4 save", f"{two} pickle", {"safetensors": 4.0}),
        opening("W2 open", repeats=20, quick=True),
        opening("W4 open", repeats=5, quick=True),
        case("W2 open and read one", one, not_slower, check_one, repeats=20, quick=True),
        case("W1 slice of 1 %", some, not_slower, check_slice, repeats=20),
    ]
