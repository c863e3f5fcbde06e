"""The objects in `.metadata`: the classes that are allowed, and their fields. No class is instantiated.

Besides what any file of torch.save may contain, the pickle refers to eight classes of
`torch.distributed.checkpoint.metadata`, one of `filesystem`, a layout and a path. An
object of such a class becomes a `Record`: its class and a few named fields. The opcodes
that create objects (NEWOBJ, BUILD) are interpreted for these classes only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tensorglot.containers.torchsave.names import DTYPES, NAMES, QUANTIZED, ElementType, Pairs
from tensorglot.containers.torchsave.opcodes import interpret
from tensorglot.errors import FormatError, UnsupportedError, escape
from tensorglot.kernels.pickle_steps import BUILD, NEWOBJ
from tensorglot.wire.fetch import Fetched

__all__ = ["Record", "load_records"]


@dataclass(frozen=True, slots=True)
class RecordClass:
    """A class that is allowed, and its fields."""

    name: str
    fields: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Record:
    """An object: its class and its state."""

    kind: RecordClass
    state: dict[str, Any] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        return self.state.get(name)


_PROPERTIES = "TensorProperties"
_ENCODING = "_MEM_FORMAT_ENCODING"
_CLASSES: dict[str, tuple[str, ...]] = {
    "Metadata": ("state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version"),
    "TensorStorageMetadata": ("properties", "size", "chunks"),
    _PROPERTIES: ("dtype", "layout", "requires_grad", "memory_format", "pin_memory"),
    "ChunkStorageMetadata": ("offsets", "sizes"),
    "BytesStorageMetadata": (),
    "MetadataIndex": ("fqn", "offset", "index"),
    "StorageMeta": ("checkpoint_id", "save_id", "load_id", "modules"),
}
_STORAGE_INFO = ("relative_path", "offset", "length", "transform_descriptors")


def _layout(arguments: tuple[Any, ...]) -> str:
    if arguments != ("torch.strided",):
        raise UnsupportedError("only strided tensors are supported", rule="dcp.layout")
    return "strided"


def _memory_format(arguments: tuple[Any, ...]) -> int:
    if len(arguments) != 1 or type(arguments[0]) is not int or not 0 <= arguments[0] <= 2:
        raise FormatError("the memory format of a tensor must be 0, 1 or 2", rule="dcp.memory_format")
    return arguments[0]


def _path(arguments: tuple[Any, ...]) -> None:
    """The path that the checkpoint was written to, which is not used."""


_NAMES: dict[str, Any] = {
    **{name: NAMES[name] for name in ("torch.Size", *DTYPES, "torch.complex32")},
    **{name: ElementType(name) for name in QUANTIZED},
    "torch.serialization._get_layout": _layout,
    **dict.fromkeys(("pathlib.PosixPath", "pathlib._local.PosixPath", "pathlib.WindowsPath"), _path),
    "torch.distributed.checkpoint.filesystem._StorageInfo": RecordClass("_StorageInfo", _STORAGE_INFO),
    f"torch.distributed.checkpoint.metadata.{_ENCODING}": _memory_format,
    **{f"torch.distributed.checkpoint.metadata.{name}": RecordClass(name, fields) for name, fields in _CLASSES.items()},
}


def _new_object(kind: Any, arguments: Any) -> Record:
    if not isinstance(kind, RecordClass) or arguments != ():
        raise FormatError("NEWOBJ needs a class that is allowed and no arguments", rule="pt.pickle.call")
    return Record(kind)


def _build(target: Any, state: Any) -> Record:
    """Sets the state of an object: a dict of its fields, or for TensorProperties a tuple."""
    if type(target) is not Record:
        raise FormatError("BUILD needs an object", rule="pt.pickle.stack")
    fields = target.kind.fields
    if target.kind.name == _PROPERTIES and type(state) is tuple and len(state) == len(fields):
        target.state = dict(zip(fields, state, strict=True))
        return target
    if type(state) is not Pairs or len(state) > 2 * len(fields):
        raise FormatError(f"invalid state of a {target.kind.name}", rule="pt.pickle.build")
    unknown = [key for key in state[::2] if type(key) is not str or key not in fields]
    if unknown:
        name = escape(unknown[0], longest=60) if type(unknown[0]) is str else type(unknown[0]).__name__
        raise FormatError(f"{target.kind.name} has no field {name}", rule="pt.pickle.build")
    target.state = dict(zip(state[::2], state[1::2], strict=True))
    return target


def load_records(data: Fetched) -> Record:
    """Interprets the pickle; its value must be a `Metadata`."""
    root = interpret(data, _NAMES, {BUILD: _build, NEWOBJ: _new_object}, {})  # no BINPERSID: there are no storages
    if data.left:
        raise FormatError("trailing bytes after the pickle", rule="dcp.pickle.trailing", offset=data.position)
    if not isinstance(root, Record) or root.kind.name != "Metadata":
        raise FormatError("the pickle is not the metadata of a distributed checkpoint", rule="dcp.metadata")
    return root
