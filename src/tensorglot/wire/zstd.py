"""Decodes Zstandard frames (RFC 8878) to exactly the declared size, and encodes them.

The frame never decides how much memory is used. `scan` walks the headers of frames and
blocks, so each frame's end, declared size and window are known before it is decoded.
`decode_into` then fills the caller's buffer and asks for one more byte, which must not
exist. Frames are independent: they are decoded and compressed in parallel, and reading a
range decodes only the frames that overlap it.

Encoded bytes come from a function, `read(offset, nbytes)`. Knows no tensor and no file.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import IO, TypeAlias, cast

import zstandard

from tensorglot.errors import FormatError, IntegrityError, LimitError, TruncatedError
from tensorglot.kernels import zstd_blocks
from tensorglot.threads import batches, for_each, ordered_map

__all__ = [
    "FRAME_NBYTES",
    "Frame",
    "Read",
    "compress",
    "compress_after",
    "compress_planes",
    "decode_frame",
    "decode_into",
    "decode_stream",
    "decode_whole",
    "decoded_chunks",
    "frames_ahead",
    "read_held",
    "scan",
]

Buffer: TypeAlias = bytes | bytearray | memoryview
Read: TypeAlias = Callable[[int, int], memoryview]
"""`read(offset, nbytes)` returns exactly `nbytes` of the encoded bytes."""

FRAME_NBYTES = 1 << 20
"""Decoded size of the frames that we write: large enough to compress well, small enough for threads and slices."""
SCRATCH_NBYTES = 16 << 20
"""To read a part of a frame, a frame up to this size is decoded completely, a larger one as far as needed."""

_MAGIC = 0xFD2FB528
_RESERVED = 0x18
"""Bits of a frame's descriptor that we require to be zero: one reserved, one unused (RFC 8878, §3.1.1.1.1)."""
_SKIPPABLE = 0x184D2A50
_HEADER_NBYTES = 18  # the longest frame header: magic 4, descriptor 1, window 1, dictionary 4, size 8
_WALK_NBYTES = 4096
"""Bytes read at a time to walk over small blocks."""
_GLANCE_NBYTES = 16
"""Bytes read of a large block: its header."""
_FEED_NBYTES = FRAME_NBYTES + (FRAME_NBYTES >> 7)
"""Bytes passed to a decoder at a time. One of our frames fits even if incompressible, and is decoded in one step."""
_SKIP_NBYTES = 64 << 10
"""Bytes decoded at a time to skip them."""
_AHEAD_NBYTES = 24 << 20
"""Bytes that threads decode or compress in advance."""
_MAX_BLOCK = 128 << 10
_MIN_WINDOW = 1 << 20
_SMALL_NBYTES = 4096
"""If a plane has at most this size, a lazy strategy is used. zstd's faster strategies encode up to 1024 literals with
the Huffman table of the previous block; that block is another plane, and the wrong table costs up to 20 % of a sparse
delta. Blocks up to this size can have as few literals beside their matches."""
_KEPT_WINDOW = 2 << 20
"""Window of the decoder that a thread keeps: what zstd chooses at its default level for data of unknown size."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame, as its headers describe it."""

    begin: int
    """Where it begins in the encoded bytes."""
    end: int
    nbytes: int | None
    """Decoded size, if the frame declares it."""
    window: int
    """Memory that decoding needs if the size is unknown."""
    window_at: int | None
    """Offset of the window byte."""
    checksum: bool


def scan(read: Read, size: int, nbytes: int, *, max_window: int, begin: int = 0) -> list[Frame]:
    """Finds the frames from `begin` to `size` of the encoded bytes, declared to decode to `nbytes`.

    Skippable frames are left out.
    """
    frames = [frame for _, frame in _walk(read, size, nbytes, max_window, begin) if frame is not None]
    if not frames:
        raise FormatError("the encoded data has no zstd frame", rule="zstd.empty", offset=begin)
    return frames


def _walk(read: Read, size: int, nbytes: int, max_window: int, begin: int) -> Iterator[tuple[int, Frame | None]]:
    """Yields the end of each frame, and the frame, or None for a skippable frame."""
    position, count = begin, 0
    while position < size:
        count += 1
        # Bounds the memory for `Frame` objects by the declared size, which the caller has already accepted.
        if count > 256 + nbytes // 256:
            raise LimitError(
                f"at least {count} zstd frames for {nbytes} bytes is more than allowed",
                rule="zstd.frames",
                offset=position,
            )
        head = read(position, min(_HEADER_NBYTES, size - position))
        if len(head) >= 8 and struct.unpack_from("<I", head)[0] & ~0xF == _SKIPPABLE:
            position = _end(position + 8 + struct.unpack_from("<I", head, 4)[0], size, position)
            yield position, None
        else:
            frame = _frame(read, head, position, size, max_window)
            position = frame.end
            yield position, frame


