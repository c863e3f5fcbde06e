"""Links: their four states, who owns a value, graphs of links in stores, `merkle[K]`, threads, and hostile stores."""

from __future__ import annotations

import contextlib
import json
import pickle
import threading
from collections.abc import MutableMapping
from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np
import pytest

import tensorglot as tg
from bounds import INTERPRETED, MB, allocated_nbytes, at_once
from dynd_random import random_bytes, random_type, sized
from peers import needs
from tensorglot import dynd
from tensorglot.dynd.json import from_json, to_json
from tensorglot.errors import FormatError, InputError, IntegrityError, LimitError, TensorNotFound
from tensorglot.wire.cid import CHUNK_NBYTES, CID, DAG_CBOR, FANOUT, RAW, block_cid, data_cid, encode_node

LISTS = "var * var * int8"
INT = "merkle[int64]"


class Store(MutableMapping):
    """A dict that remembers what was asked of it."""

    def __init__(self, blocks=()):
        self.blocks, self.read, self.written = dict(blocks), [], []

    def __getitem__(self, cid):
        self.read.append(cid)
        return self.blocks[cid]

    def __setitem__(self, cid, block):
        assert type(block) is bytes
        self.written.append(cid)
        self.blocks[cid] = block

    def __delitem__(self, cid):
        del self.blocks[cid]

    def __iter__(self):
        return iter(self.blocks)

    def __len__(self):
        return len(self.blocks)


# The four states


def test_the_states_and_how_they_follow():
    link = dynd.Link("var * int64")
    assert link.state == "empty"
    assert repr(link) == "Link(var * int64, empty)"
    link.set([1])
    assert link.state == "mutable"
    assert repr(link) == "Link(var * int64, mutable)"
    link.set([1, 2])
    cid = link.freeze()
    assert link.state == "frozen"
    assert repr(link) == f"Link(var * int64, frozen, {cid})"
    assert link.value.tolist() == [1, 2]

    lazy = dynd.Link("var * int64", cid)
    assert lazy.state == "lazy"
    assert repr(lazy) == f"Link(var * int64, lazy, {cid})"
    assert lazy == link == dynd.Link("var * int64", str(cid))
    assert lazy.load({cid: link.value.serialize()}).tolist() == [1, 2]
    assert lazy.state == "frozen"


def test_a_type_of_any_length_has_a_short_repr():
    wide = dynd.parse("{" + ", ".join(f"field{i}: int8" for i in range(1000)) + "}")
    assert len(repr(dynd.Link(wide))) < 200


@pytest.mark.parametrize(
    "misuse",
    [
        lambda empty, lazy, frozen: empty.value,
        lambda empty, lazy, frozen: empty.cid,
        lambda empty, lazy, frozen: empty.freeze({}),
        lambda empty, lazy, frozen: empty.load({}),
        lambda empty, lazy, frozen: hash(empty),
        lambda empty, lazy, frozen: dynd.serialize(empty, INT),
        lambda empty, lazy, frozen: lazy.value,
        lambda empty, lazy, frozen: frozen.set(1),
    ],
)
def test_what_a_state_does_not_allow(misuse):
    frozen = dynd.Link.to(1)
    frozen.freeze()
    with pytest.raises(InputError) as caught:
        misuse(dynd.Link("int64"), dynd.Link("int64", frozen.cid), frozen)
    assert caught.value.rule == "dynd.merkle.state"


def test_the_published_leaf():
    cid = dynd.Link.to(np.array([10, 20, 30], np.int32)).cid
    assert str(cid) == "bafkr4ibj2ndi3jybh2t2eqto4ypepn5uamjbuv23lipofvtcihlf3dtwim"


def test_equality_asks_for_nothing_and_a_key_is_frozen():
    one, other = dynd.Link.to(1), dynd.Link.to(1)
    assert one != other
    assert one.state == other.state == "mutable"
    assert len({one, other}) == 1
    assert one.state == other.state == "frozen"
    assert one == other
    assert one != dynd.Link("float64", one.cid)
    assert one != one.cid


