"""Flags, numbers and choices: an argument of another kind is an InputError that names it and what it may be.

The table has a call of every public function that takes one. Functions are found in the
reference page and in what the package exports, arguments by their annotations: a new
argument is tried, and a new function must be added.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from peers import needs

TENSORS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}
DATA = tg.dumps(TENSORS, format="ztensor@2", compression="zstd")
MATRIX = np.eye(12, dtype=np.float32)
PAYLOAD = tg.bson.encode([1.0, 2.0])
EMBEDDINGS = tg.bson.Embeddings(MATRIX)
BITS = np.array([160], np.uint8)


class Nothing:
    """A collection that no call may reach."""

    full_name = "database.collection"


def linear() -> Any:
    return needs("torch").nn.Linear(3, 2)


def store(folder: Path) -> tg.store.Store:
    if (folder / "store").exists():
        return tg.store.Store(folder / "store")
    made = tg.store.Store.create(folder / "store")
    made.commit("main", TENSORS)
    return made


CALLS: dict[str, Callable[[Path], tuple[Any, ...]]] = {
    "open": lambda f: (tg.open, DATA),
    "load": lambda f: (tg.load, DATA),
    "loads": lambda f: (tg.loads, DATA),
    "load of an archive": lambda f: (tg.load, tg.open(DATA)),
    "verify of an archive": lambda f: (tg.verify, tg.open(DATA)),
    "save": lambda f: (tg.save, f / "new.zt", TENSORS),
    "dumps": lambda f: (partial(tg.dumps, format="ztensor"), TENSORS),
    "Writer": lambda f: (tg.Writer, f / "new.zt"),
    "convert": lambda f: (tg.convert, DATA, f / "new.bt"),
    "convert of arrays": lambda f: (tg.convert, TENSORS, f / "new.bt"),
    "verify": lambda f: (tg.verify, DATA),
    "diff": lambda f: (tg.diff, DATA, DATA),
    "edit": lambda f: (tg.edit, f / "model.zt"),
    "split": lambda f: (tg.split, DATA, f / "shards"),
    "merge": lambda f: (tg.merge, [DATA], f / "new.zt"),
    "safe_open": lambda f: (tg.safe_open, f / "model.zt", "np"),
    "Limits": lambda f: (tg.Limits,),
    "dynd.to_cbor": lambda f: (tg.dynd.to_cbor, 1),
    "dynd.from_cbor": lambda f: (tg.dynd.from_cbor, tg.dynd.to_cbor(1)),
    "bson.Vector": lambda f: (tg.bson.Vector, BITS, "packed_bit"),
    "bson.encode": lambda f: (tg.bson.encode, BITS, "packed_bit"),
    "bson.encode of bools": lambda f: (tg.bson.encode, [True, False]),
    "bson.decode": lambda f: (tg.bson.decode, PAYLOAD),
    "bson.decode_matrix": lambda f: (tg.bson.decode_matrix, [PAYLOAD]),
    "bson.encode_matrix": lambda f: (tg.bson.encode_matrix, MATRIX),
    "bson.encode_documents": lambda f: (tg.bson.encode_documents, MATRIX, "key"),
    "bson.Embeddings": lambda f: (tg.bson.Embeddings, MATRIX),
    "bson.Embeddings.batches": lambda f: (lambda nbytes: list(EMBEDDINGS.batches(nbytes)),),
    "bson.Embeddings.rows": lambda f: (EMBEDDINGS.rows, 0, 1),
    "bson.Embeddings.quantize": lambda f: (EMBEDDINGS.quantize,),
    "bson.from_database": lambda f: (tg.bson.from_database, b"abcd", "redis"),
    "bson.to_database": lambda f: (tg.bson.to_database, [1.0], "redis"),
    "bson.nearest": lambda f: (tg.bson.nearest, MATRIX, MATRIX),
    "bson.recall": lambda f: (tg.bson.recall, MATRIX),
    "bson.quantize": lambda f: (tg.bson.quantize, MATRIX),
    "bson.to_extjson": lambda f: (tg.bson.to_extjson, [1.0]),
    "bson.read_embeddings": lambda f: (tg.bson.read_embeddings, f / "rows.bson"),
    "bson.write_embeddings": lambda f: (tg.bson.write_embeddings, f / "new.bson", EMBEDDINGS),
    "bson.transfer": lambda f: (tg.bson.transfer, f / "rows.bson", f / "new.bson"),
    "bson.migrate": lambda f: (tg.bson.migrate, Nothing(), "key"),
    "bson.read_matrix": lambda f: (tg.bson.read_matrix, Nothing(), "key"),
    "bson.write_matrix": lambda f: (tg.bson.write_matrix, Nothing(), MATRIX, "key"),
    "store.Store.check": lambda f: (store(f).check,),
    "store.Store.collect": lambda f: (store(f).collect,),
    "store.Store.repack": lambda f: (store(f).repack,),
    "store.Store.log": lambda f: (store(f).log, "main"),
    "store.Store.costs": lambda f: (store(f).costs, "main"),
    "store.delta": lambda f: (tg.store.delta, TENSORS, TENSORS, f / "new.tgdelta"),
    "store.patch": lambda f: (tg.store.patch, f / "old.tgdelta", TENSORS, f / "new.zt"),
    "report.Viewer": lambda f: (tg.report.Viewer, tg.open(DATA), "model"),
    "bridges.drop_in.DropIn.load_file": lambda f: (tg.numpy.load_file, f / "model.zt"),
    "bridges.torch_module.load_model": lambda f: (tg.torch.load_model, linear(), f / "model.zt"),
    "bridges.torch_module.save_model": lambda f: (tg.torch.save_model, linear(), f / "new.zt"),
    "bridges.dcp.Writer": lambda f: (needs("torch") and tg.torch.dcp.Writer, f / "checkpoint"),
}

RESULTS = {
    "Diff", "Report", "bson.FieldReport", "bson.Migration", "bson.Quantized", "bson.Recall", "bson.Transfer",
    "bson.Written", "store.StoreStats",
}  # fmt: skip
"""Classes that only the library constructs."""
VALUES = {"bson.Binary", "bson.Raw", "dynd.CID"}
"""Tuples, which take anything; what encodes one checks it."""
WITHIN = {
    "Archive.part", "Archive.payload", "Archive.tensor_at", "Limits.check_header", "Limits.check_rank",
    "Limits.check_tensors", "Limits.fill_in", "Limits.header_or", "Limits.tensors_or", "Tensor.of_array",
    "bridges.dcp.Reader.set_up_storage_reader", "bridges.dcp.Writer.set_up_storage_writer", "store.Commit.encode",
}  # fmt: skip
"""Methods that only the library or PyTorch calls."""

CHOICES = {
    "Backend", "Database", "DType", "Framework", "IgnoredBits", "Metric", "OnLoss", "OnMissing", "Profile", "Verify",
    "_Metric",
}  # fmt: skip
"""Aliases of Literal types."""
KIND = re.compile(rf"(bool|int|float|Literal\[.*\]|{'|'.join(CHOICES)})( \| None)?$")

WRONG = {
    "an array": np.array([1, 2]),
    "an array of strings": np.array(["a", "b"]),
    "a list": [1, 2],
    "None": None,
    "a string": "neither",
    "an object": object(),
}


def named() -> Iterator[tuple[str, Any]]:
    """What the reference page has, and what the package and its modules export, by its name without `tensorglot.`"""
    page = Path(__file__).parent.parent / "docs" / "api.md"
    for name in re.findall(r"^::: tensorglot\.(\S+)$", page.read_text(), re.MULTILINE):
        home, _, last = name.rpartition(".")
        yield name, getattr(import_module(f"tensorglot.{home}".rstrip(".")), last)
    modules = re.findall(r"from tensorglot import (\w+) as", Path(tg.__file__).read_text())
    for module in [tg, *(getattr(tg, name) for name in modules)]:
        for name in module.__all__:
            yield f"{module.__name__}.{name}".removeprefix("tensorglot."), getattr(module, name)


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Each function, class and method once, under the first of its names."""
    seen = set()
    for name, value in named():
        if inspect.isclass(value) and issubclass(value, (BaseException, int)):
            continue
        found = [(name, value)] if callable(value) else []
        if inspect.isclass(value):
            methods = inspect.getmembers(value, lambda one: inspect.isfunction(one) or inspect.ismethod(one))
            found += [(f"{name}.{method}", one) for method, one in methods if not method.startswith("_")]
        for key, one in found:
            once = getattr(one, "__func__", one)
            if once not in seen:
                seen.add(once)
                yield key, one


