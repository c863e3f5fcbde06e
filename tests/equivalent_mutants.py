"""Mutants that no caller could notice, each with the reason. `tests/mutants.py` leaves them out."""

from __future__ import annotations

__all__ = ["EQUIVALENT"]

EQUIVALENT: dict[str, str] = {
    "bridges/table.py: if kind not in _OF_CLASS:  →  if True:": "looks a class up that is known: the same bridge",
    "operations/_small_stats.py: _TOGETHER_COUNT // count  →  _TOGETHER_COUNT * count": "tensors described at once",
    "io/sink.py: time.sleep(0.001)  →  pass": "asks for a lock more often, for as long",
    "model/strided.py: last - first  →  last + first": "decodes into memory of its own, and copies: the same bytes",
    "model/payload.py: if any((dtype in _CARRIERS for dtype in {array.dtype for array in arrays})):  →  if True:": (
        "arrays of other dtypes are viewed as what they are"
    ),
    "wire/gzipped.py: 10  →  11": "compressed bytes that are read at a time",
    "wire/cid.py: if self.held:  →  if True:": "copies a chunk that could be given as it is: the same bytes",
    "containers/ztensor/lazy.py: if joined is None:  →  if True:": "parses each text by itself: the same texts",
    "io/remote.py: 4 << 20  →  4 >> 20": "how much is read ahead in a scan: more requests for the same bytes",
    "store/ingest.py: if found.record.depth == MAX_DEPTH or cost > MAX_CHAIN * (1 - _SPREAD):  →  if True:": (
        "the condition inside it is stricter: this one saves looking up the root"
    ),
    "containers/canonical.py: 4096  →  4097": "bytes of padding that are read at a time",
    "operations/_elements.py: if filled:  →  if True:": "copies a block that could be given as it is: the same bytes",
    "store/pack.py: 256  →  257": "bytes that are read at once, in the hope that the index fits",
    "operations/load.py: return allocate(nbytes)  →  return None": "NumPy allocates the array itself: the same values",
    "store/packs.py: found[at] if at in found else self.read(digest)  →  found[at] if False else self.read(digest)": (
        "reads and compares each block by itself: the same bytes, more slowly"
    ),
    "kernels/encode_headers.py: 16  →  17  in  "
    "buffer: bytearray = bytearray(16 + len(metadata) + len(text) + 112 * len(codes) + 20 * len(dims))": (
        "room for a header, which is cut to what it has"
    ),
    "kernels/varint_decode.py: count >= _HALF  →  count > _HALF": "2**31 elements, which the slow path reads as well",
    "model/tensor.py: if array.dtype.isnative:  →  if True:": "arrays of a tensor have the order of the machine",
    "store/delta_make.py: "
    "if batch and (nbytes + pair.nbytes > 2 * CHUNK_NBYTES or len(batch) == _BATCH_COUNT):  →  if False:": (
        "how many chunks a thread compares at a time: the same file"
    ),
    "store/delta_make.py: 0  →  1  in  batch, nbytes = [], 0": "the size of a batch: the same file",
    "wire/zstd.py: len(frames) > 1  →  len(frames) >= 1": "a small frame by itself is decoded at once: the same bytes",
    "model/slicing.py: 8  →  9": "how far gaps are read over, in how much memory: the same values",
    "kernels/sparse_decode.py: 16  →  17  in  _BLOCK_NBYTES = cython.declare(cython.int, 16 << 10)": (
        "how many bytes are in a block of the loop: the same planes"
    ),
    "io/sink.py: self._fd >= 0  →  self._fd > 0": "the directory is opened before the file, which is never 0",
    "store/packs.py: len(self._groups) > 1  →  len(self._groups) >= 1": "a group larger than the cache is read again",
    "wire/bson_template.py: if len(target) < _LARGE_NBYTES or not hasattr(mmap, 'MADV_HUGEPAGE'):  →  if True:": (
        "leaves out a hint for the operating system"
    ),
    "wire/zstd.py: if frame.nbytes is None and frame.window_at is not None:  →  if True:": (
        "a smaller window than the frame asks for, where its size is known: the same bytes"
    ),
    "wire/checksums.py: None if package is None else PathFinder.find_spec('_crc32c', package.submodule_search_loca"
    "  →  None if True else PathFinder.find_spec('_crc32c', package.submodule_search_locations)": (
        "imports the whole package: the same function"
    ),
    "wire/zstd.py: None if _context_nbytes(level) > FRAME_NBYTES else (level, checksum, compressor)"
    "  →  None if False else (level, checksum, compressor)": "keeps a large compressor, too: the same bytes",
    "dynd/codec/encode.py: _Writer(value).run(None) if flat is None else len(flat)"
    "  →  _Writer(value).run(None) if True else len(flat)": "counts the bytes one by one: the same number",
    "containers/ztensor/write01.py: "
    "if not options.compression.choices and (not options.checksum.exceptions) and (not archive.  →  if False:": (
        "writes tensors one by one: the same file"
    ),
    "io/sink.py: 1  →  2  in  fd, self._fd = self._fd, -1": "any negative number says that nothing is open",
    "containers/torchsave/parts.py: 1  →  2  in  _CHUNK_NBYTES = 1 << 20": "bytes that are made at a time",
    "model/index.py: if (self.begins[1:] >= self.ends[:-1]).all():  →  if False:": "sorts rows that are in order",
    "wire/ziparchive.py: begin <= offset < begin + len(data)  →  begin < offset < begin + len(data)": (
        "looks at the other windows for what this one begins with, or reads it again: the same bytes"
    ),
    "operations/_digests.py: 2  →  3  in  AHEAD = 2": "how far reads go ahead of the hashes: the same digests",
    "wire/zstd.py: 2 * arrived - reached  →  2 * arrived + reached": "when frames are looked for again: the same bytes",
    "operations/open.py: if not place.remote and not place.text.endswith(INDEX_SUFFIX):  →  if False:": (
        "asks whether a file is a folder before it is opened, not after that has failed"
    ),
    "containers/canonical.py: 0  →  1  in  "
    "ours = chunk.read(0, chunk.nbytes) if isinstance(chunk, Span) else as_bytes(chunk)": (
        "a span at another offset than it would have: the header, which has the offsets, differs as well"
    ),
    "containers/hdf5/btrees.py: 8  →  9  in  pointer = 8 + own + total_nbytes": (
        "the same widths in nodes of 512 and 2048 bytes, which HDF5 writes, up to a depth of three; a fourth level has "
        "millions of records"
    ),
    "wire/cbor.py: self.skip()[0] >= 0  →  self.skip()[0] > 0": "an item behind a head is never at 0",
    "wire/bson_template.py: ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_"
    "  →  pass": "leaves out a hint for the operating system",
    "store/encoder.py: if encoding not in _SPARSE_ONES and min(sizes.values(), default=1) < _CLEARLY_SPARSE:"
    "  →  if True:": (
        "tries every encoding on the whole chunk, not on a sample: a body that is not larger, more slowly"
    ),
    "model/computed.py: 0  →  1  in  size = 0": "a source that is never read",
    "store/pack.py: 0  →  1  in  count = len(records[0])": "the columns of a table have one length",
    "io/pieces.py: 0  →  1  in  small, nbytes = [], 0": "how many small pieces are joined: the same bytes",
    "operations/_load_rows.py: if len(rows) > 1 and shape and (0 not in shape):  →  if False:": (
        "makes each array by itself: the same arrays, more slowly"
    ),
    "operations/_load_rows.py: rows if (begins[1:] >= begins[:-1]).all() else rows[np.argsort(begins, kind='stable')]"
    "  →  rows if False else rows[np.argsort(begins, kind='stable')]": "sorts rows that are in order",
    "store/delta_apply.py: 2 << 20  →  2 >> 20": "how many chunks a thread takes at a time: the same values",
    "kernels/cbor_scan.py: state.text_end - end  →  state.text_end + end": "the text that was read last ends `joined`",
    "store/collect.py: copies.refresh()  →  pass": "the first block that is not there lists the packs again",
    "operations/_checksums.py: end - begin  →  end + begin  in  if end - begin > SCRATCH_NBYTES:": (
        "hashes the bytes from the source and reads them again later: the same digest and bytes"
    ),
    "kernels/bintensors.py: 9  →  10  in  "
    "capacity: cython.Py_ssize_t = 64 + 9 * len(dims) + 54 * count + len(text)": "room that is cut to what it has",
    "kernels/type_rows.py: 0  →  1  in  valid = number >= 0": "a fixed_string has a byte or more",
    "kernels/type_rows.py: 1  →  2  in  return -1 if found is None else found": "any negative number is no word",
    "kernels/type_rows.py: 1  →  2  in  return -1": "any negative number says that there is nothing",
    "kernels/type_rows.py: 0  →  1  in  if at < 0:": "no escape ends at 0 or 1",
    "kernels/type_sizes.py: 1  →  2  in  self.put(row, _CID_NBYTES, _CID_NBYTES, 1)": (
        "beside 36 bytes, one object more is free"
    ),
    "kernels/protobuf.py: 0  →  1  in  "
    "largest.append(None if len(indices[0]) - 1 in indices_external else self.largest())": "columns have one length",
    "kernels/protobuf.py: 0  →  1  in  if self.first < 0:": "the head of a field ends behind 0",
    "kernels/protobuf.py: self.first < 0  →  self.first <= 0": "the same",
    "kernels/protobuf.py: self.end <= self.reach  →  self.end < self.reach": "reads bytes again: the same bytes",
    "kernels/protobuf.py: self.begin <= at < self.reach  →  self.begin < at < self.reach": "the same",
    "kernels/protobuf.py: self.number < 64  →  self.number <= 64": "64 bits have no bit of this number",
    "kernels/protobuf.py: 0  →  1  in  if value > 0:": "a product without its ones",
    "kernels/pickle_steps.py: nbytes < 8  →  nbytes <= 8": "interpreted, the sign of eight bytes needs no more room",
    "kernels/pickle_steps.py: if nbytes < 8:  →  if True:": "the same",
    "kernels/pickle_steps.py: 8  →  9  in  if nbytes < 8:": "the same",
    "kernels/pickle_steps.py: 4096  →  4097": "how much may be looked at again, of thousands of values",
    "kernels/cbor_values.py: self.pos < self.end  →  self.pos <= self.end": (
        "interpreted, looking at what is behind the end raises IndexError as well"
    ),
    "kernels/cbor_values.py: 1  →  2  in  "
    "after: cython.Py_ssize_t = head_end(p, pos, len(data)) if pos >= 0 else -1": "any negative number is no position",
    "kernels/cbor_values.py: 0  →  1  in  if after < 0:": "a head ends behind 0",
    "kernels/cbor_values.py: after < 0  →  after <= 0": "the same",
    "kernels/cbor_values.py: 0  →  1  in  if self.pos < 0:": "the same",
    "kernels/cbor_values.py: self.pos < 0  →  self.pos <= 0": "the same",
    "kernels/skip_values.py: 100  →  101": "any number that is no answer",
    "kernels/skip_values.py: self.nbytes[item] < 0  →  self.nbytes[item] <= 0": "opens a frame of no bytes",
    "kernels/skip_values.py: nbytes >= 0  →  nbytes > 0": "the same",
    "kernels/skip_values.py: 0  →  1  in  if row == _BYTES or self.nbytes[row] >= 0:": (
        "a frame of no bytes is closed before a step"
    ),
    "kernels/skip_values.py: begin + size  →  begin - size": "how much is read ahead at a time",
    "kernels/skip_values.py: row + len(text) > self.capacity  →  row + len(text) >= self.capacity": "more room",
    "kernels/skip_values.py: self.nbytes[item] > self.end - self.at  →  self.nbytes[item] >= self.end - self.at": (
        "opens a frame of what could be skipped at once"
    ),
    "kernels/skip_values.py: if known is not None:  →  if False:": "reads each text again: the same rows",
    "kernels/skip_values.py: 1  →  2  in  return self.more(1) if size == varints.TRUNCATED else size": (
        "how much is read ahead at a time"
    ),
    "kernels/skip_values.py: row < 0  →  row <= 0": "row 0 is the caller's",
    "kernels/skip_values.py: 0  →  1  in  if end < 0:": "the same",
    "kernels/skip_values.py: 1  →  2  in  return -1": "any negative number says that there is no row",
    "kernels/skip_values.py: 0  →  1  in  if nbytes >= 0 and not exceeds(count, nbytes, self.end - self.at):": (
        "opens a frame of no bytes"
    ),
    "kernels/skip_values.py: self.nbytes[row] >= 0  →  self.nbytes[row] > 0": "the same",
    "kernels/skip_values.py: if self.done > 0:  →  if True:": "writes the last end, which is written again",
    "kernels/skip_values.py: 1  →  2  in  _KEPT = cython.declare(cython.Py_ssize_t, 1 << 14)  "
    "# rows of types in the input, before those are read again": "how many rows are kept: the same ends",
    "kernels/skip_values.py: end < 0  →  end <= 0": "a text has a row",
    "kernels/cbor_values.py: 0  →  1  in  return 0": "a number that no caller looks at",
    "kernels/skip_values.py: self.done > 0  →  self.done >= 0": "writes the last end, which is written again",
    "containers/onnx/tensors.py: 0  →  1  in  padded = np.array([*dims, 0, 0], np.int64)": (
        "dimensions of what has none, which nobody uses"
    ),
    "containers/onnx/tensors.py: 55  →  56": "2**56 elements of 128 bits, of which the product fits as well",
    "containers/dynd.py: 0  →  1  in  "
    "if nbytes.min(initial=0) < 0 or edges[-1] != data + length or data + length > source.size:": (
        "the smallest size of no tensors"
    ),
    "kernels/type_rows.py: 24  →  25": "bytes that no word has",
    "operations/_load_rows.py: if not out:  →  if False:": "looks for an array at every row, and finds none",
    "operations/_load_rows.py: return mapped.pop() if len(mapped) == 1 else None  →  return None": (
        "loads tensor by tensor: the same arrays, more slowly"
    ),
    "operations/writer.py: if not self._in_place:  →  if True:": "seeks to where it is",
    "store/packs.py: if len(digests) <= _FEW:  →  if True:": "looks many blocks up one by one: the same chains",
    "store/encodings.py: 0  →  1  in  "
    "planes.merge(parsed.decode(memory.room(parsed.nbytes, 0)), parsed.width, out)": "where memory begins",
    "store/packs.py: if not hidden:  →  if False:": "copies what could be used itself",
    "store/packs.py: 256  →  257": "indexes that are read by one thread after another",
    "store/packs.py: at >= 0  →  at > 0": "reads blocks one by one: the same bytes",
}
"""`module: line  →  changed line`, as the campaign prints it, and why. Where the same change of another line is no
equivalent, `  in  ` and the text of the source line follow."""
