"""Locates the pickle and the storages in the two file formats of torch.save.

The newer format is a ZIP archive with one folder, which has `data.pkl` and a stored member
for each storage. The legacy format is five pickles (a magic number, a version, system
info, the value, the keys of the storages), then the storages, each after the count of
its elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tensorglot.containers.table import ReadOptions
from tensorglot.containers.torchsave.names import NAMES, Pairs, Storage
from tensorglot.containers.torchsave.opcodes import load
from tensorglot.errors import FormatError, TruncatedError, UnsupportedError, escape
from tensorglot.model.index import Note
from tensorglot.model.payload import Source, read_many_of
from tensorglot.tuples import NamedTuple
from tensorglot.wire import ziparchive
from tensorglot.wire.fetch import Fetched

__all__ = ["Headers", "Saved", "Span", "open_legacy", "open_zip"]

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
COUNT_NBYTES = 8


class Span(NamedTuple):
    """The span of a storage."""

    begin: int
    end: int
    crc32: int | None = None

    def moved(self, shift: int) -> Span:
        return Span(self.begin + shift, self.end + shift, self.crc32)


@dataclass(frozen=True, slots=True)
class Saved:
    """The contents of a file: a value, and the storages that it refers to."""

    version: str
    root: Any
    pickle_nbytes: int
    storages: dict[str, Span]
    """Each as if it began where the header before it does; see `located`."""
    headers: Headers
    big_endian: bool
    notes: Sequence[Note] = ()

    def located(self) -> Saved:
        """The same with the spans of the storages themselves."""
        shifts = self.headers.read()
        return replace(self, storages={key: span.moved(shifts[key]) for key, span in self.storages.items()})


class Headers(Protocol):
    """What is before each storage."""

    far_apart: bool

    def read(self, keys: Iterable[str] | None = None) -> dict[str, int]:
        """Reads the headers of some storages, in the order of the file, or of all, used or not; returns their sizes.

        A header that contradicts what is known of its storage is an error.
        """
        ...


def open_zip(source: Source, options: ReadOptions) -> Saved:
    limits = options.limits
    directory = ziparchive.read_directory(
        source.read_bytes,
        source.size,
        rule="pt",
        max_members=limits.tensors_or() + 16,
        max_directory=limits.header_or(),
    )
    folder = _folder(directory)
    prefix = f"{folder}data/"
    positions = {name[len(prefix) :]: at for at, name in enumerate(directory.names) if name.startswith(prefix)}
    others = [at for at, name in enumerate(directory.names) if not name.startswith(prefix)]
    by_name = {member.name: member for member in directory.locate(_window(source), others)}
    main = by_name[f"{folder}data.pkl"]
    limits.check_header(main.nbytes, "pickle", rule="pt.limit.header", offset=main.begin)
    found: dict[str, Storage] = {}
    data = Fetched(source.read_bytes, main.end, main.nbytes, "pt.pickle", main.begin)
    root = load(data, NAMES, found)
    if data.left:
        raise FormatError("trailing bytes after the pickle", rule="pt.pickle.trailing", offset=data.position)
    storages: dict[str, Span] = {}
    for key, held in found.items():
        if key not in positions:
            raise FormatError(
                f"storage '{escape(key)}' is missing in the file", rule="pt.storage.missing", offset=main.begin
            )
        entry = directory.entries[positions[key]]
        if entry.nbytes != held.size * held.itemsize:
            raise FormatError(
                f"size of storage '{escape(key)}' does not match its count", rule="pt.storage.size", offset=entry.offset
            )
        storages[key] = Span(entry.offset, entry.offset + entry.nbytes, entry.crc32)
    unused = len(positions.keys() - found.keys())
    notes = [Note("pt.storage.unused", f"{unused} storages are not used by any tensor")] if unused else []
    if options.strict and notes:
        raise FormatError(notes[0].message, rule=notes[0].rule)
    big_endian = _big_endian(source, by_name.get(f"{folder}byteorder"))
    return Saved("zip", root, main.nbytes, storages, _LocalHeaders(source, directory, positions), big_endian, notes)


def _window(source: Source) -> ziparchive.Window:
    return ziparchive.Window(source.read_bytes, source.size, read_many_of(source))


class _LocalHeaders:
    """The local headers of the ZIP archive, which have padding of any size."""

    def __init__(self, source: Source, directory: ziparchive.Directory, positions: dict[str, int]) -> None:
        self._directory = directory
        self._positions = positions
        self._window = _window(source)
        self.far_apart = directory.is_sparse()

    def read(self, keys: Iterable[str] | None = None) -> dict[str, int]:
        keys = list(self._positions if keys is None else keys)
        chosen = [self._positions[key] for key in keys]
        entries, members = self._directory.entries, self._directory.locate(self._window, chosen)
        return {key: member.begin - entries[at].offset for key, at, member in zip(keys, chosen, members, strict=True)}


def _folder(directory: ziparchive.Directory) -> str:
    """Returns the only top-level folder, with its slash."""
    names = directory.names
    folders = {name.partition("/")[0] for name in names}
    folder = f"{next(iter(folders), '')}/"
    if len(folders) != 1 or f"{folder}data.pkl" not in names:
        raise FormatError("not a file of torch.save: the ZIP archive has no data.pkl", rule="pt.zip.folder", offset=0)
    if f"{folder}constants.pkl" in names or any(name.startswith(f"{folder}code/") for name in names):
        raise UnsupportedError(
            "TorchScript archives are programs and are not supported; save the state_dict instead", rule="pt.script"
        )
    for name, entry in zip(names, directory.entries, strict=True):
        if entry.method != ziparchive.STORED:
            raise UnsupportedError(
                f"compressed ZIP member '{escape(name)}' is not supported", rule="pt.zip.method", offset=entry.offset
            )
    return folder


def _big_endian(source: Source, member: ziparchive.Member | None) -> bool:
    if member is None:
        return False
    order = source.read_bytes(member.begin, min(member.nbytes, 8))
    if order not in (b"little", b"big"):
        raise FormatError("byte order must be little or big", rule="pt.byteorder", offset=member.begin)
    return order == b"big"


def open_legacy(source: Source, options: ReadOptions) -> Saved:
    data = Fetched(source.read_bytes, source.size, options.limits.header_or(), "pt.pickle")
    found: dict[str, Storage] = {}
    if source.size < 14 or load(data, {}, found) != MAGIC:
        raise FormatError("not a file of torch.save: wrong magic number", rule="pt.magic", offset=0)
    version = load(data, {}, found)
    if type(version) is not int or version != PROTOCOL:
        raise UnsupportedError(
            f"unsupported version of the legacy format (supported: {PROTOCOL})", rule="pt.version", offset=data.position
        )
    big_endian = _system_big_endian(load(data, {}, found))
    begin = data.position
    root = load(data, NAMES, found)
    pickle_nbytes = data.position - begin
    keys = load(data, {}, found)
    if type(keys) is not list or not all(type(key) is str for key in keys) or len(set(keys)) < len(keys):
        raise FormatError("storage keys are not a list of unique strings", rule="pt.storage.keys", offset=begin)
    if set(keys) != set(found):
        raise FormatError("storage keys do not match the storages of the tensors", rule="pt.storage.keys", offset=begin)
    storages = _locate(source, data.position, keys, found)
    return Saved("legacy", root, pickle_nbytes, storages, _Counts(source, storages, found), big_endian)


def _locate(source: Source, position: int, keys: list[str], found: dict[str, Storage]) -> dict[str, Span]:
    """The storages, each after its count, are contiguous up to the end of the file."""
    storages: dict[str, Span] = {}
    for key in keys:
        held = found[key]
        nbytes = held.size * held.itemsize
        end = position + COUNT_NBYTES + nbytes
        if end > source.size:
            raise TruncatedError(
                f"file truncated: needs {end} bytes, has {source.size}", rule="pt.storage.end", offset=position
            )
        storages[key] = Span(position, position + nbytes)
        position = end
    if position != source.size:
        raise FormatError("trailing bytes after the last storage", rule="pt.storage.trailing", offset=position)
    return storages


class _Counts:
    """The number of elements before each storage of the legacy format."""

    def __init__(self, source: Source, storages: Mapping[str, Span], found: Mapping[str, Storage]) -> None:
        self._source = source
        self._places = {key: (span.begin, found[key].size) for key, span in storages.items()}
        self._compared: set[str] = set()
        self.far_apart = source.size >= len(storages) * ziparchive.APART_NBYTES

    def read(self, keys: Iterable[str] | None = None) -> dict[str, int]:
        keys = list(self._places if keys is None else keys)
        new = [key for key in keys if key not in self._compared]
        read_many = read_many_of(self._source) or self._read_each
        counts = read_many([self._places[key][0] for key in new], [COUNT_NBYTES] * len(new))
        for key, data in zip(new, counts, strict=True):
            begin, count = self._places[key]
            if int.from_bytes(data, "little") != count:
                raise FormatError(
                    f"size of storage '{escape(key)}' does not match its count", rule="pt.storage.size", offset=begin
                )
        self._compared.update(new)
        return dict.fromkeys(keys, COUNT_NBYTES)

    def _read_each(self, begins: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        return [self._source.read_bytes(begin, nbytes) for begin, nbytes in zip(begins, sizes, strict=True)]


def _system_big_endian(info: Any) -> bool:
    """Reads the byte order from the system info of the legacy format."""
    if type(info) is Pairs:
        for key, value in zip(info[::2], info[1::2], strict=True):
            if key == "little_endian" and type(value) is bool:
                return not value
    raise FormatError("the legacy format lacks a byte order", rule="pt.byteorder")
