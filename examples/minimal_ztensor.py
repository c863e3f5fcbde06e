"""Reads a zTensor file, version 0.1 or 2, with NumPy: `python minimal_ztensor.py model.zt`.

    0.1 = "ZTEN0001", blobs, CBOR array of entries, u64 its size
    2   = 89 "ZT2" 0D 0A 1A 0A, blobs, CBOR map, footer: u64 its offset, u64 its size, …

Compressed tensors are left out, since they need zstd, and in version 2 float8, float4 and complex ones.
"""

import sys

import numpy as np

SHORT = {"f64": "<f8", "f32": "<f4", "f16": "<f2", "i64": "<i8", "i32": "<i4", "i16": "<i2", "i8": "i1"}
SHORT |= {"u64": "<u8", "u32": "<u4", "u16": "<u2", "u8": "u1", "bf16": "<u2"}
"""NumPy has no bfloat16: its bits."""


class Cbor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        if count > len(self.data) - self.at:
            raise ValueError("the index ends inside a value")
        self.at += count
        return self.data[self.at - count : self.at]

    def item(self):
        first = self.take(1)[0]
        kind, low = first >> 5, first & 31
        if kind == 7:
            floats = {25: ">f2", 26: ">f4", 27: ">f8"}
            return (
                np.frombuffer(self.take(2 ** (low - 24)), floats[low])[0]
                if low in floats
                else {20: False, 21: True}.get(low)
            )
        number = low if low < 24 else None if low == 31 else int.from_bytes(self.take(2 ** (low - 24)), "big")
        if kind < 2:
            return number if kind == 0 else -1 - number
        if kind < 4:
            return self.take(number) if kind == 2 else self.take(number).decode()
        if kind == 6:
            return self.item()
        items = list(self.items(number, 1 if kind == 4 else 2))
        return items if kind == 4 else dict(zip(items[::2], items[1::2], strict=True))

    def items(self, count, each):
        """The items of an array or map; None is until the break byte."""
        while (count is None and self.data[self.at] != 255) or count:
            yield from (self.item() for _ in range(each))
            count = count and count - 1
        if count is None:
            self.at += 1


def entries(file):
    """Name, dtype, shape, offset and size of the raw dense tensors."""
    if file[:8].tobytes() == b"ZTEN0001":
        size = int(file[-8:].view("<u8")[0])
        for entry in Cbor(file[len(file) - 8 - size : -8].tobytes()).item() if size else []:
            if entry["encoding"] == "raw":
                dtype = {"bfloat16": "uint16"}.get(entry["dtype"], entry["dtype"])
                order = ">" if entry.get("data_endianness") == "big" else "<"
                yield entry["name"], np.dtype(dtype).newbyteorder(order), entry["shape"], entry["offset"], entry["size"]
    elif file[:8].tobytes() == b"\x89ZT2\r\n\x1a\n":
        offset, size = file[-40:-24].view("<u8").tolist()
        for name, entry in Cbor(file[offset : offset + size].tobytes()).item()["objects"].items():
            part = entry["parts"].get("data", {})
            if (
                entry["layout"] == "dense"
                and "encoding" not in part
                and "shard" not in part
                and part.get("type", "bool") == "bool"
            ):
                yield name, np.dtype("?" if "type" in part else SHORT[part["dtype"]]), entry["shape"], *part["blob"]
    else:
        raise ValueError("not a zTensor file of version 0.1 or 2")


def read(path):
    """The arrays by name."""
    file = np.fromfile(path, np.uint8)
    return {name: file[at : at + size].view(dtype).reshape(shape) for name, dtype, shape, at, size in entries(file)}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python minimal_ztensor.py FILE.zt")
    for name, array in read(sys.argv[1]).items():
        print(name, array.dtype, array.shape)
