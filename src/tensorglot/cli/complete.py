"""Shell completion: names of tensors in a file, refs of a store, formats, element types.

Called while the user types: nothing is printed, not even an error, and names that a shell
could not show on one line are left out. `shells` makes completions safe to insert.
"""

from __future__ import annotations

from collections.abc import Iterable

import click

__all__ = [
    "complete_checksums",
    "complete_compression",
    "complete_dtypes",
    "complete_formats",
    "complete_names",
    "complete_refs",
    "complete_schemes",
]

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


def _offer(names: Iterable[str], typed: str) -> list[str]:
    """Names of a file that begin with what was typed."""
    return _starting((name for name in names if name.isprintable() and not name.isspace() and name), typed)


def complete_names(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Names of tensors in the file that was typed before the cursor."""
    import tensorglot as tg

    file = _typed_before(context, "file", "source")
    if not file or file == "-":
        return []
    try:
        with tg.open(file) as archive:
            return _offer(archive, typed)
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
            return _offer(store.refs(), typed)
    except (tg.TensorglotError, OSError):
        return []


def complete_formats(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    import tensorglot as tg

    writing = "--to" in parameter.opts
    specs = [spec for spec in tg.formats() if spec.writes or not writing]
    versions = [f"{spec.name}@{version}" for spec in specs for version in (spec.writes if writing else spec.versions)]
    return _starting([spec.name for spec in specs] if "@" not in typed else versions, typed)


def complete_compression(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    import tensorglot as tg

    return _starting(dict.fromkeys(name for spec in tg.formats() for name in spec.compression), typed)


def complete_checksums(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    import tensorglot as tg

    written = (name for spec in tg.formats() if spec.writes for name in spec.checksums)
    return _starting(dict.fromkeys(["auto", "none", *written]), typed)


def complete_dtypes(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Element types, also after a pattern: `layers.*=bf16`."""
    from tensorglot.model.dtypes import ALIASES, TABLE

    return _after_pattern([*(row.name for row in TABLE if row.numpy is not None), *ALIASES], typed)


def complete_schemes(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Schemes of quantization, also after a pattern."""
    from tensorglot.operations.quantize import SCHEMES

    return _after_pattern(SCHEMES, typed)


def _after_pattern(words: Iterable[str], typed: str) -> list[str]:
    pattern, equals, begun = typed.rpartition("=")
    return [f"{pattern}{equals}{word}" for word in _starting(words, begun)]
