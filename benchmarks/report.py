"""docs/performance.md and its pictures, made of docs/performance.json and a template.

`report` writes them; `publish` first takes over the results of the last runs. The
template has the prose; `{{kind argument}}` in it is replaced by what the results say, so no
number of a result is written by hand. Bold is a ratio below its goal.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from benchmarks import svg
from benchmarks.growth import LIMIT
from benchmarks.reasons import reason

__all__ = ["generate", "main", "publish"]

HOME = Path(__file__).parent
DOCS = HOME.parent / "docs"
RESULTS = HOME / "results"
PLACEHOLDER = re.compile(r"\{\{(\w+) ?([^}]*)\}\}")


def environment(results: dict[str, Any], _: str) -> str:
    found = results["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    text = (
        f"tensorglot {found['tensorglot']}, Python {found['python']}, {found['system']}, {found['cpus']} processors, "
        f"{found['memory_nbytes'] / 2**30:.0f} GiB. Libraries: {versions}."
    )
    if found["missing"]:
        text += f" Not installed, and left out: {', '.join(found['missing'])}."
    busy = max(row["load"] for row in results["rows"])
    days = sorted({row["when"][:10] for row in results["rows"]})
    rounds = sorted({row["rounds"] for row in results["rows"]})
    text += (
        f" Measured on {' and '.join(days)}, quickest of {' or '.join(map(str, rounds))} round{'s' * (rounds != [1])}."
    )
    if busy > found["cpus"] + 0.5:
        text += f" Other work ran on the machine (load up to {busy}): treat these ratios as preliminary."
    return text


def group(results: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [row for row in results["rows"] if row["group"] == name]


def number(value: float) -> str:
    """Three digits that count, never as a power of ten."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ratio(row: dict[str, Any], peer: str) -> str:
    value, goal = row["times_faster"][peer], row["goals"].get(peer)
    text = number(value)
    if goal is None:
        return text
    return f"{text if value >= goal else f'**{text}**'} ({goal:.3g})"


def table(results: dict[str, Any], name: str) -> str:
    """A line for each case; a column for each library that any of them has."""
    rows = group(results, name)
    if not rows:
        return "Not measured in this run."
    peers = list(dict.fromkeys(peer for row in rows for peer in row["times_faster"]))
    out = ["| | ours, ms | " + " | ".join(peers) + " | memory, MB |", "|---|---|" + "---|" * (len(peers) + 1)]
    for row in rows:
        ours = next(iter(row["ms"]))
        cells = [ratio(row, peer) if peer in row["times_faster"] else "" for peer in peers]
        extra, goal = row["extra_nbytes"][ours] / 1e6, row["extra_nbytes_goal"]
        memory = f"{extra:.0f}" if goal is None else f"{extra:.0f} ({goal / 1e6:.0f})"
        out.append(f"| {row['case']} | {number(row['ms'][ours])} | {' | '.join(cells)} | {memory} |")
    return "\n".join(out)


def picture(results: dict[str, Any], name: str) -> str:
    return f"![Times as fast as each peer](performance/{name}.svg)" if group(results, name) else ""


def slower(results: dict[str, Any], _: str) -> str:
    """Every row in which something else is faster than we are, worst first, and why."""
    found = sorted(
        (value, row["case"], peer)
        for row in results["rows"]
        for peer, value in row["times_faster"].items()
        if value < 1
    )
    if not found:
        return "None."
    return "\n".join(
        f"- {case}: {value:.2g} × {peer}. {reason(case, peer) or ''}".rstrip() for value, case, peer in found
    )


STORE_GOALS_GBPS = {"commit": 0.6, "checkout": 1.2, "apply": 2.0}


def _store_speed(row: dict[str, Any], verb: str) -> str:
    """In GB/s; bold below its goal."""
    value = row.get(f"{verb}_gbps")
    if value is None:
        return ""
    shown = f"{value:.2f}" if value >= STORE_GOALS_GBPS[verb] else f"**{value:.2f}**"
    return f"{shown} ({row[f'{verb}_times']:.1f} ×)"


