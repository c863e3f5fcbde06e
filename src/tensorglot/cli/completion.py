"""`tensorglot completion`"""

from __future__ import annotations

import click

from tensorglot.cli.options import as_json
from tensorglot.cli.terminal import print_json

__all__ = ["command"]


@click.command
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@as_json
def command(shell: str, as_json: bool) -> None:
    """Print a completion script for a shell.

    \b
    Examples:
      tensorglot completion bash >> ~/.bashrc
      tensorglot completion zsh >> ~/.zshrc
      tensorglot completion fish > ~/.config/fish/completions/tensorglot.fish
    """
    from click.shell_completion import get_completion_class

    from tensorglot.cli import commands

    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101
    script = kind(commands, {}, "tensorglot", "_TENSORGLOT_COMPLETE").source()
    if as_json:
        print_json({"shell": shell, "script": script})
    else:
        print(script)
