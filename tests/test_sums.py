"""The sidecar of checksums: what it covers, what it finds, and what it refuses to be."""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import tensorglot as tg
import tensorglot.numpy
from arrays import random_tensors
from tensorglot.cli import commands
from tensorglot.wire.checksums import ALGORITHMS, Checksum, hasher

MIB = 1 << 20
WRITABLE = [f"{row.name}@{version}" for row in tg.formats() for version in row.writes if row.name != "bson"]
TENSORS: dict[str, Any] = {
    "w": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.ones(5),
    'odd "\n\x1b name': np.int8([1, 2, 3]),
    "empty": np.zeros((0, 3)),
}


def sidecar_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sums")


def checksum(algorithm: str, data: bytes) -> Checksum:
    running = hasher(algorithm)
    running.update(memoryview(data))
    return Checksum(algorithm, running.digest())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tg.save(tmp_path / "model.bt", TENSORS, metadata={"k": "v"})
    return tmp_path / "model.bt"


def test_written_on_request_and_checked_when_present(path: Path) -> None:
    assert tg.verify(path).checksums == 0
    assert set(tg.verify(path).unverified) == set(TENSORS)
    assert not sidecar_path(path).exists()
    report = tg.verify(path, sums="write")
    assert report.ok
    assert sidecar_path(path).name == "model.bt.sums"
    report = tg.verify(path)
    assert (report.ok, report.checksums, report.unverified) == (True, len(TENSORS) + 1, ())


@pytest.mark.parametrize(("count", "said"), [(0, "0 tensors"), (1, "1 tensor"), (2, "2 tensors")])
def test_a_report_counts(count: int, said: str) -> None:
    data = tg.dumps({f"t{i}": np.zeros(2) for i in range(count)}, format="bintensors")
    assert repr(tg.verify(data, format="bintensors@0")) == f"Report(bintensors@0, {said}, ok)"


def test_a_line_for_each_tensor_and_one_for_the_rest(path: Path) -> None:
    tg.verify(path, sums="write")
    lines = sidecar_path(path).read_text().splitlines()
    assert lines[0] == f"tensorglot-sums 1 {path.stat().st_size}"
    assert len(lines) == len(TENSORS) + 2
    assert any(r'"odd \"\n\u001b name"' in line for line in lines)
    assert lines[-1].endswith(" -")
    with tg.open(path) as archive:
        span = slice(archive["w"].offset, archive["w"].offset + 48)
    assert f'{checksum("xxh3", path.read_bytes()[span])} "w"' in lines


def test_every_flipped_bit_is_found(path: Path) -> None:
    tg.verify(path, sums="write")
    data = path.read_bytes()
    with tg.open(path) as archive:
        spans = {name: (t.offset, t.offset + t.nbytes) for name, t in archive.items() if t.offset is not None}
    for position in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            path.write_bytes(changed)
            report = tg.verify(path)
            assert not report.ok, (position, bit)
            owner = next((name for name, (begin, end) in spans.items() if begin <= position < end), None)
            if owner is not None:
                assert [problem.tensor for problem in report.problems] == [owner]
                assert report.problems[0].rule == "checksum.mismatch"


def test_reads_are_checked_too(path: Path) -> None:
    tg.verify(path, sums="write")
    assert tg.load(path, verify="require").keys() == TENSORS.keys()
    data = bytearray(path.read_bytes())
    with tg.open(path) as archive:
        data[archive["w"].offset] ^= 1
    path.write_bytes(data)
    with tg.open(path, verify="auto") as archive:
        assert archive["b"].numpy().tolist() == [1] * 5
        with pytest.raises(tg.IntegrityError) as caught:
            archive["w"].numpy()
        assert (caught.value.rule, caught.value.tensor) == ("checksum.mismatch", "w")
    with pytest.raises(tg.IntegrityError):
        tg.load(path)
    assert tg.load(path, verify="never")["w"].shape == (3, 4)
    with pytest.raises(tg.IntegrityError):
        tg.convert(path, path.with_name("b.bt"))
    assert not path.with_name("b.bt").exists()


def test_a_sidecar_of_another_file(path: Path) -> None:
    tg.verify(path, sums="write")
    path.write_bytes(tg.dumps({"w": np.zeros(3)}, format="bintensors"))
    assert [problem.rule for problem in tg.verify(path).problems] == ["sums.size"]
    with pytest.raises(tg.IntegrityError, match="for a file of"):
        tg.open(path, verify="auto")
    renamed = {name.replace("w", "v"): array for name, array in TENSORS.items()}
    path.write_bytes(tg.dumps(renamed, format="bintensors", metadata={"k": "v"}))
    problems = tg.verify(path).problems
    assert [problem.rule for problem in problems] == ["sums.names"]
    assert tg.verify(path, sums="write").ok
    assert tg.verify(path).ok


