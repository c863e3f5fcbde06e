"""What is saved is loaded, bit for bit, on every way in and every way out.

Values come from a gallery: all element types in all memory orders, strides and byte
orders, without dimensions, without elements, with odd names.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import tensorglot as tg
from gallery import DTYPES, FORMS, bits, forms, metadata, random_array, same, tensors

LAYOUTS = ["bintensors@0", "bintensors@1"]
SHAPES = [(), (0,), (1,), (7,), (3, 5), (0, 4), (4, 0, 2), (2, 3, 4), (1,) * 64]
RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("format", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_in_every_form_and_shape(dtype: str, format: str) -> None:
    for shape in SHAPES:
        array = random_array(RANDOM, DTYPES[dtype], shape)
        expected = tg.dumps({"x": array}, format=format)
        for form in FORMS.values():
            assert tg.dumps({"x": form(array)}, format=format) == expected
        loaded = tg.loads(expected, format=format, strict=True)["x"]
        assert bits(loaded) == bits(array)
        assert loaded.dtype == array.dtype
        assert loaded.flags.c_contiguous
        assert loaded.flags.aligned
        assert loaded.flags.writeable


@settings(max_examples=300, deadline=None)
@given(tensors(), metadata(), st.sampled_from(LAYOUTS))
def test_any_set_of_tensors(values: dict[str, NDArray[Any]], text: dict[str, str] | None, format: str) -> None:
    try:
        data = tg.dumps(values, format=format, metadata=text)
    except tg.UnsupportedError as error:  # rare: the file would also be one of the other layout
        if error.rule != "bintensors.write.ambiguous":
            raise
        return
    with tg.open(data, format=format, strict=True) as archive:
        assert archive.format == format
        assert archive.metadata == text
        assert (archive.metadata is None) == (text is None)
        assert same({name: archive[name].numpy() for name in archive}, values)
        assert tg.dumps(archive, format=format) == data
    assert same(tg.loads(data, format=format, strict=True), values)
    shuffled = dict(sorted(values.items(), key=lambda item: hash(item[0])))
    assert tg.dumps(shuffled, format=format, metadata=text) == data


def test_plain_values_are_saved_as_numpy_sees_them() -> None:
    values: dict[str, Any] = {
        "float": 1.5, "int": 3, "bool": True, "scalar": np.float32(2), "list": [[1, 2], [3, 4]],
        "long": np.ones(2, np.longlong), "intc": np.ones(2, np.intc),
        "nothing masked": np.ma.array([1, 2]), "subclass": np.ones((2, 2)).view(np.matrix), "0-d": np.array(7, ">i2"),
    }  # fmt: skip
    loaded = tg.loads(tg.dumps(values, format="bintensors@1"))
    for name, value in values.items():
        assert loaded[name].shape == np.asarray(value).shape
        assert loaded[name].tolist() == np.asarray(value).tolist()
    assert loaded["long"].dtype == np.int64
    assert loaded["intc"].dtype == np.int32


REFUSED: dict[str, tuple[Any, type[tg.TensorglotError], str]] = {
    "complex": (np.ones(1, np.complex64), tg.UnsupportedError, "bintensors.write.dtype"),
    "a float8 that the format has not": (
        np.ones(1, ml_dtypes.float8_e4m3), tg.UnsupportedError, "bintensors.write.dtype"
    ),
    "object": (np.array([object()]), tg.InputError, "dynd.infer"),
    "text": (np.array(["x"]), tg.UnsupportedError, "save.layout"),
    "record": (np.zeros(1, "i4,f4"), tg.UnsupportedError, "save.layout"),
    "dates": (np.zeros(1, "M8[s]"), tg.UnsupportedError, "save.layout"),
    "ragged": ([[1], [2, 3]], tg.UnsupportedError, "save.layout"),
    "empty": ([], tg.UnsupportedError, "save.layout"),
    "bytes": (bytearray(b"abc"), tg.UnsupportedError, "save.layout"),
    "mapping": ({"w": np.ones(2)}, tg.InputError, "save.mapping"),
    "a bool that is 2": (np.array([2], np.uint8).view(np.bool_), tg.InputError, "values.bool"),
    "packed": (np.ones(1, ml_dtypes.int4), tg.UnsupportedError, "bintensors.write.dtype"),
    "masked": (np.ma.array([1, 2], mask=[True, False]), tg.UnsupportedError, "save.layout"),
    "nothing": (None, tg.UnsupportedError, "save.layout"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_saved_is_refused_by_name(what: str) -> None:
    value, kind, rule = REFUSED[what]
    for values in ({"x": value}, {"first": np.ones(1), "x": value}):
        with pytest.raises(kind) as caught:
            tg.dumps(values, format="bintensors")
        assert (caught.value.rule, caught.value.tensor) == (rule, "x")
        assert ("formats that can: ztensor, dynd" in str(caught.value)) is (rule == "save.layout")


def test_the_gallery_has_the_cases_that_its_names_say() -> None:
    array = random_array(RANDOM, np.dtype("<i4"), (3, 4))
    assert len({math.prod(form.strides) for form in forms(array)}) > 2
    assert all(bits(form) == bits(array) for form in forms(array))
    assert not FORMS["unaligned"](array).flags.aligned
    assert list(DTYPES) == list(tg.formats()[0].container.dtypes.values())
