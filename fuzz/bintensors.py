"""Mutants of valid BinTensors files, by field and by byte: `python fuzz/bintensors.py [COUNT] [SEED]`.

The invariant: whatever the bytes are,

- only a FormatError leaves, and it says its rule in printable words;
- what strict accepts re-encodes to the same bytes, and is accepted without strict;
- what is accepted at all can be read, or is refused for a bool that is neither 0 nor 1;
  saved again it gives the same values in a file of the same length that strict accepts.

A file is a list of fields, so that a mutation can change one number, text or tag and
have the header's length, its padding and the file's end made right again.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import tensorglot as tg
from bintensors_builder import Number, number, overlong

ITEMSIZES = (1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8)
NUMBERS = (0, 1, 2, 250, 251, 0xFFFF, 0x1_0000, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
BYTES = (0, 1, 2, 0x1F, 0x20, 0x7F, 0x80, 0xC0, 0xED, 250, 251, 252, 253, 254, 255)
TEXTS = (b"", b"a", b"\0", b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", "é".encode(), b"n" * 251)


@dataclass
class File:
    """Fields are numbers (encoded as varints) and bytes (as they are)."""

    fields: list[Number]
    data: bytes
    length: int | None = None
    """The header's length, if it is not to be right."""
    padding: bytes | None = None

    def render(self) -> bytes:
        head = b"".join(map(number, self.fields))
        head += b" " * (-len(head) % 8) if self.padding is None else self.padding
        length = len(head) if self.length is None else self.length
        return length.to_bytes(8, "little") + head + self.data


def valid_file(r: random.Random) -> File:
    """A random file as a canonical writer makes it, or with tensors in another order."""
    layout = r.randrange(2)
    names = sorted({_text(r) for _ in range(r.choice((0, 1, 1, 2, 3, 5)))})
    rows = [(r.randrange(15), name, [r.choice((0, 1, 1, 2, 3)) for _ in range(r.randrange(4))]) for name in names]
    if r.random() < 0.7:
        rows.sort(key=lambda row: (-row[0], row[1]))
    fields: list[Number] = [*_metadata(r), len(rows)]
    position = 0
    for dtype, name, shape in rows:
        nbytes = ITEMSIZES[dtype]
        for size in shape:
            nbytes *= size
        if layout == 1:
            fields += [len(name), name]
        fields += [dtype, len(shape), *shape, position, position + nbytes]
        position += nbytes
    if layout == 0:
        fields.append(len(rows))
        for name, i in sorted((name, i) for i, (_, name, _) in enumerate(rows)):
            fields += [len(name), name, i]
    return File(fields, bytes(r.choices((0, 1) if r.random() < 0.9 else BYTES, k=position)))


def _metadata(r: random.Random) -> list[Number]:
    if r.random() < 0.6:
        return [b"\0"]
    pairs = sorted({_text(r): _text(r) for _ in range(r.randrange(3))}.items())
    fields: list[Number] = [b"\1", len(pairs)]
    for pair in pairs:
        for text in pair:
            fields += [len(text), text]
    return fields


def _text(r: random.Random) -> bytes:
    return "".join(r.choices("abcé\0/", k=r.randrange(4))).encode()


def mutate_field(r: random.Random, file: File, other: File) -> None:
    """One change to the fields; everything that depends on them is made right again."""
    i = r.randrange(len(file.fields))
    value = file.fields[i]
    kind = r.randrange(10)
    if kind == 0:
        file.fields.insert(i, r.choice(other.fields))
    elif kind == 1:
        del file.fields[i]
    elif kind == 2:
        j = r.randrange(len(file.fields))
        file.fields[i], file.fields[j] = file.fields[j], file.fields[i]
    elif isinstance(value, bytes):
        changed = r.choice((*TEXTS, r.choice([f for f in file.fields if isinstance(f, bytes)]), value[:-1]))
        file.fields[i] = changed
        if r.random() < 0.7 and i and isinstance(file.fields[i - 1], int):
            file.fields[i - 1] = len(changed)
    elif kind == 3:
        file.fields[i] = overlong(min(value, 0xFFFF), r.choice((251, 252, 253, 254, 255)))
    else:
        size = len(file.render())
        numbers = [f for f in file.fields if isinstance(f, int)]
        ends = (size, size - 1, size + 1, len(file.data), size - len(file.data))
        near = (value + 1, max(value - 1, 0), value + 8, *ends)
        file.fields[i] = r.choice((*NUMBERS, *near, *near, r.choice(numbers), r.choice(numbers)))


