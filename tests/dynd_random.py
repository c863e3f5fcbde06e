"""Random DyND types, the bytes of random values of them, and mutants of bytes; for tests and for the fuzzer.

Everything follows from a `random.Random`, so a seed is a case.
"""

from __future__ import annotations

import math
import struct
from random import Random

import numpy as np

from tensorglot.model.dtypes import TABLE
from tensorglot.model.tensor import Tensor
from tensorglot.model.types import algebra as T
from tensorglot.model.types import temporal as M
from tensorglot.wire.cid import block_cid

SCALARS = [T.Scalar(row) for row in TABLE if not row.name.startswith("complex")]
LEAVES = [
    *SCALARS,
    *(T.Complex(s) for s in SCALARS if s.dtype.name in T.COMPLEX_PARTS),
    *[T.Bytes(), T.String(), T.Char(), T.TypeType(), T.Void(), T.FixedBytes(0), T.FixedBytes(3)] * 3,
    *(T.FixedString(3, encoding) for encoding in T.UNITS),
    T.Array(T.ANY),
    T.Array(T.ANY),
    T.Merkle(T.Var(T.Bytes())),
    T.Merkle(T.ANY),
]
TIMES = [
    M.Date(),
    *(kind(unit) for kind in (M.Time, M.TimeDelta, M.DateTime) for unit in M.PER_SECOND),
    *(M.DateTime("us", tz) for tz in ("UTC", "Europe/Paris", "-03:30", "nowhere/é")),
    *(M.Decimal(*digits) for digits in ((1, 0), (38, 0), (18, 4), (5, 38), (3, -2))),
]
LEAVES += TIMES
SYMBOLIC = [
    "Any",
    "T",
    "bytes[N]",
    "complex[T]",
    "... * T",
    "N * int32",
    "(int32, ...) -> T",
    "{a: T, ...}",
    "A... * Fixed * T",
]
CHARACTERS = "aZ~ \0\n\x7f\x80éÿ߿ࠀ퟿�￿𐀀😀􏿿'\\"
CODECS = {"utf8": "utf-8", "ascii": "ascii", "utf16": "utf-16-le", "utf32": "utf-32-le"}
SENTINELS = {
    "bool": b"\x02",
    **{f"int{8 << i}": bytes((1 << i) - 1) + b"\x80" for i in range(5)},
    "float16": bytes.fromhex("0a7e"),
    "float32": bytes.fromhex("a207807f"),
    "float64": bytes.fromhex("a20700000000f07f"),
}


