"""A rank is killed in the middle of its write: the checkpoint is still the old one, and the next save completes."""

from __future__ import annotations

import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

import tensorglot as tg
from peers import needs
from tensorglot.store import Store

SCRIPT = Path(__file__).parent / "dcp_killed_rank.py"
MEETINGS = count()


def save(place: str, value: int, folder: Path, *, kill: bool = False) -> list[int]:
    """Saves with two ranks; the second one may be killed. Returns their exit codes."""
    meeting = folder / f"meeting{next(MEETINGS)}"
    ranks = [
        subprocess.Popen(
            [sys.executable, SCRIPT, meeting, place, str(rank), str(value), *(["kill"] if kill and rank else [])],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for rank in (0, 1)
    ]
    return [rank.wait(timeout=240) for rank in ranks]


@pytest.mark.parametrize("kind", ["directory", "store"])
def test_the_old_checkpoint_stays(kind: str, tmp_path: Path) -> None:
    needs("torch")
    place = str(tmp_path / "step")
    if kind == "store":
        Store.create(tmp_path / "steps").close()
        place = f"store://{tmp_path}/steps#main"

    def check(value: int) -> None:
        found = tg.load(place)
        assert {name: set(array.reshape(-1).tolist()) for name, array in found.items()} == {
            f"w{i}": {value + i} for i in range(4)
        }
        assert all(array.shape == (64, 32) for array in found.values())

    assert save(place, 100, tmp_path) == [0, 0]
    check(100)
    left, killed = save(place, 200, tmp_path, kill=True)
    assert killed == -signal.SIGKILL
    assert left > 0, "the other rank fails, it does not wait forever"
    check(100)
    assert tg.verify(place, deep=True).ok
    assert save(place, 300, tmp_path) == [0, 0]
    check(300)