def write(path: Path, tensors: dict[str, Any]) -> None:
    with tg.Writer(path) as out:
        for name, array in tensors.items():
            out.add(name, array)


def patch(path: Path, tensors: dict[str, Any]) -> None:
    tg.store.delta(path, tensors, path.with_name("new.tgdelta"))
    tg.store.patch(path.with_name("new.tgdelta"), path, path)


def convert_elsewhere(path: Path, tensors: dict[str, Any]) -> None:
    tg.save(path.with_name("new.zt"), tensors)
    with ThreadPoolExecutor(1) as executor:
        tg.convert(path.with_name("new.zt"), path, executor=executor)


REPLACING: dict[str, Callable[[Path, dict[str, Any]], object]] = {
    "save": tg.save,
    "Writer": write,
    "convert": lambda path, tensors: tg.convert(tensors, path),
    "convert by workers": convert_elsewhere,
    "merge": lambda path, tensors: tg.merge([tensors], path),
    "patch": patch,
    "save_file": lambda path, tensors: tensorglot.numpy.save_file(tensors, path),
}


@pytest.mark.parametrize("verb", REPLACING)
def test_a_file_that_is_replaced_can_be_read(verb: str, path: Path) -> None:
    tg.verify(path, sums="write")
    new = {name: array + array.dtype.type(1) for name, array in TENSORS.items()}
    REPLACING[verb](path, new)
    assert tg.diff(tg.load(path), new).same
    assert not sidecar_path(path).exists()


def test_a_failed_save_leaves_the_sidecar(path: Path) -> None:
    tg.verify(path, sums="write")
    with pytest.raises(tg.UnsupportedError, match=r"rule save\.layout"):
        tg.save(path, {"w": [[1], [2, 3]]})
    assert tg.verify(path).checksums > 0


