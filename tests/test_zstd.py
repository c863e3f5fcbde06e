"""Zstandard frames: round trips, ranges, bombs, and everything that can be wrong with a frame."""

from __future__ import annotations

import struct
import tracemalloc
from functools import cache, partial

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorglot as tg
from bounds import MB, allocated_nbytes, resident_nbytes
from tensorglot.errors import FormatError, LimitError, TensorglotError
from tensorglot.kernels import zstd_blocks
from tensorglot.memory import regroup
from tensorglot.wire import zstd
from tensorglot.wire.seektable import read_seek_table, seek_table
from ztensor_builder import entry, file01, file1, file2

WINDOW = 1 << 27
EMPTY = zstandard.ZstdCompressor().compress(b"")


def reader(data: bytes) -> zstd.Read:
    view = memoryview(data)

    def read(offset: int, nbytes: int) -> memoryview:
        assert 0 <= offset <= offset + nbytes <= len(view)
        return view[offset : offset + nbytes]

    return read


def decode(data: bytes, nbytes: int, offset: int = 0, count: int | None = None, max_window: int = WINDOW) -> bytes:
    read = reader(data)
    frames = zstd.scan(read, len(data), nbytes, max_window=max_window)
    out = bytearray(nbytes - offset if count is None else count)
    zstd.decode_into(read, frames, nbytes, offset, memoryview(out))
    return bytes(out)


def streamed(data: bytes, *, level: int = 3, checksum: bool = False, **parameters: int) -> bytes:
    """A frame that does not say its size, as the ztensor packages write it."""
    options = zstandard.ZstdCompressionParameters.from_level(level, write_checksum=checksum, **parameters)
    compressor = zstandard.ZstdCompressor(compression_params=options).compressobj()
    return compressor.compress(data) + compressor.flush()


def skippable(data: bytes, kind: int = 0) -> bytes:
    return struct.pack("<II", 0x184D2A50 + kind, len(data)) + data


SAMPLE = np.random.default_rng(0).integers(0, 50, 300_000, np.uint8).tobytes()


@pytest.mark.parametrize(
    "encoded",
    [
        zstd.compress(SAMPLE, level=1, checksum=False),
        zstd.compress(SAMPLE, level=3, checksum=True),
        streamed(SAMPLE),
        streamed(SAMPLE, checksum=True, window_log=27),
        b"".join(zstd.compress(SAMPLE[i : i + 7000], level=1, checksum=True) for i in range(0, len(SAMPLE), 7000)),
        b"".join(streamed(SAMPLE[i : i + 70000]) for i in range(0, len(SAMPLE), 70000)),
        streamed(SAMPLE[:1000]) + zstd.compress(SAMPLE[1000:], level=1, checksum=False),
        skippable(b"xx") + EMPTY + streamed(SAMPLE) + skippable(b"", 15) + EMPTY,
    ],
    ids=["sized", "checksum", "streamed", "wide", "sized frames", "streamed frames", "mixed", "skippable"],
)
def test_round_trip_and_ranges(encoded: bytes) -> None:
    assert decode(encoded, len(SAMPLE)) == SAMPLE
    for offset, count in ((0, 0), (0, 1), (0, 6999), (6999, 2), (100_000, 150_000), (299_999, 1), (300_000, 0)):
        assert decode(encoded, len(SAMPLE), offset, count) == SAMPLE[offset : offset + count]
    for wrong in (0, 1, len(SAMPLE) - 1, len(SAMPLE) + 1, 1 << 24):
        with pytest.raises(FormatError, match=r"bytes.*declared|frames for") as caught:
            decode(encoded, wrong)
        assert caught.value.rule in {"zstd.size", "zstd.frames"}


def test_a_range_of_a_frame_too_large_for_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zstd, "SCRATCH_NBYTES", 1000)
    for encoded in (streamed(SAMPLE), zstd.compress(SAMPLE, level=1, checksum=True)):
        assert decode(encoded, len(SAMPLE), 123_456, 789) == SAMPLE[123_456 : 123_456 + 789]
        assert decode(encoded, len(SAMPLE)) == SAMPLE


