"""Encodes documents that differ only in slots of fixed size, from one template and columns of data.

A template is a list of constant bytes and slots. Memory for all documents is allocated
once, and each slot is filled from its own column.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, Union

import numpy as np

from tensorglot.errors import InputError, UnsupportedError, escape
from tensorglot.kernels import bson_rows
from tensorglot.threads import for_each
from tensorglot.wire.bson import BINARY, DOCUMENT, VECTOR_SUBTYPE, path_bytes
from tensorglot.wire.bson_vector import HEAD_NBYTES, Row

__all__ = ["STORED_MAX_NBYTES", "Slot", "Template", "Tree", "add_vector", "stride", "template", "weave"]

STORED_MAX_NBYTES = 16 << 20
"""The largest document that MongoDB stores."""
_BLOCK_NBYTES = 512 << 10
"""Documents are filled in blocks that stay in the CPU cache until all their slots are filled."""
_BLOCKS = 8
"""Blocks per task of a thread."""
_LARGE_NBYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Slot:
    """A value that differs between documents."""

    name: str
    kind: int
    before: bytes
    """Constant first bytes of the value."""
    nbytes: int
    """Size of the rest."""


Tree: TypeAlias = dict[bytes, Union[Slot, "Tree"]]
"""A document by its keys, each with its NUL."""
Template: TypeAlias = list[bytes | Slot]


def add_vector(tree: Tree, path: str, row: Row) -> None:
    """Adds a slot for vectors at a dotted path."""
    *outer, last = path_bytes(path)
    for name in outer:
        inner = tree.setdefault(name, {})
        if isinstance(inner, Slot):
            raise UnsupportedError(
                f"'{escape(path)}' is inside '{escape(inner.name)}', which is a vector", rule="bson.path"
            )
        tree = inner
    if last in tree:
        raise UnsupportedError(f"'{escape(path)}' cannot be both a vector and a document with fields", rule="bson.path")
    before = _int32(HEAD_NBYTES + row.nbytes) + bytes((VECTOR_SUBTYPE,)) + row.head
    tree[last] = Slot(path, BINARY, before, row.nbytes)


def template(tree: Tree) -> Template:
    """Flattens the tree to parts, joining adjacent constants."""
    parts, nbytes = _document(tree)
    if nbytes > STORED_MAX_NBYTES:
        raise UnsupportedError(
            f"document of {nbytes} bytes exceeds MongoDB's limit of {STORED_MAX_NBYTES}", rule="bson.document.size"
        )
    joined: Template = []
    for part in parts:
        if joined and isinstance(part, bytes) and isinstance(joined[-1], bytes):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


def _document(tree: Tree) -> tuple[Template, int]:
    parts: Template = []
    nbytes = 5
    for name, value in tree.items():
        if isinstance(value, Slot):
            parts += [bytes((value.kind,)) + name + value.before, value]
            nbytes += 1 + len(name) + len(value.before) + value.nbytes
        else:
            inner, inner_nbytes = _document(value)
            parts += [bytes((DOCUMENT,)) + name, *inner]
            nbytes += 1 + len(name) + inner_nbytes
    return [_int32(nbytes), *parts, b"\0"], nbytes


def _int32(number: int) -> bytes:
    return (number & 0xFFFFFFFF).to_bytes(4, "little")


def stride(parts: Template) -> int:
    """Size of each document."""
    return sum(part.nbytes if isinstance(part, Slot) else len(part) for part in parts)


def weave(count: int, parts: Template, columns: Mapping[str, memoryview | bytes]) -> bytes:
    """Encodes `count` documents, filling slots from the columns of the same names."""
    nbytes = stride(parts)
    if any(isinstance(part, Slot) and len(columns[part.name]) != count * part.nbytes for part in parts):
        raise InputError("a column needs one row for each document", rule="bson.weave")
    target = bson_rows.blank(count * nbytes)
    _use_huge_pages(target)
    block = max(1, _BLOCK_NBYTES // nbytes)
    run = block * _BLOCKS

    def weave_run(begin: int) -> None:
        end = min(begin + run, count)
        for first in range(begin, end, block):
            _weave_block(target, nbytes, first, min(first + block, end), parts, columns)

    for_each(weave_run, range(0, count, run))
    return bytes(target)


def _weave_block(
    target: bytes | bytearray,
    nbytes: int,
    first: int,
    last: int,
    parts: Sequence[bytes | Slot],
    columns: Mapping[str, memoryview | bytes],
) -> None:
    at = 0
    for part in parts:
        data, size = (columns[part.name], part.nbytes) if isinstance(part, Slot) else (part, len(part))
        bson_rows.scatter(target, at, nbytes, first, last, data, size)
        at += size


def _use_huge_pages(target: bytes | bytearray) -> None:
    """Requests huge pages for large memory: page faults on small pages cost more than filling it."""
    if len(target) < _LARGE_NBYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    import ctypes

    address = int(np.frombuffer(target, np.uint8).__array_interface__["data"][0])
    page = mmap.PAGESIZE
    begin, end = -(-address // page) * page, (address + len(target)) // page * page
    ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_HUGEPAGE)
