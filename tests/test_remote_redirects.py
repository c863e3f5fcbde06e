"""Redirects: what the caller gave for one server never reaches another, in any header of any request."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from gallery import same
from http_servers import Site, serve
from peers import needs

pytestmark = pytest.mark.remote

TENSORS = {"w": np.arange(200_000, dtype=np.float32).reshape(400, 500), "b": np.arange(7)}
DATA = tg.dumps(TENSORS, format="safetensors")
SECRET = "SECRET-of-the-caller"
HEADERS = dict.fromkeys(("Authorization", "Cookie", "PRIVATE-TOKEN", "X-Api-Key", "X-Anything"), SECRET)


@pytest.fixture
def site() -> Iterator[Site]:
    needs("obstore")
    with serve() as site:
        yield site


@pytest.fixture
def other(site: Site) -> Iterator[Site]:
    """Another host, which has the bytes; everything at `site` leads there."""
    with serve("localhost") as other:
        other.files["/bytes"] = DATA
        site.redirects["/model.safetensors"] = f"{other.url}/bytes"
        yield other


def check_nothing_secret(other: Site) -> None:
    assert other.requests
    for request in other.requests:
        assert SECRET not in f"{request.path}{request.headers}"
        assert "referer" not in request.headers, "it is the URL that was redirected, with its signature"


GIVEN: dict[str, tuple[str, dict[str, Any]]] = {
    "query": (f"?signature={SECRET}", {}),
    "headers": ("", {"default_headers": HEADERS}),
    "both": (f"?signature={SECRET}", {"default_headers": HEADERS}),
}


@pytest.mark.parametrize("given", GIVEN)
def test_another_host_gets_nothing_of_the_caller(given: str, site: Site, other: Site) -> None:
    query, options = GIVEN[given]
    url = f"{site.url}/model.safetensors{query}"
    with tg.open(url, storage_options=options) as archive:
        assert same({name: tensor.numpy() for name, tensor in archive.items()}, TENSORS)
        assert (archive["w"][5:9, ::3] == TENSORS["w"][5:9, ::3]).all()
    assert len(site.requests) == 1, "asked once where the bytes are"
    assert tg.verify(url, deep=True, storage_options=options).ok
    check_nothing_secret(other)
    for request in site.requests:
        assert request.path.endswith(query)
        for name in options.get("default_headers", {}):
            assert request.headers[name.lower()] == SECRET


def test_a_user_and_password_are_for_the_host_of_the_url(site: Site, other: Site) -> None:
    site.files["/here.safetensors"] = DATA
    base = site.url.replace("://", f"://us%40er:{SECRET}@")
    basic = f"Basic {b64encode(f'us@er:{SECRET}'.encode()).decode()}"
    for name in ("here", "model"):
        assert same(tg.load(f"{base}/{name}.safetensors"), TENSORS)
    assert {request.token for request in site.requests} == {basic}
    assert {request.token for request in other.requests} == {None}
    check_nothing_secret(other)


def test_a_password_belongs_to_the_shards_too(site: Site) -> None:
    site.files["/m/one.safetensors"] = DATA
    index = {"weight_map": dict.fromkeys(TENSORS, "one.safetensors")}
    site.files["/m/model.safetensors.index.json"] = json.dumps(index).encode()
    assert same(tg.load(f"{site.url.replace('://', '://user:pass@')}/m/"), TENSORS)
    assert {request.token for request in site.requests} == {f"Basic {b64encode(b'user:pass').decode()}"}


def test_within_one_host_headers_go_along(site: Site) -> None:
    site.files["/moved.safetensors"] = DATA
    site.redirects["/model.safetensors"] = "/moved.safetensors"
    assert same(tg.load(f"{site.url}/model.safetensors", storage_options={"default_headers": HEADERS}), TENSORS)
    assert {request.headers["x-api-key"] for request in site.requests} == {SECRET}


def test_who_was_led_away_comes_back_without_credentials(site: Site, other: Site) -> None:
    """The other host chooses where the request returns to."""
    site.files["/private"] = DATA
    other.redirects["/bytes"] = f"{site.url}/private"
    tg.load(f"{site.url}/model.safetensors", storage_options={"default_headers": HEADERS})
    check_nothing_secret(other)
    for request in site.requests:
        assert ("x-api-key" in request.headers) == (request.path == "/model.safetensors")


def test_a_signature_that_expires_is_renewed(site: Site, other: Site) -> None:
    with tg.open(f"{site.url}/model.safetensors", storage_options={"default_headers": HEADERS}) as archive:
        other.ways["/bytes"] = "forbidden"
        other.files["/again"] = DATA
        site.redirects["/model.safetensors"] = f"{other.url}/again?Signature=NEW"
        assert (archive["w"].numpy() == TENSORS["w"]).all()
    check_nothing_secret(other)


@pytest.mark.parametrize("where", ["file:///etc/passwd", "ftp://host/x", "http://", "http://[bad/x"])
def test_a_redirect_to_something_else(where: str, site: Site) -> None:
    site.redirects["/model.safetensors"] = where
    with pytest.raises(tg.RemoteError) as caught:
        tg.open(f"{site.url}/model.safetensors")
    assert caught.value.rule == "remote.redirect"


def test_the_hub_gets_headers_and_token_and_the_other_host_neither(
    site: Site, other: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.redirects["/org/repo/resolve/main/model.safetensors"] = f"{other.url}/bytes?Signature=S"
    monkeypatch.setenv("HF_ENDPOINT", site.url)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    for headers in ({"X-Api-Key": SECRET, "Cookie": SECRET}, {"authorization": f"Basic {SECRET}"}):
        site.requests.clear()
        options = {"default_headers": headers}
        assert same(tg.load("hf://org/repo/model.safetensors", storage_options=options), TENSORS)
        (request,) = site.requests
        assert request.token == headers.get("authorization", f"Bearer {SECRET}")
        assert request.headers.get("x-api-key") == headers.get("X-Api-Key")
    check_nothing_secret(other)


def test_an_upload_by_workers_is_not_redirected(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    tg.save(tmp_path / "model.bt", TENSORS)
    options = {
        "endpoint": site.url, "access_key_id": "key", "secret_access_key": SECRET, "session_token": SECRET,
        "region": "us-east-1", "max_retries": 0,
    }  # fmt: skip
    with serve("localhost") as other, ThreadPoolExecutor(2) as pool:
        site.redirects["/bucket/model.safetensors"] = f"{other.url}/bucket/model.safetensors"
        with pytest.raises(tg.RemoteError) as caught:
            tg.convert(tmp_path / "model.bt", "s3://bucket/model.safetensors", executor=pool, storage_options=options)
        assert caught.value.rule == "remote.redirect"
        assert site.requests
        assert not other.requests
