"""`.npy` and `.npz`: each way with NumPy, types that NumPy does not know, hostile files."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import tensorglot as tg
from arrays import ORDERS, random_array, raw
from tensorglot.model.dtypes import BY_NAME, dtype_of
from tensorglot.wire import npy as npy_header
from tensorglot.wire import ziparchive
from tensorglot.wire.crc import crc32_of_rest
from tensorglot.wire.npy import DTYPES

LETTERED = [name for descr, name in DTYPES.items() if descr.startswith("'")]
NAMED = [name for name in DTYPES.values() if name not in LETTERED]
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (7,), (3, 0, 2), (2, 3), (4, 5, 6)]


def npy(array: NDArray[Any], **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def npz(compressed: bool = False, **arrays: Any) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)
    return file.getvalue()


def same(one: NDArray[Any], two: NDArray[Any]) -> bool:
    return one.shape == two.shape and dtype_of(one.dtype) is dtype_of(two.dtype) and raw(one) == raw(two)


class TestNpy:
    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize("dtype", LETTERED)
    def test_each_way_with_numpy(self, dtype: str, order: str) -> None:
        rng = random.Random(dtype + order)
        for shape in SHAPES:
            array = random_array(rng, dtype, shape, order)
            assert same(tg.loads(npy(array))["data"], array)
            ours = tg.dumps({"data": array}, format="npy")
            assert same(np.load(io.BytesIO(ours)), array.astype(array.dtype.newbyteorder("<")))
            assert ours == npy(np.array(array, array.dtype.newbyteorder("<"), order="C"))

    @pytest.mark.parametrize("dtype", NAMED)
    def test_types_that_numpy_does_not_know(self, dtype: str) -> None:
        rng = random.Random(dtype)
        kind = BY_NAME[dtype].require_numpy()
        for shape in SHAPES:
            array = random_array(rng, dtype, shape)
            ours = tg.dumps({"data": array}, format="npy")
            assert same(tg.loads(ours, strict=True)["data"], array)
            seen = np.load(io.BytesIO(ours))
            assert seen.dtype.names == (dtype,)
            assert same(seen[dtype].view(kind), array)
            turned = np.array(seen, order="F")
            assert same(tg.loads(npy(turned))["data"], array)

    def test_a_packed_byte_with_too_many_bits(self) -> None:
        ours = bytearray(tg.dumps({"data": np.zeros(4, ml_dtypes.int4)}, format="npy"))
        ours[-1] = 0x10
        with pytest.raises(tg.FormatError) as caught:
            tg.loads(bytes(ours))
        assert caught.value.rule == "values.packed"

    def test_more_packed_elements_than_a_piece(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from tensorglot.model import subbyte

        monkeypatch.setattr(subbyte, "PIECE_NBYTES", 8 * 7)
        for dtype in ("int4", "float6_e2m3fn", "uint1"):
            array = random_array(random.Random(1), dtype, (101,))
            ours = tg.dumps({"data": array}, format="npy")
            assert same(tg.loads(ours)["data"], array)
            with tg.open(ours) as archive:
                assert same(tg.loads(tg.dumps(archive, format="npz"))["data"], array)
                assert same(archive["data"][3:50:7], array[3:50:7])

    def test_fortran_order_is_not_transposed(self, tmp_path: Path) -> None:
        array = np.asfortranarray(np.arange(12.0).reshape(3, 4))
        np.save(tmp_path / "x.npy", array)
        values = tg.load(tmp_path / "x.npy")["data"]
        assert values.flags.f_contiguous
        assert same(values, array)
        for backend in ("pread", "mmap"):
            with tg.open(tmp_path / "x.npy", backend=backend) as archive:
                assert archive["data"].encoding == "strided"
                assert same(archive["data"][1:, ::2], array[1:, ::2])
                assert same(archive["data"].numpy(), array)

    def test_one_array_to_a_file_without_its_name(self) -> None:
        for tensors in ({}, {"a": np.zeros(1)}, {"data": np.zeros(1), "b": np.zeros(1)}):
            with pytest.raises(tg.UnsupportedError, match="'data'") as caught:
                tg.dumps(tensors, format="npy")
            assert caught.value.rule == "save.names"

    def test_a_name_that_npy_cannot_store_is_an_error(self, tmp_path: Path) -> None:
        tg.save(tmp_path / "x.bt", {"a": np.arange(3), "b": np.zeros(1)})
        with pytest.raises(tg.UnsupportedError) as caught:
            tg.convert(tmp_path / "x.bt", tmp_path / "x.npy")
        assert (caught.value.rule, caught.value.tensor) == ("convert.name", "b")
        assert not (tmp_path / "x.npy").exists()
        report = tg.convert(tmp_path / "x.bt", tmp_path / "x.npy", on_loss="drop")
        assert [(loss.kind, loss.tensor) for loss in report.losses] == [("name", "a"), ("name", "b")]
        assert tg.load(tmp_path / "x.npy")["data"].tolist() == [0, 1, 2]
        assert not tg.convert(tmp_path / "x.bt", tmp_path / "x.npy", select="b", rename={"b": "data"}).losses

    @pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
    def test_versions(self, version: tuple[int, int]) -> None:
        file = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            np.lib.format.write_array(file, np.arange(3), version=version)
        assert tg.loads(file.getvalue())["data"].tolist() == [0, 1, 2]

    @pytest.mark.parametrize(
        "array",
        [
            np.array(["a", "bc"]),
            np.array([b"a"]),
            np.array(["2020-01-01"], "M8[D]"),
            np.zeros(3, [("a", "<i4"), ("b", "<f8", (2,))]),
            np.zeros(2, np.longdouble),
            np.zeros(2, "V5"),
            np.zeros(2, [("a", [("b", "<i2"), ("c", "S3")])]),
            np.zeros(2, [(("title", "a"), "<i2")]),
        ],
        ids=lambda array: str(array.dtype),
    )
    def test_types_that_we_do_not_know_are_listed(self, array: NDArray[Any]) -> None:
        with tg.open(npy(array)) as archive:
            tensor = archive["data"]
            assert tensor.dtype is None
            assert tensor.nbytes == array.nbytes
            assert tensor.shape == array.shape
            payload = tensor.parts["data"].payload
            assert bytes(payload.read(0, payload.nbytes)) == array.tobytes()
            with pytest.raises(tg.UnsupportedError, match=r"rule dtype\.known"):
                tensor.numpy()
            with pytest.raises(tg.UnsupportedError, match=r"rule npy\.write\.dtype"):
                tg.dumps(archive, format="npy")

    def test_header_in_pythons_old_notation(self) -> None:
        text = b"{'shape': (2L, 1L), 'fortran_order': False, \"descr\": '<f4'}\n"
        assert tg.loads(header(text) + bytes(8))["data"].shape == (2, 1)


def header(text: bytes, version: int = 1) -> bytes:
    return b"\x93NUMPY" + bytes((version, 0)) + struct.pack("<H" if version == 1 else "<L", len(text)) + text


def described(descr: str = "'<f4'", order: str = "False", shape: str = "(1,)", data: int = 4) -> bytes:
    return header(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()) + bytes(data)


TRACE = Path("tensorglot-evil-npy")  # relative: these bytes are in the conformance corpus


@pytest.fixture(autouse=True)
def _no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is unpickled, in any test of this file."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not TRACE.exists()


class Evil:
    """Would leave a trace if it were unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, (str(TRACE),)


