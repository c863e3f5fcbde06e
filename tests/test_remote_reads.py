"""Whatever is read of an object, in whatever order, is its bytes: what is kept of it is never mixed up."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorglot as tg
from http_servers import Site, serve
from peers import needs
from tensorglot.io.remote import RemoteSource

pytestmark = pytest.mark.remote

KIB = 1 << 10
DATA = np.random.default_rng(12).bytes(700 * KIB + 17)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    needs("obstore")
    with serve() as site:
        site.files["/object"] = DATA
        yield site


def test_a_header_that_continues_in_what_was_read_ahead(site: Site) -> None:
    """The end of the object is kept, and what comes before it: a read across both needs both."""
    source, size = RemoteSource(f"{site.url}/object"), len(DATA)
    for offset in (size - 10, size - 300 * KIB):
        source.read_bytes(offset, 10)
    requested = len(site.requests)
    for offset in (size - 280 * KIB, size - 257 * KIB):
        assert source.read_bytes(offset, size - offset) == DATA[offset:]
    assert len(site.requests) == requested, "no byte of a header is requested twice"


def test_a_tensor_between_what_is_kept_costs_what_is_missing(site: Site) -> None:
    """Its first bytes came with the first request, its last ones with the index at the end."""
    source, size = RemoteSource(f"{site.url}/object"), len(DATA)
    source.read_bytes(size - 10, 10)
    for begin, end in ((1, size), (200 * KIB, size - 5), (300 * KIB, size)):
        for runs in (True, False):
            out = memoryview(bytearray(end - begin))
            site.clear()
            if runs:
                source.read_runs([begin], [len(out)], [0], out)
            else:
                source.read_into(begin, out)
            assert out == DATA[begin:end]
            assert site.nbytes < 100 * KIB


KINDS = st.sampled_from(["header", "header", "tensor", "runs", "scan"])
OFFSETS = st.integers(0, 22).map(lambda step: min(len(DATA), step * 32 * KIB))
"""Coarse, so that reads meet what earlier ones have kept."""
SPANS = st.tuples(OFFSETS, st.integers(0, 6)).map(
    lambda span: (span[0], min(len(DATA), span[0] + span[1] * 40 * KIB + span[1]))
)


@settings(max_examples=200)
@given(st.lists(st.tuples(KINDS, SPANS), min_size=3, max_size=12))
def test_any_sequence_of_reads_gives_the_bytes(site: Site, reads: list[tuple[str, tuple[int, int]]]) -> None:
    source = RemoteSource(f"{site.url}/object")
    for kind, (begin, end) in reads:
        if kind == "header":
            found = source.read_bytes(begin, end - begin)
        elif kind == "tensor":
            found = bytes(source.read(begin, end - begin))
        elif kind == "runs":
            middle = (begin + end) // 2
            out = memoryview(bytearray(end - begin))
            source.read_runs([middle, begin], [end - middle, middle - begin], [middle - begin, 0], out)
            found = bytes(out)
        else:
            step = max(1, (end - begin) // 7)
            parts = [source.read(at, min(step, end - at)) for at in range(begin, end, step)]
            found = b"".join(parts)
        assert found == DATA[begin:end], (kind, begin, end)


def test_an_archive_of_many_members_is_verified(site: Site) -> None:
    """Local headers and the directory are read one after the other, and meet in the middle."""
    tensors = {f"model.layers.{i}.self_attn.q_proj.weight": np.full(40, i, np.float32) for i in range(2000)}
    site.files["/model.npz"] = tg.dumps(tensors, format="npz")
    assert tg.verify(f"{site.url}/model.npz", deep=True).ok


@pytest.mark.parametrize("format", ["ztensor@0.1", "gguf"])
def test_padding_between_many_tensors_takes_few_requests(format: str, site: Site) -> None:
    tensors = {f"layers.{i:04}": np.full(7, i, np.float32) for i in range(2000)}
    site.files["/model"] = tg.dumps(tensors, format=format)
    site.requests.clear()
    assert tg.verify(f"{site.url}/model", deep=True).ok
    assert len(site.requests) < 20


@pytest.mark.parametrize("format", ["ztensor@0.1", "npz", "gguf"])
def test_no_byte_is_requested_twice_to_open_an_index_longer_than_the_first_guess(format: str, site: Site) -> None:
    """40,000 tensors: the index is larger than what is read at once at either end."""
    tensors = {f"model.layers.{i}.mlp.experts.{i % 7}.gate_proj.weight": np.zeros(1, np.int8) for i in range(40_000)}
    site.files["/model"] = tg.dumps(tensors, format=format)
    site.clear()
    with tg.open(f"{site.url}/model") as archive:
        assert len(archive) == len(tensors)
    assert len(site.requests) <= (10 if format == "npz" else 4)  # a header before each array
    spans = sorted(tuple(map(int, str(request.range).removeprefix("bytes=").split("-"))) for request in site.requests)
    assert all(one[1] < other[0] for one, other in pairwise(spans)), spans


def test_a_load_requests_aligned_ranges_across_tensors(site: Site) -> None:
    """Arrays have memory of their own; the requests for them do not end where they do."""
    mib = 1 << 20
    tensors = {f"layers.{i:02}": np.full(5 * mib // 4 + i, i, np.float32) for i in range(9)}
    tensors["scale"] = np.arange(700, dtype=np.float64)
    site.files["/model"] = data = tg.dumps(tensors, format="safetensors")
    with tg.open(f"{site.url}/model") as archive:
        site.clear()
        loaded = tg.load(archive)
    assert loaded.keys() == tensors.keys()
    assert all(np.array_equal(loaded[name], array) for name, array in tensors.items())
    spans = sorted(tuple(map(int, str(request.range).removeprefix("bytes=").split("-"))) for request in site.requests)
    each = spans[1][0]
    assert [begin % each for begin, _ in spans[1:]] == [0] * (len(spans) - 1)
    assert all(one[1] + 1 == other[0] for one, other in pairwise(spans))
    assert site.nbytes < len(data)
    assert len(spans) <= 17


def test_checksums_are_compared_while_ranges_arrive(site: Site) -> None:
    """A range has the end of one tensor and the beginning of the next, each with a checksum of its own."""
    tensors = {f"layers.{i}": np.full((3 << 20) + i, i, np.uint8) for i in range(7)}
    data = bytearray(tg.dumps(tensors, format="ztensor@2"))
    site.files["/good"] = bytes(data)
    assert all(np.array_equal(array, tensors[name]) for name, array in tg.load(f"{site.url}/good").items())
    for name in ("layers.0", "layers.3", "layers.6"):
        with tg.open(bytes(data)) as archive:
            last = archive[name].offset + tensors[name].nbytes - 1
        site.files["/bad"] = bytes(data[:last]) + bytes([data[last] ^ 1]) + bytes(data[last + 1 :])
        with pytest.raises(tg.IntegrityError) as caught:
            tg.load(f"{site.url}/bad")
        assert caught.value.tensor == name


@pytest.mark.parametrize("compressed", [False, True])
def test_opening_large_members_reads_little_more_than_their_headers(compressed: bool, site: Site) -> None:
    rng = np.random.default_rng(3)
    tensors = {f"layers.{i}": rng.integers(0, 1 << 16, 150_000 + i, np.uint16) for i in range(30)}
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **tensors)
    site.files["/model.npz"] = file.getvalue()
    site.clear()
    with tg.open(f"{site.url}/model.npz") as archive:
        assert len(site.requests) <= len(tensors) + 1, "headers that came with the first request or with the directory"
        tail = 4 << 20
        assert site.nbytes < tail + (256 << 10) + len(tensors) * 1100
        assert all(np.array_equal(archive[name].numpy(), array) for name, array in tensors.items())


def test_opening_a_pt_of_large_storages_reads_little_more_than_its_pickle(site: Site) -> None:
    torch = needs("torch")
    file = io.BytesIO()
    tensors = {f"layers.{i}": torch.full((100_000 + i,), float(i)) for i in range(30)}
    torch.save(tensors, file)
    site.files["/model.pt"] = file.getvalue()
    site.clear()
    with tg.open(f"{site.url}/model.pt") as archive:
        assert len(site.requests) <= len(tensors) + 2
        assert site.nbytes < (4 << 20) + (512 << 10) + len(tensors) * 1100
        assert all(np.array_equal(archive[name].numpy(), tensor.numpy()) for name, tensor in tensors.items())


def test_reads_past_the_end_are_refused(site: Site) -> None:
    source, size = RemoteSource(f"{site.url}/object"), len(DATA)
    out = memoryview(bytearray(10))
    for read in (
        lambda: source.read_into(size - 9, out),
        lambda: source.read_bytes(size - 9, 10),
        lambda: source.read_runs([0, size - 4], [5, 5], [0, 5], out),
    ):
        site.clear()
        with pytest.raises(tg.TruncatedError):
            read()
        assert not site.requests


def test_what_is_kept_of_large_headers_is_bounded(site: Site) -> None:
    """The oldest goes first, and a header of more than half of the bound is not kept."""
    site.files["/large"] = data = np.random.default_rng(13).bytes(64 * KIB * KIB)
    source, mib = RemoteSource(f"{site.url}/large"), KIB * KIB
    for offset, nbytes, cost in (
        (1, 12, True), (1, 12, False), (14, 12, True), (27, 12, True), (14, 12, False), (1, 12, True),
        (40, 17, True), (40, 17, True),
    ):  # fmt: skip
        site.clear()
        assert source.read_bytes(offset * mib, nbytes * mib) == data[offset * mib :][: nbytes * mib]
        assert bool(site.requests) == cost
