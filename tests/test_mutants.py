"""The mutation test itself: what a mutant is, which tests it gets, and what is recorded of the last run."""

from __future__ import annotations

import ast
import json
import random
from pathlib import Path

import pytest

import coverage_map
import mutants
from coverage_map import SOURCE, Map
from mutants import LAYERS, Mutant, batches, changes, layer_of, pick, sample

CHANGES = {
    "a < b": ["a <= b"], "a == b": ["a != b"], "a in b": ["a not in b"], "a + b": ["a - b"], "a << b": ["a >> b"],
    "a and b": ["a or b"], "not a": ["a"], "7": ["8"], "True": ["False"], "a if b else c": [
        "a if True else c", "a if False else c",
    ], "a if cython.compiled else c": [],
}  # fmt: skip


@pytest.mark.parametrize("text", CHANGES)
def test_an_expression_is_changed(text: str) -> None:
    node = ast.parse(text, mode="eval").body
    assert [ast.unparse(changed) for changed in changes(node)] == CHANGES[text]


def test_a_mutant_differs_from_its_module_in_one_place() -> None:
    path = SOURCE / "limits.py"
    mutants = pick(path, 5, random.Random(1))
    assert len(mutants) == 5
    for mutant in mutants:
        original = ast.unparse(ast.parse(path.read_text("utf-8")))
        pairs = zip(mutant.source.splitlines(), original.splitlines(), strict=True)
        assert sum(one != other for one, other in pairs) == 1
        ast.parse(mutant.source)


def test_a_seed_gives_the_same_mutants_of_all_layers() -> None:
    one, other = ([str(mutant) for mutant in sample(16, 3)] for _ in range(2))
    assert one == other
    assert {layer_of(mutant.module) for mutant in sample(16, 3)} == set(LAYERS)


def test_a_mutant_gets_the_tests_of_its_line_the_quickest_first() -> None:
    measured = Map()
    measured.lines["m.py"][3] |= {"slow", "quick", ""}
    measured.lines["m.py"][9] |= {"elsewhere"}
    measured.seconds |= {"slow": 5.0, "quick": 0.1, "elsewhere": 0.0}
    assert mutants.tests_for(Mutant("m.py", 3, 3, False, "", ""), measured) == ["quick", "slow"]
    assert mutants.tests_for(Mutant("m.py", 5, 5, False, "", ""), measured) == ["elsewhere", "quick", "slow"], (
        "of the module"
    )
    assert mutants.tests_for(Mutant("m.py", 3, 3, True, "", ""), measured) == ["elsewhere", "quick", "slow"], "imports"
    assert [tests for tests, _ in batches(["quick", "slow"], measured.seconds)] == [["quick"], ["slow"]]


def test_the_figures_of_the_last_run_add_up() -> None:
    found = json.loads(mutants.SUMMARY.read_text("utf-8"))
    assert found["tried"] == sum(row["tried"] for row in found["layers"].values()) <= found["chosen"]
    assert found["killed"] == sum(row["killed"] for row in found["layers"].values())
    assert len(found["survivors"]) == found["tried"] - found["killed"]
    assert found["layers"].keys() == LAYERS.keys()
    assert isinstance(found["seed"], int)


VERSIONS = ("""\
LIMIT = 3

class Index:
    def take(self):
        return self.rows[:LIMIT]

    def drop(self):
        return 1
""", """\
'''A docstring.'''
LIMIT = 4

class Index:
    def drop(self):
        return 2

    def take(self):
        return self.rows[:LIMIT]
""")  # fmt: skip


def test_what_was_measured_of_an_earlier_version_is_used_for_functions_that_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, results = tmp_path / "build" / "sources", tmp_path / "build" / "compiled"
    sources.mkdir(parents=True)
    results.mkdir()
    for name, text in zip(("old", "new"), VERSIONS, strict=True):
        (sources / name).write_text(text)
    (tmp_path / "same.py").write_text(VERSIONS[0])
    (tmp_path / "changed.py").write_text(VERSIONS[1])
    lines = {"1": ["import"], "5": ["test_take"], "8": ["test_drop"]}
    arcs = [[-4, 5], [5, -4], [-7, 8], [1, 3]]
    modules = ("same.py", "changed.py", "gone.py", "of_unknown_version.py")
    content = {
        "seconds": {"test_take": 1.0},
        "lines": dict.fromkeys(modules, lines),
        "arcs": dict.fromkeys(modules, arcs),
        "digests": dict.fromkeys(modules, "old") | {"of_unknown_version.py": "other"},
    }
    (results / "test_x.json").write_text(json.dumps(content))
    (tmp_path / "of_unknown_version.py").write_text(VERSIONS[0])
    monkeypatch.setattr(coverage_map, "FOLDER", tmp_path / "build")
    monkeypatch.setattr(coverage_map, "SOURCE", tmp_path)
    found = coverage_map.load()
    assert found.lines == {
        "same.py": {1: {"import"}, 5: {"test_take"}, 8: {"test_drop"}},
        "changed.py": {9: {"test_take"}},
    }
    assert {name: sorted(arcs) for name, arcs in found.arcs.items() if arcs} == {
        "same.py": sorted(map(tuple, arcs)),
        "changed.py": [(-8, 9), (9, -8)],
    }