def test_a_link_is_written_as_its_cid_and_read_as_a_lazy_one():
    link = dynd.Link.to(list(range(10)), "var * int64")
    store = {}
    cid = link.freeze(store)
    assert store == {cid: bytes(link.value.serialize())}
    text = "var * merkle[var * int64]"
    data = dynd.serialize([link, cid, str(cid)], text)
    assert data == b"\x03" + bytes(cid) * 3
    read = dynd.deserialize(data, text).tolist()
    assert [each.state for each in read] == ["lazy"] * 3
    assert read[0].load(store).tolist() == list(range(10))
    assert dynd.serialize([None, cid], "2 * ?merkle[var * int64]") == b"\0\x01" + bytes(cid)


def test_the_type_of_links():
    one, other = dynd.Link.to(1), dynd.Link.to("x")
    assert str(dynd.typeof(one)) == INT
    assert str(dynd.typeof([one, None])) == "2 * ?merkle[int64]"
    assert str(dynd.typeof([one, other])) == "2 * merkle[Any]"
    assert dynd.array([one, other]).tolist() == [one, other]


# Who owns a value


@pytest.mark.parametrize(
    ("array", "type"),
    [
        (np.arange(6, dtype=">i4").reshape(2, 3)[:, ::-1], None),
        (np.asfortranarray(np.ones((3, 4))), None),
        (np.array([(1, 2.5), (3, 4.5)], "<i2,<f8"), None),
        (np.array([b"ab", b"c"]), None),
        (np.arange(12).reshape(3, 4), "var * var * int64"),
        (np.arange(4), "storage[2 * 2 * int64, axis=[1, 0]]"),
    ],
)
def test_a_frozen_link_does_not_follow_the_array_it_was_made_from(array, type):
    if type == "storage[2 * 2 * int64, axis=[1, 0]]":
        array = array.reshape(2, 2)
    link = dynd.Link.to(array, type)
    store = {}
    cid = link.freeze()
    before = bytes(link.value.serialize())
    array[...] = np.zeros((), array.dtype)
    assert bytes(link.value.serialize()) == before
    assert link.freeze(store) == cid
    assert block_cid(store[cid]) == cid
    assert dynd.Link(link.type, cid).load(store).serialize() == before


def test_a_mutable_link_does_follow_it():
    array = np.zeros(2)
    link = dynd.Link.to(array)
    array[0] = 1
    assert link.value.tolist() == [1, 0]
    assert link.cid == dynd.Link.to(np.array([1.0, 0.0])).cid


@pytest.mark.parametrize(
    ("value", "type"), [(np.arange(3), None), ([[1], [2, 3]], LISTS), ([1, None], "2 * ?int8"), ("text", "string")]
)
def test_the_memory_of_a_frozen_value_is_read_only(value, type):
    link = dynd.Link.to(value, type)
    store = {}
    link.freeze(store)
    for tensor in (link.value, dynd.Link(link.type, link.cid).load(store)):
        for name in tensor.parts:
            array = tensor.parts[name].array()
            assert not array.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0


def test_a_loaded_value_does_not_follow_the_block_of_a_store():
    block = bytearray(b"\x07" * 8)
    cid = block_cid(block)
    link = dynd.Link("8 * uint8", cid)
    value = link.load({cid: block})
    block[0] = 0
    assert value.tolist() == [7] * 8


def test_a_lazy_link_accepts_only_its_own_value():
    cid = dynd.Link.to([1, 2]).cid
    lazy = dynd.Link("2 * int64", cid)
    with pytest.raises(IntegrityError) as caught:
        lazy.set([1, 3])
    assert caught.value.rule == "dynd.merkle.value"
    assert lazy.state == "lazy"
    lazy.set([1, 2])
    assert lazy.state == "frozen"


