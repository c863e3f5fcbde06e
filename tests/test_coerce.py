"""One door: every kind of value gives the same tensor, or the same refusal, in every verb."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorglot as tg
from peers import needs
from tensorglot.wire.cid import DAG_CBOR, block_cid

MATRIX = np.arange(6, dtype="float32").reshape(2, 3)
FLAT = np.array([1.5, -2.0, 3.25], "float32")
RAGGED = [[1, 2], [3]]


class ArrayLike:
    """Only `__array__`."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(MATRIX, dtype)


class Exporter:
    """Only DLPack."""

    def __dlpack__(self, **options: Any) -> Any:
        return MATRIX.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def library(name: str, make: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: make(needs(name))


def pymongo_vector(kind: str) -> Any:
    binary = needs("bson.binary")
    if kind == "BinaryVector":
        return binary.BinaryVector(FLAT.tolist(), binary.BinaryVectorDtype.FLOAT32)
    return binary.Binary(tg.bson.encode(FLAT), 9)


VALUES: dict[str, tuple[Callable[[], Any], str, Any]] = {
    "array": (lambda: MATRIX, "2 * 3 * float32", MATRIX.tolist()),
    "Fortran order": (lambda: np.asfortranarray(MATRIX), "2 * 3 * float32", MATRIX.tolist()),
    "big-endian": (lambda: MATRIX.astype(">f4"), "2 * 3 * float32", MATRIX.tolist()),
    "bfloat16": (lambda: MATRIX.astype(ml_dtypes.bfloat16), "2 * 3 * bfloat16", MATRIX.tolist()),
    "int4": (lambda: np.array([1, -2, 3], ml_dtypes.int4), "3 * int4", [1, -2, 3]),
    "matrix, a subclass": (lambda: MATRIX.view(np.matrix), "2 * 3 * float32", MATRIX.tolist()),
    "scalar": (lambda: np.float32(2), "float32", 2.0),
    "mask that hides nothing": (lambda: np.ma.array([1, 2]), "2 * int64", [1, 2]),
    "masked": (lambda: np.ma.array([1, 2], mask=[True, False]), "2 * ?int64", [None, 2]),
    "masked arrays in a list": (
        lambda: [np.ma.array([1, 2], np.int16, mask=[True, False]), np.array([3, 4], np.int16)], "2 * 2 * ?int16",
        [[None, 2], [3, 4]],
    ),
    "masked arrays of two dimensions in a tuple": (
        lambda: (np.ma.array([[1.5], [2]], mask=[[False], [True]]), 1), "(2 * 1 * ?float64, int64)",
        ([[1.5], [None]], 1),
    ),
    "records": (lambda: np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]), "1 * {a: int32, b: float64}",
                [{"a": 1, "b": 2.5}]),
    "mask of records that hides nothing": (
        lambda: np.ma.array([(1, 2)], [("a", "i4"), ("b", "i4")]), "1 * {a: int32, b: int32}", [{"a": 1, "b": 2}]
    ),
    "fixed texts": (lambda: np.array(["ab", "c"]), "2 * fixed_string[2, 'utf32']", ["ab", "c"]),
    "texts": (lambda: np.array(["ab", "c"], np.dtypes.StringDType()), "2 * string", ["ab", "c"]),
    "objects": (lambda: np.array([[1, 2], [3]], object), "2 * var * int64", RAGGED),
    "__array__": (ArrayLike, "2 * 3 * float32", MATRIX.tolist()),
    "__dlpack__": (Exporter, "2 * 3 * float32", MATRIX.tolist()),
    "array.array": (lambda: array.array("f", FLAT.tolist()), "3 * float32", FLAT.tolist()),
    "memoryview": (lambda: memoryview(MATRIX), "2 * 3 * float32", MATRIX.tolist()),
    "ctypes": (lambda: (ctypes.c_int16 * 2)(1, -1), "2 * int16", [1, -1]),
    "Tensor": (lambda: tg.dynd.array(MATRIX), "2 * 3 * float32", MATRIX.tolist()),
    "nested Tensor": (lambda: tg.dynd.array(RAGGED), "2 * var * int64", RAGGED),
    "torch": (library("torch", lambda torch: torch.tensor(MATRIX.tolist())), "2 * 3 * float32", MATRIX.tolist()),
    "torch, bfloat16, transposed": (
        library("torch", lambda torch: torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16).T), "2 * 1 * bfloat16",
        [[1.0], [2.0]],
    ),
    "torch parameter": (
        library("torch", lambda torch: torch.nn.Parameter(torch.ones(2))), "2 * float32", [1.0, 1.0]
    ),
    "torch.Size": (library("torch", lambda torch: torch.Size([2, 3])), "(int64, int64)", (2, 3)),
    "jax": (library("jax", lambda jax: jax.numpy.asarray(MATRIX)), "2 * 3 * float32", MATRIX.tolist()),
    "awkward": (library("awkward", lambda ak: ak.Array(RAGGED)), "2 * var * int64", RAGGED),
    "awkward, missing": (library("awkward", lambda ak: ak.Array([1, None])), "2 * ?int64", [1, None]),
    "Arrow": (library("pyarrow", lambda pa: pa.array(RAGGED)), "2 * var * int64", RAGGED),
    "Arrow, nulls": (library("pyarrow", lambda pa: pa.array([1.5, None])), "2 * ?float64", [1.5, None]),
    "Arrow table": (
        library("pyarrow", lambda pa: pa.table({"a": [1, 2], "b": ["x", "y"]})), "2 * {a: int64, b: string}",
        [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}],
    ),
    "Arrow tensor": (
        library("pyarrow", lambda pa: pa.Tensor.from_numpy(np.asfortranarray(MATRIX))), "2 * 3 * float32",
        MATRIX.tolist(),
    ),
    "Arrow buffer": (library("pyarrow", lambda pa: pa.py_buffer(b"\0\xff")), "bytes", b"\0\xff"),
    "SciPy": (
        library("scipy.sparse", lambda sparse: sparse.csr_array(np.eye(2, dtype="float32"))), "2 * 2 * float32",
        [[1.0, 0.0], [0.0, 1.0]],
    ),
    "SciPy, a dict of keys": (
        library("scipy.sparse", lambda sparse: sparse.dok_array(np.eye(2, dtype="float32"))), "2 * 2 * float32",
        [[1.0, 0.0], [0.0, 1.0]],
    ),
    "pandas": (library("pandas", lambda pd: pd.Series([1.5, 2.5])), "2 * float64", [1.5, 2.5]),
    "pandas, nullable": (
        library("pandas", lambda pd: pd.Series([1, None], dtype="Int32")), "2 * ?int32", [1, None]
    ),
    "pandas, texts": (library("pandas", lambda pd: pd.Series(["a", "bc"])), "2 * string", ["a", "bc"]),
    "polars": (library("polars", lambda pl: pl.Series([1, None, 3])), "3 * ?int64", [1, None, 3]),
    "polars, lists": (library("polars", lambda pl: pl.Series(RAGGED)), "2 * var * int64", RAGGED),
    "Vector": (lambda: tg.bson.Vector(FLAT), "3 * float32", FLAT.tolist()),
    "Vector of bits": (lambda: tg.bson.Vector([True, False, True]), "3 * bool", [True, False, True]),
    "pymongo's BinaryVector": (lambda: pymongo_vector("BinaryVector"), "3 * float32", FLAT.tolist()),
    "pymongo's Binary": (lambda: pymongo_vector("Binary"), "3 * float32", FLAT.tolist()),
    "int": (lambda: 3, "int64", 3),
    "bool": (lambda: True, "bool", True),
    "complex": (lambda: 1 + 2j, "complex[float64]", 1 + 2j),
    "text": (lambda: "grüß", "string", "grüß"),
    "bytes": (lambda: b"\0\1", "bytes", b"\0\1"),
    "nothing": (lambda: None, "void", None),
    "list": (lambda: [[1, 2], [3, 4]], "2 * 2 * int64", [[1, 2], [3, 4]]),
    "ragged list": (lambda: RAGGED, "2 * var * int64", RAGGED),
    "list with None": (lambda: [1.5, None], "2 * ?float64", [1.5, None]),
    "tuple": (lambda: (1, "a"), "(int64, string)", (1, "a")),
    "empty list": (list, "0 * void", []),
}  # fmt: skip


