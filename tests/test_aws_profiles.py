"""Credentials of `~/.aws`: found, outranked by what is nearer, and never shown."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from http_servers import Site, serve
from peers import needs

pytestmark = pytest.mark.remote

SECRET = "secret-of-a-file"
CREDENTIALS = f"""
[default]
aws_access_key_id = DEFAULT
aws_secret_access_key = {SECRET}

[work]
aws_access_key_id = WORK
aws_secret_access_key = {SECRET}%
aws_session_token = session-{SECRET}
"""
CONFIG = """
[default]
region = eu-central-1
[profile work]
region = ap-south-1
s3 =
    addressing_style = path
[profile login]
sso_session = x
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(CREDENTIALS)
    (tmp_path / ".aws" / "config").write_text(CONFIG)
    return tmp_path / ".aws"


@pytest.fixture
def site() -> Iterator[Site]:
    needs("obstore")
    with serve() as site:
        site.files["/bucket/model.safetensors"] = tg.dumps({"w": np.arange(5)}, format="safetensors")
        yield site


def signed(site: Site, **options: Any) -> tuple[str, str, str | None]:
    """Key and region that a request was signed with, and its session token."""
    site.clear()
    tg.open("s3://bucket/model.safetensors", storage_options={"endpoint": site.url, **options})
    request = site.requests[0]
    key, _, region, *_ = str(request.token).partition("Credential=")[2].split("/")
    return key, region, request.headers.get("x-amz-security-token")


def test_the_default_profile(folder: Path, site: Site) -> None:
    assert signed(site) == ("DEFAULT", "eu-central-1", None)


def test_a_named_profile(folder: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert signed(site) == ("WORK", "ap-south-1", f"session-{SECRET}")


def test_files_elsewhere(folder: Path, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, file in (("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ("AWS_CONFIG_FILE", "config")):
        (folder / file).rename(tmp_path / file)
        monkeypatch.setenv(name, str(tmp_path / file))
    assert signed(site) == ("DEFAULT", "eu-central-1", None)


def test_a_file_that_changes_is_read_again(folder: Path, site: Site) -> None:
    assert signed(site)[0] == "DEFAULT"
    (folder / "credentials").write_text(CREDENTIALS.replace("DEFAULT", "ROTATED"))
    assert signed(site)[0] == "ROTATED"


def test_options_and_the_environment_have_precedence(folder: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"access_key_id": "OPTION", "secret_access_key": "x"}
    assert signed(site, **given) == ("OPTION", "eu-central-1", None)
    assert signed(site, region="us-east-2") == ("DEFAULT", "us-east-2", None)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert signed(site) == ("ENVIRONMENT", "ap-south-1", None), "a key is never mixed with the token of another"


def test_a_request_without_a_signature(folder: Path, site: Site) -> None:
    tg.open("s3://bucket/model.safetensors", storage_options={"endpoint": site.url, "skip_signature": True})
    assert {request.token for request in site.requests} == {None}


def test_uploads_by_workers_are_signed_with_it(folder: Path, site: Site, tmp_path: Path) -> None:
    tg.save(tmp_path / "model.bt", {"w": np.arange(5)})
    options = {"endpoint": site.url, "max_retries": 0}
    with ThreadPoolExecutor(2) as pool, contextlib.suppress(tg.RemoteError, OSError):
        tg.convert(tmp_path / "model.bt", "s3://bucket/new.safetensors", executor=pool, storage_options=options)
    assert "Credential=DEFAULT/" in str(site.requests[0].token)


def test_a_profile_that_is_not_there(folder: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "absent")
    with pytest.raises(tg.InputError, match="'absent'") as caught:
        signed(site)
    assert caught.value.rule == "url.profile"


def test_a_file_that_is_none_and_secrets_that_are_not_shown(folder: Path, site: Site) -> None:
    with tg.open("s3://bucket/model.safetensors", storage_options={"endpoint": site.url}) as archive:
        data = pickle.dumps(archive)
        assert SECRET.encode() not in data
        assert SECRET not in repr(vars(archive.source))
    (folder / "credentials").write_text(f"{SECRET} is no section")
    with pytest.raises(tg.InputError) as caught:
        signed(site)
    assert caught.value.rule == "url.profile"
    assert SECRET not in f"{caught.value!r}{caught.value}{caught.value.__context__!r}"