def _frame(read: Read, head: memoryview, begin: int, size: int, max_window: int) -> Frame:
    if len(head) < 4 or struct.unpack_from("<I", head)[0] != _MAGIC:
        raise FormatError("not a zstd frame", rule="zstd.magic", offset=begin)
    descriptor = head[4] if len(head) > 4 else 0
    single_segment = bool(descriptor & 0x20)
    dictionary_nbytes = (0, 1, 2, 4)[descriptor & 3]
    size_nbytes = (int(single_segment), 2, 4, 8)[descriptor >> 6]
    blocks = 5 + (not single_segment) + dictionary_nbytes + size_nbytes
    if len(head) < blocks:
        raise TruncatedError("truncated zstd frame header", rule="zstd.ends", offset=begin)
    if descriptor & _RESERVED:
        raise FormatError("reserved bit is set in a zstd frame", rule="zstd.reserved", offset=begin)
    if any(head[blocks - size_nbytes - dictionary_nbytes : blocks - size_nbytes]):
        raise FormatError("zstd frame needs a dictionary, which is not supported", rule="zstd.dictionary", offset=begin)
    nbytes = int.from_bytes(head[blocks - size_nbytes : blocks], "little") + (256 if size_nbytes == 2 else 0)
    if single_segment:
        window = nbytes
    else:
        base = 1 << (10 + (head[5] >> 3))
        window = base + base // 8 * (head[5] & 7)
        if window > max_window:
            raise LimitError(
                f"zstd window of {window} bytes exceeds the limit of {max_window}",
                rule="zstd.window",
                offset=begin,
            )
    checksum = bool(descriptor & 0x04)
    end = _blocks_end(read, begin + blocks, size, min(_MAX_BLOCK, max(window, 1)))
    return Frame(
        begin,
        _end(end + 4 * checksum, size, begin),
        nbytes if size_nbytes else None,
        window,
        None if single_segment else begin + 5,
        checksum,
    )


def _blocks_end(read: Read, position: int, size: int, max_block: int) -> int:
    """The end of the blocks from `position` on. Reads much at a time among small blocks, little among large ones."""
    look = _GLANCE_NBYTES
    while position + 3 <= size:
        window = bytes(read(position, min(look, size - position)))
        state, reached = zstd_blocks.walk(window, position, position, max_block)
        look = _GLANCE_NBYTES if reached - position >= _WALK_NBYTES else _WALK_NBYTES
        if state == zstd_blocks.LAST:
            return reached
        if state == zstd_blocks.BAD:
            raise FormatError("invalid zstd block", rule="zstd.block", offset=reached)
        position = reached
    raise TruncatedError("truncated zstd frame: the last block is missing", rule="zstd.ends", offset=position)


def _end(end: int, size: int, begin: int) -> int:
    if end > size:
        raise TruncatedError("truncated zstd frame", rule="zstd.ends", offset=begin)
    return end


def decode_into(read: Read, frames: Sequence[Frame], nbytes: int, offset: int, out: memoryview) -> None:
    """Fills `out` from `offset` of the decoded bytes, of which there must be exactly `nbytes`."""
    _check_total(frames, nbytes)
    if len(frames) == 1:
        decode_frame(read, frames[0], nbytes, offset, out)
    elif any(frame.nbytes is None for frame in frames):
        _decode_in_turn(read, frames, nbytes, offset, out)
    else:
        _decode_at_once(read, frames, offset, out)


def decoded_chunks(read: Read, frames: Sequence[Frame], nbytes: int) -> Iterator[memoryview]:
    """Yields all decoded bytes in bounded memory, frames of known size in parallel."""
    _check_total(frames, nbytes)
    largest = max((_AHEAD_NBYTES if frame.nbytes is None else frame.nbytes for frame in frames), default=0)
    if len(frames) > 1 and largest <= _AHEAD_NBYTES // 4:
        several = batches(frames, lambda frame: frame.nbytes or 0, FRAME_NBYTES)
        most = _AHEAD_NBYTES // max(largest, FRAME_NBYTES)
        for chunks in ordered_map(lambda batch: [_decode_all(read, frame) for frame in batch], several, ahead=most):
            yield from chunks
        return
    position = 0
    for frame in frames:
        stream = _open(read, frame, nbytes - position, again=False)
        while True:
            piece = memoryview(bytearray(min(FRAME_NBYTES, nbytes - position) or 1))
            filled = _drain(stream, frame, position, nbytes, position, piece, early=True) - position
            if filled == 0:
                break
            position += filled
            yield piece[:filled]
    if position != nbytes:
        raise _mismatch(position, nbytes)


