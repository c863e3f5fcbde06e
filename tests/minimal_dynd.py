"""A small reader and writer of the format in docs/dynd-format.md. It shares no code with tensorglot.

`parse` turns the canonical text of a type into a Codec: `read` takes bytes from a Reader and
gives the JSON value of the page, `write` gives the bytes again. What the page forbids
raises Refused. Left out, and Unknown: the floats of ml_dtypes, and patterns beside Any.
Dates, times and decimals are their integers; a float that is not finite is "0x…", its bits.
"""

import base64
import itertools
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

import blake3

MOST = 1 << 14  # elements that take no bytes


class Refused(Exception):
    """The bytes or the text are not canonical."""


class Unknown(Exception):
    """A type that this reader does not implement."""


def need(condition):
    if not condition:
        raise Refused
    return condition


class Reader:
    def __init__(self, data):
        self.data = bytes(data)

    def take(self, nbytes):
        need(nbytes <= len(self.data))
        taken, self.data = self.data[:nbytes], self.data[nbytes:]
        return taken

    def varint(self):
        number = 0
        for i in range(9):
            byte = self.take(1)[0]
            number |= (byte & 127) << 7 * i
            if byte < 128:
                need(byte or i == 0)
                return number
        raise Refused

    def text(self, nbytes, codec="utf-8"):
        try:
            return self.take(nbytes).decode(codec)
        except UnicodeDecodeError:
            raise Refused from None


def varint(number):
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def sized(raw):
    return varint(len(raw)) + raw


@dataclass
class Codec:
    read: Callable = None
    write: Callable = None
    missing: bytes | None = None
    option: bool = False
    symbolic: bool = False
    dim: tuple | None = None  # size and element of a fixed dimension


def integer(nbytes, signed=True, low=None, end=None):
    def read(r):
        number = int.from_bytes(r.take(nbytes), "little", signed=signed)
        need(low is None or low <= number < end)
        return number

    mark = bytes(nbytes - 1) + b"\x80" if signed else None
    return Codec(read, lambda v: v.to_bytes(nbytes, "little", signed=signed), mark)


def narrow(bits, signed):
    """An integer of fewer than 8 bits, in a byte."""
    byte, half = integer(1, False, 0, 1 << bits), 1 << (bits - 1)
    return Codec(lambda r: (byte.read(r) ^ half) - half if signed else byte.read(r), lambda v: bytes([v % (2 * half)]))


def real(form, mark):
    def read(r):
        raw = r.take(struct.calcsize(form))
        number = struct.unpack(form, raw)[0]
        return number if math.isfinite(number) else f"0x{raw[::-1].hex()}"

    return Codec(read, lambda v: bytes.fromhex(v[2:])[::-1] if isinstance(v, str) else struct.pack(form, v), mark)


def raw_bytes(nbytes):
    return Codec(lambda r: {"$hex": r.take(nbytes).hex()}, lambda v: bytes.fromhex(v["$hex"]))


def fixed_string(nbytes, codec, unit):
    def read(r):
        raw = r.take(nbytes)
        units = (raw[at : at + unit] for at in range(0, nbytes, unit))
        text = b"".join(itertools.takewhile(any, units))
        need(not any(raw[len(text) :]))
        return Reader(text).text(len(text), codec)

    return Codec(read, lambda v: v.encode(codec).ljust(nbytes, b"\0"))


def read_bool(r):
    return bool(need(r.data[:1] < b"\2") and r.take(1)[0])


def read_type(r):
    text = r.text(r.varint())
    parse(text)
    return text


