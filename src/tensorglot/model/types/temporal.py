"""Time and money: `date`, `time`, `timedelta`, `datetime` and `decimal`, as NumPy and Arrow have them.

The value of each is an integer: days or units since 1970-01-01, units since midnight,
units of a duration, or an integer to be multiplied by 10^-S. `tensorglot.dynd.temporal`
converts values.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensorglot.model.types.base import Type, has_surrogate, quote_text, refuse

__all__ = ["DIGITS_MAX", "PER_SECOND", "Date", "DateTime", "Decimal", "Time", "TimeDelta", "Unit"]

PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""The units, and how many of each a second has."""
DIGITS_MAX = 38
"""The digits that 16 bytes hold."""


class Date(Type):
    """`date`: days since 1970-01-01, an int32."""

    template = "date"


class Unit(Type):
    """The base class of types whose values count units of time, as int64."""

    unit: str

    def __post_init__(self) -> None:
        if self.unit not in PER_SECOND:
            raise refuse(f"unknown unit {self.unit!r:.20} (supported: {', '.join(map(repr, PER_SECOND))})", "unit")

    @property
    def per_second(self) -> int:
        return PER_SECOND[self.unit]


class Time(Unit):
    """`time['us']`: units since midnight, less than a day."""

    template = "time['{unit}']"


class TimeDelta(Unit):
    """`timedelta['us']`: a duration."""

    template = "timedelta['{unit}']"


class DateTime(Unit):
    """`datetime['us']`: units since 1970-01-01T00:00, by a local clock; with a time zone, since then in UTC."""

    tz: str | None = None

    def __post_init__(self) -> None:
        Unit.__post_init__(self)
        if self.tz is not None and (not self.tz or has_surrogate(self.tz)):
            raise refuse("a time zone must be a name without lone surrogates", "tz")

    def pieces(self) -> Iterator[str | Type]:
        yield f"datetime['{self.unit}'" + ("]" if self.tz is None else f", tz={quote_text(self.tz)}]")


class Decimal(Type):
    """`decimal[P, S]`: P decimal digits, S of them after the point; 16 bytes."""

    precision: int
    scale: int
    template = "decimal[{precision}, {scale}]"

    def __post_init__(self) -> None:
        if not 1 <= self.precision <= DIGITS_MAX:
            raise refuse(f"decimal[{self.precision}, …] must have 1 to {DIGITS_MAX} digits", "decimal")
        if not -DIGITS_MAX <= self.scale <= DIGITS_MAX:
            raise refuse(f"the scale of a decimal must be between -{DIGITS_MAX} and {DIGITS_MAX}", "decimal")
