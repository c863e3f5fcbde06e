"""The table of formats: the spec of each, and the detection of the format of a file.

A format is a module with a `CONTAINER` (its dtype codes, `read(source, options) -> Index`,
`write(archive, options) -> iterator of chunks`, and optional operations), and its spec
here. The module is imported on first use. Nothing outside it knows the format.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tensorglot.errors import FormatError, Hint, InputError, UnsupportedError, did_you_mean, escape
from tensorglot.limits import DEFAULT, HEADER_NBYTES_MAX, TENSORS_MAX, Limits
from tensorglot.model.archive import Archive, Verifier
from tensorglot.model.dtypes import DType
from tensorglot.model.index import Index
from tensorglot.model.payload import Chunk, Codec, Source
from tensorglot.providers import provided
from tensorglot.tuples import NamedTuple

if TYPE_CHECKING:
    from tensorglot.model.deferred import Outline

__all__ = [
    "HEAD_NBYTES",
    "TABLE",
    "UNNAMED",
    "Container",
    "Fault",
    "Format",
    "Formats",
    "PerTensor",
    "ReadOptions",
    "Revision",
    "TensorFault",
    "WriteOptions",
    "check_header",
    "detect",
    "for_target",
    "formats",
    "holders_of",
    "named",
    "shape_faults",
    "unsupported_dtype",
]


class ReadOptions(NamedTuple):
    """Options for reading. A version of None means any."""

    version: str | None = None
    strict: bool = False
    limits: Limits = DEFAULT
    name: str | None = None
    """File name of the source, for formats of several files."""
    open_file: Callable[[str], Source] | None = None
    """Opens another file in the same folder, by its name."""
    verifier: Verifier | None = None
    """For formats of several files: compares checksums of tensors in the other files."""
    head: bytes = b""
    """The first bytes of the source, if they have been read to detect the format."""


class PerTensor(NamedTuple):
    """A choice for all tensors of a file, with exceptions by name."""

    default: str | None = None
    exceptions: Mapping[str, str | None] = {}

    def of(self, name: str) -> str | None:
        return self.exceptions.get(name, self.default)

    @property
    def choices(self) -> frozenset[str]:
        """All choices other than None."""
        return frozenset(choice for choice in (self.default, *self.exceptions.values()) if choice is not None)


class WriteOptions(NamedTuple):
    """Options for writing."""

    version: str
    compression: PerTensor = PerTensor()
    level: int | None = None
    checksum: PerTensor = PerTensor()


class Revision(NamedTuple):
    """New contents for an existing file."""

    names: Sequence[str]
    """Names of all tensors, in their new order."""
    added: Archive
    """The tensors to add or replace; the others stay."""
    metadata: Mapping[str, Any] | None
    options: WriteOptions
    """Options for the added tensors."""


class RowsFirst(NamedTuple):
    """A file in two steps: first the rows, then the index, which needs digests that were computed meanwhile."""

    chunks: Iterator[Chunk]
    """The file up to the index; rows as `Archive.chunks` yields them."""
    algorithms: Sequence[str | None] = ()
    """The checksum algorithm of each row."""
    end: Callable[[Sequence[bytes]], Iterator[Chunk]] = lambda digests: iter(())
    """The rest of the file, from the digest of each row; an empty digest for a row without a checksum."""


class Fault(NamedTuple):
    """Why a tensor cannot be stored."""

    rule: str
    """`name`, or what else of the tensor it is."""
    message: str

    def error(self, format: str, tensor: str) -> UnsupportedError:
        return UnsupportedError(self.message, rule=f"{format}.write.{self.rule}", tensor=tensor)


def shape_faults(index: Index) -> dict[int, Fault]:
    """Empty rows whose other dimensions have more bytes than an array can: most readers refuse them."""
    faults = {}
    for row, shape in enumerate(() if index.dims.all() else index.shapes):
        if 0 in shape and math.prod(filter(None, shape)) * _itemsize(index.dtype(row)) >= 1 << 63:
            text = f"no array has shape {list(shape)}: it is empty, but its other dimensions have 2**63 bytes or more"
            faults[row] = Fault("shape", text)
    return faults


def _itemsize(dtype: DType | None) -> int:
    return 1 if dtype is None or dtype.numpy is None else dtype.numpy.itemsize


TensorFault: TypeAlias = Callable[[str, tuple[int, ...], DType | None, str], Fault | None]
"""By name, shape, element type and version."""


class Container(NamedTuple):
    """What the module of a format provides: its dtype codes, its two functions, and optional operations."""

    dtypes: Mapping[Any, str]
    """Our dtype name by the format's code."""
    read: Callable[[Source, ReadOptions], Index]
    write: Callable[[Archive, WriteOptions], Iterator[Chunk]] | None = None
    outline: Callable[[Source, ReadOptions], Outline | None] | None = None
    """What few requests can tell of a file at a server; None if `read` needs no more requests."""
    edit: Callable[[Archive, Mapping[str, Any]], Iterator[Chunk]] | None = None
    """Replaces the metadata without rewriting the tensors."""
    revise: Callable[[Archive, Revision], Iterator[Chunk]] | None = None
    """Drops, replaces and adds tensors, copying the stored bytes of the others."""
    append: Callable[[Archive, Revision], Iterator[Chunk] | None] | None = None
    """The same by appending to the file, whose old bytes do not change; for the versions in `Format.appends`.

    None if more than half of the file would be unused afterwards, so that a copy is better.
    The last chunk is the new footer, as long as the old one and within one sector: if the old
    footer is written in its place, the file has the old tensors (`io.in_place.append_tail`).
    """
    inspect: Callable[[Archive], Iterable[FormatError]] = lambda archive: ()
    """Finds errors that opening the file does not find."""
    content_digest: Callable[[Archive], str | None] = lambda archive: None
    """The format's digest of all tensors."""
    dtypes_in: Callable[[str], Collection[str]] | None = None
    """Supported dtypes by version, if versions differ."""
    keeps: Callable[[str, str], bool] = lambda version, unknown: False
    """Whether a version can store elements of an unknown dtype under its name in the file."""
    copies: Callable[[Codec], bool] = lambda codec: False
    """Whether bytes in an encoding that cannot be decoded can be stored as they are."""
    metadata_faults: Callable[[Mapping[str, Any], str], Mapping[str, str]] = lambda metadata, version: {}
    """Keys of metadata that a version cannot store, each with the reason; for formats that store most values."""
    attribute_faults: Callable[[Mapping[str, Any], str | None, str], Mapping[str, str]] = lambda *arguments: {}
    """The same for attributes, the element type of their tensor (None if it is not dense), and a version."""
    tensor_fault: TensorFault | None = None
    """Why a version cannot store a tensor of this name, shape and type, although it supports type and layout."""
    rows_first: Callable[[Archive, WriteOptions], RowsFirst | None] | None = None
    """The file in two steps, for formats with raw rows followed by an index with their checksums.

    None if offsets depend on values, because tensors are compressed or equal contents share a blob.
    """
    raw_rows: bool = False
    """Rows are written as `Archive.chunks` yields them, and the rest of the file depends on the index alone."""
    tensors_max: int = TENSORS_MAX
    header_nbytes_max: int = HEADER_NBYTES_MAX
    """Default limits for reading."""


