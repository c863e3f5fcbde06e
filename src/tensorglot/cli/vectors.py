"""`tensorglot vectors`: matrices between places, which are files, `.bson` dumps and collections of a server.

All commands read one matrix from a place and write one to another; `bson.places` knows
what a place is, `tensorglot.bson` what a vector is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tensorglot.cli.options import as_json
from tensorglot.cli.terminal import Column, message, print_fields, print_json, print_table, progress_bar
from tensorglot.errors import escape, human_nbytes, plural

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorglot.bson.places import Named

__all__ = ["command"]

DEFAULT_KEY = "embedding"


@click.group
def command() -> None:
    """Move vectors between files and MongoDB, and make them smaller.

    A place is a file (.npy, .bson, or a container such as .zt and .bt) or a
    collection, mongodb://HOST/DATABASE.COLLECTION. In BSON every row of a matrix is a
    vector in a document of its own; in containers and .npy files it is one tensor:
    float32, int8, or bool for packed bits. Each of the commands has --json.

    \b
    Examples:
      tensorglot vectors import embeddings.npy mongodb://localhost/shop.products
      tensorglot vectors inspect dump/products.bson.gz
    """


@dataclass(frozen=True, slots=True)
class Transfer:
    """Source and target of a matrix, its names there, and the form of the report."""

    source: str
    target: str
    name: str | None
    key: str | None
    as_json: bool

    def key_of(self, found: Named) -> str:
        return self.key or found.name or DEFAULT_KEY

    def write(self, matrix: NDArray[Any], key: str, others: Mapping[str, NDArray[Any]] | None = None) -> None:
        from tensorglot.bson.places import write_place

        with progress_bar("writing", unit="documents") as progress:
            write_place(self.target, key, matrix, others=others or {}, progress=progress)
        rows, columns = matrix.shape
        if self.as_json:
            places = {"source": self.source, "target": self.target, "name": key}
            shape = {"vectors": rows, "count": columns, "dtype": matrix.dtype.name}
            print_json({**places, **shape, "others": sorted(others or {})})
        else:
            print(f"{plural(rows, 'vector')} of {matrix.dtype.name}[{columns}] as '{escape(key)}'")


def _transfer(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes a Transfer, with the arguments and options that make one, `@as_json` below it included."""

    @functools.wraps(command)
    def run(source: str, target: str, name: str | None, key: str | None, as_json: bool, **options: Any) -> None:
        command(Transfer(source, target, name, key, as_json), **options)

    wrapped: Callable[..., None] = run
    for option in (
        click.option("--key", metavar="NAME", help="Name of the field or tensor in TARGET; dots give a nested field."),
        click.option(
            "--from", "name", metavar="NAME", help="Name of the field or tensor in SOURCE, if there are several."
        ),
        click.argument("target", type=click.Path()),
        click.argument("source", type=click.Path()),
    ):
        wrapped = option(wrapped)
    return wrapped


_on_missing = click.option(
    "--on-missing",
    type=click.Choice(["error", "skip", "nan"]),
    default="error",
    help="What to do with documents that have no vector.",
)


@command.command("import")
@_transfer
@click.option(
    "--dtype",
    type=click.Choice(["float32", "int8", "packed_bit"]),
    help="Element type of the vectors; default: by the source.",
)
@as_json
def import_(transfer: Transfer, dtype: str | None) -> None:
    """Write the rows of a matrix as vectors.

    TARGET is a collection, to which documents are added, or a .bson file, which is
    replaced. Numbers become float32 vectors, int8 stays int8, bool becomes packed bits;
    bytes that are packed bits already need --dtype packed_bit.

    \b
    Examples:
      tensorglot vectors import embeddings.npy mongodb://localhost/shop.products
      tensorglot vectors import model.zt vectors.bson --from embed --key meta.v
    """
    from tensorglot.bson.places import natural, read_place

    found = read_place(transfer.source, transfer.name)
    transfer.write(natural(found.matrix, dtype), transfer.key_of(found))


@command.command("export")
@_transfer
@_on_missing
@as_json
def export(transfer: Transfer, on_missing: Any) -> None:
    """Write the vectors of documents as one matrix.

    SOURCE is a collection or a .bson file, also gzipped. Documents are read in the
    order in which the server or the file has them.

    \b
    Examples:
      tensorglot vectors export mongodb://localhost/shop.products embeddings.npy
      tensorglot vectors export dump/products.bson.gz v.zt --on-missing skip
    """
    from tensorglot.bson.places import read_place

    with progress_bar("reading", unit="documents") as progress:
        found = read_place(transfer.source, transfer.name, on_missing=on_missing, progress=progress)
    transfer.write(found.matrix, transfer.key_of(found))


