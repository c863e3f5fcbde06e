"""A small reader of the layout in docs/store.md: stores, bundles and deltas. It shares no code with tensorglot.

Every block is compared with its digest. Values are a type and its canonical bytes.
"""

import json
import struct
from pathlib import Path
from urllib.parse import quote

import blake3
import zstandard

MIB = 1 << 20


def sha(data):
    return blake3.blake3(data).digest()


def cbor(data, at=0):
    """A DAG-CBOR item, and where it ends; a link is its digest."""
    kind, number = data[at] >> 5, data[at] & 31
    at += 1
    if kind == 7:
        if number == 27:
            return struct.unpack_from(">d", data, at)[0], at + 8
        return {20: False, 21: True, 22: None}[number], at
    if number > 23:
        size = 1 << (number - 24)
        number, at = int.from_bytes(data[at : at + size], "big"), at + size
    if kind == 0:
        return number, at
    if kind == 1:
        return -1 - number, at
    if kind in (2, 3):
        text = data[at : at + number]
        return (text if kind == 2 else text.decode()), at + number
    if kind == 6:
        link, at = cbor(data, at)
        return link[5:], at
    items = []
    for _ in range(number * (kind - 3)):
        item, at = cbor(data, at)
        items.append(item)
    return (items if kind == 4 else dict(zip(items[::2], items[1::2], strict=True))), at


# Encodings


class Bits:
    def __init__(self, data):
        self.bits = "".join(f"{byte:08b}"[::-1] for byte in data)
        self.at = 0

    def number(self, count):
        self.at += count
        return int("0" + self.bits[self.at - count : self.at][::-1], 2)

    def unary(self):
        begin, self.at = self.at, self.bits.index("1", self.at) + 1
        return self.at - 1 - begin

    def align(self):
        self.at += -self.at % 8


def packed(data):
    """The width, the positions and the zigzag differences of a packed delta."""
    stream = Bits(data)
    width, a, b, c, count, exceptions = map(stream.number, (4, 5, 6, 5, 21, 21))
    stream.align()
    lows = [(stream.number(a), stream.number(b)) for _ in range(count)]
    stream.align()
    gaps = [low + (stream.unary() << a) for low, _ in lows]
    stream.align()
    values = [value for _, value in lows]
    at = -1
    for _ in range(exceptions):
        at += 1 + (stream.unary() << c) + stream.number(c)
        more = stream.unary()
        values[at] += ((1 << more) + stream.number(more)) << b
    stream.align()
    assert stream.at == len(stream.bits)
    places, place = [], -1
    for gap in gaps:
        place += gap + 1
        places.append(place)
    return width, places, [value + 1 for value in values]