FLOATS = {"float16": ("<e", "0a7e"), "float32": ("<f", "a207807f"), "float64": ("<d", "a20700000000f07f")}
SIMPLE = {
    **{f"{'' if s else 'u'}int{n}": integer(n // 8, s) for n in (8, 16, 32, 64, 128) for s in (True, False)},
    **{f"{'' if s else 'u'}int{n}": narrow(n, s) for n in (1, 2, 4) for s in (True, False)},
    **{name: real(form, bytes.fromhex(mark)) for name, (form, mark) in FLOATS.items()},
    "bool": Codec(read_bool, lambda v: bytes([v]), b"\2"),
    "float128": raw_bytes(16),
    "bytes": Codec(lambda r: {"$hex": r.take(r.varint()).hex()}, lambda v: sized(bytes.fromhex(v["$hex"]))),
    "string": Codec(lambda r: r.text(r.varint()), lambda v: sized(v.encode())),
    "char": Codec(lambda r: r.text(sum(r.data[:1] >= b for b in (b"", b"\xc0", b"\xe0", b"\xf0"))), str.encode),
    "type": Codec(read_type, lambda v: sized(v.encode())),
    "void": Codec(lambda r: None, lambda v: b"", b""),
    "date": integer(4),
}


def option(inner):
    def read(r):
        if inner.missing is None:
            flag = r.take(1)
            need(flag in b"\0\1")
            return inner.read(r) if flag == b"\1" else None
        if not r.data.startswith(inner.missing):
            return inner.read(r)
        r.take(len(inner.missing))
        return None

    def write(v):
        if inner.missing is None:
            return b"\0" if v is None else b"\1" + inner.write(v)
        need(v is None or inner.write(v) != inner.missing)
        return inner.missing if v is None else inner.write(v)

    need(not inner.option)
    return Codec(read, write, option=True, symbolic=inner.symbolic)


def several(inners, names=None):
    """Tuples, and structs."""

    def read(r):
        values = [inner.read(r) for inner in inners]
        return values if names is None else dict(zip(names, values, strict=True))

    def write(v):
        items = v if names is None else v.values()
        return b"".join(inner.write(item) for inner, item in zip(inners, items, strict=True))

    return Codec(read, write, symbolic=any(inner.symbolic for inner in inners))


def dimension(size, inner):
    def read(r):
        count = r.varint() if size is None else size
        if count > max(len(r.data), MOST):
            raise Unknown("more elements than bytes")
        return [inner.read(r) for _ in range(count)]

    def write(v):
        return (varint(len(v)) if size is None else b"") + b"".join(map(inner.write, v))

    return Codec(read, write, symbolic=inner.symbolic, dim=None if size is None else (size, inner))


def storage(element, axis):
    sizes, inner = [], element
    while inner.dim and len(sizes) < len(axis):
        sizes, inner = [*sizes, inner.dim[0]], inner.dim[1]
    need(sorted(axis) == list(range(len(sizes))) and axis[-1] != len(axis) - 1)
    stored = [
        tuple(place[axis.index(i)] for i in range(len(axis)))
        for place in itertools.product(*(range(sizes[i]) for i in axis))
    ]

    def nest(found, place):
        return [nest(found, (*place, i)) for i in range(sizes[len(place)])] if len(place) < len(sizes) else found[place]

    def pick(v, place):
        return pick(v[place[0]], place[1:]) if place else v

    return Codec(
        lambda r: nest({place: inner.read(r) for place in stored}, ()),
        lambda v: b"".join(inner.write(pick(v, place)) for place in stored),
        symbolic=element.symbolic,
    )


def pairs(key, item):
    """map[K, V]"""
    plain = dimension(None, several([key, item]))

    def read(r):
        found = plain.read(r)
        keys = [key.write(k) for k, _ in found]
        need(all(a < b for a, b in itertools.pairwise(keys)))
        return found

    def write(v):
        return plain.write(sorted(v, key=lambda pair: key.write(pair[0])))

    return Codec(read, write, symbolic=key.symbolic or item.symbolic)


def box(pattern, text, of=lambda codec: codec, before="", after=""):
    """A type, and a value of it, or of what `of` makes of it."""

    def inner(name):
        codec = parse(name)
        need(not codec.symbolic)
        if pattern.symbolic and text != "Any":
            raise Unknown
        need(pattern.symbolic or name == text)
        return of(codec)

    def read(r):
        name = r.text(r.varint())
        return {"$type": before + name + after, "$value": inner(name).read(r)}

    def write(v):
        name = v["$type"].removeprefix(before).removesuffix(after)
        return sized(name.encode()) + inner(name).write(v["$value"])

    return Codec(read, write)


def read_link(r):
    need(r.data[:4].hex() in ("01551e20", "01711e20"))
    return cid_text(r.take(36))


LINK = Codec(read_link, lambda v: base64.b32decode(v[1:].upper() + "=" * 6))

NAME, NUMBER, QUOTED = r"[A-Za-z_][A-Za-z0-9_]*", r"(?:0|[1-9][0-9]*)", r"'(?:[^'\\]|\\.)*'"
ENCODINGS = {None: ("utf-8", 1), "ascii": ("ascii", 1), "utf16": ("utf-16-le", 2), "utf32": ("utf-32-le", 4)}
ESCAPES = {"\\": "\\\\", "'": "\\'", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
DAY = {unit: 86400 * 1000**i for i, unit in enumerate(("s", "ms", "us", "ns"))}


def parse(text):
    need(len(text) <= 1 << 16 and text.isascii())
    parser = Parser(text)
    codec = parser.type()
    need(parser.at == len(text))
    return codec


def quote(text):
    return "'" + "".join(ESCAPES.get(c) or (c if " " <= c <= "~" else escape(ord(c))) for c in text) + "'"


def unquote(quoted):
    try:
        text = quoted[1:-1].encode().decode("unicode_escape")
    except UnicodeDecodeError:
        raise Refused from None
    need(quote(text) == quoted and not re.search("[\ud800-\udfff]", text))
    return text


def escape(code):
    return f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


class Parser:
    def __init__(self, text):
        self.text, self.at = text, 0

    def match(self, pattern):
        found = re.compile(pattern, re.ASCII).match(self.text, self.at)
        self.at = found.end() if found else self.at
        return found

    def type(self):
        if self.match(r"\?"):
            return option(self.type())
        if self.match(r"var \* "):
            return dimension(None, self.type())
        if found := self.match(rf"({NUMBER}) \* "):
            need(int(found[1]) < 1 << 63)
            return dimension(int(found[1]), self.type())
        if self.match(r"(?:[A-Z]\w*(?:\.\.\.)?|\.\.\.) \* "):
            return replace(self.type(), symbolic=True)
        if found := self.match(r"[({]"):
            return self.list(found[0] == "{")
        name = need(self.match(NAME))[0]
        if name[0].isupper():
            return Codec(symbolic=True)
        if re.match("float[468]_|bfloat16$", name):
            raise Unknown(name)
        if not self.match(r"\["):
            return SIMPLE[need(name in SIMPLE and name)]
        made = self.bracketed(name)
        need(self.match(r"\]"))
        return made

    def list(self, struct):
        names, inners, open = [], [], False
        while not self.match(r"\}" if struct else r"\)"):
            need(not open and (not inners or self.match(", ")))
            open = bool(self.match(r"\.\.\.(?! \*)"))
            if not open:
                names.append(self.name())
                inners.append(self.type())
        given = [name for name in names if name is not None]
        need(len(set(given)) == len(given) and None not in names[len(names) - len(given) :])
        if not struct and self.match(" -> "):
            return replace(self.type(), symbolic=True)
        need(len(given) == (len(names) if struct else 0))
        whole = several(inners, names if struct else None)
        return replace(whole, symbolic=whole.symbolic or open)

    def name(self):
        found = self.match(rf"({NAME}|{QUOTED}): ")
        if found is None:
            return None
        if found[1][0] != "'":
            return found[1]
        name = unquote(found[1])
        need(not re.fullmatch(NAME, name))
        return name

    def bracketed(self, name):
        if name in ("pointer", "array", "merkle"):
            begin = self.at
            inner = self.type()
            text = self.text[begin : self.at]
            if name == "pointer":
                return replace(inner, dim=None)
            if name == "array":
                return box(inner, text)
            return box(inner, text, lambda codec: LINK, "merkle[", "]") if inner.symbolic else LINK
        if name == "map":
            key = self.type()
            need(self.match(", "))
            return pairs(key, self.type())
        if name == "storage":
            element = self.type()
            axis = need(self.match(rf", axis=\[({NUMBER}(?:, {NUMBER})*)\]"))[1]
            return storage(element, [int(i) for i in axis.split(", ")])
        return self.sized(name)

    def sized(self, name):
        if name in ("bytes", "complex") and self.match("[A-Z][A-Za-z0-9_]*"):
            return Codec(symbolic=True)
        if name == "complex":
            part = need(self.match("float(16|32|64|128)"))[0]
            two = several([SIMPLE[part]] * 2)
            return raw_bytes(32) if part == "float128" else replace(two, missing=SIMPLE[part].missing * 2)
        if name == "bytes":
            return raw_bytes(int(need(self.match(NUMBER))[0]))
        if name == "fixed_string":
            found = need(self.match(rf"({NUMBER})(?:, '(ascii|utf16|utf32)')?"))
            codec, unit = ENCODINGS[found[2]]
            need(0 < int(found[1]) * unit < 1 << 63)
            return fixed_string(int(found[1]) * unit, codec, unit)
        if name in ("time", "timedelta", "datetime"):
            found = need(self.match(rf"'(s|ms|us|ns)'(?:, tz=({QUOTED}))?"))
            need(found[2] is None or (name == "datetime" and unquote(found[2])))
            return integer(8, True, 0, DAY[found[1]]) if name == "time" else integer(8)
        need(name == "decimal")
        found = need(self.match(rf"({NUMBER}), (-?{NUMBER})"))
        need(1 <= int(found[1]) <= 38 and -38 <= int(found[2]) <= 38)
        return integer(16, True, 1 - 10 ** int(found[1]), 10 ** int(found[1]))


def decode(text, data):
    reader = Reader(data)
    value = parse(text).read(reader)
    need(not reader.data)
    return value


def encode(text, value):
    return parse(text).write(value)


def cid(block, codec=0x55):
    return bytes([1, codec, 0x1E, 32]) + blake3.blake3(block).digest()


def cid_text(raw):
    return "b" + base64.b32encode(raw).decode().lower().rstrip("=")


def head(major, number):
    if number < 24:
        return bytes([major << 5 | number])
    width = next(width for width in (1, 2, 4, 8) if number < 1 << 8 * width)
    return bytes([major << 5 | 23 + width.bit_length()]) + number.to_bytes(width, "big")


def dag_cbor(value):
    """Numbers, texts, arrays, maps, and links, which are bytes."""
    if isinstance(value, int):
        return head(0, value)
    if isinstance(value, str):
        return head(3, len(value.encode())) + value.encode()
    if isinstance(value, bytes):
        return head(6, 42) + head(2, len(value) + 1) + b"\0" + value
    if isinstance(value, list):
        return head(4, len(value)) + b"".join(map(dag_cbor, value))
    return head(5, len(value)) + b"".join(sorted(dag_cbor(key) + dag_cbor(item) for key, item in value.items()))


def data_link(data, chunk=1 << 20, fanout=8192):
    level = [(cid(data[i : i + chunk]), len(data[i : i + chunk])) for i in range(0, max(1, len(data)), chunk)]
    while len(level) > 1:
        groups = [level[i : i + fanout] for i in range(0, len(level), fanout)]
        nodes = [{"size": sum(n for _, n in group), "chunks": [link for link, _ in group]} for group in groups]
        level = [(cid(dag_cbor(node), 0x71), node["size"]) for node in nodes]
    return level[0][0]


def identity(text, data):
    node = {"data": data_link(data), "dynd": 1, "size": len(data), "type": text}
    return cid_text(cid(dag_cbor(node), 0x71))
