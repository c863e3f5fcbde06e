"""A second decoder of DyND, recursive and naive, written from the document. It shares only the types with the first."""

import datetime as dt
import decimal
import zoneinfo

import ml_dtypes
import numpy as np

from tensorglot.model.types import algebra as T
from tensorglot.model.types import temporal as M
from tensorglot.model.types.text import parse_canonical

SENTINEL = {"bool": "02", "float16": "0a7e", "float32": "a207807f", "float64": "a20700000000f07f"}
SENTINEL |= {f"int{8 << i}": "00" * ((1 << i) - 1) + "80" for i in range(5)}
MOST = 1 << 14  # elements, where they have no bytes
CODECS = {"utf8": "utf-8", "ascii": "ascii", "utf16": "utf-16-le", "utf32": "utf-32-le"}


class Refused(Exception):
    pass


def need(condition, value=None):
    if not condition:
        raise Refused
    return value


class Naive:
    def __init__(self, data):
        self.data = bytes(data)

    def value(self, t):
        return need(type(t) in READ, READ.get(type(t)))(self, t)

    def take(self, n):
        need(n <= len(self.data))
        taken, self.data = self.data[:n], self.data[n:]
        return taken

    def varint(self):
        value = 0
        for i in range(9):
            byte = self.take(1)[0]
            value |= (byte & 127) << 7 * i
            if byte < 128:
                return need((byte or i == 0) and value <= max(len(self.data), MOST), value)
        raise Refused

    def text(self, n, codec="utf-8"):
        try:
            return self.take(n).decode(codec)
        except UnicodeDecodeError:
            raise Refused from None

    def scalar(self, t):
        row = t.dtype
        raw = self.take(max(1, row.bits // 8))
        need(row.bits > 8 or raw[0] < (2 if row.name == "bool" else 1 << row.bits))
        if row.numpy is None:
            return raw if row.name == "float128" else int.from_bytes(raw, "little", signed=row.name[0] == "i")
        value = np.frombuffer(raw, getattr(ml_dtypes, row.name, row.name))[0]
        return value.item() if hasattr(np, row.name) else int(value) if "int" in row.name else float(value)

    def option(self, t):
        while isinstance(t, T.Pointer):
            t = t.element
        name = t.part.dtype.name if isinstance(t, T.Complex) else t.dtype.name if isinstance(t, T.Scalar) else ""
        wide = {M.Date: "int32", M.Decimal: "int128"}.get(type(t), "int64" if isinstance(t, M.Unit) else name)
        mark = bytes.fromhex(SENTINEL.get(wide, "")) * (1 + isinstance(t, T.Complex))
        if mark or isinstance(t, T.Void):
            return (self.take(len(mark)), None)[1] if self.data.startswith(mark) else self.value(t)
        return self.value(t) if need(self.data[:1] in (b"\0", b"\1"), self.take(1)[0]) else None

    def merkle(self, t):
        if T.symbolic(t.element):
            need(not T.symbolic(self.value(T.TypeType())))
        return need(self.data[:4].hex() in ("01551e20", "01711e20"), self.take(36))

    def integer(self, nbytes):
        return int.from_bytes(self.take(nbytes), "little", signed=True)

    def decimal(self, t):
        number = self.integer(16)
        need(abs(number) < 10**t.precision)
        return decimal.Decimal((number < 0, [int(d) for d in str(abs(number))], -t.scale))

    def date(self, t):
        days = self.integer(4)
        try:
            return dt.date(1970, 1, 1) + dt.timedelta(days)
        except OverflowError:
            return np.datetime64(days, "D")

    def time(self, t):
        count, step = self.integer(8), {"s": 10**6, "ms": 1000, "us": 1}.get(t.unit)
        need(not isinstance(t, M.Time) or 0 <= count < 86_400 * M.PER_SECOND[t.unit])
        scalar = np.datetime64 if isinstance(t, M.DateTime) else np.timedelta64
        try:
            if step:
                return self.object(t, dt.timedelta(microseconds=count * step))
        except OverflowError:
            pass
        return count if count == -(1 << 63) else scalar(count, t.unit)  # that one is NaT to NumPy

    def object(self, t, since):
        if isinstance(t, M.TimeDelta):
            return since
        moment = dt.datetime(1970, 1, 1, tzinfo=getattr(t, "tz", None) and dt.UTC) + since
        zone = ZONES.get(getattr(t, "tz", None))
        return moment.time() if isinstance(t, M.Time) else moment.astimezone(zone) if zone else moment

    def map(self, t):
        pairs, before = [], None
        for _ in range(self.varint()):
            at = self.data
            key = self.value(t.key)
            raw = at[: len(at) - len(self.data)]
            need(before is None or before < raw)
            before = raw
            pairs.append((key, self.value(t.item)))
        return pairs

    def storage(self, t):
        out = np.empty(T.leading(t.element)[0][: len(t.axis)], object)
        stored, element = out.transpose(t.axis), t.element
        for _ in t.axis:
            element = element.element
        for index in np.ndindex(stored.shape):
            stored[index] = self.value(element)
        return out.tolist()


ZONES = {"Europe/Paris": zoneinfo.ZoneInfo("Europe/Paris"), "-03:30": dt.timezone(-dt.timedelta(hours=3, minutes=30))}
READ = {
    M.Date: Naive.date,
    **dict.fromkeys((M.Time, M.TimeDelta, M.DateTime), Naive.time),
    M.Decimal: Naive.decimal,
    T.Map: Naive.map,
    T.Scalar: Naive.scalar,
    T.Complex: lambda self, t: complex(*(self.scalar(t.part) for _ in "ri")) if t.part.dtype.numpy else self.take(32),
    T.Void: lambda self, t: None,
    T.FixedBytes: lambda self, t: self.take(t.size),
    T.FixedString: lambda self, t: need("\0" not in (s := self.text(t.nbytes, CODECS[t.encoding]).rstrip("\0")), s),
    T.Char: lambda self, t: self.text(sum(self.data[:1] >= b for b in (b"", b"\xc0", b"\xe0", b"\xf0"))),
    T.Bytes: lambda self, t: self.take(self.varint()),
    T.String: lambda self, t: self.text(self.varint()),
    T.TypeType: lambda self, t: parse_canonical(self.text(self.varint())),
    T.Array: lambda self, t: (inner := self.value(T.TypeType()), self.value(inner)),
    T.Merkle: Naive.merkle,
    T.Option: lambda self, t: self.option(t.element),
    T.Pointer: lambda self, t: self.value(t.element),
    T.Fixed: lambda self, t: [self.value(t.element) for _ in range(t.size)],
    T.Var: lambda self, t: [self.value(t.element) for _ in range(self.varint())],
    T.Storage: Naive.storage,
    T.Tuple: lambda self, t: tuple(self.value(element) for element in t.elements),
    T.Struct: lambda self, t: {name: self.value(element) for name, element in t.fields},
}
