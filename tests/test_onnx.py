"""ONNX: initializers of every type, inline in every field and external; files of the onnx package; hostile files."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorglot as tg
from peers import needs
from tensorglot.containers.onnx.messages import DTYPES
from tensorglot.containers.onnx.varints import decode_varints

NAMED = {code: name for code, name in DTYPES.items() if name}


def varint(value: int) -> bytes:
    value %= 1 << 64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | bytes) -> bytes:
    """A varint, or bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def tensor(name: str = "x", type: int = 1, dims: Any = (2,), **fields: bytes | int) -> bytes:
    numbers = {"float": 4, "int32": 5, "string": 6, "int64": 7, "raw": 9, "double": 10, "uint64": 11, "location": 14}
    sizes = b"".join(field(1, size) for size in dims)
    return sizes + field(2, type) + field(8, name.encode()) + b"".join(field(numbers[k], v) for k, v in fields.items())


def entry(key: str, value: str) -> bytes:
    return field(13, field(1, key.encode()) + field(2, value.encode()))


def graph(*tensors: bytes, more: bytes = b"") -> bytes:
    return b"".join(field(5, one) for one in tensors) + more


def model(*tensors: bytes, more: bytes = b"") -> bytes:
    return field(1, 8) + field(7, graph(*tensors, more=more))


X = tensor(raw=bytes(8))


def kind_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def values_of(name: str) -> Any:
    """Some of the values that a type has."""
    kind = kind_of(name)
    values = np.random.default_rng(len(name)).integers(0, 2, 15)
    return values.astype(kind).reshape(3, 5)


def package_model() -> tuple[Any, dict[str, Any]]:
    onnx = needs("onnx")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    tensors, expected = [], {}
    for code, name in NAMED.items():
        values = values_of(name)
        tensors.append(numpy_helper.from_array(values, f"raw.{name}"))
        tensors.append(helper.make_tensor(f"field.{name}", code, values.shape, values.reshape(-1)))
        expected |= {f"raw.{name}": values, f"field.{name}": values}
    signed = np.array([-1, 2, -128, 127], np.int8)
    tensors.append(helper.make_tensor("negative", onnx.TensorProto.INT8, [4], signed))
    tensors.append(helper.make_tensor("wide", onnx.TensorProto.INT64, [2], [-(2**63), 2**63 - 1]))
    tensors.append(helper.make_tensor("none", onnx.TensorProto.FLOAT, [0, 3], []))
    tensors.append(helper.make_tensor("scalar", onnx.TensorProto.FLOAT, [], [2.5]))
    expected |= {
        "negative": signed, "wide": np.array([-(2**63), 2**63 - 1]), "none": np.zeros((0, 3), np.float32),
        "scalar": np.float32(2.5),
    }  # fmt: skip
    tensors.append(helper.make_tensor("words", onnx.TensorProto.STRING, [2], [b"a", b"bc"]))
    info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in ("in", "out")]
    made = helper.make_graph([helper.make_node("Relu", ["in"], ["out"])], "g", info[:1], info[1:], tensors)
    for name, indices in (("rows", [[0, 1], [2, 3]]), ("flat", [1, 11])):
        made.sparse_initializer.append(
            helper.make_sparse_tensor(
                numpy_helper.from_array(np.array([1.0, 2.0], np.float32), name),
                numpy_helper.from_array(np.array(indices, np.int64), "i"),
                [3, 4],
            )
        )
    whole = helper.make_model(made, producer_name="me")
    helper.set_model_props(whole, {"step": "10"})
    return whole, expected


def check(archive: tg.Archive, expected: dict[str, Any]) -> None:
    for name, values in expected.items():
        found = archive[name].numpy()
        assert found.dtype == values.dtype, name
        assert found.shape == values.shape, name
        assert found.tobytes() == values.tobytes(), name


