"""Chunks of HDF5 that were written to harm: what they expand to, whose bytes they are, how many there are of them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from bounds import MB, allocated_nbytes, seconds
from test_hdf5 import patched, written

ROWS = 250
NBYTES = ROWS * 4


def chunk_file(stored: bytes, **options: Any) -> bytes:
    """A dataset `w` of one chunk of NBYTES, whose stored bytes are these."""

    def fill(made: Any) -> None:
        held = made.create_dataset("w", (ROWS,), "<f4", chunks=(ROWS,), **({"compression": "gzip"} | options))
        held.id.write_direct_chunk((0,), stored)

    return written(fill)


EXPANSIONS: dict[str, tuple[bytes, str]] = {
    "50 MB for 1000 bytes": (zlib.compress(bytes(50 * MB), 9), "hdf5.chunk.deflate"),
    **{f"{n} bytes more": (zlib.compress(bytes(NBYTES + n)), "hdf5.chunk.size") for n in (1, 4)},
    "5 bytes more": (zlib.compress(bytes(NBYTES + 5)), "hdf5.chunk.deflate"),
    "a byte less": (zlib.compress(bytes(NBYTES - 1)), "hdf5.chunk.size"),
    "nothing": (zlib.compress(b""), "hdf5.chunk.size"),
    "cut short": (zlib.compress(bytes(range(250)) * 4)[:-5], "hdf5.chunk.deflate"),
    "no deflate": (bytes(20), "hdf5.chunk.deflate"),
}


@pytest.mark.parametrize("case", EXPANSIONS)
def test_a_chunk_gives_as_many_bytes_as_its_shape_needs(case: str) -> None:
    stored, rule = EXPANSIONS[case]
    with tg.open(chunk_file(stored)) as archive:

        def refused() -> None:
            with pytest.raises(tg.FormatError) as caught:
                archive["w"].numpy()
            assert (caught.value.rule, caught.value.tensor) == (rule, "w")

        assert allocated_nbytes(refused) < MB


def test_a_chunk_without_filters_is_as_large_as_its_shape() -> None:
    filters = {"compression": None, "shuffle": True}
    assert len(tg.load(chunk_file(bytes(NBYTES), **filters))["w"]) == ROWS
    for nbytes in (NBYTES - 4, NBYTES + 4):
        with tg.open(chunk_file(bytes(nbytes), **filters)) as archive, pytest.raises(tg.FormatError) as caught:
            archive["w"].numpy()
        assert caught.value.rule == "hdf5.chunk.size"


def test_a_chunk_too_small_to_be_expanded_is_refused_when_the_file_is_opened() -> None:
    data = written(
        lambda made: made.create_dataset("w", (1 << 30,), "u1", chunks=(1 << 30,), compression="gzip")
        .id.write_direct_chunk((0,), bytes(1000))
    )  # fmt: skip
    with pytest.raises(tg.FormatError) as caught:
        tg.open(data)
    assert caught.value.rule == "hdf5.chunk.span"


def two_spans(fill: Callable[[Any], tuple[int, int]]) -> bytes:
    """A file in which the second span is where the first is; `fill` returns where libhdf5 has put both."""
    found: list[tuple[int, int]] = []
    data = written(lambda made: found.append(fill(made)))
    first, second = (struct.pack("<Q", at) for at in found[0])
    assert data.count(second) == 1
    return data.replace(second, first)


def chunks_of_one(made: Any) -> tuple[int, int]:
    held = made.create_dataset("w", data=np.arange(20), chunks=(10,))
    return tuple(held.id.get_chunk_info(i).byte_offset for i in range(2))  # type: ignore[return-value]


def chunks_of_two(made: Any) -> tuple[int, int]:
    held = [made.create_dataset(name, data=np.arange(10), chunks=(10,)) for name in "vw"]
    return tuple(one.id.get_chunk_info(0).byte_offset for one in held)  # type: ignore[return-value]


def contiguous(made: Any) -> tuple[int, int]:
    held = [made.create_dataset(name, data=np.arange(10)) for name in "vw"]
    return tuple(one.id.get_offset() for one in held)  # type: ignore[return-value]


def chunk_and_contiguous(made: Any) -> tuple[int, int]:
    plain, held = made.create_dataset("v", data=np.arange(10)), made.create_dataset("w", data=np.arange(9), chunks=(9,))
    return plain.id.get_offset(), held.id.get_chunk_info(0).byte_offset


@pytest.mark.parametrize("spans", [chunks_of_one, chunks_of_two, contiguous, chunk_and_contiguous])
def test_no_byte_belongs_to_two(spans: Callable[[Any], tuple[int, int]]) -> None:
    with pytest.raises(tg.FormatError, match="overlap") as caught:
        tg.open(two_spans(spans))
    assert (caught.value.rule, caught.value.tensor) == ("hdf5.data.overlap", "w")


@pytest.mark.parametrize(
    ("shape", "chunks"), [((1, 1 << 20), (1, 1)), ((1 << 20,), (1,)), ((1 << 10, 1 << 10), (1, 1))]
)
def test_a_grid_of_fill_values_takes_the_time_of_its_bytes(shape: tuple[int, ...], chunks: tuple[int, ...]) -> None:
    data = written(lambda made: made.create_dataset("w", shape, "u1", chunks=chunks, fillvalue=7), libver="latest")
    assert (tg.load(data)["w"] == 7).all()
    assert seconds(lambda: tg.load(data), 0.2) < 0.2
    assert seconds(lambda: tg.verify(data, deep=True), 0.2) < 0.2


def test_chunks_among_fill_values() -> None:
    """At any place of the grid, also at its edges, and in pieces of any size."""
    expected = np.full((11, 7, 5), 3, "<i2")
    expected[4:6, 6:, :2] = expected[10:, 2:3, 4:] = 9

    def fill(made: Any) -> None:
        held = made.create_dataset("w", expected.shape, "<i2", chunks=(2, 3, 2), fillvalue=3)
        held[4:6, 6:, :2] = held[10:, 2:3, 4:] = 9

    with tg.open(written(fill)) as archive:
        assert (archive["w"].numpy() == expected).all()
        raw, payload = expected.tobytes(), archive["w"].parts["data"].payload
        assert b"".join(map(bytes, payload.chunks())) == raw
        for begin in range(0, len(raw), 37):
            for end in range(begin, len(raw), 101):
                assert bytes(payload.read(begin, end - begin)) == raw[begin:end]


def test_a_chunk_is_decoded_once_when_a_tensor_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer of chunks that is larger than a piece is not decoded for each piece."""
    values = np.zeros((2, 10 * MB), np.uint8)
    data = written(lambda made: made.create_dataset("w", data=values, chunks=(2, 10 * MB), compression="gzip"))
    inflated, inflate = [], zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", lambda *args: inflated.append(1) or inflate(*args))
    with tg.open(data) as archive:
        assert sum(len(chunk) for chunk in archive["w"].parts["data"].payload.chunks()) == values.size
    assert len(inflated) == 1


