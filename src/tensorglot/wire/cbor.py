"""Decodes and encodes CBOR (RFC 8949) under a profile, which says how strict to be.

A profile lists the encodings that a format allows. The kernel `cbor_check` validates
bytes against it once; `Cursor` reads only validated bytes, and so checks nothing but the
type of the item that it was asked for. Knows no tensor and no file.

Values are int, float, str, bytes, bool, None, list, dict, and three of our own that
Python lacks: Tag, Simple, and Pairs for a map that a dict cannot represent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from tensorglot.errors import FormatError, InputError, LimitError, TruncatedError
from tensorglot.kernels import cbor_check, cbor_scan, cbor_values

__all__ = [
    "DETERMINISTIC",
    "LENIENT",
    "Cursor",
    "Pairs",
    "Profile",
    "Simple",
    "Tag",
    "Value",
    "check",
    "decode",
    "encode",
    "head",
    "text",
    "with_depth",
]

Value: TypeAlias = Any
"""One of the types that the module docstring lists."""

UINT, NEGATIVE, BYTES, TEXT, ARRAY, MAP, TAG, SPECIAL = range(8)


@dataclass(frozen=True, slots=True)
class Profile:
    """The encodings of CBOR that a format allows. Duplicate keys and trailing bytes are always refused."""

    indefinite: bool
    """Indefinite lengths are allowed."""
    long_heads: bool
    """Integers and lengths need not be in their shortest form."""
    sorted_keys: bool
    """Keys must be sorted by their encoded bytes. They are always written so."""
    keys: Literal["text", "plain", "any"]
    """Allowed key types; "plain" is text, bytes, integers and simple values. "any" needs sorted_keys."""
    floats: Literal["any", "shortest", "double"]
    """Shortest: the only NaN is f97e00. Double: always eight bytes; NaN bits are kept."""
    nonfinite: bool
    """NaN and infinity are allowed."""
    simple: bool
    """Simple values other than false, true and null are allowed."""
    tags: frozenset[int] | None
    """Allowed tags; None allows all. Tags are never interpreted."""
    depth: int
    """Nesting limit of arrays, maps and tags."""


LENIENT = Profile(
    indefinite=True,
    long_heads=True,
    sorted_keys=False,
    keys="plain",
    floats="any",
    nonfinite=True,
    simple=True,
    tags=None,
    depth=32,
)
"""Any well-formed CBOR: zTensor 0.1 and 1.x."""

DETERMINISTIC = Profile(
    indefinite=False,
    long_heads=False,
    sorted_keys=True,
    keys="any",
    floats="shortest",
    nonfinite=True,
    simple=False,
    tags=frozenset(),
    depth=32,
)
"""RFC 8949 §4.2.1 without tags: zTensor 2."""


@lru_cache(maxsize=16)
def with_depth(profile: Profile, depth: int) -> Profile:
    """Returns the profile with another nesting limit."""
    return replace(profile, depth=depth)


@dataclass(frozen=True, slots=True)
class Tag:
    """A tagged value, not interpreted."""

    number: int
    value: Value


@dataclass(frozen=True, slots=True)
class Simple:
    """A simple value other than false, true and null; 23 is undefined."""

    number: int


@dataclass(frozen=True, slots=True)
class Pairs:
    """A map with keys that a dict cannot represent: lists, maps, or both 1 and True."""

    items: tuple[tuple[Value, Value], ...]


MakeTag: TypeAlias = "Callable[[int, Value], Value]"

_REFUSALS: dict[str, tuple[type[FormatError], str]] = {
    "ends": (TruncatedError, "truncated: an item extends past the end of the data"),
    "reserved": (FormatError, "reserved value in the head of an item (additional information)"),
    "indefinite": (FormatError, "indefinite length is not allowed"),
    "shortest": (FormatError, "integer or length is not in its shortest form"),
    "order": (FormatError, "map keys are not sorted"),
    "duplicate": (FormatError, "duplicate map key"),
    "key": (FormatError, "type of a map key is not allowed"),
    "tag": (FormatError, "tag is not allowed"),
    "simple": (FormatError, "simple value other than false, true and null is not allowed"),
    "float": (FormatError, "float width or value is not allowed"),
    "depth": (LimitError, "nesting exceeds the depth limit"),
    "utf8": (FormatError, "invalid UTF-8 in a text string"),
    "break": (FormatError, "break outside of an indefinite-length item"),
    "chunk": (FormatError, "a chunk of a string of indefinite length has another type than the string"),
}


def check(data: bytes, profile: Profile, *, base: int = 0) -> None:
    """Checks that the bytes are exactly one item that the profile allows; `base` is their offset, for errors."""
    fault, position = cbor_check.check(data, 0, len(data), profile)
    if fault:
        kind, message = _REFUSALS[fault]
        raise kind(message, rule=f"cbor.{fault}", offset=base + position)
    if position != len(data):
        raise FormatError("trailing bytes after the item", rule="cbor.trailing", offset=base + position)


def decode(data: bytes, profile: Profile, *, base: int = 0, tag: MakeTag = Tag) -> Value:
    """Decodes exactly one item. A tag is what `tag` makes of its number and value."""
    check(data, profile, base=base)
    return Cursor(data, base=base).value(tag)


class Cursor:
    """Reads items from validated bytes. Each call reads one item, or raises FormatError with `rule` for its type."""

    def __init__(self, data: bytes, *, base: int = 0, pos: int = 0, rule: str = "cbor.kind") -> None:
        self.data = data
        self.base = base
        self.pos = pos
        self.rule = rule

    def wrong(self, message: str) -> FormatError:
        """Returns the error for the current item."""
        return FormatError(message, rule=self.rule, offset=self.base + self.pos)

    def major(self) -> int:
        return self.data[self.pos] >> 5

    def _head(self) -> tuple[int, int, int | None]:
        """Major type, additional information, argument; the argument of an indefinite length is None."""
        major, info, argument, self.pos = cbor_values.head(self.data, self.pos)
        return major, info, None if info == 31 else argument

    def _expect(self, kind: int, what: str) -> None:
        if self.major() != kind:
            raise self.wrong(f"'{what}' is not {_KINDS[kind]}")

    def uint(self, what: str) -> int:
        self._expect(UINT, what)
        argument = self._head()[2]
        assert argument is not None  # noqa: S101
        return argument

    def text(self, what: str) -> str:
        nbytes = self.data[self.pos] - _SHORT_TEXT
        if 0 <= nbytes < 24:  # the head is one byte: most names, in a third of the time
            begin = self.pos + 1
            self.pos = begin + nbytes
            return self.data[begin : self.pos].decode()
        self._expect(TEXT, what)
        return self._string().decode()

    def texts(self, what: str, count: int) -> list[str]:
        """Reads `count` texts. Those of less than 256 bytes take half of the time that `text` does for each."""
        data, at, found = self.data, self.pos, []
        for _ in range(count):
            nbytes = data[at] - _SHORT_TEXT
            if 0 <= nbytes < 24:
                begin = at + 1
            elif nbytes == 24:
                begin, nbytes = at + 2, data[at + 1]
            else:
                self.pos = at
                found.append(self.text(what))
                at = self.pos
                continue
            at = begin + nbytes
            found.append(data[begin:at].decode())
        self.pos = at
        return found

    def array(self, what: str) -> Iterator[int]:
        """Yields the number of each element; the caller reads one item per step."""
        self._expect(ARRAY, what)
        return self._steps(self._head()[2])

    def count(self, what: str, kind: int = ARRAY) -> int:
        """Returns the number of elements of an array, or of pairs of a map. Stops before the first one."""
        self._expect(kind, what)
        count = self._head()[2]
        if count is None:
            count = cbor_scan.count_items(self.data, self.pos) // (2 if kind == MAP else 1)
        return count

    def map(self, what: str) -> Iterator[int]:
        """Yields the number of each pair; the caller reads a key and a value per step."""
        self._expect(MAP, what)
        return self._steps(self._head()[2])

    def fields(self, what: str, *, others: bool = False) -> dict[str, int]:
        """Returns the offset of each key's value in a map. Keys must be text; with `others`, other keys are skipped."""
        self._expect(MAP, what)
        found, other, end = cbor_scan.fields(self.data, self.pos)
        self.pos = end if others or other < 0 else other
        if self.pos != end:
            raise self.wrong("'key' is not text")
        return found

    def _steps(self, count: int | None) -> Iterator[int]:
        if count is not None:
            yield from range(count)
            return
        step = 0
        while self.data[self.pos] != 0xFF:
            yield step
            step += 1
        self.pos += 1

    def skip(self) -> tuple[int, int]:
        """Skips one item; returns its span."""
        begin = self.pos
        self.pos = cbor_scan.skip(self.data, begin, len(self.data))
        return begin, self.pos

    def _string(self) -> bytes:
        length = self._head()[2]
        if length is not None:
            self.pos += length
            return self.data[self.pos - length : self.pos]
        chunks = []
        while self.data[self.pos] != 0xFF:
            chunks.append(self._string())
        self.pos += 1
        return b"".join(chunks)

    def value(self, tag: MakeTag = Tag) -> Value:
        """Reads one item as a value. A tag is what `tag` makes of its number and value."""
        value, self.pos = cbor_values.value(self.data, self.pos, tag, Simple, _mapping)
        return value


