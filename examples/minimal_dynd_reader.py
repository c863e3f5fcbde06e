"""Reads serialized DyND values with NumPy: `python minimal_dynd_reader.py 'var * {x: int32, y: ?string}' HEX`.

The bytes follow from the type. Numbers are little-endian. A string, bytes or a `var`
dimension has its length before it, seven bits in each byte, lowest first. A missing value
is a sentinel of its type where there is one; else a flag byte stands before each value.
"""

import re
import sys

import numpy as np

NUMBERS = {f"{sign}int{bits}": f"<{sign or 'i'}{bits // 8}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
NUMBERS |= {"float16": "<f2", "float32": "<f4", "float64": "<f8", "bool": "?"}
SENTINELS = {"bool": "02", "float16": "0a7e", "float32": "a207807f", "float64": "a20700000000f07f"}
SENTINELS |= {f"int{8 * width}": "00" * (width - 1) + "80" for width in (1, 2, 4, 8)}


class Data:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        if count > len(self.data) - self.at:
            raise ValueError("the data ends inside a value")
        self.at += count
        return self.data[self.at - count : self.at]

    def varint(self):
        byte = self.take(1)[0]
        return byte if byte < 128 else byte - 128 + 128 * self.varint()


def parse(text):
    """A function that reads a value of the type from data, and the text after the type."""
    if found := re.match(r"(var|\d+) \* ", text):
        item, rest = parse(text[found.end() :])
        number = NUMBERS.get(text[found.end() : len(text) - len(rest)])

        def read_list(data):
            count = data.varint() if found[1] == "var" else int(found[1])
            if number:  # many at once
                return np.frombuffer(data.take(count * np.dtype(number).itemsize), number).tolist()
            return [item(data) for _ in range(count)]

        return read_list, rest
    if text.startswith("?"):
        item, rest = parse(text[1:])
        mark = bytes.fromhex(SENTINELS.get(text[1 : len(text) - len(rest)], ""))

        def read_option(data):
            if mark:
                missing = data.data[data.at : data.at + len(mark)] == mark
                return data.take(len(mark)) and None if missing else item(data)
            return item(data) if data.take(1) == b"\1" else None

        return read_option, rest
    if text[0] in "{(":
        fields, rest = [], text[1:]
        while rest[0] not in "})":
            name = re.match(r"(?:, )?(?:(\w+): )?", rest)
            item, rest = parse(rest[name.end() :])
            fields.append((name[1], item))
        if text[0] == "(":
            return lambda data: tuple(item(data) for _, item in fields), rest[1:]
        return lambda data: {name: item(data) for name, item in fields}, rest[1:]
    word = re.match(r"\w*", text)[0]
    rest = text[len(word) :]
    if word in NUMBERS:
        kind = np.dtype(NUMBERS[word])
        return lambda data: np.frombuffer(data.take(kind.itemsize), kind)[0].item(), rest
    if word in ("string", "bytes") and not rest.startswith("["):
        decode = bytes.decode if word == "string" else bytes
        return lambda data: decode(data.take(data.varint())), rest
    raise NotImplementedError(text)


def read(type, data):
    reader, rest = parse(type)
    source = Data(data)
    value = reader(source)
    if rest or source.at != len(data):
        raise ValueError("more data than the type has")
    return value


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python minimal_dynd_reader.py TYPE HEX")
    print(read(sys.argv[1], bytes.fromhex(sys.argv[2])))
