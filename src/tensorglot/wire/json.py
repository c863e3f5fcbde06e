"""Strict JSON of bounded depth: UTF-8 without a BOM, no duplicate keys, unpaired surrogates, NaN or trailing bytes.

The depth is checked before parsing, which bounds the recursion of the standard library's
parser.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from tensorglot.errors import FormatError, LimitError

__all__ = ["parse"]

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse(data: bytes, *, depth: int, rule: str) -> Any:
    """Parses a JSON text; `rule` is the prefix of rule names in errors."""
    if _depth(data) > depth:
        raise LimitError(f"JSON nested deeper than {depth} levels", rule=f"{rule}.depth")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            raise FormatError("duplicate JSON key", rule=f"{rule}.duplicate")
        return value

    def constant(name: str) -> None:
        raise FormatError(f"invalid JSON: {name} is not allowed", rule=f"{rule}.syntax")

    try:
        value = json.loads(data.decode(), object_pairs_hook=unique, parse_constant=constant)
    except UnicodeDecodeError as error:
        raise FormatError("invalid UTF-8 in JSON", rule=f"{rule}.utf8", offset=error.start) from None
    except json.JSONDecodeError as error:
        raise FormatError(f"invalid JSON: {error.msg}", rule=f"{rule}.syntax", offset=error.pos) from None
    except ValueError:
        raise FormatError("invalid JSON: a number has too many digits", rule=f"{rule}.syntax") from None
    # Only an escape can produce a surrogate: raw ones are invalid UTF-8. The first search avoids the second, slow one.
    if _ESCAPED_SURROGATE.search(data) and _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        raise FormatError("unpaired surrogate in a JSON string", rule=f"{rule}.surrogate")
    return value


def _depth(data: bytes) -> int:
    """Returns the nesting depth of brackets outside of strings."""
    signs = np.frombuffer(_STRING.sub(b"", data), np.uint8)
    opening, closing = (signs == 0x5B) | (signs == 0x7B), (signs == 0x5D) | (signs == 0x7D)
    steps = opening.astype(np.int64) - closing
    return int(np.cumsum(steps).max(initial=0))
