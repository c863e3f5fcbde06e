"""Sparse and quantized tensors: rules, values, scipy, and both versions of zTensor that hold them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorglot as tg
from tensorglot.model.layouts import COO, CSR, MX, QUANT_GROUP, check_values
from test_ztensor_01 import index_of
from ztensor_builder import entry, file01, file2, part, tensor

VERSIONS = ("ztensor@0.1", "ztensor@2")
E8M0 = ml_dtypes.float8_e8m0fnu


def csr(indices: Any = (0, 2, 1), indptr: Any = (0, 2, 3), shape: Any = (2, 3), kind: str = "u4", **parts: Any) -> Any:
    arrays = {
        "values": np.arange(1, 4, dtype="f4"),
        "indices": np.array(indices, kind),
        "indptr": np.array(indptr, kind),
    }
    return tg.Tensor.of_parts("m", CSR, shape, arrays | parts)


def coo(coords: Any = ((0, 0, 1), (0, 2, 1)), shape: Any = (2, 3), kind: str = "u8", **parts: Any) -> Any:
    arrays = {"values": np.arange(1, 4, dtype="f4"), "coords": np.array(coords, kind)}
    return tg.Tensor.of_parts("m", COO, shape, arrays | parts)


def with_parts(made: Any, **parts: Any) -> Any:
    """The same tensor with other parts."""
    arrays = {name: one.array() for name, one in made.parts.items()} | parts
    return tg.Tensor.of_parts(made.name, made.layout, made.shape, arrays)


DENSE = [[1, 0, 2], [0, 3, 0]]


def test_a_sparse_tensor_of_as_many_dimensions_as_numpy_has() -> None:
    """NumPy takes fewer index arrays than that."""
    coords = np.zeros((64, 2), np.int64)
    coords[-1] = 0, 2
    made = coo(coords, (*[1] * 63, 3), "i8", values=np.array([5, 6], np.float32))
    assert made.serialize() == np.array([5, 0, 6], np.float32).tobytes()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("make", [csr, coo])
@pytest.mark.parametrize("kind", ["u4", "u8", "i4", "i8"])
def test_sparse_round_trip(version: str, compression: str | None, make: Any, kind: str) -> None:
    data = tg.dumps({"m": make(kind=kind), "w": np.arange(3)}, format=version, compression=compression)
    with tg.open(data) as archive:
        read = archive["m"]
        assert (read.layout, read.shape, str(read.type)) == (make().layout, (2, 3), "2 * 3 * float32")
        assert read.dtype is None
        assert read.scipy().toarray().tolist() == DENSE
        assert archive["w"].numpy().tolist() == [0, 1, 2]
        with pytest.raises(tg.UnsupportedError, match=r"rule tensor\.dense"):
            read.numpy()
        for other in VERSIONS:
            with tg.open(tg.dumps(archive, format=other)) as again:
                assert again["m"].scipy().toarray().tolist() == DENSE
        with pytest.raises(tg.UnsupportedError, match=r"rule save\.layout"):
            tg.dumps(archive, format="bintensors")
    assert tg.verify(data, deep=True).ok


@given(
    st.integers(0, 6),
    st.integers(0, 6),
    st.floats(0, 1),
    st.sampled_from(["csr", "coo", "csc", "lil", "dok", "bsr", "dia"]),
    st.sampled_from(["f4", "f8", "i2", "bool", "c8"]),
)
@settings(max_examples=60, deadline=None)
def test_scipy_both_ways(rows: int, columns: int, density: float, form: str, kind: str) -> None:
    rng = np.random.default_rng(rows * 100 + columns)
    values = (rng.random((rows, columns)) < density).astype(kind)
    if not (rows and columns) and form in ("bsr", "dia"):
        return
    matrix = scipy.sparse.coo_array(values).asformat(form)
    for version in VERSIONS:
        with tg.open(tg.dumps({"m": matrix}, format=version)) as archive:
            back = archive["m"].scipy()
            assert back.shape == matrix.shape
            assert back.dtype == matrix.dtype
            assert np.array_equal(back.toarray(), values)
            assert back.format == ("coo" if form == "coo" else "csr")


def test_unsorted_and_repeated_entries_of_scipy_are_put_in_order() -> None:
    repeated = scipy.sparse.coo_matrix(([1.0, 2.0, 4.0], ([1, 0, 1], [2, 1, 2])), shape=(2, 3))
    unsorted = scipy.sparse.csr_array(([1.0, 2.0], [2, 0], [0, 2, 2]), shape=(2, 3))
    for matrix in (repeated, unsorted):
        with tg.open(tg.dumps({"m": matrix}, format="ztensor@2", checksum="xxh3")) as archive:
            assert np.array_equal(archive["m"].scipy().toarray(), matrix.toarray())
    assert not repeated.has_canonical_format, "the caller's matrix stays as it was"
    assert unsorted.indices.tolist() == [2, 0]


def test_three_dimensions() -> None:
    values = np.zeros((2, 3, 4))
    values[0, 1, 2], values[1, 2, 3] = 5, 7
    matrix = scipy.sparse.coo_array(values)
    with tg.open(tg.dumps({"m": matrix}, format="ztensor")) as archive:
        assert archive["m"].shape == (2, 3, 4)
        assert np.array_equal(archive["m"].scipy().toarray(), values)


def test_what_scipy_cannot_hold_is_refused() -> None:
    odd = csr(values=np.ones(3, ml_dtypes.bfloat16))
    with tg.open(tg.dumps({"m": odd}, format="ztensor")) as archive:
        assert archive["m"].parts["values"].array().dtype == ml_dtypes.bfloat16
    with pytest.raises(tg.UnsupportedError, match=r"rule bridge\.layout"):
        tg.Tensor.of_parts("q", MX, (32,), mx_parts((32,)), {"block_size": 32}).scipy()
    with pytest.raises(tg.UnsupportedError, match=r"rule dequantize\.layout"):
        csr().dequantize()


STRUCTURE = [
    (lambda: csr(shape=(6,)), "rank"),
    (lambda: csr(shape=(3, 3)), "size"),
    (lambda: csr(indices=(0, 1)), "size"),
    (lambda: csr(values=np.zeros(2, "f4")), "size"),
    (lambda: with_parts(csr(), indptr=np.array([0, 2, 3], "u8")), "index"),
    (lambda: with_parts(csr(), indices=np.zeros(3, "f4")), "index"),
    (lambda: csr(more=np.zeros(3)), "parts"),
    (lambda: coo(shape=()), "rank"),
    (lambda: coo(coords=((0, 0, 1, 1, 0),)), "size"),
    (lambda: coo(values=np.zeros(2, "f4")), "size"),
    (lambda: with_parts(coo(), coords=np.zeros((2, 3), "f8")), "index"),
    (lambda: tg.Tensor.of_parts("m", COO, (2,), {"values": np.zeros(2)}), "parts"),
]


@pytest.mark.parametrize(("make", "rule"), STRUCTURE)
def test_structure_of_sparse_tensors(make: Any, rule: str) -> None:
    with pytest.raises(tg.InputError) as caught:
        make()
    assert (caught.value.rule, caught.value.tensor) == (f"layout.{rule}", "m")


VALUES = [
    (lambda: csr(indptr=(1, 2, 3)), "indptr"),
    (lambda: csr(indptr=(0, 3, 2)), "indptr"),
    (lambda: csr(indptr=(0, 2, 4)), "indptr"),
    (lambda: csr(indptr=(0, 5, 3)), "indptr"),
    (lambda: csr(indices=(0, 3, 1)), "bounds"),
    (lambda: csr(indices=(0, -1, 1), kind="i4"), "bounds"),
    (lambda: csr(indices=(2, 0, 1)), "order"),
    (lambda: csr(indices=(0, 0, 1)), "order"),
    (lambda: coo(coords=((0, 0, 2), (0, 2, 1))), "bounds"),
    (lambda: coo(coords=((0, 0, 1), (0, 3, 1))), "bounds"),
    (lambda: coo(coords=((0, 0, -1), (0, 2, 1)), kind="i8"), "bounds"),
    (lambda: coo(coords=((0, 0, 0), (0, 2, 2))), "unique"),
    (lambda: coo(coords=((5, 1 << 40, 5), (1 << 20, 2, 1 << 20)), shape=(1 << 41, 1 << 22)), "unique"),
]


@pytest.mark.parametrize(("make", "rule"), VALUES)
def test_values_of_sparse_tensors(make: Any, rule: str) -> None:
    broken = make()
    for check in (lambda: check_values(broken), broken.scipy):
        with pytest.raises(tg.FormatError) as caught:
            check()
        assert (caught.value.rule, caught.value.tensor) == (f"layout.values.{rule}", "m")
    kinds = {one.dtype.name for name, one in broken.parts.items() if name != "values"}
    if kinds <= {"uint32", "uint64"}:
        for version in VERSIONS:
            report = tg.verify(tg.dumps({"m": broken}, format=version), deep=True)
            assert [problem.rule for problem in report.problems] == [f"layout.values.{rule}"]


def test_rows_may_be_empty() -> None:
    matrix = csr(indices=(0, 1, 2), indptr=(0, 0, 0, 3, 3), shape=(4, 3))
    assert matrix.scipy().toarray()[2].tolist() == [1, 2, 3]
    empty = tg.Tensor.of_parts(
        "m", CSR, (2, 3), {"values": np.zeros(0, "f4"), "indices": np.zeros(0, "u4"), "indptr": np.zeros(3, "u4")}
    )
    assert empty.scipy().nnz == 0


def test_entries_of_0_1_follow_the_convention() -> None:
    rows = index_of(tg.dumps({"m": csr()}, format="ztensor"))
    assert [row["name"] for row in rows] == ["m#values", "m#indices", "m#indptr"]
    assert {row["layout"] for row in rows} == {"dense"}
    assert [row["part"] for row in rows] == ["values", "indices", "indptr"]
    assert {row["part_of"] for row in rows} == {"m"}
    assert (rows[0]["logical_layout"], rows[0]["logical_shape"]) == (CSR, [2, 3])
    assert "logical_shape" not in rows[1]


def test_a_layout_in_the_field_of_that_name_is_understood() -> None:
    def row(part_name: str, offset: int, data: Any, **fields: Any) -> dict[str, Any]:
        return entry(f"m#{part_name}", offset=offset, size=data.nbytes, dtype=data.dtype.name, shape=[data.size],
                     part_of="m", part=part_name, layout=CSR, **fields)  # fmt: skip

    arrays = {
        "values": np.arange(1, 4, dtype="f4"),
        "indices": np.array([0, 2, 1], "u4"),
        "indptr": np.array([0, 2, 3], "u4"),
    }
    rows = [row(name, 64 * (i + 1), data) for i, (name, data) in enumerate(arrays.items())]
    rows[0]["logical_shape"] = [2, 3]
    body = b"".join(data.tobytes().ljust(64, b"\0") for data in arrays.values())
    with tg.open(file01(rows, body)) as archive:
        assert archive["m"].scipy().toarray().tolist() == DENSE
    rows[0]["logical_shape"] = [3, 3]
    with pytest.raises(tg.FormatError) as caught:
        tg.open(file01(rows, body))
    assert caught.value.rule == "layout.size"


# Quantized


def quantized(shape: tuple[int, ...], bits: int, group: int, axis: int, word: str, order: str, form: str, packing: str,
              kind: Any = np.float32, signed: bool = False) -> tuple[Any, np.ndarray[Any, Any]]:  # fmt: skip
    """A tensor and its values, computed in the plainest way."""
    rng = np.random.default_rng(1)
    width = int(word[1:])
    per_word = width // bits
    whole_signed = signed and bits == width
    codes = rng.integers(-(1 << bits - 1), 1 << bits - 1, shape) if whole_signed else rng.integers(0, 1 << bits, shape)
    groups = tuple(n // group if i == axis and group else n for i, n in enumerate(shape))
    if not group:
        groups = tuple(n if i == axis else 1 for i, n in enumerate(shape))
    scales = rng.random(groups).astype(kind)
    if kind is E8M0:
        scales = rng.integers(120, 134, groups).astype("u1").view(E8M0)
    zeros = rng.integers(0, 1 << bits, groups)

    def pack(values: Any) -> Any:
        flat = values.reshape(-1, per_word)
        words = []
        for row in flat.tolist():
            total = 0
            for i, code in enumerate(row):
                shift = bits * (i if order == "lsb_first" else per_word - 1 - i)
                total |= (code & (1 << bits) - 1) << shift
            words.append(total)
        packed = np.array(words, f"u{width // 8}")
        return packed.view(f"i{width // 8}") if signed else packed

    parts = {"data": pack(codes), "scales": scales}
    zero: dict[str, Any] = {"form": form}
    used: Any = np.zeros(groups)
    if form == "implied":
        zero["value"] = used = 8
    if form == "tensor":
        zero["packing"] = packing
        parts["zeros"] = zeros.astype("f4") if packing == "plain" else pack(zeros)
        used = zeros
    attributes = {
        "bits": bits,
        "group_size": group,
        "axis": axis,
        "packing": {"word": word, "order": order, "per_word": per_word},
        "scale_form": {np.float32: "f32_factors", np.float16: "f16_factors", E8M0: "e8m0_exponent"}[kind],
        "zero_point": zero,
    }
    expected = np.empty(shape)
    for index in np.ndindex(shape):
        at = tuple(
            (i // group if d == axis and group else i) if groups[d] > 1 or shape[d] == 1 else 0
            for d, i in enumerate(index)
        )
        at = tuple(min(i, groups[d] - 1) for d, i in enumerate(at))
        offset = used if form == "implied" else used[at]
        expected[index] = (int(codes[index]) - int(offset)) * float(scales[at])
    return tg.Tensor.of_parts("q", QUANT_GROUP, shape, parts, attributes), expected


QUANTIZED = [
    ((4, 64), 4, 32, 1, "u32", "lsb_first", "implied", ""),
    ((8, 16), 4, 4, 0, "u32", "msb_first", "tensor", "same_as_data", np.float16),
    ((8, 16), 4, 8, 1, "u32", "lsb_first", "tensor", "plain", np.float16),
    ((4, 6), 8, 0, 0, "u8", "lsb_first", "none", ""),
    ((4, 6), 8, 0, 0, "u8", "lsb_first", "none", "", np.float32, True),
    ((4, 8), 2, 4, 1, "u16", "msb_first", "none", ""),
    ((2, 3, 8), 4, 2, 2, "u64", "lsb_first", "tensor", "plain"),
    ((4, 8), 4, 8, 1, "u8", "lsb_first", "none", "", E8M0),
]


@pytest.mark.parametrize(
    "case", QUANTIZED, ids=[f"{case[0]}-{case[1]}-{case[2]}-{case[5]}-{case[6]}" for case in QUANTIZED]
)
@pytest.mark.parametrize("version", VERSIONS)
def test_quant_group(case: Any, version: str) -> None:
    made, expected = quantized(*case)
    values = made.dequantize()
    assert values.dtype == np.float32
    assert np.allclose(values, expected, rtol=1e-6)
    with tg.open(tg.dumps({"q": made}, format=version, compression="zstd")) as archive:
        assert np.array_equal(archive["q"].dequantize(), values)
        assert archive["q"].attributes == made.attributes
        assert str(archive["q"].type) == " * ".join(map(str, case[0])) + " * float32"
        with tg.open(tg.dumps(archive, format="ztensor@2", checksum="xxh3"), strict=True) as again:
            assert np.array_equal(again["q"].dequantize(), values)


GROUP = QUANTIZED[0]


def test_scales_of_any_value_raise_no_warning() -> None:
    made, _ = quantized(*GROUP)
    arrays = {name: one.array() for name, one in made.parts.items()}
    scales = arrays["scales"].reshape(-1).copy()
    scales[:4] = np.array([0x7F800000, 0xFF800000, 0x7F800001, 0x7F7FFFFF], np.uint32).view(np.float32)
    odd = tg.Tensor.of_parts("q", QUANT_GROUP, made.shape, {**arrays, "scales": scales}, made.attributes)
    assert not np.isfinite(odd.dequantize()).all()


WRONG = [
    ({"bits": 3}, {}, "bits"),
    ({"bits": 7}, {}, "bits"),
    ({"bits": True}, {}, "bits"),
    ({"bits": None}, {}, "bits"),
    ({"group_size": 5}, {}, "group_size"),
    ({"group_size": -1}, {}, "group_size"),
    ({"axis": 2}, {}, "axis"),
    ({"axis": None}, {}, "axis"),
    ({"packing": {"word": "u16", "order": "lsb_first", "per_word": 4}}, {}, "data"),
    ({"packing": {"word": "u32", "order": "up", "per_word": 8}}, {}, "packing"),
    ({"packing": {"word": "u32", "order": "lsb_first", "per_word": 4}}, {}, "packing"),
    ({"packing": 4}, {}, "packing"),
    ({"packing": {"word": ["u32"], "order": "lsb_first", "per_word": 8}}, {}, "packing"),
    ({"packing": {"word": "u32", "order": ["lsb_first"], "per_word": 8}}, {}, "packing"),
    ({"scale_form": {}}, {}, "scale_form"),
    ({"scale_form": ["f32_factors"]}, {}, "scale_form"),
    ({"zero_point": {"form": ["none"]}}, {}, "zero_point"),
    ({"scale_form": "f16_factors"}, {}, "scales"),
    ({"scale_form": "what"}, {}, "scale_form"),
    ({"zero_point": {"form": "tensor", "packing": "plain"}}, {}, "parts"),
    ({"zero_point": {"form": "implied"}}, {}, "zero_point"),
    ({"zero_point": {"form": "implied", "value": 1.5}}, {}, "zero_point"),
    ({"zero_point": {"form": "what"}}, {}, "zero_point"),
    ({"zero_point": None}, {}, "zero_point"),
    ({}, {"scales": np.zeros(9, "f4")}, "size"),
    ({}, {"data": np.zeros(31, "u4")}, "size"),
    ({}, {"data": np.zeros(32, "f4")}, "data"),
    ({}, {"more": np.zeros(3)}, "parts"),
]


@pytest.mark.parametrize(("attributes", "parts", "rule"), WRONG)
def test_rules_of_quant_group(attributes: dict[str, Any], parts: dict[str, Any], rule: str) -> None:
    made, _ = quantized(*GROUP)
    arrays = {name: one.array() for name, one in made.parts.items()} | parts
    with pytest.raises(tg.InputError) as caught:
        tg.Tensor.of_parts("q", QUANT_GROUP, made.shape, arrays, {**made.attributes, **attributes})
    assert caught.value.rule == f"layout.{rule}"


def mx_parts(shape: tuple[int, ...], element: Any = ml_dtypes.float4_e2m1fn, block: int = 32, axis: int = -1) -> Any:
    rng = np.random.default_rng(2)
    blocks = list(shape)
    blocks[axis] //= block
    data = (rng.standard_normal(shape) * 3).astype(element)
    scales = rng.integers(100, 150, blocks).astype("u1")
    scales.reshape(-1)[0] = 0xFF
    return {"data": data, "scales": scales.view(E8M0)}


@pytest.mark.parametrize("element", [ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.int8])
@pytest.mark.parametrize(
    ("shape", "block", "axis"), [((2, 64), 32, 1), ((64, 3), 32, 0), ((4, 6), 2, 1), ((2, 4, 8), 4, 1)]
)
@pytest.mark.parametrize("version", VERSIONS)
def test_mx(element: Any, shape: tuple[int, ...], block: int, axis: int, version: str) -> None:
    parts = mx_parts(shape, element, block, axis)
    made = tg.Tensor.of_parts("q", MX, shape, parts, {"block_size": block, "axis": axis, "scale_form": "e8m0_exponent"})
    values = made.dequantize()
    unit = 2.0**-6 if element is np.int8 else 1.0
    exponents = parts["scales"].view("u1")
    for index in np.ndindex(shape):
        at = tuple(i // block if d == axis else i for d, i in enumerate(index))
        if exponents[at] == 0xFF:
            assert math.isnan(values[index])
        else:
            assert values[index] == np.float32(float(parts["data"][index]) * unit * 2.0 ** (int(exponents[at]) - 127))
    with tg.open(tg.dumps({"q": made}, format=version)) as archive:
        assert np.array_equal(archive["q"].dequantize(), values, equal_nan=True)
    assert tg.verify(tg.dumps({"q": made}, format=version), deep=True).ok


@pytest.mark.parametrize(
    ("attributes", "parts", "rule"),
    [
        ({"block_size": 1}, {}, "block_size"),
        ({"block_size": 24}, {}, "block_size"),
        ({"block_size": None}, {}, "block_size"),
        ({"axis": 5}, {}, "axis"),
        ({"scale_form": "f32_factors"}, {}, "scale_form"),
        ({}, {"scales": np.zeros(4, "u1")}, "scales"),
        ({}, {"scales": np.zeros(5, "u1").view(E8M0)}, "size"),
        ({}, {"data": np.zeros((2, 64), "f4")}, "data"),
        ({}, {"data": np.zeros((2, 32), ml_dtypes.float4_e2m1fn)}, "size"),
        ({}, {"more": np.zeros(3)}, "parts"),
    ],
)
def test_rules_of_mx(attributes: dict[str, Any], parts: dict[str, Any], rule: str) -> None:
    with pytest.raises(tg.InputError) as caught:
        tg.Tensor.of_parts("q", MX, (2, 64), mx_parts((2, 64)) | parts, {"block_size": 32, "axis": 1} | attributes)
    assert caught.value.rule == f"layout.{rule}"


@pytest.mark.parametrize("layout", [CSR, COO, QUANT_GROUP, MX])
def test_a_file_that_breaks_a_layout_is_refused_at_the_door(layout: str) -> None:
    for parts, attributes in (({"data": part()}, {}), ({"data": part(), "scales": part()}, {"block_size": 0})):
        with pytest.raises(tg.FormatError) as caught:
            tg.open(file2({"objects": {"m": tensor(layout=layout, parts=parts, attributes=attributes)}}))
        assert caught.value.rule.startswith("layout.")
        assert caught.value.tensor == "m"
        assert caught.value.offset is not None


def test_attributes_of_a_quantized_tensor_are_bounded() -> None:
    with pytest.raises(tg.LimitError) as caught:
        tg.open(file2({"objects": {"m": tensor(layout=MX, attributes={"x": [[]] * 70_000})}}))
    assert caught.value.rule == "ztensor.limit.attributes"


def test_a_shape_that_version_2_cannot_hold_is_not_written() -> None:
    huge = coo(coords=((5, 1 << 40, 6), (1, 2, 3)), shape=(1 << 41, 1 << 41))
    assert tg.open(tg.dumps({"m": huge}, format="ztensor"))["m"].shape == (1 << 41, 1 << 41)
    with pytest.raises(tg.UnsupportedError, match=r"rule ztensor\.write\.shape"):
        tg.dumps({"m": huge}, format="ztensor@2", checksum="xxh3")


class TestAttributes:
    """New attributes replace the user's, and never those that say what the parts are."""

    RAGGED: ClassVar[list[list[int]]] = [[1], [2, 3]]

    @pytest.mark.parametrize("format", VERSIONS)
    def test_nested_values_keep_their_type(self, format: str, tmp_path: Path) -> None:
        data = tg.dumps({"a": self.RAGGED}, format=format, attributes={"a": {"k": 1}})
        path = tmp_path / "x.zt"
        with tg.Writer(path, format=format) as out:
            out.add("a", self.RAGGED, attributes={"k": 1})
        for source in (data, path):
            with tg.open(source) as archive:
                assert archive["a"].tolist() == self.RAGGED
                assert archive["a"].attributes == {"dynd": "2 * var * int64", "k": 1}
                again = tg.dumps(archive, format=format, attributes={"a": {"l": 2}})
            with tg.open(again) as archive:
                assert archive["a"].tolist() == self.RAGGED
                assert archive["a"].attributes == {"dynd": "2 * var * int64", "l": 2}

    @pytest.mark.parametrize("format", VERSIONS)
    def test_a_quantized_tensor_keeps_its_packing(self, format: str) -> None:
        made = tg.Tensor.of_parts("q", MX, (2, 64), mx_parts((2, 64)), {"block_size": 32, "axis": 1, "mine": 0})
        with tg.open(tg.dumps({"q": made}, format=format, attributes={"q": {"k": 1}})) as archive:
            assert archive["q"].attributes == {"block_size": 32, "axis": 1, "k": 1}
            assert np.array_equal(archive["q"].dequantize(), made.dequantize(), equal_nan=True)

    def test_a_description_cannot_be_replaced(self, tmp_path: Path) -> None:
        for attributes in ({"dynd": "2 * var * int8"}, {"dynd": 5}):
            with pytest.raises(tg.InputError) as caught:
                tg.dumps({"a": self.RAGGED}, format="ztensor", attributes={"a": attributes})
            assert (caught.value.rule, caught.value.tensor) == ("save.attributes", "a")
            with tg.Writer(tmp_path / "x.zt") as out, pytest.raises(tg.InputError, match=r"rule save\.attributes"):
                out.add("a", self.RAGGED, attributes=attributes)
        tg.dumps({"a": self.RAGGED}, format="ztensor", attributes={"a": {"dynd": "2 * var * int64"}})


def test_sparse_tensors_that_share_their_structure_keep_their_values(tmp_path: Path) -> None:
    """Only what shares all of its bytes is a tie."""
    one = scipy.sparse.csr_array(np.eye(4))
    two = scipy.sparse.csr_array((one.data * 2, one.indices, one.indptr), one.shape)
    for format in ("ztensor@0.1", "ztensor@2"):
        tg.save(tmp_path / "x.zt", {"one": one, "two": two, "none": np.zeros(0)}, format=format)
        with tg.open(tmp_path / "x.zt") as archive:
            assert archive["one"].scipy().toarray().tolist() == np.eye(4).tolist()
            assert archive["two"].scipy().toarray().tolist() == (2 * np.eye(4)).tolist()
            assert archive.find_ties() == {}
            with tg.open(tg.dumps(archive, format=format)) as again:
                assert again["two"].scipy().toarray().tolist() == (2 * np.eye(4)).tolist()
