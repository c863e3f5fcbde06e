"""ztensor 2 played by tensorglot, for running its own tests: `pytest -p ztensor_shim`.

Names and argument orders of theirs over our verbs, and nothing else.
"""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

import tensorglot as tg
import tensorglot.numpy
from tensorglot.kernels.buffers import Exporter

DTYPES = {"f32": "float32", "f64": "float64", "bf16": "bfloat16", "f16": "float16", "u8": "uint8", "i8": "int8"}
CODES = {ours: theirs for theirs, ours in DTYPES.items()}
Verification = namedtuple("Verification", "checked undigested")


class Tensor(Exporter):
    def __init__(self, tensor: tg.Tensor, source: Source, part: str | None = None) -> None:
        self._tensor, self._source, self.name = tensor, source, tensor.name
        self.parts = sorted(tensor.parts) if part is None else [part]
        self.part = self.parts[0] if len(self.parts) == 1 else None
        self.shape, self.nbytes = list(tensor.shape), sum(tensor.parts[name].nbytes for name in self.parts)
        kind = str(tensor.dtype)
        self.logical = "f4_e2m1" if kind == "float4_e2m1fn" else None
        self.dtype, self.layout = "u8" if self.logical else CODES.get(kind, kind), tensor.layout
        locate = tensor.offset is not None and tensor.encoding == "raw"
        self.caps = SimpleNamespace(
            verify=bool(tensor.checksum), alignment=65536, locate=locate, map=locate and source.mapped
        )

    @property
    def location(self) -> Any:
        return SimpleNamespace(path=self._source.files[0], offset=self._tensor.offset, nbytes=self.nbytes)

    def __getitem__(self, part: str) -> Tensor:
        if part not in self.parts:
            raise KeyError(part)
        return Tensor(self._tensor, self._source, part)

    def tobytes(self) -> bytes:
        if self.part is None:
            raise KeyError(f'{len(self.parts)} parts: index one, as t["{self.parts[0]}"]')
        return bytes(self._tensor.parts[self.part].payload.read(0, self.nbytes))

    def verify(self) -> bool:
        self._tensor.verify()
        return bool(self._tensor.checksum)

    def _buffer(self, flags: int) -> memoryview:
        if not self.caps.map:
            raise BufferError("not mapped")
        return memoryview(self._tensor).cast("B")

    def __dlpack__(self, **options: Any) -> Any:
        try:
            return self._tensor.__dlpack__(**options)
        except tg.UnsupportedError as error:
            raise TypeError(str(error)) from error

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()

    def __repr__(self) -> str:
        return f"Tensor({self.name}: {self.parts})"


class Source(Mapping[str, Tensor]):
    provenance = "root"

    def __init__(self, source: Any, backend: Any = "mmap") -> None:
        self.files, self.mapped = [source] if isinstance(source, str) else list(source), backend == "mmap"
        self._archive, self._open = tg.open(source, backend=backend), True
        self.attributes = self._archive.metadata or None

    def __getitem__(self, name: str) -> Tensor:
        return Tensor(self._archive[name], self)

    def __iter__(self) -> Any:
        return iter(sorted(self._archive))

    def __len__(self) -> int:
        if not self._open:
            raise ValueError("closed")
        return len(self._archive)

    def keys(self) -> Any:
        return list(self)

    def close(self) -> None:
        self._archive.close()
        self._open = False

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
        self._metadata: dict[str, Any] = {}
        format = None if append else "ztensor@2"
        self._writer = tg.Writer(path, format=format, append=append, metadata=self._metadata, durable=False)

    def set_attributes(self, attributes: dict[str, Any]) -> None:
        self._metadata.update(attributes)

    def add(
        self, name: str, data: bytes, *, shape: Any, dtype: str, logical: str = "", encoding: str | None = None
    ) -> None:
        values = np.frombuffer(data, DTYPES[dtype])
        if logical == "f4_e2m1":
            values = np.stack([values & 15, values >> 4], -1).view(ml_dtypes.float4_e2m1fn)
        self._writer.add(name, values.reshape(shape), **({"compression": "zstd"} if encoding else {}))

    def add_object(self, name: str, shape: Any, parts: Any, *, layout: str, attributes: Any = None) -> None:
        arrays = {part: np.frombuffer(given["data"], DTYPES[given["dtype"]]) for part, given in parts.items()}
        self._writer.add(name, tg.Tensor.of_parts(name, layout, tuple(shape), arrays, attributes))

    @contextmanager
    def stream(self, name: str, shape: Any, parts: dict[str, Any]) -> Iterator[Any]:
        with self._writer.stream(name, DTYPES[parts["data"]["dtype"]], shape) as sink:
            outer = SimpleNamespace(part="data", written=0)

            def write(data: bytes) -> None:
                sink.write(data)
                outer.written += len(data)

            outer.write = write
            yield outer

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


def index(path: str) -> Source:
    return Source(path, "pread")


made = sys.modules["ztensor"] = ModuleType("ztensor")
vars(made).update(Writer=Writer, open=Source, index=index, verify=verify, convert=convert, detect=detect, __path__=[])
numpy_module = sys.modules["ztensor.numpy"] = ModuleType("ztensor.numpy")
vars(numpy_module).update({name: getattr(tensorglot.numpy, name) for name in tensorglot.numpy.__all__})
made.numpy = numpy_module  # type: ignore[attr-defined]
