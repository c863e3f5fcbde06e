"""HTTP requests that do not follow redirects, which obstore cannot be configured to do.

obstore follows a redirect to any host, and sends along the caller's headers and, as
Referer, the whole URL with its signature. So the first request for an HTTP URL is made
here (`locate`): redirects are followed one by one, and the caller's headers are sent only
to the origin of the URL. obstore then reads from the final URL.

Time limits, retries, proxy and certificates are those of `storage_options`. The limit for
the whole request also stops a server that sends its headers byte by byte.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any
from urllib.parse import urljoin, urlsplit

from tensorglot.errors import RemoteError
from tensorglot.io.storage_options import StorageOptions
from tensorglot.io.urls import split_user

__all__ = ["Answer", "locate", "request", "status_error"]

_REDIRECTS = 10
_READ_NBYTES = 64 << 10
_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_EMPTY = 416
"""The status "range not satisfiable", for every range of an empty object."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer."""

    url: str
    """The URL that it came from."""
    status: int
    headers: Message
    body: bytes

    def span(self) -> tuple[int, int] | None:
        """The offset of the body in the object, and the object's size; None if the body is not the declared range."""
        found = _RANGE.fullmatch(self.headers.get("Content-Range", ""))
        if self.status != 206 or found is None:
            return None
        begin, last, size = map(int, found.groups())
        return (begin, size) if begin + len(self.body) == last + 1 <= size else None


def _origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port: credentials for one origin must not be sent to another."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def locate(url: str, wanted: str, most: int, options: StorageOptions, name: str) -> tuple[Answer, bool]:
    """Requests a range, reads at most `most` bytes of the answer, and follows redirects.

    Returns the answer, and whether all redirects stayed at the URL's origin: only then may
    the caller's headers be sent to the final URL.
    """
    at, stayed = url, True
    for _ in range(_REDIRECTS):
        headers = options.headers if stayed else {}
        answer = request("GET", at, {**headers, "Range": wanted}, options, name, most=most)
        location = answer.headers.get("Location")
        if not 300 <= answer.status < 400 or location is None:
            return answer, stayed
        at = _follow(at, location, name)
        stayed &= _origin(at) == _origin(url)
    raise RemoteError("too many redirects", rule="remote.redirect", path=name)


def _follow(at: str, location: str, name: str) -> str:
    with contextlib.suppress(ValueError):
        found, _ = split_user(urljoin(at, location))
        scheme, host, _ = _origin(found)
        if scheme in ("http", "https") and host:
            return found
    raise RemoteError("the server redirects to something that is not HTTP", rule="remote.redirect", path=name)


def request(
    method: str,
    url: str,
    headers: Mapping[str, str],
    options: StorageOptions,
    name: str,
    *,
    data: bytes | bytearray | None = None,
    most: int = 1 << 20,
) -> Answer:
    """Makes a request, and repeats it after transient failures. Reads at most `most` bytes of the body.

    Redirects are returned as answers, and so is the status for a range of an empty object;
    other errors of the server are raised. `name` is the URL without credentials, for errors.
    """
    retry = options.retry
    end, attempt = time.monotonic() + retry["retry_timeout"].total_seconds(), 0
    while True:
        try:
            answer = _request_once(method, url, headers, options, name, data, most)
            if answer.status < 400 or answer.status == _EMPTY:
                return answer
            error: Exception = status_error(answer.status, name)
            transient = answer.status == 429 or answer.status >= 500
        except RemoteError as failed:
            error, transient = failed, True
        attempt += 1
        if not transient or attempt > retry["max_retries"] or time.monotonic() > end:
            raise error
        time.sleep(min(0.1 * 2**attempt, 5.0))


def _request_once(
    method: str,
    url: str,
    headers: Mapping[str, str],
    options: StorageOptions,
    name: str,
    data: bytes | bytearray | None,
    most: int,
) -> Answer:
    sent = urllib.request.Request(url, data, {**headers}, method=method)  # noqa: S310 - the URL is the caller's
    if not sent.has_header("User-agent"):
        sent.add_header("User-agent", str(options.client.get("user_agent", "tensorglot")))
    limit = _Limit(options.seconds("timeout"))
    answering = options.seconds("read_timeout" if data is None else "timeout")  # a body may take longer to send
    try:
        with limit, _opener(sent.host, options, limit).open(sent, timeout=answering) as opened:
            return Answer(url, opened.status, opened.headers, limit.read(opened, most))
    except (OSError, ValueError, http.client.HTTPException) as error:
        late = limit.passed or isinstance(getattr(error, "reason", error), TimeoutError)
    if late:
        raise RemoteError("the server did not answer in time", rule="remote.timeout", path=name)
    raise RemoteError("cannot connect to the server, or the connection broke", rule="remote.connect", path=name)


