"""W5: a million ragged lists of float64 and a million short strings, to canonical bytes and back; fixed dims beside.

"copy" copies the serialized bytes into fresh memory in huge pages, "bytes" makes a
bytes object of them. Arrow's reader maps its own buffers and does no work; the
others make the values anew, as we do. Plain Python is the obvious loop.
"""

from __future__ import annotations

import mmap
import pickle
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.case import Case

COUNT = 1_000_000
LISTS, STRINGS, FIXED = "1000000 * var * float64", "1000000 * string", "10000000 * float64"


def columns(kind: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Offsets and contents, the same on every machine."""
    rng = np.random.default_rng(5)
    longest = 20 if kind == LISTS else 16
    offsets = np.zeros(COUNT + 1, np.int64)
    np.cumsum(rng.integers(0, longest + 1, COUNT), out=offsets[1:])
    if kind == LISTS:
        return offsets, rng.random(offsets[-1])
    return offsets, rng.integers(97, 123, offsets[-1], np.uint8)


def awkward_array(kind: str) -> Any:
    import awkward as ak

    if kind == FIXED:
        return np.random.default_rng(5).random(10_000_000)
    offsets, content = columns(kind)
    index = ak.index.Index64(offsets)
    if kind == LISTS:
        return ak.Array(ak.contents.ListOffsetArray(index, ak.contents.NumpyArray(content)))
    text = ak.contents.NumpyArray(content, parameters={"__array__": "char"})
    return ak.Array(ak.contents.ListOffsetArray(index, text, parameters={"__array__": "string"}))


def arrow_table(kind: str) -> Any:
    import pyarrow as pa

    offsets, content = columns(kind)
    if kind == LISTS:
        return pa.table({"x": pa.LargeListArray.from_arrays(offsets, content)})
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.table({"x": pa.Array.from_buffers(pa.large_string(), COUNT, buffers)})


def lists(kind: str) -> list[Any]:
    import awkward as ak

    values: list[Any] = ak.to_list(awkward_array(kind))
    return values


def _file(kind: str, folder: Path) -> Path:
    return folder / f"W5.{kind.replace(' * ', '.')}"


def prepare(kind: str, folder: Path) -> None:
    from tensorglot import dynd

    path = _file(kind, folder)
    if not path.exists():
        path.write_bytes(dynd.serialize(awkward_array(kind), kind))


def serialized(kind: str, folder: Path) -> NDArray[np.uint8]:
    return np.fromfile(_file(kind, folder), np.uint8)


# Each of these is imported by the process that measures it, and by no other.


def write_tensorglot(kind: str, folder: Path) -> Callable[[], Any]:
    from tensorglot import dynd

    values, type = awkward_array(kind), dynd.parse(kind)
    return lambda: dynd.serialize(values, type)


def copy(kind: str, folder: Path) -> Callable[[], Any]:
    data = serialized(kind, folder)

    def fresh() -> Any:
        room = mmap.mmap(-1, len(data), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        room.madvise(mmap.MADV_HUGEPAGE)
        copied = np.frombuffer(room, np.uint8)
        copied[:] = data
        return copied

    return fresh


def copy_bytes(kind: str, folder: Path) -> Callable[[], Any]:
    data = serialized(kind, folder)
    return data.tobytes


def write_awkward(kind: str, folder: Path) -> Callable[[], Any]:
    values = awkward_array(kind)
    return lambda: pickle.dumps(values, 5)


def write_arrow(kind: str, folder: Path) -> Callable[[], Any]:
    import pyarrow as pa

    table = arrow_table(kind)

    def write() -> Any:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()

    return write


def write_pickle(kind: str, folder: Path) -> Callable[[], Any]:
    values = lists(kind)
    return lambda: pickle.dumps(values, 5)


def write_python(kind: str, folder: Path) -> Callable[[], Any]:
    values = lists(kind)

    def write() -> bytes:
        out = bytearray()
        for item in values:
            raw = item.encode() if isinstance(item, str) else struct.pack(f"<{len(item)}d", *item)
            count = len(item)
            while count > 127:
                out.append(count & 127 | 128)
                count >>= 7
            out.append(count)
            out += raw
        return bytes(out)

    return write


def read_tensorglot(kind: str, folder: Path) -> Callable[[], Any]:
    from tensorglot import dynd

    data, type = serialized(kind, folder), dynd.parse(kind)
    return lambda: dynd.deserialize(data, type)


def read_awkward(kind: str, folder: Path) -> Callable[[], Any]:
    data = write_awkward(kind, folder)()
    return lambda: pickle.loads(data)


def read_arrow(kind: str, folder: Path) -> Callable[[], Any]:
    import pyarrow as pa

    data = write_arrow(kind, folder)()
    return lambda: pa.ipc.open_stream(data).read_all()


def read_pickle(kind: str, folder: Path) -> Callable[[], Any]:
    data = write_pickle(kind, folder)()
    return lambda: pickle.loads(data)


def read_python(kind: str, folder: Path) -> Callable[[], Any]:
    data = serialized(kind, folder).tobytes()

    def read() -> list[Any]:
        values, at = [], 0
        for _ in range(COUNT):
            count = shift = 0
            while True:
                byte = data[at]
                at += 1
                count |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            if kind == STRINGS:
                values.append(data[at : at + count].decode())
                at += count
            else:
                values.append(list(struct.unpack_from(f"<{count}d", data, at)))
                at += 8 * count
        return values

    return read


def check_written(kind: str, folder: Path, library: str, result: Any) -> None:
    """Ours, a copy and the loop in Python are the canonical bytes; the others give their values back."""
    if library == "arrow":
        import pyarrow as pa

        check_read(kind, folder, library, pa.ipc.open_stream(result).read_all())
    elif library in ("awkward", "pickle"):
        check_read(kind, folder, library, pickle.loads(result))
    else:
        assert bytes(result) == serialized(kind, folder).tobytes()


def check_read(kind: str, folder: Path, library: str, result: Any) -> None:
    """The values, serialized by us, are the canonical bytes."""
    from tensorglot import dynd

    if library == "arrow":
        import awkward as ak

        result = ak.from_arrow(result["x"].combine_chunks())
    data = result if library in ("copy", "bytes") else dynd.serialize(result, kind)
    assert bytes(data) == serialized(kind, folder).tobytes()


WRITERS = {
    "tensorglot": write_tensorglot,
    "copy": copy,
    "bytes": copy_bytes,
    "awkward": write_awkward,
    "arrow": write_arrow,
    "pickle": write_pickle,
    "python": write_python,
}
READERS = {
    "tensorglot": read_tensorglot,
    "copy": copy,
    "bytes": copy_bytes,
    "awkward": read_awkward,
    "arrow": read_arrow,
    "pickle": read_pickle,
    "python": read_python,
}


def cases() -> list[Case]:
    found = []
    for name, kind, nbytes, write_goal, read_goal in (
        ("lists", LISTS, 81_000_000, 2, 2.5),
        ("strings", STRINGS, 9_000_000, 6, 6),
    ):
        for verb, actions, goal, check in (
            ("serialize", WRITERS, write_goal, check_written),
            ("deserialize", READERS, read_goal, check_read),
        ):
            found.append(
                Case(
                    f"W5 {name} {verb}",
                    {library: partial(action, kind) for library, action in actions.items()},
                    partial(prepare, kind),
                    nbytes,
                    repeats=5,
                    goals={"copy": 1 / goal, "python": 20},
                    check=partial(check, kind),
                    requires=("awkward",),
                    quick=verb == "serialize" and kind == LISTS,
                )
            )
    fixed = {"tensorglot": write_tensorglot, "copy": copy, "bytes": copy_bytes}
    found.append(
        Case(
            "W5 fixed dims serialize",
            {library: partial(action, FIXED) for library, action in fixed.items()},
            partial(prepare, FIXED),
            80_000_000,
            repeats=5,
            goals={"copy": 1 / 1.2},
            check=partial(check_written, FIXED),
        )
    )
    return found
