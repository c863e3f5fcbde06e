"""Arguments of a caller, checked at the door: a path, a choice, a mapping, names.

Whoever passes something else gets an InputError that says what is expected. Nothing
behind the door looks at the kind of an argument again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping

from tensorglot.errors import InputError, escape

__all__ = ["as_names", "as_path", "check_choice", "check_mapping"]


def as_path(path: object) -> str:
    """A path as text that the operating system takes."""
    try:
        text = os.fsdecode(path)  # type: ignore[arg-type]
        os.fsencode(text)
    except TypeError:
        raise InputError(f"a path is a str or os.PathLike, not {type(path).__name__}", rule="path.type") from None
    except UnicodeEncodeError:
        raise InputError(f"the path '{escape(text)}' has a lone surrogate", rule="path.text") from None
    if "\0" in text:
        raise InputError(f"the path '{escape(text)}' has a NUL character", rule="path.text")
    return text


def check_choice(value: object, choices: Collection[str], what: str, rule: str) -> None:
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{what} is one of {', '.join(map(repr, choices))}, not {value!r}", rule=rule)


def check_mapping(value: object, what: str, rule: str) -> None:
    """A mapping whose keys are texts."""
    if not isinstance(value, Mapping):
        raise InputError(f"{what} is a mapping, not {type(value).__name__}", rule=rule)
    for key in value:
        if not isinstance(key, str):
            raise InputError(f"a key of {what} is a str, not {type(key).__name__}", rule=rule)


def as_names(value: Iterable[str], what: str, rule: str) -> list[str]:
    """Several names. One str would be taken for its characters, so it is refused."""
    if isinstance(value, str):
        raise InputError(f"{what} is a list of names: pass {what}=[{value!r}]", rule=rule)
    try:
        names = list(value)
    except (TypeError, ValueError):
        raise InputError(f"{what} is a list of names, not {type(value).__name__}", rule=rule) from None
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"{what} has names, which are str, not {type(name).__name__}", rule=rule)
    return names
