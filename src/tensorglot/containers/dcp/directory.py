"""The files of a distributed checkpoint, opened when something in them is first read.

A checkpoint of 1,024 ranks has more files than a process may have open, so only the most
recently used stay open; a file that is opened again must be unchanged. A `File` represents
a file as long as the archive exists: it is the source of every box in that file.

A box is a tensor of another archive: of a rank's tensor file, or of the small `torch.save`
archive at a span of a `.distcp` file. So reading, strides and checksums of boxes work as
for any tensor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

from tensorglot.containers.dcp.checkpoint import Place, StoredTensor
from tensorglot.containers.table import HEAD_NBYTES, ReadOptions, detect
from tensorglot.containers.torchsave.files import open_zip
from tensorglot.containers.torchsave.names import ElementType, View
from tensorglot.containers.torchsave.tensors import row_of
from tensorglot.errors import FormatError, InputError, TensorglotError, TruncatedError, UnsupportedError, escape
from tensorglot.model.archive import Archive, Verifier
from tensorglot.model.builder import IndexBuilder
from tensorglot.model.lazy_source import LazySource
from tensorglot.model.payload import CheckedBy, Encoded, Source, Span
from tensorglot.model.tensor import Part
from tensorglot.threads import Lock

__all__ = ["Directory", "File", "RankFiles", "SavedItems", "Section", "box_in"]

OPEN_FILES = 64
BOXES = 4096
"""Boxes whose place in their file is cached."""
_CARRIERS = {1: "torch.uint8", 2: "torch.uint16", 4: "torch.uint32", 8: "torch.uint64", 16: "torch.complex128"}
"""For each width in bytes, the type that stands for every type of that width when elements are copied."""


class Directory(ABC):
    """The source of all tensors of a checkpoint. It has boxes, not bytes."""

    size = 0
    concurrency: int | None = None
    checked_by: ClassVar[CheckedBy] = "box"
    typed: ClassVar[bool] = True
    """Whether boxes have the element type of their tensor; otherwise they are copied as numbers of that width."""

    def __init__(self, options: ReadOptions) -> None:
        # `head` is the beginning of the index file: wrong for other files, and it would be pickled.
        self._options = options._replace(head=b"")
        self.tensors: Sequence[StoredTensor] = ()
        """Tensors of the checkpoint, with the places of their boxes in the files."""
        self._files: dict[str, File] = {}
        self._open: OrderedDict[str, Source] = OrderedDict()
        self._stamps: dict[str, object] = {}
        self._lock = Lock()
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, as the source of one tensor: the other process opens the files again; they must be unchanged."""
        return _directory_again, (type(self), self._options, self._stamps)

    @abstractmethod
    def box(self, place: Place, tensor: str, verifier: Verifier | None = None) -> Part:
        """The box at a place; `verifier`, if given, replaces the archive's."""

    def file(self, name: str) -> File:
        with self._lock:
            return self._files.setdefault(name, File(self, name))

    def open(self, name: str) -> Source:
        """The file, which is opened if it is not open."""
        with self._lock:
            if self._closed:
                raise InputError("the archive is closed", rule="archive.closed")
            found = self._open.get(name)
            if found is None:
                found = self._open[name] = self._open_file(name)
                if len(self._open) > OPEN_FILES:
                    self._open.popitem(last=False)  # may be in use, so it is closed with the last reference to it
            self._open.move_to_end(name)
            return found

    def members(self) -> list[tuple[str, int, int]]:
        """Name, size and number of tensors of each file that has tensors."""
        counts = Counter(name for tensor in self.tensors for name in {place.file for place in tensor.places})
        return [(name, self.file(name).size, count) for name, count in sorted(counts.items())]

    def span(self, place: Place, tensor: str) -> tuple[int, int] | None:
        """Begin and end of a box in its file."""
        payload = self.box(place, tensor).payload
        return (payload.begin, payload.end) if isinstance(payload, (Span, Encoded)) else None

    def path_of(self, name: str) -> str:
        """The path of a file, for errors."""
        return getattr(self._open.get(name), "path", None) or name

    def _open_file(self, name: str) -> Source:
        options = self._options
        if options.open_file is None:
            raise UnsupportedError("the tensors are in other files: open the directory by its path", rule="dcp.path")
        try:
            source = options.open_file(name)
        except FileNotFoundError as error:
            message = f"the file {escape(name)} is missing"
            raise FormatError(message, rule="dcp.file.missing", path=error.filename) from error
        except InputError as error:
            if error.rule != "source.regular":
                raise
            raise FormatError(f"{escape(name)} is {error.message}", rule="dcp.file.regular", path=error.path) from error
        stamp = getattr(source, "stamp", None)
        if self._stamps.setdefault(name, stamp) != stamp:
            path = getattr(source, "path", None)
            raise InputError("the file was changed after it was read: try again", rule="source.changed", path=path)
        return source

    def read(self, offset: int, nbytes: int) -> memoryview:
        raise TruncatedError("a directory has no bytes of its own", rule="dcp.directory", offset=offset)

    def read_into(self, offset: int, out: memoryview) -> None:
        self.read(offset, len(out))

    def read_runs(self, begins: Sequence[int], sizes: Sequence[int], offsets: Sequence[int], out: memoryview) -> None:
        self.read(0, len(out))

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        return bytes(self.read(offset, nbytes))

    def view(self, offset: int, nbytes: int) -> memoryview | None:
        return None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for source in self._open.values():
                getattr(source, "close", bool)()
            self._open.clear()


def _directory_again(kind: type[Directory], options: ReadOptions, stamps: dict[str, object]) -> Directory:
    made = kind(options)
    made._stamps = stamps
    return made


