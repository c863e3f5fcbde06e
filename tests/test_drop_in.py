"""`tensorglot.numpy`, `.torch`, `.jax` and `tg.safe_open`: what safetensors' users call, over every format."""

from __future__ import annotations

import hashlib
import inspect
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorglot as tg
from arrays import random_array, raw
from peers import needs

FORMATS = [spec for spec in tg.formats() if spec.writes and spec.names and spec.name != "bson"]
MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tensors = {"b": np.arange(3), "a": MATRIX, "half": MATRIX.astype(ml_dtypes.bfloat16)}
    tg.numpy.save_file(tensors, tmp_path / "m.safetensors", {"step": "1"})
    return tmp_path / "m.safetensors"


def test_save_with_checksum_returns_the_digest_and_the_bytes() -> None:
    data = tg.numpy.save({"a": MATRIX}, {"step": "1"})
    assert tg.numpy.save_with_checksum({"a": MATRIX}, {"step": "1"}) == (hashlib.sha1(data).digest(), data)
    digest, data = tg.numpy.save_with_checksum(tensor_dict={"a": MATRIX}, hasher=hashlib.sha256, format="bintensors@1")
    assert digest == hashlib.sha256(data).digest()
    assert (tg.numpy.load(data)["a"] == MATRIX).all()


class TestNumpy:
    @pytest.mark.parametrize("spec", FORMATS, ids=lambda spec: spec.name)
    def test_round_trip_in_every_format(self, spec: tg.Format, tmp_path: Path) -> None:
        tensors = {"a": MATRIX, "b": np.arange(3, dtype=np.int64)}
        path = tmp_path / f"m{spec.suffixes[0]}"
        tg.numpy.save_file(tensors, path)
        with tg.open(path) as archive:
            assert archive.format.partition("@")[0] == spec.name
        for loaded in (
            tg.numpy.load_file(path),
            tg.numpy.load(tg.numpy.save(tensors, format=spec.name), format=spec.name),
        ):
            assert {name: raw(array) for name, array in loaded.items()} == {n: raw(a) for n, a in tensors.items()}

    def test_the_bytes_are_those_of_safetensors(self) -> None:
        theirs = needs("safetensors.numpy")
        assert tg.numpy.save({"a": MATRIX}, {"k": "v"}) == theirs.save({"a": MATRIX}, {"k": "v"})

    def test_a_suffix_of_no_format_is_safetensors(self, tmp_path: Path) -> None:
        for name in ("weights", "weights.model"):
            tg.numpy.save_file({"a": MATRIX}, tmp_path / name)
            assert tg.open(tmp_path / name).format.startswith("safetensors")
        with pytest.raises(tg.InputError) as caught:
            tg.numpy.save_file({"a": MATRIX}, tmp_path / "weights.bin")
        assert caught.value.rule == "format.write"


