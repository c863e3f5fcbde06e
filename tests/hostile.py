"""Every hostile file of the tests, by family: the conformance corpus, the attack tables of all formats, heavy files.

A case makes its file, or its directory, in a folder and returns the source that a verb is
given. A family is imported when it is asked for, so that a child process pays for one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from conformance import FOLDER, unpack

__all__ = ["FAMILIES", "Case", "cases"]


@dataclass(frozen=True)
class Case:
    what: str
    format: str | None
    make: Callable[[Path], Path | str]
    """Writes it into an empty folder."""
    type: str | None = None
    """Of canonical bytes without a container."""


def _write(name: str, data: bytes, folder: Path) -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def _corpus(name: str, format: str, suffix: str) -> Iterable[Case]:
    for line in (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines():
        case = json.loads(line)
        make = partial(_write, f"hostile{suffix}", unpack(case))
        yield Case(f"{name}: {case['name']}", format, make, case.get("type"))


def _table(module: str, name: str, format: str, suffix: str) -> Iterable[Case]:
    table = getattr(import_module(module), name)
    for what, row in (table() if callable(table) else table).items():
        yield Case(f"{format}: {what}", format, partial(_write, f"hostile{suffix}", row[0]))


def _dcp() -> Iterable[Case]:
    import test_dcp

    for what, (data, _) in test_dcp.HOSTILE.items():
        yield Case(f"dcp: {what}", "dcp", lambda folder, data=data: _write(".metadata", data, folder).parent)
    good = {"files": ["w.safetensors"], "tensors": {"w": test_dcp.WHOLE}}
    for what, (fields, _) in test_dcp.BAD_INDEXES.items():

        def make(folder: Path, fields: dict[str, Any] = fields) -> Path:
            test_dcp.write_index(folder, **(good | fields))
            return folder

        yield Case(f"dcp: {what}", "dcp", make)


def _delta() -> Iterable[Case]:
    from fuzzing import delta

    for number, data in enumerate(delta.mutants(60, seed=4)):
        yield Case(f"delta: mutant {number}", "delta", partial(_write, "hostile.tgdelta", data))


def _shards() -> Iterable[Case]:
    import tensorglot as tg
    import test_shards

    for what, (damage, _) in test_shards.REFUSED.items():

        def make(folder: Path, damage: Callable[[Path], object] = damage) -> Path:
            names, weight_map = list(test_shards.TENSORS), {}
            for file, part in ((test_shards.FIRST, names[:3]), (test_shards.SECOND, names[3:])):
                tg.save(folder / file, {name: test_shards.TENSORS[name] for name in part}, durable=False)
                weight_map |= dict.fromkeys(part, file)
            test_shards.write_index(folder, weight_map)
            damage(folder)
            return folder

        yield Case(f"shards: {what}", None, make)


def _store() -> Iterable[Case]:
    import test_attacks_store
    from tensorglot.store import Store

    for what, attack in test_attacks_store.ATTACKS.items():
        if what == "node: 8 GiB of one chunk":  # within `Limits.store_ratio`: a verb may take the time to read it all
            continue

        def make(folder: Path, attack: Callable[[Path], None] = attack) -> str:
            Store.create(folder / "store")
            attack(folder / "store")
            return f"store://{folder / 'store'}#main"

        yield Case(f"store: {what}", None, make)
    for what, data in test_attacks_store.BUNDLES.items():
        yield Case(f"bundle: {what}", None, partial(_write, "hostile.car", data))


def _heavy() -> Iterable[Case]:
    from heavy import HEAVY

    for what, (format, make) in HEAVY.items():
        yield Case(f"heavy: {what}", format, make)


def _densest() -> Iterable[Case]:
    from densest import DENSEST

    for what, (format, make) in DENSEST.items():
        yield Case(f"densest: {what}", format, make)


FAMILIES: dict[str, tuple[Callable[[], Iterable[Case]], ...]] = {
    "bintensors": tuple(partial(_corpus, f"bintensors-{n}", f"bintensors@{n}", ".bt") for n in "01"),
    "ztensor": tuple(partial(_corpus, f"ztensor-{version}", "ztensor", ".zt") for version in ("0.1", "1", "2")),
    "dynd": (partial(_corpus, "dynd", "dynd", ".dynd"),),
    "bson": (partial(_corpus, "bson", "bson", ".bson"),),
    "safetensors": (partial(_table, "test_safetensors", "REFUSED", "safetensors", ".safetensors"),),
    "npy": (partial(_table, "test_numpy_files", "NPY_REFUSED", "npy", ".npy"),),
    "npz": (partial(_table, "test_numpy_files", "NPZ_REFUSED", "npz", ".npz"),),
    "pt": (partial(_table, "test_pt", "REFUSED", "pt", ".pt"),),
    "gguf": (partial(_table, "test_gguf", "REFUSED", "gguf", ".gguf"),),
    "onnx": (partial(_table, "test_onnx", "REFUSED", "onnx", ".onnx"),),
    "hdf5": (partial(_table, "test_hdf5", "hostile_files", "hdf5", ".h5"),),
    "dcp": (_dcp,),
    "delta": (_delta, partial(_corpus, "delta", "delta", ".tgdelta")),
    "shards": (_shards,),
    "store": (_store,),
    "heavy": (_heavy,),
    "densest": (_densest,),
}


def cases(family: str) -> list[Case]:
    return [case for table in FAMILIES[family] for case in table()]