NPY_REFUSED: dict[str, tuple[bytes, type[tg.TensorglotError], str]] = {
    "nothing": (b"", tg.TruncatedError, "header.length"),
    "another magic": (b"\x93NUMPX" + bytes(10), tg.FormatError, "magic"),
    "version 4": (b"\x93NUMPY\4\0" + bytes(10), tg.UnsupportedError, "version"),
    "prefix cut": (b"\x93NUMPY\1\0\1", tg.TruncatedError, "header.length"),
    "prefix of version 2 cut": (b"\x93NUMPY\2\0\1\0\0", tg.TruncatedError, "header.length"),
    "header cut": (header(b"{}")[:-1], tg.TruncatedError, "header.length"),
    "header of 4 GB": (b"\x93NUMPY\2\0\xff\xff\xff\xff", tg.LimitError, "limit.header"),
    "header not UTF-8": (header(b"\xff", 3), tg.FormatError, "header.utf8"),
    "empty header": (header(b""), tg.FormatError, "header.syntax"),
    "no dict": (header(b"1\n"), tg.FormatError, "header.keys"),
    "keys missing": (header(b"{'descr': '<f4'}\n"), tg.FormatError, "header.keys"),
    "key twice": (header(b"{'descr': 1, 'descr': 2}\n"), tg.FormatError, "header.syntax"),
    "a call": (header(b"{'descr': exit(), 'fortran_order': False, 'shape': ()}\n"), tg.FormatError, "header.syntax"),
    "an operator": (described(shape="(1+0,)"), tg.FormatError, "header.syntax"),
    "deep brackets": (described(shape="(" * 30_000), tg.FormatError, "header.syntax"),
    "deep lists": (described(descr="[" * 30_000), tg.FormatError, "header.syntax"),
    "many digits": (described(shape="(" + "1" * 20 + ",)"), tg.FormatError, "header.syntax"),
    "a string without an end": (described(descr="'<f4"), tg.FormatError, "header.syntax"),
    "a quote": (described(descr="'"), tg.FormatError, "header.syntax"),
    "two commas": (described(shape="(1,,)"), tg.FormatError, "header.syntax"),
    "numbers for a key": (header(b"{1, 2, 3}\n"), tg.FormatError, "header.syntax"),
    "fields that are too deep": (
        described(descr="[" * 15 + "('a', '<f4'), ('b', '<f4'), " + "]" * 15),
        tg.FormatError,
        "header.syntax",
    ),
    "many tokens": (described(descr="[" + "(\"a\", '<f4'), " * 3000 + "]"), tg.LimitError, "limit.header"),
    "many digits of many": (described(shape="(" + "1" * 60_000 + ",)"), tg.FormatError, "header.syntax"),
    "text behind": (header(b"{} x"), tg.FormatError, "header.syntax"),
    "no comma": (described(shape="(1 2)"), tg.FormatError, "header.syntax"),
    "order a number": (described(order="1"), tg.FormatError, "header.order"),
    "shape a list": (described(shape="[1]"), tg.FormatError, "header.shape"),
    "shape a number": (described(shape="1"), tg.FormatError, "header.shape"),
    "negative size": (described(shape="(-1,)"), tg.FormatError, "header.syntax"),
    "size True": (described(shape="(True,)"), tg.FormatError, "header.shape"),
    "rank 65": (described(shape="(" + "1, " * 65 + ")"), tg.LimitError, "limit.rank"),
    "product past 2**63": (described(shape="(4294967296, 4294967296)"), tg.FormatError, "shape.product"),
    "product past 2**63 and a zero": (described(shape="(0, 4294967296, 4294967296)"), tg.FormatError, "shape.product"),
    "descr a number": (described(descr="4"), tg.FormatError, "descr"),
    "descr unknown": (described(descr="'<q4'"), tg.FormatError, "descr"),
    "descr without order": (described(descr="'f4'"), tg.FormatError, "descr"),
    "descr of no order": (described(descr="'|f4'"), tg.FormatError, "descr"),
    "descr empty": (described(descr="[]"), tg.FormatError, "descr"),
    "field of one": (described(descr="[('a',)]"), tg.FormatError, "descr"),
    "field named by a number": (described(descr="[(5, '<f4')]"), tg.FormatError, "descr"),
    "field of a shape that is none": (described(descr="[('a', '<f4', 2)]"), tg.FormatError, "descr"),
    "an escape": (described(descr="'<f4\\\\x20'"), tg.FormatError, "header.syntax"),
    "a key that is a number": (header(b"{1: 2}\n"), tg.FormatError, "header.syntax"),
    "a key without a value": (header(b"{'descr', 'shape'}\n"), tg.FormatError, "header.syntax"),
    "element of 4 GB": (described(descr="[('a', '<f4', (1073741824,))]"), tg.FormatError, "descr"),
    "objects": (npy(np.array([Evil()]), allow_pickle=True), tg.UnsupportedError, "objects"),
    "objects in a struct": (described(descr="[('a', '|O')]"), tg.UnsupportedError, "objects"),
    "data cut": (described(data=3), tg.TruncatedError, "data.end"),
    "data of 2**62 bytes": (described(shape="(1152921504606846976,)"), tg.TruncatedError, "data.end"),
    "data behind": (described(data=5), tg.FormatError, "data.trailing"),
}


