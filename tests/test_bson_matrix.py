"""Whole matrices: to payloads and documents, and back from everything that has vectors."""

from __future__ import annotations

import gzip
import io
import mmap
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tensorglot as tg
from bounds import seconds
from bson_samples import EVERY_KIND, array, document, element, vector
from peers import needs
from tensorglot import bson as vectors
from tensorglot.bson import (
    Int64,
    Quantized,
    Raw,
    Vector,
    decode_document,
    decode_matrix,
    encode_document,
    encode_documents,
    encode_matrix,
)
from tensorglot.errors import FormatError, InputError, LimitError, TruncatedError, UnsupportedError
from tensorglot.kernels import bson_rows
from tensorglot.wire import bson as wire

RNG = np.random.default_rng(5)
MATRICES = {
    "float32": RNG.standard_normal((7, 5), np.float32),
    "int8": RNG.integers(-128, 128, (7, 5), np.int8),
    "packed_bit": RNG.integers(0, 256, (7, 5), np.uint8),
}


def split_documents(raw: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(raw):
        end = at + int.from_bytes(raw[at : at + 4], "little")
        found.append(raw[at:end])
        at = end
    return found


class TestEncode:
    @pytest.mark.parametrize("dtype", MATRICES)
    def test_payloads_are_those_of_single_vectors(self, dtype: str) -> None:
        matrix = MATRICES[dtype]
        assert encode_matrix(matrix) == encode_matrix(matrix, dtype) == [vectors.encode(row, dtype) for row in matrix]
        assert encode_matrix(matrix.tolist(), dtype) == encode_matrix(matrix, dtype)
        assert encode_matrix(np.asfortranarray(matrix)[::-1]) == encode_matrix(matrix)[::-1]

    def test_bits(self) -> None:
        bits = RNG.integers(0, 2, (6, 13)).astype(bool)
        payloads = encode_matrix(bits)
        assert payloads == [vectors.encode(row) for row in bits]
        assert [vectors.decode(payload).bits().tolist() for payload in payloads] == bits.tolist()

    @pytest.mark.parametrize("dtype", MATRICES)
    @pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (1, 1)])
    def test_small(self, shape: tuple[int, int], dtype: str) -> None:
        matrix = np.zeros(shape, MATRICES[dtype].dtype)
        assert len(encode_matrix(matrix)) == shape[0]
        raw = encode_documents(matrix, "v")
        assert len(split_documents(raw)) == shape[0]
        if shape[0]:
            bits = 8 if dtype == "packed_bit" else 1
            assert decode_matrix(raw, "v").shape == (shape[0], bits * shape[1])

    @pytest.mark.parametrize(
        ("bad", "rule"), [([1.0], "rank"), ([[[1.0]]], "rank"), ([[1.0], [1.0, 2.0]], "kind"), ([[300]], "range")]
    )
    def test_refused(self, bad: Any, rule: str) -> None:
        with pytest.raises(InputError) as caught:
            encode_matrix(bad, "int8" if bad == [[300]] else None)
        assert caught.value.rule == f"bson.vector.{rule}"

    def test_the_element_out_of_range_is_named(self) -> None:
        with pytest.raises(InputError, match=r"\(1, 2\) is 1e\+39"):
            encode_matrix(np.array([[0, 0, 0], [0, 0, 1e39]]))

    @pytest.mark.parametrize("key", ["v", "a.b", "a.b.c.d.e", "é.😀"])
    @pytest.mark.parametrize(
        "ids",
        [
            None,
            range(7),
            np.arange(7),
            [2**40 + i for i in range(7)],
            [1, 2**40, 3, 4, 5, 6, 7],
            np.array([0, 2**62], np.uint64).repeat([6, 1]),
            ["a", "bb", "", "d", "e", "f", "g"],
            [Raw(7, bytes((i,)) * 12) for i in range(7)],
            [1, "x", None, True, 2.5, b"bytes", {"a": [1]}],
            [Int64(i) for i in range(7)],
            np.array(["a", "bb", "", "d", "e", "f", "g"]),
            np.array([1, "x", None, True, 2.5, b"bytes", {"a": [1]}], object),
            np.arange(7) > 3,
        ],
    )
    def test_documents(self, key: str, ids: Any) -> None:
        matrix = MATRICES["float32"]
        raw = encode_documents(matrix, key, ids)
        for i, data in enumerate(split_documents(raw)):
            fields = decode_document(data)
            if ids is not None:
                assert next(iter(fields)) == "_id"
                assert fields.pop("_id") == ids[i]
            value: Any = fields
            for name in key.split("."):
                assert list(value) == [name]
                value = value[name]
            assert value == Vector(matrix[i])
        assert np.array_equal(decode_matrix(raw, key), matrix)
        assert np.array_equal(decode_matrix(raw), matrix)

    @pytest.mark.parametrize(
        ("key", "ids", "rule"),
        [
            ("_id", None, "key"), ("_id.x", None, "key"), ("", None, "path"), ("a..b", None, "path"),
            ("a\0", None, "key"), ("v", [1], "ids"), ("v", range(8), "ids"), ("v", [object()] * 7, "value"),
            ("v", np.zeros(7), "ids"), ("v", [2**63] * 7, "ids"), ("v", np.zeros((7, 2), int), "ids"),
            ("v", np.array(7), "ids"), ("v", dict.fromkeys(range(7)), "ids"), ("v", np.zeros(7, "M8[ns]"), "ids"),
            ("v", [np.datetime64(i, "ns") for i in range(7)], "value"),
            ("v", [np.timedelta64(i, "ns") for i in range(7)], "value"),
        ],
    )  # fmt: skip
    def test_refused_documents(self, key: str, ids: Any, rule: str) -> None:
        with pytest.raises(InputError) as caught:
            encode_documents(MATRICES["int8"], key, ids)
        assert caught.value.rule == f"bson.{rule}"

    @pytest.mark.parametrize("ids", [None, [], (), np.array([]), np.array([], object)])
    def test_no_documents(self, ids: Any) -> None:
        assert encode_documents(MATRICES["int8"][:0], "v", ids) == b""
        with pytest.raises(InputError, match=r"rule bson\.path"):
            encode_documents(MATRICES["int8"][:0], "", ids)

    def test_a_document_that_mongodb_would_not_store(self) -> None:
        with pytest.raises(UnsupportedError, match=r"rule bson\.document\.size"):
            encode_documents(np.zeros((1, 1 << 22), np.float32), "v")

    def test_larger_than_a_block(self) -> None:
        matrix = RNG.standard_normal((2000, 700), np.float32)
        raw = encode_documents(matrix, "v", range(2000))
        assert isinstance(raw, bytes)
        assert np.array_equal(decode_matrix(raw, "v"), matrix)
        assert vectors.decode_document(split_documents(raw)[1999])["_id"] == 1999