def decode(encoding, body, base, nbytes):
    """Decodes a chunk of `nbytes` from its body and the bytes of its base."""
    if encoding == 0:
        return body
    if encoding == 1:
        return (body * (nbytes // len(body) + 1))[:nbytes]
    width, at = body[0] & (15 if encoding == 7 else 255), 1
    count, gaps = nbytes // width, 0
    old = bytearray(base[:nbytes].ljust(nbytes, b"\0"))
    if encoding in (3, 5):
        _, count, gaps = struct.unpack_from("<BII", body)
        at = 9
    end = len(body) - nbytes % width
    if encoding == 7:
        _, places, changes = packed(body[:end])
        return restore(old, places, changes, width, False, body[end:])
    data = zstandard.ZstdDecompressor().decompress(body[at:end]) if gaps + count else b""
    places = range(count)
    if encoding in (3, 5):
        places, place = [], 0
        for gap in data[:gaps]:
            place += gap
            if gap != 255:
                places.append(place)
                place += 1
    values = bytearray(count * width)
    for plane in range(width):
        values[plane::width] = data[gaps + plane * count : gaps + (plane + 1) * count]
    if encoding == 2:
        return bytes(values) + body[end:]
    changes = [int.from_bytes(values[i : i + width], "little") for i in range(0, len(values), width)]
    return restore(old, places, changes, width, encoding in (3, 4), body[end:])


def decode_nodes(body, digests):
    known = zstandard.ZstdCompressionDict(digests, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    return zstandard.ZstdDecompressor(dict_data=known).decompress(body)


def restore(old, places, changes, width, xor, rest):
    for place, change in zip(places, changes, strict=True):
        span = slice(place * width, (place + 1) * width)
        was = int.from_bytes(old[span], "little")
        new = was ^ change if xor else (was + ((change >> 1) ^ -(change & 1))) % (1 << 8 * width)
        old[span] = new.to_bytes(width, "little")
    for i, byte in enumerate(rest, len(old) - len(rest)):
        old[i] ^= byte
    return bytes(old)


# A store


class Store:
    def __init__(self, path):
        self.path = Path(path)
        assert json.loads((self.path / "tensorglot-store.json").read_text()) == {
            "format": "tensorglot-store", "version": 1,
        }  # fmt: skip
        self.places, self.data_of, self.digests_of, self.decoded = {}, {}, {}, {}
        for pack in (self.path / "packs").glob("*.pack"):
            self.read_index(pack, pack.read_bytes())

    def read_index(self, pack, data):
        self.data_of[pack] = data
        offset, size, digest, magic = struct.unpack("<QQ32s8s", data[-56:])
        assert magic == data[:8]
        assert magic in (b"tgpack\x001", b"tgpack\x002")
        index = data[offset : offset + size]
        assert sha(index) == digest
        blocks, records, bases = struct.unpack_from("<III", index)
        at = 12
        if magic[7:] == b"2":
            at += 32 * (blocks + bases)
            split = zstandard.ZstdDecompressor().decompress(index[at:]) if blocks else b""
            words = 3 * blocks + 4 * records
            numbers = bytearray(4 * words)
            for plane in range(4):
                numbers[plane::4] = split[plane * words : (plane + 1) * words]
            offsets, offset = [], 8
            for stored in struct.unpack_from(f"<{records}I", numbers, 12 * blocks):
                offsets.append(offset)
                offset += stored
            # As version 1 has it.
            index = b"".join((
                index[: 12 + 32 * blocks], numbers[: 12 * blocks], struct.pack(f"<{records}Q", *offsets),
                numbers[12 * blocks :], split[4 * words :], index[12 + 32 * blocks : at],
            ))  # fmt: skip
            at = 12

        def column(form, count):
            nonlocal at
            values = struct.unpack_from(f"<{count}{form}" if form != "32s" else "<" + "32s" * count, index, at)
            at += struct.calcsize(form) * count
            return values

        digests = column("32s", blocks)
        self.digests_of[pack] = b"".join(digests)
        of_block = list(zip(*(column("I", blocks) for _ in range(3)), strict=True))
        of_record = list(zip(*(column(form, records) for form in ("Q", "I", "I", "I", "I", "B", "B")), strict=True))
        table = column("32s", bases)
        for digest, (record, begin, nbytes) in zip(digests, of_block, strict=True):
            offset, stored, decoded, _, base, encoding, _ = of_record[record]
            base = None if base == 0xFFFFFFFF else table[base]
            self.places[digest] = pack, offset, stored, decoded, encoding, base, begin, nbytes

    def block(self, digest):
        pack, offset, stored, decoded, encoding, base, begin, nbytes = self.places[digest]
        if (pack, offset) not in self.decoded:
            body = self.data_of[pack][offset : offset + stored]
            old = b"" if base is None else self.block(base)
            self.decoded[pack, offset] = (
                decode_nodes(body, self.digests_of[pack]) if encoding == 8 else decode(encoding, body, old, decoded)
            )
        block = self.decoded[pack, offset][begin : begin + nbytes]
        assert sha(block) == digest
        return block

    def node(self, digest):
        return cbor(self.block(digest))[0]

    def ref(self, name):
        text = json.loads((self.path / "refs" / quote(name, safe="")).read_text())["cid"]
        return commit_digest(text)

    def tensors(self, commit):
        """Name to type and bytes, of tensors that are one array."""
        return {name: self.array(link) for name, link in self.entries(self.node(commit)["tensors"])}

    def entries(self, link):
        node = self.node(link)
        if "names" in node:
            return list(zip(node["names"], node["links"], strict=True))
        return [entry for below in node["links"] for entry in self.entries(below)]

    def array(self, link):
        node = self.node(link)
        data = self.data(node["data"], node["size"])
        assert len(data) == node["size"]
        return node["type"], data

    def data(self, link, nbytes):
        if nbytes <= MIB:
            return self.block(link)
        node, share = self.node(link), MIB
        while share * 8192 < nbytes:
            share *= 8192
        return b"".join(self.data(each, min(share, nbytes - at * share)) for at, each in enumerate(node["chunks"]))


def commit_digest(text):
    import base64

    return base64.b32decode(text[1:].upper() + "=" * (-len(text[1:]) % 8))[4:]


# A bundle


class Bundle(Store):
    """The blocks of a CAR file, over those of a store that the receiver has."""

    def __init__(self, data, have=None):
        self.blocks, self.have = {}, have
        frames = list(self.frames(data))
        (root,) = cbor(frames[0])[0]["roots"]
        for frame in frames[1:]:
            assert sha(frame[36:]) == frame[4:36]
            node = cbor(frame[36:])[0] if frame[1] == 0x71 else {}
            if isinstance(node, dict) and node.get("kind") == "delta":
                block = decode(node["encoding"], node["body"], self.block(node["base"]), node["nbytes"])
                assert sha(block) == node["block"]
                self.blocks[node["block"]] = block
            self.blocks[frame[4:36]] = frame[36:]
        self.commit = self.node(root)["commit"]

    @staticmethod
    def frames(data):
        at = 0
        while at < len(data):
            size = shift = 0
            while True:
                byte, at = data[at], at + 1
                size |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            yield data[at : at + size]
            at += size

    def block(self, digest):
        return self.blocks[digest] if digest in self.blocks else self.have.block(digest)


# A delta


def apply_delta(data, old):
    """Applies a delta: name to type and bytes, of the new version."""
    offset, size, digest, magic = struct.unpack("<QQ32s8s", data[-56:])
    assert magic == data[:8] == b"tgdelta1"
    assert sha(data[offset : offset + size]) == digest
    index = cbor(data[offset : offset + size])[0]
    bases = list(struct.iter_unpack("<IQ32s", index["bases"]))
    bodies, at, found, new = struct.iter_unpack("<IIB", index["bodies"]), 8, [], {}
    for tensor, type, base, tied, count, nbytes, _, digest in struct.iter_unpack("<IIIIIQQ32s", index["rows"]):
        name, chunks = index["names"][tensor], {}
        for _ in range(count):
            position, stored, encoding = next(bodies)
            chunks[position] = encoding, data[at : at + stored]
            at += stored
        found.append(chunks)
        chunks = chunks if tied == 0xFFFFFFFF else found[tied]
        before = b"" if base == 0xFFFFFFFF else old[name][1]
        if base < len(bases):
            assert (index["types"][bases[base][0]], tree(before)) == (old[name][0], bases[base][2])
        value = b""
        for position in range(max(1, -(-nbytes // MIB))):
            length, part = min(MIB, nbytes - position * MIB), before[position * MIB : (position + 1) * MIB]
            value += (
                decode(*chunks[position], part, length) if position in chunks else part[:length].ljust(length, b"\0")
            )
        assert tree(value) == digest
        new[name] = index["types"][type], value
    return new


def tree(data):
    """The digest of data up to 8 GiB: a leaf, or a chunk node."""
    if len(data) <= MIB:
        return sha(data)
    links = [sha(data[at : at + MIB]) for at in range(0, len(data), MIB)]
    head = bytes([0x80 + len(links)]) if len(links) < 24 else b"\x98" + bytes([len(links)])
    size = len(data).to_bytes(4, "big")
    node = b"\xa2\x64size\x1a" + size + b"\x66chunks" + head
    return sha(node + b"".join(b"\xd8\x2a\x58\x25\x00\x01\x55\x1e\x20" + link for link in links))
