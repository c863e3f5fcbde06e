"""The public names: sorted, all there, and loaded only when they are used."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import tensorglot
import tensorglot as tg
from peers import needs
from terminals import environment


def test_names() -> None:
    assert tensorglot.__all__ == sorted(tensorglot.__all__)
    for name in tensorglot.__all__:
        assert getattr(tensorglot, name) is not None
        assert name in dir(tensorglot)
    assert not hasattr(tensorglot, "nonsense")


def documented() -> dict[str, Any]:
    """Every public function and class, and the methods and properties of classes, by name."""
    found: dict[str, Any] = {}
    for module in (tg, tg.bson, tg.dynd, tg.report, tg.store):
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value):
                found[f"{module.__name__}.{name}"] = value
            for method, member in vars(value).items() if isinstance(value, type) else ():
                if not method.startswith("_") and isinstance(member, property | classmethod | staticmethod | Callable):
                    own = member if isinstance(member, property) else getattr(value, method)
                    found[f"{module.__name__}.{name}.{method}"] = own
    return found


@pytest.mark.parametrize("name", documented())
def test_help_has_a_sentence_for_each(name: str) -> None:
    text = inspect.getdoc(documented()[name]) or ""
    assert text.partition("\n\n")[0].endswith((".", "`", ":")), text


def test_the_names_for_type_checkers_are_the_names_at_run_time() -> None:
    tree = ast.parse(Path(tensorglot.__file__).read_text())
    told = {
        alias.asname: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tensorglot")
        for alias in node.names
    }
    del told[None]  # what the module imports for itself
    modules = {"bridges", "bson", "dynd", "jax", "numpy", "report", "store", "torch"}
    assert set(told) == {*tensorglot.__all__, *modules} - {"__version__"}
    for name, home in told.items():
        module, _, attribute = home.rpartition(".")
        assert getattr(tensorglot, name) is getattr(importlib.import_module(module), attribute)


def test_modules_that_callers_name_need_no_import_of_their_own() -> None:
    program = """if True:
        import sys, tensorglot as tg
        assert tg.bridges.dask.open and tg.bridges.dcp and tg.torch.dcp
        assert not hasattr(tg.bridges, "nonsense")
    """
    needs("dask")
    needs("torch")
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, env=environment())


def test_opening_a_file_loads_no_other_verb(tmp_path: Path) -> None:
    path = tmp_path / "model.bt"
    tensorglot.save(path, {})
    program = f"""if True:
        import sys, tensorglot
        tensorglot.open({str(path)!r})
        assert not {{"crc32c", "tensorglot.operations.convert", "tensorglot.operations.diff"}} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, env=environment())


def test_importing_loads_no_numpy_and_formats_stays_the_function() -> None:
    program = """if True:
        import sys, tensorglot
        assert "numpy" not in sys.modules
        import tensorglot.containers.table
        assert "numpy" in sys.modules
        assert tensorglot.formats() is tensorglot.formats.__globals__["TABLE"]
        from tensorglot import *
        assert formats is tensorglot.formats and open is tensorglot.open
    """
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, env=environment())


