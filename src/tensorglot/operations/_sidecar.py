"""A sidecar of checksums: `model.bt.sums` beside `model.bt`, for formats without checksums.

Text: one line for the stored bytes of each part of each tensor, and one for all bytes
outside the tensors. So every byte of the file is covered.

    tensorglot-sums 1 <size of the file>
    xxh3:0123456789abcdef "layer.0.weight"
    xxh3:89ab0123456789ef "layer.1.weight" "values"      a tensor of several parts
    xxh3:456789ab01234567 -                              all the rest

Names are JSON strings. Lines are in the order of the archive, the rest last. The caller
did not choose the name of the sidecar, so a link of that name is not followed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Self

import numpy as np

from tensorglot.errors import FormatError, Hint, InputError, IntegrityError, TruncatedError
from tensorglot.io.local import Stamp, add_path_to_errors, change_error, file_stamp, stamp_of
from tensorglot.io.place import Place, as_place
from tensorglot.io.sink import Writable, sync_folder, temporary_name
from tensorglot.io.source import source_for
from tensorglot.io.target import open_target
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive
from tensorglot.model.index import Index
from tensorglot.model.payload import Source, Span
from tensorglot.operations._checksums import Checked, check_archive
from tensorglot.operations._digests import digest_rows
from tensorglot.operations._elements import blocks
from tensorglot.tuples import NamedTuple
from tensorglot.wire.checksums import Checksum, hasher, parse

__all__ = [
    "SetAside",
    "Sums",
    "check_sidecar",
    "check_target",
    "move_sidecar",
    "read_sidecar",
    "sidecar_of",
    "with_sidecar",
    "write_sidecar",
]

SUFFIX = ".sums"
ALGORITHM = "xxh3"
_REWRITE = "write it again with `tensorglot verify --write-sums`, or remove it"
_IGNORE = Hint("or pass verify='never' to ignore it", "")
_READ_NBYTES = 1 << 20
_MAGIC = b"tensorglot-sums "
_HEAD = rb"tensorglot-sums 1 (0|[1-9][0-9]{0,18})\n"
_LINE = rb'([a-z0-9]+:[0-9a-zA-Z]+) (?:-|("(?:[^"\\\n]|\\.)*")(?: ("(?:[^"\\\n]|\\.)*"))?)\n'

Key = tuple[str, str]
"""The name of a tensor and of its part."""


class Sums(NamedTuple):
    """The contents of a sidecar."""

    size: int
    tensors: Mapping[Key, str]
    rest: str


def sidecar_of(file: Place) -> Place:
    """The place of a file's sidecar."""
    return file.beside(f"{file.name}{SUFFIX}") if file.remote else Place.at(f"{file.text}{SUFFIX}")


def check_target(target: object) -> Place:
    """The place of a file that is to get a sidecar. Refused, before the file is written, if it cannot have one."""
    if not isinstance(target, (str, os.PathLike)):
        raise InputError("sums needs a path as target", rule="sums.source")
    file = as_place(target)
    if not file.remote and os.path.islink(sidecar_of(file)):  # noqa: PTH114
        raise InputError("the target is a symbolic link", rule="sink.target", path=sidecar_of(file).text)
    return file


def write_sidecar(archive: Archive, file: Place) -> None:
    """Writes the checksums of an archive beside its file."""
    source, index = _one_source(archive), archive.index
    found = digest_rows(source, index.begins, index.ends, ALGORITHM)
    tensors = {key: str(Checksum(ALGORITHM, digest)) for key, digest in zip(_keys(index), found.tolist(), strict=True)}
    _write(archive, file, tensors, ALGORITHM)


def move_sidecar(archive: Archive, file: Place, sums: Sums) -> None:
    """Writes the sidecar of an edited file: the tensors have the checksums of `sums`, the other bytes new ones."""
    _write(archive, file, sums.tensors, sums.rest.partition(":")[0])


class SetAside:
    """Renames the sidecar of a file while the file is replaced, then removes it, since it describes the old file.

    So a kill leaves a file without a sidecar, and never a new file beside an old sidecar: such a file
    could not be read.
    """

    def __init__(self, target: Writable, *, durable: bool = True) -> None:
        file = as_place(target) if isinstance(target, (str, os.PathLike)) else None
        self._file = "" if file is None or file.remote else file.text
        self._path = f"{self._file}{SUFFIX}"
        self._folder = os.path.dirname(self._path) or "."  # noqa: PTH120
        self._durable = durable
        self._aside = ""
        self._stamp: Stamp | None = None

    def __enter__(self) -> Self:
        if not self._file or not os.access(self._path, os.F_OK) or not _is_sidecar(self._path):
            return self
        self._stamp = self._stamp_now()
        self._aside = os.path.join(self._folder, temporary_name())  # noqa: PTH118
        try:
            os.rename(self._path, self._aside)  # noqa: PTH104
            if self._durable:
                sync_folder(self._folder)
        except BaseException:
            self.put_back()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._stamp_now() == self._stamp:
            self.put_back()
        elif self._aside:
            with suppress(OSError):  # the file has been replaced: a leftover with a temporary name is harmless
                os.unlink(self._aside)  # noqa: PTH108

    def _stamp_now(self) -> Stamp | None:
        try:
            return stamp_of(os.stat(self._file))  # noqa: PTH116
        except FileNotFoundError:
            return None

    def put_back(self) -> None:
        """Restores the sidecar, after an error that left the file unchanged."""
        aside, self._aside = self._aside, ""
        if aside:
            with suppress(FileNotFoundError):
                os.rename(aside, self._path)  # noqa: PTH104


