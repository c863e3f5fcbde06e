"""PyTorch, JAX and DLPack: every element type both ways, any stride, tied weights, handles that travel."""

from __future__ import annotations

import multiprocessing
import pickle
import random
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorglot as tg
from arrays import random_array, raw
from peers import missing
from tensorglot.bridges import dlpack
from tensorglot.model.dtypes import BY_NAME, TABLE
from tensorglot.operations.load import Framework

WHOLE = [row.name for row in TABLE if row.numpy is not None and not row.packed]
NOT_IN_TORCH = {"float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz"}
CHECKPOINTS = [row for row in tg.formats() if row.writes and row.names and row.name != "bson"]
"""Formats that a module can be saved in; BSON has only matrices."""
IN_TORCH = [name for name in WHOLE if name not in NOT_IN_TORCH]


def library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        missing(f"{name} is not installed")


@pytest.fixture
def torch() -> Any:
    return library("torch")


@pytest.fixture
def jax() -> Any:
    found = library("jax")
    found.config.update("jax_platforms", "cpu")
    return found


ARRAYS_OF_NESTED_TENSORS = [
    np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]),
    np.array(["2020-01-01"], "M8[ns]"),
    np.array(["a", "bc"]),
]
"""Arrays that are saved as nested tensors: their element types are not among those of dense ones."""


