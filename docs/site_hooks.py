"""Adds to the site what is made from the package: the page that opens dropped files, and links to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorglot.report import opener


def on_page_content(html: str, page: Any, **others: Any) -> str:
    """The site has a file that the repository lacks, so its name becomes a link only here."""
    here = "../" * page.url.rstrip("/").count("/") + ("../" if page.url.endswith("/") else "")
    return html.replace("<code>open.html</code>", f'<a href="{here}open.html"><code>open.html</code></a>')


def on_post_build(config: Any) -> None:
    opener(Path(config.site_dir) / "open.html")
