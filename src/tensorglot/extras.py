"""Libraries that the core can do without, imported by whoever uses them, when they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tensorglot.errors import UnsupportedError

__all__ = ["library"]


def library(module: str, extra: str) -> Any:
    """The module; where it is not installed, a refusal that names the extra that brings it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        message = f"{module} is not installed: pip install tensorglot[{extra}]"
        raise UnsupportedError(message, rule=f"extra.{extra}") from error
