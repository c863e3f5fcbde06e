"""`tensorglot store`: what each command prints, with and without --json, and with which code it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import tensorglot as tg
from command_line import run
from stores import flip, packs, step, tensors
from tensorglot.cli.store import command
from tensorglot.store import Store
from terminals import on_terminal


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store `run` in the working directory, with a file of tensors beside it."""
    monkeypatch.chdir(tmp_path)
    run("store", "init", "run")
    tg.save("a.safetensors", tensors(1), metadata={"step": "1"})
    tg.save("b.zt", step(tensors(1), 2))
    return tmp_path / "run"


@pytest.fixture
def filled(root: Path) -> Path:
    run("store", "commit", "run", "a.safetensors", "-m", "first")
    run("store", "commit", "run", "b.zt", "-m", "second")
    run("store", "tag", "run", "v1", Store(root).log("main")[1].cid)
    return root


def said(*args: str | Path, code: int = 0) -> Any:
    return json.loads(run("store", *args, "--json", code=code).stdout)


# A walk


def test_init(tmp_path: Path) -> None:
    store = tmp_path / "s"
    assert "next: tensorglot store commit" in run("store", "init", store).stdout
    assert Store(store).refs() == {}
    assert "there is a store already" in run("store", "init", store, code=2).stderr
    assert said("init", tmp_path / "t") == {"store": str(tmp_path / "t")}


def test_commit(root: Path) -> None:
    printed = run("store", "commit", "run", "a.safetensors", "-m", "first").stdout
    assert printed == f"{Store(root).show('main').cid}\n"
    made = said("commit", "run", "b.zt", "--ref", "side", "--metadata", "k=v", "--metadata", "k2=v=2")
    assert made["metadata"] == {"k": "v", "k2": "v=2"}
    assert made["cid"] == Store(root).refs()["side"]
    made = said("commit", "run", "b.zt", "--ref", "other", "--parent", "main")
    assert made["parents"] == [Store(root).refs()["main"]]
    assert "takes KEY=VALUE" in run("store", "commit", "run", "b.zt", "--metadata", "x", code=2).stderr
    run("store", "commit", "run", "-", stdin=Path("a.safetensors").read_bytes())
    assert Store(root).show("main").tensors == Store(root).log("main")[1].tensors


def test_log(filled: Path) -> None:
    lines = run("store", "log", "run", "main").stdout.splitlines()
    assert lines[0].split() == ["commit", "time", "changed", "stored", "share", "refs", "message"]
    assert [line.split()[-1] for line in lines[1:3]] == ["second", "first"]
    assert lines[1].startswith(Store(filled).show("main").cid[:12])
    assert re.search(r" 1/3 ", lines[1])
    share = float(re.search(r"([\d.]+)%", lines[1])[1])  # type: ignore[index]
    assert 0 < share < 3
    assert lines[3].startswith("2 commits, 2.3 MiB stored in ")
    assert len(run("store", "log", "run", "main", "-n", "1").stdout.splitlines()) == 3
    everything = run("store", "log", "run").stdout
    assert re.search(r" main +second\n", everything)
    assert re.search(r" v1 +first\n", everything)
    found = said("log", "run")
    assert [cost["message"] for cost in found["main"]] == ["second", "first"]
    assert found["v1"][0]["changed"] == 3
    assert found["main"][0].keys() >= {"cid", "parents", "time", "tensors", "nbytes", "changed", "stored_nbytes"}


def test_an_empty_store(root: Path) -> None:
    assert "no commits yet" in run("store", "log", "run").stderr
    assert said("log", "run") == {}
    assert run("store", "refs", "run").stdout == ""
    assert said("refs", "run") == {}
    assert "0" in run("store", "stats", "run").stdout
    assert run("store", "check", "run").stdout.startswith("ok")


