"""Reads a BinTensors file with NumPy: `python minimal_bintensors.py model.bt`.

    file   = u64 N | header of N bytes | data
    header = optional metadata, tensors [, map from name to position], then spaces

In layout 0 the names follow in a map, in layout 1 each stands before its tensor. The file
does not say which: the one that fits the header is right.
"""

import math
import sys

import numpy as np

DTYPES = [
    "?", "u1", "i1", "u1", "u1", "<i2", "<u2", "<f2", "<u2", "<i4", "<u4", "<f4", "<f8", "<i8", "<u8",
]  # fmt: skip
"""By code. NumPy has no float8 (3, 4) and no bfloat16 (8): their bits."""


class Header:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        if count > len(self.data) - self.at:
            raise ValueError("the header ends inside a value")
        self.at += count
        return self.data[self.at - count : self.at]

    def varint(self):
        first = self.take(1)[0]
        if first > 253:
            raise ValueError("a varint of more than 64 bits")
        return first if first < 251 else int.from_bytes(self.take(2 ** (first - 250)), "little")

    def text(self):
        return self.take(self.varint()).decode()

    def several(self, read):
        count = self.varint()
        if count > len(self.data) - self.at:
            raise ValueError("more items than the header can hold")
        return [read() for _ in range(count)]


def parse(data, layout):
    """Metadata, and name, dtype, shape, begin and end of each tensor."""
    header = Header(data)
    has_metadata = {b"\0": False, b"\1": True}[header.take(1)]
    metadata = dict(header.several(lambda: (header.text(), header.text()))) if has_metadata else None

    def tensor():
        name = header.text() if layout == 1 else None
        return [name, DTYPES[header.varint()], header.several(header.varint), header.varint(), header.varint()]

    tensors = header.several(tensor)
    if layout == 0:
        for name, position in header.several(lambda: (header.text(), header.varint())):
            tensors[position][0] = name
    end = 0
    for name, dtype, shape, begin, stop in tensors:
        if name is None or begin != end or stop - begin != math.prod(shape) * np.dtype(dtype).itemsize:
            raise ValueError("not this layout")
        end = stop
    if header.data[header.at :].strip(b" ") or len(header.data) - header.at > 7:
        raise ValueError("bytes after the header")
    return metadata, tensors


def read(path):
    """The metadata, and the arrays by name."""
    file = np.fromfile(path, np.uint8)
    start = 8 + int.from_bytes(file[:8].tobytes(), "little")
    for layout in (0, 1):
        try:
            metadata, tensors = parse(file[8:start].tobytes(), layout)
        except (ValueError, LookupError):
            continue
        return metadata, {
            name: file[start + a : start + b].view(kind).reshape(shape) for name, kind, shape, a, b in tensors
        }
    raise ValueError("not a BinTensors file")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python minimal_bintensors.py FILE.bt")
    for name, array in read(sys.argv[1])[1].items():
        print(name, array.dtype, array.shape)
