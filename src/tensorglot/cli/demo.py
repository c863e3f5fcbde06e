"""`tensorglot demo`: a table of shell and Python lines, run in a temporary folder and shown with their output."""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
import tempfile
import time
from code import InteractiveInterpreter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from tensorglot.cli.options import as_json
from tensorglot.cli.terminal import bold, print_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["STEPS", "command"]


class Step(NamedTuple):
    """One line to run, and what came of it."""

    run: str
    about: str = ""
    kind: Literal["shell", "python"] = "shell"
    output: str = ""
    exit: int = 0


def _python(run: str, about: str = "") -> Step:
    return Step(run, about, "python")


STEPS: tuple[Step, ...] = (
    _python("import os, shutil, tensorglot as tg"),
    _python("len(tensors)", "The weights of a very small language model, as arrays."),
    _python(
        'tg.save("model.bt", tensors, metadata={"step": "1000", "lr": "3e-4"})',
        "Save them. Atomic, and durable when the call returns.",
    ),
    Step("tensorglot info model.bt", "What is in it?"),
    Step("tensorglot ls model.bt '*.layers.0.*'"),
    _python('archive = tg.open("model.bt")', "Opening reads the index and no tensor."),
    _python('archive["model.embed_tokens.weight"]'),
    _python('archive["model.embed_tokens.weight"][100:102, ::32]', "A slice reads only the rows that it needs."),
    Step("tensorglot cat model.bt model.embed_tokens.weight '[100:102, ::32]'", "The same from the shell."),
    Step("tensorglot stats model.bt '*.layers.3.*'", "Is the training healthy?"),
    _python(
        'tensors["model.layers.3.mlp.up_proj.weight"][7] = float("nan"); tg.save("broken.bt", tensors)',
        "NaN in one row of a weight:",
    ),
    Step("tensorglot stats broken.bt '*.mlp.up_proj.*'"),
    Step("tensorglot verify model.bt --deep", "Is the file valid?"),
    _python(
        '_ = shutil.copy("model.bt", "cut.bt"); os.truncate("cut.bt", 2_000_000)',
        "A truncated download is detected, and the error names the tensor.",
    ),
    Step("tensorglot verify cut.bt"),
    Step("tensorglot diff model.bt broken.bt", "What changed between two checkpoints?"),
    Step(
        "tensorglot convert model.bt model.zt --compression zstd --checksum crc32c",
        "The same tensors in another container, compressed and with checksums.",
    ),
    Step("tensorglot ls --long model.zt '*.layers.0.mlp.*'"),
    Step("tensorglot diff model.bt model.zt"),
    Step("tensorglot hash model.bt 'model.norm.*'", "A tensor has one identity, in every container."),
    Step("tensorglot hash model.zt 'model.norm.*'"),
    Step("tensorglot convert model.zt model.safetensors --dtype float16", "A cast reports how many values it rounds."),
    Step("tensorglot convert model.bt model.npz", "A conversion that would lose something stops and says what."),
    _python(
        'tg.dynd.serialize([[1.5, 2.0], [], [3.0]], "var * var * float32").hex()',
        "Ragged and nested values have canonical bytes, too.",
    ),
    _python('tg.bson.decode(tg.bson.encode([0.5, -2.0], "float32"))', "A BSON vector, as MongoDB stores it."),
    Step("tensorglot formats", "Which formats are supported?"),
)


@click.command
@as_json
def command(as_json: bool) -> None:
    """Make a small checkpoint and run the main commands on it.

    Works in a temporary folder, which is removed, and takes a few seconds.

    \b
    Example:
      tensorglot demo
    """
    start = time.perf_counter()
    done = []
    for step in _play(terminal=sys.stdout.isatty() and not as_json):
        done.append(step)
        if not as_json:
            _show(step)
    seconds = round(time.perf_counter() - start, 2)
    if as_json:
        print_json({"steps": [step._asdict() for step in done], "seconds": seconds})
    else:
        print(f"\nThat took {seconds} s. Your turn: tensorglot --help")


def _show(step: Step) -> None:
    if step.about:
        print(f"\n# {step.about}")
    print(bold(f"{'>>>' if step.kind == 'python' else '$'} {step.run}"))
    print(step.output, end="")
    if step.exit:
        print(f"(exit code {step.exit})")


class _Capture(io.TextIOWrapper):
    """Captures what a step prints; on a terminal with the same colours and widths."""

    def __init__(self, buffer: io.BytesIO, terminal: bool) -> None:
        super().__init__(buffer, "utf-8", write_through=True)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def _play(terminal: bool) -> Iterator[Step]:
    """Runs the steps in a temporary folder."""
    python = InteractiveInterpreter({"tensors": _checkpoint()})
    with tempfile.TemporaryDirectory(prefix="tensorglot-demo-") as folder, contextlib.chdir(folder):
        for step in STEPS:
            printed = io.BytesIO()
            out, err = _Capture(printed, terminal), _Capture(printed, False)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = _run_shell(step.run) if step.kind == "shell" else int(python.runsource(step.run))
            yield step._replace(output=printed.getvalue().decode(), exit=code)


def _run_shell(line: str) -> int:
    from tensorglot.cli import commands

    try:
        commands.main(shlex.split(line)[1:])
    except SystemExit as leaving:
        return int(leaving.code or 0)


def _checkpoint() -> dict[str, NDArray[Any]]:
    """A transformer of four layers: embeddings, attention and feed-forward in bfloat16, norms in float32."""
    import ml_dtypes
    import numpy as np

    random = np.random.default_rng(0)
    vocabulary, width, hidden = 4096, 128, 352

    def weight(rows: int, columns: int) -> NDArray[Any]:
        return random.normal(0, columns**-0.5, (rows, columns)).astype(ml_dtypes.bfloat16)

    def norm() -> NDArray[Any]:
        return (1 + random.normal(0, 0.02, width)).astype(np.float32)

    tensors = {"model.embed_tokens.weight": weight(vocabulary, width), "lm_head.weight": weight(vocabulary, width)}
    for i in range(4):
        for name in ("q", "k", "v", "o"):
            tensors[f"model.layers.{i}.self_attn.{name}_proj.weight"] = weight(width, width)
        tensors[f"model.layers.{i}.mlp.gate_proj.weight"] = weight(hidden, width)
        tensors[f"model.layers.{i}.mlp.up_proj.weight"] = weight(hidden, width)
        tensors[f"model.layers.{i}.mlp.down_proj.weight"] = weight(width, hidden)
        tensors[f"model.layers.{i}.input_layernorm.weight"] = norm()
        tensors[f"model.layers.{i}.post_attention_layernorm.weight"] = norm()
    tensors["model.norm.weight"] = norm()
    return tensors
