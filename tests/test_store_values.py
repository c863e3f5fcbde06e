"""Values by their CID: `put` and `get`, and links (`merkle[T]`) that a store follows, loads and keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from stores import assert_clean, flip, packs
from tensorglot import dynd
from tensorglot.store import Store
from tensorglot.wire.cid import CID, RAW, block_cid
from test_store_basics import VALUES


@pytest.mark.parametrize("kind", VALUES)
def test_every_value_has_the_cid_that_it_has_elsewhere(kind: str, store: Store) -> None:
    value = VALUES[kind]()
    expected = dynd.array(value)
    cid = store.put(value)
    assert cid == str(expected.cid())
    found = store.get(cid)
    assert (found.type, found.serialize()) == (expected.type, expected.serialize())
    assert store.put(found) == cid
    before = store.stats().stored_nbytes
    store.put(value)
    assert store.stats().stored_nbytes == before, "nothing is stored twice"


@pytest.mark.parametrize("cid", ["", "b", "bafy", "x" * 59, str(block_cid(b"x")), 5, None])
def test_cids_that_name_no_value(cid: Any, store: Store) -> None:
    with pytest.raises(tg.TensorglotError):
        store.get(cid)


def test_a_commit_is_no_value(store: Store) -> None:
    with pytest.raises(tg.FormatError, match=r"rule store\.array"):
        store.get(store.commit("main", {}).cid)


# Links


def nested() -> tuple[dynd.Link, dict[str, Any]]:
    """A link to a struct of links, of which one leads to more than a chunk."""
    big = np.arange(200_000, dtype=np.float64)
    inner = dynd.Link.to(big)
    middle = dynd.Link.to({"big": inner, "text": dynd.Link.to("x" * 50)})
    return dynd.Link.to([middle, middle]), {"big": big}


def test_the_four_states_through_a_store(store: Store, root: Path) -> None:
    empty = dynd.Link("3 * int64")
    assert empty.state == "empty"
    with pytest.raises(tg.InputError, match=r"rule dynd\.merkle\.state"):
        store.put(empty)
    link = dynd.Link.to(np.arange(3))
    assert link.state == "mutable"
    cid = store.put(link)
    assert link.state == "frozen", "what is stored does not change any more"
    found = Store(root).get(cid).tolist()
    assert found.state == "lazy"
    assert found.cid == link.cid
    assert found.value.numpy().tolist() == [0, 1, 2]
    assert found.state == "frozen"
    with pytest.raises(tg.InputError, match=r"rule dynd\.length"):
        found.set(np.arange(4))


def test_everything_that_can_be_reached_is_frozen_and_stored(store: Store, root: Path) -> None:
    outer, expected = nested()
    cid = store.put(outer)
    middle = outer.value.tolist()[0]
    assert {link.state for link in (outer, middle, *middle.value.tolist().values())} == {"frozen"}
    again = Store(root).get(cid).tolist()
    struct = again.value.tolist()[1].value.tolist()
    assert struct["big"].state == "lazy", "loaded on touch"
    assert np.array_equal(struct["big"].value.numpy(), expected["big"])
    assert struct["text"].value.tolist() == "x" * 50
    assert_clean(store)


def test_links_in_a_commit(store: Store, root: Path) -> None:
    outer, expected = nested()
    store.commit("main", {"links": dynd.array([outer], f"1 * merkle[{outer.type}]"), "x": np.zeros(2)})
    assert outer.state == "frozen"
    store.repack(0)
    for archive in (Store(root).checkout("main"), tg.open(f"store://{root}")):
        link = archive["links"].tolist()[0]
        assert link.state == "lazy", "loaded on touch"
        middle = link.value.tolist()[0]
        assert np.array_equal(middle.value.tolist()["big"].value.numpy(), expected["big"])
    assert_clean(store)
    again = store.commit("main", Store(root).checkout("main"))
    assert again.tensors == store.log("main")[1].tensors
    store.delete("main")
    store.collect(0)
    assert packs(root) == []


@pytest.mark.parametrize("type", ["1 * merkle[9 * uint8]", "1 * merkle[1 * merkle[int8]]"])
def test_links_to_nothing_are_refused(type: str, store: Store, root: Path) -> None:
    """A commit is complete: nothing in a store leads out of it."""
    absent = dynd.array([block_cid(b"elsewhere")], type)
    with pytest.raises(tg.InputError) as caught:
        store.put(absent)
    assert caught.value.rule == "store.link"
    with pytest.raises(tg.InputError) as caught:
        store.commit("main", {"w": absent})
    assert (caught.value.rule, caught.value.tensor) == ("store.link", "w")
    assert store.refs() == {}
    if type == "1 * merkle[9 * uint8]":
        store.put(dynd.Link.to(np.frombuffer(b"elsewhere", np.uint8)))
        store.commit("main", {"w": absent})
        assert_clean(store)


def test_links_are_collected_only_when_nothing_leads_to_them(store: Store, root: Path) -> None:
    outer, expected = nested()
    cid = store.put(outer)
    store.tag("kept", cid)
    store.put(np.full(30_000, 7.5))
    assert store.collect(0).packs == 1, "the value without a tag"
    store.repack(0)
    struct = Store(root).get(cid).tolist().value.tolist()[0].value.tolist()
    assert np.array_equal(struct["big"].value.numpy(), expected["big"])
    assert_clean(store)
    store.delete("kept")
    store.collect(0)
    assert packs(root) == []
    with pytest.raises(tg.TensorglotError, match=r"rule store\.block\.missing"):
        Store(root).get(cid)


def test_a_link_is_verified_when_it_is_touched(store: Store, root: Path) -> None:
    outer, _ = nested()
    cid = store.put(outer)
    flip(packs(root)[0], 3000)
    lazy = Store(root).get(cid).tolist().value.tolist()[0].value.tolist()["big"]
    with pytest.raises(tg.IntegrityError):
        lazy.value
    assert lazy.state == "lazy"


def test_a_link_is_found_after_repacking(store: Store, root: Path) -> None:
    outer, expected = nested()
    cid = store.put(outer)
    store.tag("kept", cid)
    lazy = Store(root).get(cid).tolist()
    store.commit("main", {"x": np.zeros(2)})
    store.repack(0)
    assert np.array_equal(lazy.value.tolist()[0].value.tolist()["big"].value.numpy(), expected["big"])


def test_links_travel(store: Store, root: Path, tmp_path: Path) -> None:
    outer, expected = nested()
    cid = store.put(outer)
    store.tag("kept", cid)
    other = Store.create(tmp_path / "other")
    store.push(tmp_path / "other")
    struct = other.get(cid).tolist().value.tolist()[0].value.tolist()
    assert np.array_equal(struct["big"].value.numpy(), expected["big"])
    assert_clean(other)
    with pytest.raises(tg.FormatError, match=r"rule store\.commit"):
        store.bundle(tmp_path / "value.car", "kept")
    assert not (tmp_path / "value.car").exists()


# Blocks


def test_blocks_are_a_mapping(store: Store) -> None:
    store.commit("main", {"x": np.arange(10)})
    blocks = store.blocks
    assert len(blocks) == len(list(blocks)) == store.stats().blocks
    data = np.arange(10).astype("<i8").tobytes()
    assert blocks[block_cid(data)] == data
    assert block_cid(data) in blocks
    assert block_cid(b"absent") not in blocks
    assert CID(block_cid(data).digest, RAW, 0x12) not in blocks
    assert str(block_cid(data)) not in blocks
    with pytest.raises(KeyError):
        blocks[block_cid(b"absent")]
