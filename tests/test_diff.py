"""diff: what counts as a difference, how large it is, and that it costs no memory."""

from __future__ import annotations

import math
import random
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tensorglot as tg
import ztensor_builder as zt
from arrays import random_array
from bounds import MB, resident_nbytes
from tensorglot.model.dtypes import BY_NAME, TABLE
from tensorglot.model.payload import Memory
from tensorglot.model.tensor import Part

NAN, INF = math.nan, math.inf


class Comparison(NamedTuple):
    """What a diff says about the values of two tensors; without a word about them, that all are equal."""

    count: int
    changed: int = 0
    bits_only: int = 0
    nan: int = 0
    largest_absolute: float | None = 0.0
    largest_relative: float | None = 0.0


def compared(one: Any, two: Any) -> Comparison:
    x, y = (each if isinstance(each, tg.Tensor) else np.asarray(each) for each in (one, two))
    found = [change.values for change in tg.diff({"x": x}, {"x": y}).changes if change.values is not None]
    if not found:
        return Comparison(x.size)
    (values,) = found
    return Comparison(*(getattr(values, name) for name in Comparison._fields))


VALUES: dict[str, tuple[Any, Any, Comparison]] = {
    "equal": ([1.0, 2.0], [1.0, 2.0], Comparison(2)),
    "one of four": ([1.0, 2, 3, 4], [1.0, 2, 3, 8], Comparison(4, 1, 0, 0, 4.0, 0.5)),
    "nan equals nan": ([NAN, 1.0], [NAN, 2.0], Comparison(2, 1, 0, 0, 1.0, 0.5)),
    "nan on one side": ([NAN, 1.0], [0.0, 1.0], Comparison(2, 1, 0, 1, 0.0, 0.0)),
    "two infinities": ([INF, -INF], [INF, INF], Comparison(2, 1, 0, 0, INF, INF)),
    "infinity and a number": ([INF], [1.0], Comparison(1, 1, 0, 0, INF, INF)),
    "NaNs of two payloads": (
        np.array([0x7FA00000, 0x7FC00001], "u4").view("f4"),
        np.array([0x7FA00001, 0x7FC00001], "u4").view("f4"),
        Comparison(2, 0, 1),
    ),
    "zeros of two signs": ([0.0, 1.0], [-0.0, 1.0], Comparison(2, 0, 1)),
    "large neighbours": ([2**62, 1], [2**62 + 1, 1], Comparison(2, 1, 0, 0, 1.0, 2.0**-62)),
    "the widest int64": ([-(2**63)], [2**63 - 1], Comparison(1, 1, 0, 0, 2.0**64, 2.0)),
    "unsigned": (np.array([0], "u8"), np.array([2**64 - 1], "u8"), Comparison(1, 1, 0, 0, 2.0**64, 1.0)),
    "bool": ([True, False], [True, True], Comparison(2, 1, 0, 0, 1.0, 1.0)),
    "complex": ([3 + 4j], [0j], Comparison(1, 1, 0, 0, 5.0, 1.0)),
    "two types": (np.float32([1, 2]), np.float64([1, 2]), Comparison(2)),
    "rounded by a cast": (np.float32([1.001]), np.array([1.001], ml_dtypes.bfloat16), None),
    "int and float": (np.int8([1, 2]), np.float32([1, 3]), Comparison(2, 1, 0, 0, 1.0, 1 / 3)),
    "signed and unsigned": (np.int64([-1]), np.uint64([2**64 - 1]), Comparison(1, 1, 0, 0, 2.0**64, 1.0)),
    "packed": (
        np.array([1, -8, 3], ml_dtypes.int4),
        np.array([1, 7, 3], ml_dtypes.int4),
        Comparison(3, 1, 0, 0, 15.0, 1.875),
    ),
    "nothing": ([], [], Comparison(0)),
}


@pytest.mark.parametrize("case", VALUES)
def test_how_values_differ(case: str) -> None:
    one, two, expected = VALUES[case]
    found = compared(one, two)
    if expected is None:
        assert (found.changed, found.count) == (1, 1)
        assert found.largest_absolute == pytest.approx(0.001, rel=1e-3)
    else:
        assert found == expected


@pytest.mark.parametrize("row", [row for row in TABLE if row.numpy is not None], ids=lambda row: row.name)
def test_every_type_equals_itself_and_not_another(row: Any) -> None:
    array = random_array(random.Random(1), row.name, (64,))
    assert compared(array, array) == Comparison(64)
    other = array.copy()
    other.view(np.uint8)[0] ^= 1
    found = compared(array, other)
    assert found.changed + found.bits_only == 1


finite = hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e6, 1e6))


@given(finite, st.data())
def test_counts_and_distances(array: Any, data: Any) -> None:
    other = data.draw(hnp.arrays(np.float64, array.shape, elements=st.floats(-1e6, 1e6)))
    found = compared(array, other)
    assert found.changed == np.count_nonzero(array != other)
    assert found.largest_absolute == np.abs(array - other).max()
    assert 0 <= found.largest_relative <= 2


