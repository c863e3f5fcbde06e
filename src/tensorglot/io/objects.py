"""Requests for objects at URLs, through obstore. An `Address` names one object.

Errors of obstore are translated here to errors without its text, which contains whole
URLs, and so signatures. A missing object is a FileNotFoundError, denied access a
PermissionError, any other failure a RemoteError, which is an OSError, too. obstore repeats
requests after transient failures (`StorageOptions.retry`).

Clients are cached, with their connections, by server and options. They do not survive a
fork: a child process that used one would hang, so that is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from tensorglot.errors import InputError, RemoteError, TensorglotError, UnsupportedError, escape
from tensorglot.extras import library
from tensorglot.io.aws_profile import from_profile
from tensorglot.io.http import Answer, locate, status_error
from tensorglot.io.hub import hub_url, token
from tensorglot.io.storage_options import OptionsLike, StorageOptions, as_storage_options
from tensorglot.io.urls import BUCKETS, shown, split_bucket, split_user

__all__ = ["Address", "PreconditionFailed", "address_of", "endpoint_of", "guarded"]

_CLIENTS = 16
_ENVIRONMENT = ("AWS_", "AZURE_", "GOOGLE_")
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_KINDS = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
_STATUS = re.compile(r"status code: (\d{3})")
_FAILURES = (
    (r"kind: Timeout|TimedOut", "remote.timeout", "the server did not answer in time"),
    (r"redirect", "remote.redirect", "too many redirects"),
    (
        r"kind: (Connect|Interrupted)|ConnectionRe|BrokenPipe|IncompleteMessage",
        "remote.connect",
        "cannot connect to the server, or the connection broke",
    ),
    (r"", "remote.answer", "the server's answer is invalid or incomplete"),
)
"""A pattern in the text of obstore's error, and the rule and message of our error. The first match counts."""

T = TypeVar("T")
_first_used_by = 0
"""The process that made the first request."""


class PreconditionFailed(Exception):
    """A condition of a request did not hold. Callers in io and store catch it; users never see it."""


@dataclass(frozen=True, slots=True)
class Address:
    """One object of a server."""

    name: str
    """The URL without credentials, for messages."""
    server: str = field(repr=False)
    """`s3://bucket`; for HTTP the whole URL, because its query may be needed."""
    key: str
    """The key within the bucket; empty for HTTP."""
    options: StorageOptions
    start: str | None = None
    """The HTTP URL from which redirects led to `server`; None for a bucket."""

    def call(self, function: str, *arguments: Any, **named: Any) -> Any:
        """Calls a function of obstore with the client of this address and `arguments`."""
        obstore, client = self._client()
        return guarded(self.name, partial(getattr(obstore, function), client, *arguments, **named))

    def _client(self) -> tuple[Any, Any]:
        """obstore, and the client of this address."""
        _check_process(self.name)
        obstore = library("obstore", "remote")
        return obstore, guarded(self.name, partial(_client, self.server, self.options))

    def get(self, begin: int, end: int | None = None, *, match: str | None = None) -> Any:
        """Requests a range; a negative `begin` counts from the end. The body of the answer is not read yet."""
        wanted = {"suffix": -begin} if begin < 0 else {"offset": begin} if end is None else (begin, end)
        options: dict[str, Any] = {"range": wanted}
        if match is not None:
            options["if_match"] = match
        return self.call("get", self.key, options=options)

    def body(self, answer: Any, most: int) -> bytes:
        """Reads the body of an answer, at most `most` bytes."""
        stream, data = answer.stream(), bytearray()
        while len(data) < most and (chunk := guarded(self.name, partial(next, stream, None))) is not None:
            data += chunk
        return bytes(data[:most])

    def size(self) -> int:
        size: int = self.call("head", self.key)["size"]
        return size

    def list(self, folder: str) -> list[dict[str, Any]]:
        """The objects in a folder, given as a key that ends with a slash, or as an empty text."""
        listed = self.call("list_with_delimiter", folder)
        return [found for found in listed["objects"] if found["path"].startswith(folder)]

    def with_key(self, key: str) -> Address:
        """Another object of the bucket."""
        return replace(self, name=f"{self.server}/{key}", key=key)

    def locate(self, wanted: str = "bytes=0-0", most: int = 1) -> tuple[Address, Answer | None]:
        """For HTTP, follows redirects and returns the final address, and the answer to a request for a range.

        For a bucket, returns this address and None.
        """
        if self.start is None:
            return self, None
        self._client()  # refuses invalid options before a request is made
        answer, stayed = locate(self.start, wanted, most, self.options, self.name)
        options = self.options if stayed else self.options.with_headers({})
        return replace(self, server=answer.url, options=options), answer