class TestNpz:
    @pytest.mark.parametrize("compressed", [False, True])
    @pytest.mark.parametrize("seed", range(40))
    def test_each_way_with_numpy(self, seed: int, compressed: bool) -> None:
        rng = random.Random(seed)
        arrays = {
            f"{rng.choice(['a', 'é', 'a/b', 'x.y'])}{i}": random_array(
                rng, rng.choice(LETTERED), rng.choice(SHAPES), rng.choice(ORDERS)
            )
            for i in range(rng.randrange(6))
        }
        theirs = npz(compressed, **arrays)
        read = tg.loads(theirs)
        assert read.keys() == arrays.keys()
        assert all(same(read[name], arrays[name]) for name in arrays)
        ours = tg.dumps(arrays, format="npz", compression="deflate" if compressed else None)
        with np.load(io.BytesIO(ours)) as seen:
            assert set(seen) == set(arrays)
            assert all(same(seen[name], arrays[name]) for name in arrays)
        assert zipfile.ZipFile(io.BytesIO(ours)).testzip() is None
        again = tg.dumps(dict(reversed(arrays.items())), format="npz", compression="deflate" if compressed else None)
        assert again == ours
        if not compressed:
            assert all(same(array, arrays[name]) for name, array in tg.loads(ours, strict=True).items())

    @pytest.mark.parametrize("compression", [None, "deflate"])
    def test_types_that_numpy_does_not_know(self, compression: str | None) -> None:
        rng = random.Random(3)
        arrays = {name: random_array(rng, name, (3, 5)) for name in NAMED}
        ours = tg.dumps(arrays, format="npz", compression=compression)
        read = tg.loads(ours)
        assert all(same(read[name], arrays[name]) for name in arrays)
        with np.load(io.BytesIO(ours)) as seen:
            assert all(same(seen[n][n].view(arrays[n].dtype), arrays[n]) for n in arrays)

    def test_fortran_order_deflated(self) -> None:
        array = np.asfortranarray(np.arange(3000, dtype=np.int32).reshape(3, 10, 100))
        with tg.open(npz(compressed=True, x=array)) as archive:
            assert archive["x"].encoding == "strided deflate"
            assert same(archive["x"].numpy(), array)
            assert same(archive["x"][1, 2:5, ::7], array[1, 2:5, ::7])
            assert same(tg.loads(tg.dumps(archive, format="npz"))["x"], array)

    def test_slices_of_a_deflated_array_in_any_order(self) -> None:
        array = np.arange(200_000, dtype=np.int32).reshape(200, 1000)
        with tg.open(npz(compressed=True, x=array)) as archive:
            rng = random.Random(5)
            for _ in range(30):
                a, b = sorted((rng.randrange(200), rng.randrange(200)))
                assert (archive["x"][a:b, 10:20] == array[a:b, 10:20]).all()

    def test_verified(self, tmp_path: Path) -> None:
        for name, data, canonical in (
            ("ours", tg.dumps({"a": np.arange(9.0)}, format="npz"), True),
            ("theirs", npz(a=np.arange(9.0), text=np.array(["x"])), False),
            ("deflated", npz(compressed=True, a=np.arange(9.0)), False),
        ):
            report = tg.verify(data, deep=True)
            assert (report.ok, report.canonical) == (True, canonical), name
            assert report.checksums == (2 if name == "theirs" else 1)
        broken = bytearray(npz(a=np.arange(9.0)))
        broken[broken.index(np.arange(9.0).tobytes()) + 20] ^= 1
        assert [problem.rule for problem in tg.verify(bytes(broken)).problems] == ["checksum.mismatch"]
        with pytest.raises(tg.IntegrityError):
            tg.loads(bytes(broken), verify="auto")

    def test_arrays_are_aligned(self, tmp_path: Path) -> None:
        tg.save(tmp_path / "x.npz", {"a": np.ones(3, np.int8), "bb": np.arange(4.0)})
        with tg.open(tmp_path / "x.npz", backend="mmap") as archive:
            assert all(tensor.offset is not None and tensor.offset % 64 == 0 for tensor in archive.values())
            assert archive["bb"].numpy().flags.aligned

    def test_members_of_an_npz_have_no_dates(self) -> None:
        ours = tg.dumps({"a": np.zeros(1)}, format="npz")
        assert zipfile.ZipFile(io.BytesIO(ours)).infolist()[0].date_time == (1980, 1, 1, 0, 0, 0)

    def test_levels(self) -> None:
        tensors = {"a": np.zeros(10_000)}
        sizes = [len(tg.dumps(tensors, format="npz", compression="deflate", level=level)) for level in (0, 1, 9)]
        assert sizes[0] > 80_000 > sizes[1] >= sizes[2]
        with pytest.raises(tg.InputError, match=r"rule save\.level"):
            tg.dumps(tensors, format="npz", compression="deflate", level=10)

    @pytest.mark.parametrize("name", ["../x", "/x", "a/../b", "a\\b", "c:x", "./x", "a\0"])
    def test_names_that_are_paths_are_not_written(self, name: str) -> None:
        with pytest.raises(tg.UnsupportedError) as caught:
            tg.dumps({name: np.zeros(1)}, format="npz")
        assert (caught.value.rule, caught.value.tensor) == ("npz.write.name", name)

    def test_checksums_are_those_of_the_data(self) -> None:
        array = np.arange(1000.0)
        for data in (npz(x=array), npz(compressed=True, x=array)):
            with tg.open(data) as archive:
                assert archive["x"].checksum == f"crc32:0x{zlib.crc32(array.tobytes()):08X}"

    def test_many_arrays(self) -> None:
        arrays = {f"{i}": np.array([i], np.int32) for i in range(2000)}
        read = tg.loads(tg.dumps(arrays, format="npz"))
        assert all(same(read[name], array) for name, array in arrays.items())


@pytest.mark.parametrize("split", [0, 1, 100, 65_536])
@pytest.mark.parametrize("nbytes", [0, 1, 1000, 70_000])
def test_checksum_of_a_rest(split: int, nbytes: int) -> None:
    beginning, rest = random.Random(1).randbytes(split), random.Random(2).randbytes(nbytes)
    assert crc32_of_rest(zlib.crc32(beginning + rest), beginning, nbytes) == zlib.crc32(rest)


