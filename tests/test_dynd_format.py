"""docs/dynd-format.md: its examples run, and an independent small reader agrees with tensorglot."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random

import pytest

import minimal_dynd as minimal
import tensorglot as tg
from dynd_random import mutant, random_bytes, random_type
from tensorglot import dynd
from tensorglot.dynd.cbor import is_native
from tensorglot.dynd.json import from_json, to_json
from tensorglot.errors import FormatError, InputError, LimitError
from tensorglot.wire.cid import CID, DAG_CBOR, RAW, block_cid, data_cid, decode_node, encode_node

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "dynd-format.md").read_text()
CORPUS = Path(__file__).parent / "corpus" / "dynd"
VECTORS = json.loads((CORPUS / "vectors.json").read_text())
INTEGERS = re.compile(r"\b(date|time|timedelta|datetime|decimal)\b")
"""Types whose values the small reader gives as integers."""


def rows(kind):
    """The rows of the blocks of a kind; their columns are two blanks apart."""
    blocks = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.M | re.S)
    found = [re.split(r"  +", line.strip()) for block in blocks for line in block.splitlines()]
    assert found
    return [pytest.param(*row, id=" ".join(row)[:60]) for row in found]


def unhex(text):
    """Groups of digits; "*64" repeats the one before it."""
    groups = []
    for group in text.split():
        groups.append(groups[-1] * (int(group[1:]) - 1) if group[0] == "*" else bytes.fromhex(group))
    return b"".join(groups)


@pytest.mark.parametrize(("text", "value", "data"), rows("dynd"))
def test_values(text, value, data):
    type = dynd.parse(text)
    assert str(type) == text
    raw = unhex(data)
    assert from_json(value, type).serialize() == raw
    tensor = dynd.deserialize(raw, type)
    assert tensor.serialize() == raw
    if "0x" not in value:  # JSON has one NaN
        assert from_json(json.dumps(to_json(tensor)), type).serialize() == raw
    try:
        found = minimal.decode(text, raw)
    except minimal.Unknown:
        assert re.search("bfloat16", text)
        return
    assert minimal.encode(text, found) == raw
    if not INTEGERS.search(text):
        assert found == json.loads(value)
        assert minimal.encode(text, json.loads(value)) == raw


@pytest.mark.parametrize(("text", "data"), rows("dynd-refused"))
def test_bytes_that_are_refused(text, data):
    with pytest.raises(FormatError):
        dynd.deserialize(unhex(data), text)
    with pytest.raises((minimal.Refused, minimal.Unknown)):
        minimal.decode(text, unhex(data))


@pytest.mark.parametrize(("spelling", "canonical"), rows("dynd-types"))
def test_spellings(spelling, canonical):
    assert str(dynd.parse(spelling)) == str(dynd.parse(canonical)) == canonical
    minimal.parse(canonical)
    with pytest.raises(minimal.Refused):
        minimal.parse(spelling)


@pytest.mark.parametrize("text", [row.values[0] for row in rows("dynd-not-types")])
def test_invalid_types_are_refused(text):
    with pytest.raises(InputError):
        dynd.parse(text)
    with pytest.raises(minimal.Refused):
        minimal.parse(text)


@pytest.mark.parametrize(("codec", "data", "text"), rows("dynd-cid"))
def test_cids(codec, data, text):
    block, code = unhex("" if data == "empty" else data), {"raw": RAW, "dag-cbor": DAG_CBOR}[codec]
    assert str(block_cid(block, code)) == minimal.cid_text(minimal.cid(block, code)) == text
    assert len(text) == 59


@pytest.mark.parametrize(("data", "text"), rows("dynd-link"))
def test_data_links(data, text):
    assert str(data_cid([unhex(data)])[0]) == minimal.cid_text(minimal.data_link(unhex(data))) == text


@pytest.mark.parametrize(("node", "data"), rows("dynd-dag"))
def test_chunk_nodes(node, data):
    value = json.loads(node)
    assert decode_node(unhex(data)) == {"size": value["size"], "chunks": [CID.parse(link) for link in value["chunks"]]}
    assert encode_node(decode_node(unhex(data))) == unhex(data)
    link = str(block_cid(unhex(data), DAG_CBOR))
    assert link in [row.values[1] for row in rows("dynd-link")]


@pytest.mark.parametrize(("text", "value", "data"), rows("dynd-cbor"))
def test_cbor(text, value, data):
    tensor = from_json(value, dynd.parse(text))
    assert dynd.to_cbor(tensor) == unhex(data)
    read = dynd.from_cbor(unhex(data))
    assert str(read.type) == text
    assert read.serialize() == tensor.serialize()
    assert is_native(tensor.type) == (not data.startswith("da64796e64"))


@pytest.mark.parametrize(("text", "value", "name"), rows("dynd-identity"))
def test_identities(text, value, name):
    tensor = from_json(value, dynd.parse(text))
    assert tensor.cid() == minimal.identity(text, bytes(tensor.serialize())) == name


def test_the_table_of_tags():
    from tensorglot.dynd.cbor import C_ORDER, F_ORDER, TAG, TYPED

    table = PAGE.partition("| E | ")[2].splitlines()
    names, tags = re.findall(r"`(\w+)`", table[0]), re.findall(r"\b(\d\d)\b", table[2])
    assert dict(zip(names, map(int, tags), strict=True)) == TYPED
    for number in (C_ORDER, F_ORDER, TAG):
        assert re.search(rf"tag {number}\b.* around", PAGE)


def test_every_element_type_is_on_the_page():
    grammar = PAGE.partition("simple    =")[2].partition("```")[0]
    integers = {f"{sign}int{bits}" for sign in ("", "u") for bits in (1, 2, 4, 8, 16, 32, 64, 128)}
    named = set(re.findall(r'"(b?float\w+|bool|complex64|complex128)"', grammar)) | integers
    assert named == {row.name for row in tg.model.dtypes.TABLE}


def test_the_suffix_is_that_of_one_packed_value(tmp_path):
    text, value, data = rows("dynd")[-1].values
    assert text == "array[Any]"
    path = tmp_path / "x.dynd"
    path.write_bytes(unhex(data))
    with tg.open(path) as archive:
        assert {name: to_json(archive[name]) for name in archive} == json.loads(value)["$value"]
        tg.save(tmp_path / "y.dynd", archive)
    assert (tmp_path / "y.dynd").read_bytes() == unhex(data)


def test_a_table_of_tensors_is_an_archive(tmp_path):
    _, value, data = rows("dynd")[-2].values
    (row,) = json.loads(value)["$value"]["tensors"]
    path = tmp_path / "x.dynd"
    path.write_bytes(unhex(data))
    with tg.open(path) as archive:
        assert list(archive) == [row["name"]]
        assert str(archive["w"].type) == row["type"]
        assert archive["w"].numpy().tolist() == [1, 2]


def test_sources_cite_pages_that_exist():
    for path in (ROOT / "src").rglob("*.py"):
        for page in re.findall(r"[\w./-]+\.md\b", path.read_text()):
            assert (ROOT / page).exists(), f"{path}: {page}"


def agree(mine, theirs):
    if isinstance(mine, list) and isinstance(theirs, list):
        return len(mine) == len(theirs) and all(map(agree, mine, theirs))
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return list(mine) == list(theirs) and all(agree(mine[key], theirs[key]) for key in mine)
    return mine == theirs or (theirs in ("NaN", "Infinity", "-Infinity") and str(mine).startswith("0x"))


@pytest.mark.parametrize("vector", VECTORS["valid"], ids=lambda v: f"{v['canonical_type']} {v['hex']}"[:60])
def test_the_small_reader_on_the_vectors(vector):
    text, data = vector["canonical_type"], bytes.fromhex(vector["hex"])
    try:
        found = minimal.decode(text, data)
    except minimal.Unknown:
        pytest.skip("not in the small reader")
    assert minimal.encode(text, found) == data
    assert agree(found, to_json(dynd.deserialize(data, text)))


@pytest.mark.parametrize("vector", VECTORS["invalid_bytes"], ids=lambda v: f"{v['type']} {v['hex']}"[:60])
def test_the_small_reader_refuses_what_the_vectors_refuse(vector):
    with pytest.raises((minimal.Refused, minimal.Unknown)):
        minimal.decode(vector["type"], bytes.fromhex(vector["hex"]))


@pytest.mark.parametrize("vector", VECTORS["type_canonical"], ids=lambda v: v["in"])
def test_the_small_reader_takes_canonical_types_only(vector):
    minimal.parse(vector["canonical"])
    if vector["in"] != vector["canonical"]:
        with pytest.raises(minimal.Refused):
            minimal.parse(vector["in"])


def known_type(rng):
    """A random type that the small reader knows."""
    while True:
        type = random_type(rng, 3)
        try:
            minimal.parse(str(type))
        except minimal.Unknown:
            continue
        return type


def test_the_small_reader_agrees_on_random_values():
    compared = 0
    for seed in range(1500):
        rng = Random(seed)
        type = known_type(rng)
        data = random_bytes(rng, type)
        try:
            found = minimal.decode(str(type), data)
        except minimal.Unknown:  # in an array[Any]
            continue
        assert minimal.encode(str(type), found) == data
        tensor = dynd.deserialize(data, type)
        if not INTEGERS.search(f"{found} {type}"):
            assert agree(found, to_json(tensor)), (seed, str(type))
        if len(data) < 1 << 16:
            assert tensor.cid() == minimal.identity(str(type), data)
        compared += 1
    assert compared > 1000


def test_the_small_reader_agrees_on_mutants():
    accepted = refused = 0
    for seed in range(6000):
        rng = Random(seed)
        type = known_type(rng)
        data = mutant(rng, random_bytes(rng, type))
        try:
            minimal.decode(str(type), data)
            mine = True
        except minimal.Refused:
            mine = False
        except minimal.Unknown:
            continue
        try:
            dynd.deserialize(data, type)
            ours = True
        except LimitError:
            continue
        except FormatError:
            ours = False
        assert mine == ours, (seed, str(type), data.hex())
        accepted, refused = accepted + ours, refused + (not ours)
    assert min(accepted, refused) > 500
