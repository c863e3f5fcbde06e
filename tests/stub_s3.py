"""A server that speaks as much S3 as a store needs, and honours only the conditions that it is told to.

rclone's server and some others are like this: they accept a conditional put, and ignore
the condition.
"""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from types import MappingProxyType
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

__all__ = ["Handler", "answer_with", "sends_a_part", "stub_s3"]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    objects: dict[str, bytes]
    honoured: Collection[str]
    ways: Mapping[tuple[str, str], Callable[[Handler], None]] = MappingProxyType({})

    def parse_request(self) -> bool:
        """A request that `ways` has an answer for gets that one."""
        if not super().parse_request():
            return False
        for (method, part), way in self.ways.items():
            if self.command == method and part in self.path:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                way(self)
                return False
        return True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Last-Modified", formatdate(usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    @property
    def key(self) -> str:
        return unquote(urlsplit(self.path).path).strip("/").partition("/")[2]

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        old = self.objects.get(self.key)
        if "if-none-match" in self.honoured and self.headers.get("If-None-Match") == "*" and old is not None:
            return self.answer(412)
        wanted = self.headers.get("If-Match")
        if "if-match" in self.honoured and wanted is not None and (old is None or wanted != etag(old)):
            return self.answer(412)
        self.objects[self.key] = data
        return self.answer(200, ETag=etag(data))

    def do_GET(self) -> None:
        if not self.key:
            return self.list()
        data = self.objects.get(self.key)
        if data is None:
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        asked = self.headers.get("Range")
        if not asked or not data:
            return self.answer(200, data, ETag=etag(data))
        first, last = asked.removeprefix("bytes=").split("-")
        begin = int(first) if first else max(0, len(data) - int(last))
        end = min(int(last) + 1, len(data)) if first and last else len(data)
        return self.answer(206, data[begin:end], ETag=etag(data), Content_Range=f"bytes {begin}-{end - 1}/{len(data)}")

    def do_HEAD(self) -> None:
        data = self.objects.get(self.key)
        return self.answer(404) if data is None else self.answer(200, data, ETag=etag(data))

    def do_DELETE(self) -> None:
        self.objects.pop(self.key, None)
        self.answer(204)

    def list(self) -> None:
        prefix = parse_qs(urlsplit(self.path).query).get("prefix", [""])[0]
        found = [key for key in self.objects if key.startswith(prefix) and "/" not in key[len(prefix) :]]
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{etag(self.objects[key])}</ETag><Size>{len(self.objects[key])}</Size></Contents>"
            for key in found
        )
        self.answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>".encode())


def answer_with(status: int, body: bytes = b"", **headers: str) -> Callable[[Handler], None]:
    return lambda handler: handler.answer(status, body, **headers)


def sends_a_part(handler: Handler) -> None:
    """The length of the object in the headers, and five bytes of it as one chunk."""
    data = handler.objects[handler.key]
    asked = handler.headers.get("Range")
    handler.send_response_only(206 if asked else 200)
    if asked:
        begin = max(0, len(data) - int(asked.rpartition("-")[2]))
        handler.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
    handler.send_header("ETag", etag(data))
    handler.send_header("Last-Modified", formatdate(usegmt=True))
    handler.send_header("Content-Length", str(len(data)))
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b"5\r\n" + data[:5] + b"\r\n0\r\n\r\n")


def etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


@contextmanager
def stub_s3(
    honoured: Collection[str] = ("if-match", "if-none-match"),
    ways: Mapping[tuple[str, str], Callable[[Handler], None]] | None = None,
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """The endpoint of a server, and its objects.

    `ways` has other answers, for a method and a part of the path.
    """
    objects: dict[str, bytes] = {}
    handler = type("StubHandler", (Handler,), {"objects": objects, "honoured": honoured, "ways": ways or {}})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", objects
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
