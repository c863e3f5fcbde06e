"""Files of values beside a model, opened when something in them is first read."""

from __future__ import annotations

import os
import re

from tensorglot.containers.table import ReadOptions
from tensorglot.errors import FormatError, UnsupportedError, escape
from tensorglot.model.lazy_source import OpenedOnce
from tensorglot.model.payload import Source

__all__ = ["ExternalFile", "external_span"]

_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)


def external_span(entries: dict[str, str], nbytes: int, offset: int) -> tuple[str, int]:
    """The file name and the offset of values of `nbytes`; `offset` is where the model describes them."""

    def number(key: str) -> int | None:
        text = entries.get(key)
        if text is None:
            return None
        if _NUMBER.fullmatch(text) is None or int(text) >= 1 << 63:
            raise FormatError(f"'{key}' is not a number of bytes", rule="onnx.external.number", offset=offset)
        return int(text)

    location = entries.get("location", "")
    parts = location.split("/")
    if parts[:1] == ["."]:
        parts = parts[1:]
    safe = (
        location.isprintable()
        and not any(c in location for c in "\\:")
        and all(part not in ("", ".", "..") and len(os.fsencode(part)) <= 255 for part in parts)
    )
    if not safe or not parts:
        raise FormatError(
            f"the file '{escape(location)}' must be below the directory of the model",
            rule="onnx.external.location",
            offset=offset,
        )
    length = number("length")
    if length is not None and length != nbytes:
        raise FormatError(
            f"dtype and shape need {nbytes} bytes, the file has {length}", rule="onnx.data.size", offset=offset
        )
    return "/".join(parts), number("offset") or 0


class ExternalFile(OpenedOnce):
    """A file of values beside the model."""

    def __init__(self, name: str, options: ReadOptions) -> None:
        super().__init__()
        self._name = name
        self._open_beside = options.open_file

    def open_file(self) -> Source:
        if self._open_beside is None:
            raise UnsupportedError(
                f"the values are in the file '{escape(self._name)}': open the model by its path",
                rule="onnx.external.path",
            )
        try:
            return self._open_beside(self._name)
        except FileNotFoundError as error:
            message = f"the file of values '{escape(self._name)}' is missing"
            raise FormatError(message, rule="onnx.external.missing", path=error.filename) from error
