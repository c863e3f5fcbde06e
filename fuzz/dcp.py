"""Mutants of distributed checkpoints, their index and their rank files: `python fuzz/dcp.py [COUNT] [SEED]`.

A checkpoint is a folder with an index, PyTorch's `.metadata` (a pickle) or our `dcp.json`,
beside the files of the ranks. Numbers and texts of the index are replaced as fields, so
that what follows stays intact; bytes of any file are changed, too. A file outside the
folder has values that no checkpoint has. The invariant:

- only our errors leave, each with its rule in printable words;
- what is accepted can be listed, and each tensor read, or is refused while it is read;
- a tensor read by rows is the tensor read at once;
- nothing of the file outside the folder is ever read;
- what can be read, saved as zTensor, is read again with the same values.
"""

from __future__ import annotations

import json
import pickletools
import random
import struct
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np

import tensorglot as tg
from fuzzing import changes, rule_of

CORPUS = Path(__file__).parents[1] / "tests" / "corpus" / "dcp" / "ranks2"
SECRET = b"never to be read"
NUMBERS = (-1, 0, 1, 2, 3, 4, 7, 100, 255, 256, 65535, 1 << 31, (1 << 31) - 1, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63)
TEXTS = (
    "", "w", "v", "é", "\ud800", "\0", "a" * 300, "../outside.bt", "/etc/passwd", "0.bintensors", "1.safetensors",
    "__0_0.distcp", "dcp.json", ".metadata", "float32", "bfloat16", "torch", "Size", "os", "system",
)  # fmt: skip
WIDTHS = {"BININT1": 1, "BININT2": 2, "BININT": 4}
"""Opcodes with a number of so many bytes."""
TEXT_AT = {"SHORT_BINUNICODE": 2, "BINUNICODE": 5}
"""Opcodes with a text, and where it begins."""
EXPANDED_NBYTES = 1 << 22
"""Larger values are listed, not read."""
Files = dict[str, bytes]


@cache
def bases() -> list[Files]:
    """A checkpoint of PyTorch, and two of ours whose tensors are cut by rows and by columns."""
    return [
        {path.name: path.read_bytes() for path in sorted(CORPUS.iterdir())},
        _ours("bintensors"),
        _ours("safetensors"),
    ]


def _ours(format: str) -> Files:
    w, v = np.arange(24, dtype=np.float32).reshape(4, 6), np.arange(6, dtype=np.int16)
    files = {f"0.{format}": {"w": w[:2], "v": v[:3]}, f"1.{format}": {"w": w[2:, :4], "x": w[2:, 4:], "v": v[3:]}}
    boxes_w = [[0, "w", [0, 0], [2, 6]], [1, "w", [2, 0], [2, 4]], [1, "x", [2, 4], [2, 2]]]
    index = {
        "tensorglot": "dcp", "version": 1, "files": list(files), "values": {"step": 7, "betas": [0.9, 0.99]},
        "paths": {"w": ["model", "w"]},
        "tensors": {
            "w": {"dtype": "float32", "itemsize": 4, "shape": [4, 6], "boxes": boxes_w},
            "v": {"dtype": "int16", "itemsize": 2, "shape": [6], "boxes": [[0, "v", [0], [3]], [1, "v", [3], [3]]]},
        },
    }  # fmt: skip
    ranks = {name: tg.dumps(tensors, format=format) for name, tensors in files.items()}
    return {"dcp.json": json.dumps(index).encode(), **ranks}


# Mutators


def mutants(count: int, seed: int = 0) -> Iterator[Files]:
    """Checkpoints with none to three changes: most in the index, by field."""
    r = random.Random(seed)
    for _ in range(count):
        files = dict(r.choice(bases()))
        for _ in range(r.choice((0, 1, 1, 1, 2, 3))):
            name = next(iter(files)) if r.random() < 0.8 else r.choice(list(files))
            if r.random() < 0.05:
                del files[name]
                break
            if r.random() < 0.7:
                files[name] = _change_field(r, name, files[name])
            else:
                files[name] = changes.change(r, files[name], r.choice(list(files.values())))
        yield files


def _change_field(r: random.Random, name: str, data: bytes) -> bytes:
    if name == "dcp.json":
        try:
            return json.dumps(_change_json(r, json.loads(data))).encode()
        except ValueError:  # bytes of it were changed before
            return data
    return _change_pickle(r, data) if name == ".metadata" else changes.change(r, data, data)


