"""The rules for the bytes of values, checked over whole columns at once.

The same rules hold for a value that was decoded and for one that is about to be
serialized; the caller decides which error to raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd.codec.packing import is_missing
from tensorglot.dynd.maps import first_disorder
from tensorglot.dynd.schema import Kind, Node, Plan
from tensorglot.dynd.temporal import bounds_of
from tensorglot.dynd.value import Column, Lists, Value
from tensorglot.errors import FormatError, LimitError
from tensorglot.kernels import utf8
from tensorglot.limits import DEFAULT, Limits
from tensorglot.model.types.algebra import FixedString, String, TypeType
from tensorglot.model.types.text import parse_canonical

__all__ = ["Fault", "first_fault", "is_valid", "repetitions"]

_COMPARED_NBYTES = 64 << 10
"""Values up to this size are checked byte by byte: more bytes than that are in few columns, for the size of a type."""
# CIDv1, codec raw (55) or DAG-CBOR (71), BLAKE3 (1e), 32 bytes of digest: docs/dynd-format.md, "CIDs".
_CID_HEADS = (bytes.fromhex("01551e20"), bytes.fromhex("01711e20"))


@dataclass(frozen=True, slots=True)
class Fault:
    """A broken rule, at a row of a node's column and a byte within that row."""

    node: Node
    row: int
    byte: int
    rule: str
    message: str
    limit: bool = False
    """Whether a limit of the reader is exceeded, not a rule of the format broken."""

    def error(self, offset: int | None = None) -> FormatError:
        return (LimitError if self.limit else FormatError)(self.message, rule=self.rule, offset=offset)


def is_valid(plan: Plan, data: memoryview) -> bool:
    """Whether bytes are a value of a type in which every byte has a range of its own; False also where that is unknown.

    The columns of a record of thousands of fields take far longer to make than its bytes take to compare.
    """
    if plan.root.nbytes != len(data) or plan.root.charge > DEFAULT.void_count:
        return False
    greatest = _greatest_bytes(plan)
    return greatest is not None and bool((np.frombuffer(data, np.uint8) <= greatest).all())


@lru_cache(maxsize=64)
def _greatest_bytes(plan: Plan) -> NDArray[np.uint8] | None:
    """The greatest value of each byte of a value; None where bytes have other rules."""
    if plan.root.nbytes is None or plan.root.nbytes > _COMPARED_NBYTES:
        return None
    found: dict[int, NDArray[np.uint8]] = {}
    for node in plan.inside_out():
        if node.kind is Kind.BLOCK:
            if node.block.check not in ("any", "limit"):
                return None
            found[node.id] = np.full(node.nbytes or 0, (node.block.limit or 256) - 1, np.uint8)
        elif node.kind is Kind.REPEAT:
            found[node.id] = np.tile(found.pop(node.child.id), node.size)
        elif node.kind is Kind.SEQUENCE:
            inside = [found.pop(child.id) for child in node.children]
            found[node.id] = np.concatenate(inside) if inside else np.empty(0, np.uint8)
        else:
            return None
    return found[plan.root.id]


def first_fault(value: Value, limits: Limits) -> Fault | None:
    """The first broken rule of a value, or None."""
    return next(_faults(value, limits), None) or _void(value, limits)


def _void(value: Value, limits: Limits) -> Fault | None:
    """The fault of a value with more elements without bytes than a reader accepts."""
    nodes = value.plan.nodes
    charged = {
        child.id for node in nodes if node.kind in (Kind.LIST, Kind.OPTION) for child in node.children if child.charge
    }
    charges = nodes[0].charge
    if charged:
        charges += sum(int(times.sum()) * node.charge for node, times in repetitions(value) if node.id in charged)
    if charges <= limits.void_count:
        return None
    message = f"{charges} values without bytes; Limits.void_count allows {limits.void_count}"
    return Fault(nodes[0], 0, 0, "dynd.void", message, limit=True)


def repetitions(value: Value) -> Iterator[tuple[Node, NDArray[np.int64]]]:
    """The nodes, parents first, and how often each of their values is serialized."""
    needs = value.needs()
    times = [np.ones(1, np.int64)] * len(needs)
    for node in value.plan.nodes:
        yield node, times[node.id]
        for child in node.children:
            times[child.id] = _child_times(node, value.columns[node.id], times[node.id], needs[child.id])


