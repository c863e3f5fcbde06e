"""The published conformance corpus is what the tables of our tests define, and we pass it ourselves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conformance import CORPORA, FOLDER, check, pack, render, unpack


def cases(text: str) -> list[dict[str, Any]]:
    """With their bytes: their compressed form may differ with the version of zlib."""
    return [{**case, "data": _content(case), "files": None} for case in map(json.loads, text.splitlines())]


def _content(case: dict[str, Any]) -> bytes | dict[str, bytes]:
    if "files" in case:
        return {path: unpack({"data": data}) for path, data in case["files"].items()}
    return unpack(case)


@pytest.mark.parametrize("corpus", CORPORA)
def test_the_folder_has_exactly_these_cases(corpus: str) -> None:
    defined = cases(render(corpus))
    assert cases((FOLDER / f"{corpus}.jsonl").read_text("utf-8")) == defined, "run python tests/conformance.py"
    assert max(Counter(case["name"] for case in defined).values()) == 1


def test_the_folder_has_no_other_corpora_and_enough_cases() -> None:
    assert {path.stem for path in FOLDER.glob("*.jsonl")} == set(CORPORA)
    lines = [line for path in FOLDER.glob("*.jsonl") for line in path.read_text("utf-8").splitlines()]
    count = Counter(json.loads(line)["valid"] for line in lines)
    assert count[True] >= 500
    assert count[False] >= 1700
    assert max(path.stat().st_size for path in FOLDER.glob("*.jsonl")) < 1 << 20


@pytest.mark.parametrize("corpus", CORPORA)
def test_we_accept_the_valid_ones_and_refuse_the_others_by_their_rules(corpus: str) -> None:
    for case in cases((FOLDER / f"{corpus}.jsonl").read_text("utf-8")):
        assert check(corpus, case["data"], case.get("type")) == case.get("rule"), case["name"]


READER = """
import sys
data = open(sys.argv[1], "rb").read()
if data == b"crash":
    import os; os.abort()
sys.exit(0 if data == b"good" else 3)
"""


def test_the_runner_tells_who_disagrees(tmp_path: Path) -> None:
    """A reader that accepts `good`, refuses all else, and aborts on `crash`."""
    (tmp_path / "reader.py").write_text(READER)
    runner = [sys.executable, str(FOLDER / "run.py"), str(tmp_path / "c.jsonl"), sys.executable]
    table = [("right", True, b"good"), ("wrong", False, b"bad"), ("crash", False, b"crash"), ("lost", True, b"bad")]
    lines = [{"name": name, "valid": valid, "data": pack(data), "rule": "r"} for name, valid, data in table]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = subprocess.run([*runner, str(tmp_path / "reader.py")], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.splitlines()) == (
        1,
        ["crash: signal 6, expected refused r", "lost: refused, expected accepted r", "2 passed, 2 failed"],
    )
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:2]))
    run = subprocess.run([*runner, str(tmp_path / "reader.py")], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.splitlines()) == (0, ["2 passed, 0 failed"])
