"""Names that stay bytes in the header: found, told apart, and decoded only when they are listed."""

from __future__ import annotations

import sys
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorglot as tg
from tensorglot.kernels import names as kernel
from tensorglot.model.names import Names

WORDS = (1 << 64) - 1
SPREAD = 0x9E37_79B9_7F4A_7C15
BACK = pow(SPREAD, -1, 1 << 64)


def spans(encoded: list[bytes]) -> tuple[bytes, Any, Any]:
    ends = np.cumsum([len(one) for one in encoded], dtype=np.int64)
    return b"".join(encoded), ends - np.array([len(one) for one in encoded], np.int64), ends


def names_of(texts: list[str]) -> Names:
    return Names(*spans([text.encode() for text in texts]))


def unmixed(hash: int) -> int:
    """What the kernel's mixing makes this hash of: the hash before, exclusive-or the word."""
    return (hash ^ hash >> 32) * BACK & WORDS


def name_with(hash: int, second: int) -> bytes:
    """A name of sixteen bytes with this hash and this second word, which counts twice, as it is also the last."""
    before = unmixed(unmixed(unmixed(hash) ^ second) ^ second) ^ 16
    return before.to_bytes(8, sys.byteorder) + second.to_bytes(8, sys.byteorder)


@given(st.lists(st.text(max_size=12), max_size=20), st.text(max_size=12))
def test_find_returns_the_first_position_of_a_name(texts: list[str], wanted: str) -> None:
    names = names_of(texts)
    for text in [*texts, wanted]:
        assert names.find(text) == (texts.index(text) if text in texts else None)


def test_what_cannot_be_a_name_is_not_found() -> None:
    assert names_of(["a"]).find("\ud800") is None
    archive = tg.open(tg.dumps({"a": np.zeros(1)}, format="bintensors"))
    with pytest.raises(tg.TensorNotFound):
        archive[0]  # type: ignore[index]


@given(st.lists(st.text("ab", max_size=3), max_size=20))
def test_the_first_duplicate_is_found(texts: list[str]) -> None:
    expected = next((i for i, text in enumerate(texts) if text in texts[:i]), None)
    assert names_of(texts).first_duplicate() == expected


@pytest.mark.parametrize(
    ("hashes", "expected"),
    [
        ([], False),
        ([7], False),
        (list(range(1000)), False),
        ([*range(1000), 0], True),
        ([i << 56 for i in range(256)], False),
        ([0, 0], True),
    ],
    ids=["none", "one", "low bits", "low bits and one again", "high bits", "zero twice"],
)
def test_equal_hashes_are_noticed(hashes: list[int], expected: bool) -> None:
    assert kernel.may_repeat(*spans([name_with(hash, i) for i, hash in enumerate(hashes)])) is expected


def test_equal_hashes_of_different_names_are_not_duplicates() -> None:
    found = (name_with(5, second) for second in range(100_000))
    one, two = islice((name.decode() for name in found if name.isascii()), 2)
    assert kernel.may_repeat(*spans([one.encode(), two.encode()]))
    assert names_of([one, two]).first_duplicate() is None
    assert names_of([one, two, one]).first_duplicate() == 2


@pytest.mark.parametrize("nbytes", [*range(20), 100])
def test_every_byte_of_a_name_counts(nbytes: int) -> None:
    name = bytes(range(1, nbytes + 1))
    others = [name[:i] + b"\0" + name[i + 1 :] for i in range(nbytes)]
    assert not kernel.may_repeat(*spans([name, *others, name + b"\0"]))


def test_adversarial_hash_collisions_cost_no_time() -> None:
    """All in one slot of any table: the names decide, and there are no long walks through the table."""
    names = [name_with(i * BACK & WORDS, i) for i in range(50_000)]
    assert kernel.may_repeat(*spans(names)) is True


@pytest.mark.parametrize("format", ["bintensors@0", "bintensors@1", "ztensor@0.1", "safetensors"])
def test_the_first_lookup_and_the_later_ones_agree(format: str) -> None:
    tensors = {f"block.{i}.bias": np.array([i]) for i in range(300)}
    data = tg.dumps(tensors, format=format)
    for name in ("block.0.bias", "block.55.bias", "block.299.bias"):
        with tg.open(data) as archive:
            assert [archive[name].numpy()[0] for _ in range(3)] == [tensors[name][0]] * 3
    with tg.open(data) as archive:
        for name in ("block.5555.bias", "block.555.bias", ""):
            with pytest.raises(tg.TensorNotFound):
                archive[name]


@pytest.mark.parametrize("format", ["bintensors@0", "bintensors@1", "ztensor@0.1", "ztensor@2", "safetensors", "npz"])
def test_a_file_is_recognised_whatever_the_length_of_its_first_name(format: str) -> None:
    for nbytes in (60, 476, 482, 1000):
        name = "n" * nbytes
        assert list(tg.loads(tg.dumps({name: np.ones((2, 3), "float32")}, format=format))) == [name]
