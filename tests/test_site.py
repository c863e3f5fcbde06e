"""The documentation site builds without a broken link, names everything public, and loads nothing from other hosts."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tensorglot as tg
from peers import needs
from tensorglot import bson, dynd, report, store

ROOT = Path(__file__).parents[1]
LOADED = re.compile(
    r"<(?:script|img|iframe|source)[^>]+src=[\"']?(https?:)?//|<link[^>]+href=[\"']?(https?:)?//|@import|url\([\"']?(?:https?:)?//"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("mkdocs")
    needs("mkdocstrings")
    needs("material")
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 10
    for page in pages:
        assert not LOADED.search(page.read_text()), page


def test_the_page_that_opens_files_is_on_the_site(site: Path) -> None:
    assert '"mode":"open"' in (site / "open.html").read_text()
    links = re.findall(r'href="([^"]*open\.html)"', (site / "report" / "index.html").read_text())
    assert links
    assert all((site / "report" / link).resolve() == site / "open.html" for link in links)


def test_the_reference_has_every_public_name(site: Path) -> None:
    text = (site / "api" / "index.html").read_text()
    for prefix, module in (("", tg), ("bson.", bson), ("dynd.", dynd), ("report.", report), ("store.", store)):
        for name in module.__all__:
            if callable(getattr(module, name)):
                assert f'id="tensorglot.{prefix}{name}"' in text, name


def test_signatures_of_the_reference_fit_the_page(site: Path) -> None:
    needs("ruff")
    blocks = re.findall(r"<pre>.*?</pre>", (site / "api" / "index.html").read_text(), re.S)
    signatures = [html.unescape(re.sub(r"<[^>]+>", "", block)) for block in blocks]
    assert any(signature.startswith("open(\n    source") for signature in signatures)
    assert max(len(line) for signature in signatures for line in signature.splitlines()) <= 80


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "pictures").iterdir()), ids=lambda path: path.name)
def test_pictures_are_small(picture: Path) -> None:
    assert picture.stat().st_size < 200_000
    if picture.suffix == ".svg":
        assert "$ tensorglot diff" in picture.read_text()
        assert len(picture.read_text().splitlines()) > 8
