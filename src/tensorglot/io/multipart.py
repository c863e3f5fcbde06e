"""One multipart upload that many processes write: S3's own requests, since obstore keeps an upload to one writer.

The caller begins the upload, workers send its parts in any order and number them, the
caller completes it from their ETags: the object is visible from then on. A part that is
sent again replaces the first. Requests are signed (AWS Signature Version 4) with access
keys, those of `storage_options` or of the environment; a worker in another process has
only its environment's, as for reading. `multipart_upload` returns None for what this
module cannot do: other servers than S3, other credentials than keys.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, urlsplit
from xml.sax.saxutils import escape, unescape

from tensorglot.errors import RemoteError
from tensorglot.io.local import change_error
from tensorglot.io.objects import Address, address_of, endpoint_of
from tensorglot.io.storage_options import Given

__all__ = ["MultipartUpload", "multipart_upload"]

_KNOWN = frozenset(
    {
        "access_key_id", "secret_access_key", "session_token", "region", "default_region", "endpoint",
        "virtual_hosted_style_request",
    }
)  # fmt: skip
"""Options of S3 that are understood here."""
_CLIENT_KNOWN = frozenset({"allow_http", "timeout", "read_timeout", "connect_timeout"})
_ENVIRONMENT = {
    "access_key_id": ("AWS_ACCESS_KEY_ID",),
    "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
_UPLOAD_ID = re.compile(rb"<UploadId>([^<]{1,4096})</UploadId>")
_ANSWER_NBYTES = 1 << 20
_NOTHING = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class MultipartUpload:
    """An upload that was begun. It can be sent to workers, without its credentials."""

    address: Address
    upload_id: str = field(default="", repr=False)

    def begin(self) -> MultipartUpload:
        body, _ = self._request("POST", {"uploads": ""})
        found = _UPLOAD_ID.search(body)
        if found is None:
            raise RemoteError("the server began no upload", rule="remote.answer", path=self.address.name)
        return replace(self, upload_id=unescape(found[1].decode("utf-8", "replace")))

    def send(self, number: int, data: bytes | bytearray | memoryview) -> str:
        """Uploads a part; returns its ETag. Numbers begin with 1."""
        query = {"partNumber": str(number), "uploadId": self.upload_id}
        _, headers = self._request("PUT", query, data)
        etag = headers.get("ETag")
        if etag is None:
            raise RemoteError("the server returned no ETag for a part", rule="remote.answer", path=self.address.name)
        return etag

    def complete(self, etags: Sequence[str], expect: str | None = None) -> None:
        """Makes the object of the parts, in order. With `expect`, the object must still have that ETag."""
        if expect is not None and self.address.call("head", self.address.key)["e_tag"] != expect:
            raise change_error(self.address.name)
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(etag)}</ETag></Part>"
            for number, etag in enumerate(etags, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        answer, _ = self._request("POST", {"uploadId": self.upload_id}, body)
        if b"<Error>" in answer:  # the status was sent before the server had begun
            raise RemoteError("the server could not complete the upload", rule="remote.answer", path=self.address.name)

    def abort(self) -> None:
        self._request("DELETE", {"uploadId": self.upload_id})

    def _request(
        self, method: str, query: Mapping[str, str], data: bytes | bytearray | memoryview = b""
    ) -> tuple[bytes, Mapping[str, str]]:
        """Body and headers of the answer. What fails for a moment is repeated, as obstore does."""
        retry = self.address.options.retry
        last: timedelta = retry["retry_timeout"]
        end, attempt = time.monotonic() + last.total_seconds(), 0
        while True:
            try:
                return self._send(method, query, data)
            except RemoteError as error:
                passing = error.rule in ("remote.connect", "remote.timeout", "remote.http.429")
                passing |= str(error.rule).startswith("remote.http.5")
                attempt += 1
                if not passing or attempt > retry["max_retries"] or time.monotonic() > end:
                    raise
            time.sleep(min(0.1 * 2**attempt, 5.0))

    def _send(
        self, method: str, query: Mapping[str, str], data: bytes | bytearray | memoryview
    ) -> tuple[bytes, Mapping[str, str]]:
        name = self.address.name
        request = urllib.request.Request(  # noqa: S310 - the endpoint is the caller's
            *self._sign(method, query, hashlib.sha256(data).hexdigest() if len(data) else _NOTHING), method=method
        )
        request.data = bytes(data) if isinstance(data, memoryview) else data
        failed: Exception
        try:
            seconds = _seconds(self.address.options.client["timeout"])
            with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310
                return answer.read(_ANSWER_NBYTES), dict(answer.headers.items())
        except urllib.error.HTTPError as error:
            failed = _http_error(error, name)
        except TimeoutError:
            failed = RemoteError("the server did not answer in time", rule="remote.timeout", path=name)
        except (urllib.error.URLError, http.client.HTTPException, OSError):
            failed = RemoteError(
                "cannot connect to the server, or the connection broke", rule="remote.connect", path=name
            )
        raise failed

    def _sign(self, method: str, query: Mapping[str, str], digest: str) -> tuple[str, None, dict[str, str]]:
        """The URL and the headers of a request: what Request takes, in its order."""
        setting = _settings(self.address)
        bucket = self.address.server.removeprefix("s3://")
        endpoint = (endpoint_of("s3", setting) or f"https://s3.{setting['region']}.amazonaws.com").rstrip("/")
        hosted = str(setting.get("virtual_hosted_style_request")).lower() == "true"
        base = endpoint if hosted else f"{endpoint}/{quote(bucket, safe='')}"
        parts = urlsplit(f"{base}/{quote(self.address.key, safe='/-_.~')}")
        asked = "&".join(f"{key}={quote(value, safe='-_.~')}" for key, value in sorted(query.items()))
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        headers = {"host": parts.netloc, "x-amz-content-sha256": digest, "x-amz-date": now}
        if "session_token" in setting:
            headers["x-amz-security-token"] = setting["session_token"]
        names = ";".join(sorted(headers))
        lines = "".join(f"{key}:{headers[key]}\n" for key in sorted(headers))
        canonical = "\n".join((method, parts.path, asked, lines, names, digest))
        scope = f"{now[:8]}/{setting['region']}/s3/aws4_request"
        text = "\n".join(("AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()))
        key = f"AWS4{setting['secret_access_key']}".encode()
        for step in (*scope.split("/"), text):
            key = hmac.digest(key, step.encode(), "sha256")
        headers["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={setting['access_key_id']}/{scope}, SignedHeaders={names}, "
            f"Signature={key.hex()}"
        )
        headers["Content-Type"] = "application/octet-stream"
        return f"{parts.scheme}://{parts.netloc}{parts.path}?{asked}", None, headers


def multipart_upload(url: str, options: Given) -> MultipartUpload | None:
    """An upload to be begun; None if it cannot be shared between processes."""
    if not url.startswith("s3://"):
        return None
    address = address_of(url, options)
    chosen, given = address.options, set(address.options)
    known = given & set(chosen.config) <= _KNOWN and given & set(chosen.client) <= _CLIENT_KNOWN
    setting = _settings(address)
    return MultipartUpload(address) if known and {"access_key_id", "secret_access_key"} <= setting.keys() else None


def _settings(address: Address) -> dict[str, str]:
    """The options and what the environment has for others."""
    found = {key: str(value) for key, value in address.options.config.items() if value != ""}
    for key, names in _ENVIRONMENT.items():
        value = found.get(key) or next((os.environ[name] for name in names if os.environ.get(name)), None)
        if value is not None:
            found[key] = value
    found.setdefault("region", found.get("default_region", "us-east-1"))
    return found


def _seconds(value: object) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(str(value).removesuffix("s"))


def _http_error(error: urllib.error.HTTPError, name: str) -> Exception:
    error.close()
    if error.code in (401, 403):
        return PermissionError(13, "access denied: check the credentials (storage_options, or AWS_*)", name)
    if error.code == 404:
        return FileNotFoundError(2, "no such bucket or upload", name)
    return RemoteError(
        f"the server answered HTTP {error.code} {error.reason}".rstrip(), rule=f"remote.http.{error.code}", path=name
    )