def _change_json(r: random.Random, value: Any) -> Any:
    """One value below this one is another, is gone, or is there twice."""
    if isinstance(value, dict) and value and r.random() < 0.9:
        key = r.choice(list(value))
        if r.random() < 0.1:
            return {k: v for k, v in value.items() if k != key} | (
                {r.choice(TEXTS): value[key]} if r.random() < 0.5 else {}
            )
        return value | {key: _change_json(r, value[key])}
    if isinstance(value, list) and value and r.random() < 0.9:
        at = r.randrange(len(value))
        if r.random() < 0.1:
            return value[:at] + value[at + r.choice((0, 1)) :] + [value[at]] * r.choice((0, 1))
        return [*value[:at], _change_json(r, value[at]), *value[at + 1 :]]
    if isinstance(value, int) and r.random() < 0.7:
        return r.choice((*NUMBERS, value + 1, value - 1))
    if isinstance(value, str) and r.random() < 0.7:
        return r.choice(TEXTS)
    return r.choice((*NUMBERS, *TEXTS, None, True, 1.5, [], {}, [0, 0], {"!": "set"}))


def _change_pickle(r: random.Random, data: bytes) -> bytes:
    """A number or a text of a pickle replaced; the lengths of a text and of its frame are made right."""
    fields = _pickle_fields(data)
    if not fields:
        return data
    opcode, at, argument = r.choice(fields)
    if opcode in WIDTHS:
        width = WIDTHS[opcode]
        number = r.choice((*NUMBERS, argument + 1, argument - 1))
        return data[: at + 1] + (number % (1 << 8 * width)).to_bytes(width, "little") + data[at + 1 + width :]
    end = at + TEXT_AT[opcode] + len(argument.encode("utf-8", "surrogatepass"))
    texts = [text for name, _, text in fields if name in TEXT_AT]
    raw = r.choice((*TEXTS, *texts)).encode("utf-8", "surrogatepass")
    changed = data[:at] + b"X" + struct.pack("<I", len(raw)) + raw + data[end:]
    framed = changed[2:3] == b"\x95"
    return changed[:3] + struct.pack("<Q", len(changed) - 11) + changed[11:] if framed else changed


@cache
def _pickle_fields(data: bytes) -> list[tuple[str, int, Any]]:
    """Name, position and argument of the opcodes with a number or a text."""
    found = []
    try:
        for opcode, argument, at in pickletools.genops(data):
            if opcode.name in WIDTHS or opcode.name in TEXT_AT:
                found.append((opcode.name, at, argument))
    except ValueError:  # bytes of it were changed before
        pass
    return found


# The invariant


@cache
def _place() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    """The folder of the checkpoint, with the other file beside it; in memory where there is such a file system."""
    memory = Path("/dev/shm")
    kept = tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)
    secret = np.frombuffer(SECRET * 12, np.float32).reshape(8, 6)
    tg.save(Path(kept.name) / "outside.bt", {"w": secret[:2], "v": secret[:1].view(np.int16)[0, :3]}, durable=False)
    (Path(kept.name) / "checkpoint").mkdir()
    return kept, Path(kept.name) / "checkpoint"


def check(files: Files) -> str:
    """Holds the invariant for one checkpoint; returns what became of it."""
    _, folder = _place()
    for path in folder.iterdir():
        path.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    outcome, values = "accepted", {}
    try:
        with tg.open(folder, format="dcp") as archive:
            for name, tensor in archive.items():
                archive.info(name)
                assert repr(tensor).isprintable()
                if tensor.nbytes > EXPANDED_NBYTES:
                    continue
                try:
                    values[name] = _read(tensor)
                except tg.TensorglotError as error:
                    outcome = rule_of(error)
            complete = len(values) == len(archive)
        tg.verify(folder, format="dcp", deep=True)
    except tg.TensorglotError as error:
        return rule_of(error)
    if complete and all(name and "\0" not in name for name in values):  # zTensor 2 has no such names
        again = tg.loads(tg.dumps(values, format="ztensor@2"))
        assert all(again[name].tobytes() == value.tobytes() for name, value in values.items())
    return outcome


def _read(tensor: tg.Tensor) -> np.ndarray[Any, Any]:
    value = tensor.numpy()
    assert SECRET not in value.tobytes(), "a file outside the folder was read"
    assert (value.shape, value.nbytes) == (tensor.shape, tensor.nbytes)
    if len(tensor.shape) > 0 and tensor.shape[0] <= 64:
        rows = [np.asarray(tensor[row]).tobytes() for row in range(tensor.shape[0])]
        assert b"".join(rows) == value.tobytes(), "rows differ from the whole"
    return value


if __name__ == "__main__":
    from campaign import campaign

    campaign(mutants, check)
