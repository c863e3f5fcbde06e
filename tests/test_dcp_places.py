"""Distributed checkpoints in a bucket and in stores: two processes save and reshard, and what is there afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from arrays import raw
from command_line import run
from dcp_ranks import launch
from peers import needs
from seaweed import Seaweed
from tensorglot.store import Store

pytestmark = [pytest.mark.remote, pytest.mark.filterwarnings("ignore")]

BUCKET = "s3://tests/dcp/step-1"
PLACES = ("bucket", "store", "store in a bucket")
VALUES = {"step": 7, "lr": 1e-3, "name": "é", "nothing": None, "betas": [0.9, 0.999], "big": 2**70, "raw": b"\0\xff"}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, s3_server: Seaweed) -> dict[str, str]:
    """Each place as two ranks have left it: the state saved twice, loaded with other placements and compared."""
    needs("torch")
    folder = tmp_path_factory.mktemp("ranks")
    Store.create(folder / "store")
    Store.create("s3://tests/dcp/store", s3_server.options)
    urls = (BUCKET, f"store://{folder / 'store'}#main", "store://s3://tests/dcp/store#main")
    launch(folder, 2, urls, s3_server.environment)
    return {**dict(zip(PLACES, urls, strict=True)), "folder": str(folder)}


@pytest.fixture
def environment(s3_server: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("place", PLACES)
class TestPlaces:
    def test_every_verb_sees_whole_tensors(self, place: str, places: dict[str, str], tmp_path: Path) -> None:
        torch, url = needs("torch"), places[place]
        state = torch.load(Path(places["folder"]) / "full.pt", weights_only=True)
        full = {f"{group}.{name}": value for group in ("model", "extra") for name, value in state[group].items()}
        loaded = tg.load(url, framework="torch")
        assert set(loaded) == set(full)
        for name, tensor in full.items():
            one, two = (np.asarray(found.reshape(-1).view(torch.uint8)) for found in (loaded[name], tensor))
            assert raw(one) == raw(two), name
        with tg.open(url) as archive:
            assert archive.metadata == {f"values.{name}": value for name, value in VALUES.items()}
            assert archive.format == "dcp@json"
            assert (archive["model.mesh"][2:5, ::3] == np.asarray(full["model.mesh"])[2:5, ::3]).all()
        report = tg.verify(url, deep=True)
        assert report.ok
        if place != "bucket":
            assert (report.checksums, report.unverified) == (len(full), ())
            assert "every block is compared with its hash" in run("info", url).stdout
        tg.convert(url, tmp_path / "merged.safetensors", on_loss="drop")
        assert tg.diff(url, tmp_path / "merged.safetensors").equal == len(full)

    def test_nothing_but_the_last_save_is_left(self, place: str, places: dict[str, str], s3_server: Seaweed) -> None:
        """It was saved twice. In a store that is two commits, the second of no new tensor."""
        if place == "bucket":
            found = {key.rpartition("/")[2] for key in s3_server.keys(BUCKET.removeprefix("s3://tests/"))}
            index = needs("obstore").get(s3_server.client(), "dcp/step-1/dcp.json").bytes()
            assert found == {"dcp.json", *json.loads(bytes(index))["files"]}
            return
        store = Store(places[place].removeprefix("store://").removesuffix("#main"))
        assert [commit.message for commit in store.log("main")] == ["distributed checkpoint of 2 ranks"] * 2
        assert store.check(data=True).ok
        assert store.diff(store.log("main")[1].cid, "main").same
        assert store.stats().stored_nbytes < 1.2 * store.stats().logical_nbytes / 2 + 20_000


class TestStaging:
    """What ranks do, with values of NumPy."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return Store.create(tmp_path / "store")

    def test_several_stages_become_one_commit(self, store: Store) -> None:
        staged = store.stage({"a": np.arange(3), "r": tg.dynd.array([[1], [2, 3]])})
        staged |= store.stage({"b": np.ones((700, 500))})
        assert store.refs() == {}
        commit = store.commit("main", {"c": np.zeros(2)}, staged=staged, message="together")
        assert list(store.checkout(commit.cid)) == ["a", "b", "c", "r"]
        assert commit.cid == store.log("main")[0].cid
        with store.checkout("main") as archive:
            whole = tg.identify({name: archive[name] for name in archive})
        assert whole.cid == tg.identify(store.checkout("main")).cid
        assert store.check(data=True).ok

    def test_a_stage_of_a_ref_is_stored_as_differences(self, store: Store) -> None:
        weights = np.random.default_rng(0).standard_normal((1000, 1000))
        store.commit("main", {"w": weights})
        before = store.stats().stored_nbytes
        weights[3] += 1
        store.commit("main", {}, staged=store.stage({"w": weights}, ref="main"))
        assert store.stats().stored_nbytes - before < 0.1 * weights.nbytes

    def test_what_was_collected_is_refused(self, store: Store) -> None:
        staged = store.stage({"w": np.random.default_rng(0).random(100_000)})
        store.commit("main", {"b": np.ones(1)})
        store.collect(grace=0)
        with pytest.raises(tg.InputError) as caught:
            store.commit("main", {}, staged=staged)
        assert caught.value.rule == "store.incomplete"
        assert len(store.log("main")) == 1
        assert store.check(data=True).ok

    @pytest.mark.parametrize(
        ("staged", "rule"),
        [({"w": "text"}, "cid"), ({"b": None}, "cid"), (["w"], "store.staged")],
    )
    def test_what_is_no_stage(self, staged: Any, rule: str, store: Store) -> None:
        with pytest.raises(tg.TensorglotError, match=r".") as caught:
            store.commit("main", {"x": np.ones(1)}, staged=staged)
        assert (caught.value.rule or "").startswith(rule)
        assert store.refs() == {}

    def test_names_and_links_must_fit(self, store: Store) -> None:
        first = store.commit("main", {"w": np.ones(3)})
        with pytest.raises(tg.InputError, match="both staged and given"):
            store.commit("main", {"w": np.ones(3)}, staged=store.stage({"w": np.ones(3)}))
        with pytest.raises(tg.TensorglotError, match=r"rule store\.tensor"):
            store.commit("main", {}, staged={"w": first.cid})  # a commit is not a tensor
        assert len(store.log("main")) == 1


