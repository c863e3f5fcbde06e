"""The public names, gathered. `tensorglot` itself hands them out; see there."""

from tensorglot.errors import (
    AmbiguousFormat,
    FormatError,
    InputError,
    IntegrityError,
    LimitError,
    LossWarning,
    OutOfRange,
    TensorglotError,
    TensorNotFound,
    TruncatedError,
    UnsupportedError,
)
from tensorglot.formats.table import Format, formats
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive
from tensorglot.model.tensor import Tensor
from tensorglot.operations.convert import convert
from tensorglot.operations.diff import Diff, diff
from tensorglot.operations.edit import edit
from tensorglot.operations.load import load, loads
from tensorglot.operations.open import open
from tensorglot.operations.save import dumps, save
from tensorglot.operations.split import merge, split
from tensorglot.operations.verify import Report, verify
from tensorglot.operations.writer import Writer

__all__ = [
    "AmbiguousFormat",
    "Archive",
    "Diff",
    "Format",
    "FormatError",
    "InputError",
    "IntegrityError",
    "LimitError",
    "Limits",
    "LossWarning",
    "OutOfRange",
    "Report",
    "Tensor",
    "TensorNotFound",
    "TensorglotError",
    "TruncatedError",
    "UnsupportedError",
    "Writer",
    "convert",
    "diff",
    "dumps",
    "edit",
    "formats",
    "load",
    "loads",
    "merge",
    "open",
    "save",
    "split",
    "verify",
]
