"""The command line: a table of commands, each imported when it is called.

A command parses its arguments, calls an operation and prints the result. Data goes to
stdout, progress and messages to stderr. Only click is imported before a command is
chosen, so that help is fast. A new command is a module with `command`, and a line of
the table below.

    ls, info, cat, stats            look at a file
    verify, hash, diff              check and compare
    convert, split, merge, edit     write
    vectors, dynd                   vectors for MongoDB, values of any type
    store                           versions of checkpoints
    report, view                    pictures, in a browser
    formats, completion, demo       about tensorglot itself

    complete    shell completion of names, refs, formats and types
    exits       errors to exit codes
    group       commands of a command
    options     arguments that several commands share
    shells      completion scripts of bash, zsh and fish
    terminal    tables, colours, bars
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from tensorglot.cli.exits import EXITS, finish, raise_interrupt, wrap_streams
from tensorglot.cli.group import Group

__all__ = ["COMMANDS", "commands", "main"]


COMMANDS = {
    "ls": "List the tensors of a file.",
    "info": "Describe a file, or one tensor of it.",
    "cat": "Print a tensor or a slice of it.",
    "stats": "Print minimum, maximum, mean, deviation, norm, a histogram.",
    "verify": "Check a file against the rules of its format.",
    "hash": "Print the CID of every tensor, and of all together.",
    "diff": "Compare two files: names, types, shapes, values, metadata.",
    "convert": "Write the tensors of a file to another, in any format.",
    "split": "Write a file to a directory of shards with their index.",
    "merge": "Write a directory of shards, or several files, to one file.",
    "edit": "Change the metadata and the tensors of a file.",
    "vectors": "Move vectors between files and MongoDB, and make them smaller.",
    "dynd": "Serialize values of any type to canonical bytes, and back.",
    "store": "Keep every version of a checkpoint; only changes take space.",
    "report": "Write a page with pictures of every tensor, or of what changed.",
    "view": "Show the page of `report` in the browser, for files of any size.",
    "formats": "List the formats and what each can read, write and store.",
    "completion": "Print a completion script for a shell.",
    "demo": "Make a small checkpoint and run the main commands on it.",
}
"""Each command, which is the module of that name, and the first line of its help."""
TERMINATING = (signal.SIGHUP, signal.SIGTERM)


class Commands(Group):
    """The table as a click group."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"tensorglot.cli.{cmd_name}").command
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def suggest(self, word: str) -> str | None:
        if word == "quantize":
            return "; did you mean `convert --quantize SCHEME`, or `vectors quantize` for embeddings?"
        if os.path.exists(word):  # noqa: PTH110
            return f"; to list the tensors of a file: `tensorglot ls {shlex.quote(word)}`"
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

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
        """Runs a command and exits with its code, also after any error."""
        given = sys.argv[1:] if args is None else list(args)

        def run() -> int | None:
            if "_TENSORGLOT_COMPLETE" in os.environ:
                import_module("tensorglot.cli.shells")
            # The parts of click's own `main`, which would print errors and exit by itself.
            self._main_shell_completion({}, "tensorglot", complete_var)
            with self.make_context("tensorglot", list(given)) as context:
                code: int | None = self.invoke(context)
                return code

        finish(run, given)


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
    """Exits as an interrupt does, so that cleanup runs; further signals do not interrupt the cleanup."""
    for each in TERMINATING:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main() -> NoReturn:
    """The entry point. Signal handlers are set only here, never by the library."""
    wrap_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, raise_interrupt)
    for number in TERMINATING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _leave)
    try:
        commands.main()
    except SystemExit as leaving:
        if leaving.code in (130, *(128 + number for number in TERMINATING)):
            # Everything is cleaned up and flushed. A thread that was starting when the interrupt came is in no list,
            # and a normal exit would wait for it forever.
            os._exit(int(leaving.code))
        raise
