"""Archives with a header before each tensor, at a server: opening takes two requests, a tensor its header and bytes."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from http_servers import Site, serve
from peers import needs

pytestmark = pytest.mark.remote

TENSORS = {
    f"layers.{i}.weight": np.random.default_rng(i).integers(0, 1 << 32, (450 + i, 512), np.uint32).view(np.float32)
    for i in range(14)
}
"""About 900 KiB each, of bits that deflate cannot compress."""
NAME = "layers.6.weight"
"""Neither in the first bytes of the file nor in the last ones."""
HEADERS_NBYTES = 4 << 10


def _numpy(save: Callable[..., None]) -> bytes:
    file = io.BytesIO()
    save(file, **TENSORS)
    return file.getvalue()


def _torch(**options: Any) -> bytes:
    torch = needs("torch")
    file = io.BytesIO()
    torch.save({name: torch.from_numpy(array) for name, array in TENSORS.items()}, file, **options)
    return file.getvalue()


FILES: dict[str, Callable[[], bytes]] = {
    "npz": lambda: tg.dumps(TENSORS, format="npz", metadata={"step": 7}),
    "npz, deflate": lambda: tg.dumps(TENSORS, format="npz", compression="deflate"),
    "npz of NumPy": lambda: _numpy(np.savez),
    "npz of NumPy, deflate": lambda: _numpy(np.savez_compressed),
    "pt": _torch,
    "pt, legacy": lambda: _torch(_use_new_zipfile_serialization=False),
}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    needs("obstore")
    with serve() as site:
        yield site


@pytest.fixture(params=FILES)
def url(request: pytest.FixtureRequest, site: Site) -> str:
    path = f"/{request.param.replace(' ', '')}"
    site.files[path] = site.files.get(path) or FILES[request.param]()
    site.clear()
    return f"{site.url}{path}"


def _spans(site: Site) -> list[tuple[int, int]]:
    return sorted(tuple(map(int, str(request.range).removeprefix("bytes=").split("-"))) for request in site.requests)  # type: ignore[misc]


def _same_bits(one: Any, two: np.ndarray) -> bool:
    return bool(np.array_equal(np.asarray(one).view(np.uint32), two.view(np.uint32)))


def test_opening_takes_two_requests(url: str, site: Site) -> None:
    with tg.open(url) as archive, tg.open(site.files[url.removeprefix(site.url)]) as local:
        assert list(archive) == list(local)
        assert len(archive) == len(TENSORS)
        assert [name in archive for name in (NAME, "layers.6", 6)] == [True, False, False]
        assert (archive.format, archive.metadata, repr(archive)) == (local.format, local.metadata, repr(local))
        assert len(site.requests) <= 2


def test_a_tensor_takes_its_header_and_its_bytes(url: str, site: Site) -> None:
    with tg.open(url) as archive:
        site.clear()
        assert _same_bits(archive[NAME].numpy(), TENSORS[NAME])
        assert site.nbytes < TENSORS[NAME].nbytes * 1.05 + HEADERS_NBYTES
        site.clear()
        assert _same_bits(archive[NAME][3:5], TENSORS[NAME][3:5])
        assert site.nbytes < TENSORS[NAME].nbytes * 1.05, "its header is not read again"


def test_loading_some_tensors_reads_nothing_of_others(url: str, site: Site) -> None:
    loaded = tg.load(url, names=[NAME, "layers.7.weight", NAME])
    assert list(loaded) == [NAME, "layers.7.weight"]
    assert all(_same_bits(array, TENSORS[name]) for name, array in loaded.items())
    opening = (4 << 20) + (256 << 10)
    wanted = sum(array.nbytes for array in loaded.values())
    assert site.nbytes < opening + wanted * 1.05 + 2 * HEADERS_NBYTES


def test_the_index_is_that_of_a_local_file_and_no_header_is_read_twice(url: str, site: Site) -> None:
    with tg.open(url) as archive, tg.open(site.files[url.removeprefix(site.url)]) as local:
        one = archive.info(NAME)
        assert one == local.info(NAME)
        assert list(archive.index.names) == list(local.index.names)
        assert {name: archive.info(name) for name in archive} == {name: local.info(name) for name in local}
        assert archive.notes == local.notes
        spans = _spans(site)
        assert all(one[1] < other[0] for one, other in pairwise(spans)), spans


def test_tensors_looked_up_one_by_one_take_the_headers_of_all_at_once(url: str, site: Site) -> None:
    with tg.open(url) as archive:
        for name in list(TENSORS)[:10]:
            assert archive[name].shape == TENSORS[name].shape
        site.clear()
        assert all(archive[name].shape == array.shape for name, array in TENSORS.items())
        assert site.requests == []


def test_threads_share_what_is_read(url: str, site: Site) -> None:
    def work(i: int) -> bool:
        if i % 2:
            return len(archive.index.names) == len(TENSORS)
        name = f"layers.{i % 14}.weight"
        return archive[name].shape == TENSORS[name].shape

    with tg.open(url) as archive, ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(64)))
    spans = _spans(site)
    assert all(one[1] < other[0] for one, other in pairwise(spans)), spans


def test_names_that_are_not_there(url: str, site: Site) -> None:
    with tg.open(url) as archive:
        with pytest.raises(tg.TensorNotFound, match=r"did you mean.*layers\.6\.weight"):
            archive["layers.6.weigth"]
        with pytest.raises(tg.TensorNotFound, match="must be a str"):
            archive[["a"]]  # type: ignore[index]
        assert len(site.requests) <= 2
    with pytest.raises(tg.TensorNotFound, match="no such tensor"):
        tg.load(url, names=["other"])


def test_a_closed_archive_reads_no_header(url: str, site: Site) -> None:
    archive = tg.open(url)
    archive.close()
    archive.close()
    site.clear()
    with pytest.raises(tg.InputError, match="the archive is closed"):
        archive[NAME]
    with pytest.raises(tg.InputError, match="the archive is closed"):
        archive.index
    assert set(archive) == set(TENSORS)
    assert site.requests == []


def test_another_process_opens_it_again(url: str) -> None:
    with tg.open(url) as archive, pickle.loads(pickle.dumps(archive)) as again:
        assert _same_bits(again[NAME].numpy(), TENSORS[NAME])


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("npz", "npz.zip.local"),
        ("npz, deflate", "npz.zip.local"),
        ("pt", "pt.zip.local"),
        ("pt, legacy", "pt.storage.size"),
    ],
)
def test_a_wrong_header_is_found_when_its_tensor_is_looked_up(kind: str, rule: str, site: Site) -> None:
    data = bytearray(FILES[kind]())
    with tg.open(bytes(data)) as archive:
        offset = archive[NAME].offset
    begin = offset - 8 if kind == "pt, legacy" else data.rindex(b"PK\3\4", 0, offset) + 30
    data[begin] ^= 1
    site.files["/wrong"] = bytes(data)
    wrong = f"{site.url}/wrong"
    with tg.open(wrong) as archive:
        assert _same_bits(archive["layers.4.weight"].numpy(), TENSORS["layers.4.weight"])
        for ask in (lambda: archive[NAME], lambda: archive.index, lambda: tg.load(wrong, names=[NAME])):
            with pytest.raises(tg.FormatError) as caught:
                ask()
            assert (caught.value.rule, caught.value.path) == (rule, wrong)
    assert [problem.rule for problem in tg.verify(wrong).problems] == [rule]
    for options in ({"strict": True}, {"verify": "require"}):
        with pytest.raises(tg.FormatError) as caught:
            tg.open(wrong, **options)  # type: ignore[arg-type]
        assert caught.value.rule in (rule, "pt.storage.unused")


def test_a_member_that_is_no_array_is_found_when_the_file_is_opened(site: Site) -> None:
    import zipfile

    file = io.BytesIO(_numpy(np.savez))
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("notes.txt", "")
    site.files["/other.npz"] = file.getvalue()
    with pytest.raises(tg.FormatError) as caught:
        tg.open(f"{site.url}/other.npz")
    assert caught.value.rule == "npz.member"
