"""Threads: work inside work ends."""

from __future__ import annotations

import subprocess
import sys

NESTED = """
from tensorglot.io.memory import each
seen = []
each(lambda i: each(lambda j: seen.append((i, j)), range(4), threads=2), range(4), threads=2)
assert sorted(seen) == [(i, j) for i in range(4) for j in range(4)]
"""


def test_each_within_each() -> None:
    subprocess.run([sys.executable, "-c", NESTED], check=True, timeout=30)
