"""Finds where values end, without decoding them: no plan is made of their types, and no bytes are checked."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd.codec.decode import BOX_DEPTH, depth_error, leading_type, refusal
from tensorglot.dynd.codec.inputs import Input
from tensorglot.dynd.schema import HUGE, void_error
from tensorglot.dynd.sizes import KERNEL_WORDS, Sizes
from tensorglot.errors import FormatError
from tensorglot.kernels import skip_values, type_rows, type_sizes
from tensorglot.kernels import varints as kernel
from tensorglot.limits import Limits
from tensorglot.model.types import rows as types
from tensorglot.model.types.temporal import DIGITS_MAX

__all__ = ["skip"]


def skip(source: Input, rows: types.Rows, sizes: Sizes, roots: NDArray[np.int64], limits: Limits) -> list[int]:
    """Skips values of types, which are rows. Returns the offset of the end of each."""
    if sizes.charge[roots].max(initial=0) > limits.void_count:
        raise void_error(limits)
    ends = np.zeros(len(roots), np.int64)
    depth = min(limits.type_depth, BOX_DEPTH)
    reader = type_rows.Reader(types.KERNEL_WORDS, DIGITS_MAX, limits.type_depth, limits.rank)
    skipper = skip_values.Skipper(
        rows.columns.reshape(-1),
        sizes.columns.reshape(-1),
        len(rows.code),
        roots,
        ends,
        (reader, type_sizes.Sizes(KERNEL_WORDS)),
        limits.type_nbytes,
        depth,
        min(len(roots) * limits.void_count, HUGE),
        limits.void_count,
    )
    while True:
        answer, source.at = skipper.run(source.window, source.at, source.base, source.beyond)
        if answer == kernel.DONE:
            return ends.tolist()
        if answer == kernel.MORE:
            source.more(skipper.needed())
            continue
        at = source.base + source.at
        if answer == kernel.DEPTH:
            raise depth_error(depth, at)
        if answer == kernel.TYPE:
            text = str(leading_type(source, limits))  # raises, unless what is wrong is that it has no values
            raise FormatError(f"{text:.60} is symbolic: no value has this type", rule="dynd.symbolic", offset=at)
        raise refusal(answer, limits, at)
