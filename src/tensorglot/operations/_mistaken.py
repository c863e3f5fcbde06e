"""What a file is that no reader accepts: empty, a Git LFS pointer, an error page of a server, compressed, a bundle.

A reader can only say that the bytes are not of its format, which does not help whoever has
to download or unpack the file first. Asked after a reader has refused the file, so that
opening costs nothing more.
"""

from __future__ import annotations

from tensorglot.errors import FormatError, Hint, UnsupportedError
from tensorglot.tuples import NamedTuple

__all__ = ["explain"]


class _Kind(NamedTuple):
    """A kind of file by the bytes at an offset, and what to do with it."""

    magic: bytes | tuple[bytes, ...]
    what: str
    python: str
    command_line: str
    offset: int = 0
    brief: bool = False
    """The magic is too short to contradict a reader: for files of no known format, or without one BSON document."""


_UNPACK = ("unpack it first", "unpack it first")
_KINDS = (
    _Kind(
        b"version https://git-lfs.github.com/spec/",
        "a Git LFS pointer, not the file itself",
        "fetch it with `git lfs pull`",
        "fetch it with `git lfs pull`",
    ),
    _Kind(b"\x1f\x8b\x08", "a gzip file, and what it contains is not BSON documents", *_UNPACK, brief=True),
    _Kind(b"\x28\xb5\x2f\xfd", "a file compressed with zstd", *_UNPACK),
    _Kind(b"\xfd7zXZ\0", "a file compressed with xz", *_UNPACK),
    _Kind(b"ustar", "a tar archive", *_UNPACK, offset=257),
    _Kind(b"PK\3\4", "a zip archive of other files than arrays", *_UNPACK, brief=True),
    _Kind(b"PAR1", "a Parquet file", "dynd.from_parquet reads it", "`tensorglot vectors` reads vectors from it"),
    _Kind(b"ARROW1", "an Arrow file", "read it with pyarrow and pass its columns", "convert it with pyarrow"),
    _Kind(
        b"\xa2eroots",
        "a bundle of commits",
        "Store.unbundle adds it to a store",
        "`tensorglot store unbundle` adds it to a store",
        offset=1,
    ),
    _Kind(
        (b"\x80\3", b"\x80\4", b"\x80\5"),
        "a pickle that torch.save did not write: loading it would execute code",
        "if you trust it, load it with pickle and save the arrays",
        "if you trust it, load it in Python with pickle and save the arrays",
        brief=True,
    ),
)
_PAGES = (b"<!doctype html", b"<html", b"<?xml")


def explain(error: FormatError | UnsupportedError, head: bytes, size: int) -> FormatError | None:
    """The error of a reader with a message that says what the file is; None if that cannot be told."""
    hint = None
    if not size:
        what = "the file is empty"
    elif head.lstrip().lower().startswith(_PAGES):
        what = "an HTML or XML page, not a tensor file: probably the error message of a server"
    else:
        unread = error.rule == "format.unknown" or (error.rule.startswith("bson.") and error.offset == 0)
        kinds = (kind for kind in _KINDS if head.startswith(kind.magic, kind.offset) and (unread or not kind.brief))
        kind = next(kinds, None)
        if kind is None:
            return None
        what, hint = kind.what, Hint(kind.python, kind.command_line)
    found = type(error) if isinstance(error, FormatError) else FormatError
    return found(what, rule=error.rule, offset=error.offset, tensor=error.tensor, hint=hint)
