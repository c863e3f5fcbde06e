"""Embeddings: vectors with ids and fields through every kind of file, byte for byte, and the refusals."""

from __future__ import annotations

import datetime as dt
import json
import re
import struct
from decimal import Decimal
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import command_line
import tensorglot as tg
from bson_samples import EVERY_KIND, document, element, string, vector
from peers import needs
from tensorglot.bson import Embeddings, Int64, Raw, read_embeddings, write_embeddings

run = partial(command_line.run, "vectors")
RNG = np.random.default_rng(14)
ROWS, COLUMNS = 24, 13
MATRIX = RNG.standard_normal((ROWS, COLUMNS), np.float32)
FILES = ["a.bson", "a.npz", "a.zt", "a.bt", "a.safetensors", "a.dynd", "a.parquet"]
IDS: dict[str, list[Any]] = {
    "ObjectId": [Raw(7, bytes([i] * 12)) for i in range(ROWS)],
    "int32": list(range(ROWS)),
    "int64": [Int64(i) for i in range(ROWS)],
    "double": [i + 0.5 for i in range(ROWS)],
    "text": [f"id {i} é" for i in range(ROWS)],
    "date": [dt.datetime(2020, 1, 1 + i, tzinfo=dt.UTC) for i in range(ROWS)],
    "mixed": [*range(ROWS - 2), "x", Int64(5)],
    "bytes": [bytes([i]) for i in range(ROWS)],
    "documents": [{"a": i, "b": "x"} for i in range(ROWS)],
}
FIELDS: dict[str, list[Any]] = {
    "int32": list(range(ROWS)),
    "int64, some": [Int64(i) if i % 2 else None for i in range(ROWS)],
    "double": [i / 4 for i in range(ROWS)],
    "double, some": [i / 4 if i % 3 else None for i in range(ROWS)],
    "bool": [i % 2 == 0 for i in range(ROWS)],
    "text": [f"title {i}" for i in range(ROWS)],
    "text, some": ["" if i % 2 else None for i in range(ROWS)],
    "date": [dt.datetime(1969, 12, 31, 23, i, tzinfo=dt.UTC) for i in range(ROWS)],
    "date, some": [dt.datetime(2020, 1, 1, tzinfo=dt.UTC) if i % 2 else None for i in range(ROWS)],
    "far dates": [Raw(9, struct.pack("<q", 2**62 + i)) for i in range(ROWS)],
    "ObjectId": [Raw(7, bytes([i] * 12)) for i in range(ROWS)],
    "ObjectId, some": [Raw(7, bytes(12)) if i == 3 else None for i in range(ROWS)],
    "tags": [["a", str(i)][: i % 3] for i in range(ROWS)],
    "nested.deep.er": [{"x": [1, {"y": None}]} for _ in range(ROWS)],
    "nested.other": [b"bytes"] * ROWS,
    "null": [Raw(10, b"")] * ROWS,
    "null, some": [Raw(10, b"") if i % 2 else None for i in range(ROWS)],
    "mixed": [1, 2.5, "x", None, True, Int64(1)] * (ROWS // 6),
    "absent in all but one": [None] * (ROWS - 1) + [1],
}  # fmt: skip


def made(ids: str = "int32", fields: dict[str, list[Any]] | None = None, key: str = "embedding") -> Embeddings:
    return Embeddings(MATRIX, key, IDS[ids], fields)


def same(a: Embeddings, b: Embeddings) -> None:
    """The same bytes everywhere: types of numbers, absent and null values, padding."""
    assert (a.key, a.vectors.row, list(a.fields)) == (b.key, b.vectors.row, list(b.fields))
    assert a.vectors.data.tobytes() == b.vectors.data.tobytes()
    assert (a.ids is None) == (b.ids is None)
    pairs = [(a.ids, b.ids), *((a.fields[name], b.fields[name]) for name in a.fields)]
    for one, other in pairs:
        assert one is None or other is None or one.dump("x") == other.dump("x")


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("file", FILES)
def test_ids_of_every_type(tmp_path: Path, file: str, ids: str) -> None:
    needs("pyarrow")
    given = made(ids)
    assert write_embeddings(tmp_path / file, given).inserted == ROWS
    same(read_embeddings(tmp_path / file, "embedding"), given)


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("file", FILES)
def test_fields_of_every_type(tmp_path: Path, file: str, name: str) -> None:
    needs("pyarrow")
    given = made(fields={name: FIELDS[name]})
    write_embeddings(tmp_path / file, given)
    same(read_embeddings(tmp_path / file, "embedding", fields=[name]), given)


@pytest.mark.parametrize("to", ["float32", "int8", "packed_bit"])
@pytest.mark.parametrize("file", FILES)
def test_all_fields_at_once_in_every_dtype(tmp_path: Path, file: str, to: Any) -> None:
    needs("pyarrow")
    given = made("ObjectId", FIELDS, "nested.v")
    if to != "float32":
        given = given.quantize(to)
    ranges = tmp_path / "r.zt" if given.ranges is not None and file == "a.bson" else None
    write_embeddings(tmp_path / file, given, ranges=ranges)
    found = read_embeddings(tmp_path / file, "nested.v", fields=FIELDS)
    same(found, given)
    if given.ranges is not None and ranges is None:
        assert found.ranges is not None
        assert [bound.tolist() for bound in found.ranges] == [bound.tolist() for bound in given.ranges]


KINDS = sorted(EVERY_KIND)


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["absent", *KINDS]), min_size=1, max_size=6), st.sampled_from(FILES))
def test_any_values_in_any_file(tmp_path_factory: pytest.TempPathFactory, kinds: list[str], file: str) -> None:
    needs("pyarrow")
    values = [None if kind == "absent" else Raw(EVERY_KIND[kind][0], EVERY_KIND[kind][3:]) for kind in kinds]
    given = Embeddings(MATRIX[: len(kinds)], "v", range(len(kinds)), {"k": values})
    path = tmp_path_factory.mktemp("any") / file
    write_embeddings(path, given)
    if all(value is None for value in values) and file == "a.bson":
        with pytest.raises(tg.TensorNotFound, match="has a field 'k'"):
            read_embeddings(path, "v", fields=["k"])
    else:
        same(read_embeddings(path, "v", fields=["k"]), given)


