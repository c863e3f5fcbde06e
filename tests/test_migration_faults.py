"""A fault or a kill at any network operation of a migration: every document is as it was, or migrated.

TENSORGLOT_FAULTS=all fails every operation with every errno, as `make faults` does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from figures import seen
from migration_sweeps import ERRNOS, kill, sweep
from peers import needs

pytestmark = pytest.mark.mongo
EVERY, EVERY_KILL = (1, 1) if os.environ.get("TENSORGLOT_FAULTS") == "all" else (9, 20)


@pytest.fixture
def collection(mongod_url: str) -> Iterator[Any]:
    with needs("pymongo").MongoClient(mongod_url) as client:
        yield client["tensorglot"]["faults"]
        client["tensorglot"]["faults"].drop()


def test_a_fault_at_any_operation(mongod_url: str, collection: Any) -> None:
    struck = sweep(mongod_url, collection, ERRNOS, EVERY)
    seen("faults", struck.total())
    assert set(struck) == {"sendall", "recv_into"}
    assert struck.total() >= 10


def test_a_kill_at_any_operation(mongod_url: str, collection: Any) -> None:
    migrated = kill(mongod_url, collection, EVERY_KILL)
    seen("kills", len(migrated))
    assert migrated == sorted(migrated), "what was migrated is undone"
    assert migrated[0] == 0
    assert migrated[-1] > 0
