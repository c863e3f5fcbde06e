"""What `torch.save` writes (`.pt`, `.pth`, `.bin`): a pickle of whatever was saved, and the storages of its tensors.

Read, not written, and never executed: see `torchsave`. Tensors may share storages, and
have strides.

The name of a tensor is the keys that lead to it, joined by dots: `model.layer.weight`,
`optimizer.state.0.exp_avg`; a single tensor is called `data`. Other values become
metadata under such names. A sparse or quantized tensor of a form that has no layout here is
left out, with a note.
"""

from __future__ import annotations

from tensorglot.containers.table import Container, ReadOptions
from tensorglot.containers.torchsave.files import open_legacy, open_zip
from tensorglot.containers.torchsave.flatten import flatten
from tensorglot.containers.torchsave.names import DTYPES
from tensorglot.containers.torchsave.parts import add_tensor
from tensorglot.errors import FormatError, UnsupportedError, escape
from tensorglot.model.builder import IndexBuilder
from tensorglot.model.index import Index, Note
from tensorglot.model.payload import Source
from tensorglot.model.repeated import check_repeated, check_shared

__all__ = ["CONTAINER"]


def read(source: Source, options: ReadOptions) -> Index:
    head = source.read_bytes(0, min(4, source.size))
    saved = open_zip(source, options) if head[:2] == b"PK" else open_legacy(source, options)
    tensors, metadata = flatten(saved.root, saved.pickle_nbytes)
    builder = IndexBuilder(options.limits, "pt")
    notes = list(saved.notes)
    repeated = 0
    for name, tensor in tensors.items():
        try:
            repeated += add_tensor(builder, name, tensor, saved, options.limits.rank)
        except UnsupportedError as error:
            notes.append(Note(error.rule, f"'{escape(name)}' is left out: {error.message}"))
        check_repeated(repeated, source.size, options.limits, "pt", name)
    if options.strict and notes:
        raise FormatError(notes[0].message, rule=notes[0].rule)
    index = builder.index(f"pt@{saved.version}", metadata, notes)
    check_shared(index, source.size, options.limits, "pt")
    return index


CONTAINER = Container(DTYPES, read)
