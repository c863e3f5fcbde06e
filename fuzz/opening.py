"""Mutants of valid files by byte, opened once: `python fuzz/opening.py [COUNT] [SEED]`.

The targets of the formats hold every invariant for a mutant, and take a millisecond for it.
This one opens each and asks for no more, so that a second has some thousands. The invariant:
whatever the bytes are, in every format, and as a value of a DyND type,

- only our errors leave, with a rule, in printable words;
- what is opened has names, and a repr of each tensor that can be printed.

The files are the valid ones of the conformance corpus and of the other targets, as far as
they are small.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))


import tensorglot as tg
from conformance import FOLDER, unpack
from fuzzing import bson, changes, delta, foreign
from tensorglot import dynd

SMALL_NBYTES = 5000
Mutant = tuple[str, str | None, bytes]
"""A format, the DyND type of a value without a container, and the bytes."""


@cache
def bases() -> list[tuple[str, str | None, list[bytes]]]:
    """Valid inputs by format and type."""
    found: dict[tuple[str, str | None], list[bytes]] = {}
    for path in sorted(FOLDER.glob("*.jsonl")):
        format = path.stem.replace("bintensors-", "bintensors@").partition("-")[0]
        for case in map(json.loads, path.read_text("utf-8").splitlines()):
            if case["valid"] and "data" in case and len(data := unpack(case)) <= SMALL_NBYTES:
                found.setdefault((format, case.get("type")), []).append(data)
    for name, files in {**foreign.bases(), "bson": bson.corpus(), "delta": delta.bases()}.items():
        found.setdefault((name, None), []).extend(data for data in files if len(data) <= SMALL_NBYTES)
    return [(format, type, files) for (format, type), files in found.items() if files]


def mutants(count: int, seed: int = 0) -> Iterator[Mutant]:
    r = random.Random(seed)
    containers = [base for base in bases() if base[1] is None]
    values = [base for base in bases() if base[1] is not None]
    for number in range(count):
        among = values if number % 4 == 0 else containers
        format, type, files = among[int(r.random() * len(among))]
        data, other = files[int(r.random() * len(files))], files[int(r.random() * len(files))]
        yield format, type, changes.change(r, data, other)


@cache
def parsed(type: str) -> dynd.Type:
    return dynd.parse(type)


def check(mutant: Mutant) -> str:
    """Holds the invariant for one file; returns what became of it."""
    format, type, data = mutant
    try:
        if type is not None:
            dynd.deserialize(data, parsed(type))
            return "value: accepted"
        archive = tg.open(data, format=format)
        for tensor in archive.values():
            assert repr(tensor).isprintable()
    except tg.TensorglotError as error:
        assert error.rule
        assert all(line.isprintable() for line in str(error).split("\n")), repr(str(error))
        return f"{format}: {error.rule}"
    return f"{format}: accepted"


if __name__ == "__main__":
    from campaign import campaign

    campaign(mutants, check)