def by_save(value: Any, folder: Path) -> str:
    tg.save(folder / "saved.zt", {"x": value})
    with tg.open(folder / "saved.zt") as archive:
        return archive["x"].cid()


def by_dumps(value: Any, folder: Path) -> str:
    return tg.open(tg.dumps({"x": value}, format="ztensor"))["x"].cid()


def by_writer(value: Any, folder: Path) -> str:
    with tg.Writer(folder / "written.zt") as out:
        out.add("x", value)
    with tg.open(folder / "written.zt") as archive:
        return archive["x"].cid()


def by_convert(value: Any, folder: Path) -> str:
    tg.convert({"x": value}, folder / "converted.zt")
    return tg.identify(folder / "converted.zt").tensors["x"]


def by_dump(value: Any, folder: Path) -> str:
    with (folder / "dumped").open("wb") as stream:
        tg.dynd.dump(value, stream)
    return tg.dynd.deserialize((folder / "dumped").read_bytes(), tg.dynd.typeof(value)).cid()


def by_box(value: Any, type: str) -> Any:
    return tg.dynd.deserialize(tg.dynd.serialize(value, type), type).tolist()


def by_edit(value: Any, folder: Path) -> str:
    path = folder / "edited.zt"
    tg.save(path, {"x": np.zeros(2)})
    try:
        tg.edit(path, replace={"x": value})
        return tg.identify(path).tensors["x"]
    finally:
        path.unlink()


