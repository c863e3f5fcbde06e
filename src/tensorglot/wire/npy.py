"""Parses and builds the header of NumPy's .npy format, without evaluating it.

    file   = 93 "NUMPY" major minor | length (u16; u32 from 2.0 on) | header | data
    header = {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }, then spaces and a newline

The header is a Python dict literal of strings, numbers, tuples and lists; a parser for just
these, of bounded depth, reads it. Nothing is evaluated or unpickled: an array of Python
objects is refused. Types without a letter in NumPy (ml_dtypes) are a struct of one field
with their name, over little-endian bytes: [('bfloat16', '|V2')]. NumPy reads such a file,
and `array['bfloat16'].view(ml_dtypes.bfloat16)` has the values. Knows no tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, NoReturn, TypeAlias

from tensorglot.errors import FormatError, LimitError, TensorglotError, TruncatedError, UnsupportedError, escape

__all__ = ["DTYPES", "MAGIC", "PICKLED", "PREFIX_NBYTES", "Header", "build", "header_nbytes", "parse"]

MAGIC = b"\x93NUMPY"
PREFIX_NBYTES = 12
"""Bytes needed to find the length of the header."""
PICKLED = "an array of Python objects is a pickle, which is never loaded (could execute code)"
"""The message for an array whose header has `objects`."""
HEADER_MAX_NBYTES = 1 << 20
DEPTH = 16

Descr: TypeAlias = Any
"""A string, or a list of tuples."""

_LETTERS: dict[str, str] = {
    "b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "u1": "uint8", "u2": "uint16",
    "u4": "uint32", "u8": "uint64", "f2": "float16", "f4": "float32", "f8": "float64", "c8": "complex64",
    "c16": "complex128",
}  # fmt: skip
_NAMED: dict[str, int] = {
    "bfloat16": 2,
    **dict.fromkeys(
        (
            "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
            "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "int4", "uint4",
            "int2", "uint2", "int1", "uint1",
        ),
        1,
    ),
}  # fmt: skip
"""Bytes per element of types without a letter, also of those with fewer than eight bits."""


@dataclass(frozen=True, slots=True)
class Header:
    """The parsed header."""

    dtype: str | None
    """Our name of the element type; None if unknown."""
    descr: str
    """NumPy's notation of it."""
    itemsize: int
    big_endian: bool
    fortran_order: bool
    shape: tuple[int, ...]
    objects: bool
    """The data is a pickle of Python objects."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize


def header_nbytes(prefix: bytes, rule: str) -> int:
    """Returns the offset of the data, from the first PREFIX_NBYTES."""
    if len(prefix) < 10:
        raise TruncatedError(f"truncated .npy header: has {len(prefix)} bytes", rule=f"{rule}.header.length", offset=0)
    if prefix[:6] != MAGIC:
        raise FormatError("not a .npy file: the magic \\x93NUMPY is missing", rule=f"{rule}.magic", offset=0)
    major, minor = prefix[6:8]
    if (major, minor) not in ((1, 0), (2, 0), (3, 0)):
        raise UnsupportedError(
            f"unsupported .npy version {major}.{minor} (supported: 1.0, 2.0, 3.0)", rule=f"{rule}.version", offset=6
        )
    if major == 1:
        return 10 + int.from_bytes(prefix[8:10], "little")
    if len(prefix) < 12:
        raise TruncatedError(f"truncated .npy header: has {len(prefix)} bytes", rule=f"{rule}.header.length", offset=0)
    nbytes = 12 + int.from_bytes(prefix[8:12], "little")
    if nbytes > HEADER_MAX_NBYTES:
        raise LimitError(
            f".npy header of {nbytes} bytes exceeds the limit of {HEADER_MAX_NBYTES}",
            rule=f"{rule}.limit.header",
            offset=8,
        )
    return nbytes


def parse(data: bytes, rule: str, *, max_rank: int) -> Header:
    """Parses the header from all bytes before the data."""
    try:
        return (_parse_again if len(data) <= _USUAL_NBYTES else _parse)(data, max_rank)
    except TensorglotError as error:
        error.rule = f"{rule}.{error.rule}"
        error.offset = (10 if data[6] == 1 else 12) + (error.offset or 0)
        raise


def _parse(data: bytes, max_rank: int) -> Header:
    """Errors have no format in their rule, and offsets in the text of the header."""
    try:
        text = data[10 if data[6] == 1 else 12 :].decode("utf-8" if data[6] == 3 else "latin-1")
    except UnicodeDecodeError:
        raise FormatError("invalid UTF-8 in the header", rule="header.utf8") from None
    value = _Parser(text).parse()
    if not isinstance(value, dict) or value.keys() != {"descr", "fortran_order", "shape"}:
        raise FormatError("the header is not a dict of descr, fortran_order and shape", rule="header.keys")
    shape, fortran_order = value["shape"], value["fortran_order"]
    if type(fortran_order) is not bool:
        raise FormatError("fortran_order must be True or False", rule="header.order")
    if type(shape) is tuple and len(shape) > max_rank:
        raise LimitError(f"{len(shape)} dimensions exceed Limits.rank ({max_rank})", rule="limit.rank")
    if type(shape) is not tuple or any(type(size) is not int or size < 0 for size in shape):
        raise FormatError("shape is not a tuple of non-negative integers", rule="header.shape")
    dtype, descr, itemsize, big_endian = _element(value["descr"])
    if math.prod(size for size in shape if size) * max(1, itemsize) >= 1 << 63:
        raise FormatError("the array would have 2**63 bytes or more", rule="shape.product")
    return Header(dtype, descr, itemsize, big_endian, fortran_order, shape, _has_objects(value["descr"]))


_USUAL_NBYTES = 256
_parse_again = lru_cache(1024)(_parse)
"""Arrays of the same type and shape share a header, and .npz files often have many of them."""


@lru_cache(1024)
def build(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Builds everything before the data of an array in C order, as NumPy writes it."""
    # As NumPy does: room for the first dimension to grow to 21 digits in place, and version 2.0 for long headers.
    growth = " " * (21 - len(str(shape[0]))) if shape else ""
    text = f"{{'descr': {_DESCRS[dtype]}, 'fortran_order': False, 'shape': {shape!r}, }}{growth}"
    version, width = (1, 2) if len(text) + 75 < 1 << 16 else (2, 4)
    padding = 64 - (8 + width + len(text) + 1) % 64
    length = len(text) + padding + 1
    return b"".join(
        [MAGIC, bytes((version, 0)), length.to_bytes(width, "little"), text.encode(), b" " * padding, b"\n"]
    )