def _child_times(node: Node, column: Column, times: NDArray[np.int64], need: int) -> NDArray[np.int64]:
    if isinstance(column, Lists):
        # Lists may overlap. A list adds its count at its start and takes it away at its stop; the running
        # sum is how often each element is used.
        edges = np.zeros(need + 1, np.int64)
        np.add.at(edges, column.starts[: len(times)], times)
        np.add.at(edges, column.stops[: len(times)], -times)
        return np.cumsum(edges[:-1])
    if node.kind is Kind.OPTION and isinstance(column, np.ndarray):
        counts = np.zeros(need, np.int64)
        present = column[: len(times)] >= 0
        np.add.at(counts, column[: len(times)][present], times[present])
        return counts
    return np.repeat(times, node.size) if node.kind is Kind.REPEAT else times


# docs/dynd-format.md, "Refused when reading": one function below for each rule about values.
def _faults(value: Value, limits: Limits) -> Iterator[Fault]:
    for node in value.plan.nodes:
        if node.kind is Kind.BLOCK and node.block.check != "any":
            yield from _CHECKS[node.block.check](node, value.array(node))
        elif node.kind is Kind.LIST and isinstance(node.type, String):
            yield from _texts(node, value)
        elif node.kind is Kind.LIST and isinstance(node.type, TypeType):
            yield from _types(node, value, limits)
        elif (row := first_disorder(value, node)) is not None:
            yield Fault(
                node, row, 0, "dynd.map", "the keys of a map must be unique, in the order of their serialized bytes"
            )
        elif node.kind is Kind.OPTION and node.atom is not None:
            yield from _sentinels(node, value)
        elif node.kind is Kind.CHAR:
            yield from _codes(node, value.array(node))


def _limit(node: Node, values: NDArray[Any]) -> Iterator[Fault]:
    atom, raw = node.block, values.view(np.uint8)
    if raw.size and raw.max() >= atom.limit:
        first = int(np.argmax(raw >= atom.limit))
        yield _fault_in(node, first, f"dynd.{atom.row.name}", f"a byte is not a valid {atom.row.name}")


def _range(node: Node, values: NDArray[Any]) -> Iterator[Fault]:
    """Times within a day, decimals within their digits."""
    atom = node.block
    low, end = bounds_of(atom.type)
    if atom.tail:
        words = np.ascontiguousarray(values).reshape(-1, 16).view("<u8")
        bad = _is_below(words, low) | ~_is_below(words, end)
    else:
        flat = np.ascontiguousarray(values).reshape(-1)
        bad = (flat < low) | (flat >= end)
    if atom.optional:
        bad &= ~is_missing(node, values)
    if bad.any():
        yield _fault_in(node, int(np.argmax(bad)), f"dynd.{atom.check}", f"a number is out of range for {atom.type}")


def _fault_in(node: Node, number: int, rule: str, message: str) -> Fault:
    """A fault of element `number` of a BLOCK, counted through all of its values."""
    row, element = divmod(number, node.size)
    return Fault(node, row, element * node.block.nbytes, rule, message)


def _is_below(words: NDArray[np.uint64], end: int) -> Any:
    """Which 128-bit integers, given as low and high half, are less than `end`."""
    # The high halves decide, as signed integers; if they are equal, the low halves, as unsigned ones.
    low, high = words[:, 0], words[:, 1].view(np.int64)
    return (high < end >> 64) | ((high == end >> 64) & (low < np.uint64(end & ((1 << 64) - 1))))


def _cid(node: Node, values: NDArray[Any]) -> Iterator[Fault]:
    heads = values[..., :4].reshape(-1, 4)
    good = np.zeros(len(heads), np.bool_)
    for head in _CID_HEADS:
        good |= (heads == np.frombuffer(head, np.uint8)).all(axis=1)
    if not good.all():
        yield _fault_in(node, int(np.argmin(good)), "dynd.merkle", "a link is not a CIDv1 with a BLAKE3-256 hash")


def _fixed_text(node: Node, values: NDArray[Any]) -> Iterator[Fault]:
    kind = node.block.type
    assert isinstance(kind, FixedString)  # noqa: S101
    raw = np.ascontiguousarray(values).reshape(-1, kind.nbytes)
    for bad, rule, message in _text_faults(kind, raw):
        yield _fault_in(node, bad, rule, message)


