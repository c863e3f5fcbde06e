"""Time and money: dates, times, durations, decimals and maps, between Python, NumPy, Arrow, awkward, JSON and bytes."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pytest

import tensorglot as tg
from peers import needs
from tensorglot import dynd
from tensorglot.dynd.json import from_json, to_json
from tensorglot.errors import InputError, UnsupportedError

UTC, PARIS, INDIA = dt.UTC, ZoneInfo("Europe/Paris"), dt.timezone(dt.timedelta(hours=5.5))
LEAST = {nbytes: bytes(nbytes - 1) + b"\x80" for nbytes in (4, 8, 16)}


def little(number, nbytes):
    return number.to_bytes(nbytes, "little", signed=True)


# type: (value in, bytes, what .tolist() gives if it is another object)
VALUES = {
    "date": [(dt.date(1970, 1, 1), bytes(4)), (dt.date(2024, 2, 29), little(19_782, 4)),
             (dt.date.min, little(-719_162, 4)), (np.datetime64("2024-02-29"), little(19_782, 4), dt.date(2024, 2, 29)),
             (np.datetime64("10000-01-01"), little(2_932_897, 4)), (-(2**31), LEAST[4], np.datetime64(-(2**31), "D"))],
    "time['s']": [(dt.time(23, 59, 59), little(86_399, 8))],
    "time['us']": [(dt.time(0, 0, 1, 2), little(1_000_002, 8))],
    "time['ns']": [(np.timedelta64(1, "ns"), little(1, 8)),
                   (dt.time(1), little(3600 * 10**9, 8), np.timedelta64(3600 * 10**9, "ns"))],
    "timedelta['ms']": [(dt.timedelta(milliseconds=-5), little(-5, 8))],
    "timedelta['s']": [(np.timedelta64(2**62, "s"), little(2**62, 8)), (-(2**63), LEAST[8])],
    "timedelta['ns']": [(np.timedelta64(7, "ns"), little(7, 8)),
                        (dt.timedelta(microseconds=1), little(1000, 8), np.timedelta64(1000, "ns"))],
    "datetime['s']": [(dt.datetime(1969, 12, 31, 23, 59, 59), little(-1, 8))],
    "datetime['us']": [(dt.datetime(2000, 1, 1, 0, 0, 0, 5), little(946_684_800_000_005, 8)),
                       (np.datetime64("2000-01-01T00", "h"), little(946_684_800_000_000, 8), dt.datetime(2000, 1, 1)),
                       (np.datetime64("-5000-01-01T00:00:00.000001"),
                        little(int(np.datetime64("-5000-01-01T00", "us").astype(int)) + 1, 8)),
                       (-(2**63), LEAST[8])],
    "datetime['ns']": [(np.datetime64("2262-04-11T23:47:16.854775807"), little(2**63 - 1, 8))],
    "datetime['ms', tz='Europe/Paris']": [(dt.datetime(2024, 7, 1, 2, tzinfo=PARIS), little(1_719_792_000_000, 8)),
                                          (dt.datetime(2024, 7, 1, tzinfo=UTC), little(1_719_792_000_000, 8),
                                           dt.datetime(2024, 7, 1, 2, tzinfo=PARIS))],
    "datetime['s', tz='+05:30']": [(dt.datetime(1970, 1, 1, 5, 30, tzinfo=INDIA), bytes(8))],
    "datetime['s', tz='Mars/Olympus']": [(dt.datetime(1970, 1, 1, tzinfo=UTC), bytes(8))],
    "decimal[5, 2]": [(Decimal("-1.50"), little(-150, 16)), (Decimal("999.99"), little(99_999, 16)),
                      (Decimal("1e2"), little(10_000, 16), Decimal("100.00")), (3, little(300, 16), Decimal("3.00"))],
    "decimal[38, 0]": [(Decimal(10**38 - 1), little(10**38 - 1, 16)), (Decimal(1 - 10**38), little(1 - 10**38, 16))],
    "decimal[3, -2]": [(Decimal("1.2E+4"), little(120, 16), Decimal("120E+2"))],
    "decimal[3, 5]": [(Decimal("0.00999"), little(999, 16))],
    "map[string, int8]": [({"b": 1, "a": 2, "": 3}, bytes.fromhex("030003016102016201"),
                           [("", 3), ("a", 2), ("b", 1)])],
    "map[int16, ?int8]": [([(256, 1), (1, None)], bytes.fromhex("02" + "000101" + "010080"), [(256, 1), (1, None)])],
    "map[int8, string]": [([], b"\0")],
}  # fmt: skip
CASES = [(text, *case) for text, cases in VALUES.items() for case in cases]


@pytest.mark.parametrize(
    ("text", "value", "data", "out"), [(*case, case[1])[:4] for case in CASES], ids=map(repr, CASES)
)
def test_values(text, value, data, out):
    assert dynd.serialize(value, text) == data
    tensor = dynd.deserialize(data, text)
    found = tensor.tolist()
    assert found == out
    assert type(found) is type(out)
    assert dynd.serialize(found, text) == data
    assert from_json(json.dumps(to_json(tensor)), tensor.type).serialize() == data
    assert dynd.from_cbor(dynd.to_cbor(tensor)).cid() == tensor.cid()
    packed = dynd.pack(tensor)
    assert dynd.unpack(packed).type == dynd.parse(text)


def test_a_decimal_keeps_its_digits():
    assert str(dynd.array(Decimal("1.5"), "decimal[5, 2]").tolist()) == "1.50"
    assert str(dynd.array(Decimal(10**37), "decimal[38, 0]").tolist()) == "1" + "0" * 37


MISSING = {
    "date": 4,
    "time['us']": 8,
    "timedelta['s']": 8,
    "datetime['ns']": 8,
    "datetime['s', tz='UTC']": 8,
    "decimal[9, 2]": 16,
}


@pytest.mark.parametrize("text", MISSING)
def test_missing_is_the_smallest_integer(text):
    nbytes = MISSING[text]
    data = LEAST[nbytes] + bytes(nbytes)
    assert dynd.serialize([None, 0], f"2 * ?{text}") == data
    assert dynd.deserialize(data, f"2 * ?{text}").tolist()[0] is None
    assert dynd.serialize([None], f"1 * ?map[int8, {text}]") == b"\0"
    if not text.startswith(("time[", "decimal")):
        with pytest.raises(InputError) as caught:
            dynd.serialize([-(1 << (8 * nbytes - 1))], f"1 * ?{text}")
        assert caught.value.rule == "dynd.sentinel"


REFUSED = {
    "a datetime for a date": ("date", dt.datetime(2020, 1, 1)),
    "text": ("date", "2020-01-01"),
    "a float": ("date", 1.5),
    "a bool": ("timedelta['s']", True),
    "a date for a datetime": ("datetime['s']", dt.date(2020, 1, 1)),
    "an aware datetime": ("datetime['us']", dt.datetime(2020, 1, 1, tzinfo=UTC)),
    "a naive datetime": ("datetime['us', tz='UTC']", dt.datetime(2020, 1, 1)),
    "half a second": ("datetime['s']", dt.datetime(2020, 1, 1, 0, 0, 0, 500_000)),
    "a microsecond": ("timedelta['ms']", dt.timedelta(microseconds=1)),
    "a nanosecond": ("datetime['us']", np.datetime64(1, "ns")),
    "beyond nanoseconds": ("datetime['ns']", np.datetime64("3000-01-01", "s")),
    "a datetime beyond nanoseconds": ("datetime['ns']", dt.datetime(3000, 1, 1)),
    "months": ("timedelta['s']", np.timedelta64(1, "M")),
    "a time with a zone": ("time['us']", dt.time(1, tzinfo=UTC)),
    "a day": ("time['us']", dt.timedelta(days=1)),
    "a day as a number": ("time['s']", 86_400),
    "a day beyond int32": ("date", 2**31),
    "NaT where nothing is missing": ("datetime['us']", np.datetime64("NaT")),
    "a digit too many": ("decimal[5, 2]", Decimal("1000")),
    "a digit behind the point too many": ("decimal[5, 2]", Decimal("0.001")),
    "an exponent": ("decimal[5, 2]", Decimal("1e999999")),
    "a tiny exponent": ("decimal[5, 2]", Decimal("1e-999999")),
    "NaN": ("decimal[5, 2]", Decimal("NaN")),
    "infinity": ("decimal[5, 2]", Decimal("Infinity")),
    "a float for a decimal": ("decimal[5, 2]", 1.5),
    "a key twice": ("map[int8, int8]", [(1, 1), (1, 2)]),
    "no pairs": ("map[int8, int8]", [1]),
    "pairs of three": ("map[int8, int8]", [(1, 2, 3)]),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    text, value = REFUSED[case]
    with pytest.raises(InputError):
        dynd.serialize(value, text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (dt.date(2020, 1, 1), "date"),
        (dt.time(1), "time['us']"),
        (dt.timedelta(1), "timedelta['us']"),
        (dt.datetime(2020, 1, 1), "datetime['us']"),
        (dt.datetime(2020, 1, 1, tzinfo=UTC), "datetime['us', tz='UTC']"),
        (dt.datetime(2020, 1, 1, tzinfo=PARIS), "datetime['us', tz='Europe/Paris']"),
        (dt.datetime(2020, 1, 1, tzinfo=dt.timezone(-dt.timedelta(hours=3.5))), "datetime['us', tz='-03:30']"),
        ([Decimal("1.20"), Decimal("100")], "2 * decimal[5, 2]"),
        ([Decimal("1E+3"), None], "2 * ?decimal[4, 0]"),
        (np.datetime64("2020-01-01"), "?date"),
        ([np.timedelta64(5, "ms")], "1 * ?timedelta['ms']"),
        (np.zeros(2, "M8[ns]"), "2 * ?datetime['ns']"),
        (np.zeros(2, "m8[s]"), "2 * ?timedelta['s']"),
        (np.zeros(2, "M8[D]"), "2 * ?date"),
        (np.ma.masked_array(np.zeros(2, "M8[us]"), [True, False]), "2 * ?datetime['us']"),
        (np.zeros(1, [("a", "M8[s]"), ("b", "i1")]), "1 * {a: ?datetime['s'], b: int8}"),
    ],
)
def test_types_are_inferred(value, text):
    assert str(dynd.typeof(value)) == text
    assert str(dynd.array(value).type) == text


@pytest.mark.parametrize(
    "value",
    [[dt.date(2020, 1, 1), dt.datetime(2020, 1, 1)], [dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=UTC)],
     [Decimal("1e30"), Decimal("1e-30")], [Decimal("NaN")], [dt.date(2020, 1, 1), 5]],
)  # fmt: skip
def test_values_without_one_common_type_are_refused(value):
    with pytest.raises(InputError):
        dynd.typeof(value)


@pytest.mark.parametrize(
    "kind", ["M8[D]", "M8[s]", "M8[ms]", ">M8[us]", "M8[ns]", "m8[s]", "m8[ms]", "m8[us]", ">m8[ns]"]
)
def test_numpy_both_ways(kind):
    array = np.array([[0, 1, -5], [10**6, 7, 2]]).astype(kind)
    array[0, 1] = "NaT"
    tensor = dynd.array(array)
    assert tensor.tolist()[0][1] is None
    again = tensor.numpy()
    assert again.dtype == np.dtype(kind).newbyteorder("=")
    np.testing.assert_array_equal(again, array)
    read = dynd.deserialize(tensor.serialize(), tensor.type)
    np.testing.assert_array_equal(read.numpy(), array)
    assert dynd.serialize(tensor.tolist(), tensor.type) == tensor.serialize()


def test_numpy_records_and_masks():
    array = np.array([(1, "2020-01-01", "NaT", 5), (2, "NaT", "2021-01-01", -1)],
                     [("n", "i4"), ("d", "M8[D]"), ("t", "M8[us]"), ("e", "m8[s]")])  # fmt: skip
    tensor = dynd.array(array)
    assert tensor.tolist()[0] == {"n": 1, "d": dt.date(2020, 1, 1), "t": None, "e": dt.timedelta(seconds=5)}
    again = tensor.numpy()
    assert again.dtype == array.dtype
    assert again.tobytes() == array.tobytes()
    masked = np.ma.masked_array(np.array(["2020", "NaT", "2021"], "M8[s]"), [True, False, False])
    assert [x is None for x in dynd.array(masked).tolist()] == [True, True, False]


@pytest.mark.parametrize("kind", ["M8[Y]", "M8[h]", "M8[ps]", "M8[10s]", "m8", "m8[D]", "m8[W]"])
def test_other_units_are_refused_with_the_way_out(kind):
    with pytest.raises(UnsupportedError, match="astype"):
        dynd.typeof(np.zeros(1, kind))


def test_values_that_numpy_cannot_represent():
    for text, value in (("time['us']", dt.time(1)), ("decimal[5, 2]", Decimal(1)), ("map[int8, int8]", {}),
                        ("datetime['us', tz='UTC']", dt.datetime(2020, 1, 1, tzinfo=UTC)),
                        ("datetime['us']", -(2**63))):  # fmt: skip
        with pytest.raises(UnsupportedError, match=r"rule dynd\.numpy"):
            dynd.array([value], f"1 * {text}").numpy()


UNITS = ("s", "ms", "us", "ns")


def arrow_arrays():
    pa = needs("pyarrow")
    return [
        pa.array([1, None, -3], pa.date32()),
        pa.array([1, None], pa.time32("s")),
        pa.array([1, 2], pa.time32("ms")),
        pa.array([1, None], pa.time64("us")),
        pa.array([1, 2], pa.time64("ns")),
        *(pa.array([1, None, -(2**40)], pa.timestamp(unit, tz)) for unit in UNITS for tz in (None, "UTC", "+01:00")),
        *(pa.array([1, None], pa.duration(unit)) for unit in UNITS),
        pa.array([Decimal("-1.50"), None], pa.decimal128(10, 2)),
        pa.array([Decimal("100")], pa.decimal128(10, -2)),
        pa.array([[("a", 1), ("b", None)], None, []], pa.map_(pa.large_string(), pa.int64())),
        pa.array([[(1, [Decimal(5)])]], pa.map_(pa.int8(), pa.large_list(pa.decimal128(3)))),
    ]  # fmt: skip


@pytest.mark.parametrize("i", range(len(arrow_arrays())))
def test_arrow_one_to_one(i):
    array = arrow_arrays()[i]
    tensor = dynd.array(array)
    again = tensor.arrow()
    again.validate(full=True)
    assert again.cast(array.type).equals(array)
    assert again.type.id == array.type.id
    assert dynd.array(again).cid() == tensor.cid()
    assert dynd.deserialize(tensor.serialize(), tensor.type).arrow().equals(again)
    assert dynd.array(array[1:]).tolist() == tensor.tolist()[1:]
    assert dynd.serialize(tensor.tolist(), tensor.type) == tensor.serialize()


def test_arrow_other_forms():
    pa = needs("pyarrow")
    assert dynd.array(pa.array([86_400_000], pa.date64())).tolist() == [dt.date(1970, 1, 2)]
    assert str(dynd.typeof(pa.array([Decimal("1.5")], pa.decimal256(20, 3)))) == "1 * decimal[20, 3]"
    unsorted = pa.array([[("b", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    assert dynd.array(unsorted).tolist() == [[("a", 2), ("b", 1)]]
    with pytest.raises(InputError, match=r"rule dynd\.map"):
        dynd.array(pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())))
    assert dynd.serialize(pa.array([1], pa.timestamp("s")), "1 * datetime['ms']") == little(1000, 8)
    assert dynd.array(pa.scalar(5, pa.timestamp("ns"))).tolist() == np.datetime64(5, "ns")
    for array, text in ((pa.array([1], pa.timestamp("s")), "1 * datetime['s', tz='UTC']"),
                        (pa.array([1], pa.date32()), "1 * datetime['s']"),
                        (pa.array([Decimal(1)], pa.decimal128(3)), "1 * decimal[4, 0]"),
                        (pa.array([90_000], pa.time32("s")), "1 * time['s']")):  # fmt: skip
        with pytest.raises(InputError):
            dynd.serialize(array, text)
    with pytest.raises(UnsupportedError, match=r"rule dynd\.arrow"):
        dynd.array([[(None, 1)]], "1 * map[?int8, int8]").arrow()
    with pytest.raises(UnsupportedError, match=r"rule dynd\.arrow"):
        dynd.typeof(pa.array([Decimal(1)], pa.decimal256(50, 0)))


def test_awkward_has_datetimes_and_durations():
    ak = needs("awkward")
    array = ak.Array([[np.datetime64("2020-01-01", "us"), np.datetime64("NaT", "us")], [None], []])
    tensor = dynd.array(array)
    assert str(tensor.type) == "3 * var * ?datetime['us']"
    assert tensor.tolist() == [[dt.datetime(2020, 1, 1), None], [None], []]
    assert dynd.array(tensor.awkward()).cid() == tensor.cid()
    none = ak.Array([None, np.datetime64(0, "s")])[:1]
    assert dynd.array(none).tolist() == [None]
    assert dynd.array(ak.Array(np.zeros((2, 3), "M8[s]"))).tolist() == [[dt.datetime(1970, 1, 1)] * 3] * 2
    assert dynd.array(np.array([5], "m8[s]")).awkward().to_list() == [dt.timedelta(seconds=5)]
    for text, value in (("time['us']", dt.time(1)), ("decimal[5, 2]", Decimal(1)), ("map[int8, int8]", {})):
        with pytest.raises(UnsupportedError, match=r"rule dynd\.(numpy|awkward)"):
            dynd.array([value], f"1 * {text}").awkward()


JSON = {
    "date": ("2020-02-30", "2020-1-1", "today", "2020", "", "99999999999-01-01", "2020-01-01T00:00"),
    "time['s']": ("24:00:00", "1:00", "00:00:00.5", "00:60:00"),
    "datetime['us']": ("2020-01-01", "2020-01-01T00:00:00Z", "2020-01-01T25:00", "2020-01-01T00:00:00.1234567"),
    "datetime['s', tz='UTC']": ("2020-01-01T00:00+99:99", "2020-01-01T00:00+01:60", "2020-01-01T00:00-24:00"),
    "timedelta['s']": ("P", "PT", "-P", "P1DT", "5", "PT0.5S", "P1Y", "-"),
    "decimal[5, 2]": ("x", "", "1.234", "NaN", "sNaN", "-Infinity", "1000", "1E+40", "1E+9999999", "1E-9999999"),
}


@pytest.mark.parametrize(("text", "value"), [(text, value) for text, values in JSON.items() for value in values])
def test_json_of_another_form_is_refused(text, value):
    with pytest.raises(InputError, match=r"rule dynd\.(value|range)"):
        from_json(json.dumps(value), dynd.parse(text))


def test_json_in_other_spellings():
    for text, value, data in (("datetime['s', tz='UTC']", "1970-01-01T01:00:00+01:00", 0),
                              ("datetime['s', tz='UTC']", "1970-01-01 00:00", 0),
                              ("timedelta['ms']", "-P1DT2H3M4.005S", -93_784_005),
                              ("time['ns']", "00:00:00.000000001", 1)):  # fmt: skip
        assert from_json(json.dumps(value), dynd.parse(text)).serialize() == little(data, 8)


@pytest.mark.parametrize("format", ["dynd", "ztensor@0.1", "ztensor@2"])
def test_they_live_in_files(tmp_path, format):
    tensors = {
        "d": dynd.array([dt.date(2020, 1, 1), None], "2 * ?date"),
        "m": dynd.array([{"b": Decimal("1.5")}, {}], "var * map[string, decimal[5, 2]]"),
        "t": dynd.array([[dt.datetime(2020, 1, 1, tzinfo=UTC)], []], "var * var * datetime['us', tz='UTC']"),
        "one": dynd.array(dt.time(1), "time['us']"),
    }
    tg.save(tmp_path / "x", tensors, format=format)
    with tg.open(tmp_path / "x", format=format) as archive:
        for name, tensor in tensors.items():
            assert archive[name].type == tensor.type
            assert archive[name].tolist() == tensor.tolist()
            assert archive[name].cid() == tensor.cid()
    assert tg.verify(tmp_path / "x", format=format, deep=True).ok


def test_columns_of_a_file_are_checked(tmp_path):
    """Keys in another order, and a time beyond the day, as columns of a container that knows nothing of them."""
    cases = [
        ("map[int8, int8]", {1: 1, 2: 2}, "content.0.data", np.array([2, 1], np.int8), "dynd.map"),
        ("var * time['s']", [dt.time(1)], "content.data", np.array([90_000]), "dynd.time"),
    ]
    for text, value, part, other, rule in cases:
        tensor = dynd.array(value, text)
        parts = {**tensor.parts, part: dynd.array(other).parts["data"]}
        tg.save(tmp_path / "x.zt", {"t": tg.Tensor("t", parts, "nested", tensor.type, {"dynd": str(tensor.type)})})
        with tg.open(tmp_path / "x.zt") as archive, pytest.raises(tg.FormatError, match=f"rule {rule}"):
            archive["t"].tolist()


def test_identity_does_not_depend_on_the_way_in():
    pa = needs("pyarrow")
    moments = [dt.datetime(2020, 1, 1), None]
    array = np.array(["2020-01-01", "NaT"], "M8[us]")
    cids = {dynd.array(v, "2 * ?datetime['us']").cid() for v in (moments, array, pa.array(moments, pa.timestamp("us")))}
    assert len(cids) == 1


@pytest.mark.parametrize("type", ["datetime['s']", "datetime['s', tz='UTC']", "datetime['ms']", "timedelta['s']"])
def test_the_text_of_every_time_is_read_again(type: str) -> None:
    for count in (2**63 - 1, -(2**63) + 1, 55_662_776_156_160_000, 0):
        value = dynd.deserialize(count.to_bytes(8, "little", signed=True), type)
        assert dynd.from_json(dynd.to_json(value), type).cid() == value.cid()
    beyond = "PT9223372036854775808S" if type.startswith("timedelta") else "999999999999-01-01T00:00:00"
    with pytest.raises(tg.InputError, match=r"rule dynd\.range"):
        dynd.from_json(json.dumps(beyond), type)
