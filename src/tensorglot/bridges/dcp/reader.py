"""The reader: any source of `open`, read into the tensors of a planner."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from tensorglot.arguments import as_path
from tensorglot.bridges.dcp.torch_side import array_of, dtype_named, makers, metadata_module, register
from tensorglot.containers.dcp import plain
from tensorglot.containers.dcp.manifest import INDEX, parse_manifest
from tensorglot.containers.table import TABLE
from tensorglot.errors import InputError, TensorNotFound, UnsupportedError
from tensorglot.extras import torch
from tensorglot.io.storage_options import as_storage_options
from tensorglot.io.urls import file_path
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME
from tensorglot.operations.open import open
from tensorglot.threads import for_each

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
    from torch.futures import Future

__all__ = ["Reader"]


class Reader:
    """A `StorageReader` for any source of `open`; a path or URL without a known suffix is a directory."""

    def __init__(self, path: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> None:
        register(Reader, "StorageReader")
        self._storage_options = None if storage_options is None else as_storage_options(storage_options)
        self._path = file_path(as_path(path))
        self._archive: Archive | None = None
        """The archive that `read_metadata` has opened, for `read_data`."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return isinstance(checkpoint_id, (str, os.PathLike))

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """The next load is from another path, if one is given."""
        self._close()
        if checkpoint_id is not None:
            self._path = file_path(as_path(checkpoint_id))

    def _open(self) -> Archive:
        """A URL without a known suffix is a directory. Its index is tried first, which saves a listing."""
        read = partial(open, storage_options=self._storage_options)
        suffixes = (INDEX, *(suffix for spec in TABLE for suffix in spec.suffixes))
        if "://" not in self._path or self._path.startswith("store://") or self._path.endswith(suffixes):
            return read(self._path)
        folder = f"{self._path.rstrip('/')}/"
        try:
            return read(f"{folder}{INDEX}")
        except FileNotFoundError:
            return read(folder)

    def _close(self) -> None:
        if self._archive is not None:
            self._archive.close()
            self._archive = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """One chunk for each tensor."""
        metadata = metadata_module()
        state: dict[str, Any] = {}
        self._close()
        archive = self._archive = self._open()
        values, paths = _values(archive)
        for name, tensor in archive.items():
            with suppress(UnsupportedError):  # a tensor that PyTorch has no type for is not offered
                shape = torch.Size(tensor.shape)
                state[name] = metadata.TensorStorageMetadata(
                    metadata.TensorProperties(dtype=_torch_dtype(archive, name)),
                    shape,
                    [metadata.ChunkStorageMetadata(torch.Size([0] * len(shape)), shape)],
                )
        state |= {name: metadata.BytesStorageMetadata() for name in values if name not in state}
        planner_data = {name: paths.get(name, (name,)) for name in state}
        found: Metadata = metadata.Metadata(state, planner_data=planner_data)
        return found

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to set up: the metadata is in the files."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads what the plan asks for into the planner's tensors."""
        opened, self._archive = self._archive, None
        with self._open() if opened is None else opened as archive:
            values = _values(archive)[0] if any(item.type.name == "BYTE_IO" for item in plan.items) else {}
            tensors: list[tuple[ReadItem, torch.Tensor, torch.Tensor]] = []
            for item in plan.items:
                name = item.storage_index.fqn
                if item.type.name != "BYTE_IO":
                    target = planner.resolve_tensor(item).detach()
                    tensors.append((item, target, _memory(target, _torch_dtype(archive, name))))
                    continue
                if name not in values:
                    raise TensorNotFound.among(name, list(values))
                data = io.BytesIO()
                torch.save(values[name], data)
                data.seek(0)
                planner.load_bytes(item, data)
            for_each(lambda job: _read_region(archive, job[0], job[2]), tensors)
        for item, target, memory in tensors:
            if memory is not target:
                target.copy_(memory)
            planner.commit_tensor(item, target)
        future: Future[None] = torch.futures.Future()
        future.set_result(None)
        return future


def _values(archive: Archive) -> tuple[dict[str, Any], dict[str, tuple[str | int, ...]]]:
    """Plain values and the paths of names; of other writers, the archive's metadata and no paths."""
    if archive.format != "dcp@json" or archive.source is None:
        return dict(archive.metadata or {}), {}
    manifest, known = parse_manifest(archive.source, archive.limits), makers()
    values = {name: plain.decode(value, known) for name, value in manifest.values.items()}
    return values, {name: tuple(path) for name, path in manifest.paths.items()}


def _torch_dtype(archive: Archive, name: str) -> torch.dtype:
    index = archive.index
    if name not in index.positions:
        raise TensorNotFound.among(name, index.names)
    position = index.positions[name]
    if position in index.layouts:
        raise UnsupportedError(
            f"PyTorch cannot load layout {index.layouts[position].name} here", rule="torch.layout", tensor=name
        )
    return dtype_named(index.dtype_name(index.rows(position)[0]))


def _memory(target: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The target if it can be read into, else memory of its shape to be copied to it."""
    direct = target.device.type == "cpu" and not target.is_conj() and not target.is_neg() and target.dtype == dtype
    return target if direct else torch.empty(target.shape, dtype=dtype)


def _read_region(archive: Archive, item: ReadItem, target: torch.Tensor) -> None:
    name = item.storage_index.fqn
    region = [slice(start, start + size) for start, size in zip(item.storage_offsets, item.lengths, strict=True)]
    if tuple(target.shape) != tuple(item.lengths):
        raise InputError(
            f"the planner asks for {list(item.lengths)} in a tensor of {list(target.shape)}",
            rule="dcp.plan",
            tensor=name,
        )
    part = archive[name].parts["data"]
    if part.dtype is None:
        part = part._replace(dtype=BY_NAME["uint8"], unknown_dtype=None)
    part.select_into(region, array_of(name, target), name)
