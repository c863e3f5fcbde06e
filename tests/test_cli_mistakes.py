"""What people do wrong, and what goes wrong around them: the message, the names in it, and the exit code."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import pickle
import shlex
import signal
import socket
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zstandard

import tensorglot as tg
from command_line import run
from terminals import COMMAND, environment, on_terminal, piped

ESC = "\x1b"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("model.bt", "other.bt"):
        tg.save(name, {"head": np.ones((2, 3), np.float32), "norm": np.zeros(4)})
    return tmp_path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("lss", "No such command 'lss'; did you mean 'ls'?"),
        ("model.bt", "No such command 'model.bt'; to list the tensors of a file: `tensorglot ls model.bt`"),
        ("store lgo", "No such command 'lgo'; did you mean 'log'?"),
        ("vectors exprt", "No such command 'exprt'; did you mean 'export'?"),
        ("ls --srt size", "No such option '--srt'; did you mean '--sort'?"),
        ("convert --formt", "No such option '--formt'; did you mean '--from'?"),
        ("diff -x", "No such option '-x'."),
        ("cat model.bt head '[0'", "error: model.bt: '[0' is not an index"),
        ("convert model.bt x.zt --rename a", "--rename takes OLD=NEW, not 'a'."),
        ("convert model.bt x.zt --dtype head=f16 --dtype f32", "--dtype takes PATTERN=TYPE, not 'f32'."),
        ("edit model.bt --set a", "--set takes KEY=VALUE, not 'a'."),
        ("edit model.bt --replace head=other.bt:nead", "error: other.bt: no such tensor; did you mean 'head'?"),
        ("store log .", "error: .: not a store; make one with `tensorglot store init` (rule store.open)"),
        ("convert model.bt x.zt --dtype f8", "--dtype f8 is ambiguous: pass float64, float8_e4m3fn or float8_e5m2."),
        ("convert model.bt x.zt --dtype head=i8", "--dtype i8 is ambiguous: pass int64 or int8."),
    ],
)
def test_usage_errors_suggest(folder: Path, line: str, message: str) -> None:
    assert message in run(*shlex.split(line), code=2).stderr


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("convert model.bt x.zt --checksum frame", 2, "pass --compression zstd or another --checksum"),
        ("dynd encode mixed.json", 2, "mixed.json: cannot infer one type from int, str; pass --type TYPE"),
        ("dynd encode dicts.json", 2, "dicts.json: dicts in one list must have the same keys"),
        ("dynd decode mixed.json", 3, "mixed.json: "),
        ("vectors inspect model.bt", 4, "error: model.bt: the file has no BSON documents to inspect"),
        ("convert model.bt sub/folder/x.zt", 5, "error: sub/folder: No such file"),
        ("store init run", 2, "error: run: there is a store already (rule store.create)"),
        ("store log run mian", 2, "error: run: no ref, tag or commit 'mian'; did you mean 'main'?"),
        ("vectors export gaps.bson x.npy", 3, "gaps.bson: document 1 has no vector; pass --on-missing skip or nan"),
    ],
)
def test_errors_have_the_path_and_the_words_of_the_command_line(
    folder: Path, line: str, code: int, message: str
) -> None:
    Path("mixed.json").write_text('[1, "a"]')
    Path("dicts.json").write_text('[{"a": 1}, {"b": 2}]')
    whole = tg.bson.encode_documents(np.ones((1, 2), np.float32), "v")
    Path("gaps.bson").write_bytes(bytes(whole) + b"\x05\0\0\0\0")
    with tg.store.Store.create("run") as store:
        store.commit("main", {"w": np.ones(2)})
    assert message in run(*shlex.split(line), code=code).stderr


@pytest.mark.parametrize("spec", [spec for spec in tg.formats() if spec.name != "bson"], ids=lambda spec: spec.name)
def test_an_empty_file_is_called_empty_in_every_format(folder: Path, spec: tg.Format) -> None:
    for suffix in spec.suffixes:
        path = folder / f"empty{suffix}"
        path.touch()
        with pytest.raises(tg.FormatError, match="the file is empty"):
            tg.open(path)


@pytest.mark.parametrize("suffix", [".safetensors", ".bt", ".zt", ".bin", ".gguf", ".onnx", ""])
def test_a_download_that_is_no_tensor_file_says_what_it_is(folder: Path, suffix: str) -> None:
    for data, what in (
        (POINTER, "a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"),
        (b"\n<!DOCTYPE html>\n<html>404</html>" + b" " * 4096, "an HTML or XML page, not a tensor file"),
    ):
        path = folder / f"model{suffix}"
        path.write_bytes(data)
        with pytest.raises(tg.FormatError) as caught:
            tg.open(path)
        assert what in str(caught.value)
        assert caught.value.rule


def _tar(data: bytes) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("model.safetensors"), io.BytesIO(data))
    return archive.getvalue()


def _zip(data: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("model.safetensors", data)
    return archive.getvalue()


WRAPPED = {
    "gzip": (gzip.compress, "a gzip file, and what it contains is not BSON documents; unpack it first"),
    "zstd": (zstandard.compress, "a file compressed with zstd; unpack it first"),
    "xz": (lzma.compress, "a file compressed with xz; unpack it first"),
    "tar": (_tar, "a tar archive; unpack it first"),
    "tar.gz": (lambda data: gzip.compress(_tar(data)), "a gzip file, and what it contains is not BSON documents"),
    "zip": (_zip, "a zip archive of other files than arrays; unpack it first"),
    "parquet": (lambda data: b"PAR1" + data, "a Parquet file; dynd.from_parquet reads it"),
    "arrow": (lambda data: b"ARROW1\0\0" + data, "an Arrow file; read it with pyarrow and pass its columns"),
    "pkl": (pickle.dumps, "a pickle that torch.save did not write: loading it would execute code"),
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_a_file_around_a_tensor_file_says_what_it_is(folder: Path, kind: str) -> None:
    wrap, what = WRAPPED[kind]
    path = folder / f"model.{kind}"
    path.write_bytes(wrap(tg.dumps({"w": np.zeros(1000)}, format="safetensors")))
    with pytest.raises(tg.FormatError) as caught:
        tg.open(path)
    assert what in str(caught.value)


def test_a_bundle_says_how_to_read_it(folder: Path) -> None:
    store = tg.store.Store.create(folder / "run")
    store.commit("main", {"w": np.zeros(3)})
    store.bundle(folder / "run.car", "main")
    with pytest.raises(tg.FormatError, match=r"a bundle of commits; Store\.unbundle adds it to a store"):
        tg.open(folder / "run.car")
    assert "`tensorglot store unbundle` adds it to a store" in run("ls", "run.car", code=3).stderr


def test_a_damaged_gzipped_dump_keeps_its_own_error(folder: Path) -> None:
    documents = tg.bson.encode_documents(np.zeros((3, 4), "float32"), "v")
    for data, rule in (
        (gzip.compress(documents)[:-9], "gzip.end"),
        (gzip.compress(documents + b"\1\0\0\0"), "bson.length"),
    ):
        (folder / "dump.bson").write_bytes(data)
        with pytest.raises(tg.FormatError) as caught:
            tg.open(folder / "dump.bson")
        assert caught.value.rule == rule
        assert "a gzip file" not in str(caught.value)


def test_a_broken_link_and_an_empty_path(folder: Path) -> None:
    Path("link.bt").symlink_to("nowhere.bt")
    assert (
        "link.bt: No such file or directory; it is a symbolic link to nowhere.bt" in run("ls", "link.bt", code=5).stderr
    )
    assert "error: '': No such file" in run("ls", "", code=5).stderr


@pytest.mark.parametrize("line", ["ls model.bt", "diff model.bt model.bt", "convert model.bt x.zt"])
def test_a_file_without_permission_is_an_io_error(folder: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: str, *args: object, **options: object) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "access", lambda *args, **options: False)
    monkeypatch.setattr(os, "open", denied)
    assert "error: model.bt: Permission denied" in run(*line.split(), code=5).stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("line", ["ls model.bt", "ls model.bt --json", "convert model.bt - --to zt", "--help"])
def test_a_full_disk_under_stdout_is_not_an_error_of_the_source(folder: Path, line: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*COMMAND, *line.split()], stdout=full, stderr=subprocess.PIPE, env=environment())
    assert done.returncode == 5
    assert b"stdout: No space left on device" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    ("line", "code"),
    [("convert model.bt other.zt", 0), ("stats model.bt", 0), ("ls nothing.bt", 5), ("nothing", 2), ("", 2)],
)
def test_messages_that_cannot_be_written_do_not_change_the_exit_code(folder: Path, line: str, code: int) -> None:
    with Path("/dev/full").open("wb") as full:
        assert subprocess.run([*COMMAND, *line.split()], stderr=full, env=environment()).returncode == code


@pytest.mark.parametrize("line", ["ls -", "dynd encode", "diff - model.bt"])
def test_a_closed_stdin_is_an_empty_one(folder: Path, line: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", '"$0" -m tensorglot "$@" <&-', sys.executable, *line.split()],
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert done.returncode in (2, 3)
    assert done.stderr.startswith((b"error: the file is empty", b"error: invalid JSON"))


@pytest.mark.parametrize("line", ["diff - -", "report - - -o page.html", "store delta - - d.tgdelta"])
def test_stdin_is_read_once(folder: Path, line: str) -> None:
    done = run(*line.split(), code=2, stdin=(folder / "model.bt").read_bytes())
    assert "error: - reads stdin, which can be read once" in done.stderr


def test_stdin_cannot_be_edited(folder: Path) -> None:
    assert "error: edit needs a file, not stdin." in run("edit", "-", "--set", "a=b", code=2).stderr


def test_a_port_that_is_in_use_is_named(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        error = run("view", "model.bt", "--no-browser", "--port", port, code=5).stderr
    assert f"error: port {port}: Address already in use" in error


def test_errors_name_files_of_a_directory_as_it_was_given(folder: Path) -> None:
    (folder / "file").touch()
    assert "error: file/run: Not a directory" in run("store", "init", "file/run", code=5).stderr


def test_an_interrupt_while_modules_are_imported_prints_no_traceback(folder: Path) -> None:
    program = f"""if True:
        import builtins, os, signal, sys
        sys.argv = ["tensorglot", "ls", "model.bt"]
        real = builtins.__import__
        def interrupted(name, *rest, **options):
            if name == sys.argv[0]:
                os.kill(os.getpid(), {signal.SIGINT})
            return real(name, *rest, **options)
        builtins.__import__ = interrupted
        from tensorglot.__main__ import main
        sys.argv[0] = NAME
        main()
    """
    for name in ("click", "numpy"):
        code = program.replace("NAME", repr(name))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
        assert (done.returncode, done.stderr) == (130, "error: interrupted\n"), name


def test_an_interrupt_that_c_code_has_hidden_is_one(folder: Path) -> None:
    program = """if True:
        import os, signal, sys
        import tensorglot
        def hidden(*args, **options):
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                raise ImportError("numpy failed to import") from None
        tensorglot.open = hidden
        sys.argv = ["tensorglot", "ls", "model.bt"]
        from tensorglot.__main__ import main
        main()
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def test_an_interrupt_while_numpy_is_imported_prints_no_traceback(folder: Path) -> None:
    program = """if True:
        import os, signal, sys, traceback
        import numpy, tensorglot
        def importing(*args, **options):
            numpy.__spec__._initializing = True
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                traceback.print_exc()
                raise ImportError("numpy failed to import") from None
        tensorglot.open = importing
        sys.argv = ["tensorglot", "ls", "model.bt"]
        from tensorglot.__main__ import main
        main()
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def test_the_demo_stops_when_a_step_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device", "model.bt")

    with monkeypatch.context() as patch:
        patch.setattr(tg, "save", full)
        result = run("demo", "playground", code=5)
    assert "model.bt: No space left on device" in result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    monkeypatch.setattr(tg, "diff", full)
    result = run("demo", "playground2", code=5)
    assert result.stdout.endswith("(exit code 5)\n")


def completed(shell: str, line: str) -> str:
    return piped(_TENSORGLOT_COMPLETE=shell, COMP_WORDS=line, COMP_CWORD=str(len(line.split()) - 1)).stdout.decode()


def test_completion_in_bash_quotes_names_that_a_shell_would_execute(folder: Path) -> None:
    names = ["$(touch pwned)", "a b", "a;b", "it's", "plain.w:0", ""]
    tg.save("model.bt", {name: np.ones(1) for name in names})
    offered = completed("bash_complete", "tensorglot cat model.bt ''").splitlines()
    values = [line.removeprefix("plain,") for line in offered]
    assert sorted(shlex.split(" ".join(values))) == sorted(filter(None, names))
    assert all(len(shlex.split(value)) == 1 for value in values)
    assert completed("bash_complete", "tensorglot cat model.bt 'a").strip() == ""
    assert completed("bash_complete", "tensorglot cat model.bt 'pl") == "plain,plain.w:0\n"


def test_completion_of_options_of_the_target(folder: Path) -> None:
    for line, values in (
        ("--compression z", "zstd"),
        ("--checksum sha", "sha256"),
        ("--checksum no", "none"),
        ("--quantize q8", "q8_0"),
        ("--quantize head=int", "head=int8 head=int4"),
    ):
        found = completed("bash_complete", f"tensorglot convert model.bt x.zt {line}")
        assert [each.removeprefix("plain,") for each in found.splitlines()] == values.split()


def test_an_interrupted_completion_prints_nothing(folder: Path) -> None:
    done = piped("ls", _TENSORGLOT_COMPLETE="bash_unknown")
    assert done.stderr == b""


@pytest.mark.parametrize("columns", [30, 40, 80])
@pytest.mark.parametrize(
    "line",
    ["ls model.bt --long", "stats model.bt", "stats model.bt --long", "store log run", "formats", "hash model.bt"],
)
def test_tables_fit_narrow_terminals(folder: Path, line: str, columns: int) -> None:
    from rich.cells import cell_len

    tg.save("model.bt", {f"model.layers.{i}.重み.🦙.weight": np.random.rand(64, 64) for i in range(3)})
    with tg.store.Store.create("run") as store:
        store.commit("main", "model.bt", message="the first of many steps")
    code, seen = on_terminal(*line.split(), columns=columns, env={"NO_COLOR": "1"})
    assert code == 0
    lines = [each for each in seen.splitlines() if "bafy" not in each and ESC not in each]  # no bar
    table = lines[: lines.index("") if "formats" in line else -1]
    assert max(map(cell_len, table), default=0) <= columns


def test_names_keep_as_much_of_their_common_prefix_as_fits(folder: Path) -> None:
    prefix = "model.diffusion_model.input_blocks.11.transformer_blocks.0"
    tg.save("model.bt", {f"{prefix}.attn{i}.to_out.0.weight": np.ones(1) for i in (1, 2)})
    _, seen = on_terminal("ls", "model.bt", columns=70, env={"NO_COLOR": "1"})
    first = seen.splitlines()[1].split()[0]
    assert first.startswith("model.")
    assert first.endswith(".0.attn1.to_out.0.weight")
    _, seen = on_terminal("hash", "model.bt", columns=100)
    assert {len(line) for line in seen.splitlines() if line.startswith("bafy") and ".w" in line} == {100}


def test_a_dumb_terminal_gets_neither_a_bar_nor_empty_lines(folder: Path) -> None:
    for line in ("diff model.bt model.bt", "convert model.bt x.zt", "hash model.bt head", "verify model.bt --deep"):
        code, seen = on_terminal(*line.split(), env={"TERM": "dumb"})
        assert code == 0
        assert ESC not in seen
        assert not seen.startswith("\n")


def test_the_summary_of_a_diff_tells_of_nan(folder: Path) -> None:
    tg.save("other.bt", {"head": np.full((2, 3), np.nan, np.float32), "norm": np.full(4, 0.5)})
    last = run("diff", "model.bt", "other.bt", code=1).stdout.splitlines()[-1]
    assert last == "different: 2 of 2 tensors (2 values), by at most 0.5, 6 NaN on one side"


def test_the_rate_of_a_short_conversion_is_not_shown(folder: Path) -> None:
    message = run("convert", "model.bt", "x.zt").stderr.splitlines()[0]
    assert message.startswith("2 tensors, 56 B to x.zt: ztensor@0.1, 0.")
    assert message.endswith(" s")


def test_errors_of_the_demo_are_json_too(folder: Path) -> None:
    (folder / "taken").mkdir()
    error = json.loads(run("demo", "taken", "--json", code=5).stderr)["error"]
    assert (error["kind"], error["path"]) == ("FileExistsError", "taken")
