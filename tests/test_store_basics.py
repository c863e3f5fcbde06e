"""Commits, refs and checkouts: what goes into a store comes out, whatever it is and wherever it came from."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gallery
import tensorglot as tg
from peers import needs
from stores import assert_clean, commit_node, link, nodes_pack, packs, same_tensors, step, tensors, write_ref
from tensorglot import dynd
from tensorglot.store import Commit, Store
from tensorglot.store.encodings import decode
from test_convert_quantized import quantized

VALUES: dict[str, Callable[[], Any]] = {
    "scalar": lambda: np.float32(1.5),
    "empty": lambda: np.zeros((3, 0, 2), np.int16),
    "chunk": lambda: np.arange(1 << 18, dtype=np.float32),
    "chunk and a byte": lambda: np.arange((1 << 20) + 1, dtype=np.uint8),
    "three chunks": lambda: np.arange(400_000, dtype=np.float64),
    "Fortran order": lambda: np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "big-endian": lambda: np.arange(5, dtype=">i4"),
    "NaN payloads": lambda: np.array([0x7FC00001, 0xFFFFFFFF], np.uint32).view(np.float32),
    "bfloat16": lambda: np.arange(300).astype(ml_dtypes.bfloat16),
    "float8": lambda: np.arange(7).astype(ml_dtypes.float8_e4m3fn),
    "int4": lambda: np.arange(-8, 8).astype(ml_dtypes.int4),
    "uint2": lambda: np.arange(4).astype(ml_dtypes.uint2),
    "float4": lambda: np.arange(5).astype(ml_dtypes.float4_e2m1fn),
    "complex": lambda: np.arange(6, dtype=np.complex128) * 1j,
    "bool": lambda: np.array([True, False]),
    "ragged": lambda: dynd.array([[1, 2], [], [3]], "var * var * int64"),
    "strings": lambda: dynd.array(["a", "", "漢"], "var * string"),
    "structs": lambda: dynd.array([{"a": 1, "b": "x"}, {"a": 2, "b": None}], "var * {a: int32, b: ?string}"),
    "large ragged": lambda: dynd.array([list(range(i % 50)) for i in range(20_000)], "var * var * int32"),
    "missing": lambda: dynd.array([1, None], "2 * ?int8"),
    "boxes": lambda: dynd.array([dynd.array(1), dynd.array("x")], "var * array[Any]"),
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


# What goes in comes out


@pytest.mark.parametrize("kind", VALUES)
def test_every_kind_of_value(kind: str, store: Store) -> None:
    value = VALUES[kind]()
    store.commit("main", {"x": value})
    with store.checkout("main") as archive:
        tensor = archive["x"]
        expected = dynd.array(value)
        assert tensor.type == expected.type
        assert tensor.serialize() == expected.serialize()
        assert tensor.cid() == expected.cid()
        assert tensor.dtype == (value.dtype.newbyteorder("=") if isinstance(value, (np.ndarray, np.generic)) else None)
    assert_clean(store)


def test_looking_up_a_tensor_reads_only_the_way_to_it(store: Store, tmp_path: Path) -> None:
    """The pack of the first commit, which has all other tensors, is gone."""
    values = {f"w{i:04}": np.float32(i) for i in range(2000)}
    store.commit("main", values)
    (first,) = packs(tmp_path / "store")
    store.commit("main", {**values, "w1999": np.float32(-7)}, metadata={"step": "2"})
    first.unlink()
    with Store(tmp_path / "store").checkout("main") as archive:
        assert archive.metadata == {"step": "2"}
        assert archive["w1999"].tolist() == -7
        assert archive.select(["w1999"])["w1999"].tolist() == -7
        assert "w1999" in archive
        assert "w1999x" not in archive
        for whole in (lambda: len(archive), lambda: archive["w0000"], lambda: archive["w1999x"]):
            with pytest.raises(tg.IntegrityError):
                whole()


def test_lookups_one_by_one_are_those_of_the_whole_commit(store: Store) -> None:
    store.commit("main", {name: make() for name, make in VALUES.items()})
    whole = store.checkout("main")
    assert len(whole) == len(VALUES)
    for name, tensor in whole.items():
        alone = store.checkout("main")[name]
        assert (alone.name, alone.type, alone.layout, alone.attributes, alone.cid(), alone.serialize()) == (
            tensor.name, tensor.type, tensor.layout, tensor.attributes, tensor.cid(), tensor.serialize()
        )  # fmt: skip
    closed = store.checkout("main")
    closed.close()
    with pytest.raises(tg.InputError, match="closed"):
        closed["scalar"]


def test_sparse_tensors_keep_their_parts(store: Store, tmp_path: Path) -> None:
    matrix = needs("scipy.sparse").random(200, 100, 0.05, format="csr", random_state=1)
    tg.save(tmp_path / "a.zt", {"m": matrix, "d": np.ones(3)})
    store.commit("main", tmp_path / "a.zt")
    store.commit("main", {"m": matrix * 2, "d": np.ones(3)})
    for ref, expected in (("main", matrix * 2), (store.log("main")[1].cid, matrix)):
        tensor = store.checkout(ref)["m"]
        assert tensor.layout == tg.open(tmp_path / "a.zt")["m"].layout
        assert (tensor.scipy() != expected).nnz == 0
    assert store.commit("same", tmp_path / "a.zt").tensors == store.log("main")[1].tensors


def test_quantized_tensors_keep_their_parts(store: Store) -> None:
    data = quantized(2)
    store.commit("main", data)
    before, after = tg.open(data)["x"], store.checkout("main")["x"]
    assert (after.layout, after.type, after.parts.keys()) == (before.layout, before.type, before.parts.keys())
    assert np.array_equal(after.dequantize(), before.dequantize())
    assert store.commit("main", store.checkout("main")).tensors == store.log("main")[1].tensors


def test_metadata_and_attributes_are_kept(store: Store, tmp_path: Path) -> None:
    attributes = {"w": {"unit": "mm", "list": [1, 2.5, None, {"deep": True}]}}
    tg.save(tmp_path / "a.zt", {"w": np.ones(2), "b": np.zeros(1)}, metadata={"step": "1"}, attributes=attributes)
    made = store.commit("main", tmp_path / "a.zt", message="first")
    assert made.metadata == {"step": "1"}
    archive = store.checkout("main")
    assert archive.metadata == {"step": "1"}
    assert archive["w"].attributes == attributes["w"]
    assert not archive["b"].attributes
    made = store.commit("main", tmp_path / "a.zt", metadata={"step": "2"})
    assert store.checkout("main").metadata == made.metadata == {"step": "2"}


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(commits=st.lists(st.tuples(gallery.tensors(4), gallery.metadata()), min_size=1, max_size=3))
def test_any_tensors_and_any_names(commits: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    store = Store.create(tmp_path_factory.mktemp("any") / "store")
    made = [store.commit("main", named, metadata=metadata) for named, metadata in commits]
    for commit, (named, metadata) in zip(made, commits, strict=True):
        archive = store.checkout(commit.cid)
        assert archive.metadata == metadata
        assert gallery.same({name: tensor.numpy() for name, tensor in archive.items()}, named)
    assert_clean(store)


def test_many_long_names(store: Store) -> None:
    names = {f"{i:04}{'n' * 70_000}": np.full(1, i) for i in range(40)}
    store.commit("main", names)
    assert same_tensors(store.checkout("main"), names)
    assert_clean(store)


def test_names_are_listed_in_one_order_whatever_the_source(store: Store) -> None:
    names = [f"layer.{i}.w" for i in range(3000)]
    one = store.commit("one", {name: np.int32(len(name)) for name in names})
    two = store.commit("two", {name: np.int32(len(name)) for name in reversed(names)})
    assert one.tensors == two.tensors
    assert list(store.checkout("one")) == sorted(names)


# Sources

SUFFIXES = [".bt", ".zt", ".safetensors", ".npz"]


def test_the_same_tensors_have_the_same_cids_from_every_source(store: Store, tmp_path: Path) -> None:
    given = {**tensors(1), "half": np.arange(9, dtype=np.float16), "flags": np.array([True, False])}
    first = store.commit("main", given)
    new_bytes = [sum(path.stat().st_size for path in packs(tmp_path / "store"))]
    sources: list[Any] = []
    for suffix in SUFFIXES:
        tg.save(tmp_path / f"a{suffix}", given)
        sources.append(tmp_path / f"a{suffix}")
    tg.split(tmp_path / "a.safetensors", tmp_path / "shards", shard_nbytes=200)
    sources += [
        tmp_path / "shards", tg.open(tmp_path / "a.zt"), (tmp_path / "a.bt").read_bytes(), f"store://{tmp_path}/store#main",
        io.BytesIO((tmp_path / "a.zt").read_bytes()), store.checkout("main"),
    ]  # fmt: skip
    for source in sources:
        made = store.commit("main", source)
        assert made.tensors == first.tensors, source
        new_bytes.append(sum(path.stat().st_size for path in packs(tmp_path / "store")))
    assert all(b - a < 600 for a, b in pairwise(new_bytes)), "only commit nodes are new"
    archive = store.checkout("main")
    assert {name: archive[name].cid() for name in archive} == tg.identify(tmp_path / "a.bt").tensors
    assert_clean(store)


def test_a_step_stores_the_difference(store: Store, tmp_path: Path) -> None:
    old = tensors(1)
    store.commit("main", old)
    sizes = [store.stats().stored_nbytes]
    for seed in range(30):
        old = step(old, seed)
        store.commit("main", old)
        sizes.append(store.stats().stored_nbytes)
    assert same_tensors(store.checkout("main"), old)
    # 3,000 of 300,000 elements: their positions and what was added.
    assert max(b - a for a, b in pairwise(sizes)) < 1_300_000, "a full copy at most"
    assert sizes[-1] < sizes[0] + 30 * 40_000 + 3 * sizes[0]
    for commit in store.log("main"):
        with store.checkout(commit.cid) as archive:
            assert archive["big"].numpy().shape == (300_000,)
    assert_clean(store)


def test_a_grown_and_a_shrunk_tensor(store: Store) -> None:
    big = np.random.default_rng(0).normal(0, 1, (5000, 100)).astype(np.float32)
    for rows in (4000, 5000, 3000, 5000):
        store.commit("main", {"e": big[:rows]})
    for commit, rows in zip(store.log("main"), (5000, 3000, 5000, 4000), strict=True):
        assert np.array_equal(store.checkout(commit.cid)["e"].numpy(), big[:rows])
    assert store.stats().stored_nbytes < 1.3 * big.nbytes


def test_the_stored_size_is_that_of_the_packs(store: Store, tmp_path: Path) -> None:
    store.commit("main", tensors(1))
    stored = sum(path.stat().st_size for path in packs(tmp_path / "store"))
    assert store.stats().stored_nbytes == Store(tmp_path / "store").stats().stored_nbytes == stored


# A checkout is an ordinary archive


@pytest.fixture
def url(store: Store, tmp_path: Path) -> str:
    store.commit("main", tensors(1), metadata={"step": "1"})
    return f"store://{tmp_path}/store#main"


def test_load_and_slices(url: str) -> None:
    expected = tensors(1)
    loaded = tg.load(url)
    assert {name: array.tobytes() for name, array in loaded.items()} == {
        name: np.asarray(array).tobytes() for name, array in expected.items()
    }
    assert tg.load(url, names=["tiny"]).keys() == {"tiny"}
    with tg.open(url) as archive:
        assert archive.format == "store@1"
        assert archive.metadata == {"step": "1"}
        big = archive["big"]
        for index in (slice(10, 20), slice(262_140, 262_150), slice(None, None, -70_000), 299_999):
            assert np.array_equal(big[index], expected["big"][index])
        out = np.empty(300_000, np.float32)
        assert big.numpy(out=out) is out
        assert np.array_equal(out, expected["big"])


@pytest.mark.parametrize("whole", [True, False])
def test_no_chunk_is_decoded_twice(whole: bool, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {f"{i:02}": np.random.default_rng(i).standard_normal(330_000).astype(np.float32) for i in range(14)}
    store.commit("main", values)
    decoded: list[int] = []

    def counted(encoding: int, body: memoryview, out: memoryview) -> None:
        decoded.append(len(out))
        decode(encoding, body, out)

    with store.checkout("main") as archive:
        monkeypatch.setattr("tensorglot.store.chains.decode", counted)
        if whole:
            loaded = tg.load(archive)
            assert all(np.array_equal(loaded[name], w) for name, w in values.items())
        else:
            assert bytes(archive.source.read(0, archive.source.size)) == b"".join(w.tobytes() for w in values.values())
    assert sum(decoded) == sum(w.nbytes for w in values.values())


def test_every_verb(url: str, tmp_path: Path) -> None:
    report = tg.verify(url)
    assert report.ok
    assert report.tensors == 3
    for suffix in SUFFIXES:
        target = tmp_path / f"out{suffix}"
        assert tg.convert(url, target, on_loss="drop" if suffix == ".npz" else "error").ok
        assert tg.diff(url, target).same or suffix == ".npz", "which has no metadata"
        assert tg.identify(target).tensors == tg.identify(url).tensors
    assert tg.stats(url).rows == tg.stats(tmp_path / "out.zt").rows
    tg.split(url, tmp_path / "shards", shard_nbytes=400, format="safetensors")
    assert tg.identify(tmp_path / "shards").tensors == tg.identify(url).tensors
    with tg.open(url) as archive:
        again = pickle.loads(pickle.dumps(archive))
        assert same_tensors(again, tensors(1))
        assert tg.loads(tg.dumps(archive, format="ztensor")).keys() == archive.keys()


def test_a_store_with_one_ref_needs_no_name(store: Store, url: str) -> None:
    assert tg.open(url.removesuffix("#main")).keys() == tensors(1).keys()
    store.tag("v1", "main")
    with pytest.raises(tg.InputError, match=r"#main \(refs: main, v1\)"):
        tg.open(url.removesuffix("#main"))


def test_a_checkout_outlives_its_ref(store: Store, tmp_path: Path) -> None:
    """What is open can be read to its end, like a file that was deleted."""
    given = tensors(3)
    store.commit("main", given)
    archive = store.checkout("main")
    other = Store(tmp_path / "store")
    other.delete("main")
    other.collect(0)
    assert packs(tmp_path / "store") == []
    assert same_tensors(archive, given)
    with pytest.raises(tg.TensorNotFound):
        store.checkout("main")


# Refs


def test_log_refs_tags(store: Store) -> None:
    before = datetime.now(UTC)
    commits = [store.commit("main", tensors(i, 100), message=f"step {i}") for i in range(4)]
    assert [commit.cid for commit in store.log("main")] == [commit.cid for commit in reversed(commits)]
    assert [commit.message for commit in store.log("main")] == ["step 3", "step 2", "step 1", "step 0"]
    assert commits[0].parents == ()
    assert commits[3].parents == (commits[2].cid,)
    assert before - timedelta(seconds=1) < commits[0].time <= commits[3].time < datetime.now(UTC) + timedelta(seconds=1)
    store.tag("v1", commits[1].cid)
    assert store.refs() == {"main": commits[3].cid, "v1": commits[1].cid}
    assert store.show("v1") == commits[1]
    store.delete("main")
    assert store.refs() == {"v1": commits[1].cid}
    assert store.log(commits[3].cid)[0] == commits[3], "the commit is there until it is collected"


def test_branches_and_parents(store: Store) -> None:
    one = store.commit("main", {"x": np.zeros(3)})
    two = store.commit("main", {"x": np.ones(3)})
    side = store.commit("side", {"x": np.full(3, 5)}, parent=one.cid)
    assert side.parents == (one.cid,)
    assert store.commit("side", {"x": np.ones(3)}, parent="main").parents == (two.cid,)
    assert store.commit("new", {"x": np.ones(3)}).parents == ()
    assert [len(store.log(ref)) for ref in ("main", "side", "new")] == [2, 3, 1]


def test_refs_by_the_beginning_of_a_cid(store: Store) -> None:
    made = store.commit("main", {"x": np.zeros(3)})
    for length in (12, 20, len(made.cid)):
        assert store.show(made.cid[:length]) == made
        assert same_tensors(store.checkout(made.cid[:length]), {"x": np.zeros(3)})
    for text in (made.cid[:11], made.cid[:12].upper(), made.cid + "a", "b" * 59, "x" * 20, "bafyr4i!!!!!", ""):
        with pytest.raises(tg.TensorNotFound):
            store.show(text)


def test_the_beginning_of_several_cids(store: Store, tmp_path: Path) -> None:
    manifest = store.commit("main", {}).tensors
    seen: dict[str, bytes] = {}
    for number in range(1 << 20):
        block = commit_node(manifest, message=str(number))
        other = seen.setdefault(str(link(block))[:12], block)
        if other is not block:
            break
    nodes_pack([block, other]).write(tmp_path / "store")
    cid = str(link(block))
    with pytest.raises(tg.InputError) as caught:
        store.show(cid[:12])
    assert caught.value.rule == "store.ref.short"
    assert store.show(cid[:30]).message == str(number)


@pytest.mark.parametrize(
    "name",
    ["", " main", "main ", "a#b", "..", "a/../b", "../x", "/x", "x/", "a//b", ".hidden", "-x", "a\nb", "a\x00b",
     "\x1b[1m", "n" * 201, "n" * 4096, "é" * 101, "\u202e", "漢" * 84, "\udc80", 5, None, b"main"],
)  # fmt: skip
def test_names_that_are_refused(name: Any, store: Store) -> None:
    made = store.commit("main", {"x": np.zeros(1)})
    for call in (lambda: store.commit(name, {}), lambda: store.tag(name, "main"), lambda: store.delete(name)):
        with pytest.raises(tg.InputError) as caught:
            call()
        assert caught.value.rule == "store.ref.name"
        assert str(caught.value).isprintable()
    assert store.refs() == {"main": made.cid}


@pytest.mark.parametrize("name", ["a", "a/b", "run 7", "é", "n" * 200, "100%", "a%2Fb", "CON", "x.pack", "a?b*c", "🌎"])
def test_names_that_are_kept(name: str, store: Store) -> None:
    made = store.commit(name, {"x": np.zeros(1)})
    store.tag("t/" + name[:150], name)
    assert store.refs() == {name: made.cid, "t/" + name[:150]: made.cid}
    assert store.show(name) == made
    store.delete(name)
    assert name not in store.refs()


def test_names_with_one_key_stay_apart(store: Store) -> None:
    """`a/b` is kept as `a%2Fb`; a ref of that name is another one."""
    one = store.commit("a/b", {"x": np.zeros(1)})
    two = store.commit("a%2Fb", {"x": np.ones(1)})
    assert store.refs() == {"a/b": one.cid, "a%2Fb": two.cid}


def test_what_is_not_there(store: Store) -> None:
    with pytest.raises(tg.TensorNotFound, match="the store has no commits yet"):
        store.checkout("main")
    store.commit("main", {})
    for call in (store.checkout, store.log, store.show, store.delete, lambda ref: store.tag("x", ref)):
        with pytest.raises(tg.TensorNotFound, match="'mian'; did you mean 'main'"):
            call("mian")
        with pytest.raises(tg.TensorNotFound, match="'other'; its refs are main"):
            call("other")
    with pytest.raises(tg.TensorNotFound):
        store.commit("main", {}, parent="mian")


def test_tags_do_not_move(store: Store) -> None:
    store.commit("main", {"x": np.zeros(1)})
    store.tag("v1", "main")
    store.commit("main", {"x": np.ones(1)})
    for rule, call in (
        ("store.ref.exists", lambda: store.tag("v1", "main")),
        ("store.ref.exists", lambda: store.tag("main", "v1")),
        ("store.ref.tag", lambda: store.commit("v1", {})),
    ):
        with pytest.raises(tg.InputError) as caught:
            call()
        assert caught.value.rule == rule


def test_diff(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tensors(1)
    store.commit("old", old)
    store.commit("new", {**step(old, 1), "more": np.zeros(2)})
    found = store.diff("old", "new")
    assert not found.same
    assert {change.tensor for change in found.changes} == {"big", "more"}
    assert store.diff("old", "old").same


def test_a_ref_cannot_have_the_name_of_a_commit(store: Store) -> None:
    made = store.commit("main", {"x": np.zeros(3)})
    for call in (lambda: store.commit(made.cid, {"x": np.ones(3)}), lambda: store.tag(made.cid, "main")):
        with pytest.raises(tg.InputError, match="is a CID") as caught:
            call()
        assert caught.value.rule == "store.ref.name"
    assert store.refs() == {"main": made.cid}


def test_a_ref_with_the_name_of_a_commit_does_not_hide_it(store: Store, tmp_path: Path) -> None:
    made = store.commit("main", {"x": np.zeros(3)})
    other = store.commit("other", {"x": np.ones(3)})
    write_ref(tmp_path / "store", made.cid, other.cid)
    assert store.show(made.cid) == made
    assert made.cid not in store.refs()
    assert {problem.rule for problem in store.check().problems} == {"store.ref.name"}
    store.delete(made.cid)
    assert_clean(store)


# Making and opening


def test_create_and_open(tmp_path: Path) -> None:
    path = tmp_path / "a" / "store"
    assert repr(Store.create(path)) == f"Store({path})"
    with Store(path) as store:
        store.commit("main", {})
        assert len(store.checkout("main")) == 0
    assert Store(f"store://{path}").refs() == Store(f"file://{path}").refs() == Store(str(path)).refs() == store.refs()
    assert pickle.loads(pickle.dumps(store)).refs() == store.refs()
    for call, error, rule in (
        (lambda: Store.create(path), tg.InputError, "store.create"),
        (lambda: Store.create(tmp_path), tg.InputError, "store.create"),
        (lambda: Store(tmp_path), tg.InputError, "store.open"),
        (lambda: Store(path, {"region": "x"}), tg.InputError, "store.url"),
    ):
        with pytest.raises(error) as caught:
            call()
        assert caught.value.rule == rule
    with pytest.raises(FileNotFoundError):
        Store(tmp_path / "none")


WRITING: dict[str, Callable[[Store], object]] = {
    "commit": lambda store: store.commit("main", {"x": np.ones(2)}),
    "stage": lambda store: store.stage({"x": np.ones(2)}),
    "put": lambda store: store.put([1, 2]),
    "collect": lambda store: store.collect(),
    "repack": lambda store: store.repack(),
    "check": lambda store: store.check(data=True),
}


@pytest.mark.parametrize("verb", WRITING)
@pytest.mark.parametrize("emptied", [False, True])
def test_a_store_that_was_moved_is_not_written_to(verb: str, emptied: bool, tmp_path: Path) -> None:
    """As a file system that is no longer mounted: what is written there would not be a store, and nothing is whole."""
    store = Store.create(tmp_path / "s")
    store.commit("main", {"x": np.zeros(2)})
    (tmp_path / "s").rename(tmp_path / "moved")
    if emptied:
        (tmp_path / "s").mkdir()
    with pytest.raises(tg.InputError) as caught:
        WRITING[verb](store)
    assert caught.value.rule == "store.gone"
    assert not list(tmp_path.glob("s/*"))
    assert len(Store(tmp_path / "moved").log("main")) == 1


def test_a_store_that_is_moved_during_a_commit_acknowledges_nothing(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s")
    store.commit("main", {"x": np.zeros(2)})

    def move(done: int, total: int) -> None:
        if not (tmp_path / "moved").exists():
            (tmp_path / "s").rename(tmp_path / "moved")
            (tmp_path / "s").mkdir()

    with pytest.raises(tg.InputError) as caught:
        store.commit("main", {"x": np.ones(2)}, progress=move)
    assert caught.value.rule == "store.gone"
    assert np.array_equal(Store(tmp_path / "moved").checkout("main")["x"].numpy(), np.zeros(2))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"5", b'{"version": 1}', b"\xff"])
def test_a_marker_that_is_damaged(content: bytes, tmp_path: Path) -> None:
    Store.create(tmp_path / "s")
    (tmp_path / "s" / "tensorglot-store.json").write_bytes(content)
    with pytest.raises(tg.TensorglotError) as caught:
        Store(tmp_path / "s")
    assert caught.value.rule == ("store.version" if b"version" in content else "store.open")


def test_a_newer_version_is_named(tmp_path: Path) -> None:
    Store.create(tmp_path / "s")
    (tmp_path / "s" / "tensorglot-store.json").write_text('{"format": "tensorglot-store", "version": 2}')
    with pytest.raises(tg.UnsupportedError, match=r"version 2 .* \(supported: 1\)"):
        Store(tmp_path / "s")


@pytest.mark.parametrize(
    ("tensors", "options", "rule"),
    [
        (5, {}, "source.kind"),
        ({"x": object()}, {}, "dynd.infer"),
        ({"x": np.zeros(1)}, {"message": 5}, "store.message"),
        ({"x": np.zeros(1)}, {"metadata": 5}, "save.metadata"),
        ({"x": np.zeros(1)}, {"metadata": {"a": object()}}, "store.metadata"),
        ({"x": np.zeros(1)}, {"metadata": {5: "a"}}, "save.metadata"),
        ({"x": np.zeros(1)}, {"parent": 5}, "store.ref.name"),
        ({"x": np.zeros(1)}, {"message": "m" * (1 << 21)}, "store.block.size"),
        ({"x": np.zeros(1)}, {"message": "\ud800"}, "store.message"),
    ],
)
def test_arguments_that_are_refused(tensors: Any, options: Any, rule: str, store: Store, tmp_path: Path) -> None:
    before = store.commit("main", {"x": np.zeros(1)})
    with pytest.raises((tg.InputError, tg.UnsupportedError)) as caught:
        store.commit("main", tensors, **options)
    assert caught.value.rule == rule
    assert store.refs() == {"main": before.cid}
    assert not list((tmp_path / "store" / "writers").iterdir())
    assert_clean(store)


def test_the_umask_decides_who_may_use_the_files_of_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, modes = os.open, set()

    def open(path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        if flags & os.O_CREAT:
            modes.add(mode)
        return opened(path, flags, mode, **options)

    monkeypatch.setattr(os, "open", open)
    with Store.create(tmp_path / "store") as store:
        store.commit("main", {"x": np.zeros(1)})
        store.tag("v1", "main")
        store.collect(grace=0)
    assert modes == {0o666}


def test_a_commit_is_a_value(store: Store) -> None:
    made = store.commit("main", {"x": np.zeros(1)}, message="a\x1b[1m" + "m" * 99)
    assert isinstance(made, Commit)
    assert repr(made).isprintable()
    assert len(repr(made)) < 120
    assert made == store.show(made.cid)
    assert made.to_dict().keys() == {"cid", "parents", "message", "metadata", "time"}


def test_a_commit_is_no_target_of_the_other_verbs(tmp_path: Path) -> None:
    url = f"store://{tmp_path / 'store'}#main"
    with Store.create(tmp_path / "store"):
        w = {"w": np.zeros(2)}
        for write in (lambda: tg.save(url, w, format="ztensor"), lambda: tg.convert(w, url, format="ztensor")):
            with pytest.raises(tg.UnsupportedError, match=r"Store\(path\)\.commit"):
                write()
