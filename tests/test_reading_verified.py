"""A checksum that is there is compared whenever a whole tensor is read, however it is read.

The table of files has every kind of checksum over every kind of bytes that it can
cover; the table of reads, every way to get at all values of a tensor. One bit of one
tensor is flipped, so that it still decodes.
"""

from __future__ import annotations

import io
import pickle
import random
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorglot as tg
from figures import seen

SMALL, LARGE = 1000, 3 << 20
"""Elements: of a tensor that is read at once, and of one that several threads read."""


def values(count: int) -> np.ndarray[Any, Any]:
    """Random bits, which no encoder makes smaller: flipping one of them changes one element."""
    return np.random.default_rng(count).integers(0, 1 << 32, count, np.uint32)


def saved(**options: Any) -> Callable[[Path, np.ndarray[Any, Any]], None]:
    def write(path: Path, array: np.ndarray[Any, Any]) -> None:
        tg.save(path, {"before": np.arange(5), "w": array, "z": np.ones(3)}, durable=False, **options)

    return write


def sidecar(**options: Any) -> Callable[[Path, np.ndarray[Any, Any]], None]:
    def write(path: Path, array: np.ndarray[Any, Any]) -> None:
        saved(**options)(path, array)
        tg.verify(path, sums="write", format=options["format"])

    return write


def numpys(*, order: str = "C", dtype: str = "<u4", level: int | None = None) -> Callable[..., None]:
    def write(path: Path, array: np.ndarray[Any, Any]) -> None:
        method = zipfile.ZIP_STORED if level is None else zipfile.ZIP_DEFLATED
        with zipfile.ZipFile(path, "w", method, compresslevel=level) as archive:
            for name, value in (("before", np.arange(5)), ("w", array.astype(dtype)), ("z", np.ones(3))):
                stream = io.BytesIO()
                np.save(stream, np.asfortranarray(value) if order == "F" else value)
                archive.writestr(f"{name}.npy", stream.getvalue())

    return write


def matrix(write: Callable[..., None]) -> Callable[..., None]:
    return lambda path, array: write(path, array.reshape(2, -1))


def nibbles(write: Callable[..., None]) -> Callable[..., None]:
    return lambda path, array: write(path, (array % 8).astype(ml_dtypes.int4))


FILES: dict[str, Callable[[Path, np.ndarray[Any, Any]], None]] = {
    "zt 0.1 crc32c": saved(format="ztensor@0.1", checksum="crc32c"),
    "zt 0.1 sha256": saved(format="ztensor@0.1", checksum="sha256"),
    "zt 0.1 crc32c zstd": saved(format="ztensor@0.1", checksum="crc32c", compression="zstd"),
    "zt 2 xxh3": saved(format="ztensor@2", checksum="xxh3"),
    "zt 2 sha256": saved(format="ztensor@2", checksum="sha256"),
    "zt 2 xxh3 zstd": saved(format="ztensor@2", checksum="xxh3", compression="zstd"),
    "npz": numpys(),
    "npz deflated": numpys(level=0),
    "npz big-endian": numpys(dtype=">u4"),
    "npz Fortran": matrix(numpys(order="F")),
    "npz Fortran deflated": matrix(numpys(order="F", level=0)),
    "npz ours": saved(format="npz"),
    "npz ours deflated": saved(format="npz", compression="deflate", level=0),
    "npz four bits": nibbles(saved(format="npz")),
    "bintensors sidecar": sidecar(format="bintensors"),
    "safetensors sidecar": sidecar(format="safetensors"),
    "zt 0.1 zstd sidecar": sidecar(format="ztensor@0.1", compression="zstd", checksum=None),
}


def flipped(path: Path, where: float) -> int:
    """Flips a bit of `w`; returns where the stored bytes of it begin."""
    with tg.open(path, verify="never") as archive:
        payload = archive["w"].parts["data"].payload
        begin, end = payload.begin, payload.end
    header = 200 if end - begin > 1000 else 0  # of a member, of a frame: it should still decode
    at = min(end - 9, begin + header + int((end - begin - header) * where))
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 1]))
    return int(begin)


Read = Callable[[Path, Any], object]


def of_tensor(read: Callable[[tg.Tensor], object]) -> Read:
    def opened(path: Path, verify: Any) -> object:
        with tg.open(path, verify=verify) as archive:
            return read(archive["w"])

    return opened


def into(path: Path, verify: Any) -> object:
    with tg.open(path, verify="never") as archive:
        shape, dtype = archive["w"].shape, archive["w"].dtype
    return tg.load(path, out={"w": np.empty(shape, dtype)}, verify=verify)


def mapped(path: Path, verify: Any) -> object:
    with tg.open(path, backend="mmap", verify=verify) as archive:
        return archive["w"].numpy().copy()


