"""Looking at files on the command line: order, tree, tolerance, completion, nearest names."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

import tensorglot as tg
from command_line import run
from terminals import on_terminal, piped

TENSORS = {
    "layers.1.w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "layers.0.w": np.arange(12, dtype=np.float64),
    "layers.0.bias": np.zeros(2, np.int8),
    "lm_head.weight": np.linspace(0, 1, 5000, dtype=np.float32).reshape(100, 50),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tg.save("model.bt", TENSORS, metadata={"step": "1"})
    for name in ("before.bt", "old.bt"):
        tg.save(name, TENSORS)
    tg.save("after.bt", {**TENSORS, "layers.0.w": TENSORS["layers.0.w"] + 1e-6})
    tg.save("model.zt", TENSORS, metadata={"step": "1"})
    tg.save("model.safetensors", TENSORS)
    return tmp_path


def names(*args: str) -> list[str]:
    return [row["name"] for row in json.loads(run("ls", "model.bt", "--json", *args).stdout)["tensors"]]


def test_order(folder: Path) -> None:
    assert names("--sort", "name") == sorted(TENSORS)
    assert names("--sort", "size")[0] == "lm_head.weight"
    assert names("--sort", "dtype") == ["layers.1.w", "lm_head.weight", "layers.0.w", "layers.0.bias"]


def test_numbers_in_names_are_in_order(folder: Path) -> None:
    ordered = [f"layers.{i}.w{'0' * i}" for i in (2, 9, 10, 100)] + ["layers.x"]
    tg.save("model.bt", {name: np.ones(1) for name in sorted(ordered)})
    tg.save("other.bt", {name: np.zeros(1) for name in sorted(ordered)})
    assert names("--sort", "name") == ordered
    assert names("--sort", "dtype") == ordered
    changed = json.loads(run("diff", "model.bt", "other.bt", "--sort", "name", "--json", code=1).stdout)["changes"]
    assert [change["tensor"] for change in changed] == ordered
    tree = json.loads(run("ls", "model.bt", "--tree", "--depth", "2", "--sort", "name", "--json").stdout)["tree"]
    assert [branch["prefix"] for branch in tree[1:]] == [f"layers.{i}" for i in ("2.", "9.", "10.", "100.", "x")]


def test_tree(folder: Path) -> None:
    lines = run("ls", "model.bt", "--tree", "--depth", "2", "--sort", "name").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ["layers.", "0.", "1.", "lm_head.", "weight"]
    assert lines[1].split()[1:] == ["3", "20", "122", "B", "0.6%"]
    assert lines[2].startswith("  0.")
    assert lines[-1] == "4 tensors, 19.7 KiB; 2 levels shown; --depth 3 shows more"
    assert run("ls", "model.bt", "--tree", "--depth", "3").stdout.endswith("; 3 levels shown\n")
    one = json.loads(run("ls", "model.bt", "--tree", "--depth", "1", "--json").stdout)
    assert {branch["prefix"]: branch["tensors"] for branch in one["tree"]} == {"layers.": 3, "lm_head.": 1}
    for wrong in (["--depth", "1"], ["--tree", "--long"]):
        run("ls", "model.bt", *wrong, code=2)


def test_an_empty_name_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tg.save("a.safetensors", {"": np.zeros(2), "w": np.ones(2)})
    tg.save("b.safetensors", {"": np.ones(2), "w": np.ones(2)})
    for command in (["ls"], ["ls", "--tree"], ["stats"], ["diff", "b.safetensors"], ["convert", "c.bt", "--dry-run"]):
        lines = run(command[0], "a.safetensors", *command[1:], code=int(command[0] == "diff")).stdout.splitlines()
        assert lines[1].split()[0] == "''", command
    assert run("hash", "a.safetensors").stdout.splitlines()[0].endswith("  ''")
    assert run("info", "a.safetensors", "").stdout.splitlines()[0].split() == ["name", "''"]


def test_branches_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    tg.save(tmp_path / "m.bt", {f"{name}.w": np.zeros(1) for name in ("h.0", "h.1", "h.10", "h.2", "b", "a.1", "a.x")})
    found = json.loads(run("ls", tmp_path / "m.bt", "--tree", "--depth", "2", "--json").stdout)["tree"]
    assert [branch["prefix"] for branch in found if branch["prefix"].startswith("h.")] == [
        "h.", "h.0.", "h.1.", "h.2.", "h.10."
    ]  # fmt: skip
    order = [branch["prefix"] for branch in found if branch["level"] == 0]
    assert order == ["a.", "b.", "h."]


def test_branches_of_the_same_size_stay_in_order(tmp_path: Path) -> None:
    sizes = {f"h.{i}.w": 1 for i in range(12)} | {"a.w": 1, "z.w": 40}
    tg.save(tmp_path / "m.bt", {name: np.zeros(size) for name, size in sizes.items()})
    found = json.loads(run("ls", tmp_path / "m.bt", "--tree", "--depth", "2", "--sort", "size", "--json").stdout)
    order = [branch["prefix"] for branch in found["tree"]]
    assert [prefix for prefix in order if prefix.count(".") == 1 and prefix[-1] == "."] == ["z.", "h.", "a."]
    assert [prefix for prefix in order if prefix.startswith("h.")] == ["h.", *(f"h.{i}." for i in range(12))]


def test_the_depth_of_a_tree_fits_the_screen_and_deep_names_do_not_recurse(tmp_path: Path) -> None:
    tg.save(tmp_path / "m.bt", {f"layers.{i}.w": np.zeros(1) for i in range(100)} | {"a." * 20_000 + "b": np.zeros(1)})
    code, seen = on_terminal("ls", tmp_path / "m.bt", "--tree", env={"NO_COLOR": "1"})
    assert code == 0
    assert len(seen.splitlines()) <= 24
    run("ls", tmp_path / "m.bt", "--tree", "--depth", "300")


def test_tolerance_order_and_limit_of_diff(folder: Path) -> None:
    assert run("diff", "before.bt", "after.bt", code=1).stdout.splitlines()[-1].startswith("different: 1 of 4 tensors")
    for close in (["--atol", "1e-5"], ["--rtol", "1"]):
        assert run("diff", "before.bt", "after.bt", *close).stdout == "the same: 4 tensors\n"
    run("diff", "before.bt", "after.bt", "--atol", "1e-9", code=1)
    tg.save("far.bt", {name: value + 3 for name, value in TENSORS.items()})
    lines = run("diff", "before.bt", "far.bt", "--sort", "name", "--limit", "2", code=1).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["layers.0.bias", "layers.0.w"]
    assert lines[3] == "… 2 more of 4 rows"
    assert lines[4] == "different: 4 of 4 tensors (4 values), by at most 3"
    found = json.loads(
        run("diff", "before.bt", "far.bt", "--sort", "relative", "--limit", "1", "--json", code=1).stdout
    )
    assert len(found["changes"]) == 1
    with pytest.raises(tg.InputError, match="atol"):
        tg.diff("before.bt", "far.bt", atol=-1)


def test_long_metadata_leaves_room_for_the_numbers(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    tg.save(tmp_path / "a.bt", {name: np.zeros((1000, 200))}, metadata={"note": "x" * 500})
    tg.save(tmp_path / "b.bt", {name: np.zeros((2000, 200))})
    seen = on_terminal("diff", tmp_path / "a.bt", tmp_path / "b.bt", env={"NO_COLOR": "1"}, columns=60)[1]
    assert "[1000, 200] → [2000, 200]" in seen
    assert "x → -" in seen
    assert "x" * 80 in run("diff", str(tmp_path / "a.bt"), str(tmp_path / "b.bt"), code=1).stdout


def test_numbers_around_a_million_are_written_alike(tmp_path: Path) -> None:
    tg.save(tmp_path / "m.bt", {"w": np.array([999_999.9999, 1_000_000.0001])})
    assert run("stats", str(tmp_path / "m.bt")).stdout.splitlines()[1].split()[1:3] == ["1e6", "1e6"]


def test_the_largest_differences_are_before_rows_without_any(folder: Path) -> None:
    tg.save(
        "other.bt", {**TENSORS, "layers.1.w": np.ones(3), "lm_head.weight": TENSORS["lm_head.weight"] + 5, "new": [1]}
    )
    tg.save("one.bt", {**TENSORS, "old": np.ones(2), "layers.0.w": TENSORS["layers.0.w"] + 1})
    for sort in ("absolute", "relative", "share"):
        lines = run("diff", "one.bt", "other.bt", "--sort", sort, "--limit", "2", code=1).stdout.splitlines()
        assert {line.split()[0] for line in lines[1:3]} == {"lm_head.weight", "layers.0.w"}


def test_a_tensor_has_one_row(folder: Path) -> None:
    tg.save("cast.bt", {**TENSORS, "layers.0.w": (TENSORS["layers.0.w"] + 1).astype(np.float32)})
    lines = run("diff", "before.bt", "cast.bt", code=1).stdout.splitlines()
    assert len(lines) == 3
    assert "type, values" in lines[1]


def test_aliases_and_nearest_names(folder: Path) -> None:
    run("convert", "model.bt", "half.out", "--to", "zt@2", "--dtype", "bf16")
    with tg.open("half.out") as archive:
        assert archive.format == "ztensor@2"
        assert archive["layers.1.w"].type == tg.dynd.parse("2 * 3 * bfloat16")
    for wrong, near in (
        (["sttas", "model.bt"], "'stats'"),
        (["ls", "model.bt", "--format", "bintensor"], "'bintensors'"),
        (["convert", "model.bt", "x.bt", "--dtype", "bf61"], "'bf16'"),
        (["ls", "model.bt", "--tre"], "--tree"),
        (["convert", "model.bt", "x", "--format", "zt"], "--to is the format to write"),
        (["store", "checkout", "run", "main", "x", "--format", "zt"], "--to is the format to write"),
        (["cat", "model.bt", "lm_head.weigth"], "'lm_head.weight'"),
        (["convert", "model.bt", "x.bt", "--dtype", "q9_0"], "known: bool, int8"),
    ):
        said = run(*wrong, code=2).stderr
        assert near in said
        assert "??" not in said
    assert "did you mean 'model.safetensors'?" in run("ls", "model.safetensor", code=5).stderr
    for part in ("head", "*HEAD*.weight"):
        assert "did you mean 'lm_head.weight'" in run("stats", "model.bt", part, code=2).stderr
    assert run("ls", "nothing/model.bt", code=5).stderr == "error: nothing/model.bt: No such file or directory\n"


PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("x", b"", "the file is empty"),
        ("x.bt", b"", "the file is empty"),
        ("x.safetensors", b"", "the file is empty"),
        ("x.zt", b"", "the file is empty"),
        (
            "x.zt",
            b"ZTEN0001" + b"\x8e" * 40,
            "file truncated or damaged: the last 8 bytes are not the size of an index",
        ),
        ("x.bt", b"abc", "file truncated: the header's length needs 8 bytes, has 3"),
        ("x.png", PNG, "unknown file format (known: bintensors, "),
        (
            "x.safetensors",
            PNG,
            "not a safetensors file, or damaged: a header of 727905341920923785 bytes in a file of 108",
        ),
        ("x.zt", PNG, "not a zTensor file: wrong magic number"),
    ],
    ids=str,
)
def test_a_file_of_another_kind_is_named_as_such(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    assert run("info", tmp_path / name, code=3).stderr.startswith(f"error: {tmp_path / name}: {said}")


def test_a_directory_that_is_a_store_says_how_to_open_it(tmp_path: Path) -> None:
    tg.store.Store.create(tmp_path / "run").close()
    said = run("info", tmp_path / "run", code=2).stderr
    assert f"as in store://{tmp_path}/run#main; `tensorglot store refs {tmp_path}/run` lists them" in said


def test_numbers_of_stats_are_short(tmp_path: Path) -> None:
    tg.save(tmp_path / "m.bt", {"w": np.arange(2048.0), "x": np.array([1e30, -2e-12])})
    lines = run("stats", tmp_path / "m.bt").stdout.splitlines()
    assert lines[1].split()[:6] == ["w", "0", "2047", "1024", "591", "53490"]
    assert lines[2].split()[:6] == ["x", "-2e-12", "1e30", "5e29", "5e29", "1e30"]


def test_what_is_approximate_is_said_where_it_is_shown(tmp_path: Path) -> None:
    tg.save(tmp_path / "m.bt", {"w": np.arange(20_000, dtype=np.float32)})
    note = "percentiles to 1 part in 128"
    assert note not in run("stats", tmp_path / "m.bt").stdout
    assert note in run("stats", tmp_path / "m.bt", "--long").stdout


def test_errors_name_the_file(folder: Path) -> None:
    for wrong in (["cat", "model.bt", "no"], ["cat", "model.bt", "layers.1.w", "[9]"], ["stats", "model.bt", "no"]):
        assert run(*wrong, code=2).stderr.startswith("error: model.bt: ")
    assert "--compression" in run("convert", "model.bt", "x.zt", "--level", "3", code=2).stderr
    for target, options, named, code in (
        ("x.npz", ["--select", "no*"], "model.bt", 2),
        ("x.npz", ["--dtype", "layers.0.w=fp16", "--rename", "no=x"], "model.bt", 2),
        ("x.npy", [], "x.npy", 4),
        ("x.bson", ["--select", "layers.0.bias"], "x.bson", 4),
        ("x.pt", [], "x.pt", 2),
    ):
        assert run("convert", "model.bt", target, *options, code=code).stderr.startswith(f"error: {named}: ")


def test_errors_name_the_damaged_file_of_several(folder: Path) -> None:
    whole = (folder / "model.zt").read_bytes()
    place = whole.index(TENSORS["lm_head.weight"].tobytes()[:8])
    (folder / "damaged.zt").write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    for command in (
        ["diff", "model.zt", "damaged.zt"],
        ["diff", "damaged.zt", "model.zt"],
        ["diff", "damaged.zt", "model.bt"],
        ["convert", "damaged.zt", "x.bt"],
        ["merge", "damaged.zt", "x.bt"],
        ["split", "damaged.zt", "shards"],
        ["split", "./damaged.zt", "shards"],
    ):
        named = next(word for word in command if "damaged" in word)
        assert run(*command, code=3).stderr.startswith(f"error: {named}: checksum mismatch")
    for read in (tg.load, lambda path: tg.open(path)["lm_head.weight"].numpy()):
        with pytest.raises(tg.IntegrityError) as caught:
            read("damaged.zt")
        assert caught.value.path == str(folder / "damaged.zt")


def completed(*words: str) -> list[str]:
    line = shlex.join(["tensorglot", *words])
    done = piped(_TENSORGLOT_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words)))
    return [word for entry in done.stdout.decode().splitlines() if (word := entry.partition(",")[2])]


def test_completion(folder: Path) -> None:
    assert completed("cat", "model.bt", "layers.0") == ["layers.0.w", "layers.0.bias"]
    assert completed("cat", "missing.bt", "layers.0") == []
    assert completed("convert", "model.bt", "x.zt", "--to", "z") == ["ztensor"]
    assert completed("convert", "model.bt", "x.zt", "--dtype", "bf") == ["bfloat16", "bf16"]
    for command in (
        ["convert", "model.bt", "x.zt", "--select"],
        ["convert", "model.bt", "--select"],
        ["edit", "model.bt", "--drop"],
    ):
        assert completed(*command, "layers.0.b") == ["layers.0.bias"]
    assert completed("edit", "--drop", "layers") == []


def test_completion_of_refs(folder: Path) -> None:
    with tg.store.Store.create("run") as store:
        store.commit("main", TENSORS)
        store.commit("mine", TENSORS)
        store.tag("v1", "main")
    for command in (["log"], ["show"], ["checkout"], ["delete"], ["diff"], ["bundle"]):
        assert completed("store", *command, "run", "m") == ["main", "mine"]
    assert completed("store", "diff", "run", "main", "v") == ["v1"]
    assert completed("store", "push", "run", "backup", "v") == ["v1"]
    assert completed("store", "pull", "backup", "run", "v") == ["v1"]
    assert completed("store", "commit", "run", "model.bt", "--parent", "v") == ["v1"]
    assert completed("store", "log", "nothing", "m") == []


def test_cat_is_shortened_on_a_terminal_only(folder: Path) -> None:
    code, seen = on_terminal("cat", "model.bt", "lm_head.weight", env={"NO_COLOR": "1"})
    lines = seen.splitlines()
    assert code == 0
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert lines[-1].startswith("shortened")
    assert "shortened" not in on_terminal("cat", "model.bt", "layers.1.w")[1]
    tg.save("ranks.bt", {f"rank {rank}": np.zeros((2,) * (rank - 1) + (500,)) for rank in range(1, 5)})
    for rank in range(1, 5):
        said = on_terminal("cat", "ranks.bt", f"rank {rank}", env={"NO_COLOR": "1"})[1].splitlines()[-1]
        index = said.partition("such as '")[2].partition("'")[0]
        assert "shortened" not in on_terminal("cat", "ranks.bt", f"rank {rank}", index)[1]
    assert len(piped("cat", "model.bt", "lm_head.weight").stdout.splitlines()) == 100


def test_shards_in_info(folder: Path) -> None:
    tg.split("model.safetensors", "shards", shard_nbytes=200)
    found = json.loads(run("info", "shards", "--json").stdout)
    sizes = {path.name: path.stat().st_size for path in Path("shards").glob("*.safetensors")}
    assert {shard["file"]: shard["nbytes"] for shard in found["shards"]} == sizes
    assert sum(shard["tensors"] for shard in found["shards"]) == len(TENSORS)
    assert found["file_nbytes"] == sum(sizes.values())
    assert f"{len(sizes)} of " in run("info", "shards").stdout


def test_info_of_a_directory_names_the_file_in_it(folder: Path) -> None:
    assert run("info", ".").stdout.splitlines()[0].split() == ["file", "model.safetensors"]
    assert run("info", str(folder)).stdout.splitlines()[0].split() == ["file", str(folder / "model.safetensors")]
    tg.split("model.safetensors", "shards", shard_nbytes=200)
    assert run("info", "shards").stdout.splitlines()[0].split() == ["file", "shards"]


def test_statistics(folder: Path) -> None:
    (row,) = tg.stats("model.bt", ["lm_head.weight"])
    values = TENSORS["lm_head.weight"].astype(np.float64).reshape(-1)
    assert row.exact
    assert row.percentiles is not None
    for share, found in row.percentiles.items():
        assert found == pytest.approx(np.percentile(values, int(share)))
    assert row.norm == pytest.approx(np.linalg.norm(values))
    assert list(row.histogram) == np.histogram(values, 16)[0].tolist()
    assert "50%" in run("stats", "model.bt", "--long").stdout
    assert "histogram" in run("stats", "model.bt").stdout
