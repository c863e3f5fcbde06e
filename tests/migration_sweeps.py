"""The migration of a MongoDB collection, failed and killed at every network operation of its process.

The methods of `socket.socket` are replaced, so that sending and receiving of the driver's
main thread are counted; one of a run fails with an errno, N = 1, 2, … until a run has none
left to fail. Then every document is as it was, or is migrated and has the same values;
nothing else has changed, and a second run migrates what is left. A kill is the same
with SIGKILL, in a process of its own: `python tests/migration_sweeps.py URL COLLECTION N`.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tensorglot.bson.migrate import migrate
from tensorglot.bson.mongodb import read_matrix

__all__ = ["ERRNOS", "kill", "sweep"]

ERRNOS = (errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENOBUFS)
OPERATIONS = ("sendall", "recv_into")
ROWS, COLUMNS, BATCH = 60, 3, 10
VALUES = np.random.default_rng(3).standard_normal((ROWS, COLUMNS))
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}


@contextmanager
def operations(before: Callable[[int], OSError | None]) -> Iterator[list[str]]:
    """Calls `before` with the number of each network operation of this thread, whose error is raised instead."""
    calls: list[str] = []
    own = threading.get_ident()
    real = {name: getattr(socket.socket, name) for name in OPERATIONS}

    def wrap(name: str) -> Callable[..., Any]:
        def operation(*arguments: Any) -> Any:
            if threading.get_ident() == own:
                calls.append(name)
                error = before(len(calls))
                if error is not None:
                    raise error
            return real[name](*arguments)

        return operation

    for name in OPERATIONS:
        setattr(socket.socket, name, wrap(name))
    try:
        yield calls
    finally:
        for name in OPERATIONS:
            if name in vars(socket.socket):
                delattr(socket.socket, name)  # they are those of the class above


def fill(collection: Any) -> None:
    collection.drop()
    rows = enumerate(VALUES.tolist())
    collection.insert_many({"_id": i, "n": {"v": row}, "title": f"t{i}"} for i, row in rows)


def run(url: str, name: str) -> None:
    """The migration, by a driver of its own."""
    import pymongo

    with pymongo.MongoClient(url, serverSelectionTimeoutMS=5000) as client:
        migrate(client["tensorglot"][name], "n.v", batch_size=BATCH)


def assert_intact(collection: Any, *, done: bool) -> int:
    """Returns how many documents are migrated; then migrates the others."""
    left = 0
    for document in collection.find({"n.v": {"$type": "array"}}):
        left += 1
        expected = {
            "_id": document["_id"],
            "n": {"v": VALUES[document["_id"]].tolist()},
            "title": f"t{document['_id']}",
        }
        assert document == expected, "neither as it was nor migrated"
    assert not done or left == 0, "acknowledged, and not done"
    assert migrate(collection, "n.v").migrated <= left  # the server may still have been at work
    found, ids = read_matrix(collection, "n.v", ids=True)
    assert sorted(ids) == list(range(ROWS)), "a document is lost, or is there twice"
    assert np.array_equal(found[np.argsort(ids)], VALUES.astype(np.float32))
    assert collection.count_documents({"title": {"$regex": "^t[0-9]+$"}}) == ROWS
    return ROWS - left


def sweep(url: str, collection: Any, errnos: tuple[int, ...] = ERRNOS, every: int = 1) -> Counter[str]:
    """Fails every operation with every errno, or every so many of them. Counts what was struck."""
    import pymongo

    struck: Counter[str] = Counter()
    for turn, number in enumerate(errnos):
        strike = 1 + turn * every // len(errnos)
        while True:
            fill(collection)
            fault, raised = OSError(number, os.strerror(number)), False
            with operations(lambda n, at=strike, error=fault: error if n == at else None) as calls:
                try:
                    run(url, collection.name)
                except (pymongo.errors.PyMongoError, OSError):
                    raised = True
            if len(calls) < strike:
                break
            struck[calls[strike - 1]] += 1
            assert_intact(collection, done=not raised)
            strike += every
    return struck


def kill(url: str, collection: Any, every: int = 1) -> list[int]:
    """Kills the migration at every operation, or every so many: how many documents were migrated each time."""
    migrated = []
    while True:
        fill(collection)
        command = [sys.executable, __file__, url, collection.name, str(1 + every * len(migrated))]
        code = subprocess.run(command, env=ENVIRONMENT, check=False, capture_output=True).returncode
        assert code in (0, -signal.SIGKILL), code
        count = assert_intact(collection, done=code == 0)
        if code == 0:
            return migrated
        migrated.append(count)


def _kill_at(strike: int) -> Callable[[int], None]:
    def before(number: int) -> None:
        if number == strike:
            os.kill(os.getpid(), signal.SIGKILL)

    return before


if __name__ == "__main__":
    with operations(_kill_at(int(sys.argv[3]))):
        run(sys.argv[1], sys.argv[2])