def sent(path: Path, verify: Any) -> object:
    with tg.open(path, verify=verify) as archive:
        return pickle.loads(pickle.dumps(archive["w"])).numpy()


READS: dict[str, Read] = {
    "load": lambda path, verify: tg.load(path, verify=verify),
    "load by name": lambda path, verify: tg.load(path, names=["w"], verify=verify),
    "load on one thread": lambda path, verify: tg.load(path, threads=1, verify=verify),
    "load mapped": lambda path, verify: tg.load(path, backend="mmap", verify=verify),
    "load out": into,
    "numpy": of_tensor(tg.Tensor.numpy),
    "numpy out": of_tensor(lambda w: w.numpy(np.empty(w.shape, w.dtype))),
    "mapped": mapped,
    "mapped, sliced whole": lambda path, verify: tg.open(path, backend="mmap", verify=verify)["w"][...].copy(),
    "everything between brackets": of_tensor(lambda w: w[...]),
    "all rows": of_tensor(lambda w: w[:]),
    "backwards": of_tensor(lambda w: w[::-1]),
    "array": of_tensor(np.asarray),
    "dlpack": of_tensor(lambda w: None if w.dtype == ml_dtypes.int4 else np.from_dlpack(w)),
    "serialize": of_tensor(tg.Tensor.serialize),
    "cid": of_tensor(tg.Tensor.cid),
    "tolist": of_tensor(tg.Tensor.tolist),
    "part": of_tensor(lambda w: w.parts["data"].array()),
    "verify": of_tensor(tg.Tensor.verify),
    "sent elsewhere": sent,
    "saved again": of_tensor(lambda w: tg.dumps({"w": w}, format="npz")),
    "saved again, compressed": of_tensor(lambda w: tg.dumps({"w": w}, format="ztensor@0.1", compression="zstd")),
    "saved again as it is": of_tensor(lambda w: tg.dumps({"w": w}, format="ztensor@0.1")),
    "convert": lambda path, verify: tg.convert(path, path.with_name("out.zt"), verify=verify, durable=False),
}
VERBS: dict[str, Callable[[Path], object]] = {
    "diff": lambda path: tg.diff(path, tg.open(path, verify="never")),
    "merge": lambda path: tg.merge([path], path.with_name("one.zt"), durable=False),
    "merge with what is checked otherwise": lambda path: tg.merge(
        [path, *map(_saved, (path.with_name("b.npz"), path.with_name("c.zt")))], path.with_name("one.zt"), durable=False
    ),
    "split": lambda path: tg.split(path, path.with_name(f"shards{time.monotonic_ns()}"), durable=False),
}
"""Verbs that read with `verify="auto"`."""


def _saved(path: Path) -> Path:
    options = {"compression": "zstd", "checksum": "crc32c"} if path.suffix == ".zt" else {}
    tg.save(path, {path.suffix: np.zeros(1000)}, durable=False, **options)
    return path


FRAMES = "zt 2 xxh3 zstd"
"""Its frames have checksums of their own, which are always compared."""


def written(tmp_path: Path, file: str, count: int) -> Path:
    path = tmp_path / {"np": "a.npz", "bi": "a.bt", "sa": "a.safetensors"}.get(file[:2], "a.zt")
    FILES[file](path, values(count))
    return path


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("file", FILES)
def test_a_flipped_bit_is_an_error_that_names_the_tensor(file: str, read: str, tmp_path: Path) -> None:
    path = written(tmp_path, file, SMALL)
    READS[read](path, "auto")
    READS[read](path, "require")
    begin = flipped(path, 0.5)
    if (read, file) == ("dlpack", "npz four bits"):
        return  # DLPack has no such type
    for mode in ("auto", "require"):
        with pytest.raises(tg.IntegrityError) as caught:
            READS[read](path, mode)
        error = caught.value
        rule = "zstd.checksum" if file == FRAMES else "checksum.mismatch"
        assert (error.rule, error.tensor, error.offset) == (rule, "w", begin)
    if file != FRAMES:
        READS[read](path, "never")