def decode_stream(
    chunks: Iterable[Buffer],
    size: int,
    nbytes: int,
    *,
    max_window: int,
    check: Callable[[Frame], Frame] = lambda frame: frame,
) -> Iterator[memoryview]:
    """Decodes bytes that arrive in order: each frame once, as soon as it is complete.

    `check` is called with every frame, and may return it with a size that it knows from elsewhere.
    """
    left = nbytes
    for read, found in _stretches(chunks, size, nbytes, max_window):
        frames = [check(frame) for frame in found]
        sizes = [frame.nbytes for frame in frames]
        total = left if None in sizes else sum(size or 0 for size in sizes)
        if total > left:
            raise _mismatch(nbytes - left + total, nbytes)
        yield from decoded_chunks(read, frames, total)
        left -= total
    if left:
        raise _mismatch(nbytes - left, nbytes)


def _stretches(chunks: Iterable[Buffer], size: int, nbytes: int, max_window: int) -> Iterator[tuple[Read, list[Frame]]]:
    """Yields complete frames and a function that reads them. A frame of unknown size comes with all frames after it.

    `waiting` has the bytes from `begin` to `arrived`. Frames are looked for again when `enough` bytes have arrived.
    """
    waiting: list[Buffer] = []
    begin = arrived = enough = 0
    found = False
    for chunk in chunks:
        waiting.append(chunk)
        arrived += len(chunk)
        if arrived < min(enough, size):
            continue
        data = memoryview(b"".join(waiting))
        read = read_held(data, begin)
        frames, reached = _complete_frames(read, begin, arrived, size, nbytes, max_window)
        found |= bool(frames)
        if arrived < size and any(frame.nbytes is None for frame in frames):
            reached, enough = begin, size
        else:
            yield read, frames
            enough = 2 * arrived - reached  # double the rest: a large frame is not joined anew for each chunk
        waiting, begin = [data[reached - begin :]], reached
    if not found:
        raise FormatError("the encoded data has no zstd frame", rule="zstd.empty", offset=0)


def read_held(data: memoryview, begin: int = 0) -> Read:
    """A `Read` for bytes in memory, of which the first has the offset `begin`."""
    return lambda offset, nbytes: data[offset - begin : offset - begin + nbytes]


def _complete_frames(
    read: Read, begin: int, end: int, size: int, nbytes: int, max_window: int
) -> tuple[list[Frame], int]:
    """The frames that are complete before `end`, and the end of the last. An incomplete frame at `size` is an error."""
    frames: list[Frame] = []
    reached = begin
    if end < size and end - begin < _HEADER_NBYTES:
        return frames, reached
    try:
        for reached, frame in _walk(read, end, nbytes, max_window, begin):
            if frame is not None:
                frames.append(frame)
            if end < size and end - reached < _HEADER_NBYTES:
                break
    except TruncatedError:
        if end == size:
            raise
    return frames, reached


def _decode_all(read: Read, frame: Frame) -> memoryview:
    out = memoryview(bytearray(frame.nbytes or 0))
    decode_frame(read, frame, frame.nbytes or 0, 0, out)
    return out


def _check_total(frames: Sequence[Frame], nbytes: int) -> None:
    sizes = [frame.nbytes for frame in frames]
    known = sum(size for size in sizes if size is not None)
    if known > nbytes or (known != nbytes and None not in sizes):
        raise _mismatch(known, nbytes)


def _decode_at_once(read: Read, frames: Sequence[Frame], offset: int, out: memoryview) -> None:
    """Decodes frames of known size in parallel, only those that overlap the range."""
    jobs: list[tuple[Frame, int, memoryview]] = []
    whole = offset == 0 and len(out) == sum(frame.nbytes or 0 for frame in frames)
    starts = accumulate((frame.nbytes or 0 for frame in frames), initial=0)
    for frame, start in zip(frames, starts, strict=False):
        first, last = max(offset, start), min(offset + len(out), start + (frame.nbytes or 0))
        if first < last or (whole and not frame.nbytes):
            jobs.append((frame, first - start, out[first - offset : last - offset]))

    def decode(batch: list[tuple[Frame, int, memoryview]]) -> None:
        for frame, start, piece in batch:
            decode_frame(read, frame, frame.nbytes or 0, start, piece)

    for_each(decode, batches(jobs, lambda job: job[0].nbytes or 0, FRAME_NBYTES))


