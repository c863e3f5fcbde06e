"""Every type of Arrow, in every encoding, sliced and nested: the values that Arrow gives, or a refusal by name."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorglot as tg
from peers import needs
from tensorglot import dynd

pa = needs("pyarrow")
pc = needs("pyarrow.compute")

NUMBERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
TEXTS = [pa.string(), pa.large_string(), pa.string_view()]
BINARIES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3)]
TIMES = [
    pa.date32(),
    pa.date64(),
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("us"),
    *(make(unit) for make in (pa.timestamp, pa.duration) for unit in ("s", "ms", "us")),
    pa.timestamp("us", "Europe/Paris"),
]
DECIMALS = [pa.decimal32(5, 2), pa.decimal64(12, 3), pa.decimal128(30, 4), pa.decimal256(38, 0)]
LEAVES = [pa.null(), pa.bool_(), *(getattr(pa, name)() for name in NUMBERS), *TEXTS, *BINARIES, *TIMES, *DECIMALS]
SIMPLE = [pa.int16(), pa.string(), pa.binary(), pa.float64()]
"""Types that Arrow encodes as dictionaries and as runs."""


def leaf_value(rng: Random, kind: Any) -> Any:
    is_ = pa.types
    if is_.is_boolean(kind):
        return rng.random() < 0.5
    if is_.is_integer(kind):
        return rng.randrange(100)
    if is_.is_floating(kind):
        return rng.randrange(100) / 4
    if is_.is_decimal(kind):
        return Decimal(rng.randrange(100)).scaleb(-kind.scale)
    if kind in TEXTS:
        return rng.choice(["", "é", "a text that is longer than a view has room for"])
    if kind in BINARIES:
        return rng.randbytes(3)
    if is_.is_date(kind):
        return dt.date(2020, 1, 1 + rng.randrange(28))
    if is_.is_time(kind):
        return dt.time(1, 2, rng.randrange(60))
    if is_.is_duration(kind):
        return dt.timedelta(seconds=rng.randrange(100))
    return dt.datetime(2020, 1, 1, 0, 0, rng.randrange(60), tzinfo=dt.UTC if kind.tz else None)


def some_mask(rng: Random, count: int) -> list[bool]:
    share = rng.choice([0, 0.4])
    return [rng.random() < share for _ in range(count)]


def leaf(rng: Random, count: int, kind: Any) -> Any:
    mask = some_mask(rng, count)
    return pa.array([None if missing or kind == pa.null() else leaf_value(rng, kind) for missing in mask], kind)


def encoded(rng: Random, count: int) -> Any:
    plain = leaf(rng, count, rng.choice(SIMPLE))
    return plain.dictionary_encode() if rng.random() < 0.5 else pc.run_end_encode(plain)


def fixed_shape_tensors(rng: Random, count: int) -> Any:
    kind = pa.fixed_shape_tensor(pa.int8(), [2, 3])
    values = [None if missing else list(rng.randbytes(6)) for missing in some_mask(rng, count)]
    return pa.ExtensionArray.from_storage(
        kind, pa.array(values, pa.list_(pa.uint8(), 6)).cast(kind.storage_type, safe=False)
    )


def bytes_for_bool(rng: Random, count: int) -> Any:
    values = [None if missing else rng.randrange(3) for missing in some_mask(rng, count)]
    return pa.ExtensionArray.from_storage(pa.bool8(), pa.array(values, pa.int8()))


def edges_of(rng: Random, count: int) -> list[int]:
    sizes = [rng.randrange(3) for _ in range(count)]
    return [sum(sizes[:i]) for i in range(count + 1)]


def lists(rng: Random, count: int, depth: int) -> Any:
    edges = edges_of(rng, count)
    maker, offset = rng.choice([(pa.ListArray, pa.int32()), (pa.LargeListArray, pa.int64())])
    mask = pa.array(some_mask(rng, count), pa.bool_())
    return maker.from_arrays(pa.array(edges, offset), any_array(rng, edges[-1], depth), mask=mask)


def list_views(rng: Random, count: int, depth: int) -> Any:
    """Views in any order, which overlap and leave elements out."""
    length = rng.randrange(1, 6)
    starts = [rng.randrange(length) for _ in range(count)]
    sizes = [rng.randrange(min(3, length - start + 1)) for start in starts]
    maker, offset = rng.choice([(pa.ListViewArray, pa.int32()), (pa.LargeListViewArray, pa.int64())])
    mask = pa.array(some_mask(rng, count), pa.bool_())
    values = any_array(rng, length, depth)
    return maker.from_arrays(pa.array(starts, offset), pa.array(sizes, offset), values, mask=mask)


def fixed_lists(rng: Random, count: int, depth: int) -> Any:
    size = rng.randrange(1, 3)
    mask = pa.array(some_mask(rng, count), pa.bool_())
    return pa.FixedSizeListArray.from_arrays(any_array(rng, count * size, depth), size, mask=mask)


def structs(rng: Random, count: int, depth: int) -> Any:
    fields = [any_array(rng, count, depth) for _ in range(rng.randrange(1, 3))]
    return pa.StructArray.from_arrays(
        fields, list("ab")[: len(fields)], mask=pa.array(some_mask(rng, count), pa.bool_())
    )


def maps(rng: Random, count: int, depth: int) -> Any:
    edges = edges_of(rng, count)
    keys = pa.array([f"{i:03}" for i in range(edges[-1])], pa.string())
    return pa.MapArray.from_arrays(pa.array(edges, pa.int32()), keys, any_array(rng, edges[-1], depth))


NESTED: list[Callable[[Random, int, int], Any]] = [lists, list_views, fixed_lists, structs, maps]
FLAT: list[Callable[[Random, int], Any]] = [encoded, fixed_shape_tensors, bytes_for_bool]


def any_array(rng: Random, count: int, depth: int) -> Any:
    """An array of some type, often a slice of a longer one."""
    before, after = rng.choice([(0, 0), (1, 2)])
    whole = count + before + after
    if depth and rng.random() < 0.7:
        array = rng.choice(NESTED)(rng, whole, depth - 1)
    elif rng.random() < 0.3:
        array = rng.choice(FLAT)(rng, whole)
    else:
        array = leaf(rng, whole, rng.choice(LEAVES))
    return array[before : before + count]


def expected(array: Any) -> list[Any]:
    """What Arrow says; tensors in their shape, which Arrow gives flat."""
    return [cell(value, array.type) for value in array.to_pylist()]


def cell(value: Any, kind: Any) -> Any:
    is_ = pa.types
    if value is None:
        return None
    if getattr(kind, "extension_name", "") == "arrow.fixed_shape_tensor":
        return np.array(value).reshape(kind.shape).tolist()
    if is_.is_struct(kind):
        return {field.name: cell(value[field.name], field.type) for field in kind}
    if is_.is_map(kind):
        return [(key, cell(item, kind.item_type)) for key, item in value]
    return [cell(each, kind.value_type) for each in value] if is_.is_nested(kind) and kind.num_fields == 1 else value


def test_elements_of_a_slice_of_nested_fixed_size_lists() -> None:
    """Where `take` and `dictionary_decode` of pyarrow 26 give the elements one further on."""
    rows = [[[i, i + 1], [i + 2, i + 3]] for i in range(0, 40, 4)]
    sliced = pa.array(rows, pa.list_(pa.list_(pa.int8(), 2), 2))[1:]
    views = pa.ListViewArray.from_arrays(pa.array([2, 0], pa.int32()), pa.array([1, 2], pa.int32()), sliced)
    assert dynd.array(views).tolist() == [[rows[3]], [rows[1], rows[2]]]
    named = pa.DictionaryArray.from_arrays(pa.array([0, None, 3], pa.int8()), sliced)
    assert dynd.array(named).tolist() == [rows[1], None, rows[4]]
    by_columns = dynd.array(pa.array([rows[:2], rows[2:4]])[1:], "1 * storage[2 * 2 * 2 * int8, axis=[2, 1, 0]]")
    assert by_columns.tolist() == [rows[2:4]]


def test_what_a_missing_value_refers_to_need_not_exist() -> None:
    """The third struct is missing; the option inside it refers to an element that was never stored."""
    inner = pa.StructArray.from_arrays([pa.nulls(3)], ["a"], mask=pa.array([False, True, False]))
    array = pa.StructArray.from_arrays([inner], ["b"], mask=pa.array([False, False, True]))
    tensor = dynd.array(array)
    assert tensor.arrow().to_pylist() == array.to_pylist() == [{"b": {"a": None}}, {"b": None}, None]
    whole = dynd.array([{"a": [1]}, {"a": [2, 3]}, None], "var * ?{a: var * int8}")
    parts = {name: part.array() for name, part in whole.parts.items()}
    parts |= {"content.index": np.array([0, 1, -1]), "content.content.a.offsets": np.array([0, 1, 3, 1 << 60])}
    data = tg.dumps(
        {"x": tg.Tensor.of_parts("x", "nested", (), parts, {"dynd": "var * ?{a: var * int8}"})}, format="ztensor"
    )
    assert tg.open(data)["x"].arrow().to_pylist() == whole.tolist()


@pytest.mark.parametrize("values", [[None], [None, None], [{"d": None}, None]])
def test_a_dictionary_without_values_inside_missing_structs(values: list[Any]) -> None:
    """pyarrow gives the field of a missing struct the index 0."""
    array = pa.array(values, pa.struct([("d", pa.dictionary(pa.int32(), pa.string()))]))
    assert dynd.array(array).tolist() == dynd.array(pa.table({"c": array})["c"]).tolist() == values


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32))
def test_any_array_has_the_values_that_arrow_gives(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng = Random(seed)
    array = any_array(rng, rng.randrange(5), 3)
    array.validate(full=True)
    tensor = dynd.array(array)
    assert tensor.tolist() == expected(array)
    path = tmp_path_factory.getbasetemp() / "any.parquet"
    dynd.to_parquet(array, path)
    assert dynd.from_parquet(path).cid() == tensor.cid()


@pytest.mark.parametrize("kind", LEAVES, ids=str)
def test_every_leaf_in_every_list(kind: Any) -> None:
    rng = Random(5)
    values = leaf(rng, 9, kind)
    for maker, offset in [(pa.ListViewArray, pa.int32()), (pa.LargeListViewArray, pa.int64())]:
        views = maker.from_arrays(pa.array([4, 0, 7], offset), pa.array([3, 0, 2], offset), values)
        assert dynd.array(views).tolist() == views.to_pylist()
        assert dynd.array(views[1:]).tolist() == views[1:].to_pylist()
    regular = pa.FixedSizeListArray.from_arrays(values, 3)
    assert dynd.array(regular[1:]).tolist() == regular[1:].to_pylist()


def test_views_of_one_length_are_a_fixed_dimension() -> None:
    views = pa.ListViewArray.from_arrays([2, 0], [2, 2], pa.array([1, 2, 3, 4], pa.int8()))
    assert dynd.array(views, "2 * 2 * int8").tolist() == [[3, 4], [1, 2]]
    with pytest.raises(tg.InputError, match="expected 3 elements, found 2"):
        dynd.array(views, "2 * 3 * int8")


REFUSED = {
    "dense_union": lambda: pa.UnionArray.from_dense(
        pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array([1]), pa.array(["a"])]
    ),
    "sparse_union": lambda: pa.UnionArray.from_sparse(
        pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array([3, 4])]
    ),
    "month_day_nano_interval": lambda: pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
    "decimal256": lambda: pa.array([Decimal(10) ** 50], pa.decimal256(60, 0)),
    "arrow.opaque": lambda: pa.ExtensionArray.from_storage(pa.opaque(pa.int8(), "x", "y"), pa.array([1], pa.int8())),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("inside", ["column", "list", "record"])
def test_what_has_no_type_is_refused_by_name(name: str, inside: str) -> None:
    array = REFUSED[name]()
    if inside == "list":
        array = pa.LargeListArray.from_arrays(pa.array([0, len(array)]), array)
    elif inside == "record":
        array = pa.table({"a": array})
    with pytest.raises(tg.UnsupportedError, match=name):
        dynd.array(array)


class TestExtensions:
    def test_a_tensor_keeps_its_shape(self) -> None:
        kind = pa.fixed_shape_tensor(pa.float64(), [2, 2])
        array = pa.ExtensionArray.from_storage(kind, pa.array([[1, 2, 3, 4], [5, 6, 7, 8]], kind.storage_type))
        tensor = dynd.array(array)
        assert str(tensor.type) == "2 * 2 * 2 * float64"
        assert np.array_equal(tensor.numpy(), array.to_numpy_ndarray())
        assert dynd.array(array[1:]).tolist() == [[[5, 6], [7, 8]]]

    def test_a_tensor_of_no_elements(self) -> None:
        kind = pa.fixed_shape_tensor(pa.int8(), [0, 3])
        array = pa.ExtensionArray.from_storage(kind, pa.array([[], []], kind.storage_type))
        assert str(dynd.typeof(array)) == "2 * 0 * 3 * int8"

    def test_a_permuted_tensor_is_refused(self) -> None:
        kind = pa.fixed_shape_tensor(pa.int8(), [2, 3], permutation=[1, 0])
        array = pa.ExtensionArray.from_storage(kind, pa.array([[0] * 6], kind.storage_type))
        with pytest.raises(tg.UnsupportedError, match="to_numpy_ndarray"):
            dynd.array(array)

    def test_bytes_for_bool_are_bool(self) -> None:
        array = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1, None, 5], pa.int8()))
        assert str(dynd.typeof(array)) == "4 * ?bool"
        assert dynd.array(array).tolist() == [False, True, None, True]

    def test_a_uuid_is_sixteen_bytes_and_json_is_text(self) -> None:
        assert str(dynd.typeof(pa.array([bytes(16)], pa.uuid()))) == "1 * bytes[16]"
        assert str(dynd.typeof(pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}"])))) == "1 * string"

    @pytest.mark.parametrize(
        ("make", "hint"),
        [
            (lambda pd: pd.Series(pd.period_range("2020", "2022", freq="Y")), "to_timestamp"),
            (lambda pd: pd.Series(pd.interval_range(0, 3)), "left"),
        ],
    )
    def test_pandas_periods_and_intervals_name_a_way_out(self, make: Callable[[Any], Any], hint: str) -> None:
        with pytest.raises(tg.UnsupportedError, match=hint):
            dynd.array(make(needs("pandas")))