def test_a_dump_is_what_the_driver_would_write(tmp_path: Path) -> None:
    bson = needs("bson")
    given = made("int32", {"title": FIELDS["text"], "meta.n": FIELDS["int32"]}, "meta.v")
    write_embeddings(tmp_path / "a.bson", given)
    documents = bson.decode_all((tmp_path / "a.bson").read_bytes())
    assert [list(one) for one in documents] == [["_id", "title", "meta"]] * ROWS
    assert [(one["_id"], one["title"], one["meta"]["n"]) for one in documents] == [
        (i, f"title {i}", i) for i in range(ROWS)
    ]
    assert documents[3]["meta"]["v"].as_vector().data == MATRIX[3].tolist()


def test_parquet_is_what_other_tools_read(tmp_path: Path) -> None:
    parquet, pa = needs("pyarrow.parquet"), needs("pyarrow")
    given = made("ObjectId", {"title": FIELDS["text"], "n": FIELDS["int64, some"], "when": FIELDS["date"]})
    write_embeddings(tmp_path / "a.parquet", given)
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table.column_names == ["_id", "title", "n", "when", "embedding"]
    assert table.column("title").to_pylist() == FIELDS["text"]
    assert table.column("n").to_pylist() == FIELDS["int64, some"]
    assert table.column("when").to_pylist() == FIELDS["date"]
    assert table.column("embedding").to_pylist() == MATRIX.tolist()
    assert table.schema.field("embedding").type.list_size == COLUMNS
    assert table.column("_id").type == pa.binary(12)


def test_parquet_of_other_tools_is_read(tmp_path: Path) -> None:
    parquet, pa = needs("pyarrow.parquet"), needs("pyarrow")
    table = pa.table(
        {
            "v": pa.array(MATRIX.astype(np.float64).tolist()),
            "_id": pa.array([f"x{i}" for i in range(ROWS)]).dictionary_encode(),
            "small": pa.array(range(ROWS), pa.int16()),
            "tags": [["a"]] * ROWS,
            "info": [{"lang": "en"}] * ROWS,
        }
    )
    parquet.write_table(table, tmp_path / "b.parquet")
    found = read_embeddings(tmp_path / "b.parquet", "v", fields=["small", "tags", "info"])
    assert np.array_equal(found.matrix, MATRIX)
    assert found.ids is not None
    assert found.ids.tolist() == [f"x{i}" for i in range(ROWS)]
    assert [found.fields[name].tolist()[1] for name in found.fields] == [1, ["a"], {"lang": "en"}]
    with pytest.raises(tg.TensorNotFound, match="did you mean 'small'"):
        read_embeddings(tmp_path / "b.parquet", "v", fields=["smal"])
    with pytest.raises(tg.InputError, match="'v', 'tags'"):
        read_embeddings(tmp_path / "b.parquet")
    with pytest.raises(tg.InputError, match="column 'tags'"):
        read_embeddings(tmp_path / "b.parquet", "tags")
    with pytest.raises(FileNotFoundError):
        read_embeddings(tmp_path / "none.parquet")


