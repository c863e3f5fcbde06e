"""Deltas without a store: what turns one version into another, applied to memory and to files.

A delta is applied to what it was made from, and gives what it was made for; in any other
case nothing is changed. That holds for wrong bases, damaged files, lying files, arrays
that share memory, and two appliers at once.
"""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import struct
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from blake3 import blake3
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

import tensorglot as tg
from bounds import MB, allocated_nbytes, resident_nbytes, seconds
from command_line import run
from faults import FaultyOs
from fuzzing import delta as mutants
from peers import needs
from tensorglot.io import sink

Arrays = dict[str, Any]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
MIB = 1 << 20


def weights(seed: int = 1) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        "embed": rng.standard_normal((1200, 700)).astype(BFLOAT16),  # two chunks
        "w": rng.standard_normal((64, 48)).astype(np.float32),
        "b": np.zeros(48, np.float32),
        "flags": rng.random(40) < 0.5,
        "steps": np.array(7),
        "none": np.zeros((0, 3), np.int8),
    }


def step(arrays: Arrays) -> Arrays:
    """What a training step does: small changes in many places, and here and there a new value."""
    new = {name: array.copy() for name, array in arrays.items()}
    new["embed"].view(np.uint16).reshape(-1)[::50] += 1
    new["w"] += np.float32(1e-4)
    new["b"][:] = np.random.default_rng(9).standard_normal(48)
    new["steps"] += 1
    return new


def made(old: Any, new: Any) -> bytes:
    file = io.BytesIO()
    tg.store.delta(old, new, file)
    return file.getvalue()


def copied(arrays: Arrays) -> Arrays:
    return {name: array.copy() for name, array in arrays.items()}


def same(one: Arrays, two: Arrays) -> bool:
    return one.keys() == two.keys() and all(
        (one[name].dtype, one[name].shape, one[name].tobytes())
        == (two[name].dtype, two[name].shape, two[name].tobytes())
        for name in one
    )


# Round trips


def test_a_delta_turns_the_old_version_into_the_new_one_in_place(tmp_path: Path) -> None:
    old = weights()
    new = step(old)
    report = tg.store.delta(old, new, tmp_path / "step.tgdelta")
    assert (report.ok, report.tensors, report.changed) == (True, 6, 4)
    assert report.added == report.removed == report.resized == ()
    assert report.stored_nbytes == (tmp_path / "step.tgdelta").stat().st_size < 0.03 * report.nbytes
    held = copied(old)
    arrays = dict(held)
    assert tg.store.apply(tmp_path / "step.tgdelta", held) is None
    assert same(held, new)
    assert all(held[name] is array for name, array in arrays.items())


@pytest.mark.parametrize("dtype", ["int8", "uint16", "float16", "float32", "float64", "complex128", "bool", "int4"])
@pytest.mark.parametrize("share", [0.001, 0.3, 1.0])
def test_every_width_and_every_share_of_changes(dtype: str, share: float) -> None:
    rng = np.random.default_rng(3)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    most = {"bool": 2, "int4": 8}.get(dtype, 256)
    raw = rng.integers(0, most, (5000, kind.itemsize), np.uint8)
    old = raw.reshape(-1).view(kind)
    changed = np.where(rng.random((5000, 1)) < share, rng.integers(0, most, raw.shape, np.uint8), raw)
    new = changed.reshape(-1).view(kind)
    held = {"x": old.copy()}
    tg.store.apply(made({"x": old}, {"x": new}), held)
    assert held["x"].tobytes() == new.tobytes()


SOURCES: dict[str, Callable[[Path, Arrays], Any]] = {
    "memory": lambda folder, arrays: arrays,
    "bintensors": lambda folder, arrays: _saved(folder / "a.bt", arrays),
    "ztensor": lambda folder, arrays: _saved(folder / "a.zt", arrays, compression="zstd"),
    "npz": lambda folder, arrays: _saved(folder / "a.npz", arrays),
    "archive": lambda folder, arrays: tg.open(_saved(folder / "a.safetensors", arrays)),
    "store": lambda folder, arrays: _committed(folder / "run", arrays),
    "torch": lambda folder, arrays: _torch(arrays),
}


