"""The command line as a process: pipes, terminals, signals, full disks, and how long it takes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tensorglot as tg
from tensorglot.cli import COMMANDS
from terminals import COMMAND, environment, on_terminal, piped, wait_until_writing

ESC = "\x1b"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    names = [f"model.layers.{i}.self_attn.q_proj.weight" for i in range(3)] + [
        "x" * 300,
        "重み" * 50,
        "\x1b]0;evil\x07",
    ]
    tg.save(folder / "model.bt", {name: np.ones((2, 3), np.float32) for name in names})
    tg.save(folder / "many.bt", {f"layer.{i}.weight": np.zeros(4, np.float32) for i in range(100_000)}, durable=False)
    return folder


@pytest.mark.parametrize("args", [["--help"], ["stats", "--help"]], ids=" ".join)
def test_help_imports_neither_numpy_nor_rich(args: list[str]) -> None:
    program = f"""if True:
        import sys
        from tensorglot.cli import commands
        try:
            commands.main({args})
        finally:
            print(*sys.modules, file=sys.stderr)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment(), text=True)
    assert done.returncode == 0
    assert "stats" in args or all(help in done.stdout for help in COMMANDS.values())
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert not loaded & {"numpy", "ml_dtypes", "rich"}


def test_a_pipe_gets_no_escape_sequence_and_whole_names(folder: Path) -> None:
    for command in ("stats", "info"):
        done = piped(command, folder / "model.bt", FORCE_COLOR="1")
        assert (done.returncode, done.stderr) == (0, b"")
        assert ESC.encode() not in done.stdout
    listed = piped("ls", folder / "model.bt").stdout.decode()
    assert "x" * 300 in listed
    assert "重み" * 50 in listed
    assert r"\x1b]0;evil\x07" in listed


@pytest.mark.parametrize("columns", [60, 80])
def test_a_terminal_gets_a_table_that_fits(folder: Path, columns: int) -> None:
    from rich.cells import cell_len

    code, seen = on_terminal("ls", folder / "model.bt", columns=columns, env={"NO_COLOR": "1"})
    assert code == 0
    assert ESC not in seen
    lines = seen.splitlines()
    assert max(map(cell_len, lines)) <= columns
    assert len({cell_len(line) for line in lines[:-1]}) == 1
    assert sum("…" in line for line in lines) >= 2


def test_a_terminal_gets_bold_titles_and_a_bar(folder: Path) -> None:
    _, seen = on_terminal("ls", folder / "model.bt")
    assert seen.startswith(f"{ESC}[1mname")
    assert seen.count(ESC) == 2
    _, seen = on_terminal("stats", folder / "model.bt")
    assert "reading" in seen
    _, seen = on_terminal("ls", folder / "model.bt", env={"TERM": "dumb"})
    assert ESC not in seen


def test_json_on_a_terminal_is_for_people(folder: Path) -> None:
    _, seen = on_terminal("ls", folder / "model.bt", "--json")
    assert '\n  "format": "bintensors@0"' in seen
    assert ESC not in seen
    assert json.loads(seen)["count"] == 6


def test_binary_data_is_not_printed_on_a_terminal(folder: Path) -> None:
    code, seen = on_terminal("cat", folder / "model.bt", "x" * 300, "--npy", env={"NO_COLOR": "1"})
    assert code == 2
    assert seen.startswith("error: stdout is a terminal: redirect the .npy file")


@pytest.mark.parametrize("args", [["ls", "{many}"], ["ls", "{many}", "--json"], ["--help"], ["cat", "{big}", "x"]])
def test_the_reader_goes_away(folder: Path, args: list[str]) -> None:
    big = folder / "big.bt"
    tg.save(big, {"x": np.zeros(2_000_000, np.float32)}, durable=False)
    filled = [arg.format(many=folder / "many.bt", big=big) for arg in args]
    ours, theirs = os.pipe()
    process = subprocess.Popen([*COMMAND, *filled], stdout=theirs, stderr=subprocess.PIPE, env=environment())
    os.close(theirs)
    if args != ["--help"]:
        os.read(ours, 10)
    os.close(ours)
    _, err = process.communicate(timeout=60)
    assert err == b""
    assert process.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize(
    "args", [["ls", "{model}"], ["cat", "{model}", "model.layers.0.self_attn.q_proj.weight", "--npy"]]
)
def test_the_disk_is_full(folder: Path, args: list[str]) -> None:
    filled = [arg.format(model=folder / "model.bt") for arg in args]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*COMMAND, *filled], stdout=full, stderr=subprocess.PIPE, env=environment(), text=True)
    assert done.returncode == 5
    assert done.stderr == "error: stdout: No space left on device\n"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc here")
def test_interrupted(folder: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "stats", str(folder / "many.bt")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    while "many.bt" not in "".join(str(link.resolve()) for link in Path(f"/proc/{process.pid}/fd").iterdir()):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "error: interrupted\n")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc here")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("verb", ["convert", "split"])
def test_terminated(tmp_path: Path, verb: str, number: int, code: int) -> None:
    tg.save(tmp_path / "big.bt", {f"w{i}": np.zeros(10_000, np.float32) for i in range(2000)}, durable=False)
    arguments = {"convert": ["out.npz", "--compression", "deflate"], "split": ["out", "--shard-size", "50kB"]}[verb]
    before = (tmp_path / "big.bt").read_bytes()
    process = subprocess.Popen(
        [*COMMAND, verb, "big.bt", *arguments],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    wait_until_writing(process.pid, tmp_path)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert [path.name for path in tmp_path.iterdir()] == ["big.bt"]
    assert (tmp_path / "big.bt").read_bytes() == before


def test_what_the_caller_ignores_stays_ignored(folder: Path) -> None:
    """As under nohup."""
    program = "import signal, tensorglot.cli as c; signal.raise_signal(signal.SIGHUP); c.main()"
    done = subprocess.run(
        [sys.executable, "-c", f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); {program}", "formats"],
        env=environment(),
        capture_output=True,
    )
    assert done.returncode == 0


def test_an_encoding_that_lacks_a_character(folder: Path) -> None:
    done = piped("ls", folder / "model.bt", PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u91cd\u307f" in done.stdout


def test_paths_that_are_not_files(folder: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for name in ("a.bt", "b.bt"):
        (tmp_path / name).symlink_to(folder / "model.bt")
    for path, kind in (
        (fifo, b"a FIFO"),
        (tmp_path, b"the directory has 2 candidates"),
        (Path("/dev/zero"), b"a device"),
    ):
        done = piped("ls", path)
        assert done.returncode == 2
        assert kind in done.stderr


def test_a_file_name_that_is_not_utf8(folder: Path) -> None:
    path = os.fsencode(folder) + b"/\xff\x1b[2J.bt"
    done = subprocess.run([*COMMAND, "ls", path], capture_output=True, env=environment())
    assert done.returncode == 5
    assert rb"\udcff\x1b[2J.bt: No such file or directory" in done.stderr


def test_many_tensors_are_all_listed(folder: Path) -> None:
    done = piped("ls", folder / "many.bt")
    assert done.stdout.count(b"\n") == 100_002


def test_version() -> None:
    done = piped("--version")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().strip() == tg.__version__


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-"])
def test_streams_that_are_closed(folder: Path, closed: str) -> None:
    line = f'"{sys.executable}" -m tensorglot ls "{folder / "model.bt"}" {closed}'
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, env=environment())
    assert (done.returncode, done.stderr) == (0, b"")
