"""Mutants of everything DyND reads: `python fuzz/dynd.py [COUNT] [SEED]`.

The invariant: whatever is given to whatever reads it,

- only our errors leave, in printable lines: no struct.error, KeyError, MemoryError,
  RecursionError, UnicodeDecodeError, OverflowError, and no warning;
- bytes that are accepted as a value serialize to the same bytes, from memory and from a
  stream, and its Python form serializes to them too where no NaN is in it;
- a type string that is accepted prints as one that is canonical, and parses to the same; in
  data only that one is accepted;
- CBOR that is accepted in either profile is what the value is written as;
- a file that strict accepts is what saving it again gives; the tensors of any that is accepted
  have an identity, and `verify` finds nothing exactly when all of them can be read;
- what we write, in DyND or as columns in zTensor, is read as the same value;
- a tensor of columns in another container is refused, or serializes to bytes of its type.

A case is one way in and what it is given. Values are random ones of random types.
"""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np

import tensorglot as tg
from dynd_random import mutant, random_bytes, random_type, sized, varint
from tensorglot import dynd
from tensorglot.model.types.text import parse_canonical
from ztensor_builder import entry, file01

Case = tuple[str, Any]

TOKENS = (
    "*", " * ", "?", "[", "]", "{", "}", "(", ")", ",", ", ", ":", "'", "\\", "\\u00e9", "0", "1", "07", "var", "...",
    "Any", "T", "N", "->", "Dims...", "fixed[3]", "2**3", "9223372036854775807", "9223372036854775808", "int", "int128",
    "float128", "bfloat16", "complex", "bytes[4]", "bytes[4, 4]", "string", "fixed_string[3, 'utf16']", "char", "type",
    "void", "pointer[", "array", "option[", "storage[", "axis=[1, 0]", "order='F'", "merkle[", "\n", "\t", "é", "\0",
    "date", "time['us']", "timedelta['s']", "datetime['ns']", "datetime['ms', tz='UTC']", "decimal[18, -4]", "map[",
    "# a comment\n", "#", "\\/", "Float", "array[Scalar]",
)  # fmt: skip
HEADS = tuple(bytes([major << 5 | low]) for major in range(8) for low in (0, 1, 22, 23, 24, 25, 26, 27, 31))
PART_NUMBERS = (-(1 << 63), -2, -1, 0, 1, 2, 3, 7, 255, 1 << 31, (1 << 62) + 1, (1 << 63) - 1)
PART_DTYPES = {"float64": 8, "int64": 8, "uint64": 8, "int32": 4, "uint32": 4, "float16": 2, "uint8": 1, "bool": 1}
MOST_NBYTES = 1 << 16


def value(rng: random.Random) -> tuple[dynd.Type, bytes]:
    """A random value of a random type."""
    while True:
        type = random_type(rng, rng.choice((1, 2, 3, 4)))
        data = random_bytes(rng, type)
        if len(data) < MOST_NBYTES:
            return type, data


def mutated_text(rng: random.Random, text: str) -> str:
    """A type string with tokens inserted, removed, doubled or replaced."""
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        at, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        end = min(end, at + rng.choice((0, 1, 1, 2, 8)))
        inserted = rng.choice((rng.choice(TOKENS), text[at:end] * 2, "", chr(rng.randrange(0x250))))
        text = text[:at] + inserted + text[end:]
    return text


def mutated_cbor(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 2))):
        at = rng.randrange(len(out) + 1)
        if rng.random() < 0.5:
            out[at : at + rng.randrange(2)] = rng.choice(HEADS)
        else:
            out[:] = mutant(rng, bytes(out))
    return bytes(out)


def native(rng: random.Random) -> dynd.Type:
    """A type that CBOR has values of itself."""
    return dynd.parse(
        rng.choice(
            (
                "int64", "bool", "void", "string", "bytes", "float64", "3 * int32", "2 * 3 * float16", "0 * uint8",
                "(int64, string, 2 * float32)", "{a: int64, b: {c: string, dd: bytes}}", "()", "{}", "2 * float128",
                "storage[2 * 3 * float64, axis=[1, 0]]", "storage[2 * 1 * 3 * int8, axis=[2, 1, 0]]",
            )
        )
    )  # fmt: skip


def of_value(rng: random.Random) -> Case:
    type, data = value(rng)
    return "value", (mutant(rng, data) if rng.random() < 0.8 else data, type)


def of_stranger(rng: random.Random) -> Case:
    """The bytes of a value of one type, to be read as another type."""
    return "value", (value(rng)[1], random_type(rng, 3))


def of_packed(rng: random.Random) -> Case:
    type, data = value(rng)
    text = str(type) if rng.random() < 0.7 else mutated_text(rng, str(type))
    packed = sized(text.encode()) + data
    return "packed", mutant(rng, packed) if rng.random() < 0.5 else packed


def of_type(rng: random.Random) -> Case:
    return "type", mutated_text(rng, str(random_type(rng, 4)))


