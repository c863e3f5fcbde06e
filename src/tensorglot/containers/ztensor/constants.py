"""The constants of zTensor: magic numbers, and the names of element types and encodings in each version."""

from __future__ import annotations

import struct

from tensorglot.model.dtypes import BY_NAME, DType

__all__ = [
    "ALIGNMENT_01",
    "ALIGNMENT_2",
    "CANONICAL_ALIGNMENT",
    "FOOTER_2",
    "FOOTER_FORM",
    "INDEX_NBYTES",
    "IN_PART",
    "LOGICAL_2",
    "MAGIC_01",
    "MAGIC_1",
    "MAGIC_2",
    "NAMES_01",
    "NAMES_1",
    "OVER",
    "SEEKABLE",
    "STORAGE_2",
    "TORN_NBYTES",
]

MAGIC_01 = b"ZTEN0001"
MAGIC_1 = b"ZTEN1000"
MAGIC_2 = b"\x89ZT2\r\n\x1a\n"

INDEX_NBYTES = 1 << 30
"""The largest manifest of version 2, and the default limit on the index of every version."""

ALIGNMENT_01 = 64
"""Alignment of blobs in 0.1 and 1.x."""
ALIGNMENT_2 = 4096
CANONICAL_ALIGNMENT = 65536
FOOTER_FORM = struct.Struct("<QQQII8s")
"""§2.3: offset, length and hash of the manifest, version, reserved, magic."""
FOOTER_2 = FOOTER_FORM.size
TORN_NBYTES = 16 << 20
"""The most zeros that a power cut may leave after the footer of a file that was appended to."""

NAMES_01: tuple[str, ...] = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8",
    "uint64", "uint32", "uint16", "uint8", "bool",
)  # fmt: skip
"""§5.1 of the document. The names are the same as ours."""

STORAGE_2: dict[str, DType] = {
    code: BY_NAME[name]
    for code, name in (
        ("f64", "float64"), ("f32", "float32"), ("f16", "float16"), ("bf16", "bfloat16"),
        ("i64", "int64"), ("i32", "int32"), ("i16", "int16"), ("i8", "int8"),
        ("u64", "uint64"), ("u32", "uint32"), ("u16", "uint16"), ("u8", "uint8"),
    )
}  # fmt: skip
"""§4.1 of version 2: dtypes, which give the width of an element."""

LOGICAL_2: dict[str, tuple[DType, str]] = {
    code: (BY_NAME[name], storage)
    for code, name, storage in (
        ("bool", "bool", "u8"),
        ("f8_e4m3fn", "float8_e4m3fn", "u8"),
        ("f8_e5m2", "float8_e5m2", "u8"),
        ("f8_e4m3fnuz", "float8_e4m3fnuz", "u8"),
        ("f8_e5m2fnuz", "float8_e5m2fnuz", "u8"),
        ("f8_e8m0", "float8_e8m0fnu", "u8"),
        ("f4_e2m1", "float4_e2m1fn", "u8"),
        ("complex64", "complex64", "f32"),
        ("complex128", "complex128", "f64"),
    )
}
"""Appendix A of version 2: logical types, and the dtype that each needs."""

NAMES_1: dict[str, DType] = {
    **{name: BY_NAME[name] for name in NAMES_01},
    **STORAGE_2,
    "bool": BY_NAME["bool"],
    "f8_e4m3": BY_NAME["float8_e4m3fn"],
    "f8_e5m2": BY_NAME["float8_e5m2"],
    "complex64": BY_NAME["complex64"],
    "complex128": BY_NAME["complex128"],
}
"""Long names in 1.0, short ones in 1.1 and 1.2."""

OVER = " over "
"""An unknown logical type of version 2 is listed as `type over dtype`."""
IN_PART = " in part"
"""Suffix of the dtype name of a blob in an unknown layout that is not a whole number of elements."""

SEEKABLE = "zt.zstd-seekable/1"
