"""What `torch.save` writes (`.pt`, `.pth`, `.bin`): a pickle of whatever was saved, and the storages of its tensors.

Read, not written, and nothing of it is executed: `pickle` interprets the few `opcodes`
that tensors need, on the stack of a `machine`; `names` has the few names that they
refer to, and both refuse every other one by its name. What comes out are values;
`flatten` finds the `tensors` in them, `files` says where their storages are. Tensors
share storages, and have strides.

A tensor is called by the keys that lead to it, joined by dots: `model.layer.weight`,
`optimizer.state.0.exp_avg`; a file that is a tensor has `data`. What is no tensor is
metadata under such names, too.
"""

from __future__ import annotations

from tensorglot.containers.pt.files import open_legacy, open_zip
from tensorglot.containers.pt.flatten import flatten
from tensorglot.containers.pt.names import DTYPES
from tensorglot.containers.pt.tensors import add_tensor
from tensorglot.containers.table import Container, ReadOptions
from tensorglot.model.builder import IndexBuilder
from tensorglot.model.index import Index
from tensorglot.model.payload import Source

__all__ = ["CONTAINER"]


def read(source: Source, options: ReadOptions) -> Index:
    head = source.read_bytes(0, min(4, source.size))
    saved = open_zip(source, options) if head[:2] == b"PK" else open_legacy(source, options)
    tensors, metadata = flatten(saved.root, saved.pickle_nbytes)
    builder = IndexBuilder(options.limits, "pt")
    for name, view in tensors.items():
        add_tensor(builder, name, view, saved, options.limits.rank)
    return builder.index(f"pt@{saved.version}", metadata, saved.notes)


CONTAINER = Container(DTYPES, read)