def test_a_file_can_be_closed_after_freezing(tmp_path):
    tg.save(tmp_path / "a.zt", {"w": np.arange(5)})
    with tg.open(tmp_path / "a.zt") as archive:
        link = dynd.Link.to(archive["w"])
        link.freeze()
    assert link.value.tolist() == list(range(5))


# Graphs


def chain(length):
    """Links to links: the type names every level."""
    link = dynd.Link.to(7, "int64")
    for _ in range(length):
        link = dynd.Link.to(link)
    return link


GRAPHS = {
    "a chain": lambda: chain(20),
    "a list": lambda: dynd.Link.to([dynd.Link.to(i) for i in range(5)], f"var * {INT}"),
    "options": lambda: dynd.Link.to([None, dynd.Link.to(1), None], f"3 * ?{INT}"),
    "a record": lambda: dynd.Link.to({"a": dynd.Link.to("x"), "b": [dynd.Link.to([1.5])]}),
    "any type": lambda: dynd.Link.to([dynd.Link.to(1), dynd.Link.to("x")], "var * merkle[Any]"),
    "boxes": lambda: dynd.Link.to([dynd.array(dynd.Link.to(1)), dynd.array("x")], "var * array[Any]"),
    "boxes in boxes": lambda: dynd.Link.to(
        [dynd.array([dynd.array(dynd.Link.to("deep"))], "1 * array[Any]")], "1 * array[Any]"
    ),
    "another axis order": lambda: dynd.Link.to(
        [[dynd.Link.to(1), dynd.Link.to(2)]], f"storage[1 * 2 * {INT}, axis=[1, 0]]"
    ),
    "much data": lambda: dynd.Link.to([dynd.Link.to(np.arange(300_000))]),
}


def inner_links(value):
    if isinstance(value, dynd.Link):
        return [value]
    if isinstance(value, tg.Tensor):
        return inner_links(value.tolist())
    if isinstance(value, dict):
        value = list(value.values())
    return [link for item in value for link in inner_links(item)] if isinstance(value, list | tuple) else []


def reached(link, store):
    """Everything below a link, found by touching it."""
    value = link.load(store)
    return {(link.type, link.cid): value.serialize()} | {
        key: data for inner in inner_links(value) for key, data in reached(inner, None).items()
    }


@pytest.mark.parametrize("graph", GRAPHS)
def test_freezing_stores_everything_inner_links_first(graph):
    link = GRAPHS[graph]()
    store = Store()
    cid = link.freeze(store)
    assert store.written[-1] == cid
    found = reached(dynd.Link(link.type, cid), store)
    assert len(found) > 1
    for _, name in found:
        assert name in store.blocks
    # A parent is written after all that its bytes name.
    place = {name: i for i, name in enumerate(store.written)}
    for (_, name), data in found.items():
        for _, inner in found:
            assert bytes(inner) not in data.tobytes() or place[inner] < place[name] or inner == name


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_graph_moves_from_store_to_store(graph):
    link = GRAPHS[graph]()
    first, second = Store(), Store()
    cid = link.freeze(first)
    lazy = dynd.Link(link.type, cid, first)
    assert lazy.freeze(second) == cid
    assert second.blocks == first.blocks
    # What is there already is neither read again nor written.
    first.read.clear()
    lazy.freeze(first)
    assert first.read == []
    # Through a process border too.
    third = Store()
    again = pickle.loads(pickle.dumps(link))
    assert again.freeze(third) == cid
    assert third.blocks == first.blocks


def test_a_link_inside_a_value_is_the_link_that_was_put_there():
    inner = dynd.Link.to(np.arange(3))
    outer = dynd.Link.to([inner])
    assert inner.state == "frozen"
    assert outer.value.tolist()[0] is inner
    outer.freeze()
    assert outer.value.tolist()[0] is inner
    assert dynd.array(inner).tolist() is inner


