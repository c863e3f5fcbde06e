"""One tree of errors, split by whose fault it is.

    TensorglotError
    ├── FormatError          the file breaks a rule of its format
    │   ├── TruncatedError     bytes are missing
    │   ├── LimitError         perhaps valid, but beyond a bound that the reader enforces
    │   ├── IntegrityError     a checksum does not match, or is required and absent
    │   └── AmbiguousFormat    the bytes are valid in two formats that disagree
    ├── InputError           an argument of the caller is invalid
    │   ├── OutOfRange         an index out of bounds; also an IndexError
    │   └── StateError         tensors that do not fit a module, or share memory; also a RuntimeError
    ├── UnsupportedError     valid, but it cannot be expressed or decoded here
    │   └── NotExportable      what DLPack cannot express; also a BufferError
    ├── RemoteError          a server failed, or answered wrongly; also an OSError
    ├── TensorNotFound       no tensor of that name; also a KeyError
    └── MissingFile          of the drop-in modules: no such file; also a FileNotFoundError

Every error has the name of the rule that was broken and, if known, the byte offset in the
source, the tensor's name, the file's path, and a hint for the user, in terms of Python or
of the command line. Whatever bytes are read, the library raises only these and OSError.
"""

from __future__ import annotations

import copyreg
import errno
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tensorglot.tuples import NamedTuple

__all__ = [
    "AmbiguousFormat",
    "FormatError",
    "Hint",
    "InputError",
    "IntegrityError",
    "LimitError",
    "LossWarning",
    "MissingFile",
    "NotExportable",
    "OutOfRange",
    "RemoteError",
    "StateError",
    "TensorNotFound",
    "TensorglotError",
    "TruncatedError",
    "UnsupportedError",
    "add_tensor_to_errors",
    "did_you_mean",
    "escape",
    "human_nbytes",
    "list_names",
    "plural",
]

NAMES_SUGGESTED = 3
NEARLY_AS_SIMILAR = 0.15
"""Names whose similarity is lower by more than this than that of the nearest are not suggested beside it."""
FEW_NAMES = 5
"""Up to this many names are all listed in the message about one that does not exist."""


def escape(name: str, *, longest: int = 120) -> str:
    """A name from a file, safe to print: control, bidi and other invisible characters escaped, the middle elided."""
    text = name
    if not name.isprintable() or "\\" in name:
        text = "".join(c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode() for c in name)
    if len(text) > longest:
        half = (longest - 1) // 2
        text = f"{text[:half]}…{text[-half:]}"
    return text


