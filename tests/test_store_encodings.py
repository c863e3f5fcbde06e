"""Encodings of a chunk: every chunk comes back, none grows, and no body does more than fail.

The bounds on sizes are those of `docs/store.md` for what an optimizer does to weights.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorglot as tg
from bounds import MB, allocated_nbytes
from tensorglot.store.encoder import Encoded, encode, encode_nodes
from tensorglot.store.encodings import IS_DELTA, SPARE_NBYTES, Encoding, apply, apply_chain, decode
from tensorglot.wire import zstd
from tensorglot.wire.cid import CHUNK_NBYTES

WIDTHS = tuple(range(1, 17))


def view(data: Any) -> memoryview:
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    return memoryview(data)


def restore(encoded: Encoded, nbytes: int, base: bytes | memoryview | None) -> bytes:
    """The chunk, from its encoding and the base as the caller prepares it."""
    out = bytearray(b"" if base is None else base)[:nbytes].ljust(nbytes, b"\0")
    work = apply if encoded.encoding in IS_DELTA else decode
    work(encoded.encoding, memoryview(encoded.body), memoryview(out))
    return bytes(out)


def round_trip(data: Any, width: int, base: Any = None) -> Encoded:
    new, old = view(data), None if base is None else view(base)
    encoded = encode(new, width, old)
    assert restore(encoded, len(new), old) == new
    assert len(encoded.body) <= len(new)
    return encoded


# Round trips


@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_and_every_size_comes_back(width: int) -> None:
    rng = np.random.default_rng(width)
    kinds = set()
    for size in (0, 1, width - 1, width, width + 1, 63, 64 * width, 1000, 300 * width + 1, 70_001):
        weights = view(rng.normal(0, 0.02, size // 4 + 1).astype(np.float32))[:size]
        changed = np.frombuffer(weights, np.uint8).copy()
        changed[:: 20 * width] ^= 1
        for data, base in (
            (rng.bytes(size), None),
            (weights, None),
            (changed, weights),
            (changed, weights[: size // 2]),
            (changed[: size // 2], weights),
            (weights, rng.bytes(size)),
            (rng.bytes(width) * 9, None),
            (weights, weights),
        ):
            kinds.add(round_trip(data, width, base).encoding)
    assert kinds >= {Encoding.RAW, Encoding.CONSTANT, Encoding.PLANES}
    assert kinds & IS_DELTA


@given(st.data())
def test_any_bytes_come_back(data: st.DataObject) -> None:
    width = data.draw(st.integers(1, 16))
    new = data.draw(st.binary(max_size=200)) * data.draw(st.integers(1, 9))
    base = data.draw(st.none() | st.binary(max_size=400))
    if base is not None and data.draw(st.booleans()):
        base = bytearray(new)
        for _ in range(min(len(new), data.draw(st.integers(0, 9)))):
            base[data.draw(st.integers(0, len(new) - 1))] ^= data.draw(st.integers(0, 255))
    round_trip(new, width, base)


@pytest.mark.parametrize("bits", [0x7FC0, 0x7F81, 0xFFC0, 0xFFFF, 0x8000, 0x7F80])
def test_nan_payloads_infinities_and_negative_zero_keep_every_bit(bits: int) -> None:
    base = np.arange(5000, dtype=np.uint16)
    data = base.copy()
    data[::7] = bits
    round_trip(data, 2, base)
    round_trip(base, 2, data)
    assert round_trip(np.full(5000, bits, np.uint16), 2).body == struct.pack("<H", bits)


@pytest.mark.parametrize("step", [1, -1, 3, 1 << 15, (1 << 16) - 1])
def test_differences_wrap_around(step: int) -> None:
    base = np.arange(0, 1 << 16, dtype=np.uint16)
    round_trip(base + np.uint16(step % (1 << 16)), 2, base)


@pytest.mark.parametrize("width", [2, 4, 8, 16])
@pytest.mark.parametrize("every", [1, 500])
def test_unaligned_memory_is_read_and_written(width: int, every: int) -> None:
    base = np.random.default_rng(1).bytes(80_000)
    changed = np.frombuffer(base, np.uint8).copy()
    changed[::every] ^= 3
    memory = bytearray(b"?" + base)
    encoded = encode(view(changed), width, memoryview(memory)[1:])
    assert encoded.encoding in IS_DELTA
    apply(encoded.encoding, memoryview(encoded.body), memoryview(memory)[1:])
    assert memory == b"?" + changed.tobytes()


@pytest.mark.parametrize("width", [1, 2, 3, 4, 8, 16])
def test_a_delta_can_be_undone(width: int) -> None:
    rng = np.random.default_rng(width)
    base = rng.integers(0, 50, 9000, dtype=np.uint8)
    for share in (0.01, 0.9):
        data = np.where(rng.random(len(base)) < share, base + np.uint8(1), base)
        encoded = round_trip(data, width, base)
        assert encoded.encoding in IS_DELTA
        out = bytearray(data)
        apply(encoded.encoding, memoryview(encoded.body), memoryview(out), undo=True)
        assert out == base.tobytes()


@pytest.mark.parametrize("widths", [(2,), (4,), (1, 8), (2, 4, 3), (16, 2)])
def test_a_chain_of_deltas_is_their_application_in_order(widths: tuple[int, ...]) -> None:
    rng = np.random.default_rng(8)
    version = rng.integers(0, 256, 300_001, np.uint8)
    base, encodings, spans, bodies = bytearray(version), [], [], bytearray()
    for i in range(9):
        width = widths[i % len(widths)]
        old, elements = version.copy(), version[: len(version) // width * width].reshape(-1, width)
        # The same elements again and again, now by one and now in any bit: differences and XOR do not commute.
        chosen = rng.choice(len(elements), len(elements) // (3 if i == 5 else 60), replace=False)
        elements[chosen, 0] += rng.integers(1, 3 if i % 2 else 256, len(chosen), np.uint8)
        version[-1] ^= i
        encoded = encode(version.data, width, old.data)
        encodings.append(int(encoded.encoding))
        spans.append((len(bodies), len(bodies) + len(encoded.body)))
        bodies += encoded.body
    assert len(set(encodings)) > 1
    apply_chain(encodings, memoryview(bodies + bytes(SPARE_NBYTES)), np.array(spans, np.int64), memoryview(base))
    assert base == version.tobytes()


@pytest.mark.parametrize("work", [decode, apply])
def test_a_chunk_has_at_most_one_mebibyte(work: Callable[..., None]) -> None:
    out = bytearray(CHUNK_NBYTES + 1)
    with pytest.raises(tg.InputError) as caught:
        work(Encoding.PACKED_DIFFERENCE if work is apply else Encoding.RAW, b"", out)
    assert caught.value.rule == "store.chunk"


def test_threads_do_not_disturb_each_other() -> None:
    rng = np.random.default_rng(3)
    weights = rng.normal(0, 0.02, (8, 60_000)).astype(np.float32)
    jobs = [(row, width, base) for row in weights for width in (1, 2, 4) for base in (None, weights[0])]
    expected = [round_trip(*job).body for job in jobs]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda job: round_trip(*job).body, jobs * 3)) == expected * 3


# Choice and sizes


def masters(count: int = 1 << 19) -> npt.NDArray[np.float32]:
    """Weights of several layers: normal, each row at a scale of its own."""
    rng = np.random.default_rng(0)
    scales = np.exp(rng.normal(np.log(0.04), 0.3, (256, 1)))
    return (rng.normal(0, 1, (256, count // 256)) * scales).astype(np.float32).reshape(-1)


def stepped(weights: npt.NDArray[np.float32], size: float) -> npt.NDArray[np.float32]:
    """One step of an optimizer like Adam: every weight moves by about `size`, whatever its own size."""
    moves = np.clip(np.random.default_rng(1).normal(0, size, weights.shape), -3 * size, 3 * size)
    return (weights - moves).astype(np.float32)


def bfloat16(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    return weights.astype(ml_dtypes.bfloat16).view(np.uint16)


@pytest.mark.parametrize(
    ("size", "changed", "bound"),
    [
        (2.0e-7, 0.005, 0.0038),
        (1.0e-6, 0.021, 0.0149),
        (2.6e-6, 0.049, 0.0310),
        (8.0e-6, 0.12, 0.068),
        (1.05e-4, 0.54, 0.252),
    ],
)
def test_what_a_training_step_costs(size: float, changed: float, bound: float) -> None:
    weights = masters()
    base, data = bfloat16(weights), bfloat16(stepped(weights, size))
    share = np.mean(base != data)
    assert share == pytest.approx(changed, rel=0.25)
    encoded = round_trip(data, 2, base)
    assert len(encoded.body) / data.nbytes / share <= bound / changed
    assert encoded.encoding in IS_DELTA


def test_masters_of_float32_as_a_delta() -> None:
    weights = masters(1 << 18)
    assert len(round_trip(stepped(weights, 1e-6), 4, weights).body) <= 0.5 * weights.nbytes


def test_weights_without_a_base() -> None:
    weights = masters()
    assert len(round_trip(bfloat16(weights), 2).body) <= 0.72 * weights.nbytes / 2
    assert len(round_trip(weights[: 1 << 18], 4).body) <= 0.86 * weights.nbytes / 2


def every_tenth(elements: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    elements[::10] += 1
    return elements


CHOICES: dict[str, tuple[Callable[[], tuple[Any, int, Any]], set[Encoding]]] = {
    "random bytes": (lambda: (np.random.default_rng(0).bytes(300_000), 4, None), {Encoding.RAW}),
    "zeros": (lambda: (bytes(CHUNK_NBYTES), 2, masters()), {Encoding.CONSTANT}),
    "one value": (lambda: (np.full(99_999, 1.5), 8, None), {Encoding.CONSTANT}),
    "equal to its base": (lambda: (bfloat16(masters()), 2, bfloat16(masters())), IS_DELTA),
    "a step": (lambda: (bfloat16(stepped(masters(), 1e-6)), 2, bfloat16(masters())), {Encoding.PACKED_DIFFERENCE}),
    "every tenth": (lambda: (every_tenth(bfloat16(masters())), 2, bfloat16(masters())), {Encoding.SPARSE_DIFFERENCE}),
    "a large step": (
        lambda: (bfloat16(stepped(masters(), 1e-4)), 2, bfloat16(masters())), {Encoding.DIFFERENCE_PLANES},
    ),
    "unrelated to its base": (
        lambda: (bfloat16(masters()), 2, np.random.default_rng(5).bytes(CHUNK_NBYTES)), {Encoding.PLANES},
    ),
    "changed in one place": (
        lambda: (np.concatenate([np.ones(60_000, np.float32), masters(256), masters()[:180_000]]), 4,
                 np.concatenate([np.ones(60_000, np.float32), masters(256) + 1, masters()[:180_000]])), IS_DELTA,
    ),
    "text": (lambda: ((b"".join(b"%d: the quick brown fox\n" % i for i in range(20_000))), 1, None), {Encoding.PLANES}),
}  # fmt: skip


@pytest.mark.parametrize("case", CHOICES)
def test_the_choice(case: str) -> None:
    make, expected = CHOICES[case]
    assert round_trip(*make()).encoding in expected


def test_a_change_that_the_sample_does_not_see_costs_no_more_than_another_encoding() -> None:
    """Half of the chunk is new, outside of the windows that are looked at."""
    weights = bfloat16(masters())
    changed = weights.copy()
    for window in range(7):
        start = (window * len(weights)) // 7 + 5_000
        changed[start : start + 60_000] = np.random.default_rng(window).permutation(changed[start : start + 60_000])
    encoded = round_trip(changed, 2, weights)
    assert len(encoded.body) <= len(round_trip(changed, 2).body)


def test_text_is_compressed_by_its_repetitions() -> None:
    text = b"".join(b"%d: the quick brown fox jumps over the lazy dog\n" % i for i in range(5_000))
    assert len(round_trip(text, 1).body) < len(text) / 5


# Hostile bodies


def samples() -> Iterator[tuple[Encoded, bytes, bytes]]:
    """Small bodies, each with its base and its chunk."""
    rng = np.random.default_rng(2)
    plain, noise = bytes(rng.integers(0, 4, 401, dtype=np.uint8)), rng.bytes(401)
    odd = bytes(401)
    for base in (plain, noise, odd):
        values = np.frombuffer(base, "<u2", 200)
        chosen = rng.random(200) < 0.1
        few = np.where(chosen, values + rng.choice([1, 65535], 200), values).astype("<u2").tobytes() + b"?"
        many = (values + rng.integers(1, 4, 200).astype("<u2")).tobytes() + b"?"
        flipped = (values ^ rng.choice([1 << 15, 1 << 7], 200).astype("<u2")).tobytes() + b"?"
        for data in (plain, noise, odd, few, many, flipped):
            for old in (None, base):
                for width in (2, 3, 8, 16):
                    yield encode(memoryview(data), width, None if old is None else memoryview(old)), base, data
    nodes = b"".join(b"link %d to " % i + DIGESTS[32 * i : 32 * i + 32] for i in range(19, 0, -2))
    yield encode_nodes(memoryview(nodes), DIGESTS), bytes(len(nodes)), nodes


DIGESTS = np.random.default_rng(3).bytes(20 * 32)
"""Those of a pack."""
SAMPLES = {sample[0].encoding: sample for sample in samples()}
"""One of every encoding."""


def test_the_samples_have_every_encoding() -> None:
    assert SAMPLES.keys() == set(Encoding)


def outcome(encoding: int, body: bytes, base: bytes) -> bytes | None:
    """The chunk, or None if the body was refused as it must be."""
    out = bytearray(base)
    try:
        if encoding in IS_DELTA:
            apply(encoding, memoryview(body), memoryview(out))
        else:
            decode(encoding, memoryview(body), memoryview(out), memoryview(DIGESTS))
    except tg.FormatError as error:
        assert error.rule == "store.encoding"  # noqa: PT017
        assert encoding not in IS_DELTA or out == base
        return None
    assert len(out) == len(base)
    return bytes(out)


@pytest.mark.parametrize("encoding", Encoding)
def test_every_truncation_is_refused(encoding: Encoding) -> None:
    encoded, base, data = SAMPLES[encoding]
    body = bytes(encoded.body)
    assert outcome(encoding, body, base) == data
    assert encoding == Encoding.CONSTANT or all(outcome(encoding, body[:n], base) is None for n in range(len(body)))
    assert encoding == Encoding.CONSTANT or outcome(encoding, body + b"\0", base) is None


@pytest.mark.parametrize("encoding", Encoding)
def test_every_flipped_bit_is_refused_or_gives_some_chunk(encoding: Encoding) -> None:
    encoded, base, _ = SAMPLES[encoding]
    body = bytes(encoded.body)
    for i in range(8 * len(body)):
        changed = bytearray(body)
        changed[i // 8] ^= 1 << i % 8
        outcome(encoding, bytes(changed), base)


def frame(data: bytes, frames: int = 1) -> bytes:
    return zstd.compress(data, level=1, checksum=False) * frames


def sparse(width: int, count: int, gaps: int) -> bytes:
    return struct.pack("<BII", width, count, gaps)


def packed_head(
    width: int, *, gap: int = 0, value: int = 0, passed: int = 0, count: int = 0, longer: int = 0, other: int = 0
) -> bytes:
    head = width | gap << 4 | value << 9 | passed << 15 | count << 20 | longer << 41 | other << 62
    return head.to_bytes(8, "little")


def bits(*sections: str) -> bytes:
    """Sections, each from a byte on, as bits in the order in which they are read."""
    return b"".join(int(bits[::-1], 2).to_bytes((len(bits) + 7) // 8, "little") for bits in sections)


def test_a_packed_delta_bit_by_bit() -> None:
    """Elements 1, 4 and 11 change by -1, 2 and 300: gaps of 1, 2 and 6; zigzag 1, 4 and 600, less one 0, 3 and 599."""
    body = packed_head(2, gap=1, value=1, passed=1, count=3, longer=2) + bits(
        "10" "01" "01", "1" "01" "0001", "1" "1" "1" + "1" "0" "00000000" "1" + f"{299 - 256:08b}"[::-1]
    )  # fmt: skip
    expected = np.zeros(200, "<u2")
    expected[[1, 4, 11]] = 0xFFFF, 2, 300
    assert outcome(Encoding.PACKED_DIFFERENCE, body, bytes(400)) == expected.tobytes()


HOSTILE: dict[str, tuple[int, bytes]] = {
    "an unknown encoding": (9, b""),
    "a negative encoding": (-1, b""),
    "raw, too long": (Encoding.RAW, bytes(401)),
    "constant of nothing": (Encoding.CONSTANT, b""),
    "constant of too much": (Encoding.CONSTANT, bytes(17)),
    "planes without a width": (Encoding.PLANES, b""),
    "planes of width 0": (Encoding.PLANES, b"\0" + frame(bytes(400))),
    "planes of width 17": (Encoding.PLANES, b"\x11" + frame(bytes(400))),
    "planes without a frame": (Encoding.PLANES, b"\2"),
    "planes too short": (Encoding.PLANES, b"\2" + frame(bytes(399))),
    "planes too long": (Encoding.PLANES, b"\2" + frame(bytes(401))),
    "planes that expand to a gigabyte": (Encoding.PLANES, b"\1" + frame(bytes(30 << 20))),
    "planes of two frames": (Encoding.PLANES, b"\1" + frame(bytes(400), frames=2)),
    "planes in two frames": (Encoding.PLANES, b"\2" + frame(bytes(200), frames=2)),
    "planes that are no zstd": (Encoding.PLANES, b"\1not zstd."),
    "planes cut": (Encoding.PLANES, b"\2" + frame(bytes(range(200)) * 2)[:-1]),
    "a tail beyond the body": (Encoding.PLANES, b"\3"),
    "a sparse delta without a head": (Encoding.SPARSE_XOR, sparse(2, 1, 1)[:-1]),
    "more changes than elements": (Encoding.SPARSE_XOR, sparse(2, 201, 201) + frame(bytes(603))),
    "four billion changes": (Encoding.SPARSE_XOR, sparse(1, 0xFFFFFFFF, 0xFFFFFFFF)),
    "four billion gaps": (Encoding.SPARSE_XOR, sparse(1, 1, 0xFFFFFFFF)),
    "fewer gaps than changes": (Encoding.SPARSE_XOR, sparse(1, 2, 1) + frame(bytes(3))),
    "no changes, and a frame": (Encoding.SPARSE_XOR, sparse(2, 0, 0) + frame(b"")),
    "changes without a frame": (Encoding.SPARSE_XOR, sparse(2, 1, 1)),
    "a gap beyond the end": (Encoding.SPARSE_XOR, sparse(2, 1, 1) + frame(b"\xc8xx")),
    "gaps that end in none": (Encoding.SPARSE_XOR, sparse(1, 1, 2) + frame(b"\0\xffx")),
    "gaps that end in none, of wide elements": (Encoding.SPARSE_XOR, sparse(16, 1, 2) + frame(b"\0\xff" + bytes(16))),
    "a difference of planes, cut": (Encoding.DIFFERENCE_PLANES, b"\2" + frame(bytes(200))),
    "differences of three bytes": (Encoding.DIFFERENCE_PLANES, b"\3" + frame(bytes(399)) + b"\0"),
    "sparse differences of 16 bytes": (Encoding.SPARSE_DIFFERENCE, sparse(16, 1, 1) + frame(bytes(17))),
    "a packed delta without a head": (Encoding.PACKED_DIFFERENCE, packed_head(2)[:-1]),
    "packed elements of no bytes": (Encoding.PACKED_DIFFERENCE, packed_head(0)),
    "packed elements of three bytes": (Encoding.PACKED_DIFFERENCE, packed_head(3)),
    "packed elements of eight bytes": (Encoding.PACKED_DIFFERENCE, packed_head(8)),
    "gaps of 21 bits": (Encoding.PACKED_DIFFERENCE, packed_head(2, gap=21, count=1) + b"\0\0\0\1"),
    "values of 17 bits": (Encoding.PACKED_DIFFERENCE, packed_head(2, value=17, count=1) + b"\1\0\0\0"),
    "exceptions of 21 bits": (Encoding.PACKED_DIFFERENCE, packed_head(2, passed=21, count=1, longer=1) + bytes(9)),
    "a head with other bits": (Encoding.PACKED_DIFFERENCE, packed_head(2, other=1)),
    "more packed changes than elements": (Encoding.PACKED_DIFFERENCE, packed_head(2, count=201) + b"\xff" * 26),
    "more exceptions than changes": (Encoding.PACKED_DIFFERENCE, packed_head(2, count=1, longer=2) + b"\1\x0f"),
    "low bits that are cut": (Encoding.PACKED_DIFFERENCE, packed_head(2, gap=7, value=2, count=1) + b"\0"),
    "high gaps that do not end": (Encoding.PACKED_DIFFERENCE, packed_head(2, count=2) + b"\1"),
    "high gaps that end behind the body": (Encoding.PACKED_DIFFERENCE, packed_head(2, count=9) + b"\xff"),
    "a packed gap beyond the end": (Encoding.PACKED_DIFFERENCE, packed_head(2, gap=8, count=1) + b"\xc8\1"),
    "a high gap beyond the end": (Encoding.PACKED_DIFFERENCE, packed_head(2, gap=20, count=1) + b"\0\0\0\2"),
    "exceptions that are cut": (Encoding.PACKED_DIFFERENCE, packed_head(2, count=1, longer=1) + b"\1\x20"),
    "exceptions that do not end": (Encoding.PACKED_DIFFERENCE, packed_head(2, count=1, longer=1) + b"\1\0"),
    "low bits of exceptions that are cut": (
        Encoding.PACKED_DIFFERENCE, packed_head(2, passed=9, count=1, longer=1) + b"\1\1",
    ),
    "an exception beyond the changes": (Encoding.PACKED_DIFFERENCE, packed_head(2, count=1, longer=1) + b"\1\6"),
    "an exception of too many bits": (Encoding.PACKED_DIFFERENCE, packed_head(2, count=1, longer=1) + b"\1\1\0\2\0\0"),
    "packed changes, and a byte": (Encoding.PACKED_DIFFERENCE, packed_head(2, count=1) + b"\1\0"),
    "no packed changes, and a byte": (Encoding.PACKED_DIFFERENCE, packed_head(2) + b"\0"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_malformed_body_is_refused(case: str) -> None:
    encoding, body = HOSTILE[case]
    base = bytes(range(200)) * 2

    def refused() -> None:
        assert outcome(encoding, body, base) is None

    refused()
    assert allocated_nbytes(refused) < 3 * MB


def test_nodes_refer_to_the_digests_of_their_pack() -> None:
    encoded, _, data = SAMPLES[Encoding.NODES]
    assert len(encoded.body) < len(data) / 3
    with pytest.raises(tg.FormatError, match="unknown"):
        decode(encoded.encoding, view(bytes(encoded.body)), memoryview(bytearray(len(data))))
    out = bytearray(len(data))
    with contextlib.suppress(tg.FormatError):
        decode(encoded.encoding, view(bytes(encoded.body)), memoryview(out), view(DIGESTS[::-1]))
    assert out != data


def test_so_many_digests_are_not_referred_to() -> None:
    most = np.random.default_rng(4).bytes(CHUNK_NBYTES)
    out = memoryview(bytearray(CHUNK_NBYTES))
    encoded = encode_nodes(view(most), most)
    decode(Encoding.NODES, view(bytes(encoded.body)), out, view(most))
    assert (out, len(encoded.body) < 2000) == (most, True)
    many = most + DIGESTS
    encoded, _, data = SAMPLES[Encoding.NODES]
    assert encode_nodes(view(data), many).encoding != Encoding.NODES
    with pytest.raises(tg.FormatError, match="digests"):
        decode(encoded.encoding, view(bytes(encoded.body)), memoryview(bytearray(len(data))), view(many))


def test_encodings_are_not_confused() -> None:
    for encoding in Encoding:
        with pytest.raises(tg.FormatError, match="delta"):
            (decode if encoding in IS_DELTA else apply)(encoding, memoryview(b""), memoryview(bytearray(4)))


@pytest.mark.parametrize(("data", "width", "rule"), [
    (b"abc", 0, "store.width"), (b"abc", 17, "store.width"), (b"abc", -2, "store.width"),
    (bytes(CHUNK_NBYTES + 1), 1, "store.chunk"),
])  # fmt: skip
def test_arguments_that_are_refused(data: bytes, width: int, rule: str) -> None:
    with pytest.raises(tg.InputError) as caught:
        encode(memoryview(data), width)
    assert caught.value.rule == rule


@pytest.mark.parametrize("encoding", sorted(IS_DELTA))
def test_a_delta_without_a_body_is_refused_and_changes_nothing(encoding: int) -> None:
    spare, spans = view(bytes(SPARE_NBYTES)), np.zeros((1, 2), np.int64)
    for call in (
        lambda out: apply(encoding, view(b""), out),
        lambda out: apply_chain([encoding], spare, spans, out),
    ):
        held = bytearray(b"12345678")
        with pytest.raises(tg.FormatError) as caught:
            call(memoryview(held))
        assert (caught.value.rule, held) == ("store.encoding", b"12345678")


def test_up_to_two_fifths_of_the_elements_may_differ_in_a_sparse_delta() -> None:
    r = np.random.default_rng(1)
    base = r.integers(0, 1 << 32, 1000).astype(np.uint32)
    changed = base.copy()
    changed[r.choice(1000, 400, replace=False)] ^= 1 << 9
    assert encode(changed.data, 4, base.data).encoding == Encoding.SPARSE_XOR
