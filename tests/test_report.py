"""The numbers of a report against NumPy, the page as bytes, and the viewer as a server."""

from __future__ import annotations

import base64
import http.client
import json
import math
import os
import re
import signal
import subprocess
import sys
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import tensorglot as tg
from bounds import MB, allocated_nbytes
from command_line import run
from tensorglot import report
from tensorglot.model.dtypes import TABLE
from tensorglot.model.layouts import LAYOUTS
from tensorglot.report import data as report_data
from tensorglot.report.cards import Cards
from tensorglot.report.data import QUANTILES, card, cells_for
from tensorglot.report.grid import Grid, GridShape, encode_plane
from terminals import environment
from test_dcp import WHOLE, write_index

DCP = Path(__file__).parent / "corpus" / "dcp" / "ranks4"
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--",
    "<img src=x onerror=alert(1)>",
    "{{script}}",
    "\u202egnp.exe",
    "a\0b\x1b[2J\u2028\ufeff",
    "'\"`${7*7}&lt;",
    "__proto__",
    "a." * 5000,
    "n" * 100_000,
]


def part_of(value: Any) -> dict[str, Any]:
    """The card of one array in memory."""
    with tg.open(tg.dumps({"x": value}, format="ztensor")) as archive:
        [part] = card(archive["x"], 4096)["parts"]
    assert isinstance(part, dict)
    return part


# Distributions

RANDOM = np.random.default_rng(0)
SMALL, LARGE = 1000, 100_003
SHAPES_OF_VALUES = {
    "normal": lambda random, n: random.normal(0, 50, n),
    "around one": lambda random, n: 1 + random.normal(0, 0.001, n),
    "far apart": lambda random, n: 10.0 ** random.uniform(-30, 30, n) * random.choice([-1, 1], n),
    "far apart, an edge near zero": lambda random, n: np.append(
        10.0 ** random.uniform(-30, 20, n - 2), [-1e30, 1.0002e30]
    ),
    "an outlier": lambda random, n: np.append(random.normal(0, 1, n - 1), 1e30),
    "many zeros": lambda random, n: random.normal(0, 1, n) * (random.random(n) < 0.1),
    "all alike": lambda random, n: np.full(n, 0.1),
    "negative": lambda random, n: -random.gamma(0.3, 2.0, n),
}


@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", SHAPES_OF_VALUES)
def test_quantiles_and_histograms(kind: str, dtype: str, count: int) -> None:
    with np.errstate(over="ignore"):
        values = SHAPES_OF_VALUES[kind](np.random.default_rng(0), count).astype(getattr(ml_dtypes, dtype, dtype))
    exactly = values.astype(np.float64)
    exactly = exactly[np.isfinite(exactly)]
    part = part_of(values)
    assert part["exact"] == (count == SMALL or dtype in ("float16", "bfloat16"))
    wanted = np.quantile(exactly, QUANTILES)
    slack = 1e-12 if part["exact"] else np.minimum(np.abs(wanted) / 128, np.ptp(exactly) / 2048)
    assert (np.abs(np.array(part["quantiles"]) - wanted) <= slack + 1e-12 * np.abs(wanted)).all()
    histogram = part["histogram"]
    assert sum(histogram["counts"]) == len(exactly)
    assert (histogram["low"], histogram["high"]) == (exactly.min(), exactly.max())
    bins = len(histogram["counts"])
    if bins > 1:
        theirs = np.histogram(exactly, bins, (histogram["low"], histogram["high"]))[0]
        cumulated = np.abs(np.cumsum(histogram["counts"]) - np.cumsum(theirs))
        alike = np.unique(exactly, return_counts=True)[1].max()  # of a value on an edge, which rounding may move
        assert cumulated.max() <= (alike if part["exact"] else 0.05 * len(exactly))


