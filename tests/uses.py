"""Everything that can be done with a source: every public verb, and every command that takes one.

A use gets the source, its format and an empty folder for what it writes. What it changes
in place it changes in a copy. `tests/test_resources.py` runs each on every hostile file.
"""

from __future__ import annotations

import io
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

import tensorglot as tg
from tensorglot import bson, dynd, report
from tensorglot.cli import commands
from tensorglot.store import Store

__all__ = ["COMMANDS", "VALUES", "VERBS", "Source", "run_command"]

NEW = {"new": np.arange(3, dtype=np.float32)}


@dataclass(frozen=True)
class Source:
    path: Path | str
    format: str | None
    out: Path
    type: str | None = None

    @property
    def nbytes(self) -> int:
        return self.path.stat().st_size if isinstance(self.path, Path) and self.path.is_file() else 0

    def open(self, **options: Any) -> tg.Archive:
        return tg.open(self.path, format=self.format, **options)

    def copied(self) -> Path:
        """A copy of the source to be changed. A source that is not a file is passed on: the verb has to refuse it."""
        if not isinstance(self.path, Path):
            return Path(self.path)
        if self.path.is_dir():
            return Path(shutil.copytree(self.path, self.out / self.path.name, symlinks=True))
        return Path(shutil.copy(self.path, self.out))


def look(source: Source, **options: Any) -> None:
    with source.open(**options) as archive:
        repr(archive)
        for name, tensor in archive.items():
            archive.info(name)
            repr(tensor)


def read(source: Source, **options: Any) -> None:
    """Every tensor in every way; what one refuses does not stop the others."""
    with source.open(**options) as archive:
        for tensor in archive.values():
            for way in (
                tensor.numpy, tensor.tolist, tensor.serialize, tensor.cid, tensor.dequantize, tensor.arrow,
                tensor.awkward, lambda t=tensor: t[0], lambda t=tensor: t[:2], lambda t=tensor: t[::-3],
                lambda t=tensor: t[..., [0]],
            ):  # fmt: skip
                try:
                    way()
                except (tg.TensorglotError, OSError):
                    continue


def tables(source: Source) -> None:
    """Each is let go of: together they have a record for each column of each tensor."""
    with source.open() as archive:
        for tensor in archive.values():
            dynd.to_table(tensor)


def append(source: Source) -> None:
    with tg.Writer(source.copied(), append=True, durable=False) as out:
        out.add("new", NEW["new"])


def commit(source: Source) -> None:
    store = Store.create(source.out / "store")
    store.commit("main", source.path)


def pickled(source: Source) -> None:
    with source.open() as archive:
        pickle.loads(pickle.dumps(archive)).close()


def into(format: str) -> Callable[[Source], object]:
    return lambda source: tg.convert(
        source.path,
        source.out / "new",
        format=format,
        source_format=source.format,
        on_loss="drop",
        durable=False,
    )


def safe_open(source: Source) -> None:
    with tg.safe_open(source.path, framework="numpy") as file:
        for name in file.keys():  # noqa: SIM118
            file.get_slice(name).get_shape()


WRITABLE = tuple(f"{spec.name}@{version}" for spec in tg.formats() for version in spec.writes)

