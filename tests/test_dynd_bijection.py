"""One value, one byte string: over random types and values, over mutated bytes, against a second decoder.

Whatever is accepted serializes to the same bytes; what the naive decoder refuses is
refused, and what it accepts is accepted with the same value.
"""

from __future__ import annotations

import io
from contextlib import suppress
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dynd_naive import MOST, Naive, Refused
from dynd_random import mutant, random_bytes, random_type, same, sized
from tensorglot import dynd
from tensorglot.errors import FormatError, InputError, LimitError
from tensorglot.limits import Limits

seeds = st.integers(0, 2**32)
many = settings(deadline=None, max_examples=300, database=None)


def case(seed):
    rng = Random(seed)
    t = random_type(rng)
    return rng, t, random_bytes(rng, t)


def naive_value(t, data):
    naive = Naive(data)
    value = naive.value(t)
    if naive.data:
        raise Refused
    return value


@many
@given(seeds)
def test_bytes_to_value_to_bytes(seed):
    _, t, data = case(seed)
    tensor = dynd.deserialize(data, t)
    assert tensor.type == t
    assert tensor.serialize() == data
    assert same(tensor.tolist(), naive_value(t, data))


@many
@given(seeds)
@example(2846)
def test_python_values_serialize_to_the_same_bytes(seed):
    _, t, data = case(seed)
    value = dynd.deserialize(data, t).tolist()
    if "nan" in repr(value):
        # Python's floats do not keep every NaN's payload, and so two keys of a map can become one.
        with suppress(InputError):
            dynd.serialize(value, t)
    else:
        assert dynd.serialize(value, t) == data


@many
@given(seeds)
def test_streams_read_what_memory_reads_and_no_more(seed):
    _, t, data = case(seed)
    stream = io.BytesIO(data + b"rest")
    tensor = dynd.load(stream, t)
    assert stream.read() == b"rest"
    out = io.BytesIO()
    assert dynd.dump(tensor, out) == len(data)
    assert out.getvalue() == data


@many
@given(seeds)
def test_pack_and_unpack(seed):
    _, t, data = case(seed)
    packed = dynd.pack(dynd.deserialize(data, t))
    assert packed == sized(str(t).encode()) + data
    tensor = dynd.unpack(packed)
    assert tensor.type == t
    assert tensor.serialize() == data


def check_mutant(t, data):
    try:
        tensor = dynd.deserialize(data, t, limits=Limits(void_count=MOST))
    except LimitError as error:
        assert error.rule.startswith("dynd.")  # noqa: PT017
        return
    except FormatError as error:
        assert error.rule.startswith("dynd.")  # noqa: PT017
        assert error.offset is not None  # noqa: PT017
        assert 0 <= error.offset <= len(data)  # noqa: PT017
        with pytest.raises((Refused, FormatError)):
            naive_value(t, data)
        return
    assert tensor.serialize() == data
    assert same(tensor.tolist(), naive_value(t, data))


@settings(many, max_examples=1000)
@given(seeds)
def test_mutants_are_refused_or_round_trip(seed):
    rng, t, data = case(seed)
    check_mutant(t, mutant(rng, data))
