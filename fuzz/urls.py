"""Mutants of a server's answers: `python fuzz/urls.py [COUNT] [SEED]`.

A server in this process has one file in two versions, with different ETags and sizes.
Some of its answers are changed: status, headers, ranges, lengths, ETags, encodings; the
body is cut, made longer or broken off; from some request on it serves the other version.
What it sends as the bytes of a range are bytes of the file, as far as it sends them. The
invariant:

- only our errors and OSError leave, in printable words;
- what is read is the first version or the second one, never a mixture, and never other bytes.
"""

from __future__ import annotations

import http.server
import random
import sys
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np

import tensorglot as tg
from http_servers import Server

OPTIONS = {"timeout": "2s", "read_timeout": "1s", "max_retries": 0}
STATUSES = (
    100, 101, 199, 200, 201, 203, 204, 205, 206, 207, 226, 300, 301, 302, 304, 307, 308, 400, 401, 403, 404, 405, 408,
    409, 410, 412, 416, 418, 429, 500, 501, 502, 503, 504, 511, 599, 600, 999,
)  # fmt: skip
NUMBERS = (-1, 0, 1, 2, 100, 65535, 1 << 18, (1 << 18) + 1, 1 << 31, 1 << 32, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64)
ETAGS = ("", '""', '"two"', "one", 'W/"one"', '"one" ', '"\u00e9"', "*", '"' + "x" * 5000 + '"')
VALUES = ("", " ", "none", "bytes", "gzip", "identity", "chunked", "bytes */*", "bytes 0-0/*", "\x7f", "x" * 70_000)
HEADERS = (
    "Content-Type", "Content-Encoding", "Transfer-Encoding", "Accept-Ranges", "Connection", "Last-Modified",
    "Content-Location", "Location", "Retry-After", "Age", "Date", "Vary", "Content-Disposition",
)  # fmt: skip


class Change(NamedTuple):
    """What is different in one answer."""

    kind: str
    number: int = 0
    text: str = ""
    name: str = ""


class Mutant(NamedTuple):
    format: str
    changes: dict[int, list[Change]]
    """Of the answers that have any, by the number of the request."""
    second_from: int
    """The request from which on the second version is there."""


def mutants(count: int, seed: int = 0) -> Iterator[Mutant]:
    r = random.Random(seed)
    for _ in range(count):
        answers: dict[int, list[Change]] = {}
        for _ in range(r.choice((0, 1, 1, 1, 2))):
            answers.setdefault(r.choice((0, 1, 2, 3, -1)), []).append(_change(r))
        yield Mutant(r.choice(list(files())), answers, r.choice((0, 1, 2, 3, 99, 99, 99, 99, 99, 99)))


def _change(r: random.Random) -> Change:
    kind = r.choice(tuple(KINDS))
    near = r.choice((r.choice(NUMBERS), r.choice((-2, -1, 1, 2, 1000))))
    if kind == "status":
        return Change(kind, r.choice(STATUSES))
    if kind in ("etag", "second etag"):
        return Change(kind, text=r.choice(ETAGS))
    if kind == "header":
        return Change(kind, text=r.choice((*VALUES, str(r.choice(NUMBERS)))), name=r.choice(HEADERS))
    if kind == "raw range":
        return Change(kind, text=r.choice((*VALUES, "bytes 5-2/10", "items 0-9/10", "bytes 0-18446744073709551616/2")))
    return Change(kind, near)


# The server


@cache
def files() -> dict[str, tuple[bytes, bytes]]:
    """Two versions of a file of each format: larger than the first request, so that there are others."""
    made = {}
    for format in ("safetensors", "bintensors", "ztensor", "npz", "gguf"):
        versions = []
        for number in (1, 2):
            rows = np.arange(96_000 + 100 * number, dtype=np.float32) * number
            tensors = {"a": rows, "b": np.full((50_000, 2), number, np.int8), "c": np.arange(7, dtype=np.float32)}
            versions.append(tg.dumps(tensors, format=format))
        made[format] = versions[0], versions[1]
    return made


@cache
def values(format: str) -> list[dict[str, bytes]]:
    """What is in the two versions."""
    return [{name: array.tobytes() for name, array in tg.loads(data).items()} for data in files()[format]]