def test_parquet_that_is_cut_or_changed_is_refused_or_read(tmp_path: Path) -> None:
    needs("pyarrow")
    write_embeddings(tmp_path / "a.parquet", made("ObjectId", {"tags": FIELDS["tags"]}))
    data = (tmp_path / "a.parquet").read_bytes()
    path = tmp_path / "b.parquet"
    cuts = [data[:end] for end in range(0, len(data), 97)]
    flips = [bytearray(data) for _ in range(150)]
    for flip in flips:
        flip[int(RNG.integers(len(data)))] ^= int(RNG.integers(1, 256))
    for bad in (*cuts, *flips):
        path.write_bytes(bad)
        try:
            read_embeddings(path, "embedding", fields=["tags"])
        except tg.TensorglotError:
            continue
        assert bad in flips


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "too few ids": ({"ids": [1]}, "bson.ids"),
    "too many values": ({"fields": {"a": range(99)}}, "bson.fields"),
    "a row without id": ({"ids": [*range(ROWS - 1), None]}, "bson.ids"),
    "the id as a field": ({"fields": {"_id": range(ROWS)}}, "bson.fields"),
    "the id as the key": ({"key": "_id"}, "bson.fields"),
    "a field that contains the vector": ({"key": "a.v", "fields": {"a": range(ROWS)}}, "bson.fields"),
    "a field in the vector": ({"key": "a", "fields": {"a.b": range(ROWS)}}, "bson.fields"),
    "fields in each other": ({"fields": {"a.b": range(ROWS), "a": range(ROWS)}}, "bson.fields"),
    "an empty key": ({"key": ""}, "bson.path"),
    "a value that BSON lacks": ({"fields": {"a": [object()] * ROWS}}, "bson.value"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what: str) -> None:
    options, rule = REFUSED[what]
    with pytest.raises(tg.InputError) as caught:
        Embeddings(MATRIX, **{"key": "v", **options})
    assert caught.value.rule == rule


def test_what_a_file_cannot_hold_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    given = made(fields={"n": FIELDS["int32"]})
    for name, value, options, rule in (
        ("x.npy", given, {}, "place.fields"),
        ("x.none", given, {}, "format.suffix"),
        ("x.zt", given, {"update": True}, "place.update"),
        ("x.bson", given.quantize(), {}, "place.ranges"),
        ("x.npy", made().quantize(), {}, "place.ranges"),
        ("x.zt", given, {"ranges": tmp_path / "r.zt"}, "place.ranges"),
    ):
        with pytest.raises(tg.InputError) as caught:
            write_embeddings(tmp_path / name, value, **options)  # type: ignore[arg-type]
        assert caught.value.rule == rule
    with pytest.raises(tg.InputError, match="collections"):
        read_embeddings(tmp_path / "x.zt", filter={})
    assert list(tmp_path.iterdir()) == []


def test_names_that_a_dump_does_not_have(tmp_path: Path) -> None:
    path = tmp_path / "a.bson"
    write_embeddings(path, made(fields={"title": FIELDS["text"]}))
    for on_missing in ("error", "skip", "nan"):
        with pytest.raises(tg.TensorNotFound, match="did you mean 'embedding'"):
            read_embeddings(path, "embeding", on_missing=on_missing)  # type: ignore[arg-type]
    with pytest.raises(tg.TensorNotFound, match="'titel'"):
        read_embeddings(path, fields=["titel"])


def test_rows_without_a_vector_take_their_ids_with_them(tmp_path: Path) -> None:
    payload = b"\x27\0" + bytes(8)
    rows = [document(element(16, "_id", struct.pack("<i", i)), *([vector("v", payload)] if i % 3 else []))
            for i in range(9)]  # fmt: skip
    (tmp_path / "a.bson").write_bytes(b"".join(rows))
    skipped = read_embeddings(tmp_path / "a.bson", "v", on_missing="skip")
    assert skipped.ids is not None
    assert skipped.ids.tolist() == [1, 2, 4, 5, 7, 8]
    filled = read_embeddings(tmp_path / "a.bson", "v", on_missing="nan")
    assert filled.ids is not None
    assert filled.ids.tolist() == list(range(9))
    assert np.isnan(filled.matrix[:, 0]).tolist() == [i % 3 == 0 for i in range(9)]