NOTHING = inspect.Parameter.empty
OPEN = {"format": None, "strict": False, "verify": "auto", "limits": None}
WHERE = {"backend": "auto", "storage_options": None}
LOAD = {"names": None, "threads": None, "framework": "numpy"}
HOW = {"format": None, "metadata": None, "compression": None, "level": None, "checksum": "auto"}
TO_FILE = {"durable": True, "progress": None, "storage_options": None}
SIGNATURES: list[tuple[Callable[..., Any], list[str], dict[str, Any]]] = [
    (tg.open, ["source"], {**OPEN, **WHERE}),
    (tg.load, ["source"], {**OPEN, **WHERE, **LOAD}),
    (tg.loads, ["data"], {**OPEN, **LOAD}),
    (tg.save, ["target", "tensors"], {**HOW, **TO_FILE, "attributes": None}),
    (tg.dumps, ["tensors"], {**HOW, "attributes": None, "progress": None}),
    (tg.Writer, ["target"], {**HOW, **TO_FILE}),
    (tg.Writer.add, ["self", "name", "value"], {"attributes": None}),
    (tg.Writer.stream, ["self", "name", "dtype", "shape"], {}),
    (
        tg.convert,
        ["source", "target"],
        {"format": None, "select": None, "dtype": None, "on_loss": "error", "executor": None, "progress": None},
    ),
    (tg.stats, ["source"], {"select": None}),
    (tg.identify, ["source"], {}),
    (tg.edit, ["path"], {"metadata": None, "remove": (), "in_place": False}),
    (tg.verify, ["source"], {}),
    (tg.diff, ["a", "b"], {}),
    (tg.formats, [], {}),
    (tg.Archive.info, ["self", "name"], {}),
    (tg.Archive.close, ["self"], {}),
    (tg.Tensor.numpy, ["self"], {"out": None}),
    (tg.dynd.parse, ["text"], {}),
    (tg.dynd.typeof, ["value"], {}),
    (tg.dynd.array, ["value"], {"type": None}),
    (tg.dynd.serialize, ["value"], {"type": None}),
    (tg.dynd.deserialize, ["data", "type"], {}),
    (tg.dynd.pack, ["value"], {}),
    (tg.dynd.unpack, ["data"], {}),
    (tg.dynd.dump, ["value", "stream"], {}),
    (tg.dynd.load, ["stream", "type"], {}),
    (tg.dynd.to_cbor, ["value"], {}),
    (tg.dynd.from_cbor, ["data"], {}),
    (tg.bson.Vector, ["data"], {"dtype": None, "padding": None}),
    (tg.bson.encode, ["array"], {"dtype": None, "padding": None, "ignored_bits": "error"}),
    (tg.bson.decode, ["payload"], {"ignored_bits": "error"}),
    (tg.bson.encode_matrix, ["matrix"], {"dtype": None}),
    (tg.bson.encode_documents, ["matrix", "key"], {"ids": None}),
    (tg.bson.decode_matrix, ["source"], {"key": None, "out": None, "on_missing": "error"}),
    (tg.bson.quantize, ["matrix"], {"to": "int8"}),
]


@pytest.mark.parametrize(("function", "needed", "defaults"), SIGNATURES, ids=lambda case: getattr(case, "__name__", ""))
def test_the_parameters_that_people_call_us_with(
    function: Callable[..., Any], needed: list[str], defaults: dict[str, Any]
) -> None:
    """There may be more, and those have defaults."""
    found = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    assert [name for name, default in found.items() if default is NOTHING] == needed
    assert {name: found.get(name, NOTHING) for name in defaults} == defaults


def test_the_attributes_that_people_ask_for() -> None:
    assert issubclass(tg.Archive, Mapping)
    for kind, names in {
        tg.Archive: "format metadata attributes info close __enter__ __exit__ __reduce__",
        tg.Tensor: """name type dtype shape nbytes layout parts encoding checksum attributes offset numpy tolist
            serialize cid awkward arrow scipy dequantize __getitem__ __array__ __dlpack__ __dlpack_device__""",
        tg.bson.Vector: "data dtype padding numpy bits binary",
        tg.Report: "ok problems to_dict",
        tg.Diff: "same changes to_dict",
    }.items():
        assert [name for name in names.split() if not hasattr(kind, name)] == []
    error = tg.FormatError("wrong", rule="a.rule", offset=3, tensor="w")
    assert (error.rule, error.offset, error.tensor) == ("a.rule", 3, "w")
    for below in (tg.TruncatedError, tg.LimitError, tg.IntegrityError):
        assert issubclass(below, tg.FormatError)
    for below in (tg.FormatError, tg.InputError, tg.UnsupportedError, tg.TensorNotFound):
        assert issubclass(below, tg.TensorglotError)
