"""Tensors without bytes whose other dimensions are huge: everything ends at once, in a value or in an error of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
import ztensor_builder
from bounds import at_once
from command_line import run
from heavy import VOID_SHAPES, void_file
from peers import needs

FORMATS = ("bintensors", "ztensor", "safetensors", "npz", "npy", "gguf", "hdf5", "onnx", "dcp")
MANY_ROWS = [shape for shape in VOID_SHAPES if shape[0]]
WIDE = [shape for shape in VOID_SHAPES if max(shape) >= 1 << 31]


@pytest.fixture(params=FORMATS)
def format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def void(shape: tuple[int, ...], format: str, folder: Path) -> tg.Tensor:
    return next(iter(tg.open(void_file(format, shape, folder)).values()))


@pytest.mark.parametrize("shape", VOID_SHAPES)
def test_it_is_an_array_of_its_shape(shape: tuple[int, ...], format: str, tmp_path: Path) -> None:
    tensor = void(shape, format, tmp_path)
    assert tensor.shape == tensor.numpy().shape == shape
    assert tensor.nbytes == 0


@pytest.mark.parametrize("shape", MANY_ROWS)
def test_rows_without_bytes_are_counted_before_they_are_listed(
    shape: tuple[int, ...], format: str, tmp_path: Path
) -> None:
    path = void_file(format, shape, tmp_path)
    with at_once(), tg.open(path) as archive:
        (tensor,) = archive.values()
        with pytest.raises(tg.LimitError, match=r"Limits\.void_count"):
            tensor.tolist()
        for options in ([], ["--json"], ["-o", tmp_path / "out"]):
            assert "Limits.void_count" in run("cat", path, tensor.name, *options, code=3).output
        if len(shape) == 2:
            with pytest.raises(tg.LimitError, match=r"Limits\.void_count"):
                tg.convert(path, tmp_path / "x.bson", on_loss="drop")


@pytest.mark.parametrize("shape", WIDE)
def test_arrow_has_no_list_so_long(shape: tuple[int, ...], format: str, tmp_path: Path) -> None:
    needs("pyarrow")
    with pytest.raises(tg.UnsupportedError) as caught:
        void(shape, format, tmp_path).arrow()
    assert caught.value.rule == "dynd.arrow"


ELEMENTS = ("bytes[4294967296]", "fixed_string[4294967296, 'ascii']", "fixed_string[1073741824, 'utf32']")


@pytest.mark.parametrize("element", ELEMENTS)
def test_no_elements_of_a_huge_size(element: str) -> None:
    value = tg.dynd.deserialize(b"", f"0 * {element}")
    assert value.tolist() == []
    with pytest.raises(tg.UnsupportedError, match=r"2\^31 bytes"):
        value.numpy()
    if element == ELEMENTS[0]:
        needs("pyarrow")
        with pytest.raises(tg.UnsupportedError, match="Arrow has no type for 4294967296 bytes"):
            value.arrow()


BSON: dict[str, Callable[[Any, Path], Any]] = {
    "encode_matrix": lambda tensor, _: tg.bson.encode_matrix(tensor),
    "encode_documents": lambda tensor, _: tg.bson.encode_documents(tensor, "a"),
    "quantize": lambda tensor, _: tg.bson.quantize(tensor),
    "write_embeddings": lambda tensor, folder: tg.bson.write_embeddings(tg.bson.Embeddings(tensor), folder / "x.bson"),
}


@pytest.mark.parametrize("way", BSON)
def test_vectors_without_bytes(way: str, tmp_path: Path) -> None:
    matrix = np.zeros((1 << 40, 0), np.float32)
    with at_once(), pytest.raises(tg.LimitError, match=r"Limits\.void_count"):
        BSON[way](matrix, tmp_path)


def test_no_vectors_of_a_huge_width() -> None:
    assert tg.bson.encode_matrix(np.zeros((0, 1 << 40), np.float32)) == []


def test_as_many_as_the_limit_allows(tmp_path: Path) -> None:
    tg.save(tmp_path / "x.bt", {"a": np.zeros((1 << 10, 0), np.float32)})
    tg.convert(tmp_path / "x.bt", tmp_path / "x.bson")
    assert tg.load(tmp_path / "x.bson")["a"].shape == (1 << 10, 0)


@pytest.mark.parametrize("shape", VOID_SHAPES)
def test_jax(shape: tuple[int, ...], tmp_path: Path) -> None:
    needs("jax")
    assert tg.jax.load_file(void_file("safetensors", shape, tmp_path))["a"].shape == shape


@pytest.mark.parametrize(("size", "fits"), [((1 << 60) - 1, True), (1 << 60, False)])
def test_other_dimensions_that_numpy_cannot_count_are_refused(size: int, fits: bool) -> None:
    part = ztensor_builder.part(dtype="f64", blob=[4096, 0])
    data = ztensor_builder.file2({"objects": {"w": ztensor_builder.tensor({"data": part}, shape=[0, size])}}, b"")
    with tg.open(data) as archive:
        assert archive["w"].shape == (0, size)
        if fits:
            assert archive["w"].numpy().shape == (0, size)
            return
        with pytest.raises(tg.UnsupportedError) as caught:
            archive["w"].numpy()
        assert (caught.value.rule, caught.value.tensor) == ("tensor.shape", "w")