SPARSE = [  # documents 1 and 4 have no vector, 2 has other fields, all with one key: only keys on the path are compared
    document(element(0x10, "_id", b"\0\0\0\0"), vector("v", b"\x27\0" + bytes(8))),
    document(element(0x10, "_id", b"\1\0\0\0")),
    document(element(0x10, "_id", b"\2\0\0\0"), *EVERY_KIND.values(), vector("v", b"\x27\0" + b"\0\0\x80\x3f" * 2)),
    document(vector("v", b"\x27\0" + bytes(8)), element(0x10, "_id", b"\3\0\0\0")),
    document(element(0x10, "_id", b"\4\0\0\0"), element(0x0A, "v", b"")),
]


class TestMissing:
    def sources(self, tmp_path: Path) -> Iterator[Any]:
        raw = b"".join(SPARSE)
        yield raw
        yield bytearray(raw)
        yield memoryview(raw)
        (tmp_path / "x.bson").write_bytes(raw)
        yield tmp_path / "x.bson"
        yield str(tmp_path / "x.bson")
        (tmp_path / "x.bson.gz").write_bytes(gzip.compress(raw))
        yield tmp_path / "x.bson.gz"
        yield list(SPARSE)
        yield iter(SPARSE)
        documents = [decode_document(data) for i, data in enumerate(SPARSE) if i != 2]
        documents.insert(2, {"_id": 2, "v": Vector([1.0, 1.0])})
        yield documents
        yield (d for d in documents)

    def test_every_source(self, tmp_path: Path) -> None:
        for source in self.sources(tmp_path):
            matrix, ids = decode_matrix(source, "v", on_missing="skip", ids=True)
            assert matrix.tolist() == [[0, 0], [1, 1], [0, 0]]
            assert ids == [0, 2, 3]
        for source in self.sources(tmp_path):
            matrix, ids = decode_matrix(source, "v", on_missing="nan", ids=True)
            assert np.isnan(matrix).tolist() == [[False] * 2, [True] * 2, [False] * 2, [False] * 2, [True] * 2]
            assert ids == [0, 1, 2, 3, 4]
        for source in self.sources(tmp_path):
            with pytest.raises(FormatError, match="document 1 "):
                decode_matrix(source, "v")

    def test_the_only_field_of_documents_is_found(self) -> None:
        documents = [{"_id": i, "a": {"v": Vector([i, 1.0]), "w": [1]}} for i in range(3)]
        for source in (documents, tuple(documents), iter(documents)):
            matrix, ids = decode_matrix(source, ids=True)
            assert (matrix.tolist(), ids) == ([[0, 1], [1, 1], [2, 1]], [0, 1, 2])
        for wrong in ([{"a": Vector([1.0]), "b": Vector([1.0])}], iter([{"a": 1}])):
            with pytest.raises(InputError, match="pass key=") as caught:
                decode_matrix(wrong)
            assert caught.value.rule == "bson.key"
        around: dict[str, Any] = {"v": Vector([1.0])}
        around["self"] = around
        assert decode_matrix([around]).tolist() == [[1]]
        wide = {str(i): {"x": i} for i in range(50_000)} | {"v": Vector([1.0])}
        assert seconds(lambda: decode_matrix([wide]), 1) < 1

    def test_payloads_of_every_kind_of_column(self) -> None:
        pa = needs("pyarrow")
        payloads = encode_matrix(np.eye(3, dtype=np.float32))
        column = pa.array(payloads)
        for source in (
            payloads,
            iter(payloads),
            column,
            pa.chunked_array([column[:1], column[1:]]),
            np.array(payloads, object),
        ):
            assert np.array_equal(decode_matrix(source), np.eye(3))
        assert decode_matrix(pa.array([None, *payloads]), on_missing="skip").shape == (3, 3)

    def test_missing_before_the_first_vector(self) -> None:
        source = [SPARSE[1]] * 2500 + [SPARSE[0]]
        matrix = decode_matrix(source, "v", on_missing="nan")
        assert matrix.shape == (2501, 2)
        assert np.isnan(matrix[:2500]).all()
        assert matrix[2500].tolist() == [0, 0]
        assert decode_matrix(source, "v", on_missing="skip").shape == (1, 2)

    def test_empty_vectors_in_many_batches(self) -> None:
        for payload in (b"\x03\0", b"\x27\0", b"\x10\0"):
            assert decode_matrix([document(vector("v", payload))] * 2500, "v").shape == (2500, 0)

    def test_missing_everywhere(self) -> None:
        for how, rows in (("skip", 0), ("nan", 2)):
            assert decode_matrix([SPARSE[1]] * 2, "v", on_missing=how).shape == (rows, 0)  # type: ignore[call-overload]
        assert decode_matrix(b"", "v").shape == (0, 0)
        assert decode_matrix([]).shape == (0, 0)

    @pytest.mark.parametrize("payload", [b"\x03\0ab", b"\x10\0ab"])
    @pytest.mark.parametrize("first", [True, False])
    def test_no_nan_in_integers(self, payload: bytes, first: bool) -> None:
        documents = [document(vector("v", payload)), document()]
        with pytest.raises(InputError, match=r"rule bson\.on_missing"):
            decode_matrix(documents if first else documents[::-1], "v", on_missing="nan")
        with pytest.raises(InputError, match=r"rule bson\.on_missing"):
            decode_matrix([documents[1]] * 1000 + [documents[0]], "v", on_missing="nan")
        assert decode_matrix(documents, "v", on_missing="skip").shape == (1, 16 if payload[0] == 0x10 else 2)

    def test_another_kind_is_never_missing(self) -> None:
        for other in (element(4, "v", array()), element(5, "v", b"\1\0\0\0\0a"), element(0x10, "v", bytes(4))):
            for how in ("error", "skip", "nan"):
                with pytest.raises(FormatError) as caught:
                    decode_matrix(document(other), "v", on_missing=how)  # type: ignore[call-overload]
                assert caught.value.rule == "bson.field.kind"
        for value in (b"plain bytes", 3, [1.0]):
            with pytest.raises(FormatError, match=r"rule bson\.field\.kind"):
                decode_matrix([{"v": value}], "v")

    def test_payloads(self) -> None:
        payloads = encode_matrix(MATRICES["float32"])
        assert np.array_equal(decode_matrix(payloads), MATRICES["float32"])
        assert np.array_equal(decode_matrix(map(memoryview, payloads)), MATRICES["float32"])
        assert np.array_equal(decode_matrix(map(vectors.decode, payloads)), MATRICES["float32"])
        assert np.array_equal(decode_matrix(payloads * 300), np.tile(MATRICES["float32"], (300, 1)))
        assert decode_matrix([payloads[0], None], on_missing="skip").shape == (1, 5)
        for bad in (["text"], [3], [object()]):
            with pytest.raises(FormatError, match=r"rule bson\.field\.kind"):
                decode_matrix(bad)
        with pytest.raises(InputError, match=r"rule bson\.ids"):
            decode_matrix(payloads, ids=True)

    @pytest.mark.parametrize("source", [3, None, object()])
    def test_no_source(self, source: Any) -> None:
        with pytest.raises(InputError, match=r"rule bson\.source"):
            decode_matrix(source, "v")

    def test_unknown_choice(self) -> None:
        with pytest.raises(InputError, match=r"rule bson\.on_missing"):
            decode_matrix(b"", "v", on_missing="zero")  # type: ignore[call-overload]


