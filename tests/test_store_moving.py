"""push, pull, bundle and unbundle: only what is missing, each block checked, refs move forward or not at all."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from stores import assert_clean, files, flip, packs, same_tensors, step, tensors
from tensorglot.store import Store
from tensorglot.store.backend import Directory
from tensorglot.store.pack import MAX_DEPTH, read_index
from tensorglot.wire.cid import CID, DAG_CBOR, block_cid, encode_node


@pytest.fixture
def here(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "there")


def steps(store: Store, count: int, ref: str = "main") -> list[dict[str, Any]]:
    versions = [tensors(1)]
    store.commit(ref, versions[0])
    for seed in range(1, count):
        versions.append(step(versions[-1], seed))
        store.commit(ref, versions[-1])
    return versions


def assert_same_history(one: Store, two: Store, ref: str, versions: list[dict[str, Any]]) -> None:
    assert one.log(ref) == two.log(ref)
    for commit, version in zip(two.log(ref), reversed(versions), strict=True):
        assert same_tensors(two.checkout(commit.cid), version)
    assert_clean(two)


# Push and pull


def test_push_copies_what_is_missing_and_nothing_else(here: Store, there: Store, tmp_path: Path) -> None:
    versions = steps(here, 3)
    sent = here.push(tmp_path / "there")
    assert sent.refs == ("main",)
    assert sent.blocks == here.stats().blocks
    assert_same_history(here, there, "main", versions)
    assert there.stats().stored_nbytes < 1.05 * here.stats().stored_nbytes
    assert here.push(tmp_path / "there").to_dict() == {"refs": [], "blocks": 0, "nbytes": 0}
    versions.append(step(versions[-1], 9))
    here.commit("main", versions[-1])
    sent = here.push(tmp_path / "there")
    assert sent.nbytes < 60_000, "a delta, and the nodes on the way to it"
    assert_same_history(here, there, "main", versions)


def test_pull_is_push_from_the_other_side(here: Store, there: Store, tmp_path: Path) -> None:
    versions = steps(here, 2)
    here.tag("v1", here.log("main")[1].cid)
    here.commit("other", {"x": np.zeros(3)})
    got = there.pull(tmp_path / "here", ["main", "v1"])
    assert set(got.refs) == {"main", "v1"}
    assert there.refs().keys() == {"main", "v1"}
    assert_same_history(here, there, "main", versions)
    assert there.pull(tmp_path / "here").refs == ("other",)
    assert there.refs() == here.refs()


def test_the_bases_of_deltas_come_along(here: Store, there: Store, tmp_path: Path) -> None:
    """The pushed commit has no parent, but is stored as deltas from another ref's."""
    versions = steps(here, 3)
    here.commit("alone", versions[2])
    here.push(tmp_path / "there", ["alone"])
    assert there.refs().keys() == {"alone"}
    assert same_tensors(there.checkout("alone"), versions[2])
    assert_clean(there)
    there.collect(0)
    there.repack(0)
    assert same_tensors(there.checkout("alone"), versions[2])
    assert_clean(there)


def test_a_target_that_has_a_base_in_another_form(here: Store, there: Store, tmp_path: Path) -> None:
    """There the same tensors are deltas the other way round, and as deep as deltas may be."""
    versions = steps(here, 10)
    there.commit("back", versions[-1])
    for version in reversed(versions[:-1]):
        there.commit("back", version)
    versions += steps_from(here, versions[-1], 6)
    here.push(tmp_path / "there")
    assert_same_history(here, there, "main", versions)
    there.repack(0)
    there.delete("back")
    there.collect(0)
    there.repack(0)
    assert_same_history(here, there, "main", versions)


def steps_from(store: Store, version: dict[str, Any], count: int) -> list[dict[str, Any]]:
    made = []
    for seed in range(count):
        version = step(version, 100 + seed)
        store.commit("main", version)
        made.append(version)
    return made


def test_diverged_refs_are_refused(here: Store, there: Store, tmp_path: Path) -> None:
    steps(here, 1)
    here.push(tmp_path / "there")
    here.commit("main", {"x": np.zeros(1)})
    mine = there.commit("main", {"x": np.ones(1)})
    for call in (lambda: here.push(tmp_path / "there"), lambda: there.pull(tmp_path / "here")):
        with pytest.raises(tg.InputError) as caught:
            call()
        assert caught.value.rule == "store.ref.diverged"
    assert there.refs() == {"main": mine.cid}
    here.tag("v", "main")
    there.tag("v", "main")
    with pytest.raises(tg.InputError) as caught:
        here.push(tmp_path / "there", ["v"])
    assert caught.value.rule == "store.ref.diverged"
    assert_clean(there)
    assert_clean(here)


