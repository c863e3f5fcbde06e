"""The kernels of CBOR compiled and interpreted: the same faults at the same bytes, the same columns, for any input."""

from __future__ import annotations

import importlib.util
import random
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorglot.containers.ztensor.scan import NOTHING, Columns, Field, Record
from tensorglot.errors import FormatError
from tensorglot.kernels import cbor_check, cbor_scan, cbor_values
from tensorglot.wire.cbor import DETERMINISTIC, LENIENT, Profile, check, encode
from test_cbor import DAG, FORMS, values
from ztensor_builder import Long, Open, Pairs, Raw, cbor, entry, part, tensor

FOLDER = Path(cbor_scan.__file__).parent


def interpreted(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"interpreted_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PLAIN_CHECK, PLAIN_SCAN, PLAIN_VALUES = map(interpreted, ("cbor_check", "cbor_scan", "cbor_values"))
PROFILES = (LENIENT, DETERMINISTIC, DAG)

OBJECT = Record(
    "object",
    Field("name", "name"),
    Field("parts", "parts", required=True),
    Field("shape", "shape", required=True),
    Field("layout", "word", ("dense", "other"), required=True),
    Field("attributes", "attributes"),
    named=True,
    text_keys=False,
    name_nbytes=20,
)
PART = Record(
    "part",
    Field("name", "word", ("data",)),
    Field("blob", "pair", required=True),
    Field("type", "word", ("bool", "complex64")),
    Field("dtype", "word", ("u8", "f32"), required=True),
    Field("digest", "digest"),
    Field("encoding", "text"),
    Field("decoded_length", "uint", absent=-1),
    named=True,
    text_keys=True,
    name_nbytes=20,
)
ENTRY = Record(
    "entry",
    Field("name", "name", required=True),
    Field("offset", "uint", required=True),
    Field("size", "uint", required=True),
    Field("dtype", "word", ("uint8", "float32"), required=True),
    Field("layout", "silent", ("dense",)),
    Field("shape", "shape", required=True),
    Field("encoding", "word", ("raw", "zstd"), required=True),
    Field("checksum", "text"),
    Field("part_of", "mark"),
    named=False,
    text_keys=True,
)


def test_the_two_are_two() -> None:
    assert not PLAIN_CHECK.cython.compiled
    assert not PLAIN_SCAN.cython.compiled
    assert not PLAIN_VALUES.cython.compiled
    assert PLAIN_CHECK.FAULTS == cbor_check.FAULTS
    assert PLAIN_SCAN.FAULTS == cbor_scan.FAULTS
    assert PLAIN_SCAN.KINDS == cbor_scan.KINDS


def same_check(data: bytes, profile: Profile) -> None:
    found = cbor_check.check(data, 0, len(data), profile)
    assert found == PLAIN_CHECK.check(data, 0, len(data), profile)
    if not found[0]:
        assert cbor_scan.skip(data, 0, len(data)) == PLAIN_SCAN.skip(data, 0, len(data)) == found[1]
        assert cbor_values.head(data, 0) == PLAIN_VALUES.head(data, 0)


@pytest.mark.parametrize("form", FORMS, ids=[form[0] for form in FORMS])
def test_every_form(form: tuple[Any, ...]) -> None:
    for profile in PROFILES:
        same_check(bytes.fromhex(form[0]), profile)


@given(st.binary(max_size=80))
@settings(max_examples=400)
def test_any_bytes(data: bytes) -> None:
    for profile in PROFILES:
        same_check(data, profile)


@given(values, st.data())
def test_values_with_one_byte_changed(value: Any, data: st.DataObject) -> None:
    encoded = bytearray(encode(value, LENIENT))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] = data.draw(st.integers(0, 255))
    for profile in PROFILES:
        same_check(bytes(encoded), profile)


KEYS = {
    "none": (b"\xa0", ({}, -1, 1)),
    "texts": (b"\xa2\x61a\x81\0\x60\xf6", ({"a": 3, "": 6}, -1, 7)),
    "other keys": (b"\xa3\0\x81\0\x61a\0\x82\0\0\0", ({"a": 6}, 1, 11)),
    "indefinite": (b"\xbf\x61a\0\xff", ({"a": 3}, -1, 5)),
    "chunks": (b"\xa1\x7f\x61a\x60\x61b\xff\0", ({"ab": 8}, -1, 9)),
    "no map": (b"\x80", ({}, -1, -1)),
    "a key that does not end": (b"\xa1\x62a", ({}, -1, -1)),
    "chunks that do not end": (b"\xa1\x7f\x61a", ({}, -1, -1)),
    "a chunk that does not end": (b"\xa1\x7f\x62a", ({}, -1, -1)),
    "no key": (b"\xa1", ({}, -1, -1)),
    "no value": (b"\xa1\x61a", ({"a": 3}, -1, -1)),
    "another key that does not end": (b"\xa1\x81", ({}, 1, -1)),
}


