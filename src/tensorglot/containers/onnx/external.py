"""Files of values beside a model, opened when something in them is first read."""

from __future__ import annotations

import os
import re

from tensorglot.containers.table import ReadOptions
from tensorglot.errors import FormatError, UnsupportedError, escape
from tensorglot.model.lazy_source import OpenedOnce
from tensorglot.model.payload import Source

__all__ = ["ExternalFile", "check_location", "external_offset"]

_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)


def external_offset(entries: dict[str, str], nbytes: int, at: int) -> int:
    """The offset of values of `nbytes` in their file; `at` is where the model describes them."""
    length = entries.get("length")
    if length is not None and _number("length", length, at) != nbytes:
        raise FormatError(
            f"dtype and shape need {nbytes} bytes, the file has {length}", rule="onnx.data.size", offset=at
        )
    offset = entries.get("offset")
    return 0 if offset is None else _number("offset", offset, at)


def _number(key: str, text: str, at: int) -> int:
    if _NUMBER.fullmatch(text) is None or int(text) >= 1 << 63:
        raise FormatError(f"'{key}' is not a number of bytes", rule="onnx.external.number", offset=at)
    return int(text)


def check_location(location: str, at: int) -> str:
    """The path of a file of values below the directory of the model."""
    parts = location.removeprefix("./").split("/")
    safe = (
        location.isprintable()
        and "\\" not in location
        and ":" not in location
        # A character has at most 4 bytes.
        and all(part not in ("", ".", "..") and (len(part) < 64 or len(os.fsencode(part)) <= 255) for part in parts)
    )
    if not safe:
        raise FormatError(
            f"the file '{escape(location)}' must be below the directory of the model",
            rule="onnx.external.location",
            offset=at,
        )
    return "/".join(parts)


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