def _saved(path: Path, arrays: Arrays, **options: Any) -> Path:
    tg.save(path, arrays, **options)
    return path


def _committed(path: Path, arrays: Arrays) -> str:
    with tg.store.Store.create(path) as store:
        store.commit("main", arrays)
    return f"store://{path}#main"


def _torch(arrays: Arrays) -> Arrays:
    needs("torch")
    from tensorglot.bridges.torch import from_numpy

    return {name: from_numpy(name, array.copy()) for name, array in arrays.items()}


@pytest.mark.parametrize("kind", SOURCES)
def test_the_same_delta_from_every_source(kind: str, tmp_path: Path) -> None:
    old = {name: array for name, array in weights().items() if name != "flags"}
    new = step({**old, "flags": np.zeros(1)})
    del new["flags"]
    folders = tmp_path / "old", tmp_path / "new"
    for folder in folders:
        folder.mkdir()
    one, two = SOURCES[kind](folders[0], old), SOURCES[kind](folders[1], new)
    names = list(tg.open(one)) if isinstance(one, (str, Path)) else list(one)
    assert made(one, two) == made({name: old[name] for name in names}, {name: new[name] for name in names})


def test_versions_that_are_equal_give_a_delta_that_changes_nothing() -> None:
    old = weights()
    for array in old.values():
        array.flags.writeable = False
    data = made(old, old)
    assert len(data) < 2000
    tg.store.apply(data, old)


def test_a_delta_has_no_values_even_if_they_have_no_bytes() -> None:
    data = made({}, {"a": tg.dynd.array((None, None), "(void, void)"), "b": np.zeros(0)})
    for tensor in tg.open(data).values():
        with pytest.raises(tg.UnsupportedError, match="no values of its own"):
            tensor.cid()


def test_a_sparse_value_without_elements_is_added(tmp_path: Path) -> None:
    parts = {"values": np.zeros(0), "indices": np.zeros(0, np.uint64), "indptr": np.zeros(4, np.uint64)}
    old = {"d": np.zeros(3)}
    new = {**old, "s": tg.Tensor.of_parts("s", "sparse_csr", (3, 6), parts)}
    tg.store.patch(made(old, new), old, tmp_path / "new.zt")
    assert tg.diff(tmp_path / "new.zt", new).same


def test_nested_sparse_and_quantized_values_are_carried(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32)
    parts = {"values": values, "indices": np.arange(6, dtype=np.uint64), "indptr": np.array([0, 2, 4, 6], np.uint64)}
    old = {"n": [[1], [2, 3]], "s": tg.Tensor.of_parts("s", "sparse_csr", (3, 6), parts), "d": np.zeros(3)}
    new = {
        **old,
        "n": [[1], [2, 4], [5]],
        "s": tg.Tensor.of_parts("s", "sparse_csr", (3, 6), {**parts, "values": values + 1}),
    }
    data = made(old, new)
    tg.save(tmp_path / "old.zt", old)
    tg.store.patch(data, tmp_path / "old.zt", tmp_path / "new.zt")
    assert tg.diff(tmp_path / "new.zt", new).same
    assert {t.layout for t in tg.open(data).values()} == {"nested", "sparse_csr", "dense"}
    with pytest.raises(tg.UnsupportedError, match="no values of its own"):
        tg.open(data)["n"].tolist()
    with pytest.raises(tg.InputError, match="would resize 'n'"):
        tg.store.apply(data, old)
    kept = made(old, {**old, "d": np.ones(3)})
    held = {**old, "d": np.zeros(3)}
    tg.store.apply(kept, held)
    assert held["d"].tolist() == [1, 1, 1]


# A base that is not the base


