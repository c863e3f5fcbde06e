"""What the writer and the reader of distributed checkpoints need of PyTorch: dtypes, plain values, classes.

Nothing is imported from PyTorch before it is used. Classes of ours are registered as
subclasses of its abstract ones, so that `isinstance` holds.
"""

from __future__ import annotations

import io
from typing import Any

from numpy.typing import NDArray

from tensorglot.bridges.torch import to_numpy
from tensorglot.containers.dcp import plain
from tensorglot.errors import UnsupportedError, add_tensor_to_errors
from tensorglot.extras import library, torch

__all__ = ["array_of", "dtype_name", "dtype_named", "encode_value", "makers", "metadata_module", "register"]

_OPAQUE = ("torch.float4_e2m1fn_x2",)
"""Element types that tensorglot has no element type for (two values in a byte): stored as bytes."""


def register(ours: type, theirs: str) -> None:
    """Makes a class of ours count as one of PyTorch's, without importing PyTorch before it is used."""
    library("torch", "torch")
    from torch.distributed.checkpoint import storage

    getattr(storage, theirs).register(ours)


def metadata_module() -> Any:
    from torch.distributed.checkpoint import metadata

    return metadata


def array_of(name: str, tensor: torch.Tensor) -> NDArray[Any]:
    """The values of a box; bytes for the types in _OPAQUE."""
    tensor = tensor.detach()
    if str(tensor.dtype) in _OPAQUE:
        return tensor.contiguous().view(torch.uint8).cpu().numpy()  # type: ignore[no-any-return]
    return to_numpy(name, tensor)


def encode_value(data: io.BytesIO, name: str) -> Any:
    """A plain value, which the planner has pickled, as JSON. Unpickling is restricted to plain values."""
    from pickle import UnpicklingError

    data.seek(0)
    with add_tensor_to_errors(name):
        try:
            return plain.encode(torch.load(data, map_location="cpu", weights_only=True), _encode_torch)
        except UnpicklingError as error:
            raise UnsupportedError(
                "a value that is not plain cannot be stored without pickle", rule="dcp.value.type"
            ) from error


def _encode_torch(value: Any) -> tuple[str, Any] | None:
    if isinstance(value, torch.Size):
        return "Size", list(value)
    if isinstance(value, (torch.dtype, torch.device)):
        return type(value).__name__, str(value).removeprefix("torch.")
    return None


def makers() -> dict[str, Any]:
    return {"Size": torch.Size, "dtype": dtype_named, "device": torch.device}


def dtype_named(name: str) -> torch.dtype:
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise UnsupportedError(f"PyTorch has no dtype {name}", rule="torch.dtype")
    return found


def dtype_name(dtype: torch.dtype) -> str:
    """Our name of an element type; for the types in _OPAQUE PyTorch's name, with its prefix."""
    name = str(dtype)
    return name if name in _OPAQUE else name.removeprefix("torch.")
