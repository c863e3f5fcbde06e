"""BSON dumps as archives: a tensor for each vector field, through every backend, and written back."""

from __future__ import annotations

import gzip
import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorglot as tg
from bson_samples import EVERY_KIND, array, document, element, vector
from tensorglot.containers import bson as format_bson
from tensorglot.wire.bson_template import Tree, add_vector, template, weave
from tensorglot.wire.bson_vector import Row, find_kind

RNG = np.random.default_rng(6)
TENSORS: dict[str, Any] = {
    "embedding": RNG.standard_normal((300, 17), np.float32),
    "meta.small": RNG.integers(-128, 128, (300, 4), np.int8),
    "meta.bits": RNG.integers(0, 2, (300, 13)).astype(bool),
    "empty": np.empty((300, 0), np.float32),
}
DUMP = tg.dumps(TENSORS, format="bson")
WITH_OTHERS = b"".join(
    document(
        element(7, "_id", i.to_bytes(12, "big")),
        *(value for name, value in EVERY_KIND.items() if name != "vector"),
        vector("v", b"\x27\0" + TENSORS["embedding"][i].tobytes()),
        element(4, "list", array(element(10, "0", b""), vector("1", b"\x03\0" + bytes((i % 128,))))),
    )
    for i in range(300)
)


@pytest.fixture(params=["pread", "mmap", "bytes", "shared bytes", "stream", "gzip"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def open_it(data: bytes, **options: Any) -> tg.Archive:
        path = tmp_path / "x.bson"
        if request.param == "gzip":
            path = tmp_path / "x.bson.gz"
            path.write_bytes(gzip.compress(data))
        else:
            path.write_bytes(data)
        if request.param == "bytes":
            return tg.open(data, **options)
        if request.param == "shared bytes":
            return tg.open(data, backend="mmap", **options)
        if request.param == "stream":
            return tg.open(path.open("rb"), **options)
        return tg.open(path, backend="mmap" if request.param == "mmap" else "auto", **options)

    return open_it


@pytest.mark.filterwarnings("ignore::ResourceWarning")
class TestRead:
    def test_values_and_slices(self, opened: Any) -> None:
        with opened(DUMP) as archive:
            assert archive.format == "bson@1.1"
            assert sorted(archive) == sorted(TENSORS)
            for name, expected in TENSORS.items():
                tensor = archive[name]
                assert (tensor.dtype, tensor.shape, tensor.encoding) == (expected.dtype, expected.shape, "bson")
                assert np.array_equal(tensor.numpy(), expected)
                for index in np.s_[5:9], np.s_[::-3], np.s_[7], np.s_[:, 1:3], np.s_[100:200:7, ::-2], np.s_[..., :0]:
                    assert np.array_equal(tensor[index], expected[index]), (name, index)
                out = np.empty_like(expected)
                assert tensor.numpy(out) is out
                assert np.array_equal(out, expected)

    def test_what_else_documents_hold_is_stepped_over(self, opened: Any) -> None:
        with opened(WITH_OTHERS) as archive:
            assert sorted(archive) == ["list.1", "v"]
            assert np.array_equal(archive["v"].numpy(), TENSORS["embedding"])
            assert archive["list.1"].numpy().ravel().tolist() == [i % 128 for i in range(300)]

    def test_load(self, opened: Any, tmp_path: Path) -> None:
        opened(DUMP).close()
        path = next(tmp_path.iterdir())
        loaded = tg.load(path)
        assert set(loaded) == set(TENSORS)
        for name, values in loaded.items():
            assert np.array_equal(values, TENSORS[name])

    def test_rows_far_apart(self, opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(format_bson, "PIECE_NBYTES", 4000)
        data = b"".join(
            document(element(5, "x", b"\xe8\3\0\0\0" + bytes(1000)), vector("v", bytes((3, 0, i)))) for i in range(50)
        )
        with opened(data) as archive:
            assert archive["v"].numpy().ravel().tolist() == list(range(50))
            assert archive["v"][10:40:3, 0].tolist() == list(range(10, 40, 3))

    def test_pieces_smaller_than_the_tensor(self, opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(format_bson, "PIECE_NBYTES", 200)
        with opened(DUMP) as archive:
            for name, expected in TENSORS.items():
                assert np.array_equal(archive[name].numpy(), expected)
                assert b"".join(archive[name].parts["data"].payload.chunks()) == expected.tobytes()

    def test_no_documents(self, tmp_path: Path) -> None:
        (tmp_path / "none.bson").write_bytes(b"")
        assert tg.load(tmp_path / "none.bson") == {}
        (tmp_path / "plain.bson").write_bytes(document(element(10, "x", b"")) * 3)
        assert tg.load(tmp_path / "plain.bson") == {}

    @pytest.mark.parametrize(
        ("documents", "reason"),
        [
            ([vector("v", b"\x03\0a"), vector("v", b"\x03\0ab")], "int8[1], then int8[2]"),
            ([vector("v", b"\x03\0a"), element(10, "x", b"")], "1 of 2 documents"),
            ([vector("v", b"\x10\1\1")], "ignored bits"),
            ([vector("v", b"\x10")], "truncated vector"),
        ],
    )
    def test_documents_that_disagree_are_listed_with_the_reason(self, documents: list[bytes], reason: str) -> None:
        good = vector("good", b"\x03\0x")
        data = b"".join(document(one, good) for one in documents)
        with tg.open(data) as archive:
            assert archive["good"].numpy().tolist() == [[120]] * len(documents)
            assert reason in repr(archive["v"])
            for call in (archive["v"].numpy, lambda: archive["v"][0], lambda: tg.dumps(archive, format="bson")):
                with pytest.raises(tg.UnsupportedError) as caught:
                    call()
                assert reason in str(caught.value)
                assert caught.value.tensor == "v"
            with pytest.raises(tg.UnsupportedError, match=r"rule bson\.field"):
                b"".join(archive["v"].parts["data"].payload.chunks())  # type: ignore[arg-type]
        with pytest.raises(tg.FormatError, match=r"rule bson\.strict"):
            tg.open(data, strict=True)

    def test_limits(self) -> None:
        data = document(*(vector(f"v{i}", b"\x03\0a") for i in range(5)))
        with pytest.raises(tg.LimitError):
            tg.open(data, limits=tg.Limits(tensors=4))
        with pytest.raises(tg.LimitError):
            tg.open(data, limits=tg.Limits(name_nbytes=1))

    def test_the_limit_of_paths(self) -> None:
        data = document(element(3, "k" * 20_000, document(*(vector(f"{i}", b"\x03\0") for i in range(100)))))
        with pytest.raises(tg.LimitError) as caught:
            tg.open(data)
        assert (caught.value.rule, "path_ratio" in str(caught.value)) == ("bson.limit.paths", True)
        for ratio in (100, 1 << 62):
            with tg.open(data, limits=tg.Limits(path_ratio=ratio)) as archive:
                assert len(archive) == 100


class TestWrite:
    def test_round_trip(self, tmp_path: Path) -> None:
        tg.save(tmp_path / "x.bson", TENSORS)
        assert (tmp_path / "x.bson").read_bytes() == DUMP
        assert tg.dumps(dict(reversed(TENSORS.items())), format="bson") == DUMP
        with tg.open(tmp_path / "x.bson", strict=True) as archive:
            tg.save(tmp_path / "y.bson", archive)
        assert (tmp_path / "y.bson").read_bytes() == DUMP

    def test_it_is_what_encode_documents_makes(self) -> None:
        matrix = TENSORS["embedding"]
        assert tg.dumps({"embedding": matrix}, format="bson") == tg.bson.encode_documents(matrix, "embedding")

    def test_nested_documents(self) -> None:
        first = tg.bson.decode_document(DUMP[: int.from_bytes(DUMP[:4], "little")])
        assert list(first) == ["embedding", "empty", "meta"]
        assert list(first["meta"]) == ["bits", "small"]
        assert first["meta"]["bits"].bits().tolist() == TENSORS["meta.bits"][0].tolist()

    def test_any_memory_order(self) -> None:
        matrix = TENSORS["embedding"]
        for same in (np.asfortranarray(matrix), matrix.astype(">f4"), np.repeat(matrix, 2, axis=1)[:, ::2]):
            assert tg.dumps({"embedding": same}, format="bson") == tg.dumps({"embedding": matrix}, format="bson")

    def test_more_than_a_piece(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(format_bson, "PIECE_NBYTES", 1000)
        assert tg.dumps(TENSORS, format="bson") == DUMP
        assert np.array_equal(tg.loads(DUMP, strict=True)["embedding"], TENSORS["embedding"])

    def test_writer(self, tmp_path: Path) -> None:
        with tg.Writer(tmp_path / "x.bson") as out, out.stream("v", "float32", (300, 17)) as sink:
            sink.write(TENSORS["embedding"])
        assert np.array_equal(tg.load(tmp_path / "x.bson")["v"], TENSORS["embedding"])

    @pytest.mark.parametrize(
        ("tensors", "rule"),
        [
            ({"v": np.zeros((2, 3))}, "bson.write.dtype"),
            ({"v": np.zeros((2, 3), np.uint8)}, "bson.write.dtype"),
            ({"v": np.zeros(3, np.float32)}, "bson.write.shape"),
            ({"v": np.zeros((2, 3, 4), np.float32)}, "bson.write.shape"),
            ({"v": np.zeros((0, 3), np.float32)}, "bson.write.shape"),
            ({"v": np.zeros((), np.float32)}, "bson.write.shape"),
            ({"v": np.zeros((2, 3), np.float32), "w": np.zeros((3, 3), np.float32)}, "bson.write.rows"),
            ({"a": np.zeros((2, 3), np.float32), "a.b": np.zeros((2, 3), np.float32)}, "bson.path"),
            ({"a.b.c": np.zeros((2, 3), np.float32), "a.b": np.zeros((2, 3), np.float32)}, "bson.path"),
            ({"v": np.zeros((1, 1 << 22), np.float32)}, "bson.document.size"),
        ],
    )
    def test_what_it_cannot_hold(self, tensors: Any, rule: str) -> None:
        with pytest.raises(tg.UnsupportedError) as caught:
            tg.dumps(tensors, format="bson")
        assert caught.value.rule == rule

    @pytest.mark.parametrize("name", ["", "a..b", ".", "a\0b"])
    def test_names_that_are_not_a_path(self, name: str) -> None:
        with pytest.raises(tg.InputError, match="rule bson.key" if "\0" in name else "rule bson.path"):
            tg.dumps({name: np.zeros((1, 1), np.float32)}, format="bson")

    @pytest.mark.parametrize("option", [{"metadata": {"a": "b"}}, {"compression": "zstd"}, {"checksum": "crc32c"}])
    def test_options_it_does_not_have(self, option: Any) -> None:
        with pytest.raises(tg.UnsupportedError, match=f"rule save.{next(iter(option))}"):
            tg.dumps({"v": np.zeros((1, 1), np.float32)}, format="bson", **option)

    def test_nothing(self) -> None:
        assert tg.dumps({}, format="bson") == b""


class TestTemplates:
    ROW = Row(find_kind("int8"), 0, 2)

    def test_a_path_that_is_both(self) -> None:
        """A vector inside of one, and one where there is a document, in either order."""
        for first, second in (("a.b", "a.b.c"), ("a.b.c", "a.b"), ("a", "a")):
            tree: Tree = {}
            add_vector(tree, first, self.ROW)
            with pytest.raises(tg.UnsupportedError) as caught:
                add_vector(tree, second, self.ROW)
            assert caught.value.rule == "bson.path"

    @pytest.mark.parametrize("data", [b"", b"abc", b"abcde"])
    def test_a_column_of_another_size(self, data: bytes) -> None:
        tree: Tree = {}
        add_vector(tree, "v", self.ROW)
        assert len(weave(2, template(tree), {"v": b"abcd"})) == 2 * (5 + 3 + 5 + 2 + 2)
        with pytest.raises(tg.InputError) as caught:
            weave(2, template(tree), {"v": data})
        assert caught.value.rule == "bson.weave"


class TestStrict:
    CANONICAL = tg.dumps({"a": np.zeros((2, 2), np.int8), "b": np.zeros((2, 2), np.int8)}, format="bson")
    ONE = vector("a", b"\x03\0\0\0")
    TWO = vector("b", b"\x03\0\0\0")

    @pytest.mark.parametrize(
        "data",
        [
            document(TWO, ONE) * 2,
            document(element(10, "_id", b""), ONE, TWO) * 2,
            document(ONE, TWO) + document(TWO, ONE),
            document(ONE, TWO) + document(ONE, TWO, element(10, "x", b"")),
            document(element(10, "x", b"")),
            document(),
            gzip.compress(CANONICAL, mtime=0),
            document(vector("a.b", b"\x03\0\0\0")),
        ],
    )
    def test_one_byte_string_for_a_value(self, data: bytes) -> None:
        assert document(self.ONE, self.TWO) * 2 == self.CANONICAL
        tg.loads(self.CANONICAL, format="bson", strict=True)
        tg.loads(data, format="bson")
        with pytest.raises(tg.FormatError) as caught:
            tg.loads(data, format="bson", strict=True)
        assert caught.value.rule == "bson.strict"


class TestDetection:
    def test_by_suffix_magic_and_shape(self, tmp_path: Path) -> None:
        for name, data in (
            ("a.bson", DUMP),
            ("a.bson.gz", gzip.compress(DUMP)),
            ("a", DUMP),
            ("a.gz", gzip.compress(DUMP)),
        ):
            (tmp_path / name).write_bytes(data)
            with tg.open(tmp_path / name) as archive:
                assert archive.format == "bson@1.1"
        assert tg.open(DUMP).format == "bson@1.1"

    @pytest.mark.parametrize("system", [*range(20), 255])
    def test_gzip_of_every_system(self, system: int) -> None:
        """RFC 1952 ends at 13; zlib writes 16 to 19 on systems that are newer, 19 on those of Apple."""
        data = bytearray(gzip.compress(DUMP))
        data[9] = system
        assert tg.open(bytes(data)).format == "bson@1.1"
        assert np.array_equal(tg.bson.decode_matrix(bytes(data), "embedding"), TENSORS["embedding"])

    @pytest.mark.parametrize("length", [0x8B1F, 0x018B1F, 0x088B1F])
    def test_a_length_that_begins_as_gzip_does(self, length: int, tmp_path: Path) -> None:
        """The length of a document or of a header is no magic of gzip."""
        count = length - len(document(vector("v", b"\3\0")))
        values = np.arange(2 * count, dtype=np.int8).reshape(2, count)
        tg.save(tmp_path / "a.bson", {"v": values})
        data = (tmp_path / "a.bson").read_bytes()
        assert data[:2] == b"\x1f\x8b"
        for source in (tmp_path / "a.bson", data, io.BytesIO(data)):
            assert np.array_equal(tg.load(source)["v"], values)
            assert np.array_equal(tg.bson.decode_matrix(source, "v"), values)
        header = b'{"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}}'.ljust(length)
        assert tg.loads(length.to_bytes(8, "little") + header + b"\1\2")["a"].tolist() == [1, 2]

    def test_what_is_not_bson(self) -> None:
        for data in (b"\x05\0\0\0\x99", b"\xff\xff\xff\x7f\x01aaaaaaaa", b"abcdefgh"):
            with pytest.raises(tg.FormatError, match=r"rule format\.unknown"):
                tg.open(data)
        with pytest.raises(tg.FormatError, match=r"rule bson\.length"):
            tg.open(gzip.compress(b"text"))

    def test_row(self) -> None:
        row = next(row for row in tg.formats() if row.name == "bson")
        assert row.dtypes == ("bool", "float32", "int8")


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c.d", "c.e", "é"]), st.sampled_from(["f4", "i1", "?"]), min_size=1),
    st.integers(1, 6),
    st.integers(0, 9),
    st.integers(0, 2**32 - 1),
)
def test_round_trip(fields: dict[str, str], rows: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, dtype in fields.items():
        raw = rng.integers(0, 2 if dtype == "?" else 256, (rows, columns, np.dtype(dtype).itemsize), np.uint8)
        tensors[name] = raw.view(dtype)[..., 0]
    data = tg.dumps(tensors, format="bson")
    found = tg.loads(data, strict=True)
    assert {name: values.tobytes() for name, values in found.items()} == {n: v.tobytes() for n, v in tensors.items()}
    assert tg.dumps(found, format="bson") == data


def test_the_shortest_file_is_known_by_its_bytes() -> None:
    """A document without fields."""
    with tg.open(b"\5\0\0\0\0") as archive:
        assert (archive.format, len(archive)) == ("bson@1.1", 0)
    with pytest.raises(tg.FormatError, match=r"rule format\.unknown"):
        tg.open(b"\5\0\0\0")


@pytest.mark.parametrize("nbytes", [16_793_600, 16_793_601])
def test_a_document_is_as_large_as_in_a_dump_of_mongodb(nbytes: int) -> None:
    """16 MiB, and 16 KiB that MongoDB adds itself."""
    data = nbytes - 13
    document = struct.pack("<i", nbytes) + b"\x05a\0" + struct.pack("<iB", data, 0) + bytes(data) + b"\0"
    if nbytes == 16_793_600:
        tg.open(document).close()
        return
    with pytest.raises(tg.FormatError) as caught:
        tg.open(document)
    assert caught.value.rule == "bson.document.size"
