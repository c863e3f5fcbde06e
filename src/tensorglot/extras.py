"""Optional libraries, imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tensorglot.errors import UnsupportedError

__all__ = ["library"]


def library(module: str, extra: str) -> Any:
    """Imports an optional library; if it is not installed, the error names the extra to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        message = f"{module.partition('.')[0]} is not installed: pip install tensorglot[{extra}]"
        raise UnsupportedError(message, rule=f"extra.{extra}") from error
