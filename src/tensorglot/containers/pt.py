"""Files of `torch.save` (`.pt`, `.pth`, `.bin`): a pickle of the saved value, and the storages of its tensors.

Read, not written, and never executed: see `torchsave`. Tensors may share storages and have
strides.

The name of a tensor is the keys that lead to it, joined by dots: `model.layer.weight`,
`optimizer.state.0.exp_avg`; a single tensor is called `data`. Other values become metadata,
with names of the same form. A sparse or quantized tensor whose form has no layout here is
left out, with a note.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensorglot.containers.table import Container, ReadOptions
from tensorglot.containers.torchsave.files import Saved, open_legacy, open_zip
from tensorglot.containers.torchsave.flatten import flatten
from tensorglot.containers.torchsave.names import DTYPES
from tensorglot.containers.torchsave.parts import add_tensor
from tensorglot.containers.torchsave.views import views_index
from tensorglot.errors import FormatError, LimitError, UnsupportedError, escape, plural
from tensorglot.limits import Limits
from tensorglot.model.builder import IndexBuilder
from tensorglot.model.deferred import Outline
from tensorglot.model.index import Index, Note
from tensorglot.model.payload import Source
from tensorglot.model.repeated import check_repeated, check_shared

__all__ = ["CONTAINER"]


def read(source: Source, options: ReadOptions) -> Index:
    return _Outline(source, options).index()


def outline(source: Source, options: ReadOptions) -> Outline | None:
    found = _Outline(source, options)
    return found if found.saved.headers.far_apart else None


class _Outline:
    """The contents of the pickle. The headers before the storages, whose sizes tell where these begin, come later."""

    def __init__(self, source: Source, options: ReadOptions) -> None:
        head = source.read_bytes(0, min(4, source.size))
        self.saved = saved = open_zip(source, options) if head[:2] == b"PK" else open_legacy(source, options)
        names, tensors, metadata = flatten(saved.root, saved.pickle_nbytes)
        options.limits.check_names(names, "pt")
        index, notes = _index(names, tensors, saved, source.size, options.limits)
        notes = [*saved.notes, *notes]
        if options.strict and notes:
            raise FormatError(notes[0].message, rule=notes[0].rule)
        self.format = f"pt@{saved.version}"
        self.metadata = metadata
        self._index = replace(index, format=self.format, metadata=metadata, notes=notes)
        check_shared(self._index, source.size, options.limits, "pt")

    @property
    def names(self) -> Sequence[str]:
        return self._index.names

    def index(self, chosen: Sequence[int] | None = None) -> Index:
        index = self._index if chosen is None else self._index.take(np.array(chosen, np.int64))
        begins = sorted((span.begin, key) for key, span in self.saved.storages.items())
        which = np.searchsorted([begin for begin, _ in begins], index.begins, side="right") - 1
        used = None if chosen is None else [begins[at][1] for at in np.unique(which).tolist() if at >= 0]
        sizes = self.saved.headers.read(used)
        shifts = np.array([*(sizes.get(key, 0) for _, key in begins), 0], np.int64)[which]  # -1: bytes of the pickle
        return replace(index, begins=index.begins + shifts, ends=index.ends + shifts)


def _index(
    names: dict[str, int], tensors: list[Any], saved: Saved, stored: int, limits: Limits
) -> tuple[Index, list[Note]]:
    """The rows of tensors by their names, which have the positions of the tensors; and notes of those left out."""
    index, found, excess = views_index(tensors, saved, limits)
    chosen = np.fromiter(names.values(), np.int64, len(names))
    kept = list(names)
    notes: list[Note] = []
    if len(found) < len(tensors):
        rows = np.full(len(tensors), -1)
        rows[found] = np.arange(len(found))
        parted = len(tensors) - len(found)
        if parted > 4 * len(saved.storages) + limits.view_ratio:  # each has a storage of its own, or shares all bytes
            storages = plural(len(saved.storages), "storage")
            raise LimitError(
                f"{parted} sparse and quantized tensors share {storages} (Limits.view_ratio)", rule="pt.limit.parts"
            )
        builder = IndexBuilder(limits, "pt")
        first_names = {position: name for name, position in reversed(names.items())}
        for position in np.flatnonzero(rows < 0).tolist():
            name = first_names[position]
            try:
                excess.append(add_tensor(builder, name, tensors[position], saved, limits))
                rows[position] = len(excess) - 1
            except UnsupportedError as error:
                notes.append(Note(error.rule, f"'{escape(name)}' is left out: {error.message}"))
        index = Index.concat([index, builder.index("")], format="")
        kept = [name for name, position in names.items() if rows[position] >= 0]
        chosen = rows[chosen]
        chosen = chosen[chosen >= 0]
    if any(excess):
        repeated = list(map(excess.__getitem__, chosen.tolist()))
        most = max(zip(repeated, kept, strict=True))[1] if repeated else None
        check_repeated(sum(repeated), stored, limits, "pt", most)
    return replace(index.take(chosen), names=kept), notes


CONTAINER = Container(DTYPES, read, outline=outline)
