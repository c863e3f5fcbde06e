"""Options of the client: proxies, the hosts that need none, and certificates that the system does not know."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from http_servers import Site, serve
from peers import missing, needs

pytestmark = pytest.mark.remote

QUICK = {"timeout": "5s", "connect_timeout": "2s", "max_retries": 0}
NOBODY = "http://127.0.0.1:1"
DATA = tg.dumps({"w": np.arange(1000)}, format="safetensors")


@pytest.fixture
def site() -> Iterator[Site]:
    needs("obstore")
    with serve() as site:
        site.files["/m.safetensors"] = DATA
        yield site


@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({}, True),
        ({"proxy_url": NOBODY}, False),
        ({"proxy_url": NOBODY, "proxy_excludes": "127.0.0.1"}, True),
        ({"proxy_url": NOBODY, "proxy_excludes": "example.org, 127.0.0.1"}, True),
        ({"proxy_url": NOBODY, "proxy_excludes": "example.org"}, False),
        ({"proxy_url": NOBODY, "proxy_excludes": ""}, False),
    ],
    ids=str,
)
def test_a_proxy_is_used_for_all_hosts_but_those_excluded(site: Site, options: dict[str, str], passes: bool) -> None:
    def load() -> Any:
        return tg.load(f"{site.url}/m.safetensors", storage_options={**QUICK, **options})

    if passes:
        assert (load()["w"] == np.arange(1000)).all()
    else:
        with pytest.raises(tg.RemoteError) as caught:
            load()
        assert caught.value.rule == "remote.connect"
        assert not site.requests


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One that its host has signed itself, and its key."""
    if shutil.which("openssl") is None:
        missing("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
            "-keyout", key, "-out", made,
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    return made, key


CLIENTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "none": lambda certificate: {},
    "root_certificate": lambda certificate: {"root_certificate": certificate.read_bytes()},
    "root_certificate as text": lambda certificate: {"root_certificate": certificate.read_text()},
    "allow_invalid_certificates": lambda certificate: {"allow_invalid_certificates": True},
}


@pytest.mark.parametrize("options", CLIENTS)
def test_a_certificate_must_be_known_or_allowed(certificate: tuple[Path, Path], options: str) -> None:
    needs("obstore")
    given = CLIENTS[options](certificate[0])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with serve("localhost", context) as site:
        site.files["/m.safetensors"] = DATA
        url = f"{site.url}/m.safetensors"
        if given:
            assert (tg.load(url, storage_options={**QUICK, **given})["w"] == np.arange(1000)).all()
        else:
            with pytest.raises(tg.RemoteError):
                tg.load(url, storage_options=QUICK)
            assert not site.requests
