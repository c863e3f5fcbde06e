"""The conformance corpus: valid and invalid bytes of each format, with what a reader must make of them.

The cases are those of our own tests: the corpora, which real packages wrote, and the
tables of attacks. `python tests/conformance.py` writes them to `conformance/`, as data for
other implementations; `conformance/README.md` describes the files.
"""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import conformance_foreign
import delta_cases
import tensorglot as tg
import test_attacks_bintensors
import test_attacks_bson
import test_attacks_dynd
import test_attacks_store
import test_attacks_ztensor
import test_dcp
from tensorglot import dynd
from tensorglot.store import Store

__all__ = ["CORPORA", "FOLDER", "check", "pack", "render", "unpack"]

FOLDER = Path(__file__).parents[1] / "conformance"
_FILES = Path(__file__).parent / "corpus"
_SMALL = 64 << 10
_BOUND = {"milliseconds": 10, "megabytes": 10}
"""What refusing a case of less than 64 KB may cost; see docs/trust.md."""
_FOLDER_BOUND = {"milliseconds": 300, "megabytes": 16}
"""For a folder of less than 64 KB: all of its files are looked through."""

Case = dict[str, Any]


def pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()


def unpack(case: Case) -> bytes:
    return zlib.decompress(base64.b64decode(case["data"]))


def _packed(data: bytes | dict[str, bytes]) -> Case:
    """A file, or the files of a folder by their paths in it."""
    if isinstance(data, bytes):
        return {"data": pack(data)}
    return {"files": {path: pack(content) for path, content in data.items()}}


def _valid(name: str, data: bytes | dict[str, bytes], **fields: Any) -> Case:
    return {"name": name, "valid": True, **fields, **_packed(data)}


def _reject(name: str, data: bytes | dict[str, bytes], rule: str, **fields: Any) -> Case:
    nbytes = len(data) if isinstance(data, bytes) else sum(map(len, data.values()))
    bound = {} if nbytes >= _SMALL else _BOUND if isinstance(data, bytes) else _FOLDER_BOUND
    return {"name": name, "valid": False, "rule": rule, **fields, **bound, **_packed(data)}


def _contents(data: bytes | Path, format: str) -> Case:
    """Metadata, and type and SHA-256 of the elements of each dense tensor: in C order, little-endian."""
    tensors = {}
    with tg.open(data, format=format) as archive:
        for name, tensor in archive.items():
            dense = tensor.layout == "dense" and tensor.dtype is not None
            digest = hashlib.sha256(tensor.numpy().tobytes()).hexdigest() if dense else None
            tensors[name] = {"type": str(tensor.type), "sha256": digest}
        metadata = None if archive.metadata is None else json.loads(json.dumps(dict(archive.metadata), default=repr))
    return {"metadata": metadata, "tensors": tensors}


def _corpus(folder: str, format: str) -> Iterator[Case]:
    for path in sorted((_FILES / folder).iterdir()):
        if path.suffix != ".json":
            data = path.read_bytes()
            with suppress(tg.LimitError):  # valid, and beyond the default limits
                yield _valid(f"{folder}/{path.stem}", data, **_contents(data, format))


def _bintensors(layout: int) -> Iterator[Case]:
    yield from _corpus(f"bintensors-{layout}", f"bintensors@{layout}")
    for attack in test_attacks_bintensors.ATTACKS:
        if attack.layout == layout:
            yield _reject(attack.what, attack.data, attack.rule, offset=attack.offset, tensor=attack.tensor)


def _ztensor(version: str) -> Iterator[Case]:
    yield from _corpus(f"ztensor-{version}", "ztensor")
    for attack in getattr(test_attacks_ztensor, f"ATTACKS_{version.replace('.', '')}"):
        if attack.rule is None:
            yield _valid(attack.what, attack.data, **_contents(attack.data, "ztensor"))
        elif (rule := check("ztensor", attack.data)) is not None:  # not what is valid and unsupported
            yield _reject(attack.what, attack.data, rule, stage=attack.stage)