class TestOpen:
    def test_names_metadata_and_tensors(self, path: Path) -> None:
        with tg.safe_open(path, framework="np") as f:
            assert f.keys() == ["a", "b", "half"]
            assert f.offset_keys() == sorted(f.keys(), key=lambda name: tg.open(path)[name].offset or 0)
            assert f.metadata() == {"step": "1"}
            assert f.get_tensor("a").tolist() == MATRIX.tolist()
            together = f.get_tensors()
            assert list(f.get_tensors([])) == []
            assert list(f.get_tensors(reversed(together))) == list(reversed(together))
            assert [list(f.get_tensors([name])) for name in together] == [[name] for name in together]
            assert list(together) == f.offset_keys()
            assert all(raw(together[name]) == raw(f.get_tensor(name)) for name in together)

    def test_no_metadata_is_none(self, tmp_path: Path) -> None:
        tg.numpy.save_file({}, tmp_path / "m.safetensors")
        with tg.safe_open(tmp_path / "m.safetensors", "np") as f:
            assert f.metadata() is None
            assert (f.keys(), f.offset_keys(), f.get_tensors()) == ([], [], {})

    @pytest.mark.parametrize("backend", ["auto", "pread", "mmap"])
    def test_slices(self, path: Path, backend: Any) -> None:
        with tg.safe_open(path, "numpy", backend=backend) as f:
            part = f.get_slice("a")
            assert (part.get_shape(), part.get_dtype()) == ([3, 4], "F32")
            assert f.get_slice("half").get_dtype() == "BF16"
            for index in (slice(None), (), 1, (0, slice(1, 3)), (slice(None), -1), [2, 0], [], MATRIX[:, 0] > 3):
                assert raw(part[index]) == raw(np.asarray(MATRIX[index]))
            with pytest.raises(IndexError):
                part[3]

    def test_dtypes_have_the_names_of_safetensors(self) -> None:
        theirs = needs("safetensors")
        for dtype in (np.float64, np.int8, np.bool_, ml_dtypes.float8_e4m3fn, np.uint16, np.complex64):
            data = tg.numpy.save({"x": np.zeros(2, dtype)})
            with tg.safe_open(data, "np") as f:
                ours = f.get_slice("x").get_dtype()
            assert ours == dict(theirs.deserialize(data))["x"]["dtype"]
        zt = tg.dumps({"x": np.zeros(2, ml_dtypes.float8_e3m4)}, format="npz")
        assert tg.safe_open(zt, "np").get_slice("x").get_dtype() == "float8_e3m4"

    @pytest.mark.parametrize("backend", ["pread", "mmap"])
    def test_dead_after_the_context(self, path: Path, backend: Any) -> None:
        with tg.safe_open(path, "np", backend=backend) as f:
            part = f.get_slice("a")
        uses: list[Callable[[], Any]] = [
            f.keys, f.offset_keys, f.metadata, f.get_tensors, part.get_shape, part.get_dtype,
            lambda: part[0], lambda: f.get_tensor("a"), lambda: f.get_slice("a"),
        ]  # fmt: skip
        for use in uses:
            with pytest.raises(tg.InputError) as caught:
                use()
            assert caught.value.rule == "archive.closed"
        assert "closed" in repr(f)

    def test_every_source_and_format(self, tmp_path: Path) -> None:
        for spec in FORMATS:
            data = tg.dumps({"a": MATRIX}, format=spec.name)
            with tg.safe_open(data, "np", format=spec.name) as f:
                assert f.get_slice("a")[:, 1].tolist() == MATRIX[:, 1].tolist()
        tg.save(tmp_path / "m.safetensors", {"a": MATRIX, "b": MATRIX + 1})
        tg.split(tmp_path / "m.safetensors", tmp_path / "shards", shard_nbytes=60)
        with tg.safe_open(tmp_path / "shards", "np") as f:
            assert f.keys() == f.offset_keys() == ["a", "b"]
            assert f.get_tensor("b").tolist() == (MATRIX + 1).tolist()


class TestOneByOne:
    """Tensors of medium size share memory that is allocated once for many of them."""

    @pytest.mark.parametrize("spec", FORMATS, ids=lambda spec: spec.name)
    def test_each_has_its_own_values(self, spec: tg.Format, tmp_path: Path) -> None:
        path = tmp_path / "m"
        dtypes = [dtype for dtype in ("float32", "uint8", "int64", "bfloat16") if dtype in spec.dtypes]
        tensors = {
            f"{dtype}.{count}": random_array(random.Random(count), dtype, (count,))
            for count in (100_001, 16_385, 70_000, 300_000, 12, 0)
            for dtype in dtypes
        }
        tg.save(path, tensors, format=spec.name, durable=False)
        expected = {name: raw(array) for name, array in tensors.items()}
        with tg.safe_open(path, "np", format=spec.name) as f, ThreadPoolExecutor(4) as pool:
            for read in (map, pool.map):
                found = dict(zip(tensors, read(f.get_tensor, tensors), strict=True))
                assert all(array.flags.writeable and array.flags.aligned for array in found.values())
                assert {name: raw(array) for name, array in found.items()} == expected

    def test_medium_ones_share_an_allocation_and_large_ones_do_not(self, tmp_path: Path) -> None:
        path = tmp_path / "m.safetensors"
        tensors = {"a": np.ones(30_000), "b": np.ones(40_000), "large": np.ones(1 << 20)}
        tg.save(path, tensors, durable=False)
        with tg.safe_open(path, "np") as f:
            a, b, large = (f.get_tensor(name).base for name in ("a", "b", "large"))
        assert a is b
        assert a is not large


