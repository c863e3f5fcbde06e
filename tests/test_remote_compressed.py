"""Compressed tensors at a URL: checked and decoded as they arrive, so that each byte is requested once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tensorglot as tg
from gallery import same
from http_servers import Site, serve
from peers import needs

pytestmark = pytest.mark.remote

RANDOM = np.random.default_rng(5)
TENSORS = {f"w{i}": RANDOM.standard_normal((1500, 1200), np.float32) for i in range(3)}
COMPRESSED = [("ztensor@0.1", "zstd"), ("ztensor@2", "zstd"), ("npz", "deflate")]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    needs("obstore")
    with serve() as site:
        for format, compression in COMPRESSED:
            site.files[f"/{format}"] = tg.dumps(TENSORS, format=format, compression=compression)
        yield site


@pytest.fixture(params=[format for format, _ in COMPRESSED])
def url(request: pytest.FixtureRequest, site: Site) -> str:
    return f"{site.url}/{request.param}"


def test_a_tensor_costs_its_stored_bytes(site: Site, url: str) -> None:
    with tg.open(url) as archive:
        stored = archive["w1"].stored_nbytes
        site.clear()
        assert (archive["w1"].numpy() == TENSORS["w1"]).all()
    assert site.nbytes <= 1.05 * stored
    assert len(site.requests) <= 20


@pytest.mark.parametrize("verb", ["load", "verify", "stats", "identify", "convert"])
def test_every_verb_requests_each_byte_once(verb: str, site: Site, url: str, tmp_path: object) -> None:
    site.clear()
    if verb == "convert":
        tg.convert(url, f"{tmp_path}/model.bt", on_loss="drop", durable=False)
        assert same(tg.load(f"{tmp_path}/model.bt"), TENSORS)
    else:
        getattr(tg, verb)(url)
    assert site.nbytes <= 1.05 * len(site.files[url.removeprefix(site.url)])


def test_slices(site: Site, url: str) -> None:
    with tg.open(url) as archive:
        for rows in (slice(3, 5), slice(1400, 1500), slice(700, 900)):
            site.clear()
            assert (archive["w2"][rows] == TENSORS["w2"][rows]).all()
            assert len(site.requests) <= 20


@pytest.mark.parametrize("checksum", ["auto", None])
@pytest.mark.parametrize(("format", "compression"), COMPRESSED)
def test_tensors_without_elements(format: str, compression: str, checksum: str | None, site: Site) -> None:
    """An encoding of no bytes may have no frame."""
    checksum = "auto" if format == "npz" else checksum
    empty = {"a": np.zeros((3, 0, 2), np.float32), "b": np.zeros(0, np.int8), "c": np.ones(2, np.int8)}
    site.files["/empty"] = tg.dumps(empty, format=format, compression=compression, checksum=checksum)
    url = f"{site.url}/empty"
    assert same(tg.load(url), empty)
    assert tg.verify(url).ok
    assert tg.diff(url, site.files["/empty"]).same
    assert tg.identify(url) == tg.identify(site.files["/empty"])
    with tg.open(url) as archive:
        assert same({name: tensor[...] for name, tensor in archive.items()}, empty)
        assert archive["a"][1:, ...].shape == (2, 0, 2)


@pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2"])
def test_a_flipped_byte_is_the_same_error_as_in_a_file(format: str, site: Site, tmp_path: object) -> None:
    whole = tg.dumps(TENSORS, format=format, compression="zstd")
    with tg.open(whole) as archive:
        payload = archive["w1"].parts["data"].payload
    for offset in (payload.begin + 1, payload.begin + 5, (payload.begin + payload.end) // 2, payload.end - 1):
        data = bytearray(whole)
        data[offset] ^= 0x40
        found = []
        site.files["/flipped"] = bytes(data)
        for source in (bytes(data), f"{site.url}/flipped"):
            with tg.open(source) as archive, pytest.raises(tg.FormatError) as caught:
                archive["w1"].numpy()
            found.append((type(caught.value), caught.value.rule, caught.value.tensor))
        assert found[0] == found[1], offset