def test_ids_that_follow_from_the_contents() -> None:
    one, again = Embeddings(MATRIX, "v").with_ids(), Embeddings(MATRIX.copy(), "v").with_ids()
    assert one.ids is not None
    assert again.ids is not None
    assert one.ids.dump("x") == again.ids.dump("x")
    assert len({raw.data for raw in one.ids.tolist()}) == ROWS
    for other in (Embeddings(MATRIX, "w"), Embeddings(MATRIX[:, :-1], "v"), Embeddings(MATRIX + 1, "v")):
        ids = other.with_ids().ids
        assert ids is not None
        assert not set(map(repr, ids.tolist())) & set(map(repr, one.ids.tolist()))


def test_every_value_of_pymongo_becomes_what_pymongo_writes() -> None:
    bson = needs("bson")
    values = [bson.ObjectId(), bson.Decimal128("1.5"), bson.Int64(3), bson.Regex("a"), bson.MinKey(), bson.Code("f()"),
              bson.Timestamp(1, 2), bson.Binary(b"x", 5), tg.bson.Vector([1.0, 2.0]), re.compile("^a")]  # fmt: skip
    found = Embeddings(MATRIX[: len(values)], "v", range(len(values)), {"k": values})
    (field,) = found.fields.values()
    expected = [value.binary() if isinstance(value, tg.bson.Vector) else value for value in values]
    assert field.dump("k") == b"".join(bson.encode({"k": value}) for value in expected)
    raw = tg.bson.encode_documents(MATRIX[: len(values)], "v", values)
    assert [bson.encode({"_id": one["_id"]}) for one in bson.decode_all(raw)] == [
        bson.encode({"_id": value}) for value in expected
    ]


def test_numpy_texts_and_dates_in_an_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    days = np.array(["2020-01-01", "NaT", "1969-12-31"], "M8[D]")
    names = np.array(["k0", "", "é\U0001f600"])
    np.savez(
        path,
        v=MATRIX[:3],
        _id=names,
        swapped=names.astype(names.dtype.newbyteorder(">")),
        ascii=np.array([b"a", b"bc", b""]),
        days=days,
        ns=days.astype("M8[ns]"),
    )
    found = read_embeddings(path, "v", fields=["swapped", "ascii", "days", "ns"])
    assert found.ids is not None
    assert found.ids.tolist() == found.fields["swapped"].tolist() == names.tolist()
    assert found.fields["ascii"].tolist() == ["a", "bc", ""]
    dates = [dt.datetime(2020, 1, 1, tzinfo=dt.UTC), None, dt.datetime(1969, 12, 31, tzinfo=dt.UTC)]
    assert found.fields["days"].tolist() == found.fields["ns"].tolist() == dates
    run("import", path, tmp_path / "a.bson", "--from", "v", "--field", "days")
    assert read_embeddings(tmp_path / "a.bson", fields=["days"]).ids.tolist() == names.tolist()  # type: ignore[union-attr]


def test_numpy_values_that_bson_does_not_have(tmp_path: Path) -> None:
    for values, said in (
        (np.array(["2020-01-01T00:00:00.000001"] * 3, "M8[us]"), "'x': BSON dates have millisecond precision"),
        (np.array([b"\xff"] * 3), "'x' has invalid text"),
        (np.array([["a", "b"]] * 3), "'x' has 2 dimensions"),
    ):
        np.savez(tmp_path / "a.npz", v=MATRIX[:3], x=values)
        with pytest.raises(tg.InputError, match=said):
            read_embeddings(tmp_path / "a.npz", "v", fields=["x"])


def parquet_with(path: Path, **columns: Any) -> Path:
    pa, parquet = needs("pyarrow"), needs("pyarrow.parquet")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(MATRIX[:2].reshape(-1)), COLUMNS)
    parquet.write_table(pa.table({"v": vectors, **columns}), path)
    return path


