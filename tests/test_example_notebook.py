"""The example notebook runs from its first cell to its last, and its cells show what they should."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from peers import needs
from terminals import environment

PATH = Path(__file__).parents[1] / "examples" / "checkpoints.ipynb"


def test_the_notebook_has_no_outputs() -> None:
    cells = [cell for cell in json.loads(PATH.read_text())["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells)


def shown(cells: list[Any], source: str, kind: str = "text/html") -> str:
    """What the only cell that ends with this line shows."""
    [cell] = [cell for cell in cells if cell["source"].splitlines()[-1].split("  #")[0] == source]
    return re.sub(r' style="[^"]*"', "", str(cell["outputs"][-1]["data"][kind]))


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("ipykernel")
    nbclient, nbformat = needs("nbclient"), needs("nbformat")
    for name, value in environment(TMPDIR=str(tmp_path), IPYTHONDIR=str(tmp_path)).items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(PATH, as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert "7 tensors" in shown(cells, "archive")
    assert "256 * 64 * bfloat16" in shown(cells, 'archive["layers.0.up"]')
    assert "1 of 7 tensors differ" in shown(cells, "changes")
    assert "<td>step</td><td>metadata</td><td>1 → 2</td>" in shown(cells, "changes")
    assert "512 of 16,384 elements (3.12%)" in shown(cells, "changes")
    assert "<td>64</td>" in shown(cells, "stats"), "the NaN of one row"
    assert "step 2" in shown(cells, "second")
    assert "<td>commits</td><td>2</td>" in shown(cells, "store.stats()")
    assert "<td>logical</td><td>384.5 KiB</td>" in shown(cells, "store.stats()")
    assert shown(cells, "same, one_identity", "text/plain") == "(True, True)"
    [page] = tmp_path.glob("tensorglot-*/changes.html")
    assert page.stat().st_size > 50_000