VERBS: dict[str, Callable[[Source], object]] = {
    "open": look,
    "open strict": lambda source: look(source, strict=True),
    "open by mmap": lambda source: read(source, backend="mmap"),
    "read": read,
    "load": lambda source: tg.load(source.path, format=source.format),
    "load verified": lambda source: tg.load(source.path, format=source.format, verify="require"),
    "load detected": lambda source: tg.load(source.path),
    "pickle": pickled,
    **{f"convert to {format}": into(format) for format in WRITABLE},
    "convert dtype": lambda source: tg.convert(
        source.path, source.out / "new.zt", source_format=source.format, dtype="float64", durable=False
    ),
    "convert compressed": lambda source: tg.convert(
        source.path, source.out / "new.zt", source_format=source.format, compression="zstd", durable=False
    ),
    "convert dry run": lambda source: tg.convert(
        source.path, source.out / "new.zt", source_format=source.format, dry_run=True
    ),
    "verify": lambda source: tg.verify(source.path, format=source.format, deep=True),
    "verify strict": lambda source: tg.verify(source.path, format=source.format, deep=True, strict=True),
    "write sums": lambda source: tg.verify(source.copied(), format=source.format, sums="write"),
    "diff": lambda source: tg.diff(source.path, source.path),
    "stats": lambda source: tg.stats(source.path, format=source.format),
    "identify": lambda source: tg.identify(source.path, format=source.format),
    "split": lambda source: tg.split(
        source.path, source.out / "split", shard_nbytes=1000, format="ztensor", durable=False
    ),
    "merge": lambda source: tg.merge([str(source.path)], source.out / "new.zt", durable=False),
    "save": lambda source: tg.save(source.out / "new.zt", source.open(), durable=False),
    "edit": lambda source: tg.edit(source.copied(), {"a": "b"}, format=source.format, durable=False),
    "edit in place": lambda source: tg.edit(
        source.copied(), {"a": "b"}, format=source.format, in_place=True, durable=False
    ),
    "edit add": lambda source: tg.edit(source.copied(), add=NEW, format=source.format, durable=False),
    "append": append,
    "commit": commit,
    "delta": lambda source: tg.store.delta(source.path, source.path, source.out / "new.tgdelta", durable=False),
    "delta from": lambda source: tg.store.delta(NEW, source.path, source.out / "new.tgdelta", durable=False),
    "apply": lambda source: tg.store.apply(source.path, {"new": NEW["new"].copy()}),
    "patch": lambda source: tg.store.patch(source.path, NEW, source.out / "new.zt", durable=False),
    "report": lambda source: report.write(source.path, source.out / "new.html"),
    "safe_open": safe_open,
    "decode_matrix": lambda source: bson.decode_matrix(source.path),
    "encode_documents": lambda source: bson.encode_documents(next(iter(source.open().values()), 0), "v"),
    "transfer": lambda source: bson.transfer(source.path, source.out / "new.bson"),
    "table": tables,
    "unbundle": lambda source: Store.create(source.out / "store").unbundle(source.path),
}
COMMANDS: dict[str, Callable[[Source], list[Any]]] = {
    "ls": lambda source: ["ls", "--long", source.path],
    "ls --tree": lambda source: ["ls", "--tree", "--json", source.path],
    "info": lambda source: ["info", source.path],
    "cat": lambda source: ["cat", source.path, "a"],
    "cat --json": lambda source: ["cat", source.path, "a", "--json"],
    "cat --npy": lambda source: ["cat", source.path, "a", "--npy", "-o", source.out / "new.npy"],
    "stats": lambda source: ["stats", source.path],
    "verify": lambda source: ["verify", "--deep", source.path],
    "hash": lambda source: ["hash", "--json", source.path],
    "diff": lambda source: ["diff", source.path, source.path],
    "convert": lambda source: ["convert", source.path, source.out / "new.bt", "--on-loss", "drop"],
    "split": lambda source: ["split", source.path, source.out / "split", "--shard-size", "1kB", "--to", "ztensor"],
    "merge": lambda source: ["merge", source.path, source.out / "new.zt"],
    "edit": lambda source: ["edit", source.copied(), "--set", "a=b"],
    "report": lambda source: ["report", source.path, "-o", source.out / "new.html"],
    "vectors inspect": lambda source: ["vectors", "inspect", source.path],
    "store delta": lambda source: ["store", "delta", source.path, source.path, source.out / "new.tgdelta"],
    "store apply": lambda source: ["store", "apply", source.path, source.path, source.out / "new.zt"],
    "dynd decode": lambda source: ["dynd", "decode", source.path],
    "dynd cbor": lambda source: ["dynd", "cbor", "--decode", source.path],
}


def data_of(source: Source) -> bytes:
    return Path(source.path).read_bytes()


def described(source: Source) -> str:
    assert source.type is not None
    return source.type


VALUES: dict[str, Callable[[Source], object]] = {
    "deserialize": lambda source: dynd.deserialize(data_of(source), described(source)).tolist(),
    "a stream": lambda source: dynd.load(io.BytesIO(data_of(source)), described(source)).tolist(),
    "export": lambda source: dynd.deserialize(data_of(source), described(source)).arrow(),
    "to_cbor": lambda source: dynd.to_cbor(dynd.deserialize(data_of(source), described(source))),
    "save": lambda source: tg.save(
        source.out / "new.dynd", {"a": dynd.deserialize(data_of(source), described(source))}, durable=False
    ),
    "unpack": lambda source: dynd.unpack(data_of(source)),
    "from_cbor": lambda source: dynd.from_cbor(data_of(source), described(source)),
}
"""For canonical bytes without a container."""


def run_command(arguments: list[Any]) -> tuple[int, str]:
    """Exit code and output."""
    result = CliRunner().invoke(commands, [str(argument) for argument in arguments])
    return result.exit_code, result.output
