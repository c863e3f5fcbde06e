"""Lists and strings to bytes and back, in memory that ends at a page boundary before an inaccessible page.

Run as a program, because one byte too many kills it. The kernels copy short runs in
steps of 32 bytes; here every step that goes too far is seen.
"""

from __future__ import annotations

import ctypes
import mmap
from itertools import pairwise
from types import SimpleNamespace

import numpy as np

from tensorglot.dynd.codec import encode, inputs
from tensorglot.dynd.codec import growable as room
from tensorglot.dynd.codec.decode import decode
from tensorglot.dynd.schema import Kind, plan_of
from tensorglot.dynd.value import Value, lists_of
from tensorglot.limits import DEFAULT
from tensorglot.model.types.text import parse

LIBC = ctypes.CDLL(None, use_errno=True)


def guarded(count, dtype=np.uint8):
    """Memory whose last byte is the last of a page."""
    nbytes = count * np.dtype(dtype).itemsize
    whole = -(-max(1, nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, whole + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if LIBC.mprotect(ctypes.c_void_p(address + whole), mmap.PAGESIZE, 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    return np.frombuffer(memory, dtype, count, whole - nbytes)


def guarded_copy(array):
    copy = guarded(array.size, array.dtype)
    copy[:] = array.reshape(-1)
    return copy.reshape(array.shape)


def varint(number):
    head = bytearray()
    while number > 127:
        head.append(number & 127 | 128)
        number >>= 7
    return bytes([*head, number])


def check(text, lengths, dtype):
    plan = plan_of(parse(text))
    lists = next(node for node in plan.nodes if node.kind is Kind.LIST)
    offsets = guarded_copy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    content = guarded_copy((np.arange(offsets[-1]) % 128).astype(dtype))
    expected = b"".join(
        varint(stop - start) + content[start:stop].tobytes() for start, stop in pairwise(offsets.tolist())
    )
    columns = [None] * len(plan.nodes)
    columns[lists.id], columns[lists.child.id] = lists_of(offsets), content
    value = Value(plan, tuple(columns))
    assert encode.measure(value) == len(expected)
    assert encode.encode(value).tobytes() == expected
    assert b"".join(piece.tobytes() for piece in encode.pieces(value)) == expected

    source = inputs.Memory(guarded_copy(np.frombuffer(expected, np.uint8)))
    value = decode(source, plan.type, DEFAULT)
    source.finish()
    assert value.array(lists.child).tobytes() == content.tobytes()
    assert (value.lists(lists).stops == offsets[1:]).all()


def main():
    room.np = encode.np = SimpleNamespace(**{**vars(np), "empty": guarded})
    encode.PIECE_NBYTES = 97
    rng = np.random.default_rng(0)
    for longest in (0, 1, 3, 4, 5, 31, 32, 33, 63, 127, 128, 255, 256, 257, 300, 5000):
        for count in (1, 2, 7, 40):
            mixed = rng.integers(0, longest + 1, count)
            for lengths in (mixed, np.full(count, longest), np.where(rng.random(count) < 0.2, mixed, longest % 4)):
                check(f"{count} * var * float64", lengths, "<f8")
                check(f"{count} * bytes", lengths, np.uint8)
                check(f"{count} * string", lengths, np.uint8)
    print("in bounds")


if __name__ == "__main__":
    main()
