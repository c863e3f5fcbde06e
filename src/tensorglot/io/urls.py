"""URLs as text: their parts, other objects in the same folder, and the text that may be shown.

A query may contain a signature, and user information a password: neither is ever shown. In
`s3://`, `gs://` and `az://` everything after the bucket is the key, unquoted; in HTTP the
path is quoted. `file://` is a path. Makes no requests.

`urllib.parse` is imported where it is needed: for a path, it would be 4 % of the time to import `load`.
"""

from __future__ import annotations

import os
import re
from typing import Final

from tensorglot.arguments import as_path
from tensorglot.errors import Hint, InputError, UnsupportedError, escape

__all__ = [
    "BUCKETS",
    "beside",
    "check_target",
    "file_path",
    "has_credentials",
    "is_url",
    "last_name",
    "refuse_credentials",
    "shown",
    "split_bucket",
    "split_user",
]

BUCKETS: Final = ("s3", "gs", "az")
"""Schemes that can be written to and listed."""
_SOURCES: Final = (*BUCKETS, "http", "https", "hf")
_COMMIT = Hint("call tg.store.Store(path).commit(ref, tensors)", "run tensorglot store commit")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def is_url(text: str) -> bool:
    """Whether a source or target is at a server; `file://` is not. An unsupported scheme is an error."""
    if "://" not in text:
        return False
    match = _SCHEME.match(text)
    if match is None:
        raise UnsupportedError(f"'{escape(text, longest=60)}' is neither a URL nor a path", rule="url.scheme")
    scheme = match[1]
    if scheme == "file":
        return False
    if scheme not in _SOURCES:
        known = ", ".join(f"{known}://" for known in (*_SOURCES, "file", "store"))
        raise UnsupportedError(f"{escape(scheme)}:// is not supported (supported: {known})", rule="url.scheme")
    return True


def check_target(url: str) -> None:
    """Refuses a URL that cannot be written to."""
    scheme = url.partition("://")[0]
    if scheme not in BUCKETS:
        known = ", ".join(f"{known}://" for known in (*BUCKETS, "file"))
        raise UnsupportedError(
            f"{scheme}:// can be read, not written (written: {known})",
            rule="url.target",
            path=shown(url),
            hint=_COMMIT if scheme == "store" else None,
        )


def file_path(text: str) -> str:
    """The path of a `file://` URL; any other text is a path already."""
    if not text.startswith("file://"):
        return text
    host, slash, path = text.removeprefix("file://").partition("/")
    if host not in ("", "localhost") or not slash:
        raise InputError(
            f"'{escape(shown(text))}' is not the URL of a local file, which has no host and no user: write file:///path",
            rule="url.file",
        )
    from urllib.parse import unquote_to_bytes

    # The bytes of a name need not be UTF-8 (see `pathlib.Path.as_uri`), and quoting can hide a NUL.
    return as_path(os.fsdecode(unquote_to_bytes(os.fsencode(f"/{path}"))))


def split_bucket(url: str) -> tuple[str, str]:
    """`s3://bucket` and the key of `s3://bucket/key`."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if not bucket or "@" in bucket:
        what = "names no bucket" if not bucket else "has credentials in it: pass them in storage_options"
        raise InputError(f"'{escape(shown(url))}' {what}", rule="url.syntax")
    return f"{scheme}://{bucket}", key


def split_user(url: str) -> tuple[str, str | None]:
    """An HTTP URL without its user and password, and these as the value of an `Authorization` header, or None."""
    from base64 import b64encode
    from urllib.parse import unquote_to_bytes, urlsplit, urlunsplit

    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    basic = f"Basic {b64encode(unquote_to_bytes(user)).decode()}" if at else None
    return urlunsplit((parts.scheme, host, *parts[2:])), basic


def _is_bucket(url: str) -> bool:
    return url.partition("://")[0] in BUCKETS


def shown(url: str) -> str:
    """The URL without user information and query; a path unchanged."""
    if "://" not in url:
        return url
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    path, query, _ = (path, "", "") if scheme in BUCKETS else path.partition("?")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}{'?…' if query else ''}"


def has_credentials(url: str) -> bool:
    """Whether a URL has a query or user information, which may be secret."""
    return shown(url) != url


def refuse_credentials(url: str) -> None:
    """Refuses to pickle an object that opens a URL with credentials."""
    if has_credentials(url):
        raise InputError(
            "a URL with a query or a password cannot be pickled, since it would travel with its credentials: "
            "open it in the other process",
            rule="source.pickle",
            path=shown(url),
        )


def beside(url: str, name: str) -> str:
    """The URL of another object in the same folder; for a URL that ends with a slash, of an object inside it."""
    if _is_bucket(url):
        return f"{url.rpartition('/')[0]}/{name}"
    from urllib.parse import quote, urlsplit, urlunsplit

    parts = urlsplit(url)
    folder = parts.path.rpartition("/")[0]
    return urlunsplit((parts.scheme, parts.netloc, f"{folder}/{quote(name)}", parts.query, ""))


def last_name(url: str) -> str:
    """The last component of the path."""
    if _is_bucket(url):
        return url.rpartition("/")[2]
    from urllib.parse import unquote, urlsplit

    return unquote(urlsplit(url).path.rpartition("/")[2])