def flags(function: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """The arguments that are a flag, a number or a choice, with their annotations."""
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = str(parameter.annotation).strip("'\"")
        if KIND.match(annotation):
            yield name, annotation


FUNCTIONS = dict(public())
CASES = [
    pytest.param(call, name, annotation, id=f"{call}-{name}")
    for call in CALLS
    for name, annotation in flags(FUNCTIONS[call.partition(" of ")[0]])
]


def test_every_public_function_with_a_flag_is_in_the_table() -> None:
    expected = {name for name, function in FUNCTIONS.items() if next(flags(function), None)}
    assert expected == {call.partition(" of ")[0] for call in CALLS} | RESULTS | VALUES | WITHIN


@pytest.mark.parametrize(("call", "name", "annotation"), CASES)
def test_a_wrong_kind_is_refused_by_the_name_of_the_argument(
    call: str, name: str, annotation: str, tmp_path: Path
) -> None:
    (tmp_path / "model.zt").write_bytes(DATA)
    (tmp_path / "rows.bson").write_bytes(tg.bson.encode_documents(MATRIX, "embedding"))
    tg.store.delta(TENSORS, TENSORS, tmp_path / "old.tgdelta")
    for kind, value in WRONG.items():
        if value is None and (annotation.endswith("None") or annotation == "DType"):
            continue
        function, *given = CALLS[call](tmp_path)
        arguments = inspect.signature(function).bind_partial(*given).arguments | {name: value}
        with pytest.raises(tg.InputError, match=rf"\b{name}\b") as caught:
            function(**arguments)
        expected = {"bool": "True or False", "int": "integer", "float": "number"}.get(annotation.partition(" ")[0])
        assert expected is None or expected in caught.value.message, kind
        assert "\n" not in caught.value.message


@pytest.mark.parametrize("chunks", [None, "neither", object(), np.array(["a", "b"]), 0, 1.5, (2, 2, 2)])
def test_chunks_that_dask_cannot_use(chunks: Any) -> None:
    needs("dask.array")
    from tensorglot.bridges import dask

    with pytest.raises(tg.InputError, match=r"^chunks .*'w'") as caught:
        dask.open(DATA, chunks)
    assert caught.value.rule == "dask.chunks"
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("value", [True, False, np.True_, np.False_])
def test_a_bool_of_numpy_is_a_flag(value: Any) -> None:
    assert tg.verify(DATA, deep=value).ok


@pytest.mark.parametrize("value", [np.int64(3), np.uint8(3), 3])
def test_an_integer_of_numpy_is_a_number(value: Any) -> None:
    assert tg.dumps(TENSORS, format="ztensor", compression="zstd", level=value)
    assert tg.load(DATA, threads=value)["w"].shape == (2, 3)
    assert tg.bson.nearest(MATRIX, MATRIX, k=value).indices.shape == (12, 3)
