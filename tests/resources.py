"""The child process of `test_resources`: the hostile files of a family, in every use, under limits.

`python tests/resources.py EVERY FAMILY...` tries every EVERYth pair of a file and a use,
`FIRST/EVERY` those of them from another pair on, so that a large family can be tried in
parts. It prints a line of JSON for each finding and a last one with the figures. What is being
done is on stderr before it is done, so that the parent can name what a signal ended. The
address space may grow by 1 GiB; a use may take five seconds of the processor, and the
child as a whole what `RLIMIT_CPU` allows.
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tensorglot as tg
from bounds import MB
from hostile import Case, cases
from uses import COMMANDS, VALUES, VERBS, Source, run_command

__all__ = ["GROWTH_NBYTES", "RESIDENT_NBYTES", "USE_SECONDS"]

GROWTH_NBYTES = 1 << 30
RESIDENT_NBYTES = 160 * MB
USE_SECONDS = 5.0
BYTE_SECONDS = 1e-4
"""For each byte of a file, in addition: nine reads of a tensor of forty bytes are 4 ms."""
TOTAL_SECONDS = 900
EXITS = (0, 1, 2, 3, 4, 5)


class Overtime(BaseException):
    """Raised when time is up. A BaseException, so that no handler of the library catches it."""


def _overtime(*_: object) -> None:
    raise Overtime


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


def uses_of(case: Case) -> Iterator[tuple[str, Callable[[Source], object]]]:
    if case.type is not None:
        yield from VALUES.items()
        return
    yield from VERBS.items()
    for name, arguments in COMMANDS.items():
        yield f"tensorglot {name}", lambda source, arguments=arguments: command(arguments(source))


def command(arguments: list[Any]) -> None:
    code, output = run_command(arguments)
    if code not in EXITS or "not enough memory" in output:
        raise AssertionError(f"exit code {code}: {output[-300:]}")
    if code:
        raise tg.InputError(output, rule="exit")


def attempt(use: Callable[[Source], object], source: Source) -> str | None:
    """Runs a use; returns what is wrong with its result, or None."""
    refused = False
    signal.setitimer(signal.ITIMER_PROF, USE_SECONDS + BYTE_SECONDS * source.nbytes)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tg.LossWarning)
            use(source)
    except (tg.TensorglotError, OSError):
        refused = True
    except Overtime:
        return f"takes more than {USE_SECONDS} s"
    except BaseException as error:  # noqa: BLE001 - every other one is a finding
        return "".join(traceback.format_exception(error)[-3:])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    left = [path.name for path in source.out.rglob("*") if "new" in path.name or path.name.endswith(".tmp")]
    if refused and left:
        return f"refused, and left {left}"
    return None


def good(folder: Path) -> None:
    """Every use once without limits: libraries are imported, and a use that works on nothing is noticed."""
    path = folder / "good.zt"
    tg.save(path, {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float32)}, durable=False)
    not_for_zt = {"apply", "patch", "decode_matrix", "unbundle", "tensorglot vectors inspect", "tensorglot store apply",
                  "tensorglot dynd decode", "tensorglot dynd cbor", "convert to npy@1", "convert to gguf@3",
                  "convert to bson@1.1"}  # fmt: skip
    (folder / "value").write_bytes(tg.dynd.serialize(np.arange(3)))
    typed = Case("good", None, lambda _: folder / "value", "3 * int64")
    for case, source in ((Case("good", None, lambda _: path), path), (typed, folder / "value")):
        for what, use in uses_of(case):
            out = folder / "out"
            out.mkdir()
            try:
                use(Source(source, None, out, case.type))
            except tg.TensorglotError as error:
                assert what in {*not_for_zt, "unpack", "from_cbor"}, (what, error)  # noqa: PT017
            shutil.rmtree(out)


@dataclass
class Figures:
    cases: int = 0
    uses: int = 0
    slowest: tuple[float, str] = (0.0, "")
    most: tuple[int, str] = (0, "")


def found(case: Case, use: str, wrong: str) -> None:
    print(json.dumps({"case": case.what, "use": use, "wrong": wrong}), flush=True)


def try_case(case: Case, uses: list[tuple[str, Callable[[Source], object]]], folder: Path, figures: Figures) -> None:
    (folder / "case").mkdir()
    path = case.make(folder / "case")
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    for what, use in uses:
        print(case.what, "/", what, file=sys.stderr, flush=True)
        out = folder / "out"
        out.mkdir()
        start = time.process_time()
        wrong = attempt(use, Source(path, case.format, out, case.type))
        figures.slowest = max(figures.slowest, (time.process_time() - start, f"{case.what} / {what}"))
        figures.uses += 1
        shutil.rmtree(out)
        if wrong is not None:
            found(case, what, wrong)
    grown = _status("VmHWM") - before
    figures.most = max(figures.most, (grown, case.what))
    figures.cases += 1
    if grown > RESIDENT_NBYTES:
        found(case, "all", f"{grown // MB} MB resident")
    shutil.rmtree(folder / "case")


def run(families: list[str], every: int, first: int = 0) -> None:
    signal.signal(signal.SIGPROF, _overtime)
    tables = [cases(family) for family in families]
    figures, pair = Figures(), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        good(folder)
        size = _status("VmSize")
        resource.setrlimit(resource.RLIMIT_AS, (size + GROWTH_NBYTES, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_CPU, (TOTAL_SECONDS, resource.RLIM_INFINITY))
        for case in (case for table in tables for case in table):
            uses = list(uses_of(case))
            chosen = [use for number, use in enumerate(uses, pair) if number % every == first]
            pair += len(uses)
            if chosen:
                try_case(case, chosen, folder, figures)
    print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    first, _, every = sys.argv[1].rpartition("/")
    run(sys.argv[2:], int(every), int(first or 0))
