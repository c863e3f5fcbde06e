"""Shared by the commands of a store: the argument STORE, and the text of a commit and of a share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tensorglot.cli.options import PATH, storage_option, storage_options_for
from tensorglot.cli.terminal import print_result

if TYPE_CHECKING:
    from tensorglot.store import Commit, Store


__all__ = ["open_store", "print_commit", "share_text", "store_argument"]

F = TypeVar("F", bound=Callable[..., Any])


def store_argument(run: F) -> F:
    return click.argument("store", type=PATH)(storage_option(run))


def open_store(path: str) -> Store:
    from tensorglot.store import Store

    return Store(path, storage_options_for(path))


def share_text(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if 0 < whole >= part else "-"


def print_commit(made: Commit, as_json: bool) -> None:
    print_result(made.to_dict(), made.cid, as_json=as_json)
