"""The campaign itself: it counts what it is told, and stops at the first mutant that breaks the invariant."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fuzzing import campaign


def numbers(count: int, seed: int) -> Iterator[int]:
    return iter(range(seed, seed + count))


def test_outcomes_are_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["target", "10", "3"])
    campaign(numbers, lambda number: "odd" if number % 2 else ["even", "two"])
    printed = capsys.readouterr().out
    assert [line.split() for line in printed.splitlines()[:3]] == [["5", "odd"], ["5", "even"], ["5", "two"]]
    assert "10 mutants of seed 3" in printed


def test_it_stops_where_the_invariant_breaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(number: int) -> str:
        assert number != 7
        return "fine"

    monkeypatch.setattr("sys.argv", ["target", "10", "3"])
    with pytest.raises(AssertionError):
        campaign(numbers, check)
    printed = capsys.readouterr()
    assert printed.err == "mutant 4 of seed 3: 7\n"
    assert printed.out == ""
