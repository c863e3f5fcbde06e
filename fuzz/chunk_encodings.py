"""Mutants of encoded chunks: `python fuzz/chunk_encodings.py [COUNT] [SEED]`.

The invariant: whatever the encoding, the body and the size of the chunk are,

- only a FormatError of rule `store.encoding` leaves, in printable words;
- a delta that is refused leaves the base as it was, and one that is applied can be undone;
- what is decoded, encoded again, decodes to the same bytes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache

import tensorglot as tg
from tensorglot.store.encoder import encode, encode_nodes
from tensorglot.store.encodings import IS_DELTA, Encoding, apply, decode

Mutant = tuple[int, bytes, int]
"""An encoding, a body, and how many bytes the chunk has."""

NUMBERS = (0, 1, 2, 254, 255, 256, 0xFFFF, 1 << 20, (1 << 31) - 1, (1 << 32) - 1)
KEPT = 64
"""Valid bodies at a time."""
DIGESTS = random.Random(1).randbytes(50 * 32)
"""Digests of a pack, which nodes refer to."""


@lru_cache(64)
def base_of(nbytes: int) -> bytes:
    return random.Random(nbytes).randbytes(nbytes)


def valid(r: random.Random) -> Mutant:
    width = r.choice((1, 2, 2, 3, 4, 8, 12, 16))
    size = r.choice((0, 1, 15, 64, 400, 3000)) * width + r.choice((0, 0, 1))
    kind = r.randrange(5)
    if kind == 4:
        starts = (32 * r.randrange(50) for _ in range(r.choice((1, 3, 40))))
        data = b"".join(b"a link to " + DIGESTS[at : at + 32] for at in starts)
        encoded = encode_nodes(memoryview(data), DIGESTS)
        return encoded.encoding, bytes(encoded.body), len(data)
    if kind == 0:
        data = bytes(r.choices((0, 1, 2, 63), (8, 4, 2, 1), k=size))
    elif kind == 1:
        data = r.randbytes(width) * (size // width) + bytes(size % width)
    else:
        changed = bytearray(base_of(size))
        for _ in range(size // r.choice((1, 5, 30, 400))):
            at = r.randrange(size) // width * width
            moved = int.from_bytes(changed[at : at + width], "little")
            moved = moved ^ 1 << r.randrange(8 * width) if kind == 2 else moved + r.choice((1, -1))
            changed[at : at + width] = (moved % (1 << 8 * width)).to_bytes(width, "little")
        del changed[size:]
        data = bytes(changed)
    encoded = encode(memoryview(data), width, memoryview(base_of(size)) if kind > 1 else None)
    return encoded.encoding, bytes(encoded.body), size


def mutants(count: int, seed: int) -> Iterator[Mutant]:
    """Encoding takes long, so several mutants are made of a valid body before another replaces it."""
    r = random.Random(seed)
    pool = [valid(r) for _ in range(KEPT)]
    for _ in range(count):
        if r.random() < 0.05:
            pool[r.randrange(KEPT)] = valid(r)
        encoding, body, size = r.choice(pool)
        changed = bytearray(body)
        for _ in range(r.choice((0, 1, 1, 1, 2, 5))):
            kind = r.randrange(8)
            at = r.randrange(len(changed) + 1)
            if kind == 0:
                changed[at : at + 1] = r.randbytes(1)
            elif kind == 1:
                changed[at : at + 4] = r.choice(NUMBERS).to_bytes(4, "little")
            elif kind == 2:
                del changed[at:]
            elif kind == 3:
                changed[at:at] = r.randbytes(r.choice((1, 4, 20)))
            elif kind == 4:
                changed[:1] = bytes([r.choice((0, 1, 2, 4, 8, 16, 17, 255))])
            elif kind == 5:
                encoding = r.choice((*Encoding, len(Encoding), 255))
            elif kind == 6:
                size = min(1 << 20, r.choice((0, size + 1, max(0, size - 1), 2 * size, 70_000)))
            else:
                other = r.choice(pool)[1]
                changed[at:] = other[r.randrange(len(other) + 1) :]
        yield encoding, bytes(changed), size


def check(mutant: Mutant) -> str:
    encoding, body, size = mutant
    base = base_of(size)
    out = bytearray(base)
    try:
        if encoding in IS_DELTA:
            apply(encoding, memoryview(body), memoryview(out))
        else:
            decode(encoding, memoryview(body), memoryview(out), memoryview(DIGESTS))
    except tg.FormatError as error:
        assert error.rule == "store.encoding"
        assert str(error).isprintable()
        assert encoding not in IS_DELTA or out == base
        return f"{encoding}: refused"
    if encoding in IS_DELTA:
        again = encode(memoryview(out), 2, memoryview(base))
        undone = bytearray(out)
        apply(encoding, memoryview(body), memoryview(undone), undo=True)
        assert undone == base
    else:
        again = encode(memoryview(out), 2)
    copy = bytearray(base)
    (apply if again.encoding in IS_DELTA else decode)(again.encoding, memoryview(again.body), memoryview(copy))
    assert copy == out
    return f"{encoding}: accepted"


if __name__ == "__main__":
    from campaign import campaign

    campaign(mutants, check)
