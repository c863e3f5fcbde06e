"""Tables: every type of value through Arrow tables, Parquet, pandas and polars, and the same identity after it."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorglot as tg
from command_line import run
from dynd_random import random_bytes, random_type
from peers import needs
from tensorglot import dynd
from tensorglot.model.types import algebra as T

UTC = dt.UTC
DAY = dt.date(2020, 1, 1)
LEAVES: dict[str, Any] = {
    "bool": True,
    "int8": -5,
    "int128": 2**100,
    "uint64": 2**63,
    "float16": 0.5,
    "float32": -0.0,
    "float64": 1e300,
    "float128": bytes(16),
    "bfloat16": 1.5,
    "float8_e4m3fn": 0.5,
    "int4": -3,
    "complex[float32]": 1 + 2j,
    "string": "é\0",
    "bytes": b"\0\xff",
    "bytes[3]": b"abc",
    "fixed_string[4]": "abc",
    "fixed_string[4, 'utf16']": "ab",
    "char": "x",
    "type": dynd.parse("var * int8"),
    "void": None,
    "date": dt.date(2024, 2, 29),
    "time['s']": dt.time(1, 2, 3),
    "time['ns']": np.timedelta64(5, "ns"),
    "timedelta['ms']": dt.timedelta(milliseconds=-7),
    "datetime['s']": dt.datetime(1950, 1, 1),
    "datetime['us', tz='Europe/Paris']": dt.datetime(2020, 1, 1, tzinfo=UTC),
    "datetime['ns', tz='+05:30']": np.datetime64(7, "ns"),
    "decimal[38, 5]": Decimal("-1.5"),
    "decimal[5, -2]": Decimal("100"),
    "map[string, decimal[9, 2]]": {"a": Decimal(1)},
    "map[int8, ?var * date]": {1: None, 2: [dt.date(2020, 1, 1)]},
    "array[Any]": 5,
    "pointer[int16]": 3,
    "merkle[int8]": dynd.Link("int8", "bafkr4ibj2nsppfvqzcgvnqnsxhvqnbx6tbllhtvvpbk4jtnyfkzjtlnqpa"),
    "storage[2 * 3 * int16, axis=[1, 0]]": [[1, 2, 3], [4, 5, 6]],
    "{x: int8, y: string}": {"x": 1, "y": "z"},
    "(int8, ?string)": (1, None),
    "{}": {},
    "()": (),
    "0 * int8": [],
    "2 * 2 * float32": [[1, 2], [3, 4]],
    "var * var * string": [["a"], []],
}  # fmt: skip
FORMS: dict[str, tuple[str, Any]] = {
    "rows": ("3 * {T}", lambda value: [value] * 3),
    "var rows": ("var * {T}", lambda value: [value] * 2),
    "no rows": ("var * {T}", lambda value: []),
    "one": ("{T}", lambda value: value),
    "field": ("var * {{a: {T}, 'b c': var * {T}}}", lambda value: [{"a": value, "b c": [value]}] * 2),
    "one record": ("{{a: {T}}}", lambda value: {"a": value}),
    "missing": ("2 * {{a: ?({T}, int8)}}", lambda value: [{"a": (value, 1)}, {"a": None}]),
    "missing leaf": ("2 * {{a: ?{T}}}", lambda value: [{"a": value}, {"a": None}]),
    "nothing missing": ("2 * {{a: ?{T}}}", lambda value: [{"a": value}] * 2),
    "deep": ("var * ?{{a: var * ?({T}, int8)}}", lambda value: [None, {"a": [None, (value, 1)]}, {"a": []}]),
}


def round_trips(tensor: tg.Tensor, path: Path) -> None:
    table = dynd.to_table(tensor)
    table.validate(full=True)
    dynd.to_parquet(tensor, path)
    for back in (dynd.array(table), dynd.from_parquet(path)):
        assert back.type == tensor.type
        assert back.cid() == tensor.cid()
        assert back.serialize() == tensor.serialize()
    assert dynd.typeof(table) == tensor.type


CASES = [(leaf, form) for leaf in LEAVES for form in FORMS if (leaf, "?{T}" in FORMS[form][0]) != ("void", True)]
"""There is no ?void."""


@pytest.mark.parametrize(("leaf", "form"), CASES)
def test_every_type_has_a_way_home(tmp_path: Path, leaf: str, form: str) -> None:
    needs("pyarrow")
    text, make = FORMS[form]
    round_trips(dynd.array(make(LEAVES[leaf]), text.format(T=leaf)), tmp_path / "x.parquet")


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_any_value_of_any_type(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    needs("pyarrow")
    rng = Random(seed)
    row = random_type(rng, rng.randrange(1, 4))
    type = rng.choice([row, T.Var(row), T.Fixed(2, row), T.Var(T.Struct((("a", row), ("é", random_type(rng, 2)))))])
    tensor = dynd.deserialize(random_bytes(rng, type), type)
    round_trips(tensor, tmp_path_factory.getbasetemp() / "any.parquet")


@pytest.mark.parametrize(("leaf", "form"), [case for case in CASES if case != ("array[Any]", "one")])
def test_every_type_has_a_way_home_from_polars(leaf: str, form: str) -> None:
    needs("polars")
    text, make = FORMS[form]
    tensor = dynd.array(make(LEAVES[leaf]), text.format(T=leaf))
    back = dynd.array(dynd.to_polars(tensor), tensor.type)
    assert (back.type, back.cid()) == (tensor.type, tensor.cid())


@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_any_value_of_any_type_through_polars(seed: int) -> None:
    needs("polars")
    rng = Random(seed)
    row = random_type(rng, rng.randrange(1, 4))
    type = rng.choice([T.Var(row), T.Fixed(2, row), T.Var(T.Struct((("a", row), ("é", random_type(rng, 2)))))])
    tensor = dynd.deserialize(random_bytes(rng, type), type)
    try:
        found = dynd.to_polars(tensor)
    except tg.UnsupportedError:
        assert isinstance(type.element, T.Struct)
        assert any(not name or "\0" in name for name, _ in type.element.fields)
        return
    assert dynd.array(found, type).cid() == tensor.cid()


def test_a_list_of_records_inside_a_value_is_a_table() -> None:
    needs("pyarrow")
    value = dynd.array([[{"a": 1}, {"a": 2}], [{"a": 3}]])
    assert dynd.to_table(value[1]).to_pylist() == [{"a": 3}]


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_names_that_polars_cannot_have(name: str) -> None:
    needs("polars")
    with pytest.raises(tg.UnsupportedError) as caught:
        dynd.to_polars([{name: 1}])
    assert caught.value.rule == "polars.name"
    inner = dynd.array([{"x": {name: 1}}])
    assert dynd.array(dynd.to_polars(inner), inner.type).cid() == inner.cid()


def test_other_tools_see_plain_columns(tmp_path: Path) -> None:
    parquet, pa = needs("pyarrow.parquet"), needs("pyarrow")
    runs = [{"id": 1, "loss": [0.5, 0.25], "when": dt.date(2020, 1, 1)}, {"id": 2, "loss": [], "when": None}]
    dynd.to_parquet(runs, tmp_path / "x.parquet", "var * {id: int64, loss: var * float64, when: ?date}")
    table = parquet.read_table(tmp_path / "x.parquet")
    assert table.to_pylist() == runs
    assert table.schema.field("loss").type == pa.large_list(pa.field("item", pa.float64(), nullable=False))
    assert dynd.from_parquet(tmp_path / "x.parquet", ["when"]).tolist() == [
        {"when": dt.date(2020, 1, 1)},
        {"when": None},
    ]
    with pytest.raises(tg.TensorNotFound, match="did you mean 'loss'"):
        dynd.from_parquet(tmp_path / "x.parquet", ["los"])
    with pytest.raises(FileNotFoundError):
        dynd.from_parquet(tmp_path / "none.parquet")


def arrow_columns() -> dict[str, Any]:
    pa = needs("pyarrow")
    return {
        "dictionary": pa.array(["a", "b", None, "a"]).dictionary_encode(),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([2, 4], pa.int32()), pa.array([1.5, None])),
        "date64": pa.array([0, 86_400_000, None, 0], pa.date64()),
        "instants": pa.array([0, 1, None, 2], pa.timestamp("us", "Europe/Paris")),
        "decimals": pa.array([Decimal("1.50"), None, Decimal(0), Decimal(2)], pa.decimal128(9, 2)),
        "small decimals": pa.array([Decimal("1.5"), None, Decimal(0), Decimal(2)], pa.decimal32(5, 1)),
        "maps": pa.array([[("b", 1), ("a", None)], None, [], []], pa.map_(pa.string(), pa.int32())),
        "structs": pa.array([{"x": 1, "y": [None, "z"]}, None, {"x": None, "y": []}, {"x": 2, "y": None}]),
        "views": pa.array(["x", None, "yy", ""], pa.string_view()),
        "fixed": pa.array([[1, 2], None, [3, None], [4, 5]], pa.list_(pa.int8(), 2)),
    }


@pytest.mark.parametrize("name", ["all", *(arrow_columns() if needs("pyarrow") else ())])
def test_tables_of_others(tmp_path: Path, name: str) -> None:
    pa, parquet = needs("pyarrow"), needs("pyarrow.parquet")
    columns = arrow_columns()
    table = pa.table(columns if name == "all" else {name: columns[name]})
    tensor = dynd.array(table)
    expected = table.to_pylist()
    for row in expected:
        if row.get("maps"):
            row["maps"] = sorted(row["maps"])
    assert tensor.tolist() == expected
    round_trips(tensor, tmp_path / "x.parquet")
    if name not in ("all", "runs"):
        parquet.write_table(table, tmp_path / "theirs.parquet")
        assert dynd.from_parquet(tmp_path / "theirs.parquet").cid() == tensor.cid()


def test_a_table_that_was_changed_is_read_by_what_it_is(tmp_path: Path) -> None:
    pa = needs("pyarrow")
    table = dynd.to_table([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}], "var * {a: ?int32, b: ?string}")
    text = str(dynd.typeof(table))
    assert text == "var * {a: ?int32, b: ?string}"
    changed = {
        "fewer rows": (table.slice(1), "var * {a: ?int32, b: ?string}"),
        "fewer columns": (table.select(["b"]), "var * {b: ?string}"),
        "another column": (table.append_column("c", pa.array([5, 6])), "var * {a: ?int32, b: ?string, c: int64}"),
        "another type": (table.set_column(0, "a", pa.array([1.5, 2.5])), "var * {a: float64, b: ?string}"),
        "equal numbers": (table.set_column(0, "a", pa.array([1.0, 2.0])), "var * {a: float64, b: ?string}"),
        "renamed": (table.rename_columns(["a", "z"]), "2 * {a: int32, z: string}"),
        "no metadata": (table.replace_schema_metadata(None), "2 * {a: int32, b: string}"),
        "broken metadata": (table.replace_schema_metadata({"dynd.type": "{"}), "2 * {a: int32, b: string}"),
    }  # fmt: skip
    for what, (other, expected) in changed.items():
        assert str(dynd.array(other).type) == expected, what
        assert dynd.array(other).tolist() == other.to_pylist(), what
    tight = dynd.to_table([1, 2], "2 * int8").set_column(0, "data", pa.array([1, None], pa.int8()))
    assert dynd.array(tight).tolist() == [1, None]
    packed = dynd.to_table([1.5, 2.5], "2 * bfloat16").set_column(0, "data", pa.array([b"x", b""], pa.large_binary()))
    assert dynd.array(packed).tolist() == [b"x", b""]
    assert dynd.array(dynd.to_table(5, "int8").slice(0, 0)).tolist() == []


def test_pandas_both_ways() -> None:
    pd = needs("pandas")
    tensor = dynd.array(
        [
            {"n": 1, "t": ["a"], "d": Decimal("1.50"), "when": dt.date(2020, 1, 1)},
            {"n": None, "t": [], "d": None, "when": None},
        ],
        "var * {n: ?int64, t: var * string, d: ?decimal[5, 2], when: ?date}",
    )
    frame = dynd.to_pandas(tensor)
    assert isinstance(frame, pd.DataFrame)
    assert frame["n"].tolist()[0] == 1
    assert dynd.array(frame).cid() == tensor.cid()
    assert dynd.array(frame[["n", "d"]]).tolist() == [{"n": 1, "d": Decimal("1.50")}, {"n": None, "d": None}]
    series = dynd.to_pandas([[1.5], [], [2.5]])
    assert isinstance(series, pd.Series)
    assert dynd.array(series).tolist() == [[1.5], [], [2.5]]
    plain = pd.DataFrame(
        {"c": pd.Categorical(["x", "y", "x"]), "when": pd.to_datetime(["2020-01-01", None, "2021-01-01"], utc=True)}
    )
    assert [row["c"] for row in dynd.array(plain).tolist()] == ["x", "y", "x"]
    assert dynd.array(plain).tolist()[1]["when"] is None


@pytest.mark.parametrize(
    ("value", "type"),
    [
        ([1, 2], "var * int32"),
        ([1j, 2], "2 * complex[float32]"),
        ([], "var * ?int8"),
        (5, "?int64"),
        (None, "?string"),
        ([{}, {}], "var * {}"),
        ([(1, "x")], "1 * (int8, string)"),
        ([{"data": 1}], "var * {data: int16}"),
        ([{"data": 1j}], "1 * {data: complex[float64]}"),
        (dynd.Link.to([1]), "merkle[Any]"),
    ],
)
def test_a_series_is_the_same_value_again(value: Any, type: str) -> None:
    needs("pandas")
    needs("polars")
    tensor = dynd.array(value, type)
    frame = dynd.to_pandas(tensor)
    assert frame.__class__.__name__ == ("DataFrame" if "data" in type else "Series")
    assert dynd.array(frame).cid() == dynd.array(frame, type).cid() == tensor.cid()
    assert dynd.array(dynd.to_polars(tensor), type).cid() == tensor.cid()


def test_a_series_that_was_changed_has_the_types_of_arrow() -> None:
    needs("pandas")
    series = dynd.to_pandas([1, 2], "var * ?int8")
    assert str(dynd.array(series[:1]).type) == "var * ?int8"
    assert str(dynd.array(series.astype("int64[pyarrow]")).type) == "var * int64"
    frame = dynd.to_pandas([{"a": 1}], "1 * {a: int8}")
    assert str(dynd.array(frame["a"]).type) == "1 * int8"


def test_a_column_is_the_same_in_a_frame_and_alone() -> None:
    pd = needs("pandas")
    frame = pd.DataFrame(
        {
            "nan": [1.0, float("nan")],
            "when": pd.to_datetime(["2020-01-01", "2021-01-01"]),
            "complex": [1j, 2],
            "nullable": pd.array([1, None], "Int64"),
            "text": ["x", None],
        }
    )
    records = dynd.array(frame)
    for name in frame:
        assert records[name].cid() == dynd.array(frame[name]).cid(), name
    assert str(records["nan"].type) == "2 * float64"
    assert str(dynd.typeof(frame[["nan"]])) == "2 * {nan: float64}"


def test_an_index_is_kept_unless_it_numbers_the_rows() -> None:
    pd = needs("pandas")
    frame = pd.DataFrame({"a": [1.5, 2.5, 3.5]})
    assert str(dynd.typeof(frame)) == "3 * {a: float64}"
    assert dynd.array(frame[frame["a"] > 2]).tolist() == [{"index": 1, "a": 2.5}, {"index": 2, "a": 3.5}]
    assert dynd.array(frame[1:].reset_index(drop=True)).tolist() == [{"a": 2.5}, {"a": 3.5}]
    frame.index = pd.Index(["x", "y", "z"], name="key")
    assert dynd.array(frame)[0].tolist() == {"key": "x", "a": 1.5}
    assert str(dynd.array(frame, "var * {a: float32, key: string}").type) == "var * {a: float32, key: string}"
    frame.index = pd.MultiIndex.from_tuples([("x", 1), ("y", 2), ("z", 3)], names=["key", "n"])
    assert dynd.array(frame)[2].tolist() == {"key": "z", "n": 3, "a": 3.5}


def test_polars_both_ways() -> None:
    pl = needs("polars")
    type = "var * {n: ?int64, t: var * string, d: ?decimal[5, 2], when: ?date, at: ?datetime['us', tz='UTC']}"
    tensor = dynd.array(
        [
            {
                "n": 1,
                "t": ["a"],
                "d": Decimal("1.50"),
                "when": dt.date(2020, 1, 1),
                "at": dt.datetime(2020, 1, 1, tzinfo=UTC),
            },
            {"n": None, "t": [], "d": None, "when": None, "at": None},
        ],
        type,
    )
    frame = dynd.to_polars(tensor)
    assert isinstance(frame, pl.DataFrame)
    assert dynd.array(frame, type).cid() == tensor.cid()
    assert dynd.array(frame).tolist() == tensor.tolist()
    assert dynd.to_polars([{"t": dt.time(1, 2)}], "var * {t: time['ns']}").schema == {"t": pl.Time}
    series = dynd.to_polars([[1.5], [], [2.5]])
    assert isinstance(series, pl.Series)
    assert dynd.array(series).tolist() == [[1.5], [], [2.5]]
    assert dynd.array(pl.Series(["a", "b", "a"], dtype=pl.Categorical)).tolist() == ["a", "b", "a"]


def test_parquet_that_is_cut_or_changed(tmp_path: Path) -> None:
    needs("pyarrow")
    rng = Random(4)
    path = tmp_path / "x.parquet"
    dynd.to_parquet([{"a": [1.5], "t": "x", "b": 2}] * 20, path, "var * {a: var * ?float64, t: string, b: bfloat16}")
    data = path.read_bytes()
    for case in range(300):
        bad = bytearray(data[: rng.randrange(len(data))] if case % 3 == 0 else data)
        if len(bad) == len(data):
            bad[rng.randrange(len(bad))] ^= rng.randrange(1, 256)
        path.write_bytes(bad)
        try:
            dynd.from_parquet(path).serialize()
        except tg.TensorglotError:
            continue
        assert len(bad) == len(data)


JSON: dict[str, tuple[Any, str]] = {
    "var * {a: ?int8, b: bytes}": ([{"a": None, "b": b"\0"}], '[{"a": null, "b": {"$hex": "00"}}]'),
    "2 * float64": ([float("nan"), 1.5], '["NaN", 1.5]'),
    "complex[float64]": (1 + 2j, "[1.0, 2.0]"),
    "map[string, date]": ({"é": dt.date(2020, 1, 1)}, '[["é", "2020-01-01"]]'),
    "decimal[5, 2]": (Decimal("1.5"), '"1.50"'),
    "array[Any]": (5, '{"$type": "int64", "$value": 5}'),
}


@pytest.mark.parametrize("type", JSON)
def test_json_in_python_as_on_the_command_line(tmp_path: Path, type: str) -> None:
    value, text = JSON[type]
    assert dynd.to_json(value, type) == text
    back = dynd.from_json(text, type)
    assert back.cid() == dynd.array(value, type).cid()
    assert dynd.from_json(text.encode(), dynd.parse(type)).cid() == back.cid()
    packed = tmp_path / "x.dynd"
    packed.write_bytes(dynd.pack(back))
    assert json.loads(run("dynd", "decode", packed).stdout) == json.loads(text)


def test_json_without_a_type() -> None:
    assert str(dynd.from_json('[{"a": 1}, {"a": null}]').type) == "2 * {a: ?int64}"
    assert dynd.from_json(dynd.to_json([[1], [2, 3]])).tolist() == [[1], [2, 3]]
    for text in ("[1,", "", b"\xff", 5):
        with pytest.raises(tg.InputError, match=r"rule dynd\.json"):
            dynd.from_json(text)  # type: ignore[arg-type]


class TestCommandLine:
    def test_parquet_to_a_value_and_back(self, tmp_path: Path) -> None:
        needs("pyarrow")
        tensor = dynd.array([{"a": 1, "b": [1.5]}], "var * {a: ?int8, b: var * float64}")
        source, packed, back = tmp_path / "x.parquet", tmp_path / "x.dynd", tmp_path / "y.parquet"
        dynd.to_parquet(tensor, source)
        run("dynd", "encode", source, "--pack", "-o", packed)
        assert dynd.unpack(packed.read_bytes()).cid() == tensor.cid()
        assert run("dynd", "type", "--of", source).stdout == f"{tensor.type}\n"
        run("dynd", "decode", packed, "-o", back)
        assert dynd.from_parquet(back).cid() == tensor.cid()
        assert json.loads(run("dynd", "decode", packed).stdout) == [{"a": 1, "b": [1.5]}]
        run("dynd", "decode", packed, "-o", tmp_path / "x.json")
        assert dynd.from_json((tmp_path / "x.json").read_text(), tensor.type).cid() == tensor.cid()