ERRORS: dict[str, tuple[Callable[[Path], Any], type[Exception]]] = {
    "a missing file": (lambda path: tg.safe_open(path / "no", "np"), FileNotFoundError),
    "a missing file to load": (lambda path: tg.numpy.load_file(path / "no"), FileNotFoundError),
    "a framework": (lambda path: tg.safe_open(b"", "caffe"), ValueError),
    "a framework that is no text": (lambda path: tg.safe_open(b"", []), ValueError),  # type: ignore[arg-type]
    "a device": (lambda path: tg.safe_open(b"", "np", device="cuda:0"), ValueError),
    "a backend": (lambda path: tg.safe_open(tg.numpy.save({}), "np", backend="io_uring"), ValueError),  # type: ignore[arg-type]
    "not a dict": (lambda path: tg.numpy.save_file([], path / "m.bt"), ValueError),  # type: ignore[arg-type]
    "not an array": (lambda path: tg.numpy.save({"a": "text"}), ValueError),
    "a list": (lambda path: tg.numpy.save({"a": [1, 2]}), ValueError),
    "a name that is no text": (lambda path: tg.numpy.save({1: MATRIX}), ValueError),  # type: ignore[dict-item]
    "metadata that is no text": (lambda path: tg.numpy.save({"a": MATRIX}, {"k": 1}), ValueError),  # type: ignore[dict-item]
    "a path for bytes": (lambda path: tg.numpy.load("m.safetensors"), ValueError),  # type: ignore[arg-type]
    "a missing name": (lambda path: tg.safe_open(tg.numpy.save({"a": MATRIX}), "np").get_tensor("b"), KeyError),
    "bytes of no format": (lambda path: tg.numpy.load(b"\xff" * 64), tg.FormatError),
}


@pytest.mark.parametrize("what", ERRORS)
def test_errors_are_of_the_class_that_people_catch_and_ours(what: str, tmp_path: Path) -> None:
    use, kind = ERRORS[what]
    with pytest.raises(kind) as caught:
        use(tmp_path)
    assert isinstance(caught.value, tg.TensorglotError)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        tg.numpy.load_file(tmp_path / "no.bt")
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert (error.errno, error.filename) == (2, str(tmp_path / "no.bt"))
        assert str(error) == f"No such file or directory: {tmp_path / 'no.bt'}"


@pytest.mark.frameworks
@pytest.mark.parametrize(("theirs", "ours", "library"), [("numpy",) * 3, ("torch",) * 3, ("flax", "jax", "jax")])
def test_signatures_begin_as_those_of_safetensors(theirs: str, ours: str, library: str) -> None:
    """Their arguments, in their order and with their defaults; ours are keywords after them."""
    needs(library)
    one, two = needs(f"safetensors.{theirs}"), import_module(f"tensorglot.{ours}")
    for name in two.__all__:
        if not inspect.isfunction(getattr(one, name, None)):
            continue
        wanted = [p for p in inspect.signature(getattr(one, name)).parameters.values() if p.kind != p.KEYWORD_ONLY]
        found = [p for p in inspect.signature(getattr(two, name)).parameters.values() if p.kind != p.KEYWORD_ONLY]
        assert len(found) >= len(wanted), name
        assert [p.default for p in found[: len(wanted)]] == [p.default for p in wanted], name
    assert tg.safe_open is two.safe_open


@pytest.mark.frameworks
@pytest.mark.parametrize(("theirs", "ours", "library"), [("numpy",) * 3, ("torch",) * 3, ("flax", "jax", "jax")])
def test_every_argument_can_be_passed_by_the_name_it_has_there(
    theirs: str, ours: str, library: str, tmp_path: Path
) -> None:
    """bintensors 0.2.0 has the same names."""
    needs(library)
    one, two = needs(f"safetensors.{theirs}"), import_module(f"tensorglot.{ours}")
    w = {
        "numpy": np.asarray,
        "torch": lambda a: needs("torch").from_numpy(a),
        "jax": lambda a: needs("jax").numpy.asarray(a),
    }
    values = {"filename": tmp_path / "a.safetensors", "metadata": {"k": "v"}, "data": None, "device": "cpu"}
    for name in ("save", "load", "save_file", "load_file"):
        parameters = inspect.signature(getattr(one, name)).parameters.values()
        given = {
            p.name: values.get(p.name, {"w": w[ours](np.ones(2, "f4"))}) for p in parameters if p.name != "backend"
        }
        result = getattr(two, name)(**given)
        if name == "save":
            values["data"] = result
        elif name != "save_file":
            assert list(result) == ["w"]


def bits(tensor: Any) -> bytes:
    """The elements of a tensor of PyTorch as bytes."""
    return raw(tg.dynd.array(tensor).numpy())