def test_touching_loads_one_value_at_a_time():
    link, store = chain(3), Store()
    link.freeze(store)
    lazy = dynd.Link(link.type, link.cid)
    store.read.clear()
    inner = lazy.load(store).tolist()
    assert len(store.read) == 1
    assert inner.state == "lazy"
    assert inner.value.tolist().value.tolist().value.tolist() == 7
    assert len(store.read) == 4
    assert inner.state == "frozen"


def test_what_is_linked_many_times_is_stored_once():
    link = dynd.Link.to(1)
    for _ in range(40):  # 2^40 ways from the last link to the first
        link = dynd.Link.to([link, link])
    store = Store()
    with at_once():
        link.freeze(store)
    assert len(store.written) == len(store.blocks) == 41
    with at_once():
        dynd.Link(link.type, link.cid, store).freeze(Store())


def test_a_link_in_its_own_value_is_refused():
    link = dynd.Link(f"var * merkle[{LISTS}]")
    with pytest.raises(InputError, match=r"rule dynd\.value"):
        link.set([link])
    link = dynd.Link.to(1)
    link_type = link.type
    with pytest.raises(InputError, match=r"rule dynd\.value"):
        link.set([link])
    assert link.type == link_type


def test_equal_bytes_of_another_type_do_not_hide_what_they_link():
    """The block of a link is 36 bytes, which can lie in a store as plain bytes already."""
    inner = dynd.Link.to([1.5])
    outer = dynd.Link.to(inner)
    store = {}
    dynd.Link.to(np.frombuffer(bytes(inner.cid), np.uint8)).freeze(store)
    assert outer.freeze(store) in store
    assert inner.cid in store


def test_links_that_lead_nowhere_stay_links():
    cid = block_cid(b"elsewhere")
    store = {}
    outer = dynd.Link.to([cid], "1 * merkle[9 * uint8]")
    outer.freeze(store)
    assert list(store) == [outer.cid]
    inner = dynd.Link(outer.type, outer.cid, store).value.tolist()[0]
    with pytest.raises(TensorNotFound):
        inner.value
    assert inner.state == "lazy"
    with pytest.raises(TensorNotFound):
        dynd.Link.to([inner]).freeze({})


def test_a_node_with_links_stores_what_they_reach():
    inner = dynd.Link.to([1, 2, 3])
    store = {}
    node = dynd.to_cbor([dynd.Link.to(inner)], profile="dag", store=store)
    assert len(store) == 3
    read = dynd.from_cbor(node, profile="dag", store=store)
    assert read.tolist()[0].value.tolist().value.tolist() == [1, 2, 3]


def test_other_implementations_read_our_stores():
    """Every block is found under the CID that multiformats gives it, and nodes decode with dag-cbor."""
    multiformats, dag_cbor, blake3 = needs("multiformats"), needs("dag_cbor"), needs("blake3")
    array = np.arange(400_000)
    store = {}
    outer = dynd.Link.to({"a": dynd.Link.to(array), "b": dynd.Link.to("x")})
    outer.freeze(store)
    for cid, block in store.items():
        theirs = multiformats.CID("base32", 1, cid.codec, ("blake3", blake3.blake3(block).digest()))
        assert (str(theirs), bytes(theirs)) == (str(cid), bytes(cid))
    root = store[outer.cid]
    link = multiformats.CID.decode(root[:36])
    node = dag_cbor.decode(store[CID.from_bytes(bytes(link))])
    assert node["size"] == array.nbytes
    assert b"".join(store[CID.from_bytes(bytes(chunk))] for chunk in node["chunks"]) == array.astype("<i8").tobytes()
    assert store[CID.from_bytes(bytes(multiformats.CID.decode(root[36:])))] == b"\x01x"


# merkle[Any] and merkle[K]


