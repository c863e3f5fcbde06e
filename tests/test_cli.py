"""The commands, called in this process: what they print, and with which code they end."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner, Result

import command_line
import tensorglot as tg
from tensorglot.cli import COMMANDS, commands
from tensorglot.cli.exits import EXITS
from tensorglot.operations.stats import Stats, TensorStats
from terminals import on_terminal

HOSTILE = "\x1b[31mred \u202etxt.exe\n../../x"
SHOWN = r"\x1b[31mred \u202etxt.exe\n../../x"
CONTROL = {chr(c) for c in [*range(32), 127, 0x202E]} - {"\n"}


def run(*args: str | Path, code: int = 0) -> Result:
    result = command_line.run(*args, code=code)
    assert not CONTROL & set(result.output)
    return result


def run_json(*args: str | Path, code: int = 0) -> Any:
    result = run(*args, "--json", code=code)
    return json.loads(result.stdout, parse_constant=pytest.fail)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.bt"
    tensors = {
        "embed": np.arange(12, dtype=np.float32).reshape(3, 4).astype(ml_dtypes.bfloat16),
        "layers.0.w": np.array([[1.5, np.nan], [-np.inf, 0]], np.float32),
        "layers.1.w": np.zeros((2, 2), np.float32),
        "flags": np.array([True, False, True]),
        "empty": np.zeros((0, 5), np.int64),
        HOSTILE: np.array(7, np.int32),
    }
    tg.save(path, tensors, metadata={"step": "10", "note\x1b": "two\nlines"})
    return path


@pytest.fixture
def cut(model: Path) -> Path:
    path = model.with_name("cut.bt")
    path.write_bytes(model.read_bytes()[:-2])
    return path


def test_ls(model: Path) -> None:
    lines = run("ls", model).stdout.splitlines()
    assert lines[0].split() == ["name", "dtype", "shape", "size"]
    assert lines[-1] == "6 tensors, 63 B"
    assert any(line.split() == ["embed", "bfloat16", "[3,", "4]", "24", "B"] for line in lines)
    assert any(line.startswith(SHOWN) for line in lines)


def test_ls_patterns(model: Path) -> None:
    lines = run("ls", model, "layers.*", "flags").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ["layers.0.w", "layers.1.w", "flags"]
    result = run("ls", model, "layer.0.w", code=2)
    assert (
        result.stderr == f"error: {model}: no such tensor; did you mean 'layers.0.w', 'layers.1.w'? "
        "(tensor 'layer.0.w', rule tensor.name)\n"
    )


def test_a_verb_that_is_an_option() -> None:
    assert "convert --quantize" in run("quantize", "a.gguf", code=2).stderr
    assert "did you mean 'ls'" in run("lss", code=2).stderr


def test_ls_long(model: Path) -> None:
    lines = run("ls", "--long", model).stdout.splitlines()
    assert lines[0].split() == ["name", "dtype", "shape", "size", "offset"]
    assert lines[-1] == "6 tensors, 63 B; encoding raw, layout dense, checksum none"


def test_ls_json(model: Path) -> None:
    listed = run_json("ls", model)
    assert (listed["format"], listed["count"], listed["nbytes"]) == ("bintensors@0", 6, 63)
    by_name = {row["name"]: row for row in listed["tensors"]}
    assert set(by_name) == set(tg.load(model))
    with tg.open(model) as archive:
        for name, row in by_name.items():
            info = archive.info(name)
            assert row == {key: len(info["parts"]) if key == "parts" else info[key] for key in row}


def test_info(model: Path) -> None:
    out = run("info", model).stdout
    assert "bintensors@0" in out
    assert "read by bintensors 0.0.4 and 0.0.5" in out
    assert [line.split() for line in out.splitlines() if line.startswith("float32")] == [
        ["float32", "2", "8", "32", "B"]
    ]
    assert "note\\x1b  two\\nlines" in out
    info = run_json("info", model)
    assert info["file_nbytes"] == model.stat().st_size
    assert info["metadata"] == {"step": "10", "note\x1b": "two\nlines"}
    assert info["dtypes"]["bool"] == {"tensors": 1, "elements": 3, "nbytes": 3}
    assert sum(use["nbytes"] for use in info["dtypes"].values()) == info["nbytes"] == 63


@pytest.mark.parametrize(("metadata", "shown"), [(None, "no metadata"), ({}, "empty metadata")])
def test_info_without_metadata(tmp_path: Path, metadata: dict[str, str] | None, shown: str) -> None:
    tg.save(tmp_path / "x.bt", {}, metadata=metadata)
    assert run("info", tmp_path / "x.bt").stdout.endswith(f"\n{shown}\n")
    assert run_json("info", tmp_path / "x.bt")["metadata"] == metadata


def test_info_of_a_tensor(model: Path) -> None:
    out = run("info", model, HOSTILE).stdout
    assert out.startswith(f"name      {SHOWN}\n")
    with tg.open(model) as archive:
        assert run_json("info", model, HOSTILE) == archive.info(HOSTILE)


def test_cat(model: Path) -> None:
    assert run("cat", model, "embed", "[1:, ::2]").stdout == " 4  6\n 8 10\n"
    assert run("cat", model, "flags").stdout == "True\nFalse\nTrue\n"
    assert run("cat", model, HOSTILE).stdout == "7\n"
    assert run_json("cat", model, "layers.0.w")["values"] == [[1.5, "NaN"], ["-Infinity", 0.0]]


def test_cat_npy(model: Path, tmp_path: Path) -> None:
    piped = CliRunner().invoke(commands, ["cat", str(model), "layers.0.w", "[0]", "--npy"])
    np.testing.assert_array_equal(np.load(io.BytesIO(piped.stdout_bytes)), np.array([1.5, np.nan], np.float32))
    result = run("cat", model, "embed", "--npy", "-o", tmp_path / "e.npy")
    assert result.stdout == ""
    assert "view(ml_dtypes.bfloat16)" in result.stderr
    loaded = np.load(tmp_path / "e.npy").view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(loaded, tg.load(model)["embed"])


def test_cat_writes_to_a_url(model: Path, tmp_path: Path) -> None:
    run("cat", model, HOSTILE, "-o", (tmp_path / "out.txt").as_uri())
    assert (tmp_path / "out.txt").read_text() == "7\n"


def test_cat_writes_nothing_when_it_fails(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_text("as it was")
    run("cat", model, "embed", "[99]", "-o", target, code=2)
    assert target.read_text() == "as it was"
    run("cat", model, "embed", "--npy", "--json", code=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.bt", "out"]


def test_names_are_never_used_as_paths(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "in" / "side"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    for command in (["cat", model, HOSTILE], ["info", model, HOSTILE], ["stats", model], ["ls", model]):
        run(*command)
    assert not any(inside.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "model.bt"]


def test_stats(model: Path) -> None:
    lines = run("stats", model).stdout.splitlines()
    assert lines[0].split() == ["name", "min", "max", "mean", "std", "norm", "zeros", "NaN", "Inf", "histogram"]
    assert ["layers.0.w", "0", "1.5", "0.75", "0.75", "1.5", "1", "1", "1", "█", "█"] in map(str.split, lines)
    assert ["empty", "-", "-", "-", "-", "-", "0", "0", "0"] in map(str.split, lines)
    assert run("stats", model, "layers.1.w").stdout.splitlines()[-1] == "1 tensor, no NaN, no Inf"
    row = {row["name"]: row for row in run_json("stats", model)["tensors"]}["layers.0.w"]
    assert (row["min"], row["max"], row["nan"], row["inf"], row["count"]) == (0.0, 1.5, 1, 1, 4)


def test_a_histogram_has_a_bar_for_each_of_few_values(tmp_path: Path) -> None:
    tensors = {"mask": np.array([True, True, False]), "many": np.arange(100), "three": np.array([1, 2, 2, 4], np.int8)}
    tg.save(tmp_path / "m.bt", tensors)
    bars = {line.split()[0]: line.rpartition("  ")[2] for line in run("stats", tmp_path / "m.bt").stdout.splitlines()}
    assert bars["mask"] == "▄█"
    assert len(bars["many"]) == 8
    assert bars["three"] == "▄█ ▄"


def test_stats_of_what_is_not_supported(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [TensorStats("odd\x1b", "data", "float3", (2,), 2, unsupported="float3 is not known here")]
    monkeypatch.setattr(tg, "stats", lambda *args, **options: Stats("x@1", tuple(rows)))
    result = run("stats", model, code=4)
    assert result.stderr == "odd\\x1b: float3 is not known here\n"
    assert run_json("stats", model, code=4)["tensors"][0]["unsupported"] == "float3 is not known here"


def test_verify(model: Path, cut: Path) -> None:
    assert run("verify", model, "--deep").stdout == "ok: bintensors@0, 6 tensors, 63 B, no checksums to check\n"
    result = run("verify", cut, code=1)
    assert result.stdout.startswith(f"{cut}: file truncated: ")
    assert "rule bintensors.data.end" in result.stdout
    assert result.stdout.endswith("failed: 1 problem\n")
    report = run_json("verify", cut, code=1)
    assert [problem["rule"] for problem in report["problems"]] == ["bintensors.data.end"]


def test_verify_deep_and_strict(model: Path) -> None:
    data = bytearray(model.read_bytes())
    data[-1] = 9
    model.write_bytes(data)
    run("verify", model)
    assert "rule values.bool" in run("verify", "--deep", model, code=1).stdout
    reordered = Path(__file__).parent / "corpus" / "bintensors-reject" / "s06_unsorted.bt"
    run("verify", reordered)
    assert "rule bintensors.strict" in run("verify", "--strict", reordered, code=1).stdout


def test_formats() -> None:
    out = run("formats").stdout
    rows = run_json("formats")
    assert [row["name"] for row in rows] == [row.name for row in tg.formats()]
    for row in rows:
        assert row["name"] in out
        assert row["dtypes"]


def test_demo() -> None:
    code, seen = on_terminal("demo", env={"NO_COLOR": "1"})
    assert code == 0
    assert "Traceback" not in seen
    rows = [-(-max(len(line), 1) // 80) for line in seen.splitlines()]
    assert sum(rows) <= 80, "two screens of 40 lines"
    demo = run_json("demo")
    assert demo["seconds"] > 0
    assert {step["run"]: step["exit"] for step in demo["steps"] if step["exit"]} == {
        "tensorglot verify cut.bt": 1,
        "tensorglot diff model.bt next.bt": 1,
        "tensorglot convert model.bt model.npy": 4,
    }
    words = {step["run"].split()[1] for step in demo["steps"] if step["kind"] == "shell"}
    assert words == {"ls", "stats", "verify", "diff", "convert", "report", "store"}
    outputs = {step["run"]: step["output"] for step in demo["steps"]}
    one, two = (outputs[f'tg.open("{source}")["head"].cid()'] for source in ("model.zt", "store://run#main"))
    assert one == two
    assert "128" in outputs["tensorglot stats next.bt 'layers.3.mlp.*'"].split()


def test_the_folder_of_a_demo_is_kept(tmp_path: Path) -> None:
    run("demo", tmp_path / "new")
    assert tg.diff(tmp_path / "new" / "model.bt", tmp_path / "new" / "model.zt").same
    assert (tmp_path / "new" / "changes.html").stat().st_size > 100_000
    run("demo", tmp_path / "new", code=5)


@pytest.mark.parametrize(
    ("args", "code", "kind"),
    [
        (["ls"], 2, "UsageError"),
        (["nonsense"], 2, "UsageError"),
        (["ls", "{model}", "--nonsense"], 2, "UsageError"),
        (["ls", "{folder}"], 2, "InputError"),
        (["ls", "{model}", "--format", "gif"], 2, "InputError"),
        (["cat", "{model}", "embed", "[a]"], 2, "InputError"),
        (["cat", "{model}", "embed", "[3]"], 2, "OutOfRange"),
        (["cat", "{model}", "embd"], 2, "TensorNotFound"),
        (["ls", "{cut}"], 3, "TruncatedError"),
        (["verify", "{folder}"], 2, "InputError"),
        (["ls", "ftp://example.org/model.bt"], 4, "UnsupportedError"),
        (["ls", "{folder}/absent.bt"], 5, "FileNotFoundError"),
        (["verify", "{folder}/absent.bt"], 5, "FileNotFoundError"),
        (["cat", "{model}", "embed", "-o", "{folder}/absent/x"], 5, "FileNotFoundError"),
    ],
)
def test_errors(model: Path, cut: Path, args: list[str], code: int, kind: str) -> None:
    filled = [arg.format(model=model, cut=cut, folder=model.parent) for arg in args]
    result = run(*filled, code=code)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    as_json = run(*filled, "--json", code=code)
    assert as_json.stdout == ""
    error = json.loads(as_json.stderr)["error"]
    assert set(error) == {"kind", "message", "rule", "offset", "tensor", "path", "exit"}
    assert (error["exit"], error["kind"]) == (code, kind)


def test_an_error_has_the_path_of_the_file(model: Path, cut: Path) -> None:
    shards = model.parent / "shards"
    tg.split(model, shards, shard_nbytes=100)
    shard = next(shards.glob("*-00001-*"))
    shard.unlink()
    for file, path, code in (
        ("none.bt", "none.bt", 5),
        (cut, cut, 3),
        (shards, shard, 3),
        (f"{shards}/none.index.json", f"{shards}/none.index.json", 5),
    ):
        for verb in ("ls", "info", "hash", "stats"):
            error = json.loads(run(verb, file, "--json", code=code).stderr)["error"]
            assert error["path"] == str(path), (verb, error)


def test_an_internal_error_has_its_own_exit_code(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorglot.operations.listing.entries", lambda *args: 1 // 0)
    result = run("ls", model, code=70)
    assert "ZeroDivisionError" in result.stderr


def test_running_out_of_memory_is_an_error_line(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise MemoryError

    monkeypatch.setattr("tensorglot.operations.listing.entries", refuse)
    assert run("ls", model, code=5).stderr == "error: not enough memory\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command(name: str) -> None:
    out = run(name, "--help").stdout
    assert COMMANDS[name] in out
    assert "--json" in out
    assert f"\n    tensorglot {name}" in out
    assert max(map(len, out.splitlines())) <= 80


def test_without_a_command_help_is_printed() -> None:
    result = run(code=2)
    assert result.stdout == ""
    assert result.stderr == run("--help").stdout


def test_help_of_all() -> None:
    out = run("--help").stdout
    for name in COMMANDS:
        assert f"  {name} " in out
    for code, meaning in EXITS.items():
        assert f"  {code} " in out
        assert meaning in out


def test_metadata_that_json_lacks(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = {"nan": float("nan"), "raw": b"\x00\xff", "pair": 1 + 2j, "deep": {"keys": [(1, None, True)], 7: 2.5}}
    monkeypatch.setattr("tensorglot.model.archive.Archive.metadata", odd)
    assert run_json("info", model)["metadata"] == {
        "nan": "NaN",
        "raw": "00ff",
        "pair": [1.0, 2.0],
        "deep": {"keys": [[1, None, True]], "7": 2.5},
    }
    assert '{"keys": [[1, null, true]], "7": 2.5}' in run("info", model).stdout
