"""Whether the nodes of commits are what they must be: manifests, tensors, trees of chunks.

Reading a commit makes the same checks, for what is read. Here everything is checked, and
each node once, however many commits share it. No data is read but the sizes of chunks.
"""

from __future__ import annotations

from functools import partial

from tensorglot.errors import FormatError, add_tensor_to_errors
from tensorglot.store.checkout import check_tensor, read_node
from tensorglot.store.chunks import check_tree
from tensorglot.store.manifest import MAX_LEVELS, Node, parse_node, too_deep
from tensorglot.store.objects import Commit
from tensorglot.store.packs import Packs
from tensorglot.wire.cid import CID

__all__ = ["Structure"]


class Structure:
    """Checks commits, and remembers what was checked."""

    def __init__(self, packs: Packs) -> None:
        self._packs = packs
        self._read = partial(read_node, packs)
        self._nodes: dict[CID, tuple[str, str]] = {}
        """The first and the last name below a node of a manifest."""
        self._tensors: set[CID] = set()
        self._trees: set[tuple[CID, int]] = set()

    def check(self, commit: Commit) -> None:
        """Raises the first error."""
        stack = [] if commit.tensors in self._nodes else [commit.tensors]
        while stack:
            if len(stack) > MAX_LEVELS + 1:
                raise too_deep()
            node = parse_node(self._read(stack[-1]))
            missing = next((child for child in node.links if child not in self._nodes), None)
            if not node.leaf and missing is not None:
                stack.append(missing)
            else:
                self._nodes[stack.pop()] = self._check_node(node)

    def _check_node(self, node: Node) -> tuple[str, str]:
        if node.leaf:
            for name, link in zip(node.names, node.links, strict=True):
                self._check_tensor(name, link)
            return (node.names[0], node.names[-1]) if node.names else ("", "")
        below = [self._nodes[child] for child in node.links]
        for name, (first, _) in zip(node.names, below, strict=True):
            if name != first:
                raise FormatError("a manifest names the first tensor of a node wrongly", rule="store.manifest.order")
        if any(last >= name for (_, last), name in zip(below, node.names[1:], strict=False)):
            raise FormatError("the names of a manifest are not sorted", rule="store.manifest.order")
        return node.names[0], below[-1][1]

    def _check_tensor(self, name: str, link: CID) -> None:
        if link in self._tensors:
            return
        with add_tensor_to_errors(name):
            for array in check_tensor(self._packs, name, link):
                check_tree(array, self._read, self._nbytes_of, self._trees)
        self._tensors.add(link)

    def _nbytes_of(self, chunk: CID) -> int:
        return self._packs.locate(chunk.digest).record.nbytes
