"""The command line inside this process."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from tensorglot.cli import commands

__all__ = ["run"]


def run(*args: str | Path, code: int = 0, stdin: bytes | None = None) -> Result:
    """What a command prints; its exit code must be this."""
    result = CliRunner().invoke(commands, [str(arg) for arg in args], input=stdin)
    assert result.exit_code == code, result.output
    return result
