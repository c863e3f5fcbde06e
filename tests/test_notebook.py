"""What notebooks show: small tables of every value, in which names of files are text."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tensorglot as tg

HOSTILE = ["<script>alert(1)</script>", "a&b\"'>", "\u202egnp.exe", "line\nbreak", "x" * 100_000]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: repr(name[:12]))
def test_hostile_names_are_text(name: str, tmp_path: Path) -> None:
    one = {name: np.arange(3.0)}
    tg.save(tmp_path / "a.safetensors", one, metadata={name[:100]: "<b>"})
    with tg.open(tmp_path / "a.safetensors", limits=tg.Limits(name_nbytes=1 << 20)) as archive:
        shown = [archive, archive[name], tg.diff(archive, {name: np.ones(3)}), tg.stats(archive)]
        for value in shown:
            text = value._repr_html_()
            assert "<script" not in text
            assert text.isprintable()
            assert len(text) < 10_000
            assert set(re.findall(r"</?(\w+)", text)) <= {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td"}


def test_an_empty_name_is_seen() -> None:
    archive = tg.open(tg.dumps({"": np.zeros(2)}, format="safetensors"))
    for value in (archive, archive[""], tg.diff(archive, {"": np.ones(2)}), tg.stats(archive)):
        assert "&#x27;&#x27;<" in value._repr_html_()


def test_the_type_of_a_nested_value_is_shown_once() -> None:
    assert tg.dynd.array([[1, 2], [3]])._repr_html_().count("2 * var * int64") == 1


def test_every_value_has_a_table(tmp_path: Path) -> None:
    tensors = {f"layer.{i}": np.full((2, 3), i, np.float32) for i in range(40)}
    tg.save(tmp_path / "m.zt", tensors)
    archive = tg.open(tmp_path / "m.zt")
    assert "40 tensors" in archive._repr_html_()
    assert "… 10 more" in archive._repr_html_()
    assert "2 * 3 * float32" in archive["layer.1"]._repr_html_()
    assert "the same: 40 tensors" in tg.diff(archive, tensors)._repr_html_()
    assert "ok" in tg.verify(tmp_path / "m.zt")._repr_html_()
    assert "histogram" in tg.stats(archive, ["layer.1"])._repr_html_()
    with tg.store.Store.create(tmp_path / "store") as store:
        commit = store.commit("main", {"w": np.ones(2)}, message="<i>first</i>")
        assert "&lt;i&gt;first" in commit._repr_html_()
        assert "1 ref" in store._repr_html_()
        assert commit.cid in store._repr_html_()
    assert archive._ipython_key_completions_() == list(tensors)
    assert "ztensor" in tg.formats()._repr_html_()
    assert "packed_bit, 3 bits" in tg.bson.Vector([True, False, True])._repr_html_()
    assert "… 70 more" in tg.bson.Vector(np.zeros(100, np.float32))._repr_html_()
    archive.close()
    assert "closed" in archive._repr_html_()


def test_a_conversion_has_a_row_for_each_loss(tmp_path: Path) -> None:
    tensors = {"<w>": np.ones(2), "a": ["text"], "b": [[1], [2, 3]]}
    report = tg.convert(tg.dumps(tensors, format="ztensor"), tmp_path / "x.bt", on_loss="drop")
    text = report._repr_html_()
    assert "<b>Conversion(bintensors@0, 1 tensor, 16 B converted, 3 losses)</b>" in text
    assert [re.findall(r">([^<]*)</td>", row)[:2] for row in text.split("</tr>")[1:-1]] == [
        [loss.kind, loss.tensor or ""] for loss in report.losses
    ]
    assert "<b>Conversion(bintensors@0, 1 tensor, 16 B converted)</b>" in (
        tg.convert({"w": np.ones(2)}, tmp_path / "x.bt")._repr_html_()
    )
    planned = tg.convert(tg.dumps(tensors, format="ztensor"), tmp_path / "x.bt", dry_run=True)
    assert planned._repr_html_().startswith("<div><p><b>2 problems</b>")


def test_an_identity_has_a_row_for_each_tensor() -> None:
    identity = tg.identify({"<w>": np.ones(2), "": np.zeros(3)})
    text = identity._repr_html_()
    assert f"<b>{identity.cid}: 2 tensors</b>" in text
    for name, cid in (("&lt;w&gt;", identity.tensors["<w>"]), ("&#x27;&#x27;", identity.tensors[""])):
        assert f'<tr><td style="text-align: left">{name}</td><td style="text-align: left">{cid}</td></tr>' in text


def test_numbers_are_aligned_to_the_right_in_one_line() -> None:
    cells = re.findall(r'<td style="([^"]*)">([^<]*)', tg.stats({"w": np.arange(4)})._repr_html_())
    right = "text-align: right; white-space: nowrap"
    assert [style for style, _ in cells] == ["text-align: left", *[right] * 9, "text-align: left"]
    assert cells[3] == (right, "3")