def of_cbor(rng: random.Random) -> Case:
    type, data = value(rng)
    if rng.random() < 0.5:
        type = native(rng)
        data = random_bytes(rng, type)
    profile = rng.choice(("exchange", "dag"))
    return profile, mutated_cbor(rng, dynd.to_cbor(dynd.deserialize(data, type), profile=profile))


def of_linked(rng: random.Random) -> Case:
    """A node with a link, and a store with the blocks."""
    store: dict[dynd.CID, bytes] = {}
    node = dynd.to_cbor(dynd.deserialize(*value(rng)[::-1]), profile="dag", store=store)
    if rng.random() < 0.5:
        node = mutated_cbor(rng, node)
    else:
        key = rng.choice(list(store))
        store[key] = mutant(rng, store[key])
    return "linked", (node, store)


def of_file(rng: random.Random) -> Case:
    fields = [value(rng) for _ in range(rng.choice((0, 1, 2, 3)))]
    names = rng.sample(("a", "b", "'c d'", "data", "x0"), len(fields))
    text = "{" + ", ".join(f"{name}: {type}" for name, (type, _) in zip(names, fields, strict=True)) + "}"
    data = b"".join(data for _, data in fields)
    if rng.random() < 0.3:
        return "file", _table(
            rng, [(name.encode(), type, len(data)) for name, (type, data) in zip(names, fields, strict=True)], data
        )
    if len(fields) == 1 and rng.random() < 0.5:
        text = str(fields[0][0])
    if rng.random() < 0.3:
        text = mutated_text(rng, text)
    whole = sized(text.encode()) + (mutant(rng, data) if rng.random() < 0.6 else data)
    return "file", mutant(rng, whole) if rng.random() < 0.2 else whole


def _table(rng: random.Random, rows: list[tuple[bytes, dynd.Type, int]], values: bytes) -> bytes:
    """A file of tensors with an index of their names, types and sizes."""
    text = b"{tensors: var * {name: string, type: type, nbytes: int64}, values: bytes}"
    index = varint(len(rows))
    for name, type, nbytes in rows:
        index += sized(name) + sized(str(type).encode()) + nbytes.to_bytes(8, "little")
    content = index + sized(values)
    return sized(text) + (mutant(rng, content) if rng.random() < 0.7 else content)


def of_parts(rng: random.Random) -> Case:
    """A value as the columns of a zTensor file, some of them with other numbers, another element type or none."""
    type, data = value(rng)
    tensor = dynd.deserialize(data, type)
    if tensor.layout == "dense":
        type = dynd.parse(f"({type}, string)")
        tensor = dynd.deserialize(data + b"\0", type)
    entries, body = [], bytearray()
    columns = {name: np.ascontiguousarray(part.array()) for name, part in tensor.parts.items()}
    harmed = rng.choice((None, *columns))
    for i, (name, array) in enumerate(columns.items()):
        raw, dtype = bytearray(array.tobytes()), _stored_dtype(array)
        if name == harmed:
            dtype = _harm(rng, raw, dtype)
            if dtype is None:
                continue
        fields: dict[str, Any] = {"part_of": "t", "part": name}
        if i == 0:
            fields |= {"logical_layout": "nested", "logical_shape": list(tensor.shape)}
            text = mutated_text(rng, str(type)) if rng.random() < 0.1 else str(type)
            fields["attributes"] = {"dynd": text}
        count = len(raw) // PART_DTYPES[dtype]
        body += bytes(-len(body) % 64)
        entries.append(entry(f"t#{name}", offset=64 + len(body), size=len(raw), dtype=dtype, shape=[count], **fields))
        body += raw
    return "parts", file01(entries, bytes(body) or b"\0")


def _stored_dtype(array: np.ndarray[Any, Any]) -> str:
    name = str(array.dtype.name)
    return name if name in PART_DTYPES else "uint8"


