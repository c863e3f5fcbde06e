"""A few thousand mutants of a fixed seed in every run of the tests; `make fuzz` has the campaign."""

from __future__ import annotations

from collections import Counter

import pytest

import tensorglot as tg
from bounds import INTERPRETED
from figures import seen
from fuzzing import bintensors


def test_the_invariant_holds_for_mutants() -> None:
    outcomes = Counter(bintensors.check(data) for data in bintensors.mutants(1500 if INTERPRETED else 6000, seed=1))
    seen("executions", outcomes.total())
    assert outcomes["strict"] > 150
    assert outcomes["accepted"] > 15
    assert len(outcomes) > 18, "mutants do not reach the rules"


def test_mutants_are_the_same_for_the_same_seed() -> None:
    one, two, other = (list(bintensors.mutants(50, seed)) for seed in (7, 7, 8))
    assert one == two
    assert one != other


def test_files_valid_in_both_layouts_are_ambiguous_to_the_check() -> None:
    from test_corpus_bintensors import REJECT

    data = (REJECT / "s11_polyglot_v0_v1.bt").read_bytes()
    assert bintensors.check(data) == "ambiguous"
    with pytest.raises(tg.AmbiguousFormat):
        tg.loads(data)


def test_the_canonical_order_may_take_longer_offsets() -> None:
    """Of 1, 12, 216 and 32 bytes in this order, one offset is above 250; the largest first, three are."""
    head = b"\0\4\0\1\1\1\0\1\1/\n\3\3\1\1\1\r\1b\r\3\3\3\3\r\xe5\2ca\r\2\2\2\xe5\xfb\5\1   "
    data = len(head).to_bytes(8, "little") + head + bytes(261)
    assert len(tg.dumps(tg.open(data, format="bintensors@1"), format="bintensors@1")) == len(data) + 8
    assert bintensors.check(data) == "accepted"
