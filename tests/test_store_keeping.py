"""check, collect, repack and stats: damage is named, garbage goes, nothing that a ref leads to is ever lost."""

from __future__ import annotations

import fcntl
import importlib
import io
import os
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

import tensorglot as tg
from stores import Pack, PackRecord, assert_clean, flip, packs, same_tensors, step, stray_files, tensors
from tensorglot import dynd
from tensorglot.store import Store
from tensorglot.store.backend import Directory, Entry
from tensorglot.store.encoder import encode
from tensorglot.store.encodings import Encoding
from tensorglot.store.packs import Packs

DAY = 86_400.0


def rules(store: Store, *, data: bool = False) -> set[str]:
    return {problem.rule for problem in store.check(data=data).problems}


# check


def test_a_clean_store(store: Store) -> None:
    assert store.check().ok
    store.commit("main", tensors(1))
    store.commit("main", step(tensors(1), 1))
    report = store.check()
    assert (report.ok, report.tensors, report.checksums) == (True, 4, 0)
    assert report.nbytes == 2 * sum(np.asarray(array).nbytes for array in tensors(1).values())
    assert store.check(data=True).checksums == store.stats().blocks


def test_flipped_bits_anywhere_in_a_pack_are_found(store: Store, root: Path) -> None:
    arrays = {"x": np.arange(40, dtype=np.int16), "y": np.ones(3)}
    store.commit("main", arrays)
    (pack,) = packs(root)
    whole = pack.read_bytes()
    unseen = []
    for offset in range(8, len(whole), 3):  # the first eight are the magic, which no reader needs
        pack.write_bytes(whole)
        flip(pack, offset, offset % 8)
        flipped = Store(root)
        if flipped.check(data=True).ok:
            unseen.append(offset)
            assert same_tensors(flipped.checkout("main"), arrays)
    assert len(unseen) <= 2, unseen  # a few bits of a zstd frame have no meaning
    pack.write_bytes(whole)
    assert_clean(Store(root))


def test_damage_names_the_block_the_pack_and_the_commits(store: Store, root: Path) -> None:
    first, second = tensors(1), tensors(2)
    one = store.commit("main", first)
    (pack,) = packs(root)
    two = store.commit("main", {**second, "small": first["small"]})
    three = store.commit("other", {"tiny": first["tiny"]})
    flip(pack, 5000)  # in the first chunk of "big"
    assert Store(root).check().ok, "structure is not damaged"
    (problem,) = Store(root).check(data=True).problems
    assert problem.rule == "store.block.hash"
    assert f"packs/{pack.name}" in problem.message
    assert one.cid[:12] in problem.message
    assert two.cid[:12] not in problem.message
    assert three.cid[:12] not in problem.message
    assert same_tensors(Store(root).checkout("other"), {"tiny": first["tiny"]})
    with pytest.raises(tg.IntegrityError) as caught:
        Store(root).checkout(one.cid)["big"].numpy()
    assert caught.value.rule == "store.block.hash"
    assert np.array_equal(Store(root).checkout(one.cid)["small"].numpy(), first["small"])


def test_a_tensor_that_outgrows_one_chunk_is_packed_again(store: Store, root: Path) -> None:
    """Its chunks have a tree above them then, which its predecessor has not."""
    rows = np.random.default_rng(3).standard_normal((6000, 100))
    for count in (100, 6000):
        store.commit("main", {"w": rows[:count]})
    store.repack(grace=0)
    assert store.check(data=True).ok
    assert [len(store.checkout(commit.cid)["w"]) for commit in store.log("main")] == [6000, 100]


def test_a_ref_whose_file_would_have_too_long_a_name(store: Store) -> None:
    with pytest.raises(tg.InputError) as caught:
        store.commit("é" * 60, {"w": np.ones(2)})
    assert caught.value.rule == "store.ref.name"


def test_many_small_tensors_that_are_compressed(store: Store, tmp_path: Path) -> None:
    small = {f"t{i}": np.arange(200 + i) for i in range(20)}
    tg.save(tmp_path / "small.zt", small, compression="zstd")
    store.commit("main", tmp_path / "small.zt")
    assert same_tensors(store.checkout("main"), small)