def test_what_is_received_leaves_a_ref_that_is_ahead(here: Store, there: Store, tmp_path: Path) -> None:
    steps(here, 1)
    here.bundle(tmp_path / "first.car", "main")
    here.push(tmp_path / "there")
    there.commit("other", {"x": np.zeros(1)})
    ahead = here.commit("main", {"x": np.ones(1)})
    assert here.pull(tmp_path / "there").refs == ("other",)
    here.unbundle(tmp_path / "first.car")
    assert here.refs()["main"] == ahead.cid
    assert here.refs() == {"main": ahead.cid, "other": there.refs()["other"]}
    assert_clean(here)


def test_a_tag_of_a_later_commit_is_refused(here: Store, there: Store, tmp_path: Path) -> None:
    steps(here, 1)
    here.tag("v", "main")
    here.push(tmp_path / "there")
    there.delete("v")
    there.commit("main", {"x": np.ones(1)})
    there.tag("v", "main")
    with pytest.raises(tg.InputError) as caught:
        there.pull(tmp_path / "here", ["v"])
    assert caught.value.rule == "store.ref.diverged"


def test_refs_are_compared_before_any_moves(here: Store, there: Store, tmp_path: Path) -> None:
    for ref in ("a", "z"):
        here.commit(ref, {"x": np.zeros(3)})
    theirs = there.commit("z", {"x": np.ones(1)})
    for call in (lambda: here.push(tmp_path / "there"), lambda: there.pull(tmp_path / "here")):
        with pytest.raises(tg.InputError, match="no ref was moved"):
            call()
        assert there.refs() == {"z": theirs.cid}


def test_a_ref_that_diverges_meanwhile(here: Store, there: Store, tmp_path: Path) -> None:
    """The error says which refs moved before it."""
    for ref in ("a", "m", "z"):
        here.commit(ref, tensors(1))
    mine: list[str] = []

    def meanwhile(done: int, total: int) -> None:
        if not mine:
            mine.append(Store(tmp_path / "there").commit("z", {"x": np.ones(1)}).cid)

    with pytest.raises(tg.InputError, match="only a, m moved") as caught:
        here.push(tmp_path / "there", progress=meanwhile)
    assert caught.value.rule == "store.ref.diverged"
    assert there.refs() == {"a": here.refs()["a"], "m": here.refs()["m"], "z": mine[0]}
    assert_clean(there)


def test_a_ref_that_is_ahead_stays(here: Store, there: Store, tmp_path: Path) -> None:
    steps(here, 1)
    here.push(tmp_path / "there")
    ahead = there.commit("main", {"x": np.ones(1)})
    with pytest.raises(tg.InputError, match=r"rule store\.ref\.diverged"):
        here.push(tmp_path / "there")
    assert there.refs() == {"main": ahead.cid}
    assert here.pull(tmp_path / "there").refs == ("main",)
    assert here.refs() == there.refs()


@pytest.mark.parametrize("refs", [["mian"], ["main", "mian"], "main", [5], 5])
def test_refs_that_are_not_there(refs: Any, here: Store, there: Store, tmp_path: Path) -> None:
    steps(here, 1)
    with pytest.raises((tg.TensorNotFound, tg.InputError)):
        here.push(tmp_path / "there", refs)
    assert there.refs() == {}


def test_damage_does_not_travel(here: Store, there: Store, tmp_path: Path) -> None:
    """And leaves nothing behind that a later commit would rely on."""
    versions = steps(here, 1)
    (pack,) = packs(tmp_path / "here")
    whole = pack.read_bytes()
    flip(pack, 5000)
    with pytest.raises(tg.IntegrityError):
        Store(tmp_path / "here").push(tmp_path / "there")
    assert there.refs() == {}
    assert_clean(there)
    there.commit("own", versions[0])
    assert same_tensors(Store(tmp_path / "there").checkout("own"), versions[0])
    assert_clean(there)
    pack.write_bytes(whole)
    Store(tmp_path / "here").push(tmp_path / "there")
    assert_same_history(here, there, "main", versions)


def test_a_transfer_goes_on_where_it_stopped(here: Store, there: Store, tmp_path: Path) -> None:
    """What an earlier one has brought is not brought again: here a bundle that broke off after its blocks."""
    versions = steps(here, 3)
    here.bundle(tmp_path / "all.car", "main")
    there.unbundle(tmp_path / "all.car")
    there.delete("main")
    assert here.push(tmp_path / "there").blocks == 0
    assert_same_history(here, there, "main", versions)


# Bundles