class TestDLPack:
    @pytest.mark.parametrize("version", [None, (1, 0)])
    @pytest.mark.parametrize("name", WHOLE)
    def test_out_and_in_again(self, name: str, version: Any) -> None:
        array = random_array(random.Random(1), name, (3, 4, 5), "transposed")
        tensor = tg.dynd.array(array)

        class Exporter:
            def __dlpack__(self, **options: Any) -> Any:
                return tensor.__dlpack__(max_version=version)

            def __dlpack_device__(self) -> tuple[int, int]:
                return tensor.__dlpack_device__()

        back = dlpack.to_numpy(Exporter())
        assert back.dtype == array.dtype
        assert raw(back) == raw(array)
        assert np.shares_memory(back, array)
        assert raw(tg.dynd.array(Exporter()).numpy()) == raw(array)

    def test_an_exporter_from_before_the_options(self) -> None:
        class Old:
            def __dlpack__(self, stream: Any = None) -> Any:
                return np.arange(3).__dlpack__()

            def __dlpack_device__(self) -> tuple[int, int]:
                return (1, 0)

        assert tg.loads(tg.dumps({"x": Old()}, format="bintensors"))["x"].tolist() == [0, 1, 2]

    CASES: tuple[tuple[str, dict[str, Any], str], ...] = (
        # where the tensor is, what is asked for, and what comes: its own memory, a copy, or an error
        ("memory", {}, "shared"),
        ("memory", {"copy": None}, "shared"),
        ("memory", {"copy": False}, "shared"),
        ("memory", {"copy": True}, "copy"),
        ("memory", {"copy": False, "max_version": (1, 0)}, "shared"),
        ("memory", {"dl_device": (1, 0)}, "shared"),
        ("memory", {"dl_device": (2, 0)}, "BufferError"),
        ("memory", {"stream": 1}, "InputError"),
        ("read-only memory", {}, "copy"),
        ("read-only memory", {"max_version": (1, 0)}, "shared"),
        ("read-only memory", {"copy": False}, "BufferError"),
        ("read-only memory", {"copy": False, "max_version": (1, 0)}, "shared"),
        ("file", {}, "copy"),
        ("file", {"copy": True}, "copy"),
        ("file", {"copy": False}, "BufferError"),
        ("mmap", {}, "copy"),
        ("mmap", {"max_version": (1, 0)}, "shared"),
        ("mmap", {"copy": True, "max_version": (1, 0)}, "copy"),
        ("mmap", {"copy": False}, "BufferError"),
        ("mmap", {"copy": False, "max_version": (1, 0)}, "shared"),
        ("mmap, big-endian", {"copy": False, "max_version": (1, 0)}, "BufferError"),
        ("mmap, big-endian", {"max_version": (1, 0)}, "copy"),
    )

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    @pytest.mark.parametrize(("place", "options", "outcome"), CASES)
    def test_what_the_array_api_asks_for(
        self, place: str, options: dict[str, Any], outcome: str, dtype: str, tmp_path: Path
    ) -> None:
        array = np.arange(6).astype(BY_NAME[dtype].require_numpy()).reshape(2, 3)
        path = tmp_path / "a.npy"
        if place == "mmap, big-endian":
            array = array.astype(np.float32)
            np.save(path, array.astype(">f4"))
        else:
            tg.save(path, {"data": array})
        with tg.open(path, backend="mmap" if place.startswith("mmap") else "pread") as archive:
            tensor = archive["data"]
            if "memory" in place:
                array.flags.writeable = place == "memory"
                tensor = tg.dynd.array(array)

            class Exporter:
                def __dlpack__(self, **ignored: Any) -> Any:
                    return tensor.__dlpack__(**options)

                def __dlpack_device__(self) -> tuple[int, int]:
                    return tensor.__dlpack_device__()

            if outcome.endswith("Error"):
                with pytest.raises(BufferError if outcome == "BufferError" else tg.InputError):
                    tensor.__dlpack__(**options)
                return
            back = dlpack.to_numpy(Exporter())
            assert raw(back) == raw(array)
            own = array if "memory" in place else tensor.numpy()
            assert np.shares_memory(back, own) == (outcome == "shared")

    @pytest.mark.parametrize("backend", ["pread", "mmap"])
    def test_numpy_takes_it(self, backend: Any, tmp_path: Path) -> None:
        tg.save(tmp_path / "a.zt", {"w": np.arange(3)})
        with tg.open(tmp_path / "a.zt", backend=backend) as archive:
            assert np.from_dlpack(archive["w"]).tolist() == [0, 1, 2]
            assert np.from_dlpack(archive["w"], copy=True).tolist() == [0, 1, 2]

    @pytest.mark.parametrize("name", [row.name for row in TABLE if row.packed])
    def test_packed_types_are_refused(self, name: str) -> None:
        with pytest.raises(tg.UnsupportedError, match=name) as caught:
            tg.dynd.array(np.zeros(3, BY_NAME[name].numpy)).__dlpack__()
        assert isinstance(caught.value, BufferError)  # as the array API requires

    @pytest.mark.parametrize("value", [[[1], [2, 3]], *ARRAYS_OF_NESTED_TENSORS], ids=str)
    def test_what_it_has_no_type_for_is_refused_as_the_array_api_requires(self, value: object) -> None:
        with pytest.raises(BufferError) as caught:
            np.from_dlpack(tg.open(tg.dumps({"x": value}, format="ztensor"))["x"])
        assert isinstance(caught.value, tg.NotExportable)
        assert caught.value.tensor == "x"

    @pytest.mark.parametrize("options", [{"dl_device": (2, 0)}, {"copy": False}])
    def test_errors_name_the_tensor(self, options: dict[str, Any]) -> None:
        with pytest.raises(tg.NotExportable, match="'w'") as caught:
            tg.open(tg.dumps({"w": np.arange(3)}, format="ztensor"))["w"].__dlpack__(**options)
        assert caught.value.tensor == "w"


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize("value", ARRAYS_OF_NESTED_TENSORS, ids=str)
def test_a_type_that_only_numpy_has_is_refused_with_the_name_of_the_tensor(value: object, library: Any) -> None:
    pytest.importorskip(library)
    data = tg.dumps({"w": np.zeros(2, np.float32), "x": value}, format="ztensor")
    with tg.safe_open(data, library) as file:
        for read in (lambda: tg.loads(data, framework=library), lambda: file.get_tensor("x")):
            with pytest.raises(tg.UnsupportedError, match="does not support") as caught:
                read()
            assert (caught.value.tensor, caught.value.rule) == ("x", f"{library}.dtype")
            assert "\n" not in str(caught.value)


