"""A group of commands: its list has a whole sentence for each, and a mistyped name suggests the nearest."""

from __future__ import annotations

import click

from tensorglot.errors import did_you_mean

__all__ = ["Group"]

LONGEST = 400
"""Characters of a command's first sentence; click would cut it to what fits one line."""


class Group(click.Group):
    """Commands of a command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchOption:
            raise
        except click.UsageError as error:
            near = self.suggest(args[0]) or did_you_mean(args[0], self.list_commands(ctx)) or "."
            raise click.UsageError(f"No such command '{args[0]}'{near}", ctx) from error

    def suggest(self, word: str) -> str | None:
        """The end of the message for a word that is not a command: what does that instead."""
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(LONGEST)) for name, each in found if each is not None])