def test_a_store_from_a_bundle_is_as_small(here: Store, there: Store, tmp_path: Path) -> None:
    """A bundle has every chunk in full; in the store chunks are deltas again, in chains that are not too long."""
    versions = steps(here, 16)
    here.bundle(tmp_path / "all.car", "main")
    there.unbundle(tmp_path / "all.car")
    assert_same_history(here, there, "main", versions)
    assert there.stats().stored_nbytes < 1.1 * here.stats().stored_nbytes
    there.repack(0)
    assert_same_history(here, there, "main", versions)
    assert there.stats().stored_nbytes < 1.1 * here.stats().stored_nbytes


def test_a_bundle_brings_everything(here: Store, there: Store, tmp_path: Path) -> None:
    versions = steps(here, 3)
    said = here.bundle(tmp_path / "all.car", "main")
    assert said.nbytes == (tmp_path / "all.car").stat().st_size
    assert said.blocks == here.stats().blocks
    made = there.unbundle(tmp_path / "all.car")
    assert made == here.show("main")
    assert_same_history(here, there, "main", versions)
    before = files(tmp_path / "there")
    assert there.unbundle(tmp_path / "all.car") == made
    assert {k: v for k, v in files(tmp_path / "there").items() if "packs" in k} == {
        k: v for k, v in before.items() if "packs" in k
    }, "nothing is stored twice"


def test_a_bundle_for_a_receiver_that_has_an_earlier_commit(here: Store, there: Store, tmp_path: Path) -> None:
    versions = steps(here, 2)
    here.bundle(tmp_path / "all.car", "main")
    there.unbundle(tmp_path / "all.car")
    have = here.show("main").cid
    versions += steps_from(here, versions[-1], 2)
    here.tag("v2", "main")
    part = here.bundle(tmp_path / "part.car", "main", have=have)
    assert part.nbytes < 0.1 * (tmp_path / "all.car").stat().st_size
    with pytest.raises(tg.InputError, match=have) as caught:
        Store.create(tmp_path / "new").unbundle(tmp_path / "part.car")
    assert caught.value.rule == "bundle.have"
    assert Store(tmp_path / "new").refs() == {}
    before = there.stats().stored_nbytes
    there.unbundle(tmp_path / "part.car")
    assert_same_history(here, there, "main", versions)
    assert there.stats().stored_nbytes < before + 1.1 * part.nbytes, "deltas stay deltas"
    here.bundle(tmp_path / "tag.car", "v2", have="main")
    assert (tmp_path / "tag.car").stat().st_size < 1000
    there.unbundle(tmp_path / "tag.car")
    assert there.refs()["v2"] == here.refs()["v2"]


def test_a_bundle_without_deltas_for_a_receiver_without_the_rest(here: Store, tmp_path: Path) -> None:
    here.commit("main", {"x": np.zeros(3), "y": np.arange(5)})
    have = here.show("main").cid
    here.commit("main", {"x": np.ones(3), "y": np.arange(5)})
    here.bundle(tmp_path / "part.car", "main", have=have)
    new = Store.create(tmp_path / "new")
    with pytest.raises(tg.InputError, match=have) as caught:
        new.unbundle(tmp_path / "part.car")
    assert caught.value.rule == "bundle.have"
    assert new.refs() == {}
    assert_clean(new)


def test_a_bundle_whose_ref_has_the_name_of_a_commit(here: Store, there: Store, tmp_path: Path) -> None:
    made = here.commit("main", {"x": np.zeros(3)})
    here.bundle(tmp_path / "a.car", "main")
    data = (tmp_path / "a.car").read_bytes()
    root = {"commit": CID.parse(made.cid), "dynd": 1, "have": [], "kind": "bundle", "ref": made.cid, "tag": False}
    node = encode_node(root)
    first = encode_node({"roots": [block_cid(node, DAG_CBOR)], "version": 1})
    blocks = bytes([len(first)]) + first + varint(36 + len(node)) + bytes(block_cid(node, DAG_CBOR)) + node
    with pytest.raises(tg.FormatError) as caught:
        there.unbundle(blocks + data)
    assert caught.value.rule == "store.ref.name"
    assert there.refs() == {}


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128, number >> 7])


def test_bundles_and_diverged_refs(here: Store, there: Store, tmp_path: Path) -> None:
    steps(here, 1)
    here.bundle(tmp_path / "a.car", "main")
    mine = there.commit("main", {"x": np.zeros(1)})
    with pytest.raises(tg.InputError) as caught:
        there.unbundle(tmp_path / "a.car")
    assert caught.value.rule == "store.ref.diverged"
    assert there.refs() == {"main": mine.cid}
    assert_clean(there)


