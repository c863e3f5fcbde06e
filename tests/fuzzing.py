"""The fuzz targets as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

__all__ = ["bintensors", "bson", "campaign", "delta", "dynd", "encodings", "foreign", "ztensor"]


def _target(name: str) -> Any:
    path = Path(__file__).parents[1] / "fuzz" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"fuzz_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bintensors = _target("bintensors")
bson = _target("bson")
delta = _target("delta")
dynd = _target("dynd")
encodings = _target("encodings")
ztensor = _target("ztensor")
foreign = _target("foreign")
campaign = _target("campaign").campaign