def _letters() -> Iterator[tuple[str, str]]:
    for letters, name in _LETTERS.items():
        yield name, repr(f"{'|' if letters.endswith('1') else '<'}{letters}")
    for name, itemsize in _NAMED.items():
        yield name, repr([(name, f"|V{itemsize}")])


_DESCRS: dict[str, str] = dict(_letters())
"""The descr that is written for each type."""
DTYPES: dict[str, str] = {descr: name for name, descr in _DESCRS.items()}

_SIMPLE = re.compile(r"([<>|])([biufcmMOSUV])(\d{0,9})(\[[0-9a-zA-Z/]{1,20}\])?", re.ASCII)


def _element(descr: Descr) -> tuple[str | None, str, int, bool]:
    """Returns our name of an element type, NumPy's, its size in bytes, and whether it is big-endian."""
    itemsize, text = _measure(descr, DEPTH)
    if isinstance(descr, str):
        order, letter, digits = _match(descr)
        name = _LETTERS.get(letter + digits)
        if name is not None and itemsize > 1 and order == "|":
            raise FormatError(f"dtype {descr!r} needs a byte order ('<' or '>')", rule="descr")
        return name, text, itemsize, order == ">" and itemsize > 1
    if len(descr) == 1 and len(descr[0]) == 2 and isinstance(descr[0][1], str):
        name, void = descr[0]
        if name in _NAMED and void.lstrip("<|") == f"V{_NAMED[name]}":
            return name, text, itemsize, False
    return None, text, itemsize, False


@lru_cache(256)
def _match(descr: str) -> tuple[str, str, str]:
    """Splits a descr into byte order, letter and digits."""
    match = _SIMPLE.fullmatch(descr)
    if match is None or not (match[3] or match[2] == "O"):
        raise FormatError(f"invalid NumPy dtype '{escape(descr, longest=40)}'", rule="descr")
    return match[1], match[2], match[3]


def _has_objects(descr: Descr) -> bool:
    """Whether a valid descr contains Python objects."""
    if isinstance(descr, str):
        return descr[1:2] == "O"
    return any(_has_objects(field[1]) for field in descr)


def _measure(descr: Descr, depth: int) -> tuple[int, str]:
    """Returns the size of an element in bytes, and its type as text."""
    if isinstance(descr, str):
        _, letter, digits = _match(descr)
        return int(digits or 0) * (4 if letter == "U" else 1), descr
    if not isinstance(descr, list) or not descr or depth == 0:
        raise FormatError("invalid structured NumPy dtype", rule="descr")
    total, texts = 0, []
    for field in descr:
        name, kind, shape = _field(field)
        itemsize, text = _measure(kind, depth - 1)
        if shape:
            itemsize, text = itemsize * math.prod(shape), f"{text}{list(shape)}"
        total += itemsize
        texts.append(f"{name}: {text}")
    if total >= 1 << 31:
        raise FormatError("the size of an element is 2 GiB or more", rule="descr")
    return total, f"[{', '.join(texts)}]"