def test_parquet_columns_of_dates_and_decimals(tmp_path: Path) -> None:
    pa, bson = needs("pyarrow"), needs("bson")
    digits = Decimal("-12345678901234567890123456789012.34")
    noon, day = dt.datetime(2020, 1, 1, 12), dt.date(1969, 12, 31)
    path = parquet_with(
        tmp_path / "a.parquet",
        exact=pa.array([digits, None], pa.decimal128(38, 2)),
        price=pa.array([Decimal("1.50"), Decimal(0)], pa.decimal128(9, 2)),
        large=pa.array([Decimal("12.5"), None], pa.decimal256(60, 1)),
        day=pa.array([day, None], pa.date32()),
        day64=pa.array([day, None], pa.date64()),
        local=pa.array([noon, None], pa.timestamp("us")),
        seconds=pa.array([noon, None], pa.timestamp("s", "Europe/Paris")),
    )
    fields = ["exact", "price", "large", "day", "day64", "local", "seconds"]
    tg.bson.transfer(path, tmp_path / "a.bson", fields=fields)
    first, second = bson.decode_all((tmp_path / "a.bson").read_bytes())
    assert [first[name].to_decimal() for name in fields[:3]] == [digits, Decimal("1.50"), Decimal("12.5")]
    assert str(first["price"]) == "1.50"
    midnight = dt.datetime(1969, 12, 31)
    assert [first[name] for name in fields[3:]] == [midnight, midnight, noon, noon]
    assert {name for name in fields if name in second} == {"price"}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda pa: pa.array([dt.time(1), None], pa.time64("us")),
            "column 'x' of time64.us.: BSON does not support time",
        ),
        (lambda pa: pa.array([dt.timedelta(1), None]), "BSON does not support timedelta; cast it"),
        (lambda pa: pa.array([Decimal("1" * 35), None], pa.decimal128(38, 0)), "column 'x' .*holds 34 digits"),
        (lambda pa: pa.array([1, None], pa.timestamp("us")), "'x': BSON dates have millisecond precision"),
    ],
)
def test_parquet_columns_that_bson_does_not_have(tmp_path: Path, make: Any, said: str) -> None:
    path = parquet_with(tmp_path / "a.parquet", x=make(needs("pyarrow")))
    with pytest.raises(tg.TensorglotError, match=said):
        read_embeddings(path, fields=["x"])


@settings(max_examples=300)
@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_decimals_are_those_of_pymongo(value: Decimal) -> None:
    bson = needs("bson")
    if len(value.as_tuple().digits) > 34:
        with pytest.raises(tg.InputError, match="34 digits"):
            Embeddings(MATRIX[:1], ids=[value])
        return
    ids = Embeddings(MATRIX[:1], ids=[value]).ids
    assert ids is not None
    assert ids.raw(0) == Raw(0x13, bson.Decimal128(value).bid)


@pytest.mark.parametrize("file", FILES)
def test_ids_of_another_name(tmp_path: Path, file: str) -> None:
    if file.endswith("parquet"):
        needs("pyarrow")
    skus = [f"sku {i}" for i in range(ROWS)]
    write_embeddings(tmp_path / file, Embeddings(MATRIX, "v", range(ROWS), {"sku": skus, "n": range(ROWS)}))
    found = read_embeddings(tmp_path / file, "v", fields=["n"], id="sku")
    assert found.ids is not None
    assert (found.ids.tolist(), found.fields["n"].tolist()) == (skus, list(range(ROWS)))
    run("export", tmp_path / file, tmp_path / "out.bson", "--from", "v", "--id", "sku")
    assert read_embeddings(tmp_path / "out.bson").ids.tolist() == skus  # type: ignore[union-attr]
    with pytest.raises(tg.TensorglotError, match="sk"):
        read_embeddings(tmp_path / file, "v", id="sk")
    with pytest.raises(tg.InputError, match="overlap"):
        read_embeddings(tmp_path / file, "v", fields=["n"], id="n")


