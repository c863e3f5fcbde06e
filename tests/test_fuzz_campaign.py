"""The campaign itself: it counts what it is told, and stops at the first mutant that breaks the invariant."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzzing import FOLDER, campaign


def numbers(count: int, seed: int) -> Iterator[int]:
    return iter(range(seed, seed + count))


@pytest.fixture(autouse=True)
def _no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of memory, for the process of the tests."""
    monkeypatch.setattr(campaign, "limit_memory", lambda: None)


def test_outcomes_are_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["target", "10", "3"])
    campaign.campaign(numbers, lambda number: "odd" if number % 2 else ["even", "two"])
    printed = capsys.readouterr().out
    assert [line.split() for line in printed.splitlines()[:3]] == [["5", "odd"], ["5", "even"], ["5", "two"]]
    assert "10 mutants of seed 3" in printed


def test_it_stops_where_the_invariant_breaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A few lines are printed; the mutant, which may be long, is in the file that they name."""

    def mutants(count: int, seed: int) -> Iterator[bytes]:
        return (bytes([number]) * 10_000 for number in range(seed, seed + count))

    def check(mutant: bytes) -> str:
        assert mutant[0] != 7, mutant
        return "fine"

    monkeypatch.setattr("sys.argv", ["fuzz/target.py", "10", "3"])
    monkeypatch.setattr(campaign, "FINDINGS", tmp_path / "build" / "findings")
    with pytest.raises(SystemExit) as caught:
        campaign.campaign(mutants, check)
    first, second, third = str(caught.value.code).splitlines()
    assert first.startswith("target: mutant 4 of seed 3: AssertionError: b'")
    assert len(first) < 300
    details = tmp_path / "build" / "findings" / "target-3-4.txt"
    assert second.endswith(str(details))
    assert third.strip() == "to repeat it: python fuzz/target.py 5 3"
    assert repr(b"\7" * 10_000) in details.read_text()
    assert "assert mutant[0] != 7" in details.read_text()
    assert capsys.readouterr().out == ""


def test_a_warning_is_a_finding() -> None:
    def check(number: int) -> str:
        warnings.warn("odd", stacklevel=1)
        return "fine"

    assert "UserWarning: odd" in str(campaign.run(numbers, check, 0, 1).finding)


def test_a_mutant_without_end_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(number: int) -> str:
        while number == 2:
            pass
        return "fine"

    monkeypatch.setattr(campaign, "MUTANT_SECONDS", 0.2)
    before = signal.getsignal(signal.SIGVTALRM)
    result = campaign.run(numbers, check, 0, 5)
    assert result.executions == 2
    assert "0.2 s of the processor for one mutant" in str(result.finding)
    assert (signal.getsignal(signal.SIGVTALRM), signal.getitimer(signal.ITIMER_VIRTUAL)) == (before, (0, 0))


def test_time_ends_a_campaign() -> None:
    result = campaign.run(numbers, lambda number: "fine", 0, seconds=0)
    assert (result.executions, result.finding, result.outcomes) == (1, None, {"fine": 1})


TARGETS = {
    "good": "def mutants(count, seed):\n    return iter(range(3))\n\n\ndef check(mutant):\n    return 'fine'\n",
    "bad": "def mutants(count, seed):\n    return iter(range(3))\n\n\ndef check(mutant):\n    assert mutant < 2\n"
    "    return 'fine'\n",
    "deadly": "import os\n\n\ndef mutants(count, seed):\n    return iter(range(3))\n\n\ndef check(mutant):\n"
    "    if mutant == 1:\n        os.abort()\n    return 'fine'\n",
    "hungry": "def mutants(count, seed):\n    return iter(range(3))\n\n\ndef check(mutant):\n"
    "    return str(len(bytes(mutant << 33)))\n",
    "greedy": "def mutants(count, seed):\n    return iter(range(3))\n\n\ndef check(mutant):\n"
    "    return str(len(b'x' * (mutant << 28)))\n",
    "helper": "def check(mutant):\n    return 'not a target'\n",
}


def test_all_targets_are_run_and_findings_are_counted(tmp_path: Path) -> None:
    """Also those of a target that ends its process."""
    folder = tmp_path / "fuzz"
    folder.mkdir()
    for name in ("campaign", "__main__"):
        (folder / f"{name}.py").write_text((FOLDER / f"{name}.py").read_text("utf-8"))
    for name, text in TARGETS.items():
        (folder / f"{name}.py").write_text(text)
    run = subprocess.run([sys.executable, str(folder), "60", "9"], capture_output=True, text=True, check=False)
    rows = {line.split()[0]: line.split()[1:] for line in run.stdout.splitlines() if line.split()[1:2]}
    assert run.returncode == 1
    assert rows["good"][::3] == ["3", "0"]
    assert rows["bad"][::3] == ["2", "1"]
    assert rows["deadly"][::3] == ["1", "1"]
    assert rows["hungry"][::3] == ["1", "1"]
    assert rows["greedy"][::3] == ["1", "1"]
    assert rows["all"] == ["8", "4"]
    assert "helper" not in rows
    assert "bad: mutant 2 of seed 9: AssertionError" in run.stdout
    assert "deadly: mutant 1 of seed 9: the process died (exit code -6)" in run.stdout
    assert "hungry: mutant 1 of seed 9: MemoryError" in run.stdout
    assert "greedy: mutant 1 of seed 9: AssertionError: 2" in run.stdout
    assert (tmp_path / "build" / "findings" / "bad-9-2.txt").read_text().startswith("2\nTraceback")
    recorded = json.loads((tmp_path / "build" / "campaigns.jsonl").read_text())
    assert (recorded["seed"], recorded["executions"]) == (
        9,
        {"good": 3, "bad": 2, "deadly": 1, "hungry": 1, "greedy": 1},
    )
    assert len(recorded["findings"]) == 4


def test_a_seed_gives_the_same_mutants_again() -> None:
    """In any process: nothing depends on the order of a set, the time or what ran before."""
    program = (
        "import sys; sys.path[:0] = sys.argv[1:3]; import hashlib, importlib, itertools\n"
        "for name in sys.argv[3:]:\n"
        "    made = itertools.islice(importlib.import_module(name).mutants(40, 7), 40)\n"
        "    print(name, hashlib.sha256(repr(list(made)).encode()).hexdigest())\n"
    )
    names = sorted(path.stem for path in FOLDER.glob("*.py") if "\ndef mutants" in path.read_text("utf-8"))
    command = [sys.executable, "-c", program, str(FOLDER), str(FOLDER.parent / "tests"), *names]
    runs = [
        subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    assert len(names) >= 13
    assert runs[0].stdout.splitlines() == runs[1].stdout.splitlines()
