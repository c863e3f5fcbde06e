"""Slices for somebody else: what index text means, and that text, JSON and .npy hold what NumPy would give."""

from __future__ import annotations

import io
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tensorglot as tg
from tensorglot.errors import InputError, OutOfRange, UnsupportedError
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.tensor import Part, Tensor
from tensorglot.model.types.algebra import dense
from tensorglot.operations import excerpt
from tensorglot.operations.excerpt import json_document, npy_bytes, parse_index, text_lines


def stored(array: np.ndarray[Any, Any]) -> Tensor:
    return tg.open(tg.dumps({"x": array}, format="bintensors"))["x"]


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("[10:20, ::2]", np.s_[10:20, ::2]),
        ("10:20,::2", np.s_[10:20, ::2]),
        (" [ 3 , -1 ] ", np.s_[3, -1]),
        ("+3", np.s_[3]),
        ("[...]", np.s_[...]),
        ("Ellipsis, 0", np.s_[..., 0]),
        ("[None, :, newaxis]", np.s_[None, :, None]),
        ("[::-1,]", np.s_[::-1,]),
        ("5:", np.s_[5:]),
        (":-5", np.s_[:-5]),
        ("7 : 1 : -2", np.s_[7:1:-2]),
    ],
)
def test_text_becomes_an_index(text: str, index: Any) -> None:
    assert parse_index(text) == (index if isinstance(index, tuple) else (index,))


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "[,]", "1,,2", "1:2:3:4", "a", "1.5", "[[0]]", "True", "__import__('os')", "()", "1_000", "٣"),
        *("9" * 5000, "\x1b[2J", "[1", "1]", "- 1 -", "0x10", "1;2"),
    ],
)
def test_index_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_index(text)
    assert caught.value.rule == "index.text"
    assert str(caught.value).isprintable()


def as_text(index: Any) -> str:
    items = index if isinstance(index, tuple) else (index,)
    words = []
    for item in items:
        if isinstance(item, slice):
            ends = ("" if end is None else str(end) for end in (item.start, item.stop, item.step))
            words.append(":".join(ends))
        else:
            words.append("..." if item is ... else str(item))
    return f"[{', '.join(words)}]" if words else "[...]"


@settings(max_examples=300, deadline=None)
@given(
    st.data(), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5), st.sampled_from([1, 16, 64, 1 << 20])
)
def test_npy_is_what_numpy_would_save(data: st.DataObject, shape: tuple[int, ...], piece: int) -> None:
    array = np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=True) if shape else st.just(()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(excerpt, "PIECE_NBYTES", piece)
        ours = b"".join(npy_bytes(stored(array), parse_index(as_text(index))))
        lines = b"".join(text_lines(stored(array), parse_index(as_text(index)))).decode()
    theirs = io.BytesIO()
    np.save(theirs, np.ascontiguousarray(array[index]).reshape(array[index].shape))
    assert ours == theirs.getvalue()
    assert [int(word) for word in lines.split()] == array[index].reshape(-1).tolist()
    document = json.loads(b"".join(json_document(stored(array), parse_index(as_text(index)))))
    assert document["values"] == array[index].tolist()
    assert document["shape"] == list(array[index].shape)


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.float32(0.1).reshape(()), "0.1\n"),
        (np.array([0.1, np.nan, -np.inf, -0.0, 1e30], np.float32), "0.1\nnan\n-inf\n-0.0\n1e+30\n"),
        (np.array([[1, -20], [300, 4]]), "  1 -20\n300   4\n"),
        (np.arange(8).reshape(2, 2, 2), "0 1\n2 3\n\n4 5\n6 7\n"),
        (np.arange(4).reshape(2, 1, 2), "0 1\n\n2 3\n"),
        (np.zeros((0, 3)), ""),
        (np.zeros((2, 0)), "\n\n"),
        (np.array([True, False]), "True\nFalse\n"),
        (np.array([0.1, 2.5], ml_dtypes.bfloat16), "0.100098\n2.5\n"),
        (np.array([0.1, 448], ml_dtypes.float8_e4m3fn), "0.101562\n448\n"),
    ],
)
def test_values_as_lines_of_text(array: np.ndarray[Any, Any], text: str) -> None:
    assert b"".join(text_lines(stored(array), (...,))).decode() == text


@settings(max_examples=100, deadline=None)
@given(hnp.arrays(st.sampled_from([np.float64, np.float32, np.float16]), 5))
def test_text_is_exact(array: np.ndarray[Any, Any]) -> None:
    lines = b"".join(text_lines(stored(array), (...,))).split()
    again = np.array([float(line) for line in lines]).astype(array.dtype)
    np.testing.assert_array_equal(again, array)


def test_nan_and_infinity_are_text_in_json() -> None:
    tensor = Tensor.of_array("z", np.array([[1 + 2j, complex(np.nan, -np.inf)]]), BY_NAME["complex128"])
    document = json.loads(b"".join(json_document(tensor, (...,))), parse_constant=pytest.fail)
    assert document["values"] == [[[1.0, 2.0], ["NaN", "-Infinity"]]]
    assert document["shape"] == [1, 2]


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float8_e4m3fn", "int4"])
def test_types_that_numpy_has_not_keep_their_names_in_npy(name: str) -> None:
    dtype = BY_NAME[name].require_numpy()
    array = np.arange(6).astype(np.float32).astype(dtype).reshape(2, 3)
    data = b"".join(npy_bytes(Tensor.of_array("x", array, BY_NAME[name]), (slice(None), slice(None, None, 2))))
    loaded = np.load(io.BytesIO(data), allow_pickle=False)
    assert loaded.dtype.descr == [(name, f"|V{dtype.itemsize}")]
    np.testing.assert_array_equal(loaded[name].view(dtype), array[:, ::2])
    again = tg.loads(data)["data"]
    assert again.dtype == dtype
    np.testing.assert_array_equal(again, array[:, ::2])


def test_only_what_is_selected_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = stored(np.zeros((1000, 1000), np.float32))
    source = tensor.parts["data"].payload.source  # type: ignore[union-attr]
    read: list[int] = []
    original = type(source).read
    monkeypatch.setattr(
        type(source), "read", lambda self, at, nbytes: read.append(nbytes) or original(self, at, nbytes)
    )
    assert len(b"".join(text_lines(tensor, parse_index("[10:20]"))).splitlines()) == 10
    assert sum(read) == 40_000


def test_what_is_not_dense_or_not_there_is_refused() -> None:
    with pytest.raises(OutOfRange):
        list(text_lines(stored(np.arange(3)), (3,)))
    part = Part(
        BY_NAME["float32"],
        (2,),
        Tensor.of_array("v", np.zeros(2, np.float32), BY_NAME["float32"]).parts["data"].payload,
    )
    sparse = Tensor("s", {"values": part}, "zt.sparse_csr/1", dense(BY_NAME["float32"], (2, 2)))
    for form in (text_lines, npy_bytes, json_document):
        with pytest.raises(UnsupportedError) as caught:
            list(form(sparse, (...,)))
        assert caught.value.rule == "tensor.dense"
        assert "`tensorglot stats` describes its parts" in caught.value.message
