"""Arguments that several commands share, and the ways in which values are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

__all__ = ["as_json", "counted", "file_argument", "patterns_argument", "reading_format", "shape_text"]

F = TypeVar("F", bound=Callable[..., Any])


def file_argument(command: F) -> F:
    return click.argument("file", type=click.Path(path_type=str))(command)


def patterns_argument(command: F) -> F:
    return click.argument("patterns", metavar="[PATTERN]...", nargs=-1)(command)


def as_json(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def reading_format(command: F) -> F:
    return click.option(
        "--format", metavar="NAME", help="Read it as this format, e.g. bintensors@1, instead of finding out."
    )(command)


def counted(count: int, noun: str) -> str:
    """`1 tensor`, `2,000 tensors`"""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shape_text(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"
