"""safetensors: round trips, the same bytes as the package, hostile headers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorglot as tg
from arrays import random_tensors, raw
from fuzzing import foreign
from peers import run
from tensorglot.containers.safetensors import DTYPES
from tensorglot.model.dtypes import BY_NAME, dtype_of

WHOLE = [name for name in DTYPES.values() if not BY_NAME[name].packed]


def same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return one.keys() == two.keys() and all(
        (one[n].shape, raw(one[n]), dtype_of(one[n].dtype)) == (two[n].shape, raw(two[n]), dtype_of(two[n].dtype))
        for n in one
    )


def build(header: str | bytes, data: bytes = b"") -> bytes:
    text = header.encode() if isinstance(header, str) else header
    return len(text).to_bytes(8, "little") + text + data


ENTRY = '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'


class TestRoundTrip:
    @pytest.mark.parametrize("seed", range(100))
    def test_random(self, seed: int) -> None:
        tensors = random_tensors(random.Random(seed), WHOLE)
        data = tg.dumps(tensors, format="safetensors")
        assert same(tg.loads(data, strict=True), tensors)
        assert tg.dumps(dict(reversed(tensors.items())), format="safetensors") == data

    @pytest.mark.parametrize("metadata", [None, {}, {"b": "2", "a": "é\n"}])
    def test_metadata(self, metadata: dict[str, str] | None) -> None:
        data = tg.dumps({}, format="safetensors", metadata=metadata)
        with tg.open(data, strict=True) as archive:
            assert archive.metadata == metadata
            assert archive.format == "safetensors@1"

    @pytest.mark.parametrize("name", ["float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"])
    def test_packed(self, name: str) -> None:
        kind = BY_NAME[name].numpy
        values = np.arange(12, dtype=np.uint8).view(kind).reshape(3, 4)
        data = tg.dumps({"x": values}, format="safetensors")
        assert raw(tg.loads(data)["x"]) == raw(values)
        assert len(data) % 8 == 12 * BY_NAME[name].bits // 8 % 8

    def test_elements_that_do_not_fill_a_byte(self) -> None:
        with pytest.raises(tg.UnsupportedError) as caught:
            tg.dumps({"x": np.zeros(3, ml_dtypes.float4_e2m1fn)}, format="safetensors")
        assert caught.value.rule == "safetensors.write.packed"

    @pytest.mark.parametrize("row", [r for r in BY_NAME.values() if r.numpy is not None], ids=lambda row: row.name)
    def test_every_dtype_is_held_or_refused_by_name(self, row: Any) -> None:
        array = np.zeros(8, row.numpy)
        if row.name in DTYPES.values():
            assert tg.loads(tg.dumps({"x": array}, format="safetensors"))["x"].dtype == array.dtype
            return
        with pytest.raises(tg.UnsupportedError, match=row.name) as caught:
            tg.dumps({"x": array}, format="safetensors")
        assert (caught.value.rule, caught.value.tensor) == ("safetensors.write.dtype", "x")

    def test_reserved_name(self) -> None:
        with pytest.raises(tg.UnsupportedError, match=r"rule safetensors\.write\.name"):
            tg.dumps({"__metadata__": np.zeros(1)}, format="safetensors")

    def test_files_and_backends(self, tmp_path: Path) -> None:
        tensors = {"a": np.arange(1000, dtype=np.int32), "b": np.ones((3, 2), ml_dtypes.bfloat16)}
        path = tmp_path / "model.safetensors"
        tg.save(path, tensors)
        assert same(tg.load(path), tensors)
        for backend in ("pread", "mmap"):
            with tg.open(path, backend=backend) as archive:
                assert same({name: tensor.numpy() for name, tensor in archive.items()}, tensors)
                assert archive["a"][10:20:3].tolist() == [10, 13, 16, 19]

    def test_detected_without_a_suffix(self, tmp_path: Path) -> None:
        path = tmp_path / "model.bt"
        path.write_bytes(tg.dumps({"a": np.zeros(1)}, format="safetensors"))
        with tg.open(path) as archive:
            assert archive.format == "safetensors@1"


ACCEPTED = {
    "empty object": (build("{}"), []),
    "white space inside": (build('{ "a" :\n{"shape":[ 1 ],"dtype":\t"U8" , "data_offsets":[0 ,1]}}  ', b"x"), ["a"]),
    "escapes": (build('{"\\u0041\\ud83d\\ude00\\n\\/":' + ENTRY + "}", b"x"), ["A😀\n/"]),
    "header length not a multiple of 8": (build('{"a":' + ENTRY + "}  ", b"x"), ["a"]),
    "an empty name": (build('{"":' + ENTRY + "}  ", b"x"), [""]),
    "empty tensors at borders": (
        build(
            '{"b":{"dtype":"F64","shape":[0],"data_offsets":[1,1]},"a":'
            + ENTRY
            + ',"c":{"dtype":"I8","shape":[3,0],"data_offsets":[0,0]}}',
            b"x",
        ),
        ["b", "a", "c"],
    ),
    "any order": (
        build(
            '{"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"__metadata__":{"k":"v"},"a":' + ENTRY + "}", b"xy"
        ),
        ["b", "a"],
    ),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(case: str) -> None:
    data, names = ACCEPTED[case]
    with tg.open(data, format="safetensors") as archive:
        assert list(archive) == names
        assert all(tensor.numpy().shape == tensor.shape for tensor in archive.values())
    with pytest.raises(tg.FormatError) as caught:
        tg.open(data, format="safetensors", strict=True)
    assert caught.value.rule == "safetensors.strict.header"


def entry(**fields: Any) -> str:
    return json.dumps({"dtype": "U8", "shape": [1], "data_offsets": [0, 1], **fields})


def one(**fields: Any) -> bytes:
    return build(f'{{"a":{entry(**fields)}}}', b"x")


def two(first: list[int], second: list[int], nbytes: int) -> bytes:
    a = entry(shape=[first[1] - first[0]], data_offsets=first)
    b = entry(shape=[second[1] - second[0]], data_offsets=second)
    return build(f'{{"a":{a},"b":{b}}}', bytes(nbytes))


DEEP = 100_000
REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "header.length"),
    "seven bytes": (b"\1\0\0\0\0\0\0", "header.length"),
    "length 2**64 - 1": (b"\xff" * 8 + b"{}", "limit.header"),
    "length 2**63": (b"\0" * 7 + b"\x80{}", "limit.header"),
    "length above the limit": (build(b"{}")[:0] + (100_000_001).to_bytes(8, "little") + b"{}", "limit.header"),
    "length past the file": ((100_000_000).to_bytes(8, "little") + b"{}", "header.length"),
    "length 0": (bytes(8), "header.start"),
    "byte order mark": (build(b"\xef\xbb\xbf{}"), "header.start"),
    "leading space": (build(" {}"), "header.start"),
    "an array": (build("[]"), "header.start"),
    "unfinished": (build("{"), "header.end"),
    "unfinished string": (build('{"a'), "header.end"),
    "unfinished escape": (build('{"a\\'), "header.end"),
    "no colon": (build('{"a"}'), "json.syntax"),
    "trailing comma": (build('{"a":' + ENTRY + ",}", b"x"), "json.syntax"),
    "no comma": (build('{"a":' + ENTRY + ' "b":' + ENTRY + "}", b"x"), "json.syntax"),
    "two objects": (build("{}{}"), "padding.byte"),
    "NUL padding": (build('{"a":' + ENTRY + "}\0\0", b"x"), "padding.byte"),
    "newline padding": (build("{}\n"), "padding.byte"),
    "name is a number": (build("{1:" + ENTRY + "}", b"x"), "json.syntax"),
    "tensor is a list": (build('{"a":[]}'), "json.syntax"),
    "tensor is null": (build('{"a":null}'), "json.syntax"),
    "deep list as a tensor": (build('{"a":' + "[" * DEEP), "json.syntax"),
    "deep object as a tensor": (build('{"a":' * DEEP), "field.name"),
    "deep list as a shape": (build('{"a":{"shape":' + "[" * DEEP), "json.number"),
    "deep object as metadata": (build('{"__metadata__":{"a":' + '{"a":' * DEEP), "metadata.text"),
    "deep unknown field": (build('{"a":{"x":' + "[" * DEEP), "field.name"),
    "control character": (build('{"a\n":' + ENTRY + "}", b"x"), "json.control"),
    "unknown escape": (build('{"\\x":' + ENTRY + "}", b"x"), "json.escape"),
    "short escape": (build('{"\\u12":' + ENTRY + "}", b"x"), "json.escape"),
    "escape with a sign": (build('{"\\u+123":' + ENTRY + "}", b"x"), "json.escape"),
    "lone high surrogate": (build('{"\\ud800":' + ENTRY + "}", b"x"), "json.surrogate"),
    "lone low surrogate": (build('{"\\udc00":' + ENTRY + "}", b"x"), "json.surrogate"),
    "two high surrogates": (build('{"\\ud800\\ud800":' + ENTRY + "}", b"x"), "json.surrogate"),
    "bad UTF-8": (build(b'{"\xff":' + ENTRY.encode() + b"}", b"x"), "json.utf8"),
    "bad UTF-8 beside an escape": (build(b'{"\\n\xc0\x80":' + ENTRY.encode() + b"}", b"x"), "json.utf8"),
    "surrogate in UTF-8": (build(b'{"\xed\xa0\x80":' + ENTRY.encode() + b"}", b"x"), "json.utf8"),
    "name twice": (build('{"a":' + ENTRY + ',"a":' + ENTRY + "}", b"x"), "name.duplicate"),
    "name twice, once escaped": (build('{"a":' + ENTRY + ',"\\u0061":' + ENTRY + "}", b"x"), "name.duplicate"),
    "field twice": (build('{"a":' + ENTRY[:-1] + ',"shape":[1]}}', b"x"), "field.duplicate"),
    "field unknown": (one(extra=1), "field.name"),
    "field missing": (build('{"a":{"dtype":"U8","shape":[1]}}'), "field.missing"),
    "no fields": (build('{"a":{}}'), "json.syntax"),
    "metadata twice": (build('{"__metadata__":{},"__metadata__":{}}'), "metadata.duplicate"),
    "metadata key twice": (build('{"__metadata__":{"a":"1","a":"2"}}'), "metadata.duplicate"),
    "metadata null": (build('{"__metadata__":null}'), "metadata.text"),
    "metadata a number": (build('{"__metadata__":{"a":1}}'), "metadata.text"),
    "dtype unknown": (one(dtype="F3"), "dtype"),
    "dtype empty": (one(dtype=""), "dtype"),
    "dtype long": (one(dtype="U8" * 1000), "dtype"),
    "dtype lower case": (one(dtype="u8"), "dtype"),
    "dtype a number": (one(dtype=1), "json.syntax"),
    "shape a number": (one(shape=1), "json.syntax"),
    "dim negative": (one(shape=[-1]), "json.number"),
    "dim a float": (one(shape=[1.0]), "json.syntax"),
    "dim with an exponent": (build('{"a":{"shape":[1e0]'), "json.syntax"),
    "dim with a leading zero": (build('{"a":{"shape":[01]'), "json.number"),
    "dim true": (one(shape=[True]), "json.number"),
    "dim 2**63": (one(shape=[2**63]), "json.number"),
    "dim 2**64 + 1": (one(shape=[2**64 + 1]), "json.number"),
    "product past 2**63": (one(shape=[2**32, 2**32]), "shape.product"),
    "product past 2**63 before a zero": (one(shape=[2**62, 2**62, 0]), "shape.product"),
    "product past 2**63 after a zero": (one(shape=[0, 2**62, 2**62]), "shape.product"),
    "bits past 2**63": (one(dtype="F64", shape=[2**62]), "shape.product"),
    "rank 65": (one(shape=[1] * 65), "limit.rank"),
    "three offsets": (one(data_offsets=[0, 1, 2]), "json.syntax"),
    "one offset": (one(data_offsets=[0]), "json.syntax"),
    "offsets reversed": (one(data_offsets=[1, 0]), "offsets.size"),
    "offset 2**64": (one(data_offsets=[0, 2**64]), "json.number"),
    "size too small": (one(shape=[2]), "offsets.size"),
    "size too large": (one(shape=[0]), "offsets.size"),
    "half a byte": (one(dtype="F4", shape=[3], data_offsets=[0, 2]), "offsets.size"),
    "begin not 0": (one(data_offsets=[1, 2]), "offsets.hole"),
    "hole": (two([0, 1], [2, 3], 3), "offsets.hole"),
    "overlap": (two([0, 2], [1, 3], 3), "offsets.overlap"),
    "the same span twice": (two([0, 2], [0, 2], 2), "offsets.overlap"),
    "empty inside another": (two([0, 2], [1, 1], 2), "offsets.overlap"),
    "bytes behind": (build('{"a":' + ENTRY + "}", b"xy"), "data.trailing"),
    "bytes behind nothing": (build("{}", b"x"), "data.trailing"),
    "bytes missing": (build('{"a":' + ENTRY + "}"), "data.end"),
    "name of 100,001 bytes": (build('{"' + "a" * 100_001 + '":' + ENTRY + "}", b"x"), "limit.name"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    data, rule = REFUSED[case]
    with pytest.raises(tg.FormatError) as caught:
        tg.open(data, format="safetensors")
    assert caught.value.rule == f"safetensors.{rule}"
    assert caught.value.offset is not None


def test_bool_byte() -> None:
    with pytest.raises(tg.FormatError) as caught:
        tg.loads(build('{"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}}', b"\2"))
    assert (caught.value.rule, caught.value.tensor) == ("values.bool", "a")


def test_too_many_tensors() -> None:
    data = tg.dumps({str(i): np.zeros(1) for i in range(5)}, format="safetensors")
    assert len(tg.open(data, limits=tg.Limits(tensors=5))) == 5
    with pytest.raises(tg.LimitError):
        tg.open(data, limits=tg.Limits(tensors=4))


def test_mutants_raise_only_our_errors() -> None:
    rng = random.Random(5)
    base = tg.dumps(
        {"a": np.arange(3.0), "é\n": np.zeros((2, 3), ml_dtypes.bfloat16), "c": np.ones((), np.bool_)},
        format="safetensors",
        metadata={"k": "v"},
    )
    tokens = [
        b"0",
        b"1",
        b"-1",
        b"9223372036854775807",
        b"18446744073709551616",
        b"null",
        b"[",
        b'"',
        b"\\u0000",
        b"{}",
    ]
    accepted = 0
    for _ in range(3000):
        mutant = bytearray(base)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(8, len(mutant))
            if rng.random() < 0.5:
                mutant[at] = rng.randrange(256)
            else:
                mutant[at : at + rng.randrange(4)] = rng.choice(tokens)
        if rng.random() < 0.8:
            header_end = mutant.rfind(b"}") + 1
            mutant[:8] = max(0, header_end - 8).to_bytes(8, "little")
        try:
            tg.loads(bytes(mutant), format="safetensors")
            accepted += 1
        except tg.TensorglotError:
            pass
    assert 0 < accepted < 3000


PACKAGE_READS = r"""
import hashlib, json, pathlib, sys
from safetensors import deserialize, serialize, TensorSpec
import numpy as np
names = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool", "C64": "complex64",
         "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
         "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
         **{f"I{b}": f"int{b}" for b in (8, 16, 32, 64)}, **{f"U{b}": f"uint{b}" for b in (8, 16, 32, 64)}}
