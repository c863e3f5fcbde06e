"""Every flipped bit that a checksum covers is found, and the tensor named; reports say what has no checksum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensorglot as tg
from ztensor_builder import entry, file01

TENSORS = {"a": np.arange(6, dtype=np.float32), "b": np.arange(40, dtype=np.uint8), "c": np.zeros((2, 0))}


@pytest.mark.parametrize("checksum", ["crc32c", "sha256", "xxh3"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_every_flipped_bit(checksum: str, compression: str | None) -> None:
    version = "ztensor@2" if checksum == "xxh3" else "ztensor@0.1"
    data = tg.dumps(TENSORS, format=version, checksum=checksum, compression=compression)
    archive = tg.open(data)
    spans = {name: (t.parts["data"].payload.begin, t.parts["data"].payload.end) for name, t in archive.items()}
    unchanged = 0
    for name, (begin, end) in spans.items():
        for bit in range(8 * begin, 8 * end):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            report = tg.verify(bytes(changed))
            if report.ok and (version, compression) == ("ztensor@2", "zstd"):
                # Its digests cover the decoded bytes: a bit that does not change them is in no checksum.
                assert tg.loads(bytes(changed))[name].tobytes() == TENSORS[name].tobytes()
                unchanged += 1
                continue
            assert [problem.tensor for problem in report.problems] == [name], bit
            with tg.open(bytes(changed), verify="auto") as broken:
                with pytest.raises(tg.FormatError) as caught:
                    broken[name].numpy()
                assert caught.value.tensor == name
                for other in set(TENSORS) - {name}:
                    broken[other].numpy()
    assert unchanged <= 4 * len(TENSORS)


@pytest.mark.parametrize("version", ["ztensor@0.1", "ztensor@2"])
def test_frames_have_checksums_of_their_own(version: str) -> None:
    data = tg.dumps({"a": TENSORS["a"]}, format=version, compression="zstd", checksum="frame")
    span = tg.open(data)["a"].parts["data"].payload
    missed = 0
    for bit in range(8 * span.begin, 8 * span.end):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            missed += tg.loads(bytes(changed))["a"].tobytes() != TENSORS["a"].tobytes()
        except tg.FormatError:
            assert [problem.tensor for problem in tg.verify(bytes(changed)).problems] == ["a"], bit
            continue
        assert tg.verify(bytes(changed)).ok
    assert missed == 0


def test_a_report_lists_tensors_without_a_checksum() -> None:
    rows = [
        entry("with", checksum="crc32c:0x92C80A31"),
        entry("without", offset=128),
        entry("unknown", offset=192, checksum="md5:00"),
        entry("wrong", offset=256, checksum="crc32c:0x92C80A32"),
    ]
    data = file01(rows, (b"abcd" + bytes(60)) * 4)
    report = tg.verify(data)
    assert (report.checksums, report.unverified) == (1, ("without", "unknown"))
    assert [(problem.rule, problem.tensor, problem.offset) for problem in report.problems] == [
        ("checksum.mismatch", "wrong", 256)
    ]
    assert not report.ok
    assert report.to_dict()["unverified"] == ["without", "unknown"]
    with tg.open(data, verify="auto") as archive:
        for name in ("with", "without", "unknown"):
            assert archive[name].numpy().tobytes() == b"abcd"
        for _ in range(2):
            with pytest.raises(tg.IntegrityError):
                archive["wrong"].numpy()
            with pytest.raises(tg.IntegrityError):
                archive["wrong"][1:2]
    with tg.open(data, verify="require") as archive:
        assert archive["with"].numpy().tobytes() == b"abcd"
        for name in ("without", "unknown"):
            with pytest.raises(tg.IntegrityError) as caught:
                archive[name].numpy()
            assert caught.value.rule == "verify.absent"
    with pytest.raises(tg.IntegrityError):
        tg.load(data, verify="auto")
    assert tg.load(data, names=["with"], verify="require")["with"].tobytes() == b"abcd"


def test_all_problems_are_in_one_report() -> None:
    rows = [
        entry("a", dtype="bool"),
        entry("b", offset=128, encoding="zstd"),
        entry("c", offset=192, checksum="crc32c:x"),
    ]
    report = tg.verify(file01(rows, (b"abcd" + bytes(60)) * 3), deep=True)
    assert [(problem.rule, problem.tensor) for problem in report.problems] == [
        ("values.bool", "a"),
        ("zstd.magic", "b"),
        ("checksum.form", "c"),
    ]
    assert report.canonical is False
    assert tg.verify(tg.dumps(TENSORS, format="ztensor"), deep=True).canonical is True
    assert tg.verify(tg.dumps(TENSORS, format="ztensor")).canonical is None


def test_an_unreadable_part_does_not_hide_problems_of_others() -> None:
    """The values are in an encoding that nobody knows; that the indices are wrong is seen all the same."""
    shared = {"part_of": "w", "size": 12, "shape": [3]}
    first = {"logical_layout": "zt.sparse_csr/1", "logical_shape": [2, 3]}
    rows = [
        entry("w#values", part="values", dtype="float32", encoding="lz4", **shared, **first),
        entry("w#indices", part="indices", dtype="uint32", offset=128, **shared),
        entry("w#indptr", part="indptr", dtype="uint32", offset=192, **shared),
    ]
    indices, rising, falling = (np.array(values, np.uint32).tobytes() for values in ((0, 1, 2), (0, 2, 3), (0, 4, 3)))
    for indptr, rules in ((rising, []), (falling, ["layout.values.indptr"])):
        data = file01(rows, bytes(64) + indices + bytes(52) + indptr)
        assert list(tg.open(data)) == ["w"]
        assert [problem.rule for problem in tg.verify(data, deep=True).problems] == rules


def flip(path: Path, tensor: str) -> None:
    with tg.open(path) as archive:
        offset = archive[tensor].offset or 0
    data = path.read_bytes()
    with path.open("r+b") as file:  # in place: an archive that is open sees it
        file.seek(offset)
        file.write(bytes([data[offset] ^ 1]))


def test_a_checksum_that_matched_is_not_compared_again(tmp_path: Path) -> None:
    path = tmp_path / "a.zt"
    tg.save(path, TENSORS, checksum="crc32c")
    with tg.open(path) as archive:
        archive["a"].numpy()
        flip(path, "a")
        assert archive["a"].numpy().tobytes() != TENSORS["a"].tobytes()


def test_a_checksum_that_did_not_match_never_will(tmp_path: Path) -> None:
    path = tmp_path / "a.zt"
    tg.save(path, TENSORS, checksum="crc32c")
    flip(path, "a")
    with tg.open(path) as archive:
        with pytest.raises(tg.IntegrityError):
            archive["a"].numpy()
        flip(path, "a")
        for read in (archive["a"].numpy, archive["a"].cid, lambda: archive["a"][...]):
            with pytest.raises(tg.IntegrityError):
                read()