@pytest.mark.frameworks
class TestTorch:
    @pytest.fixture
    def torch(self) -> Any:
        return needs("torch")

    @pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "bool"])
    @pytest.mark.parametrize("backend", ["pread", "mmap"])
    def test_slices_are_tensors_of_every_type(self, torch: Any, name: str, backend: Any, tmp_path: Path) -> None:
        array = random_array(random.Random(5), name, (6, 5))
        whole = tg.dynd.array(array).torch()
        tg.torch.save_file({"w": whole}, tmp_path / "m.safetensors")
        with tg.safe_open(tmp_path / "m.safetensors", framework="pt", backend=backend) as f:
            part = f.get_slice("w")
            for index in (slice(1, 3), (slice(None), 2), (slice(None, None, 2), slice(0, 1)), 0, (0, 0), [4, 1], []):
                found = part[index]
                assert found.dtype is getattr(torch, name)
                assert found.shape == whole[index].shape
                assert bits(found) == bits(whole[index])
            assert bits(part[::-1]) == raw(np.ascontiguousarray(array[::-1]))

    def test_with_mmap_tensors_share_the_file(self, torch: Any, tmp_path: Path) -> None:
        """As safetensors' do: no copy is made, and what is written to a tensor stays in this process."""
        path = tmp_path / "m.safetensors"
        for dtype in (np.float32, ml_dtypes.bfloat16):
            tg.save(path, {"w": np.ones((64, 64), dtype), "v": np.zeros(3, dtype)})
            with tg.open(path, backend="mmap") as archive:
                address = archive["w"].numpy().__array_interface__["data"][0]
                assert archive["w"].torch().data_ptr() == address
                assert not archive["w"].numpy().flags.writeable
            with tg.safe_open(path, "pt", backend="mmap") as f:
                one, two = f.get_tensor("w"), f.get_tensor("w")
                assert one.data_ptr() == two.data_ptr()
                assert f.get_slice("w")[1].data_ptr() == one[1].data_ptr()
            one[0] = 5
            assert two[0, 0] == 5
            assert tg.load(path)["w"][0, 0] == 1
            before = path.read_bytes()
            loaded = tg.torch.load_file(path, backend="mmap")
            loaded["w"].zero_()
            assert path.read_bytes() == before

    def test_a_mapping_of_the_callers_is_never_written_to(self, torch: Any, tmp_path: Path) -> None:
        import mmap

        path = tmp_path / "m.safetensors"
        tg.save(path, {"w": np.ones(4, np.float32)})
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mine:
            tensor = tg.open(mine, backend="mmap")["w"].torch()
            tensor.zero_()
            del tensor
        assert tg.load(path)["w"].tolist() == [1, 1, 1, 1]

    def test_devices(self, torch: Any, path: Path) -> None:
        for device in ("meta", torch.device("meta")):
            assert tg.torch.load_file(path, device=device)["half"].device.type == "meta"
            with tg.safe_open(path, "pt", device=device) as f:
                assert f.get_slice("a")[0].device.type == "meta"
        assert tg.open(path)["a"].torch("meta").shape == (3, 4)
        assert tg.torch.load_file(path, device=torch.device("cpu"))["a"].tolist() == MATRIX.tolist()
        for use in (lambda: tg.torch.load_file(path, device="cuba"), lambda: tg.open(path)["a"].torch("cuba")):
            with pytest.raises(ValueError, match="cuba") as caught:
                use()
            assert isinstance(caught.value, tg.TensorglotError)

    def test_shared_memory_is_refused_unless_the_format_can_tie(self, torch: Any, tmp_path: Path) -> None:
        base = torch.arange(6.0)
        for tensors in ({"a": base, "b": base}, {"a": base, "b": base[2:]}):
            with pytest.raises(RuntimeError, match="a, b") as caught:
                tg.torch.save_file(tensors, tmp_path / "m.safetensors")
            assert isinstance(caught.value, tg.InputError)
        tg.torch.save_file({"a": base, "b": base}, tmp_path / "m.zt")
        assert tg.open(tmp_path / "m.zt")["a"].offset == tg.open(tmp_path / "m.zt")["b"].offset
        tg.torch.save_file({"a": base[:3], "b": base[3:]}, tmp_path / "m.safetensors")

    def test_what_cannot_be_stored_is_refused_by_class(self, torch: Any) -> None:
        with pytest.raises(ValueError, match="to_dense"):
            tg.torch.save({"a": torch.eye(3).to_sparse()})
        with pytest.raises(RuntimeError, match="meta tensor"):
            tg.torch.save({"a": torch.zeros(3, device="meta")})
        for value, named in ((np.zeros(3), "numpy.ndarray"), (1.5, "float"), (tg.Limits(), "tensorglot.Limits")):
            with pytest.raises(ValueError, match=f"expected a torch.Tensor, not {named} "):
                tg.torch.save({"a": value})
        with pytest.raises(ValueError, match=r"expected a numpy\.ndarray, not torch\.Tensor "):
            tg.numpy.save({"a": torch.zeros(3)})
        with pytest.raises(ValueError, match=r"use tensorglot\.torch\.save_model"):
            tg.torch.save(torch.nn.Linear(2, 2))

    def test_an_attribute_that_is_not_there(self) -> None:
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            tg.torch.nothing

    def test_models(self, torch: Any, tmp_path: Path) -> None:
        one, two = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
        path = tmp_path / "model"  # no suffix: safetensors
        tg.torch.save_model(one, path, {"k": "v"})
        assert tg.open(path).metadata == {"k": "v"}
        for backend in ("auto", "pread", "mmap"):
            with torch.no_grad():
                two.weight.zero_()
            assert tg.torch.load_model(two, path, True, "cpu", backend=backend) == ([], [])
            assert torch.equal(one.weight, two.weight)
        half = torch.nn.Linear(4, 3).to(torch.bfloat16)
        tg.torch.load_model(half, path)  # cast, as load_state_dict does
        assert torch.equal(half.weight, one.weight.to(torch.bfloat16))
        with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "0.bias", "0.weight"') as caught:
            tg.torch.load_model(torch.nn.Sequential(one), path)
        assert isinstance(caught.value, tg.TensorglotError)
        assert tg.torch.load_model(torch.nn.Sequential(one), path, strict=False)[1] == ["bias", "weight"]
        with pytest.raises(RuntimeError, match="size mismatch"):
            tg.torch.load_model(torch.nn.Linear(3, 4), path, strict=False)
        with pytest.raises(RuntimeError, match="to_empty"):
            tg.torch.load_model(torch.nn.Linear(4, 3, device="meta"), path)
        with pytest.raises(FileNotFoundError):
            tg.torch.load_model(one, tmp_path / "no")

    def test_contiguity(self, torch: Any, tmp_path: Path) -> None:
        model = torch.nn.Linear(4, 3)
        model.weight = torch.nn.Parameter(torch.arange(12.0).reshape(4, 3).t())
        with pytest.raises(ValueError, match="force_contiguous=True"):
            tg.torch.save_model(model, tmp_path / "m.bt", force_contiguous=False)
        tg.torch.save_model(model, tmp_path / "m.bt")
        assert torch.equal(tg.torch.load_file(tmp_path / "m.bt")["weight"], model.weight)


