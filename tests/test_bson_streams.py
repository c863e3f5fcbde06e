"""Embeddings moved in batches: the same as all at once, in bounded memory, nothing written before all is valid."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from bson_samples import document, vector
from peers import needs
from tensorglot.bson import Embeddings, Int64, Raw, read_embeddings, transfer, write_embeddings
from tensorglot.bson.embeddings import Digest
from tensorglot.wire import bson

RNG = np.random.default_rng(5)
ROWS, COLUMNS = 57, 12
FIELDS: dict[str, list[Any]] = {
    "n": [Int64(i) for i in range(ROWS)],
    "late": [None] * (ROWS - 1) + ["only the last"],
    "mixed": [i if i < ROWS - 2 else "text" for i in range(ROWS)],
    "text": ["é\0" * (i % 4) for i in range(ROWS)],
    "day": [Raw(9, (i << 33).to_bytes(8, "little")) for i in range(ROWS)],
    "other id": [Raw(7, i.to_bytes(12, "big")) for i in range(ROWS)],
    "yes": [i % 3 == 0 for i in range(ROWS)],
    "deep.date": [Raw(9, i.to_bytes(8, "little")) if i % 2 else None for i in range(ROWS)],
}
FILES = ["a.bson", "a.npz", "a.zt", "a.bt", "a.dynd", "a.parquet"]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows at a time."""
    monkeypatch.setattr(sys.modules["tensorglot.bson.transfer"], "BATCH_NBYTES", 5 * 4 * COLUMNS)
    monkeypatch.setattr(bson.pieces, "__defaults__", (2000,))


def given(**options: Any) -> Embeddings:
    matrix = RNG.standard_normal((ROWS, COLUMNS), np.float32)
    return Embeddings(matrix, "v", [f"id {i}" for i in range(ROWS)], FIELDS, **options)


@pytest.mark.parametrize("target", [*FILES, "a.npy"])
def test_progress_ends_at_the_total_of_rows(target: str, tmp_path: Path) -> None:
    """In one batch and in several."""
    needs("pyarrow")
    found = Embeddings(RNG.standard_normal((ROWS, COLUMNS), np.float32), "v")
    write_embeddings(tmp_path / "from.bson", found)
    for write in (write_embeddings, lambda place, _, **options: transfer(tmp_path / "from.bson", place, **options)):
        seen: list[tuple[int, int]] = []
        write(tmp_path / target, found, progress=lambda *now, seen=seen: seen.append(now))
        assert seen == sorted(seen)
        assert seen[-1] == (ROWS, ROWS)


CASES: list[tuple[str, str, Any]] = [(source, target, None) for source in FILES for target in FILES]
CASES += [("a.bson", target, to) for target in FILES for to in ("int8", "packed_bit")]


@pytest.mark.parametrize(("source", "target", "quantize"), CASES)
def test_batches_give_the_file_that_all_at_once_gives(source: str, target: str, quantize: Any, tmp_path: Path) -> None:
    """Byte for byte, except for the row groups of Parquet."""
    needs("pyarrow")
    found = given()
    (tmp_path / "from").mkdir()
    write_embeddings(tmp_path / "from" / source, found)
    expected = found if quantize is None else found.quantize(quantize)
    ranges = tmp_path / "r.zt" if quantize == "int8" and target == "a.bson" else None
    (tmp_path / "whole").mkdir()
    write_embeddings(tmp_path / "whole" / target, expected, ranges=ranges)
    done = transfer(tmp_path / "from" / source, tmp_path / target, "v", fields=FIELDS, quantize=quantize, ranges=ranges)
    assert (done.vectors, done.ids, done.fields, done.ranges) == (ROWS, True, (*FIELDS,), quantize == "int8")
    if target != "a.parquet":
        assert (tmp_path / target).read_bytes() == (tmp_path / "whole" / target).read_bytes()
    again = read_embeddings(tmp_path / target, "v", fields=FIELDS)
    assert again.vectors.data.tobytes() == expected.vectors.data.tobytes()
    assert again.ids is not None
    assert found.ids is not None
    assert again.ids.dump("x") == found.ids.dump("x")
    assert all(again.fields[name].dump("x") == found.fields[name].dump("x") for name in FIELDS)


def test_ids_that_follow_from_the_contents_do_not_depend_on_batches(tmp_path: Path) -> None:
    matrix = RNG.standard_normal((ROWS, COLUMNS), np.float32)
    np.save(tmp_path / "a.npy", matrix)
    expected = Embeddings(matrix, "v").with_ids().ids
    assert expected is not None
    batches = [Embeddings(matrix[begin : begin + 10], "v") for begin in range(0, ROWS, 10)]
    digest = Digest()
    for batch in batches:
        digest.add(batch)
    numbered = [digest.number(batch, 10 * i).ids for i, batch in enumerate(batches)]
    assert b"".join(ids.dump("x") for ids in numbered if ids is not None) == expected.dump("x")


