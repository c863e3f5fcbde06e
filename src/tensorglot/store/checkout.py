"""A commit as an archive: its tensors lie one after the other in a virtual source.

The source has no bytes of its own. Each array of the commit has a span of it, in the
order of the names; a read decodes the chunks that overlap the range, straight into the
destination, and compares each with its CID. So slices, loading on threads, converting and
comparing work as on a file, and read only the chunks that they need.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

from tensorglot.cached import cached_property
from tensorglot.containers.dynd import index_of
from tensorglot.dynd.link_columns import may_link
from tensorglot.dynd.sizes import fixed_nbytes
from tensorglot.dynd.tensors import SERIALIZED
from tensorglot.errors import FormatError, LimitError, TensorglotError, add_tensor_to_errors, escape
from tensorglot.io.local import BaseSource
from tensorglot.limits import DEFAULT, Limits
from tensorglot.memory import allocate
from tensorglot.model.archive import Archive
from tensorglot.model.index import UNKNOWN, Index, Layout, shape_columns
from tensorglot.model.layouts import COO, CSR, Piece, arrange
from tensorglot.model.payload import CheckedBy, Source
from tensorglot.model.tensor import NESTED, Tensor
from tensorglot.model.types.algebra import dense_parts, symbolic
from tensorglot.model.types.base import Type
from tensorglot.model.types.text import parse_canonical
from tensorglot.store.blocks import Blocks
from tensorglot.store.chunks import Chunks
from tensorglot.store.columns import ArrayColumns, dense_index, parse_arrays, parse_columns
from tensorglot.store.manifest import Entry, Manifest, Node
from tensorglot.store.objects import ArrayNode, Commit, TensorNode, parse_array, parse_tensor
from tensorglot.store.packs import Packs
from tensorglot.threads import Lock, batches, for_each
from tensorglot.tuples import NamedTuple
from tensorglot.wire.cid import BLAKE3, CHUNK_NBYTES, CID, DAG_CBOR, NODE_HEAD, RAW

__all__ = [
    "FORMAT",
    "ArraySource",
    "CommitArchive",
    "PartRow",
    "TensorRows",
    "array_tensor",
    "check_tensor",
    "check_tensors",
    "parse_type",
    "read_node",
    "read_nodes",
    "rows_index",
    "value_chunks",
]

FORMAT = "store@1"
KEPT_CHUNKS = 16
"""Decoded chunks that are kept after a part of them was read: the next slice is often in the same chunk."""
_SMALL_NBYTES = 16 << 10
"""Arrays below this size are read together, if there are some of them: they lie in groups."""
_FEW, _TOGETHER = 8, 4096
"""The least and the most small arrays that are read together. So many tensors are looked up before all names are."""
_THREAD_NBYTES = 4 * CHUNK_NBYTES
"""What one thread reads and decodes at a time."""
SPARE_NBYTES = 16 << 30
"""The size that the values of a commit may claim whatever the size of the packs: equal chunks are stored once, so a
small store may hold large values, of zeros for instance. Values with links may claim only a chunk beyond the ratio of
`Limits.store_ratio`, since every link is followed."""


def read_node(packs: Packs, link: CID) -> bytes:
    """A DAG-CBOR block, compared with its link."""
    _check_node(link)
    return packs.read(link.digest, DAG_CBOR)


def _check_node(link: CID) -> None:
    """Refuses a link that cannot be that of a node in a store."""
    if link.codec != DAG_CBOR or link.hash != BLAKE3:
        raise FormatError(f"{link} is not the CID of a node", rule="store.node")


def value_chunks(packs: Packs, array: ArrayNode) -> Chunks:
    """The digests of the chunks of a value, in order."""
    return Chunks(array, partial(read_node, packs))


class ArraySource(BaseSource):
    """Arrays of a store, one after the other. Threads may share it."""

    checked_by: ClassVar[CheckedBy] = "block"

    def __init__(self, packs: Packs, arrays: Sequence[ArrayNode], reopen: Callable[[], Archive] | None = None) -> None:
        self._packs = packs
        self._reopen = reopen
        """Opens the commit of all arrays; without it these travel in a pickle."""
        self.blocks = Blocks(packs)
        self.concurrency = packs.backend.concurrency
        self._arrays = arrays
        sizes = arrays.nbytes.tolist() if isinstance(arrays, ArrayColumns) else [array.nbytes for array in arrays]
        self._begins = list(accumulate(sizes, initial=0))
        self.size = self._begins[-1]
        if self.size >= 1 << 63:
            raise LimitError(f"the tensors have {self.size} bytes, 2**63 or more", rule="store.size")
        self._chunks: dict[int, Chunks] = {}
        self._kept: OrderedDict[bytes, memoryview] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return (ArraySource, (self._packs, self._arrays)) if self._reopen is None else (_source_again, (self._reopen,))

    @property
    def spans(self) -> list[tuple[int, int]]:
        return list(zip(self._begins, self._begins[1:], strict=False))

    def read(self, offset: int, nbytes: int) -> memoryview:
        if offset + nbytes > self.size:
            raise self.truncation_error(offset, nbytes)
        out = allocate(nbytes, offset)
        self.read_together([offset], [out], lambda *filled: None)
        return out

    def read_together(
        self, begins: Sequence[int], outs: Sequence[memoryview], filled: Callable[[int, int, int], None]
    ) -> None:
        def work(batch: list[tuple[int, int, int]]) -> None:
            for i, begin, end in batch:
                self.read_into(begins[i] + begin, outs[i][begin:end])
                filled(i, begin, end)

        spans = [(i, *span) for i, out in enumerate(outs) for span in self._cut(begins[i], len(out))]
        for_each(work, batches(spans, lambda span: span[2] - span[1], _THREAD_NBYTES, _TOGETHER), self.concurrency)

    def _cut(self, offset: int, nbytes: int) -> Iterator[tuple[int, int]]:
        """Begin and end of what one thread reads at a time: whole chunks, so that none is decoded twice."""
        begin = 0
        while begin < nbytes:
            end = begin + _THREAD_NBYTES
            if end < nbytes:
                array = self._begins[bisect_right(self._begins, offset + end) - 1]
                end -= (offset + end - array) % CHUNK_NBYTES
            yield begin, min(end, nbytes)
            begin = end

    def read_into(self, offset: int, out: memoryview) -> None:
        if offset + len(out) > self.size:
            raise self.truncation_error(offset, len(out))
        position, done = bisect_right(self._begins, offset) - 1, 0
        whole: list[tuple[bytes, memoryview]] = []
        while done < len(out):
            if self._begins[position] == offset + done:
                position, read = self._read_small(position, out[done:])
                done += read
                if done == len(out):
                    break
            start = offset + done - self._begins[position]
            nbytes = min(self._arrays[position].nbytes - start, len(out) - done)
            if nbytes:
                whole += self._read_array(position, start, out[done : done + nbytes])
            done += nbytes
            position += 1
        for batch in batches(whole, lambda chunk: len(chunk[1]), _THREAD_NBYTES):
            self._packs.read_each(batch)

    def _read_small(self, position: int, out: memoryview) -> tuple[int, int]:
        """Arrays from a position on that are small and end within `out`, together; the next position, and the bytes."""
        last = bisect_right(self._begins, self._begins[position] + len(out)) - 1
        end = position
        while end < min(last, position + _TOGETHER) and _is_small(self._arrays[end]):
            end += 1
        if end - position < _FEW:
            return position, 0
        arrays = self._arrays[position:end]
        blocks = self._packs.read_many([array.data.digest for array in arrays])
        if list(map(len, blocks)) != [array.nbytes for array in arrays]:
            raise FormatError("a block does not have the size that its array says", rule="store.block.size")
        nbytes = self._begins[end] - self._begins[position]
        out[:nbytes] = b"".join(blocks)
        return end, nbytes

    def _read_array(self, position: int, start: int, out: memoryview) -> Iterator[tuple[bytes, memoryview]]:
        """Reads chunks that are requested in part; yields the digest of each other chunk, with the memory to fill."""
        array, done = self._arrays[position], 0
        chunks = self._chunks_of(position)
        while done < len(out):
            number, begin = divmod(start + done, CHUNK_NBYTES)
            whole = min(CHUNK_NBYTES, array.nbytes - number * CHUNK_NBYTES)
            nbytes = min(whole - begin, len(out) - done)
            target = out[done : done + nbytes]
            if nbytes == whole:
                yield chunks[number], target
            else:
                target[:] = self._chunk(chunks[number], whole)[begin : begin + nbytes]
            done += nbytes

    def _chunks_of(self, position: int) -> Chunks:
        found = self._chunks.get(position)
        if found is None:
            found = self._chunks[position] = value_chunks(self._packs, self._arrays[position])
        return found

    def _chunk(self, digest: bytes, nbytes: int) -> memoryview:
        """A decoded chunk, kept for the next slice of it."""
        with self._lock:
            found = self._kept.get(digest)
            if found is not None:
                self._kept.move_to_end(digest)
                return found
        room = memoryview(bytearray(nbytes))
        self._packs.read_into(digest, room)
        with self._lock:
            self._kept[digest] = room
            if len(self._kept) > KEPT_CHUNKS:
                self._kept.popitem(last=False)
        return room


def _check_expansion(packs: Packs, arrays: Iterable[tuple[Type, int]], limits: Limits) -> None:
    """Refuses values that are far larger than what is stored of them, before anything loops over them.

    `arrays` are types with the bytes of all arrays of each.
    """
    stored = packs.nbytes
    sizes: dict[int, tuple[Type, int]] = {}
    for type, size in arrays:  # many may share a type, which is looked through once
        sizes[id(type)] = type, sizes.get(id(type), (type, 0))[1] + size
    nbytes = sum(size for _, size in sizes.values())
    linking = sum(size for type, size in sizes.values() if may_link(type))
    for claimed, spare in ((nbytes, SPARE_NBYTES), (linking, CHUNK_NBYTES)):
        if claimed > spare + limits.store_ratio * stored:
            raise LimitError(
                f"packs of {stored} bytes claim values of {claimed} bytes (Limits.store_ratio)", rule="limit.store"
            )


def _is_small(array: ArrayNode) -> bool:
    return array.nbytes < _SMALL_NBYTES and array.data.codec == RAW


class CommitArchive(Archive):
    """The tensors of a commit.

    The first few tensors that are looked up are found node by node. The names of all are read when they are needed.
    """

    def __init__(self, packs: Packs, commit: Commit, limits: Limits, reopen: Callable[[], Archive] | None) -> None:
        super().__init__(Index.concat([], format=FORMAT), None, limits=limits, reopen=reopen)
        del self.__dict__["index"]  # `index` and `source` are properties here
        self._packs = packs
        self._commit = commit
        self._manifest = Manifest(commit.tensors, partial(read_node, packs))
        self._manifest.find("")  # a commit whose manifest is missing cannot be opened
        self._few: dict[str, Tensor] = {}
        self._closed = False

    @cached_property
    def _opened(self) -> tuple[Index, ArraySource]:
        return _open_all(self._packs, self._manifest, self._commit, self.limits, self._reopen)

    @cached_property
    def index(self) -> Index:  # type: ignore[override]
        return self._opened[0]

    @property
    def source(self) -> Source | None:
        return None if self._closed else self._opened[1]

    @source.setter
    def source(self, source: Source | None) -> None:
        self._closed = True

    def close(self) -> None:
        self._closed = True  # a store keeps its packs open

    @property
    def format(self) -> str:
        return FORMAT

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        return self._commit.metadata

    def __getitem__(self, name: str) -> Tensor:
        if isinstance(name, str) and not self._closed:
            found = self._few.get(name)
            if found is None and len(self._few) < _FEW:
                chosen = self.select([name])
                found = None if chosen is self else self._few.setdefault(name, chosen.tensor_at(0))
            if found is not None:
                return found
        return super().__getitem__(name)

    def select(self, names: Collection[str]) -> Archive:
        if "_opened" in self.__dict__ or self._closed or not 0 < len(names) <= _FEW:
            return self
        each = list(dict.fromkeys(names))
        links = [link for link in map(self._manifest.find, each) if link is not None]
        if len(links) < len(each):
            return self
        blocks = [read_node(self._packs, link) for link in links]
        index, source = _open_any(self._packs, each, blocks, self.limits, None)
        return Archive(replace(index, format=FORMAT, metadata=self.metadata), source, limits=self.limits)

    def __contains__(self, name: object) -> bool:
        if "_opened" in self.__dict__ or not isinstance(name, str):
            return super().__contains__(name)
        return self._manifest.find(name) is not None


def _open_all(
    packs: Packs, manifest: Manifest, commit: Commit, limits: Limits, reopen: Callable[[], Archive] | None
) -> tuple[Index, ArraySource]:
    leaves = manifest.leaves(limits.tensors_or(), partial(read_nodes, packs))
    names = [name for node in leaves for name in node.names]
    digests = [digest for node in leaves for digest in _tensor_digests(node)]
    blocks = packs.read_many(digests, DAG_CBOR)
    opened = _open_dense(packs, names, blocks, limits, reopen) or _open_any(packs, names, blocks, limits, reopen)
    cids = [NODE_HEAD + digest for digest in digests]
    return replace(opened[0], format=FORMAT, metadata=commit.metadata, cids=cids), opened[1]


def _tensor_digests(leaf: Node) -> list[bytes]:
    for name, link in zip(leaf.names, leaf.links, strict=True) if leaf.digests is None else ():
        with add_tensor_to_errors(name):
            _check_node(link)
    return [] if leaf.digests is None else leaf.digests


def read_nodes(packs: Packs, links: Sequence[CID]) -> list[bytes]:
    """Blocks of nodes, read together."""
    for link in links:
        _check_node(link)
    return packs.read_many([link.digest for link in links], DAG_CBOR)


def _open_dense(
    packs: Packs, names: list[str], blocks: Sequence[bytes], limits: Limits, reopen: Callable[[], Archive] | None
) -> tuple[Index, ArraySource] | None:
    """Tensors that are dense arrays without attributes; None if one is not, or is malformed."""
    try:
        arrays = parse_columns(blocks)
        types = [_type_of(text, nbytes) for text, nbytes in arrays.kinds]
    except FormatError:
        return None
    index = None if arrays.rows.min(initial=0) < 0 else dense_index(names, arrays, types)
    if index is None:
        return None
    counts = np.bincount(arrays.rows, minlength=len(types)).tolist()
    sizes = [count * nbytes for count, (_, nbytes) in zip(counts, arrays.kinds, strict=True)]
    _check_expansion(packs, zip(types, sizes, strict=True), limits)
    return index, ArraySource(packs, arrays, reopen)


def _open_any(
    packs: Packs, names: list[str], blocks: Sequence[bytes], limits: Limits, reopen: Callable[[], Archive] | None
) -> tuple[Index, ArraySource]:
    """Tensors of any kind. An error names the tensor."""
    tensors = _tensors(packs, names, blocks)
    parts = [part for tensor in tensors for part in tensor.parts]
    _check_expansion(packs, ((part.type, part.array.nbytes) for part in parts), limits)
    source = ArraySource(packs, [part.array for part in parts], reopen)
    return rows_index(tensors, source.spans, limits), source


def _source_again(reopen: Callable[[], Archive]) -> Source | None:
    return reopen().source


def array_tensor(packs: Packs, array: ArrayNode) -> Tensor:
    """One value, without a name."""
    part = PartRow("data", array, _type_of(array.type, array.nbytes))
    _check_expansion(packs, [(part.type, array.nbytes)], DEFAULT)
    source = ArraySource(packs, [array])
    return Archive(rows_index([TensorRows("", [part])], source.spans), source).tensor_at(0)


class PartRow(NamedTuple):
    """One value of a tensor."""

    name: str
    array: ArrayNode
    type: Type
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


class TensorRows(NamedTuple):
    """The values of a tensor."""

    name: str
    parts: list[PartRow]
    node: TensorNode | None = None
    """Node of a tensor with attributes, or with several parts."""


def _tensors(packs: Packs, names: Sequence[str], blocks: Sequence[bytes]) -> list[TensorRows]:
    found = []
    types: dict[tuple[str, int], Type] = {}
    each = {id(block): block for block in blocks}  # many names may have the same one
    arrays = dict(zip(each, parse_arrays(list(each.values())), strict=True))
    for name, block in zip(names, blocks, strict=True):
        array = arrays[id(block)]
        try:
            if array is None:
                found.append(_tensor(packs, name, block))
                continue
            key = array.type, array.nbytes
            if key not in types:
                types[key] = _type_of(*key)
            found.append(TensorRows(name, [PartRow("data", array, types[key])]))
        except TensorglotError as error:
            error.tensor = name
            raise
    return found


def _tensor(packs: Packs, name: str, block: bytes) -> TensorRows:
    """A tensor with attributes, or of several parts."""
    node = parse_tensor(block)
    parts = []
    for part in node.parts:
        array = parse_array(read_node(packs, part.array))
        parts.append(PartRow(part.name, array, _type_of(array.type, array.nbytes), part.dtype, part.shape))
        whole = node.layout in ("dense", NESTED) and part.dtype is None
        if whole and (len(node.parts), array.type) != (1, node.type):
            raise FormatError(f"a {node.layout} tensor needs one array of its type", rule="store.tensor")
    if node.layout in (CSR, COO):
        _check_sparse(name, node, parts)
    return TensorRows(name, parts, node)


def _check_sparse(name: str, node: TensorNode, parts: Sequence[PartRow]) -> None:
    """Compares the parts of a sparse tensor with its layout, without reading them."""
    block = dense_parts(parse_type(node.type))
    pieces = {}
    for part in parts:
        elements = dense_parts(part.type)
        pieces[part.name] = Piece(None if elements is None else elements[0], part.array.nbytes)
    arranged = block and arrange(node.layout, block[1], pieces, node.attributes, name)
    if arranged is None or arranged.layout.type != parse_type(node.type):
        raise FormatError(
            f"the parts of a tensor of layout {escape(node.layout)} do not have its type", rule="store.tensor"
        )


def check_tensor(packs: Packs, name: str, link: CID) -> list[ArrayNode]:
    """Checks the nodes of a tensor, as reading it does; returns its arrays."""
    (tensor,) = _tensors(packs, [name], [read_node(packs, link)])
    arrays = [part.array for part in tensor.parts]
    if tensor.node is not None:
        source = ArraySource(packs, arrays)
        Archive(rows_index([tensor], source.spans), source).tensor_at(0)
    return arrays


def check_tensors(packs: Packs, entries: Sequence[Entry]) -> None:
    """Checks that each link is that of a tensor, by its first node only."""
    _tensors(packs, [name for name, _ in entries], read_nodes(packs, [link for _, link in entries]))


def _type_of(text: str, nbytes: int) -> Type:
    """The type of an array, if the array has as many bytes as that requires."""
    type = parse_type(text)
    fixed = fixed_nbytes(type)
    if fixed is not None and fixed != nbytes:
        raise FormatError(f"a value of type {text:.60} needs {fixed} bytes, the array has {nbytes}", rule="store.array")
    return type


@lru_cache(maxsize=4096)
def parse_type(text: str) -> Type:
    """The type of an array, which has data."""
    try:
        type = parse_canonical(text)
    except TensorglotError as error:  # which shows the text on lines of its own
        raise FormatError(f"malformed type {escape(text, longest=60)}", rule=error.rule) from error
    if symbolic(type):
        raise FormatError(f"symbolic type {text:.60} cannot have data", rule="store.array")
    return type


def rows_index(tensors: Sequence[TensorRows], spans: list[tuple[int, int]], limits: Limits = DEFAULT) -> Index:
    """The index of tensors whose canonical bytes are at spans of a source."""
    parts = [part for tensor in tensors for part in tensor.parts]
    rows = index_of([(part.name, part.type) for part in parts], spans, limits)
    names = [tensor.name for tensor in tensors]
    if all(tensor.node is None for tensor in tensors):
        return replace(rows, names=names)
    firsts = np.cumsum([0, *(len(tensor.parts) for tensor in tensors)])
    layouts, attributes = {}, {}
    for position, (tensor, row) in enumerate(zip(tensors, firsts.tolist(), strict=False)):
        attributes[position] = {**rows.attributes.get(row, {}), **(tensor.node.attributes if tensor.node else {})}
        if row in rows.layouts:
            layouts[position] = rows.layouts[row]
        elif tensor.node is not None and tensor.node.layout != "dense":
            layouts[position] = Layout(tensor.node.layout, parse_type(tensor.node.type))
    unknown = {row: part.dtype for row, part in enumerate(parts) if part.dtype is not None}
    dtypes = rows.dtypes.copy()
    dtypes[list(unknown)] = UNKNOWN
    dims, dim_offsets = shape_columns([part.shape or rows.shape(row) for row, part in enumerate(parts)])
    part_names = rows.part_names or ()
    return replace(
        rows,
        names=names,
        dtypes=dtypes,
        dims=dims,
        dim_offsets=dim_offsets,
        first_rows=firsts,
        part_names=[
            SERIALIZED if name == SERIALIZED else part.name for name, part in zip(part_names, parts, strict=True)
        ],
        layouts=layouts,
        attributes={position: fields for position, fields in attributes.items() if fields},
        unknown_dtypes=unknown,
    )
