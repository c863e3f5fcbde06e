"""Shell completion: names of tensors in a file, refs of a store, formats, element types.

Called while the user types: nothing is printed, not even an error, and names that a shell
could not show on one line are left out.
"""

from __future__ import annotations

from collections.abc import Iterable

import click

__all__ = ["complete_dtypes", "complete_formats", "complete_names", "complete_refs"]

MOST = 500
"""Names that are offered at once."""


def _starting(words: Iterable[str], typed: str) -> list[str]:
    return [word for word in words if word.startswith(typed)][:MOST]


def _typed_before(context: click.Context, *names: str) -> str | None:
    """An argument that was typed before the cursor.

    While the value of an option is completed, click has not assigned arguments to parameters: they are in `args`.
    """
    found = (context.params.get(name) for name in names)
    return next(filter(None, found), context.args[0] if context.args else None)


def complete_names(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Names of tensors in the file that was typed before the cursor."""
    import tensorglot as tg

    file = _typed_before(context, "file", "source")
    if not file or file == "-":
        return []
    try:
        with tg.open(file) as archive:
            return _starting((name for name in archive if name.isprintable() and not name.isspace()), typed)
    except (tg.TensorglotError, OSError):
        return []


def complete_refs(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Refs and tags of the store argument before the cursor; for `pull`, of the store to pull from."""
    import tensorglot as tg

    path = _typed_before(context, "other" if context.command.name == "pull" else "store")
    if not path:
        return []
    try:
        with tg.store.Store(path) as store:
            return _starting((name for name in store.refs() if name.isprintable()), typed)
    except (tg.TensorglotError, OSError):
        return []


def complete_formats(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    import tensorglot as tg

    writing = parameter.name == "to"
    specs = [spec for spec in tg.formats() if spec.writes or not writing]
    versions = [f"{spec.name}@{version}" for spec in specs for version in (spec.writes if writing else spec.versions)]
    return _starting([spec.name for spec in specs] if "@" not in typed else versions, typed)


def complete_dtypes(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Element types, also after a pattern: `layers.*=bf16`."""
    from tensorglot.model.dtypes import ALIASES, TABLE

    pattern, equals, begun = typed.rpartition("=")
    names = [*(row.name for row in TABLE if row.numpy is not None), *ALIASES]
    return [f"{pattern}{equals}{name}" for name in _starting(names, begun)]