class TestDisagreement:
    @pytest.mark.parametrize(
        ("other", "fault"),
        [
            (b"\x03\0abc", "disagree"),
            (b"\x10\0ab", "disagree"),
            (b"\x10\1\0\0", "disagree"),
            (b"\x27\0", "disagree"),
            (b"", "size"),
            (b"\x03", "size"),
            (b"\x99\0ab", "dtype"),
            (b"\x27\0abc", "length"),
        ],
    )
    def test_rows_must_have_one_dtype_and_length(self, other: bytes, fault: str) -> None:
        good = b"\x03\0ab"
        for source in ([good, good, other], [document(vector("v", p)) for p in (good, good, other)]):
            key = None if source[0] is good else "v"
            with pytest.raises(FormatError, match=f"vector 2.*rule bson.vector.{fault}"):
                decode_matrix(source, key)
            with pytest.raises(FormatError, match=f"vector 1500.*rule bson.vector.{fault}"):
                decode_matrix([source[0]] * 1500 + [source[2]], key)
            with pytest.raises(FormatError, match=f"rule bson.vector.{fault}"):
                decode_matrix([source[2], source[0]], key)

    @pytest.mark.parametrize(
        ("bad", "words", "after"),
        [
            (vector("v", b"\x03\0abc"), "vector 2301 is int8\\[3\\]", 5 + 7),
            (element(1, "v", bytes(8)), "document 2301 is double", 7),
            (element(8, "v", b"\2"), "bool", 4),
        ],
    )
    def test_the_document_and_the_byte_are_named_in_every_batch(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: bytes, words: str, after: int
    ) -> None:
        good = document(vector("v", b"\x03\0ab"))
        documents = [document(), *[good] * 2300, document(bad), good]
        offset = sum(map(len, documents[:-2])) + after
        (tmp_path / "x.bson").write_bytes(b"".join(documents))
        monkeypatch.setattr(wire.pieces, "__defaults__", (1000,))
        for source in (b"".join(documents), documents, tmp_path / "x.bson"):
            with pytest.raises(FormatError, match=words) as caught:
                decode_matrix(source, "v", on_missing="skip")
            assert caught.value.offset == offset
        with pytest.raises(FormatError, match="vector 2301 is int8"):
            decode_matrix([None, *[b"\x03\0ab"] * 2300, b"\x03\0abc"], on_missing="skip")
        plain = [{}, *[{"v": Vector([97, 98], "int8")}] * 2300, {"v": [1.0]}]
        with pytest.raises(FormatError, match="'v' of document 2301 is list, not a vector"):
            decode_matrix(plain, "v", on_missing="skip")

    def test_the_field_may_be_left_out_if_there_is_one(self) -> None:
        both = document(vector("v", b"\x03\0ab"), vector("w", b"\x03\0ab"))
        with pytest.raises(InputError, match="'v', 'w'"):
            decode_matrix(both)
        with pytest.raises(InputError, match="none"):
            decode_matrix(document())
        dotted = document(vector("a.b", b"\x03\0ab"))
        assert decode_matrix(dotted).tolist() == [[97, 98]]

    def test_ignored_bits(self) -> None:
        raw = document(vector("v", b"\x10\3\x08")) + document(vector("v", b"\x10\3\xff"))
        with pytest.raises(FormatError) as caught:
            decode_matrix(raw, "v")
        assert caught.value.rule == "bson.vector.ignored_bits"
        bits = [[0, 0, 0, 0, 1], [1] * 5]
        assert decode_matrix(raw, "v", ignored_bits="keep").astype(int).tolist() == bits
        assert decode_matrix(raw, "v", ignored_bits="zero").astype(int).tolist() == bits
        assert decode_matrix(raw, "v", ignored_bits="keep", packed=True).data.tolist() == [[8], [255]]
        out = np.zeros((2, 1), np.uint8)
        assert decode_matrix(raw, "v", out, ignored_bits="zero", packed=True).data is out
        assert out.tolist() == [[8], [248]]