def test_only_the_touched_frames_are_read() -> None:
    frames = [zstd.compress(SAMPLE[i : i + 10_000], level=1, checksum=True) for i in range(0, len(SAMPLE), 10_000)]
    encoded = b"".join(frames)
    touched: list[int] = []
    plain = reader(encoded)
    found = zstd.scan(plain, len(encoded), len(SAMPLE), max_window=WINDOW)
    assert [frame.end - frame.begin for frame in found] == [len(frame) for frame in frames]

    def read(offset: int, nbytes: int) -> memoryview:
        touched.append(offset)
        return plain(offset, nbytes)

    out = memoryview(bytearray(15_000))
    zstd.decode_into(read, found, len(SAMPLE), 24_000, out)
    assert out == SAMPLE[24_000:39_000]
    assert set(touched) <= {found[i].begin for i in (2, 3)} | {found[i].end for i in (2, 3)}


CHECKED = zstd.compress(SAMPLE[:500], level=1, checksum=True)
BROKEN = [
    (b"", 0, "empty"),
    (skippable(b"only"), 0, "empty"),
    (b"\x28\xb5\x2f", 1, "magic"),
    (b"not zstd at all", 1, "magic"),
    (b"\x27\xb5\x2f\xfd" + bytes(20), 1, "magic"),  # zstd 0.7
    (CHECKED + b"junk", 500, "magic"),
    (CHECKED + b"\0", 500, "magic"),
    (CHECKED[:-1], 500, "ends"),
    (CHECKED[:30], 500, "ends"),
    (CHECKED[:6], 500, "ends"),
    (b"\x28\xb5\x2f\xfd", 1, "ends"),
    (CHECKED[:-1] + bytes((CHECKED[-1] ^ 1,)), 500, "checksum"),
    (skippable(b"abc")[:-1] + b"", 0, "ends"),
    (b"\x50\x2a\x4d\x18\xff\xff\xff\xff", 0, "ends"),
    (b"\x28\xb5\x2f\xfd\x28\x01\x09\0\0a", 1, "reserved"),
    (b"\x28\xb5\x2f\xfd\x30\x01\x09\0\0a", 1, "reserved"),
    (b"\x28\xb5\x2f\xfd\x21\x07\x01\x09\0\0a", 1, "dictionary"),
    (b"\x28\xb5\x2f\xfd\x23\x00\x00\x00\x01\x01\x09\0\0a", 1, "dictionary"),
    (b"\x28\xb5\x2f\xfd\x00\xa8\x09\0\0a", 1, "window"),
    (b"\x28\xb5\x2f\xfd\x00\xff\x09\0\0a", 1, "window"),
    (b"\x28\xb5\x2f\xfd\x20\x01\x07\0\0", 1, "block"),  # kind 3
    (b"\x28\xb5\x2f\xfd\x20\x01\x13\0\x10a", 1, "block"),  # a run longer than a block
    (b"\x28\xb5\x2f\xfd\xe0" + (1 << 60).to_bytes(8, "little"), 1, "ends"),  # 13 bytes
    (b"\x28\xb5\x2f\xfd\xe0" + (1 << 60).to_bytes(8, "little") + b"\x09\0\0a", 1, "size"),
    (b"\x28\xb5\x2f\xfd\x20\x02\x09\0\0a", 2, "data"),  # says two, holds one
    (b"\x28\xb5\x2f\xfd\x20\x01\x13\0\0ab", 1, "block"),
    (b"\x28\xb5\x2f\xfd\x20\x02\x11\0\0ab", 1, "size"),
    (b"\x28\xb5\x2f\xfd\x00\x00\x11\0\0ab", 1, "size"),
    (b"\x28\xb5\x2f\xfd\x00\x00\x11\0\0ab", 3, "size"),
]


@pytest.mark.parametrize(("data", "nbytes", "rule"), BROKEN, ids=[f"{i}-{case[2]}" for i, case in enumerate(BROKEN)])
def test_a_broken_frame_is_refused_by_its_rule(data: bytes, nbytes: int, rule: str) -> None:
    with pytest.raises(FormatError) as caught:
        decode(data, nbytes)
    assert caught.value.rule == f"zstd.{rule}"
    assert caught.value.offset is not None


