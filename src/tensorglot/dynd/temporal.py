"""Dates, times and decimals between their integers and Python's objects, NumPy's arrays and ISO text.

A value is stored as an integer. It is exported as the object that holds it exactly:

    date                      datetime.date
    time['s'|'ms'|'us']       datetime.time
    timedelta['s'|'ms'|'us']  datetime.timedelta
    datetime['s'|'ms'|'us']   datetime.datetime, aware if the type has a time zone
    decimal[P, S]             decimal.Decimal with S digits after the point
    any of 'ns'               numpy.datetime64 (UTC, if there is a zone) or numpy.timedelta64

A value out of range for Python's class (the year 10000) becomes NumPy's scalar; the
smallest integer, which is NaT to NumPy, stays an integer unless it is missing. Each of
these objects is accepted as input, and an integer; nothing is ever rounded.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal as PythonDecimal
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd.atoms import refuse
from tensorglot.errors import Hint, InputError, UnsupportedError
from tensorglot.model.types.base import Type
from tensorglot.model.types.temporal import DIGITS_MAX, PER_SECOND, Date, DateTime, Decimal, Time, TimeDelta, Unit

__all__ = [
    "Temporal",
    "bounds_of",
    "count_of",
    "counts_of_array",
    "decimal_of_unscaled",
    "from_iso",
    "is_integer",
    "is_nat",
    "numpy_name",
    "numpy_unit_type",
    "python_objects",
    "to_iso",
    "unscaled_of",
    "zone_name",
]

Temporal: TypeAlias = "Date | Unit"

DAY_SECONDS = 86_400
_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=dt.UTC)
_EPOCH_ORDINAL = _EPOCH.toordinal()
_EXACT = decimal.Context(prec=DIGITS_MAX + 1, traps=[decimal.Inexact, decimal.InvalidOperation])
"""One digit more than any valid decimal, for the missing value: the minimum of 128 bits has 39 digits."""
_MICROSECOND = dt.timedelta(microseconds=1)
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)*", re.ASCII)
_OFFSET = re.compile(r"[+-]\d\d:?\d\d", re.ASCII)


def bounds_of(type: Type) -> tuple[int, int]:
    """The range of a type: its smallest value, and its largest plus one."""
    if isinstance(type, Decimal):
        return 1 - 10**type.precision, 10**type.precision
    if isinstance(type, Time):
        return 0, DAY_SECONDS * type.per_second
    end = 1 << (31 if isinstance(type, Date) else 63)
    return -end, end


def _check_bounds(type: Type, count: int, item: Any) -> int:
    low, end = bounds_of(type)
    if not low <= count < end:
        raise InputError(f"{item!r:.80} is out of range for {type}", rule="dynd.range")
    return count


def is_integer(item: Any) -> bool:
    """Whether an object is an integer. NumPy's timedelta64 is a subclass of its integers, and none."""
    return isinstance(item, int | np.integer) and not isinstance(item, np.timedelta64)


def count_of(type: Temporal, item: Any) -> int:
    """The integer of a date, time or duration, given as any of the objects above."""
    if is_integer(item) and not isinstance(item, bool):
        return _check_bounds(type, int(item), item)
    if isinstance(item, np.datetime64 | np.timedelta64):
        return int(counts_of_array(type, np.array([item]))[0])
    try:
        seconds, microseconds = _since(type, item)
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise refuse(type, item) from error
    if isinstance(type, Date):
        return seconds // DAY_SECONDS
    assert isinstance(type, Unit)  # noqa: S101
    nanoseconds = microseconds * 1000 + getattr(item, "nanosecond", 0)  # a Timestamp of pandas has them
    fraction, rest = divmod(nanoseconds * type.per_second, 10**9)
    if rest:
        raise refuse(type, item, ": not a whole number of units")
    return _check_bounds(type, seconds * type.per_second + fraction, item)


def _since(type: Temporal, item: Any) -> tuple[int, int]:
    """Seconds and microseconds that an object of Python's is after the zero of a type."""
    if isinstance(type, DateTime) and isinstance(item, dt.datetime):
        if (item.tzinfo is None) != (type.tz is None):
            raise refuse(type, item, ": one has a time zone, the other does not")
        delta = item - (_EPOCH if type.tz is None else _EPOCH_UTC)
        return delta.days * DAY_SECONDS + delta.seconds, delta.microseconds
    if isinstance(type, Date) and isinstance(item, dt.date) and not isinstance(item, dt.datetime):
        return (item.toordinal() - _EPOCH_ORDINAL) * DAY_SECONDS, 0
    if isinstance(type, TimeDelta) and isinstance(item, dt.timedelta):
        return item.days * DAY_SECONDS + item.seconds, item.microseconds
    if isinstance(type, Time) and isinstance(item, dt.time) and item.tzinfo is None:
        return item.hour * 3600 + item.minute * 60 + item.second, item.microsecond
    raise refuse(type, item)


def is_nat(item: Any) -> bool:
    """Whether an object is NumPy's (or pandas') NaT, the missing time."""
    if isinstance(item, np.datetime64 | np.timedelta64):
        return bool(np.isnat(item))
    return isinstance(item, dt.datetime) and item != item  # pandas.NaT is a datetime that differs from itself