def mutate_frame(r: random.Random, file: File) -> None:
    """The length, the padding or the data."""
    right = len(b"".join(map(number, file.fields)))
    kind = r.randrange(4)
    if kind == 0:
        near = (right, right + 1, max(right - 1, 0), right + 8, len(file.data) + right, -right % (1 << 64))
        file.length = r.choice((*NUMBERS, *near, *near))
    elif kind == 1:
        file.padding = bytes(r.choice((0x20, 0x20, 0)) for _ in range(r.choice((-right % 8, r.randrange(20)))))
    elif kind == 2:
        file.data = file.data[: r.randrange(len(file.data) + 1)]
    else:
        file.data += bytes(r.choices(BYTES, k=r.choice((1, 2, 8))))


def mutate_bytes(r: random.Random, data: bytearray, other: bytes) -> None:
    at = r.randrange(len(data))
    kind = r.randrange(7)
    if kind == 0:
        data[at] ^= 1 << r.randrange(8)
    elif kind == 1:
        data[at] = r.choice(BYTES)
    elif kind == 2:
        data[at] = (data[at] + r.choice((1, -1))) % 256
    elif kind == 3:
        data.insert(at, r.choice(BYTES))
    elif kind == 4:
        del data[at : at + r.choice((1, 1, 2, 8))]
    elif kind == 5:
        start = r.randrange(len(other))
        data[at : at + 8] = other[start : start + 8]
    else:
        del data[at:]


def mutants(count: int, seed: int = 0) -> Iterator[bytes]:
    """Files with none to four changes."""
    r = random.Random(seed)
    for _ in range(count):
        file, other = valid_file(r), valid_file(r)
        for _ in range(r.choice((0, 1, 1, 1, 2, 3))):
            if file.fields and r.random() < 0.8:
                mutate_field(r, file, other)
            else:
                mutate_frame(r, file)
        data = bytearray(file.render())
        if r.random() < 0.4:
            mutate_bytes(r, data, other.render())
        yield bytes(data)


def check(data: bytes) -> str:
    """Holds the invariant for one file; returns what became of it."""
    outcomes = [_check_layout(data, layout) for layout in ("bintensors@0", "bintensors@1")]
    accepted = [outcome for outcome in outcomes if outcome in ("strict", "accepted", "values.bool")]
    try:
        with tg.open(data, format="bintensors"):
            assert len(accepted) == 1, "opened, but not valid in one layout"
    except tg.AmbiguousFormat:
        assert len(accepted) == 2, "ambiguous, but not valid in both layouts"
        return "ambiguous"
    except tg.FormatError as error:
        assert not accepted, "refused, but valid in a layout"
        return _said(error)
    return accepted[0]


def _check_layout(data: bytes, layout: str) -> str:
    try:
        archive = tg.open(data, format=layout)
    except tg.FormatError as error:
        _check_strict_refuses(data, layout)
        return _said(error)
    try:
        arrays = tg.loads(data, format=layout)
    except tg.FormatError as error:
        assert error.rule == "values.bool", error
        return _said(error)
    try:
        again = tg.dumps(archive, format=layout)
    except tg.UnsupportedError as error:
        assert error.rule == "bintensors.write.ambiguous", error
        return "accepted"
    try:
        tg.open(data, format=layout, strict=True)
    except tg.FormatError as error:
        assert error.rule.startswith("bintensors.strict."), error
        assert again != data, "canonical, and refused by strict"
        longer = len(again) - len(data) - (_offsets_nbytes(again, layout) - _offsets_nbytes(data, layout))
        assert abs(longer) < 8, "accepted with other differences than the order"
        outcome = "accepted"
    else:
        assert again == data, "strict accepts two forms of one value"
        outcome = "strict"
    reread = tg.open(again, format=layout, strict=True)
    assert (reread.metadata, set(reread)) == (archive.metadata, set(archive))
    for name, array in arrays.items():
        value = reread[name]
        assert (value.dtype, value.shape) == (array.dtype, array.shape)
        assert value.numpy().tobytes() == array.tobytes() == archive[name].numpy().tobytes()
    return outcome


def _offsets_nbytes(data: bytes, layout: str) -> int:
    """Bytes that the offsets take in the header, which depends on the order of the tensors."""
    index = tg.open(data, format=layout).index
    first = int(index.begins.min(initial=len(data)))
    return sum(len(number(offset - first)) for offset in (*index.begins.tolist(), *index.ends.tolist()))


def _check_strict_refuses(data: bytes, layout: str) -> None:
    try:
        tg.open(data, format=layout, strict=True)
    except tg.FormatError:
        return
    raise AssertionError("strict accepts what is refused otherwise")


def _said(error: tg.FormatError) -> str:
    assert error.rule.startswith("bintensors.") or error.rule == "values.bool", error.rule
    assert error.offset is not None, error
    assert str(error).isprintable(), repr(str(error))
    return error.rule


if __name__ == "__main__":
    from campaign import campaign

    campaign(mutants, check)
