"""The plain values of a checkpoint of PyTorch: each is an archive of `torch.save`, read as metadata.

A value is read only if the allow-list of `torchsave` has everything in it. One that has
not, and tensors inside values, are listed in notes; nothing is executed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tensorglot.containers.dcp.checkpoint import Checkpoint, Place
from tensorglot.containers.dcp.directory import Directory, Section
from tensorglot.containers.table import ReadOptions
from tensorglot.containers.torchsave.files import open_zip
from tensorglot.containers.torchsave.flatten import flatten
from tensorglot.errors import FormatError, TensorglotError, UnsupportedError, escape
from tensorglot.model.index import Note
from tensorglot.wire.ziparchive import Window

__all__ = ["read_values"]


def read_values(checkpoint: Checkpoint, files: Directory, options: ReadOptions) -> Checkpoint:
    """The same checkpoint with its values as metadata."""
    nbytes = sum(place.end - place.begin for place in checkpoint.values.values())
    options.limits.check_header(nbytes, "the sum of all plain values", rule="dcp.limit.values")
    metadata: dict[str, Any] = {}
    notes: list[Note] = []
    windows: dict[str, Window] = {}
    for name, place in checkpoint.values.items():
        window = windows.get(place.file)
        if window is None:
            file = files.file(place.file)
            window = windows[place.file] = Window(file.read_bytes, file.size)
        try:
            found = _read_value(name, place, _Buffered(files, place, name, window), options, notes)
        except UnsupportedError as error:
            notes.append(Note("dcp.value", f"the value '{escape(name)}' was not read: {error.message}"))
            continue
        except TensorglotError as error:
            error.tensor, error.path = name, error.path or files.path_of(place.file)
            raise
        for key in found.keys() & metadata.keys():
            raise FormatError("two values have the same name", rule="dcp.name", tensor=key)
        metadata |= found
    return replace(checkpoint, values={}, metadata=metadata, notes=notes)


class _Buffered(Section):
    """A value, which is read together with those next to it."""

    def __init__(self, files: Directory, place: Place, name: str, window: Window) -> None:
        super().__init__(files.file(place.file), place.begin, place.end, name)
        self._window = window

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        return self._window(self._at(offset, nbytes), nbytes)

    def read(self, offset: int, nbytes: int) -> memoryview:
        return memoryview(self.read_bytes(offset, nbytes))


def _read_value(name: str, place: Place, source: Section, options: ReadOptions, notes: list[Note]) -> dict[str, Any]:
    """A value by its name; the items of a dict by theirs."""
    if place.transforms:
        raise UnsupportedError("written with transforms, which are not supported", rule="dcp.item.transforms")
    if source.read_bytes(0, min(4, source.size)) != b"PK\x03\x04":
        raise UnsupportedError("not an archive of torch.save", rule="dcp.value")
    saved = open_zip(source, options).located()
    names, _, values = flatten(saved.root, saved.pickle_nbytes)
    if names:
        notes.append(Note("dcp.value", f"the value '{escape(name)}' has {len(names)} tensors, which were not read"))
    return {f"{name}.{key}" if key else name: value for key, value in (values or {}).items()}