def test_an_empty_tensor_between_others_is_read_with_them(store: Store) -> None:
    rows = np.arange(400_000)
    store.commit("main", {"a": rows, "b": np.zeros((0, 3)), "c": rows[:70_000]})
    with store.checkout("main") as archive:
        source = archive.source
        assert bytes(source.read(0, source.size)) == rows.tobytes() + rows[:70_000].tobytes()


def test_a_pack_that_is_removed_while_it_is_checked_is_no_problem(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(3):
        store.commit("main", tensors(seed))
    checked, others, read_into = Store(root), [Store(root)], Directory.read_into
    assert checked.check().ok

    def late(self: Directory, key: str, offset: int, out: memoryview) -> None:
        if others:
            others.pop().repack(0)
        read_into(self, key, offset, out)

    checked.close()
    monkeypatch.setattr(Directory, "read_into", late)
    assert checked.check(data=True).ok


def test_damage_of_a_pack_that_will_be_removed_is_no_problem(store: Store, root: Path) -> None:
    store.commit("main", {"kept": np.arange(3)})
    known = packs(root)
    store.commit("other", tensors(1))
    store.delete("other")
    store.collect()
    (pack,) = set(packs(root)) - set(known)
    flip(pack, 5000)
    assert Store(root).check(data=True).ok


def test_damage_of_two_deltas_in_a_chain(store: Store, root: Path) -> None:
    old, known, damaged = tensors(1), set[Path](), list[Path]()
    for seed in range(4):
        store.commit("main", old)
        damaged += [path for path in packs(root) if path not in known]
        known.update(damaged)
        old = step(old, seed)
    for pack in damaged[2:]:
        flip(pack, 600)
    (problem,) = Store(root).check(data=True).problems
    assert problem.message.startswith(f"packs/{damaged[2].name}: "), "what is on it cannot be judged"


def test_damage_of_a_base_names_the_commits_of_all_deltas(store: Store, root: Path) -> None:
    old = tensors(1)
    commits = [store.commit("main", old)]
    (pack,) = packs(root)
    for seed in range(2):
        old = step(old, seed)
        commits.append(store.commit("main", old))
    flip(pack, 5000)
    (problem,) = Store(root).check(data=True).problems
    assert problem.message.startswith(f"packs/{pack.name}: "), "the packs of the deltas are intact"
    assert all(commit.cid[:12] in problem.message for commit in commits)
    pack.unlink()
    base, missing = sorted(Store(root).check().problems, key=lambda problem: problem.rule, reverse=True)
    assert (base.rule, missing.rule) == ("store.chain.base", "store.block.missing")
    assert all(commit.cid[:12] in base.message for commit in commits[1:])


def test_a_commit_that_is_missing_is_named_as_in_the_log(store: Store, root: Path) -> None:
    store.commit("main", tensors(1))
    (first,) = packs(root)
    made = store.commit("main", tensors(1))
    (set(packs(root)) - {first}).pop().unlink()
    (problem,) = Store(root).check().problems
    assert made.cid in problem.message
    with pytest.raises(tg.IntegrityError, match=made.cid):
        Store(root).log("main")


def test_damage_is_reported_by_its_cause(store: Store, root: Path) -> None:
    """Whatever depends on a truncated pack: one line for the pack, one for what is missing, one for missing bases."""
    version = tensors(1)
    store.commit("main", version)
    (pack,) = packs(root)
    for seed in range(4):
        version = step(version, seed)
        store.commit("main", version)
    pack.write_bytes(pack.read_bytes()[:-1])
    problems = Store(root).check(data=True).problems
    assert [problem.rule for problem in problems] == ["pack.footer", "store.block.missing", "store.chain.base"]
    assert max(len(problem.message) for problem in problems) < 250
    assert "and 1 more" in problems[-1].message


def test_a_pack_that_is_gone_cut_or_foreign(store: Store, root: Path) -> None:
    store.commit("main", tensors(1))
    (pack,) = packs(root)
    whole = pack.read_bytes()
    for data, rule in ((whole[:-1], "pack.footer"), (b"", "pack.footer"), (whole[:40], "pack.footer")):
        pack.write_bytes(data)
        report = Store(root).check()
        assert {problem.rule for problem in report.problems} == {rule, "store.block.missing"}
        assert any(pack.name in problem.message for problem in report.problems)
        with pytest.raises(tg.FormatError, match=pack.stem):
            Store(root).checkout("main")
    pack.unlink()
    assert rules(Store(root)) == {"store.block.missing"}
    pack.write_bytes(whole)
    assert_clean(Store(root))


def test_a_pack_that_cannot_be_opened_is_a_problem(store: Store, root: Path) -> None:
    store.commit("main", {"x": np.zeros(3)})
    (root / "packs" / "directory.pack").mkdir()
    os.mkfifo(root / "packs" / "fifo.pack")
    (root / "packs" / "link.pack").symlink_to("nowhere")
    (root / "packs" / "loop.pack").symlink_to("loop.pack")
    (root / "packs" / "notes.txt").write_text("mine")
    report = Store(root).check()
    for name in ("directory", "fifo", "loop"):
        assert any(f"{name}.pack" in problem.message for problem in report.problems), name
    assert same_tensors(Store(root).checkout("main"), {"x": np.zeros(3)})


def test_refs_that_lead_nowhere(store: Store, root: Path) -> None:
    made = store.commit("main", {"x": np.zeros(3)})
    (root / "refs" / "main").write_bytes(b"{}")
    assert rules(Store(root)) == {"store.ref"}
    with pytest.raises(tg.FormatError, match="delete it"):
        Store(root).collect(0)
    assert packs(root), "nothing is removed while a ref cannot be read"
    assert Store(root).show(made.cid) == made


@pytest.mark.parametrize("content", [b"{}", b"", b"\xff", b"[" * 9000, bytes(1 << 20)])
def test_a_damaged_ref_can_be_deleted_and_the_others_used(content: bytes, store: Store, root: Path) -> None:
    made = store.commit("main", {"x": np.zeros(3)})
    store.commit("other", {"x": np.ones(3)})
    (root / "refs" / "main").write_bytes(content)
    assert store.refs().keys() == {"other"}
    assert store.stats().commits == 1
    assert len(store.log("other")) == 1
    for call in (lambda: store.log("main"), lambda: store.commit("main", {"x": np.zeros(3)})):
        with pytest.raises(tg.FormatError, match="rule store.object" if len(content) > 65536 else "rule store.ref"):
            call()
    store.delete("main")
    assert_clean(store)
    store.tag("main", made.cid)
    assert store.log("main") == [made]
    store.collect(0)


def test_a_value_whose_link_is_gone_is_a_problem(store: Store, root: Path) -> None:
    store.put(dynd.Link.to(np.arange(3)))
    (pack,) = packs(root)
    link = dynd.Link.to(np.arange(3))
    link.freeze()
    cid = store.put(dynd.array([link.cid] * 2, "2 * merkle[3 * int64]"))
    store.tag("value", cid)
    pack.unlink()
    (problem,) = Store(root).check().problems
    assert problem.rule == "store.block.missing"
    assert str(link.cid) in problem.message


# collect


def test_garbage_goes_after_the_grace_period(store: Store, root: Path) -> None:
    store.commit("main", tensors(1))
    store.commit("old", tensors(2))
    store.delete("old")
    kept = store.collect(DAY)
    assert (kept.packs, kept.waiting) == (0, 1)
    assert len(packs(root)) == 2
    assert store.collect(DAY).waiting == 1
    gone = store.collect(0)
    assert (gone.packs, gone.waiting, len(packs(root))) == (1, 0, 1)
    assert gone.nbytes == kept.waiting_nbytes > 1_000_000
    assert stray_files(root) == []
    assert_clean(store)
    assert same_tensors(store.checkout("main"), tensors(1))


def test_what_was_condemned_is_pardoned_when_it_is_needed_again(store: Store, root: Path) -> None:
    made = store.commit("main", tensors(1))
    with WriterInside(store) as inside:
        other = Store(root)
        other.delete("main")
        assert other.collect(0).waiting == 1, "a writer that began before may rely on it"
        inside()
    again = Store(root)
    assert same_tensors(again.checkout("writer"), tensors(1))
    assert again.collect(0).packs == 0
    assert list((root / "condemned").iterdir()) == []
    assert made.tensors == again.show("writer").tensors
    assert_clean(again)


class WriterInside:
    """A commit of the tensors of seed 1 that has begun, and is finished by a call."""

    def __init__(self, store: Store) -> None:
        self.go, self.begun = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.run, args=(store,))

    def run(self, store: Store) -> None:
        class Waiting:
            """The last tensor, which is asked for when the session has begun."""

            def __array__(inner, *_: Any, **__: Any) -> Any:  # noqa: N805
                self.begun.set()
                self.go.wait(30)
                return np.asarray(tensors(1)["tiny"])

        store.commit("writer", {**tensors(1), "tiny": Waiting()})

    def __enter__(self) -> Callable[[], None]:
        self.thread.start()
        assert self.begun.wait(30)
        return self.finish

    def finish(self) -> None:
        self.go.set()
        self.thread.join()

    def __exit__(self, *_: object) -> None:
        self.finish()


