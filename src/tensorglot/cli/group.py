"""A group of commands whose list has a whole sentence for each: click would cut it to what fits one line."""

from __future__ import annotations

import click

__all__ = ["Group"]

LONGEST = 400
"""Characters of a command's first sentence."""


class Group(click.Group):
    """Commands of a command."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(LONGEST)) for name, each in found if each is not None])