@pytest.mark.parametrize("replaced", [False, True])
def test_an_interrupt_while_a_file_is_replaced(replaced: bool, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sidecar is put back beside the file that it describes, and beside no other."""
    tg.verify(path, sums="write")
    rename = os.rename
    targets: list[str] = []

    def interrupted(old: Any, new: Any, **folders: Any) -> None:
        targets.append(os.path.basename(new))  # noqa: PTH119
        if targets[-1] != path.name:
            return rename(old, new, **folders)
        assert not sidecar_path(path).exists()
        if replaced:
            rename(old, new, **folders)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tg.save(path, {"w": np.zeros(3)})
    assert path.name in targets
    assert sidecar_path(path).exists() is not replaced
    assert len(list(path.parent.iterdir())) == 2 - replaced
    assert tg.verify(path).ok


@pytest.mark.parametrize("contents", [b"", b"xxh3 of something else"])
def test_a_file_that_only_has_the_name_of_a_sidecar_is_left_alone(contents: bytes, path: Path) -> None:
    sidecar_path(path).write_bytes(contents)
    tg.save(path, TENSORS)
    assert sidecar_path(path).read_bytes() == contents


def test_a_link_at_the_name_of_a_sidecar_is_left_alone(path: Path) -> None:
    tg.verify(path, sums="write")
    moved = sidecar_path(path).rename(path.with_name("elsewhere"))
    sidecar_path(path).symlink_to(moved)
    tg.save(path, TENSORS)
    assert sidecar_path(path).is_symlink()
    assert moved.exists()


@pytest.mark.parametrize("format", WRITABLE)
def test_every_format_can_have_one(format: str, tmp_path: Path) -> None:
    path = tmp_path / f"model.{format}"
    tg.save(path, {"data": np.arange(8, dtype=np.float32)}, format=format)
    assert tg.verify(path, sums="write", format=format).ok
    report = tg.verify(path, format=format)
    assert report.ok
    assert report.checksums >= 2
    data = bytearray(path.read_bytes())
    with tg.open(path, format=format) as archive:
        data[archive["data"].offset or 0] ^= 1
    path.write_bytes(data)
    problems = tg.verify(path, format=format).problems
    assert {problem.tensor for problem in problems} == {"data"}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_of_a_sidecar_is_verified(path: Path, algorithm: str) -> None:
    data = path.read_bytes()
    with tg.open(path) as archive:
        spans = {name: (t.offset or 0, (t.offset or 0) + t.nbytes) for name, t in archive.items()}
    rest = data[: min(begin for begin, _ in spans.values())]
    lines = [f"{checksum(algorithm, data[slice(*span)])} {json.dumps(name)}" for name, span in spans.items()]
    lines.append(f"{checksum(algorithm, rest)} -")
    sidecar_path(path).write_text("\n".join([f"tensorglot-sums 1 {len(data)}", *lines, ""]))
    report = tg.verify(path)
    assert (report.problems, report.checksums, report.unverified) == ((), len(TENSORS) + 1, ())
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert [problem.rule for problem in tg.verify(path).problems] == ["checksum.mismatch"]


def test_convert_writes_checksums_to_a_sidecar(tmp_path: Path) -> None:
    tg.save(tmp_path / "a.zt", TENSORS, checksum="crc32c")
    report = tg.convert(tmp_path / "a.zt", tmp_path / "b.bt")
    assert [loss.kind for loss in report.losses] == ["checksum"]
    report = tg.convert(tmp_path / "a.zt", tmp_path / "c.bt", sums=True)
    assert report.losses == ()
    assert tg.verify(tmp_path / "c.bt").checksums == len(TENSORS) + 1
    tg.convert(tmp_path / "a.zt", tmp_path / "d.zt")
    with tg.open(tmp_path / "d.zt") as archive:
        assert archive["w"].checksum.startswith("crc32c:")
    tg.convert(tmp_path / "a.zt", tmp_path / "e.zt", format="ztensor@2")
    with tg.open(tmp_path / "e.zt") as archive:
        assert archive["w"].checksum.startswith("xxh3:")


def test_sources_of_several_files_have_no_sidecar(path: Path) -> None:
    with pytest.raises(tg.InputError, match=r"rule verify\.sums"):
        tg.verify(path.read_bytes(), sums="write")
    with pytest.raises(tg.InputError, match=r"rule sums\.source"):
        tg.convert(path, io.BytesIO(), format="bintensors", sums=True)


def test_a_file_that_is_cut_short_while_it_is_verified(tmp_path: Path) -> None:
    """None is read together with others; when the first bytes of the first one are done, the file is cut short."""
    path = tmp_path / "a.zt"
    tensors = {f"t{i}": np.full(1 << 22 if i == 0 else 1 << 18, i) for i in range(4)}
    tg.save(path, tensors, format="ztensor@2", durable=False)
    with tg.open(path) as archive:
        cut = archive["t2"].offset
    report = tg.verify(path, progress=lambda *_: os.truncate(path, cut))
    assert report.checksums == 2
    assert {(problem.tensor, problem.rule) for problem in report.problems} == {
        ("t2", "source.size"),
        ("t3", "source.size"),
    }


GOOD = b'tensorglot-sums 1 10\nxxh3:0011223344556677 "a"\nxxh3:0011223344556677 -\n'
BAD: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "sums.head"),
    "another version": (GOOD.replace(b"sums 1", b"sums 2"), "sums.head"),
    "a size with a leading zero": (GOOD.replace(b"1 10", b"1 010"), "sums.head"),
    "a size of many digits": (GOOD.replace(b"1 10", b"1 " + b"9" * 5000), "sums.head"),
    "no last line": (GOOD[: GOOD.rindex(b"xxh3")], "sums.end"),
    "a line behind the last": (GOOD + GOOD.splitlines(keepends=True)[1], "sums.line"),
    "no end of line": (GOOD[:-1], "sums.line"),
    "a name that is no string": (GOOD.replace(b'"a"', b"a"), "sums.line"),
    "a name that is not UTF-8": (GOOD.replace(b'"a"', b'"\xff"'), "sums.name"),
    "a control character": (GOOD.replace(b'"a"', b'"\x01"'), "sums.name"),
    "half a surrogate": (GOOD.replace(b'"a"', rb'"\ud800"'), "sums.name"),
    "an escape that JSON has not": (GOOD.replace(b'"a"', rb'"\x41"'), "sums.name"),
    "a tensor twice": (
        GOOD.replace(b"xxh3:0011223344556677 -", b'xxh3:0011223344556677 "a"\nxxh3:00 -'),
        "sums.duplicate",
    ),
    "a NUL": (GOOD.replace(b" -", b" \0"), "sums.line"),
}


@pytest.mark.parametrize("case", BAD)
def test_refused(case: str, path: Path) -> None:
    data, rule = BAD[case]
    sidecar_path(path).write_bytes(data)
    assert [problem.rule for problem in tg.verify(path).problems] == [rule]
    with pytest.raises(tg.FormatError) as caught:
        tg.open(path)
    assert caught.value.rule == rule


def test_the_good_one_of_them_is_only_of_another_file(path: Path) -> None:
    sidecar_path(path).write_bytes(GOOD)
    assert [problem.rule for problem in tg.verify(path).problems] == ["sums.size"]


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sums") / "model.bt"
    tg.save(path, {"a": np.zeros(2)}, durable=False)
    return path


@given(data=st.binary(max_size=200) | st.text(max_size=100).map(lambda text: GOOD[:21] + text.encode()))
def test_any_sidecar_raises_only_errors_of_the_library(one_file: Path, data: bytes) -> None:
    sidecar_path(one_file).write_bytes(data)
    assert not tg.verify(one_file).ok
    with pytest.raises(tg.FormatError):
        tg.open(one_file)


def test_a_sidecar_beyond_the_limit_is_refused(path: Path) -> None:
    sidecar_path(path).write_bytes(GOOD * 100)
    report = tg.verify(path, limits=tg.Limits(header_nbytes=4000))
    assert [problem.rule for problem in report.problems] == ["sums.limit"]


def test_the_command_line(path: Path) -> None:
    result = CliRunner().invoke(commands, ["verify", str(path), "--write-sums"])
    assert result.exit_code == 0
    assert "model.bt.sums" in result.stderr
    result = CliRunner().invoke(commands, ["verify", str(path), "--write-sums", "--json"])
    assert json.loads(result.stdout)["sums"] == f"{path}.sums"
    assert result.stderr == ""
    result = CliRunner().invoke(commands, ["verify", str(path)])
    assert "5 checksums" in result.stdout
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    result = CliRunner().invoke(commands, ["verify", str(path)])
    assert (result.exit_code, "checksum mismatch" in result.stdout) == (1, True)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_line_is_the_digest_of_its_bytes(threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small neighbours are read together, large ones in pieces or ahead: the digests do not show it."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(threads)))
    rng, path = random.Random(threads), tmp_path / "model.bt"
    sizes = [0, 1, 3 * MIB + 17, *(rng.choice((0, 1, 100, 50_000, MIB, 2 * MIB + 1)) for _ in range(30))]
    tg.save(path, {f"t{i}": np.frombuffer(rng.randbytes(n), np.uint8) for i, n in enumerate(sizes)}, durable=False)
    assert tg.verify(path, sums="write").ok
    lines, data = sidecar_path(path).read_text().splitlines(), path.read_bytes()
    with tg.open(path) as archive:
        for name, tensor in archive.items():
            stored = data[tensor.offset : (tensor.offset or 0) + tensor.nbytes]
            assert f'{checksum("xxh3", stored)} "{name}"' in lines
    assert tg.verify(path).checksums == len(sizes) + 1


def test_random_archives(tmp_path: Path) -> None:
    rng = random.Random(5)
    for i in range(20):
        path = tmp_path / f"{i}.zt"
        tg.save(path, random_tensors(rng, ["float32", "int8", "bool"]), compression=rng.choice((None, "zstd")))
        assert tg.verify(path, sums="write").ok
        assert tg.verify(path).ok


def test_progress_of_verify_ends_at_the_total_whatever_is_not_looked_at(tmp_path: Path) -> None:
    """Tensors without checksums, and of a damaged one its values."""
    path = tmp_path / "a.zt"
    tensors = {"none": np.arange(1 << 10), "flags": np.zeros(1 << 10, np.bool_), "damaged": np.ones(1 << 10)}
    tg.save(path, tensors, checksum={"damaged": "crc32c"}, durable=False)
    with tg.open(path) as archive, path.open("r+b") as file:
        file.seek(archive["damaged"].offset or 0)
        file.write(b"x")
    for deep in (False, True):
        seen: list[tuple[int, int]] = []
        report = tg.verify(path, deep=deep, progress=lambda *now, seen=seen: seen.append(now))  # type: ignore[misc]
        assert [problem.tensor for problem in report.problems] == ["damaged"]
        assert seen == sorted(seen)
        assert seen[-1] == ((1 + deep) * sum(array.nbytes for array in tensors.values()),) * 2


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_progress_of_verify_counts_every_byte_that_is_looked_at(tmp_path: Path, compression: str | None) -> None:
    path = tmp_path / "a.zt"
    tensors = {"large": np.arange(1 << 21), "small": np.ones(3), "flags": np.zeros(1 << 21, np.bool_)}
    tg.save(path, tensors, checksum="crc32c", compression=compression, durable=False)
    tg.verify(path, sums="write")
    for deep in (False, True):
        seen: list[tuple[int, int]] = []
        report = tg.verify(path, deep=deep, progress=lambda *now, seen=seen: seen.append(now))  # type: ignore[misc]
        assert report.ok
        with tg.open(path) as archive:
            stored = int((archive.index.ends - archive.index.begins).sum())
            assert seen[-1] == (2 * stored + deep * sum(array.nbytes for array in tensors.values()),) * 2
        assert len(seen) > 6
        assert seen == sorted(seen)
