"""Editing an object at a URL: it is replaced as a whole, and only if it is still the one that was read."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from command_line import run
from gallery import same
from http_servers import serve
from peers import needs
from seaweed import Seaweed
from tensorglot.io.objects import Address

pytestmark = pytest.mark.remote

RANDOM = np.random.default_rng(31)
TENSORS: dict[str, Any] = {
    "large": RANDOM.integers(0, 256, 9 << 20, np.uint8),
    "w": RANDOM.standard_normal((30, 20)).astype(np.float32),
    "old": np.arange(5),
}
FORMATS = ["bintensors", "safetensors", "ztensor@0.1", "ztensor@2", "npz"]


@pytest.fixture
def base(request: pytest.FixtureRequest) -> str:
    safe = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"s3://tests/{request.module.__name__}/{safe}"


@pytest.mark.parametrize("format", FORMATS)
def test_the_object_is_what_a_file_would_be(
    format: str, base: str, s3_server: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, path = f"{base}/model", tmp_path / "model"
    for key, value in s3_server.environment.items():
        monkeypatch.setenv(key, value)
    for place in (url, path):
        tg.save(place, TENSORS, format=format, metadata={"draft": "yes"})
    for change in (
        {"metadata": {"step": "11", "note": "x"}, "remove": ["draft"]},
        {"replace": {"w": np.ones(4)}, "drop": ["old"], "add": {"new": np.arange(7, dtype=np.int16)}},
        {"metadata": {"step": "12"}, "drop": ["new"]},
    ):
        one, other = tg.edit(path, **change), tg.edit(url, **change)  # type: ignore[arg-type]
        assert one == other
        stored = bytes(needs("obstore").get(s3_server.client(), url.removeprefix("s3://tests/")).bytes())
        assert stored == path.read_bytes()


def test_options_and_the_command(base: str, s3_server: Seaweed, tmp_path: Path) -> None:
    url, options = f"{base}/model.zt", s3_server.options
    tg.save(url, TENSORS, storage_options=options)
    assert tg.edit(url, {"step": "1"}, storage_options=options).changed
    assert not tg.edit(url, {"step": "1"}, storage_options=options).changed
    names = ("endpoint", "access_key_id", "secret_access_key", "region")
    given = [word for name in names for word in ("--storage-option", f"{name}={options[name]}")]
    run("edit", url, "--set", "step=2", "--drop", "old", *given)
    with tg.open(url, storage_options=options) as archive:
        assert archive.metadata == {"step": "2"}
        assert same(tg.load(archive), {name: TENSORS[name] for name in ("large", "w")})
    tg.save(tmp_path / "local.zt", TENSORS)
    with pytest.raises(tg.InputError, match="storage_options need a URL"):
        tg.edit(tmp_path / "local.zt", {"step": "1"}, storage_options=options)


@pytest.mark.parametrize("format", FORMATS)
def test_a_change_meanwhile_is_kept(format: str, base: str, s3_server: Seaweed) -> None:
    """Another process replaces the object while it is downloaded, or before the new one is completed."""
    url, options = f"{base}/model", s3_server.options
    other = {"theirs": np.arange(3)}
    for moment in (0.1, 0.9):
        tg.save(url, TENSORS, format=format, storage_options=options)
        with pytest.raises(tg.InputError) as caught:
            tg.edit(
                url, drop=["old"], storage_options=options,
                progress=_once(moment, lambda: tg.save(url, other, format=format, storage_options=options)),
            )  # fmt: skip
        assert caught.value.rule == "source.changed"
        assert same(tg.load(url, storage_options=options), other)


REPLACING: dict[str, Callable[[str, Any, Any], object]] = {
    "edit": lambda url, options, _: tg.edit(url, drop=["old"], storage_options=options),
    "convert": lambda url, options, _: tg.convert(url, url, select="w", storage_options=options),
    "executor": lambda url, options, executor: tg.convert(
        url, url, select="w", storage_options=options, executor=executor
    ),
}


@pytest.mark.parametrize("nbytes", [1000, 40 << 20])
@pytest.mark.parametrize("way", REPLACING)
def test_a_change_in_the_last_moment_is_kept(
    nbytes: int, way: str, base: str, s3_server: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last comparison: the server compares once more, while it replaces the object."""
    url, options, other = f"{base}/model.safetensors", s3_server.options, {"theirs": np.arange(3)}
    call, heads = Address.call, list[str]()

    def change_after_head(address: Address, function: str, *given: Any, **named: Any) -> Any:
        found = call(address, function, *given, **named)
        if function == "head":
            heads.append(found["e_tag"])
            tg.save(url, other, storage_options=options)
        return found

    tg.save(url, {"w": np.ones(nbytes, np.uint8), "old": np.ones(2)}, storage_options=options)
    monkeypatch.setattr(Address, "call", change_after_head)
    with ThreadPoolExecutor(2) as executor, pytest.raises(tg.InputError) as caught:
        REPLACING[way](url, options, executor)
    assert (caught.value.rule, len(heads)) == ("source.changed", 1)
    assert same(tg.load(url, storage_options=options), other)
    assert not s3_server.uploads()


def test_a_large_object_is_replaced_in_parts(base: str, s3_server: Seaweed) -> None:
    url, options = f"{base}/model.zt", s3_server.options
    large = RANDOM.integers(0, 256, 70_000_001, np.uint8)
    tg.save(url, {"large": large, "old": np.ones(2)}, storage_options=options)
    assert tg.edit(url, drop=["old"], storage_options=options).changed
    assert same(tg.load(url, storage_options=options), {"large": large})
    assert not s3_server.uploads()


def _once(share: float, action: Callable[[], object]) -> Callable[[int, int], None]:
    done: list[object] = []

    def report(now: int, total: int) -> None:
        if not done and now >= share * total:
            done.append(action())

    return report


def test_refused_before_anything_is_read(base: str, s3_server: Seaweed) -> None:
    url, options = f"{base}/model.safetensors", s3_server.options
    tg.save(url, TENSORS, storage_options=options)
    with pytest.raises(tg.UnsupportedError, match="in place") as caught:
        tg.edit(url, {"a": "b"}, in_place=True, storage_options=options)
    assert caught.value.rule == "edit.in_place"
    with pytest.raises(tg.UnsupportedError) as caught:
        tg.edit("store://run#main", {"a": "b"})
    assert caught.value.rule == "edit.source"
    with serve() as site:
        site.files["/model.bt"] = tg.dumps(TENSORS, format="bintensors")
        with pytest.raises(tg.UnsupportedError) as caught:
            tg.edit(f"{site.url}/model.bt", {"a": "b"})
        assert caught.value.rule == "url.target"
        assert not site.requests
    tg.convert(TENSORS, url, sums=True, storage_options=options)
    for change in ({"metadata": {"a": "b"}}, {"drop": ["old"]}):
        with pytest.raises(tg.UnsupportedError) as caught:
            tg.edit(url, storage_options=options, **change)  # type: ignore[arg-type]
        assert caught.value.rule == "edit.sidecar"
    assert tg.verify(url, storage_options=options).ok
