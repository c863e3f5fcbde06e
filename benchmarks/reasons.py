"""Why something else is faster in a row, in numbers of that row, and what was tried: the page puts it beside the row.

A reason is for one case and one library (or one limit, by its unit), and no other: a new
row in which something is faster needs a reason of its own, and a test asks for it. The
fields in braces are milliseconds of the row: `ours`, `theirs`, and `more`, the difference.
"""

from __future__ import annotations

from typing import Any

from benchmarks.claims import number

__all__ = ["REASONS", "reason"]

_MAPS = (
    "Its stream is its layout in memory: in {theirs} ms it maps the columns and decodes nothing. Canonical bytes have "
    "the length of every list before its elements, so no reader can map them; reading a million lengths and moving "
    "what is between them takes {ours} ms."
)
_COLUMNS = (
    "It writes two columns as they are in memory, in {theirs} ms. In canonical bytes every length stands before its "
    "elements, so each of a million lists is moved by itself, {more} ms more."
)
_BUFFERS = (
    "It unpickles its columns, two copies of buffers in {theirs} ms, and decodes nothing. Canonical bytes have the "
    "length of every text before it: reading a million lengths and moving what is between them takes {more} ms more."
)
_THERE_AND_BACK = (
    "Two copies of the matrix in {theirs} ms: a bound. The goal is half of its speed, because between the vectors are "
    "documents, each with keys, lengths and an id, which take {more} ms more to write and to check."
)
_COPY = (
    "A copy of the finished result in {theirs} ms, which computes nothing: a bound. The {more} ms more are a million "
    "lengths, encoded or decoded one by one, and as many moves of a few bytes."
)
_IN_MEMORY = (
    "The checksum alone, over bytes that are in memory already, in {theirs} ms; we read them from the page cache, "
    "which is most of the {more} ms more. Tried: reading into the same 1 MiB again and again instead of a buffer for "
    "each tensor, which is what it does now."
)
_SAME_READS = (
    "The same reads and checksums by as many threads in {theirs} ms, without index, comparison or report: a bound. "
    "These take us {more} ms more."
)
_INTO_ARRAYS = (
    "The same reads into the same arrays without names and checks are hardly faster than the goal (see bare). The OS "
    "copies 12 GB/s where an array and its place in the file are a multiple of 32 bytes apart modulo a page, else 3 to "
    "8; nobody chose where these arrays are. Tried: reading through a buffer of 64 KiB to 1 MiB that stays in the "
    "cache, which is not faster unless they are less than 32 bytes apart."
)
_FRAMES = (
    "The same frames, read and decoded by as many threads in {theirs} ms into one buffer, which is not checked and of "
    "which no arrays are made: a bound. Checksums of the stored bytes and arrays of their own take us {more} ms more."
)
_WRITTEN = (
    "The bytes of the finished file, written from one buffer in {theirs} ms: a bound. We make a header and write "
    "the arrays, each from its own place, {more} ms more."
)
_CHECKED = (
    "The bytes of the finished file, written from one buffer in {theirs} ms: a bound. Checksums, a header, and arrays "
    "that are each in its own place take us {more} ms more."
)
_READ = (
    "The same bytes read by as many threads in {theirs} ms without a header, names or arrays: a bound. These take us "
    "{more} ms more."
)
_SMALL = (
    "It compares the bytes of two equal files in {theirs} ms and knows nothing of tensors. {more} ms more are names, "
    "types, shapes and checksums of 100,000 of them."
)
_COPIED = (
    "The file as it is, copied by the OS in {theirs} ms. We compute or compare the checksum of every tensor on the "
    "way, which takes {more} ms more."
)
_SLICE = (
    "Reading the 672 KB takes whoever reads them 0.04 ms; with the file opened before, our slice takes 0.048. Opening "
    "it takes 0.025 ms in a loop, but twice that here, because the copied rows push the interpreter out of the "
    "processor's cache: {more} ms more than compiled code. Tried: half of the instructions of `open`, then a seventh "
    'of those of opening and slicing (see Instructions); `backend="mmap"`, which is slower still.'
)
_TWO_THREADS = (
    "Two threads that read and decode the same frames, and do nothing else (see bare), are less than 3 times as fast "
    "as ztensor: the goal is out of reach of two processors. Tried: memory that all batches of a thread share, "
    "which made 11,773 page faults 80 and 242 ms of processor time for 167 MB 211, where the bare threads take 175; "
    "checksums are 12 of the rest. Batches of other sizes: the two threads end within 1 % of one another."
)
_ASKING = (
    "Of 6,900 instructions for each tensor 1,800 collect the arrays, most of them to ask each for its dtype and its "
    "buffer; 1,400 copy it, 800 order the names. Tried: joining the arrays without asking for their types again, which "
    "saved 4 %; `np.concatenate` instead of joining them, three times as many instructions; `__array_struct__` instead "
    "of the buffer, 800 more; `array` instead of `np.fromiter`, 14 % more."
)
_VIEWS = (
    'Making as many NumPy views in a dict, and nothing else ("views"), grows with a power of 1.1, too: the names and '
    "other objects of a million tensors do not fit in the caches of the processor. The instructions for each tensor do "
    "not grow: of 3,000 and of 30,000 tensors, diff takes 23,100 and 17,400, "
    "identify 52,200 and 51,800, a commit 88,300 and 87,100."
)
_OBJECTS = (
    "The payload is 1.6 MB, but what is returned, 100,000 arrays and names in a dict, takes 28 MB: objects, 280 "
    "bytes for each tensor. Since the index is let go of before there are all arrays, the peak of BinTensors is hardly "
    "above that, 29 MB; that of zTensor, whose header and columns are larger, is 42."
)
_CHAIN = (
    "A checkpoint and the changes of ten successors are read, put together and compared with their BLAKE3. Of the "
    "processor's time 26 % are Python, 22 the operating system (14 of them clear the pages of the result), 19 putting "
    "changes in place, 13 decoding zstd, 8 BLAKE3 and 5 NumPy."
)
_PREPARED = (
    "The process used memory again that the preparation had freed, 20 to 120 MB, so small sizes seemed to need less. "
    "With that memory given back first, apply takes 1,460, 1,860 and 1,920 bytes for each of 31,623, 100,000 and "
    "316,228 tensors, checkout 930, 960 and 1,000."
)

