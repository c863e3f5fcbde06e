"""`tensorglot dynd`: JSON and .npy in, bytes and hexadecimal digits out, and back; nested values in `cat`."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import tensorglot as tg
from tensorglot import dynd
from tensorglot.dynd.json import from_json, to_json
from terminals import environment


def run(*arguments, stdin=b"", code=0):
    command = [sys.executable, "-m", "tensorglot", *map(str, arguments)]
    done = subprocess.run(command, input=stdin, capture_output=True, env=environment())
    assert done.returncode == code, done.stderr.decode()
    return done.stdout


def test_encode_and_decode():
    value, text = [[1], [2, 3]], "var * var * int8"
    assert run("dynd", "encode", "--type", text, "--hex", stdin=json.dumps(value).encode()) == b"020101020203\n"
    assert run("dynd", "encode", "--type", text, stdin=json.dumps(value).encode()) == bytes.fromhex("020101020203")
    assert json.loads(run("dynd", "decode", "--type", text, "--hex", stdin=b"02 01 01 02 02 03\n")) == value
    about = json.loads(run("dynd", "encode", "--json", stdin=b'["a", null]'))
    assert about == {"type": "2 * ?string", "nbytes": 4, "hex": "01016100", "cid": dynd.array(["a", None]).cid()}
    full = json.loads(run("dynd", "decode", "--json", stdin=bytes(dynd.pack(3))))
    assert full == {"type": "int64", "value": 3}


def test_arrays_and_files(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "w.npy", array)
    run("dynd", "encode", tmp_path / "w.npy", "--pack", "-o", tmp_path / "w.dynd")
    assert (tmp_path / "w.dynd").read_bytes() == dynd.pack(array)
    assert json.loads(run("dynd", "decode", tmp_path / "w.dynd")) == array.tolist()
    assert run("dynd", "type", "--of", tmp_path / "w.npy") == b"2 * 3 * float32\n"
    identities = [run("hash", tmp_path / name).split()[0] for name in ("w.npy", "w.dynd")]
    assert identities == [dynd.array(array).cid().encode()] * 2


@pytest.mark.parametrize("extra", [(), ("--json",)])
def test_what_is_written_to_a_file_is_not_printed(tmp_path, extra):
    packed, cbor, value = tmp_path / "x.dynd", tmp_path / "x.cbor", tmp_path / "x.json"
    said = [
        run("dynd", "encode", "--pack", "-o", packed, *extra, stdin=b"[1, 2]"),
        run("dynd", "cbor", "-o", cbor, *extra, stdin=b"[1, 2]"),
        run("dynd", "cbor", "--decode", cbor, "-o", value, *extra),
    ]
    assert packed.read_bytes() == bytes(dynd.pack([1, 2]))
    assert cbor.read_bytes() == dynd.to_cbor([1, 2])
    assert json.loads(value.read_text()) == [1, 2]
    if extra:
        documents = list(map(json.loads, said))
        assert [document["output"] for document in documents] == list(map(str, (packed, cbor, value)))
        assert [document["type"] for document in documents] == ["2 * int64"] * 3
        assert not any("hex" in document for document in documents)
    else:
        assert said == [b""] * 3


def test_types():
    assert run("dynd", "type", "fixed[3]**2*real") == b"3 * 3 * float64\n"
    assert json.loads(run("dynd", "type", "... * T", "--json")) == {"type": "... * T", "symbolic": True}
    command = [sys.executable, "-m", "tensorglot", "dynd", "type", "{a: int8,\n b: foo}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 2
    first, second, third, *_ = done.stderr.splitlines()
    assert first.startswith("error: unknown type foo, at line 2, column 5")
    assert second[third.index("^") :] == "foo}"


def test_cbor(tmp_path):
    value = b'{"a": 1, "b": "x"}'
    native = run("dynd", "cbor", "--hex", stdin=value)
    assert native == b"a2616101616261 78\n".replace(b" ", b"")
    assert json.loads(run("dynd", "cbor", "--decode", "--hex", stdin=native)) == {"a": 1, "b": "x"}
    node = run("dynd", "cbor", "--dag", stdin=value)
    assert node == dynd.to_cbor({"a": 1, "b": "x"}, profile="dag")
    about = json.loads(run("dynd", "cbor", "--dag", "--decode", "--json", stdin=node))
    assert about == {"type": "{a: int64, b: string}", "value": {"a": 1, "b": "x"}}


SPECIAL = [
    ("bytes", {"$hex": "00ff"}),
    ("complex[float32]", [1.5, -2.0]),
    ("float32", "NaN"),
    ("2 * float64", ["Infinity", "-Infinity"]),
    ("float128", {"$hex": "00" * 16}),
    ("type", "3 * int8"),
    ("var * array[Any]", [{"$type": "var * int8", "$value": [1]}]),
    ("{a: ?(int8, bytes)}", {"a": [1, {"$hex": ""}]}),
    ("merkle[int8]", "bafkr4ibj2ndi3jybh2t2eqto4ypepn5uamjbuv23lipofvtcihlf3dtwim"),
    ("2 * char", ["a", "é"]),
    ("int128", 2**100),
    ("?void", None),
]


@pytest.mark.parametrize(("text", "value"), SPECIAL, ids=lambda case: str(case)[:30])
def test_what_json_does_not_have(text, value):
    tensor = from_json(json.dumps(value), dynd.parse(text))
    assert tensor.type == dynd.parse(text)
    assert to_json(tensor) == value
    again = dynd.deserialize(tensor.serialize(), text)
    assert json.loads(json.dumps(to_json(again), allow_nan=False)) == value


def test_bits():
    for text, bits in (("float64", "0x7ff00000000007a2"), ("float32", "0x80000000"), ("bfloat16", "0x7f81")):
        tensor = from_json(json.dumps(bits), dynd.parse(text))
        assert bytes(tensor.serialize())[::-1].hex() == bits[2:]


@pytest.mark.parametrize(
    ("arguments", "stdin", "code"),
    [
        (["encode"], b"[", 2),
        (["encode"], b"[1, ", 2),
        (["encode"], b'[1, "a"]', 2),
        (["encode"], b'{"$hex": "zz"}', 2),
        (["encode"], b'{"a": 1, "a": 2}', 2),
        (["encode", "--type", "var * {a: int8}"], b'[{"a": 1, "a": 2}]', 2),
        (["encode"], b"[1e400]", 2),
        (["encode"], b"-1e999", 2),
        (["encode", "--type", "int8"], b"300", 2),
        (["encode", "--type", "foo"], b"1", 2),
        (["encode", "--type", "complex[float64]"], b'[1, "2"]', 2),
        (["encode", "--type", "complex[float64]"], b"[1, null]", 2),
        (["encode", "--type", "complex[float64]"], b"[1, 1%b]" % (b"0" * 400), 2),
        (["encode"], b"[" * 100_000, 2),
        (["encode"], b"\xff", 2),
        (["decode", "--type", "bool"], b"\x02", 3),
        (["decode", "--type", "bool", "--hex"], b"zz", 2),
        (["decode"], b"\x03foo", 3),
        (["cbor", "--decode"], b"\x81", 3),
        (["type"], b"", 2),
        (["encode", "/nonexistent.json"], b"", 5),
    ],
    ids=lambda case: str(case)[:30],
)
def test_exit_codes(arguments, stdin, code):
    assert run("dynd", *arguments, stdin=stdin, code=code) == b""


def test_nested_values_are_printed(tmp_path):
    value = [{"a": [1, 2], "s": "x"}, {"a": [], "s": "é"}]
    tg.save(tmp_path / "x.zt", {"t": dynd.array(value)})
    lines = run("cat", tmp_path / "x.zt", "t").splitlines()
    assert [json.loads(line) for line in lines] == value
    document = json.loads(run("cat", tmp_path / "x.zt", "t", "--json"))
    assert document == {"name": "t", "type": str(dynd.typeof(value)), "values": value}
    run("cat", tmp_path / "x.zt", "t", "[0]", code=4)
    assert run("hash", tmp_path / "x.zt").split()[0] == dynd.array(value).cid().encode()
    assert b"nested" in run("info", tmp_path / "x.zt")
