"""A kernel is the same compiled and interpreted, with Cython installed and without.

Each kernel has a table of calls: the corpora, seeded mutants of them, and arguments at
the borders. A call is made on the module in use and on its source run as plain Python;
what is returned and what was written must be equal.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import zstandard

import tensorglot as tg
import test_attacks_bintensors
import test_dynd_types
import test_onnx
import ztensor_builder as zt
from bson_samples import EVERY_KIND, binary, document, element
from dynd_random import mutant, random_bytes, random_type, varint
from fuzzing import bintensors, bson, foreign
from peers import needs
from tensorglot import dynd
from tensorglot.containers import bintensors as bintensors_container
from tensorglot.containers import safetensors as safetensors_container
from tensorglot.dynd import sizes
from tensorglot.dynd.codec import decode, encode, growable, skip
from tensorglot.dynd.sizes import read_types
from tensorglot.kernels.sparse import SPARE
from tensorglot.kernels.sparse_decode import expand
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.types.rows import KERNEL_WORDS
from tensorglot.store import encoder, encodings
from test_safetensors import ACCEPTED, REFUSED

FOLDER = Path(tg.__file__).parent / "kernels"
CORPUS = Path(__file__).parent / "corpus"
KERNELS = sorted(path.stem for path in FOLDER.glob("*.py") if "import cython\n" in path.read_text())

Call = tuple[str, Callable[[], tuple[Any, ...]]]
"""A function, and what makes its arguments: fresh ones each time, since some are written to."""


def interpreted(name: str, *, with_cython: bool = False) -> ModuleType:
    """A kernel's source as a module of its own, with Cython's stand-in for types or with ours."""
    spec = importlib.util.spec_from_file_location(f"interpreted_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    held = sys.modules.get("cython")
    if not with_cython:
        sys.modules["cython"] = None  # type: ignore[assignment]
    try:
        spec.loader.exec_module(module)
    finally:
        sys.modules.pop("cython", None)
        if held is not None:
            sys.modules["cython"] = held
    return module


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_runs_without_cython(name: str) -> None:
    module = interpreted(name)
    assert module.cython.compiled is False
    assert set(dir(module)) >= {
        public
        for public in dir(importlib.import_module(f"tensorglot.kernels.{name}"))
        if public.islower() and not public.startswith("_")
    } - {"cython"}


def plain(value: Any) -> Any:
    """Columns as lists, so that tuples of them can be compared."""
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tolist()
    return bytes(value) if isinstance(value, bytearray) else value


def outcome(module: ModuleType, function: str, arguments: tuple[Any, ...]) -> Any:
    """What a call returns and what it leaves in its arguments. After a fault its columns mean nothing."""
    if function in CLASSES:
        return plain(CLASSES[function](module, *arguments)), None
    result = getattr(module, function)(*arguments)
    if function == "scan" and result[0]:
        return plain(result[:3]), None
    if function == "expand" and not result:
        return result, None
    if function == "pack":
        return result, bytes(arguments[-1][: max(0, result)])
    # The other columns of `patch` are its own.
    return plain(result), plain(arguments[-1:] if function == "patch" else arguments)


# Arguments


def bintensors_calls() -> Iterator[Call]:
    itemsizes = bytes(BY_NAME[name].bits // 8 for name in bintensors_container.DTYPES.values())
    codes = bytes(range(100, 100 + len(itemsizes)))
    files = [path.read_bytes() for path in sorted(CORPUS.glob("bintensors-*/*.bt"))]
    attacks = [attack.data for attack in test_attacks_bintensors.shapes()]
    for data in (*files, *attacks, *bintensors.mutants(1200, seed=11)):
        for layout in (0, 1):
            for limits in ((1_388_888, 64, 100_000), (2, 2, 3)):
                for thorough in (False, True):
                    arguments = (data[8:], layout, itemsizes, codes, *limits, thorough)
                    yield "scan", lambda arguments=arguments: arguments


def safetensors_calls() -> Iterator[Call]:
    dtypes = {name.encode(): code for code, name in enumerate(safetensors_container.DTYPES)}
    bits = bytes(BY_NAME[name].bits for name in safetensors_container.DTYPES.values())
    files = [data for data, _ in (*ACCEPTED.values(), *REFUSED.values()) if len(data) < 200_000]
    mutants = (data for format, data in foreign.mutants(6000, seed=3) if format == "safetensors")
    for data in (*files, *mutants):
        header = data[8 : 8 + int.from_bytes(data[:8], "little")]
        for limits in ((1 << 20, 64, 100_000), (2, 1, 3)):
            arguments = (header, dtypes, bits, *limits)
            yield "scan", lambda arguments=arguments: arguments


def bson_walk_calls() -> Iterator[Call]:
    documents = [document(raw) for raw in EVERY_KIND.values()]
    one, other, text = element(1, "", bytes(8)), element(16, "1", b"\1\0\0\0"), element(2, "2", b"\1\0\0\0\0")
    for numbers in (one * 3, other * 2, one + other, element(18, "", bytes(8)), one + text, b"", one[:-1], other[:2]):
        documents += [document(element(4, "v", document(numbers))), document(element(3, "d", documents[-1]))]
    long_paths = [element(4, "k" * 70, document(one)), element(5, "k" * 70, binary(9, b"\3\0a"))]
    documents += [document(*long_paths), document(*reversed(long_paths)), document(element(4, "v", document(one)) * 3)]
    for data in (*documents, *bson.corpus(), *bson.mutants(1500, seed=5)):
        size = len(data)
        yield "count", lambda data=data, size=size: (data, 0, size)
        for path in ((b"f\0",), (b"a\0", b"b\0"), (b"a\0", b"c\0", b"d\0"), (b"k\0",)):
            yield "find", lambda data=data, path=path: (
                data, 0, b"".join(path), np.cumsum([0, *map(len, path[:-1])], dtype=np.int64),
                np.ones(3, np.uint8), *np.ones((2, 3), np.int64), np.zeros(len(path), np.int64),
            )  # fmt: skip
        for room, depth in ((100, 50), (2, 50), (100, 2)):
            for arrays in (False, True):
                yield "find_all", lambda data=data, size=size, room=room, depth=depth, arrays=arrays: (
                    data, 0, size, *np.zeros((3, depth), np.int64), {}, 60, 7, arrays, *np.zeros((4, room), np.int64),
                )  # fmt: skip
        for room in (1, 8):
            yield "numbers", lambda data=data, size=size, room=room: (
                data, 0, size, np.zeros(room, np.uint8), np.zeros(8 * room, np.uint8),
            )  # fmt: skip
        if size > 5:
            for kind in range(256):
                yield "value_end", lambda data=data, size=size, kind=kind: (data, kind, 4, size - 1)


def bson_rows_calls() -> Iterator[Call]:
    rng = random.Random(2)
    for _ in range(400):
        data = rng.randbytes(rng.randrange(60))
        nbytes, rows = rng.choice((-1, 0, 1, 3, 7)), rng.randrange(5)
        begins = np.array([rng.randrange(-2, 62) for _ in range(rows)], np.int64)
        room = max(0, rows * nbytes) + rng.choice((0, 0, 0, 1))
        yield "gather", lambda data=data, begins=begins, nbytes=nbytes, room=room: (
            data, begins, nbytes, np.zeros(room, np.uint8),
        )  # fmt: skip
        payloads = [rng.choice((b"hd", b"hd", b"hx", b"")) + bytes(max(0, nbytes)) for _ in range(rows)]
        yield "gather_payloads", lambda payloads=payloads, nbytes=nbytes, room=room: (
            payloads, b"hd", nbytes, np.ones(room, np.uint8),
        )  # fmt: skip
        yield "split", lambda data=data, rows=rows, nbytes=nbytes: (data, rows, nbytes, b"head")


def utf8_calls() -> Iterator[Call]:
    rng = random.Random(4)
    alphabet = [b"a", b"\x7f", "é".encode(), "€".encode(), "😀".encode(), b"ascii only!!"]
    odd = [b"\x80", b"\xc0", b"\xc1\xbf", b"\xe0\x9f", b"\xed\xa0\x80", b"\xf0\x8f", b"\xf4\x90", b"\xf5", b"\xe2\x82"]
    for _ in range(1500):
        pieces = rng.choices(alphabet, k=rng.randrange(9)) + rng.choices(odd, k=rng.choice((0, 0, 1)))
        rng.shuffle(pieces)
        data = b"".join(pieces)
        begin, end = sorted(rng.randrange(-1, len(data) + 2) for _ in range(2))
        places = np.array(sorted(rng.randrange(-1, len(data) + 2) for _ in range(6)), np.int64)
        for span in ((0, len(data)), (begin, end)):
            yield "first_invalid", lambda data=data, span=span: (data, *span)
            yield "is_ascii", lambda data=data, span=span: (data, *span)
        yield "first_split", lambda data=data, places=places: (data, places)
        yield "first_invalid_text", lambda data=data, places=places: (data, places[::2].copy(), places[1::2].copy())


def lookup3_calls() -> Iterator[Call]:
    rng = random.Random(8)
    for nbytes in (*range(40), 500, 4096):
        data = rng.randbytes(nbytes)
        yield "lookup3", lambda data=data: (data,)


def names_calls() -> Iterator[Call]:
    rng = random.Random(6)
    for _ in range(300):
        names = ["".join(rng.choices("ab.é😀0", k=rng.choice((0, 1, 3, 8, 9, 17)))) for _ in range(rng.randrange(40))]
        raw = [name.encode() for name in names]
        ends = np.cumsum([0, *map(len, raw)], dtype=np.int64)
        spans = (b"".join(raw), ends[:-1].copy(), ends[1:].copy())
        for function in ("decode", "may_repeat"):
            yield function, lambda spans=spans: spans
        for name in (b"", b"a", rng.choice(raw or [b""])):
            yield "find", lambda spans=spans, name=name: (*spans, name)


def code_of(dtype: np.dtype[Any]) -> int:
    """A number for an element type; -1 for those of one byte."""
    return dtype.itemsize if dtype.itemsize > 1 else -1


def ndarrays_calls() -> Iterator[Call]:
    rng = random.Random(9)
    kinds = (np.float32, np.float64, BY_NAME["bfloat16"].numpy, np.dtype(">i4"), np.int16)
    for _ in range(300):
        arrays: list[Any] = []
        for _ in range(rng.randrange(12)):
            array = np.zeros(rng.choices((0, 1, 2, 3), k=rng.randrange(5)), rng.choice(kinds))
            changes = (
                array.copy(),
                array.T,
                array[..., ::2] if array.ndim else array,
                np.broadcast_to(array, (2, *array.shape)),
            )
            arrays.append(rng.choice(changes))
        if rng.random() < 0.1:
            arrays.append(np.zeros(3, np.int8))
        most = rng.choice((0, 5, 100))
        yield "describe", lambda arrays=arrays, most=most: (arrays, code_of, most)
        twice = [*arrays, *rng.choices(arrays, k=rng.randrange(2))] if arrays else []
        yield "has_repeated", lambda twice=twice: (twice,)
        yield "spans", lambda arrays=arrays: (arrays,)
        yield "spans", lambda arrays=arrays: ([array.data for array in arrays if array.dtype.kind == "f"],)


def gather_calls() -> Iterator[Call]:
    rng = random.Random(8)
    for _ in range(400):
        data, room, rows = rng.randbytes(rng.randrange(40)), rng.randrange(40), rng.randrange(4)
        begins, sizes, offsets = (
            np.array([rng.randrange(low, high) for _ in range(rows)], np.int64)
            for low, high in ((-1, 40), (-1, 12), (-1, 40))
        )
        yield "gather", lambda data=data, begins=begins, sizes=sizes, room=room, offsets=offsets: (
            data, begins, sizes, np.zeros(room, np.uint8), offsets,
        )  # fmt: skip
        yield "gather", lambda data=data, begins=begins, room=room: (
            data, begins, np.zeros(len(begins) + 1, np.int64), np.zeros(room, np.uint8), begins,
        )  # fmt: skip


def crc32c_rows_calls() -> Iterator[Call]:
    rng = random.Random(10)
    yield "crc32c_rows", lambda: (b"123456789", np.array([0]), np.array([9]), np.zeros(1, np.uint32))
    for _ in range(300):
        data, rows = rng.randbytes(rng.randrange(60)), rng.randrange(4)
        begins, ends = (np.array([rng.randrange(-1, 62) for _ in range(rows)], np.int64) for _ in range(2))
        inside = np.sort(np.clip([begins, ends], 0, len(data)), axis=0)
        for first, last, room in ((begins, ends, rows), (*inside, rows), (*inside, rows + 1)):
            yield "crc32c_rows", lambda data=data, first=first, last=last, room=room: (
                data, first, last, np.zeros(room, np.uint32),
            )  # fmt: skip


def zstd_blocks_calls() -> Iterator[Call]:
    rng = random.Random(9)
    for _ in range(600):
        window = b"".join(
            ((size << 3) | (kind << 1) | last).to_bytes(3, "little") + bytes(1 if kind == 1 else size)
            for size, kind, last in (
                (rng.randrange(20), rng.choice((0, 0, 1, 2, 3)), rng.random() < 0.2) for _ in range(5)
            )
        )[: rng.randrange(60)]
        at = rng.choice((0, 5, 1 << 40))
        arguments = (window, at, at + rng.randrange(-1, 9), rng.choice((8, 128)))
        yield "walk", lambda arguments=arguments: arguments
        size = rng.choice((0, 1, 300, 5000))
        options = {name: rng.random() < 0.2 for name in ("write_checksum", "write_dict_id")}
        frame = bytearray(
            zstandard.ZstdCompressor(write_content_size=rng.random() < 0.9, **options).compress(rng.randbytes(size))
        )
        frame += rng.choice((b"", b"", b"x"))
        if rng.random() < 0.5:
            frame[rng.randrange(min(len(frame), 14))] ^= 1 << rng.randrange(8)
        del frame[rng.choice((0, 3, 5, 6, 9, *[len(frame)] * 9)) :]
        limits = bytes(frame), rng.choice((1024, 1 << 20))
        yield "declared", lambda limits=limits: limits


def planes_calls() -> Iterator[Call]:
    rng = random.Random(10)
    for _ in range(600):
        width, elements = rng.choice((0, 1, 1, 2, 2, 3, 4, 8, 12, 16)), rng.choice((0, 1, 7, 40, 700))
        data = rng.randbytes(elements * width + rng.choice((0, 0, 1, 5)))
        room = len(data) // width * width if width else 0
        room += rng.choice((0, 0, 0, 0, 1))
        yield "split", lambda data=data, width=width, room=room: (data, width, np.zeros(room, np.uint8))
        yield "merge", lambda data=data, width=width, room=room: (data[:room], width, np.zeros(len(data), np.uint8))
        base = rng.randbytes(max(0, len(data) - rng.choice((0, 0, 9))))
        difference, undo = rng.choices((True, False), k=2)
        yield "split_delta", lambda data=data, base=base, width=width, difference=difference, room=room: (
            data, base, width, difference, np.zeros(room, np.uint8),
        )  # fmt: skip
        yield "merge_delta", lambda data=data, width=width, difference=difference, undo=undo, room=room: (
            data[:room], width, difference, undo, np.frombuffer(data[::-1], np.uint8).copy(),
        )  # fmt: skip


def entropy_calls() -> Iterator[Call]:
    rng = random.Random(16)
    for _ in range(300):
        data, width = rng.randbytes(rng.choice((0, 1, 7, 700))), rng.choice((0, 1, 2, 3, 8))
        yield "entropy", lambda data=data, width=width: (data, width)


def sparse_encode_calls() -> Iterator[Call]:
    rng = random.Random(17)
    for _ in range(600):
        yield "changes", changes_arguments(rng)


def sparse_decode_calls() -> Iterator[Call]:
    rng = random.Random(18)
    for _ in range(600):
        gaps = bytes(rng.choice((0, 1, 30, 254, 255, 255)) for _ in range(rng.randrange(6)))
        positions = sum(gap != 255 for gap in gaps) + rng.choice((0, 0, 0, 1, -1))
        elements = rng.choice((0, 1, 255, 300, 1000))
        yield "expand", lambda gaps=gaps, elements=elements, positions=positions: (
            gaps, elements, np.zeros(max(0, positions), np.int64),
        )  # fmt: skip
        yield "patch", patch_arguments(rng)


def packed_values(count: int) -> Iterator[tuple[int, int, Any, bytes]]:
    """Width and number of elements, the positions of those that change, and the planes of their differences."""
    rng = random.Random(15)
    for _ in range(count):
        width, elements = rng.choice((0, 1, 2, 2, 2, 3, 4, 8)), rng.choice((0, 1, 7, 300, 9000))
        share, top = rng.choice((0.001, 0.1, 1)), rng.choice((2, 3, 20, 1 << 8 * width))
        positions = np.flatnonzero(np.random.default_rng(rng.randrange(99)).random(elements) < share).astype(np.int64)
        values = [min(rng.randrange(1, 4) if rng.random() < 0.9 else rng.randrange(1, max(2, top)), max(1, top - 1))
                  for _ in positions]  # fmt: skip
        split = bytes(value >> 8 * plane & 255 for plane in range(width) for value in values)
        if rng.random() < 0.1 and len(positions):
            positions[-1] = rng.choice((-1, 0, 1 << 20, 1 << 40))
        if rng.random() < 0.05:
            split = split[:-1] + b"\0"
        yield width, elements, positions, split


def packed_encode_calls() -> Iterator[Call]:
    rng, room = random.Random(20), np.full(8000, 255, np.uint8)
    for width, _, positions, split in packed_values(700):
        nbytes = rng.choice((*[8000] * 9, 0, 7, 8, 20))
        yield "pack", lambda positions=positions, split=split, width=width, nbytes=nbytes: (
            positions, split, width, room[:nbytes].copy(),
        )  # fmt: skip


def packed_decode_calls() -> Iterator[Call]:
    rng = random.Random(19)
    for width, elements, positions, split in packed_values(700):
        yield "patch", packed_arguments(rng, width, elements, positions, split)


def packed_arguments(
    rng: random.Random, width: int, elements: int, positions: Any, split: bytes
) -> Callable[[], tuple[Any, ...]]:
    """Some deltas, of which few are changed."""
    pack = importlib.import_module("tensorglot.kernels.packed_encode").pack
    room = np.zeros(60_000, np.uint8)
    body = bytes(room[: max(8, pack(positions, split, width, room))])
    data, spans = b"", []
    memory, undo, several = rng.randbytes(elements * width + rng.choice((0, 0, 1))), rng.random() < 0.5, 1
    if rng.random() < 0.3:
        several = rng.choice((0, 2, 4))
    for _ in range(several):
        changed = bytearray(body + rng.randbytes(len(memory) % width if width else 0))
        if rng.random() < 0.4:
            changed[rng.randrange(len(changed) if rng.random() < 0.6 else 8)] ^= 1 << rng.randrange(8)
        if rng.random() < 0.1:
            del changed[rng.randrange(len(changed)) :]
        spans += [len(data), len(data) + len(changed) + rng.choice((*[0] * 30, 1, -1))]
        data += changed + bytes(rng.choice((0, 0, 3)))
        if rng.random() < 0.05:
            spans[rng.randrange(len(spans))] = rng.choice((-1, 0, len(data), len(data) + 9, 1 << 62, -(1 << 63)))
    data += rng.choice((bytes(8), bytes(8), b"\xff" * 8, b"\xff" * 8, bytes(7)))
    room = 8 * elements * rng.choice((1, 1, 4)) // rng.choice((1, 1, 1, 3))
    return lambda: (
        data, np.array(spans, np.int64), undo, np.zeros(room, np.uint8), np.frombuffer(memory, np.uint8).copy(),
    )  # fmt: skip


def changes_arguments(rng: random.Random) -> Callable[[], tuple[Any, ...]]:
    """Two buffers and some positions, mostly of both."""
    wide, elements = rng.choice((0, 1, 2, 2, 3, 4, 8)), rng.choice((0, 1, 7, 300))
    data, base = rng.randbytes(elements * wide + rng.choice((0, 0, 1))), rng.randbytes(elements * wide)
    positions = np.array(sorted(rng.randrange(max(1, elements)) for _ in range(rng.randrange(20))), np.int64)
    if len(positions) and rng.random() < 0.1:
        positions[-1] = rng.choice((-1, elements, 1 << 40))
    difference, room = rng.random() < 0.5, len(positions) * wide + rng.choice((*[0] * 9, 1))
    return lambda: (data, base, positions, wide, difference, np.zeros(room, np.uint8))


def patch_arguments(rng: random.Random) -> Callable[[], tuple[Any, ...]]:
    """Some deltas, mostly valid, on memory of several blocks of the kernel or of less."""
    wide, elements = rng.choice((0, 1, 2, 2, 3, 4, 8)), rng.choice((0, 1, 255, 300, 40_000))
    data, table = b"", []
    for _ in range(rng.randrange(5)):
        steps = bytes(rng.choice((0, 1, 30, 254, 255, 255)) for _ in range(rng.randrange(elements // 100 + 6)))
        if rng.random() < 0.9:
            steps = steps.rstrip(b"\xff")
        count = sum(step != 255 for step in steps) + rng.choice((*[0] * 20, 1, -1))
        data += steps + rng.randbytes(max(0, count) * wide)
        table += [len(steps) + rng.choice((*[0] * 20, 1, -1)), count, int(rng.random() < 0.6), 0, 0, 0]
    data += bytes(rng.choice((*[0] * 20, 1)))
    memory, undo = rng.randbytes(elements * wide + rng.choice((0, 0, 1))), rng.random() < 0.5
    room = max(0, len(data) - rng.choice((*[0] * 20, 1)))
    return lambda: (
        data, np.array(table, np.int64), wide, undo, np.zeros(room, np.uint8), np.frombuffer(memory, np.uint8).copy(),
    )  # fmt: skip


def encode_headers_calls() -> Iterator[Call]:
    rng = random.Random(11)
    numbers = [0, 1, 23, 24, 0xFF, 0x100, 0xFFFF, 0x1_0000, 0xFFFF_FFFF, 0x1_0000_0000, (1 << 63) - 1]
    for rows in [0, 1, 2, 23, 24, 30] * 5:
        texts = [b"n" * rng.choice((0, 1, 23, 24, 255, 256)) for _ in range(rows)]
        ranks = [rng.choice((0, 1, 2, 23, 24)) for _ in range(rows)]
        columns = [np.array(rng.choices(numbers, k=count), np.int64) for count in (sum(ranks), rows, rows)]
        edges = [np.cumsum([0, *counts], dtype=np.int64) for counts in (map(len, texts), ranks)]
        codes, fields = bytes(rng.choices(range(3), k=rows)), [rng.randbytes(rng.randrange(9)) for _ in range(rows)]
        tails = rng.randbytes(rng.choice((0, 4)) * rows)
        names, shapes = (b"".join(texts), edges[0]), (columns[0], edges[1])
        made = (*names, [b"\x61a", b"\x62bc", b"\x60"], codes, *shapes, *columns[1:], fields, tails)
        yield "ztensor_01", lambda made=made: made
        pairs, order = rng.choice((None, [], [b"k", b"v" * 300])), np.arange(rows)[::-1].copy()
        for layout in (0, 1):
            made = (layout, pairs, *names, codes, *shapes, columns[1], order)
            yield "bintensors", lambda made=made: made
        made = (
            rng.choice((b"", b'"__metadata__":{}')),
            *names,
            codes,
            b"F32U8",
            np.array([0, 3, 5, 5]),
            *shapes,
            columns[1],
        )
        yield "safetensors", lambda made=made: made


class Pairs(list[Any]):
    """A dict of a pickle."""


class Kind(NamedTuple):
    """An element type of a pickle."""

    name: str


class Storage(NamedTuple):
    key: str
    dtype: Kind | None
    count: int
    first: int = 0


class View(NamedTuple):
    storage: Storage
    dtype: Kind
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def total(numbers: tuple[int, ...]) -> int:
    """A global that can be called, and fails for some arguments."""
    return sum(numbers)


def pickle_steps_calls() -> Iterator[Call]:
    rng = random.Random(19)
    names = {
        "collections.OrderedDict": Pairs,
        "a.b": 5,
        "a.f": total,
        "a.s": Storage("k", Kind("f4"), 3),
        "a.n": Storage("k", None, 3),
        "torch._utils._rebuild_tensor_v2": View._make,
    }
    types = Pairs, Storage, View
    codes = [bytes([code]) for code in range(0x28, 0x96)]
    codes += [b"K\7", b"M\1\2", b"h\0", b"q\0", b"q\1", b"r\0\0\0\0", b"j\1\0\0\0", b"\x8c\1a", b"\x8c\1\xff"]
    codes += [b"X\1\0\0\0b", b"\x8a\2\1\xff", b"\x8a\x11" + bytes(17), b"ca\nb\n", b"ca\nc\n", b"ca\n", b"c"]
    codes += [b"J\1\0\0\x80", b"J\xff\0\0\0", b"G?\xf8" + bytes(6), b"\x8b\1\0\0\0\x80", b"\x8b" + b"\xff" * 4]
    codes += [b"B\1\0\0\0b", b"C\1b", b"T\1\0\0\0\xff", b"U\1b", b"\x8d\1" + bytes(7) + b"b", b"\x8e" + b"\xff" * 8]
    codes += [b"(d", b"Q", b"Nb", b")\x81", b"]" * 80]
    codes += [b"ccollections\nOrderedDict\n)R", b"\x8c\1a\x8c\1b\x93", b"](", b"}(", b"e", b"u", b"s", b"a", b"t"] * 3
    view = b"ctorch._utils\n_rebuild_tensor_v2\n(ca\n%s\nK\1%s%s\x89Nt"
    sizes = [
        b")",
        b"K\2\x85",
        b"K\1K\3\x86",
        b"N\x85",
        b"\x8a\x08" + b"\xff" * 8 + b"\x85",
        b"\x8a\x09" + bytes(7) + b"\x80\0\x85",
    ]
    codes += [view % (name, a, b) + b"R" for a in sizes for b in sizes for name in (b"s", b"n")]
    codes += [b"\x8a" + bytes([n]) + bytes(range(125, 125 + n)) for n in range(10)]
    codes += [b"\x95" + bytes([n]) + bytes(7) for n in (0, 5, 255)] + [b"\x95" + b"\xff" * 8]
    codes += [b"ca\nf\n)R", b"ca\nf\nK\1K\2\x86R", b"ca\nf\n)\x85R", b"K\1)R", b"ca\nf\n]R"]
    codes += [b"ccollections\nOrderedDict\nNN\x86\x85R", b"ca\nf\nca\nf\n\x85R", b"Nq\0K\1q\0h\0"]
    likely = codes[-160:]
    # Arguments that are looked at again in each call.
    again = b"((" + b"K\1" * 2500 + b"tq\0" + b"ca\nf\nh\0R" * 20 + b"t."
    yield "interpret", lambda: (again, (0, 0, names, {}, types, {total: 60}))
    for _ in range(12_000):
        data = b"(" + b"".join(rng.choices(likely if rng.random() < 0.8 else codes, k=rng.randrange(1, 30))) + b"t."
        begin, works = rng.choice([0, 0, -64]), {total: rng.choice([60, 4200]), 0x62: rng.choice([0, 900, 5000])}
        functions = rng.choice([{}, {0x51: repr, 0x62: lambda target, state: target, 0x81: lambda *given: [given]}])
        yield "interpret", lambda data=data, given=(begin, 0, names, functions, types, works): (data, given)


def interpret(module: ModuleType, data: bytes, given: tuple[Any, ...]) -> list[Any]:
    """The answers for a half of a pickle, and for all of it."""
    machine = module.Machine(*given)
    answers: list[Any] = []
    for held in (data[: len(data) // 2], data):
        try:
            answers.append(machine.run(held, len(data) + 3))
        except (TypeError, ValueError) as error:  # of a function
            answers.append((type(error).__name__, machine.position()))
    return [str(answers[-1][0]), *answers]


def nested(rng: random.Random, depth: int) -> Any:
    leaf: list[Any] = [None, True, 7, 1.5, "text", b"raw", (), [], Pairs(), object]
    if depth == 0 or rng.random() < 0.4:
        return rng.choice(leaf)
    items = [nested(rng, depth - 1) for _ in range(rng.randrange(5))]
    if rng.random() < 0.4:
        keys = rng.choices(["a", "b", 1, None, 2.5, True, *([()] if rng.random() < 0.1 else [])], k=len(items))
        return Pairs(part for pair in zip(keys, items, strict=True) for part in pair)
    return items * rng.choice([1, 2]) if rng.random() < 0.5 else tuple(items)


def pickle_values_calls() -> Iterator[Call]:
    rng = random.Random(20)
    for _ in range(1500):
        value = [nested(rng, 5)]
        for depth in (0, 2, 64):
            letters = rng.choice([5, 60, 1 << 40])
            yield "least_nbytes", lambda value=value, depth=depth, most=letters: (value, Pairs, depth, most)
            yield (
                "leaves",
                lambda v=value[0], depth=depth, letters=letters: (v, Pairs, Kind, letters, depth, {}, {}, []),
            )


def pickle_views_calls() -> Iterator[Call]:
    rng = random.Random(22)
    known = {"f4": (3, 4), "u1": (1, 1), "c16": (255, 16)}
    spans = {"k": (100, 160, 7), "l": (160, 160, None), "m": (0, 1 << 40, 5)}
    kinds = [Kind(name) for name in known]
    numbers = [0, 1, 1, 2, 3, 15, 60, 1 << 31, 1 << 55, 1 << 56, (1 << 63) - 1]
    for _ in range(3000):
        tensors: list[Any] = ["not a view"]
        for _ in range(rng.randrange(1, 8)):
            storage = Storage(rng.choice("klm"), rng.choice([None, *kinds]), 0, rng.choice([0] * 9 + numbers))
            shape = tuple(rng.choices(numbers[: rng.choice([4, 6, 11])], k=rng.randrange(5)))
            strides = [1]
            for size in reversed(shape):
                strides.insert(0, strides[0] * size if rng.random() < 0.9 else rng.choice(numbers))
            strides = [min(stride, (1 << 63) - 1) for stride in strides[1:]]
            offset = rng.choice([0, 0, 0, *numbers])
            tensors.append(View(storage, rng.choice(kinds), offset, shape, tuple(strides)))
        yield "view_rows", lambda tensors=tensors: (
            tensors, View, spans, known, 3, tuple([] for _ in range(7)), [],
        )  # fmt: skip
    for shape in ((3, (1 << 56) // 3), (3, (1 << 56) // 3 + 1), (1 << 28, 1 << 28)):  # of bytes without a stride
        view = View(Storage("k", None, 0, 0), Kind("u1"), 0, shape, (0, 0))
        yield "view_rows", lambda view=view: ([view], View, spans, known, 3, tuple([] for _ in range(7)), [])


def protobuf_calls() -> Iterator[Call]:
    rng = random.Random(21)
    files = [data for format, data in foreign.mutants(3000, seed=6) if format == "onnx"]
    graphs = [b"".join(test_onnx.field(5, test_onnx.tensor(str(i), 1, (i, 2), raw=bytes(i))) for i in range(9))]
    for _ in range(300):
        graph = bytearray(graphs[0])
        for _ in range(rng.randrange(4)):
            graph[rng.randrange(len(graph))] = rng.randrange(256)
        graphs.append(bytes(graph))
    for data in (*files, *graphs):
        left, rank = rng.choice([3, 40, 1 << 40]), rng.choice([1, 2, 64])
        end = len(data) + rng.choice([0, 2, -len(data) // 2])
        wanted = rng.choice([0, 1 << 5 | 1 << 7, (1 << 64) - 1])
        yield "fields", lambda given=(data, left, wanted): given
        yield "tensors", lambda given=(data, left, end, rank): given
    packed = [test_onnx.field(1, dims) for dims in (b"\1" * 9, b"\1" * 30, b"\x80" * 20, b"\x80\1")]
    shapes = [(1 << 31, 1 << 31), ((1 << 60) - 1,), (1 << 60,), (-1,)]
    packed += [2 * one for one in packed] + [test_onnx.tensor(dims=shape) for shape in shapes]
    for dims in (*packed, b"\x09" + bytes(8), 2 * test_onnx.entry("k", "v"), test_onnx.tensor(raw=bytes(7))):
        for data in (test_onnx.field(5, dims), test_onnx.field(15, test_onnx.field(3, 7) + dims)):
            for rank in (1, 2, 64):
                yield "tensors", lambda data=data, rank=rank: (data, 1 << 20, len(data), rank)
    pair = test_onnx.field(1, b"key") + test_onnx.field(2, "värde".encode())
    turned = test_onnx.field(2, b"") + test_onnx.field(1, b"k")
    ends = [bytes([0x80]), b"\x0a\x80", b"\x0a\x09a", b"\x12\x01\xff", b"\x08\1", b"\x18\0", b"\x80" * 11]
    for message in (b"", pair, turned, pair + pair, *(first + end for first in (b"", pair[:5]) for end in ends)):
        for more in (test_onnx.field(14, pair), b""):
            data = test_onnx.field(14, message) + more + test_onnx.field(3, 1)
            yield "fields", lambda data=data: (data, 1 << 20, 1 << 3)
    parts = [
        test_onnx.tensor("v", 1, (2,), raw=bytes(8)),
        test_onnx.tensor("", 7, (2,), raw=bytes(8) + b"\3" + bytes(7)),
        test_onnx.tensor("", 7, (2, 1), int64=b"\1\x83\1"),
        test_onnx.tensor("e", 7, (2,), location=1) + test_onnx.entry("location", "file"),
        test_onnx.tensor("e", 7, (2,), location=1, raw=bytes(16)),
        test_onnx.tensor("e", 7, (2,), location=2),
        test_onnx.tensor("f", 1, (2,), float=bytes(8)),
        test_onnx.tensor("f", 1, (2,), float=bytes(4)) + test_onnx.field(4, bytes(4)),
        test_onnx.field(8, b"p") + test_onnx.field(1, b"\2\3") + test_onnx.field(2, 300),
        test_onnx.field(8, b"t") + test_onnx.field(2, 8) + test_onnx.field(6, b"a") * 2,
        test_onnx.tensor("", 7, (0,), raw=b""),
    ]
    for _ in range(1500):
        fields = [test_onnx.field(rng.choice([1, 1, 2, 2, 3]), rng.choice(parts)) for _ in range(rng.randrange(1, 4))]
        fields += [rng.choice([test_onnx.field(3, 4), test_onnx.field(3, b"\2\3"), b""])]
        graph = bytearray()
        for _ in range(rng.randrange(1, 4)):
            graph += test_onnx.field(15, b"".join(fields)) + test_onnx.field(5, rng.choice(parts))
        for _ in range(rng.choice([0, 0, 1, 2])):
            graph[rng.randrange(len(graph))] = rng.randrange(256)
        given = bytes(graph), rng.choice([50, 1 << 20]), len(graph), rng.choice([2, 99])
        yield "tensors", lambda given=given: given


def reader_of(module: ModuleType, data: bytes, left: int) -> Any:
    """Of a file that is longer than its bytes that are there."""
    size = len(data) + 2

    def read(offset: int, nbytes: int) -> bytes:
        assert offset + nbytes <= size
        return data[offset : offset + min(nbytes, 100)]

    return module.Reader(read, size, left)


def fields(module: ModuleType, data: bytes, left: int, wanted: int) -> list[Any]:
    reader, found, pairs, at = reader_of(module, data, left), [], {}, 0
    while (one := reader.next(at, len(data), wanted, 14, pairs)) is not None:
        at = one[-1]
        found += [one, reader.text() if one[1] == 2 and one[0] % 2 and reader.failure()[0] == 0 else None]
    return [reader.failure(), found, pairs]


def tensors(module: ModuleType, data: bytes, left: int, end: int, rank: int) -> list[Any]:
    reader = reader_of(module, data, left)
    columns, values, indices = (tuple([] for _ in range(9)) for _ in range(3))
    sparse, external = (values, {}, indices, {}, [], [], [], [], []), {}
    reader.tensors(0, end, 5, rank, columns, external, sparse)
    return [reader.failure(), columns, external, sparse]


def head(module: ModuleType, *arguments: Any) -> Any:
    try:
        return module.head(*arguments)
    except IndexError as error:
        return [type(error).__name__]


def item(module: ModuleType, *arguments: Any) -> Any:
    try:
        return [repr(module.value(*arguments))]  # a number may be NaN
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        return [type(error).__name__]


TYPE_TEXTS = [
    text
    for text in (*test_dynd_types.CANONICAL, *test_dynd_types.SPELLINGS, *test_dynd_types.REFUSED)
    if 0 < len(text) < 100 and text.isascii()
]


def type_texts(rng: random.Random) -> list[str]:
    """Texts of types, some with a character changed."""
    texts = [str(random_type(rng)) for _ in range(rng.choice((1, 1, 3)))]
    texts += rng.choice(([], [], [], [rng.choice(TYPE_TEXTS)], ["{a: int8, a: (x: T) -> T}"]))
    for _ in range(rng.choice((0, 0, 1, 2))):
        chosen = rng.randrange(len(texts))
        at = rng.randrange(len(texts[chosen]))
        new = rng.choice((*" ,:'()[]{}?*a1A.\\", "var * ", "3 * ", "int8", "x: ", "..."))
        texts[chosen] = texts[chosen][:at] + new + texts[chosen][at + rng.randrange(2) :]
    return texts


def type_rows_calls() -> Iterator[Call]:
    rng = random.Random(24)
    yield "scan", lambda: (b"", np.zeros(1, np.int64), np.zeros(9, np.int64), 1, KERNEL_WORDS, 38, 64, 64)
    cases = [([text], room, (38, 64, 64)) for text in TYPE_TEXTS for room in (len(text), 1)]
    for _ in range(4000):
        texts = type_texts(rng)
        room = max(1, sum(map(len, texts)) + rng.choice((0, 0, 5, -3)))
        cases.append((texts, room, rng.choice(((38, 64, 64), (38, 2, 64), (2, 64, 1)))))
    for texts, room, limits in cases:
        data, edges = "".join(texts).encode(), np.cumsum([0, *map(len, texts)], dtype=np.int64)
        yield "scan", lambda data=data, edges=edges, room=room, limits=limits: (
            data, edges, np.zeros(9 * room, np.int64), room, KERNEL_WORDS, *limits,
        )  # fmt: skip


def type_sizes_calls() -> Iterator[Call]:
    rng = random.Random(25)
    sizes_of_voids = [0, 1, 63, 64, 65, 300, 1 << 31, 1 << 61, 1 << 62, (1 << 63) - 1]
    texts = [
        f"({count} * {leaf}, {more} * void)"
        for count in sizes_of_voids
        for more in sizes_of_voids
        for leaf in ("int8", "(int16, void)")
    ]
    for i in range(2000):
        text = str(random_type(rng))
        huge = f"({(1 << 63) - 1} * {text}, {1 << 62} * {text}, 1152921504606846976 * {text})"
        texts.append(huge if i % 4 == 0 else text)
    for text in texts:
        rows = read_types([text])
        count = len(rows.code)
        yield "measure", lambda rows=rows, count=count: (
            rows.columns.reshape(-1), count, sizes.KERNEL_WORDS, np.full(3 * count, 7),
        )  # fmt: skip


def cbor_values_calls() -> Iterator[Call]:
    rng = random.Random(23)
    values = [0, 300, -1, -(1 << 64), "text", b"raw", True, None, 1.5, [], {}, [1, [2]], {"a": 1, "bb": [{}]}, {1: 2}]
    values += [
        zt.Raw(bytes.fromhex(form))
        for form in ("9f01ff", "bf6161019fffff", "7f6161ff", "5f41004101ff", "f820", "e0", "f93e00", "fa3fc00000")
    ]
    for _ in range(4000):
        value = rng.choice(values) if rng.random() < 0.3 else rng.choices(values, k=rng.randrange(6))
        data = bytearray(zt.cbor(value if rng.random() < 0.5 else {"k": value, "l": zt.Raw(b"\xc1" + zt.cbor(value))}))
        for _ in range(rng.choice([0, 0, 1, 2])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        arguments = bytes(data), rng.choice([0, 0, 0, 1, -1, 999]), lambda *tag: tag, str, tuple
        yield "item", lambda arguments=arguments: arguments
        yield "head", lambda arguments=arguments: arguments[:2]


CLASSES: dict[str, Callable[..., list[Any]]] = {
    "interpret": interpret,
    "fields": fields,
    "tensors": tensors,
    "head": head,
    "item": item,
}
"""What is done with the class of a kernel, or with a function that raises."""
CALLS: dict[str, tuple[Callable[[], Iterator[Call]], int]] = {
    "bintensors": (bintensors_calls, 19),
    "bson_rows": (bson_rows_calls, 4),
    "bson_walk": (bson_walk_calls, 20),
    "cbor_values": (cbor_values_calls, 20),
    "crc32c_rows": (crc32c_rows_calls, 2),
    "entropy": (entropy_calls, 20),
    "gather": (gather_calls, 2),
    "lookup3": (lookup3_calls, 42),
    "names": (names_calls, 4),
    "ndarrays": (ndarrays_calls, 30),
    "packed_decode": (packed_decode_calls, 2),
    "packed_encode": (packed_encode_calls, 28),
    "pickle_steps": (pickle_steps_calls, 20),
    "pickle_values": (pickle_values_calls, 20),
    "pickle_views": (pickle_views_calls, 1),
    "planes": (planes_calls, 8),
    "protobuf": (protobuf_calls, 20),
    "safetensors": (safetensors_calls, 18),
    "sparse_decode": (sparse_decode_calls, 4),
    "sparse_encode": (sparse_encode_calls, 2),
    "type_rows": (type_rows_calls, 3),
    "type_sizes": (type_sizes_calls, 1),
    "utf8": (utf8_calls, 10),
    "zstd_blocks": (zstd_blocks_calls, 3),
    "encode_headers": (encode_headers_calls, 20),
}
"""With the number of different first results that there are at least: a table that finds nothing would be no test."""


@pytest.mark.parametrize("with_cython", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_a_kernel_does_the_same_compiled_and_interpreted(name: str, with_cython: bool) -> None:
    if with_cython:
        needs("cython")
    modules = importlib.import_module(f"tensorglot.kernels.{name}"), interpreted(name, with_cython=with_cython)
    calls, least = CALLS[name]
    seen = set()
    for function, make in calls():
        one, two = (outcome(module, function, make()) for module in modules)
        assert one == two, (function, plain(make()))
        result = one[0]
        seen.add((function, str(result[0] if isinstance(result, list) and result else result)))
    assert len(seen) >= least, seen


@pytest.mark.parametrize("form", ["compiled", "interpreted"])
def test_columns_of_arrays(form: str) -> None:
    module = importlib.import_module("tensorglot.kernels.ndarrays") if form == "compiled" else interpreted("ndarrays")
    arrays = [np.zeros((2, 3)), np.zeros((3, 5), np.float32).T, np.zeros((), np.int16), np.zeros((0, 7), np.int16)]
    codes, dims, offsets, sizes, scattered = module.describe(arrays, code_of, 6)
    assert (codes.tolist(), dims.tolist(), offsets.tolist()) == ([8, 4, 2, 2], [2, 3, 5, 3, 0, 7], [0, 2, 4, 4, 6])
    assert (sizes.tolist(), scattered) == ([48, 60, 2, 0], [1])
    assert module.describe(arrays, code_of, 5) == 6
    assert module.describe([*arrays, np.zeros(3, np.int8)], code_of, 6) is None
    begins, ends = module.spans([arrays[0], arrays[0][1:], arrays[3]])
    assert (begins[1] - begins[0], *(ends - begins).tolist()) == (24, 48, 24, 0)
    assert module.spans(arrays) is None
    many = [object() for _ in range(10_000)]
    assert not module.has_repeated(many)
    assert module.has_repeated([*many, many[77]])


def test_what_a_scatter_writes_is_the_same_compiled_and_interpreted() -> None:
    rng = random.Random(7)
    modules = importlib.import_module("tensorglot.kernels.bson_rows"), interpreted("bson_rows")
    for _ in range(300):
        at, stride, first, last, nbytes = (rng.randrange(-1, 7) for _ in range(5))
        data, room = rng.randbytes(rng.randrange(30)), rng.randrange(40)
        results = []
        for module in modules:
            target = module.blank(room)
            results.append((module.scatter(target, at, stride, first, last, data, nbytes), bytes(target)))
        assert results[0] == results[1]


SCATTERS: dict[str, tuple[tuple[int, ...], int, bytes | None]] = {
    "two rows": ((1, 4, 0, 2, 2), 4, b"\0ab\0\0cd\0"),
    "the second row": ((1, 4, 1, 2, 2), 4, b"\0\0\0\0\0cd\0"),
    "one row again": ((1, 4, 0, 2, 4), 4, None),
    "one row again and again": ((0, 4, 0, 2, 4), 4, b"abcdabcd"),
    "data of one row of two": ((1, 4, 0, 2, 2), 3, None),
    "beyond the target": ((0, 4, 0, 3, 2), 6, None),
    "before the target": ((-1, 4, 0, 2, 2), 4, None),
    "before the data": ((0, 4, -1, 2, 2), 4, None),
    "a negative size": ((0, 4, 0, 2, -1), 4, None),
}
"""Offset, stride, first and last row and size of each, and how much of abcdef is there; None is refused."""


@pytest.mark.parametrize("case", SCATTERS)
@pytest.mark.parametrize("form", ["compiled", "interpreted"])
def test_scatter(case: str, form: str) -> None:
    module = importlib.import_module("tensorglot.kernels.bson_rows") if form == "compiled" else interpreted("bson_rows")
    (at, stride, first, last, nbytes), have, expected = SCATTERS[case]
    target = module.blank(8)
    fault = module.scatter(target, at, stride, first, last, b"abcdef"[:have], nbytes)
    assert (fault == module.OK) == (expected is not None)
    assert bytes(target) == (expected or bytes(8))


@pytest.mark.parametrize("form", ["compiled", "interpreted"])
def test_buffers_of_a_class_that_exports_none(form: str) -> None:
    module = importlib.import_module("tensorglot.kernels.buffers") if form == "compiled" else interpreted("buffers")
    with pytest.raises(BufferError, match="Exporter exports no buffer"):
        module.Exporter()._buffer(0)  # noqa: SLF001


def test_differences_are_the_same_compiled_and_interpreted() -> None:
    rng = random.Random(13)
    modules = importlib.import_module("tensorglot.kernels.sparse_encode"), interpreted("sparse_encode")
    counts = set()
    for _ in range(600):
        width, elements = rng.choice((0, 1, 2, 3, 4, 8, 12, 16)), rng.choice((0, 1, 7, 40, 700))
        data = rng.randbytes(elements * width + rng.choice((0, 0, 1)))
        base = bytearray(data[: len(data) - rng.choice((0, 0, 0, 1, 2))])
        for _ in range(rng.choice((0, 1, 2, 50))):
            if base:
                base[rng.randrange(len(base))] ^= 1 << rng.randrange(8)
        most = rng.choice((-1, 0, 1, 3, elements, elements))
        room = max(0, most + elements // 255 + rng.choice((0, 1, 1, 1)))
        results = []
        for module in modules:
            gaps, positions = np.zeros(room, np.uint8), np.zeros(most + SPARE, np.int64)
            count, used = module.differences(data, base, width, gaps, positions)
            results.append((count, gaps[:used].tolist(), positions[: max(0, count)].tolist()))
        assert results[0] == results[1]
        if count >= 0:
            found = np.zeros(count, np.int64)
            assert expand(gaps[:used], elements, found)
            assert found.tolist() == results[0][2]
        counts.add(min(count, 3))
    assert counts == {-1, 0, 1, 2, 3}


def test_compiled_and_interpreted_kernels_encode_the_same_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [path for path in sorted(CORPUS.glob("bintensors-[01]/*.bt")) if path.name != "ndim_251.bt"]
    values = [(tg.load(path), tg.open(path).metadata) for path in files]

    def encoded() -> list[bytes]:
        formats = ("bintensors@0", "bintensors@1", "safetensors")
        return [tg.dumps(tensors, format=f, metadata=text) for tensors, text in values for f in formats]

    compiled = encoded()
    for container in (bintensors_container, safetensors_container):
        monkeypatch.setattr(container, "encode_headers", interpreted("encode_headers"))
    assert encoded() == compiled


def test_compiled_and_interpreted_kernels_encode_the_same_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(14)
    chunks = [rng.normal(0, 0.02, count).astype(np.float32).view(np.uint8) for count in (1, 700, 40_000)]
    changed = [np.where(rng.random(len(chunk)) < 0.02, chunk + np.uint8(1), chunk) for chunk in chunks]
    pairs = [*zip(changed, chunks, strict=True), *((chunk, None) for chunk in chunks)]

    def outcomes() -> list[tuple[int, bytes, bytes]]:
        results = []
        for data, base in pairs:
            for width in (1, 2, 3, 4, 8, 16):
                encoded = encoder.encode(data.data, width, None if base is None else base.data)
                out = bytearray(data if base is None else base)
                work = encodings.apply if encoded.encoding in encodings.IS_DELTA else encodings.decode
                work(encoded.encoding, memoryview(encoded.body), memoryview(out))
                assert out == data.tobytes()
                results.append((encoded.encoding, bytes(encoded.body), bytes(out)))
        return results

    compiled = outcomes()
    for module, names in (
        (encodings, ("packed_decode", "planes", "sparse_decode")),
        (encoder, ("packed_encode", "planes", "sparse_encode")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, interpreted(name))
    monkeypatch.setattr(encoder, "entropy_of", interpreted("entropy").entropy)
    assert outcomes() == compiled
    assert len({encoding for encoding, _, _ in compiled}) > 3


def dynd_cases() -> Iterator[tuple[str, bytes]]:
    vectors = json.loads((CORPUS / "dynd" / "vectors.json").read_text())
    for case in vectors["valid"]:
        yield case["type"], bytes.fromhex(case["hex"])
    rng = random.Random(12)
    for _ in range(1500):
        type = random_type(rng, 4)
        data = random_bytes(rng, type)
        yield str(type), data
        yield str(type), mutant(rng, data)


def dynd_outcome(text: str, data: bytes) -> Any:
    """The bytes of the value written again, or the error."""
    try:
        type = dynd.parse(text)
        return bytes(dynd.serialize(dynd.deserialize(data, type)))
    except tg.TensorglotError as error:
        return error.rule, error.offset


def test_varint_chains_are_the_same_compiled_and_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = list(dynd_cases())
    compiled = [dynd_outcome(*case) for case in cases]
    decoder, encoder = interpreted("varint_decode"), interpreted("varint_encode")
    monkeypatch.setattr(decode, "varint_decode", decoder)
    monkeypatch.setattr(growable, "Column", decoder.Column)
    monkeypatch.setattr(encode, "Encoder", encoder.Encoder)
    monkeypatch.setattr(encode, "Given", encoder.Given)
    for case, expected in zip(cases, compiled, strict=True):
        assert dynd_outcome(*case) == expected, case
    assert len({outcome[0] for outcome in compiled if isinstance(outcome, tuple)}) > 8
    assert sum(isinstance(outcome, bytes) for outcome in compiled) > 1000


def edges_of_skipping(rng: random.Random) -> Iterator[tuple[bytes, bool]]:
    """Files that have what random ones have not, and whether they are valid."""

    def of(type: str, value: bytes) -> bytes:
        return file_of(f"{{a: {type}, end: string}}", value + b"\0")

    def box(leaf: str, count: int, nbytes: int) -> bytes:
        return file_of("(" + "(), " * count + leaf + ")", bytes(nbytes))

    lists = [varint(size) + bytes(4 * size) for size in rng.choices(range(4000), k=50)]
    yield of("var * var * int32", varint(50) + b"".join(lists)), True  # more than is read at once
    yield of("var * " * 64 + "?string", b"\1" * 65 + b"\3abc"), True  # more frames than there is room for at first
    yield of("array[Any]", file_of("9999999999 * void", b"")), False
    yield of("string", b"\xff" * 8 + b"\x7f"), False  # 2**63 - 1 bytes
    yield of("var * 2305843009213693953 * int8", b"\2" + bytes(10)), False  # just above 2**62
    yield of("4611686018427387904 * 3 * string", bytes(10)), False
    yield of("array[Any]", file_of("array[Any]", b"") * 70 + file_of("int8", b"\0")), False  # nested too deep
    # More types than are kept: one after the other, and inside a value that is still open.
    boxes = b"".join(box(f"{size} * int8", 1000, size) for size in range(1, 30))
    yield of("var * array[Any]", varint(58) + boxes * 2), True
    boxes = b"".join(box(f"{size} * int8", 16_000, size) for size in range(1, 5))
    yield of("array[Any]", file_of("(array[Any], array[Any], array[Any], array[Any])", boxes)), True
    yield of("array[Any]", box("uint16", 16_382, 2)), True  # the longest text
    yield of("array[Any]", box("float16", 16_382, 2)), False


def test_values_are_skipped_alike_compiled_and_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(26)
    cases = []
    for _ in range(1500):
        types = [random_type(rng, 4) for _ in range(rng.randrange(1, 4))]
        data = b"".join(random_bytes(rng, type) for type in types)
        text = "{" + ", ".join(f"a{i}: {type}" for i, type in enumerate(types)) + ", end: string}"
        cases.append(file_of(text, (mutant(rng, data) if rng.random() < 0.6 else data) + b"\0"))
    edges = list(edges_of_skipping(rng))
    assert [isinstance(skipped(case), list) for case, _ in edges] == [valid for _, valid in edges]
    cases += [case for case, _ in edges]
    compiled = [skipped(case) for case in cases]
    for name in ("skip_values", "type_rows", "type_sizes"):
        monkeypatch.setattr(skip, name, interpreted(name))
    for case, expected in zip(cases, compiled, strict=True):
        assert skipped(case) == expected, case
    assert len({outcome[0] for outcome in compiled if isinstance(outcome, tuple)}) > 6
    assert sum(isinstance(outcome, list) for outcome in compiled) > 500


def file_of(text: str, data: bytes) -> bytes:
    return varint(len(text)) + text.encode() + data


def skipped(data: bytes) -> list[int | None] | tuple[str, int | None]:
    """Where the values of a file begin, or the error."""
    try:
        with tg.open(data, format="dynd") as archive:
            return [tensor.offset for tensor in archive.values()]
    except tg.TensorglotError as error:
        return error.rule, error.offset
