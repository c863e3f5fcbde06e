"""HTTP servers that answer correctly, wrongly, or with redirects, depending on the path."""

from __future__ import annotations

import http.server
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["BEHAVIOURS", "Request", "Site", "serve"]


@dataclass
class Request:
    """A request of a client."""

    host: str
    path: str
    range: str | None
    headers: dict[str, str]
    """By names in small letters."""

    @property
    def token(self) -> str | None:
        return self.headers.get("authorization")


@dataclass
class Site:
    """The files of a server, how it answers for each, and what it was asked for."""

    def clear(self) -> None:
        """Forgets the requests so far."""
        self.requests, self.nbytes = [], 0

    files: dict[str, bytes] = field(default_factory=dict, repr=False)
    ways: dict[str, str] = field(default_factory=dict)
    """A behaviour for a path; the good one if there is none."""
    redirects: dict[str, str] = field(default_factory=dict)
    etag: str | None = '"one"'
    requests: list[Request] = field(default_factory=list, repr=False)
    nbytes: int = 0
    """Of the bodies that it sent."""
    url: str = ""
    pair: threading.Barrier = field(default_factory=lambda: threading.Barrier(2), repr=False)
    released: threading.Event = field(default_factory=threading.Event)
    """Set when the test is over: nobody waits any longer."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    site: Site

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def do_GET(self) -> None:
        path, site = self.path.partition("?")[0], self.site
        headers = {name.lower(): value for name, value in self.headers.items()}
        site.requests.append(Request(self.headers["Host"], self.path, self.headers.get("Range"), headers))
        if path in site.redirects:
            self.answer(302, {"Location": site.redirects[path]}, b"")
            return
        data = site.files.get(path)
        if data is None:
            self.answer(404, {}, b"<html>nothing here</html>")
            return
        if site.etag and self.headers.get("If-Match", site.etag) != site.etag:
            self.answer(412, {}, b"")
            return
        begin, end = 0, len(data)
        if self.headers.get("Range"):
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            begin = int(first) if first else max(0, len(data) - int(last))
            end = min(int(last) + 1, len(data)) if first and last else len(data)
        try:
            BEHAVIOURS[site.ways.get(path, "good")](self, data, begin, end)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def answer(self, status: int, headers: dict[str, str], body: bytes, length: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.site.nbytes += len(body)
            self.wfile.write(body)

    def ranged(self, data: bytes, begin: int, end: int, *, shift: int = 0, total: str | None = None) -> dict[str, str]:
        headers = {"Content-Range": f"bytes {begin + shift}-{end - 1 + shift}/{total or len(data)}"}
        return headers | ({"ETag": self.site.etag} if self.site.etag else {})


def good(self: Handler, data: bytes, begin: int, end: int) -> None:
    self.answer(206, self.ranged(data, begin, end), data[begin:end])


def ignores_range(self: Handler, data: bytes, begin: int, end: int) -> None:
    self.answer(200, {"ETag": self.site.etag or ""}, data)


def error_page(self: Handler, data: bytes, begin: int, end: int) -> None:
    self.answer(200, {"Content-Type": "text/html"}, b"<html>log in first</html>")


def short(self: Handler, data: bytes, begin: int, end: int) -> None:
    part = data[begin:end]
    self.answer(206, self.ranged(data, begin, end), part[: len(part) // 2])


def breaks_off(self: Handler, data: bytes, begin: int, end: int) -> None:
    part = data[begin:end]
    self.answer(206, self.ranged(data, begin, end), part[: len(part) // 2], length=len(part))
    self.close_connection = True


def long(self: Handler, data: bytes, begin: int, end: int) -> None:
    self.answer(206, self.ranged(data, begin, end), data[begin:end] + bytes(1000))


def endless(self: Handler, data: bytes, begin: int, end: int) -> None:
    self.answer(206, self.ranged(data, begin, end), b"", length=1 << 50)
    while not self.site.released.is_set():
        self.wfile.write(bytes(1 << 16))


def endless_chunks(self: Handler, data: bytes, begin: int, end: int) -> None:
    self.send_response_only(206)
    for name, value in {**self.ranged(data, begin, end), "Transfer-Encoding": "chunked"}.items():
        self.send_header(name, value)
    self.end_headers()
    while not self.site.released.is_set():
        self.wfile.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")


def stalls(self: Handler, data: bytes, begin: int, end: int) -> None:
    part = data[begin:end]
    self.answer(206, self.ranged(data, begin, end), part[:100], length=len(part))
    self.site.released.wait(60)
    self.close_connection = True


def drips(self: Handler, data: bytes, begin: int, end: int) -> None:
    self.answer(206, self.ranged(data, begin, end), b"", length=end - begin)
    for at in range(begin, end):
        if self.site.released.is_set():
            break
        self.wfile.write(data[at : at + 1])
        time.sleep(0.05)
    self.close_connection = True


def drips_headers(self: Handler, data: bytes, begin: int, end: int) -> None:
    self.wfile.write(b"HTTP/1.1 206 OK\r\n")
    while not self.site.released.wait(0.05):
        self.wfile.write(b"X")
    self.close_connection = True


def never_answers(self: Handler, data: bytes, begin: int, end: int) -> None:
    self.site.released.wait(60)
    self.close_connection = True


def forbidden_together(self: Handler, data: bytes, begin: int, end: int) -> None:
    """Two requests are refused at the same time."""
    self.site.pair.wait(60)
    forbidden(self, data, begin, end)


def another_range(self: Handler, data: bytes, begin: int, end: int) -> None:
    self.answer(206, self.ranged(data, begin, end, shift=1), data[begin:end])


def unknown_size(self: Handler, data: bytes, begin: int, end: int) -> None:
    self.answer(206, self.ranged(data, begin, end, total="*"), data[begin:end])


def huge_size(self: Handler, data: bytes, begin: int, end: int) -> None:
    self.answer(206, self.ranged(data, begin, end, total=str(1 << 62)), data[begin:end])


def fails(self: Handler, data: bytes, begin: int, end: int) -> None:
    self.answer(503, {}, b"try later")


def fails_at_first(self: Handler, data: bytes, begin: int, end: int) -> None:
    (fails if len(self.site.requests) == 1 else good)(self, data, begin, end)


def forbidden(self: Handler, data: bytes, begin: int, end: int) -> None:
    self.answer(403, {}, b"no")


def unauthorized(self: Handler, data: bytes, begin: int, end: int) -> None:
    self.answer(401, {}, b"who?")


def garbage(self: Handler, data: bytes, begin: int, end: int) -> None:
    self.wfile.write(b"\x00\x01 this is not HTTP\r\n\r\n")
    self.close_connection = True


def hangs_up(self: Handler, data: bytes, begin: int, end: int) -> None:
    self.connection.shutdown(socket.SHUT_RDWR)
    self.close_connection = True


BEHAVIOURS: dict[str, Callable[[Handler, bytes, int, int], None]] = {
    way.__name__: way
    for way in (
        good, ignores_range, error_page, short, breaks_off, long, endless, endless_chunks, stalls, drips,
        drips_headers, never_answers, another_range, unknown_size, huge_size, fails, fails_at_first, forbidden,
        forbidden_together,
        unauthorized, garbage, hangs_up,
    )
}  # fmt: skip


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores clients that hang up."""


@contextmanager
def serve(host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Iterator[Site]:
    """A server without files, under this host name."""
    site = Site()
    server = Server(("127.0.0.1", 0), type("SiteHandler", (Handler,), {"site": site}))
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    site.url = f"{'http' if tls is None else 'https'}://{host}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        site.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