class TestPackage:
    def test_every_type_inline(self, tmp_path: Path) -> None:
        whole, expected = package_model()
        path = tmp_path / "m.onnx"
        needs("onnx").save(whole, path)
        with tg.open(path) as archive:
            assert archive.format == "onnx@1"
            assert archive.metadata is not None
            assert (archive.metadata["step"], archive.metadata["onnx.producer_name"]) == ("10", "me")
            assert archive["raw.float32"].encoding == "raw"
            assert archive["field.int8"].encoding == "varints"
            check(archive, expected)
            assert archive["raw.float32"][1:, ::2].tolist() == expected["raw.float32"][1:, ::2].tolist()
            dense = [[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 2]]
            assert archive["rows"].layout == archive["flat"].layout == "zt.sparse_coo/1"
            needs("scipy")
            assert archive["rows"].scipy().toarray().tolist() == dense
            assert archive["flat"].scipy().toarray().tolist() == dense
            with pytest.raises(tg.UnsupportedError, match=r"rule dtype\.known"):
                archive["words"].numpy()
        assert tg.verify(path, deep=True).ok
        report = tg.convert(path, tmp_path / "m.zt", on_loss="drop")
        assert [loss.tensor for loss in report.losses] == ["words"]
        with tg.open(tmp_path / "m.zt") as archive:
            check(archive, expected)

    def test_external_data(self, tmp_path: Path) -> None:
        whole, expected = package_model()
        path = tmp_path / "m.onnx"
        needs("onnx").save(whole, path, save_as_external_data=True, location="m.data", size_threshold=0)
        raw = {name: values for name, values in expected.items() if name.startswith("raw.")}
        for backend in ("pread", "mmap"):
            with tg.open(path, backend=backend) as archive:  # type: ignore[arg-type]
                check(archive, raw)
        (tmp_path / "m.data").rename(tmp_path / "gone")
        with tg.open(path) as archive:
            assert len(archive) > 50, "listed without the values"
            with pytest.raises(tg.FormatError) as caught:
                archive["raw.float32"].numpy()
            assert caught.value.rule == "onnx.external.missing"
        with tg.open(path.read_bytes()[:], format="onnx") as archive, pytest.raises(tg.UnsupportedError) as refused:
            archive["raw.float32"].numpy()
        assert refused.value.rule == "onnx.external.path"
        (tmp_path / "m.data").write_bytes(b"short")
        with tg.open(path) as archive, pytest.raises(tg.TruncatedError):
            archive["raw.float64"].numpy()

    def test_a_subfolder(self, tmp_path: Path) -> None:
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "w").write_bytes(bytes(4) + struct.pack("<2f", 1, 2))
        outside = tensor(location=1) + entry("location", "sub/w") + entry("offset", "4") + entry("length", "8")
        (tmp_path / "m.onnx").write_bytes(model(outside))
        assert tg.load(tmp_path / "m.onnx")["x"].tolist() == [1, 2]


def external(location: str, **entries: str) -> bytes:
    more = b"".join(entry(key, value) for key, value in entries.items())
    return model(tensor(location=1) + entry("location", location) + more)


