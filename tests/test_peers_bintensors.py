"""The real packages: bintensors 0.2.0 for layout 1, 0.0.5 for layout 0.

Three thousand random sets of tensors go to each package in one process. What we
write, it writes too (layout 1, byte for byte) and reads (both layouts). Of mutants,
what we accept strictly it accepts with the same names, types, shapes and bytes; what
it accepts and we refuse is on a list, each with its rule.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tensorglot as tg
from bintensors_builder import Row, build, header, overlong
from fuzzing import bintensors as fuzz
from gallery import DTYPES, NAMES, random_array
from peers import peer, run

pytestmark = pytest.mark.peers

PEERS = {"bintensors@0": "bt005", "bintensors@1": "bt020"}
SETS = 3000
CODES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn",
    "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32",
    "F32": "float32", "F64": "float64", "I64": "int64", "U64": "uint64",
}  # fmt: skip

SERIALIZE = """
import pickle, sys
from bintensors import serialize
sets = pickle.load(open(sys.argv[1], "rb"))
written = [
    bytes(serialize({name: dict(dtype=d, shape=s, data=b) for name, (d, s, b) in tensors.items()}, metadata))
    for tensors, metadata in sets
]
pickle.dump(written, open(sys.argv[2], "wb"))
"""
DESERIALIZE = """
import pickle, sys
from bintensors import deserialize, safe_open
def read(data):
    try:
        tensors = {n: (t["dtype"], tuple(t["shape"]), bytes(t["data"])) for n, t in deserialize(data)}
        open(sys.argv[3], "wb").write(data)
        with safe_open(sys.argv[3], "np") as file:
            return tensors, file.metadata()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: {error}"
files = pickle.load(open(sys.argv[1], "rb"))
pickle.dump([read(data) for data in files], open(sys.argv[2], "wb"))
"""

Tensors = dict[str, NDArray[Any]]


def random_sets(count: int) -> list[tuple[Tensors, dict[str, str] | None]]:
    random = np.random.default_rng(20)
    alphabet = [*"abcdefghij._/-", "é", "名", "🌎", "\0", "\x1b", "\u202e", " ", "\n"]

    def name() -> str:
        if random.random() < 0.1:
            return NAMES[random.integers(len(NAMES) - 1)]
        return "".join(random.choice(alphabet, random.integers(0, 9)))

    def tensors() -> Tensors:
        chosen: Tensors = {}
        for _ in range(random.choice([0, 1, 2, 3, 5, 20])):
            dtype = DTYPES[list(DTYPES)[random.integers(len(DTYPES))]]
            shape = tuple(random.choice([0, 1, 2, 3, 7], random.integers(0, 5)).tolist())
            chosen[name()] = random_array(random, dtype, shape)
        return chosen

    def metadata() -> dict[str, str] | None:
        kind = random.integers(3)
        return None if kind == 0 else {name(): name() for _ in range(0 if kind == 1 else random.integers(1, 6))}

    return [(tensors(), metadata()) for _ in range(count)]


def plain(tensors: Tensors) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (array.dtype.name, array.shape, array.tobytes()) for name, array in tensors.items()}


def exchange(name: str, script: str, given: Any, folder: Path) -> Any:
    """Hands a value to a script under a peer's interpreter and takes one back."""
    (folder / "given").write_bytes(pickle.dumps(given))
    run(name, script, folder / "given", folder / "taken", folder / "file.bt")
    return pickle.loads((folder / "taken").read_bytes())


def read_by(name: str, files: list[bytes], folder: Path) -> list[Any]:
    """What a package reads of each file: tensors and metadata, or the words of its refusal."""
    results = exchange(name, DESERIALIZE, files, folder)
    return [
        taken
        if isinstance(taken, str)
        else ({key: (CODES[dtype], shape, data) for key, (dtype, shape, data) in taken[0].items()}, taken[1])
        for taken in results
    ]


@pytest.fixture(scope="module")
def sets() -> list[tuple[Tensors, dict[str, str] | None]]:
    peer("bt020")
    peer("bt005")
    return random_sets(SETS)


def test_the_sets_have_every_type_and_every_kind_of_metadata(sets: Any) -> None:
    dtypes = Counter(array.dtype.name for tensors, _ in sets for array in tensors.values())
    assert set(dtypes) == set(DTYPES)
    assert min(dtypes.values()) > 500
    kinds = Counter("absent" if text is None else "filled" if text else "empty" for _, text in sets)
    assert min(kinds.values()) > 800
    assert sum(0 in array.shape for tensors, _ in sets for array in tensors.values()) > 1000
    assert sum(array.shape == () for tensors, _ in sets for array in tensors.values()) > 1000