def test_show_and_refs(filled: Path) -> None:
    store = Store(filled)
    printed = run("store", "show", "run", "v1").stdout
    assert store.show("v1").cid in printed
    assert re.search(r"metadata step +1", printed)
    assert said("show", "run", store.show("main").cid[:12])["message"] == "second"
    cids = store.refs()
    assert said("refs", "run") == {
        "main": {"cid": cids["main"], "kind": "branch"},
        "v1": {"cid": cids["v1"], "kind": "tag"},
    }
    lines = [line.split() for line in run("store", "refs", "run").stdout.splitlines()]
    assert lines == [["ref", "kind", "commit"], ["main", "branch", cids["main"]], ["v1", "tag", cids["v1"]]]
    assert store.tags() == {"v1": cids["v1"]}


def test_diff(filled: Path) -> None:
    assert "big" in run("store", "diff", "run", "v1", "main", code=1).stdout
    assert not said("diff", "run", "v1", "main", code=1)["same"]
    assert said("diff", "run", "main", "main")["same"]
    run("store", "diff", "run", "main", "main")


@pytest.mark.parametrize("file", ["out.safetensors", "out.zt", "out.bt"])
def test_checkout(file: str, filled: Path) -> None:
    assert "3 tensors" in run("store", "checkout", "run", "v1", file).stdout
    assert tg.diff(file, "a.safetensors").same
    assert said("checkout", "run", "main", file)["file"] == file
    assert tg.identify(file).tensors == tg.identify("b.zt").tensors


def test_checkout_options(filled: Path) -> None:
    run("store", "checkout", "run", "main", "small", "--to", "ztensor@2", "--compression", "zstd", "--checksum", "xxh3")
    assert tg.open("small").format == "ztensor@2"
    run("verify", "small")


def test_tag_and_delete(filled: Path) -> None:
    store = Store(filled)
    assert run("store", "tag", "run", "v2", "main").stdout == f"v2 is {store.refs()['main']}\n"
    assert said("tag", "run", "v3", "main") == {"ref": "v3", "cid": store.refs()["main"]}
    assert "delete it first" in run("store", "tag", "run", "v2", "main", code=2).stderr
    assert run("store", "delete", "run", "v2").stdout == "v2 is deleted\n"
    assert said("delete", "run", "v3") == {"deleted": "v3"}
    assert store.refs().keys() == {"main", "v1"}


def test_check(filled: Path) -> None:
    assert run("store", "check", "run").stdout.startswith("ok: 4 tensors")
    assert "blocks hashed" in run("store", "check", "run", "--data").stdout
    found = said("check", "run", "--data")
    assert found["ok"]
    assert found["checksums"] == Store(filled).stats().blocks
    flip(max(packs(filled), key=lambda path: path.stat().st_size), 5000)
    run("store", "check", "run")
    damaged = run("store", "check", "run", "--data", code=1).stdout
    assert "does not match its CID" in damaged
    assert Store(filled).log("main")[1].cid[:12] in damaged
    assert not said("check", "run", "--data", code=1)["ok"]


def test_collect_and_repack(filled: Path) -> None:
    run("store", "commit", "run", "a.safetensors", "--ref", "gone")
    run("store", "delete", "run", "gone")
    assert "1 pack" in run("store", "collect", "run").stdout.splitlines()[1]
    assert said("collect", "run", "--grace", "3600")["waiting"] == 1
    assert run("store", "collect", "run", "--grace", "0").stdout.startswith("removed 1 pack, ")
    assert said("repack", "run", "--grace", "0")["packs"] == 2
    assert run("store", "repack", "run", "--grace", "0").stdout == "removed 0 packs, 0 B\n"
    assert len(packs(filled)) == 1
    run("store", "check", "run", "--data")
    run("store", "collect", "run", "--grace", "-1", code=2)


def test_stats(filled: Path) -> None:
    printed = run("store", "stats", "run").stdout
    for words in (r"commits +2", r"as files +2\.3 MiB", r"stored .* times less", r"packs +2 with"):
        assert re.search(words, printed), (words, printed)
    assert said("stats", "run") == Store(filled).stats().to_dict()