result = {}
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.safetensors")):
    data = path.read_bytes()
    entries = {}
    specs, keep = {}, []
    for name, view in deserialize(data):
        entries[name] = [names[view["dtype"]], view["shape"], hashlib.sha256(view["data"]).hexdigest()]
        array = np.frombuffer(bytes(view["data"]) + b"\0", np.uint8)
        keep.append(array)
        specs[name] = TensorSpec(dtype=names[view["dtype"]], shape=view["shape"], data_ptr=array.ctypes.data,
                                 data_len=len(view["data"]))
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8:8 + length]).get("__metadata__")
    result[path.name] = [entries, metadata, bytes(serialize(specs, metadata=metadata)) == data]
print(json.dumps(result))
"""

ACCEPTS = r"""
import json, pathlib, sys
from safetensors import deserialize
accepted = []
for path in pathlib.Path(sys.argv[1]).glob("*.safetensors"):
    try:
        deserialize(path.read_bytes())
    except Exception:
        continue
    accepted.append(path.stem)
print(json.dumps(accepted))
"""

LENIENT = {
    "leading space",
    "newline padding",
    "name twice",
    "name twice, once escaped",
    "field unknown",
    "metadata key twice",
    "metadata null",
    "rank 65",
    "name of 100,001 bytes",
}
"""What safetensors 0.8.0 accepts: each breaks a rule of ours, or a limit."""

TORCH_WRITES = r"""
import hashlib, json, pathlib, random, sys, torch
from safetensors.torch import save_file, load_file
kinds = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64,
         torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
         torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
         torch.float4_e2m1fn_x2]