def store(results: dict[str, Any], _: str) -> str:
    found = results.get("store")
    if not found:
        return "Not measured in this run."
    out = [
        f"Of {found.get('weights', 'random weights')}; speeds in GB/s (goals: "
        f"{', '.join(f'{verb} {goal:g}' for verb, goal in STORE_GOALS_GBPS.items())}), and in brackets "
        "the processor time as a multiple of BLAKE3's over the same bytes. Bold is what misses its goal.",
        "",
        "| | a successor | the largest | goal | commit | checkout | apply |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found["scenarios"]:
        goal = "" if row["goal"] is None else f"{row['goal']:.2%}"
        shares = [
            f"**{row[key]:.2%}**" if row["goal"] is not None and row[key] > row["goal"] else f"{row[key]:.2%}"
            for key in ("successor", "most")
        ]
        speeds = [_store_speed(row, verb) for verb in STORE_GOALS_GBPS]
        out.append(f"| {' | '.join([row['scenario'], *shares, goal, *speeds])} |")
    size = found["tools"][0]["nbytes"] / 1e6
    out += ["", f"| tool | MB after each version of {size:.0f} MB | seconds of a commit |", "|---|---|---|"]
    for tool in found["tools"]:
        sizes = " / ".join(f"{size / 1e6:.0f}" for size in tool["sizes"])
        out.append(f"| {tool['tool']} | {sizes} | {tool['seconds']:.2f} |")
    if found["missing"]:
        out += ["", f"Not installed, and left out: {', '.join(found['missing'])}."]
    return "\n".join(out)


def growth(results: dict[str, Any], axis: str) -> str:
    found = results.get("growth", {}).get("axes", {}).get(axis)
    if not found:
        return "Not measured in this run."
    out = ["| | largest | seconds | exponent of time | memory, MB | exponent of memory |", "|---|---|---|---|---|---|"]
    for verb, curve in found.items():
        last = curve["points"][-1]
        exponents = ["" if value is None else f"{value:.2f}" for value in (curve["time"], curve["memory"])]
        flagged = [
            f"**{text}**" if value is not None and value > LIMIT else text
            for text, value in zip(exponents, (curve["time"], curve["memory"]), strict=True)
        ]
        memory = f"{last['extra_nbytes'] / 1e6:.0f}"
        out.append(f"| {verb} | {last['size']:.0e} | {last['ms'] / 1e3:.3g} | {flagged[0]} | {memory} | {flagged[1]} |")
    return "\n".join([*out, "", f"![Time against {axis}](performance/growth-{axis}.svg)"])


def instructions(results: dict[str, Any], _: str) -> str:
    found = json.loads((HOME / "instructions.json").read_text())
    out = ["| path | instructions |", "|---|---|"]
    return "\n".join(out + [f"| {name} | {count:,} |" for name, count in found["counts"].items()])


KINDS = {
    "environment": environment,
    "table": table,
    "picture": picture,
    "slower": slower,
    "store": store,
    "growth": growth,
    "instructions": instructions,
}


def generate(results: dict[str, Any]) -> dict[str, str]:
    """Paths below docs/, and what each file contains."""
    template = (HOME / "performance.template.md").read_text()
    files = {"performance.md": PLACEHOLDER.sub(lambda match: KINDS[match[1]](results, match[2]), template)}
    for name in dict.fromkeys(row["group"] for row in results["rows"]):
        rows = {row["case"]: row["times_faster"] for row in group(results, name)}
        files[f"performance/{name}.svg"] = svg.bars(f"{name}: times as fast as each peer", rows)
    for axis, curves in results.get("growth", {}).get("axes", {}).items():
        series = {
            verb: [(point["size"], point["ms"] / 1e3) for point in curve["points"]] for verb, curve in curves.items()
        }
        files[f"performance/growth-{axis}.svg"] = svg.lines(f"seconds against {axis}", axis, series)
    return files


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks report", description=__doc__)
    parser.add_argument("--json", type=Path, default=DOCS / "performance.json")
    parser.add_argument("--to", type=Path, default=DOCS)
    options = parser.parse_args(arguments)
    files = generate(json.loads(options.json.read_text()))
    (options.to / "performance").mkdir(parents=True, exist_ok=True)
    for old in (options.to / "performance").glob("*.svg"):
        old.unlink()
    for name, text in files.items():
        (options.to / name).write_text(text)
    print(f"written: {options.to / 'performance.md'} and {len(files) - 1} pictures")


def publish(arguments: list[str]) -> None:
    """Takes over what the last runs found; a section that was not measured again stays as it is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks publish", description=publish.__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    target = DOCS / "performance.json"
    results = json.loads(target.read_text()) if target.exists() else {}
    for name in ("run.json", "growth.json"):
        if (options.results / name).exists():
            results |= json.loads((options.results / name).read_text())
    target.write_text(json.dumps(results, indent=1) + "\n")
    main([])