def _dynd() -> Iterator[Case]:
    vectors = json.loads((_FILES / "dynd" / "vectors.json").read_text("utf-8"))
    for number, vector in enumerate(vectors["valid"]):
        name = f"vector {number}: {vector['canonical_type']}"
        yield _valid(name, bytes.fromhex(vector["hex"]), type=vector["canonical_type"], value=vector["value"])
    for name, (type, data, rule) in test_attacks_dynd.ATTACKS.items():
        yield _reject(name, data, rule, type=type)


def _bson() -> Iterator[Case]:
    for name, data in test_attacks_bson.READ.items():
        yield _valid(name, data)
    for name, (data, rule) in test_attacks_bson.REFUSED.items():
        yield _reject(name, data, rule)


def _delta() -> Iterator[Case]:
    for path in sorted(delta_cases.CORPUS.iterdir()):
        yield _valid(path.stem, path.read_bytes())
    for name, (data, rule) in delta_cases.REFUSED.items():
        yield _reject(name, data, rule)


def _files_of(folder: Path) -> dict[str, bytes]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _made(make: Callable[[Path], object]) -> dict[str, bytes]:
    """The files of a folder that a function fills."""
    with tempfile.TemporaryDirectory() as name:
        make(Path(name))
        return _files_of(Path(name))


def _dcp() -> Iterator[Case]:
    for path in sorted(path for path in (_FILES / "dcp").iterdir() if path.is_dir()):
        yield _valid(path.name, _files_of(path), **_contents(path, "dcp"))
    for name, (data, rule) in test_dcp.HOSTILE.items():
        yield _reject(f".metadata: {name}", {".metadata": data}, rule)
    good = {"files": ["w.safetensors"], "tensors": {"w": test_dcp.WHOLE}}
    for name, make in _checkpoints(good).items():
        files = _made(make)
        yield _valid(f"index: {name}", files, **_made_contents(files, "dcp"))
    for name, (fields, rule) in test_dcp.BAD_INDEXES.items():
        yield _reject(f"index: {name}", _made(lambda folder, fields=fields: _write_boxes(folder, good | fields)), rule)


def _checkpoints(good: dict[str, Any]) -> dict[str, Callable[[Path], object]]:
    """Ways to fill a folder with a valid checkpoint of ours."""
    w, cube = np.arange(40, dtype=np.int16).reshape(8, 5), np.arange(105, dtype=np.float32).reshape(7, 5, 3)
    cuts: dict[str, tuple[Any, list[list[int]]]] = {
        "one box": (w, [[], []]), "rows": (w, [[3], []]), "columns": (w, [[], [2, 3]]), "a grid": (w, [[4], [1]]),
        "three dimensions": (cube, [[2, 5], [4], [1, 2]]), "a scalar": (np.array(2.5), []),
        "no elements": (np.zeros((0, 4), np.int8), [[], []]),
    }  # fmt: skip
    made: dict[str, Callable[[Path], object]] = {
        f"{name}, {suffix}": partial(test_dcp.save_boxes, name="w", array=array, cuts=cut, suffix=f".{suffix}")
        for name, (array, cut) in cuts.items()
        for suffix in ("safetensors", "zt", "bt")
    }
    values = {"step": 7, "lr": 1e-3, "name": "é", "nothing": None, "betas": [0.9, 0.999]}
    made["values"] = lambda folder: _write_boxes(folder, good | {"values": values})
    made["paths"] = lambda folder: _write_boxes(folder, good | {"paths": {"w": ["model", 0, "w"]}})
    made["no tensors"] = lambda folder: test_dcp.write_index(folder)
    return made


def _made_contents(files: dict[str, bytes], format: str) -> Case:
    with tempfile.TemporaryDirectory() as name:
        for path, data in files.items():
            Path(name, path).write_bytes(data)
        return _contents(Path(name), format)


