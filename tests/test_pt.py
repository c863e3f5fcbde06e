"""Files of torch.save: equal to what torch.load finds, and nothing is ever executed."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import pickle
import pickletools
import random
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from arrays import raw
from peers import needs, peer
from tensorglot.model.payload import Span

CORPUS = Path(__file__).parent / "corpus" / "pt"
MAKER = Path(__file__).parent / "pt_maker.py"
MANIFEST: dict[str, dict[str, Any]] = json.loads((CORPUS / "manifest.json").read_text())


def entries(path: Path) -> dict[str, Any]:
    with tg.open(path) as archive:
        return {
            name: [
                tensor.parts["data"].dtype.name,  # type: ignore[union-attr]
                list(tensor.shape),
                hashlib.sha256(raw(tensor.numpy())).hexdigest(),
            ]
            for name, tensor in archive.items()
        }


def bytes_of(chunk: Any) -> bytes:
    return bytes(chunk.read(0, chunk.nbytes) if isinstance(chunk, Span) else chunk)


class TestCorpus:
    """Made with torch 2.13.0; the manifest has what torch.load finds."""

    def test_it_is_complete(self) -> None:
        assert {path.name for path in CORPUS.glob("*.pt")} == set(MANIFEST)

    @pytest.mark.parametrize("file", MANIFEST)
    def test_equal_to_torch(self, file: str) -> None:
        assert entries(CORPUS / file) == MANIFEST[file]
        assert set(tg.load(CORPUS / file)) == set(MANIFEST[file])

    @pytest.mark.parametrize("file", [file for file in MANIFEST if file.startswith("strided")])
    def test_pieces_are_the_whole(self, file: str) -> None:
        with tg.open(CORPUS / file) as archive:
            assert archive["transposed"].encoding == "strided"
            for tensor in archive.values():
                payload = tensor.parts["data"].payload
                assert bytes(payload.read(0, payload.nbytes)) == raw(tensor.numpy())
                assert b"".join(map(bytes_of, payload.chunks())) == raw(tensor.numpy())
            copy = tg.loads(tg.dumps(archive, format="safetensors"))
            assert all(raw(copy[name]) == raw(tensor.numpy()) for name, tensor in archive.items())

    @pytest.mark.parametrize("file", [file for file in MANIFEST if file.startswith("checkpoint")])
    def test_metadata(self, file: str) -> None:
        with tg.open(CORPUS / file) as archive:
            assert archive.metadata is not None
            said = dict(archive.metadata)
        assert said["optimizer.param_groups.0.betas"] == [0.9, 0.999]
        assert {key: value for key, value in said.items() if "." not in key} == {
            "epoch": 3, "loss": float("inf"), "large": 2**100, "negative": -5, "name": "é", "raw": b"\0\xff",
            "nothing": None, "yes": True, "shape": [1, 2], "device": "cuda:1", "dtype": "torch.bfloat16",
        }  # fmt: skip

    def test_a_state_dict_has_no_metadata(self) -> None:
        with tg.open(CORPUS / "module.pt") as archive:
            assert archive.metadata is None
            assert archive.format == "pt@zip"
        assert tg.open(CORPUS / "module.legacy.pt").format == "pt@legacy"

    def test_tied_tensors_share_their_bytes(self) -> None:
        with tg.open(CORPUS / "tied.pt") as archive:
            assert archive["a"].offset == archive["b"].offset != archive["c"].offset

    def test_detected_without_a_suffix(self) -> None:
        for file in ("dtypes.pt", "dtypes.legacy.pt"):
            assert len(tg.loads((CORPUS / file).read_bytes())) == 24

    def test_shards_of_pytorch(self, tmp_path: Path) -> None:
        for file in ("tied.pt", "strided.pt"):
            (tmp_path / file.replace(".pt", ".bin")).write_bytes((CORPUS / file).read_bytes())
        weight_map = dict.fromkeys(MANIFEST["tied.pt"], "tied.bin")
        weight_map |= dict.fromkeys(MANIFEST["strided.pt"], "strided.bin")
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
        assert entries(tmp_path) == MANIFEST["tied.pt"] | MANIFEST["strided.pt"]

    def test_checksums_are_those_of_whole_storages(self) -> None:
        with tg.open(CORPUS / "strided.pt") as archive:
            assert archive["whole"].checksum is not None
            assert archive["late"].checksum is None


@pytest.mark.peers
def test_torch_makes_them_anew(tmp_path: Path) -> None:
    subprocess.run([peer("torch"), MAKER, tmp_path], check=True, timeout=300)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest.keys() == MANIFEST.keys()
    for file, expected in manifest.items():
        assert entries(tmp_path / file) == expected


def zipped(data: bytes, storages: dict[str, bytes] | None = None, **more: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        stored = {f"data/{key}": content for key, content in (storages or {}).items()}
        for name, content in {"data.pkl": data, **more, **stored}.items():
            archive.writestr(zipfile.ZipInfo(f"x/{name}"), content)  # of a fixed date
    return file.getvalue()


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def name(full: str) -> bytes:
    module, _, last = full.rpartition(".")
    return f"c{module}\n{last}\n".encode()


def integers(*values: int) -> bytes:
    return b"(" + b"".join(b"\x8a\x09" + value.to_bytes(9, "little", signed=True) for value in values) + b"t"


def number(value: int) -> bytes:
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)


def stored(key: str = "0", count: int = 6, kind: str = "torch.FloatStorage") -> bytes:
    return b"(" + text("storage") + name(kind) + text(key) + text("cpu") + number(count) + b"tQ"


def view(
    storage: bytes | None = None, offset: bytes = b"K\0", shape: bytes = integers(2, 3), strides: bytes = integers(3, 1)
) -> bytes:
    hooks = name("collections.OrderedDict") + b")R"
    return (
        name("torch._utils._rebuild_tensor_v2")
        + b"("
        + (stored() if storage is None else storage)
        + offset
        + shape
        + strides
        + b"\x89"
        + hooks
        + b"tR"
    )


def pickled(body: bytes) -> bytes:
    return b"\x80\x02" + body + b"."


def held(tensor: bytes, key: str = "w") -> bytes:
    return pickled(b"}(" + text(key) + tensor + b"u")


def made(function: str, *arguments: bytes) -> bytes:
    return name(function) + b"(" + b"".join(arguments) + b"tR"


LONG = stored("1", 4, "torch.LongStorage")
SPARSE = {"0": np.arange(6, dtype="<f4").tobytes(), "1": np.array([[0, 1], [1, 0]], "<i8").tobytes()}


def sparse_body(
    layout: str = "torch.sparse_coo",
    indices: bytes = view(LONG, shape=integers(2, 2), strides=integers(2, 1)),
    shape: bytes = integers(2, 2),
    count: int = 2,
) -> bytes:
    values = view(shape=integers(count), strides=integers(1))
    return made(
        "torch._utils._rebuild_sparse_tensor",
        made("torch.serialization._get_layout", text(layout)),
        b"(" + indices + values + shape + b"\x88t",
    )


def sparse(coords: bytes = SPARSE["1"]) -> bytes:
    return zipped(held(sparse_body()), {**SPARSE, "1": coords})


def quantized_body(
    quantizer: bytes = b"(" + name("torch.per_tensor_affine") + b"G" + struct.pack(">d", 0.5) + b"K\3t",
    shape: bytes = integers(2, 3),
    strides: bytes = integers(3, 1),
) -> bytes:
    codes = stored("2", 6, "torch.QInt8Storage")
    return made("torch._utils._rebuild_qtensor", codes, b"K\0", shape, strides, quantizer, b"\x89", b"N")


def by_channel(scales: bytes, zeros: bytes, axis: bytes = b"K\0") -> bytes:
    return b"(" + name("torch.per_channel_affine") + scales + zeros + axis + b"t"


PAIR = view(shape=integers(2), strides=integers(1))
ZEROS = view(LONG, shape=integers(2), strides=integers(1))
CODES = {**SPARSE, "2": bytes(range(6))}


DATA = {"0": np.arange(6, dtype="<f4").tobytes()}
LEGACY = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)
MACHINE = pickle.dumps({"little_endian": True}, 2)


def legacy(body: bytes, keys: Any = ("0",), behind: bytes = struct.pack("<q", 6) + DATA["0"]) -> bytes:
    return LEGACY + MACHINE + body + pickle.dumps(list(keys), 2) + behind


class TestHandmade:
    def test_a_tensor(self) -> None:
        for data in (zipped(held(view()), DATA), legacy(held(view()))):
            assert tg.loads(data, format="pt")["w"].tolist() == [[0, 1, 2], [3, 4, 5]]

    def test_big_endian(self) -> None:
        data = {"0": np.arange(6, dtype=">f4").tobytes()}
        turned = view(shape=integers(3, 2), strides=integers(1, 3))
        for body in (view(), turned):
            expected = tg.loads(zipped(held(body), DATA))["w"]
            assert (tg.loads(zipped(held(body), data, byteorder=b"big"))["w"] == expected).all()
        machine = pickle.dumps({"little_endian": False}, 2)
        old = LEGACY + machine + held(view()) + pickle.dumps(["0"], 2) + struct.pack("<q", 6) + data["0"]
        assert tg.loads(old)["w"].tolist() == [[0, 1, 2], [3, 4, 5]]

    def test_a_view_of_a_storage(self) -> None:
        old = (
            b"(" + text("storage") + name("torch.FloatStorage") + text("0") + text("cpu") + number(6)
            + b"(" + text("v") + number(2) + number(4) + b"ttQ"
        )  # fmt: skip
        body = view(old, shape=integers(4), strides=integers(1))
        assert tg.loads(legacy(held(body)))["w"].tolist() == [2, 3, 4, 5]

    @pytest.mark.parametrize("byte", [b"N", b"\x88", b"\x89"])
    def test_lists_whose_values_take_a_byte_each(self, byte: bytes) -> None:
        """A list of 60,000 bools is data; it is not a nest."""
        for values, names in ((60_000 * byte, []), (60_000 * byte + view(), ["w.60000"])):
            data = zipped(held(b"](" + values + b"e"), DATA)
            with tg.open(data, format="pt") as archive:
                assert list(archive) == names
                found = archive.metadata
            value = {b"N": None, b"\x88": True, b"\x89": False}[byte]
            assert found == ({f"w.{i}": value for i in range(60_000)} if names else {"w": 60_000 * [value]})

    @pytest.mark.parametrize("before", [0, 4094, 65_000, 65_520])
    def test_runs_of_an_opcode(self, before: int) -> None:
        """They are taken at once, as far as the bytes are there: 64 KiB at first."""
        r = random.Random(before)
        body = b"N" * before
        for _ in range(300):
            count = r.choice((1, 2, 3, 40, 3000))
            body += r.choice([b"N", b"\x88", b"\x89", b"K" + r.randbytes(1), b"h\0", b"h\1", b"M\5\2"]) * count
        values = b"\x80\x04(K\7\x94K\x09\x94" + body + b"l"
        assert tg.open(zipped(values[:2] + b"}" + text("w") + values[2:] + b"s."), format="pt").metadata == {
            "w": pickle.loads(values + b".")
        }

    def test_a_memo_that_is_not_there_in_a_run(self) -> None:
        body = b"\x80\x04]\x94(" + b"h\0" * 500
        with pytest.raises(tg.FormatError, match="memo has no entry 7") as caught:
            tg.open(legacy(body + b"h\7" + b"h\0" * 500 + b"t."), format="pt")
        assert caught.value.offset == legacy(body + b"h\7").rindex(b"h\7") + 2

    def test_an_unused_storage_is_noted(self) -> None:
        data = zipped(held(view()), {**DATA, "7": b"hidden"})
        assert [note.rule for note in tg.open(data).notes] == ["pt.storage.unused"]
        with pytest.raises(tg.FormatError, match=r"rule pt\.storage\.unused"):
            tg.open(data, strict=True)


class Trace:
    """Any call that a pickle could make would be seen."""

    def __init__(self, path: Path, how: Callable[..., Any], *arguments: Any) -> None:
        self.how, self.arguments = how, arguments

    def __reduce__(self) -> Any:
        return self.how, self.arguments


class TestPartsOfTorch:
    """Sparse and quantized tensors, made with torch 2.13.0; dense.json has their values."""

    FILES = sorted((CORPUS / "parts").glob("*.pt"))
    DENSE: dict[str, list[list[float]]] = json.loads((CORPUS / "parts" / "dense.json").read_text())

    @pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
    def test_values(self, file: Path) -> None:
        with tg.open(file) as archive:
            assert len(archive) == 8
            for name in archive:
                tensor = archive[name]
                if tensor.layout.startswith("zt.sparse"):
                    values = tensor.scipy().toarray()
                else:
                    values = tensor.numpy() if tensor.layout == "dense" else tensor.dequantize()
                assert values.astype(np.float32).tolist() == self.DENSE[name], name

    @pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
    def test_other_forms_are_noted_and_the_rest_is_read(self, file: Path) -> None:
        with tg.open(file) as archive:
            left_out = {"csc": "pt.sparse", "hybrid": "pt.sparse", "qint32": "pt.quantized", "turned": "pt.quantized"}
            assert set(archive) == self.DENSE.keys() - left_out.keys()
            assert {note.message.split("'")[1]: note.rule for note in archive.notes} == left_out
        with pytest.raises(tg.FormatError, match="csc"):
            tg.open(file, strict=True)

    def test_they_are_stored_where_the_format_has_layouts(self, tmp_path: Path) -> None:
        tg.convert(self.FILES[0], tmp_path / "x.zt", on_loss="drop")
        assert tg.diff(self.FILES[0], tmp_path / "x.zt").equal

    def test_two_values_at_one_place_are_refused_when_they_are_read(self) -> None:
        twice = sparse(coords=np.array([[0, 0], [1, 1]], "<i8").tobytes())
        with tg.open(twice) as archive, pytest.raises(tg.FormatError, match="same coordinates"):
            archive["w"].scipy()


def evil_pickles(target: Path) -> dict[str, bytes]:
    """Pickles that would make a folder if anybody ran them."""
    import os

    made = str(target)
    line = made.encode()
    return {
        "os.mkdir by REDUCE": pickle.dumps(Trace(target, os.mkdir, made), 2),
        "os.mkdir by STACK_GLOBAL": pickle.dumps(Trace(target, os.mkdir, made), 4),
        "eval": pickle.dumps(Trace(target, eval, f"__import__('os').mkdir({made!r})"), 2),
        "exec": pickle.dumps(Trace(target, exec, f"import os; os.mkdir({made!r})"), 2),
        "getattr": pickle.dumps(Trace(target, getattr, os, "mkdir"), 2)
        if False
        else b"\x80\x02c__builtin__\ngetattr\n.",
        "INST": b"\x80\x02(X" + struct.pack("<I", len(line)) + line + b"ios\nmkdir\n.",
        "OBJ": b"\x80\x02(cos\nmkdir\nX" + struct.pack("<I", len(line)) + line + b"o.",
        "NEWOBJ": b"\x80\x02cos\nmkdir\nX" + struct.pack("<I", len(line)) + line + b"\x85\x81.",
        "NEWOBJ of an allowed name": b"\x80\x02ctorch\nSize\n)\x81.",
        "NEWOBJ_EX": b"\x80\x04ctorch\nSize\n)}\x92.",
        "EXT1": b"\x80\x02\x82\x01.",
        "EXT2": b"\x80\x02\x83\x01\x00.",
        "EXT4": b"\x80\x02\x84\x01\x00\x00\x00.",
        "PERSID": b"\x80\x02Pos\n.",
        "BUILD of a tensor": pickled(view() + b"}b"),
        "BUILD of a name": pickled(name("torch.float32") + b"}b"),
        "a call of what is no function": pickled(name("torch.float32") + b")R"),
        "torch.load of bytes": pickled(name("torch.storage._load_from_bytes") + b"C\x01x\x85R"),
        "a module": pickled(name("torch.nn.modules.linear.Linear") + b")\x81"),
        "a nested attribute": b"\x80\x04\x8c\x05torch\x8c\x0dSize.__call__\x93.",
        "importlib": pickled(name("importlib.import_module") + text("os") + b"\x85R"),
        "numpy": pickled(name("numpy.core.multiarray._reconstruct") + b")R"),
        "a sparse tensor by another function": pickled(name("torch.sparse_coo_tensor") + b")R"),
    }


EVIL_RULES = {
    **dict.fromkeys(("INST", "NEWOBJ of an allowed name", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID"), "opcode"),
    **dict.fromkeys(("BUILD of a tensor", "BUILD of a name"), "build"),
    "a call of what is no function": "call",
}
"""All others end at a name that is not allowed."""


class TestNothingIsExecuted:
    @pytest.mark.parametrize("case", list(evil_pickles(Path("/"))))
    def test_refused(self, case: str, tmp_path: Path) -> None:
        target = tmp_path / "made"
        body = evil_pickles(target)[case]
        inside = pickled(b"}(" + text("a") + body[2:-1] + b"u")
        for data in (zipped(body, DATA), legacy(body), zipped(inside, DATA)):
            with pytest.raises(tg.TensorglotError) as caught:
                tg.load(data, format="pt")
            assert caught.value.rule == f"pt.pickle.{EVIL_RULES.get(case, 'global')}"
        assert not target.exists()

    def test_the_traps_work(self, tmp_path: Path) -> None:
        """A trap that catches nobody proves nothing: the real pickle module falls into it."""
        for case in ("os.mkdir by REDUCE", "os.mkdir by STACK_GLOBAL", "eval", "exec", "INST", "OBJ"):
            target = tmp_path / case
            pickle.loads(evil_pickles(target)[case])
            assert target.exists()

    @pytest.mark.parametrize("known", pickletools.opcodes, ids=lambda known: known.name)
    def test_every_opcode_is_interpreted_or_refused_by_name(self, known: pickletools.OpcodeInfo) -> None:
        needed = {
            "MARK", "STOP", "PROTO", "FRAME", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1",
            "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
            "BINBYTES8", "BINSTRING", "SHORT_BINSTRING", "EMPTY_LIST", "APPEND", "APPENDS", "LIST", "EMPTY_TUPLE",
            "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "SETITEM", "SETITEMS", "DICT", "BINGET",
            "LONG_BINGET", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "BINPERSID",
        }  # fmt: skip
        pickled = b"\x80\x02" + (b"" if known.name == "PROTO" else known.code.encode("latin-1")) + bytes(20)
        with pytest.raises(tg.TensorglotError) as caught:
            tg.open(zipped(pickled), format="pt")
        assert (f"opcode {known.name} " in caught.value.message) == (known.name not in needed)
        assert known.name in needed or caught.value.rule == "pt.pickle.opcode"

    def test_bytes_that_are_not_an_opcode(self) -> None:
        for code in set(range(256)) - {ord(known.code) for known in pickletools.opcodes}:
            with pytest.raises(tg.UnsupportedError, match=f"0x{code:02X}"):
                tg.open(zipped(b"\x80\x02" + bytes([code])), format="pt")

    def test_torch_is_not_imported(self) -> None:
        script = (
            "import sys, tensorglot as tg\n"
            f"tg.load({str(CORPUS / 'checkpoint.pt')!r})\n"
            "assert not {'torch', 'pickle'} & (set(sys.modules) - BEFORE), 'imported'\n"
        )
        script = "import sys, numpy, ml_dtypes, concurrent.futures\nBEFORE = set(sys.modules)\n" + script
        subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def shared_nest(depth: int) -> bytes:
    """A list of two of a list of two of …"""
    body = b"(]K\0a\x94"
    for i in range(depth):
        body += b"](h" + bytes([i]) + b"h" + bytes([i]) + b"e\x94"
    return b"\x80\x04" + body + b"t."


def wide_nest() -> bytes:
    """Lists of many references to one list of many references."""
    body = b"(]}a\x94"
    for i in range(3):
        body += b"](" + (b"h" + bytes([i])) * 9000 + b"e\x94"
    return b"\x80\x04" + body + b"t."


def long_names() -> bytes:
    """Dicts of long keys in dicts of long keys."""
    body = b"}\x94" + text("k" * 20_000) + b"\x94"
    for _ in range(60):
        body += b"}h\x01"
    return b"\x80\x04" + body + b"]" + b"s" * 61 + b"."


def many_texts() -> bytes:
    """A text of 100 KB in 100 dicts."""
    dicts = b"".join(b"}(" + text("k") + b"h\0u" for _ in range(100))
    return b"\x80\x04" + text("x" * 100_000) + b"\x94](" + dicts + b"e\x86."


def many_calls() -> bytes:
    """A tuple of 5,000 as the argument of 50 calls."""
    return b"\x80\x04(" + 5000 * b"K\0" + b"t\x94](" + 50 * (name("torch.Size") + b"h\0\x85R") + b"e\x86."


def deep(count: int) -> bytes:
    return b"\x80\x04" + b"]\x94" * count + b"a" * (count - 1) + b"."


REFUSED: dict[str, tuple[bytes, type[tg.TensorglotError], str]] = {
    "nothing": (b"", tg.FormatError, "magic"),
    "protocol 0": (zipped(b"I1\n."), tg.UnsupportedError, "pickle.protocol"),
    "protocol 6": (zipped(b"\x80\x06N."), tg.UnsupportedError, "pickle.protocol"),
    "no STOP": (zipped(b"\x80\x02N"), tg.TruncatedError, "pickle.end"),
    "no value": (zipped(b"\x80\x02."), tg.FormatError, "pickle.stack"),
    "two values": (zipped(pickled(b"NN")), tg.FormatError, "pickle.stack"),
    "a mark left": (zipped(pickled(b"(N")), tg.FormatError, "pickle.stack"),
    "TUPLE2 of one": (zipped(pickled(b"N\x86")), tg.FormatError, "pickle.stack"),
    "TUPLE2 across a mark": (zipped(pickled(b"N(N\x86")), tg.FormatError, "pickle.stack"),
    "APPEND to a tuple": (zipped(pickled(b")Na")), tg.FormatError, "pickle.stack"),
    "APPEND to a dict": (zipped(pickled(b"}Na")), tg.FormatError, "pickle.stack"),
    "SETITEM of a list": (zipped(pickled(b"]NNs")), tg.FormatError, "pickle.stack"),
    "SETITEMS without a value": (zipped(pickled(b"}(Nu")), tg.FormatError, "pickle.stack"),
    "TUPLE without a mark": (zipped(pickled(b"Nt")), tg.FormatError, "pickle.stack"),
    "BINGET of nothing": (zipped(pickled(b"h\0")), tg.FormatError, "pickle.memo"),
    "a hole in the memo": (zipped(pickled(b"Nr\xff\xff\xff\xff")), tg.FormatError, "pickle.memo"),
    "BINPUT of nothing": (zipped(pickled(b"q\0")), tg.FormatError, "pickle.stack"),
    "text of 4 GB": (zipped(pickled(b"X\xff\xff\xff\xff")), tg.FormatError, "pickle.length"),
    "bytes of 2**63": (zipped(pickled(b"\x8e\0\0\0\0\0\0\0\x80")), tg.FormatError, "pickle.length"),
    "text not UTF-8": (zipped(pickled(b"X\1\0\0\0\xff")), tg.FormatError, "pickle.utf8"),
    "an integer of 17 bytes": (zipped(pickled(b"\x8a\x11" + bytes(17))), tg.LimitError, "pickle.long"),
    "an integer of -1 bytes": (zipped(pickled(b"\x8b\xff\xff\xff\xff")), tg.LimitError, "pickle.long"),
    "a frame of 2**60": (zipped(b"\x80\x04\x95\0\0\0\0\0\0\0\x10N."), tg.FormatError, "pickle.length"),
    "a name without end": (zipped(b"\x80\x02c" + b"a" * 1000 + b"\n"), tg.LimitError, "pickle.line"),
    "a name that is no text": (zipped(b"\x80\x04NN\x93."), tg.FormatError, "pickle.global"),
    "a call without a tuple": (zipped(pickled(name("torch.Size") + b"NR")), tg.FormatError, "pickle.call"),
    "bytes behind the pickle": (zipped(pickled(b"N") + b"x"), tg.FormatError, "pickle.trailing"),
    "a million lists": (zipped(b"\x80\x02" + b"]" * 1_000_000), tg.LimitError, "pickle.bomb"),
    "a million tuples": (zipped(b"\x80\x02N" + b"\x85" * 1_000_000 + b"."), tg.LimitError, "pickle.bomb"),
    "lists 30,000 deep": (zipped(deep(30_000)), tg.LimitError, "nest"),
    "a nest that doubles 60 times": (zipped(shared_nest(60)), tg.LimitError, "nest"),
    "a nest of 9000 cubed": (zipped(wide_nest()), tg.LimitError, "nest"),
    "names without end": (zipped(long_names()), tg.LimitError, "nest"),
    "a text in many lists": (zipped(many_texts()), tg.LimitError, "nest"),
    "a long tuple in many calls": (zipped(many_calls()), tg.LimitError, "pickle.bomb"),
    "a list in itself": (zipped(b"\x80\x04]\x94h\0a."), tg.LimitError, "nest"),
    "a tensor as a key": (zipped(pickled(b"}" + view() + b"Ns"), DATA), tg.UnsupportedError, "key"),
    "a list as a key": (zipped(pickled(b"}]Ns")), tg.UnsupportedError, "key"),
    "one name twice": (
        zipped(pickled(b"}(" + (text("w") + view()) * 2 + b"u"), DATA),
        tg.FormatError,
        "name.duplicate",
    ),
    "one name by two ways": (
        zipped(pickled(b"}(" + text("a.b") + view() + text("a") + b"}" + text("b") + view() + b"su"), DATA),
        tg.FormatError,
        "name.duplicate",
    ),
    "a function as a value": (zipped(pickled(name("torch.Size"))), tg.UnsupportedError, "value"),
    "a storage as a value": (zipped(pickled(stored()), DATA), tg.UnsupportedError, "value"),
    "no storage": (zipped(held(view())), tg.FormatError, "storage.missing"),
    "a storage by a path": (zipped(held(view(stored("../version"))), DATA), tg.FormatError, "storage.missing"),
    "a storage too small": (zipped(held(view()), {"0": bytes(23)}), tg.FormatError, "storage.size"),
    "a storage too large": (zipped(held(view()), {"0": bytes(25)}), tg.FormatError, "storage.size"),
    "a storage of two sizes": (
        zipped(pickled(b"](" + view() + view(stored(count=7)) + b"e"), DATA),
        tg.FormatError,
        "storage.size",
    ),
    "a storage of 2**62": (zipped(held(view(stored(count=2**62))), DATA), tg.FormatError, "storage.size"),
    "a storage of -1": (zipped(held(view(stored(count=-1))), DATA), tg.FormatError, "storage.id"),
    "a storage of no class": (zipped(held(view(stored(kind="torch.float32"))), DATA), tg.FormatError, "storage.id"),
    "a persistent id that is text": (zipped(pickled(text("storage") + b"Q")), tg.UnsupportedError, "storage.id"),
    "a module as a persistent id": (
        zipped(pickled(b"(" + text("module") + b"NNNNtQ")),
        tg.UnsupportedError,
        "storage.id",
    ),
    "offset past the storage": (zipped(held(view(offset=number(1))), DATA), tg.FormatError, "tensor.span"),
    "offset negative": (zipped(held(view(offset=number(-1))), DATA), tg.FormatError, "tensor.arguments"),
    "offset that wraps": (zipped(held(view(offset=number(2**63 - 1))), DATA), tg.FormatError, "tensor.span"),
    "shape past the storage": (zipped(held(view(shape=integers(2, 4))), DATA), tg.FormatError, "tensor.span"),
    "strides past the storage": (zipped(held(view(strides=integers(4, 1))), DATA), tg.FormatError, "tensor.span"),
    "strides negative": (zipped(held(view(strides=integers(-3, 1))), DATA), tg.FormatError, "tensor.shape"),
    "strides that wrap": (zipped(held(view(strides=integers(2**62, 2**62))), DATA), tg.FormatError, "tensor.span"),
    "shape a list": (zipped(held(view(shape=b"]")), DATA), tg.FormatError, "tensor.shape"),
    "shape of True": (zipped(held(view(shape=b"\x88\x88\x86")), DATA), tg.FormatError, "tensor.shape"),
    "shape of another rank": (zipped(held(view(shape=integers(6))), DATA), tg.FormatError, "tensor.arguments"),
    "product past 2**63": (
        zipped(held(view(shape=integers(2**40, 2**40), strides=integers(0, 0))), DATA),
        tg.FormatError,
        "shape.product",
    ),
    "stride 0 of 2**40 elements": (
        zipped(held(view(shape=integers(2**40, 1), strides=integers(0, 0))), DATA),
        tg.LimitError,
        "limit.repeated",
    ),
    "overlapping views": (
        zipped(held(view(shape=integers(*[2] * 22), strides=integers(0, 1, *[0] * 20))), DATA),
        tg.LimitError,
        "limit.repeated",
    ),
    "one text 20,000 times": (
        zipped(b"\x80\x02](" + text("x" * 60_000) + b"q\0" + b"h\0" * 20_000 + b"e."),
        tg.LimitError,
        "nest",
    ),
    "one text under 20,000 names": (
        zipped(
            b"\x80\x02}("
            + text("k")
            + text("x" * 60_000)
            + b"q\0"
            + b"".join(text(str(i)) + b"h\0" for i in range(20_000))
            + b"u."
        ),
        tg.LimitError,
        "nest",
    ),
    "rank 65": (
        zipped(held(view(shape=integers(*[1] * 65), strides=integers(*[1] * 65))), DATA),
        tg.LimitError,
        "limit.rank",
    ),
    "a tensor of too few arguments": (
        zipped(pickled(name("torch._utils._rebuild_tensor_v2") + b")R")),
        tg.FormatError,
        "tensor.arguments",
    ),
    "a conjugate": (
        zipped(held(view()[:-2] + b"}" + text("conj") + b"\x88stR"), DATA),
        tg.UnsupportedError,
        "tensor.flags",
    ),
    "a shape of nothing": (zipped(pickled(name("torch.Size") + b")R")), tg.FormatError, "size.arguments"),
    "a device of nothing": (zipped(pickled(name("torch.device") + b")R")), tg.FormatError, "device.arguments"),
    "bytes of an unknown code": (
        zipped(pickled(name("_codecs.encode") + text("a") + text("rot13") + b"\x86R")),
        tg.FormatError,
        "bytes.arguments",
    ),
    "a dict of no pairs": (
        zipped(pickled(name("collections.OrderedDict") + b"](Ne\x85R")),
        tg.FormatError,
        "dict.arguments",
    ),
    "byte order middle": (zipped(held(view()), DATA, byteorder=b"middle"), tg.FormatError, "byteorder"),
    "a program": (zipped(held(view()), DATA, **{"constants.pkl": pickled(b")")}), tg.UnsupportedError, "script"),
    "a program's code": (zipped(held(view()), DATA, **{"code/a.py": b"x"}), tg.UnsupportedError, "script"),
    "legacy of another magic": (b"\x80\x02\x8a\x0a" + bytes(9) + b"\1." + MACHINE, tg.FormatError, "magic"),
    "legacy of another version": (
        pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1000, 2) + MACHINE,
        tg.UnsupportedError,
        "version",
    ),
    "legacy without a machine": (LEGACY + pickle.dumps([], 2) + held(view()), tg.FormatError, "byteorder"),
    "legacy keys of another set": (legacy(held(view()), ("1",)), tg.FormatError, "storage.keys"),
    "legacy keys twice": (legacy(held(view()), ("0", "0")), tg.FormatError, "storage.keys"),
    "legacy keys no text": (legacy(held(view()), (0,)), tg.FormatError, "storage.keys"),
    "legacy storage of another size": (
        legacy(held(view()), behind=struct.pack("<q", 5) + DATA["0"]),
        tg.FormatError,
        "storage.size",
    ),
    **{
        f"sparse: {case}": (zipped(held(body), SPARSE), tg.FormatError, rule)
        for case, (body, rule) in {
            "nothing": (made("torch._utils._rebuild_sparse_tensor"), "sparse.arguments"),
            "no layout": (made("torch._utils._rebuild_sparse_tensor", b"N", b")"), "sparse.arguments"),
            "strided": (sparse_body("torch.strided"), "layout.arguments"),
            "indices that are no tensor": (sparse_body(indices=b"N"), "sparse.arguments"),
            "indices of floats": (sparse_body(indices=view(shape=integers(2, 2))), "sparse.indices"),
            "fewer indices": (
                sparse_body(indices=view(LONG, shape=integers(2, 1), strides=integers(2, 1))),
                "sparse.indices",
            ),
            "indices past their storage": (
                sparse_body(indices=view(LONG, shape=integers(2, 2), strides=integers(3, 1))),
                "tensor.span",
            ),
            "a shape that is no tuple": (sparse_body(shape=b"N"), "tensor.shape"),
            "a shape of -1": (sparse_body(shape=integers(2, -1)), "tensor.shape"),
            "a shape of 2**62 by 2**62": (sparse_body(shape=integers(2**62, 2**62)), "shape.product"),
            "CSR with the arguments of COO": (sparse_body("torch.sparse_csr"), "sparse.arguments"),
        }.items()
    },
    **{
        f"quantized: {case}": (zipped(held(body), CODES), tg.FormatError, rule)
        for case, (body, rule) in {
            "nothing": (made("torch._utils._rebuild_qtensor"), "quantized.arguments"),
            "no scheme": (quantized_body(b"(NNNt"), "quantized.arguments"),
            "a scale that is text": (
                quantized_body(b"(" + name("torch.per_tensor_affine") + text("1") + b"K\3t"),
                "quantized.arguments",
            ),
            "a scale of many": (
                quantized_body(b"(" + name("torch.per_tensor_affine") + PAIR + ZEROS + b"t"),
                "quantized.arguments",
            ),
            "an axis of -1": (quantized_body(by_channel(PAIR, ZEROS, number(-1))), "quantized.arguments"),
            "codes past their storage": (quantized_body(shape=integers(2, 4)), "tensor.span"),
        }.items()
    },
    "sparse: of 65 dimensions": (
        zipped(held(sparse_body(shape=integers(*[1] * 65))), SPARSE),
        tg.FormatError,
        "sparse.indices",
    ),
    "legacy storage cut": (
        legacy(held(view()), behind=struct.pack("<q", 6) + bytes(23)),
        tg.TruncatedError,
        "storage.end",
    ),
    "legacy bytes behind": (
        legacy(held(view()), behind=struct.pack("<q", 6) + bytes(25)),
        tg.FormatError,
        "storage.trailing",
    ),
    "a missing storage named by control characters": (
        zipped(held(view(stored("\x1b[2J")))),
        tg.FormatError,
        "storage.missing",
    ),
    "a short storage named by control characters": (
        zipped(held(view(stored("\u202e"))), {"\u202e": b"x"}),
        tg.FormatError,
        "storage.size",
    ),
    "legacy: a short storage named by control characters": (
        legacy(held(view(stored("\x1b[2J"))), ("\x1b[2J",), struct.pack("<q", 5) + DATA["0"]),
        tg.FormatError,
        "storage.size",
    ),
    "legacy cut": (LEGACY, tg.TruncatedError, "pickle.end"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    data, kind, rule = REFUSED[case]
    tracemalloc.start()
    try:
        with pytest.raises(tg.TensorglotError) as caught:
            tg.open(data, format="pt")
        assert tracemalloc.get_traced_memory()[1] < 8_000_000 + 40 * len(data)
    finally:
        tracemalloc.stop()
    assert type(caught.value) is kind
    assert caught.value.rule == f"pt.{rule}"
    assert str(caught.value).isprintable()


def test_one_tensor_of_several_names() -> None:
    body = b"](" + view() + b"\x94" + held(b"h\0")[2:-1] + b"h\0" + sparse_body() + b"e"
    with tg.open(zipped(pickled(body), SPARSE), format="pt") as archive:
        assert list(archive) == ["0", "1.w", "2", "3"]
        assert all(archive[name].numpy().tolist() == [[0, 1, 2], [3, 4, 5]] for name in ("0", "1.w", "2"))
        assert archive["3"].layout == "zt.sparse_coo/1"


def test_more_parts_than_storages() -> None:
    files = [zipped(pickled(b"](" + quantized_body() * count + b"e"), {"2": bytes(6)}) for count in (104, 105)]
    limits = tg.Limits(view_ratio=100)
    assert len(tg.open(files[0], format="pt", limits=limits)) == 104
    with pytest.raises(tg.LimitError) as caught:
        tg.open(files[1], format="pt", limits=limits)
    assert caught.value.rule == "pt.limit.parts"
    assert len(tg.open(files[1], format="pt")) == 105


def test_arguments_that_calls_share() -> None:
    """No pickler makes two tensors of one tuple; the work of such calls is more than their bytes allow."""
    call = name("torch._utils._rebuild_tensor_v2") + b"\x94(" + stored() + b"K\0))\x89Nt\x94R"
    with pytest.raises(tg.LimitError) as caught:
        tg.open(zipped(pickled(b"](" + call + b"h\0h\1R" * 300 + b"e"), DATA), format="pt")
    assert caught.value.rule == "pt.pickle.bomb"


def test_two_folders_and_compressed_members() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x/data.pkl", held(view()))
        archive.writestr("y/data/0", DATA["0"])
    with pytest.raises(tg.FormatError) as caught:
        tg.open(file.getvalue(), format="pt")
    assert caught.value.rule == "pt.zip.folder"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/\x1b[2J", b"")
        archive.writestr("x/data.pkl", held(view()))
    with pytest.raises(tg.UnsupportedError) as refused:
        tg.open(file.getvalue(), format="pt")
    assert refused.value.rule == "pt.zip.method"
    assert str(refused.value).isprintable()


def test_limits_of_pickles_and_parts() -> None:
    cases = {
        "pt.limit.header": (zipped(pickled(text("x" * 1000))), tg.Limits(header_nbytes=500)),
        "pt.limit.directory": (zipped(held(view()), DATA), tg.Limits(header_nbytes=5)),
        "pt.limit.rank": (sparse(), tg.Limits(rank=1)),
    }
    for rule, (data, limits) in cases.items():
        with pytest.raises(tg.LimitError) as caught:
            tg.open(data, format="pt", limits=limits)
        assert caught.value.rule == rule


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_elements_that_numpy_does_not_have() -> None:
    """Pairs of 4 bits are elements where they are in order; sparse tensors of unknown ones are left out."""
    torch = needs("torch")
    pairs = torch.arange(12, dtype=torch.uint8).reshape(3, 4).view(torch.float4_e2m1fn_x2)
    halves = torch.zeros(3, dtype=torch.complex32).to_sparse()
    file = io.BytesIO()
    torch.save({"pairs": pairs, "turned": pairs.t(), "halves": halves}, file)
    with tg.open(file.getvalue()) as archive:
        assert archive["pairs"].shape == (3, 8)
        assert str(archive["pairs"].type) == "3 * 8 * float4_e2m1fn"
        assert archive["turned"].dtype is None
        assert [note.rule for note in archive.notes] == ["pt.sparse"]


def test_scales_that_do_not_fit_the_shape() -> None:
    for quantizer in (by_channel(PAIR, ZEROS, b"K\1"), by_channel(PAIR, ZEROS, b"K\5")):
        with pytest.raises(tg.FormatError, match="quant_group"):
            tg.open(zipped(held(quantized_body(quantizer)), CODES))
    fits = zipped(held(quantized_body(by_channel(PAIR, ZEROS))), CODES)
    assert tg.open(fits)["w"].dequantize().tolist() == [[0, 0, 0], [2, 3, 4]]


def test_a_scale_beyond_float32() -> None:
    scheme = b"(" + name("torch.per_tensor_affine") + b"G" + struct.pack(">d", 1e300) + b"K\3t"
    with tg.open(zipped(held(quantized_body(scheme)), CODES), format="pt") as archive:
        assert bytes(archive["w"].parts["scales"].payload.read(0, 16)) == struct.pack("<dd", 1e300, 1e300)


def test_calls_and_states_that_no_pickler_writes() -> None:
    """Without end in few bytes: an empty state, a storage of the memo, a call of one."""
    long = {
        "states": b"}" + b"Nb" * 2000,
        "storages": b"}((" + stored()[1:-1] + b"\x94tb" + text("a") + b"](" + b"h\0Q" * 2000 + b"es",
        "sizes": b"}(" + name("torch.Size") + b"\x94tb" + text("a") + b"](" + b"h\0)\x85R" * 2000 + b"es",
    }
    for body in long.values():
        with pytest.raises(tg.LimitError) as caught:
            tg.open(zipped(pickled(body), DATA), format="pt")
        assert caught.value.rule == "pt.pickle.bomb"
    states = b"}" + b"}(\x8c\x09_metadata}ub" * 2000
    assert len(tg.open(zipped(pickled(states)), format="pt")) == 0


def test_one_scale_is_repeated_up_to_a_bound() -> None:
    """A scale is repeated for each row, and many tensors may have the same codes."""
    count = 1 << 20
    quantizer = b"(" + name("torch.per_tensor_affine") + b"G" + struct.pack(">d", 0.5) + b"K\3t"
    codes = stored("0", count, "torch.QInt8Storage")
    one = made("torch._utils._rebuild_qtensor", codes, b"K\0", integers(count), integers(1), quantizer, b"\x89", b"N")
    for tensors, refused in ((1, False), (8, True)):
        data = zipped(pickled(b"](" + one * tensors + b"e"), {"0": bytes(count)})
        with pytest.raises(tg.LimitError) if refused else contextlib.nullcontext() as caught:
            tg.open(data, limits=tg.Limits(view_ratio=16))
        assert not refused or caught.value.rule == "pt.limit.repeated"


@pytest.mark.parametrize(
    "file", ["checkpoint.pt", "strided.legacy.pt", "list.pt", "parts/parts.pt", "parts/parts.legacy.pt"]
)
def test_mutants_raise_only_our_errors(file: str) -> None:
    rng = random.Random(file)
    base = (CORPUS / file).read_bytes()
    begin = base.index(b"\x80\x02", 1)
    end = base.index(b"PK\7\x08") if file.endswith("t.pt") and base[:2] == b"PK" else min(len(base), 2000)
    accepted = 0
    for _ in range(500):
        mutant = bytearray(base)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(begin, end)
            mutant[at] = rng.choice([rng.randrange(256), *b"().RQbcehijloqrstu]}0\x81\x85\x86\x8a\x93\x94"])
        try:
            tg.loads(bytes(mutant), format="pt")
            accepted += 1
        except tg.TensorglotError:
            pass
    assert 0 < accepted < 500


def test_it_is_not_written() -> None:
    with pytest.raises(tg.InputError, match=r"rule format\.write"):
        tg.dumps({}, format="pt")


class TestViews:
    def test_the_stride_of_an_axis_of_length_1_means_nothing(self, tmp_path: Path) -> None:
        data = zipped(held(view(shape=integers(1, 3), strides=integers(2**62, 1))), DATA)
        with tg.open(data, format="pt") as archive:
            expected = archive["w"].numpy()
            assert expected.shape == (1, 3)
            for index in (slice(None), slice(None, None, 2), (0, slice(None, None, -1)), ...):
                assert (archive["w"][index] == expected[index]).all()
        tg.convert(data, tmp_path / "x.zt", source_format="pt")
        assert (tg.load(tmp_path / "x.zt")["w"] == expected).all()

    def test_views_are_repeated_up_to_a_bound(self) -> None:
        small = zipped(held(view(shape=integers(1 << 17, 2), strides=integers(0, 1))), DATA)
        assert tg.loads(small, format="pt")["w"].shape == (1 << 17, 2)
        large = zipped(held(view(shape=integers(1 << 20, 2), strides=integers(0, 1))), DATA)
        with pytest.raises(tg.LimitError):
            tg.open(large, format="pt")
        loaded = tg.loads(large, format="pt", limits=tg.Limits(view_ratio=1 << 20))
        assert loaded["w"].shape == (1 << 20, 2)


def test_opcodes_at_the_end_of_what_is_read_at_a_time() -> None:
    """A pickle is read in steps, the first of 64 KiB: any opcode may begin in one and end in the next."""
    for filler in range((64 << 10) - 60, 64 << 10):
        value = {"f": "x" * filler, "a": 2**70, "b": 2.5, "c": -(2**40), "d": "y" * 300, "e": True, "g": 5}
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("v/data.pkl", pickle.dumps(value, protocol=2))
        with tg.open(file.getvalue()) as found:
            assert found.metadata == value


def test_a_duplicate_name_is_in_the_error() -> None:
    for value in (view(), b"K\1"):  # a tensor, and metadata
        body = b"}(" + text("a.b") + value + text("a") + b"}" + text("b") + value + b"su"
        with pytest.raises(tg.FormatError) as caught:
            tg.open(zipped(pickled(body), DATA), format="pt")
        assert (caught.value.rule, caught.value.tensor) == ("pt.name.duplicate", "a.b")