def _decode_in_turn(read: Read, frames: Sequence[Frame], nbytes: int, offset: int, out: memoryview) -> None:
    """Decodes frames of unknown size sequentially."""
    position = 0
    for frame in frames:
        position = _drain(_open(read, frame, nbytes - position), frame, position, nbytes, offset, out, early=False)
    if position != nbytes:
        raise _mismatch(position, nbytes)


def decode_frame(read: Read, frame: Frame, nbytes: int, offset: int, out: memoryview) -> None:
    """Fills `out` from `offset` of a frame that must decode to exactly `nbytes`."""
    whole = len(out) == nbytes
    if not whole and (nbytes <= SCRATCH_NBYTES or frame.window_at is None):
        scratch = memoryview(bytearray(nbytes))
        decode_frame(read, frame, nbytes, 0, scratch)
        out[:] = scratch[offset : offset + len(out)]
        return
    position = _drain(_open(read, frame, nbytes), frame, 0, nbytes, offset, out, early=not whole)
    if position < offset + len(out):
        raise _mismatch(position, nbytes)


def _drain(
    stream: zstandard.ZstdDecompressionReader,
    frame: Frame,
    position: int,
    limit: int,
    offset: int,
    out: memoryview,
    *,
    early: bool,
) -> int:
    """Decodes a frame that begins at `position`; writes the range of `out`, discards the rest.

    Continues to the end of the frame, and refuses a byte beyond `limit`; with `early` it
    stops when `out` is full.
    """
    end = offset + len(out)
    scratch = memoryview(bytearray(min(_SKIP_NBYTES, max(offset - position, 1))))
    while not (early and position >= end):
        if position < offset:
            target = scratch[: offset - position]
        elif position < end:
            target = out[position - offset :]
        else:
            target = scratch
        try:
            got = stream.readinto(target)
        except (zstandard.ZstdError, MemoryError) as error:
            if "match checksum" in str(error):
                raise IntegrityError(
                    "the checksum of a zstd frame does not match", rule="zstd.checksum", offset=frame.begin
                ) from error
            raise FormatError(f"invalid zstd data: {error}", rule="zstd.data", offset=frame.begin) from error
        if got == 0:
            break
        position += got
        if position > limit:
            raise _mismatch(position, limit)
    return position


def _mismatch(found: int, nbytes: int) -> FormatError:
    much = "at least " if found > nbytes else ""
    return FormatError(f"zstd frames decode to {much}{found} bytes, {nbytes} were declared", rule="zstd.size", offset=0)


def _open(read: Read, frame: Frame, nbytes: int, *, again: bool = True) -> zstandard.ZstdDecompressionReader:
    """Opens a decoder for a frame.

    With `again`, a small frame uses the decoder that its thread keeps: it must be drained
    before the thread opens another.
    """
    window, nbytes_encoded = frame.window, frame.end - frame.begin
    replaced = None
    if frame.nbytes is None and frame.window_at is not None:
        # A frame may ask for a window far larger than its data, for which the decoder would allocate memory. A window
        # as large as the data decodes the same, so the decoder is shown a smaller one.
        enough = max(_MIN_WINDOW, 1 << (max(nbytes, 1) - 1).bit_length())
        if enough < window:
            window = enough
            replaced = (frame.window_at, (enough.bit_length() - 11) << 3)
    if again and nbytes_encoded <= _FEED_NBYTES and replaced is None and window <= _KEPT_WINDOW:
        encoded = read(frame.begin, nbytes_encoded)
        return _kept.decompressor.stream_reader(encoded)
    decompressor = zstandard.ZstdDecompressor(max_window_size=max(window, _MIN_WINDOW))
    feed = _Feed(read, frame, replaced)
    return decompressor.stream_reader(cast("IO[bytes]", feed), read_size=min(nbytes_encoded, _FEED_NBYTES))


