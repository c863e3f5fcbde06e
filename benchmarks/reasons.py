"""Why something else is faster in a row, and what was tried: the page puts it beside the row.

The first pattern that fits the case and the peer counts. A test asks for a reason for every
such row of the published results.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

__all__ = ["reason"]

_REASONS: dict[tuple[str, str], str] = {
    ("*", "bare"): "The same system calls without headers, names, checks or results: a bound.",
    ("*", "copy"): "A copy of the result, which computes nothing: a bound.",
    ("W5 strings *", "bytes"): "A copy of the result, which computes nothing: a bound.",
    ("verify *", "* alone"): "The checksum of bytes that are in memory already; we read the file as well.",
    ("* verify", "xxh3"): "The checksum of bytes that are in memory already; we read the file as well.",
    ("convert zTensor *", "shutil.copyfile"): "We compare the checksum of every tensor on the way.",
    ("convert float32 *", "*"): "We cast every element and count what was rounded; the operating system copies pages.",
    ("* 100,000 small tensors", "filecmp"): (
        "It compares bytes, all of them equal: no names, types, shapes or checksums of 100,000 tensors."
    ),
    (
        "S3 load, *",
        "parallel get",
    ): "The bytes as the client library hands them over; we copy them once, into arrays that can be written.",
    ("torch load", "safetensors"): (
        'It maps the file and has read nothing when the clock stops. With `backend="mmap"` so do we: see its row.'
    ),
    ("W1 slice of 1 %", "*"): (
        "Opening the file, trying both layouts, looking for a sidecar and making the index take Python twice what they "
        "take compiled code; reading the rows is quicker than theirs, but they are few. Tried: half of the "
        'instructions of `open` (see Instructions); `backend="mmap"`, which is slower still.'
    ),
    ("W5 * deserialize", "arrow"): "Its file is its memory layout: it maps the columns and decodes nothing.",
    ("W5 * serialize", "arrow"): (
        "It writes its columns as they are. In canonical bytes every list has its length before its elements, so "
        "each is copied by itself."
    ),
}


def reason(case: str, peer: str) -> str | None:
    for (pattern, library), text in _REASONS.items():
        if fnmatchcase(case, pattern) and fnmatchcase(peer, library):
            return text
    return None