def by_store(value: Any, call: Callable[[tg.store.Store, Any], str]) -> str:
    with TemporaryDirectory() as place, tg.store.Store.create(f"{place}/store") as store:
        return call(store, value)


def commit(store: tg.store.Store, value: Any) -> str:
    store.commit("main", {"x": value})
    return store.checkout("main")["x"].cid()


WAYS: dict[str, Callable[[Any, Path], str]] = {
    "array": lambda value, _: tg.dynd.array(value).cid(),
    "array of its type": lambda value, _: tg.dynd.array(value, tg.dynd.typeof(value)).cid(),
    "serialize": lambda value, _: tg.dynd.deserialize(tg.dynd.serialize(value), tg.dynd.typeof(value)).cid(),
    "pack": lambda value, _: tg.dynd.unpack(tg.dynd.pack(value)).cid(),
    "array[Any]": lambda value, _: by_box(value, "array[Any]").cid(),
    "list of array[Any]": lambda value, _: by_box([value], "1 * array[Any]")[0].cid(),
    "to_cbor": lambda value, _: tg.dynd.from_cbor(tg.dynd.to_cbor(value)).cid(),
    "dump": by_dump,
    "save": by_save,
    "dumps": by_dumps,
    "Writer": by_writer,
    "convert": by_convert,
    "identify": lambda value, _: tg.identify({"x": value}).tensors["x"],
    "cid": lambda value, _: tg.dynd.cid(value),
    "array_node": lambda value, _: str(block_cid(tg.dynd.array_node(value), DAG_CBOR)),
    "edit": by_edit,
    "put": lambda value, _: by_store(value, lambda store, value: store.get(store.put(value)).cid()),
    "commit": lambda value, _: by_store(value, commit),
}


@pytest.mark.parametrize("kind", VALUES)
def test_every_verb_makes_the_same_tensor(kind: str, tmp_path: Path) -> None:
    make, text, expected = VALUES[kind]
    value = make()
    tensor = tg.dynd.array(value)
    assert (str(tg.dynd.typeof(value)), str(tensor.type), tensor.tolist()) == (text, text, expected)
    assert tg.dynd.tolist(value) == expected
    cids = {way: run(value, tmp_path) for way, run in WAYS.items()}
    assert set(cids.values()) == {tensor.cid()}, cids
    assert tg.diff({"x": value}, {"x": tensor}).same


