"""`tensorglot vectors`: vectors between places, which are files, `.bson` dumps and collections of a server.

Each command reads embeddings from a place and writes them to another, or prints a table.
`tensorglot.bson` knows what a place is and what a vector is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import click

from tensorglot.cli.group import Group
from tensorglot.cli.options import PATH, as_json, storage_option, storage_options, storage_options_of
from tensorglot.cli.terminal import Column, message, print_fields, print_json, print_table, progress_bar
from tensorglot.errors import escape, human_nbytes, plural

__all__ = ["command"]

DEFAULT_KEY = "embedding"


@click.group(cls=Group)
def command() -> None:
    """Move vectors between files and MongoDB, and make them smaller.

    A place is a file (.bson, .parquet, .npz, .npy, or a container such as .zt), also
    at a URL, or a collection, mongodb://HOST/DATABASE.COLLECTION. The _id of each
    vector is kept, and so are the fields named with --field; only a .npy file cannot
    store them. Each of the commands has --json.

    \b
    Examples:
      tensorglot vectors export mongodb://localhost/shop.products all.parquet
      tensorglot vectors inspect dump/products.bson.gz
    """


def _naming(source: str) -> AbstractContextManager[None]:
    """Adds the path of a file to errors about its contents; a URL may have a password."""
    from tensorglot.io.local import add_path_to_errors

    return add_path_to_errors(None if "://" in source else source)


def _move(
    source: str, target: str, name: str | None, key: str | None, dry_run: bool, as_json: bool, **options: Any
) -> int:
    """Moves vectors and reports it. Returns the exit code."""
    from tensorglot.bson import transfer
    from tensorglot.bson.places import is_collection, place_text

    with _naming(source), progress_bar("moving", unit="documents") as progress:
        done = transfer(
            source,
            target,
            name,
            under=key,
            dry_run=dry_run,
            progress=progress,
            storage_options=storage_options(),
            **options,
        )
    if as_json:
        print_json({"source": place_text(source), "target": place_text(target), **done.to_dict()})
        return 0 if done.ok else 1
    written = done.written
    _list_reasons(written.reasons, written.conflicts + written.missing + written.failed)
    if done.ids and target.endswith(".npy"):
        message("the ids are not kept: a .npy file cannot store them; write .npz or .parquet")
    word = "would be written: " if dry_run else ""
    print(f"{word}{plural(done.vectors, 'vector')} of {done.dtype}[{done.count}] as '{escape(done.key)}'")
    if is_collection(target):
        counts = ("inserted", "updated", "unchanged", "conflicts", "missing", "failed")
        print_fields([(name, f"{count:,}") for name in counts if (count := getattr(done.written, name))])
    return 0 if done.ok else 1


def _list_reasons(reasons: Sequence[tuple[Any, str]], count: int) -> None:
    """The documents that were left alone, of which the first are listed."""
    for own_id, reason in reasons:
        message(f"{escape(str(own_id))}: {reason}")
    if count > len(reasons):
        message(f"… and {count - len(reasons):,} more")


_dry_run = click.option("--dry-run", is_flag=True, help="Write nothing, only report what would be done.")


def _transfer(command: Callable[..., int]) -> Callable[..., int]:
    """Adds the arguments and options of `_move` to a command.

    `@as_json` stands below it, so that --json is the last option of the help.
    """
    for option in (
        storage_option,
        _dry_run,
        click.option("--update", is_flag=True, help="Change the documents with the same _id instead of inserting."),
        click.option("--field", "fields", metavar="NAME", multiple=True, help="Keep this field, too; may be repeated."),
        click.option("--id", metavar="NAME", default="_id", show_default=True, help="Name of the ids in SOURCE."),
        click.option("--key", metavar="NAME", help="Name of the vectors in TARGET; dots give a nested field."),
        click.option("--from", "name", metavar="NAME", help="Name of the vectors in SOURCE, if there are several."),
        click.argument("target", type=PATH),
        click.argument("source", type=PATH),
    ):
        command = option(command)
    return command


_on_missing = click.option(
    "--on-missing",
    type=click.Choice(["error", "skip", "nan"]),
    default="error",
    help="What to do with documents that have no vector.",
)


@command.command("import")
@_transfer
@click.option("--dtype", metavar="DTYPE", help="float32, int8 or packed_bit; default: by the source.")
@as_json
def import_(**options: Any) -> int:
    """Write vectors of a file to a collection.

    TARGET is a collection, or a .bson file, which is replaced. Numbers become float32
    vectors, int8 stays int8, bool becomes packed bits; bytes that are packed bits
    already need --dtype packed_bit. In a collection, vectors without ids get
    ids derived from their contents.

    An interrupted import is completed by running it again: documents that exist are
    counted as unchanged. A document that exists with other values is not changed but
    listed, and the exit code is 1; --update overwrites its vector and fields.

    \b
    Examples:
      tensorglot vectors import embeddings.npy mongodb://localhost/shop.products
      tensorglot vectors import all.parquet all.bson --field title --key v
    """
    return _move(**options)


@command.command("export")
@_transfer
@_on_missing
@as_json
def export(**options: Any) -> int:
    """Write the vectors of documents to a file, with their ids.

    SOURCE is a collection or a .bson file, also gzipped. Documents are read in the
    order in which the server or the file has them.

    \b
    Examples:
      tensorglot vectors export mongodb://localhost/shop.products all.parquet
      tensorglot vectors export dump/products.bson.gz v.zt --field title
    """
    return _move(**options)


@command.command("inspect")
@click.argument("source", type=PATH)
@storage_option
@as_json
def inspect(source: str, as_json: bool) -> int:
    """List vector fields with their problems, and arrays that could be vectors.

    SOURCE is a collection or a .bson file, also gzipped; all of it is read. An array
    of numbers is listed with what a migration to float32 vectors would save. Exits
    with 1 if the vectors or arrays of a field cannot be the rows of one matrix.

    \b
    Examples:
      tensorglot vectors inspect dump/products.bson
      tensorglot vectors inspect mongodb://localhost/shop.products --json
    """
    from tensorglot.bson.places import inspect_place, place_text

    with _naming(source):
        fields = inspect_place(source, storage_options())
    if as_json:
        print_json({"source": place_text(source), "fields": [field.to_dict() for field in fields]})
        return 1 if any(field.trouble for field in fields) else 0
    dtypes = [field.dtype or ("/".join(field.types) if field.arrays else "-") for field in fields]
    columns = [
        Column("field", [escape(field.name) for field in fields], elastic=True),
        Column("dtype", dtypes),
        Column("count", ["-" if field.count is None else str(field.count) for field in fields], right=True),
        Column("vectors", [f"{field.vectors:,}" for field in fields], right=True),
        Column("size", [human_nbytes(field.vectors_nbytes + field.arrays_nbytes) for field in fields], right=True),
        Column("documents", [f"{field.documents:,}" for field in fields], right=True),
        Column("trouble", [field.trouble or "-" for field in fields], elastic=True),
    ]
    if any(field.arrays for field in fields):
        columns[4:4] = [Column("arrays", [f"{field.arrays:,}" for field in fields], right=True)]
        columns[6:6] = [Column("saved", [human_nbytes(field.saved_nbytes) for field in fields], right=True)]
    print_table(columns)
    return 1 if any(field.trouble for field in fields) else 0


@command.command("quantize")
@_transfer
@click.option(
    "--to", type=click.Choice(["int8", "packed_bit"]), default="int8", help="A byte or a bit for each number."
)
@click.option("--ranges", type=PATH, help="Write the ranges of the dimensions to this file.")
@click.option("--use-ranges", type=PATH, help="Use the ranges of this file, for queries.")
@_on_missing
@as_json
def quantize(source: str, target: str, to: str, use_ranges: str | None, **options: Any) -> int:
    """Make vectors smaller: a byte or a bit for each number.

    Bytes spread the range of each dimension over 256 steps. The ranges, which undo it
    and are needed for queries, go into TARGET: in a container as NAME.low and
    NAME.high, in Parquet as metadata of the column. A collection, a .bson and a .npy
    file cannot store them and need --ranges FILE.

    \b
    Examples:
      tensorglot vectors quantize embeddings.npy small.zt
      tensorglot vectors quantize e.npy bits.bson --to packed_bit
    """
    from tensorglot.bson.reading import read_ranges

    if source == target and not options["update"]:
        raise click.UsageError("SOURCE and TARGET are the same: pass --update and --key to add a field.")
    *_, of_ranges = storage_options_of(source, target, options["ranges"], use_ranges)
    known = None if use_ranges is None else read_ranges(use_ranges, of_ranges)
    return _move(source, target, quantize=to, use_ranges=known, **options)


@command.command("recall")
@click.argument("source", type=PATH)
@click.option("--from", "name", metavar="NAME", help="Name of the vectors in SOURCE, if there are several.")
@click.option("--queries", type=PATH, help="File of queries; default: a sample of SOURCE.")
@click.option(
    "-k", "sizes", type=click.IntRange(1), multiple=True, help="Neighbours; may be repeated; default: 1, 10, 100."
)
@click.option(
    "--metric", type=click.Choice(["cosine", "dot", "euclidean"]), default="cosine", help="How vectors are compared."
)
@click.option("--sample", type=click.IntRange(1), default=1000, show_default=True, help="Queries taken from SOURCE.")
@storage_option
@as_json
def recall(
    source: str, name: str | None, queries: str | None, sizes: tuple[int, ...], metric: Any, sample: int, as_json: bool
) -> None:
    """Measure what quantization costs: recall at k of int8 and bits.

    The nearest neighbours in the smaller vectors are compared with those in float32,
    found by an exact search. int8 compares the stored codes, as a database does; int8,
    dequantized the values that the ranges restore; packed_bit counts differing bits.

    \b
    Examples:
      tensorglot vectors recall embeddings.npy
      tensorglot vectors recall all.parquet --queries q.npy -k 10 --metric dot
    """
    import tensorglot as tg
    from tensorglot.bson.places import place_text

    of_source, of_queries = storage_options_of(source, queries)
    with _naming(source):
        values = tg.bson.read_embeddings(source, name, storage_options=of_source).matrix
    wanted = None if queries is None else tg.bson.read_embeddings(queries, storage_options=of_queries).matrix
    found = tg.bson.recall(values, wanted, sizes or None, metric, sample=sample)
    if as_json:
        print_json({"source": place_text(source), **found.to_dict()})
        return
    message(f"{found.vectors:,} vectors of {found.columns}, {found.queries:,} queries, {found.metric}")
    nbytes = [found.nbytes, *(row.nbytes for row in found.rows)]
    print_table(
        [
            Column("search", ["float32", *(row.name for row in found.rows)]),
            Column("size", [human_nbytes(each) for each in nbytes], right=True),
            *(
                Column(f"recall@{k}", ["1.000", *(f"{row.recalls[i]:.3f}" for row in found.rows)], right=True)
                for i, k in enumerate(found.k)
            ),
        ]
    )


@command.command("migrate")
@click.argument("collection")
@click.option(
    "--key", metavar="NAME", default=DEFAULT_KEY, show_default=True, help="The field; dots are nested fields."
)
@_dry_run
@click.option("--batch-size", type=click.IntRange(1), default=500, show_default=True, help="Documents at a time.")
@as_json
def migrate(collection: str, key: str, dry_run: bool, batch_size: int, as_json: bool) -> int:
    """Turn arrays of numbers in a collection into float32 vectors.

    A document is changed only if its array is still the one that was read. An array
    with other values than numbers is not changed but listed, and the exit code is 1.
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
        _list_reasons(result.reasons, result.skipped)
        print_fields(
            [
                ("arrays", f"{result.found:,}"),
                ("would be migrated" if dry_run else "migrated", f"{result.migrated:,}"),
                ("migrated by another", f"{result.concurrent:,}"),
                ("changed meanwhile", f"{result.changed:,}"),
                ("left as they are", f"{result.skipped:,}"),
                ("saved", human_nbytes(result.saved_nbytes)),
                ("largest error", f"{result.largest_error:.3g}"),
            ]
        )
    return 1 if result.skipped or result.changed else 0
