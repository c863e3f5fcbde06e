"""docs/cli.md is what the commands say of themselves. TENSORGLOT_UPDATE=1 writes it anew."""

from __future__ import annotations

import os
from pathlib import Path

import click

from tensorglot.cli import COMMANDS, commands

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
HEAD = """# Command line

Generated from the help of the commands by `TENSORGLOT_UPDATE=1 python -m pytest tests/test_cli_docs.py`.

Data goes to stdout, progress and messages to stderr. Unprintable characters in the names of a file are escaped: `\\x1b`, `\\u202e`. Colours are for terminals only, and off where `NO_COLOR` is set; a progress bar moves the cursor of stderr, if that is a terminal.

With `--json`, stdout is one JSON document: indented on a terminal, on one line in a pipe. It is always valid JSON: NaN and infinite values are the strings `"NaN"`, `"Infinity"`, `"-Infinity"`, a complex number is the pair of its parts. Names are neither shortened nor escaped there. An error leaves stdout empty and is one object on stderr:

```json
{"error": {"kind": "TruncatedError", "message": "...", "rule": "bintensors.data.end", "offset": 1240, "tensor": "w", "path": "model.bt", "exit": 3}}
```

`rule`, `offset` and `tensor` are null where they do not apply. `kind` is the class of the error in Python, or `UsageError`.
"""  # noqa: E501


def section(path: list[str], command: click.Command, parent: click.Context | None = None) -> str:
    """A command and the commands below it."""
    context = click.Context(command, parent, info_name=path[-1], terminal_width=80, max_content_width=80)
    context.help_option_names = ["-h", "--help"]
    text = f"\n{'#' * (len(path) + 1)} {' '.join(path)}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            text += section([*path, name], inner, context)
    return text


def test_the_page_is_what_the_commands_say() -> None:
    page = HEAD + section(["tensorglot"], commands)
    if os.environ.get("TENSORGLOT_UPDATE"):
        PAGE.write_text(page)
    assert PAGE.read_text() == page, "run TENSORGLOT_UPDATE=1 python -m pytest tests/test_cli_docs.py"
    for name in COMMANDS:
        assert f"\n### tensorglot {name}\n" in page


def test_the_first_line_of_each_help_is_that_of_the_table() -> None:
    context = click.Context(commands)
    for name, help in COMMANDS.items():
        command = commands.get_command(context, name)
        assert command is not None
        assert (command.help or "").splitlines()[0] == help


def test_no_sentence_of_the_help_is_cut() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if not line.startswith("Usage: ")]
    assert [line for line in lines if line.endswith("...")] == []
