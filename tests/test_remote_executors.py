"""Conversions on an executor to a bucket: workers upload the parts of one object; it is complete, or not there."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from counting import proxy_of
from peers import needs
from seaweed import Seaweed
from tensorglot.io.multipart import multipart_upload
from test_executors import Dying, Killing, cluster, executor, tensors

__all__ = ["executor"]

pytestmark = pytest.mark.remote

RANDOM = np.random.default_rng()


@pytest.fixture(autouse=True, scope="module")
def environment(s3_server: Seaweed) -> Iterator[None]:
    """Workers have credentials from their environment, which they inherit."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.environment.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    tg.save(folder / "a.zt", tensors(), durable=False)
    tg.save(folder / "a.bt", tensors(), durable=False)
    return folder


@pytest.fixture
def base() -> str:
    return f"s3://tests/executors/{RANDOM.integers(1 << 60):x}"


def stored(server: Seaweed, url: str) -> bytes:
    return bytes(needs("obstore").get(server.client(), url.removeprefix("s3://tests/")).bytes())


@pytest.mark.parametrize(
    ("target", "options"),
    [("x.safetensors", {}), ("x.bt", {"dtype": {"large": "bfloat16"}}), ("x.zt", {})],
    ids=str,
)
def test_equal_to_a_conversion_here(
    target: str,
    options: dict[str, Any],
    folder: Path,
    base: str,
    tmp_path: Path,
    executor: Executor,
    s3_server: Seaweed,
) -> None:
    compare(executor, folder, base, tmp_path, target, options, s3_server)


@pytest.mark.parametrize(
    "options",
    [
        {"select": "small.*"}, {"dtype": {"large": "bfloat16"}, "metadata": {"step": 3}}, {"checksum": None},
        {"checksum": {"large*": "sha256", "*": None}}, {"compression": {"large": "zstd"}}, {"format": "ztensor@2"},
    ],
    ids=str,
)  # fmt: skip
def test_ztensor_by_parts_or_staged(
    options: dict[str, Any], folder: Path, base: str, tmp_path: Path, s3_server: Seaweed
) -> None:
    with ThreadPoolExecutor(2) as pool:
        compare(pool, folder, base, tmp_path, "x.zt", options, s3_server)


def compare(
    executor: Executor,
    folder: Path,
    base: str,
    tmp_path: Path,
    target: str,
    options: dict[str, Any],
    server: Seaweed,
) -> None:
    """The object is the file that a conversion without an executor writes, and the reports agree."""
    options = {"on_loss": "drop"} | options
    here = tg.convert(folder / "a.bt", tmp_path / target, **options)
    seen: list[tuple[int, int]] = []
    there = tg.convert(
        folder / "a.bt",
        f"{base}/{target}",
        executor=executor,
        progress=lambda done, total: seen.append((done, total)),
        **options,
    )
    assert stored(server, f"{base}/{target}") == (tmp_path / target).read_bytes()
    assert there.casts == here.casts
    assert seen[-1][0] == seen[-1][1] > 0
    assert server.uploads() == []


def test_from_a_bucket_to_a_bucket(folder: Path, base: str, executor: Executor) -> None:
    tg.convert(folder / "a.bt", f"{base}/a.bt", executor=executor)
    tg.convert(f"{base}/a.bt", f"{base}/b.safetensors", executor=executor)
    assert tg.diff(f"{base}/b.safetensors", folder / "a.bt", executor=executor).same
    tg.convert(f"{base}/a.bt", f"{base}/a.bt", select="small.*", executor=executor)
    assert len(tg.load(f"{base}/a.bt")) == 200


@pytest.mark.parametrize("target", ["x.bt", "x.zt"])
def test_workers_send_the_parts(target: str, folder: Path, base: str, s3_server: Seaweed) -> None:
    """Each part has at least 5 MiB but for the last, and each byte is sent once. The index of .zt is the last part."""
    sizes: list[int] = []
    with proxy_of(s3_server.endpoint) as proxy, ThreadPoolExecutor(2) as pool:
        proxy.sent = sizes.append
        options = {**s3_server.options, "endpoint": proxy.endpoint}
        tg.convert(folder / "a.bt", f"{base}/{target}", executor=pool, storage_options=options)
        puts = [path for method, path, _ in proxy.requests if method == "PUT"]
    numbers = sorted(int(path.partition("partNumber=")[2].partition("&")[0]) for path in puts)
    assert numbers == list(range(1, len(puts) + 1))
    assert len(puts) > 4
    assert len([nbytes for nbytes in sizes if 1 << 16 < nbytes < 5 << 20]) <= 1
    short = sum(nbytes for nbytes in sizes if nbytes > 1 << 16) - len(stored(s3_server, f"{base}/{target}"))
    assert short == 0 if target == "x.bt" else -(1 << 16) < short < 0


def test_a_corrupt_tensor_leaves_nothing(folder: Path, base: str, tmp_path: Path, s3_server: Seaweed) -> None:
    data = bytearray((folder / "a.zt").read_bytes())
    with tg.open(folder / "a.zt") as archive:
        data[archive["large"].offset or 0] ^= 1
    (tmp_path / "a.zt").write_bytes(data)
    with ThreadPoolExecutor(2) as pool, pytest.raises(tg.IntegrityError) as caught:
        tg.convert(tmp_path / "a.zt", f"{base}/x.bt", executor=pool)
    assert caught.value.tensor == "large"
    assert s3_server.keys(base.removeprefix("s3://tests/")) == []
    assert s3_server.uploads() == []