def _field(field: Any) -> tuple[str, Descr, tuple[int, ...]]:
    if type(field) is tuple and len(field) in (2, 3):
        name, kind, shape = field if len(field) == 3 else (*field, ())
        if isinstance(name, tuple) and len(name) == 2:
            name = name[1]
        whole = type(shape) is tuple and (not shape or all(type(n) is int and 0 <= n < 1 << 31 for n in shape))
        if isinstance(name, str) and whole:
            return name, kind, shape
    raise FormatError("invalid field of a structured dtype", rule="descr")


_TOKEN = re.compile(
    r"""[ \n]*+(
    (?:\d{1,19}+L?[ \n]*+,[ \n]*+){2,}+                                         # numbers, each with its comma
    | (?:\('[^'\\\n]*+',[ ]?'[^'\\\n]*+'(?:,[ ]?\((?:\d{1,9}+,[ ]?)++(?:\d{1,9}+)?\))?\)[ \n]*+,[ \n]*+){2,}+  # fields
    | '[^'\\\n]*+' | "[^"\\\n]*+" | \d++L? | True | False | .
    )""",
    re.VERBOSE | re.DOTALL,
)
"""A token; several numbers, or several fields of a name, a type and perhaps a shape, are one. Any other character is
a token, too, and then refused."""
TOKENS_MAX = 10_000
"""NumPy reads headers of at most so many bytes, unless asked for more."""
_FIELD = re.compile(r"\('([^']*)', ?'([^']*)'(?:, ?\(([^)]*)\))?\)")
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_BLANK_OR_COMMA = (" ", "\n", ",")
"""What several numbers or fields end with, and no other token of two characters."""


class _Parser:
    """Recursive descent over the literals that a header may contain."""

    def __init__(self, text: str) -> None:
        self._text = text.rstrip(" \n")
        self._tokens = [*_TOKEN.findall(self._text)[:TOKENS_MAX], ""]
        self._at = 0

    def parse(self) -> Any:
        value = self._value(DEPTH)
        if self._tokens[self._at]:
            self._fail()
        return value

    def _fail(self) -> NoReturn:
        if self._at == TOKENS_MAX:
            raise LimitError(f"a header of more than {TOKENS_MAX:,} tokens is not supported", rule="limit.header")
        begins = [match.start(1) for match in islice(_TOKEN.finditer(self._text), self._at + 1)]
        at = begins[-1] if self._at < len(begins) else len(self._text)
        raise FormatError("invalid syntax in the .npy header", rule="header.syntax", offset=at)

    def _value(self, depth: int) -> Any:
        token = self._tokens[self._at]
        if token[:1] in ("'", '"') and len(token) > 1:
            value: Any = token[1:-1]
        elif token[:1].isdecimal() and "," not in token and len(token) <= 19 + token.endswith("L"):
            value = int(token.removesuffix("L"))
        elif token in ("True", "False"):
            value = token[0] == "T"
        elif depth and token in _BRACKETS:
            return self._many(token, depth - 1)
        else:
            self._fail()
        self._at += 1
        return value

    def _many(self, bracket: str, depth: int) -> Any:
        self._at += 1
        items, trailing = self._items(_BRACKETS[bracket], depth, pairs=bracket == "{")
        if bracket == "(":
            return items[0] if len(items) == 1 and not trailing else tuple(items)
        if bracket == "{" and len(dict(items)) < len(items):
            self._fail()
        return dict(items) if bracket == "{" else items

    def _items(self, close: str, depth: int, *, pairs: bool) -> tuple[list[Any], bool]:
        """Parses items up to the closing bracket, and that; returns also whether a comma follows the last."""
        items: list[Any] = []
        trailing = True
        while (token := self._tokens[self._at]) != close:
            if not trailing:
                self._fail()
            if not pairs and token[-1:] in _BLANK_OR_COMMA and len(token) > 1:
                if token[0] != "(":
                    items += _numbers(token)
                elif depth:
                    fields = _FIELD.findall(token)
                    items += [(name, kind, _numbers(shape) if shape else ()) for name, kind, shape in fields]
                else:
                    self._fail()
                self._at += 1
                continue
            item = self._value(depth)
            if pairs:
                if not isinstance(item, str) or self._tokens[self._at] != ":":
                    self._fail()
                self._at += 1
                item = (item, self._value(depth))
            items.append(item)
            trailing = self._tokens[self._at] == ","
            self._at += trailing
        self._at += 1
        return items, trailing and bool(items)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))
