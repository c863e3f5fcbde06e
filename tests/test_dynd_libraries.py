"""Round trips with awkward and Arrow: the same values, the same bytes, the same memory."""

from __future__ import annotations

import datetime as dt
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorglot as tg
from dynd_random import random_bytes
from peers import needs
from tensorglot import dynd
from tensorglot.errors import InputError, UnsupportedError
from tensorglot.model.dtypes import BY_NAME, TABLE
from tensorglot.model.types import algebra as T

ak = needs("awkward")
pa = needs("pyarrow")

NUMBERS = ["bool", "float16", "float32", "float64"]
NUMBERS += [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
LEAVES = [T.Scalar(BY_NAME[name]) for name in NUMBERS] + [T.String(), T.Bytes(), T.FixedBytes(2)] * 3
seeds = st.integers(0, 2**32)
many = settings(deadline=None, max_examples=300, database=None)


def nested(rng: Random, depth: int, leaves: list[T.Type], tuples: bool) -> T.Type:
    """A type that both libraries can say, to depth 4 below a list."""
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(leaves)
    kind = rng.randrange(7)
    if kind == 0:
        return T.Fixed(rng.randrange(1, 4), nested(rng, depth - 1, leaves, tuples))
    if kind in (1, 2):
        return T.Var(nested(rng, depth - 1, leaves, tuples))
    if kind == 3 and tuples:
        return T.Tuple(tuple(nested(rng, depth - 1, leaves, tuples) for _ in range(rng.randrange(1, 4))))
    if kind in (3, 4):
        fields = rng.sample(["a", "b", "a b", "é"], rng.randrange(1, 4))
        return T.Struct(tuple((name, nested(rng, depth - 1, leaves, tuples)) for name in fields))
    inner = nested(rng, depth - 1, leaves, tuples)
    return inner if isinstance(inner, T.Option) else T.Option(inner)


def case(seed, tuples, leaves):
    rng = Random(seed)
    t = T.Var(nested(rng, 4, leaves, tuples))
    return t, random_bytes(rng, t)


@many
@given(seeds)
def test_awkward_round_trip(seed):
    t, data = case(seed, True, [*LEAVES, T.Complex(T.Scalar(BY_NAME["float32"]))])
    tensor = dynd.deserialize(data, t)
    array = tensor.awkward()
    assert dynd.serialize(array, t) == data
    assert dynd.array(array, t).type == t
    again = dynd.array(array, t).awkward()
    assert dynd.serialize(again, t) == data
    assert ak.almost_equal(again, array, dtype_exact=True) or "nan" in repr(tensor.tolist())
    assert ak.to_list(array) == tensor.tolist() or "nan" in repr(tensor.tolist())


@many
@given(seeds)
def test_arrow_round_trip(seed):
    t, data = case(seed, False, LEAVES)
    tensor = dynd.deserialize(data, t)
    array = tensor.arrow()
    array.validate(full=True)
    assert dynd.serialize(array, t) == data
    again = dynd.array(array, t).arrow()
    again.validate(full=True)
    assert dynd.serialize(again, t) == data
    assert array.to_pylist() == tensor.tolist() or "nan" in repr(tensor.tolist())


@many
@given(seeds)
def test_what_a_library_makes_itself(seed):
    """Values that went through a library's own constructors, its slices and its masks."""
    t, data = case(seed, False, [leaf for leaf in LEAVES if "bytes[" not in str(leaf) and "float16" not in str(leaf)])
    tensor = dynd.deserialize(data, t)
    values = tensor.tolist()
    made = pa.array(values, tensor.arrow().type)
    assert dynd.serialize(made, t) == data or "nan" in repr(values)
    twice = pa.chunked_array([made, made]).slice(len(values) // 2, len(values))
    assert dynd.serialize(twice, t) == dynd.serialize((values + values)[len(values) // 2 :][: len(values)], t) or (
        "nan" in repr(values)
    )
    array = tensor.awkward()
    order = np.arange(len(values))[::-1]
    assert dynd.serialize(array[order], t) == dynd.serialize(values[::-1], t) or "nan" in repr(values)
    keep = np.arange(len(values)) % 2 == 0
    assert dynd.serialize(array[keep], t) == dynd.serialize(values[::2], t) or "nan" in repr(values)


def shared(a, b):
    return np.shares_memory(np.asarray(a), np.asarray(b))


def test_awkward_shares_contents_both_ways():
    array = ak.Array([{"x": [1.5, 2.5], "s": "ab"}, {"x": [], "s": ""}, {"x": [3.5], "s": "c"}])
    tensor = dynd.array(array)
    assert str(tensor.type) == "3 * {x: var * float64, s: string}"
    record = array.layout
    assert shared(tensor.parts["x.content.data"].array(), record.content("x").content.data)
    assert shared(tensor.parts["x.offsets"].array(), record.content("x").offsets.data)
    assert shared(tensor.parts["s.content.data"].array(), record.content("s").content.data)
    back = tensor.awkward().layout
    assert shared(back.content("x").content.data, record.content("x").content.data)
    assert shared(back.content("s").content.data, record.content("s").content.data)


def test_a_filtered_awkward_array_is_not_packed_first():
    array = ak.Array([[1.0, 2.0], [], [3.0]])[[2, 0]]
    tensor = dynd.array(array, "2 * var * float64")
    content = array.layout
    assert type(content).__name__ == "ListArray"
    assert shared(tensor.parts["content.data"].array(), content.content.data)
    assert tensor.tolist() == [[3.0], [1.0, 2.0]]


def test_a_missing_block_has_no_missing_elements():
    array = dynd.array([[1, 2], None, [3, 4]], "3 * ?2 * int32").arrow()
    array.validate(full=True)
    assert array.to_pylist() == [[1, 2], None, [3, 4]]
    assert (array.null_count, array.values.null_count) == (1, 0)


@pytest.mark.parametrize(("size", "missing", "present"), [(1024, 8193, 0), (131_073, 64, 1)])
def test_placeholders_of_missing_values_are_bounded(size, missing, present):
    """64 MiB, or 64 times the values that are there; each case is the smallest that exceeds one of them."""
    rows = bytes(missing) + (b"\1" + bytes(8 * size)) * present
    tensor = dynd.deserialize(rows, f"{missing + present} * ?{size} * int64")
    with pytest.raises(tg.LimitError) as caught:
        tensor.arrow()
    assert caught.value.rule == "dynd.arrow.places"


def test_arrow_shares_contents_both_ways():
    array = pa.array([[1.5, 2.5], [], [3.5]], pa.large_list(pa.float64()))
    tensor = dynd.array(array)
    assert str(tensor.type) == "3 * var * float64"
    assert shared(tensor.parts["content.data"].array(), array.values)
    assert shared(tensor.parts["offsets"].array(), array.offsets)
    assert tensor.arrow().values.buffers()[1].address == array.values.buffers()[1].address
    narrow = pa.array(["ab", None, "c"])
    tensor = dynd.array(narrow)
    assert str(tensor.type) == "3 * ?string"
    assert tensor.parts["content.content.data"].array().ctypes.data == narrow.buffers()[2].address
    assert tensor.arrow().buffers()[2].address == narrow.buffers()[2].address


def test_decoded_contents_are_shared_with_both():
    tensor = dynd.deserialize(dynd.serialize([[1.0], [], [2.0, 3.0]], "var * var * float64"), "var * var * float64")
    content = tensor.parts["content.content.data"].array()
    assert shared(tensor.awkward().layout.content.data, content)
    assert tensor.arrow().values.buffers()[1].address == content.ctypes.data


ARROW_TYPES = [
    (pa.array([1, None, 3], pa.uint8()), "3 * ?uint8"),
    (pa.array([True, False]), "2 * bool"),
    (pa.array([None, None]), "2 * void"),
    (pa.array([b"ab", b"cd"], pa.binary(2)), "2 * bytes[2]"),
    (pa.array([b"ab", b"c"]), "2 * bytes"),
    (pa.array(["a", "b"], pa.string_view()), "2 * string"),
    (pa.array(["a", "b", "a"]).dictionary_encode(), "3 * string"),
    (pa.array([[1, 2], None], pa.list_(pa.int16(), 2)), "2 * ?2 * int16"),
    (pa.table({"a": [1, 2], "b": ["x", None]}), "2 * {a: int64, b: ?string}"),
    (pa.record_batch({"a": [1.5]}), "1 * {a: float64}"),
    (pa.chunked_array([[1], [2, 3]]), "3 * int64"),
    (pa.scalar(3, pa.int16()), "int16"),
    (pa.array([1.5], pa.float16()), "1 * float16"),
    (pa.array([1, 2, 3])[1:], "2 * int64"),
    (pa.array([{"a": 1}, None, {"a": 3}])[1:], "2 * ?{a: int64}"),
    (pa.array([[True], [], None])[1:], "2 * ?var * bool"),
]


@pytest.mark.parametrize(("array", "text"), ARROW_TYPES, ids=lambda case: str(case)[:40].replace("\n", ""))
def test_arrow_types(array, text):
    tensor = dynd.array(array)
    assert str(tensor.type) == text
    if isinstance(array, pa.Table | pa.RecordBatch):
        expected = array.to_pylist()
    else:
        expected = array.as_py() if isinstance(array, pa.Scalar) else array.to_pylist()
    assert tensor.tolist() == expected


AWKWARD_TYPES = [
    (ak.Array([1, None, 3]), "3 * ?int64"),
    (ak.Array([(1, "a")]), "1 * (int64, string)"),
    (ak.from_numpy(np.zeros((2, 3), np.float32)), "2 * 3 * float32"),
    (ak.to_regular(ak.Array([[1, 2], [3, 4]])), "2 * 2 * int64"),
    (ak.Array([b"ab"]), "1 * bytes"),
    (ak.Array([]), "0 * void"),
    (ak.Array([[], []]), "2 * var * void"),
    (ak.Array([{"x": 1}])[0], "{x: int64}"),
    (ak.mask(ak.Array([1, 2, 3]), [True, False, True]), "3 * ?int64"),
    (ak.Array([[1, 2], [3]])[:, :1], "2 * var * int64"),
    (ak.Array(ak.contents.BitMaskedArray(
        ak.index.IndexU8(np.array([5], np.uint8)), ak.contents.NumpyArray(np.arange(3)), True, 3, True
    )), "3 * ?int64"),
]  # fmt: skip


@pytest.mark.parametrize(("array", "text"), AWKWARD_TYPES, ids=lambda case: str(case)[:40])
def test_awkward_types(array, text):
    tensor = dynd.array(array)
    assert str(tensor.type) == text
    assert tensor.tolist() == ak.to_list(array)


def test_refusals_name_the_type():
    for text, value in [("var * bfloat16", [1.0]), ("var * int128", [1]), ("array[Any]", dynd.array(1, "int8"))]:
        for verb in ("awkward", "arrow"):
            with pytest.raises(UnsupportedError, match=text.removeprefix("var * ").replace("[", r"\[")):
                getattr(dynd.array(value, text), verb)()
    with pytest.raises(UnsupportedError, match="complex"):
        dynd.array([1j], "var * complex[float64]").arrow()
    with pytest.raises(UnsupportedError, match="UnionArray"):
        dynd.typeof(ak.Array([1, "a"]))
    with pytest.raises(UnsupportedError, match="month_day_nano"):
        dynd.typeof(pa.array([(1, 2, 3)], pa.month_day_nano_interval()))
    with pytest.raises(InputError, match=r"rule dynd\.value"):
        dynd.serialize(pa.array([1, None]), "var * int64")
    with pytest.raises(InputError, match=r"rule dynd\.value"):
        dynd.serialize(ak.Array([1, None]), "var * int64")
    with pytest.raises(InputError) as caught:
        dynd.serialize(pa.array([-(2**31), None], pa.int32()), "var * ?int32")
    assert caught.value.rule == "dynd.sentinel"


@pytest.mark.parametrize("suffix", ["dynd", "zt"])
def test_values_of_both_libraries_are_saved(tmp_path, suffix):
    path = tmp_path / f"x.{suffix}"
    ragged, texts = ak.Array([[1.5], [], [2.5, 3.5]]), pa.array(["a", None, "é"])
    tg.save(path, {"ragged": ragged, "texts": texts, "flat": pa.array([1, 2], pa.int16())})
    with tg.open(path) as archive:
        assert str(archive["ragged"].type) == "3 * var * float64"
        assert archive["ragged"].awkward().to_list() == ragged.to_list()
        assert archive["texts"].arrow().to_pylist() == texts.to_pylist()
        assert archive["flat"].numpy().dtype == np.int16
    with pytest.raises(UnsupportedError, match=r"rule save\.layout"):
        tg.save(tmp_path / "x.bt", {"ragged": ragged})


def test_the_error_for_lists_of_several_lengths_names_a_wrong_one() -> None:
    with pytest.raises(InputError, match="expected 2 elements, found 3"):
        dynd.array(pa.array([[1, 2], [3, 4, 5]]), "2 * 2 * int64")


@pytest.mark.parametrize("name", [row.name for row in TABLE if row.numpy is not None and row.numpy.isbuiltin == 2])
def test_element_types_of_ml_dtypes_are_refused_by_name(name):
    tensor = dynd.array(np.ones(3, name))
    for verb in ("awkward", "arrow"):
        with pytest.raises(tg.UnsupportedError, match=name):
            getattr(tensor, verb)()


def with_nulls(values, kind, valid):
    """An Arrow array whose nulls have values beneath them."""
    full = pa.array(values, kind)
    bits = np.packbits(valid, bitorder="little").tobytes()
    return pa.Array.from_buffers(full.type, len(full), [pa.py_buffer(bits), *full.buffers()[1:]])


NULLS = {
    "3 * ?int64": (with_nulls([1, 2**64 - 1, 3], pa.uint64(), [1, 0, 1]), [1, None, 3]),
    "3 * ?bytes[2]": (pa.array([b"ab", None, b"cd"]), [b"ab", None, b"cd"]),
    "var * ?float16": (with_nulls([1.5, 1e300, 2.0], pa.float64(), [1, 0, 1]), [1.5, None, 2.0]),
    "3 * ?{a: int8}": (
        pa.StructArray.from_arrays([pa.array([1, 1000, 3])], ["a"], mask=pa.array([False, True, False])),
        [{"a": 1}, None, {"a": 3}],
    ),
    "3 * ?{a: time['ms']}": (
        pa.StructArray.from_arrays(
            [pa.array([0, 1 << 30, 0], pa.int32()).view(pa.time32("s"))],
            ["a"],
            mask=pa.array([False, True, False]),
        ),
        [{"a": dt.time()}, None, {"a": dt.time()}],
    ),
    "3 * ?2 * int8": (pa.array([[1, 2], None, [3, 4]]), [[1, 2], None, [3, 4]]),
    "3 * ?2 * string": (pa.array([["a", "b"], None, ["c", "d"]]), [["a", "b"], None, ["c", "d"]]),
    "2 * ?storage[2 * 2 * string, order='F']": (
        pa.array([None, [["a", "b"], ["c", "d"]]]),
        [None, [["a", "b"], ["c", "d"]]],
    ),
}


@pytest.mark.parametrize("type", NULLS)
def test_what_a_null_hides_is_not_checked(type):
    given, expected = NULLS[type]
    assert dynd.array(given, type).tolist() == expected


@pytest.mark.parametrize(
    ("given", "type"),
    [
        (pa.array([[1, 2], None]), "2 * 2 * int8"),
        (pa.array([[["a"], None]]), "1 * 2 * 1 * string"),
        (pa.array([[[], None]], pa.list_(pa.list_(pa.string()))), "1 * 2 * 0 * string"),
        (pa.array([[1, 2], None, [3]]), "3 * ?2 * int8"),
        (pa.array([0, None]), "2 * void"),
        (pa.array([[0]]), "1 * 1 * void"),
    ],
)
def test_nulls_and_values_without_a_place_are_refused(given, type):
    with pytest.raises(InputError):
        dynd.array(given, type)


def test_what_an_awkward_array_does_not_refer_to_is_not_checked():
    lists = ak.Array([[1, 2], [1000], [3]])
    masked = ak.mask(ak.Array([1, 1000, 3]), [True, False, True])
    records = ak.mask(ak.Array([{"a": 1}, {"a": 1000}]), [True, False])
    for array, type in (
        (lists[::2], "2 * var * int8"),
        (lists[[2, 0]], "var * var * int8"),
        (masked, "3 * ?int8"),
        (records, "2 * ?{a: int8}"),
        (ak.Array([[0.5], [1e300]])[:1], "1 * var * float16"),
    ):
        assert dynd.array(array, type).tolist() == array.to_list()
    with pytest.raises(InputError, match=r"rule dynd\.range"):
        dynd.array(lists, "3 * var * int8")
    for array, type in (
        (ak.Array([0]), "1 * void"),
        (ak.Array([None, 1]), "2 * ?void"),
        (ak.Array([[0]]), "1 * 1 * void"),
    ):
        with pytest.raises(InputError, match=r"rule dynd\.value"):
            dynd.array(array, type)
    assert dynd.array(ak.Array([[None], [None]]), "2 * 1 * void").tolist() == [[None], [None]]