def test_a_target_that_changed_is_not_replaced(folder: Path, base: str, s3_server: Seaweed) -> None:
    tg.convert(folder / "a.bt", f"{base}/a.bt")
    with tg.open(f"{base}/a.bt") as archive, ThreadPoolExecutor(2) as pool:
        tg.save(f"{base}/a.bt", {"w": np.arange(3)})
        with pytest.raises(tg.InputError, match="changed"):
            tg.convert(archive, f"{base}/a.bt", executor=pool)
    assert list(tg.load(f"{base}/a.bt")) == ["w"]
    assert s3_server.uploads() == []


@pytest.mark.parametrize(
    ("options", "error"),
    [({"secret_access_key": "wrong"}, PermissionError), ({"endpoint": "http://127.0.0.1:1"}, tg.RemoteError)],
)
def test_what_the_server_refuses(
    options: dict[str, Any], error: type[Exception], folder: Path, s3_server: Seaweed
) -> None:
    given = {**s3_server.options, **options, "max_retries": 0}
    with ThreadPoolExecutor(2) as pool, pytest.raises(error) as caught:
        tg.convert(folder / "a.bt", "s3://tests/x.bt", executor=pool, storage_options=given)
    assert str(given["secret_access_key"]) not in str(caught.value)


@pytest.mark.parametrize("token", [None, "token/of+tests=="])
@pytest.mark.parametrize("key", ["x.bt", "a folder/ü+=&~.bt"])
def test_requests_are_signed_as_botocore_signs_them(token: str | None, key: str) -> None:
    """The same request, with the same time, by another implementation."""
    auth, credentials = needs("botocore.auth"), needs("botocore.credentials")
    request = needs("botocore.awsrequest").AWSRequest
    secret = "secret/of+tests"
    seen: list[tuple[str, str, dict[str, str], bytes]] = []

    class Capturing(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            answer = b"<UploadId>1&amp;2 /+</UploadId>" if "uploads" in self.path else b"<Error>no</Error>"
            self.send_response_only(200)
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_PUT = do_DELETE = do_POST

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Capturing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        options = {"endpoint": endpoint, "access_key_id": "key", "secret_access_key": secret, "region": "eu-north-1"}
        upload = multipart_upload(f"s3://tests/{key}", options | ({} if token is None else {"session_token": token}))
        assert upload is not None
        begun = upload.begin()
        assert begun.send(7, b"data") == '"1"'
        with pytest.raises(tg.RemoteError, match="could not complete"):
            begun.complete(['"1"'])
        begun.abort()
        server.shutdown()
    assert [method for method, *_ in seen] == ["POST", "PUT", "POST", "DELETE"]
    assert secret not in repr(begun) + str(seen)
    for method, path, headers, body in seen:
        signed = headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
        other = request(method, f"{endpoint}{path}", {name: headers[name] for name in signed if name != "host"}, body)
        other.context["timestamp"] = headers["x-amz-date"]
        signer = auth.S3SigV4Auth(credentials.Credentials("key", secret, token), "s3", "eu-north-1")
        text = signer.string_to_sign(other, signer.canonical_request(other))
        assert headers["authorization"].endswith(f"Signature={signer.signature(text, other)}")
        assert ("x-amz-security-token" in signed) == (token is not None)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("gs://bucket/x.bt", {}),
        ("s3://bucket/x.bt", {"access_key_id": "", "secret_access_key": ""}),
        ("s3://bucket/x.bt", {"access_key_id": "a", "secret_access_key": "b", "proxy_url": "http://proxy"}),
        ("s3://bucket/x.bt", {"access_key_id": "a", "secret_access_key": "b", "sse_kms_key_id": "key"}),
    ],
    ids=str,
)
def test_uploads_that_one_process_must_do(url: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert multipart_upload(url, options) is None


class TestDeadWorkers:
    def test_a_pool_breaks_and_nothing_is_left(self, folder: Path, base: str, s3_server: Seaweed) -> None:
        tg.save(f"{base}/x.bt", {"w": np.arange(3)})
        before = stored(s3_server, f"{base}/x.bt")
        executor = Dying()
        with pytest.raises(BrokenProcessPool):
            tg.convert(folder / "a.bt", f"{base}/x.bt", executor=executor)
        executor.pool.shutdown()
        assert executor.count > 2
        assert stored(s3_server, f"{base}/x.bt") == before
        assert s3_server.uploads() == []

    def test_dask_completes(self, folder: Path, base: str, tmp_path: Path, s3_server: Seaweed) -> None:
        client = cluster(tmp_path)
        try:
            killing: Any = Killing(client, tmp_path / "once")
            tg.convert(folder / "a.bt", f"{base}/x.bt", executor=killing)
        finally:
            client.close_all()
        assert (tmp_path / "once").exists()
        assert stored(s3_server, f"{base}/x.bt") == (folder / "a.bt").read_bytes()
        assert s3_server.uploads() == []