@pytest.mark.parametrize("order", ["C", "F", ">f4", "float64"])
def test_arrays_of_any_order(order: str, tmp_path: Path) -> None:
    matrix = RNG.standard_normal((ROWS, COLUMNS), np.float32)
    stored: Any = {"C": matrix, "F": np.asfortranarray(matrix)}.get(order)
    np.save(tmp_path / "a.npy", matrix.astype(order) if stored is None else stored)
    transfer(tmp_path / "a.npy", tmp_path / "b.zt")
    assert (tg.load(tmp_path / "b.zt")["embedding"] == matrix).all()


def test_documents_without_a_vector_before_the_first_one(tmp_path: Path) -> None:
    payload = b"\x27\0" + bytes(8)
    rows = [document(*([vector("v", payload)] if i > 40 else [])) for i in range(45)]
    (tmp_path / "a.bson").write_bytes(b"".join(rows))
    for on_missing, count in (("skip", 4), ("nan", 45)):
        done = transfer(tmp_path / "a.bson", tmp_path / "b.npy", on_missing=on_missing)  # type: ignore[arg-type]
        assert done.vectors == count
        matrix = np.load(tmp_path / "b.npy")
        assert matrix.shape == (count, 2)
        assert np.isnan(matrix).any(axis=1).sum() == count - 4


def test_nothing_is_written_before_all_of_the_source_is_valid(tmp_path: Path) -> None:
    good, bad = vector("v", b"\x27\0" + bytes(8)), vector("v", b"\x27\0" + bytes(4))
    (tmp_path / "a.bson").write_bytes(b"".join(document(good) for _ in range(500)) + document(bad))
    for target, options in (("b.bson", {}), ("b.zt", {"quantize": "int8"}), ("b.npy", {"ranges": tmp_path / "r.zt"})):
        with pytest.raises(tg.FormatError, match="vector 500"):
            transfer(tmp_path / "a.bson", tmp_path / target, **options)  # type: ignore[arg-type]
    with pytest.raises(tg.TensorNotFound, match="no document"):
        transfer(tmp_path / "a.bson", tmp_path / "b.zt", "w", on_missing="skip")
    assert [path.name for path in tmp_path.iterdir()] == ["a.bson"]


def test_ranges_need_finite_numbers_in_every_batch(tmp_path: Path) -> None:
    matrix = RNG.standard_normal((ROWS, COLUMNS), np.float32)
    matrix[-1, 3] = np.nan
    np.save(tmp_path / "a.npy", matrix)
    with pytest.raises(tg.InputError) as caught:
        transfer(tmp_path / "a.npy", tmp_path / "b.zt", quantize="int8")
    assert caught.value.rule == "quantize.finite"


def test_rows_of_other_sizes_in_a_later_batch(tmp_path: Path) -> None:
    pa, parquet = needs("pyarrow"), needs("pyarrow.parquet")
    rows = [[1.0, 2.0]] * 200 + [[1.0, 2.0, 3.0]]
    parquet.write_table(pa.table({"v": pa.array(rows, pa.list_(pa.float32()))}), tmp_path / "a.parquet")
    with pytest.raises(tg.InputError, match=r"rule bson\.vector\.row"):
        transfer(tmp_path / "a.parquet", tmp_path / "b.zt")
    assert not (tmp_path / "b.zt").exists()


@pytest.mark.parametrize("target", ["b.bson", "b.zt", "b.npz", "b.npy"])
@pytest.mark.parametrize("quantize", [None, "packed_bit"])
def test_memory_does_not_grow_with_the_rows(
    target: str, quantize: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["tensorglot.bson.transfer"], "BATCH_NBYTES", 1 << 20)
    monkeypatch.setattr(bson.pieces, "__defaults__", (1 << 20,))
    np.save(tmp_path / "a.npy", np.ones((16_000, 256), np.float32))
    write_embeddings(tmp_path / "a.bson", Embeddings(np.ones((16_000, 256), np.float32), "embedding"))
    for source in ("a.npy", "a.bson"):
        tracemalloc.start()
        transfer(tmp_path / source, tmp_path / target, quantize=quantize)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 12 << 20, f"{source}: {peak >> 20} MiB for 16 MiB"


