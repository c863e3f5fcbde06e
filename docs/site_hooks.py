"""Adds to the site what is made from the package: the page that opens dropped files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorglot.report import opener


def on_post_build(config: Any) -> None:
    opener(Path(config.site_dir) / "open.html")
