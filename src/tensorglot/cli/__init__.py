"""The command line: a table of commands, each loaded when it is called.

A command reads its arguments, calls an operation and prints. Data goes to stdout,
progress and messages to stderr. Nothing here computes, and nothing here imports more
than click before a command is chosen, so that help costs nothing. A new command is a
module with `command`, and a line of the table below.

    ls, info, cat, stats            look at a file
    verify, hash, diff              check and compare
    convert, split, merge, edit     write
    vectors, dynd                   vectors for MongoDB, values of any type
    formats, completion, demo       about tensorglot itself

    exits       errors to exit codes
    options     arguments that several commands share
    terminal    tables, colours, bars
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

import click

from tensorglot.cli.exits import EXITS, finish

__all__ = ["COMMANDS", "Command", "commands", "main"]


class Command(NamedTuple):
    """One row."""

    name: str
    module: str
    help: str
    """The first line of the command's own help."""


COMMANDS: tuple[Command, ...] = (
    Command("ls", "tensorglot.cli.ls", "List the tensors of a file."),
    Command("info", "tensorglot.cli.info", "Describe a file, or one tensor of it."),
    Command("cat", "tensorglot.cli.cat", "Print a tensor or a slice of it."),
    Command("stats", "tensorglot.cli.stats", "Minimum, maximum, mean, deviation, zeros, NaN and Inf."),
    Command("verify", "tensorglot.cli.verify", "Check that a file keeps the rules of its format."),
    Command("hash", "tensorglot.cli.hash", "Print the identity of every tensor, and of them all."),
    Command("diff", "tensorglot.cli.diff", "Compare two files: names, types, shapes, values, metadata."),
    Command("convert", "tensorglot.cli.convert", "Write the tensors of a file to another, in any format."),
    Command("split", "tensorglot.cli.split", "Write a file to a directory of shards with their index."),
    Command("merge", "tensorglot.cli.merge", "Write a directory of shards, or several files, to one file."),
    Command("edit", "tensorglot.cli.edit", "Change the metadata of a file, and nothing else."),
    Command("vectors", "tensorglot.cli.vectors", "Move vectors between files and MongoDB, and make them smaller."),
    Command("dynd", "tensorglot.cli.dynd", "Serialize values of any type to canonical bytes, and back."),
    Command("formats", "tensorglot.cli.formats", "List the formats with what each can read, write and hold."),
    Command("completion", "tensorglot.cli.completion", "Print what makes a shell complete commands and options."),
    Command("demo", "tensorglot.cli.demo", "Make a small checkpoint and show what can be done with it."),
)
TERMINATING = (signal.SIGHUP, signal.SIGTERM)
_BY_NAME = {row.name: row for row in COMMANDS}


class Commands(click.Group):
    """The table as a group of click."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_BY_NAME)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        row = _BY_NAME.get(cmd_name)
        if row is None:
            return None
        command = import_module(row.module).command
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(row.name, row.help) for row in COMMANDS])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in EXITS.items()])

    def main(  # type: ignore[override]  # it always exits
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        **options: Any,
    ) -> NoReturn:
        """Runs a command and leaves with its exit code, whatever happens on the way."""
        given = sys.argv[1:] if args is None else list(args)

        def run() -> int | None:
            self._main_shell_completion({}, "tensorglot", complete_var)
            with self.make_context("tensorglot", list(given)) as context:
                code: int | None = self.invoke(context)
                return code

        finish(run, as_json="--json" in given)


def _version(ctx: click.Context, option: click.Parameter, asked: bool) -> None:
    if asked:
        from tensorglot import __version__

        click.echo(__version__)
        ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit."
)
def commands() -> None:
    """Tensors in any container: look, check, compare, convert.

    Data goes to stdout, progress and messages to stderr. Every command has --json:
    then stdout is one JSON document, and an error is one JSON object on stderr.
    """


def _leave(number: int, frame: object) -> NoReturn:
    """Ends as an interrupt does, so that what was begun is undone; asked again, it goes on with that."""
    for each in TERMINATING:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main() -> NoReturn:
    """The entry point. The process is ours, so its signals are: a library would have to leave them alone."""
    for number in TERMINATING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _leave)
    try:
        commands.main()
    except SystemExit as leaving:
        if leaving.code in (130, *(128 + number for number in TERMINATING)):
            # All is cleaned up and printed. A worker that was just being started when the interrupt came is known to
            # nobody, and an ordinary exit would wait for it forever.
            os._exit(int(leaving.code))
        raise