@pytest.mark.parametrize("type", ["3 * array[Any]", "var * array[Float]", "3 * ?array[float32]"])
def test_elements_of_an_array_keep_their_type_in_array_any(type: str) -> None:
    boxes = by_box(FLAT, type)
    assert [str(box.type) for box in boxes] == ["float32"] * 3
    assert [box.tolist() for box in boxes] == FLAT.tolist()


TYPED: dict[str, tuple[Callable[[], Any], str]] = {
    "lists": (lambda: tg.dynd.array(RAGGED, "2 * var * int8"), "var * int8"),
    "awkward": (library("awkward", lambda ak: ak.values_astype(ak.Array(RAGGED), "int8")), "var * int8"),
    "Arrow": (library("pyarrow", lambda pa: pa.array(RAGGED, pa.list_(pa.int8()))), "var * int8"),
    "polars": (
        library("polars", lambda pl: pl.Series(RAGGED, dtype=pl.List(pl.Int8))), "var * int8"
    ),
    "numbers of Arrow": (library("pyarrow", lambda pa: pa.array([1, 2], pa.int8())), "int8"),
    "a stored order": (lambda: tg.dynd.array([[1, 2], [3, 4]], "storage[2 * 2 * int8, axis=[1, 0]]"), "2 * int8"),
    "structs": (lambda: tg.dynd.array([{"a": 1, "b": "x"}], "1 * {a: int8, b: string}"), "{a: int8, b: string}"),
    "records": (lambda: np.array([(1, 2.5)], [("a", "i1"), ("b", "f4")]), "{a: int8, b: float32}"),
    "tuples": (lambda: tg.dynd.array([(1, [2])], "1 * (int8, var * uint8)"), "(int8, var * uint8)"),
    "maps": (lambda: tg.dynd.array([{"a": 1}], "1 * map[string, int8]"), "map[string, int8]"),
    "times": (lambda: tg.dynd.array([0, 1], "2 * time['s']"), "time['s']"),
    "characters": (lambda: tg.dynd.array("ab", "var * char"), "char"),
    "pointers": (lambda: tg.dynd.array(RAGGED, "2 * pointer[var * int8]"), "var * int8"),
    "masked": (lambda: np.ma.array([1, 2], np.int8, mask=[False, True]), "int8"),
}  # fmt: skip


@pytest.mark.parametrize("kind", TYPED)
def test_values_keep_their_type_in_array_any_wherever_they_come_from(kind: str) -> None:
    make, text = TYPED[kind]
    value = make()
    present = [row for row in tg.dynd.tolist(value) if row is not None]
    for type in ("var * ?array[Any]", f"{len(value)} * ?array[Scalar]" if text == "int8" else "var * ?array[Any]"):
        boxes = [box for box in tg.dynd.array(value, type).tolist() if box is not None]
        assert [(str(box.type), box.tolist()) for box in boxes] == [(text, row) for row in present]
    inside = tg.dynd.array({"a": tg.dynd.array(value), "b": 1}, "{a: var * ?array[Any], b: array[Any]}").tolist()
    assert [str(box.type) for box in inside["a"] if box is not None] == [text] * len(present)


