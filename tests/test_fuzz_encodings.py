"""A few thousand mutants of a fixed seed in every run of the tests; `make fuzz` has the campaign."""

from __future__ import annotations

from collections import Counter

import pytest

from figures import seen
from fuzzing import chunk_encodings
from tensorglot.store.encodings import Encoding


def test_the_invariant_holds_for_mutants() -> None:
    outcomes = Counter(map(chunk_encodings.check, chunk_encodings.mutants(2000, seed=1)))
    seen("executions", outcomes.total())
    for encoding in Encoding:
        assert outcomes[f"{encoding.value}: accepted"] > 3, encoding
        assert outcomes[f"{encoding.value}: refused"] > 3, encoding
    assert outcomes["255: refused"] > 3


def test_the_check_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(encoding: int, body: memoryview, out: memoryview, *, undo: bool = False) -> None:
        if not undo:
            out[:] = bytes(len(out))

    monkeypatch.setattr(chunk_encodings, "apply", forgetful)
    with pytest.raises(AssertionError):
        chunk_encodings.check((Encoding.SPARSE_XOR, b"", 10))
