"""Reads bytes with other packages, in a separate process: libhdf5 crashes on damaged files, others exhaust memory.

`Oracle().ask(format, data)` returns the tensors by name, each as dtype, shape and the bytes
of its elements in C order, little-endian; None if the package refuses the bytes, dies or
gives no answer. Strings, records and Python objects are left out, whose dtype is "". The
process is this module run as a program; it is started again after it died.
"""

from __future__ import annotations

import io
import os
import pickle
import resource
import select
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["READERS", "Found", "Oracle", "plain", "spelled"]

Found = dict[str, Any]
MOST_NBYTES = 1 << 22
"""Of a tensor: a larger one is compared by type and shape."""
MEMORY = 6 << 30
SECONDS = 10
"""Of the processor, for an answer: a busy machine gives a package less, and it has not refused then."""
LONGEST = 300
SAFETENSORS = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64",
}  # fmt: skip


def plain(array: np.ndarray[Any, Any]) -> tuple[str, tuple[int, ...], bytes | None]:
    """Dtype, shape and bytes of an array."""
    if array.dtype.hasobject or (array.dtype.kind in "SUVOMm" and array.dtype.name != "bfloat16"):
        return "", array.shape, None
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return array.dtype.name, array.shape, little.tobytes() if array.nbytes <= MOST_NBYTES else None


def safetensors(data: bytes) -> Found:
    from safetensors import deserialize

    found: Found = {}
    for name, entry in deserialize(data):
        dtype = SAFETENSORS.get(entry["dtype"], "")
        found[name] = (dtype, tuple(entry["shape"]), bytes(entry["data"]) if dtype else None)
    return found


def npy(data: bytes) -> Found:
    return {"data": plain(np.lib.format.read_array(io.BytesIO(data), allow_pickle=False))}


def npz(data: bytes) -> Found:
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        if not hasattr(file, "files"):
            raise ValueError("one array, not a zip")
        return {name: plain(file[name]) for name in file.files}


def gguf(data: bytes) -> Found:
    from gguf import GGUFReader

    with tempfile.NamedTemporaryFile(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as file:
        file.write(data)
        file.flush()
        found: Found = {}
        for tensor in GGUFReader(file.name).tensors:
            shape = tuple(int(size) for size in reversed(tensor.shape))
            kind = tensor.tensor_type.name
            if kind in ("F16", "F32", "F64", "I8", "I16", "I32", "I64"):
                found[tensor.name] = plain(np.asarray(tensor.data).reshape(shape))
            else:
                found[tensor.name] = kind, shape, np.asarray(tensor.data).tobytes()
        return found


def onnx(data: bytes) -> Found:
    import onnx
    from onnx import numpy_helper

    model = onnx.ModelProto.FromString(data)
    found: Found = {tensor.values.name: ("", None, None) for tensor in model.graph.sparse_initializer}
    return found | {tensor.name: plain(numpy_helper.to_array(tensor)) for tensor in model.graph.initializer}


def hdf5(data: bytes) -> Found:
    import h5py

    found: Found = {}

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset):
            numeric = node.shape is not None and node.dtype.kind in "biufc"
            found[name] = plain(node[()] if node.shape else np.asarray(node[()])) if numeric else ("", None, None)

    with h5py.File(io.BytesIO(data), "r") as file:
        file.visititems(visit)
    return found


def bson(data: bytes) -> Found:
    """Values of the fields of one document: vectors as tensors, all else by its BSON."""
    from bson import BSON, CodecOptions, decode
    from bson.binary import VECTOR_SUBTYPE, Binary

    found: Found = {}
    for name, value in decode(data, codec_options=CodecOptions(unicode_decode_error_handler="strict")).items():
        if isinstance(value, Binary) and value.subtype == VECTOR_SUBTYPE:
            vector = value.as_vector()
            found[name] = vector.dtype.name.lower(), vector.padding, bytes(value)[2:]
        elif isinstance(value, bool | int | float | str | bytes | None):
            found[name] = "", None, bytes(BSON.encode({"": value}))
        else:
            found[name] = "", None, None
    return found


def spelled(value: Any) -> bytes:
    """A value of CBOR in one spelling: each with its type, floats by their bits, maps sorted."""
    if isinstance(value, float):
        return b"f" + (b"nan" if value != value else struct.pack(">d", value))
    if isinstance(value, list | tuple):
        return b"[" + b",".join(map(spelled, value)) + b"]"
    if isinstance(value, Mapping):
        pairs = sorted(spelled(key) + b":" + spelled(item) for key, item in value.items())
        return b"{" + b",".join(pairs) + b"}"
    return f"{type(value).__name__} {value!r}".encode("utf-8", "surrogatepass")


def cbor(data: bytes) -> Found:
    import cbor2

    file = io.BytesIO(data)
    value = cbor2.load(file)
    if file.tell() != len(data):
        raise ValueError("trailing bytes")
    return {"": ("", None, spelled(value))}


READERS: dict[str, Callable[[bytes], Found]] = {
    reader.__name__: reader for reader in (safetensors, npy, npz, gguf, onnx, hdf5, bson, cbor)
}


class Oracle:
    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.died = 0

    def _start(self) -> subprocess.Popen[bytes]:
        left_out = (
            "LD_PRELOAD",
            "PYTHONMALLOC",
        )  # of the sanitizers, which need more memory than this process may have
        environment = {name: value for name, value in os.environ.items() if name not in left_out}
        return subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0
        )

    def ask(self, format: str, data: bytes) -> Found | None:
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(len(answer := pickle.dumps((format, data))).to_bytes(8, "little") + answer)
            nbytes = int.from_bytes(_exactly(process.stdout, 8), "little") if _answers(process) else 0
            if nbytes:
                found: Found | None = pickle.loads(_exactly(process.stdout, nbytes))
                return found
        except (BrokenPipeError, EOFError):
            pass
        self.close()
        self.died += 1
        return None

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _answers(process: subprocess.Popen[bytes]) -> bool:
    """Waits for an answer; False if there is none after so many seconds of the processor, or of the clock."""
    begun, end = _processor_seconds(process.pid), time.monotonic() + LONGEST
    while _processor_seconds(process.pid) - begun <= SECONDS and time.monotonic() <= end:
        if select.select([process.stdout], [], [], 1)[0]:
            return True
    return False


def _processor_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _exactly(file: Any, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        piece = file.read(nbytes - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def main() -> None:
    """Answers until its input ends."""
    import warnings

    sys.path.remove(str(Path(__file__).parent))  # fuzz/bson.py is not the package bson
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    while header := sys.stdin.buffer.read(8):
        format, data = pickle.loads(sys.stdin.buffer.read(int.from_bytes(header, "little")))
        try:
            found = READERS[format](data)
        except Exception:  # noqa: BLE001 (whatever it is, the package refuses)
            found = None
        answer = pickle.dumps(found)
        out.write(len(answer).to_bytes(8, "little") + answer)


if __name__ == "__main__":
    main()
