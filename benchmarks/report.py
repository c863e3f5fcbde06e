"""docs/performance.md, its pictures and blocks in other pages, made of docs/performance.json and a template.

`report` writes them; `publish` first takes over the results of the last runs. The
template has the prose; `{{kind argument}}` in it is replaced by what the results say, so no
number of a result is written by hand. Bold is a figure that misses its goal.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import svg
from benchmarks.claims import STORE_GBPS, UNITS, claims, disagreements, median_ratio, number
from benchmarks.growth import LIMIT
from benchmarks.reasons import reason

__all__ = ["faster_peers", "generate", "main", "pages", "publish", "ratio"]

HOME = Path(__file__).parent
DOCS = HOME.parent / "docs"
RESULTS = HOME / "results"
BUSY = "†"
NOT_MEASURED = "Not measured in this run."
PLACEHOLDER = re.compile(r"\{\{(\w+) ?([^}]*)\}\}")
BLOCK = re.compile(r"(<!-- \{\{(\w+) ?([^}]*)\}\} -->)\n.*?<!-- \{\{end\}\} -->", re.DOTALL)
PAGES = ("bson.md", "scale.md", "store.md")
"""Pages with blocks that results fill."""


def environment(results: dict[str, Any], _: str) -> str:
    """The machine, the libraries, and the range of commits, times and loads that the rows were measured in."""
    found, rows = results["environment"], results["rows"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    text = (
        f"tensorglot {found['tensorglot']}, Python {found['python']}, {found['system']}, {found['cpus']} processors, "
        f"{found['memory_nbytes'] / 2**30:.0f} GiB. Libraries: {versions}."
    )
    if found["missing"]:
        text += f" Not installed, and left out: {', '.join(found['missing'])}."
    times = sorted(row["when"] for row in rows)
    commits = list(dict.fromkeys(row["commit"] for row in sorted(rows, key=lambda row: str(row["when"]))))
    rounds = sorted({row["rounds"] for row in rows})
    loads = [row["load"] for row in rows]
    disturbed = sum(map(busy, rows, [found["cpus"]] * len(rows)))
    text += (
        f" The {len(rows)} rows were measured from {times[0]} to {times[-1]} UTC, of commit {', '.join(commits)}, in "
        f"{' or '.join(map(str, rounds))} round{'s' * (rounds != [1])} each, while the load of the machine was "
        f"{min(loads)} to {max(loads)}."
    )
    if disturbed:
        text += f" Other work ran beside {disturbed} of them, marked by {BUSY}: treat their ratios as preliminary."
    return text


def busy(row: dict[str, Any], cpus: int) -> bool:
    """More ran than there are processors: not only the benchmark."""
    return bool(row["load"] > cpus + 0.5)


def group(results: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [row for row in results["rows"] if row["group"] == name]


def spread(quickest: float, middle: float) -> str:
    """The figure of the quickest samples, and that of the medians where it differs by more than 1 %."""
    return number(quickest) if abs(middle / quickest - 1) < 0.01 else f"{number(quickest)}, {number(middle)}"


def unsure(results: dict[str, Any]) -> set[tuple[str, str]]:
    """Case and unit of each goal that only one of this run and the repeated one meets."""
    _, differing = disagreements(results, results.get("repeated", {"rows": []}))
    return {(pair.one.case, pair.one.what) for pair in differing}


def ratio(row: dict[str, Any], peer: str, doubtful: bool) -> str:
    """A ratio and its goal, with a question mark if the medians or the repeated run say otherwise of the goal."""
    value, middle, goal = row["times_faster"][peer], median_ratio(row, peer), row["goals"].get(peer)
    text = spread(value, middle)
    if goal is None:
        return text
    mark = "?" * (doubtful or (value >= goal) != (middle >= goal))
    return f"{text if value >= goal else f'**{text}**'} ({goal:.3g}{mark})"


def figure(value: float, limit: float | None, text: str, doubtful: bool) -> str:
    """A figure of ours, and the most that it may be."""
    if limit is None:
        return text
    return f"{text if value <= limit else f'**{text}**'} ({number(limit)}{'?' * doubtful})"


def table(results: dict[str, Any], name: str) -> str:
    """A line for each case; a column for each library that any of them has, and for each figure that was counted."""
    rows = group(results, name)
    skipped = [entry for entry in results["not_measured"] if entry["group"] == name]
    peers = list(dict.fromkeys(peer for row in rows for peer in row["times_faster"]))
    counted = list(dict.fromkeys(key for row in rows for key in row["counted"]))
    columns = [*peers, *counted, "memory, MB"]
    out = [f"| | ours, ms | {' | '.join(columns)} |", "|---|---|" + "---|" * len(columns)]
    doubtful = unsure(results)

    def limited(row: dict[str, Any], key: str, value: float, text: str) -> str:
        scale, unit = UNITS.get(key, (1, key))
        limit = row["limits"].get(key)
        most = None if limit is None else limit / scale
        return figure(value / scale, most, text, (row["case"], unit) in doubtful)

    for row in rows:
        ours, case = next(iter(row["ms"])), row["case"]
        ms, extra_nbytes = row["ms"][ours], row["extra_nbytes"][ours]
        cells = [limited(row, "ms", ms, spread(ms, median(row["samples"][ours])))]
        for peer in peers:
            compared = peer in row["times_faster"]
            cells.append(ratio(row, peer, (case, f"× {peer}") in doubtful) if compared else "")
        for key in counted:
            value = row["counted"].get(key)
            cells.append("" if value is None else limited(row, key, value, number(value)))
        cells.append(limited(row, "extra_nbytes", extra_nbytes, f"{extra_nbytes / 1e6:.0f}"))
        mark = f" {BUSY}" if busy(row, results["environment"]["cpus"]) else ""
        out.append(f"| {case}{mark} | {' | '.join(cells)} |")
    for entry in skipped:
        out.append(f"| {entry['case']} | not measured: {entry['reason']} |" + " |" * len(columns))
    return "\n".join(out) if rows or skipped else NOT_MEASURED


def picture(results: dict[str, Any], name: str) -> str:
    rows = any(row["times_faster"] for row in group(results, name))
    return f"![Times as fast as each peer](performance/{name}.svg)" if rows else ""


def missed(results: dict[str, Any], _: str) -> str:
    """Every goal that is not met, the farthest first, and why."""
    found = sorted((claim for claim in claims(results) if not claim.met), key=lambda claim: claim.distance)
    reasons = (reason(results, claim.case, claim.what.removeprefix("× ")) for claim in found)
    return "\n".join(f"- {claim}. {why or ''}".rstrip() for claim, why in zip(found, reasons, strict=True)) or "None."


def faster_peers(results: dict[str, Any]) -> list[tuple[float, str, str]]:
    """Ratio, case and library of whatever is faster than we are although no goal is missed, the fastest first."""
    return sorted(
        (value, row["case"], peer)
        for row in results["rows"]
        for peer, value in row["times_faster"].items()
        if row["goals"].get(peer, 0) <= value < 1
    )


def repeated(results: dict[str, Any], _: str) -> str:
    """When the rows of another run were measured, and on which goals the two runs disagree."""
    found = results.get("repeated")
    if not found:
        return NOT_MEASURED
    times = sorted(row["when"] for row in found["rows"])
    count, differing = disagreements(results, found)
    text = (
        f"{len(times)} rows of another run, from {times[0]} to {times[-1]} UTC. Of {count} goals that both runs "
        f"have, {len(differing)} are met in one and missed in the other; in the tables they have a question mark."
    )
    return "\n".join([text, "", *(f"- {pair}" for pair in differing)]).rstrip()


def slower(results: dict[str, Any], _: str) -> str:
    lines = [
        f"- {case}: {number(value)} × {peer}. {reason(results, case, peer) or ''}".rstrip()
        for value, case, peer in faster_peers(results)
    ]
    return "\n".join(lines) or "None."


def store(results: dict[str, Any], _: str) -> str:
    found = results.get("store")
    if not found:
        return NOT_MEASURED
    out = [
        f"Of {found.get('weights', 'random weights')}; speeds in GB/s (goals: "
        f"{', '.join(f'{verb} {goal:g}' for verb, goal in STORE_GBPS.items())}), and in brackets "
        "the processor time as a multiple of BLAKE3's over the same bytes. Bold is what misses its goal.",
        "",
        "| | changed | a successor | the largest | goal | as a delta file | commit | checkout | apply |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    doubtful = unsure(results)
    for row in found["scenarios"]:
        case = f"W7 {row['scenario']}"
        mark = "?" * ((case, "% of the checkpoint") in doubtful)
        goal = "" if row["goal"] is None else f"{row['goal']:.2%}{mark}"
        shares = [
            f"**{row[key]:.2%}**" if row["goal"] is not None and row[key] > row["goal"] else f"{row[key]:.2%}"
            for key in ("successor", "most")
        ]
        speeds = [_store_speed(row, verb, (case, f"GB/s, {verb}") in doubtful) for verb in STORE_GBPS]
        delta = f"{row['delta']:.2%}" if "delta" in row else ""
        changed = f"{row['changed']:.2%}"
        out.append(f"| {' | '.join([row['scenario'], changed, *shares, goal, delta, *speeds])} |")
    size = found["tools"][0]["nbytes"] / 1e6
    out += ["", f"| tool | MB after each version of {size:.0f} MB | seconds of a commit |", "|---|---|---|"]
    for tool in found["tools"]:
        sizes = " / ".join(f"{size / 1e6:.0f}" for size in tool["sizes"])
        out.append(f"| {tool['tool']} | {sizes} | {tool['seconds']:.2f} |")
    if found["missing"]:
        out += ["", f"Not installed, and left out: {', '.join(found['missing'])}."]
    return "\n".join(out)


def _store_speed(row: dict[str, Any], verb: str, doubtful: bool) -> str:
    """In GB/s; bold below its goal, with a question mark if the repeated run says otherwise."""
    value = row.get(f"{verb}_gbps")
    if value is None:
        return ""
    shown = f"{value:.2f}" if value >= STORE_GBPS[verb] else f"**{value:.2f}**"
    return f"{shown}{'?' * doubtful} ({row[f'{verb}_times']:.1f} ×)"


def growth(results: dict[str, Any], axis: str) -> str:
    found = results.get("growth", {}).get("axes", {}).get(axis)
    if not found:
        return NOT_MEASURED
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


def program(results: dict[str, Any], name: str) -> str:
    """What a program printed: tables of Markdown, or text."""
    found = results["programs"].get(name)
    if found is None:
        return NOT_MEASURED
    output = found["output"] if "|---" in found["output"] else f"```text\n{found['output']}\n```"
    where = f"time {found['when']}, commit {found['commit']}, load {found['load']}"
    return f"`{found['command']}`, {where}:\n\n{output}"


def compression(results: dict[str, Any], _: str) -> str:
    found = results.get("compression")
    if not found:
        return NOT_MEASURED
    out = ["| weights | zstd 1 | planes, zstd 1 | encode, GB/s | decode, GB/s |", "|---|---|---|---|---|"]
    for row in found["rows"]:
        plain, split = row["zstd"], row["planes"]
        speeds = [f"{plain[key]:.2f}, {split[key]:.2f}" for key in ("encode_gbps", "decode_gbps")]
        out.append(f"| {row['weights']} | {plain['share']:.1%} | {split['share']:.1%} | {' | '.join(speeds)} |")
    gains = {row["weights"]: 1 - row["planes"]["share"] / row["zstd"]["share"] for row in found["rows"]}
    gained = ", ".join(f"{gain:.0%} ({weights})" for weights, gain in gains.items())
    where = f"Time {found['when']} UTC, commit {found['commit']}, load {found['load']}."
    return "\n".join([*out, "", f"Planes would make a compressed `.zt` smaller by {gained}. {where}"])


KINDS = {
    "compression": compression,
    "program": program,
    "environment": environment,
    "table": table,
    "picture": picture,
    "missed": missed,
    "repeated": repeated,
    "slower": slower,
    "store": store,
    "growth": growth,
    "instructions": instructions,
}


def pages(results: dict[str, Any]) -> dict[str, str]:
    """Other pages below docs/, with what the results say from `<!-- {{kind argument}} -->` to `<!-- {{end}} -->`."""

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n\n{KINDS[match[2]](results, match[3])}\n\n<!-- {{{{end}}}} -->"

    return {path: BLOCK.sub(fill, (DOCS / path).read_text()) for path in PAGES}


def generate(results: dict[str, Any]) -> dict[str, str]:
    """Paths below docs/, and what each file contains."""
    template = (HOME / "performance.template.md").read_text()
    files = {"performance.md": PLACEHOLDER.sub(lambda match: KINDS[match[1]](results, match[2]), template)}
    for name in dict.fromkeys(row["group"] for row in results["rows"]):
        rows = {row["case"]: row["times_faster"] for row in group(results, name) if row["times_faster"]}
        if not rows:
            continue
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
    results = json.loads(options.json.read_text())
    files = generate(results) | (pages(results) if options.to == DOCS else {})
    (options.to / "performance").mkdir(parents=True, exist_ok=True)
    for old in (options.to / "performance").glob("*.svg"):
        old.unlink()
    for name, text in files.items():
        (options.to / name).write_text(text)
    print(f"written: {len(files)} files in {options.to}")
    for value, case, peer in faster_peers(results):
        if reason(results, case, peer) is None:
            print(f"NO REASON in benchmarks/reasons.py: {case}, {number(value)} × {peer}")


def publish(arguments: list[str]) -> None:
    """Takes over what the last runs found; a section that was not measured again stays as it is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks publish", description=publish.__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--repeated", type=Path, metavar="RUN.json", help="another run of the same cases")
    options = parser.parse_args(arguments)
    target = DOCS / "performance.json"
    results = json.loads(target.read_text())
    for name in ("run.json", "growth.json", "compression.json"):
        if (options.results / name).exists():
            results |= json.loads((options.results / name).read_text())
    if (options.results / "programs.json").exists():
        results["programs"] |= json.loads((options.results / "programs.json").read_text())["programs"]
    if options.repeated:
        again = json.loads(options.repeated.read_text())
        results["repeated"] = {section: again[section] for section in ("rows", "store") if section in again}
    target.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    main([])