REASONS: dict[tuple[str, str], str] = {
    ("W1 load, new process", "bare"): _READ,
    ("W2 load, new process", "bare"): _READ,
    ("W2 load into out=, repeated", "bintensors"): _INTO_ARRAYS,
    ("W2 load into out=, repeated", "safetensors"): _INTO_ARRAYS,
    ("W2 load into out=, repeated", "bare"): (
        "The same bytes into the same arrays by as many threads in {theirs} ms, without opening the file, finding the "
        "names or checking shapes and memory of 1,000 arrays: a bound. These take us {more} ms more."
    ),
    ("W1 save", "bare"): _WRITTEN,
    ("W2 save", "bare"): _WRITTEN,
    ("W1 zTensor 0.1 save", "bare"): _CHECKED,
    ("W2 zTensor 0.1 save", "bare"): _CHECKED,
    ("W1 zTensor 0.1 save", "no checksums"): "Checksums of 537 MB take {more} ms, on another thread than the writing.",
    ("W2 zTensor 0.1 save", "no checksums"): "Checksums of 505 MB take {more} ms, on another thread than the writing.",
    ("W1 zTensor 0.1 load, zstd", "bare"): _FRAMES,
    ("W1 zTensor 2 load, zstd", "bare"): _FRAMES,
    ("W2 zTensor 0.1 load, zstd", "bare"): _FRAMES,
    ("W2 zTensor 2 load, zstd", "bare"): _FRAMES,
    ("W1 zTensor 2 verify", "xxh3"): _IN_MEMORY,
    ("verify crc32c", "crc32c alone"): _IN_MEMORY,
    ("verify xxh3", "xxh3 alone"): (
        "The checksum alone, over bytes that are in memory already, in {theirs} ms. To read 505 MB from the page cache "
        "takes 33 ms of a processor, the checksum of them 22, and both by turns in one buffer 42: the "
        "goal is out of reach of whoever reads. Tried: pieces of 128 KiB to 4 MiB, of which those from 1 MiB on are "
        "equal and smaller ones slower; huge pages, without any difference."
    ),
    ("verify crc32c", "bare"): _SAME_READS,
    ("verify sha256", "bare"): _SAME_READS,
    ("verify xxh3", "bare"): _SAME_READS,
    ("verify 100,000 small tensors", "filecmp"): _SMALL,
    ("diff 100,000 small tensors", "filecmp"): _SMALL,
    ("convert safetensors to zTensor, 4 GB", "shutil.copyfile"): _COPIED,
    ("convert safetensors to zTensor, 4 GB", "copy_file_range"): _COPIED,
    ("convert zTensor to safetensors, 4 GB", "shutil.copyfile"): _COPIED,
    ("convert zTensor to safetensors, 4 GB", "copy_file_range"): _COPIED,
    ("convert float32 to bfloat16", "copy_file_range"): (
        "It copies pages in {theirs} ms. We cast 268 million elements and count those that were rounded, in {ours} ms."
    ),
    ("torch load", "safetensors"): (
        "It maps the file in {theirs} ms and has read nothing when the clock stops. So do we with "
        '`backend="mmap"`: see the next row. Tensors that do not depend on the file are "safetensors, cloned".'
    ),
    ("torch load and load_state_dict", "bare"): (
        "Only `load_state_dict`, a copy in memory in {theirs} ms: a bound for whoever loads first. We read the file "
        "before it, {more} ms more; with `out=` and `load_model` there is no such copy."
    ),
    ("torch load and load_state_dict", "safetensors"): (
        "It maps the file, and `load_state_dict` copies out of the mapping, {theirs} ms in all. We read into memory of "
        "our own first, because a mapped file that is truncated kills the process: {more} ms more. The copy of "
        '`load_state_dict` alone ("bare") takes most of their time, and to read the bytes takes nearly as long: the '
        "goal is out of reach of whoever reads first. `out=` and `load_model` read straight into the module."
    ),
    ("torch load, out=", "safetensors"): (
        "Both copy every byte once: we out of the page cache into the tensors, it out of its mapping. How fast the OS "
        "copies depends on where the tensors of the module are, as in W2 load into out=."
    ),
    ("W5 strings deserialize", "awkward"): _BUFFERS,
    ("W6 there and back, float32", "copy"): _THERE_AND_BACK,
    ("W6 there and back, int8", "copy"): _THERE_AND_BACK,
    ("W6 there and back, packed_bit", "copy"): _THERE_AND_BACK,
    ("W5 lists deserialize", "arrow"): _MAPS,
    ("W5 strings deserialize", "arrow"): _MAPS,
    ("W5 lists serialize", "arrow"): _COLUMNS,
    ("W5 strings serialize", "arrow"): _COLUMNS,
    ("W5 lists serialize", "copy"): _COPY,
    ("W5 lists deserialize", "copy"): _COPY,
    ("W5 strings serialize", "copy"): _COPY,
    ("W5 strings deserialize", "copy"): _COPY,
    ("W5 strings serialize", "bytes"): _COPY,
    ("W5 strings deserialize", "bytes"): _COPY,
    ("W5 fixed dims serialize", "copy"): (
        "A copy of the finished result in {theirs} ms; we copy once, too, after looking at the array, {more} ms more."
    ),
    ("W2 zTensor 0.1 load, zstd", "ztensor"): _TWO_THREADS,
    ("W2 zTensor 2 load, zstd", "ztensor"): _TWO_THREADS,
    ("W3 save", "safetensors"): _ASKING,
    ("W3 zTensor 0.1 save", "safetensors"): _ASKING,
    ("W2 open", "bintensors"): (
        "Most of their {theirs} ms is work for each tensor; nearly half of our {ours} ms is not: a file of one tensor "
        "takes 167,000 of the 572,000 instructions (see Instructions), all in Python around the system calls. Tried: "
        "columns that are not zeroed before they are filled, 9 % fewer instructions; the kernel at -O3, 7 % more."
    ),
    ("W2 zTensor 2 open", "ztensor"): (
        "A manifest is checked as CBOR, scanned to columns, and checked against the rules, in {ours} ms; 0.13 ms of "
        "it, which is what a file of one tensor takes, are calls of NumPy on columns. Tried: both kernels at -O3 and "
        "fewer of these calls, together a sixth of the time."
    ),
    ("W1 load, new process", "arrow"): (
        "It reads one buffer and gives views of it. As many threads that read the same bytes, and do nothing else (see "
        "bare), are hardly faster than our {ours} ms: the goal is out of reach of whoever reads."
    ),
    ("W7 2 % changed", "GB/s, checkout"): _CHAIN,
    ("W7 2 % random bits", "GB/s, checkout"): _CHAIN,
    ("diff against tensors", "as the exponent of time"): _VIEWS,
    ("identify against tensors", "as the exponent of time"): _VIEWS,
    ("apply against tensors", "as the exponent of memory"): _PREPARED,
    ("store checkout against tensors", "as the exponent of memory"): _PREPARED,
    ("store commit against tensors", "as the exponent of time"): _VIEWS,
    ("W1 slice of 1 %", "bintensors"): _SLICE,
    ("W1 slice of 1 %", "safetensors"): _SLICE,
    ("S3 load, 500 MB in 324 tensors", "parallel get"): (
        "The bytes as the client library hands them over, in {theirs} ms; we copy them once more, into arrays that can "
        "be written, {more} ms. Tried: other sizes of chunks, small pages, each answer as a whole: no difference that "
        "could be told from the noise."
    ),
    ("import load and save", "numpy"): "We import NumPy, which takes {theirs} ms, and then ourselves, {more} ms more.",
    ("W4 load", "MB of memory"): _OBJECTS,
    ("W4 zTensor 0.1 load", "MB of memory"): _OBJECTS,
    ("W4 zTensor 2 load", "MB of memory"): _OBJECTS,
    ("W4 load safetensors", "MB of memory"): _OBJECTS,
}


def reason(results: dict[str, Any], case: str, peer: str) -> str | None:
    """The reason for a case and a peer (a library, or the unit of a limit); None if there is none."""
    text = REASONS.get((case, peer))
    row = next((row for row in results["rows"] if row["case"] == case), None)
    if text is None or row is None:
        return text
    ours, theirs = next(iter(row["ms"].values())), row["ms"].get(peer, 0)
    return text.format(ours=number(ours), theirs=number(theirs), more=number(max(ours - theirs, 0)))