_SHORT_TEXT = 0x60
"""The head of a text of no bytes."""
_KINDS = {UINT: "an unsigned integer", TEXT: "text", ARRAY: "an array", MAP: "a map"}


def _mapping(items: list[Value]) -> Value:
    """A map of keys and values in turn: a dict, or Pairs if some keys cannot be in one, or it would merge them."""
    keys, values = items[::2], items[1::2]
    if all(key.__hash__ is not None and not isinstance(key, (Tag, Pairs)) for key in keys):
        pairs = dict(zip(keys, values, strict=True))
        if len(pairs) == len(keys):  # 1, 1.0 and True are one key
            return pairs
    return Pairs(tuple(zip(keys, values, strict=True)))


def head(major: int, argument: int) -> bytes:
    """Encodes a head in its shortest form."""
    if argument < 24:
        return bytes((major << 5 | argument,))
    width = 0 if argument < 1 << 8 else 1 if argument < 1 << 16 else 2 if argument < 1 << 32 else 3
    return bytes((major << 5 | 24 + width,)) + argument.to_bytes(1 << width, "big")


def text(value: str) -> bytes:
    """Encodes a text string."""
    try:
        encoded = value.encode()
    except UnicodeEncodeError as error:
        raise InputError("text has an unpaired surrogate", rule="cbor.utf8") from error
    return head(TEXT, len(encoded)) + encoded


