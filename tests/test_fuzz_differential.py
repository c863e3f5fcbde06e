"""Some hundred mutants read by us and by the package of their format; `make fuzz` has the campaign."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pytest

import test_hdf5_chunks
import test_onnx
from figures import seen
from fuzzing import differential, oracles
from hdf5_seals import resealed
from peers import needs

PACKAGES = ("gguf", "onnx", "h5py", "pymongo", "safetensors", "cbor2")


@pytest.fixture(autouse=True, scope="module")
def _packages() -> Iterator[None]:
    for package in PACKAGES:
        needs(package)
    yield
    differential.oracle().close()


@pytest.mark.parametrize("format", differential.FORMATS)
def test_valid_files_are_equal(format: str) -> None:
    found = [differential.check((format, data)) for data in differential.bases()[format]]
    assert f"{format}: equal" in found
    assert not any("we refuse" in outcome for outcome in found)


def test_the_invariant_holds_for_mutants() -> None:
    outcomes = Counter(map(differential.check, differential.mutants(600, seed=1)))
    seen("executions", outcomes.total())
    assert {f"{format}: both refuse" for format in differential.FORMATS} <= outcomes.keys()


def test_every_rule_on_the_list_has_a_reason() -> None:
    assert differential.REFUSED.keys() == set(differential.FORMATS)
    assert all(reason for rules in differential.REFUSED.values() for reason in rules.values())


def shared_bytes() -> bytes:
    return test_hdf5_chunks.two_spans(test_hdf5_chunks.contiguous)


def short_attribute() -> bytes:
    """The group info of the root, which has two bytes, is an attribute."""
    import h5py

    file = io.BytesIO()
    with h5py.File(file, "w", libver="latest") as made:
        made.create_dataset("w", data=np.arange(4))
    assert file.getvalue().count(b"\x0a\x02\x00\x01") == 1
    return resealed(file.getvalue().replace(b"\x0a\x02\x00\x01", b"\x0c\x02\x00\x01"))


def lost_attributes() -> bytes:
    """The block of the root's attributes has another signature."""
    import h5py

    file = io.BytesIO()
    with h5py.File(file, "w", libver="latest") as made:
        made.create_dataset("w", data=np.arange(4))
        made.attrs.update({f"a{i}": i for i in range(20)})
    assert file.getvalue().count(b"FHDB") == 1
    return file.getvalue().replace(b"FHDB", b"FHDX")


def two_of_a_name() -> bytes:
    return test_onnx.model(*[test_onnx.tensor("w", 1, (0,))] * 2)


@pytest.mark.parametrize(
    ("format", "make", "rule"),
    [
        ("hdf5", shared_bytes, "hdf5.data.overlap"),
        ("hdf5", short_attribute, "hdf5.object.message"),
        ("hdf5", lost_attributes, "hdf5.heap"),
        ("onnx", two_of_a_name, "onnx.name.duplicate"),
    ],
)
def test_a_known_difference_is_no_finding(format: str, make: Callable[[], bytes], rule: str) -> None:
    assert differential.check((format, make())) == f"{format}: we refuse, {rule}"


@pytest.mark.parametrize(
    "theirs",
    [
        {"b": ("float32", (2,), b"12345678")},
        {"a": ("float64", (2,), b"12345678")},
        {"a": ("float32", (2, 1), b"12345678")},
        {"a": ("float32", (2,), b"12345679")},
        {},
    ],
)
def test_a_difference_is_a_finding(theirs: oracles.Found, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, dtypes, shapes and bytes."""
    monkeypatch.setattr(differential, "ours", lambda *given: {"a": ("float32", (2,), b"12345678")})
    monkeypatch.setattr(differential.oracle(), "ask", lambda *given: theirs)
    with pytest.raises(AssertionError):
        differential.check(("npz", b""))


def test_a_package_that_dies_or_hangs_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    good = differential.bases()["npy"][0]
    with closing(oracles.Oracle()) as oracle:
        assert oracle.ask("no such format", good) is None
        assert oracle.ask("npy", good) is not None
        monkeypatch.setattr(oracles, "LONGEST", -1)
        assert oracle.ask("npy", good) is None
        assert oracle.died == 1
        monkeypatch.setattr(oracles, "LONGEST", 30)
        assert oracle.ask("npy", good) is not None
