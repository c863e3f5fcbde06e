"""The writer: a tensor file for each rank, then the index."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tensorglot.arguments import as_path
from tensorglot.bridges.dcp.torch_side import array_of, dtype_name, encode_value, join, metadata_module, register
from tensorglot.containers.dcp.manifest import INDEX, Manifest
from tensorglot.containers.table import WriteOptions, for_target, named
from tensorglot.errors import InputError
from tensorglot.extras import library
from tensorglot.io.urls import file_path
from tensorglot.operations._as_archive import collect
from tensorglot.operations._options import SaveOptions
from tensorglot.operations.save import prepare, write_archive

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
    from torch.distributed.checkpoint.storage import WriteResult
    from torch.futures import Future

__all__ = ["Writer"]

_RANK_FILE = re.compile(r"[0-9a-f]{8}-[0-9]{5}\.[a-z]+")


class Writer:
    """A `StorageWriter`: a tensor file for each rank, in any format that has names, and `dcp.json`.

    The path is a directory or a URL. A value that cannot be stored without pickle is an error.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: str = "safetensors",
        *,
        durable: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        register(Writer, "StorageWriter")
        self._spec, self._version = for_target(None, format)
        if not self._spec.names:
            raise InputError(f"{self._spec.name} stores no names of tensors", rule="dcp.format")
        self._options = SaveOptions(durable=durable, storage_options=storage_options)
        self._path = file_path(as_path(path))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return isinstance(checkpoint_id, (str, os.PathLike)) and not str(checkpoint_id).startswith("store://")

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """The next save goes to another path, if one is given."""
        if checkpoint_id is not None:
            self._path = file_path(as_path(checkpoint_id))

    def storage_meta(self) -> StorageMeta | None:
        meta: StorageMeta = metadata_module().StorageMeta(checkpoint_id=self._path)
        return meta

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise InputError("use_collectives=False is not supported: ranks share one index", rule="dcp.collectives")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if "://" not in self._path:
            Path(self._path).mkdir(parents=True, exist_ok=True)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Names the file of each rank."""
        prefix, suffix = os.urandom(4).hex(), self._spec.suffixes[0]
        return [replace(plan, storage_data=f"{prefix}-{rank:05d}{suffix}") for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes the boxes of this rank. Values go to the coordinator, in the results."""
        torch = library("torch", "torch")
        arrays: dict[str, NDArray[Any]] = {}
        results: list[WriteResult] = []
        for item, name in zip(plan.items, _box_names(plan.items), strict=True):
            data = planner.resolve_data(item)
            if isinstance(data, io.BytesIO):
                results.append(_result(item, data.getbuffer().nbytes, encode_value(data, item.index.fqn)))
            else:
                arrays[name] = array_of(name, data)
                results.append(_result(item, arrays[name].nbytes, (plan.storage_data, name)))
        if arrays:
            archive = collect(arrays)
            settled = prepare(archive, self._spec, self._version, self._options)
            write_archive(join(self._path, plan.storage_data), archive, self._spec, settled, self._options)
        future: Future[list[WriteResult]] = torch.futures.Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Writes the index, which completes the checkpoint; then removes files of earlier saves."""
        stored = {result.index: result.storage_data for rank in results for result in rank}
        manifest = _manifest(metadata, stored)
        archive = collect({}, {"manifest": manifest})
        write_archive(join(self._path, INDEX), archive, named("dcp")[0], WriteOptions("json"), self._options)
        if "://" not in self._path:
            for path in Path(self._path).iterdir():
                if _RANK_FILE.fullmatch(path.name) and path.name not in manifest.files:
                    path.unlink(missing_ok=True)


def _result(item: WriteItem, nbytes: int, stored: object) -> WriteResult:
    from torch.distributed.checkpoint.storage import WriteResult

    return WriteResult(item.index, nbytes, stored)


def _box_names(items: Sequence[WriteItem]) -> list[str]:
    """The name of each box in the file of its rank: the tensor's, with its offsets if there are several of it."""
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
