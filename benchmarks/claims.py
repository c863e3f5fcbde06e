"""The claims of the results: each goal, the figure measured, and whether it is met. The page and `compare` read them.

    python -m benchmarks compare A.json B.json

says on which goals two runs disagree, and fails if there are any.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.growth import LIMIT

__all__ = ["Claim", "Disagreement", "claims", "disagreements", "main", "median_ratio", "number", "of_row"]

STORE_GBPS = {"commit": 0.6, "checkout": 1.2, "apply": 2.0}
STORE_SCENARIOS = ("2 % changed", "2 % random bits")
"""The scenarios that the goals of speed are for."""
UNITS = {"ms": (1, "ms"), "extra_nbytes": (1e6, "MB of memory")}
"""Figures that have other names, or other units, for people."""


@dataclass(frozen=True)
class Claim:
    case: str
    what: str
    """The unit of the value: "× safetensors", "ms"."""
    value: float
    goal: float
    at_least: bool = True
    """The goal is the least; else it is the most."""

    @property
    def met(self) -> bool:
        return self.value >= self.goal if self.at_least else self.value <= self.goal

    @property
    def distance(self) -> float:
        """The distance to the goal: 1 meets it, 0.5 is half of the goal or twice the limit."""
        return self.value / self.goal if self.at_least else self.goal / max(self.value, 1e-12)

    def __str__(self) -> str:
        bound = "at least" if self.at_least else "at most"
        return f"{self.case}: {number(self.value)} {self.what}, goal {bound} {number(self.goal)}"


@dataclass(frozen=True)
class Disagreement:
    """A goal that one run meets and another misses."""

    one: Claim
    two: Claim

    def __str__(self) -> str:
        values = [f"{number(run.value)} ({'met' if run.met else 'missed'})" for run in (self.one, self.two)]
        return f"{self.one.case}: {' and '.join(values)} {self.one.what}, goal {number(self.one.goal)}"


def number(value: float) -> str:
    """Three significant digits, never as a power of ten."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def median_ratio(row: dict[str, Any], peer: str) -> float:
    """How many times quicker than a peer we are by the medians; `times_faster` has the ratios of the quickest."""
    ours = next(iter(row["samples"]))
    return float(median(row["samples"][peer]) / median(row["samples"][ours]))


def of_row(row: dict[str, Any]) -> Iterator[Claim]:
    for peer, goal in row["goals"].items():
        yield Claim(row["case"], f"× {peer}", row["times_faster"][peer], goal)
    ours = next(iter(row["ms"]))
    figures = {"ms": row["ms"][ours], "extra_nbytes": row["extra_nbytes"][ours], **row["counted"]}
    for figure, limit in row["limits"].items():
        scale, unit = UNITS.get(figure, (1, figure))
        yield Claim(row["case"], unit, figures[figure] / scale, limit / scale, at_least=False)


def of_store(store: dict[str, Any]) -> Iterator[Claim]:
    for row in store["scenarios"]:
        case = f"W7 {row['scenario']}"
        if row["goal"] is not None:
            yield Claim(case, "% of the checkpoint", 100 * row["most"], 100 * row["goal"], at_least=False)
        if row["scenario"] in STORE_SCENARIOS:
            for verb, goal in STORE_GBPS.items():
                yield Claim(case, f"GB/s, {verb}", row[f"{verb}_gbps"], goal)


def of_growth(axis: str, curves: dict[str, Any]) -> Iterator[Claim]:
    for verb, curve in curves.items():
        for what in ("time", "memory"):
            if curve[what] is not None and verb != "views":
                yield Claim(f"{verb} against {axis}", f"as the exponent of {what}", curve[what], LIMIT, at_least=False)


def claims(results: dict[str, Any]) -> Iterator[Claim]:
    for row in results["rows"]:
        yield from of_row(row)
    if "store" in results:
        yield from of_store(results["store"])
    for axis, curves in results.get("growth", {}).get("axes", {}).items():
        yield from of_growth(axis, curves)


def disagreements(one: dict[str, Any], two: dict[str, Any]) -> tuple[int, list[Disagreement]]:
    """How many goals two runs have in common, and those that only one of them meets."""
    others = {(claim.case, claim.what): claim for claim in claims(two)}
    pairs = [Disagreement(claim, others[key]) for claim in claims(one) if (key := (claim.case, claim.what)) in others]
    return len(pairs), [pair for pair in pairs if pair.one.met != pair.two.met]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks compare", description=__doc__)
    parser.add_argument("runs", nargs=2, type=Path, metavar="RUN.json")
    options = parser.parse_args(arguments)
    one, two = (json.loads(path.read_text()) for path in options.runs)
    single = {(claim.case, claim.what) for claim in claims(one)} ^ {(claim.case, claim.what) for claim in claims(two)}
    for case, what in sorted(single):
        print(f"in one of the runs only: {case}, {what}")
    count, differing = disagreements(one, two)
    for pair in differing:
        print(pair)
    print(f"{count} goals in both runs, {len(differing)} of them met in one and missed in the other")
    if differing:
        raise SystemExit(1)