def test_layout_1_is_byte_for_byte_what_the_package_writes(sets: Any, tmp_path: Path) -> None:
    theirs = exchange("bt020", SERIALIZE, [(plain(tensors), text) for tensors, text in sets], tmp_path)
    for (tensors, text), written in zip(sets, theirs, strict=True):
        assert tg.dumps(tensors, format="bintensors@1", metadata=text) == written
        with tg.open(written, format="bintensors@1", strict=True) as archive:
            assert archive.metadata == text
        assert plain(tg.loads(written, format="bintensors@1", strict=True)) == plain(tensors)


@pytest.mark.parametrize("format", PEERS)
def test_the_package_reads_what_we_write(sets: Any, format: str, tmp_path: Path) -> None:
    files = [tg.dumps(tensors, format=format, metadata=text) for tensors, text in sets]
    for (tensors, text), taken in zip(sets, read_by(PEERS[format], files, tmp_path), strict=True):
        assert taken == (plain(tensors), text)


def test_we_read_what_the_older_package_writes(sets: Any, tmp_path: Path) -> None:
    """Its index map is in random order: the values are the same, and the length."""
    theirs = exchange("bt005", SERIALIZE, [(plain(tensors), text) for tensors, text in sets[:1000]], tmp_path)
    for (tensors, text), written in zip(sets[:1000], theirs, strict=True):
        with tg.open(written, format="bintensors@0") as archive:
            assert archive.metadata == text
            assert plain({name: archive[name].numpy() for name in archive}) == plain(tensors)
        assert len(tg.dumps(tensors, format="bintensors@0", metadata=text)) == len(written)


Difference = tuple[str, Callable[[int], bytes]]
DIFFERENCES: list[Difference] = [
    ("bintensors.varint.minimal", lambda layout: build(header(layout, count=overlong(1, 251)))),
    ("bintensors.varint.minimal", lambda layout: build(header(layout, [Row(end=overlong(2, 253))]))),
    ("bintensors.metadata.duplicate", lambda layout: build(header(layout, metadata=[("k", "1"), ("k", "2")]))),
    ("bintensors.padding.byte", lambda layout: build(header(layout), padding=b"\0" * (-len(header(layout)) % 8))),
    ("bintensors.padding.length", lambda layout: build(header(layout) + b"hidden!!")),
    ("bintensors.header.multiple", lambda layout: build(header(layout), padding=b"")),
    ("bintensors.shape.product", lambda layout: build(header(layout, [Row(shape=(0, 1 << 63, 4), end=0)]), b"")),
    ("bintensors.limit.rank", lambda layout: build(header(layout, [Row(shape=(1,) * 65, end=1)]), b"\1")),
    ("bintensors.limit.name", lambda layout: build(header(layout, [Row(name="n" * 100_001)]))),
    ("values.bool", lambda layout: build(header(layout, [Row(dtype=0)]), b"\1\2")),
]
"""What both packages accept and we refuse: our rule, and a file that shows it."""
EMPTY = [Row("a", shape=(0,), end=0), Row("b", shape=(0,), end=0)]
ALIASED = [Row("a", index=0), Row("b", index=0)]
DIFFERENCES_OF_LAYOUT_0: list[Difference] = [
    ("bintensors.map.alias", lambda layout: build(header(0, EMPTY, map_rows=ALIASED), b"")),
]


def judged(data: bytes, format: str) -> tuple[str | None, Any]:
    """Our rule against a file, or what we read of it."""
    try:
        with tg.open(data, format=format) as archive:
            return None, (plain({name: archive[name].numpy() for name in archive}), archive.metadata)
    except tg.FormatError as error:
        return error.rule, None


def differences(format: str) -> list[Difference]:
    return DIFFERENCES + (DIFFERENCES_OF_LAYOUT_0 if format == "bintensors@0" else [])


@pytest.mark.parametrize("format", PEERS)
def test_what_the_package_accepts_and_we_refuse(format: str, tmp_path: Path) -> None:
    layout = int(format[-1])
    files = [make(layout) for _, make in differences(format)]
    for (rule, _), data, theirs in zip(
        differences(format), files, read_by(PEERS[format], files, tmp_path), strict=True
    ):
        assert judged(data, format) == (rule, None)
        assert not isinstance(theirs, str), (rule, theirs)


@pytest.mark.parametrize("format", PEERS)
def test_mutants_are_read_the_same_or_the_difference_is_listed(format: str, tmp_path: Path) -> None:
    listed = {rule for rule, _ in differences(format)}
    files = list(fuzz.mutants(8000, seed=3))
    accepted, differing = 0, 0
    for data, theirs in zip(files, read_by(PEERS[format], files, tmp_path), strict=True):
        rule, ours = judged(data, format)
        if rule is None:
            accepted += 1
            assert ours == theirs, data.hex()
        elif not isinstance(theirs, str):
            differing += 1
            assert rule in listed, data.hex()
    assert accepted > 300
    assert differing > 100
