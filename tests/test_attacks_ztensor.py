"""Hostile zTensor files: each with the rule that it must be refused by, at the stage where that is possible.

The files come from a builder that shares no code with the library. Every refusal
costs at most 10 ms and 10 MB beyond what was declared.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import zstandard

import tensorglot as tg
from bounds import INTERPRETED, MB, allocated_nbytes, resident_nbytes, seconds
from ztensor_builder import (
    ABSENT,
    MAGIC_01,
    MAGIC_1,
    MAGIC_2,
    Long,
    Open,
    Pairs,
    Raw,
    cbor,
    entry,
    file01,
    file1,
    file2,
    footer,
    part,
    tensor,
)

Stage = Literal["open", "read", "fine"]


@dataclass(frozen=True)
class Attack:
    what: str
    data: bytes
    rule: str | None
    """None where the file is lawful."""
    stage: Stage = "open"

    def __str__(self) -> str:
        return self.what


def zstd(data: bytes, **fields: Any) -> bytes:
    return file01([entry(encoding="zstd", size=len(data), **fields)], data)


def with_checksum(text: Any) -> bytes:
    return file01([entry(checksum=text)])


NAN = Raw(b"\xf9\x7e\x00")
DEEP = Raw(b"\x81" * 100_000 + b"\0")
BLOCK = b"\x28\xb5\x2f\xfd"
RUNS = BLOCK + b"\x00\x38" + b"\x02\x00\x10\x00" * 8000 + b"\x0b\x00\x00\x00"
"""32 KB of run-length blocks, 128 KiB each."""
LE = struct.Struct("<Q").pack

ATTACKS_01 = [
    Attack("nothing", b"", "format.unknown"),
    Attack("magic only", MAGIC_01, "ztensor.size"),
    Attack("15 bytes", MAGIC_01 + bytes(7), "ztensor.size"),
    Attack("16 bytes are empty", MAGIC_01 + bytes(8), None, "fine"),
    Attack("17 bytes are empty", MAGIC_01 + b"\x80" + LE(1), None, "fine"),
    Attack("index size 2**63", file01(size=1 << 63), "ztensor.index.size"),
    Attack("index size 2**64 - 1", file01(size=(1 << 64) - 1), "ztensor.index.size"),
    Attack("index size 0", file01(size=0), "ztensor.index.size"),
    Attack("index past the file", file01(size=10_000), "ztensor.index.size"),
    Attack("index over the magic number", file01(size=len(file01()) - 8), "ztensor.index.size"),
    Attack("index one byte over the magic number", file01(size=len(file01()) - 15), "ztensor.index.size"),
    Attack("index too short", file01(size=20), "cbor.utf8"),
    Attack("bytes behind the index", file01(Raw(b"\x80\0")), "cbor.trailing"),
    Attack("index one byte too long", file01(size=len(cbor([entry()])) + 1), "cbor.utf8"),
    Attack("root is a map", file01({}), "ztensor.index.root"),
    Attack("root is an integer", file01(7), "ztensor.index.root"),
    Attack("root is text", file01("x"), "ztensor.index.root"),
    Attack("root is tagged", file01(Raw(b"\xc1\x80")), "ztensor.index.root"),
    Attack("array of 2**60", file01(Raw(b"\x9b" + (1 << 60).to_bytes(8, "big"))), "cbor.ends"),
    Attack("array of 2**64 - 1", file01(Raw(b"\x9b" + b"\xff" * 8)), "cbor.ends"),
    Attack("map of 2**63", file01([Raw(b"\xbb" + (1 << 63).to_bytes(8, "big"))]), "cbor.ends"),
    Attack("text of 2**62", file01([entry(Raw(b"\x7b" + (1 << 62).to_bytes(8, "big")))]), "cbor.ends"),
    Attack("nesting of 100,000", file01(DEEP), "cbor.depth"),
    Attack("nesting of 100,000 in a custom field", file01([entry(custom=DEEP)]), "cbor.depth"),
    Attack("nesting of 100,000 tags", file01([entry(custom=Raw(b"\xc1" * 100_000 + b"\0"))]), "cbor.depth"),
    Attack("nesting of 100,000 maps", file01([entry(custom=Raw(b"\xa1\0" * 100_000 + b"\0"))]), "cbor.depth"),
    Attack("nesting of 100,000 open arrays", file01([entry(custom=Raw(b"\x9f" * 100_000))]), "cbor.depth"),
    Attack("an entry is an array", file01([[]]), "ztensor.entry.kind"),
    Attack("an entry is empty", file01([{}]), "ztensor.entry.missing"),
    Attack("a key twice", file01([Pairs((*entry().items(), ("size", 4)))]), "cbor.duplicate"),
    Attack("a key twice, one long", file01([Pairs((*entry().items(), (Raw(b"\x78\x04size"), 4)))]), "cbor.duplicate"),
    Attack("a key twice, one in chunks", file01([Pairs((*entry().items(), (Open("size"), 4)))]), "cbor.duplicate"),
    Attack("a key twice in a custom field", file01([entry(custom=Pairs((("a", 1), ("a", 2))))]), "cbor.duplicate"),
    Attack("a key that is an integer", file01([Pairs((*entry().items(), (1, 4)))]), "ztensor.entry.kind"),
    Attack("a key that is bytes", file01([Pairs((*entry().items(), (b"size", 4)))]), "ztensor.entry.kind"),
    Attack("a key that is NaN", file01([entry(custom=Pairs(((NAN, 1),)))]), "cbor.key"),
    Attack("a key that is an array", file01([entry(custom=Pairs((([], 1),)))]), "cbor.key"),
    Attack("long integers", file01([entry(offset=Long(64), size=Long(4), shape=[Long(4)])]), None, "fine"),
    Attack("open lengths", file01(Open([Open(entry(Open("abc"), shape=Open([4])))])), None, "fine"),
    Attack("unsorted keys", file01([dict(reversed(entry().items()))]), None, "fine"),
    *(
        Attack(f"tag {number} in a custom field", file01([entry(custom=Raw(cbor_tag(number)))]), None, "fine")
        for number, cbor_tag in (
            (n, lambda n: (b"\xd8" + bytes([n]) if n > 23 else bytes([0xC0 | n])) + b"\x41\xff")
            for n in (2, 3, 4, 28, 29, 35)
        )
    ),
    Attack("a tagged offset", file01([entry(offset=Raw(b"\xc1\x18\x40"))]), "ztensor.entry.kind"),
    Attack("not UTF-8", file01([entry(Raw(b"\x61\xff"))]), "cbor.utf8"),
    Attack("overlong UTF-8", file01([entry(Raw(b"\x62\xc0\xaf"))]), "cbor.utf8"),
    Attack("a surrogate", file01([entry(Raw(b"\x63\xed\xa0\x80"))]), "cbor.utf8"),
    Attack("a name of 100,001 bytes", file01([entry("x" * 100_001)]), "ztensor.limit.name"),
    Attack("a name of 100,000 bytes", file01([entry("x" * 100_000)]), None, "fine"),
    Attack("names with everything", file01([entry("../\x1b[2J\0\u202e\n")]), None, "fine"),
    *(
        Attack(f"no {key}", file01([entry(**{key: ABSENT})]), "ztensor.entry.missing")
        for key in ("name", "offset", "size", "dtype", "shape", "encoding")
    ),
    *(
        Attack(f"{key} is {kind}", file01([entry(**{key: value})]), "ztensor.entry.kind")
        for key in ("name", "offset", "size", "dtype", "shape", "encoding", "data_endianness", "checksum")
        for kind, value in (("a bool", True), ("null", None), ("a float", 64.0), ("negative", -1), ("a map", {}))
    ),
    Attack("offset is a big number", file01([entry(offset=Raw(b"\xc2\x49" + b"\1" + bytes(8)))]), "ztensor.entry.kind"),
    Attack("a dimension is a bool", file01([entry(shape=[True])]), "ztensor.entry.kind"),
    Attack("a dimension is negative", file01([entry(shape=[-4])]), "ztensor.entry.kind"),
    Attack("a dimension is a float", file01([entry(shape=[4.0])]), "ztensor.entry.kind"),
    Attack("offset 2**64 - 64", file01([entry(offset=(1 << 64) - 64)]), "ztensor.blob.bounds"),
    Attack(
        "offset + size is 2**64", file01([entry(offset=(1 << 64) - 64, size=64, shape=[64])]), "ztensor.blob.bounds"
    ),
    Attack("size 2**64 - 1", file01([entry(size=(1 << 64) - 1)]), "ztensor.blob.bounds"),
    Attack("offset in the magic number", file01([entry(offset=0)]), "ztensor.blob.magic"),
    Attack("offset 8", file01([entry(offset=8)]), "ztensor.blob.alignment"),
    Attack("offset 65", file01([entry(offset=65)]), "ztensor.blob.alignment"),
    Attack("offset in the index", file01([entry(offset=128)]), "ztensor.blob.index"),
    Attack("a blob into the index", file01([entry(size=5, shape=[5])]), "ztensor.blob.index"),
    Attack("a blob after the file", file01([entry(offset=1 << 20)]), "ztensor.blob.end"),
    Attack("an empty blob after the file", file01([entry(offset=1 << 20, size=0, shape=[0])]), "ztensor.blob.end"),
    Attack("an empty blob at 0", file01([entry(offset=0, size=0, shape=[0])], b""), None, "fine"),
    Attack(
        "partial overlap",
        file01([entry("a", size=68, shape=[68]), entry("b", offset=128, size=4)], bytes(68)),
        "ztensor.blob.overlap",
    ),
    Attack(
        "one blob inside another", file01([entry("a", size=4), entry("b", size=2, shape=[2])]), "ztensor.blob.overlap"
    ),
    Attack(
        "aliases", file01([entry("a"), entry("b", dtype="int8"), entry("c", dtype="int32", shape=[])]), None, "fine"
    ),
    Attack("names twice", file01([entry("a"), entry("a")]), "ztensor.name.duplicate"),
    Attack("names twice, one in chunks", file01([entry("ab"), entry(Open("ab"))]), "ztensor.name.duplicate"),
    Attack("product wraps to 0", file01([entry(shape=[1 << 33, 1 << 31])]), "ztensor.shape.product"),
    Attack("product wraps to 4", file01([entry(shape=[(1 << 62) + 1, 4])]), "ztensor.shape.product"),
    Attack("a dimension of 2**63", file01([entry(shape=[1 << 63])]), "ztensor.shape.product"),
    Attack(
        "a huge product with a zero first",
        file01([entry(size=0, shape=[0, 1 << 40, 1 << 40])]),
        "ztensor.shape.product",
    ),
    Attack(
        "a huge product with a zero last", file01([entry(size=0, shape=[1 << 40, 1 << 40, 0])]), "ztensor.shape.product"
    ),
    Attack("more bytes than 2**63", file01([entry(dtype="float64", shape=[1 << 60])]), "ztensor.shape.product"),
    Attack("rank 65", file01([entry(shape=[1] * 64 + [4])]), "ztensor.limit.rank"),
    Attack("rank 5,000", file01([entry(shape=[1] * 5000)]), "ztensor.limit.rank"),
    Attack("rank 64", file01([entry(shape=[1] * 63 + [4])]), None, "fine"),
    Attack("size too small", file01([entry(size=3)]), "ztensor.blob.size"),
    Attack("size too large", file01([entry(shape=[3])]), "ztensor.blob.size"),
    Attack("size of another type", file01([entry(dtype="int16")]), "ztensor.blob.size"),
    Attack("endianness middle", file01([entry(data_endianness="middle")]), "ztensor.entry.endianness"),
    Attack("endianness of bytes", file01([entry(data_endianness="big")]), None, "fine"),
    Attack("endianness of zstd", zstd(zstandard.compress(b"abcd"), data_endianness="big"), None, "fine"),
    Attack("a bool of 2", file01([entry(dtype="bool")], b"\0\1\2\0"), None, "fine"),
    Attack("unknown dtype", file01([entry(dtype="float8")]), "dtype.known", "read"),
    Attack("unknown encoding", file01([entry(encoding="lz4")]), "encoding.known", "read"),
    Attack("unknown layout", file01([entry(layout="sparsecsr")]), None, "fine"),
    # zstd
    Attack("bomb", zstd(zstandard.compress(bytes(256 << 20)), shape=[64]), "zstd.size", "read"),
    Attack("bomb without a size", zstd(RUNS, shape=[64]), "zstd.size", "read"),
    Attack("bomb of frames", zstd(zstandard.compress(bytes(1 << 20)) * 100, shape=[64]), "zstd.size", "read"),
    Attack("false size", zstd(BLOCK + b"\x20\x04" + RUNS[6:]), "zstd.block", "read"),
    Attack("13 bytes", zstd(BLOCK + b"\xe0" + b"\xff" * 7 + b"\x3f"), "zstd.ends", "read"),
    Attack("too little", zstd(zstandard.compress(b"abc")), "zstd.size", "read"),
    Attack("too much", zstd(zstandard.compress(b"abcde")), "zstd.size", "read"),
    Attack("truncated", zstd(zstandard.compress(b"abcd")[:-1]), "zstd.ends", "read"),
    Attack("two frames", zstd(zstandard.compress(b"ab") + zstandard.compress(b"cd")), None, "fine"),
    Attack("junk", zstd(zstandard.compress(b"abcd") + b"junk"), "zstd.magic", "read"),
    Attack("a skippable frame", zstd(b"\x50\x2a\x4d\x18\1\0\0\0x" + zstandard.compress(b"abcd")), None, "fine"),
    Attack("only a skippable frame", zstd(b"\x50\x2a\x4d\x18\1\0\0\0x", shape=[0]), "zstd.empty", "read"),
    Attack("a skippable frame past the blob", zstd(b"\x50\x2a\x4d\x18\xff\0\0\0x"), "zstd.ends", "read"),
    Attack("no frame", file01([entry(encoding="zstd", size=0, shape=[0])]), "zstd.empty", "read"),
    Attack("dictionary", zstd(BLOCK + b"\x21\x07\x04\x21\0\0abcd"), "zstd.dictionary", "read"),
    Attack("window 2**31", zstd(BLOCK + b"\x00\xa8\x21\0\0abcd"), "zstd.window", "read"),
    Attack("window 2**41", zstd(BLOCK + b"\x00\xf8\x21\0\0abcd"), "zstd.window", "read"),
    Attack("reserved bit", zstd(BLOCK + b"\x28\x04\x21\0\0abcd"), "zstd.reserved", "read"),
    Attack("not zstd", zstd(b"abcd"), "zstd.magic", "read"),
    Attack("20,000 empty blocks", zstd(BLOCK + b"\x00\x38" + bytes(60_000) + b"\x21\0\0abcd"), None, "fine"),
    Attack("7,000 empty frames", zstd(zstandard.compress(b"") * 7_000), "zstd.frames", "read"),
    Attack("zstd of 2**50 bytes", zstd(zstandard.compress(b"abcd"), shape=[1 << 50]), "ztensor.blob.expansion"),
    # checksums
    Attack("checksum wrong", with_checksum("crc32c:0x00000001"), "checksum.mismatch", "read"),
    Attack("sha256 wrong", with_checksum("sha256:" + "0" * 64), "checksum.mismatch", "read"),
    Attack("checksum malformed", with_checksum("crc32c:NOTHEX00"), "checksum.form", "read"),
    Attack("checksum too long", with_checksum("crc32c:0x123456789"), "checksum.form", "read"),
    Attack("checksum without an algorithm", with_checksum("00000001"), "checksum.form", "read"),
    Attack("checksum empty", with_checksum(""), "checksum.form", "read"),
    Attack("checksum of unknown kind", with_checksum("md5:abc"), "verify.absent", "read"),
    Attack("checksum absent", file01(), "verify.absent", "read"),
]

ATTACKS_1 = [
    Attack("15 bytes", MAGIC_1 + bytes(7), "ztensor.size"),
    Attack("manifest size 2**63", file1({}, size=1 << 63), "ztensor.index.size"),
    Attack("manifest size 0", file1({}, size=0), "ztensor.index.size"),
    Attack("magic wrong at the end", file1({"objects": {}}, tail=b"ZTEN1001"), "ztensor.index.size"),
    Attack("no objects", file1({"version": "1.1.0"}), "ztensor.index.root"),
    Attack("root is an array", file1([]), "ztensor.index.root"),
    Attack("version 3", file1({"version": "3.0", "objects": {}}), "ztensor.version"),
    Attack("nesting", file1({"objects": {}, "attributes": {"a": DEEP}}), "cbor.depth"),
    Attack("no components", file1({"objects": {"a": {"shape": [4], "format": "dense"}}}), "ztensor.entry.missing"),
    *(
        Attack(what, file1({"version": "1.1.0", "objects": {"a": {
            "shape": [4], "format": form, "components": {role: {"dtype": "u8", "offset": 64, "length": 4} | fields}
        }}}), rule, stage)
        for what, form, role, fields, rule, stage in (
            ("fine", "dense", "data", {}, None, "fine"),
            ("unaligned", "dense", "data", {"offset": 65}, "ztensor.blob.alignment", "open"),
            ("past the file", "dense", "data", {"offset": 1 << 20}, "ztensor.blob.end", "open"),
            ("into the manifest", "dense", "data", {"length": 40}, "ztensor.blob.size", "open"),
            ("2**64", "dense", "data", {"offset": (1 << 64) - 64}, "ztensor.blob.bounds", "open"),
            ("wrong size", "dense", "data", {"length": 3}, "ztensor.blob.size", "open"),
            ("not zstd", "dense", "data", {"encoding": "zstd"}, "zstd.magic", "read"),
            ("unknown dtype", "dense", "data", {"dtype": "f3"}, "dtype.known", "read"),
            ("unknown encoding", "dense", "data", {"encoding": "lz4"}, "encoding.known", "read"),
            ("wrong digest", "dense", "data", {"digest": "crc32c:0x00000001"}, "checksum.mismatch", "read"),
            ("sparse without its parts", "sparse_csr", "values", {}, "layout.rank", "open"),
            ("an offset that is a bool", "dense", "data", {"offset": True}, "ztensor.entry.kind", "open"),
        )
    ),
]  # fmt: skip


def shards(name: str, **fields: Any) -> dict[str, Any]:
    return {"objects": {}, "shards": {name: {"size": 4096, "digest": "xxh3:00"} | fields}}


def objects(**fields: Any) -> bytes:
    return file2({"objects": {"a": tensor(**fields)}})


def parts(**fields: Any) -> bytes:
    return objects(parts={"data": part(**fields)})


GOOD_2 = file2({"objects": {"a": tensor()}})
MANIFEST_2 = GOOD_2[8192:-40]

ATTACKS_2 = [
    Attack("fine", GOOD_2, None, "fine"),
    Attack("47 bytes", MAGIC_2 + bytes(39), "ztensor.size"),
    Attack("a data shard", MAGIC_2 + footer(0, b"", digest=0), None, "fine"),
    Attack("a data shard with a hash", MAGIC_2 + footer(0, b"", digest=1), "ztensor.manifest.bounds"),
    Attack("magic wrong at the end", GOOD_2[:-1] + b"\0", "ztensor.footer.magic"),
    Attack("version 3", GOOD_2[:-40] + footer(8192, MANIFEST_2, version=3), "ztensor.footer.version"),
    Attack("hash wrong", GOOD_2[:-40] + footer(8192, MANIFEST_2, digest=1), "ztensor.manifest.hash"),
    Attack("manifest unaligned", GOOD_2[:-40] + footer(8191, MANIFEST_2), "ztensor.blob.alignment"),
    Attack("manifest at 0", GOOD_2[:-40] + footer(0, MANIFEST_2), "ztensor.blob.alignment"),
    Attack("manifest past the file", GOOD_2[:-40] + footer(12288, MANIFEST_2), "ztensor.manifest.bounds"),
    Attack("manifest at 2**64", GOOD_2[:-40] + footer((1 << 64) - 4096, MANIFEST_2), "ztensor.manifest.bounds"),
    Attack("manifest over 1 GiB", GOOD_2[:-32] + LE((1 << 30) + 1) + GOOD_2[-24:], "ztensor.manifest.large"),
    Attack("manifest of 512 MiB in 9 KB", GOOD_2[:-32] + LE(1 << 29) + GOOD_2[-24:], "ztensor.manifest.bounds"),
    Attack("trailing bytes", file2(Raw(MANIFEST_2 + b"\0")), "cbor.trailing"),
    Attack("long integers", objects(shape=[Long(4)]), "cbor.shortest"),
    Attack("open arrays", objects(shape=Open([4])), "cbor.indefinite"),
    Attack("unsorted", file2({"objects": {"b": 1, "a": 1}}, exact=True), "cbor.order"),
    Attack("twice", file2(Pairs((("objects", {}), ("objects", {})))), "cbor.duplicate"),
    *(
        Attack(f"tag {n}", file2({"objects": {}, "attributes": {"a": Raw(head + b"\0")}}), "cbor.tag")
        for n, head in ((2, b"\xc2"), (3, b"\xc3"), (4, b"\xc4"), (28, b"\xd8\x1c"), (29, b"\xd8\x1d"), (35, b"\xd8#"))
    ),
    Attack("undefined", file2({"objects": {}, "attributes": {"a": Raw(b"\xf7")}}), "cbor.simple"),
    Attack("a wide float", file2({"objects": {}, "attributes": {"a": 1.5}}), "cbor.float"),
    Attack("another NaN", file2({"objects": {}, "attributes": {"a": Raw(b"\xf9\x7e\x01")}}), "cbor.float"),
    Attack("nesting of 100,000", file2({"objects": {}, "attributes": {"a": DEEP}}), "cbor.depth"),
    Attack("an object is an array", file2({"objects": {"a": []}}), "ztensor.entry.kind"),
    Attack("objects is an array", file2({"objects": []}), "ztensor.entry.kind"),
    Attack("no objects", file2({"attributes": {}}), "ztensor.entry.missing"),
    Attack("root is an array", file2([]), "ztensor.entry.kind"),
    Attack("unknown keys", file2({"objects": {"a": tensor(zzz=1)}, "zzz": {1: 2}}), None, "fine"),
    Attack("an object whose name is an integer", file2({"objects": {1: tensor()}}), "ztensor.entry.kind"),
    Attack("an empty name", file2({"objects": {"": tensor()}}), "ztensor.name.form"),
    Attack("a name of 1,025 bytes", file2({"objects": {"x" * 1025: tensor()}}), "ztensor.name.form"),
    Attack("a name with NUL", file2({"objects": {"a\0": tensor()}}), "ztensor.name.form"),
    Attack("a part without a name", objects(parts={"": part()}), "ztensor.name.form"),
    Attack("an attribute without a name", objects(attributes={"": 1}), "ztensor.name.form"),
    Attack("attributes with integer keys", objects(attributes={1: 1}), "ztensor.entry.kind"),
    *(Attack(f"no {key}", objects(**{key: ABSENT}), "ztensor.entry.missing") for key in ("shape", "layout")),
    Attack("no parts", file2({"objects": {"a": {"shape": [4], "layout": "dense"}}}), "ztensor.entry.missing"),
    Attack("empty parts", objects(parts={}), "ztensor.entry.missing"),
    Attack("no dtype", parts(dtype=ABSENT), "ztensor.entry.missing"),
    Attack("no blob", parts(blob=ABSENT), "ztensor.entry.missing"),
    Attack("three numbers", parts(blob=[0, 4096, 4]), "ztensor.entry.blob"),
    Attack("a thousand numbers", parts(blob=[4096] * 1000), "ztensor.entry.blob"),
    Attack("unknown dtype", parts(dtype="f8"), "ztensor.entry.dtype"),
    Attack("bool over i8", parts(dtype="i8", type="bool"), "ztensor.entry.type"),
    Attack("complex over u8", parts(type="complex64"), "ztensor.entry.type"),
    Attack("unknown type", parts(type="x.y"), "dtype.known", "read"),
    Attack("a decoded length without an encoding", parts(decoded_length=4), "ztensor.entry.decoded"),
    Attack("an encoding without a decoded length", parts(encoding="x.y/1"), "ztensor.entry.decoded"),
    Attack("unknown encoding", parts(encoding="x.y/1", decoded_length=4), "encoding.known", "read"),
    Attack("digest in upper case", parts(digest="xxh3:ABCDEF0123456789"), "ztensor.entry.digest"),
    Attack("digest of nothing", parts(digest="xxh3:"), "ztensor.entry.digest"),
    Attack("digest wrong", parts(digest="xxh3:" + "0" * 16), "checksum.mismatch", "read"),
    Attack("digest too short", parts(digest="xxh3:00"), "checksum.form", "read"),
    Attack("offset at 0", parts(blob=[0, 4]), "ztensor.blob.alignment"),
    Attack("an empty blob at 0", objects(shape=[0], parts={"data": part(blob=[0, 0])}), "ztensor.blob.alignment"),
    Attack("offset at 4097", parts(blob=[4097, 4]), "ztensor.blob.alignment"),
    Attack("offset at 2**64 - 4096", parts(blob=[(1 << 64) - 4096, 4]), "ztensor.blob.bounds"),
    Attack("wrapping", parts(blob=[(1 << 64) - 4096, 4096]), "ztensor.blob.bounds"),
    Attack("into the footer", objects(shape=[9], parts={"data": part(blob=[8192, 10])}), "ztensor.blob.size"),
    Attack(
        "over the footer",
        objects(shape=[130], parts={"data": part(blob=[8192, 130])}),
        "ztensor.blob.end",
    ),
    Attack("into the manifest", objects(shape=[4097], parts={"data": part(blob=[4096, 4097])}), "ztensor.blob.overlap"),
    Attack(
        "overlap",
        file2({"objects": {"a": tensor(), "b": tensor(shape=[5], parts={"data": part(blob=[4096, 5])})}}, b"abcde"),
        "ztensor.blob.overlap",
    ),
    Attack("rank 65", objects(shape=[1] * 64 + [4]), "ztensor.shape.rank"),
    Attack("product 2**64", objects(shape=[1 << 32, 1 << 32]), "ztensor.shape.product"),
    Attack("a dimension of 2**63", objects(shape=[0, 1 << 63]), "ztensor.limit.dimension"),
    Attack("size mismatch", objects(shape=[5]), "ztensor.blob.size"),
    Attack("two parts", objects(parts={"data": part(), "more": part()}), "layout.parts"),
    Attack("a part of another name", objects(parts={"values": part()}), "layout.parts"),
    Attack(
        "bool 2",
        file2({"objects": {"a": tensor(parts={"data": part(type="bool")})}}, b"\0\1\2\0"),
        "values.bool",
        "read",
    ),
    Attack("unknown layout", objects(layout="x.y/1"), "tensor.dense", "read"),
    Attack("seekable without a table", parts(encoding="zt.zstd-seekable/1", decoded_length=4), "zstd.seek", "read"),
    Attack("a shard that is not declared", parts(shard="x"), "ztensor.shard.unknown"),
    Attack("a shard called ..", parts(shard=".."), "ztensor.shard.name"),
    *(
        Attack(f"a shard table with {name!r}", file2(shards(name)), "ztensor.shard.name")
        for name in ("..", "a/b", ".a", "", "x" * 65, "a\\b", "a b", "é", "a\n")
    ),
    Attack("a shard of 47 bytes", file2(shards("a", size=47)), "ztensor.shard.size"),
    Attack("a shard without a digest", file2({"objects": {}, "shards": {"a": {"size": 48}}}), "ztensor.entry.missing"),
    Attack("a shard with a bad digest", file2(shards("a", digest="xxh3:G")), "ztensor.entry.digest"),
    Attack(
        "past its shard",
        file2({"objects": {"a": tensor(parts={"data": part(shard="s")})}, "shards": shards("s")["shards"]}),
        "ztensor.blob.end",
    ),
]  # fmt: skip

ALL = [*ATTACKS_01, *ATTACKS_1, *ATTACKS_2]


@pytest.mark.parametrize("attack", ALL, ids=[f"{attack.data[:4]!r} {attack}" for attack in ALL])
def test_an_attack_is_refused_by_its_rule_at_its_stage(attack: Attack) -> None:
    reached = "open"

    def read() -> None:
        nonlocal reached
        reached = "open"
        with tg.open(attack.data, verify="require" if attack.rule == "verify.absent" else "auto") as archive:
            reached = "read"
            for one in archive.values():
                one.numpy()
        reached = "fine"

    if attack.rule is None:
        read()
        assert reached == attack.stage
        return
    with pytest.raises(tg.TensorglotError) as caught:
        read()
    assert (caught.value.rule, reached) == (attack.rule, attack.stage)
    assert isinstance(caught.value, tg.UnsupportedError) or caught.value.offset is not None or "checksum" in attack.rule

    def refused() -> None:
        with pytest.raises(tg.TensorglotError):
            read()

    quick = len(attack.data) < 64 << 10
    bound = 0.2 if INTERPRETED else 0.01 if quick else 0.1
    assert seconds(refused, bound) < bound
    assert allocated_nbytes(refused) < 10 * MB
    assert resident_nbytes(refused) < 10 * MB


def test_two_thousand_aliases_of_one_large_blob_cost_nothing_to_open() -> None:
    data = file01([entry(f"t{i}", size=1 << 20, shape=[1 << 20]) for i in range(2000)], bytes(1 << 20))
    with tg.open(data) as archive:
        assert len(archive) == 2000
        assert archive.index.nbytes.sum() == 2000 << 20, "each counts"
    assert allocated_nbytes(lambda: tg.open(data)) < 8 * MB + 40 * 200_000


LARGE = {
    "entries": lambda n: file01([entry(f"{i}", size=0, shape=[0]) for i in range(n)]),
    "lists": lambda n: file01([entry("a", custom=[[]] * n)]),
    "maps": lambda n: file01([entry("a", custom=[{}] * n)]),
    "fields": lambda n: file01([entry("a", **{f"k{i}": i for i in range(n)})]),
    "attributes of 2": lambda n: file2({"objects": {}, "attributes": {"a": [{}] * n}}),
    "objects of 2": lambda n: file2({"objects": {f"{i}": tensor(attributes={"a": i}) for i in range(n)}}),
    "attributes of 1": lambda n: file1({"objects": {}, "attributes": {"a": [{}] * n}}),
}


@pytest.mark.parametrize("make", LARGE.values(), ids=list(LARGE))
def test_opening_costs_what_the_promise_says(make: Any) -> None:
    data = make(2_000 if INTERPRETED else 20_000)
    nbytes = len(data)
    assert allocated_nbytes(lambda: tg.open(data)) < 8 * (1 << 20) + 40 * nbytes
    bound = 0.010 + 3e-6 * nbytes * (3 if INTERPRETED else 1)
    assert seconds(lambda: tg.open(data), bound) < bound
