"""Tensors changed in place in zTensor 2, and a power cut at any time: old contents or new ones.

The disk is a model. What was written before the last sync is there. Of what was written
since, any sectors may be there and others not, in any order; the size of the file may be
the old one or any later one, and what was not written reads as zeros.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from faults import FaultyOs
from figures import seen
from tensorglot.containers.ztensor.constants import TORN_NBYTES
from tensorglot.io import in_place, sink
from test_in_place import CHANGES, TENSORS, contents, expected

SECTOR = 512


@dataclass
class Disk:
    """What became of one file, operation by operation."""

    old: bytes
    states: list[tuple[str, list[tuple[int, bytes]], list[int], bytes]] = field(default_factory=list)
    """Before each operation: its name, sectors that were not synced, sizes that the file had, what was synced."""

    def __post_init__(self) -> None:
        self._synced = self.old
        self._sectors: list[tuple[int, bytes]] = []
        self._sizes = [len(self.old)]

    def before(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.cut(name)
        if name == "pwrite":
            _, data, offset = arguments
            for begin in range(offset // SECTOR * SECTOR, offset + len(data), SECTOR):
                first, last = max(begin, offset), min(begin + SECTOR, offset + len(data))
                self._sectors.append((first, bytes(data[first - offset : last - offset])))
            self._sizes.append(max(self._sizes[-1], offset + len(data)))
        elif name == "fsync":
            self._synced = written(self._synced, self._sectors, self._sizes[-1])
            self._sectors, self._sizes = [], self._sizes[-1:]
        assert name != "ftruncate"

    def cut(self, name: str) -> None:
        self.states.append((name, list(self._sectors), list(dict.fromkeys(self._sizes)), self._synced))

    def outcomes(self, rng: random.Random) -> Iterator[bytes]:
        """Files after a cut: no sector, all, all but one, one alone, and some at random."""
        for _, sectors, sizes, synced in self.states:
            every = range(len(sectors))
            few = rng.sample(every, min(4, len(sectors)))
            chosen = [set(), set(every), *({i} for i in few), *(set(every) - {i} for i in few)]
            chosen += [{i for i in every if rng.random() < 0.5} for _ in range(3)]
            for subset in chosen:
                for size in sizes:
                    yield written(synced, [sectors[i] for i in sorted(subset)], size)


def written(data: bytes, sectors: list[tuple[int, bytes]], size: int) -> bytes:
    made = bytearray(data[:size].ljust(size, b"\0"))
    for offset, sector in sectors:
        kept = sector[: max(0, size - offset)]
        made[offset : offset + len(kept)] = kept
    return bytes(made)


def record(path: Path, change: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Makes the change, with every byte through `pwrite`."""
    disk, faulty = Disk(path.read_bytes()), FaultyOs()
    faulty.before = disk.before
    faulty.lacks = frozenset({"copy_file_range"})
    with monkeypatch.context() as patched:
        patched.setattr(in_place, "os", faulty)
        patched.setattr(sink, "os", faulty)
        change(path)
    disk.cut("the end")
    return disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.zt"
    tg.save(path, TENSORS, format="ztensor@2", metadata={"k": "v"}, compression={"a": "zstd"})
    return path


@pytest.mark.parametrize("growth", [8 << 20, 8192], ids=["at once", "in steps"])
@pytest.mark.parametrize("how", CHANGES)
def test_any_cut_leaves_the_old_contents_or_the_new_ones(
    how: str, growth: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_place, "GROWTH_NBYTES", growth)
    change, changed = CHANGES[how]
    disk = record(path, change, monkeypatch)
    new, before, after = path.read_bytes(), expected(), expected(**changed)
    assert disk.states[-1][3] == new, "all is synced at the end"
    assert [name for name, *_ in disk.states].count("fsync") == 3 or (growth == 8192 and how != "metadata")
    found = {}
    for data in disk.outcomes(random.Random(2)):
        if data not in found:
            path.write_bytes(data)
            found[data] = contents(path)
            assert found[data] in (before, after), len(data)
            seen("power cuts")
    assert before in found.values()
    assert after in found.values()
    zeros = [data for data in found if data.endswith(bytes(40))]
    assert zeros, "the size grew, and nothing was written there"
    for data in zeros[:3]:
        path.write_bytes(data)
        with tg.open(path) as archive:
            assert "ztensor.footer.zeros" in [note.rule for note in archive.notes]
        with pytest.raises(tg.FormatError, match=r"rule ztensor\.footer\.magic"):
            tg.open(path, strict=True)
        assert not tg.edit(path, {"again": 1}, in_place=True).in_place, "the next edit copies"
        assert contents(path) == before | {"metadata": {"k": "v", "again": 1}}


def test_without_durable_a_cut_may_lose_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: this is what the syncs are for."""

    def change(path: Path) -> None:
        tg.edit(path, replace={"b": np.zeros((3, 3))}, in_place=True, durable=False)

    disk = record(path, change, monkeypatch)
    torn = 0
    for data in disk.outcomes(random.Random(2)):
        path.write_bytes(data)
        try:
            contents(path)
        except (tg.TensorglotError, AssertionError):
            torn += 1
    assert torn


def test_zeros_behind_a_footer_are_looked_through_within_bounds(path: Path) -> None:
    data = path.read_bytes()
    assert in_place.GROWTH_NBYTES < TORN_NBYTES
    path.write_bytes(data + bytes(in_place.GROWTH_NBYTES))
    assert contents(path) == expected()
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # a hole
    for tail in (b"", b"x"):
        with path.open("ab") as file:
            file.write(tail)
        with pytest.raises(tg.FormatError) as caught:
            tg.open(path)
        assert caught.value.rule == "ztensor.footer.magic"
    path.write_bytes(data[:-9] + bytes(50))
    with pytest.raises(tg.FormatError) as caught:
        tg.open(path)
    assert caught.value.rule == "ztensor.footer.magic"