def block(kind: int, size: int, content: bytes, last: bool = False) -> bytes:
    return (last | kind << 1 | size << 3).to_bytes(3, "little") + content


@cache
def bombs() -> dict[str, bytes]:
    zeros = bytes(1 << 20)
    frame = b"\x28\xb5\x2f\xfd\x00\x38"  # a window of 128 KiB, no size
    runs = frame + block(1, 128 << 10, b"\0") * 8000 + block(1, 1, b"\0", last=True)
    return {
        "no size": streamed(zeros * 256),
        "honest size": zstandard.ZstdCompressor().compress(zeros * 256),
        "false size": b"\x28\xb5\x2f\xfd\x60\x00\x00" + runs[6:],
        "thirteen bytes": b"\x28\xb5\x2f\xfd\xe0" + ((1 << 62) - 1).to_bytes(8, "little"),
        "many frames": streamed(zeros) * 256,
        "many sized frames": zstandard.ZstdCompressor().compress(zeros) * 256,
        "runs": runs,
        "wide window": b"\x28\xb5\x2f\xfd\x00\x88" + block(1, 128 << 10, b"\0") * 100 + block(0, 0, b"", last=True),
        "widest window": b"\x28\xb5\x2f\xfd\x00\xa8" + block(0, 0, b"", last=True),
        "empty blocks": frame + block(0, 0, b"") * 20_000 + block(0, 0, b"", last=True),
        "empty frames": EMPTY * 7_000,
        "skipped": skippable(b"") * 8_000 + b"\x50\x2a\x4d\x18\xff\xff\xff\x7f",
    }


@pytest.mark.parametrize(("name", "data"), bombs().items(), ids=list(bombs()))
def test_a_bomb_takes_no_more_memory_than_was_declared(name: str, data: bytes) -> None:
    def refused(nbytes: int) -> None:
        try:
            decode(data, nbytes)
        except FormatError as error:
            rule = error.rule
            assert rule.startswith("zstd.")
        else:
            assert nbytes == 0, "only what decodes to nothing may be nothing"
            assert name in {"empty blocks", "empty frames"}

    for nbytes in (0, 64, 4096, 1 << 20):
        assert allocated_nbytes(partial(refused, nbytes)) < nbytes + 10 * MB
        assert resident_nbytes(partial(refused, nbytes)) < nbytes + 10 * MB


def in_a_file(data: bytes, nbytes: int, version: str) -> bytes:
    """A bomb as a tensor of so many bytes."""
    if version == "0.1":
        return file01([entry("a", encoding="zstd", size=len(data), shape=[nbytes])], data)
    if version == "1":
        said = {"dtype": "u8", "offset": 64, "length": len(data), "encoding": "zstd", "uncompressed_length": nbytes}
        return file1({"objects": {"a": {"shape": [nbytes], "format": "dense", "components": {"data": said}}}}, data)
    stream = data + seek_table([(len(data), nbytes)])
    said = {"dtype": "u8", "blob": [4096, len(stream)], "encoding": "zt.zstd-seekable/1", "decoded_length": nbytes}
    return file2({"objects": {"a": {"shape": [nbytes], "layout": "dense", "parts": {"data": said}}}}, stream)


@pytest.mark.parametrize("version", ["0.1", "1", "2"])
@pytest.mark.parametrize(("name", "data"), bombs().items(), ids=list(bombs()))
def test_bombs_in_files(name: str, data: bytes, version: str) -> None:
    nbytes = 1 << 20
    file = in_a_file(data, nbytes, version)

    def read() -> None:
        with pytest.raises(tg.FormatError) as caught:
            tg.open(file)["a"].numpy()
        assert caught.value.rule.startswith("zstd.") or caught.value.rule == "ztensor.blob.expansion"
        assert caught.value.tensor == "a"

    def verify() -> None:
        (problem,) = tg.verify(file, deep=True).problems
        assert (problem.tensor, problem.rule.split(".")[0]) in {("a", "zstd"), ("a", "ztensor")}

    for verb in (read, verify):
        assert allocated_nbytes(verb) < nbytes + 10 * MB
        assert resident_nbytes(verb) < nbytes + 10 * MB


