"""A store against a dict: any sequence of commits, tags, deletions, collections, repackings, crashes and flipped bits.

A crash is the death of the process at a file operation: from there on nothing reaches the
disk, and its locks are released. Afterwards a ref has its old commit or the new one, and
everything that was acknowledged is there. Two verbs at once: at a file operation of one,
another handle does the other from beginning to end. TENSORGLOT_STORE_EXAMPLES=1000 makes
it long.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import tensorglot as tg
from faults import OPERATIONS
from figures import seen
from stores import assert_clean, flip, packs, same_tensors, stray_files
from tensorglot.io import sink
from tensorglot.store import Store, backend

EXAMPLES = int(os.environ.get("TENSORGLOT_STORE_EXAMPLES", "12"))
DAY = 86_400.0
REFS = st.sampled_from(["main", "a/b"])
TAGS = st.sampled_from(["v1", "v2"])
STRIKES = st.integers(1, 60)
"""File operations of a verb; most have fewer."""
MEETINGS = st.integers(1, 24)
"""Operations of a verb that another one can notice."""


class Crash(BaseException):
    """The process is dead."""


class DyingOs:
    """Stands in for `os`: at one operation, before or after it is done, the process dies."""

    def __init__(self, strike: int, *, after: bool) -> None:
        self.strike, self.after = strike, after
        self.count, self.dead = 0, False
        self.open_fds: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in OPERATIONS and name != "makedirs":
            return real

        def operation(*arguments: Any, **options: Any) -> Any:
            if name == "close":
                self.open_fds.discard(arguments[0])
                return real(*arguments)
            self.count += 1
            if self.dead or (self.count == self.strike and not self.after):
                self.dead = True
                raise Crash
            result = real(*arguments, **options)
            if name == "open":
                self.open_fds.add(result)
            if self.count == self.strike:
                self.dead = True
                raise Crash
            return result

        return operation


@contextlib.contextmanager
def dying(strike: int, *, after: bool) -> Iterator[DyingOs]:
    stand_in = DyingOs(strike, after=after)
    with pytest.MonkeyPatch.context() as patched, contextlib.suppress(Crash):
        patched.setattr(sink, "os", stand_in)
        patched.setattr(backend, "os", stand_in)
        yield stand_in
    for fd in stand_in.open_fds:
        os.close(fd)


class InterruptedOs:
    """Stands in for `os`: at one operation, or the first after it outside the lock, somebody else acts.

    Only what reads or changes names counts: between two of these nobody sees a difference.
    """

    COUNTED = frozenset({"scandir", "open", "link", "rename", "unlink"})

    def __init__(self, strike: int, act: Callable[[], None]) -> None:
        self.strike, self.act = strike, act
        self.count = 0
        self.lock: int | None = None
        self.acted = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self.COUNTED | {"close"}:
            return real

        def operation(*arguments: Any, **options: Any) -> Any:
            self.count += name in self.COUNTED
            if self.count >= self.strike and self.lock is None and not self.acted:
                self.acted = True
                self.act()
            result = real(*arguments, **options)
            if name == "open" and str(arguments[0]).endswith("/lock"):
                self.lock = result
            elif name == "close" and arguments[0] == self.lock:
                self.lock = None
            return result

        return operation


@contextlib.contextmanager
def interrupted(strike: int, act: Callable[[], None]) -> Iterator[None]:
    stand_in = InterruptedOs(strike, act)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sink, "os", stand_in)
        patched.setattr(backend, "os", stand_in)
        yield
    if not stand_in.acted:
        act()


def version(kind: int, seed: int, names: set[str]) -> dict[str, Any]:
    """Versions of a kind are steps of each other, so that they are stored as deltas. Not every one has every tensor."""
    random = np.random.default_rng(kind)
    big = random.normal(0, 1, 6000).astype(np.float32)
    for i in range(seed):
        big[i::700] += 1
    shared = np.arange(kind, 3000, dtype=np.int32)
    tensors = {"big": big, "shared": shared, "small": np.int64(seed), "noise": random.integers(0, 99, 50 + seed)}
    return {name: tensors[name] for name in names}


NAMES = st.sampled_from(
    [{"big"}, {"big", "small"}, {"small"}, {"noise", "shared"}, {"big", "shared", "small", "noise"}]
)
FRESH = st.integers(1, 10**6)
"""A kind that no commit has, nearly always."""
VERSIONS = st.builds(version, st.just(0), st.integers(0, 2), NAMES)


class StoreMachine(RuleBasedStateMachine):
    """`refs` is what the store's refs must be, `commits` what each commit must hold."""

    @initialize()
    def create(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="store-machine-"))
        self.root = self.folder / "store"
        self.store = Store.create(self.root)
        self.other = Store(self.root)
        self.refs: dict[str, str] = {}
        self.commits: dict[str, tuple[dict[str, Any], str | None]] = {}

    # Verbs

    @rule(ref=REFS, tensors=VERSIONS)
    def commit(self, ref: str, tensors: dict[str, Any]) -> None:
        made = self.store.commit(ref, tensors)
        assert made.parents == ((self.refs[ref],) if ref in self.refs else ())
        self._acknowledge(ref, made.cid, tensors)

    def _acknowledge(self, ref: str, cid: str, tensors: dict[str, Any]) -> None:
        self.commits[cid] = tensors, self.refs.get(ref)
        self.refs[ref] = cid

    @rule(ref=REFS, kind=FRESH)
    def keep_a_part(self, ref: str, kind: int) -> None:
        """Of two versions that are deleted another ref keeps a tensor that is stored as a delta: the base stays."""
        for seed in range(2):
            self.commit("left", version(kind, seed, {"big", "noise"}))
        self.commit(ref, version(kind, 1, {"big"}))
        self.delete("left")
        self.collect(0)
        self.check()

    @rule(ref=REFS, which=st.integers(0, 99))
    def return_to_a_version(self, ref: str, which: int) -> None:
        """What was committed before, and may have been collected meanwhile."""
        if self.commits:
            self.commit(ref, list(self.commits.values())[which % len(self.commits)][0])

    @rule(name=TAGS, ref=REFS)
    def tag(self, name: str, ref: str) -> None:
        if ref not in self.refs or name in self.refs:
            with pytest.raises((tg.TensorNotFound, tg.InputError)):
                self.store.tag(name, ref)
        else:
            self.store.tag(name, ref)
            self.refs[name] = self.refs[ref]

    @rule(ref=REFS | TAGS)
    def delete(self, ref: str) -> None:
        if ref in self.refs:
            self.store.delete(ref)
            del self.refs[ref]
        else:
            with pytest.raises(tg.TensorNotFound):
                self.store.delete(ref)

    @rule(grace=st.sampled_from([0, 0, DAY]))
    def collect(self, grace: float) -> None:
        self.store.collect(grace)
        if not self.refs and grace == 0:
            self.store.collect(grace)
            assert packs(self.root) == []

    @rule(grace=st.sampled_from([0, 0, DAY]))
    def repack(self, grace: float) -> None:
        self.store.repack(grace)

    @rule()
    def take_the_other_handle(self) -> None:
        """Which has not seen what happened meanwhile."""
        self.store, self.other = self.other, self.store

    @rule()
    def open_again(self) -> None:
        self.store = Store(self.root)

    # Two at once

    @rule(strike=MEETINGS, ref=REFS, kind=FRESH, repack=st.booleans(), condemned=st.booleans())
    def collect_during_commit(self, strike: int, ref: str, kind: int, repack: bool, condemned: bool) -> None:
        """What is committed is there already, as garbage that a collector has or has not seen."""
        tensors = self._leave(kind, condemned)
        with interrupted(strike, lambda: self._collect(self.other, repack)):
            self.commit(ref, tensors)
        self.check()
        self._collect(self.other, repack)
        self.check()

    @rule(strike=MEETINGS, ref=REFS, kind=FRESH, repack=st.booleans(), condemned=st.booleans())
    def commit_during_collect(self, strike: int, ref: str, kind: int, repack: bool, condemned: bool) -> None:
        tensors = self._leave(kind, condemned)
        with interrupted(strike, lambda: self.commit(ref, tensors)):
            self._collect(self.other, repack)
        self.check()

    def _leave(self, kind: int, condemned: bool) -> dict[str, Any]:
        tensors = version(kind, 0, {"big", "small"})
        self.commit("left", tensors)
        self.delete("left")
        if condemned:
            self.store.collect(DAY)
        return tensors

    @rule(strike=MEETINGS, ref=REFS, one=VERSIONS, two=VERSIONS)
    def commit_during_commit(self, strike: int, ref: str, one: dict[str, Any], two: dict[str, Any]) -> None:
        """Of one ref: the second to arrive has the first as its parent."""
        before = self.refs.get(ref)
        made = []
        with interrupted(strike, lambda: made.append((self.other.commit(ref, two), two))):
            made.append((self.store.commit(ref, one), one))
        made.sort(key=lambda pair: pair[0].cid == self.store.refs()[ref])
        (first, _), (second, _) = made
        assert first.parents == ((before,) if before else ())
        assert second.parents == (first.cid,)
        for commit, tensors in made:
            self._acknowledge(ref, commit.cid, tensors)
        self.check()

    @staticmethod
    def _collect(store: Store, repack: bool) -> None:
        (store.repack if repack else store.collect)(0)

    # Accidents

    @rule(strike=STRIKES, after=st.booleans(), ref=REFS, tensors=VERSIONS)
    def crash_in_commit(self, strike: int, after: bool, ref: str, tensors: dict[str, Any]) -> None:
        made = None
        with dying(strike, after=after):
            made = self.store.commit(ref, tensors)
        self._reopen()
        if made is not None:
            self._acknowledge(ref, made.cid, tensors)
            return
        now = self.store.refs().get(ref)
        if now != self.refs.get(ref):  # it died between the swap and the end
            assert now is not None
            assert self.store.show(now).parents == ((self.refs[ref],) if ref in self.refs else ())
            self._acknowledge(ref, now, tensors)

    @rule(strike=STRIKES, after=st.booleans(), repack=st.booleans())
    def crash_in_collect(self, strike: int, after: bool, repack: bool) -> None:
        with dying(strike, after=after):
            self._collect(self.store, repack)
        self._reopen()

    @rule(strike=st.integers(1, 30), after=st.booleans(), ref=REFS | TAGS)
    def crash_in_delete(self, strike: int, after: bool, ref: str) -> None:
        if ref in self.refs:
            with dying(strike, after=after):
                self.store.delete(ref)
            self._reopen()
            if ref not in self.store.refs():
                del self.refs[ref]

    def _reopen(self) -> None:
        self.store, self.other = Store(self.root), Store(self.root)

    @rule(which=st.integers(0, 99), where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), heal=st.booleans())
    def flip_a_bit(self, which: int, where: float, bit: int, heal: bool) -> None:
        """Never a wrong value: what is damaged is named, and what is not can be read. A copy heals the store."""
        found_packs = packs(self.root)
        if not found_packs:
            return
        pack = found_packs[which % len(found_packs)]
        offset = int(where * pack.stat().st_size)
        copy = self.folder / "copy"
        shutil.copytree(self.root, copy)
        flip(pack, offset, bit)
        damaged = Store(self.root)
        found = damaged.check(data=True)
        for cid in self._reachable():
            try:
                assert same_tensors(damaged.checkout(cid), self.commits[cid][0])
            except tg.TensorglotError:
                assert not found.ok
        if heal:
            self._heal(copy)
        else:
            flip(pack, offset, bit)
        shutil.rmtree(copy)
        self._reopen()
        self.check()

    def _heal(self, copy: Path) -> None:
        """What no ref leads to may be damaged, too; repack removes it."""
        Store(self.root).pull(copy)
        Store(self.root).repack(0)

    # What must hold

    def _reachable(self) -> set[str]:
        found: set[str] = set()
        for cid in self.refs.values():
            at: str | None = cid
            while at is not None and at not in found:
                found.add(at)
                at = self.commits[at][1]
        return found

    @rule()
    def check(self) -> None:
        assert_clean(self.store)
        for cid in self._reachable():
            assert same_tensors(self.store.checkout(cid), self.commits[cid][0])

    @invariant()
    def refs_are_those_of_the_dict(self) -> None:
        if hasattr(self, "refs"):
            assert self.store.refs() == self.refs
            assert self.other.refs() == self.refs

    def teardown(self) -> None:
        if hasattr(self, "refs"):
            self._reopen()
            self.check()
            assert self.store.stats().commits == len(self._reachable())
            self.store.collect(0)
            assert stray_files(self.root) == []
            self.check()
            shutil.rmtree(self.folder)
            seen("examples of the state machine")


TestStore: Callable[..., Any] = StoreMachine.TestCase
TestStore.settings = settings(  # type: ignore[attr-defined]
    max_examples=EXAMPLES,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate] if os.environ.get("TENSORGLOT_STORE_SHRINK") == "no" else list(Phase),
)