@pytest.mark.parametrize("name", [row.name for row in TABLE if row.numpy is not None])
@pytest.mark.parametrize("count", [0, 1, 7, 20_000])
def test_norms_of_every_type(name: str, count: int) -> None:
    dtype = next(row.numpy for row in TABLE if row.name == name)
    assert dtype is not None
    values = RANDOM.integers(-1 if "u" not in name and "e8m0" not in name else 0, 2, count).astype(np.float32)
    array = values.astype(dtype)
    if name.startswith("complex"):
        array += (1j * values[::-1]).astype(dtype)
    part = part_of(array)
    wide = array.astype(np.complex128 if name.startswith("complex") else np.float64)
    wide = wide[np.isfinite(wide)]
    if len(wide):
        assert math.isclose(part["norm"], float(np.linalg.norm(wide)), rel_tol=1e-12)
        assert math.isclose(part["norm1"], float(np.abs(wide).sum()), rel_tol=1e-12)
    else:
        assert (part["norm"], part["norm1"]) == (None, None)
    assert part["zeros"] == int((wide == 0).sum())
    assert part["count"] == count


@pytest.mark.parametrize(
    ("values", "norm", "norm1"),
    [
        ([1.7e308, -1.7e308], "Infinity", "Infinity"),
        ([3e200, 4e200], 5e200, 7e200),
        ([3e-200, 4e-200], 5e-200, 7e-200),
        ([5e-324] * 4, 1e-323, 2e-323),
        ([np.nan, np.inf, 3.0, -4.0], 5.0, 7.0),
        ([np.nan], None, None),
    ],
)
def test_norms_of_hard_values(values: list[float], norm: float | str | None, norm1: float | str | None) -> None:
    part = part_of(np.array(values))
    for got, wanted in ((part["norm"], norm), (part["norm1"], norm1)):
        assert got == wanted or math.isclose(got, float(wanted or 0), rel_tol=1e-12)
    [row] = tg.stats({"x": np.array(values)})
    assert part["norm"] == row.to_dict()["norm"]


@pytest.mark.parametrize("values", [np.array([2**63, 2**64 - 1, 0] * 9000, np.uint64), np.arange(-3, 50_000)])
def test_integers(values: NDArray[Any]) -> None:
    part = part_of(values)
    assert (part["min"], part["max"]) == (int(values.min()), int(values.max()))
    wanted = np.quantile(values.astype(np.float64), QUANTILES)
    assert np.allclose(part["quantiles"], wanted, rtol=1 / 128, atol=float(np.ptp(values.astype(np.float64))) / 2048)


def test_a_bin_for_each_integer_of_a_small_range() -> None:
    assert part_of(np.array([-2, 0, 0, 3], np.int32))["histogram"] == {
        "low": -2.5,
        "high": 3.5,
        "counts": [1, 0, 2, 0, 0, 1],
    }
    assert part_of(np.array([True, False, True]))["histogram"]["counts"] == [1, 2]


def test_few_values_have_few_bins() -> None:
    for count, bins in ((3, 8), (128, 11), (100_000, 60)):
        assert len(part_of(RANDOM.normal(size=count))["histogram"]["counts"]) == bins


def test_a_constant_is_a_thin_bar_in_the_list(tmp_path: Path) -> None:
    tensors = {
        "float": np.full(9, 0.1),
        "int": np.full(9, 7),
        "two": np.array([0, 0, 1, 1]),
        "none": np.full(2, np.nan),
    }
    found = written(tmp_path / "page.html", tensors)["page"]
    sparks = dict(zip(found["one"]["names"], found["sparks"], strict=True))
    assert sparks == {"float": "0" * 10 + "9" + "0" * 10, "int": "0" * 10 + "9" + "0" * 10, "two": "99", "none": None}


def test_equal_counts_are_bars_of_one_height(tmp_path: Path) -> None:
    """Also where the bins cannot be shared equally among the bars."""
    for count in (47 * 47, 10_000):
        found = written(tmp_path / "page.html", {"uniform": np.linspace(0, 1, count)})["page"]
        assert found["sparks"] == ["9" * 20]


class _NeverAsked(type):
    def __instancecheck__(cls, value: object) -> bool:
        raise AssertionError("a check of a protocol for a row without a codec")