class _Limit:
    """Ends a request after a time, whatever it is waiting for, by shutting down its socket."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._timer = threading.Timer(seconds, self._interrupt)
        self._timer.daemon = True
        self._connections: list[http.client.HTTPConnection] = []

    @property
    def passed(self) -> bool:
        return time.monotonic() > self._end

    def watch(self, connection: http.client.HTTPConnection) -> None:
        self._connections.append(connection)

    def _interrupt(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):
                if connection.sock is not None:
                    # The plain socket's method: an SSL socket's would also drop its TLS state, which is in use.
                    socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    def read(self, answer: http.client.HTTPResponse, most: int) -> bytes:
        """Reads a body up to one byte more than `most`: the extra byte shows that it is longer."""
        data = bytearray()
        while not self.passed and (piece := answer.read1(min(_READ_NBYTES, most + 1 - len(data)))):
            data += piece
        if self.passed:
            raise TimeoutError
        return bytes(data)

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()


class _Connection(http.client.HTTPConnection):
    """A connection that a `_Limit` can end, with separate time limits for connecting and for answering."""

    def __init__(self, host: str, limit: _Limit, connecting: float, **named: Any) -> None:
        self._answering = named["timeout"]
        super().__init__(host, **{**named, "timeout": connecting})
        limit.watch(self)

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(self._answering)


class _SecureConnection(_Connection, http.client.HTTPSConnection):
    pass


class _Handler(urllib.request.AbstractHTTPHandler):
    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_

    def __init__(self, limit: _Limit, options: StorageOptions) -> None:
        super().__init__()
        self._named = {"limit": limit, "connecting": options.seconds("connect_timeout")}
        self._options = options

    def http_open(self, sent: urllib.request.Request) -> Any:
        return self.do_open(_Connection, sent, **self._named)  # type: ignore[arg-type]

    def https_open(self, sent: urllib.request.Request) -> Any:
        return self.do_open(_SecureConnection, sent, context=_tls(self._options), **self._named)  # type: ignore[arg-type]


def _opener(host: str, options: StorageOptions, limit: _Limit) -> urllib.request.OpenerDirector:
    """An opener without the usual handlers for redirects and errors: every status is an answer."""
    proxy, excluded = options.client.get("proxy_url"), str(options.client.get("proxy_excludes", ""))
    if proxy is None:
        proxies = None  # the environment's proxies
    elif any(host.partition(":")[0].endswith(name.strip()) for name in excluded.split(",") if name.strip()):
        proxies = {}
    else:
        proxies = {"http": str(proxy), "https": str(proxy)}
    opener = urllib.request.OpenerDirector()
    for handler in (urllib.request.ProxyHandler(proxies), _Handler(limit, options)):
        opener.add_handler(handler)
    return opener


def _tls(options: StorageOptions) -> ssl.SSLContext:
    client, context = options.client, ssl.create_default_context()
    own = client.get("root_certificate")
    if own is not None:
        context.load_verify_locations(cadata=own.decode() if isinstance(own, bytes) else str(own))
    if str(client.get("allow_invalid_certificates")).lower() == "true":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def status_error(status: int, name: str) -> Exception:
    """The error for a status of 400 or more."""
    if status in (404, 410):
        return FileNotFoundError(2, "no such object", name)
    if status in (401, 403):
        hint = "check the credentials (storage_options, or the environment's AWS_*, GOOGLE_*, AZURE_*)"
        if name.startswith("http"):
            hint = "check the credentials (storage_options, or the URL)"
        elif name.startswith("hf://"):
            hint = "the file does not exist, or needs a token (set HF_TOKEN)"
        return PermissionError(13, f"access denied: {hint}", name)
    text = f"the server answered HTTP {status} {http.client.responses.get(status, '')}".rstrip()
    return RemoteError(text, rule=f"remote.http.{status}", path=name)
