"""A real Azure Blob server for tests: Azurite, from npm. TENSORGLOT_AZURITE is where it was installed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from peers import missing, needs
from seaweed import SECONDS, free_ports

__all__ = ["ACCOUNT", "KEY", "azure"]

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Known to everyone: those of every Azurite."""


def binary() -> str:
    if shutil.which("node") is None:
        pytest.skip("Azurite needs Node.js, which is not installed")
    folder = os.environ.get("TENSORGLOT_AZURITE")
    found = shutil.which("azurite-blob", path=None if folder is None else str(Path(folder) / "node_modules" / ".bin"))
    return found or missing("no Azure server: npm install azurite, and set TENSORGLOT_AZURITE to that folder")


def create_container(endpoint: str, name: str) -> None:
    """Creates a container, which obstore cannot do: a request signed with the account's key."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = "\n".join(f"{key}:{value}" for key, value in sorted(headers.items()))
    unset = "\n" * 12  # the standard headers, none of which is sent
    text = f"PUT{unset}{lines}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    digest = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
    headers |= {"Authorization": f"SharedKey {ACCOUNT}:{digest}", "Content-Length": "0"}
    request = urllib.request.Request(f"{endpoint}/{name}?restype=container", headers=headers, method="PUT")
    urllib.request.urlopen(request, timeout=5).close()


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """`storage_options` for a server with an empty container `tests`, which lives as long as the tests."""
    needs("obstore")
    folder = tmp_path_factory.mktemp("azurite")
    (port,) = free_ports(1)
    command = [
        binary(), "--silent", "--skipApiVersionCheck", "--disableTelemetry", "--blobHost", "127.0.0.1",
        "--blobPort", str(port), "--location", str(folder),
    ]  # fmt: skip
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        end = time.monotonic() + SECONDS
        while True:
            try:
                create_container(endpoint, "tests")
                break
            except (OSError, urllib.error.URLError):
                if process.poll() is not None or time.monotonic() > end:
                    missing(f"Azurite does not start: {(folder / 'log').read_text(errors='replace')[-500:]}")
                time.sleep(0.2)
        yield {"endpoint": endpoint, "account_name": ACCOUNT, "account_key": KEY, "timeout": "20s", "max_retries": 3}
    finally:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