def test_elements_that_numpy_lacks_are_compared_as_bytes() -> None:
    one, same, other = (
        tg.Tensor("x", {"data": Part(BY_NAME["int128"], (3,), Memory(np.frombuffer(data, np.uint8)))})
        for data in (bytes(48), bytes(48), bytes(47) + b"x")
    )
    assert compared(one, other) == Comparison(3, 1, 0, 0, None, None)
    assert compared(one, same) == Comparison(3)


def test_removed_added_and_changed_types_and_shapes() -> None:
    one = {"same": np.arange(3), "gone": np.zeros(2), "type": np.float32([1, 2]), "shape": np.zeros((2, 3))}
    two = {"same": np.arange(3), "new": np.zeros(2), "type": np.float64([1, 2]), "shape": np.zeros((3, 2))}
    found = tg.diff(one, two)
    assert [(change.kind, change.tensor) for change in found.changes] == [
        ("removed", "gone"),
        ("type", "type"),
        ("shape", "shape"),
        ("added", "new"),
    ]
    assert not found.same
    assert (found.tensors, found.equal) == (5, 1)
    assert found.to_dict()["changes"][2] == {
        "kind": "shape", "tensor": "shape", "key": None, "old": [2, 3], "new": [3, 2], "values": None,
    }  # fmt: skip


def test_metadata_that_differs(tmp_path: Path) -> None:
    for name, metadata in (("a", {"x": "1", "y": "2"}), ("b", {"y": "3"})):
        tg.save(tmp_path / f"{name}.bt", {"w": np.zeros(1)}, metadata=metadata)
    found = tg.diff(tmp_path / "a.bt", tmp_path / "b.bt")
    assert [(c.kind, c.key, c.old, c.new) for c in found.changes] == [
        ("metadata", "x", "1", None),
        ("metadata", "y", "2", "3"),
    ]
    assert found.equal == 1


def test_signed_zeros_are_other_bits() -> None:
    found = tg.diff({"w": np.float32([0.0])}, {"w": np.float32([-0.0])})
    assert [change.kind for change in found.changes] == ["bits"]


def test_repr_says_how_many_and_what_first() -> None:
    assert repr(tg.diff({"w": [1.0]}, {"w": [1.0]})) == "Diff(same, 1 tensor)"
    text = repr(tg.diff({"w": [1.0, 2.0], "v": [1]}, {"w": [1.0, 2.5], "v": [1]}))
    assert (
        text
        == "Diff(1 of 2 tensors differ: 1 values; first: w: 1 of 2 elements (50.00%), by at most 0.5, relative 0.2)"
    )


def test_counts_have_separators() -> None:
    change = tg.diff({"w": np.zeros(2000)}, {"w": np.arange(2000.0)}).changes[0]
    assert change.what == "1,999 of 2,000 elements (99.95%), by at most 1999, relative 1"


def test_names_are_escaped() -> None:
    assert "\x1b" not in repr(tg.diff({"\x1b[2J": [1]}, {}))


@pytest.mark.parametrize("order", ["F", "strided", "big-endian", "transposed"])
def test_memory_order_does_not_matter(order: str) -> None:
    array = random_array(random.Random(2), "float32", (300, 40, 50))
    other = random_array(random.Random(2), "float32", (300, 40, 50), order)
    assert tg.diff({"w": array}, {"w": other}).same


def test_bounded_memory(tmp_path: Path) -> None:
    array = np.zeros(24 << 20, np.float32)
    tg.save(tmp_path / "a.bt", {"w": array}, durable=False)
    array += 1
    tg.save(tmp_path / "b.bt", {"w": array}, durable=False)
    del array
    assert resident_nbytes(lambda: tg.diff(tmp_path / "a.bt", tmp_path / "b.bt")) < 64 * MB


NESTED = {
    "ragged": tg.dynd.array([[1, 2], [], [3]]),
    "missing": tg.dynd.array([1, None, 3]),
    "records": tg.dynd.array([{"a": [1.5], "b": "x"}, {"a": [], "b": ""}]),
}


def test_equal_identities_are_equal_whatever_the_parts(tmp_path: Path) -> None:
    """One value, in the parts of a file, as bytes in another, and in parts again."""
    paths = [tmp_path / name for name in ("a.zt", "b.dynd", "c.zt")]
    tg.save(paths[0], NESTED)
    for source, target in pairwise(paths):
        tg.convert(source, target, on_loss="drop")
    for one, two in product(paths, repeat=2):
        assert tg.diff(one, two).same, (one.name, two.name)
    other = {**NESTED, "ragged": tg.dynd.array([[1, 2], [3], []])}
    for path in paths:
        assert {change.tensor for change in tg.diff(path, other).changes} == {"ragged"}


