"""Some hundred mutants of a server's answers in every run of the tests; `make fuzz` has the campaign."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import tensorglot as tg
from figures import seen
from fuzzing import urls
from peers import needs

pytestmark = pytest.mark.remote


@pytest.fixture(autouse=True)
def _needs_obstore() -> None:
    needs("obstore")


def test_the_invariant_holds_for_mutants() -> None:
    outcomes = Counter(urls.check(mutant) for mutant in urls.mutants(250, seed=1))
    seen("executions", outcomes.total())
    assert outcomes["read"] > 20
    assert {"remote.answer", "remote.short", "remote.long", "source.changed"} <= outcomes.keys()


@pytest.mark.parametrize("format", urls.files())
def test_another_version_at_any_request(format: str) -> None:
    """The second version from the first request on is read, later it is a change."""
    found = [urls.check(urls.Mutant(format, {}, second_from)) for second_from in (0, 1, 99)]
    assert found == ["read", "source.changed", "read"]


def test_the_check_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that replaces the file and says that it did not: no reader could notice, so it is a mixture."""
    versions = [tg.dumps({"a": np.full((100_000,), number, np.float32)}, format="safetensors") for number in (1, 2)]
    monkeypatch.setattr(urls, "files", lambda: {"safetensors": versions})
    monkeypatch.setattr(urls, "values", lambda name: [{"a": tg.loads(data)["a"].tobytes()} for data in versions])
    lie = {-1: [urls.Change("etag", text='"one"')]}
    assert urls.check(urls.Mutant("safetensors", lie, 0)) == "read"
    with pytest.raises(AssertionError, match="mixture"):
        urls.check(urls.Mutant("safetensors", lie, 1))