SPARSE_VALUES = field(1, tensor("s", dims=(2,), raw=bytes(8)))
INDICES = field(2, tensor(type=7, raw=struct.pack("<2q", 0, 3)))
REFUSED: dict[str, tuple[bytes, type[tg.TensorglotError], str]] = {
    "nothing": (b"", tg.FormatError, "graph"),
    "no graph": (field(1, 8), tg.FormatError, "graph"),
    "cut": (model(X)[:-1], tg.TruncatedError, "end"),
    "a varint cut": (b"\x08\xff", tg.TruncatedError, "end"),
    "a varint of 11 bytes": (b"\x08" + b"\xff" * 10 + b"\1", tg.FormatError, "varint"),
    "a group": (b"\x0b", tg.FormatError, "wire"),
    "wire type 7": (b"\x0f", tg.FormatError, "wire"),
    "field 0": (b"\x00\x00", tg.FormatError, "wire"),
    "length 2**63": (b"\x3a" + varint(2**63), tg.TruncatedError, "end"),
    "length past the message": (field(7, b"\x2a\x7f"), tg.TruncatedError, "end"),
    "length past an inner message": (field(7, field(5, b"\x4a\x7f")) + field(6, b"x" * 500), tg.FormatError, "span"),
    "two graphs": (model(X) + field(7, graph(X)), tg.FormatError, "field.twice"),
    "the graph a number": (field(7, 5), tg.FormatError, "field"),
    "an initializer a number": (field(7, field(5, 5)), tg.FormatError, "field"),
    "name twice": (model(X, X), tg.FormatError, "name.duplicate"),
    "two names": (model(X + field(8, b"y")), tg.FormatError, "field.twice"),
    "name not UTF-8": (model(field(8, b"\xff")), tg.FormatError, "utf8"),
    "rank 65": (model(tensor(dims=(1,) * 65, raw=bytes(4))), tg.LimitError, "limit.rank"),
    "rank 10**6": (model(field(1, b"\1" * 10**6) + tensor(dims=())), tg.LimitError, "limit.rank"),
    "a negative size": (model(tensor(dims=(-1,))), tg.FormatError, "shape"),
    "a product past 2**60": (model(tensor(dims=(2**31, 2**31))), tg.FormatError, "shape"),
    "a product past 2**60 beside 0": (model(tensor(dims=(2**31, 2**31, 0))), tg.FormatError, "shape"),
    "too little raw data": (model(tensor(raw=bytes(7))), tg.FormatError, "data.size"),
    "too much raw data": (model(tensor(raw=bytes(9))), tg.FormatError, "data.size"),
    "no data": (model(tensor()), tg.FormatError, "data.size"),
    "2**40 values in 8 bytes": (model(tensor(dims=(2**40,), raw=bytes(8))), tg.FormatError, "data.size"),
    "2**40 varints in 8 bytes": (model(tensor(type=6, dims=(2**40,), int32=bytes(8))), tg.FormatError, "data.size"),
    "data twice": (model(tensor(raw=bytes(8), float=bytes(8))), tg.FormatError, "data.twice"),
    "data in two pieces": (model(tensor(float=bytes(4)) + field(4, bytes(4))), tg.UnsupportedError, "data.pieces"),
    "data not packed": (model(tensor(type=6) + field(5, 1)), tg.UnsupportedError, "data.pieces"),
    "floats as varints": (model(tensor(int32=b"\1\1")), tg.FormatError, "data.field"),
    "int64 in int32_data": (model(tensor(type=7, int32=b"\1\1")), tg.FormatError, "data.field"),
    "a segment": (model(X + field(3, b"")), tg.UnsupportedError, "tensor.segment"),
    "metadata twice": (
        model(X) + 2 * field(14, field(1, b"k") + field(2, b"v")), tg.FormatError, "metadata.duplicate",
    ),
    "metadata twice without values": (model(X) + 2 * field(14, field(1, b"k")), tg.FormatError, "metadata.duplicate"),
    "metadata of our own": (
        model(X) + field(14, field(1, b"onnx.opset.ai.onnx")) + field(8, field(2, 1)), tg.FormatError,
        "metadata.duplicate",
    ),
    "1001 operator sets": (model(X) + 1001 * field(8, field(2, 21)), tg.LimitError, "limit.opsets"),
    "text that is a number": (model(tensor(type=8) + field(6, 1)), tg.FormatError, "field"),
    "inline and external": (model(tensor(raw=bytes(8), location=1)), tg.FormatError, "data.twice"),
    "location 2": (model(tensor(location=2)), tg.FormatError, "external.location"),
    "no location": (model(tensor(location=1)), tg.FormatError, "external.location"),
    "a location twice": (
        model(tensor(location=1) + entry("location", "a") + entry("location", "a ")), tg.FormatError,
        "external.duplicate",
    ),
    "a key twice without values": (
        model(tensor(location=1) + 2 * field(13, field(1, b"k"))), tg.FormatError, "external.duplicate",
    ),
    "an offset of words": (external("w", offset="0x10"), tg.FormatError, "external.number"),
    "a negative offset": (external("w", offset="-1"), tg.FormatError, "external.number"),
    "an offset of 2**63": (external("w", offset=str(2**63)), tg.FormatError, "external.number"),
    "another length": (external("w", length="9"), tg.FormatError, "data.size"),
    "sparse without indices": (model(more=field(15, SPARSE_VALUES)), tg.FormatError, "sparse"),
    "sparse without a shape": (
        model(more=field(15, SPARSE_VALUES + field(2, tensor(type=7, raw=bytes(16))))), tg.FormatError, "sparse",
    ),
    "sparse out of bounds": (
        model(more=field(15, SPARSE_VALUES + field(2, tensor(type=7, raw=struct.pack("<2q", 0, 4))) + field(3, 4))),
        tg.FormatError, "sparse",
    ),
    "a position out of bounds": (
        model(more=field(15, SPARSE_VALUES + field(2, tensor(type=7, int64=b"\0\4")) + field(3, b"\2\2"))),
        tg.FormatError, "sparse",
    ),
    "a negative position": (
        model(more=field(15, SPARSE_VALUES + field(2, tensor(type=7, raw=struct.pack("<2q", 0, -1))) + field(3, 4))),
        tg.FormatError, "sparse",
    ),
    "sparse of 2**63 elements": (
        model(more=field(15, SPARSE_VALUES + INDICES + field(3, 2**31) + field(3, 2**32))), tg.FormatError, "sparse",
    ),
    "sparse of other indices": (
        model(more=field(15, SPARSE_VALUES + field(2, tensor(type=6, raw=bytes(8))) + field(3, 4))),
        tg.FormatError, "sparse",
    ),
    "sparse values twice": (model(more=field(15, SPARSE_VALUES * 2)), tg.FormatError, "field.twice"),
    "sparse of text": (
        model(more=field(15, field(1, tensor("s", 8, string=b"a") + field(6, b"b")) + INDICES + field(3, 4))),
        tg.UnsupportedError, "sparse",
    ),
    "a domain twice": (model(X) + field(8, field(1, b"a") + field(1, b"b")), tg.FormatError, "field.twice"),
    "sizes cut": (model(field(1, b"\x80") + tensor(dims=())), tg.FormatError, "varint"),
    "sizes of 8 bytes": (model(b"\x09" + bytes(8) + tensor(dims=())), tg.FormatError, "field"),
    **{
        f"the file {location!r}": (external(location), tg.FormatError, "external.location")
        for location in ("../w", "/etc/passwd", "a/../../w", "", "a//b", "a\\b", "C:w", "a\0b", "./", "x" * 256)
    },
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    data, kind, rule = REFUSED[case]
    with pytest.raises(tg.TensorglotError) as caught:
        tg.open(data, format="onnx")
    assert type(caught.value) is kind
    assert caught.value.rule == f"onnx.{rule}"


@pytest.mark.parametrize(
    ("type", "fields", "rule"),
    [
        (6, {"int32": b"\x80\x01"}, "onnx.data.count"),
        (6, {"int32": b"\1\x80"}, "onnx.data.count"),
        (3, {"int32": b"\1" + varint(200)}, "onnx.data.range"),
        (2, {"int32": b"\1" + varint(-1)}, "onnx.data.range"),
        (9, {"raw": b"\1\2"}, "values.bool"),
    ],
)
def test_values_that_break_a_rule_are_refused_when_read(type: int, fields: dict[str, bytes], rule: str) -> None:
    with tg.open(model(tensor(type=type, **fields)), format="onnx") as archive:  # type: ignore[arg-type]
        with pytest.raises(tg.FormatError) as caught:
            archive["x"].numpy()
        assert (caught.value.rule, caught.value.tensor) == (rule, "x")


@pytest.mark.parametrize("dims", [(2,), (2, 1)])
@pytest.mark.parametrize("data", [{"raw": struct.pack("<2q", 1, 3)}, {"int64": b"\1\3"}])
def test_forms_of_indices(dims: tuple[int, ...], data: dict[str, bytes]) -> None:
    indices = tensor(type=7, dims=dims, **data)  # type: ignore[arg-type]
    sparse = field(1, tensor("s", raw=struct.pack("<2f", 5, 6))) + field(2, indices)
    with tg.open(model(more=field(15, sparse + field(3, 4))), format="onnx") as archive:
        parts = archive["s"].parts
        assert parts["coords"].shape == (1, 2)
        assert bytes(parts["coords"].payload.read(0, 16)) == struct.pack("<2q", 1, 3)
        assert bytes(parts["values"].payload.read(0, 8)) == struct.pack("<2f", 5, 6)


@pytest.mark.parametrize("data", [{"raw": struct.pack("<3q", 1, 5, 0)}, {"int64": b"\1\5\0"}])
def test_positions_in_several_dimensions(data: dict[str, bytes], tmp_path: Path) -> None:
    values = field(1, tensor("s", 2, (3,), raw=bytes((7, 8, 9))))
    sparse = values + field(2, tensor(type=7, dims=(3,), **data)) + field(3, b"\2\3")  # type: ignore[arg-type]
    external = values + field(2, tensor(type=7, dims=(3,), location=1) + entry("location", "w"))
    (tmp_path / "w").write_bytes(struct.pack("<3q", 1, 5, 0))
    path = tmp_path / "a.onnx"
    path.write_bytes(model(X, more=field(15, sparse) + field(15, external.replace(b"s", b"t") + field(3, b"\2\3"))))
    with tg.open(path) as archive:
        for name in ("s", "t"):
            coords = archive[name].parts["coords"]
            assert coords.shape == (2, 3)
            assert coords.array(name).tolist() == [[0, 1, 0], [1, 2, 0]]
            assert bytes(coords.payload.read(8, 24)) == struct.pack("<3q", 1, 0, 1)
            assert str(archive[name].type) == "2 * 3 * uint8"
            assert archive[name].scipy().toarray().tolist() == [[9, 7, 0], [0, 0, 8]]


def test_values_are_what_they_were_when_read(tmp_path: Path) -> None:
    """Positions in another file are checked when the model is opened, and again when they are read."""
    (tmp_path / "w").write_bytes(struct.pack("<2q", 0, 3))
    indices = field(2, tensor(type=7, location=1) + entry("location", "w"))
    path = tmp_path / "a.onnx"
    path.write_bytes(model(more=field(15, SPARSE_VALUES + indices + field(3, b"\2\2"))))
    with tg.open(path) as archive:
        (tmp_path / "w").write_bytes(struct.pack("<2q", 0, 4))
        with pytest.raises(tg.FormatError) as caught:
            archive["s"].parts["coords"].array("s")
        assert (caught.value.rule, caught.value.tensor) == ("onnx.sparse", "s")
    with pytest.raises(tg.FormatError, match="out of bounds"):
        tg.open(path)


def test_operator_sets() -> None:
    one, other = field(8, field(2, 21)), field(8, field(1, b"com.x") + field(2, -1) + field(9, 1))
    with tg.open(model(X) + one + other, format="onnx") as archive:
        assert archive.metadata == {"onnx.ir_version": "8", "onnx.opset.ai.onnx": "21", "onnx.opset.com.x": "-1"}


def test_properties_of_the_model() -> None:
    properties = field(2, b"me") + field(3, b"1.0") + field(4, b"org.x") + field(5, -7) + field(6, b"words")
    with tg.open(model(X) + properties, format="onnx") as archive:
        assert archive.metadata == {
            "onnx.ir_version": "8",
            "onnx.producer_name": "me",
            "onnx.producer_version": "1.0",
            "onnx.domain": "org.x",
            "onnx.model_version": "-7",
            "onnx.doc_string": "words",
        }


def test_text_beyond_what_is_read_at_a_time() -> None:
    words = "x" * 100_000
    archive = tg.open(model(X) + field(6, words.encode()), format="onnx")
    assert archive.metadata["onnx.doc_string"] == words


def test_there_is_no_canonical_form() -> None:
    with pytest.raises(tg.UnsupportedError) as caught:
        tg.open(model(X), format="onnx", strict=True)
    assert caught.value.rule == "onnx.strict"


@pytest.mark.parametrize("target", ["x.safetensors", "x.bt", "x.npz", "x.zt", "x.gguf"])
def test_a_model_converts_without_a_loss(tmp_path: Path, target: str) -> None:
    """Metadata is text, which every format with metadata has."""
    (tmp_path / "m.onnx").write_bytes(field(8, field(1, b"ai.onnx") + field(2, 21)) + model(X))
    assert tg.convert(tmp_path / "m.onnx", tmp_path / target).plan.losses == ()  # type: ignore[union-attr]
    with tg.open(tmp_path / target) as archive:
        assert archive.metadata is not None
        assert archive.metadata["onnx.opset.ai.onnx"] == "21"


def test_external_values_of_a_closed_archive(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(bytes(8))
    (tmp_path / "m.onnx").write_bytes(external("w"))
    with tg.open(tmp_path / "m.onnx") as archive:
        held = archive["x"]
    with pytest.raises(tg.InputError) as caught:
        held.numpy()
    assert caught.value.rule == "archive.closed"


def test_limits() -> None:
    data = model(X, tensor("y", raw=bytes(8)))
    for limits in (tg.Limits(tensors=1), tg.Limits(header_nbytes=20), tg.Limits(name_nbytes=0), tg.Limits(rank=0)):
        with pytest.raises(tg.LimitError):
            tg.open(data, format="onnx", limits=limits)


def test_limits_may_be_reached() -> None:
    data = model(tensor("ä" * 5, raw=bytes(8)), X) + 1000 * field(8, field(2, 21))
    with tg.open(data, format="onnx", limits=tg.Limits(tensors=2, name_nbytes=10, rank=1)) as archive:
        assert list(archive) == ["ä" * 5, "x"]
    with pytest.raises(tg.LimitError, match="more than 9 bytes"):
        tg.open(data, format="onnx", limits=tg.Limits(name_nbytes=9))


def test_what_is_not_an_initializer_is_skipped_unread(tmp_path: Path) -> None:
    """Nodes of 1 GB, with a limit of 1 MB on what may be read."""
    path = tmp_path / "m.onnx"
    nodes = varint(1 << 3 | 2) + varint(1 << 30)
    rest = graph(X)
    with path.open("wb") as file:
        file.write(field(1, 8) + varint(7 << 3 | 2) + varint(len(nodes) + (1 << 30) + len(rest)) + nodes)
        file.seek(1 << 30, os.SEEK_CUR)
        file.write(rest)
    with tg.open(path, limits=tg.Limits(header_nbytes=1 << 20)) as archive:
        assert archive["x"].numpy().tolist() == [0, 0]


def test_mutants_raise_only_our_errors() -> None:
    rng = random.Random(4)
    tensors = [X, tensor("y", 6, (3,), int32=b"\1\2\3"), tensor("z", 22, (3,), raw=b"\x21\3")]
    sparse = field(15, SPARSE_VALUES + field(2, tensor(type=7, raw=struct.pack("<2q", 0, 3))) + field(3, 4))
    base = model(*tensors, more=sparse) + field(14, field(1, b"k") + field(2, b"v"))
    accepted = 0
    for _ in range(3000):
        mutant = bytearray(base)
        for _ in range(rng.randrange(1, 4)):
            mutant[rng.randrange(len(mutant))] = rng.choice([0, 1, 2, 8, 0x2A, 0x3A, 127, 128, 255, rng.randrange(256)])
        try:
            with tg.open(bytes(mutant), format="onnx") as archive:
                for held in archive.values():
                    if held.layout == "dense":
                        held.numpy()
            accepted += 1
        except tg.TensorglotError:
            pass
    assert 0 < accepted < 3000


@pytest.mark.parametrize(
    ("data", "numbers"),
    [
        ("", []), ("00", [0]), ("7f01", [127, 1]), ("8001ff7f", [128, 16383]), ("ff" * 9 + "01", [2**64 - 1]),
        ("80", None), ("0180", None), ("ff" * 10 + "01", None),
    ],
)  # fmt: skip
def test_packed_varints(data: str, numbers: list[int] | None) -> None:
    """None where the last one is cut, or one has more than ten bytes."""
    found = decode_varints(np.frombuffer(bytes.fromhex(data), np.uint8))
    assert (None if found is None else found.tolist()) == numbers


def test_long_metadata_and_operator_sets_that_are_repeated() -> None:
    operators = field(8, field(1, b"ai.onnx.ml") + field(2, 3))
    properties = field(14, field(1, b"short") + field(2, b"x")) + field(14, field(1, b"long") + field(2, b"y" * 9000))
    with tg.open(model(X) + operators * 2 + properties, format="onnx") as archive:
        found = archive.metadata
    assert found is not None
    assert (found["short"], found["long"], found["onnx.opset.ai.onnx.ml"]) == ("x", "y" * 9000, "3")


def test_tensors_of_one_type_and_size_in_varints() -> None:
    values = {name: np.array([number, -number]) for number, name in enumerate("abc")}
    tensors = [tensor(name, 7, (2,), int64=b"".join(map(varint, array.tolist()))) for name, array in values.items()]
    found = tg.loads(model(*tensors), format="onnx")
    assert {name: array.tolist() for name, array in found.items()} == {k: v.tolist() for k, v in values.items()}


def test_a_varint_cut_by_the_end_of_the_file() -> None:
    with pytest.raises(tg.TruncatedError, match="needs 6 bytes, has 5"):
        tg.loads(b"\x08\x08\x3a\x80\x80", format="onnx")


def test_numbers_without_a_sign_in_varints() -> None:
    numbers = [1, 1 << 63, (1 << 64) - 1]
    found = tg.loads(model(tensor("u", 13, (3,), uint64=b"".join(map(varint, numbers)))), format="onnx")
    assert (found["u"].dtype, found["u"].tolist()) == (np.uint64, numbers)


@pytest.mark.parametrize("number", [1, 11])
def test_a_field_at_any_place_of_what_is_read_at_a_time(number: int) -> None:
    """The graph is read in windows of 64 KiB. Fields that are not initializers are skipped also at the end of one."""
    following = field(number, bytes(20_000)) + field(5, tensor("last", raw=b"12345678"))
    for filler in range((1 << 16) - 60, 1 << 16):
        found = tg.loads(model(X, more=field(12, bytes(filler)) + following), format="onnx")
        assert {name: array.tobytes() for name, array in found.items()} == {"x": bytes(8), "last": b"12345678"}


def test_values_that_are_said_to_be_in_the_model() -> None:
    """`data_location` 0 is the default, and may be written."""
    assert tg.loads(model(tensor(location=0, raw=bytes(8))), format="onnx")["x"].tolist() == [0, 0]


@pytest.mark.parametrize("end", [b"\x80", b"\x80\x80", b"\xff" * 9])
def test_a_tensor_that_ends_within_a_key(end: bytes) -> None:
    with pytest.raises(tg.FormatError, match=r"rule onnx\.end"):
        tg.loads(model(X + end), format="onnx")
