"""`torch.distributed.checkpoint` on tensor files: a writer and a reader for its `save` and `load`.

    dcp.save(state, storage_writer=Writer("step-100"))
    dcp.load(state, storage_reader=Reader("step-100"))

Each rank writes the boxes that the planner gave it to one tensor file; the coordinator
then writes `dcp.json`, which makes the checkpoint visible. There is no pickle: plain
values are JSON. Files of a save have a random prefix, so a save over an old checkpoint
replaces it at once, when the new index does, and an interrupted one leaves the old one.
In a store the ranks stage their boxes, and the coordinator makes one commit of them.

The reader takes any source of `open`: a directory of this writer or of PyTorch's, a
file, a sharded checkpoint, a commit of a store. To the planner, every tensor is one
chunk; the archive finds the boxes that a shard needs and reads them in strips.

    writer      what a planner gives to each rank, to a target
    targets     a file for each rank in a folder, or a commit of a store
    reader      any source, into the tensors of a planner
    torch_side  dtypes, plain values and classes of PyTorch
"""

from __future__ import annotations

from tensorglot.bridges.dcp.reader import Reader
from tensorglot.bridges.dcp.writer import Writer

__all__ = ["Reader", "Writer"]
