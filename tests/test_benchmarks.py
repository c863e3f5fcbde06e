"""The benchmarks as a program: the published page is what its results give, and the judgements are right."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(ROOT))

    def load(name: str) -> ModuleType:
        return importlib.import_module(f"benchmarks.{name}")

    yield load
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]


def test_the_page_and_its_pictures_are_what_the_results_give(module) -> None:
    results = json.loads((ROOT / "docs/performance.json").read_text())
    files = module("report").generate(results)
    for name, text in files.items():
        assert (ROOT / "docs" / name).read_text() == text, f"docs/{name}: run python -m benchmarks report"
    pictures = {f"performance/{path.name}" for path in (ROOT / "docs/performance").iterdir()}
    assert pictures == files.keys() - {"performance.md"}
    assert "{{" not in files["performance.md"]


def test_every_row_in_which_something_else_is_faster_has_its_reason(module) -> None:
    results = json.loads((ROOT / "docs/performance.json").read_text())
    reason = module("reasons").reason
    slower = [
        (row["case"], peer) for row in results["rows"] for peer, times in row["times_faster"].items() if times < 1
    ]
    assert [pair for pair in slower if reason(*pair) is None] == []


def row(**times: float) -> dict:
    return {
        "group": "containers", "case": "W9 load <&>", "when": "2026-01-02 03:04", "load": 0.1, "rounds": 1,
        "ms": {"tensorglot": 2.0, **{peer: 2.0 * value for peer, value in times.items()}},
        "extra_nbytes": {"tensorglot": 5_000_000, **dict.fromkeys(times, 0)}, "times_faster": times,
        "goals": {"safetensors": 4.0}, "extra_nbytes_goal": None, "met": False,
    }  # fmt: skip


def results(**times: float) -> dict:
    machine = {"cpus": 2, "memory_nbytes": 2**34, "python": "3", "system": "s", "tensorglot": "0", "versions": {}}
    return {"rows": [row(**times)], "environment": {**machine, "missing": ["zarr"]}}


def test_a_ratio_below_its_goal_is_bold_and_a_faster_peer_is_listed(module) -> None:
    page = module("report").generate(results(safetensors=3.5, pickle=0.5))["performance.md"]
    assert "**3.5** (4)" in page
    assert "- W9 load <&>: 0.5 × pickle." in page
    assert "left out: zarr" in page
    assert "**" not in module("report").ratio(row(safetensors=4.0), "safetensors")


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
    assert all(name.startswith(("verify", "diff")) or name.endswith("verify") for name in unchecked)


def test_the_model_of_size_prints_its_tables(module, capsys: pytest.CaptureFixture[str]) -> None:
    module("size_model").main(2)
    printed = capsys.readouterr().out
    for wanted in ("Saving 1 TB on 1,024 ranks", "New weights for 10,000 servers", "| full |", "| delta |"):
        assert wanted in printed
    assert [line.count("|") for line in printed.splitlines() if line.startswith("| delta")] == [7, 7]