def _text_faults(kind: FixedString, raw: NDArray[np.uint8]) -> Iterator[tuple[int, str, str]]:
    """The first row of `raw` with data after a NUL, and the first that is invalid in the encoding."""
    units = raw.view({1: "u1", 2: "<u2", 4: "<u4"}[kind.nbytes // kind.size])
    full = units != 0
    bad = (full[:, 1:] & ~full[:, :-1]).any(axis=1)
    if bad.any():
        yield int(np.argmax(bad)), "dynd.fixed_string.nul", "a fixed_string has data after its first NUL"
    if kind.encoding == "utf8":
        # All rows in one pass: valid as a whole, and no character continues across the edge of a row.
        at = utf8.first_invalid(raw.reshape(-1), 0, raw.size)
        split = utf8.first_split(raw.reshape(-1), np.arange(len(raw)) * kind.nbytes)
        bad = np.zeros(len(raw), np.bool_)
        bad[[at // kind.nbytes] if at != utf8.OK else [split] if split != utf8.OK else []] = True
    elif kind.encoding == "ascii":
        bad = (units >= 128).any(axis=1)
    else:
        bad = _bad_units(units, wide=kind.encoding == "utf32")
    if bad.any():
        yield int(np.argmax(bad)), "dynd.utf8", f"a fixed_string is not valid {kind.encoding}"


def _bad_units(units: NDArray[Any], *, wide: bool) -> Any:
    if wide:
        return _no_code_point(units).any(axis=1)
    # UTF-16: a high surrogate must be followed by a low one, and a low one follows a high one.
    high = (units >= 0xD800) & (units < 0xDC00)
    low = (units >= 0xDC00) & (units < 0xE000)
    return np.any(high[:, :-1] != low[:, 1:], axis=1) | low[:, 0] | high[:, -1]


def _texts(node: Node, value: Value) -> Iterator[Fault]:
    lists, data = value.lists(node), np.ascontiguousarray(value.array(node.child))
    starts, stops = np.ascontiguousarray(lists.starts), np.ascontiguousarray(lists.stops)
    if len(starts) == 0 or utf8.is_ascii(data, 0, len(data)):
        return
    # Adjacent strings are checked in one pass, as one text that no character crosses the edges of. Only if
    # that fails, or the strings have gaps, each is checked alone.
    if np.array_equal(starts[1:], stops[:-1]) and starts[0] >= 0:
        at = utf8.first_invalid(data, int(starts[0]), max(int(starts[0]), int(stops[-1])))
        if at == utf8.OK and utf8.first_split(data, starts) == utf8.OK:
            return
    row = utf8.first_invalid_text(data, starts, stops)
    if row != utf8.OK:
        yield Fault(node.child, int(starts[row]), 0, "dynd.utf8", "a string is not valid UTF-8")


def _no_code_point(codes: NDArray[Any]) -> Any:
    """Which numbers are beyond Unicode, or surrogates."""
    return (codes > 0x10FFFF) | ((codes >= 0xD800) & (codes < 0xE000))


def _codes(node: Node, codes: NDArray[Any]) -> Iterator[Fault]:
    bad = _no_code_point(codes)
    if bad.any():
        yield Fault(node, int(np.argmax(bad)), 0, "dynd.utf8", "a char is not a valid code point")


def _types(node: Node, value: Value, limits: Limits) -> Iterator[Fault]:
    lists, data = value.lists(node), np.ascontiguousarray(value.array(node.child)).tobytes()
    first: dict[bytes, int] = {}  # a text that occurs often is parsed once
    for start, stop in zip(lists.starts.tolist(), lists.stops.tolist(), strict=True):
        first.setdefault(data[start:stop], start)
    for text, start in first.items():
        try:
            parse_canonical(text.decode("ascii", "replace"), limits)
        except FormatError as error:
            yield Fault(node.child, start, 0, error.rule, error.message, isinstance(error, LimitError))


def _sentinels(node: Node, value: Value) -> Iterator[Fault]:
    """A present value must not have the bits of the sentinel; without an index, the sentinel means missing."""
    index = value.index(node)
    if index is None or node.atom is None or not node.atom.sentinel:
        return
    hits = np.flatnonzero(is_missing(node, value.array(node.child)))
    if hits.size and (taken := hits[np.isin(hits, index, kind="table")]).size:
        yield Fault(node.child, int(taken[0]), 0, "dynd.sentinel", "a value has the bits of a missing value")


_CHECKS: dict[str, Callable[[Node, NDArray[Any]], Iterator[Fault]]] = {
    "time": _range,
    "decimal": _range,
    "limit": _limit,
    "cid": _cid,
    "text": _fixed_text,
}