def archive_of(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, data in members:
            member = zipfile.ZipInfo(name)  # of a fixed date
            member.compress_type = method
            archive.writestr(member, data)
    return file.getvalue()


def patched(data: bytes, at: int, field: bytes) -> bytes:
    return data[:at] + field + data[at + len(field) :]


GOOD = npy(np.zeros(4, np.float32))
ONE = archive_of(("a.npy", GOOD))
TWO = archive_of(("a.npy", GOOD), ("b.npy", GOOD))
LONG = archive_of(("n" * 60 + ".npy", GOOD))
CENTRAL = ONE.index(b"PK\1\2")
END = ONE.index(b"PK\5\6")
DEFLATED = archive_of(("a.npy", GOOD), method=zipfile.ZIP_DEFLATED)
DEFLATED_CENTRAL = DEFLATED.index(b"PK\1\2")
BOMB_NPY = npy(np.zeros(10_000_000, np.uint8))
BOMB = archive_of(("a.npy", BOMB_NPY), method=zipfile.ZIP_DEFLATED)
BOMB_CENTRAL = BOMB.index(b"PK\1\2")


def both(data: bytes, central: int, local_at: int, central_at: int, field: bytes) -> bytes:
    """A field changed in the member's header and in the directory."""
    return patched(patched(data, local_at, field), central + central_at, field)


def directory(data: bytes, *, gap: bytes = b"", extra: bytes = b"", count: int = 1, records: bytes = b"") -> bytes:
    """An archive of one member: bytes before its directory, an extra field there, records before the end record."""
    central, end = data.index(b"PK\1\2"), data.index(b"PK\5\6")
    entry = patched(data[central:end], 30, struct.pack("<H", len(extra))) + extra
    tail = struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, count, count, len(entry), central + len(gap), 0)
    return data[:central] + gap + entry + records + tail


def end64(sign: bytes = b"PK\6\6", own: int = 44, count: int = 1, at: int = END, disks: int = 1) -> bytes:
    """The end records of ZIP64, for the directory of ONE."""
    record = struct.pack("<4sQHHLLQQQQ", sign, own, 45, 45, 0, 0, count, count, END - CENTRAL, CENTRAL)
    return record + struct.pack("<4sLQL", b"PK\6\7", 0, at, disks)


def lying(nbytes: int) -> bytes:
    return both(BOMB, BOMB_CENTRAL, 22, 24, struct.pack("<L", nbytes))


def overlapping() -> bytes:
    """Two entries of the directory for one member."""
    entry = ONE[CENTRAL:END]
    second = patched(entry, 46, b"b")
    return ONE[:CENTRAL] + entry + second + struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, 2, 2, 2 * len(entry), CENTRAL, 0)


def commented(comment: bytes) -> bytes:
    """The archive with a comment."""
    return ONE[:-2] + struct.pack("<H", len(comment)) + comment


