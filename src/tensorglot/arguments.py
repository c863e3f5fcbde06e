"""Checks the arguments of public functions: paths, flags, numbers, choices, mappings, names.

A public function checks its arguments first and raises an InputError that says what is
expected. The functions that it calls do not check their types again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from typing import SupportsIndex

from tensorglot.errors import InputError, escape

__all__ = ["as_integer", "as_names", "as_path", "check_choice", "check_flags", "check_mapping"]


def as_path(path: object) -> str:
    """A path as a str that the operating system accepts."""
    try:
        text = os.fspath(path)  # type: ignore[call-overload]
        if type(text) is not str or not text.isascii():
            text = os.fsdecode(text)
            os.fsencode(text)
    except TypeError:
        raise InputError(f"a path must be a str or os.PathLike, not {type(path).__name__}", rule="path.type") from None
    except UnicodeEncodeError:
        raise InputError(f"the path '{escape(text)}' has a lone surrogate", rule="path.text") from None
    if "\0" in text:
        raise InputError(f"the path '{escape(text)}' has a NUL character", rule="path.text")
    return text


def check_flags(**flags: object) -> None:
    """Checks that every flag is a bool of Python or NumPy."""
    for name, value in flags.items():
        if value is not True and value is not False and type(value).__name__ not in ("bool", "bool_"):
            raise InputError(f"{name} must be True or False, not {_shown(value)}", rule="argument.flag")


def as_integer(value: object, what: str, rule: str, least: int | None = None, most: int | None = None) -> int:
    """An integer of Python or NumPy from `least` to `most`, as an int. A bool is refused."""
    if isinstance(value, SupportsIndex) and not isinstance(value, bool) and not getattr(value, "ndim", 0):
        try:
            number = value.__index__()
        except TypeError:  # an array without dimensions of another type
            number = None
        if number is not None and (least is None or number >= least) and (most is None or number <= most):
            return number
    span = "" if least is None else f" of at least {least}" if most is None else f" from {least} to {most}"
    raise InputError(f"{what} must be an integer{span}, not {_shown(value)}", rule=rule)


def check_choice(value: object, choices: Collection[str], what: str, rule: str) -> None:
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{what} must be one of {', '.join(map(repr, choices))}, not {_shown(value)}", rule=rule)


def _shown(value: object) -> str:
    """The text for a value in a message: its repr if it is a simple value, otherwise its type."""
    return repr(value) if value is None or isinstance(value, (str, int, float)) else type(value).__name__


def check_mapping(value: object, what: str, rule: str) -> None:
    """Checks that a value is a mapping whose keys are str without lone surrogates."""
    if not isinstance(value, Mapping):
        raise InputError(f"{what} must be a mapping, not {type(value).__name__}", rule=rule)
    for key in value:
        if not isinstance(key, str):
            raise InputError(f"keys of {what} must be str, not {type(key).__name__}", rule=rule)
        try:
            key.encode()
        except UnicodeEncodeError:
            raise InputError(f"the key '{escape(key)}' of {what} has a lone surrogate", rule=rule) from None


def as_names(value: Iterable[str], what: str, rule: str) -> list[str]:
    """A list of names. A single str is an error: it would be read as a list of characters."""
    if isinstance(value, (str, bytes)):
        raise InputError(f"{what} must be a list of names: pass {what}=[{os.fsdecode(value)!r}]", rule=rule)
    try:
        names = list(value)
    except (TypeError, ValueError):
        raise InputError(f"{what} must be a list of names, not {type(value).__name__}", rule=rule) from None
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"names in {what} must be str, not {type(name).__name__}", rule=rule)
    return names
