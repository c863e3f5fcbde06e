"""Checksums: known answers, both cases of hex, malformed text, algorithms that we do not know."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import tensorglot as tg
from tensorglot.errors import FormatError, InputError
from tensorglot.kernels.crc32c_rows import is_fast
from tensorglot.wire.checksums import ALGORITHMS, Checksum, digest_each, digest_rows, hasher, numbers, parse

KNOWN = [
    ("crc32c", b"", "crc32c:0x00000000"),
    ("crc32c", b"123456789", "crc32c:0xE3069283"),
    ("sha256", b"abc", "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
    ("xxh3", b"", "xxh3:2d06800538d394c2"),
]


@pytest.mark.parametrize(("algorithm", "data", "text"), KNOWN)
def test_digests_and_their_text_are_the_published_ones(algorithm: str, data: bytes, text: str) -> None:
    running = hasher(algorithm)
    running.update(memoryview(data))
    value = Checksum(algorithm, running.digest())
    assert str(value) == text
    assert parse(text) == value


@given(st.binary(), st.integers(0, 100))
def test_piece_by_piece(data: bytes, cut: int) -> None:
    for algorithm in ALGORITHMS:
        whole, halves = hasher(algorithm), hasher(algorithm)
        whole.update(memoryview(data))
        halves.update(memoryview(data[:cut]))
        halves.update(memoryview(data[cut:]))
        value = Checksum(algorithm, whole.digest())
        assert value.digest == halves.digest()
        assert parse(str(value)) == parse(str(value).replace("0x", "0x").lower()) == value
    assert hasher("sha256").digest() == hashlib.sha256().digest()
    assert hasher("xxh3").digest() == xxhash.xxh3_64().digest()


@pytest.mark.parametrize(
    "text",
    ["", "crc32c", "crc32c:", "crc32c:0x", "crc32c:NOTHEX00", "crc32c:0xNOTHEX00", "crc32c:0x123456789", "sha256:00",
     "sha256:" + "g" * 64, "xxh3:123", "xxh3:" + "١" * 16, "xxh3:0123456789abcdef\n"],
)  # fmt: skip
def test_text_that_is_not_a_checksum_is_refused(text: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse(text, "w")
    assert caught.value.rule == "checksum.form"
    assert caught.value.tensor == "w"


def test_an_algorithm_that_we_do_not_know_is_kept_and_not_computed() -> None:
    assert parse("md5:whatever").digest is None
    assert parse("crc32c:0xABC").digest == b"\0\0\x0a\xbc"
    with pytest.raises(InputError, match=r"rule checksum\.algorithm"):
        hasher("md5")


@pytest.mark.parametrize("algorithm", ["crc32", "crc32c", "xxh3"])
def test_many_as_numbers(algorithm: str) -> None:
    pieces = [memoryview(bytes(range(n))) for n in range(20)]
    texts = []
    for piece in pieces:
        running = hasher(algorithm)
        running.update(piece)
        texts.append(str(Checksum(algorithm, running.digest())))
    found = numbers(texts)
    assert found is not None
    assert found.algorithm == algorithm
    assert digest_each(algorithm, pieces) == found.expected.tobytes()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("nbytes", [1, 100, 40_000])
def test_rows_of_a_buffer_have_the_digests_of_their_bytes(algorithm: str, nbytes: int) -> None:
    data = memoryview(np.arange(3 * nbytes, dtype=np.uint32).view(np.uint8).data).toreadonly()
    starts = np.array([0, 1, 5, nbytes, 2 * nbytes])
    stops = starts + np.array([nbytes, 0, nbytes, nbytes, 7])
    pieces = [data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    assert digest_rows(algorithm, data, starts, stops) == digest_each(algorithm, pieces)
    assert digest_rows(algorithm, data, starts[:0], stops[:0]) == b""
    assert digest_rows(algorithm, memoryview(b""), starts[:1], starts[:1]) == digest_each(algorithm, [memoryview(b"")])


@pytest.mark.parametrize("threads", [1, 4])
def test_rows_of_a_file_have_the_digests_of_their_bytes(
    threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that other threads read ahead for, large ones, and small ones that are close together or far apart."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(threads))
    sizes = [(20 << 20) + 3, 0, 5, 1 << 20, (1 << 20) - 1, 7, (1 << 20) + 1, (1 << 20) + 2, 1]
    rng, path = np.random.default_rng(1), tmp_path / "x.safetensors"
    arrays = {f"t{i}": rng.integers(0, 256, size, np.uint8) for i, size in enumerate(sizes)}
    tg.save(path, arrays, durable=False)
    done: list[tuple[int, int]] = []
    assert tg.verify(path, sums="write").ok
    assert tg.verify(path, progress=lambda *now: done.append(now)).checksums >= len(sizes)
    _, *lines, _ = Path(f"{path}.sums").read_text().splitlines()
    assert sorted(lines) == sorted(
        f'xxh3:{xxhash.xxh3_64_hexdigest(array.tobytes())} "{name}"' for name, array in arrays.items()
    )
    assert done[-1] == (sum(sizes), sum(sizes))


@pytest.mark.skipif(not is_fast(), reason="without the kernel, rows are slices, which cannot lie outside")
def test_digests_of_spans_outside_of_the_buffer_are_refused() -> None:
    for start, stop in ((0, 5), (-1, 2), (3, 2)):
        with pytest.raises(IndexError, match="outside of the buffer"):
            digest_rows("crc32c", memoryview(b"abcd"), np.array([start]), np.array([stop]))


@pytest.mark.parametrize(
    "texts",
    [
        [],
        [None],
        ["xxh3:0123456789abcdef", None],
        ["xxh3:0123456789abcdef", "xxh3:0123456789abcde"],
        ["xxh3:0123456789abcdef", "crc3:0123456789abcdef"],
        ["xxh3:0123456789abcdef", "xxh3:0123456789abcde_"],
        ["xxh3:0123456789abcdef", "xxh3:0123456789abcde "],
        ["xxh3:0123456789abcdef", "xxh3:0123456789abcdeg"],
        ["xxh3:0123456789abcdef", "xxh3:" + "١" * 16],
        ["crc32c:0x123"],
        ["crc32c:0x12"] * 4,
        ["crc32c:0X00000123"],
        ["sha256:" + "0" * 64],
        ["md5:00"],
    ],
)
def test_what_is_not_written_alike_has_no_numbers(texts: list[str | None]) -> None:
    assert numbers(texts) is None
