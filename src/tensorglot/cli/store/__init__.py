"""`tensorglot store`: the methods of `tg.store.Store`, a command each.

history     init, commit, log, show, diff, checkout, tag, delete, refs
keeping     check, collect, repack, stats
moving      push, pull, bundle, unbundle
deltas      delta, apply
shared      what the commands share
"""

from __future__ import annotations

import click

from tensorglot.cli.group import Group
from tensorglot.cli.store import deltas, history, keeping, moving

__all__ = ["command"]


@click.group(cls=Group)
def command() -> None:
    """Keep every version of a checkpoint; only changes take space.

    STORE is a directory or a URL. A ref names the newest commit of a branch and moves
    with each new commit; a tag stays. A commit is named by a ref, a tag, its CID or the
    beginning of its CID; for other commands it is store://STORE#REF. Each command has
    --json.

    \b
    Examples:
      tensorglot store init run
      tensorglot store commit run model.safetensors -m 'step 100'
      tensorglot store log run
      tensorglot diff store://run#main model.safetensors
      tensorglot store checkout run main restored.safetensors
    """


for _module in (history, keeping, moving, deltas):
    for _name in _module.__all__:
        command.add_command(getattr(_module, _name))
