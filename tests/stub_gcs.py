"""A server that speaks as much of Google's XML API as obstore does, with generations as its documentation has them.

There is no real server of that API to be had from PyPI, npm or Debian: the emulators there
speak JSON, or ignore conditions.
"""

from __future__ import annotations

import http.server
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

from stub_s3 import Handler, etag

__all__ = ["stub_gcs"]


class GcsHandler(Handler):
    """S3's requests with other conditions: `x-goog-if-generation-match`, where 0 means that nothing is there."""

    generations: dict[str, int]
    parts: dict[str, dict[int, bytes]]
    numbers: Iterator[int]
    lock: threading.Lock

    @property
    def query(self) -> dict[str, str]:
        return {key: value[0] for key, value in parse_qs(urlsplit(self.path).query, keep_blank_values=True).items()}

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        if self.key in self.generations:
            headers["x_goog_generation"] = str(self.generations[self.key])
        super().answer(status, body, **headers)

    def store(self, data: bytes) -> None:
        self.objects[self.key] = data
        self.generations[self.key] = next(self.numbers)
        self.answer(200, ETag=etag(data))

    def do_PUT(self) -> None:
        data = self.body()
        if "uploadId" in self.query:
            self.parts[self.query["uploadId"]][int(self.query["partNumber"])] = data
            return self.answer(200, ETag=etag(data))
        with self.lock:
            wanted = self.headers.get("x-goog-if-generation-match")
            if wanted is not None and int(wanted) != self.generations.get(self.key, 0):
                return self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return self.store(data)

    def do_POST(self) -> None:
        self.body()
        if "uploads" in self.query:
            name = f"upload-{next(self.numbers)}"
            self.parts[name] = {}
            text = f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
            return self.answer(200, text.encode())
        parts = self.parts.pop(self.query["uploadId"])
        data = b"".join(parts[number] for number in sorted(parts))
        with self.lock:
            self.objects[self.key] = data
            self.generations[self.key] = next(self.numbers)
        text = f"<CompleteMultipartUploadResult><ETag>{etag(data)}</ETag></CompleteMultipartUploadResult>"
        return self.answer(200, text.encode())

    def do_GET(self) -> None:
        wanted, data = self.headers.get("If-Match"), self.objects.get(self.key)
        if wanted is not None and data is not None and wanted != etag(data):
            return self.answer(412)
        return super().do_GET()

    def do_DELETE(self) -> None:
        if "uploadId" in self.query:
            self.parts.pop(self.query["uploadId"], None)
        else:
            self.generations.pop(self.key, None)
            self.objects.pop(self.key, None)
        self.answer(204)


@contextmanager
def stub_gcs() -> Iterator[tuple[str, dict[str, bytes], dict[str, dict[int, bytes]]]]:
    """The endpoint of a server, its objects, and the uploads that are not complete."""
    objects: dict[str, bytes] = {}
    parts: dict[str, dict[int, bytes]] = {}
    fields = {
        "objects": objects,
        "parts": parts,
        "generations": {},
        "numbers": itertools.count(1000),
        "lock": threading.Lock(),
        "honoured": (),
    }
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("StubHandler", (GcsHandler,), fields))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", objects, parts
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