def numpy_name(type: Temporal) -> str:
    """NumPy's type for the values, without their time zone; a time of the day is a duration to NumPy."""
    if isinstance(type, Unit):
        return f"{'datetime64' if isinstance(type, DateTime) else 'timedelta64'}[{type.unit}]"
    return "datetime64[D]"


def numpy_unit_type(dtype: np.dtype[Any]) -> Type:
    """The type of NumPy's datetime64 and timedelta64."""
    unit, multiple = np.datetime_data(dtype)
    if multiple == 1 and unit in PER_SECOND:
        return DateTime(unit) if dtype.kind == "M" else TimeDelta(unit)
    if multiple == 1 and unit == "D" and dtype.kind == "M":
        return Date()
    name = "datetime64" if dtype.kind == "M" else "timedelta64"
    raise UnsupportedError(
        f"NumPy's {dtype} is not supported: convert it with .astype('{name}[s]') (units: s, ms, us, ns)",
        rule="dynd.numpy.unit",
    )


def counts_of_array(type: Temporal, array: NDArray[Any], *, missing: bool = False) -> NDArray[Any]:
    """The integers of datetime64 and timedelta64. NaT becomes the minimum with `missing`, else it is refused."""
    base = np.dtype("<i4" if isinstance(type, Date) else "<i8")
    wanted = np.dtype(numpy_name(type))
    unit, _ = np.datetime_data(array.dtype)
    if array.dtype.kind != wanted.kind or unit == "generic" or (wanted.kind == "m" and unit in ("Y", "M")):
        raise InputError(f"cannot convert NumPy's {array.dtype} to {type}", rule="dynd.value")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    with np.errstate(over="ignore"):
        try:
            converted = native.astype(wanted, copy=False)
            # NumPy rounds and wraps around silently: only converting back shows it.
            exact = converted.astype(native.dtype, copy=False)
        except OverflowError as error:
            raise InputError(f"values are out of range for {type}", rule="dynd.range") from error
    gone = np.isnat(native)
    lost = ~gone & ((exact != native) | np.isnat(converted))
    if lost.any():
        raise refuse(type, native[lost].flat[0], ": out of range, or not a whole number of units")
    if not missing and gone.any():
        raise InputError(f"{type} cannot hold NaT: use ?{type}", rule="dynd.value")
    counts = converted.view(np.int64)
    low, end = bounds_of(type)
    outside = ~gone & ((counts < low) | (counts > end - 1))
    if outside.any():
        raise InputError(f"{native[outside].flat[0]} is out of range for {type}", rule="dynd.range")
    if base.itemsize == 4:
        counts = np.where(gone, low, counts)
    return counts.astype(base, copy=False)


def python_objects(type: Temporal, counts: list[int]) -> list[Any]:
    """The objects of integers."""
    scalar, unit = np.dtype(numpy_name(type)).type, type.unit if isinstance(type, Unit) else "D"
    read = None if unit == "ns" else _reader(type)
    objects: list[Any] = []
    for count in counts:
        try:
            found = None if read is None else read(count)
        except (OverflowError, ValueError):
            found = None
        objects.append(found if found is not None else count if count == -(1 << 63) else scalar(count, unit))
    return objects


def _reader(type: Temporal) -> Callable[[int], Any]:
    """A function from an integer to Python's object. It raises OverflowError or ValueError out of range."""
    if isinstance(type, Date):
        return lambda days: dt.date.fromordinal(_EPOCH_ORDINAL + days)
    assert isinstance(type, Unit)  # noqa: S101
    scale = 10**6 // type.per_second
    if isinstance(type, TimeDelta):
        return lambda count: dt.timedelta(microseconds=count * scale)
    if isinstance(type, Time):
        return lambda count: (_EPOCH + dt.timedelta(microseconds=count * scale)).time()
    zone = zone_of(type.tz) if isinstance(type, DateTime) and type.tz is not None else None
    if zone is None:
        return lambda count: _EPOCH + dt.timedelta(microseconds=count * scale)
    return lambda count: (_EPOCH_UTC + dt.timedelta(microseconds=count * scale)).astimezone(zone)


@lru_cache(maxsize=64)
def zone_of(name: str) -> dt.tzinfo:
    """The time zone of a name. An unknown one becomes UTC, in which the instant is the same."""
    with suppress(KeyError, ValueError, OSError):  # not known, or no file of a time zone
        if _OFFSET.fullmatch(name):
            return _fixed_zone(name)
        if name != "UTC" and _ZONE.fullmatch(name):
            from zoneinfo import ZoneInfo  # here, because it imports sysconfig: only named zones pay for that

            return ZoneInfo(name)
    return dt.UTC


def _fixed_zone(offset: str) -> dt.timezone:
    """The time zone of `Z` or an offset; ValueError where that is out of range."""
    zone = dt.datetime.fromisoformat(f"1970-01-01T00:00{offset}").tzinfo
    assert isinstance(zone, dt.timezone)  # noqa: S101
    return zone


