"""Mutants of the inputs of kernels: `python fuzz/kernels.py [COUNT] [SEED]`.

A kernel is called directly, without the reader around it, so that a second has tens of
thousands of executions; under sanitizers this is the target that looks for accesses out of
bounds. The invariant: whatever the bytes are,

- a kernel returns: a fault is a value, and every position in it lies in the bytes;
- `utf8` finds the byte at which Python's own decoder stops;
- a delta that is undone gives the memory back, and one that is refused leaves it alone;
- one of RARELY calls gives the same on the kernel as plain Python.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np

import tensorglot as tg
from fuzzing import bson, changes
from tensorglot.containers import bintensors, safetensors
from tensorglot.model.dtypes import BY_NAME
from tensorglot.wire.cbor import DETERMINISTIC, LENIENT

RARELY = 400
ITEMSIZES = bytes(BY_NAME[name].bits // 8 for name in bintensors.DTYPES.values())
KEPT = bytes(BY_NAME[name].code for name in bintensors.DTYPES.values())
CODES = {name.encode(): code for code, name in enumerate(safetensors.DTYPES)}
BITS = bytes(BY_NAME[name].bits for name in safetensors.DTYPES.values())
Mutant = tuple[str, bytes, bool]
"""A call, its bytes, and whether the interpreted kernel is asked as well."""


@dataclass(frozen=True)
class Entry:
    kernel: str
    bases: Callable[[], list[bytes]]
    call: Callable[[ModuleType, bytes], Any]
    holds: Callable[[Any, bytes], bool]


def _tensors() -> dict[str, Any]:
    return {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "é": np.zeros((), bool), "b.c": np.ones((2, 0), np.int8)}


def _bintensors(layout: int) -> list[bytes]:
    metadata = (None, {"k": "v", "ü": ""})
    files = [tg.dumps(_tensors(), format=f"bintensors@{layout}", metadata=given) for given in metadata]
    return [data[8 : 8 + int.from_bytes(data[:8], "little")] for data in files]


def _safetensors() -> list[bytes]:
    files = [tg.dumps(_tensors(), format="safetensors", metadata=given) for given in (None, {"k": 'a"\\\n'})]
    return [data[8 : 8 + int.from_bytes(data[:8], "little")] for data in files]


def _manifests() -> list[bytes]:
    tensors = {**_tensors(), "r": tg.dynd.array([[1], [2, 3]], "var * var * int8")}
    two = tg.dumps(tensors, format="ztensor@2", metadata={"k": "v"})
    begin, nbytes = (int.from_bytes(two[at : at + 8], "little") for at in (len(two) - 40, len(two) - 32))
    old = tg.dumps(tensors, format="ztensor@0.1")
    return [two[begin : begin + nbytes], old[-8 - int.from_bytes(old[-8:], "little") : -8]]


def _texts() -> list[bytes]:
    return [b"plain ascii text of some length", "aé€😀".encode() * 3, "\0\x7f\u0080\uffff\U0010ffff".encode(), b""]


def _blocks() -> list[bytes]:
    return [b"".join((size << 3 | kind << 1 | last).to_bytes(3, "little") + bytes(1 if kind == 1 else size)
                     for size, kind, last in ((5, 0, 0), (9, 1, 0), (7, 2, 0), (3, 0, 1)))]  # fmt: skip


def _deltas() -> list[bytes]:
    """How many steps, how many values, added or replaced; then the steps."""
    steps = bytes((0, 3, 255, 10, 254, 1))
    return [bytes((len(steps), 5, kind)) + steps for kind in (0, 1)]


def _patch(kernel: ModuleType, data: bytes) -> Any:
    nbytes, count, kind, steps = data[0], data[1], data[2], data[3:]
    memory = np.arange(1200, dtype=np.int16).view(np.uint8)
    before = memory.tobytes()
    done = []
    for undo in (False, True):
        table = np.array([nbytes, count, kind, 0, 0, 0], np.int64)
        sparse = steps + VALUES[: 2 * count]
        done.append(kernel.patch(sparse, table, 2, undo, bytearray(len(sparse)), memory))
    return done[0] == done[1] and (memory.tobytes() == before), done[0]


def _packed() -> list[bytes]:
    """Heads and bits: of one change, of many with exceptions."""
    room = np.zeros(4000, np.uint8)
    found = []
    for count, longest in ((1, 2), (30, 3), (200, 60_000)):
        positions = np.sort(np.random.default_rng(count).choice(1200, count, replace=False)).astype(np.int64)
        values = np.random.default_rng(count).integers(1, longest, count).astype("<u2").view(np.uint8)
        found.append(
            bytes(room[: interpreted("packed_encode").pack(positions, values.reshape(-1, 2).T.tobytes(), 2, room)])
        )
    return found


def _patch_packed(kernel: ModuleType, data: bytes) -> Any:
    memory = np.arange(1200, dtype=np.int16).view(np.uint8)
    before = memory.tobytes()
    done = []
    for undo in (False, True):
        span = np.array([0, len(data)], np.int64)
        done.append(kernel.patch(data + b"\xff" * 8, span, undo, bytearray(8 * 1200), memory))
    return done[0] == done[1] and (memory.tobytes() == before), done[0]


VALUES = random.Random(0).randbytes(600)


def _in(position: int, data: bytes) -> bool:
    return bool(0 <= position <= len(data))


def _scanned(result: Any, data: bytes) -> bool:
    """Fault and byte first; without a fault the columns are those of as many tensors, and names lie in their text."""
    if result[0]:
        return _in(result[1], data)
    *_, codes, dims, dim_offsets, begins, ends, (text, name_begins, name_ends) = result
    shaped = len(dim_offsets) == len(codes) + 1 and dim_offsets[0] == 0 and dim_offsets[-1] == len(dims)
    ordered = all((column >= 0).all() for column in (np.diff(dim_offsets), begins, ends - begins))
    named = (name_begins >= 0).all() and (name_begins <= name_ends).all() and (name_ends <= len(text)).all()
    return bool(shaped and ordered and named)


def _utf8(data: bytes) -> int:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    return -1


def _walk(name: str, *columns: int) -> Callable[[ModuleType, bytes], Any]:
    def call(kernel: ModuleType, data: bytes) -> Any:
        stack, out = np.zeros((3, 20), np.int64), np.zeros((4, 30), np.int64)
        return getattr(kernel, name)(data, 0, len(data), *stack, {}, 60, *columns, *out), out.tobytes()

    return call


def _value(kernel: Any, data: bytes) -> int:
    try:
        return kernel.value(data, 0, lambda *tag: tag, str, tuple)[1]
    except (IndexError, KeyError, UnicodeDecodeError):
        return -1


def _fields(kernel: Any, data: bytes) -> tuple[dict[str, int], int, int]:
    try:
        found: tuple[dict[str, int], int, int] = kernel.fields(data, 0)
    except UnicodeDecodeError:
        return {}, -1, -1
    return found


ENTRIES: dict[str, Entry] = {
    **{f"bintensors {layout}": Entry(
        "bintensors", lambda layout=layout: _bintensors(layout),
        lambda kernel, data, layout=layout: kernel.scan(data, layout, ITEMSIZES, KEPT, 1000, 64, 1000, False),
        lambda result, data: _in(result[1], data) if result[0] else bool((result[4][5] >= 0).all()),
    ) for layout in (0, 1)},
    "safetensors": Entry(
        "safetensors", _safetensors, lambda kernel, data: kernel.scan(data, CODES, BITS, 1000, 64, 1000), _scanned
    ),
    **{f"cbor {name}": Entry(
        "cbor_check", _manifests, lambda kernel, data, profile=profile: kernel.check(data, 0, len(data), profile),
        lambda result, data: _in(result[1], data),
    ) for name, profile in (("lenient", LENIENT), ("deterministic", DETERMINISTIC))},
    "cbor skip": Entry(
        "cbor_scan", _manifests, lambda kernel, data: kernel.skip(data, 0, len(data)),
        lambda result, data: result == -1 or _in(result, data),
    ),
    "cbor fields": Entry(
        "cbor_scan", _manifests, _fields,
        lambda result, data: _in(max(result[2], 0), data) and all(_in(at, data) for at in result[0].values()),
    ),
    "cbor items": Entry(
        "cbor_scan", _manifests, lambda kernel, data: kernel.count_items(data, 0),
        lambda result, data: result <= len(data),
    ),
    "cbor value": Entry(
        "cbor_values", _manifests, _value, lambda result, data: result == -1 or _in(result, data)
    ),
    "cbor attributes": Entry(
        "cbor_scan", _manifests,
        lambda kernel, data: kernel.scan_attributes(data, 0, 1000) if _checked(data) else ("", 0),
        lambda result, data: _in(result[1], data),
    ),
    "bson count": Entry(
        "bson_walk", bson.corpus, lambda kernel, data: kernel.count(data, 0, len(data)),
        lambda result, data: all(_in(abs(number), data) for number in result if isinstance(number, int)),
    ),
    "bson vectors": Entry("bson_walk", bson.corpus, _walk("find_all", 7, False), lambda result, data: bool(result)),
    "bson arrays": Entry("bson_walk", bson.corpus, _walk("find_all", 7, True), lambda result, data: bool(result)),
    "utf8": Entry(
        "utf8", _texts, lambda kernel, data: kernel.first_invalid(data, 0, len(data)),
        lambda result, data: result == _utf8(data),
    ),
    "zstd blocks": Entry(
        "zstd_blocks", _blocks, lambda kernel, data: kernel.walk(data, 0, 0, 1 << 17),
        lambda result, data: result[0] in (0, 1, 2) and result[1] >= 0,
    ),
    "sparse": Entry(
        "sparse_decode", _deltas, lambda kernel, data: _patch(kernel, data) if len(data) > 3 else (True, False),
        lambda result, data: result[0],
    ),
    "packed": Entry("packed_decode", _packed, _patch_packed, lambda result, data: result[0]),
}  # fmt: skip


def _checked(data: bytes) -> bool:
    """The scan of attributes is for bytes that a check has passed."""
    return bool(compiled("cbor_check").check(data, 0, len(data), LENIENT)[0] == "")


@cache
def compiled(name: str) -> ModuleType:
    return import_module(f"tensorglot.kernels.{name}")


@cache
def interpreted(name: str) -> ModuleType:
    """The source of a kernel as a module of its own."""
    path = Path(str(tg.__file__)).parent / "kernels" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"interpreted_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mutants(count: int, seed: int = 0) -> Iterator[Mutant]:
    """Each input for every call of its kernel."""
    r = random.Random(seed)
    groups: dict[str, tuple[list[str], list[bytes]]] = {}
    for name, entry in ENTRIES.items():
        names, files = groups.setdefault(entry.kernel, ([], []))
        names.append(name)
        files += [data for data in entry.bases() if data not in files]
    kernels = list(groups.values())
    number = 0
    while number < count:
        names, files = kernels[int(r.random() * len(kernels))]
        data, other = files[int(r.random() * len(files))], files[int(r.random() * len(files))]
        if r.random() > 0.02:
            data = changes.change(r, data, other)
        for name in names[: count - number]:
            yield name, data, number % RARELY == 0
            number += 1


def check(mutant: Mutant) -> str:
    """Holds the invariant for one call; returns which it was, and the fault."""
    name, data, both = mutant
    entry = ENTRIES[name]
    result = entry.call(compiled(entry.kernel), data)
    assert entry.holds(result, data), result
    if both:
        assert _plain(result) == _plain(entry.call(interpreted(entry.kernel), data)), "the forms of a kernel differ"
    return f"{name}: {result[0]}" if type(result) is tuple and type(result[0]) in (int, str) else name


def _plain(value: Any) -> Any:
    """The result of a scan without its columns if it has a fault: they are undefined then."""
    if isinstance(value, tuple):
        return [_plain(item) for item in (value[:2] if len(value) > 5 and value[0] else value)]
    return value.tolist() if isinstance(value, np.ndarray) else value


if __name__ == "__main__":
    from campaign import campaign

    campaign(mutants, check)
