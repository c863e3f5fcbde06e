"""Shell completion: what bash, zsh and fish insert, also for names and options with signs that shells split at."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tensorglot as tg
from terminals import environment, piped

NAMES = ["onnx::MatMul_12", "onnx::Conv_3", "dense/kernel:0", "x,y", "a b", "it's", "c:d e"]
BASH = r"""
source script
COMP_WORDBREAKS=$' \t\n"\'><=;|&(:'
COMP_LINE=$1 COMP_POINT=${#1}
_tensorglot_completion ./tensorglot
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tg.save("odd.zt", {name: np.ones(2) for name in NAMES})
    command = tmp_path / "tensorglot"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tensorglot "$@"\n')
    command.chmod(0o755)
    return tmp_path


def shell(program: str, *arguments: str) -> list[str]:
    """Starts a shell beside the completion script of its kind, and returns the lines that it prints."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    Path("script").write_bytes(piped("completion", program).stdout)
    env = environment() | {"PATH": f"{Path.cwd()}:{environment()['PATH']}", "HOME": str(Path.cwd())}
    done = subprocess.run([path, *arguments], capture_output=True, env=env, timeout=60)
    assert done.stderr == b""
    return done.stdout.decode().splitlines()


@pytest.mark.parametrize(
    ("line", "inserted"),
    [
        # What bash replaces is behind the last : or =, except within quotes.
        ("tensorglot cat odd.zt onnx::", ["MatMul_12", "Conv_3"]),
        ("tensorglot cat odd.zt onnx::C", ["Conv_3"]),
        ("tensorglot cat odd.zt 'onnx::C", ["onnx::Conv_3"]),
        ("tensorglot cat odd.zt c:", ["'d e'"]),
        ("tensorglot cat odd.zt den", ["dense/kernel:0"]),
        ("tensorglot cat odd.zt x", ["x,y"]),
        ("tensorglot cat odd.zt a", ["'a b'"]),
        ("tensorglot ls odd.zt --sort=s", ["size"]),
        ("tensorglot convert odd.zt x.bt --dtype layers.*=bfl", ["bfloat16"]),
        ("tensorglot convert odd.zt x.bt --dtype 'layers.*=bfl", ["layers.*=bfloat16"]),
        ("tensorglot st", ["stats", "store"]),
    ],
)
def test_bash(folder: Path, line: str, inserted: list[str]) -> None:
    assert shell("bash", "--norc", "-c", BASH, "bash", line) == inserted


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("cat odd.zt onnx::", ["onnx::Conv_3", "onnx::MatMul_12"]),
        ("cat odd.zt x", ["x,y"]),
        ("ls odd.zt --sort=s", ["--sort=size"]),
        ("hash odd.zt --fo", ["--format\tFormat of the file, e.g. bintensors@1; detected by default."]),
        ("report odd.zt -o od", ["odd.zt"]),
    ],
)
def test_fish(folder: Path, line: str, offered: list[str]) -> None:
    found = shell("fish", "--no-config", "-c", f"source script; complete -C 'tensorglot {line}'")
    assert found == offered


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("ls odd.zt --sort=s", ["plain", "--sort=size", "_"]),
        ("cat odd.zt onnx::C", ["plain", "onnx::Conv_3", "_"]),
    ],
)
def test_zsh_is_told_whole_words(folder: Path, words: str, found: list[str]) -> None:
    line = f"tensorglot {words}"
    done = piped(_TENSORGLOT_COMPLETE="zsh_complete", COMP_WORDS=line, COMP_CWORD=str(len(words.split())))
    assert done.stdout.decode().splitlines() == found