@pytest.mark.frameworks
def test_jax(path: Path) -> None:
    jax = needs("jax")
    tensors = {"w": jax.numpy.ones((2, 3), jax.numpy.bfloat16), "n": jax.numpy.arange(4)}
    back = tg.jax.load(tg.jax.save(tensors))
    assert all(isinstance(value, jax.Array) for value in back.values())
    assert (back["w"].dtype, back["n"].tolist()) == (jax.numpy.bfloat16, [0, 1, 2, 3])
    tg.jax.save_file(tensors, path.with_suffix(".zt"))
    assert tg.jax.load_file(path.with_suffix(".zt"), device=jax.devices("cpu")[0])["w"].shape == (2, 3)
    with tg.safe_open(path, framework="flax") as f:
        part = f.get_slice("half")[1:, [0, 2]]
        assert (part.dtype, part.tolist()) == (jax.numpy.bfloat16, [[4, 6], [8, 10]])
    for device in ("abacus", "cpu:99", "cpu:x", 3, b"cpu"):
        with pytest.raises(tg.InputError, match="is not a device"):
            tg.jax.load_file(path, device)


def test_devices_that_are_none_or_not_there_are_told_in_the_words_of_pytorch(tmp_path: Path) -> None:
    torch = needs("torch")
    tg.save(tmp_path / "x.bt", {"w": np.ones(2)})
    for device, said in (("abacus", "'abacus' is not a device: .*abacus"), ("hpu", "'hpu' is not available: .*hpu")):
        with pytest.raises(RuntimeError, match=f"(?i){said}"):
            tg.torch.load_file(tmp_path / "x.bt", device=device)
    assert tg.torch.load_file(tmp_path / "x.bt", device=torch.device("cpu"))["w"].tolist() == [1, 1]