class TestWhatTakesNoBytes:
    """Fill values and further names are counted for the whole file, 1 MiB and `Limits.view_ratio` times its size."""

    @staticmethod
    def refuse(data: bytes) -> None:
        with pytest.raises(tg.LimitError, match=r"Limits\.view_ratio") as caught:
            tg.open(data)
        assert caught.value.rule == "hdf5.limit.repeated"
        assert len(tg.open(data, limits=tg.Limits(view_ratio=1 << 40))) > 0

    def test_one_dataset(self) -> None:
        self.refuse(written(lambda made: made.create_dataset("w", (1 << 36,), "f4", chunks=(1 << 10,))))

    def test_one_dataset_without_storage(self) -> None:
        self.refuse(written(lambda made: made.create_dataset("w", (1 << 24,), "f4")))

    def test_many_datasets(self) -> None:
        def fill(made: Any) -> None:
            for i in range(120):
                made.create_dataset(f"w{i}", (1 << 20,), "u1", chunks=(1 << 10,))

        self.refuse(written(fill, libver="latest"))

    @pytest.mark.parametrize("user_block_nbytes", [0, 1 << 20])
    @pytest.mark.parametrize("chunks", [None, (100_000,)])
    def test_many_names_of_one(self, chunks: tuple[int, ...] | None, user_block_nbytes: int) -> None:
        def fill(made: Any) -> None:
            made.create_dataset("w", data=np.zeros(100_000, np.uint8), chunks=chunks)
            for i in range(100):
                made[f"w{i}"] = made["w"]

        data = written(fill, libver="latest", userblock_size=user_block_nbytes)
        assert len(tg.open(data, format="hdf5")) == 101
        with pytest.raises(tg.LimitError):
            tg.open(data, format="hdf5", limits=tg.Limits(view_ratio=10))


def test_a_chunk_outside_the_file_by_its_size() -> None:
    data = chunk_file(zlib.compress(bytes(NBYTES)))
    at = data.index(b"TREE\1") + 24
    with pytest.raises(tg.FormatError) as caught:
        tg.open(patched(data, at, struct.pack("<I", len(data))))
    assert caught.value.rule == "hdf5.chunk.span"
