"""Sample values: every element type of BinTensors in every form that an array can have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

__all__ = ["DTYPES", "FORMS", "NAMES", "bits", "forms", "metadata", "random_array", "same", "tensors"]

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(getattr(ml_dtypes, name, name))
    for name in (
        "bool", "uint8", "int8", "float8_e5m2", "float8_e4m3fn", "int16", "uint16", "float16", "bfloat16",
        "int32", "uint32", "float32", "float64", "int64", "uint64",
    )
}  # fmt: skip
"""In the order of the format's codes."""

FORMS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "C order": np.array,
    "Fortran order": lambda a: np.array(a, order="F"),
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "big-endian, Fortran order": lambda a: a.astype(a.dtype.newbyteorder(">"), order="F"),
    "every second": lambda a: np.repeat(a.reshape(-1), 2)[::2].reshape(a.shape),
    "reversed": lambda a: np.array(a[::-1])[::-1] if a.ndim else a,
    "transposed": lambda a: np.array(a.T).T,
    "unaligned": lambda a: _unaligned(a),
    "read-only": lambda a: _read_only(a),
    "broadcast": lambda a: np.broadcast_to(a, a.shape),
}
"""The same values in other memory."""

NAMES = ["", "w", "a.b/c", "../../x", "\0", "\x1b[0m", "é", "名前", "🌎", "\u202e", "n" * 250, "n" * 251, "n" * 70_000]


def _unaligned(array: NDArray[Any]) -> NDArray[Any]:
    room = np.zeros(array.nbytes + 1, np.uint8)[1:]
    moved: NDArray[Any] = room.view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array = array.copy()
    array.flags.writeable = False
    return array


def random_array(random: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """All bit patterns that the type has."""
    count = int(np.prod(shape, dtype=np.int64))
    if dtype == np.bool_:
        return random.integers(0, 2, count, np.uint8).view(np.bool_).reshape(shape)
    return random.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype).reshape(shape)


def forms(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (form(array) for form in FORMS.values())


def bits(array: NDArray[Any]) -> tuple[str, tuple[int, ...], bytes]:
    """The bits of a value, so that NaN payloads and signs of zero count."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return array.dtype.name, array.shape, little.tobytes()


def same(one: dict[str, NDArray[Any]], two: dict[str, NDArray[Any]]) -> bool:
    return {name: bits(array) for name, array in one.items()} == {name: bits(array) for name, array in two.items()}


@st.composite
def arrays(draw: st.DrawFn) -> NDArray[Any]:
    dtype = DTYPES[draw(st.sampled_from(list(DTYPES)))]
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    return FORMS[draw(st.sampled_from(list(FORMS)))](random_array(random, dtype, shape))


TEXT = st.text(st.characters(codec="utf-8"), max_size=12)


def tensors(max_size: int = 6) -> st.SearchStrategy[dict[str, NDArray[Any]]]:
    return st.dictionaries(TEXT | st.sampled_from(NAMES), arrays(), max_size=max_size)


def metadata() -> st.SearchStrategy[dict[str, str] | None]:
    return st.none() | st.dictionaries(TEXT, TEXT, max_size=5)
