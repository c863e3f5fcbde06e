"""What a file is that no reader accepts: an empty one, a Git LFS pointer, an error page of a server.

Downloads fail in these ways more often than in all others, and a reader can only say that
the bytes are not its format. Asked after a reader has refused the file, so that opening
costs nothing more.
"""

from __future__ import annotations

from tensorglot.errors import FormatError, Hint, UnsupportedError

__all__ = ["explain"]

_POINTER = b"version https://git-lfs.github.com/spec/"
_PAGES = (b"<!doctype html", b"<html", b"<?xml")


def explain(error: FormatError | UnsupportedError, head: bytes, size: int) -> FormatError | None:
    """The error of a reader with a message that says what the file is; None if that cannot be told."""
    hint = None
    if not size:
        what = "the file is empty"
    elif head.startswith(_POINTER):
        what = "a Git LFS pointer, not the file itself"
        hint = Hint("fetch it with `git lfs pull`", "fetch it with `git lfs pull`")
    elif head.lstrip().lower().startswith(_PAGES):
        what = "an HTML or XML page, not a tensor file: probably the error message of a server"
    else:
        return None
    kind = type(error) if isinstance(error, FormatError) else FormatError
    return kind(what, rule=error.rule, offset=error.offset, tensor=error.tensor, hint=hint)
