"""Mutants of files of other people's formats, by number and by byte: `python fuzz/foreign.py [COUNT] [SEED]`.

The invariant, for safetensors, .npy, .npz, GGUF, ONNX, HDF5 and files of torch.save,
whatever the bytes are:

- only our errors leave, and each says its rule in printable words;
- what is accepted can be listed, described and read, or is refused while it is read;
- what strict accepts is accepted without, and where we write the format, written again
  it gives the same bytes (ONNX and HDF5 have no canonical form, and strict refuses them);
- what can be read and written gives the same values when it is read again.
"""

from __future__ import annotations

import io
import random
import struct
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import ml_dtypes
import numpy as np

import tensorglot as tg
import test_onnx
from fuzzing import rule_of
from gguf_builder import build, pair, string, tensor
from hdf5_seals import resealed

PT = Path(__file__).parents[1] / "tests" / "corpus" / "pt"
HDF5 = PT.with_name("hdf5")
NUMBERS = (
    0,
    1,
    2,
    3,
    255,
    256,
    0xFFFF,
    1 << 16,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
TOKENS = (
    b"0", b"-1", b"9223372036854775807", b"18446744073709551616", b"1e9", b"null", b"{", b"}", b"[", b"]", b'"', b",",
    b"\\u0000", b"\\ud800", b"True", b"(1,)", b"'|O'", b"'<U9'", b"PK\3\4", b"PK\1\2", b"PK\5\6", b"cos\nsystem\n",
    b"R", b"b", b"Q", b"h\0", b"\x85", b"\x94", b"(", b"t", b"u", b"e", b".",
)  # fmt: skip
WRITABLE = ("safetensors", "npy", "npz", "gguf")
EXPANDED_NBYTES = 1 << 22
"""Larger values are listed, not read."""


@cache
def bases() -> dict[str, list[bytes]]:
    """Valid files of each format."""
    some = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "é\n": np.zeros((), np.bool_),
        "b": np.ones((2, 0), ml_dtypes.bfloat16),
    }
    turned = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    files = {
        "safetensors": [tg.dumps(some, format="safetensors", metadata=m) for m in (None, {"k": "v"})],
        "npy": [_npy(turned), _npy(np.arange(3, dtype=">i2")), tg.dumps({"data": some["b"]}, format="npy")],
        "npz": [
            _npz(np.savez),
            _npz(np.savez_compressed),
            *(tg.dumps(some, format="npz", metadata=m) for m in (None, {"k": ["v", 1]})),
        ],
        "gguf": [_gguf("<"), _gguf(">"), tg.dumps({"a": some["a"]}, format="gguf", metadata={"k": [1.5], "n": -1})],
        "onnx": [_onnx()],
        "hdf5": [path.read_bytes() for path in sorted(HDF5.iterdir())],
        "pt": [path.read_bytes() for path in sorted(PT.rglob("*.pt")) if path.stat().st_size < 8000],
    }
    assert all(_accepted(data, format) for format, datas in files.items() for data in datas)
    return files


def _npy(array: object) -> bytes:
    file = io.BytesIO()
    np.save(file, array)  # type: ignore[arg-type]
    return file.getvalue()


def _npz(save: object) -> bytes:
    file = io.BytesIO()
    save(file, a=np.arange(40), b=np.asfortranarray(np.zeros((2, 3), ">f4")), c=np.array(["x"]))  # type: ignore[operator]
    return file.getvalue()


def _gguf(order: str) -> bytes:
    pairs = [
        pair("general.alignment", 4, struct.pack(f"{order}I", 32), order),
        pair("words", 9, struct.pack(f"{order}IQ", 8, 2) + string("a", order) + string("é", order), order),
        pair("numbers", 9, struct.pack(f"{order}IQ2h", 3, 2, 1, -1), order),
        pair("yes", 7, b"\1", order),
    ]
    tensors = [tensor("q", (32, 2), 2, 0, order), tensor("f", (3,), 0, 64, order), tensor("u", (5,), 77, 96, order)]
    return build(tensors, pairs, bytes(range(101)), order=order)


def _onnx() -> bytes:
    tensors = [
        test_onnx.tensor("raw", raw=bytes(8)),
        test_onnx.tensor("varints", 6, (3,), int32=b"\1\2\3"),
        test_onnx.tensor("packed", 22, (3,), raw=b"\x21\3"),
    ]
    indices = test_onnx.tensor(type=7, raw=struct.pack("<2q", 0, 3))
    sparse = test_onnx.SPARSE_VALUES + test_onnx.field(2, indices) + test_onnx.field(3, 4)
    return test_onnx.model(*tensors, more=test_onnx.field(15, sparse))