def plural(count: int, one: str, several: str = "") -> str:
    """`1 tensor`, `2,000 tensors`, `3 losses`"""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def human_nbytes(nbytes: float) -> str:
    """`2.0 MiB`"""
    if nbytes < 1024:
        return f"{int(nbytes)} B"
    for unit in ("KiB", "MiB", "GiB"):
        nbytes /= 1024
        if nbytes < 1024:
            return f"{nbytes:.1f} {unit}"
    return f"{nbytes / 1024:.1f} TiB"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a message about a name that does not exist: the nearest names, those that contain it, or nothing."""
    known: dict[str, str] = {}
    for each in itertools.islice(names, 10_000):
        known.setdefault(each.casefold(), each)
    from difflib import SequenceMatcher, get_close_matches

    asked = name.casefold()
    found = get_close_matches(asked, known, n=NAMES_SUGGESTED)
    ratios = [SequenceMatcher(None, each, asked).ratio() for each in found]
    near = [known[each] for each, ratio in zip(found, ratios, strict=True) if ratio > ratios[0] - NEARLY_AS_SIMILAR]
    part = asked.strip("*?")
    near = near or [each for folded, each in known.items() if len(part) > 2 and part in folded][:NAMES_SUGGESTED]
    return "; did you mean " + ", ".join(f"'{escape(each)}'" for each in near) + "?" if near else ""


def list_names(names: Sequence[str]) -> str:
    """The first names for a message, or "none"."""
    return ", ".join(f"'{escape(name)}'" for name in names[:10]) or "none"


def suggest(name: str, names: Iterable[str]) -> str:
    """The nearest names; where none is near, all names if they are few."""
    few = list(itertools.islice(names, FEW_NAMES + 1))
    listed = ", ".join(f"'{escape(each)}'" for each in few)
    return did_you_mean(name, names) or (f"; the names are {listed}" if 0 < len(few) <= FEW_NAMES else "")


class Hint(NamedTuple):
    """What the user can do about an error, for both interfaces; an empty text if there is nothing to do."""

    python: str
    command_line: str


class TensorglotError(Exception):
    """The root of every error that this library raises on purpose."""

    def __init__(
        self,
        message: str,
        *,
        rule: str,
        offset: int | None = None,
        tensor: str | None = None,
        path: str | None = None,
        hint: Hint | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.rule = rule
        self.offset = offset
        self.tensor = tensor
        self.path = path
        """The file that could not be opened, read or written."""

    def advise(self, *, command_line: bool = False) -> str:
        """The message, and what to do about it."""
        hint = "" if self.hint is None else self.hint.command_line if command_line else self.hint.python
        return f"{self.message}; {hint}" if hint else self.message

    def __str__(self) -> str:
        return self.describe()

    def describe(self, *, command_line: bool = False) -> str:
        """One line: the file, what is wrong, what to do, and where."""
        where = []
        if self.tensor is not None:
            where.append(f"tensor '{escape(self.tensor)}'")
        if self.offset is not None:
            where.append(f"byte {self.offset}")
        where.append(f"rule {self.rule}")
        file = "" if self.path is None else f"{escape(self.path)}: "
        return f"{file}{self.advise(command_line=command_line)} ({', '.join(where)})"

    def __reduce__(self) -> tuple[Any, ...]:
        # `rule` is a required keyword, which the default way to unpickle an exception does not pass.
        return copyreg.__newobj__, (type(self), self.message), vars(self)  # type: ignore[attr-defined]


@contextmanager
def add_tensor_to_errors(name: str) -> Iterator[None]:
    """Adds the name of a tensor to errors that have none."""
    try:
        yield
    except TensorglotError as error:
        if error.tensor is None:
            error.tensor = name
        raise


class FormatError(TensorglotError):
    """The file breaks a rule of its format."""


class TruncatedError(FormatError):
    """The file ends before its contents do."""


class LimitError(FormatError):
    """The file asks for more than `Limits` allows."""


class IntegrityError(FormatError):
    """A checksum does not match its bytes, or is required and absent."""


class AmbiguousFormat(FormatError):
    """The bytes are valid under two layouts that disagree; name one with `format=`."""


class InputError(TensorglotError, ValueError):
    """An argument of the caller is invalid."""


class OutOfRange(InputError, IndexError):
    """An index that is out of bounds, or of a type that cannot be an index."""


class StateError(InputError, RuntimeError):
    """Tensors that do not fit a PyTorch module, or that share memory in a way that cannot be stored.

    Also a RuntimeError, which PyTorch raises in these cases.
    """


class UnsupportedError(TensorglotError):
    """Valid but unsupported: it cannot be stored in this format, or cannot be decoded here."""


class NotExportable(UnsupportedError, BufferError):
    """A tensor that DLPack cannot express. Also a BufferError, as DLPack requires."""


class RemoteError(TensorglotError, OSError):
    """A server cannot be reached, failed after all retries, or does not answer as its protocol requires."""


class LossWarning(UserWarning):
    """Part of the contents could not be stored in the file that was written."""


class TensorNotFound(TensorglotError, KeyError):
    """No tensor of that name; the message has the nearest names."""

    @classmethod
    def among(cls, name: str, names: Iterable[str]) -> TensorNotFound:
        """The error of a name that is none of the names."""
        return cls(f"no such tensor{suggest(name, names)}", rule="tensor.name", tensor=name)

    @classmethod
    def matching(cls, pattern: str, names: Iterable[str]) -> TensorNotFound:
        """The error of a name or pattern that matches none of the names."""
        if not set(pattern) & set("*?["):
            return cls.among(pattern, names)
        return cls(f"no tensor matches the pattern{suggest(pattern, names)}", rule="tensor.name", tensor=pattern)


class MissingFile(TensorglotError, FileNotFoundError):
    """No such file, raised by the drop-in replacements of safetensors, whose callers catch FileNotFoundError."""

    errno = errno.ENOENT
    strerror = os.strerror(errno)

    @property
    def filename(self) -> str | None:
        """The path, as every OSError has it."""
        return self.path

    def describe(self, *, command_line: bool = False) -> str:
        """The text that safetensors has for a missing file."""
        return f"{self.strerror}: {escape(self.path or '')}"