def test_the_bytes_of_a_link_that_brings_its_type():
    link = dynd.Link.to(np.array([10, 20, 30], np.int32))
    data = dynd.serialize(link, "merkle[Any]")
    assert data == sized(b"3 * int32") + bytes(link.cid)
    read = dynd.deserialize(data, "merkle[Any]").tolist()
    assert read == link
    assert read.state == "lazy"
    assert read.load({link.cid: link.value.serialize()}).numpy().tolist() == [10, 20, 30]


ANY_LINKS = {
    "merkle[Any]": [np.arange(3), "text", [[1], []]],
    "merkle[var * T]": [dynd.array([1], "var * int8"), dynd.array([], "var * string")],
    "merkle[N * N * float64]": [np.zeros((2, 2)), np.zeros((5, 5))],
    "merkle[(T, ...)]": [(1,), (1, "x")],
}


@pytest.mark.parametrize("pattern", ANY_LINKS)
def test_links_of_a_kind(pattern, tmp_path):
    links = [dynd.Link.to(value) for value in ANY_LINKS[pattern]]
    for type, value in [
        (pattern, links[0]),
        (f"var * {pattern}", links),
        (f"{len(links) + 1} * ?{pattern}", [None, *links]),
        (f"{{a: {pattern}, b: int8}}", {"a": links[1], "b": 1}),
    ]:
        tensor = dynd.array(value, type)
        assert str(tensor.type) == type
        data = tensor.serialize()
        read = dynd.deserialize(data, type)
        assert read.serialize() == data
        assert read.tolist() == value == tensor.tolist()
        assert dynd.unpack(dynd.pack(tensor)).tolist() == value
        for profile in ("exchange", "dag"):
            assert dynd.from_cbor(dynd.to_cbor(tensor, profile=profile), profile=profile).serialize() == data
        assert from_json(json.dumps(to_json(tensor)), tensor.type).serialize() == data
        for name in ("x.zt", "x.dynd"):
            tg.save(tmp_path / name, {"links": tensor, "other": np.arange(3)})
            with tg.open(tmp_path / name) as archive:
                assert archive["links"].serialize() == data
                assert archive["links"].tolist() == value


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("merkle[var * T]", dynd.Link.to(np.arange(3))),
        ("merkle[N * N * float64]", dynd.Link.to(np.zeros((2, 3)))),
        ("merkle[Any]", block_cid(b"")),
        ("merkle[Any]", str(block_cid(b""))),
        ("merkle[Any]", 5),
        ("merkle[Any]", None),
        ("merkle[4 * int64]", dynd.Link.to(np.arange(3))),
        ("merkle[3 * int64]", 3),
        ("merkle[3 * int64]", "bafk"),
        ("merkle[3 * int64]", b"x"),
        ("merkle[3 * int64]", CID(bytes(32), RAW, 0x12)),
    ],
)
def test_values_that_are_not_a_link_of_the_type(type, value):
    with pytest.raises(InputError):
        dynd.serialize(value, type)
    with pytest.raises(InputError):
        dynd.array([value], f"var * {type}")


def test_an_empty_link_may_have_a_symbolic_type():
    link = dynd.Link("var * T")
    with pytest.raises(InputError) as caught:
        link.set(np.arange(3))
    assert caught.value.rule == "dynd.merkle.type"
    assert link.state == "empty"
    link.set(dynd.array([1], "var * int8"))
    assert str(link.type) == "var * int8"
    with pytest.raises(InputError, match=r"rule dynd\.symbolic"):
        dynd.Link("Any", block_cid(b""))