class TestHandles:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        tg.save(
            tmp_path / "m.bt", {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "v": np.ones(2, ml_dtypes.bfloat16)}
        )
        return tmp_path / "m.bt"

    @pytest.mark.parametrize("backend", ["pread", "mmap"])
    def test_tensors_and_archives_are_sent(self, path: Path, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(path.parent)
        with tg.open(path.name, backend=backend) as archive:
            sent = pickle.dumps((archive, archive["w"], archive["v"]))
        monkeypatch.chdir("/")
        archive, w, v = pickle.loads(sent)
        assert len(sent) < 4000
        assert w[1].tolist() == archive["w"][1].tolist() == [3, 4, 5]
        assert v.numpy().dtype == ml_dtypes.bfloat16
        archive.close()

    def test_another_process_reads(self, path: Path) -> None:
        with tg.open(path) as archive, multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(_total, (archive["w"],)) == 15

    def test_a_file_that_has_changed_is_not_read(self, path: Path) -> None:
        with tg.open(path) as archive:
            sent = pickle.dumps(archive["w"])
        tg.save(path, {"w": np.zeros(6, np.float32)})
        with pytest.raises(tg.InputError) as caught:
            pickle.loads(sent)
        assert caught.value.rule == "source.changed"

    def test_bytes_travel_and_streams_do_not(self, path: Path) -> None:
        with tg.open(path.read_bytes()) as archive:
            assert pickle.loads(pickle.dumps(archive["w"])).numpy().sum() == 15
        with path.open("rb") as file, tg.open(file) as archive, pytest.raises(tg.InputError) as caught:
            pickle.dumps(archive["w"])
        assert caught.value.rule == "source.pickle"


def _total(tensor: tg.Tensor) -> float:
    return float(tensor.numpy().sum())


def test_no_framework_is_imported() -> None:
    script = """
import sys, numpy as np, tensorglot as tg
tg.loads(tg.dumps({"w": np.zeros(3), "n": 1.5, "l": [1, 2]}, format="bintensors"))
assert not {"torch", "jax"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("name", ["np", "numpy"])
def test_numpy_has_the_names_of_safetensors(name: Framework) -> None:
    data = tg.dumps({"w": np.arange(3.0)}, format="bintensors")
    assert type(tg.loads(data, framework=name)["w"]) is np.ndarray


def test_an_unknown_framework_is_refused() -> None:
    with pytest.raises(tg.InputError, match="'numpy', 'np', 'torch', 'pt'"):
        tg.loads(b"", framework="caffe")  # type: ignore[arg-type]


@pytest.mark.frameworks
class TestTorch:
    @pytest.mark.parametrize("name", IN_TORCH)
    @pytest.mark.parametrize("order", ["C", "strided", "transposed"])
    def test_every_type_both_ways(self, torch: Any, name: str, order: str) -> None:
        from tensorglot.bridges.torch import from_numpy, to_numpy

        array = random_array(random.Random(2), name, (3, 4, 5), order)
        tensor = from_numpy("x", array)
        assert tensor.dtype is getattr(torch, name)
        assert tuple(tensor.shape) == array.shape
        back = to_numpy("x", tensor)
        assert back.dtype == array.dtype
        assert raw(back) == raw(array)
        if order == "C":
            assert raw(np.asarray(to_numpy("x", torch.from_dlpack(tg.dynd.array(array))))) == raw(array)

    @pytest.mark.parametrize("name", [*sorted(NOT_IN_TORCH), "float4_e2m1fn", "int4"])
    def test_other_types_are_refused_by_name(self, torch: Any, name: str) -> None:
        from tensorglot.bridges.torch import from_numpy

        with pytest.raises(tg.UnsupportedError, match=name):
            from_numpy("x", np.zeros(3, BY_NAME[name].numpy))

    def test_load_and_save(self, torch: Any, tmp_path: Path) -> None:
        base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
        tensors = {
            "plain": base,
            "transposed": base.t(),
            "strided": base[::2, 1::3],
            "expanded": torch.ones(1, 3).expand(4, 3),
            "bfloat16": base.to(torch.bfloat16).t(),
            "float8": base.to(torch.float8_e4m3fn),
            "scalar": torch.tensor(7),
            "empty": torch.zeros(0, 3, dtype=torch.int16),
            "parameter": torch.nn.Parameter(torch.ones(2)),
            "graph": torch.ones(2, requires_grad=True) * 2,
            "bool": torch.tensor([True, False]),
            "unsigned": torch.tensor([1, 65535], dtype=torch.uint16),
        }
        tg.save(tmp_path / "m.bt", tensors)
        loaded = tg.load(tmp_path / "m.bt", framework="torch")
        assert type(tg.load(tmp_path / "m.bt", framework="pt")["bool"]) is torch.Tensor
        assert loaded.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert loaded[name].dtype is tensor.dtype
            assert torch.equal(loaded[name].to(torch.float64), tensor.detach().to(torch.float64)), name
            loaded[name].zero_()

    def test_conjugate_and_negative_views(self, torch: Any) -> None:
        tensor = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex64)
        assert tg.dynd.array(tensor.conj()).numpy().tolist() == [1 - 2j, 3 + 1j]
        assert tg.dynd.array(tensor.conj().imag).numpy().tolist() == [-2, 1]

    def test_nothing_is_copied(self, torch: Any) -> None:
        tensor = torch.zeros(4, dtype=torch.bfloat16)
        array = tg.dynd.array(tensor).numpy()
        tensor[1] = 5
        assert array[1] == 5

    def test_memory_that_must_not_be_written_is_copied(self, torch: Any, tmp_path: Path) -> None:
        tg.save(tmp_path / "m.bt", {"w": np.zeros(3, np.float32)})
        tensor = tg.load(tmp_path / "m.bt", framework="torch", backend="mmap")["w"]
        tensor[0] = 1
        assert tg.load(tmp_path / "m.bt")["w"][0] == 0

    def test_tensors_that_cannot_be_converted_are_refused(self, torch: Any) -> None:
        cases = {
            "torch.meta": torch.zeros(3, device="meta"),
            "torch.layout": torch.ones(2, 2).to_sparse(1),
            "torch.dtype": torch.zeros((), dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        }
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
        for rule, tensor in (*cases.items(), ("torch.layout", nested)):
            with pytest.raises(tg.TensorglotError) as caught:
                tg.dumps({"w": tensor}, format="bintensors")
            assert (caught.value.rule, caught.value.tensor) == (rule, "w")

    def test_float4_is_in_pairs(self, torch: Any) -> None:
        """As safetensors has it for PyTorch: the bytes as they are, twice as many elements."""
        from safetensors.torch import save

        pairs = torch.arange(24, dtype=torch.uint8).reshape(4, 6).view(torch.float4_e2m1fn_x2)
        for tensor in (pairs, pairs[::2], pairs[:, :0], pairs[1]):
            data = tg.dumps({"w": tensor}, format="safetensors")
            assert data == save({"w": tensor.view(torch.uint8).contiguous().view(torch.float4_e2m1fn_x2)})
            back = tg.loads(data, framework="torch")["w"]
            assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))
        odd = tg.dumps({"w": np.ones((2, 3), ml_dtypes.float4_e2m1fn)}, format="npz")
        with pytest.raises(tg.UnsupportedError) as caught:
            tg.loads(odd, framework="torch")
        assert (caught.value.rule, caught.value.tensor) == ("torch.dtype", "w")

    def test_a_large_archive_is_shared_not_copied(self, torch: Any, tmp_path: Path) -> None:
        from bounds import MB, resident_nbytes

        tg.save(tmp_path / "m.bt", {"w": np.ones(25_000_000, ml_dtypes.bfloat16)}, durable=False)
        kept = []
        used = resident_nbytes(lambda: kept.append(tg.load(tmp_path / "m.bt", framework="torch")))
        assert used < (50 + 32) * MB
        assert kept[0]["w"].dtype is torch.bfloat16


@pytest.mark.frameworks
class TestModules:
    @pytest.fixture
    def make(self, torch: Any) -> Any:
        class Model(torch.nn.Module):  # type: ignore[name-defined,misc]
            def __init__(self) -> None:
                super().__init__()
                self.embedding = torch.nn.Embedding(10, 4)
                self.norm = torch.nn.BatchNorm1d(4)
                self.narrow = torch.nn.Linear(4, 3).to(torch.bfloat16)
                self.head = torch.nn.Linear(4, 10, bias=False)
                self.head.weight = self.embedding.weight

        return Model

    def test_round_trip(self, torch: Any, make: Any, tmp_path: Path) -> None:
        from tensorglot.torch import load_model, save_model

        for row in CHECKPOINTS:
            one, two = make(), make()
            path = tmp_path / f"m{row.suffixes[0]}"
            save_model(one, path, format=row.name)
            assert load_model(two, path, format=row.name) == ([], [])
            for (name, x), y in zip(one.state_dict().items(), two.state_dict().values(), strict=True):
                assert torch.equal(x, y), (row.name, name)
            assert two.head.weight is two.embedding.weight

    def test_tied_weights_are_stored_once(self, make: Any, tmp_path: Path) -> None:
        from tensorglot.torch import save_model

        for row in CHECKPOINTS:
            path = tmp_path / f"m{row.suffixes[0]}"
            save_model(make(), path, format=row.name)
            with tg.open(path, format=row.name) as archive:
                if row.ties:
                    assert archive["head.weight"].offset == archive["embedding.weight"].offset
                else:
                    assert "head.weight" not in archive
                    if row.metadata != "none":
                        assert archive.metadata == {"head.weight": "embedding.weight"}

    def test_names_must_fit(self, make: Any, tmp_path: Path) -> None:
        from tensorglot.torch import load_model

        state = {k: v for k, v in make().state_dict().items() if k not in ("norm.weight", "head.weight")}
        state["extra"] = np.zeros(1)
        tg.save(tmp_path / "m.bt", state)
        with pytest.raises(tg.InputError) as caught:
            load_model(make(), tmp_path / "m.bt")
        assert caught.value.message.splitlines() == [
            "Error(s) in loading state_dict for Model:",
            '    Missing key(s) in state_dict: "norm.weight"',
            '    Unexpected key(s) in state_dict: "extra"',
        ]
        assert load_model(make(), tmp_path / "m.bt", strict=False) == (["norm.weight"], ["extra"])

    def test_nothing_changes_unless_everything_fits(self, torch: Any, make: Any, tmp_path: Path) -> None:
        from tensorglot.torch import load_model

        for wrong in (torch.zeros(3, 5, dtype=torch.bfloat16), torch.zeros(3)):
            state = {name: tensor for name, tensor in make().state_dict().items() if name != "head.weight"}
            tg.save(tmp_path / "m.bt", {**state, "narrow.weight": wrong})
            model = make()
            before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            with pytest.raises(tg.InputError) as caught:
                load_model(model, tmp_path / "m.bt")
            assert (caught.value.rule, caught.value.tensor) == ("torch.shape", "narrow.weight")
            assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())

    def test_read_into_the_module_itself(self, torch: Any, make: Any, tmp_path: Path) -> None:
        from tensorglot.torch import load_model, save_model

        one, two = make(), make()
        save_model(one, tmp_path / "m.bt")
        two.narrow.weight.data = two.narrow.weight.data.t().contiguous().t()
        pointer = two.embedding.weight.data_ptr()
        load_model(two, tmp_path / "m.bt")
        assert two.embedding.weight.data_ptr() == pointer
        assert torch.equal(one.narrow.weight, two.narrow.weight)

    def test_the_source_is_opened_once(self, torch: Any, make: Any, tmp_path: Path) -> None:
        from tensorglot.torch import load_model, save_model

        one, two = make(), make()
        save_model(one, tmp_path / "m.bt")
        with subprocess.Popen(["cat", tmp_path / "m.bt"], stdout=subprocess.PIPE) as process:
            load_model(two, process.stdout, format="bintensors")
        assert torch.equal(one.narrow.weight, two.narrow.weight)

    def test_with_the_safetensors_package(self, torch: Any, make: Any, tmp_path: Path) -> None:
        theirs = library("safetensors.torch")
        from tensorglot.torch import load_model, save_model

        one, two, three = make(), make(), make()
        save_model(one, tmp_path / "a.safetensors")
        theirs.load_model(two, str(tmp_path / "a.safetensors"))
        theirs.save_model(two, str(tmp_path / "b.safetensors"))
        load_model(three, tmp_path / "b.safetensors")
        assert all(
            torch.equal(x, y) for x, y in zip(one.state_dict().values(), three.state_dict().values(), strict=True)
        )

    def test_an_untied_file_into_a_tied_module(self, torch: Any, make: Any, tmp_path: Path) -> None:
        """Both names are in the file, with other values: one memory cannot hold both."""
        theirs = library("safetensors.torch")
        from tensorglot.torch import load_model

        model = make()
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        state["head.weight"] += 1
        path = tmp_path / "untied.safetensors"
        tg.save(path, state)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with pytest.raises(tg.InputError, match=r'Unexpected key\(s\) in state_dict: "head.weight"'):
            load_model(model, path)
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
        with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "head.weight"'):
            theirs.load_model(make(), path)
        for _ in range(20):
            assert load_model(model, path, strict=False) == ([], ["head.weight"])
            assert torch.equal(model.head.weight, state["embedding.weight"])

    def test_a_tied_file_into_a_tied_module(self, torch: Any, make: Any, tmp_path: Path) -> None:
        from tensorglot.torch import load_model, save_model

        one, two = make(), make()
        save_model(one, tmp_path / "m.zt")
        with tg.open(tmp_path / "m.zt") as archive:
            assert {"head.weight", "embedding.weight"} <= set(archive)
        assert load_model(two, tmp_path / "m.zt") == ([], [])
        assert torch.equal(one.head.weight, two.head.weight)

    @pytest.mark.parametrize("suffix", [".bt", ".zt", ".safetensors"])
    def test_a_view_of_another_tensor(self, torch: Any, suffix: str, tmp_path: Path) -> None:
        """The one that covers the memory is stored; the view comes with it."""
        from tensorglot.torch import load_model, save_model

        one, two = _with_buffers(torch, "whole", "view"), _with_buffers(torch, "whole", "view")
        save_model(one, tmp_path / f"m{suffix}")
        with tg.open(tmp_path / f"m{suffix}") as archive:
            assert list(archive) == ["whole"]
            assert archive.metadata == {"view": "whole"}
        two.whole.zero_()
        assert load_model(two, tmp_path / f"m{suffix}") == ([], [])
        assert torch.equal(two.view, one.view)
        assert two.view.data_ptr() == two.whole[2:].data_ptr()

    def test_what_overlaps_without_one_that_covers_it_is_refused(self, torch: Any, tmp_path: Path) -> None:
        theirs = library("safetensors.torch")
        from tensorglot.torch import save_model

        model = _with_buffers(torch, "left", "right")
        with pytest.raises(tg.InputError) as caught:
            save_model(model, tmp_path / "m.zt")
        assert caught.value.rule == "torch.shared"
        assert "left, right" in caught.value.message
        with pytest.raises(RuntimeError):
            theirs.save_model(model, str(tmp_path / "m.safetensors"))

    def test_adjacent_tensors_of_one_storage_are_not_views(self, torch: Any, tmp_path: Path) -> None:
        from tensorglot.torch import load_model, save_model

        one, two = (_with_buffers(torch, "head", "tail", "even", "odd") for _ in range(2))
        save_model(one, tmp_path / "m.zt")
        for tensor in two.state_dict().values():
            tensor.zero_()
        assert load_model(two, tmp_path / "m.zt") == ([], [])
        assert all(torch.equal(x, y) for x, y in zip(one.buffers(), two.buffers(), strict=True))

    @pytest.mark.parametrize("kind", ["extra state", "converted", "renamed", "of its own", "on the instance"])
    def test_a_module_with_a_state_of_its_own(self, torch: Any, kind: str, tmp_path: Path) -> None:
        """Its `state_dict` has values that are not its memory: they are loaded by PyTorch, as safetensors does."""
        theirs = library("safetensors.torch")
        from tensorglot.torch import load_model, save_model

        one, two, three = (_with_state(torch, kind, value) for value in (1, 2, 3))
        path = tmp_path / "m.safetensors"
        save_model(one, path)
        assert load_model(two, path) == ([], [])
        theirs.load_model(three, path)
        for model in (two, three):
            assert torch.equal(model.inner.weight, one.inner.weight)
            assert kind not in ("extra state", "of its own") or model.value == 1
        tg.save(path, {"other": np.zeros(1), **{n: t.numpy() for n, t in one.state_dict().items()}})
        with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "other"'):
            load_model(two, path)
        assert load_model(two, path, strict=False) == ([], ["other"])

    def test_an_error_of_a_module_with_a_state_of_its_own(self, torch: Any, tmp_path: Path) -> None:
        from tensorglot.torch import load_model

        tg.save(tmp_path / "m.bt", {"inner.weight": np.zeros((5, 5)), "inner.bias": np.zeros(3), "value": np.zeros(1)})
        with pytest.raises(tg.InputError, match=r"size mismatch for inner\.weight") as caught:
            load_model(_with_state(torch, "converted", 1), tmp_path / "m.bt")
        assert isinstance(caught.value, RuntimeError)

    def test_a_file_without_the_counters_of_batch_norms(self, torch: Any, make: Any, tmp_path: Path) -> None:
        """PyTorch keeps their values then, as do safetensors and bintensors."""
        theirs = library("safetensors.torch")
        from tensorglot.torch import load_model

        model = make()
        state = {name: t for name, t in model.state_dict().items() if not name.endswith("num_batches_tracked")}
        path = tmp_path / "m.safetensors"
        tg.save(path, {name: tensor for name, tensor in state.items() if name != "head.weight"})
        assert load_model(make(), path) == ([], [])
        assert list(map(list, theirs.load_model(make(), path))) == [[], []]

    def test_a_buffer_with_the_name_of_such_a_counter_may_not_be_missing(self, torch: Any, tmp_path: Path) -> None:
        from tensorglot.torch import load_model

        model = torch.nn.Module()
        model.norm, model.own = torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2)
        model.again = model.norm
        model.own.register_buffer("num_batches_tracked", torch.tensor(5))
        names = ("running_mean", "running_var", "weight", "bias")
        weights = {f"norm.{name}": torch.ones(2) for name in names} | model.own.state_dict(prefix="own.")
        tg.save(tmp_path / "m.bt", {name: t for name, t in weights.items() if name != "own.num_batches_tracked"})
        assert load_model(model, tmp_path / "m.bt", strict=False) == (["own.num_batches_tracked"], [])
        with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "own\.num_batches_tracked"'):
            load_model(model, tmp_path / "m.bt")
        tg.save(tmp_path / "m.bt", weights)
        assert load_model(model, tmp_path / "m.bt") == ([], [])

    def test_parameters_without_a_shape(self, torch: Any, tmp_path: Path) -> None:
        from tensorglot.torch import load_model, save_model

        one, two = torch.nn.Linear(2, 3), torch.nn.LazyLinear(3)
        with pytest.raises(tg.InputError, match="has no shape yet") as caught:
            save_model(two, tmp_path / "m.bt")
        assert caught.value.tensor == "weight"
        save_model(one, tmp_path / "m.bt")
        assert load_model(two, tmp_path / "m.bt") == ([], [])
        assert torch.equal(one.weight, two.weight)

    @pytest.mark.parametrize("kind", ["of a subclass", "nested", "mkldnn"])
    def test_tensors_without_an_array(self, torch: Any, kind: str, tmp_path: Path) -> None:
        """Each is refused by name, with the way to a plain tensor. Two of them: they do not share memory."""
        import tensorglot.torch

        class Distributed(torch.Tensor):
            @classmethod
            def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                raise RuntimeError(f"{function} is not supported")

        jagged = partial(torch.nested.nested_tensor, layout=torch.jagged)
        made, way = {
            "of a subclass": (lambda: torch.Tensor._make_wrapper_subclass(Distributed, (2, 3)), "full_tensor"),  # noqa: SLF001 - documented
            "nested": (lambda: jagged([torch.ones(2), torch.ones(3)]), "to_padded_tensor"),
            "mkldnn": (lambda: torch.ones(3).to_mkldnn(), "to_dense"),
        }[kind]
        values = {"a": made(), "b": made()}
        for save in (tg.save, tensorglot.torch.save_file):
            with pytest.raises(tg.InputError, match=rf"{way}\(\)") as caught:
                save(*((tmp_path / "m.bt", values) if save is tg.save else (values, tmp_path / "m.bt")))
            assert caught.value.tensor == "a"

    def test_only_modules(self, torch: Any, tmp_path: Path) -> None:
        from tensorglot.torch import load_model, save_model

        with pytest.raises(tg.InputError, match=r"rule torch\.module"):
            save_model({"w": torch.zeros(1)}, tmp_path / "m.bt")
        tg.save(tmp_path / "m.bt", {})
        with pytest.raises(tg.InputError, match=r"rule torch\.module"):
            load_model({}, tmp_path / "m.bt")


def _with_state(torch: Any, kind: str, value: int) -> Any:
    """A module whose state is not, or not only, the memory of its parameters."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(3, 3)
            self.inner.weight.data.fill_(value)
            self.value = value

    class WithExtraState(Model):
        def get_extra_state(self) -> Any:
            return torch.tensor([self.value])

        def set_extra_state(self, state: Any) -> None:
            self.value = int(state[0])

    class Saved(Model):
        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[prefix + "value"] = torch.tensor([self.value])

        def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
            self.value = int(state.pop(prefix + "value")[0])
            super()._load_from_state_dict(state, prefix, *others)

    def converted(module: Any, state: Any, *others: Any) -> None:
        state.update({name: tensor.double() for name, tensor in list(state.items())})

    def renamed(module: Any, state: Any, *others: Any) -> None:
        state["weight"] = state.pop("inner.weight")

    def renamed_back(module: Any, state: Any, *others: Any) -> None:
        state["inner.weight"] = state.pop("weight")

    model: Any = {"extra state": WithExtraState, "of its own": Saved}.get(kind, Model)()
    if kind == "converted":
        model.register_state_dict_post_hook(converted)
    elif kind == "renamed":
        model.register_state_dict_post_hook(renamed)
        model.register_load_state_dict_pre_hook(renamed_back)
    elif kind == "on the instance":
        inner = model.inner
        model.state_dict = lambda *args, **kwargs: {n: t.clone() for n, t in inner.state_dict().items()}
        model.load_state_dict = inner.load_state_dict
    return model


def _with_buffers(torch: Any, *names: str) -> Any:
    """A module whose buffers are parts of one storage."""
    base, other = torch.arange(10.0), torch.arange(10.0)
    parts = {
        "whole": base,
        "view": base[2:5],
        "left": base[:6],
        "right": base[4:],
        "head": base[:5],
        "tail": base[5:],
        "even": other[::2],
        "odd": other[1::2],
    }
    module = torch.nn.Module()
    for name in names:
        module.register_buffer(name, parts[name])
    return module


@pytest.mark.frameworks
class TestOut:
    @pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn", "int64", "bool"])
    @pytest.mark.parametrize("format", ["bintensors", "ztensor@2", "npz"])
    def test_read_into_tensors_of_pytorch(self, torch: Any, name: str, format: str, tmp_path: Path) -> None:
        array = random_array(random.Random(4), name, (3, 4))
        tg.save(tmp_path / "m", {name: array.copy() for name in "abc"}, format=format)
        out = {
            "a": torch.zeros(3, 4, dtype=getattr(torch, name)),
            "b": torch.zeros(4, 3, dtype=getattr(torch, name)).t(),
        }
        for framework in ("numpy", "torch"):
            loaded = tg.load(tmp_path / "m", out=out, framework=framework)  # type: ignore[arg-type]
            assert list(loaded) == ["a", "b", "c"]
            assert all(loaded[key] is tensor for key, tensor in out.items())
            assert all(raw(tg.dynd.array(tensor).numpy()) == raw(array) for tensor in loaded.values())
            assert isinstance(loaded["c"], torch.Tensor) == (framework == "torch")

    def test_a_parameter_is_filled(self, torch: Any) -> None:
        layer = torch.nn.Linear(2, 2)
        data = tg.dumps({"w": np.ones((2, 2), np.float32)}, format="bintensors")
        assert tg.loads(data, out={"w": layer.weight})["w"] is layer.weight
        assert layer.weight.sum() == 4

    def test_what_cannot_be_filled_is_refused(self, torch: Any) -> None:
        data = tg.dumps({"w": np.ones(2, np.complex64)}, format="ztensor")
        cases = {
            "out.device": torch.zeros(2, dtype=torch.complex64, device="meta"),
            "out.view": torch.zeros(2, dtype=torch.complex64).conj(),
            "out.shape": torch.zeros(3, dtype=torch.complex64),
            "out.array": [1, 2],
            "torch.layout": torch.zeros(2, dtype=torch.complex64).to_sparse(),
        }
        for rule, out in cases.items():
            with pytest.raises(tg.InputError) as caught:
                tg.loads(data, out={"w": out})
            assert (caught.value.rule, caught.value.tensor) == (rule, "w")


@pytest.mark.frameworks
class TestJax:
    @pytest.mark.parametrize("name", WHOLE)
    def test_every_type_both_ways(self, jax: Any, name: str) -> None:
        from tensorglot.bridges.jax import from_numpy

        array = random_array(random.Random(3), name, (3, 4, 5), "transposed")
        with jax.enable_x64(True):
            converted = from_numpy("x", array)
            assert converted.dtype == array.dtype
            assert raw(tg.dynd.array(converted).numpy()) == raw(array)
            assert raw(np.asarray(jax.numpy.from_dlpack(tg.dynd.array(array)))) == raw(array)

    def test_load_and_save(self, jax: Any, tmp_path: Path) -> None:
        numpy = jax.numpy
        tensors = {"a": numpy.arange(6).reshape(2, 3).T, "b": numpy.ones(3, numpy.bfloat16), "c": numpy.float32(2)}
        tg.save(tmp_path / "m.bt", tensors)
        loaded = tg.load(tmp_path / "m.bt", framework="jax")
        for name, tensor in tensors.items():
            assert isinstance(loaded[name], jax.Array)
            assert loaded[name].dtype == tensor.dtype
            assert (loaded[name] == tensor).all()

    @pytest.mark.parametrize("name", ["int64", "uint64", "float64", "complex128"])
    def test_wide_types_are_never_narrowed(self, jax: Any, name: str) -> None:
        from tensorglot.bridges.jax import from_numpy

        with jax.enable_x64(False), pytest.raises(tg.UnsupportedError, match="jax_enable_x64"):
            from_numpy("x", np.zeros(3, name))

    def test_types_that_the_platform_has_not(self, jax: Any) -> None:
        from tensorglot.bridges.jax import from_numpy

        with pytest.raises(tg.UnsupportedError, match="float6_e2m3fn"):
            from_numpy("x", np.zeros(3, ml_dtypes.float6_e2m3fn))