shapes = [(), (0,), (1,), (5,), (2, 3), (2, 0, 3), (3, 4, 5)]
rng = random.Random(11)
folder = pathlib.Path(sys.argv[1])
manifest = {}
for number in range(int(sys.argv[2])):
    tensors, entries = {}, {}
    for i in range(rng.randrange(8)):
        kind = rng.choice(kinds)
        shape = list(rng.choice(shapes))
        if kind is torch.float4_e2m1fn_x2 and not shape:
            shape = [3]
        count = 1
        for size in shape:
            count *= size
        size = torch.empty((), dtype=kind).element_size()
        data = bytes(b & 1 for b in rng.randbytes(count)) if kind is torch.bool else rng.randbytes(count * size)
        raw = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        name = f"{rng.choice(['layer', 'é', 'a.b'])}.{i}"
        tensors[name] = raw.view(kind).reshape(shape)
        said = str(kind).removeprefix("torch.")
        if kind is torch.float4_e2m1fn_x2:
            said, shape = "float4_e2m1fn", [*shape[:-1], shape[-1] * 2]
        entries[name] = [said, shape, hashlib.sha256(data).hexdigest()]
    metadata = rng.choice([None, {"format": "pt"}])
    path = folder / f"{number}.safetensors"
    save_file(tensors, path, metadata=metadata)
    back = load_file(path)
    manifest[path.name] = [entries, metadata]