def test_push_and_pull(filled: Path, tmp_path: Path) -> None:
    run("store", "init", "backup")
    assert run("store", "push", "run", "backup", "main").stdout.startswith("main moved: ")
    assert Store(tmp_path / "backup").refs().keys() == {"main"}
    assert set(said("push", "run", "backup")["refs"]) == {"v1"}
    assert run("store", "push", "run", "backup").stdout.startswith("nothing moved: 0 blocks")
    run("store", "init", "third")
    assert set(said("pull", "third", "backup")["refs"]) == {"main", "v1"}
    assert run("store", "pull", "third", "backup").stdout.startswith("nothing moved")
    run("store", "commit", "third", "a.safetensors")
    run("store", "commit", "run", "a.safetensors")
    assert "not an ancestor" in run("store", "push", "run", "third", code=2).stderr


def test_bundle_and_unbundle(filled: Path, tmp_path: Path) -> None:
    assert "blocks" in run("store", "bundle", "run", "v1", "v1.car").stdout
    part = said("bundle", "run", "main", "part.car", "--have", "v1")
    assert part["nbytes"] == Path("part.car").stat().st_size < 60_000
    run("store", "init", "backup")
    run("store", "unbundle", "backup", "part.car", code=2)
    assert run("store", "unbundle", "backup", "v1.car").stdout == f"{Store(filled).refs()['v1']}\n"
    assert said("unbundle", "backup", "part.car")["message"] == "second"
    assert Store(tmp_path / "backup").refs() == Store(filled).refs()


def test_a_bundle_of_a_commit_by_its_cid(filled: Path, tmp_path: Path) -> None:
    first = Store(filled).log("main")[1]
    for name in (first.cid, first.cid[:12]):
        said("bundle", "run", name, "one.car")
        Store.create(tmp_path / name)
        run("store", "unbundle", name, "one.car")
        assert Store(tmp_path / name).refs() == {f"commit-{first.cid[:12]}": first.cid}


@pytest.mark.parametrize("data", [None, b"", b"PK\x03\x04" * 99, b"\x05abc", bytes(300)])
def test_a_file_that_is_not_a_bundle(data: bytes | None, root: Path) -> None:
    if data is not None:
        Path("a.safetensors").write_bytes(data)
    error = run("store", "unbundle", "run", "a.safetensors", code=3).stderr
    assert "a.safetensors: not a bundle, which is a CAR file of version 1" in error
    assert Store(root).refs() == {}


def test_a_long_message_leaves_the_names_of_refs(filled: Path) -> None:
    Store(filled).commit("release", {"x": np.zeros(3)}, message="a long message, " * 20)
    _, text = on_terminal("store", "log", "run", "release", columns=80, env={"NO_COLOR": "1"})
    assert re.search(r" release +a long message, [a-z ]+…\r?\n", text)


def test_of_a_message_the_log_has_the_first_line(filled: Path) -> None:
    Store(filled).commit("release", {"x": np.zeros(3)}, message="Warm up again\n\nThe loss had a spike.\n")
    assert run("store", "log", "run", "release").stdout.splitlines()[1].endswith("release  Warm up again …")
    assert "The loss had a spike." in run("store", "show", "run", "release").stdout


def test_of_several_refs_the_log_keeps_the_first(filled: Path) -> None:
    for i in range(9):
        Store(filled).tag(f"of-the-year-{i}", "main")
    _, text = on_terminal("store", "log", "run", "main", columns=80, env={"NO_COLOR": "1"})
    assert re.search(r" main, of-the-[a-z]*-?… +second", text)


def test_a_commit_is_a_source_of_every_command(filled: Path) -> None:
    url = "store://run#main"
    assert "big" in run("ls", url).stdout
    assert "store@1" in run("info", url).stdout
    run("verify", url)
    run("stats", url)
    assert run("hash", url).stdout.splitlines()[:3] == run("hash", "b.zt").stdout.splitlines()[:3]
    run("diff", url, "b.zt")
    run("convert", url, "again.safetensors")
    assert run("cat", url, "tiny").stdout == run("cat", "b.zt", "tiny").stdout
    run("split", url, "shards", "--to", "safetensors")


# Wrong names and wrong places

