"""All ways of writing give the same bytes, and a Writer that is used wrongly writes nothing."""

from __future__ import annotations

import contextlib
import io
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from numpy.typing import NDArray

import tensorglot as tg
from gallery import FORMS, bits, metadata, same, tensors


class Trickle(io.RawIOBase):
    """A raw stream that takes part of what it is given."""

    def __init__(self) -> None:
        self.taken = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.taken += bytes(data[:99_999])
        return min(len(data), 99_999)


def written(values: dict[str, NDArray[Any]], text: dict[str, str] | None, folder: Path) -> dict[str, bytes]:
    """The same tensors by every way that there is to write them."""
    options: Any = {"format": "bintensors@1", "metadata": text}
    quick: Any = {**options, "durable": False}
    results = {"dumps": tg.dumps(values, **options)}
    tg.save(folder / "saved", values, **options)
    results["save"] = (folder / "saved").read_bytes()
    tg.save(str(folder / "saved"), values, progress=lambda done, total: None, **quick)
    results["save, progress"] = (folder / "saved").read_bytes()
    with tg.Writer(folder / "saved", **quick) as out:
        for name, value in values.items():
            out.add(name, value)
    results["Writer"] = (folder / "saved").read_bytes()
    with tg.Writer(folder / "saved", **quick) as out:
        for name, value in values.items():
            with out.stream(name, value.dtype, value.shape) as stream:
                for row in value if value.ndim else (value,):
                    stream.write(row)
    results["stream of arrays"] = (folder / "saved").read_bytes()
    with tg.Writer(folder / "saved", **quick) as out:
        for name, value in values.items():
            with out.stream(name, value.dtype.name, value.shape) as stream:
                raw = bits(value)[2]
                step = max(7, len(raw) // 20)
                for start in range(0, len(raw), step):
                    stream.write(raw[start : start + step])
    results["stream of bytes"] = (folder / "saved").read_bytes()
    buffer, trickle = io.BytesIO(), Trickle()
    tg.save(buffer, values, **options)
    tg.save(cast("Any", trickle), values, **options)
    results["file object"], results["raw file object"] = buffer.getvalue(), bytes(trickle.taken)
    with (folder / "saved").open("wb", buffering=0) as raw_file:
        tg.save(cast("Any", raw_file), values, **options)
    results["unbuffered file"] = (folder / "saved").read_bytes()
    with tg.Writer(buffer := io.BytesIO(), **options) as out:
        for name, value in values.items():
            out.add(name, value)
    results["Writer to a file object"] = buffer.getvalue()
    for backend in ("pread", "mmap"):
        with tg.open(folder / "saved", format=options["format"], backend=cast("Any", backend)) as archive:
            results[f"archive by {backend}"] = tg.dumps(archive, format=options["format"])
            tg.save(folder / "again", archive, format=options["format"], durable=False)
            results[f"archive by {backend}, saved"] = (folder / "again").read_bytes()
    return results


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensors(4), metadata())
def test_all_ways_to_write_give_the_same_bytes(
    folder: Path, values: dict[str, NDArray[Any]], text: dict[str, str] | None
) -> None:
    results = written(values, text, folder)
    assert {how for how, data in results.items() if data != results["dumps"]} == set()


def test_large_tensors_of_every_form_are_written_correctly_by_every_verb(folder: Path) -> None:
    """Past every size at which the code takes another path: reservations, pieces, copies."""
    base = np.arange(3 * 800 * 1024, dtype=np.float32).reshape(3, 800, 1024)
    values = {name: form(base) for name, form in FORMS.items() if name in ("C order", "transposed", "big-endian")}
    values |= {f"small{i}": np.full((2, 10_000), i, np.int16) for i in range(60)}
    results = written(values, None, folder)
    assert {how for how, data in results.items() if data != results["dumps"]} == set()
    assert same(tg.loads(results["dumps"]), values)


