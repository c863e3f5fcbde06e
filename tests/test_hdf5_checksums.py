"""HDF5: every structure that has a checksum is compared with it, and so is every chunk that has one."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from hdf5_seals import resealed
from peers import needs
from tensorglot.kernels.lookup3 import lookup3
from test_hdf5 import written


def hash_of(data: bytes) -> int:
    """Bob Jenkins' lookup3 in another form: words of the padded data, and the two mixes as tables of rotations."""
    words = [int.from_bytes(data[i : i + 4].ljust(4, b"\0"), "little") for i in range(0, len(data), 4)]
    words += [0] * (-len(words) % 3)
    state = [(0xDEADBEEF + len(data)) % 2**32] * 3

    def rotated(value: int, bits: int) -> int:
        return (value << bits | value >> (32 - bits)) % 2**32

    for start in range(0, len(words), 3):
        state = [(old + new) % 2**32 for old, new in zip(state, words[start : start + 3], strict=True)]
        if start + 3 < len(words):
            for turn, bits in enumerate((4, 6, 8, 16, 19, 4)):
                one, two, three = turn % 3, (turn + 1) % 3, (turn + 2) % 3
                state[one] = (state[one] - state[three]) % 2**32 ^ rotated(state[three], bits)
                state[three] = (state[three] + state[two]) % 2**32
        else:
            for turn, bits in enumerate((14, 11, 25, 16, 4, 14, 24)):
                one, other = (turn + 2) % 3, (turn + 1) % 3
                state[one] = ((state[one] ^ state[other]) - rotated(state[other], bits)) % 2**32
    return state[2]


@pytest.mark.parametrize(
    ("data", "expected"), [(b"", 0xDEADBEEF), (b"Four score and seven years ago", 0x17770551)], ids=["empty", "text"]
)
def test_published_values_of_the_hash(data: bytes, expected: int) -> None:
    assert lookup3(data) == expected == hash_of(data)


def test_the_hash_of_every_length() -> None:
    data = np.random.default_rng(1).integers(0, 256, 200, np.uint8).tobytes()
    assert [lookup3(data[:n]) for n in range(200)] == [hash_of(data[:n]) for n in range(200)]


def small(made: Any) -> None:
    values = np.arange(60, dtype="<i4").reshape(12, 5)
    for i, most in enumerate((None, (None, 5), (None, None))):
        made.create_dataset(f"c{i}", data=values, chunks=(3, 2), maxshape=most, fletcher32=True)
    for i in range(9):
        made[f"many/{i}"] = 1


def continued(made: Any) -> None:
    """An object header that grew after others were written behind it."""
    made["first"] = 1
    for i in range(7):
        made["first"].attrs[f"a{i}"] = "x" * 200


def large(made: Any) -> None:
    for i in range(1500):
        made[f"group/name {i}"] = i


def many_chunks(made: Any) -> None:
    made.create_dataset("w", data=np.zeros((600, 3)), chunks=(1, 3), maxshape=(None, 3))
    made.create_dataset("t", data=np.zeros((60, 90)), chunks=(2, 3), maxshape=(None, None))
    made.create_dataset("p", data=np.zeros(4500), chunks=(4,))


def pages(made: Any) -> None:
    held = made.create_dataset("w", (700_000,), np.int8, chunks=(4,), maxshape=(None,))
    held[650_000:650_100] = 7


@cache
def file_of(fill: Callable[[Any], None]) -> bytes:
    return written(fill, libver="latest")


def page_of_fixed_array() -> int:
    """The first page comes after the prefix, one byte for the bits of two pages, and a checksum."""
    return file_of(many_chunks).index(b"FADB") + 14 + 1 + 4


def page_of_extensible_array() -> int:
    """Pages of 1,024 addresses come after a prefix of 18 bytes and its checksum; those that were written have one."""
    data = file_of(pages)
    begin = data.rindex(b"EADB") + 18 + 4
    places = range(begin, len(data) - 8196, 8196)
    sums = {at: data[at + 8192 : at + 8196] for at in places}
    return next(at for at, held in sums.items() if hash_of(data[at : at + 8192]).to_bytes(4, "little") == held)