@command.command("inspect")
@click.argument("source", type=click.Path())
@as_json
def inspect(source: str, as_json: bool) -> int:
    """List the vector fields of documents, and their problems.

    SOURCE is a collection or a .bson file, also gzipped; all of it is read. Exits with
    1 if the vectors of a field cannot be the rows of one matrix.

    \b
    Examples:
      tensorglot vectors inspect dump/products.bson
      tensorglot vectors inspect mongodb://localhost/shop.products --json
    """
    from tensorglot.bson.places import inspect_place

    fields = inspect_place(source)
    if as_json:
        print_json({"source": source, "fields": [field.to_dict() for field in fields]})
    else:
        print_table(
            [
                Column("field", [escape(field.name) for field in fields], elastic=True),
                Column("dtype", [field.dtype or "-" for field in fields]),
                Column("count", ["-" if field.count is None else str(field.count) for field in fields], right=True),
                Column("vectors", [f"{field.vectors:,}" for field in fields], right=True),
                Column("documents", [f"{field.documents:,}" for field in fields], right=True),
                Column("trouble", [field.trouble or "-" for field in fields], elastic=True),
            ]
        )
    return 1 if any(field.trouble for field in fields) else 0


@command.command("quantize")
@_transfer
@click.option(
    "--to", type=click.Choice(["int8", "packed_bit"]), default="int8", help="A byte or a bit for each number."
)
@click.option("--ranges", type=click.Path(), help="Write the ranges of the dimensions to this file.")
@_on_missing
@as_json
def quantize(transfer: Transfer, to: Any, ranges: str | None, on_missing: Any) -> None:
    """Make vectors smaller: a byte or a bit for each number.

    Bytes spread the range of each dimension over 256 steps. The ranges, which undo it
    and are needed for queries, go into TARGET as NAME.low and NAME.high if it is a
    container, else into the file of --ranges.

    \b
    Examples:
      tensorglot vectors quantize embeddings.npy small.zt
      tensorglot vectors quantize e.npy bits.bson --to packed_bit
    """
    import tensorglot as tg
    from tensorglot.bson.places import holds_several, natural, read_place

    found = read_place(transfer.source, transfer.name, on_missing=on_missing)
    smaller = tg.bson.quantize(found.matrix, to=to)
    key = transfer.key_of(found)
    others: dict[str, NDArray[Any]] = {}
    if smaller.low is not None and smaller.high is not None:
        if ranges is not None:
            tg.save(ranges, {"low": smaller.low, "high": smaller.high})
        elif holds_several(transfer.target):
            others = {f"{key}.low": smaller.low, f"{key}.high": smaller.high}
        else:
            message(f"the ranges are not kept: {transfer.target} cannot hold them; pass --ranges FILE")
    transfer.write(natural(smaller), key, others)


@command.command("migrate")
@click.argument("collection")
@click.option(
    "--key", metavar="NAME", default=DEFAULT_KEY, show_default=True, help="The field; dots are nested fields."
)
@click.option("--dry-run", is_flag=True, help="Write nothing, only report what would be done.")
@click.option("--batch-size", type=click.IntRange(1), default=500, show_default=True, help="Documents at a time.")
@as_json
def migrate(collection: str, key: str, dry_run: bool, batch_size: int, as_json: bool) -> int:
    """Turn arrays of numbers in a collection into float32 vectors.

    A document is changed only if its array is still the one that was read. An array
    with other values than numbers is not changed, is listed, and makes the exit code 1.
    An interrupted run is completed by running it again.

    \b
    Examples:
      tensorglot vectors migrate mongodb://localhost/shop.products --dry-run
      tensorglot vectors migrate mongodb://localhost/shop.products --key meta.v
    """
    from tensorglot.bson.migrate import migrate as run
    from tensorglot.bson.places import collection_at

    with collection_at(collection) as found, progress_bar("migrating", unit="documents") as progress:
        result = run(found, key, dry_run=dry_run, batch_size=batch_size, progress=progress)
    if as_json:
        print_json({"collection": found.full_name, "key": key, **result.to_dict()})
    else:
        for own_id, reason in result.reasons:
            message(f"{escape(str(own_id))}: {reason}")
        print_fields(
            [
                ("arrays", f"{result.found:,}"),
                ("would be migrated" if dry_run else "migrated", f"{result.migrated:,}"),
                ("changed meanwhile", f"{result.changed:,}"),
                ("left as they are", f"{result.skipped:,}"),
                ("saved", human_nbytes(result.saved_nbytes)),
                ("largest error", f"{result.largest_error:.3g}"),
            ]
        )
    return 1 if result.skipped or result.changed else 0