NPZ_REFUSED: dict[str, tuple[bytes, type[tg.TensorglotError], str]] = {
    "nothing": (b"", tg.TruncatedError, "zip.end"),
    "no end record": (ONE[:-1], tg.FormatError, "zip.end"),
    "compressed headers of 100 KB": (
        archive_of(
            *((f"{i}.npy", described(order="False" + " " * 50_000)) for i in range(2)), method=zipfile.ZIP_DEFLATED
        ),
        tg.LimitError,
        "limit.header",
    ),
    "a comment that begins as JSON": (commented(b"{x"), tg.FormatError, "metadata.syntax"),
    "a comment that is not UTF-8": (commented(b'{"a":"\xff"}'), tg.FormatError, "metadata.utf8"),
    "a key twice in the comment": (commented(b'{"a":1,"a":1}'), tg.FormatError, "metadata.duplicate"),
    "a deep comment": (commented(b'{"a":' + b"[" * 30_000 + b"]" * 30_000 + b"}"), tg.LimitError, "metadata.depth"),
    "a comment cut": (commented(b"{}")[:-1], tg.FormatError, "zip.end"),
    "an archive in the comment": (commented(ONE), tg.FormatError, "zip.directory"),
    "two end records": (
        commented(struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, 0, 0, 0, 0, 2) + b"{}"),
        tg.FormatError,
        "zip.end",
    ),
    "bytes behind": (ONE + b"x", tg.FormatError, "zip.end"),
    "bytes before": (b"x" + ONE, tg.FormatError, "zip.directory"),
    "bytes before, offsets right": (
        b"x" + patched(patched(ONE, CENTRAL + 42, b"\1"), END + 16, struct.pack("<L", CENTRAL + 1)),
        tg.FormatError,
        "zip.span",
    ),
    "several disks": (patched(ONE, END + 4, b"\1"), tg.FormatError, "zip.disks"),
    "directory past the file": (patched(ONE, END + 16, b"\xff\xff\xff\x7f"), tg.FormatError, "zip.directory"),
    "directory too small": (patched(ONE, END + 12, b"\1\0\0\0"), tg.FormatError, "zip.directory"),
    "65,535 members in a small directory": (patched(ONE, END + 8, b"\xff\xff\xff\xff"), tg.FormatError, "zip.count"),
    "fewer members than entries": (patched(ONE, END + 8, b"\0\0\0\0"), tg.FormatError, "zip.entry"),
    "entry without its sign": (patched(ONE, CENTRAL, b"XX"), tg.FormatError, "zip.entry"),
    "entry's name past the directory": (patched(ONE, CENTRAL + 28, b"\xff\xff"), tg.FormatError, "zip.entry"),
    "local header without its sign": (patched(ONE, 0, b"XX"), tg.FormatError, "zip.local"),
    "local offset past the file": (patched(ONE, CENTRAL + 42, b"\xff\xff\xff\x7f"), tg.FormatError, "zip.span"),
    "local name differs": (patched(ONE, 30, b"b"), tg.FormatError, "zip.local"),
    "local size differs": (patched(ONE, 22, b"\1"), tg.FormatError, "zip.local"),
    "local checksum differs": (patched(ONE, 14, b"\1\2\3\4"), tg.FormatError, "zip.local"),
    "local method differs": (patched(ONE, 8, b"\x08"), tg.FormatError, "zip.local"),
    "encrypted": (both(ONE, CENTRAL, 6, 8, b"\1"), tg.UnsupportedError, "zip.flags"),
    "method 12": (both(ONE, CENTRAL, 8, 10, b"\x0c"), tg.UnsupportedError, "zip.method"),
    "stored, of two sizes": (both(ONE, CENTRAL, 22, 24, b"\xff"), tg.FormatError, "zip.size"),
    "member past the directory": (
        both(both(ONE, CENTRAL, 22, 24, b"\xff\xff\0\0"), CENTRAL, 18, 20, b"\xff\xff\0\0"),
        tg.TruncatedError,
        "zip.span",
    ),
    "extra field cut": (patched(ONE, CENTRAL + 30, b"\2\0"), tg.FormatError, "zip.entry"),
    "overlap": (overlapping(), tg.FormatError, "zip.span"),
    "no directory": (TWO[: TWO.index(b"PK\1\2")], tg.FormatError, "zip.end"),
    "hole": (directory(ONE, gap=b"x"), tg.FormatError, "zip.span"),
    "an entry less than said": (directory(LONG, count=2), tg.FormatError, "zip.entry"),
    "half an extra field": (directory(ONE, extra=b"\1\0"), tg.FormatError, "zip.extra"),
    "an extra field beyond": (directory(ONE, extra=b"\1\0\x09\0"), tg.FormatError, "zip.extra"),
    "ZIP64 twice": (directory(ONE, extra=b"\1\0\0\0" * 2), tg.FormatError, "zip.extra"),
    "ZIP64 without a size": (
        directory(patched(ONE, CENTRAL + 24, b"\xff" * 4), extra=b"\1\0\4\0abcd"),
        tg.FormatError,
        "zip.extra",
    ),
    "ZIP64 without its sign": (directory(ONE, records=end64(sign=b"PK\6\5")), tg.FormatError, "zip.end64"),
    "ZIP64 of another size": (directory(ONE, records=end64(own=45)), tg.FormatError, "zip.end64"),
    "ZIP64 elsewhere": (directory(ONE, records=end64(at=END + 1)), tg.FormatError, "zip.end64"),
    "ZIP64 on two disks": (directory(ONE, records=end64(disks=2)), tg.FormatError, "zip.end64"),
    "ZIP64 of another count": (directory(ONE, records=end64(count=2)), tg.FormatError, "zip.end64"),
    "the same name twice": (archive_of(("a.npy", GOOD), ("a.npy", GOOD)), tg.FormatError, "zip.duplicate"),
    **{
        f"member {name!r}": (archive_of((name, GOOD)), tg.FormatError, "zip.path")
        for name in ("../a.npy", "/a.npy", "a/../../b.npy", "c:a.npy", "./a.npy")
    },
    "member a\\b": (
        archive_of(("a/b.npy", GOOD)).replace(b"a/b.npy", b"a\\b.npy"),
        tg.FormatError,
        "zip.path",
    ),
    "name not UTF-8": (ONE.replace(b"a.npy", b"\xff.npy"), tg.FormatError, "zip.name"),
    "no array": (archive_of(("a.txt", b"hello")), tg.FormatError, "member"),
    "a folder": (archive_of(("a/", b"")), tg.FormatError, "member"),
    "array with another magic": (archive_of(("a.npy", b"hello world, hello")), tg.FormatError, "magic"),
    "empty member": (archive_of(("a.npy", b"")), tg.TruncatedError, "header.length"),
    "array cut": (archive_of(("a.npy", GOOD[:-1])), tg.FormatError, "data.size"),
    "array longer": (archive_of(("a.npy", GOOD + b"x")), tg.FormatError, "data.size"),
    "a bare pickle": (archive_of(("a.npy", pickle.dumps(Evil()))), tg.FormatError, "magic"),
    "a pickle that is no array": (archive_of(("a.pkl", pickle.dumps(Evil()))), tg.FormatError, "member"),
    "not deflate": (
        patched(DEFLATED, 35, b"\xff" * 20),
        tg.FormatError,
        "deflate.form",
    ),
    "deflate that ends early": (
        both(DEFLATED, DEFLATED_CENTRAL, 22, 24, struct.pack("<L", len(GOOD) + 4)),
        tg.FormatError,
        "data.size",
    ),
    "more than can be deflated": (lying(0x7FFF_FFFF), tg.FormatError, "zip.bomb"),
}


def test_compressed_headers_that_the_caller_allows() -> None:
    members = [(f"{i}.npy", described(order="False" + " " * 50_000)) for i in range(2)]
    data = archive_of(*members, method=zipfile.ZIP_DEFLATED)
    with tg.open(data, limits=tg.Limits(header_ratio=1000)) as archive:
        assert archive.keys() == {"0", "1"}


FIELDS = {
    "as NumPy writes them": "[('a', '<f4'), ('b', '<i2', (2, 3)), ('c', '|u1')]",
    "without blanks": "[('a','<f4'),('b','<i2',(2,3,)),('c','|u1'),]",
    "in double quotes": """[("a", "<f4"), ("b", "<i2", (2, 3)), ("c", "|u1")]""",
    "on lines": "[('a', '<f4'),\n ('b', '<i2', (2, 3)) ,\n ('c', '|u1')\n]",
}


@pytest.mark.parametrize("form", FIELDS)
def test_fields_in_any_spelling(form: str) -> None:
    parsed = npy_header.parse(described(descr=FIELDS[form], data=0), "npy", max_rank=64)
    assert (parsed.descr, parsed.itemsize) == ("[a: <f4, b: <i2[2, 3], c: |u1]", 17)


def test_the_place_of_a_fault_in_a_header() -> None:
    for shape, at in (("(1,,)", 3), ("(1 2)", 3), ("(1, 2, 3, x)", 10)):
        data = described(shape=shape, data=0)
        with pytest.raises(tg.FormatError) as caught:
            npy_header.parse(data, "npy", max_rank=64)
        assert caught.value.offset == data.index(b"(") + at