def _write_boxes(folder: Path, fields: dict[str, Any]) -> None:
    test_dcp.write_index(folder, **fields)
    tg.save(folder / "w.safetensors", {"w": np.arange(8, dtype=np.float32).reshape(4, 2)}, durable=False)


def _store() -> Iterator[Case]:
    one = test_attacks_store.with_pack(lambda pack: None)
    for name, attack in {"a commit": one, **test_attacks_store.ATTACKS}.items():
        if name in ("ref: of 64 GiB", "node: 8 GiB of one chunk"):  # no line of text; no time to read so much
            continue
        files = _made(lambda folder, attack=attack: (Store.create(folder), attack(folder)))
        rule = _check_folder("store", files)
        yield _valid(name, files) if rule is None else _reject(name, files, rule)


def _foreign(format: str) -> Iterator[Case]:
    for name, data in conformance_foreign.VALID[format]():
        yield _valid(name, data, **_contents(data, format))
    for name, data in conformance_foreign.INVALID[format]().items():
        with suppress(tg.UnsupportedError):  # valid, and beyond what is supported
            if (rule := check(format, data)) is not None:
                milliseconds = _BOUND["milliseconds"] + -(-3 * len(data) // 1000)  # 3 µs for a byte
                yield _reject(name, data, rule) | ({"milliseconds": milliseconds} if len(data) < _SMALL else {})


CORPORA = {
    **{format: partial(_foreign, format) for format in conformance_foreign.VALID},
    "bintensors-0": lambda: _bintensors(0),
    "bintensors-1": lambda: _bintensors(1),
    "ztensor-0.1": lambda: _ztensor("0.1"),
    "ztensor-1": lambda: _ztensor("1"),
    "ztensor-2": lambda: _ztensor("2"),
    "dynd": _dynd,
    "bson": _bson,
    "delta": _delta,
    "dcp": _dcp,
    "store": _store,
}


def check(corpus: str, data: bytes | dict[str, bytes], type: str | None = None) -> str | None:
    """The rule by which the library refuses bytes, when they are opened or read; None if it accepts them."""
    if isinstance(data, dict):
        return _check_folder(corpus, data)
    if corpus == "delta":
        return _check_delta(data)
    format = corpus.replace("bintensors-", "bintensors@").partition("-")[0]
    try:
        if type is not None:
            dynd.deserialize(data, type)
            return None
        with tg.open(data, format=format) as archive:
            for tensor in archive.values():
                with suppress(tg.UnsupportedError):
                    tensor.numpy()
    except tg.FormatError as error:
        return error.rule
    return None


def _check_delta(data: bytes) -> str | None:
    try:
        tg.open(data, format="delta").close()
        return _first(tg.verify(data, format="delta", deep=True))
    except tg.TensorglotError as error:
        return error.rule


def _first(report: tg.Report) -> str | None:
    return report.problems[0].rule if report.problems else None


def _check_folder(corpus: str, files: dict[str, bytes]) -> str | None:
    """The same for a folder. A store is refused for what its ref leads to, or for what a check of it finds."""
    with tempfile.TemporaryDirectory() as name:
        for path, data in files.items():
            Path(name, path).parent.mkdir(parents=True, exist_ok=True)
            Path(name, path).write_bytes(data)
        try:
            source, format = (f"store://{name}#main", None) if corpus == "store" else (name, corpus)
            with tg.open(source, format=format) as archive:
                for tensor in archive.values():
                    with suppress(tg.UnsupportedError):
                        tensor.serialize()
        except tg.TensorglotError as error:
            return error.rule
        return _first(Store(name).check(data=True)) if corpus == "store" else None


def render(corpus: str) -> str:
    """The file of a corpus: a line for each case."""
    return "".join(json.dumps(case, sort_keys=True) + "\n" for case in CORPORA[corpus]())


if __name__ == "__main__":
    for name in CORPORA:
        (FOLDER / f"{name}.jsonl").write_text(render(name), "utf-8")
