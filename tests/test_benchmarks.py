"""The benchmarks as a program: the published page is what its results give, and the judgements are right."""

from __future__ import annotations

import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree

import pytest

from peers import needs

ROOT = Path(__file__).parent.parent


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(ROOT))

    def load(name: str) -> ModuleType:
        return importlib.import_module(f"benchmarks.{name}")

    yield load
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]


@pytest.fixture
def published() -> dict:
    return json.loads((ROOT / "docs/performance.json").read_text())


def test_the_pages_and_pictures_are_what_the_results_give(module, published) -> None:
    report = module("report")
    files, pages = report.generate(published), report.pages(published)
    for name, text in {**files, **pages}.items():
        assert (ROOT / "docs" / name).read_text() == text, f"docs/{name}: run python -m benchmarks report"
    pictures = {f"performance/{path.name}" for path in (ROOT / "docs/performance").iterdir()}
    assert pictures == files.keys() - {"performance.md"}
    assert "{{" not in files["performance.md"]


def test_every_page_with_a_block_is_filled(module) -> None:
    with_blocks = {path.name for path in (ROOT / "docs").glob("*.md") if "<!-- {{" in path.read_text()}
    assert with_blocks == {*module("report").PAGES}


def test_whatever_is_faster_without_missing_a_goal_has_its_reason(module, published) -> None:
    reason = module("reasons").reason
    faster = module("report").faster_peers(published)
    assert [(case, peer) for _, case, peer in faster if reason(published, case, peer) is None] == []


def test_a_reason_is_for_one_row_that_exists_and_has_numbers_of_it(module, published) -> None:
    """A pattern for any row would hide the next one in which something is faster."""
    cases = {case.name: case for name in importlib.import_module("benchmarks").GROUPS for case in module(name).cases()}
    verbs, claims = module("growth").VERBS, module("claims")
    for (name, what), text in module("reasons").REASONS.items():
        verb, against, axis = name.partition(" against ")
        if against:
            assert verb in verbs
            assert axis in ("tensors", "bytes")
            assert what in ("as the exponent of time", "as the exponent of memory")
            continue
        if name.startswith("W7 "):
            sized = {row["scenario"] for row in published["store"]["scenarios"]}
            assert name.removeprefix("W7 ") in (sized if what == "% of the checkpoint" else claims.STORE_SCENARIOS)
            assert what == "% of the checkpoint" or what.removeprefix("GB/s, ") in claims.STORE_GBPS
            continue
        assert what in cases[name].actions or what == "MB of memory"
        assert re.search(r"{ours}|{theirs}|{more}|\d", text), name


def row(**times: float) -> dict:
    return {
        "group": "containers", "case": "W9 load <&>", "when": "2026-01-02 03:04", "commit": "abc", "load": 0.1,
        "rounds": 3,
        "ms": {"tensorglot": 2.0, **{peer: 2.0 * value for peer, value in times.items()}},
        "samples": {"tensorglot": [2.0, 4.0, 4.0], **{peer: [2.0 * value] * 3 for peer, value in times.items()}},
        "extra_nbytes": {"tensorglot": 5_000_000, **dict.fromkeys(times, 0)}, "times_faster": times,
        "goals": {peer: 4.0 for peer in times if peer == "safetensors"}, "counted": {"requests": 3},
        "limits": {"extra_nbytes": 4_000_000, "requests": 3}, "met": False,
    }  # fmt: skip


def results(**times: float) -> dict:
    machine = {"cpus": 2, "memory_nbytes": 2**34, "python": "3", "system": "s", "tensorglot": "0", "versions": {}}
    skipped = {"group": "containers", "case": "W9 find", "reason": "no mongod"}
    return {
        "rows": [row(**times)], "not_measured": [skipped], "programs": {},
        "environment": {**machine, "missing": ["zarr"]},
    }  # fmt: skip


def test_the_page_says_what_was_missed_and_what_is_faster(module) -> None:
    page = module("report").generate(results(safetensors=3.5, pickle=0.5))["performance.md"]
    assert "- W9 load <&>: 3.5 × safetensors, goal at least 4." in page
    assert "- W9 load <&>: 5 MB of memory, goal at most 4." in page
    assert "- W9 load <&>: 0.5 × pickle." in page
    assert "left out: zarr" in page
    assert "| W9 find | not measured: no mongod |" in page
    assert "| **5** (4) |" in page
    assert "| 3 (3) |" in page


def test_a_ratio_is_given_by_the_quickest_and_by_the_medians(module) -> None:
    ratio = module("report").ratio
    assert ratio(row(safetensors=3.5), "safetensors", False) == "**3.5, 1.75** (4)"
    assert ratio(row(safetensors=5.0), "safetensors", False) == "5, 2.5 (4?)"
    assert ratio(row(safetensors=9.0), "safetensors", True) == "9, 4.5 (4?)"
    assert ratio(row(pickle=3.0), "pickle", False) == "3, 1.5"


