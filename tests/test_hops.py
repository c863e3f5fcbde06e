"""How far a call goes: hops between files of the package, counted for each flow.

A hop is a call into another file, compiled kernels left out. `convert` opens, plans and
saves; more than three times the hops of `save` alone means that rows are recast, or
checked again, on their way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from tensorglot.errors import escape
from tensorglot.io.place import as_place

PACKAGE = f"{Path(tg.__file__).parent}{os.sep}"
KERNELS = f"{PACKAGE}kernels{os.sep}"
SUFFIXES = (".bt", ".zt", ".safetensors")
TENSORS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float32)}
MOST = 3


def ours(frame: FrameType | None) -> str | None:
    """The file of a frame, if it is one of the package and no kernel."""
    path = "" if frame is None else frame.f_code.co_filename
    return path if path.startswith(PACKAGE) and not path.startswith(KERNELS) else None


def count_hops(call: Callable[[], Any]) -> int:
    """Calls that enter another file than that of the nearest caller within the package."""
    hops = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal hops
        here, caller = ours(frame), frame.f_back
        if event != "call" or here is None:
            return
        while caller is not None and ours(caller) is None:
            caller = caller.f_back
        hops += ours(caller) not in (None, here)

    call()  # what is imported on first use does not count
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return hops


@pytest.mark.parametrize("target", SUFFIXES)
@pytest.mark.parametrize("source", SUFFIXES)
def test_converting_goes_at_most_three_times_as_far_as_saving(source: str, target: str, tmp_path: Path) -> None:
    model, new = tmp_path / f"model{source}", tmp_path / f"new{target}"
    tg.save(model, TENSORS)
    saving = count_hops(lambda: tg.save(new, TENSORS))
    converting = count_hops(lambda: tg.convert(model, new))
    assert 0 < saving < converting <= MOST * saving


def test_a_hop_is_a_call_into_another_file_of_the_package() -> None:
    assert count_hops(lambda: escape("name")) == 0  # entered from outside
    assert count_hops(lambda: as_place("model.zt")) == 1  # io/place.py to arguments.py
    assert count_hops(lambda: [as_place("model.zt"), as_place("model.bt")]) == 2


VERBS: dict[str, Callable[[Path, Path], Any]] = {
    "edit": lambda model, new: tg.edit(model, {"run": str(new)}, durable=False),
    "split": lambda model, new: tg.split(model, new, durable=False),
    "merge": lambda model, new: tg.merge([model], new.with_suffix(".zt"), durable=False),
    "identify": lambda model, new: tg.identify(model),
    "verify": lambda model, new: tg.verify(model),
    "diff": lambda model, new: tg.diff(model, model),
}


@pytest.mark.parametrize("verb", VERBS)
def test_small_tensors_are_handled_in_runs_not_one_by_one(verb: str, tmp_path: Path) -> None:
    """A thousand more tensors take fewer hops than a tenth of their number."""
    hops = []
    for count in (1000, 2000):
        model = tmp_path / f"{count}.zt"
        tg.save(model, {f"block.{i}.bias": np.full(4, i, np.float32) for i in range(count)}, durable=False)
        targets = iter(range(2))
        hops.append(count_hops(lambda: VERBS[verb](model, tmp_path / f"new.{count}.{next(targets)}")))  # noqa: B023
    assert hops[1] - hops[0] < 100