class TestOut:
    RAW = encode_documents(MATRICES["float32"], "v")

    def test_filled(self) -> None:
        out = np.zeros((9, 5), np.float32)
        result = decode_matrix(self.RAW, "v", out)
        assert result.base is out
        assert np.array_equal(out[:7], MATRICES["float32"])
        assert not out[7:].any()
        decode_matrix(split_documents(self.RAW) * 300, "v", np.empty((2100, 5), np.float32))

    def test_without_vectors(self) -> None:
        out = np.zeros((4, 5), np.float32)
        raw = encode_document({"a": 1}) * 3
        rows = decode_matrix(raw, "v", out, "nan")
        assert (rows.base is out, rows.shape) == (True, (3, 5))
        assert np.isnan(rows).all()
        assert not out[3:].any()
        for dtype in (np.float32, np.int8, np.bool_):
            for source, on_missing in ((raw, "skip"), (b"", "error")):
                out = np.ones((4, 5), dtype)
                assert decode_matrix(source, "v", out, on_missing).shape == (0, 5)
                assert out.all()
        for wrong in (np.zeros((2, 5), np.float32), np.zeros((3, 5), np.int8), np.zeros(15, np.float32)):
            with pytest.raises(InputError, match=r"rule out\.shape"):
                decode_matrix(raw, "v", wrong, "nan")

    @pytest.mark.parametrize(
        "out",
        [
            np.zeros((6, 5), np.float32),
            np.zeros((7, 4), np.float32),
            np.zeros((7, 5), np.float64),
            np.zeros(35, np.float32),
            np.zeros((5, 7), np.float32).T,
            np.zeros((14, 5), np.float32)[::2],
            np.frombuffer(bytes(140), np.float32).reshape(7, 5),
        ],
    )
    def test_refused(self, out: Any) -> None:
        with pytest.raises(InputError):
            decode_matrix(self.RAW, "v", out)