class File(LazySource):
    """A file of the directory."""

    def __init__(self, directory: Directory, name: str) -> None:
        self._directory = directory
        self.name = name

    def open(self) -> Source:
        return self._directory.open(self.name)


class Section:
    """A span of a file, as a source of its own."""

    def __init__(self, file: File, begin: int, end: int, tensor: str) -> None:
        if end > file.size:
            raise TruncatedError(
                f"{escape(file.name)} truncated: needs {end} bytes, has {file.size}",
                rule="dcp.item.end",
                offset=file.size,
                tensor=tensor,
            )
        self._file = file
        self._begin = begin
        self.size = end - begin

    @property
    def concurrency(self) -> int | None:
        return self._file.concurrency

    def _at(self, offset: int, nbytes: int) -> int:
        if offset + nbytes > self.size:
            raise TruncatedError(
                f"item truncated: needs {offset + nbytes} bytes, has {self.size}", rule="dcp.item.end", offset=self.size
            )
        return self._begin + offset

    def read(self, offset: int, nbytes: int) -> memoryview:
        return self._file.read(self._at(offset, nbytes), nbytes)

    def read_into(self, offset: int, out: memoryview) -> None:
        self._file.read_into(self._at(offset, len(out)), out)

    def read_runs(self, begins: Sequence[int], sizes: Sequence[int], offsets: Sequence[int], out: memoryview) -> None:
        placed = [self._at(begin, nbytes) for begin, nbytes in zip(begins, sizes, strict=True)]
        self._file.read_runs(placed, sizes, offsets, out)

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        return self._file.read_bytes(self._at(offset, nbytes), nbytes)

    def view(self, offset: int, nbytes: int) -> memoryview | None:
        return self._file.view(self._at(offset, nbytes), nbytes)


class RankFiles(Directory):
    """Boxes are tensors of tensor files."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._archives: dict[str, Archive] = {}

    def box(self, place: Place, tensor: str, verifier: Verifier | None = None) -> Part:
        archive = self._archives.get(place.file)
        if archive is None:
            archive = self._archives[place.file] = self._read_file(place.file)
        if verifier is not None:
            archive = Archive(archive.index, archive.source, limits=archive.limits, verifier=verifier)
        return box_in(archive, place.name, place.file, tensor)

    def _read_file(self, name: str) -> Archive:
        file = self.file(name)
        head = file.read_bytes(0, min(file.size, HEAD_NBYTES))
        spec = detect(head, file.size, name)
        if not spec.writes:
            raise UnsupportedError(f"{escape(name)} is not a tensor file of a rank", rule="dcp.file.format")
        index = spec.container.read(file, self._options._replace(version=None, name=None, open_file=None, head=head))
        return Archive(index, file, limits=self._options.limits, verifier=self._options.verifier)


def box_in(archive: Archive, name: str, where: str, tensor: str) -> Part:
    """The box that is a tensor of an archive."""
    if name not in archive:
        raise FormatError(f"{escape(where)} does not contain '{escape(name)}'", rule="dcp.box.absent", tensor=tensor)
    found = archive[name]
    if found.layout != "dense":
        raise FormatError("a box must be a dense tensor", rule="dcp.box.layout", tensor=tensor)
    return found.parts["data"]


class SavedItems(Directory):
    """Boxes and values are archives of `torch.save` at spans of files."""

    typed = False  # `_locate` compares the type in the archive

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._located = lru_cache(BOXES)(self._locate)

    def span(self, place: Place, tensor: str) -> tuple[int, int]:
        return place.begin, place.end  # includes the archive around the box, which need not be opened

    def box(self, place: Place, tensor: str, verifier: Verifier | None = None) -> Part:
        archive = self._located(place, tensor)
        if verifier is not None:
            archive = Archive(archive.index, archive.source, limits=archive.limits, verifier=verifier)
        return archive.tensor_at(0).parts["data"]

    def _locate(self, place: Place, tensor: str) -> Archive:
        """An archive of one tensor, the box."""
        if place.transforms:
            raise UnsupportedError(
                f"written with the transforms {', '.join(map(escape, place.transforms))}, which are not supported",
                rule="dcp.item.transforms",
                tensor=tensor,
            )
        file = self.file(place.file)
        try:
            item = Section(file, place.begin, place.end, tensor)
            if item.read_bytes(0, min(9, item.size))[8:] == b"{":
                raise UnsupportedError(
                    "written with serialization_format=SAFETENSORS, which is not supported",
                    rule="dcp.item.serialization",
                )
            saved = open_zip(item, self._options).located()
            view = saved.root
            if not isinstance(view, View) or view.dtype.name != place.dtype:
                raise FormatError(
                    f"the item is not a tensor of {place.dtype}, which .metadata declares", rule="dcp.item.dtype"
                )
            builder = IndexBuilder(self._options.limits, "dcp")
            carrier = view._replace(dtype=ElementType(_CARRIERS[view.dtype.itemsize]))
            builder.add(tensor, row_of(tensor, carrier, saved, self._options.limits)[0])
        except TensorglotError as error:
            if error.path is None:
                error.offset = place.begin + (error.offset or 0)
                error.path = self.path_of(place.file)
            error.tensor = tensor
            raise
        if saved.big_endian and place.dtype.startswith("torch.complex"):
            raise UnsupportedError("big-endian complex numbers are not supported", rule="dcp.byteorder", tensor=tensor)
        index = builder.index("dcp@torch")
        index = replace(index, begins=index.begins + place.begin, ends=index.ends + place.begin)
        return Archive(index, file, limits=self._options.limits, verifier=self._options.verifier)