def address_of(url: str, options: OptionsLike) -> Address:
    """The address of a URL for which `is_url` is true."""
    kept = as_storage_options(options)
    scheme = url.partition("://")[0]
    if scheme in BUCKETS:
        server, key = split_bucket(url)
        return Address(shown(url), server, key, kept)
    if scheme == "hf":
        kept, given = kept.without_token()
        secret, start = given or token(), hub_url(url)
        return Address(shown(url), start, "", kept.authorized(secret and f"Bearer {secret}"), start)
    try:
        parts = urlsplit(url)
        valid = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise InputError("not a valid URL", rule="url.syntax", path=shown(url))
    start, basic = split_user(urlunsplit((*parts[:4], "")))
    return Address(shown(url), start, "", kept.authorized(basic), start)


def _client(url: str, options: StorageOptions) -> Any:
    environment = tuple(sorted(item for item in os.environ.items() if item[0].startswith(_ENVIRONMENT)))
    if url.startswith("s3://"):
        options = StorageOptions({**from_profile(options), **options})
    return _make_client(url, options, environment)


@lru_cache(_CLIENTS)
def _make_client(url: str, options: StorageOptions, environment: object) -> Any:
    store = library("obstore.store", "remote")
    scheme, rest = url.split("://", 1)
    client, config = options.client, options.config
    if scheme == "s3":
        config.setdefault("disable_bulk_delete", True)  # not every server supports it, and we delete one by one
    if scheme in _KINDS:
        if endpoint_of(scheme, config).startswith("http://"):
            client.setdefault("allow_http", True)
        make = partial(getattr(store, _KINDS[scheme]), rest, **config)
    elif config:
        raise InputError(f"unknown storage option {escape(next(iter(config)))} for {scheme}://", rule="url.options")
    else:
        client.setdefault("allow_http", True)
        make = partial(store.HTTPStore, url)
    try:
        return make(client_options=client, retry_config=options.retry)
    except TypeError as error:
        raise InputError(f"storage_options do not suit {scheme}://: {error}", rule="url.options") from error


def endpoint_of(scheme: str, config: Mapping[str, Any]) -> str:
    """The endpoint from the options or the environment; empty for the cloud's own."""
    given = config.get("endpoint") or config.get("base_url")
    return str(given or next((os.environ[name] for name in _ENDPOINTS[scheme] if name in os.environ), ""))


def _check_process(url: str) -> None:
    global _first_used_by
    if _first_used_by == 0:
        _first_used_by = os.getpid()
    elif _first_used_by != os.getpid():
        raise InputError(
            "a URL cannot be read in a process forked from one that has read URLs: start processes by 'spawn'",
            rule="source.fork",
            path=url,
        )


def guarded(url: str, function: Callable[[], T]) -> T:
    """Calls a function of obstore and translates its errors. The original is not kept as context: it shows URLs."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001 - obstore has several trees of errors
        found = _translate(error, url)
    raise found


def _translate(error: Exception, url: str) -> Exception:
    kind, text = type(error).__name__, str(error)
    if isinstance(error, TensorglotError):
        return error
    status = _STATUS.search(text)
    code = 0 if status is None else int(status[1])
    if isinstance(error, FileNotFoundError) or code == 404:  # a bucket that is listed, too
        return status_error(404, url)
    if kind in ("PreconditionError", "AlreadyExistsError", "NotModifiedError"):
        return PreconditionFailed(url)
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or code in (401, 403):
        return status_error(403, url)
    if kind == "InvalidPathError" or text.startswith("Could not parse path"):
        return InputError("not a valid key of an object", rule="url.syntax", path=url)
    if kind == "UnknownConfigurationKeyError":
        name = re.search(r"'(\w+)'", text)
        return InputError(f"unknown storage option {'' if name is None else name[1]}".rstrip(), rule="url.options")
    if kind == "NotSupportedError" and "Range" in text:
        return UnsupportedError(
            "the server does not support ranges, or answers with another page: download the file first",
            rule="remote.range",
            path=url,
        )
    if type(error).__module__.partition(".")[0] != "obstore" and not isinstance(error, (OSError, ValueError)):
        return error
    if code:
        return status_error(code, url)
    rule, message = next(found[1:] for found in _FAILURES if re.search(found[0], text))
    return RemoteError(message, rule=rule, path=url)