WRONG: dict[str, Callable[[Arrays], object]] = {
    "one bit": lambda held: held["embed"].view(np.uint8).__setitem__((-1, -1), 77),
    "a bit of a tensor that does not change": lambda held: held["flags"].__setitem__(0, not held["flags"][0]),
    "another type": lambda held: held.update(w=held["w"].astype(np.float64)),
    "another shape": lambda held: held.update(w=held["w"].T.copy()),
    "the same bytes in another shape": lambda held: held.update(w=held["w"].reshape(-1)),
    "the same bytes of another type": lambda held: held.update(w=held["w"].view(np.int32)),
    "missing": lambda held: held.pop("none"),
    "the new version": lambda held: held.update(step(weights())),
    "a list": lambda held: held.update(b=held["b"].tolist()),
    "read-only": lambda held: held["b"].setflags(write=False),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_tensors_that_are_not_the_base_are_refused_by_name_and_not_changed(wrong: str) -> None:
    old = weights()
    data = made(old, step(old))
    held = copied(old)
    WRONG[wrong](held)
    before = {name: np.array(value).tobytes() for name, value in held.items()}
    with pytest.raises(tg.InputError) as caught:
        tg.store.apply(data, held)
    assert caught.value.rule in ("delta.base", "delta.writable")
    assert caught.value.tensor in old
    assert {name: np.array(value).tobytes() for name, value in held.items()} == before


def test_tensors_that_the_delta_does_not_name_are_left_alone() -> None:
    old = weights()
    held = {**copied(old), "adapter": np.ones(3)}
    tg.store.apply(made(old, step(old)), held)
    assert held["adapter"].tolist() == [1, 1, 1]
    assert held["steps"] == 8


CHANGES: dict[str, Callable[[Arrays], object]] = {
    "add": lambda new: new.update(extra=np.arange(5)),
    "remove": lambda new: new.pop("b"),
    "resize": lambda new: new.update(embed=np.concatenate([new["embed"], new["embed"][:9]])),
    "resize, to less": lambda new: new.update(embed=new["embed"][:100].copy()),
    "resize, another type": lambda new: new.update(w=new["w"].astype(np.int64)),
    "resize, another rank": lambda new: new.update(w=new["w"].reshape(-1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_cannot_be_done_in_place_is_refused_with_the_way_out_and_done_to_a_file(
    change: str, tmp_path: Path
) -> None:
    old = weights()
    new = step(old)
    CHANGES[change](new)
    data = made(old, new)
    held = copied(old)
    with pytest.raises(tg.InputError, match=rf"would {change.partition(',')[0]} .*tg\.store\.patch") as caught:
        tg.store.apply(data, held)
    assert caught.value.rule == "delta.structure"
    assert same(held, old)
    tg.save(tmp_path / "model.zt", old)
    tg.store.patch(data, tmp_path / "model.zt", tmp_path / "model.zt")
    assert same(tg.load(tmp_path / "model.zt"), new)


# Memory


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_arrays_of_any_order_stride_and_byte_order_are_changed_in_place() -> None:
    old = {name: weights()["w"] for name in ("fortran", "strided", "swapped", "matrix", "turned")}
    new = {name: array + 1 for name, array in old.items()}
    room = np.zeros((64, 96), np.float32)
    held: Arrays = {
        "fortran": np.asfortranarray(old["fortran"]),
        "strided": room[:, ::2],
        "swapped": old["swapped"].astype(">f4"),
        "matrix": np.asmatrix(old["matrix"].copy()),
        "turned": np.asmatrix(old["turned"].T.copy()).T,
    }
    held["strided"][:] = old["strided"]
    tg.store.apply(made(old, new), held)
    assert all(np.array_equal(held[name], new[name]) for name in new)
    assert not room[:, 1::2].any()


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_tied_tensors_are_changed_once_and_stored_once() -> None:
    old = {"head": weights()["embed"]}
    old["embed"] = old["head"]
    new = {"head": step(weights())["embed"]}
    new["embed"] = new["head"]
    data = made(old, new)
    assert len(data) < 1.05 * len(made({"head": old["head"]}, {"head": new["head"]})) + 300
    for tied in (old["head"].copy(), np.asmatrix(old["head"].copy())):
        tg.store.apply(data, {"head": tied, "embed": tied})
        assert tied.tobytes() == new["head"].tobytes()
    apart = {"head": old["head"].copy(), "embed": old["head"].copy()}
    tg.store.apply(data, apart)
    assert apart["embed"].tobytes() == new["head"].tobytes() == apart["head"].tobytes()


def test_memory_that_is_shared_otherwise_is_refused() -> None:
    whole = np.arange(100.0)
    old = {"a": whole[:60], "b": whole[40:]}
    new = {"a": old["a"] + 1, "b": old["b"].copy()}
    before = whole.copy()
    with pytest.raises(tg.InputError, match="shares memory with 'a'"):
        tg.store.apply(made(old, new), old)
    assert np.array_equal(whole, before)


@pytest.mark.parametrize("strides", [(0, 4), (4, 4), (16, 0), (8, 4)])
def test_elements_that_share_memory_are_refused_if_they_change(strides: tuple[int, int]) -> None:
    memory = np.zeros(12, np.float32)
    array = np.lib.stride_tricks.as_strided(memory, (3, 4), strides, writeable=True)
    old, new = {"w": array.copy()}, {"w": np.arange(12, dtype=np.float32).reshape(3, 4)}
    with pytest.raises(tg.InputError) as caught:
        tg.store.apply(made(old, new), {"w": array})
    assert (caught.value.rule, caught.value.tensor, memory.any()) == ("delta.overlap", "w", False)
    tg.store.apply(made(old, old), {"w": array})


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_expanded_tensors_of_torch_are_refused_if_they_change(dtype: str) -> None:
    torch = needs("torch")
    one = torch.ones(1, dtype=getattr(torch, dtype))
    expanded = (one.conj() if one.is_complex() else one).expand(3)
    old = {"w": expanded.resolve_conj().numpy().copy()}
    with pytest.raises(tg.InputError) as caught:
        tg.store.apply(made(old, {"w": old["w"] + 1}), {"w": expanded})
    assert (caught.value.rule, one.item()) == ("delta.overlap", 1)


def test_a_model_of_torch_is_changed_through_its_state_dict() -> None:
    needs("torch")
    import torch

    def model() -> Any:
        torch.manual_seed(1)
        made = torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.BatchNorm1d(40), torch.nn.Linear(40, 40))
        made[2].weight = made[0].weight  # tied
        return made.to(torch.bfloat16)

    one, two = model(), model()
    with torch.no_grad():
        two[0].weight.mul_(1.01)
        two[1].running_mean.add_(1)
    data = made(one.state_dict(), two.state_dict())
    parameters = list(one.parameters())
    tg.store.apply(data, one.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))
    assert all(a is b for a, b in zip(one.parameters(), parameters, strict=True))
    with pytest.raises(tg.InputError, match="not the tensor that the delta was made from"):
        tg.store.apply(data, one.state_dict())
    turned = {"w": torch.arange(12.0).reshape(3, 4).T}
    tg.store.apply(made({"w": turned["w"].clone()}, {"w": turned["w"] + 1}), turned)
    assert turned["w"][1].tolist() == [2, 6, 10]


def test_views_of_torch_that_have_no_array_are_written_back() -> None:
    torch = needs("torch")
    held = torch.complex(torch.arange(6.0), torch.arange(6.0) + 1)
    for view in (held.clone().conj(), held.clone().conj().imag):  # that of a conjugate is negated when it is read
        old = view.resolve_conj().resolve_neg().numpy().copy()
        data = made({"w": old}, {"w": old + 1})
        tg.store.apply(data, {"w": view})
        assert (view.resolve_conj().resolve_neg().numpy() == old + 1).all()


def test_a_value_that_is_no_array_must_be_that_of_the_delta() -> None:
    """It can only stay as it is."""
    words = tg.dynd.array(["a", "b"], "var * string")
    data = made({"t": words, "w": np.zeros(3)}, {"t": words, "w": np.ones(3)})
    for other in (tg.dynd.array([1, 2], "var * int64"), tg.dynd.array(["a", "c"], "var * string")):
        held = np.zeros(3)
        with pytest.raises(tg.InputError) as caught:
            tg.store.apply(data, {"t": other, "w": held})
        assert (caught.value.rule, caught.value.tensor) == ("delta.base", "t")
        assert not held.any()
    held = np.zeros(3)
    tg.store.apply(data, {"t": words, "w": held})
    assert held.all()


def test_arrays_that_interleave_do_not_share() -> None:
    whole = np.zeros((10, 2))
    old = {"a": whole[:, 0], "b": whole[:, 1], "c": whole[:, 1]}
    tg.store.apply(made(copied(old), {"a": np.ones(10), "b": np.zeros(10), "c": np.zeros(10)}), old)
    assert whole.tolist() == [[1, 0]] * 10


# Damage


def test_every_flipped_bit_is_found_and_nothing_is_changed() -> None:
    old, new = mutants.versions()
    data = bytearray(mutants.bases()[0])
    for at in range(len(data)):
        data[at] ^= 1 << at % 8
        held = copied(old)
        with pytest.raises(tg.TensorglotError):
            tg.store.apply(bytes(data), held)
        assert same(held, old)
        assert not tg.verify(bytes(data), format="delta").ok
        data[at] ^= 1 << at % 8
    held = copied(old)
    tg.store.apply(bytes(data), held)
    assert same(held, new)


def test_a_delta_that_lies_is_undone_and_names_the_tensor() -> None:
    """Its index has a right hash and a wrong promise: found only when the result is there."""
    old = weights()
    bodies, index = mutants.split(made(old, step(old)))
    rows = bytearray(index["rows"])
    size = len(rows) // len(index["names"])
    rows[2 * size - 1] ^= 1  # the digest of the second tensor
    held = copied(old)
    with pytest.raises(tg.IntegrityError, match="as they were") as caught:
        tg.store.apply(mutants.join(bodies, {**index, "rows": bytes(rows)}), held)
    assert (caught.value.rule, caught.value.tensor) == ("delta.result", index["names"][1])
    assert same(held, old)


def test_what_is_cut_short_says_so() -> None:
    data = mutants.bases()[0]
    for size in (0, 7, 8, 40, len(data) - 1):
        with pytest.raises(tg.TruncatedError):
            tg.store.apply(data[:size], {})


def bomb(nbytes: int) -> bytes:
    """A tensor of zeros that the delta claims to add."""
    chunks = nbytes // MIB
    digest = blake3(b"").digest()
    checksum = xxh3_64_intdigest(bytes(chunks))
    row = struct.pack("<IIIIIQQ32s", 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, chunks, nbytes, checksum, digest)
    index = {
        "bases": b"", "bodies": b"".join(struct.pack("<IIB", i, 1, 1) for i in range(chunks)), "metadata": None,
        "names": ["x"], "removed": [], "rows": row, "special": [], "types": [f"{nbytes} * uint8"], "version": 1,
    }  # fmt: skip
    return mutants.join(b"tgdelta1" + bytes(chunks), index)


def test_a_small_file_that_expands_to_much_is_refused() -> None:
    data = bomb(4000 * MIB)
    assert len(data) < 64_000
    with pytest.raises(tg.LimitError, match="expands"):
        tg.store.patch(data, {}, io.BytesIO(), format="dynd")
    assert seconds(lambda: tg.open(data), 0.05) < 0.05
    assert allocated_nbytes(lambda: tg.open(data)) < 10 * MB


# Files


def test_a_delta_is_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "step.tgdelta"
    target.write_bytes(b"before")
    old = weights()

    done = made(old, step(old))
    for strike in range(1, 100):
        faulty = FaultyOs(strike, OSError(errno.ENOSPC, "full"))
        with monkeypatch.context() as patched:
            patched.setattr(sink, "os", faulty)
            try:
                tg.store.delta(old, step(old), target)
            except OSError:
                assert target.read_bytes() == (done if "rename" in faulty.calls[: strike - 1] else b"before")
        assert [path.name for path in tmp_path.iterdir()] == ["step.tgdelta"]
        if not faulty.struck:
            break
        target.write_bytes(b"before")
    assert strike > 5
    assert target.read_bytes() == done


def test_values_need_the_base() -> None:
    data = made(weights(), step(weights()))
    with pytest.raises(tg.UnsupportedError, match="no values of its own") as caught:
        tg.loads(data)
    assert caught.value.rule == "delta.base"
    archive = tg.open(data)
    assert archive.format == "delta@1"
    states = {name: tensor.encoding for name, tensor in archive.items()}
    assert {name for name, state in states.items() if state == "unchanged"} == {"flags", "none"}
    assert set(states.values()) == {"changed", "unchanged"}
    assert "4 changed" in archive.notes[0].message
    assert tg.verify(data).ok


def test_a_few_of_the_removed_tensors_are_named() -> None:
    for count, named in ((0, None), (1, "removes x0"), (4, "removes x0, x1, x2, x3"), (5, "removes x0, x1, x2, x3, …")):
        more = {f"x{i}": np.ones(3) for i in range(count)}
        archive = tg.open(made(more | {"w": np.ones(3)}, {"w": np.zeros(3)}))
        assert [note.message for note in archive.notes if note.rule == "delta.removed"] == [named] * (named is not None)


def test_metadata_of_the_new_version_is_carried(tmp_path: Path) -> None:
    tg.save(tmp_path / "a.safetensors", {"x": np.zeros(3)}, metadata={"step": "1"})
    tg.save(tmp_path / "b.safetensors", {"x": np.ones(3)}, metadata={"step": "2"})
    tg.store.delta(tmp_path / "a.safetensors", tmp_path / "b.safetensors", tmp_path / "d.tgdelta")
    assert tg.open(tmp_path / "d.tgdelta").metadata == {"step": "2"}
    tg.store.patch(tmp_path / "d.tgdelta", tmp_path / "a.safetensors", tmp_path / "c.safetensors")
    assert (tmp_path / "c.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_a_file_is_patched_in_its_own_version_and_only_if_it_is_the_base(tmp_path: Path) -> None:
    path = tmp_path / "model.zt"
    tg.save(path, {"x": np.zeros(3)}, format="ztensor@2")
    data = made({"x": np.zeros(3)}, {"x": np.ones(3)})
    tg.store.patch(data, path, path)
    assert tg.open(path).format == "ztensor@2"
    before = path.read_bytes()
    for wrong in (path, {"x": np.zeros(3), "y": np.zeros(1)}, {"x": np.zeros(4)}, {}):
        with pytest.raises(tg.InputError) as caught:
            tg.store.patch(data, wrong, path)
        assert caught.value.rule == "delta.base"
        assert path.read_bytes() == before


@pytest.mark.parametrize("target", ["c.safetensors", "stream"])
def test_a_large_file_is_patched_in_bounded_memory(target: str, tmp_path: Path) -> None:
    old = {f"layers.{i}": np.full(24 * MIB, i, np.uint8) for i in range(6)}
    new = {**old, "layers.2": old["layers.2"].copy(), "added": np.arange(MIB // 8)}
    new["layers.2"][::4096] += 1
    del new["layers.5"]
    tg.save(tmp_path / "a.safetensors", old, durable=False)
    tg.save(tmp_path / "b.safetensors", new, durable=False)
    tg.store.delta(tmp_path / "a.safetensors", tmp_path / "b.safetensors", tmp_path / "d.tgdelta")
    wanted = (tmp_path / "b.safetensors").read_bytes()
    del old, new

    def patch() -> None:
        with (tmp_path / target).open("wb") as stream:
            out = stream if target == "stream" else tmp_path / target
            tg.store.patch(tmp_path / "d.tgdelta", tmp_path / "a.safetensors", out, format="safetensors", durable=False)

    patch()
    assert resident_nbytes(patch) < 48 * MIB
    assert (tmp_path / target).read_bytes() == wanted
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["a.safetensors", "b.safetensors", "d.tgdelta", target]
    )


# At once


def test_of_two_appliers_one_succeeds_and_the_other_finds_another_base() -> None:
    old = weights()
    new = step(old)
    data = made(old, new)
    for _ in range(5):
        held = copied(old)

        def attempt(_: int, held: Arrays = held) -> bool:
            try:
                tg.store.apply(data, held)
            except tg.InputError as error:
                return error.rule != "delta.base"
            return True

        with ThreadPoolExecutor(4) as pool:
            assert sorted(pool.map(attempt, range(4))) == [False, False, False, True]
        assert same(held, new)


def test_a_process_that_is_forked_while_a_delta_is_applied_can_apply_one() -> None:
    """The thread that holds the lock does not exist in the child."""
    held, release = threading.Event(), threading.Event()

    class Waiting(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            held.set()
            release.wait(60)
            return super().__getitem__(name)

    old, new = {"w": np.zeros(5)}, {"w": np.ones(5)}
    thread = threading.Thread(target=tg.store.apply, args=(made(old, new), Waiting(w=np.zeros(5))))
    thread.start()
    assert held.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        try:
            tg.store.apply(made(old, new), old)
        finally:
            os._exit(0 if old["w"].all() else 1)
    status = os.waitpid(pid, 0)[1]
    release.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0


def test_threads_share_a_file(tmp_path: Path) -> None:
    old = weights()
    new = step(old)
    tg.store.delta(old, new, tmp_path / "d.tgdelta")

    def serve(_: int) -> bool:
        held = copied(old)
        tg.store.apply(tmp_path / "d.tgdelta", held)
        return same(held, new) and tg.verify(tmp_path / "d.tgdelta").ok

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(serve, range(8)))


# The command line


@pytest.fixture
def files(tmp_path: Path) -> Path:
    old: dict[str, NDArray[Any]] = weights()
    tg.save(tmp_path / "old.zt", old)
    tg.save(tmp_path / "new.zt", step(old))
    return tmp_path


def test_a_delta_is_made_listed_checked_and_applied_on_the_command_line(files: Path) -> None:
    old, new, delta, out = (str(files / name) for name in ("old.zt", "new.zt", "d.tgdelta", "out.bt"))
    assert "4 of 6 tensors changed" in run("store", "delta", old, new, delta).stdout
    assert "embed" in run("ls", delta).stdout
    described = run("info", delta)
    assert "delta@1" in described.stdout
    assert "4 changed" in described.stderr
    run("verify", delta)
    assert "verified" in run("store", "apply", delta, old, "-o", out).stdout
    run("diff", out, new)
    run("store", "apply", delta, old)
    run("diff", old, new)
    assert "nothing was changed" in run("store", "apply", delta, old, code=2).stderr
    assert "tensorglot store apply" in run("cat", delta, "embed", code=4).stderr
    fields = json.loads(run("store", "delta", new, new, delta, "--json").stdout)
    assert (fields["changed"], fields["tensors"], fields["ok"]) == (0, 6, True)


@pytest.mark.parametrize(
    ("nbytes", "rule"),
    [(100_000_001, "delta.footer"), (1 << 30, "delta.footer"), ((1 << 30) + 1, "delta.limit.header")],
)
def test_the_index_of_a_million_tensors_is_not_refused_for_its_size(nbytes: int, rule: str) -> None:
    """It has 139 MB. Beyond the limit, `delta` does not write what `apply` would refuse."""
    claimed = b"tgdelta1" + struct.pack("<QQ32s8s", 8, nbytes, bytes(32), b"tgdelta1")
    with pytest.raises(tg.FormatError) as caught:
        tg.store.apply(claimed, {})
    assert caught.value.rule == rule
    with pytest.raises(tg.FormatError) as caught:
        tg.open(claimed)
    assert caught.value.rule == rule


@pytest.mark.parametrize("size", [200, 900])
def test_a_resized_chunk_without_a_body_is_its_base_cut_or_followed_by_zeros(size: int, tmp_path: Path) -> None:
    """Our own deltas have a body there; others need not."""
    old = {"x": np.arange(1, 601)}
    new = {"x": np.resize(np.append(old["x"], np.zeros(300, np.int64)), size)}
    _, index = mutants.split(made(old, new))
    rows = np.frombuffer(index["rows"], mutants.ROW).copy()
    rows["bodies"] = rows["checksum"] = 0
    bare = mutants.join(b"tgdelta1", {**index, "rows": rows.tobytes(), "bodies": b""})
    tg.store.patch(bare, old, tmp_path / "new.zt")
    assert same(tg.load(tmp_path / "new.zt"), new)


def test_a_delta_between_versions_without_tensors(tmp_path: Path) -> None:
    tg.store.patch(made({}, {}), {}, tmp_path / "new.zt")
    assert tg.load(tmp_path / "new.zt") == {}