class TestFiles:
    @pytest.mark.parametrize("key", ["v", None])
    def test_file_objects_and_buffers(self, key: str | None, tmp_path: Path) -> None:
        """Line feeds in the data are data: a file is not read line by line."""
        matrix = np.full((3000, 8), np.frombuffer(b"\n" * 4, np.float32)[0])
        raw = encode_documents(matrix, "v", range(3000))
        (tmp_path / "x.bson").write_bytes(raw)
        with (tmp_path / "x.bson").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            packed = gzip.compress(raw)
            buffers = (mapped, np.frombuffer(raw, np.uint8), packed, bytearray(packed), np.frombuffer(packed, np.uint8))
            for source in (file, io.BytesIO(raw), io.BytesIO(packed), *buffers):
                assert np.array_equal(decode_matrix(source, key), matrix)
        assert vectors.inspect(packed) == vectors.inspect(raw)
        assert vectors.inspect(io.BytesIO(raw)) == vectors.inspect(raw)

    def test_a_text_file_is_refused(self) -> None:
        with pytest.raises(InputError, match="binary mode"):
            decode_matrix(io.StringIO("text"))

    def test_in_pieces(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        matrix = RNG.standard_normal((5000, 9), np.float32)
        raw = encode_documents(matrix, "v", range(5000))
        (tmp_path / "x.bson").write_bytes(raw)
        (tmp_path / "x.gz").write_bytes(gzip.compress(raw[:1000]) + gzip.compress(raw[1000:]))
        monkeypatch.setattr(wire.pieces, "__defaults__", (1000,))
        for name in ("x.bson", "x.gz"):
            found, ids = decode_matrix(tmp_path / name, "v", ids=True)
            assert np.array_equal(found, matrix)
            assert ids == list(range(5000))

    def test_broken_gzip(self, tmp_path: Path) -> None:
        whole = gzip.compress(document(vector("v", b"\x03\0a")) * 3)
        path = tmp_path / "x"
        for cut in range(3, len(whole)):
            path.write_bytes(whole[:cut])
            with pytest.raises(TruncatedError):
                decode_matrix(path, "v")
        for junk in (b"junk", b"\0", whole[:5]):
            path.write_bytes(whole + junk)
            with pytest.raises(FormatError):
                decode_matrix(path, "v")
        for at in range(2, len(whole)):
            path.write_bytes(whole[:at] + bytes((whole[at] ^ 0x40,)) + whole[at + 1 :])
            if at in (4, 5, 6, 7, 8, 9):  # time, flags and system of the gzip header: not covered
                continue
            with pytest.raises(FormatError):
                decode_matrix(path, "v")

    def test_a_gzip_bomb_stops_at_the_first_document(self, tmp_path: Path) -> None:
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        zeros = bytes(1 << 20)
        (tmp_path / "x").write_bytes(b"".join(packer.compress(zeros) for _ in range(60)) + packer.flush())
        with pytest.raises(FormatError, match=r"rule gzip\.limit\.ratio"):
            decode_matrix(tmp_path / "x", "v")
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        start = packer.compress(b"\xff\xff\xff\x7f" + zeros)
        (tmp_path / "x").write_bytes(start + b"".join(packer.compress(zeros) for _ in range(60)) + packer.flush())
        with pytest.raises(LimitError):
            decode_matrix(tmp_path / "x", "v")

    def test_a_gzip_bomb_of_good_documents_stops_at_the_ratio(self, tmp_path: Path) -> None:
        one = document(vector("v", b"\x03\0" + bytes(1000)))
        (tmp_path / "x").write_bytes(gzip.compress(one * 5_000))
        for read in (lambda: decode_matrix(tmp_path / "x", "v"), lambda: tg.open(tmp_path / "x")):
            with pytest.raises(LimitError) as caught:
                read()
            assert caught.value.rule == "gzip.limit.ratio"
        with tg.open(tmp_path / "x", limits=tg.Limits(gzip_ratio=1100)) as archive:
            assert archive["v"].shape == (5_000, 1000)
        (tmp_path / "x").write_bytes(gzip.compress(one * 1_000))
        assert decode_matrix(tmp_path / "x", "v").shape == (1_000, 1000)

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            decode_matrix(tmp_path / "none.bson", "v")
        with pytest.raises(InputError, match=r"rule source\.regular"):
            decode_matrix(tmp_path, "v")


class TestInspect:
    def test_fields(self) -> None:
        raw = encode_documents(MATRICES["float32"], "a.b") + document(vector("w", b"\x10\3\x08"))
        one, two = vectors.inspect(raw)
        assert (one.name, one.dtype, one.count, one.padding, one.vectors, one.documents) == (
            "a.b",
            "float32",
            5,
            0,
            7,
            8,
        )
        assert one.trouble == "7 of 8 documents have a vector here"
        assert (two.name, two.dtype, two.count, two.padding) == ("w", "packed_bit", 5, 3)
        assert two.to_dict()["vectors"] == 1
        with pytest.raises(InputError, match=r"rule bson\.source"):
            vectors.inspect([raw])


class TestKernel:
    """The kernels refuse positions that do not fit, so that no caller can make them read or write elsewhere."""

    def test_gather(self) -> None:
        data, out = bytes(10), bytearray(4)
        for begins in ([-1, 0], [0, 9], [0, 2**62], [0, -(2**62)]):
            assert bson_rows.gather(data, np.array(begins, np.int64), 2, out)[0] == bson_rows.PAST_END
        for nbytes in (-1, 1, 3, 2**40):
            assert bson_rows.gather(data, np.array([0, 0], np.int64), nbytes, out)[0] == bson_rows.OTHER_SIZE
        assert bson_rows.gather(b"", np.array([0], np.int64), 2, bytearray(2))[0] == bson_rows.PAST_END

    def test_scatter(self) -> None:
        for at, stride, first, last, nbytes in ((0, 2, 0, 3, 2), (-1, 2, 0, 1, 1), (1, 2, 0, 2, 2), (0, 2, -1, 2, 2)):
            assert (
                bson_rows.scatter(bson_rows.blank(4), at, stride, first, last, bytes(4), nbytes) == bson_rows.OTHER_SIZE
            )
        assert bson_rows.scatter(bson_rows.blank(4), 0, 2, 0, 2, bytes(3), 2) == bson_rows.OTHER_SIZE

    def test_payloads(self) -> None:
        assert bson_rows.gather_payloads([b"ab", b"ab"], b"a", 2, bytearray(4))[0] == bson_rows.OTHER_SIZE
        assert bson_rows.gather_payloads([b"ab", b"cb"], b"a", 1, bytearray(2)) == (bson_rows.OTHER_HEAD, 1)
        assert bson_rows.gather_payloads([b"ab"], b"a", 1, bytearray(2))[0] == bson_rows.OTHER_SIZE
        assert bson_rows.split(b"abcd", 3, 2, b"x") == []


@given(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 8), st.integers(0, 8)), elements=st.floats(width=32)),
    st.sampled_from(["v", "a.v", "x.y.z"]),
    st.booleans(),
)
def test_round_trip(matrix: np.ndarray[Any, Any], key: str, with_ids: bool) -> None:
    raw = encode_documents(matrix, key, range(len(matrix)) if with_ids else None)
    assert decode_matrix(raw, key).tobytes() == matrix.tobytes()
    assert decode_matrix(encode_matrix(matrix)).tobytes() == matrix.tobytes()


