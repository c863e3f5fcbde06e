"""The options for writing, as one value from the verb to the container.

`compression` and `checksum` are one choice for all tensors, or a mapping from names and
patterns to choices; it is resolved to a choice for each tensor when the names are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast

from tensorglot.arguments import as_integer, check_flags
from tensorglot.containers.table import Format, PerTensor, WriteOptions
from tensorglot.errors import Hint, InputError, UnsupportedError
from tensorglot.model.index import Index
from tensorglot.operations._progress import Progress
from tensorglot.tuples import NamedTuple
from tensorglot.wire.checksums import numbers

__all__ = ["AUTO", "Choice", "SaveOptions", "keep_checksums"]

Choice: TypeAlias = "str | Mapping[str, str | None] | None"
AUTO = "auto"
"""The algorithm that the tensor has where it is read from, if the format supports it; else the format's fast one."""
LEVELS = {"zstd": (-131072, 22), "deflate": (0, 9)}
"""The lowest and the highest level of each compression."""


class SaveOptions(NamedTuple):
    """How tensors are to be written, whatever they are."""

    compression: Choice = None
    level: int | None = None
    checksum: Choice = AUTO
    durable: bool = True
    progress: Progress | bool | None = None

    @classmethod
    def of(
        cls,
        compression: Choice,
        level: int | None,
        checksum: Choice,
        durable: bool = True,
        progress: Progress | bool | None = None,
    ) -> SaveOptions:
        """The arguments of a verb, checked; choices are checked by `settle`, progress when it starts."""
        check_flags(durable=durable)
        level = None if level is None else as_integer(level, "level", "save.level")
        return cls(compression=compression, level=level, checksum=checksum, durable=durable, progress=progress)

    def check(self, spec: Format, version: str) -> None:
        """Refuses choices that the format does not support, whatever the tensors are."""
        for what, choice, offered in (
            ("compression", self.compression, spec.compression),
            ("checksum", self.checksum, (AUTO, *spec.checksums_in(version))),
        ):
            for one in choice.values() if isinstance(choice, Mapping) else (choice,):
                if one is not None and not isinstance(one, str):
                    raise InputError(
                        f"{what} must be a str, None, or a mapping from names or patterns to these, not {one!r}",
                        rule=f"save.{what}",
                    )
                if one is not None and one not in offered:
                    names = ", ".join(name for name in offered if name != AUTO)
                    supported = f"supported: {names}" if names else f"it supports no {what}"
                    raise UnsupportedError(
                        f"{spec.name}@{version} does not support {one} ({supported})", rule=f"save.{what}"
                    )
        for codec in spec.compression if self.level is not None else ():
            low, high = LEVELS[codec]
            if not low <= cast("int", self.level) <= high:
                raise InputError(f"{codec} level must be {low} to {high}, not {self.level}", rule="save.level")

    def settle(self, spec: Format, version: str, index: Index) -> WriteOptions:
        """The choice for each tensor. A choice that the format does not support is an error."""
        self.check(spec, version)
        compression = _settle(self.compression, None, index.names)
        checksum = _settle(self.checksum, AUTO, index.names)
        if AUTO in checksum.choices:  # replaced by what AUTO means for each tensor, exceptions included
            kept = keep_checksums(index, spec, version)
            exceptions = dict(kept.exceptions) if checksum.default == AUTO else {}
            for name, choice in checksum.exceptions.items():
                exceptions[name] = kept.of(name) if choice == AUTO else choice
            checksum = PerTensor(kept.default if checksum.default == AUTO else checksum.default, exceptions)
        for name in index.names if "frame" in checksum.choices else ():
            if checksum.of(name) == "frame" and compression.of(name) is None:
                hint = Hint(
                    "pass compression='zstd' or another checksum", "pass --compression zstd or another --checksum"
                )
                raise InputError("checksum 'frame' needs compression", rule="save.checksum", tensor=name, hint=hint)
        if self.level is not None and not compression.choices:
            hint = Hint("pass compression=", "pass --compression NAME")
            raise InputError("a compression level needs a compression", rule="save.level", hint=hint)
        return WriteOptions(version, compression, self.level, checksum)


def keep_checksums(index: Index, spec: Format, version: str) -> PerTensor:
    """What AUTO is for each tensor."""
    fast, offered = spec.fast_checksums.get(version), spec.checksums_in(version)
    if index.checksums is None or not offered:
        return PerTensor(fast)
    alike = numbers(index.checksums)
    if alike is not None:
        return PerTensor(alike.algorithm if alike.algorithm in offered else fast)
    found = ((index.checksums[row] or "").partition(":")[0] for row in index.row_offsets[:-1].tolist())
    kept = [algorithm if algorithm in offered else fast for algorithm in found]
    default = kept[0] if len(set(kept)) == 1 else fast
    return PerTensor(default, {name: one for name, one in zip(index.names, kept, strict=True) if one != default})


def _settle(choice: Choice, otherwise: str | None, names: Sequence[str]) -> PerTensor:
    """One choice for all, or by name; `otherwise` is for tensors that match no pattern."""
    if isinstance(choice, Mapping):
        from tensorglot.operations._patterns import by_pattern

        return PerTensor(otherwise, by_pattern(choice, names))
    return PerTensor(choice)
