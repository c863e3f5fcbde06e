"""Files that the real packages made, and files that must be refused.

The corpora come with manifests: what every good file holds, and what is wrong with
every bad one. The folders contain exactly what the manifests list.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tensorglot as tg
from bounds import MB, allocated_nbytes, seconds

CORPUS = Path(__file__).parent / "corpus"
REJECT = CORPUS / "bintensors-reject"
DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn",
    "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32",
    "F32": "float32", "F64": "float64", "I64": "int64", "U64": "uint64",
}  # fmt: skip
EXAMPLE = (
    b"\x10\x00\x00\x00\x00\x00\x00\x00\x00\x01\x09\x02\x01\x04\x00\x10\x01\x04\x74\x65\x73\x74\x00\x20"
    b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
)
"""The worked example of the document."""
WIDE = tg.Limits(rank=251)


def manifest(folder: str) -> dict[str, dict[str, Any]]:
    return json.loads((CORPUS / folder / "manifest.json").read_text())


GOOD = [(layout, name) for layout in (0, 1) for name in manifest(f"bintensors-{layout}")]
BAD = manifest("bintensors-reject")


def good(layout: int, name: str) -> tuple[Path, dict[str, Any]]:
    return CORPUS / f"bintensors-{layout}" / name, manifest(f"bintensors-{layout}")[name]


@pytest.mark.parametrize("folder", ["bintensors-0", "bintensors-1", "bintensors-reject"])
def test_the_folder_holds_what_the_manifest_lists(folder: str) -> None:
    assert {path.name for path in (CORPUS / folder).glob("*.bt")} == set(manifest(folder))


@pytest.mark.parametrize("backend", ["pread", "mmap"])
@pytest.mark.parametrize(("layout", "name"), GOOD)
def test_every_file_reads_as_its_manifest_says(layout: int, name: str, backend: Any) -> None:
    path, expected = good(layout, name)
    with tg.open(path, backend=backend, limits=WIDE) as archive:
        assert archive.format == f"bintensors@{layout}"
        assert archive.metadata == expected["metadata"]
        assert set(archive) == {row["name"] for row in expected["tensors"]}
        for row in expected["tensors"]:
            tensor = archive[row["name"]]
            begin, end = row["data_offsets"]
            assert tensor.dtype.name == DTYPES[row["dtype"]]
            assert list(tensor.shape) == row["shape"]
            assert tensor.nbytes == end - begin
            assert tensor.offset == 8 + expected["header_len"] + begin
            data = tensor.numpy().tobytes() if len(tensor.shape) <= 64 else tensor.parts["data"].payload.read(0, end)
            assert hashlib.sha256(data).hexdigest() == row["sha256"]


@pytest.mark.parametrize("name", [name for layout, name in GOOD if layout == 1])
def test_layout_1_rewrites_to_the_same_bytes(name: str, tmp_path: Path) -> None:
    path, expected = good(1, name)
    with tg.open(path, limits=WIDE, strict=True) as archive:
        tg.save(tmp_path / name, archive, format="bintensors@1")
        assert (tmp_path / name).read_bytes() == path.read_bytes()
    if name != "ndim_251.bt":
        arrays = tg.load(path)
        assert tg.dumps(arrays, format="bintensors@1", metadata=expected["metadata"]) == path.read_bytes()


@pytest.mark.parametrize("name", [name for layout, name in GOOD if layout == 0])
def test_layout_0_rewrites_to_the_same_values_and_always_the_same_bytes(name: str) -> None:
    path, expected = good(0, name)
    with tg.open(path, limits=WIDE) as archive:
        once = tg.dumps(archive, format="bintensors@0")
        shuffled = random.Random(name).sample(list(archive), len(archive))
        tensors, metadata = {key: archive[key] for key in shuffled}, archive.metadata
        if metadata is not None:
            metadata = dict(reversed(metadata.items()))
        assert tg.dumps(tensors, format="bintensors", metadata=metadata) == once
        again = tg.open(once, format="bintensors@0", limits=WIDE, strict=True)
        assert again.metadata == archive.metadata
        assert list(again) == list(archive)
        for key in archive:
            one, two = archive[key], again[key]
            assert (one.dtype, one.shape, one.offset) == (two.dtype, two.shape, two.offset)
            assert one.parts["data"].payload.read(0, one.nbytes) == two.parts["data"].payload.read(0, two.nbytes)
    assert len(once) == expected["size"]


def test_the_example_of_the_document_round_trips_exactly() -> None:
    arrays = tg.loads(EXAMPLE, strict=True)
    assert list(arrays) == ["test"]
    assert arrays["test"].dtype.name == "int32"
    assert arrays["test"].tolist() == [[0, 0, 0, 0]]
    assert tg.dumps(arrays, format="bintensors") == EXAMPLE


@pytest.mark.parametrize("layout", [0, 1])
def test_251_dimensions_are_refused_until_the_caller_allows_them(layout: int) -> None:
    path, _ = good(layout, "ndim_251.bt")
    with pytest.raises(tg.LimitError) as caught:
        tg.open(path)
    assert caught.value.rule == "bintensors.limit.rank"
    with tg.open(path, limits=WIDE) as archive:
        (tensor,) = archive.values()
        assert tensor.shape == (1,) * 251
        loaded = tg.load(path, limits=WIDE)[tensor.name]
        assert loaded.tolist() == tensor.tolist()
        for read in (tensor.numpy, lambda: tensor[0], loaded.numpy):
            with pytest.raises(tg.UnsupportedError) as unsupported:
                read()
            assert unsupported.value.rule == "tensor.rank"
            assert unsupported.value.tensor == tensor.name


@dataclass(frozen=True)
class Refusal:
    rule: str
    kind: type[tg.FormatError] = tg.FormatError


REFUSED = {
    "b01_empty.bt": Refusal("bintensors.header.length", tg.TruncatedError),
    "b03_header_len_past_eof.bt": Refusal("bintensors.header.length", tg.TruncatedError),
    "b05_header_len_u64max.bt": Refusal("bintensors.limit.header", tg.LimitError),
    "b07_option_tag2.bt": Refusal("bintensors.metadata.tag"),
    "b09_varint_tag254.bt": Refusal("bintensors.varint.tag"),
    "b11_dup_name.bt": Refusal("bintensors.name.duplicate"),
    "b12_overlap.bt": Refusal("bintensors.offsets.contiguous"),
    "b13_gap.bt": Refusal("bintensors.offsets.contiguous"),
    "b14_first_not_zero.bt": Refusal("bintensors.offsets.contiguous"),
    "b15_end_before_start.bt": Refusal("bintensors.offsets.contiguous"),
    "b20_truncated_data.bt": Refusal("bintensors.data.end", tg.TruncatedError),
    "b21_name_not_utf8.bt": Refusal("bintensors.text.utf8"),
    "b22_name_utf8_surrogate.bt": Refusal("bintensors.text.utf8"),
    "b24_name_len_past_header.bt": Refusal("bintensors.header.end", tg.TruncatedError),
    "b25_count_bomb_2e63.bt": Refusal("bintensors.count"),
    "b27_meta_bomb_2083332.bt": Refusal("bintensors.count"),
    "b28_name_bomb_99MB.bt": Refusal("bintensors.header.end", tg.TruncatedError),
    "b31_safetensors_file.bt": Refusal("bintensors.metadata.tag"),
    "b32_size_wraps.bt": Refusal("bintensors.shape.product"),
    "s02_noncanonical_varint.bt": Refusal("bintensors.varint.minimal"),
    "s03_pad_not_space.bt": Refusal("bintensors.padding.byte"),
    "s04_pad_4096.bt": Refusal("bintensors.padding.length"),
    "s05_header_not_mult8.bt": Refusal("bintensors.header.multiple"),
    "s09_huge_zero_dim.bt": Refusal("bintensors.shape.product"),
    "s10_ndim_100.bt": Refusal("bintensors.limit.rank", tg.LimitError),
}
"""As layout 1, in which all of them were made."""
OTHER = {
    "b30_legacy_v0_layout.bt",
    "s06_unsorted.bt",
    "s07_bool_value2.bt",
    "s11_polyglot_v0_v1.bt",
    "s12_empty_name.bt",
}
"""Those that are right in one way and wrong in another, each with a test of its own below."""


def test_every_bad_file_has_an_expectation() -> None:
    assert set(BAD) == set(REFUSED) | OTHER
    assert {name for name, row in BAD.items() if row["strict_should_reject"]} - set(REFUSED) == {
        "b30_legacy_v0_layout.bt"
    }


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_file_is_refused_by_its_rule(name: str, strict: bool) -> None:
    expected = REFUSED[name]
    for source in (REJECT / name, (REJECT / name).read_bytes()):
        with pytest.raises(tg.FormatError) as caught:
            tg.open(source, format="bintensors@1", strict=strict)
        assert type(caught.value) is expected.kind
        assert caught.value.rule == expected.rule
        assert caught.value.offset is not None


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", [name for name in REFUSED if BAD[name]["strict_should_reject"]])
def test_a_bad_file_is_refused_without_its_layout_named_in_10_ms_and_10_mb(name: str, strict: bool) -> None:
    path = REJECT / name

    def refused() -> None:
        with pytest.raises(tg.FormatError) as caught:
            tg.open(path, format="bintensors", strict=strict)
        assert caught.value.rule.startswith("bintensors.")

    assert seconds(refused, 0.010) < 0.010
    assert allocated_nbytes(refused) < 10 * MB


def test_the_documents_example_is_layout_0_and_not_layout_1() -> None:
    path = REJECT / "b30_legacy_v0_layout.bt"
    assert path.read_bytes() == EXAMPLE
    with tg.open(path, strict=True) as archive:
        assert archive.format == "bintensors@0"
        assert archive["test"].shape == (1, 4)
    with pytest.raises(tg.FormatError) as caught:
        tg.open(path, format="bintensors@1")
    assert caught.value.rule == "bintensors.dtype"


def test_tensors_out_of_order_are_read_unless_strict() -> None:
    path = REJECT / "s06_unsorted.bt"
    arrays = tg.load(path)
    assert [array.dtype.name for array in arrays.values()] == ["uint8", "float64"]
    assert all(array.flags.aligned for array in arrays.values())
    with pytest.raises(tg.FormatError) as caught:
        tg.open(path, strict=True)
    assert caught.value.rule == "bintensors.strict.order"


@pytest.mark.parametrize("backend", ["pread", "mmap"])
def test_a_bool_byte_of_2_is_refused_when_it_is_read(backend: Any) -> None:
    path = REJECT / "s07_bool_value2.bt"
    with tg.open(path, backend=backend) as archive:
        (tensor,) = archive.values()
        for read in (tensor.numpy, lambda: tensor[...], lambda: tg.load(path, backend=backend)):
            with pytest.raises(tg.FormatError) as caught:
                read()
            assert caught.value.rule == "values.bool"
            assert caught.value.tensor == tensor.name
    assert [problem.rule for problem in tg.verify(path, deep=True).problems] == ["values.bool"]


def test_100_dimensions_are_listed_when_the_caller_allows_them() -> None:
    with tg.open(REJECT / "s10_ndim_100.bt", limits=tg.Limits(rank=100)) as archive:
        (tensor,) = archive.values()
        assert len(tensor.shape) == 100


def test_a_file_valid_in_both_layouts_needs_the_caller_to_choose() -> None:
    path = REJECT / "s11_polyglot_v0_v1.bt"
    for strict in (False, True):
        with pytest.raises(tg.AmbiguousFormat) as caught:
            tg.open(path, strict=strict)
        assert caught.value.rule == "bintensors.layout"
        assert "bintensors@0" in str(caught.value)
        assert "bintensors@1" in str(caught.value)
    read = [tg.load(path, format=f"bintensors@{layout}", strict=True) for layout in (0, 1)]
    described = [{name: (array.dtype.name, array.shape) for name, array in arrays.items()} for arrays in read]
    assert described[0] != described[1]


def test_an_empty_name_is_a_name() -> None:
    path = REJECT / "s12_empty_name.bt"
    arrays = tg.load(path, strict=True)
    assert list(arrays) == [""]
    assert tg.dumps(arrays, format="bintensors@1") == path.read_bytes()


@pytest.mark.parametrize(
    ("change", "rule"),
    [(lambda data: data[:-1], "bintensors.data.end"), (lambda data: data + b"\0", "bintensors.data.trailing")],
)
def test_a_header_of_both_layouts_with_values_of_neither(change: Callable[[bytes], bytes], rule: str) -> None:
    data = change((REJECT / "s11_polyglot_v0_v1.bt").read_bytes())
    with pytest.raises(tg.FormatError) as caught:
        tg.loads(data)
    assert caught.value.rule == rule
