"""The densest files below 64 KB are opened or refused within 10 MB, and within 10 ms or a bound of their own.

Interpreted kernels have twenty times the time.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import tensorglot as tg
from bounds import INTERPRETED, MB, allocated_nbytes, seconds
from densest import DENSEST
from figures import seen
from peers import needs

SECONDS = 0.010
SLOWER: dict[str, float] = {
    what: milliseconds / 1000
    for milliseconds, files in {
        20: [
            "dcp pickle: frames",
            "dcp pickle: longs",
            "dcp pickle: marked lists",
            "dcp pickle: marks",
            "dcp: boxes",
            "dcp: nested values",
            "dynd: fields",
            "dynd: table of text",
            "gguf: arrays",
            "gguf: dimensions",
            "gguf: pairs of arrays",
            "hdf5: attributes",
            "hdf5: chunks",
            "hdf5: chunks of the earliest form",
            "hdf5: groups",
            "pt legacy: frames",
            "pt legacy: longs",
            "pt legacy: marks",
            "pt legacy: stack globals",
            "pt zip: frames",
            "pt zip: lists",
            "pt zip: longs",
            "pt zip: marks",
            "pt zip: stack globals",
            "ztensor@2: parts",
        ],
        30: [
            "delta: changed",
            "dynd: fields of one byte",
            "dynd: fields of sub-byte elements",
            "gguf: pairs",
            "gguf: scalars",
            "gguf: tensors",
            "hdf5: names",
            "pt legacy: calls",
            "pt legacy: calls of a list",
            "pt legacy: calls of a size",
            "pt legacy: lists",
            "pt legacy: nested lists",
            "pt legacy: tuples of one",
            "pt zip: calls",
            "pt zip: calls of a list",
            "pt zip: calls of a size",
            "pt zip: nested lists",
            "pt zip: tuples of one",
        ],
        40: [
            "delta: unchanged",
            "dynd: power",
            "dynd: void fields",
            "onnx: fields",
            "onnx: varints",
            "pt legacy: dicts",
            "pt legacy: marked lists",
            "pt zip: marked lists",
            "pt zip: marked tuples",
            "shards: files",
            "store: packs",
            "store: parents",
        ],
        50: ["pt legacy: marked tuples", "pt zip: dicts"],
        60: ["dynd: tuple", "npy: fields", "onnx: entries", "onnx: properties", "store: metadata"],
        70: ["dynd: tuple of void", "onnx: opsets", "store: tensors"],
        90: ["npy: dimensions"],
        100: ["dcp: tensors", "dynd: fields of each size"],
        110: ["onnx: external", "pt zip: tensors"],
        130: ["dynd: options"],
        180: ["dynd: dimensions", "onnx: external files"],
        190: ["dynd: tuples"],
        220: ["dynd: fields of structs", "dynd: fields of tuples"],
        230: ["onnx: sparse"],
        240: ["dynd: fields of text"],
        300: ["dynd: fields of lists"],
        350: ["dynd: nested tuples"],
        380: ["dynd: fields of options"],
    }.items()
    for what in files
}
"""Files that take longer, or nearly so, with bounds of about twice what was measured."""


@pytest.mark.parametrize("what", DENSEST)
def test_opened_or_refused_within_bounds(what: str, tmp_path: Path) -> None:
    if what.startswith("hdf5"):
        needs("h5py")
    format, make = DENSEST[what]
    path = make(tmp_path)

    def opened() -> None:
        with contextlib.suppress(tg.TensorglotError):
            tg.open(path, format=format or None).close()

    opened()  # imports what it needs
    assert allocated_nbytes(opened) < 10 * MB
    bound = SLOWER.get(what, SECONDS) * (20 if INTERPRETED else 1)
    assert seconds(opened, bound) < bound
    seen("hostile files")
