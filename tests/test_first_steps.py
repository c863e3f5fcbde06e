"""What someone tries who knows NumPy, PyTorch, h5py or safetensors: the answer, or an error that says what to do."""

import io
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import tensorglot as tg

WEIGHTS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(3)}


class Module:
    """What torch.nn.Module has, too."""

    def state_dict(self) -> dict[str, np.ndarray]:
        return WEIGHTS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tg.save(tmp_path / "model.zt", WEIGHTS)
    return tmp_path / "model.zt"


def test_keys_show_the_names(path: Path, tmp_path: Path) -> None:
    with tg.open(path) as archive:
        assert repr(archive.keys()) == "keys(['w', 'b'])"
        assert list(archive.keys()) == ["w", "b"]
        assert archive.keys() & {"w", "x"} == {"w"}
    hostile = "\u202e" + "n" * 200
    tg.save(tmp_path / "many.zt", {hostile: np.ones(1)} | {f"layer.{i}": np.ones(1) for i in range(1_020)})
    with tg.open(tmp_path / "many.zt") as archive:
        shown = repr(archive.keys())
    assert shown.startswith("keys(['\\u202ennn")
    assert "nnn…nnn" in shown
    assert shown.endswith("'layer.18', … 1,001 more])")


def test_a_name_that_does_not_exist(path: Path, tmp_path: Path) -> None:
    with tg.open(path) as archive:
        with pytest.raises(KeyError, match=r"no such tensor; the names are 'w', 'b' \(tensor 'x'"):
            archive["x"]
        with pytest.raises(KeyError, match=r"no such tensor; the names are 'w', 'b' \(tensor 'x\*'"):
            archive["x*"]
    with pytest.raises(KeyError, match="no tensor matches the pattern; the names are 'w', 'b'"):
        tg.convert(path, tmp_path / "out.bt", select="x*")
    with pytest.raises(KeyError, match="no such tensor; the names are"):
        tg.convert(path, tmp_path / "out.bt", select="x")
    tg.save(path, {f"layer.{i}": np.ones(1) for i in range(6)})
    with tg.open(path) as archive, pytest.raises(KeyError, match=r"no such tensor \(tensor 'x'"):
        archive["x"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("mean", ": use .numpy().mean"),
        ("T", ": use .numpy().T"),
        ("cuda", ": .torch(device) returns a tensor of PyTorch"),
        ("foo", ""),
    ],
)
def test_methods_of_arrays_are_named(path: Path, name: str, hint: str) -> None:
    with tg.open(path) as archive, pytest.raises(AttributeError) as caught:
        getattr(archive["w"], name)
    assert str(caught.value) == f"'Tensor' object has no attribute '{name}'{hint}"
    assert caught.value.name == name


def test_a_tensor_without_a_name() -> None:
    assert repr(tg.dynd.array(np.zeros(3))) == "Tensor(float64[3], 24 B)"
    assert repr(tg.dynd.array([[1, 2], [3]])) == "Tensor(nested 2 * var * int64, 48 B)"


def test_names_of_the_package_are_public() -> None:
    assert not [name for name in dir(tg) if name.startswith("_") and name != "__version__"]
    assert {"load", "save", "open", "store"} <= set(dir(tg))
    assert "Any" not in dir(tg)
    with pytest.raises(AttributeError) as caught:
        tg.lod  # type: ignore[attr-defined]
    assert caught.value.obj is tg  # Python then suggests "load"


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (tg.bson, ["decode", "encode", "encode_matrix", "nearest"]),
        (tg.dynd, ["array", "parse", "serialize", "typeof"]),
        (tg.numpy, ["load_file", "safe_open", "save_file"]),
        (tg.report, ["Viewer", "write"]),
        (tg.store, ["Store", "apply", "delta", "patch"]),
    ],
)
def test_completion_offers_the_public_names_of_a_module(module: ModuleType, names: list[str]) -> None:
    assert sorted(dir(module)) == sorted(module.__all__)
    assert set(names) <= set(dir(module))


def test_completion_offers_modules_that_are_imported_when_used() -> None:
    assert dir(tg.bridges) == ["dask", "dcp"]


@pytest.mark.parametrize(
    ("target", "tensors", "options", "message"),
    [
        ("model.bt", np.ones(3), {}, "not ndarray: pass {'name': value}"),
        ("model.bt", [np.ones(3)], {}, "not list: pass {'name': value}"),
        ("model.bt", Module(), {}, "not Module: pass its state_dict()"),
        ("model.pt", WEIGHTS, {}, "pt can be read, not written (written: bintensors, ztensor, bson, safetensors, npz,"),
        ("model.zt", WEIGHTS, {"format": "onnx"}, "onnx can be read, not written (written: bintensors, ztensor, bson,"),
        ("model.zt", WEIGHTS, {"format": "ztensor@1.1"}, "not written (written: ztensor@0.1, ztensor@2)"),
        (
            "model.bt",
            WEIGHTS,
            {"metadata": {"step": 10}},
            "'step' is of type int, pass str(value) or json.dumps",
        ),
        ("model.zt", WEIGHTS, {"metadata": {10: "step"}}, "a metadata key must be a str, not int"),
    ],
)
def test_what_save_refuses_and_what_to_pass(
    tmp_path: Path, target: str, tensors: object, options: dict[str, object], message: str
) -> None:
    with pytest.raises(tg.InputError) as caught:
        tg.save(tmp_path / target, tensors, **options)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_bytes_and_file_objects_have_no_suffix() -> None:
    for save in (lambda: tg.dumps(WEIGHTS), lambda: tg.save(io.BytesIO(), WEIGHTS)):
        with pytest.raises(tg.InputError, match=r"^pass format= \(known: bintensors, ztensor, "):
            save()


def test_a_writer_without_with(tmp_path: Path) -> None:
    out = tg.Writer(tmp_path / "model.zt")
    out.add("b", np.zeros(3))
    sink = out.stream("w", "float32", (2, 3))
    sink.write(WEIGHTS["w"][:1])
    with pytest.raises(tg.InputError, match="too little data: 12 bytes are missing"):
        sink.close()
    sink.write(WEIGHTS["w"][1:])
    sink.close()
    with pytest.raises(tg.InputError, match="the stream is closed"):
        sink.write(b"")
    assert repr(out) == "Writer(ztensor@0.1, 2 tensors)"
    out.close()
    assert repr(out) == "Writer(ztensor@0.1, 2 tensors, closed)"
    assert (tg.load(tmp_path / "model.zt")["w"] == WEIGHTS["w"]).all()
