"""The fuzz targets as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "bintensors", "bson", "campaign", "chunk_encodings", "dynd", "foreign", "target", "ztensor"]

FOLDER = Path(__file__).parents[1] / "fuzz"


def target(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"fuzz_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bintensors = target("bintensors")
bson = target("bson")
campaign = target("campaign")
chunk_encodings = target("chunk_encodings")
dynd = target("dynd")
foreign = target("foreign")
ztensor = target("ztensor")
