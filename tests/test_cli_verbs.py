"""convert, diff, completion and `-`: what they print, what they leave, and with which code they end."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from command_line import run
from tensorglot.io.local import FileSource
from tensorglot.io.source import source_for
from terminals import COMMAND, environment, on_terminal, piped, wait_until_writing

TENSORS: dict[str, Any] = {
    "model.w": np.arange(12, dtype=np.float32).reshape(3, 4) / 7,
    "model.b": np.ones(3),
    "ids": np.arange(4),
}


USAGE = [
    ["--rename", "x"],
    ["--dtype", "float16", "--dtype", "int8"],
    ["--on-loss", "ignore"],
    ["--select", "nothing*"],
]
COMPLETED = [(["con"], "convert"), (["convert", "--dr"], "--dry-run"), (["convert", "--on-loss", "w"], "warn")]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tg.save(tmp_path / "a.bt", TENSORS, metadata={"k": "v"})
    return tmp_path / "a.bt"


class TestConvert:
    def test_convert_reports_on_stderr(self, model: Path) -> None:
        target = model.with_name("b.bt")
        result = run("convert", model, target, "--to", "bintensors@1")
        assert result.stdout == ""
        assert "3 tensors, 104 B to " in result.stderr
        assert "bintensors@1: read by bintensors 0.1.0 to 0.2.0" in result.stderr
        assert tg.diff(model, target).same

    def test_every_wish(self, model: Path) -> None:
        target = model.with_name("b.bt")
        arguments = ["--select", "model.*", "--rename", "model.*=*", "--dtype", "bfloat16", "--metadata", "a=b=c"]
        result = run("convert", model, target, *arguments, "--sums")
        assert "model.w: float32 to bfloat16, 10 rounded of 12" in result.stderr
        with tg.open(target) as archive:
            assert sorted(archive) == ["b", "w"]
            assert archive.metadata == {"a": "b=c"}
            assert archive["w"].dtype == "bfloat16"
        assert target.with_name("b.bt.sums").exists()

    def test_dry_run(self, model: Path) -> None:
        target = model.with_name("b.bt")
        lines = run("convert", model, target, "--dry-run", "--dtype", "ids=int32").stdout.splitlines()
        assert lines[0].split() == ["name", "action", "type", "shape", "size"]
        assert ["ids", "cast", "int64", "→", "int32", "[4]", "16", "B"] in [line.split() for line in lines]
        assert lines[-1] == "bintensors@0 to bintensors@0: 3 tensors, 104 B to read, 88 B to write"
        assert not target.exists()
        plan = json.loads(run("convert", model, target, "--dry-run", "--json").stdout)
        assert plan["written"] is False
        assert [step["action"] for step in plan["plan"]["steps"]] == ["copy"] * 3

    def test_losses(self, model: Path) -> None:
        target = model.with_name("b.bt")
        refused = run("convert", model, target, "--dtype", "ids=int4", code=4)
        assert "bintensors cannot store int4; pass --on-loss drop to convert the rest (" in refused.stderr
        assert not target.exists()
        assert run("convert", model, target, "--dtype", "ids=int4", "--dry-run", code=4)
        warned = run("convert", model, target, "--dtype", "ids=int4", "--on-loss", "warn")
        assert "lost: bintensors cannot store int4" in warned.stderr
        assert sorted(tg.load(target)) == ["model.b", "model.w"]
        dropped = run("convert", model, target, "--dtype", "ids=int4", "--on-loss", "drop").stderr
        assert "1 loss dropped; --on-loss warn or --json lists each" in dropped

    def test_a_lost_tensor_is_named_before_lost_metadata(self, model: Path) -> None:
        refused = run("convert", model, model.with_name("b.npy"), "--metadata", "step=1", code=4)
        assert "b.npy: npy stores one tensor only; " in refused.stderr

    def test_losses_that_nobody_refuses_are_named(self, tmp_path: Path) -> None:
        shared = np.zeros(2000)
        tg.save(tmp_path / "a.zt", {"a": shared, "b": shared})
        planned = run("convert", tmp_path / "a.zt", tmp_path / "a.bt", "--dry-run").stdout
        said = run("convert", tmp_path / "a.zt", tmp_path / "a.bt").stderr
        assert "warning: bintensors cannot share bytes between tensors: stored separately from 'a'" in said
        lost = "lost: bintensors cannot store the checksums of the source; a sidecar can: pass --sums (rule"
        assert lost in said
        assert lost in planned

    def test_options_are_named_as_they_were_typed(self, model: Path) -> None:
        said = run("ls", model, "--storage-option", "region=x", code=2).stderr
        assert "not a URL; --storage-option needs a URL" in said

    def test_json(self, model: Path) -> None:
        report = json.loads(run("convert", model, model.with_name("b.bt"), "--json").stdout)
        assert (report["ok"], report["written"], report["plan"]["target"]) == (True, True, "bintensors@0")

    @pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
    def test_usage(self, model: Path, arguments: list[str]) -> None:
        run("convert", model, model.with_name("b.bt"), *arguments, code=2)
        assert not model.with_name("b.bt").exists()

    def test_an_interrupt_leaves_nothing(self, tmp_path: Path) -> None:
        tg.save(tmp_path / "big.bt", {"w": np.zeros(40_000_000, np.float32)}, durable=False)
        arguments = ["convert", "big.bt", "out.bt", "--dtype", "float8_e4m3fn"]
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=tmp_path,
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
        )
        wait_until_writing(process.pid, tmp_path)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors
        assert [path.name for path in tmp_path.iterdir()] == ["big.bt"]

    def test_a_bar_on_a_terminal(self, tmp_path: Path) -> None:
        tg.save(tmp_path / "a.bt", {"w": np.zeros(20_000_000, np.float32)}, durable=False)
        code, seen = on_terminal("convert", tmp_path / "a.bt", tmp_path / "b.bt", "--dtype", "bfloat16", columns=100)
        assert code == 0
        assert "converting" in seen
        assert "MB/s" in seen or "GB/s" in seen or "MiB/s" in seen


def test_verify_has_a_bar_on_a_terminal(tmp_path: Path) -> None:
    tg.save(tmp_path / "a.zt", {"x": np.zeros(1 << 22, np.float32)}, compression="zstd", checksum="crc32c")
    for arguments in ([], ["--deep"]):
        code, seen = on_terminal("verify", *arguments, tmp_path / "a.zt", columns=100)
        assert code == 0
        assert "verifying" in seen
        assert "ok: ztensor@0.1, 1 tensor, 16.0 MiB, 1 checksum" in seen
    assert b"verifying" not in piped("verify", "--deep", tmp_path / "a.zt").stderr


class TestDiff:
    def test_the_same(self, model: Path) -> None:
        assert run("diff", model, model).stdout == "the same: 3 tensors\n"
        report = json.loads(run("diff", model, model, "--json").stdout)
        assert (report["same"], report["changes"]) == (True, [])

    def test_different(self, model: Path) -> None:
        other = dict(TENSORS)
        other["model.w"] = TENSORS["model.w"].copy()
        other["model.w"][0, 0] = np.inf
        other["ids"] = np.arange(5)
        tg.save(model.with_name("b.bt"), other, metadata={"k": "w"})
        lines = run("diff", model, model.with_name("b.bt"), code=1).stdout.splitlines()
        assert lines[0].split() == ["name", "change", "difference", "absolute", "relative"]
        cells = [line.split() for line in lines]
        assert ["k", "metadata", "v", "→", "w"] in cells
        assert ["ids", "shape", "[4]", "→", "[5]"] in cells
        assert ["model.w", "values", "1", "of", "12,", "8.33%", "inf", "inf"] in cells
        assert lines[-1] == "different: 2 of 3 tensors (1 shape, 1 values), by at most inf; 1 metadata key"
        document = run("diff", model, model.with_name("b.bt"), "--json", code=1).stdout
        report = json.loads(document, parse_constant=pytest.fail)
        assert report["changes"][-1]["values"]["largest_absolute"] == "Infinity"

    def test_names_are_escaped(self, tmp_path: Path) -> None:
        tg.save(tmp_path / "a.bt", {"\x1b[2J": [1]})
        tg.save(tmp_path / "b.bt", {"\x1b[2J": [2]})
        assert "\x1b" not in run("diff", tmp_path / "a.bt", tmp_path / "b.bt", code=1).stdout

    def test_a_file_that_is_not_there(self, model: Path) -> None:
        run("diff", model, "nothing.bt", code=5)


class TestTerminals:
    """At 80 columns: tables fit, and names that differ look different."""

    @pytest.fixture
    def layers(self, tmp_path: Path) -> Path:
        path = tmp_path / "layers.safetensors"
        tensors = {f"model.layers.{i}.self_attn.q_proj.weight": np.full((64, 64), i / 7) for i in range(12)}
        tg.save(path, tensors, durable=False)
        tg.convert(path, tmp_path / "half.bt", dtype="float16", durable=False)
        return path

    @pytest.mark.parametrize(
        "command",
        [
            ["diff", "{one}", "{two}"],
            ["convert", "--dry-run", "{one}", "x.bt", "--dtype", "bfloat16", "--rename", "model.*=*"],
            ["ls", "--long", "{one}"],
            ["formats"],
            ["info", "{one}"],
        ],
        ids=lambda command: command[0],
    )
    def test_tables_fit(self, layers: Path, command: list[str]) -> None:
        given = [word.format(one=layers, two=layers.with_name("half.bt")) for word in command]
        _, seen = on_terminal(*given, env={"NO_COLOR": "1"})
        lines = seen.rpartition("\x1b[2K")[2].splitlines()  # behind the bar
        assert len(lines) > 5
        assert max(map(len, lines)) <= 80
        if command[0] in ("diff", "convert"):
            assert len({line.split()[0] for line in lines if ".weight" in line.partition(" ")[0]}) == 12

    @pytest.fixture
    def llama(self, tmp_path: Path) -> Path:
        """Names as models have them, in two versions that differ everywhere."""
        path = tmp_path / "a.safetensors"
        parts = [
            "input_layernorm",
            "post_attention_layernorm",
            *(f"mlp.{part}_proj" for part in ("down", "gate", "up")),
        ]
        parts += [f"self_attn.{part}_proj" for part in "kqvo"]
        names = [f"model.layers.{i}.{part}.weight" for i in range(12) for part in parts]
        names += ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "steps"]
        random = np.random.default_rng(0)
        tensors = {name: random.standard_normal((8, 8)).astype(np.float32) for name in names}
        tensors["lm_head.weight"][0, 0] = np.nan
        tg.save(path, tensors, durable=False)
        tg.save(path.with_name("b.zt"), {name: array * 1.01 for name, array in tensors.items()}, durable=False)
        return path

    @pytest.mark.parametrize(
        "command",
        [
            ["stats", "{one}"],
            ["stats", "--long", "{one}"],
            ["ls", "{one}"],
            ["ls", "--long", "{two}"],
            ["diff", "{one}", "{two}"],
            ["convert", "--dry-run", "{one}", "x.zt", "--dtype", "bfloat16", "--compression", "zstd"],
        ],
        ids=" ".join,
    )
    def test_every_tensor_of_a_model_is_told_apart(self, llama: Path, command: list[str]) -> None:
        _, seen = on_terminal(
            *(word.format(one=llama, two=llama.with_name("b.zt")) for word in command), env={"NO_COLOR": "1"}
        )
        _title, *lines, _sum = seen.rpartition("\x1b[2K")[2].splitlines()
        assert max(map(len, lines)) <= 80
        assert len({line.split()[0] for line in lines if not line.startswith(" ")}) == 112

    def test_names_that_would_look_alike_have_their_own_lines(self, llama: Path) -> None:
        command = ("stats", "--long", llama, "model.layers.*", "lm_head.weight")
        _, seen = on_terminal(*command, columns=64, env={"NO_COLOR": "1"})
        title, subtitle, *lines, _sum = seen.rpartition("\x1b[2K")[2].splitlines()
        assert title == "name"
        assert subtitle.split() == ["min", "1%", "25%", "50%", "75%", "99%", "max", "NaN"]
        assert "model.layers.11.post_attention_layernorm.weight" in lines[::2]
        assert {len(line.split()) for line in lines[1::2]} == {8}

    def test_changes_have_colours(self, tmp_path: Path) -> None:
        one = {"gone": np.ones(2), "shape": np.ones(2), "few": np.zeros(100), "many": np.zeros(4)}
        two = {"come": np.ones(2), "shape": np.ones(3), "few": np.eye(1, 100)[0], "many": np.ones(4)}
        for path, tensors in (("a.bt", one), ("b.bt", two)):
            tg.save(tmp_path / path, tensors)
        command = ("diff", tmp_path / "a.bt", tmp_path / "b.bt")
        rows = on_terminal(*command)[1].splitlines()
        found = {name: next(line for line in rows if f"{name} " in line).partition(name)[0] for name in {**one, **two}}
        assert {name: colour.rpartition("\x1b[2K")[2] for name, colour in found.items()} == {
            "gone": "\x1b[31m", "come": "\x1b[32m", "shape": "\x1b[35m", "many": "\x1b[33m", "few": ""
        }  # fmt: skip
        assert "\x1b[3" not in on_terminal(*command, env={"NO_COLOR": "1"})[1].rpartition("\x1b[2K")[2]

    def test_names_that_differ_in_the_middle_stay_distinct(self, tmp_path: Path) -> None:
        """One long name of another branch leaves them little of a common prefix."""
        names = [f"model.layers.{i}.mlp.up_proj.weight" for i in (3, 17, 30)] + ["model.embed_tokens.weight"]
        for path, value in (("a.bt", 0.0), ("b.bt", 0.010254)):
            tg.save(tmp_path / path, {name: np.full((64, 64), value, np.float32) for name in names})
        _, seen = on_terminal("diff", tmp_path / "a.bt", tmp_path / "b.bt", env={"NO_COLOR": "1", "COLUMNS": "76"})
        rows = [line.split()[0] for line in seen.rpartition("\x1b[2K")[2].splitlines() if "values" in line]
        assert len(set(rows[:4])) == 4

    @pytest.mark.parametrize(
        "command",
        [
            ["convert", "{one}", "x.dynd"],
            ["diff", "{one}", "nothing.bt"],
            ["convert", "{one}", "x.pt"],
            ["stats", "no"],
        ],
    )
    def test_an_immediate_error_is_printed_without_a_progress_bar(self, layers: Path, command: list[str]) -> None:
        tg.edit(layers, {"a": "b"}, durable=False)
        code, seen = on_terminal(*(word.format(one=layers) for word in command), env={"NO_COLOR": "1"})
        assert code in (2, 4, 5)
        assert seen.startswith("error: ")
        assert "\x1b" not in seen

    def test_many_casts_are_summarized(self, layers: Path) -> None:
        result = run("convert", layers, layers.with_name("x.bt"), "--dtype", "float16")
        assert "12 tensors cast: 40,960 rounded of 49,152 values; --json has each" in result.stderr.splitlines()
        assert "q_proj" not in result.stderr
        few = run("convert", layers, layers.with_name("x.bt"), "--dtype", "float16", "--select", "model.layers.1.*")
        assert "model.layers.1.self_attn.q_proj.weight: float64 to float16, 4,096 rounded of 4,096 values" in few.stderr


class TestStreams:
    @pytest.mark.parametrize("command", [["ls"], ["info"], ["stats"], ["verify"], ["cat", "ids"]], ids=lambda c: c[0])
    def test_every_reader_takes_stdin(self, model: Path, command: list[str]) -> None:
        from_file = run(command[0], model, *command[1:]).stdout
        from_stdin = run(command[0], "-", *command[1:], stdin=model.read_bytes()).stdout
        assert (
            from_stdin.replace(" - ", f" {model} ") == from_file
            or from_stdin.splitlines()[1:] == from_file.splitlines()[1:]
        )

    def test_a_pipe_through_convert(self, model: Path) -> None:
        script = f"cat {model} | $T convert - - --to bintensors@1 | $T diff {model} -"
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {script.replace('$T', ' '.join(COMMAND))}"],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "the same: 3 tensors\n"

    def test_more_than_fits_in_memory_goes_to_disk(self, tmp_path: Path) -> None:
        class Pipe:
            left = 40 << 20

            def read(self, nbytes: int = -1) -> bytes:
                taken = min(nbytes, self.left)
                self.left -= taken
                return bytes(taken)

        source = source_for(Pipe())  # type: ignore[arg-type]
        assert isinstance(source, FileSource)
        assert source.size == 40 << 20
        assert not any(source.read((40 << 20) - 3, 3))
        source.close()

    def test_contradictory_options_are_usage_errors(self, model: Path) -> None:
        assert "pass --to FORMAT" in run("convert", model, "-", code=2).stderr
        assert "--json cannot be used" in run("convert", model, "-", "--to", "bintensors", "--json", code=2).stderr
        assert "--sums needs a file" in run("convert", model, "-", "--to", "bintensors", "--sums", code=2).stderr

    def test_a_terminal_is_refused_as_a_file(self, model: Path) -> None:
        code, seen = on_terminal("ls", "-")
        assert (code, "stdin, which is a terminal" in seen) == (2, True)
        code, seen = on_terminal("convert", model, "-", "--to", "bintensors")
        assert (code, "stdout is a terminal" in seen) == (2, True)


class TestCompletion:
    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_the_script_names_the_command(self, shell: str) -> None:
        assert "_TENSORGLOT_COMPLETE" in run("completion", shell).stdout

    def test_a_missing_shell_lists_them(self) -> None:
        assert "Choose from: bash, zsh, fish." in run("completion", code=2).stderr

    @pytest.mark.parametrize(("words", "expected"), COMPLETED)
    def test_names_and_options_are_completed(self, words: list[str], expected: str) -> None:
        text = " ".join(["tensorglot", *words])
        done = piped(_TENSORGLOT_COMPLETE="bash_complete", COMP_WORDS=text, COMP_CWORD=str(len(words)))
        assert f"plain,{expected}" in done.stdout.decode().splitlines()
