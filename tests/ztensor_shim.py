"""ztensor 2 played by tensorglot, for running its own tests: `pytest -p ztensor_shim`.

Names and argument orders of theirs over our verbs: their tensors are handles to parts, ours are values.
"""

from __future__ import annotations

import sys
from collections import namedtuple
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

import tensorglot as tg
import tensorglot.numpy
from tensorglot.kernels.buffers import Exporter

DTYPES = {"f32": "float32", "f64": "float64", "bf16": "bfloat16", "f16": "float16", "u8": "uint8", "i8": "int8"}
CODES = {**{ours: theirs for theirs, ours in DTYPES.items()}, "float4_e2m1fn": "u8"}
Verification = namedtuple("Verification", "checked undigested")


class Tensor(Exporter):
    def __init__(self, tensor: tg.Tensor, source: Source, *parts: str) -> None:
        self.tensor, self.source, self.name, self.layout = tensor, source, tensor.name, tensor.layout
        self.parts = sorted(parts or tensor.parts)
        self.part = self.parts[0] if len(self.parts) == 1 else None
        self.shape, self.nbytes = list(tensor.shape), sum(tensor.parts[name].nbytes for name in self.parts)
        self.dtype = CODES.get(str(tensor.dtype))
        self.logical = "f4_e2m1" if str(tensor.dtype) == "float4_e2m1fn" else None
        plain = tensor.encoding == "raw"
        self.caps = SimpleNamespace(verify=self.verify(), alignment=65536, locate=plain, map=plain and source.mapped)
        self.location = SimpleNamespace(path=source.files[0], offset=tensor.offset, nbytes=self.nbytes)

    def __getitem__(self, part: str) -> Tensor:
        return Tensor(self.tensor, self.source, {name: name for name in self.parts}[part])

    def tobytes(self) -> bytes:
        if self.part is None:
            raise KeyError(f'{len(self.parts)} parts: index one, as t["{self.parts[0]}"]')
        return bytes(self.tensor.parts[self.part].payload.read(0, self.nbytes))

    def verify(self) -> bool:
        self.tensor.verify()
        return bool(self.tensor.checksum)

    def _buffer(self, flags: int) -> memoryview:
        if not self.caps.map:
            raise BufferError("not mapped")
        return memoryview(self.tensor).cast("B")

    def __dlpack__(self, **options: Any) -> Any:
        try:
            return self.tensor.__dlpack__(**options)
        except tg.UnsupportedError as error:
            if error.rule in ("dlpack.device", "dlpack.copy"):  # a BufferError there as well
                raise
            raise TypeError from error

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()

    def __repr__(self) -> str:
        return f"Tensor({self.name}: {self.parts})"


class Source(dict[str, Tensor]):
    provenance = "root"

    def __init__(self, source: Any, backend: Any = "mmap") -> None:
        self.files, self.mapped = [source] if isinstance(source, str) else list(source), backend == "mmap"
        self.archive = tg.open(source, backend=backend)
        self.attributes = self.archive.metadata
        super().__init__((name, Tensor(self.archive[name], self)) for name in sorted(self.archive))

    def __len__(self) -> int:
        return len([self.archive[name] for name in self])  # an error after it is closed

    def keys(self) -> Any:
        return list(self)

    def __enter__(self) -> Source:
        return self

    def close(self, *error: object) -> None:
        self.archive.close()

    __exit__ = close


class Writer(tg.Writer):
    def __init__(self, path: str, *, append: bool = False, publish: bool = False, **layout: Any) -> None:
        if append and publish:
            raise ValueError("append and publish: pick one")
        self.attributes: dict[str, Any] = {}
        self.set_attributes, self.finish = self.attributes.update, self.close
        format = None if append else "ztensor@2"
        super().__init__(path, format=format, append=append, metadata=self.attributes, durable=False)

    def add(self, name: str, data: Any, *, shape: Any, dtype: str, logical: str = "", encoding: str = "") -> None:  # type: ignore[override]
        values = np.frombuffer(data, DTYPES[dtype])
        if logical == "f4_e2m1":
            values = np.stack([values & 15, values >> 4], -1).view(ml_dtypes.float4_e2m1fn)
        super().add(name, values.reshape(shape), **({"compression": "zstd"} if encoding else {}))

    def add_object(self, name: str, shape: Any, parts: Any, *, layout: str, attributes: Any = None) -> None:
        arrays = {part: np.frombuffer(given["data"], DTYPES[given["dtype"]]) for part, given in parts.items()}
        super().add(name, tg.Tensor.of_parts(name, layout, tuple(shape), arrays, attributes))

    def stream(self, name: str, shape: Any, parts: dict[str, Any]) -> Any:  # type: ignore[override]
        sink = super().stream(name, DTYPES[parts["data"]["dtype"]], shape)
        sink.part = "data"  # type: ignore[attr-defined]
        return sink


def verify(path: str) -> Verification:
    report = tg.verify(path, deep=True)
    return Verification(report.checksums, len(report.unverified))


made = sys.modules["ztensor"] = ModuleType("ztensor")
made.numpy = sys.modules["ztensor.numpy"] = tensorglot.numpy  # type: ignore[attr-defined]
vars(made).update(
    Writer=Writer,
    open=Source,
    index=lambda path: Source(path, "pread"),
    verify=verify,
    convert=lambda source, target: tg.convert(source, target, format="ztensor@2"),
    detect=lambda path: tg.open(path).format.partition("@")[0],
    __path__=[],
)
