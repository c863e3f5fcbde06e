"""Makes the pictures of the documentation: `PYTHONPATH=src python docs/pictures.py`. Needs playwright and Chromium.

The report and the comparison are screenshots; the output of `diff` is text in an SVG file.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from contextlib import chdir
from html import escape
from pathlib import Path

import ml_dtypes
import numpy as np
from click import unstyle
from playwright.sync_api import sync_playwright

import tensorglot as tg

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from terminals import on_terminal

TARGET = Path(__file__).parent / "pictures"
LINE, CHARACTER = 19, 8.0
COMMAND, TEXT = "#9fd3b6", "#e8eaf0"
COLOURS = {"31": "#ff7b84", "32": "#3ecf9b", "33": "#f0b450", "35": "#c9a2ff"}
"""By the escape sequences of a terminal."""


def checkpoint() -> dict[str, np.ndarray]:
    """A small transformer, in bfloat16 with norms in float32."""
    random = np.random.default_rng(0)
    width, hidden = 256, 704

    def weight(rows: int, columns: int) -> np.ndarray:
        wave = 1 + 0.5 * np.sin(np.linspace(0, 9, columns))
        values = random.normal(0, columns**-0.5, (rows, columns)) * wave * (1 + 0.3 * random.normal(size=(rows, 1)))
        return values.astype(ml_dtypes.bfloat16)

    tensors = {"model.embed_tokens.weight": weight(4096, width)}
    for i in range(8):
        for name in ("q", "k", "v", "o"):
            tensors[f"model.layers.{i}.self_attn.{name}_proj.weight"] = weight(width, width)
        for name, shape in (("gate", (hidden, width)), ("up", (hidden, width)), ("down", (width, hidden))):
            tensors[f"model.layers.{i}.mlp.{name}_proj.weight"] = weight(*shape)
        tensors[f"model.layers.{i}.input_layernorm.weight"] = (1 + random.normal(0, 0.02, width)).astype(np.float32)
    tensors["rotary.inv_freq"] = (10000.0 ** -np.linspace(0, 1, 64)).astype(np.float32)
    tensors["tokenizer.merges"] = random.integers(0, 30_000, (40_000, 2)).astype(np.int32)
    return tensors


def train(before: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Some tensors changed, one of them in a rectangle."""
    random = np.random.default_rng(1)
    after = {name: values.copy() for name, values in before.items()}
    for i in (3, 5):
        values = after[f"model.layers.{i}.mlp.up_proj.weight"]
        chosen = random.random(values.shape) < 0.02
        values[chosen] = (values[chosen].astype(np.float32) * 1.02).astype(values.dtype)
    after["model.layers.6.mlp.up_proj.weight"][180:420, 60:140] += ml_dtypes.bfloat16(0.1)
    after["lora.A"] = before["model.layers.0.self_attn.q_proj.weight"][:8].copy()
    del after["rotary.inv_freq"]
    return after


def screenshot(page: Path, target: Path, theme: str, height: int) -> None:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        context = browser.new_context(offline=True, color_scheme=theme, viewport={"width": 1280, "height": height})
        opened = context.new_page()
        opened.goto(page.as_uri())
        opened.wait_for_selector("#card .stats")
        opened.screenshot(path=target)
        browser.close()


def terminal(command: list[str], folder: Path, target: Path) -> None:
    """What a command prints, as an SVG file without a font of its own."""
    with chdir(folder):
        printed = on_terminal(*command, columns=100)[1].rpartition("\x1b[2K")[2]
    lines = [f"$ tensorglot {' '.join(command)}", *printed.rstrip().splitlines()]
    width, height = max(len(unstyle(line)) for line in lines) * CHARACTER + 40, len(lines) * LINE + 56
    text = "".join(
        f'<text xml:space="preserve" x="20" y="{52 + i * LINE}" fill="{_fill(line) if i else COMMAND}">'
        f"{escape(unstyle(line))}</text>\n"
        for i, line in enumerate(lines)
    )
    dots = "".join(
        f'<circle cx="{22 + 18 * i}" cy="18" r="5.5" fill="{c}"/>'
        for i, c in enumerate(("#ff6159", "#ffbd2e", "#28c941"))
    )
    target.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}">\n'
        f'<rect width="100%" height="100%" rx="10" fill="#161920"/>{dots}\n'
        '<g font-family="ui-monospace, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="13">\n'
        f"{text}</g>\n</svg>\n"
    )


def _fill(line: str) -> str:
    """The colour of a line that a terminal would show in one."""
    found = re.match(r"\x1b\[(3\d)m", line)
    return TEXT if found is None else COLOURS[found[1]]


def main() -> None:
    TARGET.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = checkpoint()
        tg.save(folder / "before.zt", before, metadata={"step": "1000", "lr": "3e-4"})
        tg.save(folder / "after.zt", train(before), metadata={"step": "2000", "lr": "3e-4"})
        tg.report.write(folder / "before.zt", folder / "report.html")
        tg.report.write(folder / "before.zt", folder / "changes.html", other=folder / "after.zt")
        screenshot(folder / "report.html", TARGET / "report.png", "light", 1260)
        screenshot(folder / "changes.html", TARGET / "changes.png", "dark", 900)
        terminal(["diff", "before.zt", "after.zt"], folder, TARGET / "diff.svg")


if __name__ == "__main__":
    main()
