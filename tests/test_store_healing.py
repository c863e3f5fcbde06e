"""Damaged packs: any intact copy of a block is read, and what has none can be stored again.

A check marks damaged records; then a pull or a commit stores their blocks anew, and repack
removes the damaged pack. A mark is never trusted by a reader.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

import tensorglot as tg
from bounds import seconds
from stores import (
    Pack,
    array_node,
    assert_clean,
    commit_node,
    files,
    flip,
    leaf,
    link,
    packs,
    same_tensors,
    step,
    stray_files,
    tensors,
    write_ref,
)
from tensorglot.io.local import FileSource
from tensorglot.store import Store
from tensorglot.store.backend import Directory
from tensorglot.store.encoder import encode

FIRST = tensors(1)
SECOND = step(FIRST, 1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store of two commits, and a copy of it, `copy`."""
    store = Store.create(tmp_path / "store")
    store.commit("main", FIRST)
    store.commit("main", SECOND)
    Store.create(tmp_path / "copy")
    store.push(tmp_path / "copy")
    return tmp_path / "store"


def largest(root: Path) -> Path:
    return max(packs(root), key=lambda path: path.stat().st_size)


def marks(root: Path) -> list[Path]:
    return sorted((root / "packs").glob("*.damaged"))


def flip_the_middle(pack: Path) -> None:
    flip(pack, pack.stat().st_size // 2)


def cut_the_end(pack: Path) -> None:
    pack.write_bytes(pack.read_bytes()[:-9])


def zero_the_middle(pack: Path) -> None:
    data = bytearray(pack.read_bytes())
    data[1000:-20_000] = bytes(len(data) - 21_000)
    pack.write_bytes(data)


def remove(pack: Path) -> None:
    pack.unlink()


DAMAGE = [flip_the_middle, cut_the_end, zero_the_middle, remove]

HEALING: dict[str, Callable[[Path], object]] = {
    "pull": lambda root: Store(root).pull(root.parent / "copy"),
    "push": lambda root: Store(root.parent / "copy").push(root),
    "commit": lambda root: [Store(root).commit("again", version) for version in (FIRST, SECOND)],
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("heal", ["pull", "push"])
def test_a_damaged_pack_is_healed_from_a_copy(damage: Callable[[Path], None], heal: str, root: Path) -> None:
    log = Store(root).log("main")
    damage(largest(root))
    assert not Store(root).check(data=True).ok
    HEALING[heal](root)
    for commit, version in zip(log, (SECOND, FIRST), strict=True):
        assert same_tensors(Store(root).checkout(commit.cid), version)
    Store(root).repack(0)
    assert_clean(Store(root))
    assert stray_files(root) == []
    assert Store(root).log("main") == log


def test_the_same_tensors_are_stored_again(root: Path) -> None:
    """What is acknowledged can be read, and so can the commits that had lost it."""
    log = Store(root).log("main")
    flip_the_middle(largest(root))
    (problem,) = Store(root).check(data=True).problems
    assert "commit the same tensors again, then repack" in problem.message
    HEALING["commit"](root)
    for ref, version in (("again", SECOND), (log[0].cid, SECOND), (log[1].cid, FIRST)):
        assert same_tensors(Store(root).checkout(ref), version)
    assert tg.verify(f"store://{root}#again").ok
    (problem,) = Store(root).check(data=True).problems
    assert "no commit needs it; repack removes it" in problem.message
    Store(root).repack(0)
    assert_clean(Store(root))


def test_a_commit_does_not_need_a_damaged_predecessor(root: Path) -> None:
    flip_the_middle(largest(root))
    Store(root).check(data=True)
    third = step(SECOND, 3)
    made = Store(root).commit("main", third)
    assert same_tensors(Store(root).checkout(made.cid), third)


def test_a_handle_that_was_open_before_the_check(root: Path) -> None:
    before = Store(root)
    assert same_tensors(before.checkout("main"), SECOND)
    flip_the_middle(largest(root))
    Store(root).check(data=True)
    before.commit("again", SECOND)
    assert same_tensors(Store(root).checkout("again"), SECOND)


def test_a_disk_that_cannot_read_some_bytes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = largest(root)
    real = FileSource.read_bytes

    def read_bytes(self: FileSource, offset: int, nbytes: int) -> bytes:
        if self.path == str(bad) and offset <= 5000 < offset + nbytes:
            raise OSError(errno.EIO, "Input/output error")
        return real(self, offset, nbytes)

    def read_into(self: FileSource, offset: int, out: memoryview) -> None:
        out[:] = read_bytes(self, offset, len(out))

    monkeypatch.setattr(FileSource, "read_bytes", read_bytes)
    monkeypatch.setattr(FileSource, "read_into", read_into)
    with pytest.raises(tg.IntegrityError, match="cannot be read: Input/output error"):
        Store(root).checkout("main")["big"].numpy()
    (problem,) = Store(root).check(data=True).problems
    assert problem.rule == "store.block.read"
    HEALING["pull"](root)
    assert same_tensors(Store(root).checkout("main"), SECOND)
    Store(root).repack(0)
    assert_clean(Store(root))


# Two copies


@pytest.fixture
def twice(root: Path) -> Path:
    """Every block is in two packs."""
    for number, pack in enumerate(packs(root.parent / "copy")):
        shutil.copyfile(pack, root / "packs" / f"{number:016x}-0.pack")
    return root


@pytest.mark.parametrize("which", range(3))
def test_any_intact_copy_will_do(which: int, twice: Path) -> None:
    log = Store(twice).log("main")
    damaged = packs(twice)[which]
    flip_the_middle(damaged)
    for commit, version in zip(log, (SECOND, FIRST), strict=True):
        assert same_tensors(Store(twice).checkout(commit.cid), version)
    target = Store.create(twice.parent / "target")
    Store(twice).push(twice.parent / "target")
    Store(twice).bundle(twice.parent / "all.car", "main")
    Store.create(twice.parent / "unbundled").unbundle(twice.parent / "all.car")
    for store in (target, Store(twice.parent / "unbundled")):
        assert_clean(store)
        assert same_tensors(store.checkout("main"), SECOND)


@pytest.mark.parametrize("which", range(3))
def test_every_copy_is_checked(which: int, twice: Path) -> None:
    assert_clean(Store(twice))
    damaged = packs(twice)[which]
    flip_the_middle(damaged)
    (problem,) = Store(twice).check(data=True).problems
    assert problem.message.startswith(f"packs/{damaged.name}: ")
    assert "no commit needs it" in problem.message
    Store(twice).repack(0)
    assert_clean(Store(twice))
    assert same_tensors(Store(twice).checkout("main"), SECOND)


def test_two_damaged_copies_that_complement_each_other(twice: Path) -> None:
    """One has lost the large tensor, the other one the nodes."""
    one, two = sorted(packs(twice), key=lambda path: -path.stat().st_size)[:2]
    flip(one, 5000)
    flip(two, two.stat().st_size - 2000)
    assert same_tensors(Store(twice).checkout("main"), SECOND)


def test_many_wrong_copies_are_not_tried_forever(tmp_path: Path) -> None:
    """A hostile pack that claims to have a block fifty thousand times."""
    root = tmp_path / "store"
    store = Store.create(root)
    store.commit("main", {"x": np.arange(100_000)})
    (pack,) = packs(root)
    flip(pack, 100)
    hostile = Pack()
    block = np.arange(100_000).tobytes()
    record = hostile.add(bytes(len(block) + 50_000))
    record.blocks = [(blake3(block).digest(), begin, len(block)) for begin in range(50_000)]
    hostile.write(root)

    def read() -> None:
        with pytest.raises(tg.IntegrityError):
            Store(root).checkout("main")["x"].numpy()

    assert seconds(read, 1) < 1


# Marks


def test_a_mark_is_an_empty_object_beside_its_pack(root: Path) -> None:
    damaged = largest(root)
    flip_the_middle(damaged)
    Store(root).check()
    assert marks(root) == [], "only what was hashed is marked"
    Store(root).check(data=True)
    (mark,) = marks(root)
    name, begin, end = mark.name.removesuffix(".damaged").replace(".", "-").rsplit("-", 2)
    assert name == damaged.stem
    assert int(begin) <= damaged.stat().st_size // 2 < int(end)
    assert mark.read_bytes() == b""
    before = files(root)
    Store(root).check(data=True)
    assert files(root) == before


def test_a_pack_that_was_restored_by_hand(root: Path) -> None:
    damaged = largest(root)
    whole = damaged.read_bytes()
    flip_the_middle(damaged)
    assert not Store(root).check(data=True).ok
    damaged.write_bytes(whole)
    assert same_tensors(Store(root).checkout("main"), SECOND), "a mark is not believed by a reader"
    assert_clean(Store(root))
    assert marks(root) == []


def test_a_wrong_mark_loses_nothing(root: Path) -> None:
    for pack in packs(root):
        (root / "packs" / f"{pack.stem}.0-{pack.stat().st_size}.damaged").touch()
    assert same_tensors(Store(root).checkout("main"), SECOND)
    made = Store(root).commit("main", SECOND)
    assert len(packs(root)) == 3
    assert same_tensors(Store(root).checkout(made.cid), SECOND)
    assert_clean(Store(root))


@pytest.mark.parametrize("name", ["x.damaged", "0-0.damaged", "x.5.damaged", "x.5-.damaged", "x.-1-5.damaged"])
def test_other_names_are_ignored(name: str, root: Path) -> None:
    (root / "packs" / name).touch()
    assert_clean(Store(root))


def test_marks_of_packs_that_are_gone_are_collected(root: Path) -> None:
    (root / "packs" / "0123456789abcdef-0.8-900.damaged").touch()
    assert_clean(Store(root))
    Store(root).collect(0)
    assert marks(root) == []


def test_many_damaged_records_need_few_marks(tmp_path: Path) -> None:
    """Every second one of some hundred."""
    root = tmp_path / "store"
    rng = np.random.default_rng(1)
    version: dict[str, Any] = {f"w{i}": rng.standard_normal(2500).astype(np.float64) for i in range(300)}
    store = Store.create(root)
    store.commit("main", version)
    (pack,) = packs(root)
    data = bytearray(pack.read_bytes())
    for offset in range(10_000, len(data) - 100_000, 40_000):
        data[offset] ^= 1
    pack.write_bytes(data)
    (problem,) = Store(root).check(data=True).problems
    assert "records are damaged" in problem.message
    assert len(marks(root)) == 1
    store.commit("again", version)
    assert same_tensors(Store(root).checkout("main"), version)


def test_a_truncated_pack_that_nothing_needs_is_collected(root: Path) -> None:
    cut_the_end(largest(root))
    with pytest.raises(tg.InputError, match="nothing was removed"):
        Store(root).collect(0)
    HEALING["pull"](root)
    assert not Store(root).check().ok
    waiting = Store(root).collect(86_400)
    assert (waiting.packs, waiting.waiting) == (0, 1)
    assert waiting.waiting_nbytes > 1_000_000
    assert_clean(Store(root))
    assert Store(root).collect(0).packs == 1
    assert_clean(Store(root))


BASE = np.arange(3000, dtype=np.int32)
CHANGED = np.where(BASE % 100 == 0, -BASE, BASE)


def two_copies_of_a_delta(root: Path, damage: str) -> None:
    """The packs `a-0` and `b-0` have the same delta; its base is in `a-0`. What is named is damaged."""
    Store.create(root)
    base, changed = BASE.tobytes(), CHANGED.tobytes()
    encoded = encode(memoryview(changed), 4, memoryview(base))
    for name in ("a", "b"):
        pack = Pack()
        body = bytes(len(encoded.body)) if damage == name else bytes(encoded.body)
        pack.add(changed, body=body, encoding=int(encoded.encoding), base=blake3(base).digest(), depth=1)
        if name == "a":
            array = array_node("3000 * int32", changed)
            names = leaf({"w": link(array)})
            commit = commit_node(link(names))
            pack.add(base, body=bytes(len(base)) if damage == "base" else base)
            for node in (array, names, commit):
                pack.add(node)
            write_ref(root, "main", link(commit))
        pack.write(root, f"{name}-0")


@pytest.mark.parametrize("damage", ["none", "a", "b"])
def test_any_copy_of_a_delta_is_read(damage: str, tmp_path: Path) -> None:
    two_copies_of_a_delta(tmp_path / "store", damage)
    assert (Store(tmp_path / "store").checkout("main")["w"].numpy() == CHANGED).all()
    problems = Store(tmp_path / "store").check(data=True).problems
    assert [f"packs/{damage}-0.pack" in str(problem) for problem in problems] == [True] * (damage != "none")


def test_a_damaged_base_of_every_copy_is_named(tmp_path: Path) -> None:
    two_copies_of_a_delta(tmp_path / "store", "base")
    with pytest.raises(tg.IntegrityError) as caught:
        Store(tmp_path / "store").checkout("main")["w"].numpy()
    assert (caught.value.rule, caught.value.path) == ("store.block.hash", "packs/a-0.pack")
    (problem,) = Store(tmp_path / "store").check(data=True).problems
    assert "packs/a-0.pack" in str(problem)


@pytest.mark.parametrize("damage", ["a", "b"])
def test_a_server_that_fails_while_other_copies_are_read_is_no_damage(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_copies_of_a_delta(tmp_path / "store", damage)
    archive = Store(tmp_path / "store").checkout("main")
    sound = f"packs/{'b' if damage == 'a' else 'a'}-0.pack"
    for method in ("read", "read_into"):
        monkeypatch.setattr(Directory, method, refusing(getattr(Directory, method), sound))
    with pytest.raises(tg.RemoteError) as caught:
        archive["w"].numpy()
    assert caught.value.rule == "remote.timeout"


def refusing(read: Callable[..., Any], pack: str) -> Callable[..., Any]:
    def refuse(backend: Directory, key: str, *arguments: Any) -> Any:
        if key == pack:
            raise tg.RemoteError("the server did not answer in time", rule="remote.timeout", path=key)
        return read(backend, key, *arguments)

    return refuse