def _accepted(data: bytes, format: str) -> bool:
    return len(tg.open(data, format=format)) >= 0


def mutate(r: random.Random, data: bytearray, other: bytes) -> None:
    at = r.randrange(len(data))
    kind = r.randrange(9)
    if kind == 0:
        data[at] ^= 1 << r.randrange(8)
    elif kind == 1:
        data[at] = r.randrange(256)
    elif kind == 2:
        data[at] = (data[at] + r.choice((1, -1))) % 256
    elif kind in (3, 4):
        width = r.choice((2, 4, 8))
        near = (len(data), len(data) - 1, len(data) + 1, at)
        data[at : at + width] = (r.choice((*NUMBERS, *near)) % (1 << 8 * width)).to_bytes(width, "little")
    elif kind == 5:
        data[at : at + r.choice((0, 1, 2))] = r.choice(TOKENS)
    elif kind == 6:
        start = r.randrange(len(other))
        data[at : at + 8] = other[start : start + 8]
    elif kind == 7:
        del data[at : at + r.choice((1, 1, 2, 8))]
    else:
        data[at:at] = data[at : at + r.choice((1, 4, 16))]


def mutants(count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """A format and a file of it with none to four changes.

    The length of a safetensors header is often made right, and the checksums of HDF5.
    """
    r = random.Random(seed)
    for _ in range(count):
        format = r.choice(list(bases()))
        data, other = bytearray(r.choice(bases()[format])), r.choice(bases()[format])
        for _ in range(r.choice((0, 1, 1, 1, 2, 3))):
            if data:
                mutate(r, data, other)
        yield format, repaired(r, format, bytes(data))


def repaired(r: random.Random, format: str, data: bytes) -> bytes:
    """The file, often with the length of its header and its checksums made right."""
    if format == "safetensors" and r.random() < 0.7 and b"}" in data[8:]:
        return (data.rindex(b"}", 8) - 7).to_bytes(8, "little") + data[8:]
    if format == "hdf5" and r.random() < 0.7:
        return resealed(data)
    return data


def check(mutant: tuple[str, bytes]) -> str:
    """Holds the invariant for one file; returns what became of it."""
    format, data = mutant
    try:
        archive = tg.open(data, format=format)
    except tg.TensorglotError as error:
        _check_strict_refuses(data, format)
        return rule_of(error)
    outcome = "strict" if _strict(data, format) else "accepted"
    values = {}
    for name in archive:
        archive.info(name)
        repr(archive[name])
        try:
            held = archive[name]
            if held.nbytes > EXPANDED_NBYTES:
                continue
            values[name] = held.numpy() if held.layout == "dense" else _other(held)
        except tg.TensorglotError as error:
            outcome = rule_of(error)
    if format in WRITABLE and len(values) == len(archive) and all(held.layout == "dense" for held in archive.values()):
        try:
            again = tg.dumps(archive, format=format)
        except tg.UnsupportedError as error:
            assert outcome != "strict", "strict accepts what cannot be written"
            return rule_of(error)
        reread = tg.loads(again, format=format, strict=True)
        assert outcome != "strict" or again == data, "strict accepts two forms of one value"
        for name, array in values.items():
            assert (reread[name].dtype, reread[name].shape) == (array.dtype, array.shape)
            assert reread[name].tobytes() == array.tobytes()
    return outcome


def _other(held: tg.Tensor) -> np.ndarray[Any, Any]:
    """The values of a tensor that is not dense."""
    if held.layout.startswith("zt.sparse"):
        return np.concatenate([part.array().reshape(-1).view(np.uint8) for part in held.parts.values()])
    return held.dequantize()


def _strict(data: bytes, format: str) -> bool:
    try:
        tg.open(data, format=format, strict=True)
    except (tg.FormatError, tg.UnsupportedError):
        return False
    return True


def _check_strict_refuses(data: bytes, format: str) -> None:
    try:
        tg.open(data, format=format, strict=True)
    except tg.TensorglotError:
        return
    raise AssertionError("refused, and accepted by strict")


if __name__ == "__main__":
    from campaign import campaign

    campaign(mutants, check)
