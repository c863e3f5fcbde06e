"""`hf://ORG/REPO@REV/file`: files of the Hugging Face hub, or of the server in HF_ENDPOINT.

The hub answers with a redirect to the server that has the bytes, signed for about an
hour. It is asked once for each archive, with the token; the bytes are then read from
where it points to, without. So the token goes to the hub only, and the hub gets one
request, however many ranges are read.
"""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from tensorglot.errors import InputError, RemoteError, escape
from tensorglot.io.urls import shown

__all__ = ["hub_url", "resolve", "token"]

_ENDPOINT = "https://huggingface.co"
_KINDS = ("datasets", "spaces")
_REDIRECTS = 5
_SECONDS = 20.0


def hub_url(url: str) -> str:
    """The URL at the hub for one of `hf://`; without a file, of the folder."""
    kind, path = "", url.partition("://")[2].partition("?")[0]
    first = path.partition("/")[0]
    if first in _KINDS:
        kind, path = f"{first}/", path.partition("/")[2]
    owner, _, rest = path.partition("/")
    name, _, file = rest.partition("/")
    name, _, revision = name.partition("@")
    if not owner or not name:
        raise InputError(f"'{escape(url)}' is not like hf://ORG/REPO@REVISION/file", rule="url.hub")
    endpoint = os.environ.get("HF_ENDPOINT", _ENDPOINT).rstrip("/")
    where = quote(unquote(revision) or "main", safe="")
    return f"{endpoint}/{kind}{quote(owner)}/{quote(name)}/resolve/{where}/{quote(unquote(file))}"


def token() -> str | None:
    """HF_TOKEN, or the token that `hf auth login` has saved."""
    given = os.environ.get("HF_TOKEN")
    if given is None:
        home = os.environ.get("HF_HOME") or os.path.join(  # noqa: PTH118
            os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface"
        )
        saved = Path(os.environ.get("HF_TOKEN_PATH") or Path(home, "token")).expanduser()
        try:
            given = saved.read_text()
        except (OSError, UnicodeDecodeError):
            return None
    return given.strip() or None


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str) -> None:
        """No redirect is followed: it becomes an HTTPError, which has the address."""


def resolve(url: str, secret: str | None) -> tuple[str, bool]:
    """Where the bytes of a file of the hub are, and whether that is the hub itself, which gets the token."""
    opener = urllib.request.build_opener(_Stay)
    origin, at = urlsplit(url)[:2], url
    for _ in range(_REDIRECTS):
        headers = {"Range": "bytes=0-0", "User-Agent": "tensorglot"}
        if secret is not None:
            headers["Authorization"] = f"Bearer {secret}"
        status, location = _ask(opener, urllib.request.Request(at, headers=headers), url)  # noqa: S310
        if location is None or status < 300:
            return at, True
        at = urljoin(at, location)
        if urlsplit(at).scheme not in ("http", "https"):
            raise RemoteError(
                "the hub redirects to something that is not HTTP", rule="remote.redirect", path=shown(url)
            )
        if urlsplit(at)[:2] != origin:
            return at, False
    raise RemoteError("too many redirects", rule="remote.redirect", path=shown(url))


def _ask(opener: urllib.request.OpenerDirector, request: urllib.request.Request, url: str) -> tuple[int, str | None]:
    """Status and redirect of the answer, whose body is not read."""
    found: Exception
    try:
        with opener.open(request, timeout=_SECONDS) as answer:
            return answer.status, None
    except urllib.error.HTTPError as error:
        with error:
            location = error.headers.get("Location")
            code = error.code
        if 300 <= code < 400 and location:
            return code, location
        found = _refusal(code, shown(url))
    except (OSError, ValueError, http.client.HTTPException) as error:
        late = isinstance(getattr(error, "reason", error), TimeoutError)
        rule, what = ("timeout", "did not answer in time") if late else ("connect", "cannot be reached")
        found = RemoteError(f"the hub {what}", rule=f"remote.{rule}", path=shown(url))
    raise found


def _refusal(code: int, url: str) -> Exception:
    if code == 404:
        return FileNotFoundError(2, "no such file at the hub", url)
    if code in (401, 403):
        return PermissionError(13, "access denied: the file does not exist, or needs a token (set HF_TOKEN)", url)
    if code == 416:
        return RemoteError("the file is empty", rule="remote.http.416", path=url)
    return RemoteError(f"the hub answered HTTP {code}", rule=f"remote.http.{code}", path=url)
