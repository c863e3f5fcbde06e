"""Content identifiers: the published vectors, the libraries of the field as oracles, and the tree of chunks."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorglot as tg
from peers import needs
from tensorglot.errors import FormatError, InputError, IntegrityError, LimitError
from tensorglot.wire import cid as module
from tensorglot.wire.cid import (
    BLAKE3,
    CHUNK_NBYTES,
    CID,
    DAG_CBOR,
    RAW,
    SHA256,
    Cutter,
    block_cid,
    cid_texts,
    data_blocks,
    data_bytes,
    data_cid,
    decode_node,
    encode_node,
)

VECTORS = json.loads((Path(__file__).parent / "corpus" / "dynd" / "cas_vectors.json").read_text())

# From the test vectors of BLAKE3: the input is the bytes 0, 1, …, 250, 0, 1, …
BLAKE3_VECTORS = {
    0: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    1: "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
    1024: "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
    102400: "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085",
}


def test_the_published_nodes_byte_by_byte():
    leaf = bytes.fromhex(VECTORS["leaf_hex"])
    link = block_cid(leaf)
    assert str(link) == VECTORS["leaf_cid_blake3"]
    assert str(block_cid(leaf, hash=SHA256)) == VECTORS["leaf_cid_sha256"]
    node = {"data": link, "dynd": 1, "size": 12, "type": "3 * int32"}
    assert encode_node(node).hex() == VECTORS["array_node_hex"]
    assert decode_node(bytes.fromhex(VECTORS["array_node_hex"])) == node
    assert str(block_cid(encode_node(node), DAG_CBOR)) == VECTORS["array_node_cid"]
    checkpoint = bytes.fromhex(VECTORS["checkpoint_hex"])
    value = decode_node(checkpoint)
    assert str(value["tensors"]["w"]) == VECTORS["array_node_cid"]
    assert encode_node(value) == checkpoint
    assert str(block_cid(checkpoint, DAG_CBOR)) == VECTORS["checkpoint_cid"]


def test_a_tensor_has_the_identity_of_the_vectors():
    values = np.array([10, 20, 30], np.int32)
    for value in (values, values.astype(">i4"), np.repeat(values, 2)[::2]):
        assert tg.dynd.array(value).cid() == VECTORS["array_node_cid"]
    assert tg.dynd.array([10, 20, 30], "3 * int32").cid() == VECTORS["array_node_cid"]
    assert tg.dynd.array_node(tg.dynd.array(values)).hex() == VECTORS["array_node_hex"]
    assert tg.dynd.array(values.reshape(3, 1)).cid() != VECTORS["array_node_cid"]
    assert tg.dynd.array(values.view(np.uint32)).cid() != VECTORS["array_node_cid"]


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 48, 64, 65, 256, 257, 1024, 1025, 3000])
def test_the_definition_in_the_documentation(size, monkeypatch):
    """With small chunks and nodes of few links, so that its trees have several levels."""
    page = (Path(__file__).parents[1] / "docs" / "identity.md").read_text()
    code = page.split("```python\n")[-1].split("assert")[0]
    assert code.count("2**20") == 3
    assert code.count("8192") == 2
    assert (module.CHUNK_NBYTES, module.FANOUT) == (2**20, 8192)
    theirs = {}
    exec(code.replace("2**20", "16").replace("8192", "4"), theirs)
    monkeypatch.setattr(module, "CHUNK_NBYTES", 16)
    monkeypatch.setattr(module, "FANOUT", 4)
    data = np.arange(size).astype(np.uint8)
    assert theirs["identity"](f"{size} * uint8", data.tobytes()) == tg.dynd.array(data).cid()


@pytest.mark.parametrize("size", BLAKE3_VECTORS)
def test_digests_are_the_published_ones(size):
    assert block_cid(bytes(i % 251 for i in range(size))).digest.hex() == BLAKE3_VECTORS[size]


def test_a_cid_of_the_specification():
    """The CID of the empty block, as every implementation writes it."""
    assert str(block_cid(b"", hash=SHA256)) == "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=100), st.sampled_from([RAW, DAG_CBOR]), st.sampled_from([SHA256, BLAKE3]))
def test_multiformats_agrees(block, codec, hash):
    multiformats = needs("multiformats")
    ours = block_cid(block, codec, hash)
    theirs = multiformats.CID("base32", 1, codec, (hash, ours.digest))
    assert str(theirs) == str(ours)
    assert bytes(theirs) == bytes(ours)
    assert multiformats.CID.decode(str(ours)).raw_digest == ours.digest
    assert CID.parse(str(ours)) == CID.from_bytes(bytes(ours)) == ours


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    | st.binary(max_size=5)
    | st.binary(max_size=3).map(block_cid),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=200)
@given(values)
def test_dag_cbor_agrees(value):
    dag_cbor = needs("dag_cbor")
    multiformats = needs("multiformats")

    def theirs(v):
        if isinstance(v, CID):
            return multiformats.CID.decode(str(v))
        if isinstance(v, dict):
            return {key: theirs(item) for key, item in v.items()}
        return [theirs(item) for item in v] if isinstance(v, list) else v

    block = encode_node(value)
    assert block == dag_cbor.encode(theirs(value))
    assert decode_node(block) == value
    assert dag_cbor.decode(block) == theirs(value)


@pytest.mark.parametrize(
    "text",
    ["", "b", "bafk", "z" + VECTORS["leaf_cid_blake3"][1:], VECTORS["leaf_cid_blake3"].upper(), "b!!!!", "b" + "a" * 58,
     VECTORS["leaf_cid_blake3"] + "a", VECTORS["leaf_cid_blake3"][:-1] + "n", "é"],
)  # fmt: skip
def test_texts_that_are_not_a_cid(text):
    with pytest.raises(InputError):
        CID.parse(text)


@pytest.mark.parametrize("mutate", [0, 1, 2, 3])
def test_bytes_that_are_not_a_cid(mutate):
    raw = bytearray(bytes(block_cid(b"")))
    raw[mutate] ^= 0x40
    with pytest.raises(FormatError, match=r"rule cid\.form"):
        CID.from_bytes(raw)
    with pytest.raises(FormatError, match=r"rule cid\.form"):
        CID.from_bytes(raw[:20])


SIZES = [0, 1, CHUNK_NBYTES - 1, CHUNK_NBYTES, CHUNK_NBYTES + 1, 3 * CHUNK_NBYTES, 5 * CHUNK_NBYTES + 17]


@pytest.mark.parametrize("size", SIZES)
def test_trees_of_chunks(size):
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    blocks = {}
    link, nbytes = data_cid([data], lambda cid, block: blocks.__setitem__(cid, bytes(block)))
    assert nbytes == size
    for piece in (1000, 65536, CHUNK_NBYTES - 1, CHUNK_NBYTES, 2 * CHUNK_NBYTES + 5):
        pieces = [memoryview(data)[at : at + piece] for at in range(0, size, piece)]
        if len(pieces) < 3000:
            assert data_cid(pieces) == (link, size)
    assert (link.codec == RAW) == (size <= CHUNK_NBYTES)
    if size <= CHUNK_NBYTES:
        assert link == block_cid(data)
    else:
        chunks = [data[at : at + CHUNK_NBYTES] for at in range(0, size, CHUNK_NBYTES)]
        assert decode_node(blocks[link]) == {"chunks": [block_cid(chunk) for chunk in chunks], "size": size}
    assert b"".join(data_blocks(link, blocks.__getitem__)) == data


def test_the_frozen_cid_of_data_of_several_chunks():
    data = bytes(i % 251 for i in range(CHUNK_NBYTES)) * 2 + b"x"
    assert str(data_cid([data])[0]) == "bafyr4ie4yjqlhftxso3cmvfh6nl7hskwyx25qfdolnrylm2s45olvmfecy"


def test_chunk_nodes_have_as_many_links_as_they_may(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_NBYTES", 4)
    monkeypatch.setattr(module, "FANOUT", 3)
    for size in [4, 5, 12, 13, 36, 37, 108, 109, 1000]:
        data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
        blocks = {}
        link, _ = data_cid([data], lambda cid, block, blocks=blocks: blocks.__setitem__(cid, bytes(block)))
        nodes = [decode_node(block) for cid, block in blocks.items() if cid.codec == DAG_CBOR]
        assert all(1 <= len(node["chunks"]) <= 3 for node in nodes)
        if size > 4:
            assert decode_node(blocks[link])["size"] == size
        if size <= 729:
            assert b"".join(data_blocks(link, blocks.__getitem__)) == data


def test_blocks_are_checked():
    data = bytes(3 * CHUNK_NBYTES)
    blocks = {}
    link, _ = data_cid([data], lambda cid, block: blocks.__setitem__(cid, bytes(block)))
    leaf = next(cid for cid in blocks if cid.codec == RAW)
    with pytest.raises(IntegrityError):
        list(data_blocks(link, (blocks | {leaf: blocks[leaf][:-1] + b"x"}).__getitem__))
    # A tree with other chunks than ours holds the same bytes under another name: refused.
    halves = [data[:CHUNK_NBYTES], data[CHUNK_NBYTES:]]
    node = encode_node({"chunks": [block_cid(half) for half in halves], "size": len(data)})
    other = {block_cid(half): half for half in halves} | {block_cid(node, DAG_CBOR): node}
    with pytest.raises(FormatError) as caught:
        list(data_blocks(block_cid(node, DAG_CBOR), other.__getitem__))
    assert caught.value.rule == "cid.tree"
    for bad in ({}, {"chunks": [], "size": 0}, {"chunks": [1], "size": 0}, [link], {"chunks": [link]}):
        node = encode_node(bad)
        with pytest.raises(FormatError, match=r"rule cid\.tree"):
            list(data_blocks(block_cid(node, DAG_CBOR), {block_cid(node, DAG_CBOR): node}.__getitem__))


@pytest.mark.parametrize("size", [5, CHUNK_NBYTES + 5])
def test_data_of_another_size_than_expected(size):
    blocks = {}
    link, _ = data_cid([bytes(size)], lambda cid, block: blocks.__setitem__(cid, bytes(block)))
    assert bytes(data_bytes(link, blocks.__getitem__)) == bytes(size)
    assert bytes(data_bytes(link, blocks.__getitem__, size)) == bytes(size)
    for expected in (size - 1, size + 1):
        with pytest.raises(FormatError) as caught:
            data_bytes(link, blocks.__getitem__, expected)
        assert caught.value.rule == "cid.size"


WRONG_TREES = {
    "a first chunk that is short": ([4, 5], 9),
    "a last chunk that is short": ([8, 1], 10),
    "a last chunk that is long": ([8, 3], 10),
    "one chunk more": ([8, 8, 1], 16),
}


@pytest.mark.parametrize("case", WRONG_TREES)
def test_chunks_of_other_sizes_than_the_tree_says(case, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_NBYTES", 8)
    sizes, total = WRONG_TREES[case]
    chunks = [bytes([i]) * size for i, size in enumerate(sizes)]
    node = encode_node({"chunks": [block_cid(chunk) for chunk in chunks], "size": total})
    blocks = {block_cid(chunk): chunk for chunk in chunks} | {block_cid(node, DAG_CBOR): node}
    with pytest.raises(FormatError) as caught:
        list(data_blocks(block_cid(node, DAG_CBOR), blocks.__getitem__))
    assert caught.value.rule == "cid.tree"


def test_a_block_that_is_larger_than_any():
    with pytest.raises(FormatError) as caught:
        list(data_blocks(block_cid(b""), lambda cid: bytes(CHUNK_NBYTES + 1)))
    assert caught.value.rule == "cid.tree"


def test_repeated_chunks_are_bounded_by_what_is_stored(monkeypatch):
    """1,024 bytes of data for each stored one are read into memory, and no byte more."""
    monkeypatch.setattr(module, "CHUNK_NBYTES", 8)
    one, two = (bytes([i]) * 8 for i in range(2))

    def tree(*chunks):
        node = encode_node({"chunks": list(map(block_cid, chunks)), "size": sum(map(len, chunks))})
        return block_cid(node, DAG_CBOR), {block_cid(one): one, block_cid(two): two, block_cid(node, DAG_CBOR): node}

    for chunks in ([one] * 1024, [one] * 1025 + [two]):
        link, blocks = tree(*chunks)
        assert bytes(data_bytes(link, blocks.__getitem__)) == b"".join(chunks)
        assert bytes(data_bytes(link, blocks.__getitem__, 8 * len(chunks))) == b"".join(chunks)
    link, blocks = tree(*[one] * 1025)
    for expected in (None, 8 * 1025):
        with pytest.raises(LimitError) as caught:
            data_bytes(link, blocks.__getitem__, expected)
        assert caught.value.rule == "cid.expansion"


def test_texts_of_many():
    cids = [block_cid(bytes([i]), codec) for i in range(3) for codec in (RAW, DAG_CBOR)]
    assert cid_texts([bytes(cid) for cid in cids]) == list(map(str, cids))
    assert cid_texts([]) == []


def test_a_chain_of_nodes_ends():
    link, blocks = block_cid(b"x"), {block_cid(b"x"): b"x"}
    for _ in range(100):
        node = encode_node({"chunks": [link], "size": 1})
        link = block_cid(node, DAG_CBOR)
        blocks[link] = node
    with pytest.raises(FormatError) as caught:
        list(data_blocks(link, blocks.__getitem__))
    assert caught.value.rule == "cid.tree"


@pytest.mark.parametrize(
    ("block", "rule"),
    [
        ("d82a4100", "cid.form"),
        ("d82a582500" + "02" + "551e20" + "00" * 32, "cid.form"),
        ("d82a01", "cid.link"),
        ("d82b4100", "cbor.tag"),
        ("fb7ff8000000000000", "cbor.float"),
        ("a10101", "cbor.key"),
        ("9fff", "cbor.indefinite"),
    ],
)
def test_invalid_nodes_are_refused(block, rule):
    with pytest.raises(FormatError) as caught:
        decode_node(bytes.fromhex(block))
    assert caught.value.rule == rule


ODD = [None, 5, -1, 2**70, 5.5, True, "x", "é", "b\udc80", "b" * 10**6, b"x", bytearray(3), [1], {}, (1,), object(),
       memoryview(b"\xff" * 3)[::2], float("nan"), np.arange(5)[::2], np.zeros((2, 2)), np.array([None])]  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: f"{type(odd).__name__} {str(odd)[:10]!a}")
def test_any_bytes_raise_only_errors_of_the_library(odd):
    """A function may take it, if it makes sense there."""
    for call in (
        CID.parse,
        CID.from_bytes,
        CID,
        lambda v: CID(bytes(32), v),
        lambda v: CID(bytes(32), RAW, v),
        block_cid,
        encode_node,
        lambda v: encode_node({"a": [v]}),
        decode_node,
        lambda v: list(data_blocks(block_cid(b""), lambda cid: v)),
    ):
        with contextlib.suppress(tg.TensorglotError):
            call(odd)
    for call in (CID.parse, CID.from_bytes, CID, decode_node):
        with pytest.raises(tg.TensorglotError):
            call(odd)


def test_nodes_nest_as_deep_as_they_are_read():
    for depth, lawful in ((63, True), (65, False), (100_000, False)):
        node = []
        for _ in range(depth):
            node = [node]
        if lawful:
            assert decode_node(encode_node(node)) == node
        else:
            with pytest.raises(InputError, match=r"rule cbor\.depth"):
                encode_node(node)
    endless = {}
    endless["self"] = endless
    with pytest.raises(InputError, match=r"rule cbor\.depth"):
        encode_node(endless)


def test_a_sink_is_given_bytes_that_match_their_cid_whatever_happens_to_the_buffer():
    buffer = bytearray(3 * CHUNK_NBYTES)
    blocks = {}

    def sink(cid, block):
        buffer[:] = b"x" * len(buffer)
        blocks[cid] = block

    data_cid([buffer], sink)
    assert all(type(block) is bytes and block_cid(block, cid.codec) == cid for cid, block in blocks.items())


LINK = block_cid(b"chunk")


@pytest.mark.parametrize(
    "node",
    [
        {"chunks": [LINK, bytes(60)], "size": 5},
        {"chunks": [LINK, block_cid(b"node", hash=SHA256), "text" * 20], "size": 5},
        {"chunks": ["text" * 20], "size": 5},
        {"chunks": [LINK], "size": 0},
        {"chunks": {"a": LINK}, "size": 5},
        {"chunks": [LINK], "size": 5, "type": 1},
        {"links": [LINK], "size": 5},
        [LINK],
    ],
    ids=str,
)
def test_a_node_of_anything_else_is_no_chunk_node(node):
    with pytest.raises(FormatError) as caught:
        module.parse_chunk_node(encode_node(node))
    assert caught.value.rule == "cid.tree"
    assert module.parse_chunk_node(encode_node({"chunks": [LINK, LINK], "size": 5})) == ([LINK, LINK], 5)


@pytest.mark.parametrize("piece", [1000, CHUNK_NBYTES - 1, CHUNK_NBYTES, CHUNK_NBYTES + 1, 3 * CHUNK_NBYTES])
def test_pieces_are_cut_where_chunks_end(piece):
    data = np.random.default_rng(1).bytes(3 * CHUNK_NBYTES + 77)
    cutter = Cutter()
    chunks = [bytes(chunk) for at in range(0, len(data), piece) for chunk in cutter.cut(data[at : at + piece])]
    assert chunks == [data[at : at + CHUNK_NBYTES] for at in range(0, 3 * CHUNK_NBYTES, CHUNK_NBYTES)]
    assert cutter.held == data[3 * CHUNK_NBYTES :]