class TestQuantize:
    MATRIX = RNG.standard_normal((200, 37), np.float32) * np.linspace(0.01, 100, 37, dtype=np.float32)

    def test_int8_comes_back_to_half_a_step(self) -> None:
        quantized = vectors.quantize(self.MATRIX)
        assert (quantized.data.dtype, quantized.dtype, quantized.padding) == (np.int8, "int8", 0)
        step = (self.MATRIX.max(axis=0).astype(np.float64) - self.MATRIX.min(axis=0)) / 255
        assert (np.abs(quantized.dequantize() - self.MATRIX) <= step * 0.5000001 + 1e-6).all()
        assert quantized.data.min() == -128
        assert quantized.data.max() == 127

    def test_a_query_with_the_ranges_of_its_corpus(self) -> None:
        corpus = vectors.quantize(self.MATRIX)
        assert corpus.low is not None
        assert corpus.high is not None
        query = vectors.quantize(self.MATRIX[:3], ranges=(corpus.low, corpus.high))
        assert np.array_equal(query.data, corpus.data[:3])
        outside = vectors.quantize(self.MATRIX[:1] * 1e6, ranges=(corpus.low, corpus.high))
        assert set(np.unique(outside.data)) <= {-128, 127}

    def test_a_dimension_that_is_constant(self) -> None:
        quantized = vectors.quantize([[3.0, 1.0], [3.0, 2.0]])
        assert quantized.dequantize().tolist() == [[3.0, 1.0], [3.0, 2.0]]

    def test_the_widest_range(self) -> None:
        largest = float(np.finfo(np.float32).max)
        assert vectors.quantize([[-largest], [largest]]).data.tolist() == [[-128], [127]]

    def test_bits(self) -> None:
        quantized = vectors.quantize(self.MATRIX, to="packed_bit")
        assert (quantized.dtype, quantized.padding, quantized.data.shape) == ("packed_bit", 3, (200, 5))
        assert np.array_equal(np.unpackbits(quantized.data, axis=1, count=37), self.MATRIX > 0)
        payloads = encode_matrix(quantized)
        assert vectors.decode(payloads[0]).bits().tolist() == (self.MATRIX[0] > 0).tolist()
        with pytest.raises(InputError, match=r"rule quantize\.bits"):
            quantized.dequantize()

    def test_it_is_written_as_it_is(self) -> None:
        quantized = vectors.quantize(self.MATRIX)
        assert np.array_equal(decode_matrix(encode_documents(quantized, "v")), quantized.data)
        assert np.array_equal(np.asarray(quantized), quantized.data)
        assert repr(quantized) == "Quantized(int8[200, 37])"
        with pytest.raises(InputError, match=r"rule bson\.vector\.dtype"):
            encode_matrix(quantized, "float32")

    @pytest.mark.parametrize(
        ("call", "rule"),
        [
            (lambda m: vectors.quantize(m, to="int4"), "quantize.to"),
            (lambda m: vectors.quantize(m[0]), "bson.vector.rank"),
            (lambda m: vectors.quantize(m[:0]), "quantize.ranges"),
            (lambda m: vectors.quantize(np.full((2, 2), np.nan)), "quantize.finite"),
            (lambda m: vectors.quantize(np.full((2, 2), np.inf), to="packed_bit"), "quantize.finite"),
            (lambda m: vectors.quantize(m, ranges=(m[0, :5], m[0, :5])), "quantize.ranges"),
            (lambda m: vectors.quantize(m, ranges=(m.max(axis=0), m.min(axis=0))), "quantize.ranges"),
            (lambda m: vectors.quantize(m, to="packed_bit", ranges=(m[0], m[0])), "quantize.ranges"),
            (lambda m: vectors.quantize(m, ranges=(m.min(axis=0), m[0] + np.inf)), "quantize.ranges"),
        ],
    )
    def test_refused(self, call: Any, rule: str) -> None:
        with pytest.raises(InputError) as caught:
            call(self.MATRIX)
        assert caught.value.rule == rule

    def test_signed_bits(self) -> None:
        every = list(range(-128, 128))
        assert vectors.from_signed_bits(every).tolist() == list(range(256))
        assert vectors.to_signed_bits(range(256)).tolist() == every
        bits = RNG.integers(0, 2, (3, 16)).astype(bool)
        service = (np.packbits(bits, axis=1).astype(np.int16) - 128).astype(np.int8)  # as embedding services have it
        assert encode_matrix(vectors.from_signed_bits(service)) == encode_matrix(bits)
        for call, bad in (
            (vectors.from_signed_bits, [128]),
            (vectors.to_signed_bits, [-1]),
            (vectors.from_signed_bits, [0.5]),
        ):
            with pytest.raises(InputError, match=r"rule quantize\.signed"):
                call(bad)


def test_quantize_returns_a_quantized_matrix() -> None:
    assert isinstance(vectors.quantize([[1.0], [2.0]]), Quantized)


def test_out_may_be_a_memory_map_but_not_masked(tmp_path: Path) -> None:
    matrix = np.random.default_rng(0).random((5, 8), np.float32)
    out = np.memmap(tmp_path / "out", np.float32, "w+", shape=(5, 8))
    assert (tg.bson.decode_matrix(tg.bson.encode_matrix(matrix), out=out) == matrix).all()
    assert (out == matrix).all()
    with pytest.raises(tg.InputError) as caught:
        tg.bson.decode_matrix(tg.bson.encode_matrix(matrix), out=np.ma.zeros((5, 8), np.float32))
    assert caught.value.rule == "out.array"