def test_the_patterns_of_directories_are_valid() -> None:
    for data in (directory(ONE), directory(ONE, extra=b"\x99\x99\0\0"), directory(ONE, records=end64())):
        assert tg.loads(data)["a"].tolist() == [0] * 4


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("length", range(5))
def test_a_header_shorter_than_what_is_read_to_know_its_length(length: int, method: int) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr("a.npy", npy(np.zeros(3))[:8] + length.to_bytes(2, "little") + b"{}  \n" + bytes(24))
    with pytest.raises(tg.FormatError) as caught:
        tg.open(stream.getvalue(), format="npz")
    assert (caught.value.rule, caught.value.tensor) in (("npz.header.syntax", "a"), ("npz.header.keys", "a"))


@pytest.mark.parametrize(
    ("format", "case"), [*(("npy", case) for case in NPY_REFUSED), *(("npz", case) for case in NPZ_REFUSED)]
)
def test_refused(format: str, case: str) -> None:
    data, kind, rule = (NPY_REFUSED if format == "npy" else NPZ_REFUSED)[case]
    with pytest.raises(tg.TensorglotError) as caught:
        tg.open(data, format=format)
    assert type(caught.value) is kind
    assert caught.value.rule == f"{format}.{rule}"


class TestObjects:
    """One member is a pickle: it is listed and never loaded, and the others are there."""

    ARRAYS: ClassVar[dict[str, Any]] = {
        "a": np.arange(3.0),
        "evil": np.array([Evil(), None]).reshape(2, 1),
        "struct": np.array([(1, None)], [("x", "<i4"), ("y", "O")]),
        "z": np.arange(4),
    }

    @pytest.fixture(params=[False, True])
    def data(self, request: pytest.FixtureRequest) -> bytes:
        stream = io.BytesIO()
        (np.savez_compressed if request.param else np.savez)(stream, **self.ARRAYS)
        return stream.getvalue()

    def test_listed_and_not_read(self, data: bytes) -> None:
        with tg.open(data) as archive:
            assert list(archive) == list(self.ARRAYS)
            evil = archive["evil"]
            assert (evil.shape, evil.dtype, evil.encoding) == ((2, 1), None, "pickle")
            assert archive["a"].numpy().tolist() == [0, 1, 2]
            for read in (evil.numpy, lambda: evil[0], evil.cid, evil.tolist, lambda: np.asarray(evil)):
                with pytest.raises(tg.UnsupportedError, match="pickle") as caught:
                    read()
                assert caught.value.tensor == "evil"

    @pytest.mark.parametrize("verify", ["auto", "never", "require"])
    def test_load_returns_the_readable_members(self, data: bytes, verify: Any) -> None:
        loaded = tg.loads(data, verify=verify)
        assert list(loaded) == list(self.ARRAYS)
        assert all(same(loaded[name], self.ARRAYS[name]) for name in "az")
        for name in ("evil", "struct"):
            assert isinstance(loaded[name], tg.Tensor)
            with pytest.raises(tg.UnsupportedError, match="pickle") as caught:
                loaded[name].numpy()
            assert caught.value.tensor == name

    def test_saving_one_is_refused_by_name(self, data: bytes, tmp_path: Path) -> None:
        loaded = tg.loads(data)
        for format in ("npz", "ztensor", "bintensors", "safetensors"):
            with pytest.raises(tg.UnsupportedError) as caught:
                tg.dumps({"evil": loaded["evil"]}, format=format)
            assert caught.value.tensor == "evil"
        (tmp_path / "a.npz").write_bytes(data)
        with pytest.raises(tg.UnsupportedError, match=r"rule convert\.dtype"):
            tg.convert(tmp_path / "a.npz", tmp_path / "a.zt")
        tg.convert(tmp_path / "a.npz", tmp_path / "a.zt", select=["a", "z"])
        assert list(tg.load(tmp_path / "a.zt")) == ["a", "z"]

    def test_verify_reports_it(self, data: bytes) -> None:
        for deep in (False, True):
            report = tg.verify(data, deep=deep)
            assert report.ok
            assert report.checksums == 4
            assert [note.rule for note in report.notes] == ["npz.objects"] * 2
            assert "'evil'" in report.notes[0].message
        with tg.open(data) as archive:
            begin = archive["evil"].parts["data"].payload.begin
        changed = bytearray(data)
        changed[begin + 150] ^= 1
        assert {problem.tensor for problem in tg.verify(bytes(changed)).problems} == {"evil"}

    def test_diff_compares_the_others(self, data: bytes) -> None:
        other = {name: tg.open(data)[name] for name in ("evil", "struct", "z")} | {"a": self.ARRAYS["a"] + 1}
        found = tg.diff(data, other)
        kinds = {(change.tensor, change.kind) for change in found.changes}
        assert kinds == {("a", "values"), ("evil", "unreadable"), ("struct", "unreadable")}
        assert (found.same, found.equal) == (False, 1)
        assert str(found.changes[1]).startswith("evil: cannot be compared: an array of Python objects")

    def test_strict_headers(self) -> None:
        """Another version of the header, and elements of a type that we have not."""
        text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }"
        for data in (header(text, 2) + bytes(4), npy(np.zeros(2, "V3"))):
            assert tg.open(data)
            with pytest.raises(tg.FormatError) as caught:
                tg.open(data, strict=True)
            assert caught.value.rule == "npy.strict.header"

    def test_strict_is_for_what_we_write(self, data: bytes) -> None:
        with pytest.raises(tg.FormatError, match=r"rule npz\.strict"):
            tg.open(data, strict=True)


