"""ztensor 2 played by tensorglot, for running its own tests: `pytest -p ztensor_shim`.

Names and argument orders of theirs over our verbs. What we have no counterpart for is
left out: `index`, the buffer protocol of tensors, parts given one by one.
"""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

import tensorglot as tg
import tensorglot.numpy

DTYPES = {"f32": "float32", "f64": "float64", "bf16": "bfloat16", "f16": "float16", "u8": "uint8", "i8": "int8"}
CODES = {ours: theirs for theirs, ours in DTYPES.items()}
Verification = namedtuple("Verification", "checked undigested")


class Tensor:
    def __init__(self, tensor: tg.Tensor, path: str) -> None:
        self._tensor, self._path = tensor, path
        self.name, self.shape, self.nbytes = tensor.name, list(tensor.shape), tensor.nbytes
        self.parts = sorted(tensor.parts)
        self.part = self.parts[0] if len(self.parts) == 1 else None
        self.dtype, self.logical = CODES.get(str(tensor.dtype), str(tensor.dtype)), None
        self.layout = "dense" if tensor.layout == "dense" else f"zt.{tensor.layout}/1"
        locate = tensor.offset is not None and tensor.encoding == "raw"
        self.caps = SimpleNamespace(verify=bool(tensor.checksum), alignment=65536, locate=locate, map=locate)

    @property
    def location(self) -> Any:
        return SimpleNamespace(path=self._path, offset=self._tensor.offset, nbytes=self.nbytes)

    def __getitem__(self, part: str) -> Tensor:
        if part != self.part:
            raise KeyError(part)
        return self

    def tobytes(self) -> bytes:
        if self.part is None:
            raise KeyError(f'{len(self.parts)} parts: index one, as t["{self.parts[0]}"]')
        return self._tensor.numpy().tobytes()

    def verify(self) -> bool:
        self._tensor.numpy()
        return bool(self._tensor.checksum)

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()


class Source(Mapping[str, Tensor]):
    provenance = "root"

    def __init__(self, source: Any) -> None:
        self.files = [source] if isinstance(source, str) else list(source)
        self._archive = tg.open(source, backend="mmap")
        self.attributes = self._archive.metadata or None

    def __getitem__(self, name: str) -> Tensor:
        return Tensor(self._archive[name], self.files[0])

    def __iter__(self) -> Any:
        return iter(sorted(self._archive))

    def __len__(self) -> int:
        if self._archive.source is None:
            raise ValueError("closed")
        return len(self._archive)

    def keys(self) -> Any:
        return list(self)

    def close(self) -> None:
        self._archive.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Writer:
    def __init__(
        self, path: str, *, canonical: bool = True, align: int = 0, append: bool = False, publish: bool = False
    ):
        if append and publish:
            raise ValueError("append and publish: pick one")
        self._writer = tg.Writer(path, format=None if append else "ztensor@2", append=append, durable=False)

    def add(self, name: str, data: bytes, *, shape: list[int], dtype: str, encoding: str | None = None) -> None:
        values = np.frombuffer(data, DTYPES[dtype])
        options = {"compression": "zstd"} if encoding else {}
        self._writer.add(name, values.reshape(shape), **options)

    def stream(self, name: str, shape: list[int], parts: dict[str, Any]) -> Any:
        return self._writer.stream(name, DTYPES[parts["data"]["dtype"]], shape)

    def finish(self) -> None:
        self._writer.__exit__(None, None, None)

    def __enter__(self) -> Writer:
        self._writer.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._writer.__exit__(*error)


def verify(path: str) -> Verification:
    report = tg.verify(path, deep=True)
    return Verification(report.checksums, len(report.unverified))


def convert(source: str, target: str) -> None:
    tg.convert(source, target, format="ztensor@2")


def detect(path: str) -> str:
    with tg.open(path) as archive:
        return archive.format.partition("@")[0]


made = sys.modules["ztensor"] = ModuleType("ztensor")
vars(made).update(Writer=Writer, open=Source, verify=verify, convert=convert, detect=detect, __path__=[])
numpy_module = sys.modules["ztensor.numpy"] = ModuleType("ztensor.numpy")
vars(numpy_module).update({name: getattr(tensorglot.numpy, name) for name in tensorglot.numpy.__all__})
made.numpy = numpy_module  # type: ignore[attr-defined]