def zone_name(zone: dt.tzinfo) -> str:
    """The name of a time zone, as a type has it."""
    key = getattr(zone, "key", None) or getattr(zone, "zone", None)  # zoneinfo's, pytz's
    if isinstance(key, str):
        return key
    offset = zone.utcoffset(None)
    if offset is None or offset % dt.timedelta(minutes=1):
        raise InputError(
            f"time zone {zone!r:.60} has no name", rule="dynd.infer", hint=Hint("pass type=", "pass --type TYPE")
        )
    minutes = abs(offset) // dt.timedelta(minutes=1)
    return f"{'-' if offset < dt.timedelta(0) else '+'}{minutes // 60:02}:{minutes % 60:02}" if minutes else "UTC"


def unscaled_of(type: Decimal, item: Any) -> int:
    """The integer of a decimal.Decimal or an int, which is the value times 10^S."""
    if is_integer(item) and not isinstance(item, bool):
        item = PythonDecimal(int(item))
    if not isinstance(item, PythonDecimal) or not item.is_finite():
        raise refuse(type, item)
    try:
        stored = item.quantize(decimal_of_unscaled(type, 1), context=_EXACT)
    except decimal.Inexact as error:
        raise refuse(type, item, f": more than {type.scale} digits after the decimal point") from error
    except decimal.InvalidOperation as error:  # more digits than the context has
        raise InputError(f"{item!s:.80} is out of range for {type}", rule="dynd.range") from error
    return _check_bounds(type, int(stored.scaleb(type.scale, _EXACT)), item)


def decimal_of_unscaled(type: Decimal, unscaled: int) -> PythonDecimal:
    return PythonDecimal(unscaled).scaleb(-type.scale, _EXACT)


_DATE = r"(?P<date>[+-]?\d{4,12}-\d\d-\d\d)"
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.(?P<fraction>\d{1,9}))?)?"
_AFTER = r"(?P<zone>Z|[+-]\d\d:[0-5]\d(?::[0-5]\d)?)?"
_ISO = {
    Date: re.compile(_DATE, re.ASCII),
    Time: re.compile(_CLOCK, re.ASCII),
    DateTime: re.compile(f"{_DATE}[T ]{_CLOCK}{_AFTER}", re.ASCII),
    TimeDelta: re.compile(
        r"(?P<sign>-)?P(?=\d|T\d)(?:(?P<day>\d{1,9})D)?(?:T(?=\d)(?:(?P<hour>\d{1,9})H)?(?:(?P<minute>\d{1,9})M)?"
        r"(?:(?P<second>\d{1,19})(?:\.(?P<fraction>\d{1,9}))?S)?)?",
        re.ASCII,
    ),
}


def to_iso(item: Any) -> str | None:
    """ISO 8601 text of an object that `python_objects` makes; None for any other object."""
    if isinstance(item, dt.timedelta):
        return _duration(item // _MICROSECOND, 10**6)
    if isinstance(item, np.timedelta64):
        return _duration(int(item.astype(np.int64)), PER_SECOND[np.datetime_data(item.dtype)[0]])
    if isinstance(item, np.datetime64):
        return str(item)
    return item.isoformat() if isinstance(item, dt.date | dt.time) else None


def _duration(count: int, per_second: int) -> str:
    seconds, rest = divmod(abs(count), per_second)
    fraction = f".{rest * (10**9 // per_second):09}".rstrip("0") if rest else ""
    return f"{'-' if count < 0 else ''}PT{seconds}{fraction}S"


def from_iso(type: Temporal, text: str) -> int:
    """The integer of ISO 8601 text. With a time zone in the type, text without an offset is UTC."""
    match = _ISO[type.__class__].fullmatch(text)
    if match is None and isinstance(type, Time):
        match = _ISO[TimeDelta].fullmatch(text)  # the duration since midnight: what `to_iso` makes of time['ns']
    if match is None or (isinstance(type, DateTime) and type.tz is None and match["zone"]):
        raise refuse(type, text)
    found = match.groupdict()
    try:
        days = int(np.datetime64(found["date"], "D").astype(np.int64)) if "date" in found else 0
        offset = _fixed_zone(found.get("zone") or "Z").utcoffset(None) // dt.timedelta(seconds=1)
    except ValueError as error:
        raise refuse(type, text) from error
    if isinstance(type, Date):
        return _check_bounds(type, days, text)
    assert isinstance(type, Unit)  # noqa: S101
    day, hour, minute, second = (int(found.get(part) or 0) for part in ("day", "hour", "minute", "second"))
    if match.re is not _ISO[TimeDelta] and not (hour < 24 and minute < 60 and second < 60):
        raise refuse(type, text)
    seconds = (days + day) * DAY_SECONDS + hour * 3600 + minute * 60 + second - offset
    fraction, rest = divmod(int((found.get("fraction") or "0").ljust(9, "0")) * type.per_second, 10**9)
    if rest:
        raise refuse(type, text, ": not a whole number of units")
    count = seconds * type.per_second + fraction
    return _check_bounds(type, -count if found.get("sign") else count, text)
