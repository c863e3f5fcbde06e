"""A file to be replaced, and assertions about it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tensorglot as tg

__all__ = [
    "NEW", "NEW_BYTES", "OLD", "OLD_BYTES", "alone", "change_at_once", "check", "names", "same", "save", "write",
]  # fmt: skip

OLD = {"w": np.arange(1000, dtype=np.float32)}
NEW = {"w": np.arange(150_000, dtype=np.float64), "b": np.ones(3, np.uint8)}
"""Large enough for a save to reserve space first: more than 1 MiB."""
OLD_BYTES, NEW_BYTES = (tg.dumps(tensors, format="bintensors") for tensors in (OLD, NEW))


def same(path: Path, tensors: dict[str, NDArray[Any]]) -> bool:
    loaded = tg.load(path, strict=True)
    return loaded.keys() == tensors.keys() and all((loaded[k] == tensors[k]).all() for k in tensors)


def change_at_once(path: Path, *, in_place: bool) -> dict[str, NDArray[Any]]:
    """Four threads append tensors to a file and edit it. Returns those added: an append waits, an edit may fail."""
    outcomes: dict[str, str] = {}
    start = threading.Barrier(4)

    def work(worker: int) -> None:
        start.wait()
        for i in range(worker, 24, 4):
            name = f"n{i}"
            try:
                if i % 3:
                    with tg.Writer(path, append=True, in_place=in_place, durable=False) as out:
                        out.add(name, np.full(50, i))
                else:
                    tg.edit(path, add={name: np.full(50, i)}, in_place=in_place and i % 2 == 0, durable=False)
                outcomes[name] = "done"
            except tg.InputError as error:
                outcomes[name] = error.rule

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(outcome == "done" for name, outcome in outcomes.items() if int(name[1:]) % 3), "an append waits"
    assert set(outcomes.values()) <= {"done", "source.locked", "source.changed"}
    return {name: np.full(50, int(name[1:])) for name, outcome in outcomes.items() if outcome == "done"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def alone(path: Path) -> bool:
    """Asserts that the folder has no other file, not even a hidden one."""
    return names(path.parent) == [path.name]


def save(path: Path) -> None:
    tg.save(path, NEW)


def write(path: Path) -> None:
    with tg.Writer(path) as out:
        out.add("b", NEW["b"])
        with out.stream("w", "float64", NEW["w"].shape) as stream:
            for piece in np.split(NEW["w"], 3):
                stream.write(piece)


def check(folder: Path, old: bytes | None, outcomes: tuple[bytes | None, ...]) -> None:
    """The target is one of the outcomes and the only file there is; then it is set up again."""
    target = folder / "model.bt"
    contents = target.read_bytes() if target.exists() else None
    beside = set(names(folder)) - {"model.bt"}
    assert not beside, "a temporary file was left"
    assert contents in outcomes, "neither the old contents nor the new ones"
    if old is None:
        target.unlink(missing_ok=True)
    else:
        target.write_bytes(old)
