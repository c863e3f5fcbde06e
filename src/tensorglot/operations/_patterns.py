"""Names and patterns: which tensors, under which new names, in which types.

Patterns are shell patterns, where `*` also matches dots and slashes. An exact name takes
precedence over a pattern. A pattern that matches no tensor of the file is an error.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar, cast

from numpy.typing import DTypeLike

from tensorglot.arguments import as_names, check_mapping
from tensorglot.errors import InputError, TensorNotFound, escape
from tensorglot.model.dtypes import DType, dtype_of
from tensorglot.model.names import check_name

__all__ = [
    "DTypes",
    "NewDType",
    "Rename",
    "Schemes",
    "Select",
    "by_pattern",
    "rename_all",
    "select_names",
    "settle_dtypes",
]

T = TypeVar("T")

Select: TypeAlias = "str | Iterable[str] | Callable[[str], bool]"
Rename: TypeAlias = "Mapping[str, str] | Callable[[str], str]"
DTypes: TypeAlias = "DTypeLike | DType | Mapping[str, DTypeLike | DType]"
Schemes: TypeAlias = "str | Mapping[str, str]"
NewDType: TypeAlias = Callable[[str, DType | None], DType | None]
"""The new type of a tensor, by its name and type; None to keep it."""


def select_names(names: Sequence[str], select: Select | None) -> list[str]:
    """The names that a pattern, one of several patterns, or a function selects, in their order."""
    if select is None:
        return list(names)
    if callable(select):
        return [name for name in names if select(name)]
    wanted: set[str] = set()
    for pattern in [select] if isinstance(select, str) else as_names(select, "select", "select.names"):
        fits = re.compile(fnmatch.translate(pattern)).match
        found = {name for name in names if name == pattern or fits(name)}
        if not found:
            raise TensorNotFound.matching(pattern, names)
        wanted |= found
    return [name for name in names if name in wanted]


def rename_all(names: Sequence[str], rename: Rename | None, every: Sequence[str]) -> dict[str, str]:
    """New names by old ones. In `{"model.*": "*"}`, each new star is replaced by the match of the old one.

    Each rule must match one of `every`, the names of the file, selected or not.
    """
    if rename is None:
        return dict(zip(names, names, strict=True))
    if not callable(rename):
        check_mapping(rename, "rename", "rename.mapping")
    new_name = rename if callable(rename) else _renamer(rename, every)
    new = {name: new_name(name) for name in names}
    taken: dict[str, str] = {}
    for old, name in new.items():
        check_name(name)
        if name in taken:
            raise InputError(
                f"'{escape(taken[name])}' and '{escape(old)}' would both be renamed to '{escape(name)}'",
                rule="rename.twice",
                tensor=old,
            )
        taken[name] = old
    return new


def _renamer(rename: Mapping[str, str], every: Sequence[str]) -> Callable[[str], str]:
    rules = []
    for old, new in rename.items():
        check_name(new)
        if old.count("*") != new.count("*"):
            raise InputError(f"'{escape(old)}' and '{escape(new)}' must have the same number of *", rule="rename.stars")
        pattern = re.compile("(.*)".join(map(re.escape, old.split("*"))), re.DOTALL)
        if not any(map(pattern.fullmatch, every)):
            raise TensorNotFound.matching(old, every)
        rules.append((pattern, new.split("*")))

    def new_name(name: str) -> str:
        if name in rename:
            return rename[name]
        for pattern, pieces in rules:
            match = pattern.fullmatch(name)
            if match is not None:
                return "".join(text for pair in zip(pieces, (*match.groups(), ""), strict=True) for text in pair)
        return name

    return new_name


def by_pattern(choices: Mapping[str, T], names: Sequence[str]) -> dict[str, T]:
    """The choice for each name: by the exact name, else by the first pattern that matches.

    A key that is the name of a tensor is never a pattern, whatever characters it has.
    """
    check_mapping(choices, "a mapping by names and patterns", "pattern.mapping")
    existing = set(names)
    patterns = {key: re.compile(fnmatch.translate(key)).match for key in choices if key not in existing}
    found: dict[str, T] = {}
    unused = set(patterns)
    for name in names:
        if name in choices:
            found[name] = choices[name]
        # Also for a name that has its own choice: a pattern counts as used if it matches any tensor.
        fitting = [key for key, fits in patterns.items() if fits(name)]
        unused.difference_update(fitting)
        if fitting:
            found.setdefault(name, choices[fitting[0]])
    for key in patterns:
        if key in unused:
            raise TensorNotFound.matching(key, names)
    return found


def settle_dtypes(dtype: DTypes, names: Sequence[str]) -> NewDType:
    """A function for the new type of each tensor.

    A single type is for tensors of its kind: a float for real numbers, an integer for
    integers. A mapping from names or patterns to types is for all tensors that match.
    """
    if isinstance(dtype, Mapping):
        patterns = cast("Mapping[str, DTypeLike | DType]", dtype)
        chosen = {name: dtype_of(new, name) for name, new in by_pattern(patterns, names).items()}
        return lambda name, old: None if old is None or chosen.get(name) is old else chosen.get(name)
    new = dtype_of(dtype)
    return lambda name, old: None if old is None or new is old or new.kind != old.kind else new
