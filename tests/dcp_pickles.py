"""Pickles of distributed checkpoints, assembled opcode by opcode: valid ones, and ones that no pickler writes."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

__all__ = ["METADATA", "Call", "Global", "Object", "Raw", "assemble", "box", "metadata", "place", "size"]

METADATA = "torch.distributed.checkpoint.metadata"


@dataclass
class Global:
    module: str
    name: str


@dataclass
class Call:
    """REDUCE."""

    function: Global
    arguments: tuple[Any, ...]


@dataclass
class Object:
    """NEWOBJ and BUILD."""

    kind: Global
    state: Any = field(default_factory=dict)


@dataclass
class Raw:
    """Opcodes as they are."""

    code: bytes


def assemble(value: Any) -> bytes:
    return b"\x80\x04" + _code(value) + b"."


def _text(text: str) -> bytes:
    raw = text.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def _code(value: Any) -> bytes:
    match value:
        case Raw():
            return value.code
        case Global():
            return _text(value.module) + _text(value.name) + b"\x93"
        case Call():
            return _code(value.function) + _code(value.arguments) + b"R"
        case Object():
            state = b"" if value.state is None else _code(value.state) + b"b"
            return _code(value.kind) + b")\x81" + state
        case None:
            return b"N"
        case bool():
            return b"\x88" if value else b"\x89"
        case int():
            return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)
        case str():
            return _text(value)
        case tuple():
            return b"(" + b"".join(map(_code, value)) + b"t"
        case list():
            return b"](" + b"".join(map(_code, value)) + b"e"
        case dict():
            return b"}(" + b"".join(_code(key) + _code(item) for key, item in value.items()) + b"u"
    raise TypeError(value)


def size(*dims: int) -> Call:
    return Call(Global("torch", "Size"), (dims,))


def box(starts: Any, counts: Any) -> Object:
    return Object(Global(METADATA, "ChunkStorageMetadata"), {"offsets": size(*starts), "sizes": size(*counts)})


def place(file: Any, offset: Any, length: Any, **more: Any) -> Object:
    state = {"relative_path": file, "offset": offset, "length": length, **more}
    return Object(Global("torch.distributed.checkpoint.filesystem", "_StorageInfo"), state)


def metadata(tensors: dict[str, Any], places: list[tuple[str, Any, Object]], **more: Any) -> Object:
    """`tensors` are (dtype, shape, boxes), None for a plain value, or anything; `places` are (name, offset, place)."""
    state: dict[str, Any] = {}
    for name, entry in tensors.items():
        if entry is None:
            state[name] = Object(Global(METADATA, "BytesStorageMetadata"), None)
        elif isinstance(entry, tuple):
            dtype, shape, boxes = entry
            layout = Call(Global("torch.serialization", "_get_layout"), ("torch.strided",))
            order = Call(Global(METADATA, "_MEM_FORMAT_ENCODING"), (0,))
            properties = Object(
                Global(METADATA, "TensorProperties"), (Global("torch", dtype), layout, False, order, False)
            )
            state[name] = Object(
                Global(METADATA, "TensorStorageMetadata"),
                {"properties": properties, "size": size(*shape), "chunks": boxes},
            )
        else:
            state[name] = entry
    entries = b"".join(
        _code(Object(Global(METADATA, "MetadataIndex"), _index(name, offset))) + _code(info)
        for name, offset, info in places
    )
    fields = {"state_dict_metadata": state, "storage_data": Raw(b"}(" + entries + b"u"), "version": "1.0.0"}
    return Object(Global(METADATA, "Metadata"), fields | more)


def _index(name: str, offset: Any) -> dict[str, Any]:
    state: dict[str, Any] = {"fqn": name, "index": None}
    return state if offset is None else state | {"offset": size(*offset)}
