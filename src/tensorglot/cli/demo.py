"""`tensorglot demo`: a table of shell and Python lines, run in a temporary folder and shown with their output."""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from tensorglot.cli.options import as_json
from tensorglot.cli.terminal import bold, print_json
from tensorglot.tuples import NamedTuple

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["STEPS", "command"]

FAILED = 5
"""Exit codes from here on end the demo: the disk is full, or somebody interrupted."""


class Step(NamedTuple):
    """One line to run, and its result."""

    run: str
    about: str = ""
    kind: Literal["shell", "python"] = "shell"
    output: str = ""
    exit: int = 0


def _python(run: str, about: str = "") -> Step:
    return Step(run, about, "python")


STEPS: tuple[Step, ...] = (
    _python("import os, shutil, tensorglot as tg"),
    _python(
        'tg.save("model.bt", tensors, metadata={"step": "1000"})',
        "The weights of a very small language model, saved as BinTensors.",
    ),
    Step("tensorglot ls model.bt --tree --depth 1"),
    _python(
        'tg.open("model.bt")["embed"][100:102, ::32]',
        "Opening reads the index; a slice reads only the rows that it needs.",
    ),
    _python(
        'tg.save("next.bt", train(tensors), metadata={"step": "1001"})',
        "One training step later. What changed, and is it healthy?",
    ),
    Step("tensorglot diff model.bt next.bt"),
    Step("tensorglot stats next.bt 'layers.3.mlp.*'", "A row of layers.3.mlp.up is NaN:"),
    Step("tensorglot report model.bt next.bt -o changes.html", "What changed, as a page with pictures:"),
    Step("tensorglot store init run", "Every version, in a store. A commit costs what differs."),
    Step("tensorglot store commit run model.bt -m 'step 1000'"),
    Step("tensorglot store commit run next.bt -m 'step 1001'"),
    Step("tensorglot store log run"),
    Step(
        "tensorglot convert model.bt model.zt --compression zstd",
        "Another container, compressed: the same values, and one identity.",
    ),
    Step("tensorglot diff model.bt model.zt"),
    _python('tg.open("model.zt")["head"].cid()'),
    _python('tg.open("store://run#main")["head"].cid()'),
    Step("tensorglot convert model.bt model.npy", "A conversion that would lose something stops and says what."),
    _python(
        '_ = shutil.copy("model.bt", "cut.bt"); os.truncate("cut.bt", 2_000_000)', "A truncated download is detected."
    ),
    Step("tensorglot verify cut.bt"),
)


@click.command
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@as_json
def command(folder: Path | None, as_json: bool) -> int:
    """Make a small checkpoint and run the main commands on it.

    In a new FOLDER, which is kept; without one in a temporary folder, which is
    removed. Takes a few seconds.

    \b
    Examples:
      tensorglot demo
      tensorglot demo playground
    """
    start = time.perf_counter()
    checkpoint = _checkpoint()
    done = []
    with _working_in(folder):
        for step in _play(checkpoint, terminal=sys.stdout.isatty() and not as_json):
            done.append(step)
            if not as_json:
                _show(step)
            if step.exit >= FAILED:
                return step.exit
    seconds = round(time.perf_counter() - start, 2)
    if as_json:
        print_json({"steps": [step._asdict() for step in done], "seconds": seconds})
        return 0
    kept = f"open {folder / 'changes.html'} in a browser" if folder else "tensorglot demo FOLDER keeps these files"
    print(f"\nThat took {seconds} s; {kept}.\nYour turn: tensorglot --help; tensorglot formats lists what it reads.")
    return 0


@contextlib.contextmanager
def _working_in(folder: Path | None) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tensorglot-demo-")))
        else:
            folder.mkdir(parents=True)
        stack.enter_context(contextlib.chdir(folder))
        yield


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


def _play(checkpoint: dict[str, NDArray[Any]], *, terminal: bool) -> Iterator[Step]:
    """Runs the steps in the current folder."""
    names = {"tensors": checkpoint, "train": _train}
    for step in STEPS:
        printed = io.BytesIO()
        out, err = _Capture(printed, terminal), _Capture(printed, False)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = _run_shell(step.run) if step.kind == "shell" else _run_python(step.run, names)
        yield step._replace(output=printed.getvalue().decode(), exit=code)


def _run_python(line: str, names: dict[str, Any]) -> int:
    """Runs a line as a prompt would: the value of an expression is printed."""
    exec(compile(line, "<demo>", "single"), names)  # noqa: S102
    return 0


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

    tensors = {"embed": weight(vocabulary, width)}
    for i in range(4):
        for name in ("q", "k", "v", "o"):
            tensors[f"layers.{i}.attention.{name}"] = weight(width, width)
        for name, shape in (("gate", (hidden, width)), ("up", (hidden, width)), ("down", (width, hidden))):
            tensors[f"layers.{i}.mlp.{name}"] = weight(*shape)
        tensors[f"layers.{i}.norm"] = norm()
    return {**tensors, "norm": norm(), "head": weight(vocabulary, width)}


def _train(tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Some elements of two tensors changed, as by a small step, and one row became NaN."""
    import numpy as np

    random = np.random.default_rng(1)
    after = {name: values.copy() for name, values in tensors.items()}
    for name in ("layers.2.mlp.up", "layers.3.mlp.up"):
        chosen = random.random(after[name].shape) < 0.02
        after[name][chosen] *= 1.01
    after["layers.3.mlp.up"][7] = np.nan
    return after