def encode(value: Value, profile: Profile) -> bytes:
    """Encodes one item in deterministic form: shortest heads, definite lengths, keys sorted by their encoded bytes."""
    out: list[bytes] = []
    todo: list[Iterator[Value]] = [iter((value,))]
    while todo:
        for item in todo[-1]:
            inner = _emit(item, profile, out)
            if inner is not None:
                if len(todo) > profile.depth:
                    raise InputError(f"nested deeper than {profile.depth} levels", rule="cbor.depth")
                todo.append(inner)
                break
        else:
            todo.pop()
    return b"".join(out)


def _emit(value: Value, profile: Profile, out: list[bytes]) -> Iterator[Value] | None:
    """Writes a scalar, or writes the head of a container and returns its contents."""
    if isinstance(value, Tag):
        if profile.tags is not None and value.number not in profile.tags:
            raise InputError(f"tag {value.number} is not allowed in this format", rule="cbor.tag")
        out.append(head(TAG, value.number))
        return iter((value.value,))
    if isinstance(value, (Mapping, Pairs)):
        pairs = value.items if isinstance(value, Pairs) else tuple(value.items())
        out.append(head(MAP, len(pairs)))
        return _emit_pairs(_sorted(pairs, profile))
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview)):
        out.append(head(ARRAY, len(value)))
        return iter(value)
    out.append(value.encoded if isinstance(value, _Encoded) else _scalar(value, profile))
    return None


@dataclass(frozen=True, slots=True)
class _Encoded:
    encoded: bytes


def _sorted(pairs: tuple[tuple[Value, Value], ...], profile: Profile) -> list[tuple[bytes, Value]]:
    keyed = sorted(((_key(key, profile), value) for key, value in pairs), key=lambda pair: pair[0])
    for (key, _), (following, _) in pairwise(keyed):
        if key == following:
            raise InputError("duplicate map key", rule="cbor.duplicate")
    return keyed


def _key(key: Value, profile: Profile) -> bytes:
    plain = isinstance(key, (str, bytes, int, Simple)) or key is None
    if not (isinstance(key, str) or (plain and profile.keys == "plain") or profile.keys == "any"):
        raise InputError(f"{type(key).__name__} is not allowed as a map key in this format", rule="cbor.key")
    return encode(key, profile)


def _emit_pairs(pairs: list[tuple[bytes, Value]]) -> Iterator[Value]:
    for key, value in pairs:
        yield _Encoded(key)
        yield value


def _scalar(value: Value, profile: Profile) -> bytes:
    if hasattr(value, "dtype") and getattr(value, "ndim", None) == 0:
        value = value.item()  # a NumPy scalar
    if isinstance(value, str):
        return text(value)
    if value is None or isinstance(value, bool):
        return head(SPECIAL, 22 if value is None else 20 + value)
    if isinstance(value, int):
        if not -(1 << 64) <= value < 1 << 64:
            raise InputError(f"{value} does not fit 64 bits", rule="cbor.integer")
        return head(UINT, value) if value >= 0 else head(NEGATIVE, -1 - value)
    if isinstance(value, float):
        return _float(value, profile)
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        return head(BYTES, len(data)) + data
    if isinstance(value, Simple) and profile.simple:
        return head(SPECIAL, value.number)
    raise InputError(f"{type(value).__name__} cannot be encoded as CBOR in this format", rule="cbor.value")


def _float(value: float, profile: Profile) -> bytes:
    if not profile.nonfinite and value - value != 0:
        raise InputError(f"{value} is not allowed in this format: floats must be finite", rule="cbor.float")
    double = struct.pack(">d", value)
    if profile.floats == "double":
        return b"\xfb" + double
    if value != value:
        return b"\xf9\x7e\x00"
    for prefix, form in ((b"\xf9", ">e"), (b"\xfa", ">f")):
        try:
            short = struct.pack(form, value)
        except OverflowError:
            continue
        if struct.pack(">d", struct.unpack(form, short)[0]) == double:
            return prefix + short
    return b"\xfb" + double