class TestBombs:
    def test_never_a_byte_more_than_declared(self) -> None:
        """Ten million zeros that say they are a thousand."""
        small = npy(np.zeros(1000, np.uint8))
        stream = zlib.compressobj(9, zlib.DEFLATED, -15)
        stored = stream.compress(small + bytes(10_000_000)) + stream.flush()
        data = self.member(stored, len(small), small)
        with tg.open(data) as archive, pytest.raises(tg.FormatError) as caught:
            archive["a"].numpy()
        assert caught.value.rule == "npz.deflate.end"

    def test_fewer_than_declared(self) -> None:
        large = npy(np.zeros(10_000, np.uint8))
        stream = zlib.compressobj(9, zlib.DEFLATED, -15)
        stored = stream.compress(large[:-5]) + stream.flush()
        with tg.open(self.member(stored, len(large), large)) as archive, pytest.raises(tg.TruncatedError) as caught:
            archive["a"].numpy()
        assert caught.value.rule == "npz.deflate.end"

    def test_bytes_after_the_deflate_stream(self) -> None:
        small = npy(np.zeros(1000, np.uint8))
        stream = zlib.compressobj(9, zlib.DEFLATED, -15)
        stored = stream.compress(small) + stream.flush() + b"hidden"
        with tg.open(self.member(stored, len(small), small)) as archive, pytest.raises(tg.FormatError) as caught:
            archive["a"].numpy()
        assert caught.value.rule == "npz.deflate.end"

    def test_a_stream_without_its_end(self) -> None:
        small = npy(np.zeros(1000, np.uint8))
        stream = zlib.compressobj(9, zlib.DEFLATED, -15)
        stored = stream.compress(small) + stream.flush(zlib.Z_SYNC_FLUSH)
        with tg.open(self.member(stored, len(small), small)) as archive, pytest.raises(tg.FormatError) as caught:
            archive["a"].numpy()
        assert caught.value.rule == "npz.deflate.end"

    def test_blocks_of_nothing(self) -> None:
        """More of them than are read at a time, which is no end."""
        small = npy(np.arange(1000, dtype=np.uint8))
        stream = zlib.compressobj(9, zlib.DEFLATED, -15)
        stored = 300_000 * b"\0\0\0\xff\xff" + stream.compress(small) + stream.flush()
        with tg.open(self.member(stored, len(small), small)) as archive:
            assert archive["a"].numpy().tolist() == np.arange(1000, dtype=np.uint8).tolist()

    def test_opening_a_deflated_file_decodes_only_the_header(self) -> None:
        import tracemalloc

        tracemalloc.start()
        try:
            with tg.open(BOMB) as archive:
                assert archive["a"].nbytes == 10_000_000
            assert tracemalloc.get_traced_memory()[1] < 2_000_000
        finally:
            tracemalloc.stop()

    @staticmethod
    def member(stored: bytes, nbytes: int, content: bytes) -> bytes:
        crc = zlib.crc32(content)
        local = struct.pack("<4sHHHHHLLLHH", b"PK\3\4", 20, 0, 8, 0, 33, crc, len(stored), nbytes, 5, 0) + b"a.npy"
        begin = len(local) + len(stored)
        entry = struct.pack(
            "<4sHHHHHHLLLHHHHHLL", b"PK\1\2", 20, 20, 0, 8, 0, 33, crc, len(stored), nbytes, 5, 0, 0, 0, 0, 0, 0
        )
        entry += b"a.npy"
        end = struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, 1, 1, len(entry), begin, 0)
        return local + stored + entry + end


class TestZip:
    def test_written_to_a_stream_that_cannot_seek(self) -> None:
        class Pipe(io.RawIOBase):
            def __init__(self) -> None:
                self.data = bytearray()

            def writable(self) -> bool:
                return True

            def write(self, data: Any) -> int:
                self.data += data
                return len(data)

        pipe = Pipe()
        with zipfile.ZipFile(pipe, "w") as archive:  # type: ignore[call-overload]
            for name in ("a.npy", "b.npy"):
                archive.writestr(name, GOOD)
        assert set(tg.loads(bytes(pipe.data))) == {"a", "b"}
        broken = bytearray(pipe.data)
        broken[broken.index(b"PK\7\x08") + 4] ^= 1
        with pytest.raises(tg.FormatError) as caught:
            tg.open(bytes(broken), format="npz")
        assert caught.value.rule == "npz.zip.descriptor"

    def test_sizes_of_64_bits(self) -> None:
        """NumPy writes them into the members' headers always."""
        data = npz(a=np.zeros(3))
        assert struct.unpack_from("<LL", data, 18) == (0xFFFFFFFF, 0xFFFFFFFF)
        assert tg.loads(data)["a"].tolist() == [0, 0, 0]

    def test_more_members_than_16_bits_count(self) -> None:
        writer = ziparchive.Writer()
        file = b"".join(writer.begin(str(i), ziparchive.STORED, 0, 0, 0) + writer.end(0, 0, 0) for i in range(66_000))
        file += writer.finish()
        assert len(zipfile.ZipFile(io.BytesIO(file)).namelist()) == 66_000
        found = ziparchive.scan(
            lambda at, nbytes: file[at : at + nbytes], len(file), rule="npz", max_members=1 << 20, max_directory=1 << 30
        )
        assert [member.name for member in found] == [str(i) for i in range(66_000)]
        assert struct.unpack_from("<HH", file, file.rindex(b"PK\6\6") + 12) == (45, 45), "version 4.5 has these records"

    def test_more_bytes_than_32_bits_count(self) -> None:
        """The records around members of 5 and 3 GB and of 4 GB less a byte or two, the zeros between them left out."""
        members = [("a", 5 << 30), ("b", 3 << 30), ("c", 0xFFFFFFFF), ("d", 0xFFFFFFFE)]
        writer = ziparchive.Writer()
        pieces: dict[int, bytes] = {}
        at = 0
        for name, nbytes in members:
            header = writer.begin(name, ziparchive.STORED, 7, nbytes, nbytes)
            pieces[at] = header
            at += len(header) + nbytes
            assert writer.end(7, nbytes, nbytes) == b""
        pieces[at] = writer.finish()

        def read(offset: int, nbytes: int) -> bytes:
            begin = max(start for start in pieces if start <= offset)
            return pieces[begin][offset - begin : offset - begin + nbytes].ljust(nbytes, b"\0")

        found = ziparchive.scan(read, at + len(pieces[at]), rule="npz", max_members=9, max_directory=999)
        assert [(member.name, member.nbytes) for member in found] == members

    def test_limits(self) -> None:
        assert len(tg.open(TWO, limits=tg.Limits(tensors=2))) == 2
        with pytest.raises(tg.LimitError):
            tg.open(TWO, limits=tg.Limits(tensors=1))
        with pytest.raises(tg.LimitError):
            tg.open(TWO, limits=tg.Limits(header_nbytes=10))