class Format(NamedTuple):
    """The spec of one format, available without importing its module."""

    name: str
    versions: tuple[str, ...]
    """Versions that can be read."""
    writes: tuple[str, ...]
    """Versions that can be written, the default first."""
    suffixes: tuple[str, ...]
    appends: tuple[str, ...] = ()
    """Versions whose tensors can be changed in place."""
    magic: tuple[bytes, ...] = ()
    pattern: bytes = b""
    """A regular expression for the first HEAD_NBYTES, if the format has no unique magic."""
    names: bool = True
    """Tensors have names. A format without names holds one tensor, which is read as UNNAMED."""
    metadata: Literal["none", "text", "any"] = "none"
    attributes: bool = False
    ties: bool = False
    """Two tensors may share their bytes."""
    compression: tuple[str, ...] = ()
    checksums: tuple[str, ...] = ()
    fast_checksums: Mapping[str, str] = {}
    """Default checksum by version."""
    version_checksums: Mapping[str, tuple[str, ...]] = {}
    """Per-version override of `checksums`."""
    layouts: tuple[str, ...] = ("dense",)
    """Supported layouts, or shell patterns of them."""
    notes: Mapping[str, str] = {}
    """Packages that read or write it, by version."""

    @property
    def container(self) -> Container:
        """The `CONTAINER` of its module, which is imported on first use."""
        found = _LOADED.get(self.name)
        if found is None:
            found = _LOADED[self.name] = import_module(f"tensorglot.containers.{self.name}").CONTAINER
        return found

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Names of the supported dtypes, sorted."""
        return tuple(sorted(set(self.container.dtypes.values())))

    def dtypes_in(self, version: str) -> frozenset[str]:
        """Names of the dtypes that a version supports."""
        by_version = self.container.dtypes_in
        return frozenset(self.container.dtypes.values() if by_version is None else by_version(version))

    @property
    def most_tensors(self) -> int:
        """Default limit on the number of tensors when reading."""
        return DEFAULT.tensors_or(self.container.tensors_max)

    def holds_layout(self, layout: str) -> bool:
        """Whether tensors of a layout can be stored."""
        return any(fnmatchcase(layout, pattern) for pattern in self.layouts)

    def write(self, archive: Archive, options: WriteOptions) -> Iterator[Chunk]:
        """The bytes of a file with the tensors of an archive, in a version of `writes`."""
        write = self.container.write
        assert write is not None  # noqa: S101
        return write(archive, options)

    def checksums_in(self, version: str) -> tuple[str, ...]:
        """Checksums that a version supports."""
        return self.version_checksums.get(version, self.checksums)

    def to_dict(self) -> dict[str, Any]:
        """The spec as `json.dumps` takes it."""
        listed = ("suffixes", "dtypes", "compression", "checksums", "layouts")
        return {
            "name": self.name,
            "reads": list(self.versions),
            "writes": list(self.writes),
            **{key: list(getattr(self, key)) for key in listed},
            **{key: getattr(self, key) for key in ("names", "metadata", "attributes", "ties")},
            "notes": dict(self.notes),
        }


class Formats(tuple[Format, ...]):
    """The specs of formats, with a table in notebooks."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        columns = ("format", "suffixes", "reads", "writes", "metadata", "compression", "checksums")
        rows = (
            (
                spec.name,
                *map(" ".join, (spec.suffixes, spec.versions, spec.writes)),
                spec.metadata,
                *map(" ".join, (spec.compression, spec.checksums)),
            )
            for spec in self
        )
        return provided("report.table")("Formats", columns, rows, len(self))  # type: ignore[no-any-return]


