"""Threads: work inside work ends, and none is under way when an error leaves."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from tensorglot.memory import scratch
from tensorglot.threads import batches, for_each, ordered_map

NESTED = """
from tensorglot.threads import for_each
seen = []
for_each(lambda i: for_each(lambda j: seen.append((i, j)), range(4), threads=2), range(4), threads=2)
assert sorted(seen) == [(i, j) for i in range(4) for j in range(4)]
"""


def test_each_within_each() -> None:
    subprocess.run([sys.executable, "-c", NESTED], check=True, timeout=30)


def test_all_work_has_ended_when_an_error_is_raised() -> None:
    began, ended = [], []
    both = threading.Barrier(2, timeout=10)

    def work(item: int) -> None:
        if item < 2:
            both.wait()
        if item == 0:
            raise ValueError("first")
        began.append(item)
        time.sleep(0.05)
        ended.append(item)

    with pytest.raises(ValueError, match="first"):
        for_each(work, range(50), threads=2)
    assert sorted(began) == sorted(ended)
    assert len(began) < 49


def test_results_are_ordered_and_no_work_begins_after_the_last_request() -> None:
    assert list(ordered_map(lambda x: x * x, range(100))) == [x * x for x in range(100)]
    with pytest.raises(ZeroDivisionError):
        list(ordered_map(lambda x: 1 // x, [3, 2, 1, 0]))
    began: list[int] = []

    def work(item: int) -> int:
        began.append(item)
        time.sleep(0.02)
        return item

    results = ordered_map(work, range(100), ahead=3)
    assert next(results) == 0
    results.close()
    time.sleep(0.2)
    assert len(began) <= 4


def test_scratch_that_is_in_use_is_not_given_again() -> None:
    with scratch() as one, scratch() as two:
        assert one is not two
    with scratch() as again:
        assert again is one


@pytest.mark.parametrize(
    ("sizes", "count", "groups"),
    [
        ([10, 100, 1, 50, 49, 1, 300, 0], None, [[10], [100], [1, 50, 49], [1], [300], [0]]),
        ([0, 0, 0, 0, 0], 2, [[0, 0], [0, 0], [0]]),
        ([60, 60, 1, 1, 1], 2, [[60], [60, 1], [1, 1]]),
        ([], 2, []),
    ],
)
def test_batches_have_at_most_so_many_bytes_and_items_and_keep_the_order(
    sizes: list[int], count: int | None, groups: list[list[int]]
) -> None:
    assert list(batches(sizes, int, 100, count)) == groups
