"""A multipart upload to S3 whose parts many processes write. obstore allows only one writer for an upload.

The caller begins the upload, workers send numbered parts in any order, and the caller
completes it with their ETags: from then on the object is visible. A part that is sent again
replaces the first. Requests are signed (AWS Signature Version 4) with access keys from
`storage_options`, the environment or a profile; a worker in another process has only the
latter two, as for reading. `multipart_upload` returns None if this module cannot be used:
for servers other than S3, and for credentials other than access keys.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.message import Message
from urllib.parse import quote, urlsplit
from xml.sax.saxutils import escape, unescape

from tensorglot.errors import RemoteError
from tensorglot.io.aws_profile import from_profile
from tensorglot.io.http import request
from tensorglot.io.local import change_error
from tensorglot.io.objects import Address, address_of, endpoint_of
from tensorglot.io.storage_options import OptionsLike

__all__ = ["MultipartUpload", "multipart_upload"]

_KNOWN = frozenset(
    {
        "access_key_id", "secret_access_key", "session_token", "region", "default_region", "endpoint",
        "virtual_hosted_style_request",
    }
)  # fmt: skip
"""Options of S3 that this module supports."""
_CLIENT_KNOWN = frozenset({"allow_http", "timeout", "read_timeout", "connect_timeout"})
_ENVIRONMENT = {
    "access_key_id": ("AWS_ACCESS_KEY_ID",),
    "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
_UPLOAD_ID = re.compile(rb"<UploadId>([^<]{1,4096})</UploadId>")
_NOTHING = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class MultipartUpload:
    """An upload. It can be pickled for workers; credentials are left out."""

    address: Address
    upload_id: str = field(default="", repr=False)

    def begin(self) -> MultipartUpload:
        body, _ = self._request("POST", {"uploads": ""})
        found = _UPLOAD_ID.search(body)
        if found is None:
            raise RemoteError("the server did not start the upload", rule="remote.answer", path=self.address.name)
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
        """Completes the object from its parts, in order. With `expect`, it must still have that ETag.

        The server compares the ETag when it completes the upload. Some servers ignore this
        condition, so it is also compared before.
        """
        if expect is not None and self.address.call("head", self.address.key)["e_tag"] != expect:
            raise change_error(self.address.name)
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(etag)}</ETag></Part>"
            for number, etag in enumerate(etags, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        try:
            answer, _ = self._request("POST", {"uploadId": self.upload_id}, body, match=expect)
        except RemoteError as error:
            if error.rule != "remote.http.412":
                raise
            raise change_error(self.address.name) from error
        if b"<Error>" in answer:  # S3 sends status 200 before it completes, and a later error in the body
            raise RemoteError("the server could not complete the upload", rule="remote.answer", path=self.address.name)

    def abort(self) -> None:
        self._request("DELETE", {"uploadId": self.upload_id})

    def _request(
        self,
        method: str,
        query: Mapping[str, str],
        data: bytes | bytearray | memoryview = b"",
        match: str | None = None,
    ) -> tuple[bytes, Message]:
        """Body and headers of the answer. A redirect is not followed, because it would send along the credentials."""
        url, headers = self._sign(method, query, hashlib.sha256(data).hexdigest() if len(data) else _NOTHING)
        if match is not None:
            headers["If-Match"] = match
        sent = bytes(data) if isinstance(data, memoryview) else data
        answer = request(method, url, headers, self.address.options, self.address.name, data=sent)
        if answer.status >= 300:
            raise RemoteError(
                "the server redirects an upload: set the endpoint and region of the bucket",
                rule="remote.redirect",
                path=self.address.name,
            )
        return answer.body, answer.headers

    def _sign(self, method: str, query: Mapping[str, str], digest: str) -> tuple[str, dict[str, str]]:
        """The URL and the signed headers of a request: the steps of AWS Signature Version 4, in their order."""
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
        return f"{parts.scheme}://{parts.netloc}{parts.path}?{asked}", headers


def multipart_upload(url: str, options: OptionsLike) -> MultipartUpload | None:
    """An upload that is not begun yet; None if this module cannot make its requests."""
    if not url.startswith("s3://"):
        return None
    address = address_of(url, options)
    chosen, given = address.options, set(address.options)
    known = given & set(chosen.config) <= _KNOWN and given & set(chosen.client) <= _CLIENT_KNOWN
    setting = _settings(address)
    return MultipartUpload(address) if known and {"access_key_id", "secret_access_key"} <= setting.keys() else None


def _settings(address: Address) -> dict[str, str]:
    """The settings from the options, else from the environment, else from a profile."""
    found = from_profile(address.options)
    found |= {key: str(value) for key, value in address.options.config.items() if value != ""}
    for key, names in _ENVIRONMENT.items():
        value = found.get(key) or next((os.environ[name] for name in names if os.environ.get(name)), None)
        if value is not None:
            found[key] = value
    found.setdefault("region", found.get("default_region", "us-east-1"))
    return found