_SPECS: tuple[Format, ...] = (
    Format(
        name="bintensors",
        versions=("0", "1"),
        writes=("0", "1"),
        suffixes=(".bt",),
        metadata="text",
        notes={
            "0": "the published document; read by bintensors 0.0.4 and 0.0.5",
            "1": "read by bintensors 0.1.0 to 0.2.0",
        },
    ),
    Format(
        name="ztensor",
        versions=("0.1", "1.0", "1.1", "1.2", "2"),
        writes=("0.1", "2"),
        appends=("2",),
        suffixes=(".zt",),
        magic=(b"ZTEN", b"\x89ZT"),  # common to all versions, future ones included
        metadata="any",
        attributes=True,
        ties=True,
        compression=("zstd",),
        checksums=("crc32c", "sha256", "xxh3", "frame"),
        version_checksums={"0.1": ("crc32c", "sha256", "frame"), "2": ("xxh3", "sha256", "frame")},
        fast_checksums={"0.1": "crc32c", "2": "xxh3"},
        layouts=("dense", "*"),
        notes={
            "0.1": "the published document; read by ztensor 0.1.0 to 1.2.3",
            "1.0": "written by ztensor 1.0",
            "1.1": "written by ztensor 1.0.2 and 1.1",
            "1.2": "written by ztensor 1.2",
            "2": "read by ztensor 2",
        },
    ),
    Format(
        name="bson",
        versions=("1.1",),
        writes=("1.1",),
        suffixes=(".bson",),
        pattern=rb"\x1f\x8b\x08[\0-\x1f].{4}[\0\2\4][\0-\x13\xff]",  # gzip; the magic alone may be a length
        notes={"1.1": "a vector for each row; read by mongorestore, bsondump and every driver"},
    ),
    Format(
        name="safetensors",
        versions=("1",),
        writes=("1",),
        suffixes=(".safetensors",),
        pattern=rb".{4}\0{4}\{",
        metadata="text",
        notes={"1": "read by every safetensors package; float4, float8_e8m0fnu and complex64 by 0.6 and newer"},
    ),
    Format(
        name="npz",
        versions=("1",),
        writes=("1",),
        suffixes=(".npz",),
        magic=(b"PK\5\6",),
        pattern=rb"PK\x03\x04.{26}[^\0]*?(?:\.npy|\Z)",  # a name may be longer than what is read here
        metadata="any",
        compression=("deflate",),
        checksums=("crc32",),
        notes={
            "1": "read by NumPy; types of ml_dtypes as a struct of one field with their name; metadata as a comment"
        },
    ),
    Format(
        name="npy",
        versions=("1",),
        writes=("1",),
        suffixes=(".npy",),
        magic=(b"\x93NUMPY",),
        names=False,
        notes={"1": "one array, without its name; read by NumPy, types of ml_dtypes as in npz"},
    ),
    Format(
        name="gguf",
        versions=("2", "3"),
        writes=("3",),
        suffixes=(".gguf",),
        magic=(b"GGUF",),
        metadata="any",
        layouts=("dense", "gguf.*"),
        notes={
            "2": "written by older tools of llama.cpp",
            "3": "read by llama.cpp and gguf; names are kept, not mapped to those of an architecture",
        },
    ),
    Format(
        name="pt",
        versions=("zip", "legacy"),
        writes=(),
        suffixes=(".pt", ".pth", ".bin"),
        magic=(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",),
        pattern=rb"PK\x03\x04.{26}[^/]*/data\.pkl",
        metadata="any",
        layouts=("dense", "zt.sparse_coo/1", "zt.sparse_csr/1", "zt.quant_group/1"),
        notes={"zip": "written by torch.save since 1.6", "legacy": "written by torch.save before"},
    ),
    Format(
        name="onnx",
        versions=("1",),
        writes=(),
        suffixes=(".onnx",),
        metadata="any",
        layouts=("dense", "zt.sparse_coo/1"),
        notes={"1": "the initializers of a model, in the file or beside it"},
    ),
    Format(
        name="hdf5",
        versions=("1",),
        writes=(),
        suffixes=(".h5", ".hdf5", ".keras"),
        magic=(b"\x89HDF\r\n\x1a\n",),
        pattern=rb"PK\x03\x04.{26}metadata\.json",
        metadata="any",
        ties=True,
        notes={"1": "what h5py and Keras write by default: datasets by their paths"},
    ),
    Format(
        name="dcp",
        versions=("torch", "json"),
        writes=(),
        suffixes=(),
        magic=(b'{"tensorglot":"dcp"',),
        pattern=rb"\x80[\x02-\x05].{0,16}torch\.distributed\.checkpoint\.metadata",
        metadata="any",
        notes={
            "torch": "a directory of torch.distributed.checkpoint",
            "json": "a directory of tensorglot.bridges.dcp, which writes it",
        },
    ),
    Format(
        name="dynd",
        versions=("1",),
        writes=("1",),
        suffixes=(".dynd",),
        layouts=("dense", "nested"),
        notes={"1": "a DyND array[Any]; read by tensorglot"},
    ),
    Format(
        name="delta",
        versions=("1",),
        writes=(),
        suffixes=(".tgdelta",),
        magic=(b"tgdelta1",),
        metadata="any",
        attributes=True,
        ties=True,
        checksums=("xxh3",),
        layouts=("dense", "*"),
        notes={"1": "what tg.store.delta writes and tg.store.apply reads"},
    ),
)
TABLE = Formats(_SPECS)
STORE = Format(
    name="store",
    versions=("1",),
    writes=(),
    suffixes=(),
    metadata="any",
    attributes=True,
    ties=True,
    layouts=("*",),
    notes={"1": "a commit of a store, opened as store://path#ref"},
)
"""The spec of archives that are not files, so it is not in the table."""
UNNAMED = "data"
"""Name of the tensor of a file without names."""
_LOADED: dict[str, Container] = {}
HEAD_NBYTES = 4096
"""Bytes read to detect the format: most often also the whole header."""
_BY_NAME = {spec.name: spec for spec in (*_SPECS, STORE)}
_BY_SUFFIX = {suffix: spec for spec in reversed(_SPECS) for suffix in spec.suffixes}
"""The first spec in the table that has the suffix."""


def formats() -> Formats:
    """The table of formats, with what each can read, write and hold."""
    return TABLE


def named(text: str) -> tuple[Format, str | None]:
    """`bintensors`, `bintensors@1` or a suffix (`bt`, `zt@2`) to a spec and a version."""
    if not isinstance(text, str):
        raise InputError(f"a format is a str like 'ztensor@2', not {type(text).__name__}", rule="format.name")
    name, _, version = text.partition("@")
    spec = _BY_NAME.get(name) or next((spec for spec in TABLE if f".{name}" in spec.suffixes), None)
    if spec is None:
        known = [spec.name for spec in TABLE]
        raise InputError(
            f"unknown format '{escape(name)}' (known: {', '.join(known)}){did_you_mean(name, known)}",
            rule="format.name",
        )
    if version and version not in spec.versions:
        raise InputError(
            f"unknown version '{version}' of {name} (known: {', '.join(spec.versions)})", rule="format.version"
        )
    return spec, version or None


def for_target(target: object, format: str | None) -> tuple[Format, str]:
    """The spec and version to write: as named, or by the suffix of the target, if that is a path."""
    path = os.fsdecode(target) if isinstance(target, (str, os.PathLike)) else ""
    named_in_errors = None if "://" in path else path or None  # a URL may have credentials
    if format is not None:
        spec, version = named(format)
    else:
        from pathlib import Path  # here, because saving needs it and loading does not

        suffix = Path(path).suffix.lower()
        found = [spec for spec in TABLE if suffix in spec.suffixes and spec.writes]
        if not found:
            read = next((spec.name for spec in TABLE if suffix in spec.suffixes), None)
            if read is not None:
                raise _not_written(read, named_in_errors)
            known = ", ".join(s for spec in TABLE if spec.writes for s in spec.suffixes)
            hint = Hint("pass format=", "pass --to FORMAT")
            if suffix:
                what = f"no format has the suffix '{suffix}'"
            elif path:
                what = "the target has no suffix that names a format"
            else:
                raise InputError(f"pass format= (known: {_written_names()})", rule="format.suffix")
            raise InputError(f"{what} (known: {known})", rule="format.suffix", hint=hint, path=named_in_errors)
        spec, version = found[0], None
    chosen = version or (spec.writes[0] if spec.writes else "")
    if chosen not in spec.writes:
        versions = ", ".join(f"{spec.name}@{version}" for version in spec.writes)
        raise _not_written(f"{spec.name}@{chosen}" if versions else spec.name, named_in_errors, versions)
    return spec, chosen


def _not_written(format: str, path: str | None = None, written: str = "") -> InputError:
    what = f"{format} can be read, not written (written: {written or _written_names()})"
    return InputError(what, rule="format.write", path=path)


def _written_names() -> str:
    return ", ".join(spec.name for spec in TABLE if spec.writes)


def holders_of(layout: str) -> str:
    """The formats that can store tensors of a layout, for messages; "" if there is none."""
    found = [spec.name for spec in TABLE if spec.writes and spec.holds_layout(layout)]
    return f" (formats that can: {', '.join(found)})" if found else ""


def unsupported_dtype(format: str, index: Index, row: int) -> UnsupportedError:
    """The error for a tensor of one row whose dtype a format does not support."""
    supported = ", ".join(_BY_NAME[format].dtypes)
    return UnsupportedError(
        f"{format} does not support {index.dtype_name(row)} (supported: {supported})",
        rule=f"{format}.write.dtype",
        tensor=index.names[row],
    )


def check_header(nbytes: int, format: str) -> None:
    """Refuses to write a header, index or manifest that a reader would refuse by default."""
    most = DEFAULT.header_or(_BY_NAME[format].container.header_nbytes_max)
    if nbytes > most:
        raise UnsupportedError(
            f"header of {nbytes} bytes exceeds the default limit of readers ({most})", rule=f"{format}.write.header"
        )


@cache
def _beginnings() -> re.Pattern[bytes]:
    """How files of each format begin; the group has the name of the format."""
    return re.compile(
        b"|".join(
            b"(?P<%s>%s)"
            % (spec.name.encode(), b"|".join([*map(re.escape, spec.magic), *filter(None, [spec.pattern])]))
            for spec in TABLE
            if spec.magic or spec.pattern
        ),
        re.S,
    )


def detect(head: bytes, size: int, path: str | None) -> Format:
    """The format of a source of `size` bytes, from its first HEAD_NBYTES and its name.

    Detected by magic or pattern, else by suffix, else by a plausible length field, because
    BinTensors and BSON have no magic.
    """
    found = _beginnings().match(head)
    if found is not None:
        return _BY_NAME[str(found.lastgroup)]
    # `os.path.splitext` would be a fifth of the instructions of this function. Dots at the begin hide a file.
    _, dot, suffix = ("" if path is None else path.lstrip(".")).rpartition(".")
    named = _BY_SUFFIX.get(f"{dot}{suffix.lower()}")
    if named is not None:
        return named
    if len(head) >= 8 and 0 < int.from_bytes(head[:8], "little") <= size - 8:
        return _BY_NAME["bintensors"]
    if len(head) >= 5 and 5 <= int.from_bytes(head[:4], "little") <= size and head[4] in range(0x14):
        return _BY_NAME["bson"]
    if not size:
        raise FormatError("the file is empty", rule="format.unknown", offset=0)
    hdf5 = _BY_NAME["hdf5"]
    if any(head[at : at + 8] in hdf5.magic for at in (512, 1024, 2048)):  # after a user block, as MATLAB writes it
        return hdf5
    known = ", ".join(spec.name for spec in TABLE)
    hint = Hint(
        "pass format= (source_format= to convert) if it is one of them",
        "pass --format NAME (--from NAME to convert) if it is one of them",
    )
    raise FormatError(f"unknown file format (known: {known})", rule="format.unknown", offset=0, hint=hint)