def test_goals_that_a_second_run_judges_otherwise_are_marked_and_listed(module) -> None:
    again = {"rows": [{**row(safetensors=3.9), "extra_nbytes": {"tensorglot": 3_000_000, "safetensors": 0}}]}
    scenario = {
        "scenario": "2 % changed", "changed": 0.02, "successor": 0.01, "most": 0.012, "goal": 0.016,
        **{f"{verb}_{unit}": 2.0 for verb in ("commit", "checkout", "apply") for unit in ("gbps", "times")},
    }  # fmt: skip
    stored = {"tools": [{"nbytes": 1, "sizes": [], "tool": "", "seconds": 1}], "missing": []}
    found = {
        **results(safetensors=8.5), "store": {**stored, "scenarios": [scenario]},
        "repeated": {**again, "store": {**stored, "scenarios": [{**scenario, "commit_gbps": 0.5, "most": 0.02}]}},
    }  # fmt: skip
    page = module("report").generate(found)["performance.md"]
    assert "1 rows of another run" in page
    assert "Of 7 goals that both runs have, 4 are met in one" in page
    assert "- W9 load <&>: 8.5 (met) and 3.9 (missed) × safetensors, goal 4" in page
    for cell in ("| 8.5, 4.25 (4?) |", "| **5** (4?) |", "| 1.60%? |", "| 2.00? (2.0 ×) | 2.00 (2.0 ×) |", "| 3 (3) |"):
        assert cell in page


def test_the_page_gives_the_range_of_commits_times_and_loads(module) -> None:
    found = results(safetensors=4.0)
    found["rows"].append({**found["rows"][0], "commit": "def", "when": "2026-01-03 09:00", "load": 7.5})
    page = module("report").generate(found)["performance.md"]
    assert "from 2026-01-02 03:04 to 2026-01-03 09:00 UTC, of commit abc, def" in page
    assert "load of the machine was 0.1 to 7.5. Other work ran beside 1 of them" in page
    assert page.count("| W9 load <&> † |") == 1


def written(path: Path, found: dict) -> str:
    path.write_text(json.dumps(found))
    return str(path)


