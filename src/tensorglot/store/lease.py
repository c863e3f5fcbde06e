"""An announcement at a server, which has no locks: an object that is written again and again.

Others see by its age whether its process is alive. A process that was stopped for longer
(a laptop that slept) notices that its lease may have been taken for ended, and does not
go on: what it relied on may be gone.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tensorglot.errors import RemoteError
from tensorglot.io.objects import Address

__all__ = ["LEASE_SECONDS", "RENEW_SECONDS", "Lease"]

LEASE_SECONDS = 900.0
"""A lease that was not renewed for so long has ended. Longer than a request can take with all its retries."""
_SILENT_SECONDS = 300.0
"""After so long without a renewal its holder stops."""
RENEW_SECONDS = 30.0


class Lease:
    """An object that says that its process is running, with a note."""

    def __init__(self, name: str, address: Address) -> None:
        self.id = name
        self._address = address
        self._text = name
        self._renewed = time.monotonic()
        self._ended = threading.Event()
        self._writing = threading.Lock()

    def note(self, text: str) -> None:
        """Publishes a text."""
        self._text = text
        self._write()

    def _write(self) -> None:
        with self._writing:
            begun = time.monotonic()
            if not self._ended.is_set():
                self._address.call("put", self._address.key, self._text.encode("utf-8", "replace"))
                self._renewed = begun

    def check(self) -> None:
        """Refuses to go on after a long silence."""
        silent = time.monotonic() - self._renewed
        if silent > _SILENT_SECONDS:
            raise RemoteError(
                f"this writer could not renew its announcement for {silent:.0f} seconds, and others may have "
                "removed what it wrote: do it again",
                rule="store.lease",
                path=self._address.name,
            )

    @contextmanager
    def held(self) -> Iterator[Lease]:
        """Writes the object, renews it until the end of the `with` block, and removes it."""
        self._write()
        renewing = threading.Thread(target=self._renew, name="tensorglot-lease", daemon=True)
        renewing.start()
        try:
            yield self
        finally:
            with self._writing:
                self._ended.set()
            with contextlib.suppress(OSError):  # it ends by itself
                self._address.call("delete", self._address.key)

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            with contextlib.suppress(OSError):  # the next renewal may succeed; `check` finds a long silence
                self._write()
