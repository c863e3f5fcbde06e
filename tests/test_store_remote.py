"""A store in a bucket of a real S3 server: many writers, lost answers, collectors, servers without conditions."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from command_line import run
from counting import proxy_of
from gallery import same
from peers import needs
from seaweed import KEY, SECRET, Seaweed
from stores import same_tensors
from stub_s3 import Handler, answer_with, sends_a_part, stub_s3
from tensorglot.io.objects import address_of
from tensorglot.store import Store
from tensorglot.store.lease import Lease

pytestmark = pytest.mark.remote

RANDOM = np.random.default_rng(3)
TENSORS: dict[str, Any] = {
    "w": RANDOM.standard_normal((700, 1000)).astype(np.float32),
    "b": np.arange(10),
    "ragged": tg.dynd.array([[1, 2], [3]]),
}
PLAIN = {name: TENSORS[name] for name in ("w", "b")}

WRITER = """
import sys
import numpy as np
from tensorglot.store import Store

store, number = Store(sys.argv[1]), int(sys.argv[2])
for i in range(4):
    commit = store.commit("main", {"w": np.full(10, number * 100 + i)}, message=f"{number}-{i}")
    print(commit.cid, flush=True)
"""


@pytest.fixture
def options(s3_server: Seaweed) -> dict[str, Any]:
    return s3_server.options


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    safe = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"s3://tests/stores/{safe}-{RANDOM.integers(1 << 40)}"


@pytest.fixture
def store(url: str, options: dict[str, Any]) -> Store:
    return Store.create(url, options)


def messages(store: Store, ref: str = "main") -> list[str]:
    return [commit.message for commit in store.log(ref)]


class TestVerbs:
    def test_commit_log_checkout_and_open(self, store: Store, url: str, options: dict[str, Any]) -> None:
        first = store.commit("main", TENSORS, message="one")
        changed = {**TENSORS, "w": TENSORS["w"].copy()}
        changed["w"][5] += 1
        store.commit("main", changed, message="two")
        assert messages(store) == ["two", "one"]
        again = Store(url, options)
        with again.checkout("main") as archive:
            assert (archive["w"].numpy() == changed["w"]).all()
            assert (archive["w"][5:7, ::9] == changed["w"][5:7, ::9]).all()
            assert archive["ragged"].tolist() == [[1, 2], [3]]
        loaded = tg.load(f"store://{url}#{first.cid}", names=["w", "b"], storage_options=options)
        assert same(loaded, PLAIN)
        assert [change.tensor for change in again.diff(first.cid, "main").changes] == ["w"]
        report = tg.convert(f"store://{url}#main", f"{url}-converted.dynd", storage_options=options, on_loss="drop")
        assert report.ok
        assert again.check(data=True).ok
        assert again.stats().commits == 2

    def test_refs_and_tags(self, store: Store) -> None:
        store.commit("main", PLAIN)
        store.tag("v1", "main")
        with pytest.raises(tg.InputError, match="exists"):
            store.tag("v1", "main")
        store.delete("v1")
        assert list(store.refs()) == ["main"]
        store.tag("v1", "main")
        assert list(store.refs()) == ["main", "v1"]
        with pytest.raises(tg.TensorNotFound):
            store.checkout("nothing")

    def test_put_and_get(self, store: Store) -> None:
        cid = store.put([[1, 2], [3]])
        assert store.get(cid).tolist() == [[1, 2], [3]]

    def test_a_store_is_made_once_and_only_where_nothing_is(
        self, store: Store, url: str, options: dict[str, Any]
    ) -> None:
        with pytest.raises(tg.InputError, match="a store already"):
            Store.create(url, options)
        tg.save(f"{url}-other/model.bt", PLAIN, storage_options=options)
        with pytest.raises(tg.InputError, match="not empty"):
            Store.create(f"{url}-other", options)
        with pytest.raises(tg.InputError, match="not a store"):
            Store(f"{url}-other", options)
        with pytest.raises(tg.UnsupportedError, match="not written"):
            Store.create("https://host/store")

    def test_credentials_stay_here(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        store.commit("main", PLAIN)
        data = [pickle.dumps(store), pickle.dumps(store.checkout("main")), repr(store).encode()]
        assert all(SECRET.encode() not in each and KEY.encode() not in each for each in data)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        assert (pickle.loads(data[1])["b"].numpy() == PLAIN["b"]).all()

    def test_push_pull_and_bundles(self, store: Store, url: str, options: dict[str, Any], tmp_path: Path) -> None:
        local = Store.create(tmp_path / "local")
        local.commit("main", PLAIN, message="one")
        assert local.push(url, storage_options=options).refs == ("main",)
        store.commit("main", {**PLAIN, "b": np.arange(11)}, message="two")
        assert local.pull(url, storage_options=options).blocks < 10, "only what is new"
        assert messages(local) == ["two", "one"]
        local.commit("main", PLAIN, message="three")
        store.commit("main", PLAIN, message="other three")
        with pytest.raises(tg.InputError, match="not an ancestor"):
            local.push(url, storage_options=options)
        store.bundle(f"{url}.car", "main", storage_options=options)
        fresh = Store.create(tmp_path / "fresh")
        assert fresh.unbundle(f"{url}.car", storage_options=options).message == "other three"
        assert fresh.check(data=True).ok

    def test_the_command_line(
        self, url: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", options["endpoint"])
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        tg.save(tmp_path / "model.zt", PLAIN)
        run("store", "init", url)
        run("store", "commit", url, tmp_path / "model.zt", "-m", "first")
        assert "first" in run("store", "log", url).output
        run("diff", f"store://{url}#main", tmp_path / "model.zt")
        run("store", "checkout", url, "main", tmp_path / "restored.zt")
        assert same(tg.load(tmp_path / "restored.zt"), PLAIN)


class TestManyWriters:
    def test_everything_acknowledged_is_in_the_log(
        self, store: Store, url: str, options: dict[str, Any], s3_server: Seaweed
    ) -> None:
        """Six processes, four commits each to one ref, while a collector runs."""
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, url, str(number)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **s3_server.environment},
            )
            for number in range(6)
        ]
        collected = [Store(url, options).collect(grace=0) for _ in range(3)]
        said = [writer.communicate(timeout=120) for writer in writers]
        assert [writer.returncode for writer in writers] == [0] * 6, [errors for _, errors in said]
        acknowledged = [line for lines, _ in said for line in lines.split()]
        log = Store(url, options).log("main")
        assert sorted(commit.cid for commit in log) == sorted(acknowledged)
        assert len(log) == 24
        assert Store(url, options).check(data=True).ok, collected

    def test_an_answer_that_is_lost_is_no_second_commit(
        self, store: Store, url: str, options: dict[str, Any], s3_server: Seaweed
    ) -> None:
        lost: list[str] = []

        def lose(method: str, path: str) -> bool:
            if method == "PUT" and "/refs/" in path and len(lost) < 2:
                lost.append(path)
                return True
            return False

        with proxy_of(s3_server.endpoint) as proxy:
            through = Store(url, {**options, "endpoint": proxy.endpoint})
            through.commit("other", PLAIN)
            proxy.lose = lose
            through.commit("main", PLAIN, message="one")
            through.commit("main", {"b": PLAIN["b"]}, message="two")
        assert len(lost) == 2
        assert messages(store) == ["two", "one"]

    @pytest.mark.parametrize("honoured", [(), ("if-none-match",), ("if-match",)], ids=str)
    def test_a_server_that_ignores_conditions_is_refused(self, honoured: tuple[str, ...], tmp_path: Path) -> None:
        """Some do, silently. Nothing is written to them, not even a probe stays."""
        needs("obstore")
        local = Store.create(tmp_path / "local")
        local.commit("main", PLAIN)
        with stub_s3(("if-match", "if-none-match")) as (endpoint, objects):
            good = {"endpoint": endpoint, "access_key_id": KEY, "secret_access_key": SECRET, "region": "us-east-1"}
            Store.create("s3://bucket/store", good).commit("main", PLAIN, message="kept")
            complete = dict(objects)
        with stub_s3(honoured) as (endpoint, objects):
            ignoring = {**good, "endpoint": endpoint}
            with pytest.raises(tg.UnsupportedError, match="ignores conditional requests") as caught:
                Store.create("s3://bucket/store", ignoring)
            assert caught.value.rule == "store.conditions"
            assert objects == {}
            objects |= complete
            opened = Store("s3://bucket/store", ignoring)
            assert messages(opened) == ["kept"], "it can be read"
            for change in (
                lambda: opened.commit("main", PLAIN),
                lambda: opened.tag("v1", "main"),
                lambda: opened.delete("main"),
                lambda: opened.collect(),
                lambda: local.push("s3://bucket/store", storage_options=ignoring),
            ):
                with pytest.raises(tg.UnsupportedError, match=r"rule store\.conditions"):
                    change()
            assert {key for key in objects if "/refs/" in key} == {key for key in complete if "/refs/" in key}
            assert objects["store/refs/main"] == complete["store/refs/main"]


OPTIONS = {"access_key_id": KEY, "secret_access_key": SECRET, "region": "us-east-1", "max_retries": 0}
ANSWERS: dict[str, tuple[tuple[str, str], Any, str, Any]] = {
    "part of a ref": (("GET", "/refs/main"), sends_a_part, "checkout", "remote.short"),
    "part of a pack": (("GET", "/packs/"), sends_a_part, "check", "remote.short"),
    "no pack": (("GET", "/packs/"), answer_with(400), "check", "remote.http.400"),
    "no probe": (("PUT", "/probe/"), answer_with(400), "commit", "remote.http.400"),
    "conditions not implemented": (("PUT", "/probe/"), answer_with(501), "commit", "store.conditions"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_wrong_answers_are_errors(case: str, tmp_path: Path) -> None:
    needs("obstore")
    place, way, verb, rule = ANSWERS[case]
    with stub_s3() as (endpoint, objects):
        Store.create("s3://bucket/store", {**OPTIONS, "endpoint": endpoint}).commit("main", PLAIN)
        complete = dict(objects)
    with stub_s3(ways={place: way}) as (endpoint, objects):
        objects |= complete
        store = Store("s3://bucket/store", {**OPTIONS, "endpoint": endpoint})
        if verb == "check":
            found = {problem.rule for problem in store.check().problems}
        else:
            with pytest.raises((tg.TensorglotError, OSError)) as caught:
                store.checkout("main") if verb == "checkout" else store.commit("main", {"n": np.ones(3)})
            found = {getattr(caught.value, "rule", "")}
        assert rule in found
        assert objects == complete


def test_a_store_is_copied_by_any_tool(tmp_path: Path) -> None:
    needs("obstore")
    with stub_s3() as (endpoint, objects):
        store = Store.create("s3://bucket/store", {**OPTIONS, "endpoint": endpoint})
        store.commit("main", PLAIN, message="kept")
        store.commit("gone", PLAIN)
        store.delete("gone")
        store.collect(0)
        for key, data in objects.items():
            path = tmp_path / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    copy = Store(tmp_path / "store")
    assert list(copy.refs()) == ["main"]
    assert copy.check(data=True).ok
    assert copy.collect(0).waiting == 0
    assert [commit.message for commit in copy.log("main")] == ["kept"]
    copy.commit("gone", PLAIN, message="again")
    assert messages(copy, "gone") == ["again"]


def test_a_store_that_was_removed_is_not_written_to() -> None:
    needs("obstore")
    with stub_s3() as (endpoint, objects):
        store = Store.create("s3://bucket/store", {**OPTIONS, "endpoint": endpoint})
        store.commit("main", PLAIN)
        objects.clear()
        with pytest.raises(tg.InputError) as caught:
            store.commit("main", PLAIN)
        assert (caught.value.rule, objects) == ("store.gone", {})


def test_a_pack_that_could_not_be_read_is_read_when_the_server_answers_again() -> None:
    needs("obstore")
    ways = {("GET", "/packs/"): answer_with(400)}
    with stub_s3(ways=ways) as (endpoint, _):
        options = {**OPTIONS, "endpoint": endpoint}
        Store.create("s3://bucket/store", options).commit("main", PLAIN)
        store = Store("s3://bucket/store", options)
        with pytest.raises(tg.TensorglotError):
            store.checkout("main")
        ways.clear()
        assert same_tensors(store.checkout("main"), PLAIN)


class TestCollecting:
    def test_garbage_goes_and_what_is_needed_stays(self, store: Store) -> None:
        store.commit("main", PLAIN)
        store.commit("tmp", {"g": RANDOM.standard_normal(50_000)})
        store.delete("tmp")
        assert store.collect().packs == 0, "the grace period"
        assert store.collect(grace=0).packs == 1
        store.commit("main", {**PLAIN, "b": np.arange(3)})
        assert store.repack(grace=0).packs > 0
        assert store.check(data=True).ok
        assert len(store.log("main")) == 2

    def test_a_running_writer_protects_what_it_has_written(
        self, store: Store, url: str, options: dict[str, Any]
    ) -> None:
        class Slow(dict[str, Any]):
            """Values that are asked for while a collector runs."""

            def values(self) -> Any:
                collected.append(Store(url, options).collect(grace=0))
                return super().values()

        collected: list[Any] = []
        store.commit("old", {"w": PLAIN["w"]})
        store.delete("old")
        store.commit("main", Slow(b=PLAIN["b"], w=PLAIN["w"]))
        assert len(collected) > 0
        assert (store.checkout("main")["w"].numpy() == PLAIN["w"]).all()
        assert store.check(data=True).ok

    def test_one_collector_at_a_time_and_a_dead_one_is_replaced(
        self, store: Store, url: str, s3_server: Seaweed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.commit("main", PLAIN)
        key = url.removeprefix("s3://tests/")
        needs("obstore").put(s3_server.client(), f"{key}/collect.lock", b"another process")
        needs("obstore").put(s3_server.client(), f"{key}/writers/0123456789abcdef", b"")
        with pytest.raises(tg.InputError, match="another process runs collect"):
            store.collect()
        monkeypatch.setattr("tensorglot.store.remote.LEASE_SECONDS", 1.0)
        time.sleep(2.1)
        store.collect(grace=0)
        left = s3_server.keys(key)
        assert not any("writers" in found or found.endswith(".lock") for found in left)

    def test_a_lock_that_is_removed_or_replaced_meanwhile(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another collector ends, or replaces a dead one, between two requests of this one."""
        needs("obstore")
        for stale in (False, True):
            asked: list[str] = []

            def meanwhile(handler: Handler, stale: bool = stale, asked: list[str] = asked) -> None:
                asked.append(handler.command)
                old = handler.objects[handler.key]
                handler.objects[handler.key] = b"the next one"
                if stale:
                    handler.answer(200, old, ETag='"the old one"')
                else:
                    del handler.objects[handler.key]
                    handler.answer(404)
                if len(asked) == 2 or not stale:
                    handler.ways.clear()

            monkeypatch.setattr("tensorglot.store.remote.LEASE_SECONDS", -1.0 if stale else 1e9)
            with stub_s3(ways={("GET", "collect.lock"): meanwhile}) as (endpoint, objects):
                store = Store.create("s3://bucket/store", {**OPTIONS, "endpoint": endpoint})
                store.commit("main", PLAIN)
                objects["store/collect.lock"] = b"another process"
                assert store.collect().packs == 0
                assert len(asked) == 1 + stale
                assert "store/collect.lock" not in objects

    def test_a_writer_that_ends_while_writers_are_listed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        needs("obstore")
        monkeypatch.setattr("tensorglot.store.remote.LEASE_SECONDS", 1e9)
        with stub_s3(ways={("GET", "/writers/0123456789abcdef"): answer_with(404)}) as (endpoint, objects):
            store = Store.create("s3://bucket/store", {**OPTIONS, "endpoint": endpoint})
            store.commit("old", PLAIN)
            store.delete("old")
            objects["store/writers/0123456789abcdef"] = b""
            assert store.collect(grace=0).packs == 1

    def test_an_announcement_is_renewed_until_its_writer_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        needs("obstore")
        monkeypatch.setattr("tensorglot.store.lease.RENEW_SECONDS", 0.01)
        renewed = threading.Event()

        def count(handler: Handler) -> None:
            handler.objects[handler.key] = handler.objects.get(handler.key, b"") + b"."
            if len(handler.objects[handler.key]) == 3:
                renewed.set()
            handler.answer(200, ETag='"x"')

        with stub_s3(ways={("PUT", "/writers/"): count}) as (endpoint, objects):
            address = address_of("s3://bucket/writers/one", {**OPTIONS, "endpoint": endpoint})
            with Lease("one", address).held() as lease:
                assert renewed.wait(60)
            assert objects == {}
            lease.note("too late")
            assert objects == {}

    def test_a_writer_that_was_silent_for_long_stops(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """A machine that slept: what it has written may have been collected."""
        now = time.monotonic
        store.commit("main", PLAIN, message="before")

        class Sleeping(dict[str, Any]):
            def items(self) -> Any:
                monkeypatch.setattr("tensorglot.store.lease.time.monotonic", lambda: now() + 3600)
                return super().items()

        with pytest.raises(tg.RemoteError, match="renew"):
            store.commit("main", Sleeping(b=np.arange(4), ragged=TENSORS["ragged"]))
        monkeypatch.undo()
        assert messages(store) == ["before"]
        assert store.check(data=True).ok


def test_damage_is_marked_and_healed_from_a_copy(
    store: Store, url: str, options: dict[str, Any], s3_server: Seaweed, tmp_path: Path
) -> None:
    store.commit("main", PLAIN)
    Store.create(tmp_path / "copy")
    store.push(tmp_path / "copy")
    folder = url.removeprefix("s3://tests/") + "/packs/"
    (pack,) = s3_server.keys(folder)
    data = bytearray(needs("obstore").get(s3_server.client(), pack).bytes())
    data[5000] ^= 1
    needs("obstore").put(s3_server.client(), pack, bytes(data))
    assert not Store(url, options).check(data=True).ok
    assert [key for key in s3_server.keys(folder) if key.endswith(".damaged")]
    assert Store(url, options).pull(tmp_path / "copy").blocks > 0
    assert same(tg.load(f"store://{url}#main", storage_options=options), PLAIN)
    Store(url, options).repack(0)
    assert Store(url, options).check(data=True).ok
    assert not [key for key in s3_server.keys(folder) if key.endswith(".damaged")]


def test_damage_is_found(store: Store, url: str, options: dict[str, Any], s3_server: Seaweed) -> None:
    store.commit("main", PLAIN)
    (pack,) = s3_server.keys(url.removeprefix("s3://tests/") + "/packs/")
    data = bytearray(needs("obstore").get(s3_server.client(), pack).bytes())
    data[1000] ^= 1
    needs("obstore").put(s3_server.client(), pack, bytes(data))
    assert not Store(url, options).check(data=True).ok
    with pytest.raises(tg.IntegrityError):
        tg.load(f"store://{url}#main", storage_options=options)
    needs("obstore").put(s3_server.client(), pack, bytes(data[:3000]))
    assert not Store(url, options).check().ok
    needs("obstore").put(s3_server.client(), pack, b"")
    assert not Store(url, options).check().ok
    needs("obstore").put(s3_server.client(), url.removeprefix("s3://tests/") + "/refs/main", bytes(2 << 20))
    with pytest.raises(tg.FormatError, match=r"rule store\.object"):
        Store(url, options).checkout("main")
