"""Strict JSON of bounded depth: UTF-8 without a mark, no key twice, no NaN, nothing behind.

The depth is counted before anything is parsed, so the parser of the standard library,
which recurses, never goes deeper than that.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from tensorglot.errors import FormatError, LimitError

__all__ = ["parse"]

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)


def parse(data: bytes, *, depth: int, rule: str) -> Any:
    """The value of a JSON text; `rule` is the prefix of the rules that it may break."""
    if _depth(data) > depth:
        raise LimitError(f"JSON nested more than {depth} deep", rule=f"{rule}.depth")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            raise FormatError("a JSON key stands twice", rule=f"{rule}.duplicate")
        return value

    def constant(name: str) -> None:
        raise FormatError(f"JSON has no {name}", rule=f"{rule}.syntax")

    try:
        return json.loads(data.decode(), object_pairs_hook=unique, parse_constant=constant)
    except UnicodeDecodeError as error:
        raise FormatError("not UTF-8", rule=f"{rule}.utf8", offset=error.start) from None
    except json.JSONDecodeError as error:
        raise FormatError(f"not JSON: {error.msg}", rule=f"{rule}.syntax", offset=error.pos) from None
    except ValueError:
        raise FormatError("a number of too many digits", rule=f"{rule}.syntax") from None


def _depth(data: bytes) -> int:
    """How deep brackets nest outside of strings."""
    signs = np.frombuffer(_STRING.sub(b"", data), np.uint8)
    steps = np.isin(signs, (0x5B, 0x7B)).astype(np.int64) - np.isin(signs, (0x5D, 0x7D))
    return int(np.cumsum(steps).max(initial=0))
