"""Parquet files at URLs: read by ranges, written atomically, with the errors of servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from http_servers import Site, serve
from peers import needs
from seaweed import Seaweed
from tensorglot.io.place import as_place
from tensorglot.io.reader import open_reader

pytestmark = pytest.mark.remote

RANDOM = np.random.default_rng(5)
MATRIX = RANDOM.standard_normal((60_000, 64), np.float32)
NAMES = [f"row {i}" for i in range(len(MATRIX))]


@pytest.fixture
def pyarrow() -> Any:
    needs("obstore")
    return needs("pyarrow")


@pytest.fixture
def site(pyarrow: Any, tmp_path: Path) -> Iterator[Site]:
    path = tmp_path / "v.parquet"
    found = tg.bson.Embeddings(MATRIX, "v", fields={"name": NAMES, "other": NAMES})
    tg.bson.write_embeddings(path, found)
    with serve() as site:
        site.files["/v.parquet"] = path.read_bytes()
        yield site


def test_vectors_and_one_field(site: Site) -> None:
    found = tg.bson.read_embeddings(f"{site.url}/v.parquet?signature=x", fields=["name"])
    assert (found.matrix == MATRIX).all()
    assert found.fields["name"].tolist() == NAMES
    assert len(site.requests) < 60
    assert site.nbytes <= 1.05 * len(site.files["/v.parquet"])


def test_columns_that_are_not_named_are_not_read(site: Site) -> None:
    tg.dynd.from_parquet(f"{site.url}/v.parquet", ["other"])
    assert site.nbytes < 0.5 * len(site.files["/v.parquet"])


@pytest.mark.parametrize(
    ("way", "error"),
    [
        ("short", tg.RemoteError), ("long", tg.RemoteError), ("ignores_range", tg.UnsupportedError),
        ("error_page", tg.UnsupportedError),
    ],
)  # fmt: skip
def test_errors_of_a_server_are_not_those_of_the_file(way: str, error: type[Exception], site: Site) -> None:
    url = f"{site.url}/v.parquet"
    site.ways["/v.parquet"] = way
    for read in (tg.bson.read_embeddings, tg.dynd.from_parquet):
        with pytest.raises(error):
            read(url)
    with pytest.raises(FileNotFoundError):
        tg.dynd.from_parquet(f"{site.url}/none.parquet")
    site.ways.clear()
    site.files["/v.parquet"] = site.files["/v.parquet"][:-1] + b"x"
    with pytest.raises(tg.FormatError, match=r"rule parquet\.file"):
        tg.dynd.from_parquet(url)


def test_an_object_that_is_replaced(site: Site) -> None:
    """pyarrow passes on the error of the file that it reads from."""
    with open_reader(as_place(f"{site.url}/v.parquet")) as stream:
        file = needs("pyarrow.parquet").ParquetFile(stream)
        site.etag = '"two"'
        with pytest.raises(tg.InputError) as caught:
            file.read()
    assert caught.value.rule == "source.changed"


def test_written_and_read_by_pyarrow(pyarrow: Any, s3_server: Seaweed) -> None:
    base, options = "s3://tests/parquet", s3_server.options
    value = {"a": np.arange(5), "b": ["x", None, "z", "", "y"]}
    rows = [{"a": int(a), "b": b} for a, b in zip(value["a"], value["b"], strict=True)]
    tg.dynd.to_parquet(rows, f"{base}/t.parquet", storage_options=options)
    assert tg.dynd.from_parquet(f"{base}/t.parquet", storage_options=options).tolist() == rows
    data = bytes(needs("obstore").get(s3_server.client(), "parquet/t.parquet").bytes())
    assert needs("pyarrow.parquet").read_table(pyarrow.BufferReader(data)).to_pylist() == rows
    with pytest.raises(tg.InputError, match="storage_options need a URL"):
        tg.dynd.from_parquet("t.parquet", storage_options=options)


def test_a_write_that_fails_leaves_nothing(site: Site, s3_server: Seaweed, tmp_path: Path) -> None:
    def fail(done: int, total: int) -> None:
        raise ZeroDivisionError

    url = "s3://tests/failed/v.parquet"
    with pytest.raises(ZeroDivisionError):
        tg.bson.transfer(tmp_path / "v.parquet", url, progress=fail, storage_options=s3_server.options)
    assert not s3_server.keys("failed")
