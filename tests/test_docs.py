"""Documentation that runs: every Python block of README.md and docs/, and every command of a console block."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import tensorglot as tg
from peers import needs

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The blocks of a page share one folder and one namespace, as a reader would run them."""
    monkeypatch.chdir(tmp_path)
    if any("s3://" in text for _, text in BLOCK.findall(page.read_text())):
        server = request.getfixturevalue("s3_server")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
    namespace: dict[str, object] = {}
    for kind, text in BLOCK.findall(page.read_text()):
        for library in re.findall(r"^(?:import|from) (safetensors|awkward|dask|pyarrow|scipy|torch)\b", text, re.M):
            needs(library)  # the blocks before this one have run
        if kind == "python":
            exec(compile(text, str(page), "exec"), namespace)
            continue
        for line in text.splitlines():
            if line.startswith("$ tensorglot "):
                command = [sys.executable, "-m", "tensorglot", *shlex.split(line)[2:]]
                done = subprocess.run(command, capture_output=True, text=True)
                assert done.returncode == 0, f"{line}\n{done.stderr}"
                assert done.stdout or done.stderr, line


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name
)
def test_links(page: Path) -> None:
    """What a page points at in this repository is there."""
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name
)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    folders = [ROOT, ROOT / "src" / "tensorglot", ROOT / "src" / "tensorglot" / "kernels", ROOT / "tests"]
    for name in re.findall(r"`([\w./*]+\.(?:py|pxd|md))`", page.read_text()):
        pattern = name.replace("NAME", "*")
        assert any(list(folder.glob(pattern)) for folder in folders), name


def test_the_table_of_formats_is_what_formats_returns() -> None:
    rows = re.findall(r"^\|[^|]+\|([^|]*`\.[^|]*)\|([^|]*)\|([^|]*)\|", (ROOT / "README.md").read_text(), re.M)
    listed = {suffix: (read, written) for cell, read, written in rows for suffix in re.findall(r"`(\.\w+)`", cell)}
    assert set(listed) == {suffix for spec in tg.formats() for suffix in spec.suffixes}
    for spec in tg.formats():
        for read, written in (listed[suffix] for suffix in spec.suffixes):
            assert bool(spec.writes) == (written.strip() != "no"), spec.name
            for cell, versions in ((read, spec.versions), (written, spec.writes)):
                numbers = re.findall(r"\d(?:\.\d)?", cell)
                assert not numbers or sorted(numbers) == sorted(versions), spec.name


def test_the_page_on_trust_has_every_limit() -> None:
    limits = {field.name for field in dataclasses.fields(tg.Limits)}
    table = (ROOT / "docs" / "trust.md").read_text().partition("| limit |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) == limits
