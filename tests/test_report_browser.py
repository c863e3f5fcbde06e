"""The pages in a real Chromium: they show what `tg.open` says, ask nobody, and stay responsive."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from peers import missing, needs
from tensorglot import report
from tensorglot.operations.listing import entries
from test_report import HOSTILE

pytestmark = pytest.mark.browser

CORPUS = Path(__file__).parent / "corpus"
THEMES = ("light", "dark")
RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    api = needs("playwright.sync_api")
    program = os.environ.get("TENSORGLOT_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        missing("Chromium is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(chromium: Any, url: str, theme: str = "light", *, own: str = "file:", width: int = 1280) -> Iterator[Any]:
    """A page, offline where it is a file. A message on its console, an error or a request to elsewhere is a failure."""
    context = chromium.new_context(
        offline=own == "file:", color_scheme=theme, viewport={"width": width, "height": 900}, reduced_motion="reduce"
    )
    page = context.new_page()
    page.set_default_timeout(20_000)
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: request.url.startswith((own, "data:")) or wrong.append(request.url))
    page.on("dialog", lambda dialog: (wrong.append("dialog"), dialog.dismiss()))
    try:
        page.goto(url)
        yield page
        assert wrong == []
    finally:
        context.close()


def model() -> dict[str, Any]:
    tensors = {
        f"model.layers.{i}.{name}.weight": RANDOM.normal(0, 0.1, (24, 40)).astype(np.float32)
        for i in range(12)
        for name in ("q", "k")
    }
    tensors["model.norm"] = np.linspace(0.5, 1.5, 300, dtype=np.float32)
    tensors["steps"] = np.arange(10)
    tensors["broken"] = np.array([[np.nan, 1.0], [np.inf, 3.0]], np.float32)
    return tensors


def chosen(page: Any) -> str:
    name = page.inner_text("#card .name")
    assert isinstance(name, str)
    return name


def choose(page: Any, text: str) -> None:
    """Searches, and opens the first tensor that is found."""
    page.fill("#search", text)
    page.locator(".row.tensor").first.click()


def stat(page: Any, label: str) -> str:
    found = page.locator(f"[data-stat='{label}'] .value").first.inner_text()
    assert isinstance(found, str)
    return found


def as_number(text: str) -> float:
    return float(text.replace("−", "-").replace(",", "").replace("≈\u00a0", ""))


def check_page(page: Any, path: Path) -> None:
    """Summary, list and a few cards, against the archive."""
    with tg.open(path) as archive:
        tiles = page.inner_text("#summary")
        assert f"{len(archive):,}" in tiles
        assert archive.format in page.inner_text("#format")
        assert f"{len(archive)} tensors" in page.inner_text("#found")
        for name in ("model.layers.3.q.weight", "model.norm", "steps"):
            tensor, values = archive[name], archive[name].numpy().astype(np.float64)
            choose(page, name)
            assert chosen(page) == name
            facts = page.inner_text("#card .facts")
            assert str(tensor.dtype) in facts
            assert " × ".join(map(str, tensor.shape)) in facts
            assert f"{tensor.offset:,}" in facts
            page.wait_for_selector("#card .stats")
            for label, wanted in (
                ("mean", values.mean()),
                ("deviation", values.std()),
                ("minimum", values.min()),
                ("maximum", values.max()),
                ("L2 norm", np.linalg.norm(values)),
                ("median", np.median(values)),
            ):
                assert np.isclose(as_number(stat(page, label)), wanted, rtol=1e-3, atol=1e-12), label
            assert page.locator("#card svg.chart rect").count() > 5
            assert page.locator("#card canvas.heat").count() == 1
        choose(page, "broken")
        assert (stat(page, "NaN"), stat(page, "Inf")) == ("1 (25%)", "1 (25%)")


@pytest.mark.parametrize("theme", THEMES)
def test_a_report_shows_what_open_says(chromium: Any, tmp_path: Path, theme: str) -> None:
    tg.save(tmp_path / "model.zt", model(), metadata={"step": "17"})
    report.write(tmp_path / "model.zt", tmp_path / "page.html")
    with opened(chromium, (tmp_path / "page.html").as_uri(), theme) as page:
        assert "17" in page.inner_text("#summary")
        check_page(page, tmp_path / "model.zt")
        assert page.locator(".row .badge").count() == 1


@pytest.mark.parametrize("theme", THEMES)
def test_the_viewer_shows_the_same(chromium: Any, tmp_path: Path, theme: str) -> None:
    tg.save(tmp_path / "model.bt", model())
    with (
        tg.open(tmp_path / "model.bt") as archive,
        report.Viewer(archive, "model.bt") as viewer,
        opened(chromium, viewer.url, theme, own=viewer.url) as page,
    ):
        check_page(page, tmp_path / "model.bt")


def brightness(page: Any) -> float:
    red, green, blue = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).map(Number)")[
        :3
    ]
    return float(red + green + blue) / 3


def test_light_and_dark_follow_the_system_and_the_button(chromium: Any, tmp_path: Path) -> None:
    report.write(model(), tmp_path / "page.html")
    for theme in THEMES:
        with opened(chromium, (tmp_path / "page.html").as_uri(), theme) as page:
            assert (brightness(page) > 128) == (theme == "light")
            page.click("#theme")
            assert (brightness(page) > 128) == (theme == "dark")
            page.reload()
            assert (brightness(page) > 128) == (theme == "dark")
            page.keyboard.press("t")
            assert (brightness(page) > 128) == (theme == "light")


def test_the_keyboard_reaches_everything(chromium: Any, tmp_path: Path) -> None:
    report.write(model(), tmp_path / "page.html")
    with opened(chromium, (tmp_path / "page.html").as_uri()) as page:
        page.keyboard.press("/")
        page.keyboard.type("layers.7 weight")
        assert page.inner_text("#found") == "2 of 27"
        page.keyboard.press("ArrowDown")
        page.keyboard.press("End")
        assert chosen(page) == "model.layers.7.k.weight"
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        assert page.locator(".row.tensor").count() == 0
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("/")
        page.keyboard.press("Escape")
        assert page.inner_text("#found") == "27 tensors"
        page.keyboard.press("?")
        assert page.locator("#keys").is_visible()
        page.keyboard.press("Escape")
        page.select_option("#order", "size")
        page.focus("#list")
        page.keyboard.press("Home")
        assert "weight" in chosen(page)
        page.keyboard.press("End")
        assert chosen(page) == "broken"


def test_the_map_is_where_the_tensors_are(chromium: Any, tmp_path: Path) -> None:
    """A click in the middle of each half of a file with two tensors."""
    tg.save(tmp_path / "two.bt", {"first": np.ones(100_000), "second": np.zeros(100_000)})
    report.write(tmp_path / "two.bt", tmp_path / "page.html")
    with opened(chromium, (tmp_path / "page.html").as_uri()) as page:
        canvas = page.locator("#maps canvas")
        height = canvas.bounding_box()["height"]
        for share, name in ((0.75, "second"), (0.25, "first")):
            canvas.click(position={"x": 200, "y": height * share})
            assert chosen(page) == name
        canvas.hover(position={"x": 200, "y": height * 0.75})
        assert "second" in page.inner_text("#tip")


def test_a_comparison_shows_which_tensors_changed(chromium: Any, tmp_path: Path) -> None:
    before, after = model(), model()
    after = {**before, "model.layers.2.q.weight": before["model.layers.2.q.weight"].copy(), "extra": np.ones(3)}
    after["model.layers.2.q.weight"][3] += 1
    del after["steps"]
    report.write(before, tmp_path / "page.html", other=after)
    with opened(chromium, (tmp_path / "page.html").as_uri()) as page:
        badges = {row.split("\n")[0]: row for row in page.locator(".row:has(.badge:not(:text('!')))").all_inner_texts()}
        assert set(badges) == {"steps", "extra", "model.layers.2.q.weight"}
        assert "4.17%" in badges["model.layers.2.q.weight"]
        assert chosen(page) == "model.layers.2.q.weight"
        assert "40 of 960 elements" in page.inner_text("#card .change")
        assert page.locator("#card canvas.heat").count() == 2
        page.click("text=how much")
        assert page.locator("#maps canvas").count() == 2


def test_the_viewer_compares_a_tensor_when_its_card_is_opened(chromium: Any, tmp_path: Path) -> None:
    before, after = two_models()
    after["model.layers.2.q.weight"] = before["model.layers.2.q.weight"] + 1
    tg.save(tmp_path / "a.zt", before)
    tg.save(tmp_path / "b.bt", after)
    with (
        tg.open(tmp_path / "a.zt") as one,
        tg.open(tmp_path / "b.bt") as two,
        report.Viewer(one, "a.zt", other=two, other_name="b.bt") as viewer,
        opened(chromium, viewer.url, own=viewer.url) as page,
    ):
        assert page.inner_text("#title") == "a.zt → b.bt"
        changes = page.locator("#summary .changes")
        assert changes.inner_text().split("\n")[1:] == [
            "4 so far",
            "type 1, shape 1, removed 1, added 1; 27 not compared yet: compare them",
        ]
        assert "not compared yet" in page.inner_text("#maps")
        choose(page, "layers.2.q")
        page.wait_for_selector("#card .change")
        assert "960 of 960 elements" in page.inner_text("#card .change")
        assert page.locator(".row.tensor .badge").first.inner_text() == "100%"
        choose(page, "layers.2.k")
        page.wait_for_selector("#card .stats")
        assert page.locator("#card .change").count() == 0
        page.click("text=compare them")
        page.wait_for_function("() => !document.querySelector('#summary').innerText.includes('not compared')")
        found = tg.diff(one, two)
        assert changes.inner_text().split("\n")[1] == f"{found.tensors - found.equal}"
        assert f"{found.equal} equal" in changes.inner_text()
        assert "not compared yet" not in page.inner_text("#maps")


# Made for eyes


def test_the_changed_tensors_are_on_the_first_screen(chromium: Any, tmp_path: Path) -> None:
    before = {
        f"model.layers.{i}.self_attn.{name}_proj.weight": np.full((8, 8), i, np.float32)
        for i in range(12)
        for name in "qkvo"
    }
    changed = ["model.layers.11.self_attn.q_proj.weight", "model.layers.3.self_attn.o_proj.weight"]
    after = {name: values + (name in changed) for name, values in before.items()}
    report.write(before, tmp_path / "page.html", other={**after, "step": np.ones(1)})
    with opened(chromium, (tmp_path / "page.html").as_uri()) as page:
        rows = page.locator(".row:has(.badge)")
        assert {name.strip() for name in rows.locator("bdi").all_inner_texts()} == {*changed, "step"}
        for row in rows.all():
            assert row.bounding_box()["y"] < 850
            clipped = row.locator(".name span").first.evaluate("one => one.scrollWidth > one.clientWidth")
            assert not clipped
        assert page.locator("#maps canvas").last.bounding_box()["y"] < rows.first.bounding_box()["y"]


def test_a_phone_shows_both_names_and_no_empty_list(chromium: Any, tmp_path: Path) -> None:
    for name in ("a-rather-long-name.bt", "another-long-name.bt"):
        tg.save(tmp_path / name, {"w": np.ones(len(name))})
    one, two = sorted(tmp_path.glob("*.bt"))
    report.write(one, tmp_path / "page.html", other=two)
    with opened(chromium, (tmp_path / "page.html").as_uri(), width=390) as page:
        title = page.locator("#title")
        assert title.inner_text() == f"{one.name} → {two.name}"
        assert title.evaluate("one => one.scrollWidth <= one.clientWidth")
        assert page.locator("#list").bounding_box()["height"] < 120


def test_a_search_without_a_match_and_a_file_without_tensors_say_so(chromium: Any, tmp_path: Path) -> None:
    report.write(model(), tmp_path / "page.html")
    report.write({}, tmp_path / "empty.html")
    with opened(chromium, (tmp_path / "page.html").as_uri()) as page:
        assert not page.locator("#none").is_visible()
        page.fill("#search", "<b>nothing")
        assert page.inner_text("#none") == "No tensor matches “<b>nothing”. Esc clears the search."
        page.keyboard.press("Escape")
        assert not page.locator("#none").is_visible()
    with opened(chromium, (tmp_path / "empty.html").as_uri()) as page:
        assert page.inner_text("#none") == "No tensors."


def test_paper_has_the_whole_card_and_no_controls(chromium: Any, tmp_path: Path) -> None:
    report.write(model(), tmp_path / "page.html")
    with opened(chromium, (tmp_path / "page.html").as_uri(), "dark") as page:
        page.wait_for_selector("#card .heat")
        page.emulate_media(media="print")
        assert not page.locator("button:visible, input:visible, select:visible").all()
        assert page.locator("#card").evaluate("one => one.scrollHeight <= one.clientHeight")
        ink = page.evaluate("getComputedStyle(document.body).color.match(/[0-9.]+/g).map(Number)")
        assert max(ink[:3]) < 128


def test_small_numbers_are_on_one_line(chromium: Any, tmp_path: Path) -> None:
    values = np.linspace(-2.328, 2.328, 1001)
    report.write({"w": np.where(np.abs(values) < 1e-3, -0.0003338, values)}, tmp_path / "page.html")
    with opened(chromium, (tmp_path / "page.html").as_uri()) as page:
        page.wait_for_selector("#card .stats")
        assert stat(page, "median") == "−0.0003338"
        assert max(page.locator("#card .stats .value").evaluate_all("all => all.map((one) => one.offsetHeight)")) < 25


@pytest.mark.parametrize(
    ("values", "ends", "bars"),
    [
        pytest.param([-sys.float_info.max, sys.float_info.max], ["−1.798e308", "0", "1.798e308"], 2, id="largest"),
        pytest.param([0.0, 5e-324], ["0", "4.941e−324"], 2, id="smallest"),
        pytest.param([5e-324, 4e-323], ["4.941e−324", "3.953e−323"], 2, id="subnormal"),
        pytest.param([sys.float_info.max] * 2, ["1.798e308"], 1, id="one value"),
        pytest.param([1e6, 1e6 + 0.002], ["1,000,000", "1,000,000.002"], 2, id="close together"),
        pytest.param([999_999.99997, 1e6 + 2], ["1,000,000", "1,000,002"], 2, id="rounded to a million"),
    ],
)
def test_numbers_of_any_size_have_a_picture(
    chromium: Any, tmp_path: Path, values: list[float], ends: list[str], bars: int
) -> None:
    report.write({"w": np.array(values)}, tmp_path / "page.html")
    with opened(chromium, (tmp_path / "page.html").as_uri()) as page:
        page.wait_for_selector("#card .stats")
        assert sorted(page.locator(".chart text").all_text_contents()) == sorted(ends)
        boxes = page.locator(".chart > rect[rx='1']")
        assert boxes.count() == bars
        assert all(box.bounding_box()["height"] > 20 for box in boxes.all())


def test_a_complex_mean_has_one_sign(chromium: Any, tmp_path: Path) -> None:
    report.write({"w": np.array([1 - 2j, 2 - 1j])}, tmp_path / "page.html")
    with opened(chromium, (tmp_path / "page.html").as_uri()) as page:
        page.wait_for_selector("#card .stats")
        assert stat(page, "mean") == "1.5 − 1.5i"


def test_a_comparison_shows_both_sides(chromium: Any, tmp_path: Path) -> None:
    """NaN that only the second file has, elements and checksums of both, and metadata of which one side is long."""
    before, after = (
        {"w": np.ones(1000), "b": np.ones(5)},
        {"w": np.ones(2000), "b": np.full(5, np.nan), "c": np.ones(1)},
    )
    tg.save(tmp_path / "a.bt", before, metadata={"note": "x" * 500})
    tg.save(tmp_path / "b.zt", after)
    report.write(tmp_path / "a.bt", tmp_path / "page.html", other=tmp_path / "b.zt")
    with opened(chromium, (tmp_path / "page.html").as_uri()) as page:
        tiles = {text.split("\n")[0]: text.split("\n")[1:] for text in page.locator(".tile").all_inner_texts()}
        assert tiles["Elements"] == ["1,005 → 2,006", "+1,001"]
        assert tiles["Tensors"] == ["2 → 3", "checksums: none → crc32c, every tensor"]
        assert tiles["Worth a look"][0] == "1"
        assert tiles["Changed metadata"][-1].endswith("xxx → –")
        page.click("text=show them")
        assert chosen(page) == "b"
        assert page.inner_text("#card .facts").endswith("checksum none\nin the first file")
        choose(page, "c")
        assert page.inner_text("#card .facts").endswith("checksum crc32c\nin the second file")


def test_a_share_of_almost_all_is_not_called_all(chromium: Any, tmp_path: Path) -> None:
    report.write({"w": np.zeros(99_970, np.int8), "b": np.zeros(30, bool)}, tmp_path / "page.html")
    with opened(chromium, (tmp_path / "page.html").as_uri()) as page:
        assert "99.97%" in page.inner_text("#summary .legend")


def test_equal_files_are_said_to_be_equal(chromium: Any, tmp_path: Path) -> None:
    tensors = model()
    report.write(tensors, tmp_path / "page.html", other=tensors)
    with opened(chromium, (tmp_path / "page.html").as_uri()) as page:
        assert page.inner_text("#summary .changes").split("\n")[1:] == ["0", "all 27 are equal"]


def test_approximate_numbers_are_on_one_line(chromium: Any, tmp_path: Path) -> None:
    report.write({"w": np.random.default_rng(0).normal(0, 1e-3, 40_000).astype(np.float32)}, tmp_path / "page.html")
    for width in (390, 1280):
        with opened(chromium, (tmp_path / "page.html").as_uri(), width=width) as page:
            page.wait_for_selector("#card .stats")
            approximate = page.locator("#card .stats .value", has_text="≈")
            heights = approximate.evaluate_all("all => all.map((one) => one.offsetHeight)")
            assert len(heights) == 7
            assert max(heights) < 25


CONTRAST = """() => {
  const parse = (text) => text.match(/[0-9.]+/g).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.slice(0, 3).map((c) => (c /= 255, c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = parse(getComputedStyle(element).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const hasText = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    if (!hasText(element) || !element.checkVisibility() || element.closest("svg, script, option")) continue;
    const one = light(parse(getComputedStyle(element).color)), two = light(behind(element));
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    if (ratio < 4.5) found.push(`${element.className} ${element.textContent.slice(0, 30)}: ${ratio}`);
  }
  return found;
}"""
"""The texts whose contrast is below that of WCAG AA, with their ratios."""


def two_models() -> tuple[dict[str, Any], dict[str, Any]]:
    """Two that differ in every way that a page has a badge for."""
    before = {**model(), "kind": np.ones(4, np.float32), "shape": np.ones(4), "gone": np.ones(2)}
    after = {
        **before,
        "kind": np.ones(4, np.float16),
        "shape": np.ones(5),
        "come": np.ones(2),
        "steps": np.arange(10) + 1,
    }
    del after["gone"]
    return before, after


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", [1280, 420])
def test_every_text_can_be_read(chromium: Any, tmp_path: Path, theme: str, width: int) -> None:
    before, after = two_models()
    report.write(before, tmp_path / "two.html", other=after)
    report.write(before, tmp_path / "one.html")
    report.opener(tmp_path / "open.html")
    for path in sorted(tmp_path.iterdir()):
        with opened(chromium, path.as_uri(), theme, width=width) as page:
            assert page.evaluate(CONTRAST) == []
            assert page.evaluate("document.documentElement.scrollWidth") == width
            if path.stem != "open":
                choose(page, "broken")
                page.fill("#search", "")
                names = page.locator(".row.tensor .name bdi").evaluate_all("all => all.map((one) => one.offsetWidth)")
                assert min(names) > 20
                assert page.evaluate(CONTRAST) == []


def test_what_deserves_a_look_is_found_from_the_summary(chromium: Any, tmp_path: Path) -> None:
    """Also where it is in a branch that is closed."""
    tensors = {f"layers.{i}.part{j}": np.ones(2) for i in range(4) for j in range(20)}
    tensors["layers.2.part7"] = np.array([1, np.nan])
    report.write(tensors, tmp_path / "page.html")
    with opened(chromium, (tmp_path / "page.html").as_uri()) as page:
        page.select_option("#order", "tree")
        assert page.locator(".row.node:has(.badge) bdi").all_inner_texts() == ["2"]
        page.click("text=show them")
        assert page.inner_text("#found") == "1 of 80"
        assert chosen(page) == "layers.2.part7"


def test_branches_are_in_the_order_of_their_numbers(chromium: Any, tmp_path: Path) -> None:
    report.write({f"h.{i}.{part}": np.ones(2) for i in (0, 1, 10, 11, 2, 3) for part in "ab"}, tmp_path / "page.html")
    with opened(chromium, (tmp_path / "page.html").as_uri()) as page:
        nodes = [text for text in page.locator(".row.node .name bdi").all_inner_texts() if text != "h"]
        assert nodes == ["0", "1", "2", "3", "10", "11"]


def test_levels_of_the_tree_are_open_as_far_as_they_fit_a_screen(chromium: Any, tmp_path: Path) -> None:
    names = [f"layers.{i}.{part}" for i in range(4) for part in ("mlp.up", "mlp.down", "norm")]
    report.write({name: np.ones(2) for name in names} | {"head": np.ones(9)}, tmp_path / "page.html")
    with opened(chromium, (tmp_path / "page.html").as_uri()) as page:
        labels = page.locator(".row .name bdi")
        assert labels.all_inner_texts() == [
            "layers",
            *[text for i in range(4) for text in (str(i), "mlp", "norm")],
            "head",
        ]
        page.fill("#search", "layers.2")
        assert labels.all_inner_texts() == ["layers.2", "mlp", "up", "down", "norm"]
        page.fill("#search", "")
        page.locator(".row.node").first.click()
        assert labels.all_inner_texts() == ["layers", "head"]
    report.write({f"layers.{i}.{part}": np.ones(2) for i in range(99) for part in "ab"}, tmp_path / "page.html")
    with opened(chromium, (tmp_path / "page.html").as_uri()) as page:
        assert page.locator(".row .name bdi").all_inner_texts()[:5] == ["layers", "0", "a", "b", "1"]


SHARES = """(canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return ["--changed", "--equal"].map((colour) => {
    canvas.style.color = `var(${colour})`;
    const wanted = getComputedStyle(canvas).color.match(/\\d+/g).map(Number);
    let count = 0;
    for (let i = 0; i < data.length; i += 4) count += wanted.every((value, k) => Math.abs(data[i + k] - value) < 3);
    return count / (data.length / 4);
  });
}"""
"""The shares of a map that have the colours of what changed, and of what did not."""


@pytest.mark.parametrize("theme", THEMES)
def test_one_small_change_among_thousands_of_equal_tensors_is_on_the_map(
    chromium: Any, theme: str, tmp_path: Path
) -> None:
    before = {f"t{i}": np.ones(4, np.float32) for i in range(5000)}
    after = before | {"t77": np.zeros(4, np.float32), "t3000": np.ones(4, np.float32) * 2}
    report.write(before, tmp_path / "page.html", other=after)
    with opened(chromium, (tmp_path / "page.html").as_uri(), theme) as page:
        page.wait_for_selector("#maps canvas")
        for canvas in page.query_selector_all("#maps canvas"):
            changed, equal = page.evaluate(SHARES, canvas)
            assert 0 < changed < 0.01
            assert equal > 0.6


def test_axes_and_scales_of_one_value_say_it_once(chromium: Any, tmp_path: Path) -> None:
    values = {"step": np.array(12_345), "nothing": np.full(3, np.nan), "few": np.array([-1, 0, 1]), "": np.ones((2, 2))}
    report.write(values, tmp_path / "page.html")
    with opened(chromium, (tmp_path / "page.html").as_uri()) as page:
        for name, labels, scale in (
            ("step", ["12,345"], ["all 12,345"]),
            ("nothing", [], []),
            ("few", ["−1", "1", "0"], ["−1\n1"]),
        ):
            choose(page, name)
            page.wait_for_selector("#card .stats")
            assert page.locator("#card .chart text").all_text_contents() == labels
            assert page.locator("#card .scale").all_inner_texts() == scale
        choose(page, "2x2")
        assert chosen(page) == "''"


def test_colours_are_explained(chromium: Any, tmp_path: Path) -> None:
    before, after = two_models()
    report.write(before, tmp_path / "page.html", other=after)
    with opened(chromium, (tmp_path / "page.html").as_uri()) as page:
        first, second = page.locator("#maps .legend").all_inner_texts()
        assert ("only in the first file" in first, "only in the second file" in first) == (True, False)
        assert ("only in the first file" in second, "only in the second file" in second) == (False, True)
        assert "another shape or type" in first
        colours = "one => getComputedStyle(one).backgroundColor"
        assert page.locator(".badge.shape").evaluate(colours) != page.locator(".badge.values").evaluate(colours)
        choose(page, "steps")
        assert page.inner_text("#card .legend").split() == ["first", "file", "second", "file"]
        page.locator("#maps button", has_text="by type").first.click()
        assert page.locator("#maps .legend").first.inner_text() == ""


def test_a_commit_is_not_shown_as_a_file(chromium: Any, tmp_path: Path) -> None:
    with tg.store.Store.create(tmp_path / "store") as store:
        store.commit("main", model())
    report.write(f"store://{tmp_path}/store#main", tmp_path / "page.html")
    with opened(chromium, (tmp_path / "page.html").as_uri()) as page:
        assert "every block" in page.inner_text("#summary")
        assert "File size" not in page.inner_text("#summary")
        assert "tensors in order, by size" in page.inner_text("#maps")
        assert "at byte" not in page.inner_text("#card .facts")


def test_ten_thousand_tensors_are_a_few_rows_of_the_document(chromium: Any, tmp_path: Path) -> None:
    tensors = {f"layers.{i // 10}.part.{i % 10}": np.full(4, i, np.float32) for i in range(10_000)}
    report.write(tensors, tmp_path / "page.html")
    with opened(chromium, (tmp_path / "page.html").as_uri()) as page:
        assert "10,000" in page.inner_text("#summary")
        page.select_option("#order", "name")
        for place in (0, 150_000, 10**7):
            page.evaluate(f"document.getElementById('list').scrollTop = {place}")
            page.wait_for_timeout(50)
            assert 5 < page.locator(".row").count() < 80
        page.focus("#list")
        page.keyboard.press("End")
        assert chosen(page) == "layers.999.part.9"
        page.fill("#search", "layers.123.part.4")
        page.locator(".row.tensor").first.click()
        assert as_number(stat(page, "mean")) == 1234


@pytest.mark.parametrize("served", [False, True], ids=["report", "viewer"])
def test_hostile_names_are_text(chromium: Any, tmp_path: Path, served: bool) -> None:
    tensors = {name: np.ones(2, np.float32) for name in HOSTILE}
    path = tmp_path / "hostile.bt"
    tg.save(path, tensors, metadata={"<script>alert(1)</script>": "<img src=x onerror=alert(1)>\u202e"})
    with tg.open(path) as archive, report.Viewer(archive, "<script>alert(1)</script>\u202e.bt") as viewer:
        report.write(path, tmp_path / "page.html")
        url, own = (viewer.url, viewer.url) if served else ((tmp_path / "page.html").as_uri(), "file:")
        with opened(chromium, url, own=own) as page:
            page.select_option("#order", "file")
            for name in archive:
                page.fill("#search", name[:50])
                page.keyboard.press("ArrowDown")
                page.keyboard.press("Home")
                page.wait_for_selector("#card .stats")
            text = page.inner_text("body") + page.title()
            assert page.locator("script").count() == len(page.query_selector_all("body > script"))
            assert page.locator("img").count() == 0
            assert not set("\u202e\0\x1b\u2028") & set(text)
            page.fill("#search", "gnp")
            assert "\\u202egnp.exe" in page.inner_text("#rows")


# The page that opens files


@pytest.fixture(scope="module")
def opener(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    target = tmp_path_factory.mktemp("opener") / "open.html"
    report.opener(target)
    with opened(chromium, target.as_uri()) as page:
        yield page


def drop(page: Any, path: Path) -> tuple[dict[str, Any] | None, str]:
    """What the page makes of a file: its columns, or an error."""
    page.evaluate("() => { globalThis.tensorglot = null; document.getElementById('error').hidden = true; }")
    page.set_input_files("#file", path)
    page.wait_for_function("() => globalThis.tensorglot || !document.getElementById('error').hidden")
    index = page.evaluate("() => globalThis.tensorglot?.index ?? null")
    return index, "" if index else page.inner_text("#error")


def check_columns(found: dict[str, Any], path: Path) -> None:
    def table(key: str) -> list[Any]:
        return [found[key]["values"][code] for code in found[key]["codes"]]

    columns = ("dtype", "shape", "nbytes", "stored_nbytes", "offset", "encoding", "layout", "checksum")
    theirs = zip(
        table("dtype"), found["shapes"], found["nbytes"], found["stored"], found["offsets"], table("encoding"),
        table("layout"), table("checksum"), strict=True,
    )  # fmt: skip
    with tg.open(path) as archive:
        ours = {}
        for entry in entries(archive):
            row = entry.to_dict()
            row["checksum"] = row["checksum"] and row["checksum"].partition(":")[0]
            ours[entry.name] = tuple(row[column] for column in columns)
        assert dict(zip(found["names"], theirs, strict=True)) == ours
        assert found["summary"]["format"] == archive.format
        assert (found["metadata"] or None) == (json.loads(json.dumps(dict(archive.metadata or {}))) or None)


FOLDERS = [
    "bintensors-0",
    "bintensors-1",
    "bintensors-reject",
    "ztensor-0.1",
    "ztensor-0.1-reject",
    "ztensor-1",
    "ztensor-2",
]


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_browser_reads_the_headers_of_the_corpora_as_open_does(opener: Any, folder: str) -> None:
    """Files that `tg.open` refuses are refused with a message."""
    paths = [path for path in sorted((CORPUS / folder).iterdir()) if path.suffix in (".bt", ".zt")]
    assert paths
    for path in paths:
        found, error = drop(opener, path)
        try:
            tg.open(path).close()
        except tg.TensorglotError:
            assert found is None, path.name
            assert error.startswith(path.name)
        else:
            assert found is not None, (path.name, error)
            check_columns(found, path)


@pytest.mark.parametrize("format", ["bintensors@0", "bintensors@1", "ztensor@0.1", "ztensor@2", "safetensors"])
def test_the_browser_reads_what_save_writes(opener: Any, tmp_path: Path, format: str) -> None:
    names = [name for name in HOSTILE if len(name) < 1000 and "\0" not in name]
    tensors = {**model(), "0": np.ones(2), "": np.ones(1), **{name: np.ones(2, np.float32) for name in names}}
    if format == "ztensor@2":
        del tensors[""]
    suffix = {"b": ".bt", "z": ".zt", "s": ".safetensors"}[format[0]]
    tg.save(tmp_path / f"model{suffix}", tensors, format=format, metadata={"a": "1", "<b>": "\u202e"})
    found, error = drop(opener, tmp_path / f"model{suffix}")
    assert found is not None, error
    check_columns(found, tmp_path / f"model{suffix}")


@pytest.mark.parametrize("suffix", [".bt", ".safetensors"])
def test_a_file_of_another_size_is_refused_in_the_words_of_the_command_line(
    opener: Any, tmp_path: Path, suffix: str
) -> None:
    tg.save(tmp_path / f"a{suffix}", {"w": np.ones(300)})
    data = (tmp_path / f"a{suffix}").read_bytes()
    for changed, said in (
        (data[:-5], f"file truncated: needs {len(data):,} bytes, has {len(data) - 5:,}"),
        (data + b"x", "1 byte after the last tensor"),
    ):
        (tmp_path / f"b{suffix}").write_bytes(changed)
        found, error = drop(opener, tmp_path / f"b{suffix}")
        assert found is None
        assert error.partition("; in the other layout")[0] == f"b{suffix}: {said}"


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"hencodingcraw", b"hencoding" + byte + b"raw") for byte in (b"\xff", b"\x1f", b"\x3f", b"\xdf", b"\xe0")]
    + [(b"hencoding", b"hencodiNg")],
)
def test_a_damaged_ztensor_index_is_refused(opener: Any, tmp_path: Path, old: bytes, new: bytes) -> None:
    path = tmp_path / "a.zt"
    path.write_bytes(tg.dumps({"w": np.zeros(3)}, format="ztensor@0.1").replace(old, new))
    with pytest.raises(tg.FormatError):
        tg.open(path)
    found, error = drop(opener, path)
    assert found is None
    assert error.startswith("a.zt: ")


@pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2"])
def test_a_truncated_ztensor_file_is_refused(opener: Any, tmp_path: Path, format: str) -> None:
    tg.save(tmp_path / "whole.zt", {"w": np.zeros(300)}, format=format)
    path = tmp_path / "cut.zt"
    for kept in (1000, 72, 40):  # the last bytes are zeros, as if an index of no bytes preceded them
        path.write_bytes((tmp_path / "whole.zt").read_bytes()[:kept])
        found, error = drop(opener, path)
        assert found is None
        assert error.startswith("cut.zt: ")
    tg.save(tmp_path / "whole.zt", {"w": np.full(300, -1.0)}, format=format)
    path.write_bytes((tmp_path / "whole.zt").read_bytes()[:1000])
    assert "file truncated" in drop(opener, path)[1]


def test_the_ring_of_the_focused_list_is_not_covered_by_its_rows_and_not_printed(opener: Any, tmp_path: Path) -> None:
    tg.save(tmp_path / "a.bt", {"w": np.zeros(300)})
    drop(opener, tmp_path / "a.bt")
    opener.focus("#search")
    for _ in range(2):
        opener.keyboard.press("Tab")
    ring = "getComputedStyle(document.getElementById('tensors')).outlineStyle"
    assert opener.evaluate("document.activeElement.id") == "list"
    assert opener.evaluate(ring) == "solid"
    opener.emulate_media(media="print")
    try:
        assert opener.evaluate(ring) == "none"
    finally:
        opener.emulate_media(media="screen")


def test_values_of_several_parts_are_one_tensor(opener: Any, tmp_path: Path) -> None:
    sparse = needs("scipy.sparse")
    matrix = sparse.csr_array(np.eye(5, dtype=np.float32))
    ragged = tg.dynd.array([[1.0], [], [2.0, 3.0]], "var * var * float32")
    tg.save(tmp_path / "parts.zt", {"sparse": matrix, "ragged": ragged, "plain": np.ones(3)})
    found, error = drop(opener, tmp_path / "parts.zt")
    assert found is not None, error
    check_columns(found, tmp_path / "parts.zt")


def test_of_several_files_each_can_be_chosen(opener: Any, tmp_path: Path) -> None:
    paths = [tmp_path / "a.bt", tmp_path / "b.zt", tmp_path / "bad.zt"]
    for path in paths[:2]:
        tg.save(path, {path.stem: np.ones(3)})
    paths[2].write_bytes(b"nothing")
    opener.set_input_files("#file", paths)
    for i, path in enumerate(paths[:2]):
        opener.select_option("#files", str(i))
        opener.wait_for_function(f"() => document.getElementById('title').textContent === '{path.name}'")
        assert path.stem in opener.inner_text("#rows")
    assert opener.locator("#files option").count() == 3
    opener.select_option("#files", "2")
    opener.wait_for_selector("#error:visible")
    assert opener.inner_text("#error").startswith("bad.zt: ")
    drop(opener, paths[0])
    assert not opener.locator("#files").is_visible()


def test_only_the_header_of_a_large_file_is_read(opener: Any, tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    tg.save(path, {"w": np.ones(3, np.float32), "x": np.zeros(1 << 20, np.float32)})
    reads = opener.evaluate_handle(
        "() => { const log = [], slice = File.prototype.slice;"
        " File.prototype.slice = function (a, b) { log.push(b - a); return slice.call(this, a, b); }; return log; }"
    )
    drop(opener, path)
    assert sum(reads.json_value()) < 1000
