"""The public interface, which other people's programs call: names, the order of parameters, and defaults.

More parameters may be added behind these, as keywords with a default; none may be renamed.
"""

from __future__ import annotations

import importlib
import inspect
from functools import reduce
from typing import Any

import pytest

import tensorglot as tg
from peers import needs

SIGNATURES = {
    "open": "source, *, format=None, backend='auto', strict=False, verify='auto', limits=None, storage_options=None",
    "load": "source, *, names=None, threads=None, framework='numpy', format=None, backend='auto', strict=False, "
    "verify='auto', limits=None, storage_options=None",
    "loads": "data, *, names=None, threads=None, framework='numpy', format=None, strict=False, verify='auto', "
    "limits=None",
    "save": "target, tensors, *, format=None, metadata=None, compression=None, level=None, checksum='auto', "
    "attributes=None, durable=True, progress=None, storage_options=None",
    "dumps": "tensors, *, format=None, metadata=None, compression=None, level=None, checksum='auto', attributes=None, "
    "progress=None",
    "Writer": "target, *, format=None, append=False",
    "Writer.add": "self, name, value",
    "Writer.stream": "self, name, dtype, shape",
    "convert": "source, target, *, format=None, select=None, dtype=None, on_loss='error', executor=None, progress=None",
    "verify": "source, *, executor=None",
    "diff": "a, b, *, executor=None",
    "stats": "source, select=None, *, executor=None",
    "identify": "source, *, executor=None",
    "edit": "path, metadata=None, *, remove=(), replace=None, drop=(), in_place=False",
    "split": "source, target",
    "merge": "sources, target",
    "formats": "",
    "safe_open": "filename, framework, device='cpu'",
    "Archive.info": "self, name",
    "Archive.close": "self",
    "Tensor.numpy": "self, out=None",
    "Tensor.torch": "self, device=None",
    "Tensor.tolist": "self",
    "Tensor.serialize": "self",
    "Tensor.cid": "self",
    "Tensor.awkward": "self",
    "Tensor.arrow": "self",
    "Tensor.scipy": "self",
    "Tensor.dequantize": "self",
    "dynd.parse": "text",
    "dynd.typeof": "value",
    "dynd.array": "value, type=None",
    "dynd.serialize": "value, type=None",
    "dynd.deserialize": "data, type",
    "dynd.pack": "value",
    "dynd.unpack": "data",
    "dynd.dump": "value, stream",
    "dynd.load": "stream, type",
    "dynd.to_cbor": "value",
    "dynd.from_cbor": "data",
    "bson.encode": "array, dtype=None, padding=None, ignored_bits='error'",
    "bson.decode": "payload, ignored_bits='error'",
    "bson.encode_matrix": "matrix, dtype=None",
    "bson.encode_documents": "matrix, key, ids=None",
    "bson.decode_matrix": "source, key=None, out=None, on_missing='error'",
    "bson.quantize": "matrix, to='int8'",
    "bson.nearest": "matrix, queries, k=10, metric='cosine'",
    "bson.Vector.numpy": "self",
    "bson.Vector.bits": "self",
    "bson.Vector.binary": "self",
    "store.Store": "url, storage_options=None",
    "store.Store.create": "url, storage_options=None",
    "store.Store.commit": "self, ref, tensors, *, message='', metadata=None, parent=None",
    "store.Store.checkout": "self, ref",
    "store.Store.log": "self, ref",
    "store.Store.refs": "self",
    "store.Store.tag": "self, name, ref",
    "store.Store.delete": "self, ref",
    "store.Store.diff": "self, a, b",
    "store.Store.put": "self, value",
    "store.Store.get": "self, cid",
    "store.Store.check": "self, data=False",
    "store.Store.collect": "self, grace=86400.0",
    "store.Store.repack": "self",
    "store.Store.stats": "self",
    "store.Store.push": "self, url, refs=None",
    "store.Store.pull": "self, url, refs=None",
    "store.Store.bundle": "self, target, ref, have=None",
    "store.Store.unbundle": "self, source",
    "store.delta": "old, new, target",
    "store.apply": "delta, tensors",
    "numpy.save_file": "tensors, filename, metadata=None",
    "numpy.load_file": "filename, device='cpu'",
    "numpy.save": "tensors, metadata=None",
    "numpy.load": "data",
    "numpy.save_with_checksum": "tensors, metadata=None, hasher=None",
    "numpy.safe_open": "filename, framework, device='cpu'",
    "jax.save_file": "tensors, filename, metadata=None",
    "jax.load_file": "filename, device='cpu'",
    "torch.save_file": "tensors, filename, metadata=None",
    "torch.load_file": "filename, device='cpu'",
    "torch.save_model": "model, filename, metadata=None, force_contiguous=True",
    "torch.load_model": "model, filename, strict=True, device='cpu', *, backend='auto'",
    "torch.dcp.Writer": "path, format='safetensors'",
    "torch.dcp.Reader": "path",
    "bridges.dask.open": "source, chunks='128MiB'",
}
ATTRIBUTES = {
    "Tensor": "name type dtype shape nbytes layout parts encoding checksum attributes offset ndim size __len__ "
    "__getitem__ __array__ __dlpack__",
    "Archive": "format metadata attributes keys items values get __enter__ __exit__ __reduce__",
    "Report": "ok problems to_dict",
    "Diff": "same changes to_dict",
    "Limits": "header_nbytes tensors rank name_nbytes",
    "bson.Vector": "data dtype padding __len__ __iter__ __getitem__",
    "store.Commit": "cid parents message time metadata",
    "store.StoreStats": "logical_nbytes unique_nbytes stored_nbytes commits tensors",
}


def find(name: str) -> Any:
    if name.startswith("torch.dcp."):
        needs("torch")
    if name.startswith("bridges.dask."):
        needs("dask.array")
        return importlib.import_module("tensorglot.bridges.dask").open
    return reduce(getattr, name.split("."), tg)


@pytest.mark.parametrize("name", SIGNATURES)
def test_parameters_and_defaults(name: str) -> None:
    promised = inspect.signature(eval(f"lambda {SIGNATURES[name]}: None")).parameters
    actual = inspect.signature(find(name)).parameters
    positional = [one.name for one in promised.values() if one.kind is not one.KEYWORD_ONLY]
    assert list(actual)[: len(positional)] == positional
    for one in promised.values():
        assert (actual[one.name].default, actual[one.name].kind) == (one.default, one.kind)
    for added in actual.keys() - promised.keys():
        assert (
            actual[added].default is not inspect.Parameter.empty or actual[added].kind is inspect.Parameter.VAR_KEYWORD
        )


@pytest.mark.parametrize(
    ("name", "attribute"), [(name, each) for name, text in ATTRIBUTES.items() for each in text.split()]
)
def test_attributes(name: str, attribute: str) -> None:
    kind = find(name)
    assert hasattr(kind, attribute) or attribute in kind.__annotations__


def test_modules_are_reached_without_another_import() -> None:
    assert {"bson", "dynd", "store", "numpy", "torch", "jax"} <= set(dir(tg))
    assert isinstance(tg.__version__, str)
