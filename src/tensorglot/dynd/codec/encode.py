"""Values to bytes.

One run of the kernel measures, another writes; both walk the same program. So a value
is written into memory of exactly its size, or passes through a small buffer piece by
piece. Memory that is already in serialized form is passed on without a copy.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd.codec.packing import packed_bytes
from tensorglot.dynd.codec.program import program_for
from tensorglot.dynd.schema import Kind
from tensorglot.dynd.value import Lists, Value
from tensorglot.errors import InputError
from tensorglot.kernels import varints as kernel
from tensorglot.kernels.varint_encode import Encoder, Given
from tensorglot.model.types.algebra import Merkle, Type
from tensorglot.model.types.text import text_of

__all__ = ["encode", "measure", "pieces", "type_header", "varint"]

PIECE_NBYTES = 4 << 20

_EMPTY = np.empty(0, np.uint8)
_REFUSALS = {
    kernel.MORE: ("dynd.size", "the value is too large, or changed while it was written"),
    kernel.RANGE: ("dynd.range", "a list or an option refers to elements that do not exist"),
    kernel.UTF8: ("dynd.utf8", "a char is not a valid code point"),
}


def measure(value: Value) -> int:
    """The number of bytes of a value."""
    flat = _flat(value)
    return _Writer(value).run(None) if flat is None else len(flat)


def encode(value: Value) -> NDArray[np.uint8]:
    """All bytes of a value, in new memory."""
    flat = _flat(value)
    if flat is not None:
        return flat.copy()
    writer = _Writer(value)
    out = np.empty(writer.run(None), np.uint8)
    writer.run(out)
    return out


def pieces(value: Value) -> Iterator[NDArray[np.uint8]]:
    """The bytes of a value, in pieces; later pieces do not overwrite earlier ones."""
    flat = _flat(value)
    if flat is None:
        yield from _Writer(value).pieces()
    else:
        yield flat


def type_header(type: Type) -> bytes:
    """The bytes before the data in an `array[T]`: the type, as a string."""
    text = text_of(type).encode("ascii")
    return varint(len(text)) + text


def varint(number: int) -> bytes:
    """A count or a length."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _flat(value: Value) -> NDArray[np.uint8] | None:
    """The bytes of a value whose memory is already in serialized form; None for all others."""
    root = value.plan.root
    return packed_bytes(value, root, 1) if root.nbytes is not None else None


class _Writer:
    def __init__(self, value: Value) -> None:
        self.value = value
        counts = value.counts()
        if counts[0] < 1:
            raise InputError("the columns are empty: there is no value to serialize", rule="dynd.range")
        # Parents first: a node whose values are packed in memory is copied as one block, and the nodes
        # inside it (`inside`) need no program.
        blocks: dict[int, NDArray[np.uint8]] = {}
        inside: set[int] = set()
        indexed = set()
        for node in value.plan.nodes:
            if node.id in inside:
                inside.update(child.id for child in node.children)
            elif node.nbytes is not None and (raw := packed_bytes(value, node, counts[node.id])) is not None:
                blocks[node.id] = raw
                inside.update(child.id for child in node.children)
            elif node.kind is Kind.OPTION and node.atom is not None and value.index(node) is not None:
                indexed.add(node.id)
        self.program = program_for(value.plan, frozenset(blocks), frozenset(indexed))
        columns = [Given(_EMPTY)] * (2 * len(self.program.ops))
        for op in self.program.ops:
            column = value.columns[op.node.id]
            if op.code == kernel.BLOCK:
                columns[op.column] = Given(blocks[op.node.id])
            elif isinstance(column, Lists):
                columns[op.column] = Given(_positions(column.starts))
                columns[op.column + 1] = Given(_positions(column.stops))
            elif op.code in (kernel.OPTION, kernel.SENTINEL) and isinstance(column, np.ndarray):
                columns[op.column] = Given(_positions(column))
                sentinel = op.node.atom.sentinel if op.node.atom else None
                columns[op.column + 1] = Given(np.frombuffer(sentinel or b"", np.uint8))
            elif op.code == kernel.CHAR and isinstance(column, np.ndarray):
                columns[op.column] = Given(np.ascontiguousarray(column, np.uint32))
        limits = np.array([counts[op.node.id] for op in self.program.ops], np.int64)
        self.kernel = Encoder(self.program.to_encode, columns, limits, self.program.depth)

    def run(self, out: NDArray[np.uint8] | None) -> int:
        """Writes the value to `out`, memory of exactly its size; without it, only counts the bytes."""
        at = 0
        self.kernel.start()
        while True:
            answer, nbytes = self.kernel.run(_EMPTY if out is None else out[at:], out is None)
            at += nbytes
            if answer == kernel.DONE:
                return at
            head, box = self.box(answer)
            flat = _flat(box)
            if out is not None:
                out[at : at + len(head)] = np.frombuffer(head, np.uint8)
            at += len(head)
            if flat is None:
                at += _Writer(box).run(None if out is None else out[at:])
            else:
                if out is not None:
                    out[at : at + len(flat)] = flat
                at += len(flat)

    def pieces(self) -> Iterator[NDArray[np.uint8]]:
        buffer = np.empty(PIECE_NBYTES, np.uint8)
        self.kernel.start()
        while True:
            answer, nbytes = self.kernel.run(buffer, False)
            if nbytes > PIECE_NBYTES // 2:  # hand over the buffer; copying is cheaper only for small pieces
                yield buffer[:nbytes]
                buffer = np.empty(PIECE_NBYTES, np.uint8)
            elif nbytes:
                yield buffer[:nbytes].copy()
            if answer == kernel.DONE:
                return
            if answer != kernel.MORE:
                head, box = self.box(answer)
                yield np.frombuffer(head, np.uint8)
                yield from pieces(box)

    def box(self, answer: int) -> tuple[bytes, Value]:
        """The value in an `array[T]` or `merkle[T]` that the kernel has reached, and the type to write before it."""
        if answer != kernel.HELP:
            rule, message = _REFUSALS[answer]
            raise InputError(message, rule=rule)
        column, position = self.kernel.request()
        node = self.program.ops[column // 2].node
        box = self.value.boxes(node)[position]
        type = box.plan.type
        if isinstance(node.type, Merkle) and isinstance(type, Merkle):
            type = type.element
        return type_header(type), box


def _positions(column: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.ascontiguousarray(column, np.int64)