def random_type(rng: Random, depth: int = 5) -> T.Type:
    """A type that nests at most `depth` deep."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(LEAVES)

    def inner() -> T.Type:
        return random_type(rng, depth - 1)

    kind = rng.randrange(9)
    if kind == 0:
        return T.Fixed(rng.randrange(4), inner())
    if kind in (1, 2):
        return T.Var(inner())
    if kind == 3:
        return T.Tuple(tuple(inner() for _ in range(rng.randrange(4))))
    if kind == 4:
        names = {random_text(rng, 3) if rng.random() < 0.3 else rng.choice("abcxyz") for _ in range(rng.randrange(4))}
        return T.Struct(tuple((name, inner()) for name in sorted(names)))
    if kind == 5:
        return T.Pointer(inner())
    if kind == 6:
        t = inner()
        for size in (sizes := [rng.randrange(4) for _ in range(rng.choice([2, 2, 3]))]):
            t = T.Fixed(size, t)
        return T.Storage.of(t, tuple(rng.sample(range(len(sizes)), len(sizes))))
    if kind == 7:
        return T.Map(random_type(rng, min(1, depth - 1)), inner())
    t = inner()
    bare = t
    while isinstance(bare, T.Pointer):
        bare = bare.element
    return t if isinstance(bare, T.Option) else T.Option(t)


def random_text(rng: Random, longest: int, characters: str = CHARACTERS) -> str:
    return "".join(rng.choice(characters) for _ in range(rng.randint(0, longest)))


def varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def sized(raw: bytes) -> bytes:
    return varint(len(raw)) + raw


def random_bytes(rng: Random, t: T.Type, boxes: int = 3) -> bytes:
    """The bytes of a random value of a type, straight from the document. `boxes` is how deep array[T] may nest."""
    match t:
        case T.Pointer():
            return random_bytes(rng, t.element, boxes)
        case T.Option():
            return random_option(rng, t.element, boxes)
        case T.Scalar() | T.Complex():
            return random_number(rng, t)
        case T.FixedBytes():
            return rng.randbytes(t.size)
        case T.FixedString():
            return random_fixed_text(rng, t)
        case T.Char():
            return rng.choice(CHARACTERS).encode()
        case T.Bytes():
            return sized(rng.randbytes(rng.choice([0, 1, 5, 127, 128, 300])))
        case T.String():
            return sized((random_text(rng, 4) * rng.choice([1, 1, 50])).encode())
        case T.TypeType():
            return sized(str(random_type(rng, 2)).encode() if rng.random() < 0.5 else rng.choice(SYMBOLIC).encode())
        case M.Date() | M.Unit() | M.Decimal():
            return random_time(rng, t)
        case T.Map():
            pairs = {random_bytes(rng, t.key, boxes): random_bytes(rng, t.item, boxes) for _ in range(rng.randrange(4))}
            return varint(len(pairs)) + b"".join(key + pairs[key] for key in sorted(pairs))
        case T.Merkle():
            link = bytes(block_cid(rng.randbytes(2), rng.choice([0x55, 0x71])))
            return sized(str(random_type(rng, 1)).encode()) + link if T.symbolic(t.element) else link
        case T.Array():
            inner = random_type(rng, 1) if boxes else T.Var(T.String())
            return sized(str(inner).encode()) + random_bytes(rng, inner, max(0, boxes - 1))
        case T.Fixed():
            return b"".join(random_bytes(rng, t.element, boxes) for _ in range(t.size))
        case T.Var():
            count = rng.choice([0, 1, 2, 3, 3, 130]) if boxes == 3 and t.element in LEAVES else rng.randrange(4)
            return varint(count) + b"".join(random_bytes(rng, t.element, boxes) for _ in range(count))
    return b"".join(random_bytes(rng, child, boxes) for child in t.children)


def random_number(rng: Random, t: T.Type) -> bytes:
    if isinstance(t, T.Complex):
        return random_number(rng, t.part) + random_number(rng, t.part)
    if t.dtype.name == "bool" or t.dtype.packed:
        return bytes([rng.randrange(1 << (t.dtype.bits if t.dtype.packed else 1))])
    nbytes = t.dtype.bits // 8
    edges = [bytes(nbytes), b"\xff" * nbytes, bytes(nbytes - 1) + b"\x80", b"\xff" * (nbytes - 1) + b"\x7f"]
    return rng.choice(edges) if rng.random() < 0.3 else rng.randbytes(nbytes)


def time_bounds(t: T.Type) -> tuple[int, int, int]:
    """Bytes of a time or decimal, its least value, and its largest."""
    if isinstance(t, M.Decimal):
        return 16, 1 - 10**t.precision, 10**t.precision - 1
    if isinstance(t, M.Time):
        return 8, 0, 86_400 * t.per_second - 1
    nbytes = 4 if isinstance(t, M.Date) else 8
    return nbytes, -(1 << (8 * nbytes - 1)), (1 << (8 * nbytes - 1)) - 1


def random_time(rng: Random, t: T.Type) -> bytes:
    nbytes, low, high = time_bounds(t)
    near = rng.randrange(10**9) * getattr(t, "per_second", 1)
    number = rng.choice((low, low + 1, high, 0, near, -near, rng.randint(low, high)))
    return min(high, max(low, number)).to_bytes(nbytes, "little", signed=True)


def random_option(rng: Random, t: T.Type, boxes: int) -> bytes:
    while isinstance(t, T.Pointer):
        t = t.element
    if isinstance(t, T.Void):
        return b""
    if t in TIMES:
        mark = SENTINELS[f"int{8 * time_bounds(t)[0]}"]
        return mark if rng.random() < 0.3 else random_time(rng, t)
    number = t.part if isinstance(t, T.Complex) else t
    if isinstance(number, T.Scalar) and number.dtype.name in SENTINELS:
        mark = SENTINELS[number.dtype.name] * (1 + isinstance(t, T.Complex))
        return mark if rng.random() < 0.3 else random_number(rng, t)
    return b"\0" if rng.random() < 0.3 else b"\x01" + random_bytes(rng, t, boxes)


def random_fixed_text(rng: Random, t: T.FixedString) -> bytes:
    text = random_text(rng, t.size, "aZ~" if t.encoding == "ascii" else CHARACTERS.replace("\0", ""))
    while len(text.encode(CODECS[t.encoding])) > t.nbytes:
        text = text[:-1]
    return text.encode(CODECS[t.encoding]).ljust(t.nbytes, b"\0")


def mutant(rng: Random, data: bytes) -> bytes:
    """Bytes with a few things changed."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(out)) if out else 0
        kind = rng.randrange(5)
        if kind == 0 or not out:
            out[at:at] = rng.randbytes(rng.randint(1, 3))
        elif kind == 1:
            del out[at]
        elif kind == 2:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 3:
            out[at] = rng.choice([0, 1, 2, 3, 0x7F, 0x80, 0xC0, 0xED, 0xFF])
        else:
            out[at : at + 1] = varint(rng.choice([0, 1, 127, 128, 1 << 20, 1 << 31, (1 << 60) + 1, (1 << 63) - 1]))
    return bytes(out)


def same(ours: object, naive: object) -> bool:
    """Whether a value of ours is the naive decoder's. All NaNs are one."""
    if isinstance(ours, Tensor):
        return ours.type == naive[0] and same(ours.tolist(), naive[1])
    if isinstance(ours, float) and isinstance(naive, float):
        return struct.pack("<d", ours) == struct.pack("<d", naive) or (math.isnan(ours) and math.isnan(naive))
    if isinstance(ours, complex) and isinstance(naive, complex):
        return same(ours.real, naive.real) and same(ours.imag, naive.imag)
    if isinstance(ours, list | tuple):
        return type(ours) is type(naive) and len(ours) == len(naive) and all(map(same, ours, naive))
    if isinstance(ours, dict):
        return list(ours) == list(naive) and all(same(ours[name], naive[name]) for name in ours)
    if isinstance(naive, bytes):
        return bytes(ours) == naive
    if isinstance(naive, np.generic):
        return type(ours) is type(naive) and ours.dtype == naive.dtype and ours == naive
    return type(ours) is type(naive) and ours == naive