class TestCommandLine:
    def test_inspect_has_the_size_of_vectors(self, tmp_path: Path) -> None:
        write_embeddings(tmp_path / "a.bson", Embeddings(MATRIX, "v", range(ROWS)))
        (told,) = json.loads(run("inspect", tmp_path / "a.bson", "--json").stdout)["fields"]
        assert told["vectors_nbytes"] == ROWS * (5 + 2 + 4 * COLUMNS)
        head, line = run("inspect", tmp_path / "a.bson").stdout.splitlines()
        assert line.split()[head.split().index("size")] == "1.4"

    def test_short_names_of_element_types(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", MATRIX.astype(np.float64))
        run("import", tmp_path / "a.npy", tmp_path / "a.bson", "--dtype", "f32")
        assert read_embeddings(tmp_path / "a.bson").vectors.dtype == "float32"

    def test_an_array_names_the_command_that_converts_it(self, tmp_path: Path) -> None:
        array = document(element(1, "0", struct.pack("<d", 1.5)))
        (tmp_path / "a.bson").write_bytes(document(element(4, "v", array)))
        refused = run("export", tmp_path / "a.bson", tmp_path / "a.npy", "--from", "v", code=3)
        assert "vectors migrate" in refused.stderr

    def test_ids_and_fields_through_files(self, tmp_path: Path) -> None:
        needs("pyarrow")
        given = made("text", {"title": FIELDS["text, some"], "n": FIELDS["int32"]})
        write_embeddings(tmp_path / "0.bson", given)
        chain = ["0.bson", "1.parquet", "2.npz", "3.zt", "4.bson"]
        fields = ["--field", "title", "--field", "n"]
        for source, target in pairwise(chain):
            verb = "import" if target.endswith(".bson") else "export"
            told = json.loads(
                run(verb, tmp_path / source, tmp_path / target, "--from", "embedding", *fields, "--json").stdout
            )
            assert (told["ids"], told["fields"]) == (True, ["title", "n"])
        assert (tmp_path / "4.bson").read_bytes() == (tmp_path / "0.bson").read_bytes()

    def test_dry_run_writes_nothing(self, tmp_path: Path) -> None:
        write_embeddings(tmp_path / "a.bson", made())
        before = sorted(tmp_path.iterdir())
        for verb in ("import", "export", "quantize"):
            out = run(verb, tmp_path / "a.bson", tmp_path / "b.zt", "--dry-run").stdout
            assert out.startswith(f"would be written: {ROWS} vectors")
        run("quantize", tmp_path / "a.bson", tmp_path / "b.npy", "--dry-run", "--ranges", tmp_path / "r.zt")
        run("quantize", tmp_path / "a.bson", tmp_path / "b.npy", "--dry-run", code=2)
        assert sorted(tmp_path.iterdir()) == before

    def test_a_matrix_file_says_that_it_has_no_ids(self, tmp_path: Path) -> None:
        write_embeddings(tmp_path / "a.bson", made())
        assert "ids are not kept" in run("export", tmp_path / "a.bson", tmp_path / "a.npy").stderr
        run("export", tmp_path / "a.bson", tmp_path / "b.npy", "--field", "n", code=2)

    def test_queries_use_the_ranges_of_their_corpus(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", MATRIX)
        np.save(tmp_path / "q.npy", MATRIX[:3])
        run("quantize", tmp_path / "a.npy", tmp_path / "a.zt")
        run("quantize", tmp_path / "q.npy", tmp_path / "q.bt", "--use-ranges", tmp_path / "a.zt")
        assert np.array_equal(tg.load(tmp_path / "q.bt")["embedding"], tg.bson.quantize(MATRIX).data[:3])
        run("quantize", tmp_path / "q.npy", tmp_path / "x.bt", "--use-ranges", tmp_path / "q.npy", code=2)

    def test_arrays_are_listed_with_what_they_would_save(self, tmp_path: Path) -> None:
        def array(*values: float) -> bytes:
            return document(*(element(1, str(i), struct.pack("<d", value)) for i, value in enumerate(values)))

        mixed = document(element(16, "0", bytes(4)), element(18, "1", bytes(8)))
        texts = document(element(2, "0", string("x")))
        rows = [document(element(4, "v", array(1.0, 2.0, 3.0)), element(3, "n", document(element(4, "w", mixed))),
                         element(4, "texts", texts), element(4, "empty", document()),
                         element(4, "lists", document(element(4, "0", array(1.0)))))] * 4  # fmt: skip
        (tmp_path / "a.bson").write_bytes(b"".join(rows))
        told = {
            field["name"]: field for field in json.loads(run("inspect", tmp_path / "a.bson", "--json").stdout)["fields"]
        }
        assert set(told) == {"v", "n.w"}
        v = told["v"]
        assert (v["arrays"], v["types"], v["count"], v["vectors"], v["documents"]) == (4, ["double"], 3, 0, 4)
        assert v["arrays_nbytes"] == 4 * len(array(1.0, 2.0, 3.0))
        assert v["saved_nbytes"] == v["arrays_nbytes"] - 4 * (5 + 2 + 3 * 4)
        assert told["n.w"]["types"] == ["int32", "int64"]
        (tmp_path / "a.bson").write_bytes(b"".join([*rows, document(element(4, "v", array(1.0)))]))
        lines = run("inspect", tmp_path / "a.bson", code=1).stdout.splitlines()
        assert lines[0] == "field  dtype        count  vectors  arrays   size  saved  documents  trouble"
        assert "arrays differ: 1 to 3 numbers" in lines[1]