@pytest.mark.parametrize("source", ["a.bson", "a.zt", "a.npz"])
@pytest.mark.parametrize("target", ["b.bson", "b.zt", "b.npz"])
def test_memory_does_not_grow_with_ids_and_fields(
    source: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["tensorglot.bson.transfer"], "BATCH_NBYTES", 1 << 15)
    monkeypatch.setattr(bson.pieces, "__defaults__", (1 << 16,))
    rows = 20_000
    texts = ["t" * 400 for _ in range(rows)]
    given = Embeddings(np.ones((rows, 8), np.float32), "v", [f"id {i:020}" for i in range(rows)], {"t": texts})
    write_embeddings(tmp_path / source, given)
    tracemalloc.start()
    transfer(tmp_path / source, tmp_path / target, "v", fields=["t"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 << 20, f"{peak >> 10} KiB for 8 MB of texts"
    assert read_embeddings(tmp_path / target, "v", fields=["t"]).fields["t"].tolist() == texts


@pytest.mark.parametrize("column", ["_id#offsets", "_id#content.data", "n", "mixed.bson"])
def test_a_flipped_bit_in_a_column_is_found_before_anything_is_written(column: str, tmp_path: Path) -> None:
    write_embeddings(tmp_path / "a.zt", given())
    data = bytearray((tmp_path / "a.zt").read_bytes())
    with tg.open(tmp_path / "a.zt") as archive:
        name, _, part = column.partition("#")
        offset = archive[name].parts[part or "data"].offset
    assert offset is not None
    data[offset + 9] ^= 1
    (tmp_path / "a.zt").write_bytes(data)
    with pytest.raises(tg.FormatError) as caught:
        transfer(tmp_path / "a.zt", tmp_path / "b.bson", "v", fields=["n", "mixed"])
    assert caught.value.tensor == name
    assert isinstance(caught.value, tg.IntegrityError) or part == "offsets"
    assert not (tmp_path / "b.bson").exists()


TEXTS = {
    "a first offset": ("offsets", 0, (1).to_bytes(8, "little")),
    "offsets that decrease": ("offsets", 16, bytes(8)),
    "a negative offset": ("offsets", 8, b"\xff" * 8),
    "an offset beyond the texts": ("offsets", 8 * ROWS, (1 << 40).to_bytes(8, "little")),
    "no UTF-8": ("content.data", 3, b"\xff"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_hostile_texts_are_refused(case: str, tmp_path: Path) -> None:
    part, at, new = TEXTS[case]
    write_embeddings(tmp_path / "checked.zt", given())
    tg.convert(tmp_path / "checked.zt", tmp_path / "a.zt", checksum=None)
    data = bytearray((tmp_path / "a.zt").read_bytes())
    with tg.open(tmp_path / "a.zt") as archive:
        begin = archive["_id"].parts[part].offset
    assert begin is not None
    data[begin + at : begin + at + len(new)] = new
    (tmp_path / "a.zt").write_bytes(data)
    with pytest.raises(tg.FormatError) as caught:
        transfer(tmp_path / "a.zt", tmp_path / "b.bson", "v")
    assert (caught.value.rule, caught.value.tensor) == ("place.field", "_id")
    assert not (tmp_path / "b.bson").exists()


@pytest.mark.parametrize("name", ["n", "mixed.bson", "_id"])
def test_columns_of_another_length_are_refused(name: str, tmp_path: Path) -> None:
    write_embeddings(tmp_path / "a.zt", given())
    shorter = {"n": np.arange(ROWS - 1), "mixed.bson": np.frombuffer(b"\5\0\0\0\0", np.uint8), "_id": ["x"] * 3}
    tg.edit(tmp_path / "a.zt", replace={name: shorter[name]})
    with pytest.raises(tg.InputError, match="values, there are 57 vectors"):
        transfer(tmp_path / "a.zt", tmp_path / "b.bson", "v", fields=["n", "mixed"])


@pytest.mark.parametrize("source", ["a.npz", "a.zt", "a.dynd", "a.parquet"])
@pytest.mark.parametrize("target", ["b.npz", "b.zt", "b.dynd", "b.parquet"])
def test_no_rows_keep_their_width_and_fields(source: str, target: str, tmp_path: Path) -> None:
    needs("pyarrow")
    write_embeddings(tmp_path / source, Embeddings(np.empty((0, 8), np.int8), "v", [], {"t": []}))
    done = transfer(tmp_path / source, tmp_path / target, "v", fields=["t"])
    assert (done.vectors, done.dtype, done.ids, done.fields) == (0, "int8", True, ("t",))
    again = read_embeddings(tmp_path / target, "v", fields=["t"])
    assert (again.matrix.shape, again.matrix.dtype, len(again.fields["t"])) == ((0, 8), np.int8, 0)
