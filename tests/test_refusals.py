"""Mistakes of a caller, and files beyond a limit, that no other test makes: each is refused by its rule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.payload import Memory
from tensorglot.model.tensor import Part
from ztensor_builder import MAGIC_2, footer

DATA = tg.dumps({"a": np.zeros(3), "b": np.ones(2)}, format="bintensors")
CHECKPOINT = Path(__file__).parent / "corpus" / "pt" / "checkpoint.pt"
SHARD = MAGIC_2 + footer(0, b"", digest=0)
EMPTY = {"values": np.ones(0), "indices": np.ones(0, np.uint64), "indptr": np.zeros(10**6 + 1, np.uint64)}


def shaped(*shape: int) -> tg.Tensor:
    return tg.Tensor("x", {"data": Part(BY_NAME["int8"], shape, Memory(np.empty(0, np.int8)))})


def sharded(folder: Path) -> Path:
    tg.save(folder / "one.safetensors", {"a": np.zeros(100), "b": np.zeros(100)}, durable=False)
    tg.split(folder / "one.safetensors", folder / "many", shard_nbytes=800)
    return folder / "many"


def shard(folder: Path) -> Path:
    (folder / "shard.zt").write_bytes(SHARD)
    return folder / "shard.zt"


def sparse() -> tg.Tensor:
    return tg.Tensor.of_parts("m", "zt.sparse_csr/1", (10**6, 10**6), EMPTY)


def three(format: str) -> tg.Archive:
    data = tg.dumps({name: np.zeros(1) for name in "abc"}, format=format)
    return tg.open(data, limits=tg.Limits(tensors=2))


MISTAKES: dict[str, tuple[str, type[Exception], Callable[[Any], Any]]] = {
    "a backend that is none": ("source.backend", tg.InputError, lambda _: tg.open(DATA, backend="disk")),  # type: ignore[arg-type]
    "a buffer with holes": ("source.contiguous", tg.InputError, lambda _: tg.open(memoryview(DATA * 2)[::2])),
    "memory with gaps": ("source.contiguous", tg.InputError, lambda _: tg.open(memoryview(bytes(8))[::2])),
    "nothing that can be opened": ("source.kind", tg.InputError, lambda _: tg.open(3)),  # type: ignore[arg-type]
    "a way to verify that is none": ("verify.mode", tg.InputError, lambda _: tg.open(DATA, verify="often")),  # type: ignore[arg-type]
    "a version that is none": ("format.version", tg.InputError, lambda _: tg.open(DATA, format="bintensors@7")),
    "no mapping": ("save.tensors", tg.InputError, lambda _: tg.dumps([1], format="bintensors")),  # type: ignore[arg-type]
    "tensors before the target": ("save.target", tg.InputError, lambda folder: tg.save({"x": [1]}, folder / "x.bt")),  # type: ignore[arg-type]
    "options of storage without a URL": ("source.url", tg.InputError, lambda _: tg.load(DATA, storage_options={})),
    "editing a directory": ("edit.source", tg.UnsupportedError, lambda folder: tg.edit(sharded(folder), {"k": "v"})),
    "a shape that NumPy has not": ("tensor.shape", tg.UnsupportedError, lambda _: shaped(0, 1 << 62, 2).numpy()),
    "zeros beyond reason": ("dynd.sparse", tg.UnsupportedError, lambda _: sparse().serialize()),
    "editing a shard": ("ztensor.shard.root", tg.UnsupportedError, lambda folder: tg.edit(shard(folder), {"k": "v"})),
    "a shard, strictly": ("ztensor.strict.shard", tg.FormatError, lambda folder: tg.open(shard(folder), strict=True)),
    "a large pickle": ("pt.limit.header", tg.LimitError, lambda _: tg.open(CHECKPOINT, limits=tg.Limits(3000))),
    "three tensors of 0.1": ("ztensor.limit.tensors", tg.LimitError, lambda _: three("ztensor@0.1")),
    "three tensors of 2": ("ztensor.limit.tensors", tg.LimitError, lambda _: three("ztensor@2")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_it_is_refused_by_its_rule(mistake: str, tmp_path: Path) -> None:
    rule, kind, call = MISTAKES[mistake]
    with pytest.raises(kind) as caught:
        call(tmp_path)
    assert isinstance(caught.value, tg.TensorglotError)
    assert caught.value.rule == rule


def test_a_name_in_other_letters_is_found_among_the_names() -> None:
    with pytest.raises(tg.TensorNotFound, match="did you mean 'W'"):
        tg.open(tg.dumps({"W": np.zeros(1)}, format="bintensors"))["w"]


@pytest.mark.parametrize("name", ["x.foo", "x.pt"])
@pytest.mark.parametrize("verb", ["save", "convert", "merge", "Writer"])
def test_the_credentials_of_a_target_are_not_in_the_error(name: str, verb: str) -> None:
    target = f"s3://me:swordfish@bucket/{name}"
    calls: dict[str, Callable[[], object]] = {
        "save": lambda: tg.save(target, {"a": np.zeros(1)}),
        "convert": lambda: tg.convert(DATA, target),
        "merge": lambda: tg.merge(DATA, target),
        "Writer": lambda: tg.Writer(target),
    }
    with pytest.raises(tg.InputError, match=r"suffix|not written") as caught:
        calls[verb]()
    assert "swordfish" not in f"{caught.value!r} {caught.value} {caught.value.path}"


def test_a_format_that_cannot_be_detected_says_how_to_name_it(tmp_path: Path) -> None:
    path = tmp_path / "values"
    tg.save(path, {"x": np.ones(2)}, format="dynd")
    with pytest.raises(tg.FormatError, match="pass format=") as caught:
        tg.load(path)
    assert caught.value.rule == "format.unknown"
    assert tg.load(path, format="dynd")["x"].tolist() == [1, 1]
    assert tg.convert(path, tmp_path / "x.zt", source_format="dynd").tensors == 1
