"""The views of storages as an index, in columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorglot.containers.torchsave.files import Saved
from tensorglot.containers.torchsave.names import DTYPES, ITEMSIZES, ElementType, View
from tensorglot.kernels.pickle_views import view_rows
from tensorglot.limits import Limits
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import UNKNOWN, Index, shape_columns
from tensorglot.model.strided import Strided

__all__ = ["views_index"]

_PAIRS, _PAIRS_CODE = "torch.float4_e2m1fn_x2", UNKNOWN - 1
"""An element is two of ours, if they are in order; and what stands for it until that is known."""
_KNOWN = {
    **{name: (BY_NAME[ours].code, ElementType(name).itemsize) for name, ours in DTYPES.items()},
    **{name: (UNKNOWN, itemsize) for name, itemsize in ITEMSIZES.items()},
    _PAIRS: (_PAIRS_CODE, 1),
}
"""By the name of an element type: the code of ours, and the bytes of an element."""


def views_index(tensors: list[Any], saved: Saved, limits: Limits) -> tuple[Index, list[int], list[int]]:
    """The index of the views among tensors, without names; the position of each row's view, and by how many bytes the
    row exceeds its bytes in the file. There is no row for a view that breaks a rule, or is as large as that."""
    columns: tuple[list[Any], ...] = tuple([] for _ in range(7))
    strided: list[int] = []
    view_rows(tensors, View, saved.storages, _KNOWN, limits.rank, columns, strided)
    positions, codes, widths, counts, begins, ends, crcs = columns
    held: list[View] = [tensors[at] for at in positions]
    dims, offsets = shape_columns([view.shape for view in held])
    dtypes = np.array(codes, np.uint8)
    firsts, lasts = np.array(begins, np.int64), np.array(ends, np.int64)
    sizes = np.array(counts, np.int64) * np.array(widths, np.int64)
    pairs = (dtypes == _PAIRS_CODE) & (offsets[1:] > offsets[:-1])
    pairs[strided] = False
    dtypes[pairs] = BY_NAME[DTYPES[_PAIRS]].code
    dims[offsets[1:][pairs] - 1] *= 2
    unknown = {at: held[at].dtype.name for at in np.flatnonzero(dtypes >= _PAIRS_CODE).tolist()}
    dtypes[list(unknown)] = UNKNOWN
    checked = any(crc is not None for crc in crcs)
    forms = {at: (held[at].shape, held[at].strides, widths[at]) for at in strided if at not in unknown}
    known = {form: _strided(*form) for form in set(forms.values())}
    codecs = {at: known[form] for at, form in forms.items()}
    index = Index(
        format="",
        names=[""] * len(held),
        dtypes=dtypes,
        dims=dims,
        dim_offsets=offsets,
        begins=firsts,
        ends=lasts,
        checksums=[None if crc is None else f"crc32:0x{crc:08X}" for crc in crcs] if checked else None,
        checksums_decoded=np.ones(len(held), np.bool_) if checked else None,
        codecs=codecs,
        decoded_nbytes=dict(zip(codecs, sizes[list(codecs)].tolist(), strict=True)),
        big_endian=frozenset(at for at, width in enumerate(widths) if width > 1) if saved.big_endian else frozenset(),
        unknown_dtypes=unknown,
    )
    return index, positions, np.maximum(sizes - (lasts - firsts), 0).tolist()


def _strided(shape: tuple[int, ...], strides: tuple[int, ...], width: int) -> Strided:
    return Strided(shape, tuple(stride * width for stride in strides), width)