@pytest.mark.parametrize("seed", range(4))
def test_mutants_raise_only_our_errors(seed: int) -> None:
    rng = random.Random(seed)
    bases = [
        npy(np.asfortranarray(np.arange(6.0).reshape(2, 3))),
        npz(a=np.arange(3), b=np.zeros((2, 2), ">f4")),
        npz(compressed=True, a=np.arange(300), b=np.zeros((2, 2))),
        tg.dumps({"a": np.zeros(5, ml_dtypes.int4), "b": np.zeros(2)}, format="npz"),
    ]
    base = bases[seed]
    format = "npy" if seed == 0 else "npz"
    accepted = 0
    for _ in range(1500):
        mutant = bytearray(base)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(mutant))
            kind = rng.randrange(4)
            if kind == 0:
                mutant[at] = rng.randrange(256)
            elif kind == 1:
                mutant[at : at + 4] = rng.choice([b"\0\0\0\0", b"\xff\xff\xff\xff", struct.pack("<L", len(base))])
            elif kind == 2:
                del mutant[at : at + rng.randrange(8)]
            else:
                mutant[at] ^= 1 << rng.randrange(8)
        try:
            tg.loads(bytes(mutant), format=format)
            accepted += 1
        except tg.TensorglotError:
            pass
    assert 0 < accepted < 1500


class TestMetadata:
    VALUES: ClassVar[dict[str, Any]] = {
        "step": 10,
        "é": ["x", None, True, 0.5],
        "nested": {"a": {"b": []}},
        "": "",
        "big": 2**70,
    }

    @pytest.mark.parametrize("compression", [None, "deflate"])
    def test_it_is_kept_and_numpy_ignores_it(self, tmp_path: Path, compression: str | None) -> None:
        path = tmp_path / "x.npz"
        for metadata in (None, {}, self.VALUES):
            tg.save(path, {"a": np.arange(3)}, metadata=metadata, compression=compression)
            with tg.open(path, strict=compression is None) as archive:
                assert archive.metadata == metadata
                assert archive["a"].numpy().tolist() == [0, 1, 2]
            with np.load(path) as seen:
                assert seen["a"].tolist() == [0, 1, 2]
            with zipfile.ZipFile(path) as seen:
                assert (json.loads(seen.comment) if seen.comment else None) == metadata
                assert seen.testzip() is None
        assert tg.verify(path).ok

    @pytest.mark.parametrize("in_place", [False, True])
    def test_an_edit_changes_the_comment_and_nothing_else(self, tmp_path: Path, in_place: bool) -> None:
        path = tmp_path / "x.npz"
        tg.save(path, {"a": np.zeros(5000), "b": np.arange(9)}, metadata={"old": 1}, compression="deflate")
        before = path.read_bytes()
        tg.edit(path, {"new": self.VALUES}, remove=["old"], in_place=in_place)
        after = path.read_bytes()
        with tg.open(path) as archive:
            assert archive.metadata == {"new": self.VALUES}
            assert archive["a"].encoding == "deflate"
        end = before.rindex(b"PK\5\6")
        assert after[: end + 20] == before[: end + 20]

    @pytest.mark.parametrize("comment", [b"hello", b"[]", b"\xff", b" 5"])
    def test_a_comment_of_others_is_no_metadata(self, comment: bytes) -> None:
        data = commented(comment)
        with tg.open(data) as archive:
            assert archive.metadata is None
            assert [note.rule for note in archive.notes] == ["npz.comment"]
            assert tg.load(data).keys() == archive.keys()
        with pytest.raises(tg.FormatError, match=r"npz\.strict"):
            tg.open(data, strict=True)

    def test_the_longest_comment(self, tmp_path: Path) -> None:
        longest = {"k": "x" * (65_535 - len('{"k":""}'))}
        tg.save(tmp_path / "x.npz", {}, metadata=longest)
        assert tg.open(tmp_path / "x.npz").metadata == longest
        longer = {"k": longest["k"] + "x"}
        with pytest.raises(tg.UnsupportedError, match="65536 bytes") as caught:
            tg.save(tmp_path / "y.npz", {}, metadata=longer)
        assert caught.value.rule == "npz.write.metadata"
        data = tg.dumps({"a": np.ones(1)}, format="ztensor", metadata=longer)
        with pytest.raises(tg.UnsupportedError, match="'k'") as caught:
            tg.convert(data, tmp_path / "y.npz")
        assert caught.value.rule == "convert.metadata"
        assert not (tmp_path / "y.npz").exists()
        assert [loss.kind for loss in tg.convert(data, tmp_path / "y.npz", on_loss="drop").losses] == ["metadata"]
        assert tg.open(tmp_path / "y.npz").metadata == {}

    @pytest.mark.parametrize("value", [b"x", float("nan"), {1: 2}, {"a": {2}}, np.int64(1), "\ud800", [[]] * 1 + [b""]])
    def test_what_json_cannot_hold_is_refused(self, value: Any) -> None:
        with pytest.raises(tg.TensorglotError) as caught:
            tg.dumps({}, format="npz", metadata={"ok": 1, "k": value})
        assert caught.value.rule == "npz.write.metadata"
        assert "'k'" in caught.value.message

    def test_deep_metadata_is_refused_on_both_sides(self) -> None:
        deep: Any = 0
        for _ in range(40):
            deep = [deep]
        with pytest.raises(tg.UnsupportedError, match="deeper"):
            tg.dumps({}, format="npz", metadata={"k": deep})


def test_a_directory_that_is_too_small_for_its_members() -> None:
    data = bytearray(TWO)
    struct.pack_into("<HH", data, len(data) - 22 + 8, 5, 5)  # the numbers of members in the last record
    with pytest.raises(tg.FormatError) as caught:
        tg.open(bytes(data))
    assert caught.value.rule == "npz.zip.count"


@pytest.mark.parametrize(("nbytes", "width"), [(0, 4), (0xFFFFFFFE, 4), (0xFFFFFFFF, 8), (1 << 32, 8)])
def test_a_descriptor_is_as_wide_as_the_sizes_of_its_member(nbytes: int, width: int) -> None:
    """0xFFFFFFFF stands for a size of 64 bits elsewhere."""
    writer = ziparchive.Writer()
    writer.begin_stream("a", ziparchive.STORED)
    form = {4: "<4sLLL", 8: "<4sLQQ"}[width]
    assert writer.end(7, nbytes, nbytes) == struct.pack(form, b"PK\7\x08", 7, nbytes, nbytes)
