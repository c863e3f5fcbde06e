"""`tensorglot completion`"""

from __future__ import annotations

import click

from tensorglot.cli.options import as_json
from tensorglot.cli.terminal import print_result

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
    from tensorglot.cli import commands
    from tensorglot.cli.shells import SHELLS

    script = SHELLS[shell](commands, {}, "tensorglot", "_TENSORGLOT_COMPLETE").source()
    print_result({"shell": shell, "script": script}, script, as_json=as_json)