class Answer:
    """An answer that can be changed before it is sent."""

    def __init__(self, data: bytes, etag: str, begin: int, end: int, *, ranged: bool) -> None:
        self.status = 206 if ranged else 200
        self.begin, self.last, self.total = begin, end - 1, len(data)
        self.body = data[begin:end]
        self.nbytes = len(self.body)
        self.length: int | None = self.nbytes
        self.headers = [("ETag", etag), ("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")]
        self.raw_range: str | None = None if ranged else ""
        self.chunked = False

    def send(self, file: object) -> None:
        headers = list(self.headers)
        spelled = self.raw_range if self.raw_range is not None else f"bytes {self.begin}-{self.last}/{self.total}"
        if spelled:
            headers.append(("Content-Range", spelled))
        if self.chunked:
            headers.append(("Transfer-Encoding", "chunked"))
        elif self.length is not None:
            headers.append(("Content-Length", str(self.length)))
        head = f"HTTP/1.1 {self.status} X\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers)
        body = self.body
        if self.chunked:
            body = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
        file.write(head.encode("latin-1") + b"Connection: close\r\n\r\n" + body)  # type: ignore[attr-defined]


def _apply(answer: Answer, change: Change) -> None:
    KINDS[change.kind](answer, change)


def _status(answer: Answer, change: Change) -> None:
    answer.status = change.number


def _etag(answer: Answer, change: Change) -> None:
    answer.headers[0] = ("ETag", change.text)


def _no_etag(answer: Answer, change: Change) -> None:
    del answer.headers[0]


def _second_etag(answer: Answer, change: Change) -> None:
    answer.headers.append(("ETag", change.text))


def _header(answer: Answer, change: Change) -> None:
    answer.headers.append((change.name, change.text))


def _begin(answer: Answer, change: Change) -> None:
    answer.begin += change.number


def _last(answer: Answer, change: Change) -> None:
    answer.last += change.number


def _total(answer: Answer, change: Change) -> None:
    answer.total += change.number


def _raw_range(answer: Answer, change: Change) -> None:
    answer.raw_range = change.text


def _length(answer: Answer, change: Change) -> None:
    answer.length = (answer.length or 0) + change.number


def _no_length(answer: Answer, change: Change) -> None:
    answer.length = None


def _cut(answer: Answer, change: Change) -> None:
    answer.body = answer.body[: max(0, len(answer.body) - abs(change.number) % 5000)]


def _cut_right(answer: Answer, change: Change) -> None:
    _cut(answer, change)
    answer.length = len(answer.body)


def _longer(answer: Answer, change: Change) -> None:
    """Behind all bytes of the range: behind fewer, the zeros would be sent in the place of bytes of the file."""
    if len(answer.body) == answer.nbytes:
        answer.body += bytes(abs(change.number) % 5000)


def _longer_right(answer: Answer, change: Change) -> None:
    _longer(answer, change)
    answer.length = len(answer.body)


def _chunked(answer: Answer, change: Change) -> None:
    answer.chunked = True


KINDS = {
    "status": _status, "etag": _etag, "no etag": _no_etag, "second etag": _second_etag, "header": _header,
    "begin": _begin, "last": _last, "total": _total, "raw range": _raw_range, "length": _length,
    "no length": _no_length, "cut": _cut, "cut, and its length": _cut_right, "longer": _longer,
    "longer, and its length": _longer_right, "chunked": _chunked,
}  # fmt: skip


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    script: Mutant
    requests = 0

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        script, number = Handler.script, Handler.requests
        Handler.requests += 1
        version = int(number >= script.second_from)
        data, etag = files()[script.format][version], ('"one"', '"two"')[version]
        begin, end = 0, len(data)
        asked = self.headers.get("Range")
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            begin = int(first) if first else max(0, len(data) - int(last))
            end = min(int(last) + 1, len(data)) if first and last else len(data)
        answer = Answer(data, etag, begin, end, ranged=asked is not None)
        for change in script.changes.get(number, []) + script.changes.get(-1, []):
            _apply(answer, change)
        if self.headers.get("If-Match", etag) != etag and not script.changes:
            answer = Answer(b"", etag, 0, 0, ranged=False)
            answer.status = 412
        if self.command == "HEAD":
            answer.body = b""
        self.close_connection = True
        try:
            answer.send(self.wfile)
        except OSError:  # the reader has hung up
            return


@cache
def url() -> str:
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/model"


# The invariant


def check(mutant: Mutant) -> str:
    Handler.script, Handler.requests = mutant, 0
    try:
        with tg.open(url(), format=mutant.format, storage_options=OPTIONS) as archive:
            found = {name: tensor.numpy().tobytes() for name, tensor in archive.items()}
            sliced = {name: np.asarray(tensor[1:3]).tobytes() for name, tensor in archive.items()}
    except (tg.TensorglotError, OSError) as error:
        assert all(line.isprintable() for line in str(error).split("\n")), repr(str(error))
        return str(getattr(error, "rule", type(error).__name__))
    assert found in values(mutant.format), "a mixture, or other bytes"
    for name, data in sliced.items():
        width = 2 if name == "b" else 4
        assert data == found[name][width : 3 * width], "a slice has other bytes"
    return "read"


if __name__ == "__main__":
    from campaign import campaign

    campaign(mutants, check)