def test_a_wide_window_costs_no_more_than_the_content() -> None:
    data = streamed(SAMPLE, window_log=27)
    tracemalloc.start()
    assert decode(data, len(SAMPLE)) == SAMPLE
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20
    with pytest.raises(LimitError):
        decode(data, len(SAMPLE), max_window=1 << 26)


@given(st.binary(max_size=200), st.integers(0, 300))
@settings(max_examples=300)
def test_any_bytes(data: bytes, nbytes: int) -> None:
    for prefix in (b"", b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfd\x20"):
        try:
            assert len(decode(prefix + data, nbytes)) == nbytes
        except TensorglotError as error:
            rule = error.rule
            assert rule.startswith("zstd.")


@given(st.data())
@settings(max_examples=300)
def test_every_flipped_bit_is_found(data: st.DataObject) -> None:
    encoded = bytearray(CHECKED + zstd.compress(SAMPLE[500:900], level=1, checksum=True))
    position = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[position // 8] ^= 1 << position % 8
    try:
        decoded = decode(bytes(encoded), 900)
    except FormatError:
        return
    # Bits that carry nothing: the unused bit, and sizes that say the same.
    assert decoded == SAMPLE[:900]


@given(st.lists(st.integers(0, 30)), st.integers(1, 12))
def test_pieces_have_one_size_and_join_to_the_whole(sizes: list[int], nbytes: int) -> None:
    chunks = [bytes((i % 251,)) * size for i, size in enumerate(sizes)]
    pieces = [bytes(piece) for piece in regroup(chunks, nbytes)]
    assert b"".join(pieces) == b"".join(chunks)
    assert all(len(piece) == nbytes for piece in pieces[:-1])
    assert all(pieces)


def small(data: bytes, **options: bool) -> bytes:
    return zstandard.ZstdCompressor(level=1, **options).compress(data)


TEXT = b"some text " * 20
NOT_ONE_FRAME: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "zstd.empty"),
    "two frames": (small(TEXT[:100]) + small(TEXT[100:]), "zstd.frames"),
    "a skippable frame before": (struct.pack("<II", 0x184D2A50, 1) + b"x" + small(TEXT), "zstd.frames"),
    "a skippable frame behind": (small(TEXT) + struct.pack("<II", 0x184D2A50, 1) + b"x", "zstd.frames"),
    "a byte less than declared": (small(TEXT[:-1]), "zstd.size"),
    "a byte more than declared": (small(TEXT + b"x"), "zstd.size"),
    "a byte more, not declared": (small(TEXT + b"x", write_content_size=False), "zstd.size"),
    "a byte behind": (small(TEXT) + b"x", "zstd.magic"),
    "cut": (small(TEXT)[:-1], "zstd.ends"),
    "damaged": (small(TEXT)[:-9] + bytes(9), "zstd.data"),
}