def _harm(rng: random.Random, raw: bytearray, dtype: str) -> str | None:
    """Changes the bytes of a part in place; the element type that it says to have then, or None to leave it out."""
    kind = rng.randrange(6)
    width = PART_DTYPES[dtype]
    if kind == 0:
        return None
    if kind == 1:
        dtype = rng.choice([name for name in PART_DTYPES if len(raw) % PART_DTYPES[name] == 0])
    elif kind == 2:
        del raw[rng.randrange(len(raw) // width + 1) * width :]
    elif raw:
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(raw) // width) * width
            other = rng.randrange(len(raw) // width) * width
            number = rng.choice(PART_NUMBERS) & ((1 << 8 * width) - 1)
            raw[at : at + width] = rng.choice((number.to_bytes(width, "little"), raw[other : other + width]))
    return dtype


def of_saved(rng: random.Random) -> Case:
    type, data = value(rng)
    return "saved", (data, type, rng.choice(("dynd", "ztensor@0.1", "ztensor@2")))


MAKERS = (of_value, of_value, of_stranger, of_packed, of_packed, of_type, of_type, of_cbor, of_linked, of_file, of_file,
          of_parts, of_parts, of_saved)  # fmt: skip


def mutants(count: int, seed: int = 0) -> Iterator[Case]:
    """Ways in, each with what it is given."""
    rng = random.Random(seed)
    for _ in range(count):
        yield rng.choice(MAKERS)(rng)


def _use(tensor: tg.Tensor, data: bytes) -> None:
    """Calls every export of a tensor whose bytes are known."""
    repr(tensor)
    assert tensor.serialize() == data, "accepted, and serialized to other bytes"
    values = tensor.tolist()
    if "nan" not in repr(values):  # Python's floats do not keep every payload
        assert dynd.serialize(values, tensor.type) == data, "Python's values serialize to other bytes"


def _value(given: tuple[bytes, dynd.Type]) -> None:
    data, type = given
    tensor = dynd.deserialize(data, type)
    _use(tensor, data)
    stream = io.BytesIO(data + b"rest")
    out = io.BytesIO()
    dynd.dump(dynd.load(stream, type), out)
    assert out.getvalue() == data, "a stream gives another value"
    assert stream.read() == b"rest", "a stream is read too far"


def _packed(data: bytes) -> None:
    tensor = dynd.unpack(data)
    assert dynd.pack(tensor) == data
    _use(tensor, data[len(varint(len(str(tensor.type)))) + len(str(tensor.type)) :])


def _type(text: str) -> None:
    in_data = True
    try:
        parse_canonical(text)
    except tg.FormatError:
        in_data = False
    try:
        type = dynd.parse(text)
    except tg.InputError:
        assert not in_data, "data may have a type that the parser refuses"
        raise
    canonical = str(type)
    assert in_data == (text == canonical), "data may have another spelling, or not the canonical one"
    assert parse_canonical(canonical) == type, "the canonical text is another type"
    assert str(dynd.parse(canonical)) == canonical
    assert canonical.isascii()


def _exchange(data: bytes) -> None:
    tensor = dynd.from_cbor(data)
    assert dynd.to_cbor(tensor) == data, "two forms in CBOR"


def _dag(data: bytes) -> None:
    tensor = dynd.from_cbor(data, profile="dag", store={})
    assert dynd.to_cbor(tensor, profile="dag") == data, "two forms in DAG-CBOR"


def _linked(given: tuple[bytes, dict[dynd.CID, bytes]]) -> None:
    node, store = given
    tensor = dynd.from_cbor(node, profile="dag", store=store)
    again: dict[dynd.CID, bytes] = {}
    linked = dynd.to_cbor(tensor, profile="dag", store=again)
    assert node in (linked, dynd.to_cbor(tensor, profile="dag")), "two forms in DAG-CBOR"
    assert node != linked or tensor.cid() == str(tg.dynd.cid(tensor))


def _read_all(archive: tg.Archive) -> None:
    for tensor in archive.values():
        repr(tensor)
        data = bytes(tensor.serialize())
        tensor.cid()
        tensor.tolist()
        assert dynd.deserialize(data, tensor.type).serialize() == data


def _file(data: bytes) -> None:
    with tg.open(data, format="dynd") as archive:
        problems = tg.verify(data, format="dynd", deep=True).problems
        try:
            _read_all(archive)
        except tg.FormatError:
            assert problems, "verified, and cannot be read"
            raise
        assert not problems, problems
        again = tg.dumps(archive, format="dynd")
    try:
        tg.open(data, format="dynd", strict=True).close()
    except tg.FormatError:
        assert again != data, "canonical, and refused by strict"
    else:
        assert again == data, "strict accepts two forms of one value"


def _parts(data: bytes) -> None:
    with tg.open(data, format="ztensor") as archive:
        for tensor in archive.values():
            if tensor.layout != "nested":
                continue
            raw = bytes(tensor.serialize())
            assert dynd.deserialize(raw, tensor.type).serialize() == raw
            tensor.cid()
            tensor.tolist()
            tensor.nbytes  # noqa: B018


def _saved(given: tuple[bytes, dynd.Type, str]) -> None:
    data, type, format = given
    tensor = dynd.deserialize(data, type)
    with tg.open(tg.dumps({"t": tensor}, format=format), format=format) as archive:
        found = archive["t"]
        assert found.type == type
        assert found.serialize() == data, "saved, and read as another value"
        assert found.cid() == tensor.cid()


WAYS: dict[str, Callable[[Any], None]] = {
    "value": _value,
    "packed": _packed,
    "type": _type,
    "exchange": _exchange,
    "dag": _dag,
    "linked": _linked,
    "file": _file,
    "parts": _parts,
    "saved": _saved,
}


def check(case: Case) -> str:
    """Runs one case; returns "accepted" or the rule that refused."""
    way, given = case
    try:
        WAYS[way](given)
    except tg.TensorglotError as error:
        assert all(line.isprintable() for line in str(error).split("\n")), repr(str(error))
        return f"{way}: {error.rule}"
    return f"{way}: accepted"


if __name__ == "__main__":
    from campaign import campaign

    campaign(mutants, check)