def test_sparse_and_dense_of_one_value_are_equal() -> None:
    from scipy import sparse

    dense = np.diag(np.float32([1, 2, 3]))
    forms = [dense, sparse.csr_matrix(dense), sparse.coo_matrix(dense)]
    for one, two in product(forms, repeat=2):
        assert tg.diff({"m": one}, {"m": two}).same
        assert not tg.diff({"m": one}, {"m": 2 * two}).same


def test_damage_is_named_before_a_byte_is_no_bool(tmp_path: Path) -> None:
    whole, damaged = tmp_path / "whole.zt", tmp_path / "damaged.zt"
    tg.save(whole, {"mask": np.zeros(3_000_000, np.bool_)}, format="ztensor@2", compression=None)
    data = bytearray(whole.read_bytes())
    data[len(data) // 2] = 2
    damaged.write_bytes(data)
    with pytest.raises(tg.IntegrityError) as caught:
        tg.diff(whole, damaged)
    (row,) = tg.stats(damaged).rows
    assert row.problem is not None
    assert caught.value.rule == row.problem.rule == "checksum.mismatch"


def framed(values: Any, nbytes: int) -> bytes:
    """A zTensor file whose array is compressed in frames of so many bytes."""
    raw = values.tobytes()
    blob = b"".join(zstandard.compress(raw[at : at + nbytes]) for at in range(0, len(raw), nbytes))
    entry = zt.entry("a", encoding="zstd", size=len(blob), shape=list(values.shape), dtype="float64")
    return zt.file01([entry], blob)


def test_pieces_that_are_shorter_than_what_is_compared_at_a_time() -> None:
    """Frames come one by one, and none of them ends where a block does."""
    values = np.random.default_rng(5).integers(0, 9, 700_000).astype(np.float64)
    other = values.copy()
    other[[1, 400_000, 699_999]] += 1
    one = framed(values, 300_000)
    for two in (framed(other, 100_008), {"a": other}):
        (change,) = tg.diff(one, two).changes
        assert change.kind == "values"
        assert change.values is not None
        assert change.values.changed == 3
    assert tg.diff(one, {"a": values}).same
    (row,) = tg.stats(one)
    assert (row.count, row.mean) == (700_000, pytest.approx(values.mean(), rel=1e-12))


def test_changes_as_text() -> None:
    old = {"w": np.ones(3), "m": np.ones((2, 3)), "gone": np.ones(1), "v": np.zeros(4)}
    new = {"w": np.ones(3, "f4"), "m": np.ones((3, 2)), "new": np.ones(2), "v": np.array([0, 0, 0, 2.0])}
    assert sorted(map(str, tg.diff(old, new).changes)) == [
        "gone: only in the first, 1 * float64",
        "m: shape [2, 3] → [3, 2]",
        "new: only in the second, 2 * float64",
        "v: 1 of 4 elements (25.00%), by at most 2, relative 1",
        "w: type float64 → float32",
    ]


@pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2"])
def test_a_ragged_tensor_that_becomes_dense_is_one_change(format: str) -> None:
    one = tg.dumps({"w": tg.dynd.array([[1, 2], [3]])}, format=format)
    two = tg.dumps({"w": np.array([[1, 2], [3, 4]])}, format=format)
    assert [change.kind for change in tg.diff(one, two).changes] == ["layout"]
    assert [change.kind for change in tg.diff(two, one).changes] == ["layout"]


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ({"x": True}, {"x": 1}, "x: metadata True → 1"),
        ({"x": [1]}, {"x": [1.0]}, "x: metadata [1] → [1.0]"),
        ({"x": None}, {}, "x: metadata null → none"),
        ({}, {"x": None}, "x: metadata none → null"),
        ({"x": 0.0}, {"x": -0.0}, "x: metadata 0.0 → -0.0"),
    ],
)
def test_metadata_that_only_equals(old: Any, new: Any, text: str) -> None:
    one, two = (tg.open(tg.dumps({"w": np.ones(2)}, format="ztensor", metadata=it)) for it in (old, new))
    found = tg.diff(one, two)
    assert [str(change) for change in found.changes] == [text]
    assert tg.diff(one, one).same


def test_attributes_that_only_equal() -> None:
    one, two = (tg.open(tg.dumps({"w": np.ones(2)}, format="ztensor", attributes={"w": {"x": it}})) for it in (True, 1))
    assert [change.kind for change in tg.diff(one, two).changes] == ["attributes"]


def test_metadata_of_two_formats_is_the_same() -> None:
    metadata = {"n": 1, "big": 2**40, "f": 0.5, "nan": float("nan"), "list": [1, 2], "b": [True], "text": "é"}
    files = [tg.dumps({"w": np.ones(2)}, format=it, metadata=metadata) for it in ("gguf", "ztensor", "ztensor@2")]
    assert all(tg.diff(tg.open(one), tg.open(two)).same for one in files for two in files)
