"""The order of the pairs of a `map[K, V]`: by their serialized keys, none twice.

Serialized keys are compared bytewise (docs/dynd-format.md, "The bytes of a value"). Keys of
1, 2, 4 and 8 bytes are compared as big-endian integers, which have that order; all others
as byte strings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import prefix_sums
from tensorglot.dynd.codec.encode import encode, varint
from tensorglot.dynd.codec.packing import packed_bytes
from tensorglot.dynd.schema import Kind, Node, plan_of
from tensorglot.dynd.value import Lists, Value, lists_of_sizes, subtree, take
from tensorglot.model.types.algebra import Bytes, Map, String

__all__ = ["first_disorder", "sort_maps"]

Keys: TypeAlias = "NDArray[np.uint64] | list[bytes]"


def _is_map(node: Node) -> bool:
    return node.kind is Kind.LIST and isinstance(node.type, Map)


def sort_maps(value: Value) -> Value:
    """The value with the pairs of all its maps sorted."""
    for node in value.plan.inside_out():  # a map in a key is sorted before that key is compared
        if _is_map(node):
            value = _sort(value, node)
    return value


def first_disorder(value: Value, node: Node) -> int | None:
    """The first map of a node whose keys are out of order or repeated; None if all are valid, or it has no maps."""
    if not _is_map(node):
        return None
    lists, keys = value.lists(node), _keys(value, node)
    if isinstance(keys, np.ndarray):
        # falls[i]: key i + 1 is not greater than key i. A map is in order if no fall lies between its
        # first and its last key: the prefix sums at both are equal.
        falls = np.append(keys[1:] <= keys[:-1], False)
        falls_before = prefix_sums(falls)
        last = np.maximum(lists.stops - 1, lists.starts)
        bad = (lists.stops > lists.starts) & (falls_before[last] > falls_before[lists.starts])
        return int(np.argmax(bad)) if bad.any() else None
    for row, (start, stop) in enumerate(_spans(lists)):
        if any(keys[i] >= keys[i + 1] for i in range(start, stop - 1)):
            return row
    return None


def _spans(lists: Lists) -> Iterator[tuple[int, int]]:
    return zip(lists.starts.tolist(), lists.stops.tolist(), strict=True)


def _sort(value: Value, node: Node) -> Value:
    if first_disorder(value, node) is None:
        return value
    keys = _keys(value, node)
    ranked = keys.tolist() if isinstance(keys, np.ndarray) else keys
    order = [i for start, stop in _spans(value.lists(node)) for i in sorted(range(start, stop), key=ranked.__getitem__)]
    lists = value.lists(node)
    columns = list(value.columns)
    columns[node.id] = lists_of_sizes(lists.stops - lists.starts, len(lists.starts))
    pairs = take(node.child, value.columns, np.array(order, np.int64))
    for inner, column in zip(subtree(node.child), pairs, strict=True):
        columns[inner.id] = column
    return Value(value.plan, tuple(columns))


def _keys(value: Value, node: Node) -> Keys:
    """The keys of all maps of a node, in a form that compares as their bytes do."""
    key = node.child.children[0]
    count = int(value.lists(node).stops.max(initial=0))
    if key.nbytes == 0:
        return [b""] * count
    if key.nbytes is not None:
        raw = packed_bytes(value, key, count)
        if raw is not None and key.nbytes in (1, 2, 4, 8):
            return raw.view(f">u{key.nbytes}").astype(np.uint64)
        if raw is not None:
            data = raw.tobytes()
            return [data[at : at + key.nbytes] for at in range(0, len(data), key.nbytes)]
    if key.kind is Kind.LIST and isinstance(key.type, String | Bytes):
        lists, data = value.lists(key), np.ascontiguousarray(value.array(key.child)).tobytes()
        return [varint(stop - start) + data[start:stop] for start, stop in list(_spans(lists))[:count]]
    plan = plan_of(key.type)
    rows = (take(key, value.columns, slice(row, row + 1)) for row in range(count))
    return [encode(Value(plan, tuple(columns))).tobytes() for columns in rows]