def test_two_runs_that_disagree_on_a_goal_fail(module, tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    compare = module("claims").main
    one = written(tmp_path / "one.json", results(safetensors=3.9))
    two = written(tmp_path / "two.json", results(safetensors=4.2))
    with pytest.raises(SystemExit) as left:
        compare([one, two])
    assert left.value.code == 1
    said = capsys.readouterr().out
    assert "W9 load <&>: 3.9 (missed) and 4.2 (met) × safetensors, goal 4" in said
    assert "3 goals in both runs, 1 of them" in said
    compare([one, one])


def test_speeds_of_the_store_and_exponents_are_goals_as_well(module) -> None:
    speeds = {"commit_gbps": 0.7, "checkout_gbps": 1.1, "apply_gbps": 2.5}
    scenario = {"scenario": "2 % changed", "successor": 0.01, "most": 0.02, "goal": 0.016, **speeds}
    curves = {"open": {"time": 1.2, "memory": None}, "views": {"time": 1.3, "memory": None}}
    found = {"rows": [], "store": {"scenarios": [scenario]}, "growth": {"axes": {"tensors": curves}}}
    missed = [(claim.case, claim.what) for claim in module("claims").claims(found) if not claim.met]
    assert missed == [
        ("W7 2 % changed", "% of the checkpoint"),
        ("W7 2 % changed", "GB/s, checkout"),
        ("open against tensors", "as the exponent of time"),
    ]


def test_nobody_is_timed_at_a_first_use(module, tmp_path: Path) -> None:
    """The same action runs on a small file before: what it imports then is not in its time."""
    package = importlib.import_module("benchmarks")
    for name in package.GROUPS:
        for case in module(name).cases():
            if not (case.first_use or case.repeats > 1):
                assert name in ("requests", "startup") or case.name == "W6 write a collection, float32", case.name
    (tmp_path / "first_use").mkdir()
    used = []

    def action(folder: Path):
        return lambda: used.append(folder.name)

    case = module("case").Case("a", {"tensorglot": action}, used.append, 1, first_use=True)
    module("measure").ready(case, "tensorglot", tmp_path)
    assert used == ["first_use"]


def test_the_best_repeat_counts_and_an_action_may_time_itself(module) -> None:
    counted = iter([{"ms": 3.0, "requests": 1}, {"ms": 2.0, "requests": 5}])
    found, _ = module("measure").timed(lambda: module("case").Counted(next(counted)), 2, 0)
    assert (found["ms"], found["requests"]) == (2.0, 5)


def test_an_action_of_two_rows_is_measured_once_in_a_turn(module, monkeypatch, tmp_path) -> None:
    run, calls = module("run"), []

    def measured(command: list[str], **options: object) -> SimpleNamespace:
        calls.append(command[5])
        return SimpleNamespace(returncode=0, stdout=json.dumps({"ms": len(calls), "extra_nbytes": 0}))

    monkeypatch.setattr(run.subprocess, "run", measured)
    one, two = (
        case for case in module("frameworks").cases() if case.name in ("torch load, mmap", "torch load_file, mmap")
    )
    (first, second), _ = run.measure("frameworks", [one, two], False, tmp_path, 2)
    assert calls == ["tensorglot", "safetensors", "tensorglot"] * 2
    assert first["safetensors"] == second["safetensors"]
    assert first["tensorglot"] != second["tensorglot"]


def test_a_slow_case_has_fewer_rounds_and_never_fewer_than_three(module, monkeypatch, tmp_path) -> None:
    run, done = module("run"), SimpleNamespace(returncode=0, stdout=json.dumps({"ms": 1, "extra_nbytes": 0}))
    monkeypatch.setattr(run.subprocess, "run", lambda command, **options: done)
    case = module("case").Case("a", {"tensorglot": print}, print, 1)
    for seconds, rounds in ((0.0, run.LEAST_ROUNDS), (1e9, 7)):
        (found,), _ = run.measure("containers", [case], False, tmp_path, 7, seconds)
        assert len(found["tensorglot"]) == rounds


def test_the_folder_of_a_run_is_made(module, tmp_path) -> None:
    with module("measure").temporary(tmp_path / "not" / "there") as folder:
        assert folder.is_dir()
        assert folder.parent == tmp_path / "not" / "there"
    assert not folder.exists()


def test_a_row_keeps_every_sample_its_commit_and_its_load(module) -> None:
    run, made = module("run"), module("case").Case
    case = made("a", {"tensorglot": print, "pickle": print}, print, 1, goals={"pickle": 2.0}, limits={"ms": 3})
    samples = {
        "tensorglot": [{"ms": 4.0, "extra_nbytes": 1}, {"ms": 2.0, "extra_nbytes": 9}],
        "pickle": [{"ms": 8.0, "extra_nbytes": 0}, {"ms": 6.0, "extra_nbytes": 0}],
    }
    found = run.row("containers", case, samples, 1.26)
    assert found["samples"] == {"tensorglot": [4.0, 2.0], "pickle": [8.0, 6.0]}
    assert (found["times_faster"], found["extra_nbytes"]["tensorglot"], found["load"]) == ({"pickle": 3.0}, 9, 1.3)
    assert found["commit"] == run.commit()
    assert found["met"]
    assert not run.row("containers", replace(case, limits={"ms": 1}), samples, 0)["met"]


def test_without_a_server_its_rows_are_listed_as_not_measured(module, monkeypatch, tmp_path) -> None:
    needs("pymongo")
    monkeypatch.delenv("TENSORGLOT_MONGOD", raising=False)
    monkeypatch.setattr(module("peers"), "PROGRAMS", {"mongod": module("peers").Program(lambda: None, "install it")})
    module("run").main(["W6 read a collection", "--json", str(tmp_path / "run.json")])
    (entry,) = json.loads((tmp_path / "run.json").read_text())["not_measured"]
    assert (entry["case"], entry["reason"]) == ("W6 read a collection, float32", "no mongod")


def test_pictures_are_xml_with_a_bar_for_each_peer(module) -> None:
    svg = module("svg")
    bars = svg.bars("a < b", {"one": {"x": 10.0, "y": 0.5}, "two": {"x": 1.0}})
    rectangles = [node for node in ElementTree.fromstring(bars).iter() if node.tag.endswith("rect")]
    assert [node.get("class") for node in rectangles] == ["faster", "slower", "faster"]
    ElementTree.fromstring(svg.lines("a & b", "tensors", {"open": [(100, 0.1), (1000, 1.0)]}))


@pytest.mark.parametrize("power", [0.5, 1.0, 1.3])
def test_exponents_are_those_of_the_curve(module, power: float) -> None:
    growth = module("growth")
    points = [(size, 3.0 * size**power) for size in growth.sizes(100, 1_000_000)]
    assert growth.exponent(points) == pytest.approx(power)


def test_sizes_reach_both_ends(module) -> None:
    assert module("growth").sizes(100, 10_000) == [100, 316, 1000, 3162, 10_000]


def test_fixed_costs_at_small_sizes_do_not_hide_growth(module) -> None:
    growth = module("growth")
    points = [(size, 1e6 + size**1.5) for size in growth.sizes(100, 1_000_000)]
    assert growth.exponent(points) > growth.LIMIT


def test_growth_is_measured_for_every_verb_and_drawn(module, tmp_path, monkeypatch) -> None:
    """With files of nothing to speak of: that each verb runs, in a process of its own, and where its points end up."""
    growth, report = module("growth"), module("report")
    monkeypatch.chdir(ROOT)
    path = tmp_path / "growth.json"
    growth.main(["--tensors", "100", "--bytes", "0", "--rounds", "1", "--json", str(path), "--folder", str(tmp_path)])
    found = results(safetensors=4.0) | json.loads(path.read_text())
    curves = found["growth"]["axes"]["tensors"]
    assert curves.keys() == {*growth.VERBS}
    assert all(point["ms"] > 0 for curve in curves.values() for point in curve["points"])
    files = report.generate(found)
    assert all(f"| {verb} | 1e+02 |" in files["performance.md"] for verb in growth.VERBS)
    assert files["performance/growth-tensors.svg"].count("<polyline") == 2 * len(growth.VERBS)  # and the legend


def test_planes_are_compared_with_plain_zstd_and_the_gain_is_said(module) -> None:
    numpy, compression = importlib.import_module("numpy"), module("compression")
    array = numpy.random.default_rng(1).standard_normal(100_000).astype(numpy.float32)
    row = {"weights": "mine", **{kind: compression.measure(array, kind == "planes") for kind in ("zstd", "planes")}}
    assert row["planes"]["share"] < row["zstd"]["share"] < 1
    found = {"when": "2026-01-02 03:04", "commit": "abc", "load": 1, "rows": [row]}
    page = module("report").compression({"compression": found}, "")
    assert "Planes would make a compressed `.zt` smaller by" in page
    assert "(mine)" in page


def test_instructions_above_the_margin_are_reported(module) -> None:
    compare = module("instructions").compare
    assert compare({"open": 1000, "save": 1000}, {"open": 1030, "save": 1031, "new": 5}) == {"save": 1.031}


def test_other_versions_have_a_wider_margin(module, capsys: pytest.CaptureFixture[str], monkeypatch, tmp_path) -> None:
    instructions = module("instructions")
    monkeypatch.setattr(instructions.shutil, "which", lambda program: program)
    monkeypatch.setattr(instructions, "KEPT", tmp_path / "kept.json")
    monkeypatch.setattr(instructions, "versions", lambda: {"numpy": "2"})
    monkeypatch.setattr(instructions, "count", lambda: {"open": 1100})
    for numpy, fails in (("2", True), ("1", False)):
        instructions.KEPT.write_text(json.dumps({"versions": {"numpy": numpy}, "counts": {"open": 1000}}))
        if fails:
            with pytest.raises(SystemExit):
                instructions.main(["--check"])
        else:
            instructions.main(["--check"])
            assert "other versions (numpy): the margin is 25%" in capsys.readouterr().out


@pytest.mark.parametrize(("required", "status"), [("all", 1), ("", 0)])
def test_without_valgrind_nothing_is_counted(module, monkeypatch, required: str, status: int) -> None:
    instructions = module("instructions")
    monkeypatch.setenv("TENSORGLOT_REQUIRE", required)
    monkeypatch.setattr(instructions.shutil, "which", lambda program: None)
    with pytest.raises(SystemExit) as left:
        instructions.main(["--check"])
    assert left.value.code == status


def test_every_kept_count_has_its_versions(module) -> None:
    kept = json.loads((ROOT / "benchmarks/instructions.json").read_text())
    assert kept["counts"]
    assert kept["versions"].keys() >= {"python", "numpy", "valgrind"}


def test_a_library_that_is_not_installed_is_left_out(module, monkeypatch: pytest.MonkeyPatch) -> None:
    run, peers = module("run"), module("peers")
    monkeypatch.setitem(peers.DISTRIBUTIONS, "arrow", "no-such-distribution")
    (case,) = [case for case in module("containers").cases() if case.name == "W1 save"]
    assert "arrow" not in run.available(case)
    assert {"tensorglot", "pickle", "bare"} <= set(run.available(case))


def test_names_of_cases_are_unique_and_every_case_is_checked(module) -> None:
    package = importlib.import_module("benchmarks")
    cases = [case for name in package.GROUPS for case in module(name).cases()]
    assert len({case.name for case in cases}) == len(cases)
    unchecked = {case.name for case in cases if case.check is None}
    assert all(name.startswith(("verify", "diff", "HTTP")) or name.endswith("verify") for name in unchecked)


def test_the_model_of_size_prints_its_tables(module, capsys: pytest.CaptureFixture[str]) -> None:
    module("size_model").main(2)
    printed = capsys.readouterr().out
    for wanted in ("Saving 1 TB on 1,024 ranks", "New weights for 10,000 servers", "| full |", "| delta |"):
        assert wanted in printed
    assert [line.count("|") for line in printed.splitlines() if line.startswith("| delta")] == [7, 7]
