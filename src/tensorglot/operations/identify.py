"""What tensors are called by their contents: a CID for each, and one for all of them together.

That of several is the CID of a checkpoint's node with these tensors, no metadata and
no parents. So it depends on the names and the values, and not on the container, the
order or how the bytes are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tensorglot.arguments import as_names
from tensorglot.errors import FormatError, UnsupportedError
from tensorglot.model.archive import Archive
from tensorglot.operations.save import Progress
from tensorglot.wire.cid import CID, DAG_CBOR, block_cid, encode_node

__all__ = ["cids", "together"]


def cids(
    archive: Archive, names: Iterable[str], progress: Progress | None = None
) -> Iterator[tuple[str, str | FormatError | UnsupportedError]]:
    """Each name with the CID of its tensor, or with why it has none."""
    tensors = [archive[name] for name in as_names(names, "names", "identify.names")]
    total, done = sum(tensor.nbytes for tensor in tensors), 0
    for tensor in tensors:
        try:
            yield tensor.name, tensor.cid()
        except (FormatError, UnsupportedError) as error:
            error.tensor = tensor.name
            yield tensor.name, error
        done += tensor.nbytes
        if progress is not None:
            progress(done, total)


def together(cids: Mapping[str, str]) -> str:
    """The CID of tensors by their names and CIDs."""
    tensors = {name: CID.parse(cid) for name, cid in cids.items()}
    node = {"dynd": 1, "kind": "checkpoint", "meta": {}, "parents": [], "tensors": tensors}
    return str(block_cid(encode_node(node), DAG_CBOR))