@pytest.mark.parametrize("form", KEYS)
@pytest.mark.parametrize("module", [cbor_scan, PLAIN_SCAN], ids=["compiled", "interpreted"])
def test_the_fields_of_a_map(module: Any, form: str) -> None:
    data, found = KEYS[form]
    assert module.fields(data, 0) == found


@pytest.mark.parametrize("module", [cbor_scan, PLAIN_SCAN], ids=["compiled", "interpreted"])
def test_items_before_a_break(module: Any) -> None:
    data = b"\0\x82\0\0\x9f\xff\xff\0"
    assert [module.count_items(data, at) for at in (0, 1, 6, 7)] == [3, 2, 0, -1]


def scanned(module: Any, data: bytes, begin: int, count: int, records: tuple[Record, Record], room: int) -> Any:
    columns, parts, dims = Columns(records[0], room), Columns(records[1], room), np.zeros(room, np.int64)
    found = module.scan(data, begin, count, columns, parts, dims)
    if found[0]:
        return found
    filled = [table[:, :room].tolist() for table in (columns.numbers, columns.codes, parts.numbers, parts.codes)]
    return found, filled, dims.tolist()


def same_scan(value: Any, count: int, records: tuple[Record, Record]) -> Any:
    data = cbor(value)
    try:
        check(data, LENIENT)
    except FormatError:
        return None
    for room in (0, 1, 8):
        results = [scanned(module, data, 1, count, records, room) for module in (cbor_scan, PLAIN_SCAN)]
        assert results[0] == results[1]
    return results[0]


TEXTS = ("", "a", "dense", "raw", "zstd", "uint8", "u8", "bool", "x.y/1", "xxh3:0a", "XXH3:0", "n" * 30, "a\0b")
ODD = (
    0, 7, 255, 256, 65536, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1, 1.5, None, True, b"x", [], {}, [1],
    [1, 2, 3], {"a": 1}, {1: 2}, Long(3), Open([1, 2]), Open({"a": 1}), Raw(b"\xc1\0"), Raw(b"\x78\x02u8"),
)  # fmt: skip


def mutated(value: Any, rng: random.Random) -> Any:
    """The same tree with something changed, or in another form."""
    if rng.random() < 0.1:
        text = rng.choice(TEXTS)
        return rng.choice((*ODD, text, Open(text)))
    if isinstance(value, dict):
        pairs = [(key, mutated(item, rng)) for key, item in value.items() if rng.random() > 0.03]
        if rng.random() < 0.2:
            pairs.insert(rng.randrange(len(pairs) + 1), (rng.choice(("zzz", "part_of", "é", 9, Open("shape"))), 1))
        if rng.random() < 0.3:
            rng.shuffle(pairs)
        return Pairs(tuple(pairs))
    if isinstance(value, list):
        items = [mutated(item, rng) for item in value]
        return Open(items) if rng.random() < 0.2 else items
    if isinstance(value, str) and rng.random() < 0.2:
        return Open(value)
    return Long(value) if isinstance(value, int) and value >= 0 and rng.random() < 0.2 else value


@pytest.mark.parametrize("seed", range(8))
def test_scans_of_mutants(seed: int) -> None:
    rng = random.Random(seed)
    faults = set()
    for _ in range(150):
        entries = [entry(f"t{i}", shape=[2, 3], checksum="c") for i in range(3)]
        found = same_scan([mutated(one, rng) for one in entries], 3, (ENTRY, NOTHING))
        objects = {f"t{i}": tensor(attributes={"k": 1}, parts={"data": part(digest="xxh3:00"), "more": part()})
                   for i in range(2)}  # fmt: skip
        again = same_scan(Pairs(tuple((name, mutated(one, rng)) for name, one in objects.items())), 2, (OBJECT, PART))
        faults |= {result[0] if isinstance(result[0], str) else "" for result in (found, again) if result}
    assert len(faults) > 5, "the mutants reach most faults, and some are none"


def object_of(name: Any = "t", **fields: Any) -> Pairs:
    return Pairs(((name, tensor(parts={"data": part(**fields)})),))