STRUCTURES: dict[str, tuple[Callable[[Any], None], bytes | Callable[[], int], int]] = {
    "superblock": (small, b"\x89HDF", 28),
    "object header": (small, b"OHDR", 8),
    "continuation of an object header": (continued, b"OCHK", 12),
    "B-tree": (small, b"BTHD", 27),
    "leaf of a B-tree": (small, b"BTLF", 8),
    "node of a B-tree": (many_chunks, b"BTIN", 8),
    "fractal heap": (small, b"FRHP", 40),
    "direct block": (small, b"FHDB", 30),
    "last byte of a direct block": (small, b"FHDB", 511),
    "indirect block": (large, b"FHIB", 6),
    "fixed array": (small, b"FAHD", 8),
    "block of a fixed array": (small, b"FADB", 8),
    "page of a fixed array": (many_chunks, page_of_fixed_array, 9),
    "extensible array": (small, b"EAHD", 13),
    "index block": (small, b"EAIB", 8),
    "secondary block": (many_chunks, b"EASB", 8),
    "block of an extensible array": (many_chunks, b"EADB", 8),
    "block with pages": (pages, lambda: file_of(pages).rindex(b"EADB"), 8),
    "page of an extensible array": (pages, page_of_extensible_array, 9),
}
"""With a byte in each that nothing else would notice, or not before the checksum is compared."""


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_flipped_bit_in_a_structure_is_named(structure: str) -> None:
    fill, sign, byte = STRUCTURES[structure]
    data = file_of(fill)
    at = sign() if callable(sign) else data.index(sign)
    tg.open(data).close()
    for bit in (0, 7):
        damaged = bytearray(data)
        damaged[at + byte] ^= 1 << bit
        for verify in ("auto", "never"):
            with pytest.raises(tg.IntegrityError) as caught:
                tg.open(bytes(damaged), verify=verify)
            assert (caught.value.rule, caught.value.offset) == ("hdf5.checksum", at)


def test_every_flipped_bit_of_a_file_is_found_or_changes_nothing() -> None:
    """A file of `libver="latest"` whose chunks have checksums has one over everything that a reader uses."""

    def fill(made: Any) -> None:
        made.attrs["step"] = 10
        made.create_dataset("g/w", data=np.arange(24.0).reshape(6, 4), chunks=(3, 4), fletcher32=True)
        made.create_dataset("v", data=np.arange(9), chunks=(4,), maxshape=(None,), compression="gzip", fletcher32=True)

    data = written(fill, libver="latest")

    def content(data: bytes) -> Any:
        with tg.open(data, format="hdf5", verify="require") as archive:
            return archive.metadata, {name: (held.dtype, held.numpy().tolist()) for name, held in archive.items()}

    expected = content(data)
    refused = 0
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        try:
            assert content(bytes(damaged)) == expected, at
        except tg.TensorglotError:
            refused += 1
    assert refused > 500


def test_a_changed_file_with_new_checksums_is_read_by_both_libraries() -> None:
    h5py = needs("h5py")
    data = written(lambda made: made.create_dataset("weights", data=np.arange(3)), libver="latest")
    changed = data.replace(b"weights", b"weighty")
    with pytest.raises(tg.IntegrityError):
        tg.open(changed)
    with pytest.raises((OSError, RuntimeError)), h5py.File(io.BytesIO(changed)) as other:
        list(other)
    sealed = resealed(changed)
    with tg.open(sealed) as archive, h5py.File(io.BytesIO(sealed)) as other:
        assert list(archive) == list(other) == ["weighty"]


@pytest.mark.parametrize("verify", ["auto", "require"])
def test_chunks_with_checksums_count_as_checked(verify: Any) -> None:
    values = np.arange(24.0).reshape(6, 4)

    def fill(made: Any) -> None:
        made.create_dataset("checked", data=values, chunks=(4, 4), fletcher32=True)
        made.create_dataset("plain", data=values, chunks=(4, 4))
        made.create_dataset("hollow", shape=(9,), dtype="f4", chunks=(3,), fletcher32=True)[:3] = 1

    data = written(fill)
    with tg.open(data, verify=verify) as archive:
        assert (archive["checked"].numpy() == values).all()
        assert (archive["checked"][2:5] == values[2:5]).all()
        for name in ("plain", "hollow"):
            if verify == "require":
                with pytest.raises(tg.IntegrityError):
                    archive[name].numpy()
            else:
                archive[name].numpy()
    report = tg.verify(data)
    assert report.ok
    assert report.to_dict()["checksums"] == 1
    assert report.to_dict()["unverified"] == ["hollow", "plain"]