@pytest.mark.parametrize("case", NOT_ONE_FRAME)
def test_a_frame_that_must_be_all(case: str) -> None:
    encoded, rule = NOT_ONE_FRAME[case]
    with pytest.raises(FormatError) as caught:
        zstd.decode_whole(memoryview(encoded), memoryview(bytearray(len(TEXT))))
    assert caught.value.rule == rule


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("size", [1, 200, 200_000])
def test_a_frame_that_is_all(size: int, declared: bool) -> None:
    data = (TEXT * (size // 200 + 1))[:size]
    encoded, out = small(data, write_content_size=declared), bytearray(size)
    zstd.decode_whole(memoryview(encoded), memoryview(out))
    assert out == data


def test_a_seek_table_is_read_as_written() -> None:
    sizes = [(30, 100), (40, 100), (20, 7)]
    stream = bytes(90) + seek_table(sizes)
    assert read_seek_table(reader(stream), len(stream)) == sizes
    bare = seek_table([])
    assert len(bare) == 17
    assert read_seek_table(reader(bare), 17) == []
    with_checksums = struct.pack("<II", 0x184D2A5E, 21) + struct.pack("<IIIIBI", 90, 100, 0, 1, 0x80, 0x8F92EAB1)
    assert read_seek_table(reader(bytes(90) + with_checksums), 90 + len(with_checksums)) == [(90, 100)]


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        bytes(16),
        bytes(17),
        seek_table([])[:-1] + b"\0",
        seek_table([(1, 1)]),
        b"\0" + seek_table([]),
        bytes(5) + seek_table([(4, 4)]),
        struct.pack("<II", 0x184D2A5E, 9) + struct.pack("<IBI", 1 << 31, 0, 0x8F92EAB1),
        struct.pack("<II", 0x184D2A5E, 9) + struct.pack("<IBI", 0, 4, 0x8F92EAB1),
        struct.pack("<II", 0x184D2A5E, 8) + struct.pack("<IBI", 0, 0, 0x8F92EAB1),
        struct.pack("<II", 0x184D2A50, 9) + struct.pack("<IBI", 0, 0, 0x8F92EAB1),
    ],
)
def test_broken_seek_tables(stream: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        read_seek_table(reader(stream), len(stream))
    assert caught.value.rule == "zstd.seek"


class TestStream:
    """Encoded bytes that arrive in order give what they give at once, however they are cut."""

    @staticmethod
    def decoded(encoded: bytes, nbytes: int, step: int) -> bytes:
        chunks = [encoded[at : at + step] for at in range(0, len(encoded), step)]
        return b"".join(zstd.decode_stream(chunks, len(encoded), nbytes, max_window=WINDOW))

    @pytest.mark.parametrize("step", [1, 7, 1000, 1 << 20])
    def test_frames_of_known_and_unknown_size(self, step: int) -> None:
        parts = [bytes(range(256)) * 9, b"", b"abc" * 5000]
        known = [zstandard.compress(part) for part in parts]
        unknown = [streamed(part) for part in parts]
        for frames in (known, unknown, [known[0], skippable(b"abc"), unknown[1], known[2], skippable(b"")]):
            assert self.decoded(b"".join(frames), len(b"".join(parts)), step) == b"".join(parts)

    def test_a_piece_that_ends_behind_a_frame(self) -> None:
        """At its end, and in the header of the next one."""
        parts = [b"abc" * 10, np.random.default_rng(3).bytes(5000)]
        for first in (zstandard.compress(parts[0]), streamed(parts[0])):
            encoded = first + zstandard.compress(parts[1])
            for step in (len(first), len(first) + 5, len(first) + 100):
                assert self.decoded(encoded, 5030, step) == b"".join(parts)

    @pytest.mark.parametrize("step", [1, 1000])
    def test_what_is_wrong_at_once_is_wrong_in_a_stream(self, step: int) -> None:
        good = zstandard.compress(b"abc" * 500)
        for encoded, nbytes, rule in (
            (good, 1499, "zstd.size"),
            (good, 1501, "zstd.size"),
            (good[:-1], 1500, "zstd.ends"),
            (good + good[:9], 3000, "zstd.ends"),
            (good + b"x", 1500, "zstd.magic"),
            (skippable(b"a"), 0, "zstd.empty"),
            (b"", 0, "zstd.empty"),
        ):
            with pytest.raises(tg.FormatError) as caught:
                self.decoded(encoded, nbytes, step)
            assert caught.value.rule == rule


def test_compressed_tensors_that_are_read_together_share_memory() -> None:
    """An allocation for each would take huge pages of which a quarter is used."""
    tensors = {f"t{i}": np.full(125_000, i, np.float32) for i in range(64)}
    loaded = tg.loads(tg.dumps(tensors, format="ztensor@0.1", compression="zstd"))
    assert all((loaded[name] == array).all() for name, array in tensors.items())
    assert len({id(array.base) for array in loaded.values()}) <= len(tensors) // 2


def test_what_a_plain_frame_declares() -> None:
    frame = small(TEXT)
    assert zstd_blocks.declared(frame, 1 << 20) == len(TEXT)
    assert zstd_blocks.declared(frame, len(TEXT) - 1) == -1
    assert zstd_blocks.declared(frame + b"x", 1 << 20) == zstd_blocks.declared(frame[:-1], 1 << 20) == -1
    for other in (small(TEXT, write_checksum=True), small(TEXT, write_content_size=False), b"", b"\x28\xb5\x2f\xfd"):
        assert zstd_blocks.declared(other, 1 << 20) == -1