COMMANDS = {
    "commit": ("FILE",), "log": ("REF",), "show": ("REF",), "diff": ("REF", "REF"), "checkout": ("REF", "out.zt"),
    "tag": ("name", "REF"), "delete": ("REF",), "refs": (), "check": (), "collect": (), "repack": (), "stats": (),
    "push": ("STORE", "REF"), "pull": ("STORE", "REF"), "bundle": ("REF", "out.car"), "unbundle": ("FILE",),
}  # fmt: skip
"""The arguments after STORE, by what they are."""


def test_every_command_is_tested() -> None:
    known = {name for name in command.commands if name not in ("delta", "apply")}
    assert known == {"init", *COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_store_that_is_not_there(name: str, root: Path) -> None:
    values = {"FILE": "a.safetensors", "REF": "main", "STORE": "run"}
    arguments = [values.get(argument, argument) for argument in COMMANDS[name]]
    assert "no such store" in run("store", name, "missing", *arguments, code=5).stderr
    Path("empty").mkdir()
    result = run("store", name, "empty", *arguments, code=2)
    assert "tensorglot store init" in result.stderr
    assert result.stdout == ""
    error = json.loads(run("store", name, "empty", *arguments, "--json", code=2).stderr)["error"]
    assert (error["rule"], error["exit"]) == ("store.open", 2)


@pytest.mark.parametrize("name", [name for name, arguments in COMMANDS.items() if "REF" in arguments])
def test_a_ref_that_is_not_there(name: str, filled: Path) -> None:
    run("store", "init", "other")
    values = {"REF": "mian", "STORE": "other"}
    arguments = [values.get(argument, argument) for argument in COMMANDS[name]]
    if name == "pull":
        arguments[0] = "run"
        result = run("store", "pull", "other", *arguments, code=2)
    else:
        result = run("store", name, "run", *arguments, code=2)
    assert "error: run: no ref, tag or commit 'mian'; did you mean 'main'?" in result.stderr
    assert result.stdout == ""
    assert not Path("out.zt").exists()
    assert not Path("out.car").exists()


@pytest.mark.parametrize("ref", ["a#b", "..", "\x1b[1m", "-x", "n" * 4096])
def test_names_that_are_refused_are_printed_escaped(ref: str, filled: Path) -> None:
    result = run("store", "commit", "run", "a.safetensors", f"--ref={ref}", code=2)
    assert "is not the name of a ref" in result.stderr
    assert "\x1b" not in result.stderr
    assert len(result.stderr) < 600


@pytest.mark.parametrize(("file", "code"), [("none.zt", 5), ("text.zt", 3)])
def test_files_that_cannot_be_stored(file: str, code: int, root: Path) -> None:
    Path("text.zt").write_text("not a tensor in sight")
    run("store", "commit", "run", file, code=code)
    run("store", "unbundle", "run", file, code=code)
    assert Store(root).refs() == {}


def test_arguments_are_counted(root: Path) -> None:
    for name, arguments in COMMANDS.items():
        if arguments and name != "log":
            assert "Missing argument" in run("store", name, "run", code=2).stderr
    run("store", "nothing", code=2)
    assert "Commands" in run("store", "--help").stdout


# On a terminal


def every_command(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name in group.list_commands(click.Context(group)):
        yield (*path, name)


def test_help_fits_80_columns_and_has_an_example() -> None:
    for path in every_command(command):
        text = run("store", *path, "--help").stdout
        assert max(map(len, text.splitlines())) <= 80, path
        assert "Example" in text
        assert f"tensorglot store {path[-1]}" in text
        assert "--json" in text


def test_tables_fit_80_columns(filled: Path) -> None:
    named = Store(filled)
    named.commit("main", {"x" * 300: np.zeros(3)}, message="a long message, " * 20 + "\x1b[31m\nand a line")
    named.commit("a/rather/long/name/" + "of-a-ref" * 8, {"x": np.zeros(3)})
    for arguments in (("log", "run"), ("log", "run", "main"), ("stats", "run"), ("refs", "run"), ("check", "run")):
        code, text = on_terminal("store", *arguments, columns=80, env={"NO_COLOR": "1"})
        assert code == 0, text
        assert "\x1b[31m" not in text
        lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", line) for line in text.splitlines()]
        assert max(map(len, lines)) <= 80 or arguments[0] == "refs", arguments
