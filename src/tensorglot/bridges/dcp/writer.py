"""The writer: the boxes of each rank to a folder or a store, then the index."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tensorglot.arguments import as_path, check_flags
from tensorglot.bridges.dcp.targets import FolderTarget, StoreTarget, Target
from tensorglot.bridges.dcp.torch_side import array_of, dtype_name, encode_value, metadata_module, register
from tensorglot.containers.dcp.manifest import Manifest
from tensorglot.containers.table import for_target
from tensorglot.errors import InputError
from tensorglot.extras import torch
from tensorglot.io.place import as_place
from tensorglot.io.storage_options import as_storage_options
from tensorglot.io.urls import check_target
from tensorglot.operations._places import locate

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
    from torch.distributed.checkpoint.storage import WriteResult
    from torch.futures import Future

__all__ = ["Writer"]


class Writer:
    """A `StorageWriter`: a tensor file for each rank, in any format that has names, and `dcp.json`.

    The path is a directory or a URL; or `store://PATH#REF`, where a save is one commit and
    the format is the store's. A value that cannot be stored without pickle is an error.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: str = "safetensors",
        *,
        durable: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_flags(durable=durable)
        register(Writer, "StorageWriter")
        self._spec, self._version = for_target(None, format)
        if not self._spec.names:
            raise InputError(f"{self._spec.name} stores no names of tensors", rule="dcp.format")
        self._durable = durable
        self._storage_options = None if storage_options is None else as_storage_options(storage_options)
        self._set_path(path)

    def _set_path(self, path: str | os.PathLike[str]) -> None:
        self._path = as_path(path)
        place = as_place(locate(path, self._storage_options))
        if place.is_commit:
            self._target: Target = StoreTarget(place.text, place.options)
            return
        if place.remote:
            check_target(place.text)
        self._target = FolderTarget(place, self._spec, self._version, durable=self._durable)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return isinstance(checkpoint_id, (str, os.PathLike))

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """The next save goes to another path, if one is given."""
        if checkpoint_id is not None:
            self._set_path(checkpoint_id)

    def storage_meta(self) -> StorageMeta | None:
        meta: StorageMeta = metadata_module().StorageMeta(checkpoint_id=self._path)
        return meta

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise InputError("use_collectives=False is not supported: ranks share one index", rule="dcp.collectives")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        self._target.prepare()
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Names what each rank will write."""
        names = self._target.name_ranks(len(plans))
        return [replace(plan, storage_data=name) for plan, name in zip(plans, names, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes the boxes of this rank. Values and links go to the coordinator, in the results."""
        boxes: dict[str, NDArray[Any]] = {}
        results: list[WriteResult] = []
        for item, name in zip(plan.items, _box_names(plan.items), strict=True):
            data = planner.resolve_data(item)
            if isinstance(data, io.BytesIO):
                results.append(_result(item, data.getbuffer().nbytes, encode_value(data, item.index.fqn)))
            else:
                boxes[name] = array_of(name, data)
                results.append(_result(item, boxes[name].nbytes, (plan.storage_data, name)))
        links = self._target.write(plan.storage_data, boxes)
        # Only results travel to the coordinator, so the links of this rank go with the first of them.
        if results:
            results[0] = replace(results[0], storage_data=_Linked(results[0].storage_data, links))
        future: Future[list[WriteResult]] = torch.futures.Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Completes the checkpoint."""
        links: dict[str, str] = {}
        stored = {}
        for result in (result for rank in results for result in rank):
            stored[result.index] = result.storage_data
            if isinstance(result.storage_data, _Linked):
                stored[result.index] = result.storage_data.stored
                links |= result.storage_data.links
        self._target.finish(_manifest(metadata, stored), links)


@dataclass(frozen=True, slots=True)
class _Linked:
    """The `storage_data` of a rank's first result: its own, and the links to everything that the rank has written."""

    stored: object
    links: Mapping[str, str]


def _result(item: WriteItem, nbytes: int, stored: object) -> WriteResult:
    from torch.distributed.checkpoint.storage import WriteResult

    return WriteResult(item.index, nbytes, stored)


def _box_names(items: Sequence[WriteItem]) -> list[str]:
    """The name of each box in its rank's file: the tensor's name, with offsets if the rank has several boxes of it."""
    counts: dict[str, int] = {}
    for item in items:
        counts[item.index.fqn] = counts.get(item.index.fqn, 0) + 1
    return [
        item.index.fqn if counts[item.index.fqn] == 1 else f"{item.index.fqn}{list(item.index.offset or ())}"
        for item in items
    ]


def _manifest(metadata: Metadata, stored: Mapping[Any, Any]) -> Manifest:
    """The index of what all ranks have written."""
    index = metadata_module().MetadataIndex
    numbers: dict[str, int] = {}
    tensors: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, entry in metadata.state_dict_metadata.items():
        if not hasattr(entry, "chunks"):
            values[name] = stored[index(name)]
            continue
        dtype, boxes = entry.properties.dtype, []
        for chunk in entry.chunks:
            file, box = stored[index(name, chunk.offsets)]
            boxes.append([numbers.setdefault(file, len(numbers)), box, list(chunk.offsets), list(chunk.sizes)])
        shape = list(entry.size)
        tensors[name] = {"dtype": dtype_name(dtype), "itemsize": dtype.itemsize, "shape": shape, "boxes": boxes}
    paths = {name: list(path) for name, path in (metadata.planner_data or {}).items()}
    return Manifest(list(numbers), tensors, values, paths)
