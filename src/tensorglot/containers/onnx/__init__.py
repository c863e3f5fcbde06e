"""ONNX models: the initializers of the main graph, read only; nothing of the graph is executed.

    messages    what is in the file: the model's properties, the description of each tensor
    tensors     rows: where the values are, inline or in other files
    external    files of values beside the model
    varints     the codec of values that are stored as varints
    unravel     the codec of coordinates that are stored as one number each

The file is one Protocol Buffers message, read by a kernel (`kernels.protobuf`): it
reads heads and skips contents, so a model opens without its values, and the size of what
is read is bounded. The `onnx` package would parse the whole file into memory.
"""

from __future__ import annotations

from tensorglot.containers.onnx.messages import DTYPES, read_model
from tensorglot.containers.onnx.tensors import Rows
from tensorglot.containers.table import Container, ReadOptions
from tensorglot.errors import UnsupportedError
from tensorglot.model.index import Index
from tensorglot.model.payload import Source
from tensorglot.model.repeated import check_shared

__all__ = ["CONTAINER"]


def read(source: Source, options: ReadOptions) -> Index:
    if options.strict:
        raise UnsupportedError("ONNX has no canonical form: open the file without strict", rule="onnx.strict")
    model = read_model(source, options.limits)
    index = Rows(source, options).index(model)
    check_shared(index, source.size, options.limits, "onnx")
    return index


CONTAINER = Container({code: name for code, name in DTYPES.items() if name}, read)
