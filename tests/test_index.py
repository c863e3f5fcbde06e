"""The algebra of an index: taking tensors and putting indexes together keeps every column of every tensor."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorglot as tg
from tensorglot.model.archive import Archive
from tensorglot.model.builder import IndexBuilder, Row
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import Index, Layout
from tensorglot.model.payload import Memory
from tensorglot.model.types.algebra import dense

DTYPES = [BY_NAME[name] for name in ("float32", "int8", "bool", "complex64")]
FLOAT32 = BY_NAME["float32"]


class Source:
    """Bytes that nobody reads."""

    size = 1 << 20


SOURCES = [Source(), Source()]


class Codec:
    name = "test"


CODECS = [Codec(), Codec()]


@st.composite
def rows(draw: st.DrawFn, part: str) -> Row:
    begin = draw(st.integers(0, 1000))
    codec = draw(st.sampled_from([None, *CODECS]))
    return Row(
        dtype=draw(st.sampled_from([*DTYPES, "float3"])),
        shape=tuple(draw(st.lists(st.integers(0, 4), max_size=3))),
        begin=begin,
        end=begin + draw(st.integers(0, 100)),
        part=part,
        payload=draw(st.sampled_from([None, None, Memory(np.zeros(2))])),
        codec=codec,
        nbytes=draw(st.integers(1, 99)) if codec is not None else 0,
        big_endian=draw(st.booleans()),
        checksum=draw(st.sampled_from([None, "xxh3:0", "crc32c:1"])),
        checksum_decoded=draw(st.booleans()),
    )


@st.composite
def indexes(draw: st.DrawFn, prefix: str = "") -> Index:
    builder = IndexBuilder(tg.Limits(), "test")
    for i in range(draw(st.integers(0, 5))):
        several = draw(st.booleans())
        parts = [draw(rows(part)) for part in (("values", "indices") if several else ("data",))]
        builder.add(
            f"{prefix}{i}",
            *parts,
            layout=Layout("test", dense(FLOAT32, (i,))) if several else None,
            attributes=draw(st.sampled_from([None, {"unit": i}])),
        )
    index = builder.index("test", {"step": 1})
    count = len(index.dtypes)
    return replace(index, sources={row: draw(st.sampled_from(SOURCES)) for row in range(0, count, 2)})


def described(index: Index) -> dict[str, Any]:
    """All that an index says of each tensor."""

    def part(row: int) -> tuple[Any, ...]:
        return (
            "data" if index.part_names is None else index.part_names[row],
            index.dtype_name(row),
            index.shape(row),
            int(index.begins[row]),
            int(index.ends[row]),
            int(index.nbytes[row]),
            None if index.payloads is None else index.payloads[row],
            None if index.checksums is None else index.checksums[row],
            bool(index.checksums and index.checksums[row]) and index.checksum_is_decoded(row),
            index.codecs.get(row),
            row in index.big_endian,
            index.sources.get(row),
        )

    return {
        name: (index.layouts.get(i), index.attributes.get(i), [part(row) for row in index.rows(i)])
        for i, name in enumerate(index.names)
    }


@given(indexes(), st.randoms())
def test_take_keeps_every_column(index: Index, random: Any) -> None:
    order = list(range(len(index.names)))
    random.shuffle(order)
    order = order[: random.randint(0, len(order))]
    taken = index.take(np.array(order, np.int64))
    everything = described(index)
    assert list(taken.names) == [index.names[i] for i in order]
    assert described(taken) == {name: everything[name] for name in taken.names}
    assert (taken.format, taken.metadata) == (index.format, index.metadata)


@given(indexes("a"), indexes("b"), indexes("c"))
def test_concat_keeps_every_column(one: Index, two: Index, three: Index) -> None:
    whole = Index.concat([one, two, three], format="whole", metadata=None)
    assert described(whole) == {**described(one), **described(two), **described(three)}
    assert list(whole.names) == [*one.names, *two.names, *three.names]
    count = len(one.names)
    again = whole.take(np.arange(count, count + len(two.names)))
    assert described(again) == described(two)


def test_concat_of_nothing_has_no_tensors() -> None:
    index = Index.concat([], format="none")
    assert described(index) == {}
    assert {len(column) for column in (index.dtypes, index.dims, index.begins, index.ends)} == {0}


def test_a_tensor_may_be_taken_twice() -> None:
    builder = IndexBuilder(tg.Limits(), "test")
    builder.add("w", Row(dtype=FLOAT32, shape=(2,), begin=8, end=16, codec=CODECS[0], nbytes=8), attributes={"a": 1})
    twice = builder.index("test").take(np.array([0, 0]))
    assert (twice.codecs, twice.attributes) == ({0: CODECS[0], 1: CODECS[0]}, {0: {"a": 1}, 1: {"a": 1}})


def test_every_column_declares_what_it_has_an_entry_for() -> None:
    assert {column.metadata["per"] for column in fields(Index)} == {"row", "tensor", "whole", "structure"}


@pytest.mark.parametrize("limit", ["tensors", "name_nbytes"])
def test_limits_are_charged_as_tensors_come(limit: str) -> None:
    builder = IndexBuilder(tg.Limits(**{limit: 1}), "test")
    builder.add("a", Row(dtype=FLOAT32, shape=()))
    with pytest.raises(tg.LimitError):
        builder.add("bc", Row(dtype=FLOAT32, shape=()))


def test_files_of_two_formats_are_merged_with_their_own_checksums(tmp_path: Any) -> None:
    """Those of version 0.1 cover the stored bytes, those of 2 the decoded ones: each stays what it is."""
    paths = []
    for version, name in (("0.1", "a"), ("2", "b")):
        paths.append(tmp_path / f"{name}.zt")
        tg.save(paths[-1], {name: np.zeros(50_000, "float32")}, format=f"ztensor@{version}", compression="zstd")
    archives = [tg.open(path, verify="require") for path in paths]
    joined = Archive(Index.concat([a.index.in_source(a.source) for a in archives], format="memory"), None)
    assert [joined.index.checksum_is_decoded(row) for row in (0, 1)] == [False, True]
    tg.merge(paths, tmp_path / "whole.zt")
    assert tg.verify(tmp_path / "whole.zt").checksums == 2
