"""NumPy in and out: every dtype, order, stride and byte order, records, storage orders, and what is refused."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorglot as tg
from tensorglot import dynd
from tensorglot.dynd.tensors import tensor_pieces
from tensorglot.errors import InputError, UnsupportedError
from tensorglot.model.dtypes import TABLE

ROWS = [row for row in TABLE if row.numpy is not None]


def sample(row, shape):
    """Values of every bit pattern that a type has."""
    count = int(np.prod(shape))
    rng = np.random.default_rng(row.code)
    if row.name == "bool":
        return rng.integers(0, 2, count).astype(np.bool_).reshape(shape)
    raw = rng.integers(0, 256 if row.bits >= 8 else 1 << row.bits, count * row.numpy.itemsize).astype(np.uint8)
    return raw.view(row.numpy).reshape(shape)


def expected(array):
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"))).reshape(-1).view(np.uint8).tobytes()


def layouts(array):
    """The same values in other memory."""
    yield array
    yield np.asfortranarray(array)
    yield array[::-1][::-1]
    yield np.repeat(array, 2, axis=-1)[..., ::2]
    yield np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 0, -1)), -1, 0)
    if array.dtype.byteorder in "=<>|" and array.dtype.isbuiltin == 1:
        yield array.astype(array.dtype.newbyteorder(">"))
        yield np.asfortranarray(array.astype(array.dtype.newbyteorder(">")))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_dtypes_orders_strides_byte_orders(row):
    array = sample(row, (2, 3, 4))
    data = expected(array)
    types = {str(dynd.typeof(other)) for other in layouts(array)}
    assert types == {f"2 * 3 * 4 * {dynd.parse(row.name)}"}
    for other in layouts(array):
        assert dynd.serialize(other) == data
        assert dynd.array(other).cid() == dynd.array(array).cid()
        assert b"".join(bytes(piece) for piece in tensor_pieces(dynd.array(other))) == data
    tensor = dynd.deserialize(data, types.pop())
    assert tensor.dtype == row.numpy
    assert tensor.numpy().tobytes() == array.tobytes()
    assert tensor.serialize() == data
    assert dynd.unpack(dynd.pack(array)).numpy().tobytes() == array.tobytes()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,)])
def test_shapes(row, shape):
    array = sample(row, shape)
    data = dynd.serialize(array)
    assert dynd.deserialize(data, dynd.typeof(array)).numpy().shape == shape
    assert dynd.deserialize(data, dynd.typeof(array)).tolist() == dynd.array(array).tolist()


def test_rank_64():
    array = np.arange(4, dtype=np.int16).reshape((1,) * 31 + (2,) + (1,) * 31 + (2,))
    tensor = dynd.deserialize(dynd.serialize(array), dynd.typeof(array))
    assert tensor.numpy().shape == array.shape
    assert (tensor.numpy() == array).all()
    assert dynd.unpack(dynd.pack(array)).tolist() == array.tolist()
    options = "1 * " * 63 + "?int8"
    assert dynd.serialize(dynd.deserialize(b"\x80", options)) == b"\x80"
    records = "2 * " + "1 * " * 63 + "{a: int8, b: bool}"
    assert dynd.deserialize(b"\x01\x00\x02\x01", records).serialize() == b"\x01\x00\x02\x01"


ORDERS = list(itertools.permutations(range(3)))


@pytest.mark.parametrize("axis", ORDERS, ids=str)
def test_storage_is_written_and_read_without_a_transpose(axis):
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    stored = np.ascontiguousarray(array.transpose(axis))
    logical = stored.transpose(np.argsort(axis))
    text = f"storage[2 * 3 * 4 * float32, axis={list(axis)}]"
    data = dynd.serialize(logical, text)
    assert data == stored.tobytes()
    (piece,) = tensor_pieces(dynd.array(logical, text))
    assert np.shares_memory(np.frombuffer(piece, np.uint8), stored)
    back = dynd.deserialize(data, text).numpy()
    assert (back == array).all()
    assert back.transpose(axis).flags.c_contiguous
    assert np.shares_memory(back, np.frombuffer(data, np.uint8))
    assert dynd.deserialize(data, text).tolist() == array.tolist()


def test_fortran_order():
    array = np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3))
    data = dynd.serialize(array, "storage[2 * 3 * int16, order='F']")
    assert data == array.T.tobytes()
    back = dynd.deserialize(data, "storage[2 * 3 * int16, order='F']").numpy()
    assert back.flags.f_contiguous
    assert (back == array).all()
    assert dynd.serialize(array) == array.tobytes()


RECORD = np.dtype([("a", "i1"), ("b", "<f8"), ("c", [("x", "<u2", (2, 2)), ("y", "S3")]), ("d", "V2"), ("é f", "<U2")])


def records(dtype, count=5):
    rng = np.random.default_rng(0)
    out = np.zeros(count, dtype)
    out["a"] = rng.integers(-9, 9, count)
    out["b"] = rng.random(count)
    out["c"]["x"] = rng.integers(0, 99, (count, 2, 2))
    out["c"]["y"] = [b"", b"a", b"ab", b"abc", b"x"]
    out["d"] = [b"ab", b"cd", b"\0\0", b"\0a", b"zz"]
    out["é f"] = ["", "a", "éz", "😀", "ab"]
    return out


def test_records():
    array = records(RECORD)
    text = (
        "5 * {a: int8, b: float64, c: {x: 2 * 2 * uint16, y: fixed_string[3, 'ascii']}, d: bytes[2], "
        "'\\u00e9 f': fixed_string[2, 'utf32']}"
    )
    assert str(dynd.typeof(array)) == text
    data = dynd.serialize(array)
    assert data == array.tobytes()
    back = dynd.deserialize(data, text)
    assert back.numpy().dtype == RECORD
    assert (back.numpy() == array).all()
    assert np.shares_memory(back.numpy(), np.frombuffer(data, np.uint8))
    assert back.serialize() == data
    assert back.tolist()[2] == {"a": int(array["a"][2]), "b": array["b"][2], "c": {"x": array["c"]["x"][2].tolist(),
                                "y": "ab"}, "d": b"\0\0", "é f": "éz"}  # fmt: skip
    assert dynd.serialize(back.tolist(), text) == data
    assert dynd.serialize(array, f"var * {text.removeprefix('5 * ')}") == b"\x05" + data


def test_records_of_any_memory():
    array = records(RECORD)
    data = array.tobytes()
    aligned = np.dtype({"names": RECORD.names, "formats": [RECORD[n] for n in RECORD.names],
                        "offsets": [0, 8, 16, 30, 36], "itemsize": 48})  # fmt: skip
    padded = np.zeros(5, aligned)
    for name in RECORD.names:
        padded[name] = array[name]
    big = array.astype(RECORD.newbyteorder(">"))
    for other in (padded, big, np.repeat(array, 2)[::2], array.reshape(1, 5)[0], padded[::-1][::-1]):
        assert dynd.serialize(other) == data
        assert dynd.array(other).serialize() == data
        assert (dynd.array(other).numpy() == array).all()


def test_masked_arrays_are_options():
    array = np.ma.MaskedArray([[1, 2], [3, 4]], [[False, True], [False, False]], np.int16)
    assert str(dynd.typeof(array)) == "2 * 2 * ?int16"
    assert dynd.array(array).tolist() == [[1, None], [3, 4]]
    assert dynd.serialize(array).hex() == "0100008003000400"
    with pytest.raises(InputError, match=r"rule dynd\.value"):
        dynd.serialize(array, "2 * 2 * int16")
    with pytest.raises(UnsupportedError, match=r"rule dynd\.numpy"):
        dynd.array(array).numpy()


@pytest.mark.filterwarnings("ignore:Warning. converting a masked element to nan")
@pytest.mark.parametrize("element", ["float32", "float64", "complex[float64]", "bfloat16", "int32", "bool"])
def test_masked_elements_in_a_list_are_missing_or_refused(element: str) -> None:
    values = np.ma.MaskedArray([1, 0], [False, True], bool if element == "bool" else int)
    assert dynd.array([values, values], f"2 * var * ?{element}").tolist() == [[1, None]] * 2
    for given in ([values, values], [[*values], [*values]]):
        with pytest.raises(InputError):
            dynd.array(given, f"2 * 2 * {element}")


def test_conversion_to_another_type_is_exact_or_refused():
    array = np.array([1, 2, 300])
    assert dynd.serialize(array, "var * int16").hex() == "03010002002c01"
    assert dynd.serialize(array, "3 * float32") == array.astype(np.float32).tobytes()
    for value, text in (
        (array, "3 * int8"),
        (array, "3 * bool"),
        (np.array([1.5]), "1 * int8"),
        (np.array([-1]), "1 * uint64"),
        (np.array([1e300]), "1 * float32"),
        (np.array([1e39]), "1 * bfloat16"),
        (np.array([500.0]), "1 * float8_e4m3fn"),
        (np.array([np.nan]), "1 * float4_e2m1fn"),
        (np.array([np.inf]), "1 * float8_e4m3fn"),
        (np.array([8]), "1 * int4"),
        (np.array([1j]), "1 * float64"),
        (np.array(["a"]), "1 * int8"),
    ):
        with pytest.raises(InputError):
            dynd.serialize(value, text)
    with pytest.raises(InputError) as caught:
        dynd.serialize(array, "2 * int64")
    assert caught.value.rule == "dynd.length"


def test_128_bits():
    text = "3 * int128"
    values = [-(2**127), 2**127 - 1, -1]
    data = dynd.serialize(values, text)
    assert data == b"".join(v.to_bytes(16, "little", signed=True) for v in values)
    tensor = dynd.deserialize(data, text)
    assert tensor.tolist() == values
    assert tensor.serialize() == data
    with pytest.raises(UnsupportedError, match="int128"):
        tensor.numpy()
    with pytest.raises(InputError, match=r"rule dynd\.range"):
        dynd.serialize([2**127], "1 * int128")
    floats = dynd.deserialize(bytes(range(32)), "2 * float128")
    assert floats.tolist() == [bytes(range(16)), bytes(range(16, 32))]
    assert dynd.serialize(floats.tolist(), "2 * float128") == bytes(range(32))
    with pytest.raises(InputError, match=r"rule dynd\.value"):
        dynd.serialize([1.0], "1 * float128")
    pair = dynd.deserialize(bytes(range(32)), "complex[float128]")
    assert dynd.serialize(pair.tolist(), "complex[float128]") == bytes(range(32))


def test_what_numpy_has_and_dynd_has_not():
    for array, rule in (
        (np.array(["2020"], "M8[Y]"), "dynd.numpy.unit"),
        (np.array([1], "m8[D]"), "dynd.numpy.unit"),
        (np.array([1], np.longdouble), "dtype.name"),
    ):
        with pytest.raises(UnsupportedError, match=f"rule {rule}"):
            dynd.serialize(array)
    assert dynd.array(np.array([1, "a"], object)[:1]).tolist() == [1]


def test_results_share_memory_with_the_bytes():
    data = bytearray(dynd.serialize(np.arange(10, dtype=np.int32)))
    array = dynd.deserialize(data, "10 * int32").numpy()
    data[0] = 7
    assert array[0] == 7
    lists = dynd.deserialize(dynd.serialize([1.0, 2.0], "var * float64"), "var * float64")
    assert lists.numpy().tolist() == [1.0, 2.0]
    assert lists[1] == 2.0


def test_serialize_gives_memory_of_its_own():
    array = np.arange(4)
    data = dynd.serialize(array)
    array[0] = 9
    assert data == np.arange(4).tobytes()


@pytest.mark.parametrize("suffix", [".bt", ".zt", ".dynd", ".safetensors", ".npz"])
def test_the_identity_is_that_of_the_value(tmp_path, suffix):
    tensors = {
        "f": np.arange(12, dtype=np.float32).reshape(3, 4).T,
        "b": np.array([True, False]),
        "s": np.array(3, np.int64),
        "e": np.zeros((0, 3), np.uint8),
        "h": np.arange(5).astype(ml_dtypes.bfloat16),
        "big": np.arange(700_000, dtype=">u4"),
    }
    tg.save(tmp_path / f"x{suffix}", tensors)
    with tg.open(tmp_path / f"x{suffix}") as archive:
        for name, array in tensors.items():
            assert archive[name].cid() == dynd.array(array).cid()
            assert archive[name].serialize() == dynd.serialize(array)
            assert archive[name].tolist() == dynd.array(array).tolist()
            assert str(archive[name].type) == str(dynd.typeof(array))


def test_the_identity_survives_compression_and_packing(tmp_path):
    tensors = {"w": np.arange(2_000_000, dtype=np.float32), "q": np.arange(7).astype(ml_dtypes.int4)}
    for name, options in (("a.zt", {"compression": "zstd"}), ("b.zt", {"format": "ztensor@2"}), ("c.dynd", {})):
        given = tensors if name == "c.dynd" else {"w": tensors["w"]}
        tg.save(tmp_path / name, given, **options)
        with tg.open(tmp_path / name) as archive:
            for key in given:
                assert archive[key].cid() == dynd.array(tensors[key]).cid()
    assert dynd.serialize(tensors["q"]).hex() == "00010203040506"
    assert dynd.serialize(np.array([-1, -8], ml_dtypes.int4)).hex() == "0f08"
    assert dynd.deserialize(b"\x0f\x08", "2 * int4").tolist() == [-1, -8]


def test_out_of_a_record_must_be_a_writable_array_of_its_type():
    tensor = dynd.array([{"a": 1, "b": 2.0}])
    out = np.zeros_like(tensor.numpy())
    assert tensor.numpy(out) is out
    assert out.tolist() == [(1, 2.0)]
    frozen = out.copy()
    frozen.flags.writeable = False
    for wrong, rule in (([], "out.array"), (np.zeros(1), "out.shape"), (frozen, "out.writable")):
        with pytest.raises(InputError) as caught:
            tensor.numpy(wrong)
        assert caught.value.rule == rule


@pytest.mark.parametrize("outer", ["2 * ", "var * ", "2 * ?"])
@pytest.mark.parametrize("element", ["fixed_string[2]", "fixed_string[9]", "fixed_string[2, 'ascii']",
                                     "fixed_string[4, 'utf16']", "fixed_string[2, 'utf32']"])  # fmt: skip
def test_texts_of_bytes_are_texts(outer: str, element: str) -> None:
    texts = np.array(["ab", "c"])
    for given in (texts, texts.astype("S"), texts.astype("S4"), texts.astype(">U2")):
        assert dynd.array(given, outer + element).tolist() == ["ab", "c"]


@pytest.mark.parametrize("type", ["1 * fixed_string[2, 'utf16']", "var * fixed_string[2, 'utf16']"])
@pytest.mark.parametrize("given", [np.array([b"abcd"]), np.array([b"abcd"]).view("V4")])
def test_bytes_are_not_units_of_two_bytes(type: str, given: Any) -> None:
    with pytest.raises(InputError):
        dynd.array(given, type)


def test_bytes_in_a_ragged_dimension_keep_their_nuls() -> None:
    assert dynd.array(np.array([b"ab", b"c"]), "var * bytes[2]").tolist() == [b"ab", b"c\0"]
    with pytest.raises(InputError, match=r"rule dynd\.utf8"):
        dynd.array(np.array([b"\xe9"]), "1 * fixed_string[2]")


@pytest.mark.parametrize(
    "type", ["2 * int32", "var * ?int64", "2 * int4", "2 * uint128", "2 * date", "2 * decimal[9, 0]"]
)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn, np.float32])
def test_floats_are_no_integers(type: str, dtype: Any) -> None:
    floats = np.array([1.5, 1.0]).astype(dtype)
    for given in (floats, list(floats)):
        with pytest.raises(InputError, match=r"rule dynd\.value"):
            dynd.array(given, type)


@pytest.mark.parametrize("type", ["2 * int8", "2 * int128", "2 * float32", "2 * complex[float32]", "2 * decimal[9, 0]"])
def test_small_integers_become_every_number(type: str) -> None:
    assert dynd.array(np.array([1, 2], ml_dtypes.int4), type).tolist() == [1, 2]


MASKED = {
    "2 * ?float16": (np.array([1.5, 1e300]), 1.5),
    "var * ?int8": (np.array([1, 1000]), 1),
    "2 * ?time['s']": (np.array([1, 1 << 40]), dt.time(0, 0, 1)),
    "2 * ?datetime['ns']": (np.array([0, 1 << 40], "M8[D]"), np.datetime64(0, "ns")),
    "2 * ?date": (np.array([1, 1 << 40], "M8[D]"), dt.date(1970, 1, 2)),
    "2 * ?fixed_string[1]": (np.array(["a", "too long"]), "a"),
    "2 * ?uint8": (np.array([1, -1], "int8"), 1),
}


@pytest.mark.parametrize("type", MASKED)
def test_what_a_mask_hides_is_not_checked(type: str) -> None:
    values, first = MASKED[type]
    assert dynd.array(np.ma.array(values, mask=[False, True]), type).tolist() == [first, None]
    with pytest.raises(InputError):
        dynd.array(np.ma.array(values, mask=[True, False]), type)


@pytest.mark.parametrize("part", ["float16", "float32"])
def test_complex_numbers_out_of_range_are_refused(part: str) -> None:
    for given in ([1e300], [1e300j], np.array([1.0, 1e300j]), np.array([1e300])):
        with pytest.raises(InputError) as caught:
            dynd.array(given, f"var * complex[{part}]")
        assert caught.value.rule == "dynd.range"
    kept = [complex("inf"), complex(-0.0, -0.0), 1.5 - 2j]
    assert repr(dynd.array(kept, f"var * complex[{part}]").tolist()) == repr(kept)
    assert dynd.array([2**70], "var * complex[float64]").tolist() == [2**70]


@pytest.mark.parametrize("type", ["int128", "uint128", "decimal[9, 2]", "?int128", "int64", "float64", "date"])
@pytest.mark.parametrize("unit", ["s", "ns"])
def test_durations_are_no_numbers(type: str, unit: str) -> None:
    value = np.timedelta64(5, unit)
    for given, dims in ((value, ""), ([value], "1 * "), (np.array([value]), "var * ")):
        with pytest.raises(InputError, match=r"rule dynd\.value"):
            dynd.array(given, dims + type)