CID_BYTES = bytes(block_cid(b""))
HOSTILE_BYTES = {
    "no type": (b"", "dynd.truncated"),
    "no link": (sized(b"int8"), "dynd.truncated"),
    "half a link": (sized(b"int8") + CID_BYTES[:20], "dynd.truncated"),
    "bytes behind": (sized(b"int8") + CID_BYTES + b"\0", "dynd.trailing"),
    "a symbolic type": (sized(b"Any") + CID_BYTES, "dynd.symbolic"),
    "a symbolic dimension": (sized(b"N * int8") + CID_BYTES, "dynd.symbolic"),
    "another spelling": (sized(b"3*int8") + CID_BYTES, "dynd.type.canonical"),
    "no CID": (sized(b"int8") + bytes(36), "dynd.merkle"),
    "a CID of SHA-256": (sized(b"int8") + bytes(CID(bytes(32), RAW, 0x12)), "dynd.merkle"),
    "a type that none can have": (sized(b"0 * " + b"9223372036854775807 * " * 3 + b"int8") + CID_BYTES, "dynd.shape"),
}


@pytest.mark.parametrize("case", HOSTILE_BYTES)
def test_bytes_that_are_not_a_link(case):
    data, rule = HOSTILE_BYTES[case]
    with pytest.raises(tg.TensorglotError) as caught:
        dynd.deserialize(data, "merkle[Any]")
    assert caught.value.rule == rule


def test_bytes_of_a_link_to_another_kind():
    with pytest.raises(FormatError) as caught:
        dynd.deserialize(sized(b"3 * int8") + CID_BYTES, "merkle[var * T]")
    assert caught.value.rule == "dynd.array.type"


@pytest.mark.parametrize(
    ("held", "holder", "value"),
    [
        ("array[int16]", "array[int32]", dynd.array(1, "int16")),
        ("merkle[1 * T]", "merkle[2 * T]", dynd.Link.to([1])),
    ],
)
def test_a_file_cannot_hold_a_box_of_another_type(tmp_path, held, holder, value):
    path = tmp_path / "x.zt"
    tg.save(path, {"x": dynd.array([value], f"var * {held}")})
    assert tg.open(path)["x"].serialize()
    path.write_bytes(path.read_bytes().replace(f"var * {held}".encode(), f"var * {holder}".encode()))
    with pytest.raises(FormatError) as caught:
        tg.open(path)["x"].serialize()
    assert caught.value.rule == "dynd.array.type"
    assert caught.value.tensor == "x"


# Threads


def test_many_threads_touch_one_link_and_load_it_once():
    array = np.arange(200_000)
    blocks = {}
    cid = dynd.Link.to(array).freeze(blocks)
    for _ in range(20):
        store = Store(blocks)
        link = dynd.Link("200000 * int64", cid, store)
        start = threading.Barrier(8)

        def touch(link=link, start=start):
            start.wait()
            return link.value

        with ThreadPoolExecutor(8) as pool:
            values = [future.result() for future in [pool.submit(touch) for _ in range(8)]]
        assert all(value is values[0] for value in values)
        assert store.read.count(next(cid for cid in blocks if cid.codec == RAW)) == 1


def test_many_threads_freeze_one_link_while_its_array_changes():
    for seed in range(20):
        array = np.zeros(300_000, np.int64)
        link = dynd.Link.to([dynd.Link.to(array)]).value.tolist()[0] if seed % 2 else dynd.Link.to(array)
        store = {}
        stop = threading.Event()

        def change(array=array, stop=stop):
            while not stop.is_set():
                array += 1

        changing = threading.Thread(target=change)
        changing.start()
        try:
            with ThreadPoolExecutor(4) as pool:
                cids = {future.result() for future in [pool.submit(link.freeze, store) for _ in range(4)]}
        finally:
            stop.set()
            changing.join()
        assert cids == {link.cid}
        assert all(block_cid(block, cid.codec) == cid for cid, block in store.items())
        assert dynd.Link(link.type, link.cid).load(store).serialize() == link.value.serialize()


# Hostile stores


def node_of(chunks, size):
    block = encode_node({"chunks": chunks, "size": size})
    return block_cid(block, DAG_CBOR), block


CHUNK = bytes(CHUNK_NBYTES)
CHUNK_CID = block_cid(CHUNK)
TAIL_CID = block_cid(b"x")