def test_rows_without_a_codec_are_placed_without_a_check_of_a_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tg.save(tmp_path / "a.safetensors", {"a": np.zeros(3)}, durable=False)
    monkeypatch.setattr(report_data, "Scattered", _NeverAsked("Scattered", (), {}))
    report.write(tmp_path / "a.safetensors", tmp_path / "a.html")


def test_a_card_takes_bounded_memory(tmp_path: Path) -> None:
    tg.save(tmp_path / "large.bt", {"x": np.ones((3000, 5000), np.float32)}, durable=False)
    with tg.open(tmp_path / "large.bt") as archive:
        assert allocated_nbytes(lambda: card(archive["x"], 4096)) < 48 * MB


# Grids


def blocks(matrix: NDArray[Any], shape: GridShape) -> list[list[NDArray[Any]]]:
    def cut(size: int, cells: int) -> list[slice]:
        return [slice(i * size // cells, (i + 1) * size // cells) for i in range(cells)]

    return [[matrix[r, c] for c in cut(shape.columns, shape.cell_columns)] for r in cut(shape.rows, shape.cell_rows)]


@settings(max_examples=80)
@given(
    st.lists(st.integers(1, 12), max_size=3) | st.lists(st.integers(1, 90), min_size=2, max_size=2),
    st.sampled_from([1, 7, 64, 300]),
    st.sampled_from([7, 100, 10_000]),
    st.floats(0, 0.4),
    st.integers(0, 2**32),
)
def test_a_cell_is_the_mean_the_minimum_and_the_maximum_of_its_block(
    sizes: list[int], cells: int, piece: int, bad: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    values = random.normal(size=sizes).reshape(-1)
    values[random.random(len(values)) < bad] = np.nan
    shape = GridShape.of(sizes, cells)
    assert shape.rows * shape.columns == len(values)
    assert 1 <= shape.cell_rows * shape.cell_columns <= max(cells, 256 if shape.rows == 1 else 0)
    grid = Grid(shape)
    for start in range(0, len(values), piece):
        grid.add(values[start : start + piece])
    mean = grid.mean
    for r, row in enumerate(blocks(values.reshape(shape.rows, shape.columns), shape)):
        for c, block in enumerate(row):
            finite = block[np.isfinite(block)]
            assert grid.other[r, c] == block.size - finite.size
            if not finite.size:
                assert np.isnan(mean[r, c])
                continue
            assert (grid.low[r, c], grid.high[r, c]) == (finite.min(), finite.max())
            assert math.isclose(mean[r, c], finite.mean(), rel_tol=1e-9, abs_tol=1e-12)


def test_axes_are_split_where_the_matrix_is_closest_to_a_square() -> None:
    assert [GridShape.of(shape, 4096).split for shape in [(64, 3, 7, 7), (2, 2, 900), (5,), (), (8, 8)]] == [
        1,
        2,
        0,
        0,
        1,
    ]


def test_a_plane_is_encoded_to_one_level_in_65534() -> None:
    plane = np.append(RANDOM.normal(size=99), np.nan).reshape(10, 10)
    encoded = encode_plane(plane)
    levels = np.frombuffer(base64.b64decode(encoded["levels"]), "<u2").reshape(10, 10)
    step = (encoded["high"] - encoded["low"]) / 65534
    decoded = np.where(levels > 0, encoded["low"] + (levels - 1.0) * step, np.nan)
    assert np.allclose(decoded, plane, atol=step, equal_nan=True)


@pytest.mark.parametrize("values", [[0.0, 5e-324], [5e-324, 4e-323], [-1.7e308, 1.7e308]], ids=repr)
def test_the_smallest_and_largest_numbers_have_bins_and_cells(values: list[float]) -> None:
    with warnings.catch_warnings(action="error"):
        found = part_of(np.array(values))
    histogram = found["histogram"]
    assert [histogram["low"], histogram["high"]] == values
    assert [count for count in histogram["counts"] if count] == [1, 1]
    assert np.frombuffer(base64.b64decode(found["grid"]["mean"]["levels"]), "<u2").tolist() == [1, 65535]


# Pages


def written(target: Path, source: Any, **options: Any) -> dict[str, Any]:
    """The numbers of a page, as a browser would find them."""
    report.write(source, target, **options)
    elements = re.findall(
        r'<script type="application/json" id="([\w-]+)">(.*?)</script>', target.read_text("utf-8"), re.S
    )
    found = {name: json.loads(text) for name, text in elements}
    found["cards"] = [card for name, cards in found.items() if name.startswith("cards-") for card in cards]
    return found


def test_a_page_has_no_address_of_another_host(tmp_path: Path) -> None:
    report.write({"w": np.ones(3)}, tmp_path / "one.html")
    report.opener(tmp_path / "open.html")
    for page in tmp_path.iterdir():
        assert set(re.findall(r"https?://[^\s'\"]+", page.read_text("utf-8"))) == {"http://www.w3.org/2000/svg"}
        assert "connect-src 'none'" in page.read_text("utf-8")


def test_names_are_data(tmp_path: Path) -> None:
    tensors = {name: np.ones(2, np.float32) for name in HOSTILE}
    tg.save(tmp_path / "hostile.bt", tensors, metadata={"<script>": "</script>"})
    found = written(tmp_path / "page.html", tmp_path / "hostile.bt")
    assert sorted(found["page"]["one"]["names"]) == sorted(HOSTILE)
    text = (tmp_path / "page.html").read_text("ascii", errors="replace")
    assert text.count("<script") == 3
    assert text.count("</script") == 3


def test_all_that_is_in_the_index_and_a_card_for_each(tmp_path: Path) -> None:
    values = {f"w{i}": RANDOM.normal(size=(i, 3)).astype(np.float32) for i in range(70)}
    tg.save(tmp_path / "model.zt", values, compression="zstd", metadata={"step": "1"})
    found = written(tmp_path / "page.html", tmp_path / "model.zt")
    one = found["page"]["one"]
    with tg.open(tmp_path / "model.zt") as archive:
        assert one["names"] == list(archive)
        assert one["shapes"] == [list(tensor.shape) for tensor in archive.values()]
        assert one["offsets"] == [tensor.offset for tensor in archive.values()]
        assert one["spans"][0] == [tensor.offset for tensor in archive.values()]
        assert one["stored"] == [tensor.stored_nbytes for tensor in archive.values()]
    assert (one["metadata"], one["summary"]["format"]) == ({"step": "1"}, "ztensor@0.1")
    for name, made in zip(one["names"], found["cards"], strict=True):
        [part] = made["parts"]
        assert part["min"] == (float(values[name].min()) if values[name].size else None)


@pytest.mark.parametrize("theirs", [True, False], ids=["torch", "ours"])
def test_a_distributed_checkpoint_has_the_boxes_of_its_files(tmp_path: Path, theirs: bool) -> None:
    folder = DCP if theirs else tmp_path / "ours"
    if not theirs:
        folder.mkdir()
        write_index(folder, files=["w.safetensors"], tensors={"w": WHOLE})
        tg.save(folder / "w.safetensors", {"w": np.arange(8, dtype=np.float32).reshape(4, 2)})
    page = written(tmp_path / "page.html", folder)["page"]["one"]
    files = [path for path in folder.iterdir() if path.suffix in (".distcp", ".safetensors")]
    assert {file["path"]: file["nbytes"] for file in page["files"]} == {
        path.name: path.stat().st_size for path in files
    }
    assert page["summary"]["file_nbytes"] == sum(path.stat().st_size for path in folder.iterdir())
    assert page["offsets"] == [None] * len(page["names"])
    assert set(page["spans"][2]) == set(range(len(page["names"])))
    for number, file in enumerate(page["files"]):
        spans = sorted(zip(*page["spans"], strict=True))
        held = [(begin, end) for begin, end, _, at in spans if at == number]
        assert 0 <= held[0][0] < held[0][1]
        assert held[-1][1] <= file["nbytes"]
        assert all(end <= begin for (_, end), (begin, _) in pairwise(held))


def test_a_commit_has_no_places(tmp_path: Path) -> None:
    """Its tensors lie in blocks of packs: an offset in the virtual file would name no byte."""
    with tg.store.Store.create(tmp_path / "store") as store:
        store.commit("main", {"a": np.ones(10), "b": np.zeros((2, 2))})
    page = written(tmp_path / "page.html", f"store://{tmp_path}/store#main")["page"]["one"]
    assert (page["files"], page["spans"], page["offsets"]) == ([], [[], [], [], []], [None, None])
    assert page["summary"]["checked_by"] == "block"


def test_a_page_of_two_files_says_what_changed_and_where(tmp_path: Path) -> None:
    old = RANDOM.normal(size=(256, 256)).astype(np.float32)
    new = old.copy()
    new[128:136, 64:68] += 1
    before = {"same": old, "moved": old, "gone": old[:1], "bits": np.zeros(3)}
    after = {"same": old, "moved": new, "come": old[:2], "bits": -np.zeros(3)}
    found = written(tmp_path / "page.html", before, other=after)
    names = [*before, "come"]
    kinds = {names[int(i)]: change for i, change in found["page"]["changed"].items()}
    share = 32 / old.size
    assert kinds == {
        "moved": [["values"], share],
        "gone": [["removed"], None],
        "come": [["added"], None],
        "bits": [["bits"], 0.0],
    }
    assert found["page"]["changes"]["equal"] == 1
    [change] = found["cards"][names.index("moved")]["changes"]
    where = change["where"]
    levels = np.frombuffer(base64.b64decode(where["share"]["levels"]), "<u2").reshape(
        where["cellRows"], where["cellColumns"]
    )
    rows, columns = np.nonzero(levels > 1)
    assert set(rows * 256 // where["cellRows"]) <= set(range(128, 136))
    assert set(columns * 256 // where["cellColumns"]) <= set(range(64, 68))
    assert math.isclose(where["distance"]["high"], 1, rel_tol=1e-6)
    assert found["cards"][names.index("moved")]["after"]["parts"][0]["mean"] > old.mean()
    assert "changes" not in found["cards"][names.index("same")]


def test_values_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.zt"
    tg.save(path, {"good": np.ones(64), "bad": np.ones(64)})
    with tg.open(path) as archive:
        offset = archive["bad"].offset
    data = bytearray(path.read_bytes())
    assert offset is not None
    data[offset] ^= 1
    path.write_bytes(data)
    found = written(tmp_path / "page.html", path)
    cards = dict(zip(found["page"]["one"]["names"], found["cards"], strict=True))
    assert "problem" not in cards["good"]["parts"][0]
    assert "crc32c" in cards["bad"]["parts"][0]["problem"]
    assert found["page"]["odd"] == [found["page"]["one"]["names"].index("bad")]


def test_a_failed_report_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.html"
    page.write_text("old")

    def fail(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("tensorglot.report.page.spark", fail)
    with pytest.raises(KeyboardInterrupt):
        report.write({"w": np.ones(3)}, page)
    assert page.read_text() == "old"
    assert list(tmp_path.iterdir()) == [page]


@pytest.mark.parametrize(("tensors", "cells"), [(1, 4096), (300, 3495), (10_000, 256), (10**6, 256)])
def test_cells_are_fewer_where_tensors_are_many(tensors: int, cells: int) -> None:
    assert cells_for(tensors) == cells


def test_every_layout_has_a_card(tmp_path: Path) -> None:
    corpus = Path(__file__).parent / "corpus" / "ztensor-2"
    layouts = set()
    for path in sorted(corpus.glob("*.zt")):
        found = written(tmp_path / "page.html", path)
        with tg.open(path) as archive:
            for name, made in zip(found["page"]["one"]["names"], found["cards"], strict=True):
                assert [part["name"] for part in made["parts"]] == list(archive[name].parts)
                layouts.add(archive[name].layout)
    assert layouts == {"dense", *LAYOUTS} - {"nested"}


# The commands


def test_report_on_the_command_line(tmp_path: Path) -> None:
    tg.save(tmp_path / "a.bt", {"w": np.ones(3)})
    tg.save(tmp_path / "b.bt", {"w": np.zeros(3)})
    for args in (["a.bt"], ["a.bt", "b.bt"], []):
        target = tmp_path / "page.html"
        done = run("report", *(tmp_path / arg for arg in args), "-o", target, "--json")
        assert json.loads(done.stdout)["nbytes"] == target.stat().st_size
        target.unlink()
    assert run("report", tmp_path / "a.bt", "-o", "-").stdout_bytes.startswith(b"<!doctype html>")
    run("report", tmp_path / "none.bt", "-o", tmp_path / "page.html", code=5)
    run("report", tmp_path / "a.bt", code=2)
    run("report", tmp_path / "a.bt", "-o", "-", "--json", code=2)
    assert not (tmp_path / "page.html").exists()


def test_view_runs_until_it_is_interrupted(tmp_path: Path) -> None:
    tg.save(tmp_path / "a.bt", {"w": np.ones(3)})
    path = str(tmp_path / "a.bt")
    command = [sys.executable, "-m", "tensorglot", "view", path, path, "--no-browser", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            assert ask(url)[0] == 200
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
        finally:
            process.kill()
    run("view", "-", "--no-browser", code=2)
    run("view", tmp_path / "a.bt", "-", "--no-browser", code=2)


# The viewer


@pytest.fixture
def viewer(tmp_path: Path) -> Any:
    tg.save(tmp_path / "model.bt", {"a": np.arange(5.0), "b": np.ones((3, 4), np.float32)})
    with tg.open(tmp_path / "model.bt") as archive, report.Viewer(archive, "model.bt") as viewer:
        yield viewer


def ask(url: str, *, host: str | None = None, method: str = "GET", path: str | None = None) -> tuple[int, bytes, Any]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    try:
        connection.putrequest(method, parts.path if path is None else path, skip_host=True)
        if host != "":
            connection.putheader("Host", host or parts.netloc)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


def test_the_viewer_serves_a_page_and_its_cards(viewer: report.Viewer) -> None:
    status, page, headers = ask(viewer.url)
    assert (status, headers["Cache-Control"], headers["Referrer-Policy"]) == (200, "no-store", "no-referrer")
    assert b"connect-src 'self'" in page
    names = json.loads(re.findall(rb'id="page">(.*?)</script>', page)[0])["one"]["names"]
    status, body, _ = ask(f"{viewer.url}card/{names.index('a')}")
    [part] = json.loads(body)["parts"]
    assert (status, part["max"], part["mean"]) == (200, 4.0, 2.0)
    assert ask(viewer.url.replace("127.0.0.1", "localhost"), host=None)[0] == 200


@pytest.mark.parametrize("host", ["", "evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:80"])
def test_a_wrong_host_is_refused(viewer: report.Viewer, host: str) -> None:
    status, body, _ = ask(viewer.url, host=host)
    assert status == 403
    assert b"model" not in body


@pytest.mark.parametrize(
    "path", ["/", "/card/0", "/wrong/", "/wrong/card/0", "//", "/favicon.ico", "/..//card/0", "/é/"]
)
def test_a_request_without_the_token_is_refused(viewer: report.Viewer, path: str) -> None:
    status, body, _ = ask(viewer.url, path=path.replace("é", "%C3%A9"))
    assert status == 403
    assert b"model" not in body


@pytest.mark.parametrize("path", ["card/2", "card/-1", "card/", "card/x", "card/1e9", "card/" + "9" * 5000, "other"])
def test_what_is_not_there_is_not_found(viewer: report.Viewer, path: str) -> None:
    assert ask(viewer.url + path)[0] == 404


@pytest.mark.parametrize("change", ["replaced", "overwritten", "removed"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_file_that_changes_has_no_card(tmp_path: Path, change: str, which: int) -> None:
    """Its bytes would be shown as the values of tensors that it no longer has."""
    paths = [tmp_path / "a.bt", tmp_path / "b.zt"]
    for path in paths:
        tg.save(path, {"a": np.arange(5.0)})
    with tg.open(paths[0]) as one, tg.open(paths[1], backend="mmap") as two, report.Viewer(one, "a", other=two) as view:
        assert "error" not in json.loads(ask(view.url + "card/0")[1])
        changed = paths[which]
        if change == "replaced":
            tg.save(changed, {"a": np.ones(5)})
        elif change == "overwritten":
            changed.write_bytes(bytes(changed.stat().st_size))
        else:
            changed.unlink()
        for kind in ("card", "change"):
            error = json.loads(ask(f"{view.url}{kind}/0")[1])["error"]
            assert error.startswith(f"{changed}: the file was changed after the viewer had opened it")


def test_only_get_is_answered(viewer: report.Viewer) -> None:
    assert ask(viewer.url, method="POST")[0] == 501


def test_the_viewer_of_two_files_compares_what_is_asked_for(tmp_path: Path) -> None:
    before = {"same": np.ones(4), "values": np.zeros(4), "shape": np.ones(2), "gone": np.ones(1)}
    after = {"same": np.ones(4), "values": np.arange(4.0), "shape": np.ones(3), "come": np.ones(1)}
    with (
        tg.open(tg.dumps(before, format="bintensors", metadata={"step": "1"})) as one,
        tg.open(tg.dumps(after, format="ztensor", metadata={"step": "2"})) as two,
        report.Viewer(one, "a.bt", other=two, other_name="b.zt") as viewer,
    ):
        page = json.loads(re.findall(rb'id="page">(.*?)</script>', ask(viewer.url)[1])[0])
        names = [*page["one"]["names"], "come"]
        known = {names[int(i)]: change for i, change in page["changed"].items()}
        assert known == {"shape": [["shape"], None], "gone": [["removed"], None], "come": [["added"], None]}
        assert [(change["old"], change["new"]) for change in page["changes"]["metadata"]] == [("1", "2")]
        for name, changed in (("values", [["values"], 0.75]), ("same", None), ("come", [["added"], None])):
            short = json.loads(ask(f"{viewer.url}change/{names.index(name)}")[1])
            card = json.loads(ask(f"{viewer.url}card/{names.index(name)}")[1])
            assert short == {"changed": changed}
            assert card["changed"] == changed
        assert card["parts"][0]["max"] == 1
        assert ask(f"{viewer.url}change/5")[0] == 404


@pytest.mark.parametrize("backend", ["pread", "mmap"])
@pytest.mark.parametrize("how", ["modified", "replaced", "removed", "meanwhile", "beside"])
def test_a_card_of_a_file_that_was_changed_is_an_error(
    how: str, backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "a.bt", tmp_path / "b.bt"
    tg.save(path, {"w": np.ones(4)})

    def modify() -> None:
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x40")
        os.utime(path, ns=(0, 0))  # the clock of a file system may be slow

    changes = {
        "modified": modify,
        "replaced": lambda: tg.save(path, {"w": np.ones(4)}),
        "removed": path.unlink,
        "beside": lambda: os.utime(other, ns=(0, 0)),
        "meanwhile": lambda: None,
    }
    source: Any = path
    if how == "beside":
        tg.save(other, {"v": np.ones(4)})
        source = [path, other]
    with tg.open(source, backend=backend) as archive, report.Viewer(archive, "a.bt") as viewer:
        assert json.loads(ask(viewer.url + "card/0")[1])["parts"][0]["max"] == 1
        changes[how]()
        if how == "meanwhile":
            read = Cards.card

            def change_and_read(cards: Cards, name: str) -> dict[str, Any]:
                modify()
                return read(cards, name)

            monkeypatch.setattr(Cards, "card", change_and_read)
        found = json.loads(ask(viewer.url + "card/0")[1])
        assert found.keys() == {"error"}
        assert "the file was changed after the viewer had opened it" in found["error"]


def test_tokens_differ_and_a_closed_viewer_is_gone(viewer: report.Viewer) -> None:
    with tg.open(tg.dumps({"w": np.ones(1)}, format="npz")) as archive, report.Viewer(archive, "x") as other:
        assert urlsplit(other.url).path != urlsplit(viewer.url).path
        assert len(urlsplit(other.url).path) > 30
        url = other.url
    with pytest.raises(OSError, match="refused"):
        ask(url)
