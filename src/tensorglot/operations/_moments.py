"""Sums over blocks of float64 that neither overflow nor cancel: mean, deviation, norms.

Within a block, values are summed pairwise, relative to the block's mean; those too large
or too small to be squared are scaled by a power of two. Blocks are merged by Chan's
formula in decimals of 50 digits.
"""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DIGITS", "PLAIN_EXPONENTS", "Moments", "sum_magnitudes"]

DIGITS = decimal.Context(prec=50)
PLAIN_EXPONENTS = range(-400, 400)
"""Exponents of values whose squares can be summed in float64."""


@dataclass(slots=True)
class Moments:
    """Count, sum, and sum of squared deviations from the mean."""

    count: int = 0
    total: Decimal = Decimal(0)
    deviations: Decimal = Decimal(0)

    def add(self, values: NDArray[np.float64], origin: int = 0) -> None:
        """Adds `values + origin`; all finite, at least one."""
        count = len(values)
        values, scale = _scale(values)
        # Two passes: relative to an approximate mean, whose error `rest` corrects, nothing cancels.
        center = float(values.mean())
        apart = values - center
        rest = float(apart.sum())
        np.square(apart, out=apart)
        deviations = max(0.0, float(apart.sum()) - rest * rest / count)
        with decimal.localcontext(DIGITS):
            total = (Decimal(center) * count + Decimal(rest)) * scale + origin * count
            self._merge(count, total, Decimal(deviations) * scale * scale)

    def _merge(self, count: int, total: Decimal, deviations: Decimal) -> None:
        if self.count:
            apart = total / count - self.total / self.count
            deviations += apart * apart * self.count * count / (self.count + count)
        self.count += count
        self.total += total
        self.deviations += deviations

    @property
    def mean(self) -> float:
        return float(DIGITS.divide(self.total, self.count))

    @property
    def variance(self) -> Decimal:
        return DIGITS.divide(self.deviations, self.count)

    @property
    def squares(self) -> Decimal:
        """The sum of the squared values."""
        with decimal.localcontext(DIGITS):
            return self.deviations + self.total * self.total / max(1, self.count)


def sum_magnitudes(values: NDArray[Any]) -> Decimal:
    """The sum of the absolute values: real or complex, all finite, at least one."""
    scaled, scale = _scale(values.view(np.float64))
    return DIGITS.multiply(Decimal(float(np.abs(scaled.view(values.dtype)).sum())), scale)


def _scale(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], Decimal]:
    """Values whose squares can be summed, and the factor that gives back the originals."""
    exponent = math.frexp(max(-float(values.min()), float(values.max())))[1]
    if exponent in PLAIN_EXPONENTS:
        return values, Decimal(1)
    return np.ldexp(values, -exponent), DIGITS.power(2, exponent)