@pytest.mark.parametrize(
    ("given", "type", "boxes"),
    [
        ("2 * var * int8", "2 * var * array[Any]", "int8"),
        ("2 * ?var * int8", "2 * var * array[Int]", "int8"),
        ("2 * var * int8", "2 * var * array[int16]", "int16"),
        ("2 * var * ?int8", "2 * ?var * array[Any]", "int8"),
        ("?var * var * ?int8", "?var * var * array[Any]", "int8"),
    ],
)
def test_elements_of_lists_keep_their_type_in_array_any(given: str, type: str, boxes: str) -> None:
    found = tg.dynd.array(tg.dynd.array(RAGGED, given), type).tolist()
    assert [[(str(box.type), box.tolist()) for box in row] for row in found] == [
        [(boxes, number) for number in row] for row in RAGGED
    ]
    if given.startswith("?"):
        assert tg.dynd.array(tg.dynd.array(None, given), type).tolist() is None


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "an object": (object, "dynd.infer"),
    "objects": (lambda: np.array([object()]), "dynd.infer"),
    "unlike values": (lambda: [1, "a"], "dynd.infer"),
    "a bool that is 2": (lambda: np.array([2], np.uint8).view(np.bool_), "values.bool"),
    "a lone surrogate": (lambda: "\ud800", "dynd.utf8"),
    "a hybrid tensor of torch": (
        library("torch", lambda torch: torch.ones(2, 2).to_sparse(1)), "torch.layout"
    ),
    "a quantized tensor of torch that has no layout": (
        library("torch", lambda torch: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint32)),
        "torch.quantized"
    ),
    "a tensor without values": (library("torch", lambda torch: torch.zeros(2, device="meta")), "torch.meta"),
    "a union of awkward": (library("awkward", lambda ak: ak.Array([1, "a"])), "dynd.awkward"),
    "a masked field of a record": (
        lambda: np.ma.array([(1, 2)], mask=[(True, False)], dtype=[("a", "i4"), ("b", "i4")]), "dynd.numpy"
    ),
    "NumPy's constant of masked elements in a list": (lambda: [1.5, np.ma.masked], "dynd.infer"),
    "a module of torch": (library("torch", lambda torch: torch.nn.Linear(1, 1)), "coerce.value"),
    "a dtype of torch": (library("torch", lambda torch: torch.float32), "coerce.value"),
    "a key of JAX": (library("jax", lambda jax: jax.random.key(0)), "coerce.value"),
    "a builder of awkward": (library("awkward", lambda ak: ak.ArrayBuilder()), "coerce.value"),
    "a schema of Arrow": (library("pyarrow", lambda pa: pa.schema([])), "coerce.value"),
    "a sparse tensor of Arrow": (
        library("pyarrow", lambda pa: pa.SparseCOOTensor.from_dense_numpy(MATRIX)), "coerce.value"
    ),
    "columns of one name": (
        library("pandas", lambda pd: pd.DataFrame([[1, 2]], columns=["a", "a"])), "pandas.column"
    ),
    "objects of polars": (
        library("polars", lambda pl: pl.Series([object(), "x"], dtype=pl.Object)), "polars.object"
    ),
    "a column of objects of polars": (
        library("polars", lambda pl: pl.DataFrame({"a": pl.Series([object(), "x"], dtype=pl.Object)})), "polars.object"
    ),
    "periods of pandas": (
        library("pandas", lambda pd: pd.Series(pd.period_range("2020", "2022", freq="Y"))), "arrow.extension"
    ),
    "intervals of pandas": (
        library("pandas", lambda pd: pd.DataFrame({"a": pd.interval_range(0, 3)})), "arrow.extension"
    ),
    "an Int128 of polars": (
        library("polars", lambda pl: pl.Series([1], dtype=pl.Int128)), "coerce.value"
    ),
    "an array that raises": (lambda: type("Broken", (), {"__array__": lambda *_: 1 / 0})(), "coerce.value"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("way", WAYS)
def test_every_verb_refuses_the_same(kind: str, way: str, tmp_path: Path) -> None:
    make, rule = REFUSED[kind]
    value = make()
    with pytest.raises((tg.InputError, tg.UnsupportedError)) as caught:
        WAYS[way](value, tmp_path)
    assert caught.value.rule == rule
    if way in ("save", "dumps", "Writer", "convert", "identify", "edit", "commit"):
        assert caught.value.tensor == "x"
    assert not [path.name for path in tmp_path.iterdir() if path.name != "dumped"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "make",
    [lambda: np.ma.masked, library("torch", lambda torch: torch.ones((), requires_grad=True))],
    ids=["masked", "requires_grad"],
)
def test_an_element_that_numpy_cannot_convert_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(tg.InputError) as caught:
        tg.dynd.array([1.5, make()], "2 * float32")
    assert caught.value.rule == "dynd.value"


@pytest.mark.parametrize("kind", ["masked", "Arrow, nulls", "ragged list", "text", "records"])
def test_a_value_that_a_container_cannot_store_is_refused_by_name(kind: str) -> None:
    value = VALUES[kind][0]()
    with pytest.raises(tg.UnsupportedError, match="safetensors cannot store") as caught:
        tg.dumps({"x": value}, format="safetensors")
    assert (caught.value.rule, caught.value.tensor) == ("save.layout", "x")


def test_a_dict_of_arrays_is_flattened_on_request() -> None:
    nested = {"model": {"w": MATRIX, "deep": {"b": FLAT}}, "step": np.int64(3)}
    with pytest.raises(tg.InputError, match=r"tg\.flatten") as caught:
        tg.dumps(nested, format="bintensors")
    assert (caught.value.rule, caught.value.tensor) == ("save.mapping", "model")
    flat = tg.flatten(nested)
    assert list(flat) == ["model.w", "model.deep.b", "step"]
    assert list(tg.flatten(nested, "/")) == ["model/w", "model/deep/b", "step"]
    assert tg.loads(tg.dumps(flat, format="bintensors"))["model.deep.b"].tolist() == FLAT.tolist()
    with pytest.raises(tg.InputError, match=r"would get the name 'a\.b'"):
        tg.flatten({"a": {"b": 1}, "a.b": 2})


@pytest.mark.parametrize(
    ("nested", "names"),
    [
        ({"layers": [{"w": FLAT}, {"w": FLAT}]}, ["layers.0.w", "layers.1.w"]),
        ({"layers": ((MATRIX, FLAT), (MATRIX, FLAT))}, ["layers.0.0", "layers.0.1", "layers.1.0", "layers.1.1"]),
        ({"state": {0: {"step": 1.0}, 1: {"step": 1.0}}}, ["state.0.step", "state.1.step"]),
        ({"groups": [{"lr": 1e-3, "betas": (0.9, 0.99)}]}, ["groups.0.lr", "groups.0.betas"]),
        ({"ragged": [[1, 2], [3]], "numbers": [np.float32(1), np.float32(2)]}, ["ragged", "numbers"]),
        ({"empty": [], "nothing": {}}, ["empty"]),
    ],
)  # fmt: skip
def test_lists_with_arrays_or_mappings_and_numbers_as_keys_are_flattened(nested: Any, names: list[str]) -> None:
    flat = tg.flatten(nested)
    assert list(flat) == names
    assert list(tg.loads(tg.dumps(flat, format="ztensor"))) == names


def test_what_cannot_be_flattened() -> None:
    cycle: list[Any] = [FLAT]
    cycle.append(cycle)
    for nested, rule in (
        ({"a": cycle}, "flatten.cycle"),
        ({"a": {True: 1}}, "name.text"),
        ({"a": {0: 1, "0": 2}}, "flatten.name"),
    ):
        with pytest.raises(tg.InputError) as caught:
            tg.flatten(nested)
        assert caught.value.rule == rule


def test_a_training_checkpoint_is_saved_flat() -> None:
    torch = needs("torch")
    module = torch.nn.Linear(2, 3)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    flat = tg.flatten({"model": module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3})
    loaded = tg.loads(tg.dumps(flat, format="ztensor"))
    assert (loaded["optimizer.state.0.exp_avg"] == optimizer.state_dict()["state"][0]["exp_avg"].numpy()).all()
    assert loaded["optimizer.param_groups.0.lr"] == 1e-3
    assert loaded["optimizer.param_groups.0.betas"].tolist() == (0.9, 0.999)


SHARED = np.zeros(5000, "float32")


@pytest.mark.parametrize(
    "tensors",
    [
        {"a": SHARED, "b": SHARED},
        {"a": SHARED, "b": SHARED[:]},
        {"a": FLAT, "b": FLAT},
        {"a": tg.dynd.array(SHARED), "b": SHARED.view()},
    ],
    ids=["one object", "two views", "one small object", "a tensor and a view"],
)
def test_arrays_that_share_memory_are_stored_once_or_with_a_warning(tensors: dict[str, Any]) -> None:
    for format in ("ztensor@0.1", "ztensor@2"):
        a, b = (tensor.offset for tensor in tg.open(tg.dumps(tensors, format=format)).values())
        assert a == b
    for format in ("bintensors", "safetensors", "npz"):
        with pytest.warns(tg.LossWarning, match=f"'b' shares its memory with 'a': {format} cannot share bytes"):
            tg.dumps(tensors, format=format)


def test_neighbours_in_memory_do_not_share_it() -> None:
    whole = np.zeros(10_000, "float32")
    tg.dumps({"a": whole[:5000], "b": whole[5000:], "c": whole[:5000].copy()}, format="bintensors")


@pytest.mark.parametrize("source", ["ztensor@0.1", "ztensor@2"])
def test_tensors_that_share_their_bytes_in_a_file_are_copied_with_a_word(source: str, tmp_path: Path) -> None:
    tied = tmp_path / "tied.zt"
    tg.save(tied, {"a": SHARED, "b": SHARED, "c": FLAT}, format=source)
    said = "'b' shares its bytes with 'a'"
    with tg.open(tied) as archive:
        for format in ("bintensors", "safetensors", "npz", "dynd"):
            with pytest.warns(tg.LossWarning, match=f"{said}: {format} cannot share bytes"):
                tg.dumps(archive, format=format)
            with pytest.warns(tg.LossWarning, match=said):
                tg.save(tmp_path / "saved", archive, format=format)
    with pytest.warns(tg.LossWarning, match=said):
        tg.merge([tied], tmp_path / "merged.bt")
    with pytest.warns(tg.LossWarning, match=f"{said}: bintensors"):
        tg.split(tied, tmp_path / "one shard", format="bintensors")
    with pytest.warns(tg.LossWarning, match=f"{said} in another shard"):
        tg.split(tied, tmp_path / "several shards", shard_nbytes=SHARED.nbytes)
    tg.split(tied, tmp_path / "kept")
    tg.merge(tied, tmp_path / "kept.zt")


def test_of_several_that_share_one_is_named_and_the_others_counted() -> None:
    tensors = {"a": SHARED, "b": SHARED}
    for name, more in (("c", ", and 1 more"), ("d", ", and 2 more")):
        tensors[name] = SHARED
        with pytest.warns(tg.LossWarning, match=f"'b' shares its memory with 'a'{more}: bintensors cannot share bytes"):
            tg.dumps(tensors, format="bintensors")


def test_a_warning_of_copies_names_the_line_of_the_caller(tmp_path: Path) -> None:
    tensors = {"a": SHARED, "b": SHARED}
    with pytest.warns(tg.LossWarning) as dumped:
        tg.dumps(tensors, format="bintensors")
    with pytest.warns(tg.LossWarning) as saved:
        tg.save(tmp_path / "x.bt", tensors)
    with pytest.warns(tg.LossWarning, match="'d' shares its memory with 'b'") as edited:
        tg.edit(tmp_path / "x.bt", replace={"b": SHARED}, add={"c": FLAT, "d": SHARED})
    assert [Path(warning.filename) for warning in [*dumped, *saved, *edited]] == [Path(__file__)] * 3


def test_a_text_is_loaded_as_what_it_is() -> None:
    given = {"text": "grüß", "bytes": b"ab", "type": tg.dynd.parse("var * int8")}
    loaded = tg.loads(tg.dumps(given, format="ztensor"))
    assert {name: value.tolist() for name, value in loaded.items()} == given


def test_what_cannot_become_an_array_is_named() -> None:
    data = tg.dumps({"x": RAGGED}, format="ztensor")
    for call in (lambda: tg.loads(data, out={"x": np.zeros(3)}), tg.open(data)["x"].numpy):
        with pytest.raises(tg.UnsupportedError) as caught:
            call()
        assert caught.value.tensor == "x"