def _is_sidecar(path: str) -> bool:
    """Whether a path is a sidecar written by this package. Any other file of that name, or a link, is left alone."""
    if not stat.S_ISREG(os.stat(path, follow_symlinks=False).st_mode):  # noqa: PTH116
        return False
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.pread(fd, len(_MAGIC), 0) == _MAGIC
    finally:
        os.close(fd)


def _write(archive: Archive, file: Place, tensors: Mapping[Key, str], algorithm: str) -> None:
    import json  # here and below, because few files have a sidecar

    lines = [f"tensorglot-sums 1 {_one_source(archive).size}"]
    for (tensor, part), checksum in tensors.items():
        names = json.dumps(tensor) if part == "data" else f"{json.dumps(tensor)} {json.dumps(part)}"
        lines.append(f"{checksum} {names}")
    lines.append(f"{Checksum(algorithm, _rest_digest(archive, algorithm))} -")
    with open_target(sidecar_of(file), follow=False) as target:
        target.write([f"{line}\n".encode() for line in lines])
        stamp = file_stamp(archive.source)
        if stamp is not None and stamp != stamp_of(os.stat(file)):  # noqa: PTH116
            raise change_error(file)


def _one_source(archive: Archive) -> Source:
    if archive.source is None or archive.index.payloads is not None or archive.index.sources:
        raise InputError("a sidecar of checksums needs exactly one file", rule="sums.source")
    return archive.source


def _keys(index: Index) -> Iterator[Key]:
    for tensor, name in enumerate(index.names):
        for row in index.rows(tensor):
            yield name, "data" if index.part_names is None else index.part_names[row]


def _rest_digest(archive: Archive, algorithm: str) -> bytes:
    """The digest of all bytes outside the tensors."""
    source, index = _one_source(archive), archive.index
    # In the order of the file, a gap is where a row begins after all rows before it have ended.
    order = np.argsort(index.begins, kind="stable")
    begins = np.append(index.begins[order], source.size)
    reached = np.concatenate([[0], np.maximum.accumulate(index.ends[order])])
    running = hasher(algorithm)
    for gap in np.flatnonzero(begins > reached).tolist():
        for chunk in blocks(Span(source, int(reached[gap]), int(begins[gap])), _READ_NBYTES):
            running.update(chunk)
    return running.digest()


def read_sidecar(file: Place, limits: Limits) -> Sums | None:
    """The sidecar of a file; None if there is none."""
    # Every open asks; a stat that fails costs twice as much.
    if not file.remote and not os.access(f"{file.text}{SUFFIX}", os.F_OK):
        return None
    place = sidecar_of(file)
    try:
        source = source_for(place)
    except FileNotFoundError:
        return None
    with add_path_to_errors(place):
        limits.check_header(source.size, "a sidecar", rule="sums.limit")
        return _parse(source.read_bytes(0, source.size))


def _parse(data: bytes) -> Sums:
    head, next_line = re.match(_HEAD, data), re.compile(_LINE).match
    if head is None:
        raise FormatError(
            "not a sidecar of checksums: the first line must be 'tensorglot-sums 1 SIZE'", rule="sums.head", offset=0
        )
    tensors: dict[Key, str] = {}
    rest: str | None = None
    position = head.end()
    while position < len(data):
        line = next_line(data, position)
        if line is None or rest is not None:
            raise FormatError(
                'invalid line in the sidecar (expected: CHECKSUM "NAME", and CHECKSUM - last)',
                rule="sums.line",
                offset=position,
            )
        checksum = line[1].decode()
        if line[2] is None:
            rest = checksum
        else:
            key = _text(line[2], position), "data" if line[3] is None else _text(line[3], position)
            if key in tensors:
                raise FormatError(
                    "duplicate tensor in the sidecar", rule="sums.duplicate", offset=position, tensor=key[0]
                )
            tensors[key] = checksum
        position = line.end()
    if rest is None:
        raise TruncatedError("sidecar truncated: its last line is missing", rule="sums.end", offset=position)
    return Sums(int(head[1]), tensors, rest)


def _text(quoted: bytes, position: int) -> str:
    import json

    try:
        text = json.loads(quoted)
        text.encode()
    except ValueError as error:
        raise FormatError("a name must be a JSON string", rule="sums.name", offset=position) from error
    assert isinstance(text, str)  # noqa: S101
    return text


def check_sidecar(archive: Archive, sums: Sums, advance: Callable[[int], None], tensors: range) -> Iterator[Checked]:
    """Compares the checksums of a sidecar: of some tensors, and, if the first is one of them, of the bytes outside."""
    index = with_sidecar(archive.index, _one_source(archive).size, sums)
    yield from check_archive(Archive(index.take(np.arange(tensors.start, tensors.stop)), archive.source), advance)
    expected = parse(sums.rest)
    if tensors.start == 0 and expected.digest is not None:
        matched = _rest_digest(archive, expected.algorithm) == expected.digest
        message = "checksum mismatch in the bytes outside the tensors"
        yield Checked(None, matched, None if matched else IntegrityError(message, rule="sums.rest"))


def with_sidecar(index: Index, size: int, sums: Sums) -> Index:
    """The index with the checksums of a sidecar. They must be for a file of this size with these tensors."""
    if sums.size != size:
        raise IntegrityError(
            f"the checksums in the sidecar are for a file of {sums.size} bytes, this one has {size}: {_REWRITE}",
            rule="sums.size",
            hint=_IGNORE,
        )
    keys = list(_keys(index))
    different = next((key for key in sums.tensors.keys() ^ set(keys)), None)
    if different is not None:
        raise IntegrityError(
            f"the sidecar of checksums and the file have different tensors: {_REWRITE}",
            rule="sums.names",
            hint=_IGNORE,
            tensor=different[0],
        )
    return replace(index, checksums=[sums.tensors[key] for key in keys], checksums_decoded=None)