class TestHostileCommits:
    """Commits that say that they are checkpoints."""

    @pytest.mark.parametrize(
        ("tensors", "rule"),
        [
            ({"w": np.ones(3)}, "store.dcp"),
            ({"dcp.json": np.frombuffer(b"{", np.uint8)}, "dcp.json"),
            ({"dcp.json": np.frombuffer(b'{"tensorglot": "dcp"}', np.uint8)}, "dcp.index"),
        ],
    )
    def test_refused(self, tensors: Any, rule: str, tmp_path: Path) -> None:
        with Store.create(tmp_path / "store") as store:
            store.commit("main", tensors, metadata={"tensorglot": "dcp"})
            with pytest.raises(tg.FormatError) as caught:
                store.checkout("main")
            assert (caught.value.rule or "").startswith(rule)

    def test_a_box_that_is_absent(self, tmp_path: Path) -> None:
        entry = {"dtype": "float32", "itemsize": 4, "shape": [2], "boxes": [[0, "w", [0], [2]]]}
        index = {"tensorglot": "dcp", "version": 1, "files": ["00000"], "tensors": {"w": entry}}
        text = json.dumps({**index, "values": {}, "paths": {}}).encode()
        with Store.create(tmp_path / "store") as store:
            for others, rule in (({}, "dcp.box.absent"), ({"00000/w": np.ones(3)}, "dcp.box.shape")):
                values = {"dcp.json": np.frombuffer(text, np.uint8), **others}
                store.commit("main", values, metadata={"tensorglot": "dcp"})
                with store.checkout("main") as archive, pytest.raises(tg.FormatError) as caught:
                    archive["w"].numpy()
                assert caught.value.rule == rule

    def test_damage_is_found(self, tmp_path: Path) -> None:
        """By verify, and by reading: every block is compared with its hash."""
        array = np.random.default_rng(0).random(50_000)
        entry = {"dtype": "float64", "itemsize": 8, "shape": [50_000], "boxes": [[0, "w", [0], [50_000]]]}
        index = {"tensorglot": "dcp", "version": 1, "files": ["00000"], "tensors": {"w": entry}}
        text = json.dumps({**index, "values": {}, "paths": {}}).encode()
        with Store.create(tmp_path / "store") as store:
            values = {"dcp.json": np.frombuffer(text, np.uint8), "00000/w": array}
            store.commit("main", values, metadata={"tensorglot": "dcp"})
        url = f"store://{tmp_path / 'store'}#main"
        assert (tg.load(url)["w"] == array).all()
        assert tg.verify(url).ok
        (pack,) = (tmp_path / "store" / "packs").iterdir()
        data = bytearray(pack.read_bytes())
        data[10_000] ^= 1
        pack.chmod(0o600)
        pack.write_bytes(data)
        assert [problem.tensor for problem in tg.verify(url).problems] == ["w"]
        with pytest.raises(tg.IntegrityError):
            tg.load(url)


def test_a_store_needs_a_ref(tmp_path: Path) -> None:
    needs("torch")
    from tensorglot.bridges.dcp import Writer

    with pytest.raises(tg.InputError, match="name the ref"):
        Writer(f"store://{tmp_path}")
    with pytest.raises(tg.UnsupportedError, match="not written"):
        Writer("https://host/step-1")