print(json.dumps(manifest))
"""


@pytest.mark.peers
class TestPackage:
    """1,000 random files each way."""

    COUNT = 1000

    def test_package_reads_ours_and_writes_the_same_bytes(self, tmp_path: Path) -> None:
        expected: dict[str, Any] = {}
        for seed in range(self.COUNT):
            rng = random.Random(seed)
            tensors = random_tensors(rng, WHOLE)
            metadata = rng.choice([None, {"key é": "value\n"}])
            tg.save(tmp_path / f"{seed}.safetensors", tensors, metadata=metadata, durable=False)
            expected[f"{seed}.safetensors"] = (tensors, metadata)
        result = json.loads(run("torch", PACKAGE_READS, tmp_path))
        assert len(result) == self.COUNT
        for file, (entries, metadata, same_bytes) in result.items():
            tensors, wanted = expected[file]
            assert entries == {n: [dtype_of(a.dtype).name, list(a.shape), digest(raw(a))] for n, a in tensors.items()}
            assert metadata == wanted
            assert same_bytes, file

    def test_we_read_what_torch_writes(self, tmp_path: Path) -> None:
        manifest = json.loads(run("torch", TORCH_WRITES, tmp_path, str(self.COUNT)))
        assert len(manifest) == self.COUNT
        for file, (entries, metadata) in manifest.items():
            path = tmp_path / file
            with tg.open(path) as archive:
                assert archive.metadata == metadata
                found = {
                    name: [tensor.parts["data"].dtype.name, list(tensor.shape), digest(stored(tensor))]
                    for name, tensor in archive.items()
                }
                assert found == entries
                copy = tg.dumps(archive, format="safetensors")
            assert copy == path.read_bytes()

    def test_files_that_only_the_package_accepts_are_listed(self, tmp_path: Path) -> None:
        for number, (data, _) in enumerate(REFUSED.values()):
            if len(data) < 1_000_000:
                (tmp_path / f"{number}.safetensors").write_bytes(data)
        accepted = set(json.loads(run("torch", ACCEPTS, tmp_path)))
        assert {case for number, case in enumerate(REFUSED) if str(number) in accepted} == LENIENT

    def test_what_we_accept_the_package_accepts_with_the_same_contents(self, tmp_path: Path) -> None:
        """Mutants of valid files: ours strictly are theirs, byte for byte."""
        expected = {}
        found = (data for format, data in foreign.mutants(12_000, seed=23) if format == "safetensors")
        for number, data in enumerate(found):
            try:
                tensors = tg.loads(data, format="safetensors")
            except tg.TensorglotError:
                continue
            (tmp_path / f"{number}.safetensors").write_bytes(data)
            expected[f"{number}.safetensors"] = {
                n: [dtype_of(a.dtype).name, list(a.shape), digest(raw(a))] for n, a in tensors.items()
            }
        assert len(expected) > 100
        result = json.loads(run("torch", PACKAGE_READS, tmp_path))
        assert {file: entries for file, (entries, _, _) in result.items()} == expected


def stored(tensor: tg.Tensor) -> bytes:
    payload = tensor.parts["data"].payload
    return bytes(payload.read(0, payload.nbytes))


def digest(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()
