"""A proxy between a client and a server: it counts requests and bytes of answers, and can interfere."""

from __future__ import annotations

import http.client
import http.server
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

__all__ = ["Proxy", "proxy_of"]


class Proxy:
    """The requests and bytes that went through."""

    def __init__(self, endpoint: str) -> None:
        self.upstream = urlsplit(endpoint).netloc
        self.requests: list[tuple[str, str, str | None]] = []
        """Method, path and range."""
        self.nbytes = 0
        self.endpoint = ""
        self.lose: Callable[[str, str], bool] = lambda method, path: False
        """Requests that are done, and whose answer is lost."""
        self.sent: Callable[[int], object] = bool
        """Called with the size of the body of each request."""
        self._lock = threading.Lock()

    def clear(self) -> None:
        self.requests, self.nbytes = [], 0

    def count(self, request: tuple[str, str, str | None], nbytes: int) -> None:
        with self._lock:
            self.requests.append(request)
            self.nbytes += nbytes


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    proxy: Proxy

    def handle_error(self, request: object, client_address: object) -> None:
        """A server that was killed is no news."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.proxy.sent(len(body))
        with closing(http.client.HTTPConnection(self.server.proxy.upstream, timeout=30)) as upstream:
            # The client has signed its Host, so it is passed on as it is.
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                upstream.putheader(name, value)
            upstream.endheaders(body)
            answer = upstream.getresponse()
            data = answer.read()
        self.server.proxy.count((self.command, self.path, self.headers.get("Range")), len(data))
        if self.server.proxy.lose(self.command, self.path):
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        if answer.getheader("Content-Length") is None:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.forward()

    def do_HEAD(self) -> None:
        self.forward()

    def do_PUT(self) -> None:
        self.forward()

    def do_POST(self) -> None:
        self.forward()

    def do_DELETE(self) -> None:
        self.forward()


@contextmanager
def proxy_of(endpoint: str) -> Iterator[Proxy]:
    """A proxy before a server."""
    proxy = Proxy(endpoint)
    server = Server(("127.0.0.1", 0), Handler)
    server.proxy = proxy
    proxy.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
