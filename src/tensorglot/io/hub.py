"""`hf://ORG/REPO@REV/file`: files of the Hugging Face hub, or of the server in HF_ENDPOINT.

The hub answers with a redirect to a signed URL of the server that has the bytes, valid for
about an hour. The hub is asked once for each archive, with the token; the bytes are then
read from the signed URL, without the token (`io/http.py`).
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, unquote

from tensorglot.errors import InputError, escape

__all__ = ["hub_url", "token"]

_ENDPOINT = "https://huggingface.co"
_KINDS = ("datasets", "spaces")


def hub_url(url: str) -> str:
    """The HTTP URL at the hub for an `hf://` URL of a file or a repository."""
    kind, path = "", url.partition("://")[2].partition("?")[0]
    first = path.partition("/")[0]
    if first in _KINDS:
        kind, path = f"{first}/", path.partition("/")[2]
    owner, _, rest = path.partition("/")
    name, _, file = rest.partition("/")
    name, _, revision = name.partition("@")
    if not owner or not name:
        raise InputError(f"'{escape(url)}' is not of the form hf://ORG/REPO@REVISION/FILE", rule="url.hub")
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
