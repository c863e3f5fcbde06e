"""A page on localhost whose cards are computed when they are opened, for files too large for a report.

Anything on this machine can connect to a port of localhost, and any web page can make a
browser do so. So every address contains a random token, and a request with another token
or with a Host header that is not ours (DNS rebinding) is refused. Only GET is answered,
and nothing that comes from the browser names a file: a card has the number of its tensor.
A card of a file that was changed after its index was read is an error, not other values.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tensorglot.arguments import as_integer
from tensorglot.errors import InputError, TensorglotError
from tensorglot.io.local import FileSource, MmapSource, stamp_now
from tensorglot.model.archive import Archive
from tensorglot.operations.diff import metadata_changes
from tensorglot.report.cards import Cards
from tensorglot.report.changes import in_short, index_changes
from tensorglot.report.data import cells_for, describe
from tensorglot.report.page import numbers, shell, title_of

__all__ = ["Viewer"]

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the rest of the policy is in the page
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Viewer:
    """Serves one archive, or the comparison with another, until it is closed.

    `with Viewer(archive, name) as viewer: viewer.url`
    """

    def __init__(
        self, archive: Archive, name: str, port: int = 0, *, other: Archive | None = None, other_name: str = ""
    ) -> None:
        port = as_integer(port, "port", "view.port", 0, 65535)
        self._cards = Cards(archive, other, cells_for(1))
        self._names = self._cards.names
        sources = {
            source for each in (archive, other) if each for source in (each.source, *each.index.sources.values())
        }
        self._files = [source for source in sources if isinstance(source, FileSource | MmapSource)]
        self._token = secrets.token_urlsafe(24)
        self._lock = threading.Lock()
        found: dict[str, Any] = {"mode": "view", "one": describe(archive, name)}
        if other is not None:
            metadata = [change.to_dict() for change in metadata_changes(archive, other)]
            found |= {"two": describe(other, other_name), "changed": index_changes(archive, other, self._names)}
            found["changes"] = {"tensors": len(self._names), "equal": None, "metadata": metadata}
        before, after = shell("view", title_of(name, other_name))
        self._page = (before + numbers("page", found) + after).encode()
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), partial(_Handler, self))
        except OSError as error:
            error.filename = f"port {port}"
            raise
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="viewer", daemon=True)

    @property
    def url(self) -> str:
        """The address of the page, with its token."""
        return f"http://127.0.0.1:{self._server.server_port}/{self._token}/"

    def __enter__(self) -> Viewer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, host: str | None, path: str) -> tuple[HTTPStatus, str, bytes]:
        """Status, type and body for a request."""
        port = self._server.server_port
        if host not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            return _refuse(HTTPStatus.FORBIDDEN, "wrong Host header")
        _, token, *rest = (*path.split("/"), "", "")  # two more, so that a short path can be unpacked
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            return _refuse(HTTPStatus.FORBIDDEN, "the address has no valid token")
        match rest:
            case ["", *_]:
                return HTTPStatus.OK, "text/html; charset=utf-8", self._page
            case ["card", number, *_] if number.isascii() and number.isdigit() and len(number) < 10:
                return self._answer(int(number), self._card)
            case ["change", number, *_] if number.isascii() and number.isdigit() and len(number) < 10:
                return self._answer(int(number), self._change)
        return _refuse(HTTPStatus.NOT_FOUND, "no such page")

    def _answer(self, number: int, make: Callable[[str], dict[str, Any]]) -> tuple[HTTPStatus, str, bytes]:
        if number >= len(self._names):
            return _refuse(HTTPStatus.NOT_FOUND, "no such tensor")
        made: dict[str, Any]
        with self._lock:  # one tensor at a time: each uses bounded memory
            try:
                try:
                    made = make(self._names[number])
                finally:  # also of a file that could not be read: this says why
                    self._check_files()
            except (TensorglotError, OSError) as error:
                made = {"error": str(error)}
        return HTTPStatus.OK, "application/json", json.dumps(made, allow_nan=False).encode()

    def _check_files(self) -> None:
        for file in self._files:
            if file.path is not None and stamp_now(file.path) != file.stamp:
                message = "the file was changed after the viewer had opened it: start the viewer again"
                raise InputError(message, rule="source.changed", path=file.path)

    def _card(self, name: str) -> dict[str, Any]:
        return self._cards.card(name) | self._change(name)

    def _change(self, name: str) -> dict[str, Any]:
        """The part of a card that the map and the list of the page need."""
        changes = self._cards.changes_of(name)
        return {"changed": in_short(changes) if changes else None}


def _refuse(status: HTTPStatus, why: str) -> tuple[HTTPStatus, str, bytes]:
    return status, "text/plain; charset=utf-8", why.encode()


class _Handler(BaseHTTPRequestHandler):
    """Speaks HTTP for a viewer."""

    server_version, sys_version = "tensorglot", ""
    timeout = 30

    def __init__(self, viewer: Viewer, *arguments: Any) -> None:
        self._viewer = viewer
        super().__init__(*arguments)

    def do_GET(self) -> None:
        status, kind, body = self._viewer.answer(self.headers.get("Host"), self.path.partition("?")[0])
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Silent: the address contains the token."""
