"""Elements that do not lie in C order: the whole array, slices and pieces are NumPy's own."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from tensorglot.io.local import BufferSource
from tensorglot.model import payload, strided
from tensorglot.model.dtypes import dtype_of
from tensorglot.model.payload import Encoded, Span
from tensorglot.model.strided import Strided
from tensorglot.model.tensor import Part, Tensor

BASE = np.arange(4096, dtype=np.int16)
CASES: dict[str, NDArray[Any]] = {
    "Fortran": as_strided(BASE, (5, 7), (2, 10)),
    "Fortran of three": as_strided(BASE, (3, 4, 5), (2, 6, 24)),
    "turned axes": as_strided(BASE, (3, 4, 5), (40, 2, 8)),
    "steps": as_strided(BASE, (6, 5), (26, 4)),
    "steps of a column": as_strided(BASE, (6,), (600,)),
    "broadcast": as_strided(BASE, (4, 3), (0, 2)),
    "broadcast of all": as_strided(BASE, (4, 3), (0, 0)),
    "windows": as_strided(BASE, (8, 4), (2, 2)),
    "windows as long as their gap": as_strided(BASE, (2, 2, 2), (10, 2, 2)),
    "a size of one": as_strided(BASE, (1, 6, 1), (999, 2, 7)),
    "empty": as_strided(BASE, (3, 0, 2), (2, 2, 2)),
    "no dimensions": as_strided(BASE, (), ()),
    "wide": as_strided(BASE, (30, 2), (2, 4100)),
}


def part(array: NDArray[Any], share: bool = False) -> Part:
    codec = Strided(array.shape, array.strides, array.itemsize)
    end = codec.extent(array.shape, array.strides, array.itemsize)
    source = BufferSource(b"\xaa" * 3 + BASE.tobytes(), share=share)
    return Part(dtype_of(array.dtype), array.shape, Encoded(source, 3, 3 + end, array.nbytes, codec, "x"))


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_array_and_its_bytes_are_in_c_order(case: str, share: bool) -> None:
    array = CASES[case]
    held = part(array, share)
    values = held.array()
    assert values.shape == array.shape
    assert (values == array).all()
    out = np.empty(array.shape, array.dtype)
    assert (held.array(out=out) == array).all()
    assert b"".join(held.payload.chunks()) == array.tobytes()


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_slice_is_what_numpy_gives(case: str, share: bool) -> None:
    rng = random.Random(1)
    array = CASES[case]
    tensor = Tensor("x", {"data": part(array, share)})
    for _ in range(50):
        index = tuple(
            rng.choice([slice(rng.randrange(-9, 9), rng.randrange(-9, 9), rng.choice([-2, -1, 1, 2, 3])), ..., None, 0])
            for _ in range(rng.randrange(array.ndim + 1))
        )
        try:
            expected = array[index]
        except IndexError:
            continue
        found = tensor[index]
        assert found.shape == expected.shape
        assert (found == expected).all()


@pytest.mark.parametrize("case", CASES)
def test_any_range_of_bytes(case: str) -> None:
    rng = random.Random(2)
    array = CASES[case]
    payload, whole = part(array).payload, array.tobytes()
    for _ in range(100):
        begin, end = sorted((rng.randrange(len(whole) + 1), rng.randrange(len(whole) + 1)))
        assert bytes(payload.read(begin, end - begin)) == whole[begin:end]


def test_pieces_are_small_and_join_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strided, "CHUNK_NBYTES", 14)
    for array in CASES.values():
        chunks = list(part(array).payload.chunks())
        assert all(len(chunk) <= 14 for chunk in chunks)
        assert b"".join(chunks) == array.tobytes()


def test_a_transposed_array_is_not_copied() -> None:
    values = part(np.asfortranarray(CASES["Fortran"])).array()
    assert values.flags.f_contiguous
    assert not values.flags.c_contiguous


def test_strides_of_the_c_order_are_recognized() -> None:
    assert Strided((2, 3), (6, 2), 2).in_order
    assert Strided((2, 1, 3), (6, 99, 2), 2).in_order
    assert Strided((0, 3), (1, 1), 2).in_order
    assert Strided((), (), 2).in_order
    assert not Strided((2, 3), (2, 4), 2).in_order
    assert not Strided((2, 3), (0, 2), 2).in_order


@pytest.mark.parametrize("shape", [(4096,), (8, 512), (2, 3, 4, 5), (1, 4096), (4096, 1), (3, 0)])
def test_slices_of_the_c_order(shape: tuple[int, ...]) -> None:
    rng = random.Random(3)
    array = BASE[: int(np.prod(shape))].reshape(shape)
    payload = Span(BufferSource(BASE.tobytes()), 0, array.nbytes)
    tensor = Tensor("x", {"data": Part(dtype_of(array.dtype), shape, payload)})
    for _ in range(200):
        index = tuple(
            slice(rng.randrange(size + 1), rng.randrange(size + 1), rng.choice([-700, -1, 1, 2, 900])) for size in shape
        )
        assert np.array_equal(tensor[index], array[index])


@pytest.mark.parametrize("nbytes", [1, 8, 30, 100, 1000])
@pytest.mark.parametrize("order", [(2, 1, 0), (1, 0, 2), (0, 2, 1)])
def test_memory_of_any_order_in_pieces_of_bounded_size(
    nbytes: int, order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one row is larger than a piece."""
    array = np.arange(3 * 4 * 5, dtype=np.int64).reshape(3, 4, 5).transpose(order)
    monkeypatch.setattr(payload, "PIECE_NBYTES", nbytes)
    chunks = list(payload.Memory(array).chunks())
    assert b"".join(bytes(chunk) for chunk in chunks) == array.tobytes()
    contiguous = 8 * array.shape[-1] if array.strides[-1] == 8 else 8
    assert max(map(len, chunks)) <= max(nbytes, contiguous)