class _Kept(threading.local):
    """Contexts that a thread reuses: creating one takes as long as decoding a small frame."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=_KEPT_WINDOW)
        self.compressor: tuple[int, bool, zstandard.ZstdCompressor] | None = None
        """A compressor, its level, and whether its frames have a checksum."""
        self._plane_compressors: dict[bool, zstandard.ZstdCompressor] = {}

    def plane_compressor(self, small: bool) -> zstandard.ZstdCompressor:
        """The compressor for planes; `small` if one of them has at most _SMALL_NBYTES."""
        if small not in self._plane_compressors:
            self._plane_compressors[small] = zstandard.ZstdCompressor(compression_params=_plane_parameters(small))
        return self._plane_compressors[small]


def _plane_parameters(small: bool) -> zstandard.ZstdCompressionParameters:
    return zstandard.ZstdCompressionParameters(
        strategy=zstandard.STRATEGY_LAZY if small else zstandard.STRATEGY_FAST,
        window_log=20,
        hash_log=6,
        chain_log=6,
        search_log=1,
        min_match=6 if small else 7,
    )


_kept = _Kept()


class _Feed:
    """A file-like view of a frame for the decoder."""

    def __init__(self, read: Read, frame: Frame, replaced: tuple[int, int] | None) -> None:
        """`replaced` is the offset of a byte that the decoder sees changed, and its new value."""
        self._read = read
        self._position = frame.begin
        self._end = frame.end
        self._replaced = replaced

    def read(self, nbytes: int) -> memoryview | bytearray:
        begin = self._position
        self._position = min(begin + nbytes, self._end)
        data = self._read(begin, self._position - begin)
        if self._replaced is not None and begin <= self._replaced[0] < self._position:
            changed = bytearray(data)
            changed[self._replaced[0] - begin] = self._replaced[1]
            return changed
        return data


def compress_planes(planes: Sequence[Buffer]) -> bytes:
    """Compresses byte planes of numbers to one frame that declares its size; b"" if they are empty.

    Each plane gets its own blocks, because its byte distribution differs from the others'. A
    plane compresses by its skewed distribution and by runs; it has hardly any other
    repetitions. So the shortest search that zstd offers is used: output is 1 to 4 % smaller
    than at level 1, where spurious matches cost more than they save, and both directions are faster.
    """
    nbytes = sum(map(len, planes))
    if not nbytes:
        return b""
    stream = _kept.plane_compressor(min(map(len, planes)) <= _SMALL_NBYTES).compressobj(size=nbytes)
    blocks = []
    for plane in planes:
        blocks += [stream.compress(plane), stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)]
    return b"".join((*blocks, stream.flush()))


def decode_whole(encoded: memoryview, out: memoryview, dictionary: Buffer | None = None) -> None:
    """Decodes `encoded`, which must be exactly one frame, and decode to exactly len(out) bytes.

    `dictionary` are bytes that the frame may refer to as if they preceded it (RFC 8878, §5: a raw dictionary).
    """
    if zstd_blocks.declared(encoded, _KEPT_WINDOW) == len(out) > 0:
        decompressor = _kept.decompressor
        if dictionary is not None:
            decompressor = zstandard.ZstdDecompressor(_raw_dictionary(dictionary), max_window_size=_KEPT_WINDOW)
        with contextlib.suppress(zstandard.ZstdError):  # the slower path below reports what is wrong
            if decompressor.stream_reader(encoded).readinto(out) == len(out):
                return
    read = read_held(encoded)
    frames = scan(read, len(encoded), len(out), max_window=_KEPT_WINDOW)
    if len(frames) != 1 or frames[0].begin != 0 or frames[0].end != len(encoded):
        raise FormatError("expected exactly one zstd frame", rule="zstd.frames", offset=0)
    _check_total(frames, len(out))
    decode_frame(read, frames[0], len(out), 0, out)


def compress(data: Buffer, *, level: int, checksum: bool) -> bytes:
    """Compresses to one frame that declares its size."""
    kept = _kept.compressor
    if kept is not None and kept[:2] == (level, checksum):
        return kept[2].compress(data)
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=checksum, write_content_size=True)
    _kept.compressor = None if _context_nbytes(level) > FRAME_NBYTES else (level, checksum, compressor)
    return compressor.compress(data)


def compress_after(dictionary: Buffer, data: Buffer) -> bytes:
    """Compresses to one frame that declares its size, and may refer to the bytes of `dictionary`."""
    # Level 1 looks at too few places of a dictionary to find what it has.
    return zstandard.ZstdCompressor(level=3, dict_data=_raw_dictionary(dictionary)).compress(data)


def _raw_dictionary(dictionary: Buffer) -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


@cache
def _context_nbytes(level: int) -> int:
    """Returns the memory of a compression context for one of our frames: 0.5 to 20 MB."""
    parameters = zstandard.ZstdCompressionParameters.from_level(level, source_size=FRAME_NBYTES)
    return parameters.estimated_compression_context_size()


def frames_ahead(level: int) -> int:
    """Returns how many frames may be compressed in advance, given the memory of each."""
    return max(1, _AHEAD_NBYTES // (_context_nbytes(level) + 2 * FRAME_NBYTES))
