"""Locates the pickle and the storages in the two file formats of torch.save.

The newer format is a ZIP archive with one folder, which has `data.pkl` and a stored member
for each storage. The legacy format is five pickles (a magic number, a version, system
info, the value, the keys of the storages), then the storages, each after the count of
its elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorglot.containers.table import ReadOptions
from tensorglot.containers.torchsave.names import NAMES, Pairs, Storage
from tensorglot.containers.torchsave.opcodes import load
from tensorglot.errors import FormatError, LimitError, TruncatedError, UnsupportedError, escape
from tensorglot.model.index import Note
from tensorglot.model.payload import Source, read_many_of
from tensorglot.wire import ziparchive
from tensorglot.wire.fetch import Fetched

__all__ = ["Saved", "Span", "open_legacy", "open_zip"]

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001


@dataclass(frozen=True, slots=True)
class Span:
    """The span of a storage."""

    begin: int
    end: int
    crc32: int | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """The contents of a file: a value, and the storages that it refers to."""

    version: str
    root: Any
    pickle_nbytes: int
    storages: dict[str, Span]
    big_endian: bool
    notes: Sequence[Note] = ()


def open_zip(source: Source, options: ReadOptions) -> Saved:
    limits = options.limits
    members = ziparchive.scan(
        source.read_bytes,
        source.size,
        rule="pt",
        max_members=limits.tensors_or() + 16,
        max_directory=limits.header_or(),
        window=ziparchive.Window(source.read_bytes, source.size, read_many_of(source)),
    )
    by_name = {member.name: member for member in members}
    folder = _folder(by_name)
    main = by_name[f"{folder}data.pkl"]
    if main.nbytes > limits.header_or():
        raise LimitError(
            f"pickle of {main.nbytes} bytes exceeds Limits.header_nbytes", rule="pt.limit.header", offset=main.begin
        )
    found: dict[str, Storage] = {}
    data = Fetched(source.read_bytes, main.end, main.nbytes, "pt.pickle", main.begin)
    root = load(data, NAMES, found)
    if data.left:
        raise FormatError("trailing bytes after the pickle", rule="pt.pickle.trailing", offset=data.position)
    storages: dict[str, Span] = {}
    for key, held in found.items():
        member = by_name.get(f"{folder}data/{key}")
        if member is None:
            raise FormatError(
                f"storage '{escape(key)}' is missing in the file", rule="pt.storage.missing", offset=main.begin
            )
        if member.nbytes != held.count * held.itemsize:
            raise FormatError(
                f"size of storage '{escape(key)}' does not match its count", rule="pt.storage.size", offset=member.begin
            )
        storages[key] = Span(member.begin, member.end, member.crc32)
    unused = [name for name in by_name if name.startswith(f"{folder}data/") and name[len(folder) + 5 :] not in found]
    notes = [Note("pt.storage.unused", f"{len(unused)} storages are not used by any tensor")] if unused else []
    if options.strict and notes:
        raise FormatError(notes[0].message, rule=notes[0].rule)
    return Saved("zip", root, main.nbytes, storages, _big_endian(source, by_name.get(f"{folder}byteorder")), notes)


def _folder(members: dict[str, ziparchive.Member]) -> str:
    """Returns the only top-level folder, with its slash."""
    folders = {name.partition("/")[0] for name in members}
    folder = f"{next(iter(folders), '')}/"
    if len(folders) != 1 or f"{folder}data.pkl" not in members:
        raise FormatError("not a file of torch.save: the ZIP archive has no data.pkl", rule="pt.zip.folder", offset=0)
    if f"{folder}constants.pkl" in members or any(name.startswith(f"{folder}code/") for name in members):
        raise UnsupportedError(
            "TorchScript archives are programs and are not supported; save the state_dict instead", rule="pt.script"
        )
    for name, member in members.items():
        if member.method != ziparchive.STORED:
            raise UnsupportedError(
                f"compressed ZIP member '{escape(name)}' is not supported", rule="pt.zip.method", offset=member.begin
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
    return Saved("legacy", root, pickle_nbytes, _locate(source, data.position, keys, found), big_endian)


def _locate(source: Source, position: int, keys: list[str], found: dict[str, Storage]) -> dict[str, Span]:
    """Locates the storages, which are contiguous up to the end of the file."""
    storages: dict[str, Span] = {}
    for key in keys:
        held = found[key]
        begin = position + 8
        end = begin + held.count * held.itemsize
        if end > source.size:
            raise TruncatedError(
                f"file truncated: needs {end} bytes, has {source.size}", rule="pt.storage.end", offset=position
            )
        if int.from_bytes(source.read(position, 8), "little") != held.count:
            raise FormatError(
                f"size of storage '{escape(key)}' does not match its count", rule="pt.storage.size", offset=position
            )
        storages[key] = Span(begin, end)
        position = end
    if position != source.size:
        raise FormatError("trailing bytes after the last storage", rule="pt.storage.trailing", offset=position)
    return storages


def _system_big_endian(info: Any) -> bool:
    """Reads the byte order from the system info of the legacy format."""
    if type(info) is Pairs:
        for key, value in zip(info[::2], info[1::2], strict=True):
            if key == "little_endian" and type(value) is bool:
                return not value
    raise FormatError("the legacy format lacks a byte order", rule="pt.byteorder")