def tree(*nodes):
    """The last of some nodes, each made of what was before it, and a store of all."""
    store = {CHUNK_CID: CHUNK, TAIL_CID: b"x"}
    cid = CHUNK_CID
    for count, size in nodes:
        cid, block = node_of([cid] * count, size)
        store[cid] = block
    return cid, store


def fan(levels):
    """Some levels of full nodes: FANOUT to that power chunks, which are all the same."""
    return tree(*[(FANOUT, CHUNK_NBYTES * FANOUT ** (level + 1)) for level in range(levels)])


def two_chunks(first, second, size):
    cid, block = node_of([first, second], size)
    return cid, {CHUNK_CID: CHUNK, TAIL_CID: b"x", block_cid(CHUNK[1:]): CHUNK[1:], cid: block}


WHOLE = two_chunks(CHUNK_CID, TAIL_CID, CHUNK_NBYTES + 1)
LYING_STORES = {
    "no block": (WHOLE[0], {}, TensorNotFound),
    "no chunk": (WHOLE[0], {WHOLE[0]: WHOLE[1][WHOLE[0]]}, TensorNotFound),
    "another block": (WHOLE[0], WHOLE[1] | {WHOLE[0]: b"x"}, IntegrityError),
    "another chunk": (WHOLE[0], WHOLE[1] | {TAIL_CID: b"y"}, IntegrityError),
    "half a chunk": (WHOLE[0], WHOLE[1] | {CHUNK_CID: CHUNK[1:]}, IntegrityError),
    "a flipped bit": (WHOLE[0], WHOLE[1] | {CHUNK_CID: b"\1" + CHUNK[1:]}, IntegrityError),
    "no bytes": (WHOLE[0], WHOLE[1] | {TAIL_CID: None}, IntegrityError),
    "a text": (WHOLE[0], WHOLE[1] | {TAIL_CID: "x"}, IntegrityError),
    "a number": (WHOLE[0], WHOLE[1] | {TAIL_CID: 1}, IntegrityError),
    "a vast block": (WHOLE[0], WHOLE[1] | {CHUNK_CID: bytes(2 * CHUNK_NBYTES)}, FormatError),
    "a size too small": (*two_chunks(CHUNK_CID, TAIL_CID, CHUNK_NBYTES), FormatError),
    "a size too large": (*two_chunks(CHUNK_CID, TAIL_CID, CHUNK_NBYTES + 2), FormatError),
    "a size of 2^62": (*two_chunks(CHUNK_CID, TAIL_CID, 1 << 62), FormatError),
    "a size of 2^64 - 1": (*two_chunks(CHUNK_CID, TAIL_CID, (1 << 64) - 1), FormatError),
    "a size below 0": (*two_chunks(CHUNK_CID, TAIL_CID, -1), FormatError),
    "a size that is text": (*two_chunks(CHUNK_CID, TAIL_CID, "9"), FormatError),
    "chunks in another order": (*two_chunks(TAIL_CID, CHUNK_CID, CHUNK_NBYTES + 1), FormatError),
    "a short first chunk": (*two_chunks(block_cid(CHUNK[1:]), CHUNK_CID, 2 * CHUNK_NBYTES - 1), FormatError),
    "a node of one chunk": (*tree((1, CHUNK_NBYTES)), FormatError),
    "a node of a node": (*tree((2, 2 * CHUNK_NBYTES), (1, 2 * CHUNK_NBYTES)), FormatError),
    "a chain of nodes": (*tree(*[(1, 2 * CHUNK_NBYTES)] * 1000), FormatError),
    "too many links": (*tree((FANOUT + 1, CHUNK_NBYTES * (FANOUT + 1))), FormatError),
    "8 GiB of one chunk": (*fan(1), LimitError),
    "64 TiB of one chunk": (*fan(2), LimitError),
    "512 PiB of one chunk": (*fan(3), LimitError),
    "a size of 2^63": (*two_chunks(CHUNK_CID, TAIL_CID, 1 << 63), FormatError),
}


