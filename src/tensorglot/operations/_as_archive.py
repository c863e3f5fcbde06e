"""Turns what a caller passes into an archive: `as_archive` for reading, `collect` for saving.

`coerce` turns each value into a tensor; nothing after it looks at the kind of a value
again. If all values are plain arrays, which is the usual case, the columns of the index
are computed at once and no Tensor is created. Modules that only other values need are
imported when there is such a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from tensorglot.arguments import check_mapping
from tensorglot.errors import InputError, UnsupportedError, escape
from tensorglot.kernels.ndarrays import describe
from tensorglot.limits import DEFAULT, Limits
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import dtype_of
from tensorglot.model.index import Index
from tensorglot.model.names import check_name
from tensorglot.model.payload import Memory
from tensorglot.model.tensor import Tensor
from tensorglot.operations.open import ArchiveLike, OpenOptions, open_source
from tensorglot.providers import provided

__all__ = ["MEMORY", "TensorsLike", "as_archive", "collect", "flatten", "named_tensor"]

TensorsLike: TypeAlias = "ArchiveLike | Mapping[str, Any]"
"""A source of other verbs: the same, or values by their names."""

MEMORY = "memory"
"""The format of an archive in memory."""
_USUAL_RANK = 4
"""Dims of an array for which there is room at first."""


def as_archive(source: TensorsLike, options: OpenOptions = OpenOptions()) -> AbstractContextManager[Archive]:  # noqa: B008
    """The archive of a source that `locate` has returned. A file opened here is closed; the caller's Archive is not."""
    if isinstance(source, Archive):
        return nullcontext(source)
    return nullcontext(collect(source)) if isinstance(source, Mapping) else open_source(source, options)


def collect(
    tensors: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    attributes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Archive:
    """Named values, or an archive, as an archive. Metadata and attributes override those of an archive."""
    if isinstance(tensors, Archive):
        return tensors.with_index(_revise(tensors.index, metadata, attributes))
    if not isinstance(tensors, Mapping):
        instead = "its state_dict()" if hasattr(tensors, "state_dict") else "{'name': value}"
        raise InputError(
            f"tensors must be a mapping from names to values, not {type(tensors).__name__}: pass {instead}",
            rule="save.tensors",
        )
    index = _index_of_arrays(tensors)
    if index is None:
        from tensorglot.model.builder import IndexBuilder

        builder = IndexBuilder(Limits(tensors=len(tensors)), "save")
        for name, value in tensors.items():
            builder.add_tensor(named_tensor(name, value))
        index = builder.index(MEMORY)
    return Archive(_revise(index, metadata, attributes), None)


def _revise(
    index: Index, metadata: Mapping[str, Any] | None, attributes: Mapping[str, Mapping[str, Any]] | None
) -> Index:
    if metadata is not None:
        index = replace(index, metadata=metadata)
    if attributes is not None:
        check_mapping(attributes, "attributes", "save.attributes")
        for name, fields in attributes.items():
            check_mapping(fields, "attributes of a tensor", "save.attributes", name)
        for name in attributes.keys() - index.positions.keys():
            raise InputError("attributes name a tensor that is not being saved", rule="save.attributes", tensor=name)
        given = {index.positions[name]: fields for name, fields in attributes.items()}
        described = given.keys() & index.layouts.keys()
        if described:
            from tensorglot.model.layouts import replace_attributes
        for position in described:
            layout, own = index.layouts[position].name, index.attributes.get(position, {})
            given[position] = replace_attributes(layout, own, given[position], index.names[position])
        index = replace(index, attributes={**index.attributes, **given}, cids=None)
    return index


def named_tensor(name: str, value: Any) -> Tensor:
    """One value as a tensor."""
    check_name(name)
    if isinstance(value, Mapping) and provided("bridges.find")(value) is None:  # a sparse matrix may be a dict
        raise InputError(
            "the value is a mapping: tg.flatten(tensors) makes each of its values a tensor with a dotted name, "
            "tg.dynd.array(value) makes it one record",
            rule="save.mapping",
            tensor=name,
        )
    from tensorglot.dynd.coerce.anything import coerce

    return coerce(value, name=name)


def flatten(tensors: Mapping[str, Any], separator: str = ".") -> dict[str, Any]:
    """Nested mappings and lists as one mapping, the keys joined: `{"model": {"w": w}}` becomes `{"model.w": w}`.

    A list or tuple is one value, unless it contains a mapping or an array: then its items get numbers for names.
    """
    check_mapping(tensors, "tensors", "flatten.tensors")
    flat: dict[str, Any] = {}
    stack: list[tuple[str, Any, Iterator[tuple[Any, Any]]]] = [("", tensors, iter(tensors.items()))]
    while stack:
        prefix, _, items = stack[-1]
        for key, value in items:
            name = str(key) if type(key) is int else key
            check_name(name)
            full = f"{prefix}{name}"
            if _has_leaves(value):
                if any(value is outer for _, outer, _ in stack):
                    raise InputError("a container contains itself", rule="flatten.cycle", tensor=full)
                pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
                stack.append((f"{full}{separator}", value, iter(pairs)))
                break
            if full in flat:
                raise InputError(f"two values would get the name '{escape(full)}'", rule="flatten.name", tensor=full)
            flat[full] = value
        else:
            stack.pop()
    return flat


def _has_leaves(value: Any) -> bool:
    """Whether a value is a mapping, or a list or tuple with a mapping or an array somewhere in it."""
    if isinstance(value, Mapping):
        return True
    stack, seen = [value] if isinstance(value, (list, tuple)) else [], set()
    while stack:
        for item in stack.pop():
            if isinstance(item, Mapping) or getattr(item, "shape", None):
                return True
            if isinstance(item, (list, tuple)) and id(item) not in seen:
                seen.add(id(item))
                stack.append(item)
    return False


@cache
def _plain_code(dtype: np.dtype[Any]) -> int:
    """The code of an element type whose memory is stored unchanged; -1 for any other.

    That is a type that is little-endian, not packed, and valid with any bits, so not a bool.
    """
    try:
        row = dtype_of(dtype)
    except UnsupportedError:
        return -1
    return -1 if row.packed or row.name == "bool" or dtype.newbyteorder("<") != dtype else row.code


def _index_of_arrays(tensors: Mapping[str, Any]) -> Index | None:
    """All columns at once if every value is a plain array, else None."""
    names, values = list(tensors), list(tensors.values())
    if set(map(type, values)) != {np.ndarray} or set(map(type, names)) != {str}:
        return None
    columns = describe(values, _plain_code, _USUAL_RANK * len(values))
    if isinstance(columns, int):
        columns = describe(values, _plain_code, columns)
    if columns is None:
        return None
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        return None
    if 4 * max(map(len, names)) > DEFAULT.name_nbytes:  # no character takes more than 4 bytes
        for name in names:
            check_name(name)
    dtypes, dims, dim_offsets, sizes, scattered = columns
    payloads: list[Any] = values
    for row in scattered:
        payloads[row] = Memory(values[row])
    return Index(
        format=MEMORY,
        names=names,
        dtypes=dtypes,
        dims=dims,
        dim_offsets=dim_offsets,
        begins=np.zeros(len(values), np.int64),
        ends=sizes,
        payloads=payloads,
    )
