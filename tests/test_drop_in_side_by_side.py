"""The drop-in modules beside the real safetensors: the same calls, whose results and errors are compared.

Theirs reads the tensors from a safetensors file, ours from a file of every format. Where
ours does more than theirs, or is an error of ours besides, the table says so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from arrays import raw
from peers import needs

FORMATS = [spec for spec in tg.formats() if spec.writes and spec.names and spec.name != "bson"]
SHAPE = (5, 4, 3)
CASES = [
    (spec, dtype)
    for spec in FORMATS
    for dtype in ("float32", "bfloat16", "float8_e4m3fn", "int64", "bool")
    if dtype in spec.dtypes
]

INDICES: dict[str, tuple[Any, str]] = {
    "[:]": (slice(None), "same"),
    "[()]": ((), "same"),
    "[...]": (..., "same"),
    "[None]": (None, "same"),
    "[1]": (1, "same"),
    "[-1]": (-1, "same"),
    "[-5]": (-5, "same"),
    "[-6]": (-6, "IndexError"),
    "[5]": (5, "IndexError"),
    "[1:3]": (slice(1, 3), "same"),
    "[-2:]": (slice(-2, None), "same"),
    "[:-1]": (slice(None, -1), "same"),
    "[:20]": (slice(None, 20), "same"),
    "[4:2]": (slice(4, 2), "same"),
    "[::2]": (slice(None, None, 2), "same"),
    "[1::3, ::2]": ((slice(1, None, 3), slice(None, None, 2)), "same"),
    "[::-1]": (slice(None, None, -1), "more"),
    "[::0]": (slice(None, None, 0), "ValueError"),
    "[:, 1]": ((slice(None), 1), "same"),
    "[0, 0, 0]": ((0, 0, 0), "same"),
    "[0, 0, 0, 0]": ((0, 0, 0, 0), "IndexError"),
    "[..., 1]": ((..., 1), "same"),
    "[1, ...]": ((1, ...), "same"),
    "[1, None]": ((1, None), "same"),
    "[[]]": ([], "same"),
    "[[0, 2]]": ([0, 2], "same"),
    "[:, [3, 0]]": ((slice(None), [3, 0]), "same"),
    "[[True, False, ...]]": ([True, False, True, False, True], "same"),
    "[np.int64(1)]": (np.int64(1), "same"),
    "[np.array([0, 1])]": (np.array([0, 1]), "same"),
    "[1.5]": (1.5, "IndexError"),
}
"""An index, and what it gives: the same in both, an error of a class in both, or more here than there."""


def outcome(use: Callable[[], Any]) -> Any:
    """Shape, type and bytes of a result, or the error."""
    try:
        found = use()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
        return error
    array = tg.dynd.array(found).numpy()
    return str(found.dtype), array.shape, raw(array)


@pytest.mark.frameworks
@pytest.mark.parametrize("backend", ["auto", "mmap"])
@pytest.mark.parametrize(("spec", "dtype"), CASES, ids=lambda value: getattr(value, "name", value))
def test_slices_of_tensors(spec: tg.Format, dtype: str, backend: Any, tmp_path: Path) -> None:
    torch, theirs = needs("torch"), needs("safetensors")
    values = torch.arange(60).remainder(7).reshape(SHAPE).to(getattr(torch, dtype))
    one, two = tmp_path / "one.safetensors", tmp_path / f"two{spec.suffixes[0]}"
    needs("safetensors.torch").save_file({"w": values}, one)
    tg.torch.save_file({"w": values}, two)
    with theirs.safe_open(one, "pt") as f, tg.safe_open(two, "pt", backend=backend) as g:
        assert f.get_slice("w").get_shape() == g.get_slice("w").get_shape()
        assert f.get_slice("w").get_dtype() == g.get_slice("w").get_dtype()
        assert outcome(lambda: f.get_tensor("w")) == outcome(lambda: g.get_tensor("w"))
        for text, (index, wanted) in INDICES.items():
            there, here = (outcome(lambda file=file, index=index: file.get_slice("w")[index]) for file in (f, g))
            if wanted == "same":
                assert not isinstance(here, Exception), (text, here)
                assert there == here, text
            elif wanted == "more":
                assert isinstance(there, ValueError), text
                assert here[1:] == outcome(lambda index=index: values.flip(0))[1:], text
            else:
                assert wanted in {kind.__name__ for kind in type(there).__mro__}, (text, there)
                assert isinstance(here, IndexError), (text, here)
                assert isinstance(here, tg.InputError), (text, here)


ARGUMENTS: dict[str, tuple[Callable[[Any, Path], Any], tuple[type[Exception], ...]]] = {
    # A call, and the classes of which our error is one; theirs is a SafetensorError or one of them
    "a missing name": (lambda make, path: make(path, "pt").get_tensor("zz"), (KeyError,)),
    "a slice of a missing name": (lambda make, path: make(path, "pt").get_slice("zz"), (KeyError,)),
    "a name that is no text": (lambda make, path: make(path, "pt").get_tensor(1), (TypeError, ValueError)),
    "a slice by a name that is no text": (lambda make, path: make(path, "pt").get_slice(1), (TypeError, ValueError)),
    "a framework": (lambda make, path: make(path, "bogus"), (TypeError, ValueError)),
    "no framework": (lambda make, path: make(path, None), (TypeError, ValueError)),
    "a device": (lambda make, path: make(path, "pt", device="bogus").get_tensor("a"), (TypeError, ValueError)),
    "a device that is not here": (lambda make, path: make(path, "pt", device="xpu:0").get_tensor("a"), (RuntimeError,)),
    "a backend": (lambda make, path: make(path, "pt", backend="bogus"), (TypeError, ValueError)),
    "a missing file": (lambda make, path: make(path / "no", "pt"), (FileNotFoundError, NotADirectoryError)),
    "after the block": (lambda make, path: closed(make(path, "pt")).keys(), (ValueError,)),
    "a tensor after the block": (lambda make, path: closed(make(path, "pt")).get_tensor("a"), (ValueError,)),
    "a slice after the block": (lambda make, path: closed_slice(make(path, "pt"))[0], (ValueError,)),
}


def closed(file: Any) -> Any:
    with file:
        return file


def closed_slice(file: Any) -> Any:
    with file:
        return file.get_slice("a")


@pytest.mark.frameworks
@pytest.mark.parametrize("what", ARGUMENTS)
def test_errors(what: str, tmp_path: Path) -> None:
    needs("torch")
    use, kinds = ARGUMENTS[what]
    path = tmp_path / "m.safetensors"
    tg.numpy.save_file({"a": np.arange(3)}, path)
    if what != "a slice after the block":  # theirs stays readable while the mapping lives
        with pytest.raises(Exception):  # noqa: B017 - whatever its class, it is refused there, too
            use(needs("safetensors").safe_open, path)
    with pytest.raises(kinds) as caught:
        use(tg.safe_open, path)
    assert isinstance(caught.value, tg.TensorglotError | OSError)


@pytest.mark.frameworks
@pytest.mark.parametrize("spec", FORMATS, ids=lambda spec: spec.name)
@pytest.mark.parametrize(("framework", "home"), [("pt", "torch"), ("np", "numpy"), ("flax", "jaxlib")])
def test_a_file_of_every_framework(spec: tg.Format, framework: str, home: str, tmp_path: Path) -> None:
    theirs = needs("safetensors")
    for library in ("torch", "jax"):
        needs(library)
    tensors = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.arange(4, dtype=np.int32)}
    metadata = {"step": "1"} if spec.metadata != "none" else None
    one, two = tmp_path / "one.safetensors", tmp_path / f"two{spec.suffixes[0]}"
    needs("safetensors.numpy").save_file(tensors, one, metadata)
    tg.numpy.save_file(tensors, two, metadata)
    with theirs.safe_open(one, framework) as f, tg.safe_open(two, framework) as g:
        assert f.keys() == g.keys()
        assert sorted(g.offset_keys()) == f.keys()
        if spec.name == "safetensors":
            assert (f.offset_keys(), one.read_bytes()) == (g.offset_keys(), two.read_bytes())
        if metadata is not None:
            assert (g.metadata() or {}).items() >= metadata.items()
        for device in ("cpu", None):
            with theirs.safe_open(one, framework, device) as h, tg.safe_open(two, framework, device) as i:
                assert h.get_tensors().keys() == i.get_tensors().keys()
        for name, found in g.get_tensors().items():
            assert type(found).__module__.startswith(home)
            assert outcome(lambda name=name: f.get_tensor(name)) == outcome(lambda found=found: found)
