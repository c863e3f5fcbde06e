"""Coverage-guided fuzzing of what takes bytes: `python fuzz/guided.py [SECONDS] [SEED]`, or `make fuzz-guided`.

atheris keeps inputs that reach new code and mutates them further. The kernels run
interpreted, so that their branches count as well. The invariants are those of the targets
of this folder; inputs of those targets are the first ones. Each target runs in a process of
its own, since libFuzzer ends its process; a finding is printed, with the file that it was
written to. With its seed a target does the same again, as long as it has the same time.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from itertools import islice
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, NamedTuple

READING = ("bson", "containers", "dynd", "io", "kernels", "model", "operations", "store", "wire")
"""Packages whose branches count. They import their modules lazily, when it would be too late to see them."""
STARTS = 300
"""Inputs that a target begins with."""


class Guided(NamedTuple):
    """A module, which of its mutants are used, and where the bytes of a mutant are."""

    module: str
    bytes_of: Callable[[Any], bytes | None]
    mutant_of: Callable[[bytes], Any]


def _of_format(module: str, format: str) -> Guided:
    """A target of several formats, or ways in."""
    return Guided(module, lambda mutant: mutant[1] if mutant[0] == format else None, lambda data: (format, data))


def _index_of(name: str) -> Guided:
    """The index of a checkpoint, beside rank files that are valid."""

    def mutant_of(data: bytes) -> dict[str, bytes]:
        valid = next(files for files in import_module("dcp").bases() if name in files)
        return {**valid, name: data}

    return Guided("dcp", lambda files: files.get(name), mutant_of)


def _chunk_of(encoding: int) -> Guided:
    size = 4096
    return Guided(
        "chunk_encodings",
        lambda mutant: mutant[1] if mutant[0] == encoding else None,
        lambda data: (import_module("chunk_encodings").Encoding(encoding), data, size),
    )


def _same(data: Any) -> Any:
    return data


TARGETS = {
    **{name: Guided(name, _same, _same) for name in ("bintensors", "ztensor", "bson", "delta")},
    **{name: _of_format("foreign", name) for name in ("safetensors", "npy", "npz", "gguf", "onnx", "hdf5", "pt")},
    "dcp torch": _index_of(".metadata"),
    "dcp json": _index_of("dcp.json"),
    **{f"dynd {way}": _of_format("dynd", way) for way in ("packed", "file", "parts", "exchange", "dag")},
    "dynd type": Guided(
        "dynd",
        lambda case: case[1].encode("utf-8", "ignore") if case[0] == "type" else None,
        lambda data: ("type", data.decode("utf-8", "replace")),
    ),
    **{f"chunk {encoding}": _chunk_of(encoding) for encoding in range(1, 7)},
}


def guide(name: str, folder: str, seconds: int, seed: int) -> None:
    """Runs one target; does not return."""
    import atheris

    with atheris.instrument_imports(include=["tensorglot"]):
        import tensorglot

        for found in walk_packages(tensorglot.__path__, "tensorglot.", onerror=lambda name: None):
            if found.name.split(".")[1] in READING:
                import_module(found.name)
    target = TARGETS[name]
    module = import_module(target.module)
    inputs = (data for mutant in module.mutants(1 << 62, seed) if (data := target.bytes_of(mutant)) is not None)
    for number, data in enumerate(islice(inputs, STARTS)):
        Path(folder, f"start{number}").write_bytes(data)
    limits = [f"-max_total_time={seconds}", f"-artifact_prefix={name.replace(' ', '-')}-", "-timeout=10"]
    options = [*limits, "-rss_limit_mb=4096", f"-seed={seed}", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], folder, *options], lambda data: module.check(target.mutant_of(data)))
    atheris.Fuzz()


def main() -> int:
    given = sys.argv[1:]
    seconds = float(given[0]) if given else 60.0
    seed = int(given[1]) if len(given) > 1 else random.SystemRandom().randrange(1, 1 << 32)
    print(f"seed {seed}")
    findings = total = 0
    for name in TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            share = max(1, int(seconds / len(TARGETS)))
            command = [sys.executable, __file__, "--guide", name, folder, str(share), str(seed)]
            environment = {**os.environ, "TENSORGLOT_KERNELS": "interpreted"}
            run = subprocess.run(
                command, capture_output=True, text=True, errors="replace", env=environment, check=False
            )
        stats = dict(line.split(": ", 1) for line in run.stderr.splitlines() if line.startswith("stat::"))
        executions = int(stats.get("stat::number_of_executed_units", "0"))
        total += executions
        print(f"{name:<12} {executions:>12,} executions, {int(run.returncode != 0)} findings", flush=True)
        if run.returncode:
            findings += 1
            print("\n".join(run.stderr.splitlines()[-30:]))
    print(f"{'all':<12} {total:>12,} executions, {findings} findings")
    return int(findings > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--guide"]:
        guide(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    sys.exit(main())