def test_progress_of_dumps_ends_at_the_total_too() -> None:
    seen: list[tuple[int, int]] = []
    tg.dumps({"a": np.ones(1000)}, format="bintensors", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (8000, 8000)


def test_bytes_have_no_suffix_so_dumps_needs_a_format() -> None:
    with pytest.raises(tg.InputError) as caught:
        tg.dumps({"a": np.ones(1)})
    assert caught.value.rule == "format.suffix"


def test_progress_ends_at_the_total(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    values = {"x": np.zeros(20 << 20, np.float32), "y": np.zeros(3, np.uint8)}
    tg.save(folder / "x.bt", values, durable=False, progress=lambda done, total: seen.append((done, total)))
    total = sum(value.nbytes for value in values.values())
    assert len(seen) >= 3
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (total, total)


STREAMED: dict[str, tuple[Callable[[tg.Writer], None], str]] = {
    "too little": (lambda out: _stream(out, b"\0" * 7), "stream.size"),
    "too much": (lambda out: _stream(out, b"\0" * 9), "stream.size"),
    "another type": (lambda out: _stream(out, np.zeros(2, np.int32)), "stream.dtype"),
    "elements that share a byte": (lambda out: _stream(out, np.zeros(2, ml_dtypes.int4), "int4"), "stream.packed"),
    "negative": (lambda out: cast("None", out.stream("x", "float32", (-1, -8))), "stream.shape"),
    "not whole": (lambda out: cast("None", out.stream("x", "float32", cast("Any", (1.5,)))), "stream.shape"),
    "a number for a shape": (lambda out: cast("None", out.stream("x", "float32", cast("Any", 8))), "stream.shape"),
    "twice": (lambda out: (_stream(out, b"\0" * 8), _stream(out, b"\0" * 8))[0], "writer.name"),
    "not finished": (lambda out: cast("None", out.stream("x", "float32", (2,))), "writer.stream"),
    "another while one is open": (
        lambda out: (out.stream("y", "float32", (2,)), _stream(out, b"\0" * 8))[1], "writer.stream"
    ),
    "a bool of 2, as bytes": (lambda out: _stream(out, b"\0\2", "bool"), "values.bool"),
    "a bool of 2": (lambda out: _stream(out, np.array([2, 0], np.uint8).view(np.bool_), "bool"), "values.bool"),
    "text": (lambda out: _stream(out, "00"), "stream.dtype"),
    "a name that is none": (lambda out: out.add(cast("Any", 3), [1]), "name.text"),
    "a lone surrogate": (lambda out: out.add("\ud800", [1]), "name.utf8"),
}  # fmt: skip


def _stream(out: tg.Writer, data: Any, dtype: str = "float32") -> None:
    with out.stream("x", dtype, (2,)) as stream:
        stream.write(data)


@pytest.mark.parametrize("what", STREAMED)
def test_a_writer_that_is_used_wrongly_writes_nothing(folder: Path, what: str) -> None:
    act, rule = STREAMED[what]
    with pytest.raises(tg.InputError) as caught, tg.Writer(folder / "x.bt") as out:
        act(out)
    assert caught.value.rule == rule
    assert list(folder.iterdir()) == []
    with pytest.raises(tg.InputError) as caught:
        out.add("z", [1])
    assert caught.value.rule == "writer.closed"


def test_a_writer_may_be_closed_by_hand(folder: Path) -> None:
    out = tg.Writer(folder / "x.bt")
    with out.stream("w", "float32", (4, 2)) as sink:
        for rows in (1, 3):
            sink.write(np.ones((rows, 2), np.float32))
            assert sink.written == {1: 8, 3: 32}[rows]
    assert not (folder / "x.bt").exists()
    out.close()
    first = (folder / "x.bt").read_bytes()
    (folder / "x.bt").unlink()
    out.close()
    assert not (folder / "x.bt").exists()
    with tg.Writer(folder / "x.bt") as other:
        other.add("w", np.ones((4, 2), np.float32))
        other.close()
    assert (folder / "x.bt").read_bytes() == first


def test_writer_needs_no_memory_for_what_it_writes(folder: Path) -> None:
    from bounds import MB, allocated_nbytes

    def write() -> None:
        with tg.Writer(folder / "x.bt", durable=False) as out, out.stream("x", "float32", (100, 262_144)) as stream:
            row = np.ones(262_144, np.float32)
            for _ in range(100):
                stream.write(row)

    assert allocated_nbytes(write) < 16 * MB
    assert (folder / "x.bt").stat().st_size > 100 * MB
    (folder / "x.bt").unlink()


PIECES: dict[tuple[int, ...], bool] = {
    (10, 4): True,
    (3, 4): True,
    (4,): True,
    (40,): True,
    (7,): True,
    (0, 4): True,
    (): False,
    (8, 5): False,
    (4, 10): False,
    (40, 1): False,
    (1, 10, 4): False,
    (2, 2, 4): False,
    (0, 5): False,
}


@pytest.mark.parametrize("shape", PIECES, ids=str)
def test_pieces_of_a_stream_are_whole_slices_or_flat(shape: tuple[int, ...]) -> None:
    """Of a tensor of shape (10, 4)."""
    target, piece = io.BytesIO(), np.ones(shape)
    with contextlib.ExitStack() as stack:
        if not PIECES[shape]:
            refused = stack.enter_context(pytest.raises(tg.InputError, match=r"for \[10, 4\]: write whole slices"))
        out = stack.enter_context(tg.Writer(target, format="bintensors"))
        stream = stack.enter_context(out.stream("x", "float64", (10, 4)))
        stream.write(piece)
        stream.write(np.zeros(40 - piece.size))
    if PIECES[shape]:
        assert tg.loads(target.getvalue())["x"].sum() == piece.size
    else:
        assert (refused.value.rule, refused.value.tensor) == ("stream.shape", "x")
        assert target.getvalue() == b""


OWN_CHOICES: dict[str, dict[str, tuple[str, str | None]]] = {
    "ztensor@0.1": {
        "plain": ("raw", "crc32c"),
        "small": ("zstd", "crc32c"),
        "safe": ("raw", "sha256"),
        "bare": ("raw", None),
    },
    "ztensor@2": {
        "plain": ("raw", "xxh3"),
        "small": ("zt.zstd-seekable/1", "xxh3"),
        "safe": ("raw", "sha256"),
        "bare": ("raw", None),
    },
}


def choices(data: bytes) -> dict[str, tuple[str, str | None]]:
    archive = tg.open(data)
    return {name: (t.encoding, t.checksum and t.checksum.partition(":")[0]) for name, t in archive.items()}


@pytest.mark.parametrize("format", OWN_CHOICES)
def test_every_tensor_has_its_own_compression_and_checksum(format: str) -> None:
    tensors = {name: np.full(5000, i) for i, name in enumerate(OWN_CHOICES[format])}
    checksum = {"safe": "sha256", "ba*": None}
    data = tg.dumps(tensors, format=format, compression={"sm*": "zstd"}, checksum=checksum)
    target = io.BytesIO()
    with tg.Writer(target, format=format) as out:
        out.add("plain", tensors["plain"])
        out.add("small", tensors["small"], compression="zstd")
        out.add("safe", tensors["safe"], checksum="sha256")
        out.add("bare", tensors["bare"], checksum=None)
    for written in (data, target.getvalue()):
        assert choices(written) == OWN_CHOICES[format]
        assert tg.verify(written, deep=True).unverified == ("bare",)
        assert tg.diff(written, tensors).same
    with pytest.raises(tg.TensorNotFound, match="did you mean 'small'"):
        tg.dumps(tensors, format=format, compression={"smal": "zstd"})


def test_every_array_of_an_npz_has_its_own_compression() -> None:
    tensors = {"a.w": np.zeros(5000), "b.w": np.ones(5000)}
    target = io.BytesIO()
    with tg.Writer(target, format="npz") as out:
        out.add("a.w", tensors["a.w"], compression="deflate")
        out.add("b.w", tensors["b.w"])
    for data in (tg.dumps(tensors, format="npz", compression={"a.*": "deflate"}), target.getvalue()):
        with tg.open(data) as archive:
            assert {name: tensor.encoding for name, tensor in archive.items()} == {"a.w": "deflate", "b.w": "raw"}


def test_a_piece_that_is_refused_leaves_nothing_in_the_stream() -> None:
    data = io.BytesIO()
    large = np.arange(5_000_000, dtype="float32").reshape(2, -1).T  # written in several pieces
    with tg.Writer(data, format="ztensor") as out, out.stream("x", "float32", (2_500_000, 2)) as stream:
        stream.write(np.ones((1, 2), "float32"))
        with pytest.raises(tg.InputError, match="20000000 bytes written, 19999992 bytes left"):
            stream.write(large)
        stream.write(large[1:])
    read = tg.loads(data.getvalue())["x"]
    assert read[0].tolist() == [1.0, 1.0]
    assert np.array_equal(read[1:], large[1:])


@pytest.mark.parametrize("nbytes", [100, 3_000_000, 5_000_001])
def test_a_piece_that_was_written_in_part_can_be_written_again(nbytes: int, tmp_path: Path) -> None:
    values = np.arange(2_000_000, dtype="float32").reshape(1000, -1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with tg.Writer(tmp_path / "a.zt") as out:
        with out.stream("x", "float32", values.shape) as stream:
            stream.write(values[:100])
            resource.setrlimit(resource.RLIMIT_FSIZE, (800_000 + nbytes, limits[1]))
            try:
                with pytest.raises(OSError, match="too large"):
                    stream.write(values[100:900])
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert stream.written == values[:100].nbytes
            stream.write(values[100:900])
            stream.write(values[900:])
        out.add("y", values[0])
    with tg.open(tmp_path / "a.zt") as archive:
        assert np.array_equal(archive["x"].numpy(), values)
        assert np.array_equal(archive["y"].numpy(), values[0])


def test_a_stream_of_a_closed_writer_is_closed(tmp_path: Path) -> None:
    out = tg.Writer(tmp_path / "a.zt")
    stream = out.stream("x", "float32", (2, 2))
    with pytest.raises(tg.InputError, match="not complete"):
        out.close()
    with pytest.raises(tg.InputError) as caught:
        stream.write(np.zeros((2, 2), "float32"))
    assert (caught.value.rule, caught.value.tensor) == ("stream.closed", "x")
    assert not [*tmp_path.iterdir()]


def test_views_of_bytes_as_pieces_of_a_stream() -> None:
    data, view, released = io.BytesIO(), memoryview(bytes(range(8))), memoryview(b"ab")
    released.release()
    with tg.Writer(data, format="ztensor") as out, out.stream("x", "uint8", (4,)) as stream:
        with pytest.raises(tg.InputError, match=r"rule coerce\.value"):
            stream.write(released)
        stream.write(view[::2])
    assert tg.loads(data.getvalue())["x"].tolist() == [0, 2, 4, 6]


def test_the_choice_for_a_tensor_is_for_no_other() -> None:
    data = io.BytesIO()
    with tg.Writer(data, format="ztensor", compression={"q?": "zstd"}) as out:
        out.add("a*", np.zeros(300), compression="zstd")
        out.add("ab", np.zeros(300))
        out.add("q1", np.zeros(300), checksum=None)
    archive = tg.open(data.getvalue())
    assert {name: tensor.encoding for name, tensor in archive.items()} == {"a*": "zstd", "ab": "raw", "q1": "zstd"}
    assert [name for name in archive if archive[name].checksum is None] == ["q1"]