def test_a_writer_that_begins_later_does_not_rely_on_what_is_condemned(store: Store, root: Path) -> None:
    store.commit("main", tensors(1))
    store.delete("main")
    store.collect(DAY)
    store.commit("again", tensors(1))
    assert len(packs(root)) == 2
    assert store.collect(0).packs == 1
    assert same_tensors(store.checkout("again"), tensors(1))
    assert_clean(store)


def test_a_pack_appears_while_a_collector_looks_for_what_is_needed(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the blocks of a pack that is condemned, and that a ref leads to all the same."""
    store.commit("main", tensors(1))
    with WriterInside(store) as inside:
        Store(root).delete("main")
        assert Store(root).collect(0).waiting == 1
        inside()
    collecting, writers = importlib.import_module("tensorglot.store.collect"), [Store(root)]

    def condemned(backend: Any) -> Any:
        if writers:
            writers.pop().commit("again", tensors(1))
        return read(backend)

    read = collecting.condemned
    monkeypatch.setattr(collecting, "condemned", condemned)
    Store(root).collect(0)
    for ref in ("writer", "again"):
        assert same_tensors(Store(root).checkout(ref), tensors(1))
    assert_clean(Store(root))


@pytest.mark.parametrize("verb", ["collect", "stats", "costs"])
def test_a_ref_moves_after_the_packs_were_listed(
    verb: str, store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes of its commit were there, the chunks were not."""
    made = io.BytesIO()
    store.commit("main", tensors(1))
    store.bundle(made, "main")
    late = Store.create(root.with_name("late"))
    late.unbundle(io.BytesIO(made.getvalue()))
    expected = late.stats(), late.costs("main")
    chunks = max(packs(root.with_name("late")), key=lambda path: path.stat().st_size)
    hidden = [(path, path.with_name(f".{path.name}")) for path in (chunks, root.with_name("late") / "refs/main")]
    for path, other in hidden:
        path.rename(other)
    late = Store(root.with_name("late"))
    assert late.check().ok
    list_folder, get = Directory.list, Directory.get

    def reveal() -> None:
        while hidden:
            path, other = hidden.pop()
            other.rename(path)

    def late_list(self: Directory, folder: str) -> list[Entry]:
        if folder == "refs":
            reveal()
        return list_folder(self, folder)

    def late_get(self: Directory, key: str) -> bytes | None:
        reveal()
        return get(self, key)

    monkeypatch.setattr(Directory, "list", late_list)
    monkeypatch.setattr(Directory, "get", late_get)
    if verb == "collect":
        assert late.collect(0).packs == 0
    elif verb == "stats":
        assert late.stats() == expected[0]
    else:
        assert late.costs("main") == expected[1]


def test_a_condemned_name_that_is_not_unicode(store: Store, root: Path) -> None:
    (root / "condemned").mkdir()
    (root / "condemned" / os.fsdecode(b"\xff")).touch()
    store.commit("main", tensors(1))
    assert same_tensors(store.checkout("main"), tensors(1))


def test_a_garbage_delta_whose_base_is_collected_is_written_again(store: Store, root: Path) -> None:
    """Another tensor keeps the pack. What a later commit finds in it must not be a delta from nothing."""
    first = {"big": tensors(1)["big"]}
    second = {"big": step(tensors(1), 1)["big"], "other": np.arange(9000)}
    store.commit("main", first)
    store.commit("main", second)
    store.commit("keeps", {"other": second["other"]})
    store.delete("main")
    assert store.collect(0).packs == 1
    assert_clean(store)
    store.commit("again", second)
    assert same_tensors(Store(root).checkout("again"), second)
    assert_clean(store)
    store.repack(0)
    store.repack(0)
    assert same_tensors(Store(root).checkout("again"), second)
    assert_clean(store)


def test_two_copies_that_are_deltas_from_each_other(store: Store, root: Path) -> None:
    """Two writers at once can store A in full and B as a delta, and the other way round. Collect keeps a pair."""
    one = tensors(1)["big"][:200_000]
    two = step({"big": one}, 5)["big"]
    forward, back = ({"x": one}, {"x": two}), ({"x": two}, {"x": one})
    store.commit("forward", forward[0])
    store.commit("forward", forward[1])
    a, b = one.tobytes(), two.tobytes()
    full, delta = encode(memoryview(b), 4), encode(memoryview(a), 4, memoryview(b))
    assert delta.encoding in (Encoding.SPARSE_XOR, Encoding.SPARSE_DIFFERENCE)
    name_a, name_b = blake3(a).digest(), blake3(b).digest()
    other = Pack(
        [
            PackRecord(bytes(full.body), [(name_b, 0, len(b))], len(b), full.encoding),
            PackRecord(bytes(delta.body), [(name_a, 0, len(a))], len(a), delta.encoding, name_b, 1),
        ]
    )
    other.write(root, "ffffffffffffffff-0")
    for _ in range(3):
        Store(root).collect(0)
        assert_clean(Store(root))
    Store(root).repack(0)
    assert_clean(Store(root))
    archives = [Store(root).checkout(commit.cid) for commit in Store(root).log("forward")]
    assert same_tensors(archives[0], back[0])
    assert same_tensors(archives[1], back[1])


@pytest.mark.parametrize("how", ["tag", "parent"])
def test_what_is_condemned_can_be_rescued(how: str, store: Store, root: Path) -> None:
    """By name or as a parent. It is copied, since a collector may be removing it."""
    first = store.commit("old", tensors(1))
    old = store.commit("old", step(tensors(1), 1))
    store.commit("main", {"x": np.zeros(3)})
    store.delete("old")
    store.collect(DAY)
    if how == "tag":
        store.tag("rescued", old.cid)
    else:
        store.commit("rescued", {"x": np.ones(3)}, parent=old.cid)
    store.collect(0)
    assert_clean(store)
    assert [commit.cid for commit in store.log("rescued")][-2:] == [old.cid, first.cid]
    assert same_tensors(Store(root).checkout(old.cid), step(tensors(1), 1))
    assert same_tensors(Store(root).checkout(first.cid), tensors(1))


def test_what_is_incomplete_cannot_be_named(store: Store, root: Path) -> None:
    old = store.commit("old", tensors(1))
    (pack,) = packs(root)
    new = store.commit("old", {"x": np.ones(3)})
    store.delete("old")
    pack.unlink()
    for call in (
        lambda: Store(root).commit("new", {"x": np.ones(3)}, parent=new.cid),
        lambda: Store(root).tag("new", new.cid),
    ):
        with pytest.raises(tg.InputError, match=old.cid[5:]) as caught:
            call()
        assert caught.value.rule == "store.incomplete"
    assert Store(root).refs() == {}


def test_one_collector_at_a_time(store: Store, root: Path) -> None:
    with (root / "collect.lock").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for call in (store.collect, store.repack):
            with pytest.raises(tg.InputError) as caught:
                call()
            assert caught.value.rule == "store.lock"
    store.collect()


@pytest.mark.parametrize("grace", [-1, -0.5, float("nan"), "day", None, True])
def test_a_grace_that_is_no_number_of_seconds(grace: Any, store: Store) -> None:
    for call in (store.collect, store.repack):
        with pytest.raises(tg.InputError) as caught:
            call(grace)
        assert caught.value.rule == "store.grace"


def test_what_killed_writers_left_is_removed(store: Store, root: Path) -> None:
    store.commit("main", {"x": np.zeros(3)})
    for folder in ("", "packs", "refs", "condemned"):
        (root / folder).mkdir(exist_ok=True)
        (root / folder / ".tensorglot-0123456789abcdef.tmp").write_bytes(b"half")
    (root / "writers" / "00112233445566ff").write_text("killed")
    (root / "packs" / "mine.txt").write_text("not ours")
    store.collect(DAY)
    assert len(stray_files(root)) == 5, "they are not old enough"
    store.collect(0)
    assert stray_files(root) == ["packs/mine.txt"]


def test_the_temporary_file_of_a_running_writer_stays(store: Store, root: Path) -> None:
    with WriterInside(store) as inside:
        left = root / "packs" / ".tensorglot-0123456789abcdef.tmp"
        left.parent.mkdir(exist_ok=True)
        left.write_bytes(b"half")
        Store(root).collect(0)
        assert left.exists()
        inside()
    Store(root).collect(0)
    assert not left.exists()


def test_nothing_is_removed_while_something_is_broken(store: Store, root: Path) -> None:
    store.commit("main", tensors(1))
    (pack,) = packs(root)
    store.commit("old", tensors(2))
    store.delete("old")
    pack.rename(root / "aside")
    with pytest.raises(tg.InputError, match="nothing was removed") as caught:
        Store(root).collect(0)
    assert caught.value.rule == "store.collect.broken"
    assert len(packs(root)) == 1
    (root / "aside").rename(pack)
    assert Store(root).collect(0).packs == 1


# repack


def test_repack_joins_packs_and_drops_garbage(store: Store, root: Path) -> None:
    versions = [tensors(1)]
    for seed in range(5):
        versions.append(step(versions[-1], seed))
    for version in versions:
        store.commit("main", version)
    store.commit("other", tensors(9))
    store.delete("other")
    before = store.stats()
    done = store.repack(0)
    after = store.stats()
    assert done.packs == 7
    assert after.packs == 1
    assert after.stored_nbytes < before.stored_nbytes - 1_000_000
    assert (after.logical_nbytes, after.commits, after.tensors) == (before.logical_nbytes, 6, before.tensors)
    assert_clean(store)
    for commit, version in zip(store.log("main"), reversed(versions), strict=True):
        assert same_tensors(store.checkout(commit.cid), version)
    assert store.repack(0).packs == 0, "there is nothing more to join"


def test_repack_makes_deltas_of_what_writers_stored_at_once(store: Store, root: Path) -> None:
    """None of them knew the others' commits, so each stored its tensors in full."""
    versions = [tensors(1)]
    for seed in range(3):
        versions.append(step(versions[-1], seed))
    staged = [store.stage(version) for version in versions]
    for links in staged:
        store.commit("main", {}, staged=links)
    before = store.stats().stored_nbytes
    store.repack(0)
    assert store.stats().stored_nbytes < 0.3 * before
    assert_clean(store)
    for commit, version in zip(store.log("main"), reversed(versions), strict=True):
        assert same_tensors(Store(root).checkout(commit.cid), version)
    small = store.stats().stored_nbytes
    store.commit("main", step(versions[-1], 9))
    store.repack(0)
    assert store.stats().stored_nbytes < 1.05 * small
    assert_clean(store)


def test_repack_of_versions_that_came_back(store: Store, root: Path) -> None:
    """A replaced B, and B replaced A: one of them stays in full."""
    one = {"big": tensors(1)["big"]}
    two = {"big": step(one, 1)["big"]}
    staged = {number: store.stage(version) for number, version in enumerate((one, two))}
    for ref, numbers in (("main", (0, 1, 0, 1)), ("side", (1, 0))):
        for number in numbers:
            store.commit(ref, {}, staged=staged[number])
    store.repack(0)
    assert_clean(store)
    assert store.stats().stored_nbytes < 1.3 * one["big"].nbytes
    assert same_tensors(Store(root).checkout("main"), two)
    assert same_tensors(Store(root).checkout("side"), one)


def test_a_repack_reads_what_it_has_copied_before_anything_is_removed(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(3):
        store.commit("main", tensors(seed))
    before = {path.name for path in packs(root)}
    without = Packs.without

    def damage(self: Packs, hidden: Collection[str]) -> Packs:
        for path in packs(root):
            if path.name not in before:
                flip(path, 100_000)
        return without(self, hidden)

    monkeypatch.setattr(Packs, "without", damage)
    with pytest.raises(tg.FormatError):
        store.repack(0)
    assert before < {path.name for path in packs(root)}
    assert same_tensors(Store(root).checkout("main"), tensors(2))


def test_a_reader_beside_repacks(store: Store, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever it opens a pack, that was repacked just before."""
    for seed in range(3):
        store.commit("main", tensors(seed))
    reader, other = Store(root), Store(root)
    archive = reader.checkout("main")
    assert len(archive) == 3
    reader.close()  # else it goes on with the files that it has open
    left, inside, read_into = [3, 4, 5], threading.Lock(), Directory.read_into

    def late(self: Directory, key: str, offset: int, out: memoryview) -> None:
        if left and inside.acquire(blocking=False):
            other.commit("side", tensors(left.pop()))
            other.repack(0)
            inside.release()
        read_into(self, key, offset, out)

    monkeypatch.setattr(Directory, "read_into", late)
    assert same_tensors(archive, tensors(2))
    assert not left


def test_a_reader_that_knows_the_old_packs_goes_on(store: Store, root: Path) -> None:
    for seed in range(3):
        store.commit("main", tensors(seed))
    reader = Store(root)
    assert len(reader.blocks) > 3, "it has read the indexes, and no pack"
    open_archive = Store(root).checkout("main")
    Store(root).repack(0)
    assert len(packs(root)) == 1
    assert same_tensors(reader.checkout("main"), tensors(2))
    assert same_tensors(open_archive, tensors(2))


def test_repack_refuses_damage_and_removes_nothing(store: Store, root: Path) -> None:
    store.commit("main", tensors(1))
    store.commit("main", tensors(2))
    flip(packs(root)[0], 5000)
    before = {path: path.read_bytes() for path in packs(root)}
    with pytest.raises(tg.IntegrityError):
        Store(root).repack(0)
    assert {path: path.read_bytes() for path in packs(root)} == before


# stats


def test_stats_add_up(store: Store, root: Path) -> None:
    assert store.stats().to_dict() == {
        "logical_nbytes": 0, "unique_nbytes": 0, "stored_nbytes": 0, "commits": 0, "tensors": 0, "packs": 0, "blocks": 0
    }  # fmt: skip
    first = tensors(1)
    nbytes = sum(np.asarray(array).nbytes for array in first.values())
    store.commit("main", first)
    store.commit("main", {**first, "tiny": np.float64(7)})
    store.commit("side", {"again": first["big"]})
    found = store.stats()
    assert found.logical_nbytes == 2 * nbytes + first["big"].nbytes
    assert found.unique_nbytes == nbytes + 8
    assert found.stored_nbytes == sum(path.stat().st_size for path in packs(root))
    assert (found.commits, found.tensors, found.packs) == (3, 5, 3)
    costs = store.costs("main")
    assert [(cost.tensors, cost.changed, cost.nbytes) for cost in costs] == [(3, 3, nbytes), (3, 1, nbytes)]
    assert costs[0].stored_nbytes > 900_000
    assert 0 < costs[1].stored_nbytes < 1000
    overhead = found.stored_nbytes - sum(cost.stored_nbytes for cost in [*costs, *store.costs("side")])
    assert abs(overhead) < 1_300_000


def test_the_last_costs_need_no_older_commits(store: Store, root: Path) -> None:
    for seed in range(4):
        store.commit("main", tensors(seed))
    every = store.costs("main")
    assert store.costs("main", 4) == store.costs("main", 9) == every
    first, *_ = sorted(packs(root), key=lambda path: path.stat().st_mtime_ns)
    first.unlink()
    assert Store(root).costs("main", 2) == every[2:]
    assert Store(root).log("main", 3) == [cost.commit for cost in every[:0:-1]]
    with pytest.raises(tg.IntegrityError):
        Store(root).costs("main")


@pytest.mark.parametrize("limit", [0, -1, 1.5, "2", True])
def test_a_limit_that_is_no_number_of_commits(limit: Any, store: Store) -> None:
    store.commit("main", {"x": np.zeros(3)})
    for call in (store.log, store.costs):
        with pytest.raises(tg.InputError) as caught:
            call("main", limit)
        assert caught.value.rule == "store.limit"