@pytest.mark.parametrize("file", ["zt 0.1 crc32c", "zt 2 xxh3", FRAMES, "npz", "npz deflated", "bintensors sidecar"])
def test_every_bit_of_a_tensor(file: str, tmp_path: Path) -> None:
    """Every single one of the stored bytes, headers of frames and members included."""
    path = written(tmp_path, file, 24)
    with tg.open(path, verify="never") as archive:
        payload = archive["w"].parts["data"].payload
    right = bytearray(path.read_bytes())
    right_values = tg.load(path)["w"].tobytes()
    for bit in range(8 * payload.begin, 8 * payload.end):
        right[bit // 8] ^= 1 << bit % 8
        try:
            found = tg.load(_written(path, right))["w"]
        except tg.TensorglotError as error:
            assert error.tensor == "w"  # noqa: PT017
        else:  # a bit of a compressed stream that carries nothing
            assert file in (FRAMES, "npz deflated")
            assert found.tobytes() == right_values
        right[bit // 8] ^= 1 << bit % 8
    seen("bits flipped", 8 * (payload.end - payload.begin))


def _written(path: Path, data: bytearray) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("read", ["load", "load on one thread", "numpy", "mapped", "convert"])
@pytest.mark.parametrize("file", FILES)
def test_wherever_it_is_in_a_large_one(file: str, read: str, tmp_path: Path) -> None:
    path = written(tmp_path, file, LARGE if "four" not in file else 2 * LARGE)
    READS[read](path, "auto")
    for where in (0.0, random.Random(file + read).random(), 1.0):
        begin = flipped(path, where)
        with pytest.raises(tg.FormatError if file == FRAMES else tg.IntegrityError) as caught:
            READS[read](path, "auto")
        assert caught.value.tensor == "w"
        assert file == FRAMES or caught.value.offset == begin
        flipped(path, where)
    READS[read](path, "require")


@pytest.mark.parametrize("backend", ["pread", "mmap"])
@pytest.mark.parametrize("file", FILES)
def test_a_slice_is_compared_only_where_that_is_required(file: str, backend: Any, tmp_path: Path) -> None:
    path = written(tmp_path, file, SMALL)
    with tg.open(path, verify="require", backend=backend) as archive:
        right = archive["w"].numpy()
        assert np.array_equal(archive["w"][1:2], right[1:2])
    flipped(path, 0.9)
    with tg.open(path, backend=backend) as archive:
        if file not in (FRAMES, "npz four bits"):  # frames are compared, and four bits are read, as a whole
            assert archive["w"][:1].shape == right[:1].shape
        assert archive["before"].numpy().tolist() == [0, 1, 2, 3, 4]
    with tg.open(path, verify="require", backend=backend) as archive:
        for _ in range(2):
            with pytest.raises(tg.IntegrityError) as caught:
                archive["w"][1:2]
            assert caught.value.tensor == "w"


@pytest.mark.parametrize("read", READS)
def test_a_missing_checksum_is_an_error_where_one_is_required(read: str, tmp_path: Path) -> None:
    tg.save(tmp_path / "a.bt", {"w": values(SMALL)})
    READS[read](tmp_path / "a.bt", "auto")
    with pytest.raises(tg.IntegrityError) as caught:
        READS[read](tmp_path / "a.bt", "require")
    assert (caught.value.rule, caught.value.tensor) == ("verify.absent", "w")


def test_arrays_of_the_caller_are_compared_among_many_tensors(tmp_path: Path) -> None:
    path, out = tmp_path / "a.zt", values(SMALL)
    tg.save(path, {f"w{i:02}": values(SMALL) for i in range(20)})
    data = bytearray(path.read_bytes())
    data[tg.open(path)["w07"].offset or 0] ^= 1
    path.write_bytes(data)
    with pytest.raises(tg.IntegrityError) as caught:
        tg.load(path, backend="pread", out={"w07": out})
    assert (caught.value.rule, caught.value.tensor) == ("checksum.mismatch", "w07")
    assert tg.load(path, backend="pread", out={"w07": out}, verify="never")["w07"] is out


def test_a_slice_of_frames_that_have_checksums_needs_no_more(tmp_path: Path) -> None:
    """The last frame is wrong; under `require` the first is read all the same, for it is compared by itself."""
    path = tmp_path / "a.zt"
    tg.save(path, {"w": values(LARGE)}, format="ztensor@2", compression="zstd", checksum="xxh3", durable=False)
    with tg.open(path) as archive:
        if archive["w"].encoding != "zt.zstd-seekable/1":
            pytest.skip("not written in frames that can be sought")
    flipped(path, 0.95)
    with tg.open(path, verify="require") as archive:
        assert np.array_equal(archive["w"][:10], values(LARGE)[:10])
        with pytest.raises(tg.FormatError, match=r"rule zstd\.checksum"):
            archive["w"].numpy()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("file", FILES)
def test_every_verb_detects_a_damaged_tensor(file: str, verb: str, tmp_path: Path) -> None:
    path = written(tmp_path, file, SMALL)
    VERBS[verb](path)
    flipped(path, 0.5)
    with pytest.raises(tg.IntegrityError) as caught:
        VERBS[verb](path)
    assert caught.value.tensor == "w"


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_many_threads_read_one_archive(count: int, tmp_path: Path) -> None:
    """All of them get the values of the right tensors, and all of them the error of the wrong one."""
    path = written(tmp_path, "zt 2 xxh3", count)
    right = values(count)
    outcomes: list[str] = []

    def read(archive: tg.Archive) -> None:
        try:
            outcomes.append("right" if np.array_equal(archive["w"].numpy(), right) else "wrong")
        except tg.IntegrityError:
            outcomes.append("error")

    for expected in ("right", "error"):
        outcomes.clear()
        with tg.open(path) as archive:
            threads = [threading.Thread(target=read, args=(archive,)) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert outcomes == [expected] * 8
        flipped(path, 0.5)


@pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2", "npz"])
def test_many_small_tensors(format: str, tmp_path: Path) -> None:
    """Each is compared, in the run that it is read with."""
    path = tmp_path / "a"
    tensors = {f"t{i:04}": np.full(i % 7, i, np.float32) for i in range(3000)}
    tg.save(path, tensors, format=format, durable=False, **({} if format == "npz" else {"checksum": "sha256"}))
    loaded = tg.load(path, verify="require")
    assert all(np.array_equal(loaded[name], array) for name, array in tensors.items())
    data = path.read_bytes()
    with tg.open(path) as archive:
        offsets = {name: tensor.offset for name, tensor in archive.items() if tensor.nbytes}
    for name in random.Random(1).sample(sorted(offsets), 20):
        offset = offsets[name] or 0
        path.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
        with pytest.raises(tg.IntegrityError) as caught:
            tg.load(path)
        assert (caught.value.tensor, caught.value.offset) == (name, offset)


@pytest.mark.parametrize("mode", ["lazy", "always", None, True])
def test_other_modes_are_refused(mode: Any) -> None:
    with pytest.raises(tg.InputError, match="'auto', 'never', 'require'"):
        tg.open(tg.dumps({}, format="bintensors"), verify=mode)


PARTS: dict[str, tuple[Callable[[], Any], tuple[Callable[[tg.Tensor], object], ...]]] = {
    "ragged": (
        lambda: tg.dynd.array([[1.5, 2.5], [], [3.5]], "3 * var * float64"),
        (tg.Tensor.tolist, tg.Tensor.cid, tg.Tensor.serialize, tg.Tensor.awkward, tg.Tensor.arrow),
    ),
    "sparse": (
        lambda: tg.Tensor.of_parts(
            "w",
            "zt.sparse_csr/1",
            (2, 3),
            {"values": np.ones(3), "indices": np.array([0, 1, 2], np.uint32), "indptr": np.array([0, 2, 3], np.uint32)},
        ),
        (tg.Tensor.scipy, tg.Tensor.tolist, tg.Tensor.cid),
    ),
}


@pytest.mark.parametrize("version", ["ztensor@0.1", "ztensor@2"])
@pytest.mark.parametrize("kind", PARTS)
def test_every_part_of_a_tensor_is_compared(kind: str, version: str) -> None:
    make, reads = PARTS[kind]
    data = tg.dumps({"w": make(), "x": np.ones(2)}, format=version, checksum="sha256")
    with tg.open(data, verify="require") as archive:
        expected = archive["w"].tolist()
        spans = {name: part.payload.begin for name, part in archive["w"].parts.items()}
    assert len(spans) > 1
    for part, begin in spans.items():
        changed = bytearray(data)
        changed[begin] ^= 1
        for read in (*reads, lambda _: tg.loads(bytes(changed)), lambda t: tg.dumps({"w": t}, format=version)):  # noqa: B023
            with tg.open(bytes(changed)) as archive, pytest.raises(tg.IntegrityError) as caught:
                read(archive["w"])
            assert (caught.value.tensor, caught.value.offset) == ("w", begin), part
    assert tg.loads(data, verify="require")["w"].tolist() == expected


@pytest.mark.parametrize("name", ["a.npz", "a.zt", "b.zt"])
def test_checksums_are_verified_by_default(name: str, tmp_path: Path) -> None:
    """A file saved and read with no word about checksums."""
    path = tmp_path / name
    tg.save(path, {"v": values(SMALL) + 1, "w": values(SMALL)}, format="ztensor@2" if name == "b.zt" else None)
    tg.save(tmp_path / "same.bt", tg.load(path))
    assert tg.diff(path, tmp_path / "same.bt").same
    flipped(path, 0.5)
    for read in (lambda: tg.load(path), lambda: tg.diff(path, tmp_path / "same.bt")):
        with pytest.raises(tg.IntegrityError) as caught:
            read()
        assert (caught.value.rule, caught.value.tensor) == ("checksum.mismatch", "w")
    assert tg.load(path, names=["v"]).keys() == {"v"}
