"""The targets of `make fuzz-guided`, without atheris: bytes go in where the mutants of their modules have them."""

from __future__ import annotations

import sys

import pytest

import fuzzing
from fuzzing import FOLDER, guided


@pytest.mark.parametrize("name", guided.TARGETS)
def test_an_input_of_the_module_is_one_of_the_target(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    target = guided.TARGETS[name]
    module = getattr(fuzzing, target.module)
    inputs = (target.bytes_of(mutant) for mutant in module.mutants(3000, 1))
    data = next(data for data in inputs if data is not None)
    assert target.bytes_of(target.mutant_of(data)) == data
    assert module.check(target.mutant_of(data))
    assert module.check(target.mutant_of(b""))