FAULTY: dict[str, tuple[Any, str]] = {
    "a name of 21 bytes": (object_of("n" * 21), "name"),
    "an empty name": (object_of(""), "name"),
    "a NUL in a name": (object_of("a\0b"), "name"),
    "a name of 21 bytes in chunks": (object_of(Open("n" * 21)), "name"),
    "a NUL in a name in chunks": (object_of(Open("a\0b")), "name"),
    "a name that is a number": (object_of(7), "not text"),
    "one number of a pair": (object_of(blob=[1]), "not pair"),
    "three numbers of a pair": (object_of(blob=[1, 2, 3]), "not pair"),
    "a text in a pair": (object_of(blob=[1, "a"]), "not uint"),
    "a digest without a colon": (object_of(digest="00"), "digest"),
    "a digest without an algorithm": (object_of(digest=":00"), "digest"),
    "a digest with two colons": (object_of(digest="a:0:0"), "digest"),
    "a digest that is empty": (object_of(digest="a:"), "digest"),
    "a digest in capitals": (object_of(digest="a:0A"), "digest"),
    "a digest that is no hex": (object_of(digest="a:0g"), "digest"),
    "a digest in chunks that is no hex": (object_of(digest=Open("a:0g")), "digest"),
}
FINE: dict[str, Any] = {
    "a name of 20 bytes": object_of("n" * 20),
    "a name in chunks": object_of(Open("n" * 20)),
    "a digest": object_of(digest="az09:09af"),
    "a digest in chunks": object_of(digest=Open("xxh3:00")),
    "a pair without a length": object_of(blob=Open([1, 2])),
}


@pytest.mark.parametrize("case", FAULTY)
def test_faults_of_scans(case: str) -> None:
    value, fault = FAULTY[case]
    assert same_scan(value, 1, (OBJECT, PART))[0] == fault


@pytest.mark.parametrize("case", FINE)
def test_scans_without_a_fault(case: str) -> None:
    assert same_scan(FINE[case], 1, (OBJECT, PART))[0][0] == ""


@pytest.mark.parametrize("case", FINE)
def test_scans_that_were_not_checked_stay_inside(case: str) -> None:
    """Whatever the bytes end with, both forms report the same fault."""
    data = cbor(FINE[case])
    for end in range(len(data)):
        results = [scanned(module, data[:end], 1, 1, (OBJECT, PART), 8) for module in (cbor_scan, PLAIN_SCAN)]
        assert results[0] == results[1]
        assert results[0][0]


SHORT_CHUNKS = replace(LENIENT, long_heads=False)
CHUNKS = {"7f6161ff": "", "7f780161ff": "shortest", "7f78": "ends", "7f78ff": "ends", "7f7c": "chunk", "5f4161ff": ""}


@pytest.mark.parametrize("form", CHUNKS)
def test_heads_of_chunks(form: str) -> None:
    data = bytes.fromhex(form)
    found = cbor_check.check(data, 0, len(data), SHORT_CHUNKS)
    assert found == PLAIN_CHECK.check(data, 0, len(data), SHORT_CHUNKS)
    assert found[0] == CHUNKS[form]


@pytest.mark.parametrize(
    ("checker", "module", "reader"),
    [(cbor_check, cbor_scan, cbor_values), (PLAIN_CHECK, PLAIN_SCAN, PLAIN_VALUES)],
    ids=["compiled", "interpreted"],
)
def test_spans_outside_of_the_bytes(checker: Any, module: Any, reader: Any) -> None:
    data = b"\x18\x64"
    for begin, end in ((-1, 2), (0, 3), (2, 1), (3, 3)):
        assert checker.check(data, begin, end, LENIENT) == ("ends", begin)
        assert module.skip(data, begin, end) == -1
    for at in (-1, 2, 9):
        with pytest.raises(IndexError):
            reader.head(data, at)
        with pytest.raises(IndexError):
            reader.value(data, at, None, None, None)
    assert module.scan(data, -1, 1, Columns(ENTRY, 1), Columns(NOTHING, 1), np.zeros(1, np.int64))[0] == "ends"
    assert module.scan_attributes(data, -1, 9)[0] == "ends"
    for at in (-1, 0, 2, 3):
        assert module.fields(data, at) == ({}, -1, -1)
    for at, wrong in ((-1, data), (0, data), (3, data), (0, b"\x61")):
        assert module.count_items(wrong, at) == -1