def test_progress_of_a_bundle(here: Store, there: Store, tmp_path: Path) -> None:
    steps(here, 3)
    for call in (
        lambda seen: here.bundle(tmp_path / "a.car", "main", progress=seen),
        lambda seen: there.unbundle(tmp_path / "a.car", progress=seen),
    ):
        seen: list[tuple[int, int]] = []
        call(lambda done, total, seen=seen: seen.append((done, total)))
        assert len({total for _, total in seen}) == 1
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert seen[-1][0] == seen[-1][1]
    with pytest.raises(tg.InputError, match=r"rule progress\.kind"):
        here.bundle(tmp_path / "a.car", "main", progress="yes")  # type: ignore[arg-type]


TARGETS: dict[str, Callable[[Path], Any]] = {
    "path": lambda folder: folder / "b.car",
    "text": lambda folder: str(folder / "b.car"),
    "stream": lambda _: io.BytesIO(),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_where_a_bundle_goes(kind: str, here: Store, there: Store, tmp_path: Path) -> None:
    versions = steps(here, 1)
    target = TARGETS[kind](tmp_path)
    here.bundle(target, "main")
    source = target.getvalue() if isinstance(target, io.BytesIO) else target
    there.unbundle(source)
    assert_same_history(here, there, "main", versions)


def test_a_bundle_that_fails_leaves_the_old_file(here: Store, tmp_path: Path) -> None:
    steps(here, 1)
    (tmp_path / "a.car").write_bytes(b"old")
    flip(packs(tmp_path / "here")[0], 5000)
    with pytest.raises(tg.IntegrityError):
        Store(tmp_path / "here").bundle(tmp_path / "a.car", "main")
    assert (tmp_path / "a.car").read_bytes() == b"old"
    with pytest.raises(tg.TensorNotFound):
        here.bundle(tmp_path / "a.car", "mian")
    with pytest.raises(tg.TensorNotFound):
        here.bundle(tmp_path / "a.car", "main", have="mian")
    assert (tmp_path / "a.car").read_bytes() == b"old"


def test_a_small_chunk_of_every_size_of_a_delta_chain(here: Store, there: Store, tmp_path: Path) -> None:
    """Thirty versions of a chunk: chains are bounded, and stay so wherever they go."""
    array = np.random.default_rng(0).normal(0, 1, 5000).astype(np.float32)
    versions = []
    for i in range(30):
        array = array.copy()
        array[i * 7 :: 500] += 1
        versions.append({"x": array})
        here.commit("main", versions[-1])
    here.push(tmp_path / "there")
    assert_same_history(here, there, "main", versions)
    there.delete("main")
    there.commit("end", versions[-1])
    there.collect(0)
    there.repack(0)
    assert same_tensors(there.checkout("end"), versions[-1])
    assert_clean(there)


def test_deltas_of_a_bundle_that_is_received_twice(here: Store, there: Store, tmp_path: Path) -> None:
    versions = steps(here, 2)
    here.push(tmp_path / "there")
    have = here.show("main").cid
    versions += steps_from(here, versions[-1], 2)
    here.bundle(tmp_path / "part.car", "main", have=have)
    made = there.unbundle(tmp_path / "part.car")
    stored = there.stats().stored_nbytes
    assert there.unbundle(tmp_path / "part.car") == made
    assert there.stats().stored_nbytes == stored, "nothing is stored twice"
    assert_same_history(here, there, "main", versions)


def deepest(root: Path) -> int:
    """The most deltas between a block and one that is stored in full."""
    backend = Directory(str(root))
    depths = (read_index(backend, f"packs/{path.name}").records["depth"].max(initial=0) for path in packs(root))
    return max(map(int, depths))


@pytest.mark.parametrize("count", [2000, 20_000])
def test_a_delta_whose_base_is_as_deep_there_as_deltas_may_be(
    count: int, here: Store, there: Store, tmp_path: Path
) -> None:
    """It is stored in full there: in a group if it is small, or as a record of its own."""
    rng = np.random.default_rng(0)
    version: dict[str, Any] = {f"x{i}": rng.normal(0, 1, count).astype(np.float32) for i in range(8)}
    there.commit("other", version)
    for changed in range(MAX_DEPTH):
        version = {name: np.where(np.arange(count) % 500 == changed, -array, array) for name, array in version.items()}
        there.commit("other", version)
    assert deepest(tmp_path / "there") == MAX_DEPTH
    last = {name: np.where(np.arange(count) % 500 == MAX_DEPTH, -array, array) for name, array in version.items()}
    here.commit("main", version)
    here.commit("main", last)
    assert deepest(tmp_path / "here") == 1
    here.push(tmp_path / "there")
    assert same_tensors(there.checkout("main"), last)
    assert deepest(tmp_path / "there") == MAX_DEPTH
    assert_clean(there)