@pytest.mark.parametrize("case", LYING_STORES)
@pytest.mark.parametrize("type", ["var * uint8", "1048577 * uint8"])
def test_stores_that_return_wrong_blocks(case, type):
    cid, store, error = LYING_STORES[case]
    link = dynd.Link(type, cid)
    in_time = contextlib.nullcontext if INTERPRETED else at_once
    with in_time(), pytest.raises(error if type.startswith("var") else tg.TensorglotError):
        link.load(store)
    assert link.state == "lazy"
    with in_time(), pytest.raises(tg.TensorglotError):
        dynd.Link.to([dynd.Link(type, cid, store)]).freeze({})


@pytest.mark.parametrize("case", ["8 GiB of one chunk", "64 TiB of one chunk", "a size of 2^62", "a vast block"])
def test_stores_that_return_wrong_blocks_cost_little(case):
    cid, store, _ = LYING_STORES[case]

    def load():
        with pytest.raises(FormatError):
            dynd.Link("var * uint8", cid).load(store)

    assert allocated_nbytes(load) <= 20 * MB


def test_the_size_of_a_type_is_checked_before_anything_is_loaded():
    cid, store = fan(1)
    with pytest.raises(FormatError) as caught:
        dynd.Link("3 * int64", cid).load(store)
    assert caught.value.rule == "cid.size"
    cid = block_cid(bytes(24))
    with pytest.raises(FormatError) as caught:
        dynd.Link("9 * int64", cid).load({cid: bytes(24)})
    assert caught.value.rule == "cid.size"


def test_much_data_made_of_few_chunks_is_still_data():
    """Equal chunks are one block: 64 MiB of zeros are three."""
    zeros = np.zeros(8 << 20)
    store = {}
    cid = dynd.Link.to(zeros).freeze(store)
    assert len(store) == 2
    assert not dynd.Link(f"{len(zeros)} * float64", cid).load(store).numpy().any()


@pytest.mark.parametrize("store", [None, 5, "store", [1], np.arange(3), object()])
def test_values_that_are_not_a_store(store):
    link = dynd.Link.to(1)
    cid = link.freeze()
    with pytest.raises(InputError, match=f"rule dynd.merkle.{'state' if store is None else 'store'}"):
        dynd.Link("int64", cid).load(store)
    if store is not None:
        with pytest.raises(InputError, match=r"rule dynd\.merkle\.store"):
            link.freeze(store)
        with pytest.raises(InputError, match=r"rule dynd\.merkle\.store"):
            dynd.to_cbor(1, profile="dag", store=store)


def test_blocks_that_are_not_a_value_of_the_type():
    rng = Random(5)
    for _ in range(300):
        type = random_type(rng, 2)
        data = random_bytes(rng, random_type(rng, 2))
        cid, _ = data_cid([data])
        try:
            value = dynd.Link(type, cid).load({cid: data})
        except tg.TensorglotError as error:
            assert not isinstance(error, InputError), error  # noqa: PT017
        else:
            assert value.serialize() == data


@pytest.mark.parametrize("type", ["Any", "Float", "var * T", "int8"])
def test_an_empty_link_in_a_value_is_refused(type):
    empty = dynd.Link(type)
    for value in (empty, [empty], {"a": empty}):
        with pytest.raises(InputError) as caught:
            dynd.array(value)
        assert caught.value.rule == "dynd.merkle.state"
    with pytest.raises(InputError):
        empty.set([empty])


@pytest.mark.parametrize("cid", [5, b"", bytes(36), object()])
def test_a_link_has_a_cid_or_none(cid):
    with pytest.raises(InputError) as caught:
        dynd.Link("int8", cid)
    assert caught.value.rule == "dynd.merkle.cid"
