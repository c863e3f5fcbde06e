"""The fuzz targets as modules: `from fuzzing import bintensors` is fuzz/bintensors.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import tensorglot as tg

__all__ = ["FOLDER", "rule_of"]

FOLDER = Path(__file__).parents[1] / "fuzz"


def rule_of(error: tg.TensorglotError) -> str:
    """The rule of an error, which every error has, in printable words."""
    assert error.rule, "an error without a rule"
    assert str(error).isprintable(), "an error that cannot be printed"
    return error.rule


def __getattr__(name: str) -> Any:
    path = FOLDER / f"{name}.py"
    if not path.exists():
        raise AttributeError(name)
    spec = importlib.util.spec_from_file_location(f"fuzz_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    globals()[name] = module
    return module
