"""The conformance corpus: valid and invalid bytes of each format, with what a reader must make of them.

The cases are those of our own tests: the corpora, which real packages wrote, and the
tables of attacks. `python tests/conformance.py` writes them to `conformance/`, as data for
other implementations; `conformance/README.md` describes the files.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import tensorglot as tg
import test_attacks_bintensors
import test_attacks_bson
import test_attacks_dynd
import test_attacks_ztensor
from tensorglot import dynd

__all__ = ["CORPORA", "FOLDER", "check", "pack", "render", "unpack"]

FOLDER = Path(__file__).parents[1] / "conformance"
_FILES = Path(__file__).parent / "corpus"
_SMALL = 64 << 10
_BOUND = {"milliseconds": 10, "megabytes": 10}
"""What refusing a case of less than 64 KB may cost; see docs/trust.md."""

Case = dict[str, Any]


def pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()


def unpack(case: Case) -> bytes:
    return zlib.decompress(base64.b64decode(case["data"]))


def _valid(name: str, data: bytes, **fields: Any) -> Case:
    return {"name": name, "valid": True, **fields, "data": pack(data)}


def _reject(name: str, data: bytes, rule: str, **fields: Any) -> Case:
    bound = _BOUND if len(data) < _SMALL else {}
    return {"name": name, "valid": False, "rule": rule, **fields, **bound, "data": pack(data)}


def _contents(data: bytes, format: str) -> Case:
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


CORPORA = {
    "bintensors-0": lambda: _bintensors(0),
    "bintensors-1": lambda: _bintensors(1),
    "ztensor-0.1": lambda: _ztensor("0.1"),
    "ztensor-1": lambda: _ztensor("1"),
    "ztensor-2": lambda: _ztensor("2"),
    "dynd": _dynd,
    "bson": _bson,
}


def check(corpus: str, data: bytes, type: str | None = None) -> str | None:
    """The rule by which the library refuses bytes, when they are opened or read; None if it accepts them."""
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


def render(corpus: str) -> str:
    """The file of a corpus: a line for each case."""
    return "".join(json.dumps(case, sort_keys=True) + "\n" for case in CORPORA[corpus]())


if __name__ == "__main__":
    for name in CORPORA:
        (FOLDER / f"{name}.jsonl").write_text(render(name), "utf-8")
